"""What a script offers for loading less is named as it is typed, and not again where the command has it."""

from __future__ import annotations

from oomproof.plans.resume_arguments import loading_arguments, loading_hint

PLAIN = """
parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int)
parser.add_argument("-s", "--streaming", action="store_true")
parser.add_argument(
    "--low-cpu-mem-usage", action="store_true")
"""
FIELDS = """
@dataclass
class ModelArguments:
    model_name_or_path: str = field(default=None)
    dtype: Optional[str] = field(default=None)
    streaming: bool = field(default=False, metadata={"help": "Enable streaming mode"})

parser = HfArgumentParser((ModelArguments, TrainingArguments))
"""


def test_arguments_of_a_parser_and_of_a_dataclass() -> None:
    assert loading_arguments(PLAIN, []) == ("--streaming", "--low-cpu-mem-usage")
    assert loading_arguments(FIELDS, []) == ("--streaming", "--dtype")
    assert loading_arguments(FIELDS.replace("HfArgumentParser", "make"), []) == ()


def test_what_is_typed_already_is_not_offered() -> None:
    assert loading_arguments(FIELDS, ["python", "t.py", "--streaming", "--dtype=float16"]) == ()
    assert loading_hint(FIELDS, ["--streaming"]).endswith("--dtype") and loading_hint("", []) == ""

"""What tokenizing takes in memory with HF datasets: the naive way, the usual "fix", streaming ways, `oomproof.data.tokenize()`.

Each way in a process of its own, for a file and for one of twice its rows: what grows with the data is not bounded."""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

from lab import HERE, MIB, save, table

from oomproof.sizing.data import load_child, tokenize
from oomproof.sizing.data.load_proof import measure

LIMIT = 1800 * MIB
# imported, not run: datasets hashes what it calls, and cannot take __main__ apart
CHILD = (
    f"import sys; sys.path.insert(0, {str(HERE)!r}); import tokenization; tokenization.child(*sys.argv[1:])"
)
SYLLABLES = ["mem", "o", "ry", "train", "ing", "batch", "lo", "ss", "ten", "sor", "step", "ra", "te"]


def write_rows(path: Path, rows: int) -> None:
    numbers = random.Random(1)
    words = ["".join(numbers.choices(SYLLABLES, k=3)) for _ in range(5000)]
    with path.open("w") as file:
        for row in range(rows):
            file.write(json.dumps({"id": row, "text": " ".join(numbers.choices(words, k=150))}) + "\n")


def make_tokenizer(path: Path, folder: Path) -> None:
    tokenizers = import_module("tokenizers")
    made = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="?"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=3000, special_tokens=["?"], show_progress=False)
    with path.open() as file:
        made.train_from_iterator((json.loads(next(file))["text"] for _ in range(2000)), trainer)
    import_module("transformers").PreTrainedTokenizerFast(
        tokenizer_object=made, unk_token="?"
    ).save_pretrained(folder)


def naive(path: str, tokenizer: Any, datasets: Any, folder: str) -> Any:
    with open(path) as file:
        examples = [json.loads(line) for line in file]
    train_data = [{"text": example["text"]} for example in examples]
    dataset = datasets.Dataset.from_list(train_data)
    return examples, train_data, dataset.map(lambda rows: tokenizer(rows["text"]), batched=True)


def usual_fix(path: str, tokenizer: Any, datasets: Any, folder: str) -> Any:
    with open(path) as file:
        examples = [json.loads(line) for line in file]
    train_data = [{"text": example["text"]} for example in examples]
    dataset = datasets.Dataset.from_list(train_data)
    mapped = dataset.map(
        lambda rows: tokenizer(rows["text"]), batched=True, batch_size=1000, writer_batch_size=1000
    )
    return examples, train_data, mapped


def from_file(path: str, tokenizer: Any, datasets: Any, folder: str) -> Any:
    dataset = datasets.load_dataset("json", data_files=path, split="train", cache_dir=folder)
    return dataset.map(lambda rows: tokenizer(rows["text"]), batched=True, remove_columns=["text", "id"])


def streaming(path: str, tokenizer: Any, datasets: Any, folder: str) -> Any:
    dataset = datasets.load_dataset("json", data_files=path, split="train", streaming=True)
    for _ in dataset.map(lambda rows: tokenizer(rows["text"]), batched=True, remove_columns=["text", "id"]):
        pass
    return dataset


def ours(path: str, tokenizer: Any, datasets: Any, folder: str) -> Any:
    return tokenize(path, tokenizer, cache_dir=folder)


WAYS: dict[str, tuple[str, Callable[..., Any]]] = {
    "naive": ("lists of dicts, `Dataset.from_list`, `map(batched=True)`", naive),
    "fix": ("the same with `batch_size=1000, writer_batch_size=1000`", usual_fix),
    "file": ('`load_dataset("json", …)`, `map(batched=True)`', from_file),
    "streaming": ("`load_dataset(…, streaming=True)`, `map(batched=True)`, one pass", streaming),
    "ours": ("`oomproof.data.tokenize()`", ours),
}


def child(way: str, path: str, tokenizer_folder: str, folder: str) -> None:
    def load(path: str) -> Iterator[Any]:
        datasets = import_module("datasets")
        datasets.disable_progress_bars()
        tokenizer = import_module("transformers").AutoTokenizer.from_pretrained(tokenizer_folder)
        tokenizer(["warm up"])
        yield
        yield WAYS[way][1](path, tokenizer, datasets, folder)

    load_child.LOADERS["way"] = load
    print(json.dumps(load_child.main("way", path)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=40_000)
    arguments = parser.parse_args()
    results: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    sizes = []
    with tempfile.TemporaryDirectory(prefix="oomproof-bench-") as name:
        folder, path = Path(name), Path(name) / "rows.jsonl"
        for rows in (arguments.rows, 2 * arguments.rows):
            write_rows(path, rows)
            make_tokenizer(path, folder / "tokenizer")
            sizes.append(path.stat().st_size)
            for way in WAYS:
                with tempfile.TemporaryDirectory(dir=folder) as cache:
                    words = [way, str(path), str(folder / "tokenizer"), cache]
                    proof = measure([sys.executable, "-c", CHILD, *words], str(path), LIMIT)
                results[way].append(
                    {"rows": rows, "peak": proof.peak, "kept": proof.kept, "seconds": round(proof.seconds, 1)}
                )
                print(way, results[way][-1], flush=True)
    lines = [
        [
            WAYS[way][0],
            *(f"{run['peak'] / MIB:.0f}" for run in runs),
            *(f"{run['seconds']:.0f}" for run in runs),
        ]
        for way, runs in results.items()
    ]
    first, second = (f"{rows:,} rows" for rows in (arguments.rows, 2 * arguments.rows))
    title = (
        f"Peak in MiB and seconds; {' and '.join(f'{size / MIB:.0f} MiB' for size in sizes)} of JSON Lines"
    )
    table(title, ["", f"peak, {first}", second, f"seconds, {first}", second], lines)
    save("tokenization", {"datasets": version("datasets"), "bytes": sizes, "ways": results})


if __name__ == "__main__":
    main()

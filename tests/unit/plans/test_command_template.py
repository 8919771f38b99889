"""Placeholders typed by the user, and arguments recognised by their names."""

from __future__ import annotations

from pathlib import Path

import pytest

from oomproof.errors import OomproofError
from oomproof.plans.knobs import Template, parse_knob, template_of


def recognised(text: str, *knobs: str, folder: str = ".") -> Template:
    return template_of(text.split(), [parse_knob(knob) for knob in knobs], folder=folder)


def test_known_placeholders_need_no_description() -> None:
    template = recognised("python t.py --bs {batch} --accum {accum} --workers={workers}")
    assert [(knob.name, knob.kind, knob.first) for knob in template.knobs] == [
        ("batch", "batch", None),
        ("accum", "accum", None),
        ("workers", "workers", None),
    ]
    filled = template.command({"batch": "8", "accum": "2", "workers": "0"})
    assert filled == ["python", "t.py", "--bs", "8", "--accum", "2", "--workers=0"]


def test_another_placeholder_needs_its_values() -> None:
    with pytest.raises(OomproofError, match=r"nothing says what \{seq\} may be"):
        recognised("python t.py --seq {seq}")
    assert recognised("python t.py --seq {seq}", "seq=1024,512").knobs[0].values == ("1024", "512")
    with pytest.raises(OomproofError, match=r"did you mean 'batch'"):
        recognised("python t.py --bs {batc}")


def test_braces_of_the_command_stay() -> None:
    template = template_of(["python", "t.py", '{"a": 1}', "{{x}}", "{batch}"])
    assert template.command({"batch": "8"}) == ["python", "t.py", '{"a": 1}', "{x}", "8"]


def test_an_empty_value_leaves_its_word_out() -> None:
    template = recognised("python t.py {ckpt} --bs {batch}", "ckpt=,--gradient-checkpointing")
    assert template.command({"ckpt": "", "batch": "4"}) == ["python", "t.py", "--bs", "4"]


def test_arguments_are_recognised_by_name_and_keep_their_values() -> None:
    template = recognised("python t.py --batch-size 64 --lr 0.1 data.num_workers=16 --eval_batch_size=8")
    assert not template.typed
    assert template.words == (
        "python", "t.py", "--batch-size", "{batch}", "--lr", "0.1", "data.num_workers={workers}", "--eval_batch_size={eval_batch}",
    )  # fmt: skip
    assert {knob.name: knob.first for knob in template.knobs} == {"batch": 64, "workers": 16, "eval_batch": 8}


def test_the_short_name_that_image_trainings_have() -> None:
    template = recognised("python main.py -a resnet50 -j 8 -b 256")
    assert [(knob.name, knob.first) for knob in template.knobs] == [("workers", 8), ("batch", 256)]
    assert recognised("python main.py -b 256", "batch=256..32").knobs[0].least == 32
    assert recognised("python main.py -b 256", "b=256..32").knobs[0].name == "b", "as the user calls it"
    assert not recognised("python main.py --b 256 b=256").knobs


def test_the_last_argument_of_a_name_counts() -> None:
    template = recognised("python t.py --bs 64 --lr 1 --bs 32")
    assert template.words == ("python", "t.py", "--bs", "64", "--lr", "1", "--bs", "{batch}")
    assert template.knobs[0].first == 32


def test_a_launchers_own_arguments_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "t.py").touch()
    template = recognised("accelerate launch --num_workers 2 t.py --num_workers 8", folder=str(tmp_path))
    assert template.words == (
        "accelerate",
        "launch",
        "--num_workers",
        "2",
        "t.py",
        "--num_workers",
        "{workers}",
    )


def test_a_described_argument_has_the_users_values() -> None:
    template = recognised("python t.py --max-length 2048 --bs 8", "max_length=2048,1024", "batch=8..2")
    assert {knob.name: (knob.first, knob.least, knob.values) for knob in template.knobs} == {
        "max_length": (None, 1, ("2048", "1024")),
        "batch": (8, 2, ()),
    }
    with pytest.raises(OomproofError, match="the command has no argument 'seq'"):
        recognised("python t.py --bs 8", "seq=2,1")


def test_a_command_without_any_has_no_knobs() -> None:
    assert recognised("python t.py --lr 0.1 --name batch").knobs == ()

"""Which arguments may change, how far, and which gives way first."""

from __future__ import annotations

import pytest

from oomproof.errors import OomproofError
from oomproof.plans.knobs import Knob, kind_of, parse_knob, sacrifice_order


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("--batch-size", "batch"),
        ("per_device_train_batch_size", "batch"),
        ("data.batch_size", "batch"),
        ("--per_device_eval_batch_size", "eval_batch"),
        ("--val-batch-size", "eval_batch"),
        ("--gradient_accumulation_steps", "accum"),
        ("--accumulate-grad-batches", "accum"),
        ("-j", "workers"),
        ("--dataloader_num_workers", "workers"),
        ("--prefetch-factor", "prefetch"),
        ("--lr", None),
        ("--warmup-steps", None),
    ],
)
def test_a_name_tells_what_it_is(name: str, kind: str | None) -> None:
    assert kind_of(name) == kind


def test_a_range_is_halved_down_to_its_least() -> None:
    assert list(parse_knob("batch=48..4").smaller("48")) == ["24", "12", "6", "4"]
    assert list(parse_knob("workers=5..0").smaller("5")) == ["2", "1", "0"]


def test_a_list_is_taken_in_its_order() -> None:
    knob = parse_knob("ckpt=,--gradient-checkpointing")
    assert knob.kind == "choice" and list(knob.smaller("")) == ["--gradient-checkpointing"]
    assert list(parse_knob("seq_len=2048,1024,512").smaller("1024")) == ["512"]


@pytest.mark.parametrize(
    "text", ["batch", "batch=", "batch=4..64", "batch=64..0", "batch=64,x", "seq=1,1", "1a=2,3", "=1,2"]
)
def test_what_cannot_be_read_is_one_line_with_a_hint(text: str) -> None:
    with pytest.raises(OomproofError) as error:
        parse_knob(text)
    assert error.value.status == 2 and error.value.hint


def test_workers_give_way_first_and_length_last_unless_told() -> None:
    knobs = [
        Knob("seq_len", "choice", ("2048", "1024")),
        Knob("precision", "choice", ("fp32", "bf16")),
        Knob("accum", "accum"),
        Knob("checkpointing", "choice", ("", "--ckpt")),
        Knob("batch", "batch"),
        Knob("beams", "choice", ("4", "2")),
        Knob("workers", "workers", least=0),
    ]
    order = [knob.name for knob in sacrifice_order(knobs)]
    assert order == ["workers", "batch", "accum", "checkpointing", "precision", "beams", "seq_len"]
    assert [knob.name for knob in sacrifice_order(knobs, ["seq_len", "batch"])][:3] == [
        "seq_len",
        "batch",
        "workers",
    ]
    with pytest.raises(OomproofError, match="--order names lr"):
        sacrifice_order(knobs, ["lr"])


@pytest.mark.parametrize(
    "knob", ["ckpt=,--ckpt", "gc=,--gradient-checkpointing", "recompute=0,1", "remat=none,full"]
)
def test_recomputing_gives_way_before_precision_whatever_it_is_called(knob: str) -> None:
    knobs = [parse_knob(text) for text in ("seq_len=512,256", "low=,--bf16", "dtype=float32,bfloat16", knob)]
    order = [chosen.name for chosen in sacrifice_order(knobs)]
    assert order == [knob.partition("=")[0], "low", "dtype", "seq_len"]


def test_a_range_of_words_is_no_single_value() -> None:
    with pytest.raises(OomproofError, match="no range of whole numbers"):
        parse_knob("batch=a..b")

"""One value of a file is changed, where it stands and nowhere else; what cannot be placed exactly is told."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oomproof.remedies.config_formats.format_choice import scalars_of, with_value
from oomproof.remedies.config_formats.scalars import Scalar, Unreadable


def named(path: str, text: str, name: str) -> list[Scalar]:
    return scalars_of(path, text, lambda known: known == name)


def only(path: str, text: str, name: str) -> Scalar:
    (scalar,) = named(path, text, name)
    return scalar


def changed(path: str, text: str, name: str, new: str) -> str:
    return with_value(path, text, only(path, text, name), new)


YAML = """\
# the training
seed:   7
train:            # é
  batch_size: 64   # per device
  "num_workers": '16'
  schedule: [1, 2]
parameters:
  lr:
    values: [1, 2]
  accum:
    value: 1
"""


def test_yaml_keeps_comments_order_and_quotes() -> None:
    assert changed("t.yaml", YAML, "batch_size", "32") == YAML.replace("batch_size: 64 ", "batch_size: 32 ")
    assert changed("t.yml", YAML, "num_workers", "5") == YAML.replace("'16'", "'5'")
    assert only("t.yaml", YAML, "accum").key == "parameters.accum.value"
    assert changed("t.yaml", YAML, "accum", "2") == YAML.replace("value: 1", "value: 2")
    crlf = YAML.replace("\n", "\r\n")
    assert changed("t.yaml", crlf, "batch_size", "32") == crlf.replace("batch_size: 64 ", "batch_size: 32 ")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("base: &b\n  batch_size: 64\ntrain:\n  <<: *b\n", "anchor"),
        ("batch_size: &size 64\nother: *size\n", "anchor"),
        ("batch_size: !!int '64'\n", "tag"),
        ("batch_size: |\n  64\n", "block"),
        ('batch_size: "6\\x34"\n', "escape"),
    ],
)
def test_yaml_that_is_shared_or_odd_is_told(text: str, why: str) -> None:
    assert why in only("t.yaml", text, "batch_size").problem


def test_a_key_that_is_there_twice_is_met_twice() -> None:
    assert len(named("t.yaml", "batch_size: 64\nbatch_size: 32\n", "batch_size")) == 2
    assert len(named("t.json", '{"batch_size": 64, "batch_size": 32}', "batch_size")) == 2
    assert len(named("t.yaml", "a: {batch_size: 64}\n---\nb: {batch_size: 64}\n", "batch_size")) == 2
    assert len(named(".env", "BATCH_SIZE=1\nBATCH_SIZE=2\n", "batch_size")) == 2


TOML = """\
# c
[train]
batch_size = 64    # keep me
num_workers=16
name = "big" # n
[model.parts]
size.batch = 3
[[runs]]
prefetch = 2
"""


def test_toml_keeps_all_else() -> None:
    for name, before, new in (
        ("batch_size", "= 64 ", "32"),
        ("num_workers", "=16", "5"),
        ("prefetch", "= 2", "1"),
    ):
        old = re.sub(r"\D", "", before)
        assert changed("p.toml", TOML, name, new) == TOML.replace(before, before.replace(old, new))
    assert changed("p.toml", TOML, "name", "small") == TOML.replace('"big"', '"small"')
    assert only("p.toml", TOML, "batch").line == 7


def test_json_keeps_its_format() -> None:
    text = '{\n   "train" : {"batch_size":64, "x":[1, {"workers" :  16}] },\n\t"fp16": true}\n'
    assert changed("ds.json", text, "batch_size", "32") == text.replace(":64", ":32")
    assert changed("ds.json", text, "workers", "4") == text.replace(":  16", ":  4")
    assert only("ds.json", text, "workers").key == "train.x.1.workers"


def test_env_files() -> None:
    text = "# c\nexport BATCH_SIZE=64 # big\nWORKERS = '16'\nALL=\"$WORKERS\"\nEMPTY=\r\n"
    assert changed(".env", text, "batch_size", "32") == text.replace("=64", "=32")
    assert changed("train.env", text, "workers", "5") == text.replace("'16'", "'5'")
    assert only(".env.local", text, "all").problem


SHELL = """\
#!/bin/bash
# python train.py --batch-size 1
set -e
WORKERS=16
ACCUM=$1
torchrun --nproc 2 train.py \\
  --batch-size 64 --lr "1e-3" --workers "$WORKERS" \\
  --accum=$ACCUM --eval_batch_size="8" --prefetch ${PREFETCH:-2} ; echo done
"""


def test_launch_scripts() -> None:
    assert changed("run.sh", SHELL, "batch_size", "32") == SHELL.replace("--batch-size 64", "--batch-size 32")
    assert changed("run.sh", SHELL, "workers", "5") == SHELL.replace("WORKERS=16", "WORKERS=5"), (
        "where it is set"
    )
    assert changed("run.sh", SHELL, "eval_batch_size", "4") == SHELL.replace('"8"', '"4"')
    assert "variables" in only("run.sh", SHELL, "accum").problem
    assert "caller" in only("run.sh", SHELL, "prefetch").problem
    twice = "N=4\nif x; then N=8; fi\npython t.py --workers $N\n"
    assert "more than one place" in only("run.sh", twice, "workers").problem
    looped = "N=4\nfor N in 1 2; do python t.py --workers $N; done\n"
    assert "more than one place" in only("run.sh", looped, "workers").problem
    assert "nowhere" in only("run.sh", "python t.py --workers $N\n", "workers").problem


PYTHON = '''\
"""é"""
import argparse
batch_size = 64  # ü
class C:
    accum: int = 1
é = dict(num_workers=16, a=[1])
CONFIG = {"prefetch_factor": 2, "n": 1}
p.add_argument("-b", "--eval-batch-size", default=32, type=int)
def load(workers=8, *, bits=4): ...
self.cfg["name"] = 'x'
odd_size = 1_0
'''


def test_python_literals_by_the_name_they_stand_under() -> None:
    for name, before, after in (
        ("batch_size", "= 64", "= 32"), ("accum", "int = 1", "int = 2"), ("num_workers", "num_workers=16", "num_workers=5"),
        ("prefetch_factor", ": 2,", ": 1,"), ("eval_batch_size", "default=32", "default=16"), ("workers", "workers=8", "workers=0"),
        ("bits", "bits=4", "bits=8"), ("name", "'x'", "'y'"),
    ):  # fmt: skip
        new = re.sub(r"[^\w]", "", after.rpartition("=")[2].rpartition(":")[2])
        assert changed("t.py", PYTHON, name, new) == PYTHON.replace(before, after), name
    assert only("t.py", PYTHON, "odd_size").problem


@pytest.mark.parametrize(
    ("path", "text"),
    [("a.yaml", "a: [1"), ("a.toml", "a = "), ("a.json", "{'a': 1}"), ("a.py", "a ="), ("a.yaml", "\t- x")],
)
def test_what_is_not_what_its_name_says(path: str, text: str) -> None:
    with pytest.raises(Unreadable) as error:
        scalars_of(path, text, lambda _: True)
    assert str(error.value)


@pytest.mark.parametrize("new", ["", "a b", "x\ny", "#c", "'q'", "{x}", "5 # c"])
def test_only_plain_values_are_written(new: str) -> None:
    for path, text in (("t.yaml", YAML), ("p.toml", TOML), ("run.sh", SHELL), ("t.py", PYTHON)):
        with pytest.raises(Unreadable):
            with_value(path, text, only(path, text, "batch_size"), new)


keys = st.text("abcdefgh_é", min_size=1, max_size=6)
leaves = st.integers(0, 10**6) | st.booleans() | st.text("abc é\\\"'#:{}", max_size=6) | st.none()
trees = st.recursive(
    st.dictionaries(keys, leaves, max_size=4),
    lambda inner: st.dictionaries(keys, inner | leaves | st.lists(leaves, max_size=3), max_size=4),
    max_leaves=12,
)


@given(trees, st.integers(0, 3), st.integers(0, 9999))
def test_every_number_of_any_json_is_changed_alone(tree: dict[str, object], indent: int, new: int) -> None:
    text = json.dumps(tree, indent=indent or None, ensure_ascii=indent == 2)
    for path in ("t.json", "t.yaml"):
        for scalar in scalars_of(path, text, lambda _: True):
            if (
                scalar.value.isdecimal()
                and not scalar.quote
                and not scalar.problem
                and scalar.value != str(new)
            ):
                after = with_value(path, text, scalar, str(new))
                value = json.loads(after)
                for key in scalar.path[:-1]:
                    value = value[int(key) if isinstance(value, list) else key]
                last = scalar.path[-1]
                assert value[int(last) if isinstance(value, list) else last] == new


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused(text: str) -> None:
    for path in ("a.yaml", "a.toml", "a.json", "a.py", "a.sh", ".env"):
        try:
            for scalar in scalars_of(path, text, lambda _: True):
                assert (
                    scalar.problem
                    or text[scalar.start : scalar.end] == f"{scalar.quote}{scalar.value}{scalar.quote}"
                )
        except Unreadable:
            continue

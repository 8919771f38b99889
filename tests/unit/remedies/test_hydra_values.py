"""Which file's value Hydra takes. What is expected here was composed once by Hydra 1.3 itself, and agreed."""

from __future__ import annotations

import sys

import pytest

from oomproof.remedies.hydra_defaults import NotFollowed
from oomproof.remedies.hydra_values import _defaults, applied_values, override_words, trainers

pytest.importorskip("ruamel.yaml", reason="the extra [fix] is not installed")

TREE = {
    "train": """# @package _global_
defaults:
  - _self_
  - data: mnist
  - model: small.yaml
  - trainer: default
  - experiment: null
  - optional local: default
  - debug: null
seed: 1
data: {num_workers: 99}
""",
    "data/mnist": "batch_size: 128\nnum_workers: 0\n",
    "data/large": "defaults: [mnist]\nbatch_size: 512\n",
    "model/small": "defaults: [net/tiny]\nlayers: 2\n",
    "model/net/tiny": "hidden: 8\n",
    "trainer/default": "_target_: lightning.pytorch.trainer.Trainer\nmax_epochs: 10\ndevices: 1\n",
    "trainer/gpu": "defaults:\n  - default\ndevices: 2\n",
    "experiment/example": """# @package _global_
defaults:
  - override /data: large
  - override /trainer: gpu
data: {batch_size: 64}
trainer: {max_epochs: 3}
""",
    "experiment/plain": "# @package _global_\ntrainer: {max_epochs: 4}\n",
    "debug/default": "# @package _global_\ndata: {num_workers: 0}\ncallbacks: null\n",
}


def composed(text: str, tree: dict[str, str] = TREE) -> dict[str, tuple[str, str]]:
    groups = {path.rpartition("/")[0] for path in tree}
    values = applied_values(tree.get, lambda key: key in groups, "train", override_words(text.split()))
    return {".".join(path): (value.scalar.value, value.layer) for path, value in values.items()}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("", {"data.batch_size": ("128", "data/mnist"), "data.num_workers": ("0", "data/mnist"), "seed": ("1", "train")}),
        ("", {"model.net.hidden": ("8", "model/net/tiny"), "model.layers": ("2", "model/small")}),
        ("data=large", {"data.batch_size": ("512", "data/large"), "data.num_workers": ("0", "data/mnist")}),
        ("experiment=example", {"data.batch_size": ("64", "experiment/example"), "trainer.devices": ("2", "trainer/gpu")}),
        ("experiment=example data=mnist", {"data.batch_size": ("64", "experiment/example"), "trainer.max_epochs": ("3", "experiment/example")}),
        ("experiment=plain data=large", {"data.batch_size": ("512", "data/large"), "trainer.max_epochs": ("4", "experiment/plain")}),
        ("experiment=example debug=default", {"data.num_workers": ("0", "debug/default")}),
        ("+data@second=large", {"second.batch_size": ("512", "data/large"), "data.batch_size": ("128", "data/mnist")}),
    ],
)  # fmt: skip
def test_the_last_that_is_merged_wins(words: str, expected: dict[str, tuple[str, str]]) -> None:
    found = composed(words)
    assert {key: found[key] for key in expected} == expected


def test_the_command_line_is_over_every_file() -> None:
    found = composed("experiment=example data.batch_size=7 ++trainer.devices=4")
    assert "data.batch_size" not in found and "trainer.devices" not in found
    assert not any(key.startswith("data.") and key != "data.num_workers" for key in composed("~data"))


def test_a_config_without_self_is_merged_after_those_it_names() -> None:
    tree = {
        "train": "defaults:\n  - data: mnist\ndata: {batch_size: 16}\n",
        "data/mnist": "batch_size: 128\n",
    }
    assert composed("", tree)["data.batch_size"] == ("16", "train")


def test_a_value_that_becomes_nothing_takes_all_below_it_along() -> None:
    tree = {
        "train": "defaults: [_self_, {data: mnist}, {debug: quiet}]\n",
        "data/mnist": "loader: {batch_size: 128}\n",
        "debug/quiet": "# @package _global_\ndata: {loader: null}\n",
    }
    assert "data.loader.batch_size" not in composed("", tree)


def test_what_is_made_in_code_leaves_a_doubt_on_what_it_may_change() -> None:
    tree = {
        "train": "defaults: [{data: mnist}, schema, _self_]\nbatch_size: 3\n",
        "data/mnist": "batch_size: 128\n",
    }
    values = applied_values(tree.get, lambda key: key == "data", "train", [])
    assert "schema" in values[("data", "batch_size")].doubt and not values[("batch_size",)].doubt


@pytest.mark.parametrize(
    ("tree", "words", "says"),
    [
        ({"train": "defaults: {data: mnist}\n"}, "", "no list"),
        ({"train": "defaults: [{data: '???'}]\n"}, "", "has to be given"),
        ({"train": "defaults: [{data: 'a', model: b}]\n"}, "", "has"),
        ({"train": "defaults: [train]\n"}, "", "name each other"),
        ({"train": "a: [\n"}, "", "cannot be read"),
        ({"train": "defaults: [{data: a}]\n", "data/a": "x: 1\n"}, "data=a,b", "once for each"),
        ({"train": "defaults: [{data: '${nobody}'}]\n"}, "", "refers"),
    ],
)
def test_what_is_not_followed_is_said(tree: dict[str, str], words: str, says: str) -> None:
    with pytest.raises(NotFollowed, match=says.replace("(", r"\(")):
        composed(words, tree)


@pytest.mark.parametrize("merged", [False, True])
def test_aliases_that_stand_for_too_much_are_not_followed(merged: bool) -> None:
    lines = ["a0: &a0 {x: 1}"]
    for level in range(1, 9):
        aliases = f"[{', '.join([f'*a{level - 1}'] * 9)}]"
        lines.append(f"a{level}: &a{level} {f'{{<<: {aliases}}}' if merged else aliases}")
    text = "\n".join([*lines, "defaults: [*a8]", ""])
    with pytest.raises(NotFollowed, match="its aliases stand for too much"):
        _defaults("train", text)


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ruamel.yaml", None)
    with pytest.raises(NotFollowed, match="pip install"):
        composed("")


def test_a_choice_may_refer_to_another() -> None:
    tree = {
        "train": "defaults: [{data: mnist}, {model: '${data}_net'}]\n",
        "data/mnist": "batch_size: 1\n",
        "model/mnist_net": "hidden: 5\n",
    }
    assert composed("", tree)["model.hidden"] == ("5", "model/mnist_net")


def test_lightnings_trainer_is_found() -> None:
    values = applied_values(TREE.get, lambda key: key in ("data", "model", "trainer"), "train", [])
    assert trainers(values) == [("trainer",)]


def test_words_of_a_command_line() -> None:
    words = override_words(
        ["data.batch_size=64", "+a=b", "~logger", "-m", "--config-name=x", "plain", "++c=1=2"]
    )
    assert [(word.sign, word.key, word.value) for word in words] == [
        ("", "data.batch_size", "64"), ("+", "a", "b"), ("~", "logger", None), ("++", "c", "1=2"),
    ]  # fmt: skip

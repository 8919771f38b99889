"""Which file's value Hydra takes, asked of Hydra itself."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from oomproof.remedies.hydra_program import HydraProgram, hydra_program

pytest.importorskip("ruamel.yaml", reason="the extra [fix] is not installed")
pytest.importorskip("hydra", reason="hydra-core is not installed")

SCRIPT = 'raise SystemExit("nothing of the script runs")\n@hydra.main(config_path="conf", config_name="train")\ndef main(cfg): pass\n'
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


def asked(folder: Path, text: str, tree: dict[str, str]) -> HydraProgram:
    for name, config in tree.items():
        path = folder / "conf" / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(config)
    (folder / "train.py").write_text(SCRIPT)
    before = sorted(folder.rglob("*"))
    program = hydra_program([sys.executable, "train.py", *text.split()], str(folder))
    assert program is not None and sorted(folder.rglob("*")) == before
    return program


def composed(folder: Path, text: str, tree: dict[str, str] = TREE) -> dict[str, tuple[str, str]]:
    program = asked(folder, text, tree)
    assert not program.problem
    return {".".join(path): (value.scalar.value, value.layer) for path, value in program.values.items()}


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
def test_the_last_that_is_merged_wins(
    tmp_path: Path, words: str, expected: dict[str, tuple[str, str]]
) -> None:
    found = composed(tmp_path, words)
    assert {key: found[key] for key in expected} == expected


def test_the_command_line_is_over_every_file(tmp_path: Path) -> None:
    found = composed(tmp_path, "experiment=example data.batch_size=7 ++trainer.devices=4")
    assert "data.batch_size" not in found and "trainer.devices" not in found
    assert not any(
        key.startswith("data.") and key != "data.num_workers" for key in composed(tmp_path, "~data")
    )


def test_a_value_that_becomes_nothing_takes_all_below_it_along(tmp_path: Path) -> None:
    tree = {
        "train": "defaults: [_self_, {data: mnist}, {debug: quiet}]\n",
        "data/mnist": "loader: {batch_size: 128}\nsizes: [1, 2]\n",
        "debug/quiet": "# @package _global_\ndata: {loader: null, sizes: [3]}\n",
    }
    found = composed(tmp_path, "", tree)
    assert "data.loader.batch_size" not in found and "data.sizes.1" not in found


def test_what_is_made_in_code_leaves_a_doubt_on_what_it_may_change(tmp_path: Path) -> None:
    tree = {
        "train": "defaults: [{data: mnist}, schema, _self_]\nbatch_size: 3\n",
        "data/mnist": "batch_size: 128\n",
    }
    values = asked(tmp_path, "rate=1", tree).values
    assert "schema" in values[("data", "batch_size")].doubt and not values[("batch_size",)].doubt


@pytest.mark.parametrize(
    ("tree", "words", "says"),
    [
        ({"train": "defaults: [{data: '???'}]\n"}, "", "data"),
        ({"train": "a: [\n"}, "", "parsing"),
        ({"train": "defaults: [{data: a}]\n", "data/a": "x: 1\n"}, "data=a,a", "Ambiguous value"),
        ({"train": "x: 1\n"}, "-m x=1,2", "several jobs"),
    ],
)
def test_what_hydra_refuses_is_one_line(tmp_path: Path, tree: dict[str, str], words: str, says: str) -> None:
    program = asked(tmp_path, words, tree)
    assert says in program.problem and "\n" not in program.problem and not program.values


def test_aliases_that_stand_for_too_much_end_in_one_line(tmp_path: Path) -> None:
    lines = ["a0: &a0 {x: 1}"]
    lines += [f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]" for level in range(1, 9)]
    program = asked(tmp_path, "", {"train": "\n".join([*lines, ""])})
    assert program.problem and "\n" not in program.problem and not program.values


def test_a_python_without_hydra_is_named(tmp_path: Path) -> None:
    python = tmp_path / "bin" / "python3"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    python.chmod(0o755)
    (tmp_path / "train.py").write_text(SCRIPT)
    program = hydra_program([str(python), "train.py"], str(tmp_path))
    assert program is not None and program.problem.endswith(" has no hydra")
    program = hydra_program(["python3", "train.py"], str(tmp_path), str(python.parent))
    assert program is not None and program.problem.endswith(" has no hydra")
    program = hydra_program(["nobody", "train.py"], str(tmp_path))
    assert program is not None and "no Python" in program.problem


def test_without_the_package_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ruamel.yaml", None)
    assert "pip install" in asked(tmp_path, "", TREE).problem


def test_a_folder_more_and_a_choice_that_refers_to_another(tmp_path: Path) -> None:
    tree = {
        "train": "defaults: [{data: mnist}, {model: '${data}_net'}]\n",
        "data/mnist": "batch_size: 1\n",
    }
    (tmp_path / "more/model").mkdir(parents=True)
    (tmp_path / "more/model/mnist_net.yaml").write_text("hidden: 5\n")
    assert composed(tmp_path, "-cd more", tree)["model.hidden"] == ("5", "model/mnist_net")


def test_lightnings_trainer_is_found(tmp_path: Path) -> None:
    assert asked(tmp_path, "", TREE).trainers() == [("trainer",)]

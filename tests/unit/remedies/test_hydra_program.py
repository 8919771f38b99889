"""A Hydra program's settings: found in its folder of configs, changed there by fix, and behind the command by a retry."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

import pytest

from oomproof.plans.death_facts import DeathFacts
from oomproof.plans.knobs import template_of
from oomproof.plans.plan import effective_batch
from oomproof.plans.smaller_plans import SmallerPlan, argument_name, describe_change, first_plan, next_plan
from oomproof.remedies.fix_files import FoundSettings, find_settings, program_of, settings_files
from oomproof.remedies.hydra_program import hydra_program, main_arguments, with_overrides

pytest.importorskip("ruamel.yaml", reason="the extra [fix] is not installed")
pytest.importorskip("hydra", reason="hydra-core is not installed")

FILES = {
    "src/train.py": '@hydra.main(version_base="1.3", config_path="../configs", config_name="train.yaml")\ndef main(cfg): pass\n',
    "configs/train.yaml": "defaults:\n  - _self_\n  - data: mnist\n  - trainer: default\n  - experiment: null\n",
    "configs/data/mnist.yaml": "batch_size: 128  # of each device\nnum_workers: 16\n",
    "configs/trainer/default.yaml": "_target_: lightning.pytorch.trainer.Trainer\n",
    "configs/experiment/big.yaml": "# @package _global_\ndata:\n  batch_size: 512\n",
    "run.sh": f"#!/bin/bash\nset -e\n{sys.executable} src/train.py experiment=big\n",
}
GPU, HOST = DeathFacts("gpu", phase="train"), DeathFacts("host")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def typed(command: str) -> list[str]:
    return [sys.executable if word == "python" else word for word in command.split()]


def found(project: Path, command: str) -> FoundSettings:
    argv = typed(command)
    program = program_of(argv, str(project))
    return find_settings(
        argv, str(project), settings_files(argv, str(project), None, None, program), (), program
    )


def test_the_file_whose_value_applied_is_the_place(project: Path) -> None:
    (project / "configs/trainer/default.yaml").write_text("max_epochs: 3\n")  # nothing that accumulates
    settings = found(project, "python src/train.py experiment=big")
    assert str(settings.places["batch"]) == "configs/experiment/big.yaml:3"
    assert str(settings.places["workers"]) == "configs/data/mnist.yaml:2" and not settings.refused
    assert str(found(project, "python src/train.py").places["batch"]) == "configs/data/mnist.yaml:1"
    assert "batch" not in found(project, "python src/train.py data.batch_size=64").places
    assert str(found(project, "bash run.sh").places["batch"]) == "configs/experiment/big.yaml:3"


def test_a_batch_and_the_accumulation_that_lightning_has_anyway_are_typed_together(project: Path) -> None:
    settings = found(project, "python src/train.py experiment=big")
    assert set(settings.places) == {"workers"} and settings.plan.get("accum") == "1"
    smaller = next_plan(
        settings.template, settings.plan, [], GPU, (), effective_batch(settings.template, settings.plan)
    )
    assert isinstance(smaller, SmallerPlan)
    assert settings.template.command(smaller.plan.as_dict())[2:] == [
        "experiment=big", "+trainer.accumulate_grad_batches=2", "data.batch_size=256",
    ]  # fmt: skip


def test_accumulation_that_stands_in_a_file_is_changed_there(project: Path) -> None:
    with (project / "configs/trainer/default.yaml").open("a") as file:
        file.write("accumulate_grad_batches: 1\n")
    settings = found(project, "python src/train.py")
    assert {name: str(place) for name, place in settings.places.items()} == {
        "workers": "configs/data/mnist.yaml:2",
        "batch": "configs/data/mnist.yaml:1",
        "accum": "configs/trainer/default.yaml:2",
    }


def test_a_retry_changes_what_nobody_typed_behind_the_command(project: Path) -> None:
    argv = [sys.executable, "src/train.py", "experiment=big"]
    template = with_overrides(template_of(argv, folder=str(project)), hydra_program(argv, str(project)))
    plan = first_plan(template, argv)
    assert str(plan) == "workers=16 batch=512 accum=1" and template.command(plan.as_dict()) == argv
    assert argument_name(template, "accum") == "trainer.accumulate_grad_batches"
    for facts, told, words in (
        (HOST, "data.num_workers 16 → 8", ["data.num_workers=8"]),
        (
            GPU,
            "data.batch_size 512 → 256, trainer.accumulate_grad_batches 1 → 2",
            ["data.batch_size=256", "+trainer.accumulate_grad_batches=2"],
        ),
    ):
        smaller = next_plan(template, plan, [plan], facts, (), 512)
        assert isinstance(smaller, SmallerPlan) and describe_change(template, plan, smaller.plan) == told
        assert template.command(smaller.plan.as_dict()) == [*argv, *words]


def test_what_is_typed_stays_where_it_is_typed(project: Path) -> None:
    argv = [sys.executable, "src/train.py", "data.batch_size=64", "trainer.accumulate_grad_batches=2"]
    template = with_overrides(template_of(argv, folder=str(project)), hydra_program(argv, str(project)))
    assert [name for name, _ in template.overrides] == ["workers"]
    assert "batch=64 accum=2" in str(first_plan(template, argv))


def test_persistent_workers_keep_one(project: Path) -> None:
    with (project / "configs/data/mnist.yaml").open("a") as file:
        file.write("persistent_workers: true\n")
    argv = [sys.executable, "src/train.py"]
    knob = with_overrides(template_of(argv, folder=str(project)), hydra_program(argv, str(project))).knob(
        "workers"
    )
    assert knob is not None and knob.least == 1


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("python src/train.py -m data.batch_size=32,64", "several jobs"),
        ("python src/train.py data=mnist,other", "Ambiguous"),
    ],
)
def test_what_cannot_be_followed_is_one_line_and_changes_nothing(
    project: Path, command: str, says: str
) -> None:
    settings = found(project, command)
    assert not settings.places and says in " ".join(refusal.why for refusal in settings.refused)
    argv = typed(command)
    template = template_of(argv, folder=str(project))
    assert with_overrides(template, hydra_program(argv, str(project))) == template


def test_two_values_of_one_kind_are_nobodys_guess(project: Path) -> None:
    (project / "configs/experiment/big.yaml").write_text("# @package _global_\nval: {batch_size: 9}\n")
    settings = found(project, "python src/train.py experiment=big")
    assert "batch" not in settings.places and "2 places" in settings.refused[0].why
    argv = [sys.executable, "src/train.py", "experiment=big"]
    template = with_overrides(template_of(argv, folder=str(project)), hydra_program(argv, str(project)))
    assert template.knob("batch") is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            '@hydra.main("conf", "config")\ndef main(cfg): pass',
            {"config_path": "conf", "config_name": "config"},
        ),
        ('hydra.main(config_path=None, config_name="x")(main)()', {"config_name": "x"}),
        ("@hydra.main(config_path=HERE)\ndef main(cfg): pass", {}),
        ("import hydra\n", None),
        ("def broken(:\n    hydra.main()", None),
    ],
)
def test_what_the_decorator_says(text: str, expected: dict[str, str] | None) -> None:
    assert main_arguments(textwrap.dedent(text)) == expected


def test_the_flags_of_the_command_come_before_the_decorator(project: Path) -> None:
    (project / "src/other").mkdir()
    (project / "src/other/tiny.yaml").write_text("batch_size: 2\n")
    program = hydra_program(
        [sys.executable, "src/train.py", "-cp", "other", "--config-name=tiny"], str(project)
    )
    assert program is not None and [".".join(path) for path in program.values] == ["batch_size"]

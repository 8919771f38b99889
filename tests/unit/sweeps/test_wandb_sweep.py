"""Sweep files of wandb's, in the forms that people keep in their repositories; and what is told of those that cannot be read."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from oomproof.errors import OomproofError
from oomproof.sweeps.search_space import Parameter
from oomproof.sweeps.wandb_sweep import DISTRIBUTIONS, SweepFile, read_sweep_file, sweep_of


def read(tmp_path: Path, text: str) -> SweepFile:
    path = tmp_path / "sweep.yaml"
    path.write_text(text)
    return read_sweep_file(path)


def by_name(file: SweepFile) -> dict[str, Parameter]:
    return {parameter.name: parameter for parameter in file.parameters}


def test_a_fine_tuning(tmp_path: Path) -> None:
    file = read(
        tmp_path,
        """
program: finetune.py
name: adapters
project: nlp
entity: lab
description: which adapter
method: bayes
run_cap: 40
metric: {name: eval/loss, goal: minimize, target: 0.4}
early_terminate: {type: hyperband, min_iter: 3}
parameters:
  learning_rate: {distribution: log_uniform_values, min: 1e-5, max: !!float 1e-3}
  lora_r: {values: [8, 16]}
  warmup_ratio: {min: 0.0, max: 0.1}
  layers: {min: 2, max: 6}
  bf16: {value: true}
  targets: {values: [[q, v], [q, k, v, o]]}
""",
    )
    assert (file.method, file.metric, file.goal, file.target, file.trials, file.name) == (
        "bayes", "eval/loss", "minimize", 0.4, 40, "adapters",
    )  # fmt: skip
    assert file.words == ("python", "finetune.py", "${args}")
    assert file.notes == ("early_terminate is ignored: every trial runs to its own end",)
    known = by_name(file)
    assert known["learning_rate"] == Parameter("learning_rate", "float", (), 1e-5, 1e-3, True)
    assert known["warmup_ratio"].kind == "float" and known["layers"].kind == "int", (
        "by how their ends are written"
    )
    assert known["bf16"].is_constant and known["targets"].values[1] == ["q", "k", "v", "o"]


def test_a_command_of_its_own_with_hydra_and_an_environment(tmp_path: Path) -> None:
    file = read(
        tmp_path,
        """
program: train.py
method: grid
command:
  - ${env}
  - OMP_NUM_THREADS=1
  - ${interpreter}
  - -u
  - ${program}
  - data=${envvar:DATASET}
  - 7
  - ${args_no_hyphens}
parameters:
  model.encoder.depth: {values: [2, 4]}
  agent.learning-rate: {value: 0.001}
""",
    )
    assert file.words == (
        "/usr/bin/env", "OMP_NUM_THREADS=1", "python", "-u", "train.py", "data=${envvar:DATASET}", "7", "${args_no_hyphens}",
    )  # fmt: skip
    assert [parameter.path for parameter in file.parameters] == [(), ()], "dots in a name do not nest it"


def test_nested_parameters(tmp_path: Path) -> None:
    file = read(
        tmp_path,
        """
parameters:
  optimizer:
    parameters:
      lr: {min: 0.0001, max: 0.1}
      schedule: {parameters: {warmup: {values: [10, 100]}}}
""",
    )
    assert [parameter.path for parameter in file.parameters] == [
        ("optimizer", "lr"),
        ("optimizer", "schedule", "warmup"),
    ]
    assert file.words == () and file.method is None


def test_every_distribution_is_understood() -> None:
    configs = {
        "constant": {"value": 3},
        "categorical": {"values": [1, 2]},
        "categorical_w_probabilities": {"values": [1, 2], "probabilities": [0.3, 0.7]},
        "int_uniform": {"min": 1, "max": 9},
        "uniform": {"min": 0, "max": 1},
        "q_uniform": {"min": 0, "max": 1, "q": 0.25},
        "log_uniform": {"min": -9.2, "max": -2.3},
        "log_uniform_values": {"min": 1e-4, "max": 0.1},
        "q_log_uniform": {"min": 3.5, "max": 5.5, "q": 8},
        "q_log_uniform_values": {"min": 32, "max": 256, "q": 8},
        "inv_log_uniform": {"min": 2.3, "max": 9.2},
        "inv_log_uniform_values": {"min": 1e-4, "max": 0.1},
        "normal": {"mu": 0.5, "sigma": 0.1},
        "q_normal": {"mu": 50, "sigma": 10, "q": 5},
        "log_normal": {"mu": -3, "sigma": 1},
        "q_log_normal": {"mu": 3, "sigma": 1, "q": 1},
    }
    assert set(configs) == set(DISTRIBUTIONS)
    made = {kind: {"distribution": kind, **config} for kind, config in configs.items()}
    file = sweep_of({"parameters": made}, "f")
    known = by_name(file)
    assert known["log_uniform"].low == pytest.approx(math.exp(-9.2)), "exponents, as wandb means it"
    assert known["inv_log_uniform"].high == pytest.approx(math.exp(-2.3))
    assert [known["q_log_uniform_values"].clean(sample) for sample in (33.0, 250.0)] == [32, 248]
    assert isinstance(known["q_log_uniform_values"].clean(33.0), int), "multiples of a whole number are whole"
    assert known["q_uniform"].all_values() == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert file.notes == (
        "the probabilities of categorical_w_probabilities are ignored: each value is as likely",
    )


@pytest.mark.parametrize(
    ("parameters", "says"),
    [
        ({"x": {"distribution": "beta", "a": 1, "b": 2}}, "unknown distribution 'beta'"),
        (
            {"x": {"distribution": "log_uniform_value", "min": 1, "max": 2}},
            "did you mean 'log_uniform_values'?",
        ),
        ({"x": {"distribution": "uniform", "min": "low", "max": 2}}, "min is no number: 'low'"),
        ({"x": {"distribution": "uniform", "max": 2}}, "min is no number"),
        ({"x": {"distribution": "log_uniform", "min": 1, "max": 5000}}, "log_uniform takes exponents"),
        ({"x": {"distribution": "int_uniform", "min": 1.5, "max": 2}}, "has whole ends"),
        ({"x": {"distribution": "normal", "mu": 0, "sigma": 0}}, "sigma must be above 0"),
        ({"x": {"distribution": "q_uniform", "min": 0, "max": 1, "q": 0}}, "q must be above 0"),
        ({"x": {"values": []}}, "has no values"),
        ({"x": {"values": None}}, "has no values"),
        ({"x": {"min": 1}}, "says neither value, values nor min and max"),
        ({"x": 5}, "says neither value nor range"),
        ({"a b": {"value": 1}}, "not a name"),
        ({"x": {"min": 2, "max": 1}}, "from 2 to 1 is no range"),
    ],
)
def test_a_parameter_that_cannot_be_read_is_named(parameters: dict[str, object], says: str) -> None:
    with pytest.raises(OomproofError) as error:
        sweep_of({"parameters": parameters}, "sweep.yaml")
    assert says in str(error.value) and error.value.hint and "sweep.yaml" in str(error.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "has no parameters"),
        ("- a\n- b\n", "has no parameters"),
        ("parameters: {x: {value: 1}}\nmethod: magic\n", "unknown method 'magic'"),
        ("parameters: {x: {value: 1}}\nmethod: baye\n", "did you mean 'bayes'?"),
        ("parameters: {x: {value: 1}}\nmetric: loss\n", "metric has no name"),
        ("parameters: {x: {value: 1}}\nmetric: {name: a, goal: lower}\n", "unknown goal 'lower'"),
        ("parameters: {x: {value: 1}}\nrun_cap: many\n", "is no number of trials"),
        (
            "parameters: {x: {value: 1}}\ncommand: ['${arg}']\n",
            "unknown ${arg} in command; did you mean 'args'?",
        ),
        ("parameters: {x: {value: 1}}\ncommand: ['${program}']\n", "stands for nothing"),
        ("parameters: [\n", "is no YAML, line 2"),
        ("parameters: {x: {values: &a [*a]}}\n", "nested too deeply"),
    ],
)
def test_a_file_that_cannot_be_read_is_one_line(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(OomproofError) as error:
        read(tmp_path, text)
    assert says in str(error.value) and error.value.message.count("\n") == 0


@pytest.mark.parametrize(
    ("first", "next_one"),
    [
        ("&v0 [1]", "[{}]"),
        ("&v0 {values: [1]}", "{{<<: [{}]}}"),
        (f"&v0 {'a' * 1000}", "[{}]"),
    ],
    ids=["lists", "merges", "text"],
)
def test_aliases_that_stand_for_too_much_are_refused(tmp_path: Path, first: str, next_one: str) -> None:
    """384 bytes took 3 GB and did not end."""
    lines = [f"d0: {first}"]
    for level in range(1, 9):
        lines.append(f"d{level}: &v{level} " + next_one.format(", ".join([f"*v{level - 1}"] * 9)))
    text = "\n".join([*lines, "parameters: {x: {values: *v8}}", ""])
    with pytest.raises(OomproofError, match="its aliases stand for too much"):
        read(tmp_path, text)


def test_aliases_of_ordinary_size_are_values(tmp_path: Path) -> None:
    text = f"many: &m {list(range(1000))}\nparameters:\n" + "".join(
        f"  x{number}: {{values: *m}}\n" for number in range(100)
    )
    told = read(tmp_path, text)
    assert len(told.parameters) == 100 and told.parameters[99].values == tuple(range(1000))


def test_what_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(OomproofError, match="no such file"):
        read_sweep_file(tmp_path / "none.yaml")
    with pytest.raises(OomproofError, match="Is a directory"):
        read_sweep_file(tmp_path)


def test_what_else_stands_there_is_told(tmp_path: Path) -> None:
    file = read(
        tmp_path, "parameters: {x: {values: [1, 2020-01-01]}}\ncontroller: {type: local}\nimage_uri: a\n"
    )
    assert file.notes == (f"ignored in {tmp_path / 'sweep.yaml'}: controller, image_uri",)
    assert file.parameters[0].values == (1, "2020-01-01"), "a date is its text"


def test_numbers_with_an_exponent_are_numbers_and_in_quotes_text(tmp_path: Path) -> None:
    told = read(tmp_path, "parameters: {lr: {values: [1e-2, 0.1, 2E+3, '1e-4', 1e-x]}}")
    assert told.parameters[0].values == (0.01, 0.1, 2000.0, "1e-4", "1e-x")


@pytest.mark.parametrize("key", ["lr: {value: 3}", "'lr': {value: 3}"])
def test_a_key_that_stands_there_twice(tmp_path: Path, key: str) -> None:
    with pytest.raises(OomproofError, match=r"line 4: lr is there twice"):
        read(tmp_path, f"parameters:\n  lr: {{value: 1}}\n  x: {{value: 1}}\n  {key}\n")
    text = "base: &b {distribution: uniform, min: 0, max: 1}\nparameters:\n  lr: *b\n  wd: {<<: *b, max: 2}\n"
    told = read(tmp_path, text)
    assert [parameter.high for parameter in told.parameters] == [1, 2], "an anchor is no second key"

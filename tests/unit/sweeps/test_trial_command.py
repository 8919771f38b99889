"""A trial's command: placeholders and wandb's macros, each value in its place."""

from __future__ import annotations

import json

import pytest
import yaml

from oomproof.errors import OomproofError
from oomproof.sweeps.search_space import Parameter
from oomproof.sweeps.trial_plans import arguments_of, check_words, command_of, wandb_config

LR = Parameter("lr", "values", (0.001,))
FLAG = Parameter("amp", "values", (True, False))
DEEP = Parameter("opt.wd", "values", (0.1,), path=("opt", "wd"))
POINT = {"lr": 1e-05, "amp": True, "opt.wd": 0.1}
ALL = (LR, FLAG, DEEP)


def made(*words: str, point: dict[str, object] = POINT) -> list[str]:
    return command_of(words, ALL, point, {"trial": "7", "accum": "2"}, "/tmp/args.json")


def test_placeholders_stay_one_word_each() -> None:
    assert made("python", "train.py", "--lr={lr}", "{opt.wd}", "out/{trial}", "{accum}") == [
        "python", "train.py", "--lr=1e-05", "0.1", "out/7", "2",
    ]  # fmt: skip
    assert made("echo", "{{lr}}") == ["echo", "{lr}"]


def test_the_forms_of_wandbs_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    nested = "{'wd': 0.1}"
    assert made("${args}") == ["--lr=1e-05", "--amp=True", f"--opt={nested}"]
    assert made("${args_no_hyphens}") == ["lr=1e-05", "amp=True", f"opt={nested}"]
    assert made("${args_no_equals}") == ["--lr", "1e-05", "--amp", "True", "--opt", nested]
    assert made("${args_no_boolean_flags}") == ["--lr=1e-05", "--amp", f"--opt={nested}"]
    assert made("${args_no_boolean_flags}", point={**POINT, "amp": False})[1] == f"--opt={nested}"
    assert (
        made("${args_append_hydra}")[0] == "+lr=1e-05" and made("${args_override_hydra}")[0] == "++lr=1e-05"
    )
    assert json.loads(made("${args_json}")[0]) == {"lr": 1e-05, "amp": True, "opt": {"wd": 0.1}}
    assert made("--config", "${args_json_file}") == ["--config", "/tmp/args.json"]
    monkeypatch.setenv("DATASET", "/data/x y")
    assert made("d=${envvar:DATASET}", "${envvar:NOT_SET}") == ["d=/data/x y", "NOT_SET"]


def test_the_config_that_wandb_reads_has_numbers() -> None:
    told = yaml.safe_load(wandb_config(arguments_of(ALL, POINT)))
    assert told == {
        "wandb_version": 1,
        "lr": {"value": 1e-05},
        "amp": {"value": True},
        "opt": {"value": {"wd": 0.1}},
    }
    assert isinstance(told["lr"]["value"], float), "JSON's 1e-05 would be a text to YAML"


@pytest.mark.parametrize(
    ("words", "knobs", "says"),
    [
        (["python", "train.py"], [], "the command does not use {lr}"),
        (["python", "train.py", "--lr", "{lr}"], [], "the command does not use {amp}"),
        (["python", "{lr}", "{amp}", "{opt.wd}", "{workers}"], [], "nothing says what {workers} may be"),
        (
            ["python", "{lr}", "{amp}", "{opt.w}"],
            [],
            "nothing says what {opt.w} may be; did you mean 'opt.wd'?",
        ),
    ],
)
def test_a_template_that_cannot_work(words: list[str], knobs: list[str], says: str) -> None:
    with pytest.raises(OomproofError) as error:
        check_words(words, ALL, knobs, by_config=False)
    assert says in str(error.value) and error.value.hint


def test_what_reaches_the_script_all_the_same() -> None:
    check_words(["python", "train.py", "${args}"], ALL, [], by_config=False)
    check_words(["python", "train.py"], ALL, [], by_config=True)
    check_words(
        ["python", "{lr}", "{amp}", "{opt.wd}", "{accum}", "{trial}"], ALL, ["accum"], by_config=False
    )
    with pytest.raises(OomproofError):  # half of them is a mistake, whoever reads wandb.config
        check_words(["python", "{lr}"], ALL, [], by_config=True)

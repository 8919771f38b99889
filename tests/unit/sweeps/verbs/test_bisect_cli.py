"""`oomproof bisect` as people type it: factors, placeholders, and what a wrong word gets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oomproof.cli.main import main
from oomproof.errors import USAGE
from oomproof.sweeps.experiments.experiment_plan import Factor
from oomproof.sweeps.verbs.bisect import environment_of, factors_of, filled, run_name


def test_factors() -> None:
    command = ["x", "{bs}", "--text={text}"]
    factors = factors_of(["bs=32,8", r"text=a\, b,c d"], ["OMP=1", "CUBLAS=a,unset"], command)
    assert factors == [
        Factor("bs", ("32", "8")),
        Factor("text", ("a, b", "c d")),
        Factor("OMP", ("unset", "1"), is_env=True),
        Factor("CUBLAS", ("a", "unset"), is_env=True),
    ]


def test_filled() -> None:
    factors = [Factor("bs", ("32",)), Factor("fast", ("", "--fast")), Factor("OMP", ("1",), is_env=True)]
    command = ["t", "--bs={bs}", "{fast}", "", "--x={fast}", '{"a": {"b": 1}}', "{{bs}}", "${x:-1}"]
    assert filled(command, factors, ("32", "", "1")) == [
        "t", "--bs=32", "", "--x=", '{"a": {"b": 1}}', "{bs}", "${x:-1}",
    ]  # fmt: skip
    assert filled(["{fast}"], factors, ("32", "--fast", "1")) == ["--fast"]


@given(st.text().filter(lambda text: "\0" not in text))
def test_a_value_is_never_read_again(value: str) -> None:
    """Braces, quotes, spaces, {other} in it: one word, as it is."""
    factors = [Factor("a", (value,)), Factor("b", ("2",))]
    words = filled(["x", "-a{a}", "{b}"], factors, (value, "2"))
    assert words == ["x", f"-a{value}", "2"]


def test_environment() -> None:
    factors = [Factor("A", ("unset", "1"), is_env=True), Factor("bs", ("1",))]
    assert environment_of(factors, ("unset", "1"), {"A": "5", "B": "6"}) == {"B": "6"}
    assert environment_of(factors, ("1", "1"), {"B": "6"}) == {"A": "1", "B": "6"}


def test_names_tell_and_differ() -> None:
    factors = [Factor("bs", ("32", "8")), Factor("data", ("a b", "a_b"))]
    name = run_name(factors, ("8", "a b"), ["8G", "/home", "x", "a b"])
    assert name.startswith("bisect:bs=8,data=a_b:")
    assert name == run_name(factors, ("8", "a b"), ["8G", "/home", "x", "a b"])
    assert name != run_name(factors, ("8", "a_b"), ["8G", "/home", "x", "a_b"])
    assert name != run_name(factors, ("8", "a b"), ["4G", "/home", "x", "a b"]), (
        "another limit is another run"
    )
    variable = [Factor("A", ("x y", "x_y"), is_env=True)]
    assert run_name(variable, ("x y",), []) != run_name(variable, ("x_y",), []), "also what is not shown"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--vary", "bs=1,2"], "no command to run"),
        (["--", "true"], "nothing to vary"),
        (["--vary", "bs", "--", "true", "{bs}"], "write NAME=VALUE,VALUE"),
        (["--vary", "bs=32", "--", "true", "{bs}"], "has one value"),
        (["--vary", "bs=32,32", "--", "true", "{bs}"], "has a value twice"),
        (["--vary", "bs=1,2", "--vary", "bs=3,4", "--", "true", "{bs}"], "bs is given twice"),
        (["--vary", "bs=1,2", "--", "true"], "the command does not use {bs}"),
        (["--vary", "batch=1,2", "--", "true", "{bacth}"], "did you mean 'batch'?"),
        (["--env", "A=1", "--", "awk", "{print}"], "write {{print}}"),
        (["--env", "A=1", "--limit", "1M", "--", "true"], "Python cannot even start"),
        (["--env", "A=1", "--max-time", "soon", "--", "true"], "cannot read 'soon' as a time"),
        (["--env", "A=1", "--max-time", "0", "--", "true"], "--max-time 0"),
        (["--env", "A=1", "--grace", "soon", "--", "true"], "give seconds"),
        (["--env", "A=1", "--json", "--markdown", "--", "true"], "exclude each other"),
    ],
)
def test_bad_input(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bisect", *words]) == USAGE
    said = capsys.readouterr().err
    assert says in said and "hint: " in said and "Traceback" not in said

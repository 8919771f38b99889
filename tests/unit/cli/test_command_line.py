"""The command line itself, whichever way it is started."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from oomproof.cli.command_parser import CommandParser, actions_of
from oomproof.cli.main import GROUPS, VERBS, main, overview, parser_of


def refused(capsys: pytest.CaptureFixture[str], *words: str, status: int = 2) -> str:
    assert main(list(words)) == status
    return capsys.readouterr().err


def helped(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as left:
        main(list(words))
    assert left.value.code == 0
    return capsys.readouterr().out


def test_python_dash_m_is_the_same_command() -> None:
    def output(*words: str) -> str:
        return subprocess.run(
            [sys.executable, "-m", *words], capture_output=True, text=True, timeout=60, check=True
        ).stdout

    assert output("oomproof", "--version").startswith("oomproof ")
    assert output("oomproof", "why", "--help").startswith("usage: oomproof why ")
    assert output("oomproof", "--help") == output("oomproof.cli.main", "--help")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["rnu"], "unknown verb 'rnu'; did you mean 'run'?"),
        (["runs", "--jsno"], "unknown flag '--jsno'; did you mean '--json'?"),
        (["runs", "shwo"], "unknown action 'shwo'; did you mean 'show'?"),
        (["runs", "show", "--josn"], "unknown flag '--josn'; did you mean '--json'?"),
        (["run", "--limti", "2G", "--", "true"], "unknown flag '--limti'; did you mean '--limit'?"),
        (["run", "--lim", "2G", "--", "true"], "unknown flag '--lim'; did you mean '--limit'?"),
        (["--verison"], "unknown flag '--verison'; did you mean '--version'?"),
        (["help", "rnu"], "unknown verb 'rnu'; did you mean 'run'?"),
        (["check", "somewhere"], "unknown argument 'somewhere'"),
        (["check", "--need", "1G", "--need", "2G"], "--need is given twice: 1G and 2G"),
        (["run", "--need", "1G", "--need", "2G", "--", "true"], "--need is given twice: 1G and 2G"),
    ],
)
def test_what_is_not_known_is_named_with_what_was_meant(
    capsys: pytest.CaptureFixture[str], words: list[str], says: str
) -> None:
    said = refused(capsys, *words)
    assert said.startswith(f"oomproof: {says}\n") and "usage:" not in said


def test_a_word_like_no_other_gets_no_guess(capsys: pytest.CaptureFixture[str]) -> None:
    assert "did you mean" not in refused(capsys, "runs", "--quux")
    assert "did you mean" not in refused(capsys, "xyzzy")


def test_the_commands_own_flags_are_its_own(capfd: pytest.CaptureFixture[str]) -> None:
    """Also those that we have, twice, or misspelt."""
    assert main(["run", "--", "echo", "--need", "1G", "--need", "2G", "--limti"]) == 0
    assert "--need 1G --need 2G --limti" in capfd.readouterr().out


def test_an_action_of_runs_is_answered_with_its_whole_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "a", "b"]) == 2
    assert "hint: oomproof runs compare a b" in capsys.readouterr().err


def test_the_overview_ends_with_two_commands_on_lines_of_their_own(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "  oomproof run -- python train.py" in lines and "  oomproof help run" in lines


def test_help_of_a_verb_is_its_own_help(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["run"], ["runs", "show"], ["help"]):
        assert helped(capsys, "help", *words) == helped(capsys, *words, "--help")
    assert main(["help"]) == 0 and "oomproof help run" in capsys.readouterr().out
    assert main(["-V"]) == 0 and capsys.readouterr().out.startswith("oomproof ")


@pytest.mark.parametrize("verb", VERBS)
def test_help_fits_and_has_an_example(
    verb: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    shown = helped(capsys, verb, "--help")
    assert f"oomproof {verb}" in shown.partition("\n\n")[2]
    sentences = [line for line in shown.splitlines() if not line.lstrip().startswith(("oomproof", "dmesg"))]
    assert max(map(len, sentences)) <= 60, max(sentences, key=len)


def test_every_action_says_what_it_does_and_shows_how() -> None:
    """`runs show --help` was a usage line and a list of flags; some examples stood at the margin, as if they were prose."""
    for parser in _parsers():
        text = parser.format_help()
        assert re.search(rf"^  {parser.prog}\b", text, re.MULTILINE), parser.prog
        assert not re.search(r"^oomproof ", text, re.MULTILINE), parser.prog


def test_no_flag_is_broken_in_a_help_text(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = helped(capsys, "run", "--help")
    assert '"--resume_from_checkpoint {checkpoint}"' in shown
    assert not re.search(r'[\w"]-+$', shown, re.MULTILINE)


def test_the_overview_has_each_verb_under_one_heading(capsys: pytest.CaptureFixture[str]) -> None:
    assert sorted(name for names in GROUPS.values() for name in names) == sorted(VERBS)
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert [heading for heading in GROUPS if f"\n{heading}:\n" in shown] == list(GROUPS)
    assert shown.index("\n  run ") < shown.index("\n  why ") < shown.index("\n  top ")


def test_help_of_run_is_grouped(capsys: pytest.CaptureFixture[str]) -> None:
    shown = helped(capsys, "run", "--help")
    headings = ["memory", "queue", "GPU", "output"]
    at = [shown.index(f"\n{heading}:\n") for heading in headings]
    assert at == sorted(at)
    for flag, heading in (
        ("--limit", "memory"),
        ("--need", "queue"),
        ("--gpu-share", "GPU"),
        ("--report", "output"),
    ):
        before = shown[: shown.rindex(f"  {flag} ")]
        assert max(headings, key=lambda title: before.rfind(f"\n{title}:\n")) == heading


@pytest.mark.parametrize(
    ("words", "status", "hint"),
    [
        (["loop.py", "--lr", "a b"], 127, "oomproof run -- python loop.py --lr 'a b'"),
        (["./loop.py"], 126, "oomproof run -- python ./loop.py"),
        (["--", "python loop.py 2"], 127, "without the quotes: oomproof run -- python loop.py 2"),
        (["--", "python loop.py | tee log"], 127, "oomproof run -- sh -c 'python loop.py | tee log'"),
        (["--", "tool"], 127, "oomproof run -- ./tool"),
        (["--", "no'such thing"], 127, "check the spelling and PATH"),
    ],
)
def test_a_command_that_is_none_is_answered_with_the_one_meant(
    words: list[str], status: int, hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    (tmp_path / "loop.py").touch()
    (tmp_path / "tool").touch(0o755)
    assert hint in refused(capsys, "run", *words, status=status)


def _parsers() -> Iterator[CommandParser]:
    for verb in VERBS:
        parser, _ = parser_of(verb)
        yield parser
        yield from actions_of(parser).values()


@pytest.mark.parametrize("columns", [80, 100])
def test_help_fits_the_terminal(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Examples too: what they do goes on below, and a long one is typed over two lines."""
    monkeypatch.setenv("COLUMNS", str(columns))
    long = [
        line
        for parser in [overview(), *_parsers()]
        for line in parser.format_help().split("\n")
        if len(line) > columns
    ]
    assert long == []

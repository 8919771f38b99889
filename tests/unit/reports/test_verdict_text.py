"""A verdict on a terminal: three lines, or all of it."""

from __future__ import annotations

import fcntl
import os
import struct
import termios
from pathlib import Path
from signal import SIGKILL

import pytest
from helpers_case import OWN_KILL, Attempt, kernel

from oomproof.diagnosis.verdict import Command, steps
from oomproof.records import replace
from oomproof.reports.verdict_blocks import long_form
from oomproof.reports.verdict_text import fitted, three_lines


def test_three_lines(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path)
    attempt.ended(signal=SIGKILL, memcg_oom_kill=1, memcg_oom=1, vmstat_oom_kill=8)
    attempt.kernel_lines = kernel(OWN_KILL)
    text = three_lines(attempt.verdict())
    assert text.splitlines() == [
        "verdict  out of memory: the kernel killed the job, holding 7.7 GiB; "
        "the job's own limit of 8.0 GiB was full (proven)",
        "why      the kernel's log names the process; it was ended by SIGKILL; "
        "it took the last 4.0 GiB of 8.0 GiB within 1.0 s: how much more it wanted is not known",
        "next     to learn how much it takes: oomproof run --limit 20G -- python train.py, "
        "or make the job smaller (a smaller batch, fewer workers)",
    ]


@pytest.mark.parametrize(
    ("following", "lines"),
    [
        (
            (
                "to learn how much it takes: ",
                Command("oomproof run --limit 4000M -- python train.py --steps 400"),
                ", or make it smaller",
            ),
            [
                "next     to learn how much it takes:",
                "         oomproof run --limit 4000M -- python train.py --steps 400",
                "         or make it smaller",
            ],
        ),
        (
            (
                "find it; then ",
                Command("OMP_NUM_THREADS=1 oomproof run -- python -c 'a = 1; b, c = 2' 7"),
                "; resume from a (b)",
            ),
            [
                "next     find it; then",
                "         OMP_NUM_THREADS=1 oomproof run -- python -c 'a = 1; b, c = 2' 7",
                "         resume from a (b)",
            ],
        ),
        (
            (
                "get the stack: ",
                Command("gdb -batch -ex run -ex bt --args ./hog 400 and some more words"),
            ),
            [
                "next     get the stack:",
                "         gdb -batch -ex run -ex bt --args ./hog 400 and some more words",
            ],
        ),
        (
            ("oomproof runs then shows its peak, so many words that a line is folded",),
            ["next     oomproof runs then shows its peak, so", "         many words that a line is folded"],
        ),
    ],
)
def test_a_command_is_one_line_to_copy(following: tuple[str, ...], lines: list[str], tmp_path: Path) -> None:
    """Folded, `--limit` stood at the end of one line and its value on the next."""
    verdict = replace(Attempt(tmp_path).verdict(), next_steps=steps(*following))
    shown = three_lines(verdict, width=48).split("\n")
    assert shown[shown.index(lines[0]) :] == lines
    assert "".join(following) in three_lines(verdict), "whole in a log"


def test_a_command_stands_alone_however_wide_the_terminal(tmp_path: Path) -> None:
    """`-- python leak.py, or make` was copied with its comma, and another comma further on the line was lost."""
    command = Command("oomproof run -- python leak.py")
    following = ("to learn it: ", command, ", or make the job smaller (stream the data, keep less of it)")
    verdict = replace(Attempt(tmp_path).verdict(), next_steps=steps(*following))
    for width in (60, 72, 96):
        shown = three_lines(verdict, width=width).split("\n")
        assert "         oomproof run -- python leak.py" in shown, width
        assert "stream the data, keep" in " ".join(" ".join(shown).split()), width
    assert shown[-1] == "         or make the job smaller (stream the data, keep less of it)"


def test_all_well_is_told_by_the_facts_and_not_by_the_words(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path)
    assert attempt.verdict().all_well
    attempt.ended(code=0, memcg_oom_kill=2)
    assert not attempt.verdict().all_well, "counted, though no log names who it was"
    attempt.ended(code=1)
    assert not attempt.verdict().all_well


def test_the_indentation_of_a_program_in_a_command_stays(tmp_path: Path) -> None:
    command = r"oomproof run -- python -c $'for x in y:\n    if x:\n        f(x)\n'"
    verdict = replace(Attempt(tmp_path).verdict(), next_steps=steps("again:\n  ", Command(command)))
    assert f"next     again: {command}" in three_lines(verdict)
    assert command in three_lines(verdict, width=48)


def test_three_lines_whatever_the_job_printed(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path)
    attempt.ended(code=1)
    attempt.output = b"Traceback (most recent call last):\n  f\nValueError: a\x1b[31m\n\tb\n"
    assert len(three_lines(attempt.verdict()).splitlines()) == 3


def test_colour_only_when_asked(tmp_path: Path) -> None:
    verdict = Attempt(tmp_path).verdict()
    assert "\x1b" not in three_lines(verdict) and "\x1b" not in long_form(verdict)
    assert three_lines(verdict, colour=True).startswith("\x1b[1;32m")


def test_long_form(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path)
    attempt.ended(signal=SIGKILL, memcg_oom_kill=1, memcg_oom=1, vmstat_oom_kill=8)
    attempt.kernel_lines = kernel(OWN_KILL)
    text = long_form(attempt.verdict())
    assert "victim   pid 4067 (python3): 7.7 GiB of its own" in text
    assert "memcg_oom_kill: 0 at start, 1 at death" in text
    assert "What may help" in text and "[rule]" in text and "train, step 117" in text


def test_long_form_names_what_could_not_be_read(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path)
    attempt.ended(signal=SIGKILL)
    attempt.kernel_lines = None
    text = long_form(attempt.verdict())
    assert "Could not be read" in text and "dmesg_restrict" in text


def test_wrapped_on_a_terminal_whole_in_a_file(tmp_path: Path) -> None:
    lines = "verdict  " + "words " * 30 + "\nwhy      " + "x" * 100 + " y\nnext     nothing"
    master, slave = os.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 60, 0, 0))
    with os.fdopen(slave, "w") as terminal, (tmp_path / "log").open("w") as file:
        assert fitted(lines, file) == lines
        shown = fitted(lines, terminal).splitlines()
    os.close(master)
    assert [line for line in shown if len(line) > 60] == ["         " + "x" * 100], (
        "what is typed is not broken"
    )
    assert shown[1].startswith("         words") and shown[-1] == "next     nothing"
    assert " ".join(" ".join(shown).split()) == " ".join(lines.split())


def test_the_verdict_has_its_colour_on_a_terminal_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    lines = "verdict  killed\nwhy      x\nnext     y"
    master, slave = os.openpty()
    with os.fdopen(slave, "w") as terminal, (tmp_path / "log").open("w") as file:
        assert fitted(lines, file, "bad") == lines
        assert fitted(lines, terminal, "bad") == "\x1b[1;31mverdict  killed\x1b[0m\nwhy      x\nnext     y"
        monkeypatch.setenv("NO_COLOR", "1")
        assert fitted(lines, terminal, "bad") == lines
    os.close(master)


def test_the_long_form_keeps_to_its_width(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path)
    attempt.ended(signal=9, memcg_oom_kill=1, memcg_oom=1, vmstat_oom_kill=8)
    attempt.kernel_lines = kernel(OWN_KILL)
    text = long_form(attempt.verdict(), width=80)
    long = [line for line in text.splitlines() if len(line) > 80]
    assert all(" " not in line.strip() or line.startswith("      ") for line in long), long
    assert "\nEvidence\n" in text and "\nAlso seen\n" in text
    assert text.index("Killed process") < text.index("Also seen"), "what decided stands first"

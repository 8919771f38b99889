"""When the learned reader overrules the rules, and that it leaves logs, manuals and runs alone."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from oomproof.diagnosis.judge import judge_texts
from oomproof.diagnosis.prose_answer import Claim, second_look, second_opinion
from oomproof.diagnosis.text_claims import claims_of_texts
from oomproof.evidence.texts.prose_reader import ToldCause
from oomproof.evidence.texts.text_case import read_texts


class Reading(NamedTuple):
    reports: float
    told: tuple[ToldCause, ...] = ()


def told(cause: str, probability: float) -> ToldCause:
    return ToldCause(cause, 1, "", probability)


def opinion(claim: Claim, reading: Reading) -> str | None:
    found = second_opinion(claim, reading)
    return found.cause if found is not None else None


@pytest.mark.parametrize(
    ("claim", "reports", "same", "stands"),
    [
        (Claim("cuda-oom"), 0.59, 0.2, False),
        (Claim("cuda-oom"), 0.61, 0.2, True),
        (Claim("cuda-oom"), 0.1, 0.75, True),  # a sentence confirms it
        (Claim("cuda-oom", figures=True), 0.1, 0.2, True),  # a program's own numbers
        (Claim("oom-kill-global", system=True), 0.55, 0.0, True),  # the kernel's own words need less
        (Claim("oom-kill-global", system=True), 0.45, 0.0, False),
        (Claim("segfault"), 0.05, 0.0, True),  # no memory death: not doubted
    ],
)
def test_a_claim_stands_or_falls_by_how_probable_a_report_is(
    claim: Claim, reports: float, same: float, stands: bool
) -> None:
    said = opinion(claim, Reading(reports, (told(claim.cause, same),)))
    assert said == (None if stands else "not-a-crash")


def test_the_reader_claims_no_memory_death() -> None:
    killed, oom = told("killed-unknown", 0.6), told("cuda-oom", 0.5)
    assert opinion(Claim("not-a-crash"), Reading(0.95, (killed, oom))) == "killed-unknown"
    assert opinion(Claim("not-a-crash"), Reading(0.95, (told("cuda-oom", 0.9), killed))) is None
    assert opinion(Claim("not-a-crash"), Reading(0.6, (killed,))) is None  # hardly a report
    assert opinion(Claim("not-a-crash"), Reading(0.95, (told("segfault", 0.5),))) is None
    assert opinion(Claim("not-a-crash"), Reading(0.95)) is None


def test_a_crash_is_not_called_a_kill(tmp_path: Path) -> None:
    headlines = []
    for text in UNDERSTOOD:
        path = tmp_path / "post.txt"
        path.write_text(text)
        headlines.append(judge_texts(read_texts([str(path)])).headline)
    assert headlines[0] == "killed by SIGKILL; this text does not say by whom"
    assert headlines[1] == "crashed, or was killed; this text does not say by what"


def cause_of_text(tmp_path: Path, text: str) -> tuple[str, str]:
    path = tmp_path / "post.txt"
    path.write_text(text)
    verdict = judge_texts(read_texts([str(path)]))
    return verdict.cause, verdict.why


# Written for this test; no rule knows their sentences
UNDERSTOOD = (
    "# Ubuntu ends my run\n\nI train a detector on my desktop. Each time the third epoch starts, Ubuntu is killing the python script"
    " and I lose everything. How can I find out why?\n",
    "# RStudio\n\nWhen I run the clustering on all cells, R crashes and I have to start from the beginning. It works with half of"
    " them.\n",
    "# Crash in the second epoch\n\nMy training crashes in the second epoch, there is nothing in the log. I use two workers.\n",
)


@pytest.mark.parametrize("text", UNDERSTOOD)
def test_a_sentence_that_no_rule_knows_is_understood(tmp_path: Path, text: str) -> None:
    assert cause_of_text(tmp_path, text)[0] == "killed-unknown"
    assert claims_of_texts(read_texts([str(tmp_path / "post.txt")]))[0].cause == "not-a-crash"


def test_what_a_change_names_is_doubted_and_said_to_be(tmp_path: Path) -> None:
    text = (
        "# Retry in the trainer\n\nThe option is off by default, users can enable it in the configuration. Tests and documentation"
        " are updated. What the trainer catches:\n```\nRuntimeError: CUDA error: out of memory\n```\n"
        "It should then halve the batch and log a warning. Feedback on the name of the option would be welcome.\n"
    )
    cause, why = cause_of_text(tmp_path, text)
    assert cause == "not-a-crash"
    assert "post.txt:5 names a failure" in why and "not as the report of a death" in why


@pytest.mark.parametrize(
    "text",
    [
        'step 1 loss 0.5\nTraceback (most recent call last):\n  File "train.py", line 3, in <module>\nMemoryError\n',
        "Out of memory: Killed process 4242 (python) total-vm:1kB, anon-rss:1kB, file-rss:0kB, shmem-rss:0kB\n",
    ],
)
def test_logs_are_judged_by_the_rules_alone(tmp_path: Path, text: str) -> None:
    path = tmp_path / "train.log"
    path.write_text(text)
    case = read_texts([str(path)])
    assert second_look(case) is case


def test_several_texts_are_judged_by_the_rules_alone(tmp_path: Path) -> None:
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text(UNDERSTOOD[0])
    case = read_texts([str(tmp_path / "a.txt"), str(tmp_path / "b.txt")])
    assert case.lines == () and second_look(case) is case

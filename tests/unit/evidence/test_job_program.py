"""Whether a job was a compiled program: then Python's remedies and flags are none for it."""

from __future__ import annotations

import shutil
from pathlib import Path
from signal import SIGABRT, SIGSEGV, SIGTERM

import pytest
from helpers_case import LEADER, MIB, Attempt, changed

from oomproof.diagnosis.judge import judge
from oomproof.evidence.case_collector import _had_gone
from oomproof.evidence.case_file import Growth, ProcessSeen
from oomproof.evidence.program_source import inline_code, is_native
from oomproof.records import replace


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("hog", "python3", "run.sh.bin"):
        shutil.copy("/bin/true", tmp_path / name)
    (tmp_path / "launch").write_text("#!/bin/sh\npython train.py\n")
    return tmp_path


@pytest.mark.parametrize(
    ("argv", "names", "native"),
    [
        (["./hog", "400"], ["hog"], True),
        (["./hog", "400"], [], True),
        (["nice", "-n", "5", "./hog"], ["hog"], True),
        (["./hog"], ["hog", "python3"], False),  # it started another
        (["./python3", "-m", "train"], ["python3"], False),
        (["./launch"], ["launch"], False),  # a script
        (["./gone"], [], False),
        (["bash", "train.sh"], ["bash"], False),
        (["srun", "train"], ["srun"], False),
        (["./hog", "python", "train.py"], ["hog"], False),
        ([], [], False),
    ],
)
def test_a_compiled_program(folder: Path, argv: list[str], names: list[str], native: bool) -> None:
    assert is_native(argv, str(folder), names) is native


def test_code_on_the_command_line() -> None:
    assert inline_code(["python", "-u", "-c", "x = 1", "7"]) == "x = 1"
    assert inline_code(["timeout", "9", "python3", "-c", "x = 1"]) == "x = 1"
    assert inline_code(["python", "train.py", "-c", "config.yaml"]) is None
    assert inline_code(["sh", "-c", "echo"]) is None
    assert inline_code(["python", "-c"]) is None and inline_code([]) is None


@pytest.fixture
def attempt(folder: Path) -> Attempt:
    attempt = Attempt(folder)
    attempt.run |= {"argv": ["./hog", "400"], "cwd": str(folder)}
    attempt.run["settings"]["limit"] = 600 * MIB
    attempt.processes = [(LEADER, "main", "hog")]
    attempt.output = b"block 50\n"
    return attempt


def words_of(attempt: Attempt, **facts: object) -> str:
    verdict = judge(changed(attempt.case(), phase="unknown", step=None, **facts))
    return " ".join(
        (verdict.why, verdict.next, *(f"{remedy.title} {remedy.command}" for remedy in verdict.remedies))
    )


def test_it_is_told_nothing_about_batches_and_python(attempt: Attempt) -> None:
    attempt.ended(signal=SIGTERM)
    attempt.act("term", why="the job held 592 MiB of its limit of 600 MiB", scope="limit")
    said = words_of(attempt, job_peak=592 * MIB)
    assert "read it in pieces or map it" in said and "stream the data, keep less of it" in said
    for word in ("batch", "workers", "Arrow", "accumulation"):
        assert word not in said
    growth = Growth("growing", "", 6.0 * MIB, None, None, 96.0, 300 * MIB, 592 * MIB)
    said = words_of(attempt, job_peak=592 * MIB, growth=growth)
    assert "find what it never frees: valgrind --tool=massif ./hog 400" in said
    assert "batch" not in said and "detach" not in said


def test_code_on_the_command_line_that_names_no_batch(attempt: Attempt) -> None:
    attempt.ended(signal=SIGTERM)
    attempt.act("term", why="the job held 592 MiB of its limit of 600 MiB", scope="limit")
    attempt.processes = [(LEADER, "main", "python")]
    attempt.run["argv"] = ["python", "-c", "x = [b'x' * 9 for _ in range(10 // 2)]"]
    assert "batch" not in words_of(attempt, job_peak=592 * MIB)
    attempt.run["argv"] = ["python", "-c", "for batch in rows: a = b / c"]
    assert "batch" in words_of(attempt, job_peak=592 * MIB)


@pytest.mark.parametrize("number", [SIGSEGV, SIGABRT])
def test_the_stack_of_its_crash_is_a_debuggers(attempt: Attempt, number: int) -> None:
    attempt.ended(signal=number)
    verdict = judge(attempt.case())
    assert verdict.next == "get the stack of the crash: gdb -batch -ex run -ex bt --args ./hog 400"
    assert "PYTHON" not in words_of(attempt) + " ".join(cause.test for cause in verdict.causes)


def test_what_the_first_program_of_a_script_held_is_not_what_the_second_died_of(attempt: Attempt) -> None:
    """A shell script of two steps: the variable that was named had gone with the first."""
    case = changed(attempt.case(), job=replace(attempt.case().samples.job, anon=147 * MIB, shmem=0, swap=0))  # type: ignore[type-var]
    first = ProcessSeen(7, "worker", "python", 1.0, 9.0, 84 * MIB)
    second = ProcessSeen(8, "worker", "python", 10.0, 12.0, 138 * MIB)
    assert _had_gone(changed(case, processes={7: first, 8: second}), 7)
    assert not _had_gone(changed(case, processes={7: first, 8: second}), 8)
    small = replace(second, used=50 * MIB)
    assert not _had_gone(changed(case, processes={7: first, 8: small}), 7), "both fit into what the job held"
    rank = replace(first, last=12.0, used=138 * MIB, share=70 * MIB)
    assert not _had_gone(changed(case, processes={7: rank, 8: replace(second, last=12.2, share=70 * MIB)}), 7)
    assert not _had_gone(changed(case, processes={}), 7), "not known"

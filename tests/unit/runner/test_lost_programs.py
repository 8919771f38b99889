"""Which process of a job the kernel killed: a trial of an agent, a forked worker, or nobody we saw."""

from __future__ import annotations

from oomproof.machine.processes import ProcessMemory
from oomproof.runner.lost_programs import LostPrograms, exception_of_program, kill_text
from oomproof.units import MIB

COMMANDS = {
    1: ["wandb", "agent", "x/y/z"],
    2: ["python", "train.py", "--lr=0.1", "--api_key=hunter2"],
    3: ["python", "train.py", "--lr=0.1", "--api_key=hunter2"],
    4: ["bash"],
}


def sample(pid: int, parent: int, held: int) -> ProcessMemory:
    values = dict.fromkeys(ProcessMemory.__dataclass_fields__, 0)
    return ProcessMemory(
        **{**values, "pid": pid, "start": pid, "parent": parent, "anon": held * MIB, "name": "x"}
    )  # type: ignore[arg-type]


def watched() -> LostPrograms:
    return LostPrograms(1, lambda pid: COMMANDS.get(pid, []))


def test_a_trial_is_named_with_its_arguments_and_without_its_secrets() -> None:
    programs = watched()
    assert programs.note([sample(1, 0, 50), sample(2, 1, 100)]) == []
    programs.note([sample(1, 0, 50), sample(2, 1, 900)])
    gone = programs.note([sample(1, 0, 50)])
    text, victim = kill_text(gone, 1)
    assert victim is not None and victim.pid == 2 and victim.held == 900 * MIB
    assert (
        "the kernel killed python train.py --lr=0.1" in text and "the job that started it continues" in text
    )
    assert "hunter2" not in text
    assert programs.note([sample(1, 0, 50)]) == [], "told once"


def test_a_forked_worker_is_no_program_of_its_own() -> None:
    programs = watched()
    programs.note([sample(1, 0, 50), sample(2, 1, 100), sample(3, 2, 400)])
    text, victim = kill_text(programs.note([sample(1, 0, 50), sample(2, 1, 100)]), 2)
    assert (
        victim is None
        and "multiprocessing.Pool" in text
        and "pid 3, held 400 MiB" in text
        and "2 so far" in text
    )


def test_the_heaviest_of_those_that_are_gone_and_none() -> None:
    programs = watched()
    programs.note([sample(1, 0, 50), sample(2, 1, 900), sample(4, 1, 10)])
    assert [program.pid for program in programs.note([sample(1, 0, 50)])] == [2, 4]
    text, victim = kill_text([], 1)
    assert victim is None and "the kernel killed a process of the job for memory" in text


def test_a_shell_of_one_mebibyte_is_not_read() -> None:
    asked: list[int] = []
    programs = LostPrograms(1, lambda pid: asked.append(pid) or ["sh"])  # type: ignore[func-returns-value]
    programs.note([sample(1, 0, 50), sample(4, 1, 1)])
    assert not asked


def test_an_exception_of_a_program() -> None:
    told = exception_of_program(
        {"argv": ["python", "t.py", "--token", "s3cr3t"]}, 9, "MemoryError at t.py:3 in f"
    )
    assert told == "python t.py --token '•••' (pid 9) ran out of memory: MemoryError at t.py:3 in f"
    assert exception_of_program({"argv": None}, 9, "x").startswith("a program of the job (pid 9)")

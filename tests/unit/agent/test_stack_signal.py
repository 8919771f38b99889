"""Stacks on request: a job with busy threads must not die of being looked at, and one in native code still answers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_census_signal import NUMBER, Program, until

from oomproof.recording.stack_dumps import Dump
from oomproof.runner import census_request, stack_request

pytestmark = pytest.mark.skipif(not NUMBER, reason="no real-time signals here")


@pytest.fixture
def programs() -> Iterator[list[Program]]:
    started: list[Program] = []
    yield started
    for program in started:
        program.process.kill()
        program.process.communicate()


def stacks(program: Program) -> list[Dump]:
    begin = stack_request.ask(program.folder, program.pid, "a test", 1.0)
    assert begin is not None
    time.sleep(stack_request.WRITTEN_IN)
    return stack_request.read(program.folder, program.pid, begin)


def test_running_python_answers_between_two_bytecodes_and_faulthandler_is_not_asked(
    tmp_path: Path, programs: list[Program]
) -> None:
    source = """
import faulthandler, select, signal, sys
faulthandler.unregister(signal.SIGRTMIN + 11)
signal.signal(signal.SIGRTMIN + 11, lambda *_: print("mine"))
def busy():
    print("ready")
    while not select.select([0], [], [], 0)[0]:
        pass
busy()
"""
    programs.append(program := Program(tmp_path, source))
    assert program.line() == "ready"
    assert until(lambda: program.pid in census_request.able(program.folder))
    dumps = until(lambda: stacks(program))  # a starved machine is late at times
    assert [frame.name for frame in dumps[0].frames] == ["busy", "<module>"]
    assert program.end("x")[0].count("mine") == 0


def test_native_code_answers_by_faulthandler_of_the_main_thread_only(
    tmp_path: Path, programs: list[Program]
) -> None:
    """Frames of threads that run meanwhile cannot be read: one look in fifty ended a job with busy threads."""
    source = """
import ctypes, threading
threading.Thread(target=threading.Event().wait, daemon=True).start()
def native():
    print("ready")
    ctypes.PyDLL(None).getchar()
native()
"""
    programs.append(program := Program(tmp_path, source))
    assert program.line() == "ready"
    file = program.folder / f"{program.pid}-fault.txt"
    # asked again: the first look may come before the native call
    dumps = until(lambda: [dump for dump in stacks(program) if "Stack (" in file.read_text()])
    assert [frame.name for frame in dumps[0].frames] == ["native", "<module>"]
    assert "\nThread 0x" not in file.read_text()
    assert program.end("x\n")[1] == 0

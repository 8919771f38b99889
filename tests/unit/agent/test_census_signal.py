"""A census by signal: real programs are asked from outside, on every Python, and do what they would have done anyway."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from test_agent_injection import AGENTS, environment

from oomproof.machine.clock import boottime
from oomproof.machine.processes import catches
from oomproof.recording import census_record
from oomproof.runner import census_request

NUMBER = census_request.SIGNAL
LONG = 60.0  # seconds, against a hang only

pytestmark = pytest.mark.skipif(not NUMBER, reason="no real-time signals here")


class Program:
    """A Python with the agent inside."""

    def __init__(self, folder: Path, source: str, python: str = sys.executable) -> None:
        self.folder = folder / "agent"
        self.variables = environment(folder)
        script = folder / "program.py"
        script.write_text(source)
        self.process = subprocess.Popen(
            [python, "-u", str(script)],
            env=self.variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.pid = self.process.pid

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def ask(self, request: str, pid: int | None = None) -> None:
        asked = pid or self.pid
        assert until(lambda: asked in census_request.able(self.folder)), "it answers"
        assert census_request.ask(self.folder, asked, request, "a test")

    def answer(self, request: str, pid: int | None = None) -> census_record.Census:
        asked, end = pid or self.pid, time.monotonic() + LONG
        while time.monotonic() < end:
            if (found := until(lambda: census_request.answer(self.folder, asked, request), 0.5)) is not None:
                return found
            census_request.ask_again(self.folder, asked)
        pytest.fail(f"no answer to {request}")

    def end(self, text: str = "") -> tuple[str, int]:
        output, _ = self.process.communicate(text, timeout=LONG)
        return output, self.process.returncode


def until(condition: Callable[[], Any], seconds: float = LONG) -> Any:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if value := condition():
            return value
        time.sleep(0.01)
    return None


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Program]]:
    started: list[Program] = []

    def make(source: str, python: str = sys.executable) -> Program:
        started.append(Program(tmp_path, source, python))
        return started[-1]

    yield make
    for program in started:
        if program.process.poll() is None:
            program.process.kill()
        program.process.communicate()


def names(census: census_record.Census) -> set[str]:
    return {thing.name for thing in census.things}


PLAIN = """
import sys
def main():
    rows = [{"number": number, "text": "row number %d" % number} for number in range(20000)]
    print("ready")
    total = 0
    line = ""
    while line != "leave":
        line = sys.stdin.readline().strip() if select() else ""
        total = sum(row["number"] for row in rows)
    print(total)
def select():
    import select
    return select.select([sys.stdin], [], [], 0.05)[0]
main()
"""


@pytest.mark.parametrize("python", AGENTS)
def test_every_python_answers_between_two_bytecodes(start: Callable[..., Program], python: str) -> None:
    program = start(PLAIN, python)
    assert program.line() == "ready"
    program.ask("first")
    census = program.answer("first")
    assert "rows" in names(census) and census.complete
    rows = next(thing for thing in census.things if thing.name == "rows")
    assert (rows.function, rows.what) == ("main", "list of 20,000 dict")
    program.ask("second")
    assert program.answer("second").t > census.t
    output, status = program.end("leave\n")
    assert (output.strip(), status) == (str(sum(range(20000))), 0)


HANDLED = """
import signal, sys, time
print("ready")
sys.stdin.readline()
signal.signal(signal.SIGRTMIN + 12, lambda *_: print("mine"))
print("set")
sys.stdin.readline()
"""


def test_a_handler_of_the_jobs_own_is_never_sent_ours(start: Callable[..., Program]) -> None:
    program = start(HANDLED)
    assert program.line() == "ready" and census_request.able(program.folder) == [program.pid]
    assert program.process.stdin is not None
    program.process.stdin.write("\n")
    program.process.stdin.flush()
    assert program.line() == "set"
    assert catches(program.pid, NUMBER), (
        "it handles that signal: only the mark tells that it is another handler"
    )
    assert census_request.able(program.folder) == []
    assert program.end("\n") == ("", 0)


def test_one_that_was_there_before_stays(start: Callable[..., Program], tmp_path: Path) -> None:
    """A .pth file or a C library that came first."""
    first = tmp_path / "first"
    first.mkdir()
    (first / "sitecustomize.py").write_text("")
    source = """
import signal, subprocess, sys
code = "import signal; print(signal.getsignal(signal.SIGRTMIN + 12) == signal.SIG_IGN)"
signal.signal(signal.SIGRTMIN + 12, signal.SIG_IGN)
print(subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE).stdout.decode().strip())
"""
    output, status = start(source).end()
    assert (output.strip(), status) == ("True", 0)


def test_processes_without_the_agent_are_not_signalled(start: Callable[..., Program]) -> None:
    """One that lost the mark, one whose handler is gone, one of another run: each would die of the signal or misread it."""
    program = start(PLAIN)
    assert program.line() == "ready"
    mark = program.folder / f"{program.pid}-census.on"
    assert mark.exists()
    stranger = subprocess.Popen([sys.executable, "-I", "-c", "input()"], stdin=subprocess.PIPE)
    elsewhere = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import signal; signal.signal(signal.SIGRTMIN + 12, lambda *_: None); print(1, flush=True); input()",
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**program.variables, "OOMPROOF_AGENT": "/another/run", "PYTHONPATH": ""},
    )
    try:
        assert elsewhere.stdout is not None and elsewhere.stdout.readline()
        for other in (stranger, elsewhere):
            (program.folder / f"{other.pid}-census.on").touch()
        assert catches(elsewhere.pid, NUMBER) and not catches(stranger.pid, NUMBER)
        assert census_request.able(program.folder) == [program.pid]
        mark.unlink()
        assert census_request.able(program.folder) == []
    finally:
        for other in (stranger, elsewhere):
            other.communicate(b"\n")
    program.end("leave\n")


FORKS = """
import os, sys, time
def work():
    of_a_child = ["text number %d" % number for number in range(5000)]
    os.write(ready, b".")
    while os.getppid() == parent:
        time.sleep(0.05)
parent = os.getpid()
children = []
told, ready = os.pipe()
for _ in range(8):
    pid = os.fork()
    if not pid:
        work()
        os._exit(0)
    children.append(pid)
for _ in children:
    os.read(told, 1)  # each has made its list
print(*children)
import select
while not select.select([sys.stdin], [], [], 0.05)[0]:
    pass
"""


def test_forked_workers_answer_for_themselves(start: Callable[..., Program]) -> None:
    program = start(FORKS)
    children = [int(word) for word in program.line().split()]
    assert until(lambda: set(census_request.able(program.folder)) == {program.pid, *children})
    program.ask("child", children[3])
    census = program.answer("child", children[3])
    assert census.pid == children[3] and "of_a_child" in names(census)
    program.ask("parent")
    assert "of_a_child" not in names(program.answer("parent"))
    assert program.end("\n") == ("", 0)


LATE = """
import signal, sys
rows = list(range(1000))
print("ready")
sys.stdin.readline()
import atexit
@atexit.register
def last():
    pass
"""


def test_a_late_signal_does_not_end_the_program(start: Callable[..., Program]) -> None:
    """Sent without a check, again and again, while it leaves: the interpreter gives its handlers back before it ends."""
    program = start(LATE)
    assert program.line() == "ready" and until(lambda: catches(program.pid, NUMBER))
    assert program.process.stdin is not None
    program.process.stdin.write("\n")
    program.process.stdin.flush()
    while program.process.poll() is None:
        os.kill(program.pid, NUMBER)
    assert program.process.returncode == 0


WAITS = """
import sys, threading, time
rows = ["text number %d" % number for number in range(5000)]
lock = threading.Lock()
lock.acquire()
main = threading.get_ident()
def release():
    while sys._current_frames()[main].f_code.co_name != "wait":
        time.sleep(0.01)
    time.sleep(0.2)
    print("waits")
    sys.stdin.readline()
    lock.release()
def wait():
    lock.acquire()
thread = threading.Thread(target=release)
thread.start()
wait()
print("back")
time.sleep(1)
thread.join()
"""


def test_a_main_thread_that_waits_answers_when_it_is_back(start: Callable[..., Program]) -> None:
    program = start(WAITS)
    assert program.line() == "waits"
    program.ask("waits")
    assert not until(lambda: census_request.answer(program.folder, program.pid, "waits"), 0.5)
    assert program.process.stdin is not None
    program.process.stdin.write("\n")
    program.process.stdin.flush()
    assert program.line() == "back"
    assert "rows" in names(program.answer("waits"))
    assert program.end()[1] == 0


ASYNC = """
import asyncio, sys
async def keep():
    of_a_task = ["text number %d" % number for number in range(5000)]
    await asyncio.sleep(3600)
async def main():
    task = asyncio.ensure_future(keep())
    loop = asyncio.get_running_loop()
    waiting = asyncio.get_running_loop().create_future()
    loop.add_reader(sys.stdin, lambda: waiting.done() or waiting.set_result(None))
    in_main = ["text number %d" % number for number in range(5000)]
    print("ready")
    await waiting
    task.cancel()
    print(len(in_main))
asyncio.run(main())
"""


def test_asyncio_answers_while_it_waits(start: Callable[..., Program]) -> None:
    program = start(ASYNC)
    assert program.line() == "ready"
    program.ask("loop")
    program.answer("loop")
    assert program.end("\n") == ("5000\n", 0)


STEPS = """
import sys, time
start = sys.modules["_oomproof.agent.agent_start"]
agent = start.agent()
def main():
    kept = ["text number %d" % number for number in range(5000)]
    for step in range(400):
        in_a_step = ["half made %d" % number for number in range(5000)]
        time.sleep(0.05)
        del in_a_step
        agent.stepped(step)
        if step == 3:
            print("steps")
main()
"""


def test_a_job_with_steps_is_looked_at_between_two(start: Callable[..., Program]) -> None:
    program = start(STEPS)
    assert program.line() == "steps"
    for number in range(5):
        program.ask(str(number))
        census = program.answer(str(number))
        assert {"kept"} <= names(census) and "in_a_step" not in names(census) and census.step is not None
    program.process.send_signal(signal.SIGKILL)


ONE_STEP = """
import sys, time
kept = ["text number %d" % number for number in range(5000)]
sys.modules["_oomproof.agent.agent_start"].agent().stepped(1)
print("stepped")
time.sleep(600)
"""


def test_after_a_single_step_no_second_one_is_waited_for(start: Callable[..., Program]) -> None:
    program = start(ONE_STEP)
    assert program.line() == "stepped"
    program.ask("one")
    assert "kept" in names(program.answer("one"))
    program.process.send_signal(signal.SIGKILL)


DEEP = """
import sys, time
sys.setrecursionlimit(1000)
rows = ["text number %d" % number for number in range(5000)]
def down(left):
    if left:
        return down(left - 1) + 1
    print("deep")
    until = time.time() + 1
    while time.time() < until:
        pass
    return 0
print(down(970))
time.sleep(30)
"""


def test_one_that_is_deep_in_calls_is_not_pushed_over_its_limit(start: Callable[..., Program]) -> None:
    program = start(DEEP)
    assert program.line() == "deep"
    program.ask("deep")
    assert program.line() == "970"
    assert "rows" in names(program.answer("deep")), "later, when it is asked again"
    program.process.send_signal(signal.SIGKILL)


IMPORTING = """
import sys, time
rows = ["text number %d" % number for number in range(5000)]
# as Python's own code for the lock of a module
source = "def acquire(until, time):\\n    print('locking', flush=True)\\n    while time() < until:\\n        pass\\n"
space = {}
exec(compile(source, "<frozen importlib._bootstrap>", "exec"), space)
before = set(sys.modules)
space["acquire"](time.time() + 1.5, time.time)
print(sorted(name for name in set(sys.modules) - before))
time.sleep(30)
"""


def test_nothing_is_imported_while_python_locks_a_module(start: Callable[..., Program]) -> None:
    """Before 3.13 the job's own import then fails with a KeyError."""
    program = start(IMPORTING)
    assert program.line() == "locking"
    for _ in range(10):
        program.ask("locking")
        time.sleep(0.05)
    assert program.line() == "[]"
    assert "rows" in names(program.answer("locking")), "later, when it is asked again"
    program.process.send_signal(signal.SIGKILL)


LAZY = """
import importlib.util, sys, time
spec = importlib.util.find_spec("json.tool")
loader = importlib.util.LazyLoader(spec.loader)
spec.loader = loader
module = importlib.util.module_from_spec(spec)
sys.modules["torch"] = sys.modules["pandas"] = module
loader.exec_module(module)
rows = ["text number %d" % number for number in range(5000)]
print("ready")
time.sleep(1)
print(type(module).__name__)
"""


def test_a_lazy_module_is_not_loaded_by_a_look(start: Callable[..., Program]) -> None:
    program = start(LAZY)
    assert program.line() == "ready"
    program.ask("lazy")
    assert "rows" in names(program.answer("lazy"))
    assert program.line() == "_LazyModule"


BROKEN = """
import sys, time
start = sys.modules["_oomproof.agent.agent_start"]
agent = start.agent()
sys.modules["_oomproof.agent.census"] = None
for step in range(40):
    time.sleep(0.05)
    agent.stepped(step)
    if step == 3:
        print("steps")
time.sleep(2)
print("done")
"""


def test_a_census_that_cannot_be_taken_costs_the_job_nothing(start: Callable[..., Program]) -> None:
    program = start(BROKEN)
    assert program.line() == "steps"
    program.ask("broken")
    assert until(lambda: program.line() == "done")
    assert program.end() == ("", 0)


BUSY = """
import gc, hashlib, queue, random, socket, subprocess, tempfile, threading, weakref
digest, numbers = hashlib.sha256(), random.Random(5)
rows = [{"number": number, "text": "row %d" % number * 5} for number in range(10000)]
cache = {}
class Node:
    def __init__(self, parent):
        self.parent, self.children = parent, []
def work(results):
    for number in range(200):
        results.put(sum(range(number * 50)))
for turn in range(12):
    results = queue.Queue()
    thread = threading.Thread(target=work, args=(results,))
    thread.start()
    here, there = socket.socketpair()
    here.sendall(b"x" * 1000)
    digest.update(there.recv(1000, socket.MSG_WAITALL))
    here.close(), there.close()
    digest.update(subprocess.run(["/bin/sh", "-c", "echo %d; sleep 0.01" % turn], stdout=subprocess.PIPE).stdout)
    with tempfile.TemporaryFile() as file:
        file.write(b"abc" * 5000)
        file.seek(0)
        digest.update(file.read())
    digest.update(repr(sorted(numbers.random() for _ in range(10000))[::2000]).encode())
    cache.update((numbers.random(), turn) for _ in range(1000))
    root = Node(None)
    root.children += [Node(root) for _ in range(500)]
    alive = weakref.ref(root)
    del root
    gc.collect()
    digest.update(str(alive() is None).encode())
    thread.join()
    digest.update(str([results.get() for _ in range(200)]).encode())
print(digest.hexdigest(), len(cache))
"""


def test_a_program_that_is_asked_all_the_time_computes_the_same(
    start: Callable[..., Program], tmp_path: Path
) -> None:
    alone = subprocess.run([sys.executable, "-c", BUSY], capture_output=True, text=True, timeout=LONG)
    program = start(BUSY)
    number = 0
    while program.process.poll() is None:
        for pid in census_request.able(program.folder):
            census_request.ask(program.folder, pid, str(number), "again and again")
            number += 1
        time.sleep(0.002)
    assert program.end() == (alone.stdout, 0) and alone.stdout
    assert len(census_record.read_all(program.folder, program.pid)) > 1


STEPLESS = """
import sys, time
from _oomproof.agent import agent_core, trace_window
agent_core._HEAP, agent_core._HEAP_COST = 0.05, 0.0  # ten seconds are too long for a test
trace_window._LOOK, trace_window._STEPS, trace_window._SHORTEST, trace_window._SETTLE = 0.0, 1, 0.2, 1
kept, noted = {}, []
def main():
    print("ready")
    for number in range(10 ** 9):
        kept[number] = [str(number)] * 50 + ["row number %d" % number]
        noted.append(number)
        time.sleep(0.0005)
main()
"""


@pytest.mark.parametrize("python", AGENTS)
def test_a_job_without_steps_tells_its_counters_what_grows_and_the_line(
    start: Callable[..., Program], python: str, tmp_path: Path
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind(str(tmp_path / "nobody"))
        heard.settimeout(0.1)
        program = start(STEPLESS, python)
        assert program.line() == "ready" and until(lambda: program.pid in census_request.able(program.folder))
        (program.folder / "trace.json").write_text(json.dumps({"headroom": 1 << 40, "t": boottime()}))
        told: dict[str, list[dict[str, Any]]] = {}

        def listened() -> bool:
            census_request.send(program.pid)
            with contextlib.suppress(TimeoutError):
                value = json.loads(heard.recv(65536))
                told.setdefault(value["kind"], []).append(value["fields"])
            return "trace" in told and len(told["heap"]) >= 8

        assert until(listened), (told, program.process.poll())
    looks = told["heap"]
    assert looks[-1]["step"] is None and looks[-1]["blocks"] > looks[0]["blocks"] and looks[-1]["malloc"] > 0
    grew = [row[2] for row in looks[-1]["containers"]]
    assert grew == ["kept"], "a log of numbers is none"
    trace = told["trace"][0]
    assert (trace["witness"], trace["steps"], trace["step"]) == ("tracemalloc", 0, None), trace
    lines = STEPLESS.split("\n")
    file, line = trace["lines"][0][:2]
    assert (file, lines[line - 1].split()[0]) == (str(tmp_path / "program.py"), "kept[number]")
    assert not list(program.folder.glob("*-census-*.json")), "nobody asked for a census"

"""A window of a tracer between two steps: what it names, when it does not start, and that it always ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from oomproof.agent import trace_window, tracers
from oomproof.agent.agent_core import _is_library
from oomproof.agent.trace_window import Witness
from oomproof.leaf.proc_files import boottime

MIB = 1 << 20
KEPT: list[Any] = []
START = tracemalloc.start


class Told:
    """An agent that only remembers."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)
        self.told: list[tuple[str, dict[str, Any]]] = []
        self.step: int | None = 0
        self.failures: list[str] = []

    def report(self, kind: str, **fields: Any) -> None:
        self.told.append((kind, fields))

    def failed(self, where: str, error: BaseException) -> None:
        self.failures.append(f"{where}: {error}")


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(tracers, "_YOUNGEST", 0.0)
    KEPT.clear()
    yield Told(tmp_path)
    KEPT.clear()
    assert not tracemalloc.is_tracing(), "the tracer is off again"
    assert tracemalloc.start is START, "and so is our own start()"


def ask(agent: Told, headroom: int = 1 << 40, age: float = 0.0) -> None:
    Path(agent.folder, "trace.json").write_text(json.dumps({"headroom": headroom, "t": boottime() - age}))


def grown(witness: Witness, **names: int) -> None:
    """Six looks, from nothing to this."""
    for share in (0, 0, 0, 4, 4, 4):
        witness.note(
            {"malloc": 0, "malloc_free": 0, **{name: value * share // 4 for name, value in names.items()}}
        )


def python_grows(agent: Told) -> Witness:
    witness = Witness(agent, _is_library, lambda: None)  # type: ignore[arg-type]
    grown(witness, anon=100 * MIB, blocks=1_000_000)
    return witness


def leak(step: int) -> None:
    KEPT.append([f"{step} {number}" for number in range(100)])


def train(witness: Witness, steps: int, seconds: float = 1.0) -> None:
    begun = boottime()
    for step in range(steps):
        leak(step)
        witness.stepped(begun + step * seconds, step)


def line_of(text: str) -> int:
    lines = Path(__file__).read_text().splitlines()
    return 1 + next(at for at, line in enumerate(lines) if text in line)


def test_the_line_that_keeps_is_named(agent: Told) -> None:
    witness = python_grows(agent)
    ask(agent)
    train(witness, 60)
    [(kind, told)] = agent.told
    assert kind == "trace" and told["witness"] == "tracemalloc" and told["memory"] == "python"
    file, line, _, size, count, library = told["lines"][0]
    assert (file, line, library) == (__file__, line_of("KEPT.append(["), False)
    assert (
        told["steps"] >= 30 and count >= told["steps"] * 100 and 0.9 * told["traced"] < size <= told["traced"]
    )
    assert not Path(agent.folder, "trace.json").exists() and not agent.failures


def test_a_line_of_a_library_is_looked_at_deeper(agent: Told) -> None:
    witness = Witness(agent, lambda path: path == __file__ or _is_library(path), lambda: None)  # type: ignore[arg-type]
    grown(witness, anon=100 * MIB, blocks=1_000_000)
    ask(agent)
    code = compile("def loop(train, witness):\n    train(witness, 120)\n", "/home/me/train.py", "exec")
    names: dict[str, Any] = {}
    exec(code, names)
    names["loop"](train, witness)
    (_, shallow), (_, deep) = agent.told
    assert shallow["more"] and shallow["lines"][0][5] is True
    assert not deep["more"] and deep["lines"][0][:2] == ["/home/me/train.py", 2] and deep["frames"] > 1


@pytest.mark.parametrize(
    ("headroom", "age", "said"),
    [(100 * MIB, 0.0, "too little headroom for tracemalloc"), (1 << 40, 600.0, None)],
    ids=["little headroom", "an old request"],
)
def test_no_window(agent: Told, headroom: int, age: float, said: str | None) -> None:
    witness = python_grows(agent)
    ask(agent, headroom, age)
    train(witness, 5)
    assert not tracemalloc.is_tracing()
    assert [told["problem"] for _, told in agent.told] == ([said] if said else [])


def test_no_tracer_for_what_none_sees(agent: Told) -> None:
    witness = Witness(agent, _is_library, lambda: None)  # type: ignore[arg-type]
    grown(witness, anon=100 * MIB, arrow=100 * MIB)
    ask(agent)
    train(witness, 5)
    assert [told["problem"] for _, told in agent.told] == ["no tracer sees Arrow's pool"]


def test_the_jobs_own_tracemalloc_is_left_alone(agent: Told) -> None:
    witness = python_grows(agent)
    tracemalloc.start(3)
    try:
        ask(agent)
        train(witness, 60)
        assert tracemalloc.is_tracing() and tracemalloc.get_traceback_limit() == 3
        assert agent.told[0][1]["problem"] == "the job uses tracemalloc itself"
    finally:
        tracemalloc.stop()


def test_a_job_that_starts_tracemalloc_in_a_window_gets_its_own(agent: Told) -> None:
    witness = python_grows(agent)
    ask(agent)
    train(witness, 10)
    assert tracemalloc.is_tracing()
    tracemalloc.start(5)
    try:
        assert tracemalloc.get_traceback_limit() == 5
        train(witness, 60)
        assert tracemalloc.is_tracing() and tracemalloc.get_traceback_limit() == 5, (
            "the window is over, theirs is not"
        )
    finally:
        tracemalloc.stop()


def test_a_window_that_no_step_ends_is_ended(agent: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_window, "_UNSETTLED", 0.0)
    monkeypatch.setattr(trace_window, "_GLANCE", 0.01)
    witness = python_grows(agent)
    ask(agent)
    witness.stepped(boottime(), 1)
    while not agent.told:
        os.sched_yield()
    assert agent.told[0][1]["problem"] == "no step ended the window" and not tracemalloc.is_tracing()


def test_a_window_waits_for_what_grew_before(agent: Told) -> None:
    """A leak of the evaluations: 30 steps without one show nothing, the longest window does."""
    held = 0
    witness = Witness(agent, _is_library, lambda: held)  # type: ignore[arg-type]
    for step, share in ((1, 0), (2, 0), (3, 0), (101, 4), (102, 4), (103, 4)):
        witness.note(
            {"malloc": 0, "malloc_free": 0, "anon": 25 * MIB * share, "blocks": 250_000 * share, "step": step}
        )
    ask(agent)
    train(witness, 40)
    assert not agent.told and tracemalloc.is_tracing()
    held = 200 * MIB
    begun = boottime()
    witness.stepped(begun + 45, 45)
    assert agent.told[0][1]["steps"] == 42 and agent.told[0][1]["expected"] == MIB


def test_tables_that_are_full_end_it(agent: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    witness = python_grows(agent)
    ask(agent)
    train(witness, 5)
    monkeypatch.setattr(tracers, "_TABLES", 1)
    train(witness, 8)
    assert agent.told[0][1]["steps"] < 30 and agent.told[0][1]["lines"]


def test_an_error_inside_ends_it(agent: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    witness = python_grows(agent)
    ask(agent)
    train(witness, 5)

    def broken() -> Any:
        raise MemoryError("no memory for the second look")

    monkeypatch.setattr(tracers, "_traces", broken)
    train(witness, 60)
    assert agent.failures == ["trace_window.tracemalloc: no memory for the second look"] and not agent.told


def test_a_forked_child_does_not_trace(agent: Told) -> None:
    witness = python_grows(agent)
    ask(agent)
    train(witness, 5)
    pid = os.fork()
    if not pid:
        witness.forked()
        os._exit(int(tracemalloc.is_tracing()))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert tracemalloc.is_tracing(), "the parent still does"
    witness.close()


def test_memray_that_is_half_installed_is_no_harm(
    agent: Told, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    package = tmp_path / "path" / "memray"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("from ._memray import Tracker\n")
    monkeypatch.syspath_prepend(str(package.parent))
    monkeypatch.delitem(sys.modules, "memray", raising=False)
    witness = Witness(agent, _is_library, lambda: None)  # type: ignore[arg-type]
    grown(witness, anon=100 * MIB, malloc=100 * MIB)
    ask(agent)
    train(witness, 60)
    assert len(agent.failures) == 1 and agent.failures[0].startswith("trace_window.memray: No module named")
    assert [told["witness"] for _, told in agent.told] == ["tracemalloc"], "the other witness was asked"


def test_a_full_disk_gets_no_file_of_memray(
    agent: Told, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tracers, "_FILE", 1 << 60)
    tracer = tracers.MemrayTracer(str(tmp_path / "1.memray"))
    monkeypatch.setattr(tracers.MemrayTracer, "ours", True)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    assert tracer.problem(1 << 40) == "too little free disk for memray's file"


def test_what_the_c_library_keeps_is_given_back(tmp_path: Path) -> None:
    """A real heap full of holes: half of what was allocated is freed, the last of it is not."""
    script = """
import ctypes, sys
sys.path.insert(0, {source!r})
from oomproof.agent.agent_core import _anonymous, _is_library
from oomproof.agent.heap_counters import counters
from oomproof.agent.trace_window import Witness
class Told:
    folder = "."
    def report(self, kind, **fields): print(kind, fields["given"], fields["free"], fields["kept"])
    def failed(self, where, error): raise error
look = lambda: {{"anon": _anonymous(), **counters()}}
if "malloc" not in counters(): print("another C library"); sys.exit()
witness = Witness(Told(), _is_library, _anonymous)
for _ in range(3): witness.note(look())
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
held = [libc.malloc(100_000) for _ in range(1500)]
for block in held: ctypes.memset(block, 1, 100_000)
for block in held[:-1]: libc.free(block)
for _ in range(6): witness.note(look())
"""
    source = str(Path(tracers.__file__).parents[2])
    ended = subprocess.run(
        [sys.executable, "-c", script.format(source=source)], capture_output=True, text=True, check=True
    )
    if "another C library" in ended.stdout:
        pytest.skip("no mallinfo2 here")
    [told] = ended.stdout.splitlines()  # once
    kind, given, free, kept = told.split()
    assert kind == "trim" and int(free) > 100 * MIB and int(given) > 0.8 * int(free) and int(kept) > 0


DECOMPRESSING = """
import os, sys, threading, time, zlib
sys.path.insert(0, sys.argv[1])
from oomproof.agent import tracers
tracers._YOUNGEST = 0.2
data = zlib.compress(os.urandom(100) * 1000)
def decompress():
    while True:
        whole = zlib.decompressobj()
        whole.decompress(data[: len(data) // 2])
        whole.decompress(data[len(data) // 2 :])
def count():
    while True: sum(range(1000))
for work in (decompress, decompress, decompress, count):
    threading.Thread(target=work, daemon=True).start()
for _ in range(3):
    tracer = tracers.PythonTracer(1, lambda file: False)
    tracer.start()
    tracer.settle()
    kept = [bytes(1000) for _ in range(100)]
    time.sleep(0.002)
    found = tracer.finish()
    time.sleep(0.02)  # now they go on
assert any(size >= 100_000 for _, _, _, size, _, _ in found["lines"]), found
os._exit(7)
"""


def test_threads_that_allocate_without_the_gil_live_on() -> None:
    """A segmentation fault within the first window before: what they allocate is no longer traced."""
    source = str(Path(tracers.__file__).parents[2])
    ended = subprocess.run([sys.executable, "-c", DECOMPRESSING, source], timeout=60, check=False)
    assert ended.returncode == 7


def test_not_in_a_free_threaded_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "abiflags", "t")
    assert "free-threaded" in tracers.PythonTracer(1, _is_library).problem(1 << 40)

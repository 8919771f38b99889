"""The front's side of the agent: what is told over the socket, the files read beside it, who speaks for the job."""

from __future__ import annotations

import json
import os
import shutil
import socket
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oomproof.leaf.proc_files import is_working
from oomproof.machine.clock import boottime
from oomproof.recording import position_record, stack_dumps
from oomproof.recording.attempt import SAVE_TEXT, Attempt
from oomproof.runner import agent_feed, census_request, census_watch, stack_request
from oomproof.runner.agent_feed import AgentFeed


class Notes:
    """A writer that keeps what it is given."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, tuple[Any, ...]]] = []
        self.changed = threading.Event()

    def put(self, table: str, row: tuple[Any, ...]) -> None:
        self.rows.append((table, row))
        self.changed.set()

    def event(self, t: float, kind: str, text: str, **data: object) -> None:
        self.put("event", (t, kind, text, json.dumps(data)))

    def of(self, table: str) -> list[tuple[Any, ...]]:
        return [row for name, row in self.rows if name == table]


@pytest.fixture
def feed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    runtime = tmp_path / "runtime"
    runtime.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    attempt = tmp_path / "1"
    (attempt / "agent").mkdir(parents=True)
    notes, said = Notes(), []
    made = AgentFeed("r1", Attempt(attempt), notes, said.append, lambda: None)  # type: ignore[arg-type]
    made.notes, made.said = notes, said  # type: ignore[attr-defined]
    yield made
    made.stop()


def test_last_words_left_in_a_file_are_read_at_the_end(feed: Any, tmp_path: Path) -> None:
    left = tmp_path / "1/agent/4-unsent.jsonl"
    told = {
        "kind": "exception",
        "pid": 4,
        "t": boottime(),
        "rank": None,
        "fields": {"type": "E", "shm": [2, 1]},
    }
    left.write_text(f"{json.dumps(told)}\nno json\n")
    feed.stop()
    ((_, kind, _, data),) = [row for row in feed.notes.of("event") if row[1] == "exception"]
    assert kind == "exception" and json.loads(data)["shm"] == [2, 1] and not left.exists()


def send(value: object, path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        data = value if isinstance(value, bytes) else json.dumps(value).encode()
        sender.sendto(data, str(path))


def told(kind: str, pid: int = 7, rank: int | None = None, **fields: object) -> dict[str, object]:
    return {"kind": kind, "pid": pid, "t": boottime(), "rank": rank, "fields": fields}


def test_beside_a_calm_job_it_looks_rarely_until_it_is_woken(
    feed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, looked = [], threading.Semaphore(0)
    monkeypatch.setattr(agent_feed, "_FIRST_SECONDS", -1.0)
    monkeypatch.setattr(agent_feed, "_TICK", 0.01)
    monkeypatch.setattr(agent_feed, "_TICK_CALM", 3600.0)
    monkeypatch.setattr(feed, "_look", lambda t: (looks.append(t), looked.release()))
    feed._is_calm = lambda: True
    feed.start()
    assert looked.acquire(timeout=20)
    feed.wake()
    assert looked.acquire(timeout=20)
    assert len(looks) == 2


def test_the_socket_is_ours_alone_and_goes_with_the_run(feed: Any) -> None:
    path = agent_feed.socket_path("r1")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert len(os.fsencode(path)) < 108
    feed.start()
    feed.stop()
    assert not path.exists()


def test_a_deep_runtime_folder_gets_a_short_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = tmp_path / ("x" * 100)
    deep.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(deep))
    assert len(os.fsencode(agent_feed.socket_path("20261115-120000-abc"))) < 108


def test_datagrams_arrive_and_nonsense_does_not_stop_it(feed: Any) -> None:
    feed.start()
    path = agent_feed.socket_path("r1")
    for value in (b"\xff\xfe", b"[1, 2]", {"kind": "phase"}, told("tell", text="hello")):
        send(value, path)
    feed.notes.changed.wait(60)
    feed.stop()
    assert feed.said == ["hello"]
    assert not [row for row in feed.notes.of("event") if row[1] == "trouble"]


SMALL_STACK = """
import os, socket, sys, threading
from pathlib import Path
from oomproof.recording.attempt import SAVE_TEXT, Attempt
from oomproof.runner.agent_feed import AgentFeed, socket_path

class Notes:
    def put(self, *_): pass
    def event(self, *_, **__): pass

heard = threading.Event()
threading.stack_size(256 * 1024)  # as the guard's threads have
feed = AgentFeed("r1", Attempt(Path(sys.argv[1])), Notes(), lambda _: heard.set(), lambda: None)
feed.start()
sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
deep = b'{"kind": "x", "pid": 7, "t": 1, "fields": {"a": ' + b"[" * 20_000 + b"]" * 20_000 + b"}}"
for data in (deep, b"[" * 60_000, b'{"a":' * 10_000, b'{"kind": "tell", "pid": 7, "t": 1, "fields": {"text": "x"}}'):
    sender.sendto(data, str(socket_path("r1")))
print("heard" if heard.wait(20) else "deaf")
feed.stop()
"""


def runs_here(python: str) -> bool:
    """A name on the PATH may be a shim for a version that is not installed."""
    return (
        bool(shutil.which(python)) and not subprocess.run([python, "-c", ""], capture_output=True).returncode
    )


NEWER = list(filter(runs_here, ("python3.12", "python3.13", "python3.14")))


@pytest.mark.parametrize("python", [sys.executable, *NEWER])
def test_deep_nesting_does_not_end_the_process(tmp_path: Path, python: str) -> None:
    """Python 3.13 counts the depth without regard to the thread's stack, and overflowed 256 KiB of it."""
    attempt = tmp_path / "1"
    (attempt / "agent").mkdir(parents=True)
    environment = {**os.environ, "PYTHONPATH": str(Path(agent_feed.__file__).parents[2])}
    done = subprocess.run(
        [python, "-c", SMALL_STACK, str(attempt)], env=environment, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (0, "heard\n"), done.stderr


_ANY = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(1 << 62, 1 << 80)
    | st.floats()
    | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
_NAMES = st.sampled_from(
    ["name", "step", "anon", "gpu", "text", "frames", "locals", "type", "path", "asked", "worker"]
)
_KINDS = st.sampled_from(["phase", "tell", "saved", "worker-lost", "exception", "allocator", "x"]) | st.text(
    max_size=9
)
_TOLD = st.fixed_dictionaries(
    {
        "kind": _KINDS | _ANY,
        "pid": st.integers(-5, 1 << 40) | _ANY,
        "t": st.floats() | _ANY,
        "fields": st.dictionaries(_NAMES, _ANY, max_size=5) | _ANY,
    },
    optional={"rank": _ANY},
)


@settings(max_examples=300, deadline=None)
@given(st.one_of(_TOLD, _ANY).map(lambda value: json.dumps(value).encode()) | st.binary(max_size=200))
def test_no_datagram_whatever_raises_and_every_row_can_be_stored(data: bytes) -> None:
    import sqlite3

    from oomproof.recording.sqlite_files import INSERTS, TABLES, storable

    class Rows(Notes):
        def put(self, table: str, row: tuple[Any, ...]) -> None:
            connection.execute(INSERTS[table], tuple(map(storable, row)))

    connection = sqlite3.connect(":memory:")
    connection.executescript(TABLES)
    feed = AgentFeed.__new__(AgentFeed)
    feed._writer, feed._tell, feed._note_phase = Rows(), str, None  # type: ignore[assignment]
    feed._events, feed._voice, feed._last_step, feed._unheard = agent_feed.Counter(), None, None, {}
    feed._take(data)
    for table in INSERTS:
        for row in connection.execute(f"SELECT t FROM {table}").fetchall():
            assert isinstance(row[0], float) and abs(row[0]) < 1e300


def test_an_odd_datagram_costs_itself_only(feed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("odd")

    monkeypatch.setattr(feed, "_phase", broken)
    feed.start()
    for value in (told("phase", name="x"), told("phase", name="x"), told("tell", text="after")):
        send(value, agent_feed.socket_path("r1"))
    feed.stop()
    assert feed.said == ["after"]
    troubles = [row[2] for row in feed.notes.of("event") if row[1] == "trouble"]
    assert troubles == ["agent: RuntimeError: odd"], "told once"


def test_a_removed_socket_is_made_again(feed: Any) -> None:
    path = agent_feed.socket_path("r1")
    shutil.rmtree(path.parent)
    feed._look(boottime())
    feed.start()
    send(told("tell", text="here"), path)
    feed.stop()
    assert feed.said == ["here"]


def test_chatter_never_pushes_out_what_tells_why_it_ended(feed: Any) -> None:
    """Eight ranks' allocator samples, numbered kinds, and a pool whose children all fail: the last exception is there."""
    for number in range(3000):
        feed.handle("allocator", 7, {"reserved": number}, 1.0)
        feed.handle(f"kind{number}", 7, {}, 1.0)
        feed.handle("exception", 7, {"type": f"Error{number}"}, 1.0)
    feed.handle("saved", 7, {"path": "ckpt", "step": 3}, 2.0)
    feed.handle("exception", 7, {"type": "TheLast"}, 3.0)
    texts = [row[2] for row in feed.notes.of("event")]
    assert texts[-1] == "TheLast" and "saved ckpt at step 3" in texts
    kinds = [row[1] for row in feed.notes.of("event")]
    assert kinds.count("agent:allocator") == 1000
    assert len(kinds) < 1000 * 3 + 3000 + 100


def test_odd_names_in_the_agents_folder_are_passed_over(feed: Any, tmp_path: Path) -> None:
    for name in ("x-fault.txt", "²-fault.txt", "-fault.txt", f"{'9' * 50}-fault.txt", "7-fault.txt"):
        (tmp_path / "1" / "agent" / name).touch()
    assert feed._pids() == [7]


def test_unknown_kinds_are_kept_as_events_with_a_cap(feed: Any) -> None:
    feed.handle("allocator", 7, {"reserved": 5, "text": "x", "kind": "y", "t": 1}, 3.0)
    feed.handle("snapshot", 7, {"big": "x" * 100_000}, 4.0)
    (first, second) = feed.notes.of("event")
    assert first[:3] == (3.0, "agent:allocator", "x")
    assert json.loads(first[3]) == {"pid": 7, "reserved": 5, "text": "x", "kind": "y", "t": 1}
    assert json.loads(second[3]) == {"pid": 7, "left_out": ["big"]}


def test_one_process_speaks_for_the_job(feed: Any) -> None:
    """The launcher loads torch first; then rank 0 trains, and what it had told before counts too. Rank 1 and loader workers
    are not heard."""
    launcher, zero, one = os.getpid(), os.getppid(), 1
    feed.handle("phase", launcher, {"name": "load", "step": None}, 1.0)
    feed.handle("phase", one, {"name": "train", "step": 3}, 2.0, rank=1)
    feed.handle("phase", zero, {"name": "load", "step": None}, 3.0, rank=0)
    feed.handle("phase", zero, {"name": "train", "step": 5, "anon": 10, "gpu": None}, 4.0, rank=0)
    feed.handle("phase", launcher, {"name": "load", "step": None}, 5.0)
    assert feed.notes.of("phase") == [
        (1.0, "load", None, launcher, None, None),
        (3.0, "load", None, zero, None, None),
        (4.0, "train", 5, zero, 10, None),
    ]


def test_a_launcher_does_not_speak_for_the_process_that_trains(feed: Any, tmp_path: Path) -> None:
    """torchrun, accelerate launch, mp.spawn: the child says "train" before its first step, and steps say nothing."""
    launcher, child = os.getpid(), os.getppid()
    feed.handle("phase", launcher, {"name": "load"}, 1.0)
    feed.handle("phase", child, {"name": "load"}, 2.0)
    feed.handle("phase", child, {"name": "train"}, 3.0)
    record = tmp_path / "1" / "agent" / f"{child}-now.txt"
    record.write_text("1 4.500 173 -1 train".ljust(159) + "\n")
    feed._look(5.0)
    record.write_text("1 5.500 188 -1 train".ljust(159) + "\n")  # the last steps, and no last word
    feed.stop()
    assert [row[:4] for row in feed.notes.of("phase")] == [
        (1.0, "load", None, launcher),
        (2.0, "load", None, child),
        (3.0, "train", None, child),
        (4.5, "train", 173, child),
        (5.5, "train", 188, child),
    ]


def test_what_a_phase_reached_on_the_gpu_stands_at_its_end(feed: Any) -> None:
    pid = os.getpid()
    feed.handle("phase", pid, {"name": "train", "gpu": 2}, 1.0)
    feed.handle("phase", pid, {"name": "generate", "gpu": 3, "left": "train", "reached": 4}, 2.0)
    feed.handle(
        "phase", pid, {"name": "train", "gpu": 23, "left": "eval", "reached": 9}, 3.0
    )  # one was not told
    rows = [(row[0] < 2.0, row[1], row[5]) for row in feed.notes.of("phase")]
    assert rows == [(True, "train", 2), (True, "train", 4), (False, "generate", 3), (False, "train", 23)]


def test_who_has_come_further_is_found_by_its_record(feed: Any, tmp_path: Path) -> None:
    """What it told may have been lost; an ended process does not take over again."""
    launcher, child, ended = os.getpid(), os.getppid(), 1 << 22
    feed.handle("phase", launcher, {"name": "load"}, 1.0)
    for pid, step in ((child, 3), (ended, 9)):
        record = f"1 4.500 {step} -1 train".ljust(159) + "\n"
        (tmp_path / "1" / "agent" / f"{pid}-now.txt").write_text(record)
    feed._look(5.0)
    assert [row[:4] for row in feed.notes.of("phase")][1:] == [(4.5, "train", 3, child)]


def test_steps_are_read_from_the_record_of_the_process(feed: Any, tmp_path: Path) -> None:
    pid = os.getpid()
    feed.handle("phase", pid, {"name": "train", "step": None}, 1.0)
    (tmp_path / "1" / "agent" / f"{pid}-now.txt").write_text("1 12.500 41 -1 train".ljust(159) + "\n")
    feed._look(13.0)
    feed._look(14.0)  # the same step is no news
    assert feed.notes.of("phase")[1:] == [(12.5, "train", 41, pid, None, None)]


def test_a_taken_up_guard_hears_the_same_agents(feed: Any, tmp_path: Path) -> None:
    """Agents send to the name: the socket of a guard that was killed is simply replaced."""
    notes, said = Notes(), []
    second = AgentFeed("r1", Attempt(tmp_path / "1"), notes, said.append, lambda: None)  # type: ignore[arg-type]
    second.start()
    send(told("tell", text="still here"), agent_feed.socket_path("r1"))
    notes.changed.wait(60)
    second.stop()
    assert said == ["still here"]


def test_empty_files_of_the_dead_go_and_the_presence_is_noted(feed: Any, tmp_path: Path) -> None:
    folder = tmp_path / "1" / "agent"
    (folder / "11-fault.txt").touch()
    (folder / "12-fault.txt").write_text("Fatal Python error: Aborted\n")
    feed.stop()
    assert [path.name for path in folder.iterdir()] == ["12-fault.txt"]
    assert feed.notes.of("event")[-1][1:3] == ("agent", "in 2 Python processes")


def test_stacks_are_asked_of_those_only_who_have_a_handler(feed: Any, tmp_path: Path) -> None:
    """The signal would end anybody else."""
    folder = tmp_path / "1" / "agent"
    deaf = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    site = Path(agent_feed.__file__).parents[1] / "agent" / "site"
    code = "def working():\n    print('ready', flush=True)\n    input()\nworking()"
    listening = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(site), "OOMPROOF_AGENT": str(folder)},
    )
    assert listening.stdout is not None
    listening.stdout.readline()
    (folder / f"{deaf.pid}-fault.txt").touch()
    feed.ask_stacks("a look", 5.0)
    feed.notes.changed.wait(60)
    assert deaf.poll() is None and listening.poll() is None
    (event,) = feed.notes.of("event")
    assert event[1] == "stacks" and event[2].startswith("a look: <string>:") and "in working" in event[2]
    for process in (deaf, listening):
        process.communicate(b"\n")
        assert process.returncode == 0


@pytest.mark.parametrize("code, asked", [("input()", False), ("while True: pass", True)])
def test_for_growth_only_a_process_that_works_is_asked(
    feed: Any, tmp_path: Path, code: str, asked: bool
) -> None:
    """A launcher that has imported torch and now waits did not grow: its workers did."""
    site = Path(agent_feed.__file__).parents[1] / "agent" / "site"
    process = subprocess.Popen(
        [sys.executable, "-c", f"print('ready', flush=True)\n{code}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(site), "OOMPROOF_AGENT": str(tmp_path / "1" / "agent")},
    )
    assert process.stdout is not None
    process.stdout.readline()
    until_asleep = time.monotonic() + 30
    while not asked and is_working(process.pid) and time.monotonic() < until_asleep:
        time.sleep(0.01)
    assert feed.ask_stacks("growth", 5.0, working=True) is asked
    process.kill()
    process.communicate()


def test_an_exception_in_words() -> None:
    frames = [
        {"file": "a.py", "line": 3, "name": "main", "locals": [["x", 5 << 20, "Tensor [10] float32 on cpu"]]},
        {"file": "b.py", "line": 9, "name": "collate", "locals": [["small", 2048, "list of 3"]]},
    ]
    words = agent_feed.exception_text({"type": "builtins.ValueError", "frames": frames})
    assert words == "ValueError at b.py:9 in collate; largest variables: x 5 MiB (Tensor [10] float32 on cpu)"


def test_the_environment_keeps_the_users_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/mine:")
    monkeypatch.delenv("OOMPROOF_AGENT", raising=False)
    variables = agent_feed.environment(Attempt(tmp_path), "r1", {"release": "warn"})
    site, _, rest = variables["PYTHONPATH"].partition(os.pathsep)
    assert (
        rest == "/mine:"
        and os.listdir(site)
        and json.loads(variables["OOMPROOF_AGENT_SETTINGS"]) == {"release": "warn"}
    )
    monkeypatch.setenv("PYTHONPATH", variables["PYTHONPATH"])
    monkeypatch.setenv("OOMPROOF_AGENT", "/outer")
    inner = agent_feed.environment(Attempt(tmp_path), "r2", {})
    assert inner["PYTHONPATH"].split(os.pathsep).count(site) == 1, "a run inside a run"
    assert agent_feed.without(os.environ)["PYTHONPATH"] == "/mine:"


SEGFAULT = """--- 12.500 the steepest growth so far, 1.0 GiB a second
Thread 0x00007f01 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 320 in wait

Current thread 0x00007f02 (most recent call first):
  File "/home/me/data.py", line 7 in load
  File "/home/me/train.py", line 12 in <module>
Fatal Python error: Segmentation fault

Current thread 0x00007f02 (most recent call first):
  File "/usr/lib/python3.11/ctypes/__init__.py", line 519 in string_at
  File "/home/me/train.py", line ??? in main
  File "/home/me/train.py", line 40 in <module>

Extension modules: numpy._core (total: 1)
"""


def test_stacks_are_read_as_faulthandler_writes_them() -> None:
    asked, fatal = stack_dumps.parse(SEGFAULT)
    assert (asked.fatal, asked.time, asked.why) == (
        None,
        12.5,
        "the steepest growth so far, 1.0 GiB a second",
    )
    assert stack_dumps.where(asked.frames) == "/home/me/data.py:7 in load"
    assert fatal.fatal == "Segmentation fault" and len(fatal.frames) == 3
    assert (
        stack_dumps.where(fatal.frames)
        == "/home/me/train.py:? in main, inside string_at (ctypes/__init__.py:519)"
    )
    assert stack_dumps.parse("") == [] and stack_dumps.parse("nothing of this kind\n") == []
    _, newer = stack_dumps.parse(SEGFAULT.replace("Segmentation fault", "Floating-point exception"))
    assert newer.fatal == "Floating point exception", "Python 3.14 has another name for it"
    assert stack_dumps.parse("Fatal Python error: Aborted")[0].frames == ()


HEADER = "--- 12.500 growth\nThread 0x00007f00 (most recent call first):\n"
TRAIN = '  File "/home/me/train.py", line 8 in step\n'
MADE = '  File "<string>", line 0 in <module>\n'
TUPLE = '  File "/usr/lib/python3.11/collections/__init__.py", line 444 in namedtuple\n'
SPAWN = (
    '  File "/usr/lib/python3.11/multiprocessing/spawn.py", line 122 in spawn_main\n'
    '  File "<string>", line 1 in <module>\n'
)
INLINE = '  File "<string>", line 5 in load\n  File "<string>", line 9 in <module>\n'


@pytest.mark.parametrize(
    "frames, where",
    [
        (
            MADE + TUPLE + TRAIN,
            "/home/me/train.py:8 in step, inside namedtuple (collections/__init__.py:444)",
        ),
        (MADE + TRAIN + SPAWN, "/home/me/train.py:8 in step"),
        (MADE + TUPLE + SPAWN, None),
        (MADE + TUPLE, None),
        (INLINE, "<string>:5 in load"),
        (MADE + TUPLE + INLINE, "<string>:5 in load, inside namedtuple (collections/__init__.py:444)"),
        (MADE, "<string>:0 in <module>"),
    ],
)
def test_code_made_as_it_ran_is_no_line_of_the_users(frames: str, where: str | None) -> None:
    """A request is answered between two bytecodes, and the first of such code is what native code returns to."""
    (dump,) = stack_dumps.parse(HEADER + frames)
    assert (stack_dumps.own_frame(dump.frames) and stack_dumps.where(dump.frames)) == where


def test_a_real_stack_inside_a_named_tuple_names_the_users_line(feed: Any, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "from collections import namedtuple\nprint('ready', flush=True)\nwhile True:\n    namedtuple('Row', 'a b')\n"
    )
    site, folder = Path(agent_feed.__file__).parents[1] / "agent" / "site", tmp_path / "1" / "agent"
    process = subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(site), "OOMPROOF_AGENT": str(folder)},
    )
    assert process.stdout is not None
    process.stdout.readline()
    dumps = [stack_request.stack_now(folder, process.pid, "growth") for _ in range(10)]
    process.kill()
    process.communicate()
    told = [stack_dumps.where(dump.frames) for dump in dumps if dump is not None]
    assert told and all(text.startswith(f"{script}:") for text in told), told
    assert not any("<string>" in text for text in told)


def test_a_stack_begins_where_the_job_stood_and_not_inside_our_agent() -> None:
    """A page showed ten lines of ours, a look at the variables, above the one of the user's."""
    agent = "".join(
        f'  File "/x/src/oomproof/agent/{name}.py", line 9 in look\n' for name in ("census", "agent_core")
    )
    own = '  File "/home/me/train.py", line 8 in <module>\n'
    header = (
        "--- 12.500 when it was asked to save and stop\nCurrent thread 0x00007f00 (most recent call first):\n"
    )
    (asked,) = stack_dumps.parse(header + agent + own)
    assert stack_dumps.where(asked.frames) == "/home/me/train.py:8 in <module>" and len(asked.frames) == 1
    (only_ours,) = stack_dumps.parse(header + agent)
    assert len(only_ours.frames) == 2
    (fatal,) = stack_dumps.parse(
        "Fatal Python error: Aborted\n\nCurrent thread 0x00007f00 (most recent call first):\n" + agent + own
    )
    assert len(fatal.frames) == 3, "a fault of ours would be one"


def test_the_record_of_where_a_job_stands(tmp_path: Path) -> None:
    for pid, text in {
        10: "1 5.000 -1 -1 load",
        11: "1 9.000 7 0 train the second tower",
        12: "1 9.500 8 1 train",
        13: "2 of a later version",
        14: "",
    }.items():
        (tmp_path / f"{pid}-now.txt").write_text(text.ljust(159) + "\n")
    found = position_record.best(position_record.read_all(tmp_path))
    assert found is not None
    assert (found.pid, found.step, found.rank, found.phase) == (11, 7, 0, "train the second tower")
    assert position_record.best([]) is None


def test_only_the_living_are_asked(tmp_path: Path) -> None:
    (tmp_path / "agent").mkdir()
    (tmp_path / "agent" / f"{os.getpid()}-listens.txt").write_text("save stop\nLightning\n")
    (tmp_path / "agent" / "99999999-listens.txt").write_text("save stop\nthe Hugging Face Trainer\n")
    assert Attempt(tmp_path).listeners("save") == ["Lightning"]
    assert Attempt(tmp_path).listeners("freeze") == []
    Attempt(tmp_path).ask_to_save("why")
    assert stat.S_IMODE(Attempt(tmp_path).save_file.stat().st_mode) == 0o600
    assert Attempt(tmp_path).save_file.read_text().startswith(SAVE_TEXT)


def census_file(feed: Any, pid: int, why: str) -> None:
    row = {"name": "rows", "scope": "local", "function": "main", "file": "/prep.py", "line": 4, "what": "list of 3,000 dict",
           "length": 3000, "ram": 64 << 20, "mapped": 0, "gpu": 0}  # fmt: skip
    value = {"schema": 1, "pid": pid, "t": 1.0, "wall": 2.0, "request": "1", "why": why, "phase": "", "step": None,
             "anon": 1, "seen": 64 << 20, "mapped": 0, "gpu": 0, "complete": True, "seconds": 0.1, "things": [row],
             "copies": []}  # fmt: skip
    (feed._folder / f"{pid}-census-1.json").write_text(json.dumps(value))


def test_a_census_is_told_at_a_warning_and_kept_in_any_case(feed: Any) -> None:
    for pid, why in ((7, census_watch.AT_WARNING), (8, census_watch.BY_TIME), (9, "oomproof inspect")):
        census_file(feed, pid, why)
        feed.handle("census", pid, {"file": f"{pid}-census-1.json"}, boottime())
    text = "largest: rows (list of 3,000 dict, 64 MiB)"
    assert feed.said == [f"what it holds: {text} (oomproof inspect tells more)"]
    assert [row[1:3] for row in feed.notes.of("event")] == [("census", text)] * 3
    feed.handle("census", 10, {"file": "../../etc/passwd"}, boottime())
    assert len(feed.notes.of("event")) == 3, "one that is not there"


def test_a_census_is_asked_once_and_again_where_nobody_answers(
    feed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(census_request, "able", lambda folder: [os.getpid()])
    monkeypatch.setattr(census_request, "ask", lambda folder, pid, request, why: asked.append(why) or True)
    monkeypatch.setattr(census_request, "ask_again", lambda folder, pid: asked.append("again"))
    assert feed.ask_census("first") and not feed.ask_census("second"), "one at a time"
    now = boottime()
    for second in range(1, 60):
        feed._look_after_census(now + second)
    assert asked[0] == "first" and set(asked[1:]) == {"again"} and 3 <= len(asked) <= 11, (
        "and then it is given up"
    )
    assert feed.ask_census("third")
    census_file(feed, os.getpid(), "third")
    feed.handle("census", os.getpid(), {}, boottime())
    assert not feed.ask_census("fourth"), "it has just been told"


def test_a_census_by_time(feed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(census_request, "able", lambda folder: [os.getpid()])
    monkeypatch.setattr(census_request, "ask", lambda folder, pid, request, why: asked.append(why) or True)
    feed._census._every, feed._census._next = 600.0, 1000.0
    feed._look_after_census(999.0)
    assert asked == []
    feed._look_after_census(1001.0)
    feed._look_after_census(1002.0)
    assert asked == [census_watch.BY_TIME]


def test_a_program_of_the_job_that_a_memory_error_ended(feed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Told when the job has outlived it; the job's own end it tells itself. Nothing secret is written down."""
    monkeypatch.setattr(agent_feed, "_LIVES_ON", 0.0)
    feed._leader = 1
    frames = [{"file": "t.py", "line": 3, "name": "step", "locals": []}]
    own = {
        "type": "torch.OutOfMemoryError",
        "frames": frames,
        "memory": True,
        "argv": ["python", "t.py", "--token=hunter2"],
    }
    feed.handle("exception", 1, dict(own), 5.0)
    feed.handle("exception", 8, {**own, "thread": "loader"}, 5.0)
    feed.handle("exception", 8, {"type": "builtins.ValueError", "frames": frames}, 5.0)
    lost = [row for row in feed.notes.of("event") if row[1] == "program-lost"]
    assert not lost
    feed.handle("exception", 9, dict(own), 6.0)
    ((_, _, text, _),) = [row for row in feed.notes.of("event") if row[1] == "program-lost"]
    assert text.startswith("python t.py '--token=") and text.endswith(
        "(pid 9) ran out of memory: torch.OutOfMemoryError at t.py:3 in step"
    )
    deadline = time.monotonic() + 30
    while not feed.said and time.monotonic() < deadline:
        time.sleep(0.01)
    assert feed.said == [f"{text}; the job that started it continues"]
    assert "hunter2" not in str(feed.notes.rows) + str(feed.said)


def test_a_process_that_died_while_it_pinned_pins_no_more(feed: Any) -> None:
    """Until then growth is not counted: a job that is started again in the same run would be taken for one that never grows."""
    pinned: list[bool] = []
    feed._note_pinning = pinned.append
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    feed.handle("spill", child.pid, {"did": "pinning"}, boottime())
    feed._look(boottime())
    assert pinned == [True]
    child.communicate(b"\n")
    feed._look(boottime())
    assert pinned == [True, False]
    feed.handle("spill", os.getpid(), {"did": "pinning"}, boottime())
    feed._look(boottime() + 1000)  # its last word was lost
    assert pinned == [True, False, True, False]

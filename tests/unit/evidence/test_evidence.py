"""Reading an attempt's folder: whatever it holds, a case file comes out and never a traceback."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest
from helpers_case import CGROUP, END, GIB, LEADER, OWN_KILL, START, WALL, Attempt, kernel
from hypothesis import given, settings
from hypothesis import strategies as st

from oomproof.diagnosis.judge import judge
from oomproof.evidence import job_output
from oomproof.evidence.job_output import read_output
from oomproof.evidence.job_processes import read_kernel, same_or_below
from oomproof.evidence.recording_tail import last_samples
from oomproof.recording.attempt import Attempt as RunAttempt

FILES = ("started.json", "exit.json", "actions.jsonl", "keeper.jsonl", "recording.sqlite", "output.log")


def test_the_whole_case(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path)
    attempt.ended(code=1, memcg_oom_kill=1, vmstat_oom_kill=8)
    attempt.kernel_lines = kernel(OWN_KILL)
    case = attempt.case()
    assert case.run == "r1" and case.attempt == 1 and case.samples.leader == LEADER
    assert case.samples.host is not None and case.samples.host.available == 20 * GIB
    assert case.samples.job is not None and case.samples.job.used == 4 * GIB
    # the kernel saw more of its victim than the last sample
    assert (case.samples.job_peak, case.samples.peak_source, case.samples.sampled_peak) == (
        8318418944,
        "kernel",
        4 * GIB,
    )
    assert (
        case.limits.cgroups == (CGROUP,) and case.limits.limit == 8 * GIB and case.limits.settings.grace == 30
    )
    assert case.samples.processes[4100].role == "worker" and case.samples.processes[4100].first == END - 3
    assert [kill.pid for kill in case.kernel.our_kills] == [LEADER] and case.kernel.our_kills[
        0
    ].limit == 8 * GIB
    ids = [each.id for each in case.evidence]
    assert len(ids) == len(set(ids))
    assert next(each.time for each in case.evidence if each.id == "exit") == WALL + END


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("how", ["absent", "half", "empty", "garbage"])
def test_a_damaged_file_is_a_value(tmp_path: Path, name: str, how: str) -> None:
    attempt = Attempt(tmp_path)
    attempt.act("term")
    attempt.keeper_events = [{"boottime": END, "event": "leftovers"}]
    attempt.case()
    path = attempt.dir / name
    data = path.read_bytes()
    if how == "absent":
        path.unlink()
    else:
        path.write_bytes({"half": data[: len(data) // 2], "empty": b"", "garbage": b"\xff\0[1,2" * 99}[how])
    verdict = judge(attempt.collect())
    assert verdict.headline
    if name == "exit.json" or (name == "recording.sqlite" and how in ("absent", "garbage")):
        assert verdict.missing


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=60)
@given(data=st.data())
def test_any_value_in_any_field(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    attempt = Attempt(tmp_path_factory.mktemp("fuzz"))
    attempt.case()
    for name in ("started.json", "exit.json"):
        path = attempt.dir / name
        value = json.loads(path.read_text())
        for key in list(value):
            if data.draw(st.booleans()):
                value[key] = data.draw(_json)
        path.write_text(json.dumps(value))
    (attempt.dir / "actions.jsonl").write_text(json.dumps(data.draw(_json)) + "\n")
    verdict = judge(attempt.collect())
    assert sum(each.probability for each in verdict.causes) == pytest.approx(1.0)


@settings(max_examples=60)
@given(data=st.binary(max_size=3000))
def test_any_output(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    folder = tmp_path_factory.mktemp("output")
    (folder / "output.log").write_bytes(data)
    assert (
        read_output(RunAttempt(folder), parse=False).last_line == ""
        or read_output(RunAttempt(folder), parse=True).text is not None
    )


@given(st.lists(st.text(max_size=200), max_size=8))
def test_any_kernel_text(lines: list[str]) -> None:
    read_kernel((float(n), line) for n, line in enumerate(lines))


def test_only_the_end_of_a_long_output_is_parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_output, "_TAIL", 64 << 10)
    head = b'Traceback (most recent call last):\n  File "t.py", line 1, in f\nMemoryError\n' + b"y\n" * 40000
    (tmp_path / "output.log").write_bytes(head)
    assert read_output(RunAttempt(tmp_path), parse=True).failure is None
    (tmp_path / "output.log").write_bytes(
        head + b'Traceback (most recent call last):\n  File "t.py", line 2\nKeyError: 1\n'
    )
    failure = read_output(RunAttempt(tmp_path), parse=True).failure
    assert failure is not None and failure.line == 40006, "numbered as in the whole output"


def test_an_output_past_its_cap_is_one_text(tmp_path: Path) -> None:
    """The keeper begins a new part in the middle of a traceback; the parts are read one behind the other."""
    (tmp_path / "output.first.log").write_bytes(b"step 1\n" * 10)
    (tmp_path / "output.prev.log").write_bytes(
        b'Traceback (most recent call last):\n  File "t.py", line 2, in f\n'
    )
    (tmp_path / "output.log").write_bytes(b"    step()\nMemoryError\n")
    output = read_output(RunAttempt(tmp_path), parse=True)
    assert output.failure is not None and output.failure.cause == "python-memory-error"
    assert output.failure.line == 14 and output.last_line == "MemoryError"


def test_a_part_that_cannot_be_read_is_a_reason(tmp_path: Path) -> None:
    (tmp_path / "output.log").mkdir()
    assert read_output(RunAttempt(tmp_path), parse=True).reason


def test_old_kernels() -> None:
    lines = [
        (1.0, "Task in /docker/341 killed as a result of limit of /docker/341"),
        (1.0, "memory: usage 1048576kB, limit 1048576kB, failcnt 10"),
        (1.0, "Memory cgroup out of memory: Kill process 215701 (java) score 854 or sacrifice child"),
        (1.0, "Killed process 215701, UID 679, (java) total-vm:9000000kB, anon-rss:1000000kB, file-rss:24kB"),
    ]
    (kill,), _ = read_kernel(lines)
    assert kill.pid == 215701 and kill.name == "java" and kill.anon_rss == 1000000 * 1024
    assert (
        kill.shmem_rss is None and kill.by_limit and kill.oom_memcg == "/docker/341" and kill.limit == 1 << 30
    )


def test_the_oom_kill_line_alone_is_a_kill() -> None:
    (kill,), _ = read_kernel([(5.0, OWN_KILL[1].format(cgroup="/a", pid=9))])
    assert kill.pid == 9 and kill.by_limit and kill.oom_memcg == "/a" and kill.time == 5.0


def test_the_killed_line_alone_is_a_kill() -> None:
    (kill,), _ = read_kernel(
        [(5.0, "Out of memory: Killed process 9 (a b) total-vm:4kB, anon-rss:4kB, file-rss:0kB")]
    )
    assert kill.pid == 9 and kill.name == "a b" and kill.constraint == "CONSTRAINT_NONE"


def test_killed_without_a_reason_leaves_the_constraint_open() -> None:
    (kill,), _ = read_kernel([(5.0, "Killed process 9 (a) total-vm:4kB, anon-rss:4kB, file-rss:0kB")])
    assert kill.pid == 9 and kill.constraint is None


@pytest.mark.parametrize(
    ("path", "ours", "expected"),
    [
        ("/a/oomproof-1", "/a/oomproof-1", True),
        ("/a/oomproof-1/inner", "/a/oomproof-1", True),
        ("/docker/x/a/oomproof-1", "/a/oomproof-1", True),
        ("/a/oomproof-12", "/a/oomproof-1", False),
        ("/a", "/a/oomproof-1", False),
        (None, "/a", False),
    ],
)
def test_whose_cgroup(path: str | None, ours: str, expected: bool) -> None:
    assert same_or_below(path, (ours,)) is expected


def test_a_recording_whose_writer_was_killed(tmp_path: Path) -> None:
    """The last commits stand only in the WAL."""
    attempt = Attempt(tmp_path)
    attempt.case()
    path = attempt.dir / "recording.sqlite"
    db = sqlite3.connect(path)
    db.execute("PRAGMA journal_mode=WAL")
    db.execute("INSERT INTO job VALUES(?,?,0,0,0,0,NULL,1,NULL,NULL)", (END, 4 * GIB))
    db.commit()
    copy = tmp_path / "copy"
    copy.mkdir()
    for each in attempt.dir.glob("recording.sqlite*"):  # as a SIGKILL leaves them: no checkpoint
        (copy / each.name).write_bytes(each.read_bytes())
    db.close()
    tail = last_samples(copy / "recording.sqlite")
    assert tail.samples.job is not None and tail.samples.job.t == END and tail.samples.job.headroom is None


def test_a_table_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "recording.sqlite"
    db = sqlite3.connect(path)
    db.execute(
        "CREATE TABLE host(t REAL, mem_total INT, mem_available INT, mem_free INT, swap_total INT,"
        " swap_free INT, psi_some_us INT, psi_full_us INT)"
    )
    db.execute("INSERT INTO host VALUES(1, 10, 5, 5, 0, 0, 0, 0)")
    db.execute("INSERT INTO host VALUES(3, 10, 4, 4, 0, 0, 0, 1000000)")
    db.commit()
    db.close()
    tail = last_samples(path)
    assert (
        tail.samples.host is not None
        and tail.samples.host.available == 4
        and tail.samples.host.psi_full == 0.5
    )
    assert tail.samples.job is None and tail.samples.processes == {}


def test_samples_start_after_the_start() -> None:
    assert START < END

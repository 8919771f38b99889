"""The ledger's file: what it keeps, what it forgets, and the bad days it was made for."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from helpers_disk import fill
from hypothesis import given, settings
from hypothesis import strategies as st

from oomproof.errors import OomproofError
from oomproof.leaf.command_lines import command_key, output_folder
from oomproof.ledger import forecast, ledger_snapshot, ledger_store
from oomproof.ledger.ledger_entries import (
    ADMITTED,
    WAITING,
    Entry,
    Peak,
    declared,
    from_history,
    is_live,
    usual_seconds,
)
from oomproof.ledger.ledger_snapshot import LedgerRun, look, run_text
from oomproof.ledger.ledger_store import Busy, Ledger
from oomproof.machine import processes
from oomproof.machine.clock import boottime
from oomproof.recording import state_files

GIB, MIB = 1 << 30, 1 << 20


def entry(run: str, pid: int | None = None, **changes: object) -> Entry:
    pid = os.getpid() if pid is None else pid
    plain = Entry(
        run=run,
        uid=os.getuid(),
        name=run,
        key="k",
        state=ADMITTED,
        boot=processes.boot_id(),
        asked=boottime(),
        front_pid=pid,
        front_start=processes.start_time(pid),
        need=GIB,
        need_low=GIB,
        basis="declared",
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    made = Ledger(tmp_path, spare=tmp_path / "spare.sqlite")
    yield made
    made.close()


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "600"])
    yield process
    process.kill()
    process.wait()


def put(ledger: Ledger, *entries: Entry) -> None:
    with ledger.decision():
        for one in entries:
            ledger.put(one)


def test_what_is_written_is_read_by_another(ledger: Ledger, tmp_path: Path) -> None:
    wanted = entry("a", gpu_need=5 * GIB, gpu=1, cgroup="/sys/fs/cgroup/x", cgroup_version=2)
    put(ledger, wanted)
    other = Ledger(tmp_path)
    assert other.entries() == [wanted]
    other.close()
    assert ledger.path.stat().st_mode & 0o777 == 0o600 and not ledger.notes


def test_a_decision_that_fails_leaves_nothing(ledger: Ledger) -> None:
    with pytest.raises(RuntimeError), ledger.decision():
        ledger.put(entry("a"))
        raise RuntimeError
    assert ledger.entries() == []


def test_one_decision_at_a_time(ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_store, "LOCK_SECONDS", 0.05)
    other = Ledger(tmp_path)
    with ledger.decision(), pytest.raises(Busy), other.decision():
        pytest.fail("two decisions at once")
    with other.decision():
        pass
    other.close()


# --- who lives ----------------------------------------------------------------------------------------------------


def test_an_entry_ends_with_its_holder(ledger: Ledger, sleeper: subprocess.Popen[bytes]) -> None:
    put(ledger, entry("mine"), entry("theirs", sleeper.pid))
    assert {one.entry.run for one in look(ledger).running} == {"mine", "theirs"}
    sleeper.kill()
    sleeper.wait()
    snapshot = look(ledger)
    assert [one.entry.run for one in snapshot.running] == ["mine"]
    assert [one.run for one in snapshot.dead] == ["theirs"]
    assert snapshot.budget.reserved == GIB


def test_a_front_that_was_killed_does_not_take_the_jobs_reservation_along(
    ledger: Ledger, sleeper: subprocess.Popen[bytes]
) -> None:
    start = processes.start_time(sleeper.pid)
    kept = entry("a", front_pid=1 << 22, front_start=1, keeper_pid=sleeper.pid, keeper_start=start)
    boot = processes.boot_id()
    assert is_live(kept, boot)
    assert not is_live(replace(kept, keeper_start=(start or 0) + 1), boot), "another process with its pid"
    orphan = replace(kept, keeper_pid=1 << 22, keeper_start=1, job_pid=sleeper.pid, job_start=start)
    assert is_live(orphan, boot), "keeper and front are gone, the job holds its memory all the same"


def test_a_front_killed_before_it_wrote_down_the_keeper(
    tmp_path: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    from oomproof.recording.state_files import write_json

    (tmp_path / "1").mkdir()
    half = entry("a", front_pid=1 << 22, front_start=1, folder=str(tmp_path))
    boot = processes.boot_id()
    assert not is_live(half, boot)
    one = {"pid": sleeper.pid, "start": processes.start_time(sleeper.pid)}
    write_json(tmp_path / "1" / "started.json", {"keeper": one, "job": one, "backend": {}})
    assert is_live(half, boot)
    assert not is_live(replace(half, state=WAITING), boot)


def test_a_reboot_forgets_who_ran_and_keeps_what_was_learnt(ledger: Ledger) -> None:
    put(ledger, entry("before", boot="another boot"), entry("now"))
    ledger.remember(Peak("before", "k", 1.0, 2 * GIB, None, 9.0, True))
    snapshot = look(ledger)
    assert [one.entry.run for one in snapshot.running] == ["now"]
    assert [peak.use for peak in ledger.peaks("k")] == [2 * GIB]


@settings(max_examples=25)
@given(st.lists(st.booleans(), min_size=1, max_size=8))
def test_no_reservation_outlives_its_holder(
    tmp_path_factory: pytest.TempPathFactory, kills: list[bool]
) -> None:
    """Real processes, real SIGKILL: after each death exactly the living ones are counted."""
    ledger = Ledger(tmp_path_factory.mktemp("ledger"))
    holders = [subprocess.Popen(["sleep", "600"]) for _ in kills]
    try:
        put(ledger, *(entry(f"run{n}", one.pid) for n, one in enumerate(holders)))
        for one, dies in zip(holders, kills, strict=True):
            if dies:
                one.send_signal(signal.SIGKILL)
                one.wait()
            living = {f"run{n}" for n, holder in enumerate(holders) if holder.poll() is None}
            snapshot = look(ledger)
            assert {ledger_run.entry.run for ledger_run in snapshot.running} == living
            assert snapshot.budget.reserved == GIB * len(living)
    finally:
        for one in holders:
            one.kill()
            one.wait()
        ledger.close()


# --- bad days -----------------------------------------------------------------------------------------------------


def break_with(how: str, path: Path) -> None:
    if how == "newer":
        with sqlite3.connect(path) as connection:
            connection.execute("PRAGMA user_version=99")
        connection.close()
    elif how == "garbage":
        path.write_bytes(b"not a database at all " * 400)
    elif how == "torn":
        data = bytearray(path.read_bytes())
        data[4096:] = os.urandom(len(data) - 4096)
        path.write_bytes(data)
    else:
        path.unlink()
        with sqlite3.connect(path) as connection:
            connection.execute("CREATE TABLE somebody (elses INT)")
        connection.close()


@pytest.mark.parametrize("how", ["newer", "garbage", "torn", "foreign"])
def test_a_file_that_cannot_be_read_is_kept_aside_and_begun_anew(tmp_path: Path, how: str) -> None:
    first = Ledger(tmp_path)
    put(first, entry("lost"))
    first.remember(Peak("old", "k", 1.0, GIB, None, 3.0, True))
    first.close()
    break_with(how, first.path)
    broken = first.path.read_bytes()
    again = Ledger(tmp_path, rebuild=lambda: [entry("still-runs")])
    readable = ["lost"] if how == "newer" else []
    assert [one.run for one in again.entries()] == ["still-runs", *readable]
    kept = list(tmp_path.glob("*.kept"))
    assert len(kept) == 1 and kept[0].read_bytes() == broken
    assert str(kept[0]) in again.notes[0] and "1 runs that are active now" in again.notes[0]
    put(again, entry("new"))
    again.close()
    third = Ledger(tmp_path)
    assert {one.run for one in third.entries()} == {"still-runs", "new", *readable} and not third.notes
    third.close()


def test_one_damaged_byte_anywhere_never_blocks(tmp_path: Path) -> None:
    """All over the file, and closer in the tables' definitions: each time somebody can still decide, and nothing else is raised."""
    first = Ledger(tmp_path / "whole")
    first.folder.mkdir()
    put(first, entry("runs"))
    for number in range(5):
        first.remember(Peak(f"old{number}", "k", float(number), GIB, None, 3.0, True))
    first.close()
    whole = first.path.read_bytes()
    (begin, end) = (whole.index(b"CREATE TABLE"), whole.rindex(b"CREATE") + 200)
    places = sorted({*range(0, len(whole), 509), *range(begin, end, 29)})
    for place_of_it in places:
        folder = tmp_path / str(place_of_it)
        folder.mkdir()
        broken = bytearray(whole)
        broken[place_of_it] ^= 0xFF
        (folder / first.path.name).write_bytes(broken)
        again = Ledger(folder, rebuild=lambda: [entry("runs")])
        put(again, entry("new"))
        assert "new" in {one.run for one in again.entries()}, place_of_it
        again.peaks("k")
        again.remember(Peak("next", "k", 9.0, GIB, None, 3.0, True))
        again.close()
        shutil.rmtree(folder)


def test_what_past_runs_held_is_saved_from_a_damaged_file(tmp_path: Path) -> None:
    first = Ledger(tmp_path)
    put(first, entry("a"))
    first.remember(Peak("old", "k", 1.0, GIB, None, 3.0, True))
    first.close()
    with sqlite3.connect(first.path) as connection:
        connection.execute("UPDATE entry SET need = 'a lot'")
    connection.close()
    again = Ledger(tmp_path)
    assert again.entries() == [] and "It is now" in again.notes[0]
    assert [peak.run for peak in again.peaks("k")] == ["old"]
    again.close()


@pytest.mark.parametrize("how", ["removed", "emptied"])
def test_a_lost_ledger_is_rebuilt_also_for_those_who_had_it_open(tmp_path: Path, how: str) -> None:
    waiting = Ledger(tmp_path, rebuild=lambda: [entry("runs")])
    put(waiting, entry("waits", state=WAITING))
    if how == "removed":
        waiting.path.unlink()
    else:
        waiting.path.write_bytes(b"")
    starting = Ledger(tmp_path, rebuild=lambda: [entry("runs")])
    assert [one.run for one in starting.entries()] == ["runs"]
    assert "the 1 runs that are active now" in starting.notes[0]
    put(waiting, entry("waits", state=WAITING))
    assert {one.run for one in starting.entries()} == {"runs", "waits"}
    assert {one.run for one in waiting.entries()} == {"runs", "waits"}
    starting.close()
    waiting.close()


def test_a_ledger_removed_in_the_middle_of_a_decision_keeps_it(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, rebuild=lambda: [entry("runs")])
    with ledger.decision():
        ledger.put(entry("new"))
        ledger.path.unlink()
    other = Ledger(tmp_path)
    assert {one.run for one in other.entries()} == {"runs", "new"}
    other.close()
    ledger.close()


def test_many_that_start_on_a_removed_ledger_all_see_what_runs(tmp_path: Path) -> None:
    for _ in range(5):
        for path in tmp_path.glob("ledger*"):
            path.unlink()
        made = [Ledger(tmp_path, rebuild=lambda: [entry("runs")]) for _ in range(8)]
        threads = [threading.Thread(target=put, args=(one, entry(f"r{n}"))) for n, one in enumerate(made)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        last = Ledger(tmp_path)
        assert {one.run for one in last.entries()} == {"runs", *(f"r{n}" for n in range(8))}
        assert sum(bool(one.notes) for one in made) == 1, "told once"
        for one in (*made, last):
            one.close()


def test_damage_found_in_the_middle_of_a_wait(ledger: Ledger) -> None:
    put(ledger, entry("a"))
    ledger._main.close()  # type: ignore[union-attr]
    ledger._main = None
    break_with("torn", ledger.path)
    with ledger.decision():
        assert ledger.entries() == []
        ledger.put(entry("b"))
    assert [one.run for one in ledger.entries()] == ["b"]


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_full_disk_loses_no_reservation(small_disk: Path, tmp_path: Path, when: str) -> None:
    if when == "before":
        fill(small_disk)
    ledger = Ledger(small_disk, spare=tmp_path / "spare.sqlite")
    put(ledger, entry("one"))
    if when == "after":
        fill(small_disk)
    put(ledger, *(entry(f"more{n}", twin="x" * 8000) for n in range(20)))
    other = Ledger(small_disk, spare=tmp_path / "spare.sqlite")
    assert len(other.entries()) == 21
    assert any("cannot be written now" in note or "cannot be used" in note for note in ledger.notes)
    ledger.remember(Peak("one", "k", 1.0, GIB, None, 3.0, True))  # lost, and said so
    (small_disk / "filler").unlink()
    put(other, entry("last"))
    assert {"one", "more0", "last"} <= {one.run for one in look(other).running and other.entries()}
    ledger.close()
    other.close()


def test_with_no_place_to_write_it_says_so(small_disk: Path) -> None:
    fill(small_disk)
    ledger = Ledger(small_disk, spare=small_disk / "spare.sqlite")
    with pytest.raises(OomproofError, match="neither"):
        put(ledger, *(entry(f"more{n}", twin="x" * 8000) for n in range(30)))
    ledger.close()


def test_two_threads_of_decisions_never_mix(tmp_path: Path) -> None:
    """Read, decide and write are one step: a counter kept in an entry loses no increment."""
    first = Ledger(tmp_path)
    put(first, entry("counter", priority=0))
    first.close()

    def add() -> None:
        mine = Ledger(tmp_path)
        for _ in range(50):
            with mine.decision():
                (now,) = mine.entries()
                mine.put(replace(now, priority=now.priority + 1))
        mine.close()

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    last = Ledger(tmp_path)
    assert last.entries()[0].priority == 200
    last.close()


# --- several users ------------------------------------------------------------------------------------------------


def test_only_roots_folder_for_a_group_is_shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "shared"
    folder.mkdir()
    monkeypatch.setattr(ledger_store, "SHARED", folder)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    folder.chmod(0o2777)
    assert ledger_store.ledger_folder() == (tmp_path / "state" / "oomproof", False)
    folder.chmod(0o2770)
    expected = (folder, True) if os.getuid() == 0 else (tmp_path / "state" / "oomproof", False)
    assert ledger_store.ledger_folder() == expected
    with pytest.raises(OomproofError, match="not there"):
        ledger_store.ledger_folder(str(tmp_path / "nowhere"))


def test_two_users_share_one_ledger() -> None:
    """Two real user ids: what one writes the other reads, also after the first was killed in the middle."""
    if os.getuid() != 0:
        pytest.skip("only root can be two users")
    folder = Path(tempfile.mkdtemp())  # pytest closes its own to other users
    os.chown(folder, 0, 4242)
    folder.chmod(0o2770)
    script = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from test_ledger import entry\n"
        "from oomproof.ledger.ledger_store import Ledger\n"
        "from oomproof.ledger.ledger_snapshot import look\n"
        "os.setgroups([]); os.setgid(4242); os.setuid(int(sys.argv[1]))\n"
        "ledger = Ledger(Path(sys.argv[2]), shared=True)\n"
        "with ledger.decision():\n"
        "    ledger.put(entry('of' + sys.argv[1]))\n"
        "print(sorted(one.entry.run for one in look(ledger).running), ledger.notes, flush=True)\n"
        "sys.stdin.read()\n"
    )
    environment = {
        **os.environ,
        "PYTHONPATH": f"{Path(__file__).parent}:{Path(__file__).parents[1]}:{Path(ledger_store.__file__).parents[2]}",
    }
    processes_ = []
    said = []
    try:
        for uid in ("4001", "4002"):
            one = subprocess.Popen(
                [sys.executable, "-c", script, uid, str(folder)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=environment,
                text=True,
            )
            processes_.append(one)
            assert one.stdout is not None
            said.append(one.stdout.readline())
        assert said == ["['of4001'] []\n", "['of4001', 'of4002'] []\n"]
        processes_[0].kill()
        processes_[0].wait()
        mine = Ledger(folder, shared=True)
        assert [one.entry.run for one in look(mine).running] == ["of4002"]
        mine.close()
    finally:
        for one in processes_:
            one.kill()
            one.communicate()
        shutil.rmtree(folder)
        for uid in ("4001", "4002"):  # made by runtime_folder()
            shutil.rmtree(f"/tmp/oomproof-{uid}", ignore_errors=True)


# --- what it needs ------------------------------------------------------------------------------------------------


def peak(use: int, whole: bool = True, seconds: float = 10.0) -> Peak:
    return Peak(f"r{use}{whole}", "k", 1.0, use, None, seconds, whole)


def test_a_need_comes_from_whole_runs_and_a_killed_one_only_raises_it() -> None:
    assert from_history([]) is None
    need = from_history([peak(3 * GIB), peak(2 * GIB)])
    assert need is not None and (need.low, need.high) == (2 * GIB, 3 * GIB) and "2 runs" in need.basis
    lower = from_history([peak(GIB, whole=False), peak(3 * GIB)])
    assert lower is not None and lower.high == 3 * GIB
    raised = from_history([peak(5 * GIB, whole=False), peak(3 * GIB)])
    assert raised is not None and raised.high == 5 * GIB
    assert raised.basis == "at least: what it held in a run that ended early"
    # who ended them is not on record: a person's stop is no end for want of memory
    stopped = from_history([peak(GIB, whole=False), peak(2 * GIB, whole=False)])
    assert stopped is not None and stopped.basis == "at least: the most it held in 2 runs that ended early"
    assert declared(GIB).basis == "--need"
    assert usual_seconds([peak(1, seconds=10), peak(2, seconds=30), peak(3, False, seconds=1)]) == 30


def test_only_the_newest_peaks_of_a_command_are_kept(ledger: Ledger) -> None:
    for number in range(30):
        ledger.remember(Peak(f"r{number}", "k", float(number), number * MIB, None, 5.0, True))
    ledger.remember(Peak("other", "another", 1.0, GIB, None, 5.0, True))
    kept = ledger.peaks("k")
    assert len(kept) == ledger_store.KEPT_PER_COMMAND and kept[0].use == 29 * MIB
    assert len(ledger.peaks("another")) == 1


def test_the_key_of_a_command(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    (tmp_path / "link.py").symlink_to("train.py")
    here = str(tmp_path)

    def key(text: str, folder: str = here) -> str:
        return command_key(text.split(), folder)

    base = key("python train.py --batch 64 --lr 3e-4 data.npz")
    same = [
        "python3 train.py --lr 3e-4 --batch=64 data.npz",
        "python3.11 ./link.py --lr 3e-4 --batch 64 data.npz",
        f"python {here}/train.py --batch 64 --lr 3e-4 data.npz",
        "python train.py --seed 7 --batch 64 --lr 3e-4 --output_dir out/7 --run-name x --logdir /tmp/l data.npz",
    ]
    assert {key(text) for text in same} == {base}
    other = [
        "python train.py --batch 128 --lr 3e-4 data.npz",
        "python train.py --batch 64 --lr 3e-4 other.npz",
        "python train.py --batch 64 --lr 3e-4 --fp16 data.npz",
        "torchrun --nproc_per_node 2 train.py --batch 64 --lr 3e-4 data.npz",
    ]
    assert base not in {key(text) for text in other} and len({key(text) for text in other}) == 4
    assert key("python -m pkg.train") != key("python -m pkg.train", "/")
    assert key("python train.py --save_steps 5") != key("python train.py --save_steps 6")
    assert key("python train.py x y") != key("python train.py y x"), "the place of a word may matter"


def test_where_the_output_goes(tmp_path: Path) -> None:
    here = str(tmp_path)
    for words in (
        "--output_dir out",
        "--output-dir=out",
        "trainer.default_root_dir=out",
        "-o out",
        "--save_dir ./x/../out",
    ):
        assert output_folder(words.split(), here) == f"{here}/out", words
    for words in ("--save_steps 5", "--log_level info", "--run 5", "--overwrite_output_dir"):
        assert output_folder(words.split(), here) is None, words


# --- what it holds ------------------------------------------------------------------------------------------------


def test_a_live_run_tells_what_it_holds_and_how_it_grows(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    now = boottime()
    live = forecast.LiveClaim("a", now - 100)
    for second in range(31):
        live.update((100 + second) * MIB, now - 30 + second)
    known, unknown = entry("a"), entry("a", need=None)
    capped = entry("a", need=None, cap=200 * MIB)
    claims = ledger_snapshot.claims_of([known, unknown, capped], now)
    assert [claim.held for claim in claims] == [130 * MIB] * 3
    assert claims[0].yet == GIB - 130 * MIB
    # a MiB a second, seen for 30 s: 300 s ahead at most, ten times as far as it was seen
    assert claims[1].yet == 300 * MIB
    assert claims[2].yet == 70 * MIB
    live.leave()
    assert ledger_snapshot.claims_of([unknown], now)[0].yet == 0


def test_a_calm_run_keeps_what_it_said_fresh(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its guard looks every ten seconds, and glances in between; what is older than five is not believed."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    now = boottime()
    live = forecast.LiveClaim("a", now - 100)
    for second in range(31):
        live.update((100 + second) * MIB, now - 50 + second)
    unknown = entry("a", need=None)
    assert [(claim.held, claim.yet) for claim in ledger_snapshot.claims_of([unknown], now)] == [(0, 0)]
    live.confirm(now - 3)
    claim = ledger_snapshot.claims_of([unknown], now)[0]
    assert (claim.held, claim.yet) == (130 * MIB, 300 * MIB)
    live.leave()
    with pytest.raises(OSError):
        live.confirm(now)


def cycle(live: forecast.LiveClaim, start: float, phases: list[tuple[str, int, int]]) -> float:
    """(phase, seconds, MiB): a sample a second."""
    t = start
    for name, seconds, size in phases:
        live.enter_phase(name, t)
        for _ in range(seconds):
            live.update(size * MIB, t)
            t += 1
    return t


def reservation(live: forecast.LiveClaim) -> int:
    growth, _ = forecast.RECORD.unpack(live._forecast_path.read_bytes())
    return int(growth) // MIB


def test_once_phases_came_again_the_run_promises_their_height(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    live = forecast.LiveClaim("a", 1.0)
    t = cycle(live, 100.0, [("load", 20, 9000), ("train", 70, 2000)])
    assert reservation(live) == 0, "no phase came again, and it does not grow"
    t = cycle(live, t, [("eval", 10, 5000), ("train", 2, 2000)])
    assert reservation(live) == 3000, "the next eval; loading is over"
    t = cycle(live, t, [("eval", 5, 5000)])
    assert reservation(live) == 0, "it is there already"
    t = cycle(live, t, [("eval", 1, 6000)])
    assert reservation(live) > 0, "higher than ever: what the last minute shows"
    cycle(live, t, [("train", 60, 2000)])
    assert reservation(live) == 4000
    live.leave()


def test_a_phase_that_is_higher_each_time_will_be_so_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    live = forecast.LiveClaim("a", 1.0)
    t = 100.0
    for visit in range(6):
        t = cycle(live, t, [("train", 90, 2000), ("eval", 10, 4000 + 100 * visit)])
    cycle(live, t, [("train", 60, 2000)])
    # a MiB a second from visit to visit, ten minutes ahead, on top of the highest so far
    assert 2500 + 590 < reservation(live) < 2500 + 610
    live.leave()


@pytest.mark.parametrize("late", [0.0, 0.5, 20.0])
def test_a_phase_that_is_heard_of_late_has_its_own_samples(late: float) -> None:
    """A front that was starved while the job went into its evaluation, and all messages come when it is over."""
    known, told = forecast.Phases(), [("train", 100.0), ("eval", 110.5), ("unknown", 120.5), ("train", 120.6)]
    for second in range(50):
        t = 100.0 + second
        while told and told[0][1] + late <= t:
            known.enter(*told.pop(0))
        known.note(t, (5000 if 110.5 <= t < 120.5 else 2000) * MIB)
    assert not told and known.growth(2000 * MIB) == 3000 * MIB


def test_a_phase_too_short_for_a_sample_is_known_by_what_was_held_at_its_end() -> None:
    known = forecast.Phases()
    for t in (100.0, 200.0):
        known.enter("train", t, 2000 * MIB)
        known.note(t + 1, 2000 * MIB)
        known.enter("eval", t + 50.1, 2000 * MIB)
        known.enter("unknown", t + 50.2, 5000 * MIB)
    known.enter("train", 300.0, 2000 * MIB)
    known.note(300.1, 2000 * MIB)
    assert known.growth(2000 * MIB) == 3000 * MIB
    for wild in (-1, 1 << 62, 10**30):
        known.enter("eval", 301.0, wild)
        known.enter("train", 302.0, wild)
    assert known.growth(2000 * MIB) == 3000 * MIB


def test_the_moment_between_two_phases_is_none_that_came_again() -> None:
    known = forecast.Phases()
    for number, name in enumerate(("fetch", "train", "report")):
        known.enter(name, 100.0 + number, 3000 * MIB)
        known.note(100.1 + number, 3000 * MIB)
        known.enter("unknown", 100.9 + number, 3000 * MIB)
    known.note(110.0, 10 * MIB)
    assert known.growth(10 * MIB) is None


def test_a_message_older_than_the_jobs_record_still_tells_where_it_was() -> None:
    known = forecast.Phases()
    known.enter("eval", 110.0)
    known.note(111.0, 5000 * MIB)
    known.enter("train", 100.0)
    known.enter("train", 120.0)
    assert known.growth(2000 * MIB) == 3000 * MIB


def test_a_job_that_numbers_its_phases_fills_no_memory() -> None:
    known = forecast.Phases()
    for number in range(1000):
        known.enter(f"step {number}", float(number))
        known.note(float(number), MIB)
    assert known.growth(MIB) is None and len(known._tops) <= 64


def test_a_sawtooth_is_not_promised_by_its_rising_edge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    live, told = forecast.LiveClaim("a", 1.0), forecast.LiveClaim("b", 1.0)
    for start in (100.0, 200.0, 300.0):
        for second in range(100):
            told.enter_phase("train" if second < 70 else "eval", start + second)
            for one in (live, told):
                one.update((1000 + max(0, second - 70) * 50) * MIB, start + second)
    assert reservation(live) > 10_000, "by the edge alone"
    assert reservation(told) < 100
    live.leave()
    told.leave()


def test_what_is_pinned_for_the_card_is_no_growth_to_reserve_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On an H200 `check` reserved 90 GiB for a job that had just pinned eight."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    live = forecast.LiveClaim("a", 1.0)
    for second in range(30):
        if second in (5, 13):
            live.pins(second == 5)
        live.update(GIB + max(0, min(8, second - 4)) * GIB, 100.0 + second)
        assert ledger_snapshot._growth(state_files.runtime_folder(), "a", 100.0 + second) == 0
    live.leave()


def test_gpu_memory_that_lies_in_host_memory_is_not_the_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    live = forecast.LiveClaim("a", 1.0)
    now = boottime()
    live.update(14 * GIB, now)
    (tmp_path / "run" / "1").mkdir(parents=True)
    one = entry("a", need=6 * GIB, folder=str(tmp_path / "run"), gpu_need=12 * GIB, gpu=0)
    claim = ledger_snapshot.claims_of([one], now)[0]
    assert (claim.yet, claim.gpu_yet) == (0, 12 * GIB)
    state_files.write_json(tmp_path / "run" / "1" / "gpu_paused.json", {"pids": [], "cards": {"0": 12 * GIB}})
    claim = ledger_snapshot.claims_of([one], now)[0]
    assert (claim.yet, claim.gives, claim.gpu_yet) == (4 * GIB, 18 * GIB, 0)
    ledger_run = LedgerRun(one, claim)
    assert ledger_run.paused
    assert run_text(ledger_run).startswith(
        "a (paused) holds 14.0 GiB (12.0 GiB of it moved here from its GPU), 4.0 GiB more reserved"
    )
    live.leave()


def test_when_the_updates_stop_the_reader_measures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    live = forecast.LiveClaim("a", 1.0)
    live.update(77, boottime() - 60)
    job = subprocess.Popen(
        [sys.executable, "-c", "x = bytearray(b'x') * (64 << 20); print('ready', flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert job.stdout is not None
        job.stdout.readline()
        one = entry("a", keeper_pid=os.getpid(), job_pid=job.pid, job_start=processes.start_time(job.pid))
        one = replace(one, keeper_pid=job.pid, keeper_start=one.job_start)
        assert 64 * MIB < ledger_snapshot.claims_of([one], boottime())[0].held < 120 * MIB
    finally:
        job.communicate(b"\n")
        live.leave()


# --- what 200 processes on a full disk found ------------------------------------------------------------------------


def test_a_spare_file_half_made_is_left_to_its_maker(ledger: Ledger, tmp_path: Path) -> None:
    spare = tmp_path / "spare.sqlite"
    spare.touch(0o600)
    assert ledger.entries() == []
    assert spare.exists()


def test_what_cannot_be_read_does_not_pass_for_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_store, "LOCK_SECONDS", 0.05)
    first = Ledger(tmp_path)
    put(first, entry("a"))
    first.close()
    holder = sqlite3.connect(first.path, isolation_level=None)
    holder.execute("PRAGMA locking_mode=EXCLUSIVE")
    holder.execute("BEGIN EXCLUSIVE")
    holder.execute("DELETE FROM meta")
    second = Ledger(tmp_path, rebuild=lambda: [entry("seen-elsewhere")])
    try:
        assert [one.run for one in second.entries()] == ["seen-elsewhere"], "not: nobody runs"
        assert "cannot be used" in second.notes[0]
    finally:
        holder.close()
        second.close()


def test_the_tables_are_made_once_however_many_begin(tmp_path: Path) -> None:
    made = [Ledger(tmp_path / f"{n % 4}") for n in range(24)]
    for number in range(4):
        (tmp_path / str(number)).mkdir()
    threads = [threading.Thread(target=put, args=(one, entry(f"r{n}"))) for n, one in enumerate(made)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in range(4):
        last = Ledger(tmp_path / str(number))
        assert len(last.entries()) == 6 and not list(last.folder.glob("*.kept"))
        last.close()
    for one in made:
        assert not one.notes
        one.close()


def test_what_was_pinned_for_the_card_is_told_and_is_no_need_of_the_next_run(tmp_path: Path) -> None:
    from oomproof.ledger import peak_history
    from oomproof.ledger.admission import Claim
    from oomproof.recording.run_folders import Run

    folder = tmp_path / "run"
    (folder / "1" / "agent").mkdir(parents=True)
    state_files.write_json(folder / "1" / "agent" / "7-spill.json", {"size": 8 * GIB})
    one = entry("a", need=20 * GIB, folder=str(folder))
    assert run_text(LedgerRun(one, Claim("a", 20 * GIB, 12 * GIB))).startswith(
        "a holds 12.0 GiB (8.0 GiB of it pinned by --spill), 8.0 GiB more reserved"
    )
    state_files.write_json(folder / "run.json", {"id": "a", "claim": {"key": "k"}})
    state_files.write_json(folder / "1" / "started.json", {"boottime": 10.0})
    state_files.write_json(folder / "1" / "exit.json", {"boottime": 99.0, "wall": 5.0, "code": 0})
    peak = peak_history._peak(Run(folder), 12 * GIB, None, True)
    assert peak is not None and peak.use == 4 * GIB

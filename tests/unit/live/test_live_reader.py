"""What the live view reads: from a run's own files, from all processes, and of what cannot be read."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_machine import FakeMachine
from helpers_live import GIB, MIB, LiveFolder, NoCards

from oomproof.ledger.forecast import LiveClaim
from oomproof.live.job_chart import read_detail
from oomproof.live.live_reader import CardsAgain, LiveReader
from oomproof.live.live_snapshot import JobState, LiveSnapshot, to_json
from oomproof.live.run_reader import RunReader, rate_of, soon_full
from oomproof.live.status_line import Status, read_status, status_json, status_text
from oomproof.live.unmanaged_reader import UnmanagedReader
from oomproof.machine.clock import boottime
from oomproof.machine.gpu import Gpu, Gpus


@pytest.fixture
def live(folders_of_their_own: Path) -> Iterator[LiveFolder]:
    folder = LiveFolder(folders_of_their_own / "state")
    yield folder
    folder.close()


def claim_of(live: LiveFolder, use: int) -> LiveClaim:
    claim = LiveClaim(live.folder.name, live.now - 300)
    claim.update(use, boottime())
    return claim


def look(reader: LiveReader | None = None) -> LiveSnapshot:
    return (reader or LiveReader(NoCards(), nobody_else())).read(all_trends=True)


def nobody_else() -> UnmanagedReader:
    reader = UnmanagedReader()
    reader._next = float("inf")
    return reader


def only(snapshot: LiveSnapshot) -> JobState:
    (job,) = [job for job in snapshot.jobs if job.managed]
    return job


def test_a_run_as_its_files_tell_it(live: LiveFolder) -> None:
    live.samples([GIB] * 20 + [3 * GIB] + [2 * GIB] * 5)
    live.row("phase", live.now, "train", 41, 1, None, None)
    live.row("event", live.now, "warn", "memory grows", None)
    told = {"device": 0, "pid": 5, "allocated": GIB, "reserved": 2 * GIB}
    live.row("event", live.now, "agent:allocator", "", json.dumps({**told, "allocated": 1}))
    live.row("event", live.now, "agent:allocator", "", json.dumps(told))
    live.row("gpu", live.now, 0, 20 * GIB, 24 * GIB, 3 * GIB)
    (live.attempt / "output.log").write_bytes(b"first\n\x1b[32mgreen\x1b[0m\n10%\r50%\r\n\x1b]0;title\x07\n")
    claim = claim_of(live, 2 * GIB + MIB)
    reader = LiveReader(NoCards(), nobody_else())
    snapshot = look(reader)
    job = only(snapshot)
    assert (job.name, job.state, job.phase, job.step) == ("mine", "running", "train", 41)
    assert job.use == 2 * GIB + MIB and job.peak == 3 * GIB and job.processes == 3
    assert (job.gpu_allocated, job.gpu_reserved, job.gpu_used) == (GIB, 2 * GIB, 3 * GIB)
    assert job.limit == 8 * GIB and job.limit_by == "the kernel (cgroup v2)" and job.protected
    assert job.message == "warned: memory grows"
    assert snapshot.cards[0].used == 20 * GIB and snapshot.cards[0].unmanaged == 17 * GIB
    assert snapshot.machine.runs == min(job.use, snapshot.machine.used)
    seen = read_detail(reader, job)
    assert (
        seen.host[-1][1] == job.use and seen.card == ((live.now, 3 * GIB),) and seen.phases[0].name == "train"
    )
    assert seen.log == ("first", "green", "50%", "\\u001b]0;title\\u0007")
    json.dumps(to_json(snapshot), allow_nan=False)
    claim.leave()


def test_steady_growth_has_a_range_and_what_is_flat_has_none(live: LiveFolder) -> None:
    live.samples([GIB + n * 8 * MIB for n in range(90)])
    claim = claim_of(live, GIB + 89 * 8 * MIB)
    reader = RunReader(live.run)
    job = reader.read(None, boottime())
    assert job is not None and job.full_in is not None and job.rate is not None
    left = (8 * GIB - GIB - 89 * 8 * MIB) / (8 * MIB)
    assert job.full_in.low <= left * 1.05 and job.full_in.high >= left * 0.95
    assert abs(job.rate - 8 * MIB) < MIB
    later = reader.read(None, boottime() + 30)
    assert later is not None and later.full_in is not None
    assert later.full_in.low == pytest.approx(job.full_in.low - 30, abs=1.0), (
        "time passes between two looks at it"
    )
    claim.leave()
    assert soon_full([(float(n), GIB) for n in range(90)], GIB) is None
    assert rate_of([(0.0, 1), (3.0, 9)], 3.0) is None, "three seconds tell nothing of a minute"


def test_loading_is_no_growth(live: LiveFolder) -> None:
    """A model that is loaded for a minute does not fill the machine in half an hour."""
    live.row("phase", live.now - 80, "load", None, 1, None, None)
    live.samples([GIB + n * 8 * MIB for n in range(90)])
    job = RunReader(live.run).read(None, boottime())
    assert job is not None and job.full_in is None and job.rate is not None and job.rate > 0


def test_the_recording_is_read_again_only_when_it_grew(
    live: LiveFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    live.samples([GIB] * 20)
    reader = RunReader(live.run)
    reader.read(None, boottime())
    before = reader.recorded
    reader.read(None, boottime())
    assert reader.recorded is before
    live.row("phase", live.now, "eval", 7, 1, None, None)
    job = reader.read(None, boottime())
    assert reader.recorded is not before and job is not None and job.phase == "eval"


def test_a_run_that_ends_while_looking_is_gone(live: LiveFolder) -> None:
    claim = claim_of(live, GIB)
    reader = LiveReader(NoCards(), nobody_else())
    assert only(look(reader)).use == GIB
    live.write(
        live.attempt / "exit.json", {"code": 0, "status": 0, "boottime": boottime(), "wall": time.time()}
    )
    assert not [job for job in look(reader).jobs if job.managed], (
        "its guard still has its place, it has ended"
    )
    claim.leave()
    assert not look(reader).jobs


@pytest.mark.parametrize("damage", [b"", b"not a database" * 99, None])
def test_a_recording_that_cannot_be_read_leaves_the_rest(live: LiveFolder, damage: bytes | None) -> None:
    live.connection.close()
    path = live.attempt / "recording.sqlite"
    for name in (path, Path(f"{path}-wal"), Path(f"{path}-shm")):
        name.unlink(missing_ok=True)
    if damage is not None:
        path.write_bytes(damage)
    (live.attempt / "output.log").mkdir()
    claim = claim_of(live, GIB)
    reader = LiveReader(NoCards(), nobody_else())
    job = only(look(reader))
    assert job.use == GIB and job.phase == "" and job.rate is None
    assert read_detail(reader, job).log == ()
    claim.leave()


def test_a_silent_guard_is_not_believed(live: LiveFolder) -> None:
    claim = LiveClaim(live.folder.name, live.now - 300)
    claim.update(GIB, boottime() - 60)
    assert only(look()).use is None
    claim.leave()


def test_a_pause_says_by_whom_and_until_when(live: LiveFolder) -> None:
    claim = claim_of(live, GIB)
    live.write(
        live.attempt / "paused.json",
        {"by": "guard", "why": "full in 9 s", "since": 1.0, "until": 2e9, "id": "x"},
    )
    job = only(look())
    assert (job.state, job.paused_by, job.paused_until, job.reasons) == (
        "paused",
        "guard",
        2e9,
        ("full in 9 s",),
    )
    assert job.rate is None and job.full_in is None
    claim.leave()


def test_unmanaged_jobs_and_their_growth(tmp_path: Path) -> None:
    made = FakeMachine(tmp_path)
    made.meminfo(MemTotal=32 << 20, MemAvailable=16 << 20, AnonPages=8 << 20, Shmem=0)
    made.process(10, "bash")
    made.process(11, "python", 10, argv=("python", "load.py", "--token", "hf_secretsecret"), anon=500)
    made.process(12, "python", 11, anon=100)
    made.process(13, "python", 10, argv=("python", "ours.py"), anon=900)
    made.process(14, "tiny", 10, argv=("tiny",), anon=1)
    made.process(15, "oomproof", 10, argv=("oomproof", "run", "--", "python", "theirs.py"), anon=70)
    reader = UnmanagedReader(5.0, made.proc, made.sys)
    job, theirs = reader.read({13}, 100.0)
    assert "hidden" in reader.problem, "this /proc does not even show the first process"
    assert (theirs.name, theirs.state, theirs.mine) == ("python theirs.py", "running", False)
    assert job.state == "unmanaged" and not job.mine and job.processes == 2 and job.rate is None
    assert "secretsecret" not in job.command
    made.process(11, "python", 10, argv=("python", "load.py"), anon=1100)
    assert reader.read({13}, 102.0)[0].use == job.use, "not looked at again before its time"
    made.process(1, "systemd", 0)
    grown = reader.read({13}, 110.0)[0]
    assert not reader.problem
    assert grown.rate == pytest.approx(60 * MIB, rel=0.01) and len(reader.points(grown)) == 2
    assert grown.gpu_used is None
    on_card = reader.read({13}, 111.0, {11: 3 * GIB, 12: GIB, 13: 5 * GIB})
    assert [job.gpu_used for job in on_card] == [4 * GIB, None], "all its processes, at every look"


def test_a_driver_that_hangs_holds_nobody_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The helper never says a word; the view goes on without figures and says so."""
    helper = tmp_path / "python"
    helper.write_text("#!/bin/sh\nexec sleep 60\n")
    helper.chmod(0o755)
    monkeypatch.setattr("oomproof.machine.nvidia.driver_present", lambda *_: True)
    monkeypatch.setattr("oomproof.runner.gpu_feed.sys.executable", str(helper))
    cards = CardsAgain()
    began = time.monotonic()
    assert cards.read() == Gpus()
    monkeypatch.setattr(cards, "_since", began - 60)
    snapshot = look(LiveReader(cards, nobody_else()))
    assert "does not answer" in snapshot.troubles[0] and not snapshot.cards
    cards.close()
    assert time.monotonic() - began < 30


def test_a_card_whose_owner_is_not_told(live: LiveFolder) -> None:
    class Card(NoCards):
        def read(self) -> Gpus:
            return Gpus((Gpu(0, "card\x1b[2J", 24 * GIB, 15 * GIB, 9 * GIB),))

    live.samples([GIB] * 10)
    live.row("gpu", live.now, 0, 15 * GIB, 24 * GIB, None)
    claim = claim_of(live, GIB)
    (card,) = look(LiveReader(Card(), nobody_else())).cards
    assert card.runs is None and card.unmanaged is None and "\x1b" not in card.name
    claim.leave()


# --- status ---------------------------------------------------------------------------------------------------------------


def test_status_always_has_the_ram_and_runs_only_when_there_are_some(live: LiveFolder) -> None:
    idle = read_status()
    assert idle.runs == 0 and status_text(idle).startswith("RAM ") and "run" not in status_text(idle)
    claim = claim_of(live, 2 * GIB)
    busy = read_status()
    assert "1 run 2.0 GiB" in status_text(busy) and status_json(busy)["runs_bytes"] == 2 * GIB
    claim.leave()


def test_status_in_words() -> None:
    status = Status(32 * GIB, 3 * GIB, 5 * GIB, 2 * GIB, 3, 1, 2, 12 * GIB, 4 * GIB, 3 * GIB)
    assert status_text(status) == (
        "RAM 29.0/32.0 GiB (below the margin) · swap 1.0/4.0 · 3 runs 12.0 GiB · 1 paused · 2 waiting"
    )
    assert Status(32 * GIB, GIB, 5 * GIB, 2 * GIB, 0, 0, 0, 0).alert == "below the floor"
    unknown = Status(32 * GIB, 9 * GIB, 5 * GIB, 2 * GIB, 1, 0, 0, None)
    assert status_text(unknown).endswith("1 run ?") and status_json(unknown)["runs_bytes"] is None


def test_status_asks_neither_database_nor_driver_nor_screen() -> None:
    """A prompt waits for it: what is slow to import stays out."""
    script = "import sys; from oomproof.cli.main import obey; obey(['status']); print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, env=os.environ
    )
    modules = done.stdout.splitlines()[-1].split()
    assert not {"sqlite3", "subprocess", "textual", "rich", "oomproof.machine.jobs"}.intersection(modules)


def test_once_and_json_need_no_textual() -> None:
    script = (
        "import sys; sys.modules['textual'] = sys.modules['rich'] = None\n"
        "from oomproof.cli.main import main\n"
        "print(main(['top', '-1']), main(['top', '--json']), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=os.environ)
    assert done.stderr.strip() == "0 0" and '"schema": 1' in done.stdout


def test_without_textual_the_screen_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from oomproof.cli import top
    from oomproof.cli.main import main

    monkeypatch.setattr(top, "_is_terminal", lambda: True)
    monkeypatch.setitem(sys.modules, "textual.app", None)
    monkeypatch.delitem(sys.modules, "oomproof.live.top_screen", raising=False)
    assert main(["top"]) == 125
    error = capsys.readouterr().err
    assert "pip install textual" in error and "oomproof top -1" in error

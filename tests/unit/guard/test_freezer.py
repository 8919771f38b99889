"""The mechanism: real processes stopped and started, the files of both cgroup versions, what may time out meanwhile."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from oomproof.guard import freezer as freezer_module
from oomproof.guard import pause_timeouts
from oomproof.guard.freezer import BY_CGROUP_V1, BY_CGROUP_V2, BY_SIGNALS, Freezer
from oomproof.guard.guard_actions import TaskThread
from oomproof.guard.job_pause import Pause
from oomproof.guard.swap_out import PushOut
from oomproof.guard.view_reader import IDLE_AFTER, Idleness
from oomproof.ledger.live_runs import BY_GUARD, Live
from oomproof.machine import cgroups, processes
from oomproof.machine.cgroups import JobMemory
from oomproof.recording import run_summary
from oomproof.recording.attempt import Attempt
from oomproof.runner.guard_settings import known_need
from oomproof.runner.supervise import oom_score_by_age
from oomproof.units import MIB

COUNT = "import time\nwhile True: print(1, flush=True); time.sleep(0.01)"


def until(condition: Callable[[], object], seconds: float = 60.0) -> bool:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.005)
    return True


@pytest.fixture
def family() -> Iterator[subprocess.Popen[str]]:
    """A process with two children."""
    script = f"import subprocess, sys\nfor _ in (1, 2): subprocess.Popen([sys.executable, '-c', {COUNT!r}], stdout=-3)\n{COUNT}"
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    own = processes.command_line(process.pid)

    def both_run() -> bool:
        """As programs of their own: one that is paused between its fork and its exec holds its parent inside the kernel."""
        below = processes.descendants(process.pid)
        return len(below) == 2 and all(processes.command_line(pid) not in ([], own) for pid in below)

    assert until(both_run)
    children = processes.descendants(process.pid)
    yield process
    for pid in (process.pid, *children):
        os.kill(pid, signal.SIGKILL)
    process.wait()


def test_by_signals_the_whole_tree_stands_still(family: subprocess.Popen[str]) -> None:
    pids = [family.pid, *processes.descendants(family.pid)]
    freezer = Freezer(None, lambda: pids)
    assert freezer.how == BY_SIGNALS and not freezer.is_paused()
    assert freezer.pause()
    assert until(freezer.is_paused)
    used = [processes.stat_fields(pid)[11:13] for pid in pids]  # type: ignore[index]
    time.sleep(0.2)
    assert used == [processes.stat_fields(pid)[11:13] for pid in pids]  # type: ignore[index]
    freezer.resume()
    assert until(lambda: not freezer.is_paused())
    freezer.resume()  # harmless
    freezer.close()


def test_an_empty_tree_is_not_called_frozen() -> None:
    assert not Freezer(None, list).is_paused()


def test_files_of_both_versions(tmp_path: Path) -> None:
    """What is written where; a plain folder stands for the kernel."""
    (tmp_path / "cgroup.freeze").write_text("0")
    (tmp_path / "cgroup.events").write_text("populated 1\nfrozen 0\n")
    two = Freezer(str(tmp_path / "cgroup.freeze"), list)
    assert two.how == BY_CGROUP_V2 and not two.kill_needs_resume
    assert two.pause() and (tmp_path / "cgroup.freeze").read_text() == "1"
    assert not two.is_paused(), "asked for is not done"
    (tmp_path / "cgroup.events").write_text("populated 1\nfrozen 1\n")
    assert two.is_paused() and two.wait_paused(0)
    assert two.resume() and (tmp_path / "cgroup.freeze").read_text() == "0"
    (tmp_path / "freezer.state").write_text("THAWED")
    one = Freezer(str(tmp_path / "freezer.state"), list)
    assert one.how == BY_CGROUP_V1 and one.kill_needs_resume
    assert one.pause() and one.is_paused()
    assert one.resume() and not one.is_paused()
    for freezer in (one, two):
        freezer.close()
    assert Freezer(str(tmp_path / "not there"), list).how == BY_SIGNALS


@pytest.mark.parametrize("controller", ["", "freezer"])
def test_real_cgroups(family: subprocess.Popen[str], controller: str) -> None:
    own = cgroups.own_directory(controller)
    directory = Path(own or "/nowhere") / f"test-freezing-{os.getpid()}"
    try:
        directory.mkdir()
    except OSError as error:
        pytest.skip(f"no cgroup of the {controller or 'unified'} hierarchy can be made here ({error})")
    file = directory / ("freezer.state" if controller else "cgroup.freeze")
    try:
        if not file.exists():
            pytest.skip(f"no {file.name} here")
        pids = [family.pid, *processes.descendants(family.pid)]
        for pid in pids:
            (directory / "cgroup.procs").write_text(str(pid))
        freezer = Freezer(str(file), lambda: pids)
        assert freezer.pause() and freezer.wait_paused(60)
        time.sleep(0.1)  # the tick in which it was frozen is counted at its end
        used = [processes.stat_fields(pid)[11:13] for pid in pids]  # type: ignore[index]
        time.sleep(0.2)
        assert used == [processes.stat_fields(pid)[11:13] for pid in pids]  # type: ignore[index]
        assert freezer.resume() and until(lambda: not freezer.is_paused())
        freezer.close()
        for pid in pids:
            (directory.parent / "cgroup.procs").write_text(str(pid))
    finally:
        if file.exists():
            file.write_text("THAWED" if controller else "0")  # else what failed here would never end
        for pid in (directory / "cgroup.procs").read_text().split():
            (directory.parent / "cgroup.procs").write_text(pid)
        until(lambda: not (directory / "cgroup.procs").read_text().strip())
        directory.rmdir()


# --- the mark -------------------------------------------------------------------------------------------------


class FakeJob:
    reclaim = None
    freezer = Freezer(None, list)

    def memory(self) -> JobMemory | None:
        return None

    def pids(self) -> list[int]:
        return []


def test_the_mark_tells_whose_pause_it_is(tmp_path: Path) -> None:
    task_thread = TaskThread()
    pause = Pause(FakeJob(), Attempt(tmp_path), task_thread, lambda _: None)  # type: ignore[arg-type]
    assert pause.by == "" and not pause.can_push
    pause.begin("short of memory", time.time() + 60, push=False)
    assert pause.by == "guard"
    assert until(lambda: freezer_module.read_mark(Attempt(tmp_path)).get("by") == "guard")
    pause.look()
    assert pause.by == "guard"
    freezer_module.write_mark(Attempt(tmp_path), "user", "oomproof pause")  # the user takes it over
    pause.look()
    assert pause.by == "hand"
    freezer_module.remove_mark(Attempt(tmp_path))  # and lets it go
    pause.look()
    assert pause.by == ""
    freezer_module.write_mark(Attempt(tmp_path), "user", "oomproof pause")
    assert Pause(FakeJob(), Attempt(tmp_path), task_thread, lambda _: None).by == "hand", (
        "a guard that is taken up knows"
    )  # type: ignore[arg-type]
    task_thread.close()


def test_a_full_disk_does_not_look_like_a_thaw(tmp_path: Path) -> None:
    task_thread = TaskThread()
    pause = Pause(FakeJob(), Attempt(tmp_path / "gone"), task_thread, lambda _: None)  # type: ignore[arg-type]
    pause.begin("short of memory", time.time() + 60, push=False)
    task_thread.close()
    pause.look()
    assert pause.by == "guard", "no mark was ever written"


# --- pushing out ----------------------------------------------------------------------------------------------


def test_pushing_out_ends_when_nothing_moves(tmp_path: Path) -> None:
    """Without disk swap, or with pages that cannot go, the thread ends by itself and says what it won."""
    (tmp_path / "memory.reclaim").touch()
    push = PushOut(str(tmp_path / "memory.reclaim"))
    assert push.possible
    won: list[int] = []
    done = threading.Event()
    held = JobMemory(100 * MIB, 0, 0, 0, 0, 100 * MIB)
    push.start(lambda: held, lambda amount: (won.append(amount), done.set())[0])
    assert done.wait(60) and won == [0]
    done.clear()
    push.start(lambda: None, lambda amount: (won.append(amount), done.set())[0])
    assert done.wait(60), "a job that is gone holds nobody up"
    push.close()
    assert not PushOut(None).possible and not PushOut(str(tmp_path / "no")).possible


# --- what may time out ----------------------------------------------------------------------------------------


def fake_proc(tmp_path: Path, pid: int, comm: str, maps: str) -> None:
    folder = tmp_path / str(pid)
    (folder / "fd").mkdir(parents=True)
    (folder / "comm").write_text(comm + "\n")
    (folder / "maps").write_text(maps)


def test_nccl_bounds_the_pause_only_where_ranks_wait_for_each_other(tmp_path: Path) -> None:
    fake_proc(tmp_path, 7, "python", "7f00-7f01 r-xp 00000000 00:00 0 /venv/lib/libnccl.so.2\n")
    alone = pause_timeouts.look([7], ["python", "train.py"], {}, str(tmp_path))
    assert alone == [], "every PyTorch with CUDA maps libnccl"
    for argv, environment in (
        (["torchrun", "--nproc-per-node", "4", "train.py"], {}),
        (["python", "-m", "torch.distributed.run", "train.py"], {}),
        (["python", "train.py"], {"WORLD_SIZE": "8"}),
    ):
        (found,) = pause_timeouts.look([7], argv, environment, str(tmp_path))
        assert found.seconds == pause_timeouts.NCCL_PAUSE < 600 and "NCCL" in found.text
    fake_proc(tmp_path, 8, "python", "no such library\n")
    assert pause_timeouts.look([8], ["torchrun"], {}, str(tmp_path)) == []


def test_wandb_is_told(tmp_path: Path) -> None:
    fake_proc(tmp_path, 7, "wandb-core", "")
    (found,) = pause_timeouts.look([7], ["python"], {}, str(tmp_path))
    assert "wandb" in found.text and found.seconds is None


def test_connections_within_the_machine_are_not_worth_a_word() -> None:
    """A real one, over loopback."""
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()),
        server.accept()[0],
    ):
        assert pause_timeouts.look([os.getpid()], ["python"], {}) == []


def test_connections_to_others_are_told(tmp_path: Path) -> None:
    fake_proc(tmp_path, 7, "python", "")
    (tmp_path / "7/fd/3").symlink_to("socket:[4242]")
    net = tmp_path / "7/net"
    net.mkdir()
    row = "   0: 0F02000A:A1B2 {peer} 01 00000000:00000000 00:00000000 00000000  1000        0 4242 1 0 20 4 30 10 -1"
    header = "  sl  local_address rem_address   st\n"
    (net / "tcp").write_text(header + row.format(peer="08080808:01BB") + "\n")
    (found,) = pause_timeouts.look([7], ["python"], {}, str(tmp_path))
    assert "8.8.8.8:443" in found.text and "1 open" in found.text
    (net / "tcp").write_text(header + row.format(peer="0100007F:01BB") + "\n")
    assert pause_timeouts.look([7], ["python"], {}, str(tmp_path)) == []


# --- do the others get anywhere -------------------------------------------------------------------------------


def test_a_sleeping_neighbour_is_idle_and_a_busy_one_is_not() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as sleeper:
        assert until(lambda: processes.stat_fields(sleeper.pid)[0] == b"S")  # type: ignore[index]
        time.sleep(0.1)
        other = Live("1-a", pid=sleeper.pid, start=processes.start_time(sleeper.pid) or 0)
        idle = Idleness()
        idle.reset(0.0)
        assert not idle.look(1.0, [other])
        assert not idle.look(IDLE_AFTER, [other])
        assert idle.look(IDLE_AFTER + 2.0, [other])
        assert not Idleness().look(1e6, [Live("1-a", paused=BY_GUARD, pid=sleeper.pid)]), "nobody runs"
        assert sleeper.stdin
        sleeper.stdin.close()
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        other = Live("1-a", pid=busy.pid, start=processes.start_time(busy.pid) or 0)
        idle = Idleness()
        idle.reset(0.0)
        idle.look(1.0, [other])
        before = processes.stat_fields(busy.pid)[11]  # type: ignore[index]
        assert until(lambda: processes.stat_fields(busy.pid)[11] != before)  # type: ignore[index]
        assert not idle.look(IDLE_AFTER + 2.0, [other])
        busy.kill()


# --- for the reader afterwards --------------------------------------------------------------------------------


def test_pauses_are_counted_from_what_was_done(tmp_path: Path) -> None:
    actions = [(1.0, "warn", "guard"), (10.0, "pause", "guard"), (12.0, "pause", "user"), (30.0, "resume", "user"),
             (40.0, "pause", "guard"), (45.0, "term", "guard")]  # fmt: skip
    lines = [json.dumps({"boottime": at, "action": what, "by": by}) for at, what, by in actions]
    (tmp_path / "actions.jsonl").write_text("\n".join(lines) + "\n")
    found = run_summary.pauses_of(Attempt(tmp_path))
    assert [(one.begin, one.end, one.by) for one in found] == [(10.0, 30.0, "guard"), (40.0, 45.0, "guard")]
    assert run_summary.paused_seconds(found, 99.0) == 25.0
    (tmp_path / "actions.jsonl").write_text(lines[1] + "\n")
    assert run_summary.paused_seconds(run_summary.pauses_of(Attempt(tmp_path)), 99.0) == 89.0, (
        "still standing"
    )
    (tmp_path / "keeper.jsonl").write_text('{"boottime": 20.0, "event": "resume"}\n')
    assert run_summary.paused_seconds(run_summary.pauses_of(Attempt(tmp_path)), 99.0) == 10.0
    assert run_summary.pauses_of(Attempt(tmp_path / "none")) == []


def test_a_claim_tells_the_need() -> None:
    assert known_need({"need": 5}) == 5
    assert known_need({"need": None}) is None and known_need({}) is None and known_need(None) is None


def test_age_raises_the_score_and_a_lone_run_keeps_its_own() -> None:
    assert [oom_score_by_age(older) for older in (0, 1, 2, 3, 9)] == [0, 300, 400, 500, 500]

"""The front killed in the first moments of a run: the job is never lost to those who look for it."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest
from conftest import Lab, alive, until

PYTHON = sys.executable


def marking(folder: Path) -> list[str]:
    """A job that says at its first line that it runs, and then waits."""
    code = f"import os, time; open({str(folder / 'runs')!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    return [PYTHON, "-c", code]


def test_a_front_killed_as_soon_as_the_job_runs(lab: Lab, tmp_path: Path) -> None:
    """Its first line is the earliest anybody could know of it; by then `stop` and `runs` find it, and its need is reserved."""
    half = int(_available(lab) * 0.6)
    running = lab.start(
        "early", "--need", f"{half >> 20}M", "--", "sh", "-c", f"echo > {tmp_path}/runs; sleep 60"
    )
    until((tmp_path / "runs").exists, "its first line", 30)
    running.process.kill()
    running.process.wait()
    assert "unguarded" in lab.run("runs").stdout
    beside = lab.run("run", "--need", f"{half >> 20}M", "--no-wait", "--", "true")
    assert beside.returncode == 75, beside.stderr
    pid = running.job_pid
    assert lab.run("pause", "early").returncode == 0
    assert lab.run("resume", "early").returncode == 0
    done = lab.run("stop", "--now", "early")
    assert done.returncode == 0 and not alive(pid), done.stderr


def _available(lab: Lab) -> int:
    from oomproof.guard.host_view import HostView
    from oomproof.machine.memory import MemoryReader

    return min(HostView().ram, MemoryReader().available_and_swap_free()[0])


@pytest.mark.parametrize("after", [0.1, 0.15, 0.2, 0.25, 0.3, 0.4])
def test_a_front_killed_at_any_moment_of_its_start(lab: Lab, tmp_path: Path, after: float) -> None:
    """Either nothing runs, or what runs is found and can be stopped."""
    running = lab.start("early", "--need", "1M", "--", *marking(tmp_path))
    time.sleep(after)  # a moment, whichever: that is the point
    running.process.kill()
    running.process.wait()
    mark = tmp_path / "runs"
    time.sleep(0.5)  # a keeper that had its orders starts the job now or never
    pid = int(mark.read_text() or 0) if mark.exists() else 0
    listed = lab.run("runs")
    assert listed.returncode == 0 and "Error" not in listed.stderr
    if not pid:
        assert lab.folder_of("early") is None or "unguarded" not in listed.stdout
        return
    assert lab.read(running.attempt / "started.json")["job"]["pid"] == pid
    done = lab.run("stop", "--now", "early")
    assert done.returncode == 0, done.stderr
    assert not alive(pid)


def test_a_keeper_killed_before_it_let_the_job_go(lab: Lab, tmp_path: Path) -> None:
    """While it starts: 125 and no run, or a job that is taken over. Never a job without anybody."""
    for after in (0.0, 0.002, 0.005, 0.01, 0.02):
        name = f"born-{after}"
        running = lab.start(name, "--", "sh", "-c", "sleep 0.3; exit 7")
        keeper = until(lambda r=running: _keeper_below(r.process.pid), "the keeper")
        time.sleep(after)
        os.kill(keeper, signal.SIGKILL)
        status = running.wait()
        if status == 7:
            assert lab.read(running.attempt / "exit.json")["code"] == 7
        else:
            assert status == 125 and lab.folder_of(name) is None


def _keeper_below(pid: int) -> int | None:
    from oomproof.machine import processes

    for child in processes.children(pid):
        if any(word.endswith("keeper.py") for word in processes.command_line(child)):
            return child
    return None


def test_the_next_run_removes_what_killed_ones_left(lab: Lab, tmp_path: Path) -> None:
    from oomproof.machine import cgroups
    from oomproof.runner import limit_backends

    running = lab.start("first", "--", *marking(tmp_path))
    until((tmp_path / "runs").exists, "its first line")
    runtime = Path(lab.environment["XDG_RUNTIME_DIR"]) / "oomproof"
    socket = (
        Path(f"/tmp/oomproof-{os.getuid()}") / f"agent-{running.folder.name}"
    )  # the runtime folder's name is long
    forecast = runtime / "forecast" / running.folder.name
    until(lambda: socket.exists() and forecast.exists(), "its socket and forecast")
    started = running.started()
    for pid in (running.process.pid, started["keeper"]["pid"], started["job"]["pid"]):
        os.kill(pid, signal.SIGKILL)
    running.process.wait()
    until(lambda: not alive(started["job"]["pid"]), "all of it to be dead")
    left = [socket, forecast, *map(Path, started["backend"]["remove"])]
    assert all(path.exists() for path in left)
    alien = Path(cgroups.own_directory("memory") or "/nonexistent")
    backend, _ = limit_backends.make_v1(f"not-ours-{os.getpid()}", 64 << 20) if alien.exists() else (None, "")
    for path in [*left, *map(Path, backend.remove if backend else [])]:
        os.utime(path, (time.time() - 60, time.time() - 60))
    try:
        assert lab.run("run", "--", "sleep", "0.7").returncode == 0
        assert not any(path.exists() for path in left)
        assert all(os.path.isdir(path) for path in (backend.remove if backend else [])), (
            "of no run we know: left alone"
        )
    finally:
        for directory in backend.remove if backend else []:
            os.rmdir(directory)

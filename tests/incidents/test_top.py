"""`oomproof top` over real jobs: one that grows, one that is paused, one that waits, one that oomproof did not start."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest
from conftest import DEADLINE, Cgroup, Lab, alive, until

MIB = 1 << 20
HOLD = "import sys; x = bytearray(b'x') * (int(sys.argv[1]) << 20); print('holding', flush=True); sys.stdin.read()"


def looked_at(lab: Lab) -> dict[str, Any]:
    done = lab.run("top", "--json")
    assert done.returncode == 0, done.stderr
    snapshot = json.loads(done.stdout)
    snapshot["by_name"] = {job["name"]: job for job in snapshot["jobs"]}
    return dict(snapshot)


def test_what_runs_waits_is_paused_and_is_not_ours(lab: Lab, small_machine: Callable[[int], Cgroup]) -> None:
    lab.prefix = small_machine(500 * MIB).prefix  # a quarter of it margin
    hold = [sys.executable, "-c", HOLD]
    first = lab.start("first\x1b[2J", "--need", "160M", "--limit", "200M", "--", *hold, "60", stdin_pipe=True)
    first.output_has("holding")
    unmanaged = subprocess.Popen(
        [*lab.prefix, *hold, "90"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=lab.environment
    )
    assert unmanaged.stdout is not None and unmanaged.stdout.readline() == b"holding\n"
    paused = lab.start("stopped", "--", *hold, "20", stdin_pipe=True)
    paused.output_has("holding")
    assert lab.run("pause", "stopped").returncode == 0
    lab.start("later", "--need", "300M", "--", "true")
    name = "first\\u001b[2J"
    try:
        seen = until(
            lambda: (
                (now := looked_at(lab))
                and {name, "stopped", "later"} <= set(now["by_name"])
                and now["by_name"]["later"]["reasons"]
                and now["by_name"][name]["use_bytes"]
                and now["by_name"]["stopped"]["use_bytes"]
                and now["machine"]["runs_bytes"] > 75 * MIB  # what a guard wrote before its job held it all
                and now
            ),
            "all of them",
        )
        jobs = seen["by_name"]
        assert jobs[name]["state"] == "running" and 55 * MIB < jobs[name]["use_bytes"] < 120 * MIB
        assert jobs[name]["limit_bytes"] == 200 * MIB and jobs[name]["reserved_bytes"] > 0
        assert jobs["stopped"]["state"] == "paused" and jobs["stopped"]["paused_by"] == "user"
        assert jobs["later"]["state"] == "waiting" and "300 MiB" in jobs["later"]["reasons"][0]
        others = [job for job in seen["jobs"] if job["state"] == "unmanaged"]
        assert [job["pid"] for job in others] == [unmanaged.pid] and others[0]["use_bytes"] > 90 * MIB
        machine = seen["machine"]
        assert machine["limited"] and machine["total_bytes"] == 500 * MIB
        held = machine["runs_bytes"] + machine["unmanaged_bytes"] + machine["available_bytes"]
        assert held == machine["total_bytes"]
        text = lab.run("top", "-1").stdout
        assert "\x1b" not in text and "waits: needs 300 MiB" in text and "paused by you" in text
        assert "2 runs" in (status := lab.run("status").stdout) and "1 paused · 1 waiting" in status
        assert all(alive(pid) for pid in (first.job_pid, paused.job_pid, unmanaged.pid)), (
            "looking ends nobody"
        )
    finally:
        unmanaged.kill()
        unmanaged.wait(DEADLINE)
        lab.close()  # before its machine is taken away


def test_keys_act_on_real_runs(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """The screen over a real run: paused, resumed, and stopped after the question, by the verbs themselves."""
    from oomproof.live.top_screen import TopApp

    for name, value in lab.environment.items():
        monkeypatch.setenv(name, value)
    running = lab.start("acted-on", "--", sys.executable, "-c", HOLD, "5", stdin_pipe=True)
    running.output_has("holding")
    running.entered()
    app = TopApp(0.1)

    def text() -> str:
        strips = app.screen._compositor.render_strips()
        return "\n".join("".join(segment.text for segment in strip) for strip in strips)

    async def shows(*words: str) -> None:
        end = time.monotonic() + DEADLINE
        while not all(word in text() for word in words):
            assert time.monotonic() < end, f"waited for {words}:\n{text()}"
            await asyncio.sleep(0.05)

    async def main() -> None:
        async with app.run_test(size=(110, 30)) as pilot:
            await shows("› acted-on", "running", "| holding")
            await pilot.press("p")
            await shows("› acted-on", "paused by you")
            await pilot.press("p")
            await shows("› acted-on", "running", "resumed")
            await pilot.press("x")
            await shows("stop acted-on?")
            await pilot.press("y")
            await shows("0 runs")

    asyncio.run(main())
    assert running.wait() != 0
    actions = [
        json.loads(line)["action"] for line in (running.attempt / "actions.jsonl").read_text().splitlines()
    ]
    assert [action for action in actions if action in ("pause", "resume", "term")] == [
        "pause",
        "resume",
        "term",
    ]


def test_a_real_terminal_is_left_as_it_was(lab: Lab) -> None:
    """`oomproof top` on a pty: it draws, q ends it with 0, and the terminal is out of the other screen again."""
    leader, follower = pty.openpty()
    environment = {**lab.environment, "TERM": "xterm-256color", "COLUMNS": "80", "LINES": "24"}
    process = subprocess.Popen(
        lab.command("top"),
        stdin=follower,
        stdout=follower,
        stderr=follower,
        env=environment,
        start_new_session=True,
    )
    os.close(follower)
    drawn = b""

    def read_more() -> bool:
        nonlocal drawn
        if select.select([leader], [], [], 0.05)[0]:
            try:
                drawn += os.read(leader, 65536)
            except OSError:
                return True
        return False

    try:
        until(lambda: read_more() or b"q quit" in drawn, "the screen")
        os.write(leader, b"q")
        until(lambda: read_more() or process.poll() is not None, "its end")
        assert process.wait(DEADLINE) == 0
        until(lambda: read_more() or b"\x1b[?1049l" in drawn, "the screen before it")
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.wait(DEADLINE)
        os.close(leader)

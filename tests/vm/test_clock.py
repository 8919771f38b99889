"""The wall clock jumps a day ahead and a day back while one job runs, one is paused and one waits: nobody may notice.

What is measured in seconds since boot stays so: a reservation, a pause's end, the longest wait, how long a run took.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator

import pytest
from lab import Machine
from test_replay import deeds, frozen
from test_run import IN_GUEST, User, room, root  # noqa: F401 - a fixture too

pytestmark = [pytest.mark.vm, pytest.mark.long]

DAY = 86400
PAUSE = 20  # seconds: the longest pause of the job that is paused
WAITS = "test -s /root/.local/state/oomproof/runs/*/waiting.json"
GROW, LOAD = f"python3 {IN_GUEST}/grow.py", f"python3 {IN_GUEST}/loader.py"


@pytest.fixture
def clock(guest: Machine) -> Iterator[Machine]:
    yield guest
    guest.run(f"date -s @{time.time():.0f}")


def jump(machine: Machine, seconds: int) -> None:
    machine.run(f"date -s @$(( $(date +%s) + {seconds} ))")


def test_nobody_notices_that_the_clock_jumps(clock: Machine, root: User) -> None:  # noqa: F811
    runs = root.run("runs", f"--need 60M -- {GROW} 100 40")
    runs.printed("ready")
    with room(clock, 350):
        paused = root.run("paused", f"--pause-max {PAUSE} --grace 3 -- {LOAD} 30 300 0")
        frozen(paused)
        waits = root.machine.start("oomproof run --name waits --wait-max 2h --need 300M -- echo was let in")
        clock.wait_until(WAITS)
        jump(clock, DAY)
        assert runs.lives()
        jump(clock, -2 * DAY)
        clock.wait_until(f"! test -e {paused.attempt}/paused.json")  # also a day back the pause ends
        clock.run(WAITS)  # two hours have not passed
    reserved = json.loads(root.oomproof("check --json"))["ledger"]["running"]
    assert "runs" in [entry["name"] for entry in reserved]
    at = {line["action"]: line["boottime"] for line in actions(clock, paused.attempt)}
    assert at["resume"] - at["pause"] > PAUSE - 1, "a day has passed only on the clock"
    answer = clock.wait(waits, timeout=240)
    assert answer.rc == 0 and "was let in" in answer.out
    paused.ended()
    assert "pause" not in deeds(runs)
    root.stop(runs)
    assert runs.verdict()[0] == "stopped-by-user"
    rows = {row["name"]: row for row in json.loads(root.oomproof("runs --json"))["runs"]}
    for name in ("runs", "paused", "waits"):
        assert rows[name]["state"] == "ended"
        assert 0 <= rows[name]["seconds"] < 3600, f"{name} took {rows[name]['seconds']} s"
    assert rows["runs"]["seconds"] > PAUSE, "it ran all the while"
    for name in ("runs", "paused", "waits"):
        shown = root.oomproof(f"runs show {name}")
        assert not re.search(r"\d (d|days?)\b", shown), shown
        root.oomproof(f"why --short {name}")


def actions(machine: Machine, attempt: str) -> list[dict[str, float]]:
    return [json.loads(line) for line in machine.run(f"cat {attempt}/actions.jsonl").out.splitlines()]

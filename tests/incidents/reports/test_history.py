"""I1: a 61 GB machine, 50.8 GB held, killed every eight days or so. Journals, kern.log and dmesg -T as they are printed by
default, in three zones, in; one history with right dates and right intervals out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kernel_dumps import GIB, Row, desktop, dmesg, dmesg_ctime, journal, report, syslog

DAY, GB = 86400.0, 10**9
ZONES = ("UTC", "Asia/Kolkata", "America/New_York")
APART = (0.0, 7.9, 16.1, 24.0)  # days
HELD = 50_800_000_000


@pytest.fixture(params=ZONES)
def zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield request.param
    monkeypatch.undo()
    time.tzset()


def first() -> float:
    """The first kill: 03:41:07 on the machine's own clock, in a month without a change of clocks."""
    return time.mktime((2026, 1, 9, 3, 41, 7, 0, 0, -1))


def killed(pid: int, name: str = "python", held: int = HELD) -> list[str]:
    rows = [*desktop(), Row(pid, 1000, name, held)]
    return report(rows, pid, ram=61 * GB, swap_total=2 * GIB, swap_free=0)


def history() -> list[tuple[float, list[str]]]:
    deaths = [(first() + days * DAY, killed(3000 + n * 977)) for n, days in enumerate(APART)]
    return [*deaths[:3], (first() + 18 * DAY, killed(9000, "chrome", 12 * GIB)), deaths[3]]


def write(folder: Path, name: str, text: str, wrote: float | None = None) -> str:
    path = folder / name
    path.write_text(text)
    if wrote is not None:
        os.utime(path, (wrote, wrote))
    return name


def why(folder: Path, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "oomproof", "why", *words], cwd=folder, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def answer(folder: Path, *words: str) -> dict[str, Any]:
    said: dict[str, Any] = json.loads(why(folder, "--json", *words))
    return said


def sources(folder: Path) -> dict[str, str]:
    end = first() + 30 * DAY
    return {
        "journal": write(folder, "journal.txt", "".join(journal(r, at) for at, r in history()), end),
        "kern": write(
            folder, "kern.log", "".join(syslog(r, at, at - first() + 9e5) for at, r in history()), end
        ),
        "dmesg": write(folder, "dmesg.txt", "".join(dmesg_ctime(r, at + 2) for at, r in history()), end),
    }


@pytest.mark.parametrize("source", ["journal", "kern", "dmesg"])
def test_default_stamps_give_dates_on_the_machines_own_clock(zone: str, tmp_path: Path, source: str) -> None:
    name = sources(tmp_path)[source]
    late = 2.0 if source == "dmesg" else 0.0
    kills = answer(tmp_path, name)["kills"]
    assert [kill["time"] for kill in kills] == [at + late for at, _ in history()]
    shown = why(tmp_path, name)
    offset = {"UTC": "UTC", "Asia/Kolkata": "UTC+05:30", "America/New_York": "UTC-05:00"}[zone]
    assert f"2026-01-09 03:41:0{7 + late:.0f} {offset}" in shown


def test_several_kills_in_one_log_are_several_deaths_eight_days_apart(zone: str, tmp_path: Path) -> None:
    patterns = answer(tmp_path, "--all", sources(tmp_path)["journal"])
    assert [death["label"] for death in patterns["deaths"]] == [
        f"python ({3000 + n * 977})" for n in range(4)
    ]
    assert [round(gap, 3) for gap in patterns["gaps"]["days"]] == [7.9, 8.2, 7.9]
    assert any("every 7.9 days" in statement["text"] for statement in patterns["statements"])
    assert [death["held_bytes"] // GB for death in patterns["deaths"]] == [50] * 4
    assert [death["label"] for death in patterns["others"]] == ["chrome (9000)"]


def test_the_same_kill_in_three_files_is_one(zone: str, tmp_path: Path) -> None:
    names = sources(tmp_path)
    assert len(answer(tmp_path, *names.values())["kills"]) == 5
    patterns = answer(tmp_path, "--all", *names.values())
    assert len(patterns["deaths"]) == 4 and len(patterns["others"]) == 1
    assert [round(gap, 1) for gap in patterns["gaps"]["days"]] == [7.9, 8.2, 7.9]


def test_the_newest_kill_of_several_files_speaks_whatever_their_order(tmp_path: Path) -> None:
    old = write(tmp_path, "old.log", "x\n" * 5000 + journal(killed(3000), first()), first() + DAY)
    new = write(tmp_path, "new.log", journal(killed(5931), first() + 9 * DAY), first() + 10 * DAY)
    for names in ((old, new), (new, old)):
        assert answer(tmp_path, *names)["verdict"]["victim"]["pid"] == 5931


def test_intervals_come_from_the_kills_never_from_the_files(tmp_path: Path) -> None:
    """Four logs, each of one kill, all copied here in the same minute."""
    now = time.time()
    names = [
        write(tmp_path, f"{n}.log", dmesg_ctime(killed(3000 + n), first() + days * DAY), now + n)
        for n, days in enumerate(APART)
    ]
    gaps = answer(tmp_path, "--all", *names)["gaps"]["days"]
    assert [round(gap, 3) for gap in gaps] == [7.9, 8.2, 7.9]
    # a training log without a date has none: not the moment of its copy
    undated = [
        write(tmp_path, f"t{n}.log", f"step {n}1/900 loss 0.3\n" * 9, now - (n + 1) * DAY) for n in range(3)
    ]
    patterns = answer(tmp_path, "--all", *undated)
    assert [death["time"] for death in patterns["deaths"]] == [None] * 3 and patterns["gaps"]["days"] == []


def test_the_year_is_the_files(tmp_path: Path) -> None:
    """December's kills in a log that was last written in January are last year's."""
    december = time.mktime((2025, 12, 29, 22, 0, 0, 0, 0, -1))
    january = time.mktime((2026, 1, 3, 5, 0, 0, 0, 0, -1))
    text = journal(killed(11), december) + journal(killed(12), january)
    name = write(tmp_path, "kern.log", text, january + 60)
    assert [kill["time"] for kill in answer(tmp_path, name)["kills"]] == [december, january]


def test_uptime_is_no_clock(zone: str, tmp_path: Path) -> None:
    """55220.5 s after boot is not 15:20:20."""
    name = write(tmp_path, "dmesg.txt", dmesg(killed(3000), 55220.5))
    shown = why(tmp_path, name)
    assert "55220.5 s after boot" in shown
    assert not any(clock in shown for clock in ("15:20:20", "20:50:20", "10:20:20"))
    both = "".join(dmesg(killed(3000 + n), 55220.5 + n * 8 * DAY) for n in range(3))
    patterns = answer(tmp_path, "--all", write(tmp_path, "both.txt", both))
    assert [round(gap, 2) for gap in patterns["gaps"]["days"]] == [8.0, 8.0]
    assert [death["time"] for death in patterns["deaths"]] == [None] * 3


def training(end: float) -> str:
    lines = [
        f"{time.strftime('%F %T', time.localtime(end - 300 + step))} INFO step {step}/9000 loss 0.{step}\n"
        for step in range(300)
    ]
    return "".join(lines)


def test_a_kill_of_chrome_on_another_day_proves_nothing_about_a_training(zone: str, tmp_path: Path) -> None:
    log = write(tmp_path, "train.log", training(first() + 40 * DAY))
    kern = write(tmp_path, "kern.log", journal(killed(9000, "chrome"), first()), first() + 41 * DAY)
    for names in ((log, kern), (kern, log)):
        said = answer(tmp_path, *names)
        assert said["verdict"]["cause"] != "oom-kill-global" and said["verdict"]["certainty"] != "proven"
        assert said["verdict"]["victim"] is None
        assert "not of this job" in said["verdict"]["why"] and "chrome" in said["verdict"]["why"]


def test_a_kill_of_python_in_the_same_minute_does(zone: str, tmp_path: Path) -> None:
    when = first() + 40 * DAY
    log = write(tmp_path, "train.log", training(when))
    kern = write(tmp_path, "kern.log", journal(killed(3000), when + 20), when + DAY)
    said = answer(tmp_path, log, kern)
    assert said["verdict"]["cause"] == "oom-kill-global" and said["verdict"]["victim"]["pid"] == 3000
    (death,) = answer(tmp_path, "--all", log, kern)["deaths"]
    assert (death["label"], death["cause"], death["time"]) == ("train.log", "oom-kill-global", when + 20)

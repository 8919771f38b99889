"""Who else grew: named by its job, recorded in few rows, and never somebody from outside the limit."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from fake_machine import FakeMachine

from oomproof.guard.unmanaged_growth import MachineLook, Seen, UnmanagedGrowth, growing
from oomproof.machine.cgroups import JobMemory
from oomproof.machine.jobs import Job
from oomproof.recording.sqlite_files import INSERTS

MIB = 1 << 20
OURS = JobMemory(100 * MIB, 0, 0, 0, 0, 100 * MIB)


def look(t: float, **held: int) -> MachineLook:
    """pid as pNNN; those called rNNN are runs of ours."""
    return MachineLook(
        t, {(int(key[1:]), 0): Seen("python load.py", mib * MIB, key[0] == "r") for key, mib in held.items()}
    )


def test_the_fastest_is_named_with_what_it_held_and_in_how_long() -> None:
    (grown,) = growing(look(100, p1=500, p2=100), look(105, p1=510, p2=300))
    assert grown.text == "python load.py (pid 2) grew by 200 MiB in 5.0 s, held 300 MiB"


def test_one_that_has_just_begun_grew_from_nothing() -> None:
    (grown,) = growing(look(100, p1=500), look(105, p1=500, p3=200))
    assert "(pid 3) grew by 200 MiB" in grown.text


@pytest.mark.parametrize("now", [{"p1": 520}, {"p1": 400}, {"p1": 500, "r2": 900}, {}])
def test_a_breath_and_a_run_of_ours_are_not_named(now: dict[str, int]) -> None:
    assert growing(look(100, p1=500), look(105, **now)) == []


class Scene:
    def __init__(self, folder: Path, inside: str | None = None) -> None:
        self.machine = FakeMachine(folder)
        self.machine.meminfo(AnonPages=8 << 20)
        self.growth = UnmanagedGrowth(inside, self.machine.proc)
        self.rows: list[tuple[Any, ...]] = []

    def look(self, t: float, **held: int) -> None:
        for name, mib in held.items():
            self.machine.process(
                int(name[1:]), "python", 1, argv=("python", "load.py", "--key", "secret"), anon=mib
            )
        self.growth._look(t, {7, 8}, OURS, self.put)

    def put(self, table: str, row: tuple[object, ...]) -> None:
        assert table == "other_job" and INSERTS[table].count("?") == len(row)
        self.rows.append(row)


def test_what_changed_is_a_row_and_what_did_not_is_none(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.look(100.0, p7=900, p30=200, p31=20)
    scene.look(101.0, p30=201)
    scene.look(102.0, p30=260)
    scene.look(140.0)
    assert [(row[0], row[1], row[6] >> 20) for row in scene.rows] == [
        (100.0, 30, 200),
        (102.0, 30, 260),
        (140.0, 30, 260),
    ], "neither our own pid 7 nor the small one"
    assert all("secret" not in str(row) for row in scene.rows)
    assert scene.rows[0][4:6] == ("python load.py", 0)


def test_growth_is_told_over_the_last_seconds(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    for number in range(12):
        scene.look(100.0 + number, p30=100 + 10 * number)
    assert scene.growth.named == "python load.py (pid 30) grew by 50 MiB in 5.0 s, held 210 MiB"
    for number in range(8):
        scene.look(112.0 + number)
    assert scene.growth.named == "", "it has stopped: nobody is blamed for what was before"


def test_who_has_just_begun_is_named_by_the_first_look_and_before_older_growth(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    ticks = os.sysconf("SC_CLK_TCK")
    scene.machine.process(31, "python", 1, argv=("python", "new.py"), anon=80, start=98 * ticks)
    scene.look(100.0, p30=200)
    assert scene.growth.named.startswith("python new.py (pid 31) grew by 80 MiB in 2.0 s")
    scene.machine.process(32, "python", 1, argv=("python", "newer.py"), anon=40, start=198 * ticks)
    scene.look(200.0, p30=900)
    assert "(pid 32) grew by 40 MiB" in scene.growth.named, (
        "what pid 30 took meanwhile it may have taken long ago"
    )
    scene.look(400.0, p30=1200)
    assert "(pid 30) grew by 300 MiB in 3 min" in scene.growth.named, (
        "where nobody is new it is better than nothing"
    )


def test_who_is_outside_the_limit_is_neither_named_nor_recorded(tmp_path: Path) -> None:
    inside = tmp_path / "limited"
    inside.mkdir()
    (inside / "cgroup.procs").write_text("30\n")
    scene = Scene(tmp_path / "m", str(inside))
    scene.look(100.0, p30=100, p40=500)
    scene.look(106.0, p30=150, p40=5000)
    assert {row[1] for row in scene.rows} == {30} and "(pid 30)" in scene.growth.named


def test_who_is_gone_is_forgotten(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.look(100.0, p30=200)
    scene.look(101.0)
    assert [pid for pid, _ in scene.growth._rows._written] == [30]
    shutil.rmtree(f"{scene.machine.proc}/30")
    scene.look(131.0)
    assert scene.growth._rows._written == {}


@pytest.mark.parametrize(
    ("ties", "prefer", "expected"),
    [
        ({}, "", 31),  # the newest of those that have a part in it, not the fastest
        ({31: "it has a window"}, "", 30),
        (
            {30: "it has a window", 31: "it is another user's"},
            "",
            30,
        ),  # nobody: then the fastest, with its reason
        ({}, "old.py", 30),
    ],
)
def test_the_newest_that_may_be_paused(
    tmp_path: Path, ties: dict[int, str], prefer: str, expected: int
) -> None:
    scene = Scene(tmp_path)
    scene.growth = UnmanagedGrowth(
        None,
        scene.machine.proc,
        tie=lambda job: ties.get(job.pid, ""),
        prefer=lambda job: bool(prefer) and prefer in job.command,
    )
    for t, old, new, small in ((100.0, 100, 50, 50), (102.0, 300, 150, 60)):
        scene.machine.process(30, "python", 1, argv=("python", "old.py"), anon=old, start=10)
        scene.machine.process(31, "python", 1, argv=("python", "new.py"), anon=new, start=20)
        scene.machine.process(32, "python", 1, argv=("python", "small.py"), anon=small, start=30)
        scene.look(t)
    culprit = scene.growth.culprit
    assert culprit is not None and culprit.key[0] == expected and culprit.tie == ties.get(expected, "")
    assert "old.py (pid 30) grew by 200 MiB" in scene.growth.named, "the fastest is the one that is blamed"


def test_one_that_has_stopped_growing_has_no_rate_any_more(tmp_path: Path) -> None:
    """A training that had just loaded was paused for what a shell took two seconds later."""
    scene = Scene(tmp_path)
    scene.growth = UnmanagedGrowth(None, scene.machine.proc, tie=lambda job: "")
    rates = []
    for number, held in enumerate((100, 150, 200, 250, 300, 300, 300, 301, 300)):
        scene.look(100.0 + number / 2, p30=held)
        culprit = scene.growth.culprit
        rates.append(round(culprit.rate / MIB) if culprit is not None else None)
    assert rates[2:] == [100, 100, 100, 50, 0, 1, 0]


def test_while_memory_is_ample_nobody_is_asked_whether_he_may_be_paused(tmp_path: Path) -> None:
    """Each calm look once started the process that resumes after a killed guard: 10 MiB beside a run, for nothing."""
    scene, asked = Scene(tmp_path), list[int]()

    def tie(job: Job) -> str:
        asked.append(job.pid)
        return ""

    scene.growth = UnmanagedGrowth(None, scene.machine.proc, tie=tie)
    for t, held in ((100.0, 100), (160.0, 900)):
        scene.machine.process(30, "python", 1, argv=("python", "load.py"), anon=held, start=10)
        scene.growth._look(t, {7, 8}, OURS, scene.put, may_pause=False)
    assert not asked and scene.growth.culprit is None
    assert "load.py (pid 30) grew by 800 MiB" in scene.growth.named and len(scene.rows) == 2, "it is named"


def test_those_that_hold_much_are_known_where_a_run_may_wait_for_their_end(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    ties = {31: "it has a window"}
    scene.growth = UnmanagedGrowth(
        None, scene.machine.proc, tie=lambda job: ties.get(job.pid, ""), holding=200 * MIB
    )
    for t, grown in ((100.0, 300), (102.0, 500)):
        scene.look(t, p30=400, p31=400, p32=100, p33=grown)
    assert [holder.key[0] for holder in scene.growth.holders] == [30], "the one that grows is a culprit"
    assert scene.growth.culprit is not None and scene.growth.culprit.key[0] == 33

"""Many processes ask at once, some are killed: nobody is lost, nothing is promised twice."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import Lab, until

from oomproof.machine.clock import boottime

GIB = 1 << 30
BUDGET = 20 * GIB
# 200 is the figure of `bench/ledger.py`, which runs this very crowd; a build machine has few cores.
CROWD = int(os.environ.get("LEDGER_CROWD", "40"))


def crowd(
    lab: Lab, journal: Path, count: int, seed: int
) -> tuple[list[subprocess.Popen[bytes]], dict[int, float]]:
    """Starts them, and kills every fifth at a random moment; (processes, pid → when it was killed)."""
    choose = random.Random(seed)
    environment = {**lab.environment, "PYTHONPATH": ":".join(sys.path)}
    asking = [
        subprocess.Popen(
            [
                *lab.job("asker.py"),
                str(BUDGET),
                str(choose.randint(1, 8) * GIB),
                str(choose.uniform(0.0, 0.3)),
                str(journal),
            ],
            env=environment,
            stderr=subprocess.PIPE,
        )
        for _ in range(count)
    ]
    killed: dict[int, float] = {}
    victims = choose.sample(asking, count // 5)
    for number, victim in enumerate(victims):
        until(
            lambda n=number: journal.exists() and journal.read_text().count("in ") >= n * 2,
            "somebody to be let in",
        )
        killed[victim.pid] = boottime()
        victim.send_signal(signal.SIGKILL)
    return asking, killed


def check(journal: Path, asking: list[subprocess.Popen[bytes]], killed: dict[int, float]) -> int:
    """Everyone who was not killed got in, and at no moment was more promised than there is. The most at one moment."""
    for one in asking:
        _, said = one.communicate(timeout=100)
        assert one.returncode == 0 or one.pid in killed, said.decode()
    pid_of, need_of, moments = {}, {}, []
    outs: set[str] = set()
    lines = [line.split() for line in journal.read_text().splitlines()]
    for line in lines:
        if line[0] == "asks":
            pid_of[line[1]] = int(line[2])
        elif line[0] == "in":
            assert line[1] not in need_of, "let in twice"
            need_of[line[1]] = int(line[3])
            moments.append((float(line[2]), int(line[3])))
        else:
            outs.add(line[1])
            moments.append((float(line[2]), -need_of[line[1]]))
    for run, need in need_of.items():
        if run not in outs:
            at = killed[pid_of[run]]  # dead without a word; counted to the moment before the signal
            began = next(float(line[2]) for line in lines if line[:2] == ["in", run])
            moments.append((max(at, began), -need))
    survivors = {run for run, pid in pid_of.items() if pid not in killed}
    assert survivors <= need_of.keys(), "somebody was never let in"
    most = now = 0
    for _, change in sorted(moments):
        now += change
        most = max(most, now)
        assert now <= BUDGET, "more was promised than there is"
    return most


@pytest.mark.parametrize("disk", ["ample", "full"])
def test_a_crowd_asks_at_once_and_holders_are_killed(lab: Lab, tmp_path: Path, disk: str) -> None:
    if disk == "full":
        lab.environment["XDG_STATE_HOME"] = str(full_disk(tmp_path))
    journal = tmp_path / "journal"
    try:
        asking, killed = crowd(lab, journal, CROWD, seed=len(disk))
        most = check(journal, asking, killed)
    finally:
        if disk == "full":
            subprocess.run(["umount", "-l", str(tmp_path / "disk")], check=True)
    assert most > BUDGET // 2, "the room was not used"


def full_disk(tmp_path: Path) -> Path:
    """A real file system with room for the runs' folders (inodes) but not for a page of the ledger."""
    folder = tmp_path / "disk"
    folder.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(folder)], capture_output=True)
    if made.returncode:
        pytest.skip("a file system can be mounted by root only")
    with (folder / "filler").open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 4096)
        except OSError:
            pass
    return folder

"""Many processes ask at once, some are killed: nobody is lost, nothing is promised twice."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from conftest import DEADLINE, Lab

GIB = 1 << 30
BUDGET = 20 * GIB
# 200 is the figure of `bench/ledger.py`, which runs this very crowd; a build machine has few cores.
CROWD = int(os.environ.get("LEDGER_CROWD", "60"))


def most_at_once(journal: Path) -> int:
    """Checks what the crowd wrote down; the most that was let in at one moment, in bytes."""
    lines = [line.split() for line in journal.read_text().splitlines()]
    pid_of = {line[1]: line[2] for line in lines if line[0] == "asks"}
    killed = {line[1]: float(line[2]) for line in lines if line[0] == "killed"}
    entered = {line[1]: (float(line[2]), int(line[3])) for line in lines if line[0] == "in"}
    left = {line[1]: float(line[2]) for line in lines if line[0] == "out"}
    assert len(entered) == sum(line[0] == "in" for line in lines), "let in twice"
    survivors = {run for run, pid in pid_of.items() if pid not in killed}
    assert survivors <= entered.keys() and survivors <= left.keys(), "somebody was never let in"
    moments = []
    for run, (since, need) in entered.items():
        until = left[run] if run in left else max(since, killed[pid_of[run]])
        moments += [(since, need), (until, -need)]
    most = now = 0
    for _, change in sorted(moments):
        now += change
        most = max(most, now)
    return most


@pytest.mark.timeout(900)
@pytest.mark.parametrize("disk", ["ample", "full"])
def test_a_crowd_asks_at_once_and_holders_are_killed(lab: Lab, tmp_path: Path, disk: str) -> None:
    if disk == "full":
        lab.environment["XDG_STATE_HOME"] = str(full_disk(tmp_path))
    journal = tmp_path / "journal"
    try:
        done = subprocess.run(
            lab.job("crowd.py", CROWD, BUDGET, len(disk), journal),
            env=lab.environment,
            stderr=subprocess.PIPE,
            text=True,
        )
    finally:
        if disk == "full":
            subprocess.run(["umount", "-l", str(tmp_path / "disk")], check=True)
    assert done.returncode == 0, done.stderr
    most = most_at_once(journal)
    assert most <= BUDGET, "more was promised than there is"
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


def test_of_those_who_ask_at_one_instant_only_as_many_win_as_fit(lab: Lab) -> None:
    """45 % each: two fit. Seen to fail within a few rounds when the look is taken outside the lock."""
    done = subprocess.run(
        lab.job("instant.py", 20, 8), env=lab.environment, capture_output=True, text=True, timeout=DEADLINE
    )
    assert done.stdout.split() == ["2"] * 20, (done.stdout, done.stderr)

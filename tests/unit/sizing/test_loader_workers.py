"""What loader workers hold must not depend on how busy the machine is: they are starved here on purpose."""

from __future__ import annotations

import os
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest

from oomproof.sizing import watched_child
from oomproof.sizing.host_figures import (
    PROCESS,
    QUEUE,
    UNSEEN,
    WORKERS,
    HostFigures,
    unseen,
    workers_hold,
)
from oomproof.sizing.script_sizing import SizedScript, _shared_beside, size_command
from oomproof.sizing.virtual_gpu import worker_peaks
from oomproof.sizing.virtual_gpu.child_results import Loader, VirtualResult
from oomproof.units import MIB

# Each sample is larger than what malloc keeps, so a worker holds nothing between two batches.
SAMPLE = 40 * MIB
SCRIPT = """
import multiprocessing, sys, time
import numpy, torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

turn = multiprocessing.Lock()
torch.set_num_threads(1)

class Pictures(Dataset):
    def __len__(self):
        return 16

    def __getitems__(self, indexes):
        {starved}
        turn.acquire()
        time.sleep(0.2)
        return [numpy.ones({sample}, dtype=numpy.uint8) for index in indexes]

def first_of_each(samples):
    batch = torch.tensor([[float(sample[0])] * 4096 for sample in samples])
    samples.clear()
    turn.release()
    return batch

model = torch.nn.Linear(4096, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in DataLoader(Pictures(), 2, num_workers=2, collate_fn=first_of_each):
    model(batch).sum().backward()
    optimizer.step()
"""


def sized(folder: Path, starved: str = "pass", seconds: float = 60) -> SizedScript:
    script = folder / "train.py"
    script.write_text(textwrap.dedent(SCRIPT).replace("{starved}", starved).replace("{sample}", str(SAMPLE)))
    return size_command(
        [sys.executable, "-W", "ignore", str(script)],
        time_limit=seconds, gpu_total=0, allow_writes=True, tell=lambda line: None,
    )  # fmt: skip


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's high-water mark of a process")
@pytest.mark.parametrize("look", [watched_child.LOOK, 120], ids=["looked at", "never looked at"])
def test_workers_that_never_hold_their_batches_at_once_count_in_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, look: float
) -> None:
    """One processor for all of them, in effect: only one makes a batch at a time, and looks from outside see one at most, or nothing."""
    monkeypatch.setattr(watched_child, "LOOK", look)
    found = sized(tmp_path)
    assert found.host is not None, found.sizing.refused
    parts = found.host.parts
    assert 2 * 2 * SAMPLE <= parts[WORKERS] <= 2 * (2 * SAMPLE + 60 * MIB)
    assert parts[UNSEEN] == 0
    assert parts[PROCESS] >= 100 * MIB, "Python with torch"
    assert found.host.with_workers(6).parts[WORKERS] >= 6 * 2 * SAMPLE


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's high-water mark of a process")
def test_a_worker_that_made_no_batch_counts_as_the_fullest_and_a_batch_more(tmp_path: Path) -> None:
    found = sized(tmp_path, "time.sleep(1000 * get_worker_info().id)", 3)
    assert found.host is not None, found.sizing.refused
    batch = 2 * 4096 * 4
    assert found.host.parts[WORKERS] >= 2 * 2 * SAMPLE
    assert found.host.parts[UNSEEN] == 2 * batch
    assert found.host.with_workers(6).parts[UNSEEN] == 6 * batch
    assert any("did not fill their queue" in note for note in found.sizing.notes)


def test_workers_of_which_nothing_was_seen_are_no_figure(tmp_path: Path) -> None:
    found = sized(tmp_path, "time.sleep(1000)", 2)
    assert found.host is None
    assert "2 workers made no batch in time" in (found.sizing.refused or "")
    assert "--time-limit" in (found.sizing.refused or "")


# --- the arithmetic -----------------------------------------------------------------------------------------------


def told(own: list[int], workers: int = 4, settled: bool = True) -> Loader:
    return Loader(workers, own=own, settled=settled)


def test_who_told_nothing_holds_what_the_fullest_does() -> None:
    assert workers_hold(told([])) == 0
    assert workers_hold(told([10, 20, 30, 40])) == 100
    assert workers_hold(told([10, 20])) == 10 + 20 + 2 * 20
    assert workers_hold(told([10, 20, 30, 40], settled=False)) == 160, "what was seen is not all"


def test_what_was_not_seen_counts_above_and_not_below() -> None:
    """A plan is chosen by the expected figure at most, so it must be in there."""
    loader = Loader(2, 2, 50 * MIB, settled=False)
    parts = {PROCESS: 200 * MIB, WORKERS: 100 * MIB, UNSEEN: unseen(loader), QUEUE: 250 * MIB}
    figures = HostFigures(parts, (loader,), 50 * MIB)
    assert figures.parts[UNSEEN] == 100 * MIB
    seen = HostFigures({**parts, UNSEEN: 0}, (Loader(2, 2, 50 * MIB),), 50 * MIB)
    assert figures.estimate().low == seen.estimate().low
    assert figures.estimate().expected == seen.estimate().expected + 100 * MIB
    more = figures.with_workers(8).estimate().expected - seen.with_workers(8).estimate().expected
    assert more == 8 * 50 * MIB


def test_a_batch_that_was_there_besides_for_a_moment_is_not_the_scripts() -> None:
    """Whether a look met it hangs on how busy the machine is."""
    result = VirtualResult(loaders=[Loader(2, batch=50 * MIB)], shared_beside=20 * MIB)
    assert _shared_beside(result, 20 * MIB) == _shared_beside(result, 70 * MIB) == 20 * MIB
    assert _shared_beside(result, 300 * MIB) == 300 * MIB, "of its own, made later"
    assert _shared_beside(replace(result, shared_beside=None), 70 * MIB) == 70 * MIB
    assert _shared_beside(replace(result, shared_beside=0), 50 * MIB) == 0


# --- a worker's own account ---------------------------------------------------------------------------------------


class Kernel:
    """A process as /proc shows it, MiB."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def now(self, anon: int, shmem: int, most: int, private: int) -> None:
        def line(name: str, size: int) -> str:
            return f"{name}:\t{size * 1024:8} kB\n"

        (self.folder / "status").write_text(
            line("VmHWM", most)
            + line("VmRSS", anon + shmem)
            + line("RssAnon", anon)
            + line("RssShmem", shmem)
        )
        (self.folder / "smaps_rollup").write_text(
            line("Pss_Shmem", shmem) + line("Private_Dirty", private + shmem)
        )


def test_shared_memory_that_leaves_late_is_no_peak(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first batch tells what came and went within it; of a later one the mark holds the batch before it, too, on a busy machine."""
    kernel, (proc, folder) = Kernel(tmp_path / "proc"), (tmp_path / "proc", tmp_path / "told")
    proc.mkdir()
    folder.mkdir()
    kernel.now(anon=200, shmem=0, most=200, private=5)
    meter = worker_peaks.WorkerMeter(str(folder), str(proc))
    collated = meter.before(lambda samples: kernel.now(anon=210, shmem=50, most=315, private=15))
    kernel.now(anon=262, shmem=0, most=265, private=67)
    collated([])
    meter.end()
    first = worker_peaks.told(str(folder), [os.getpid()])
    assert first == [(15 + 315 - 260) * MIB], (
        "fifty of samples and five of a picture that was decoded, beside what it keeps"
    )
    kernel.now(anon=262, shmem=100, most=500, private=67)
    collated([])
    kernel.now(anon=210, shmem=100, most=500, private=15)
    meter.end()
    assert worker_peaks.told(str(folder), [os.getpid()]) == first
    assert worker_peaks.told(str(folder), [1]) == []

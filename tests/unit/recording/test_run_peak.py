"""What a run held at most, from all who know; and the end of a recording without the job's death in it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oomproof.recording.attempt import Attempt
from oomproof.recording.phase_spans import phase_rows
from oomproof.recording.reader import Figures, Peaks
from oomproof.recording.run_peak import figures_of, run_peak
from oomproof.recording.series import HostRow, JobRow, ProcessRow, teardown_begin
from oomproof.recording.writer import Writer

MIB, GIB = 1 << 20, 1 << 30


def peak(
    tmp_path: Path,
    sampled: int | None,
    *,
    cache: int = 0,
    mapped: int = 0,
    process_anon: int = 0,
    victims: tuple[int, ...] = (),
    **counters: int,
) -> tuple[int | None, str]:
    """Sizes in MiB."""
    (tmp_path / "exit.json").write_text(
        json.dumps({"code": 0, "counters": {name: size * MIB for name, size in counters.items()}})
    )
    figures = Figures(
        Peaks(use=None if sampled is None else sampled * MIB),
        cache=cache * MIB,
        mapped=mapped * MIB,
        process_anon=process_anon * MIB,
    )
    use, source = run_peak(Attempt(tmp_path), figures, [size * MIB for size in victims])
    return None if use is None else use // MIB, source


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        ({"sampled": 4, "memcg_peak": 490, "cache": 10, "largest_rss": 485}, (480, "cgroup")),
        (
            {
                "sampled": 4,
                "memcg_peak": 490,
                "memcg_active_file": 5,
                "memcg_inactive_file": 5,
                "largest_rss": 485,
            },
            (480, "cgroup"),
        ),
        # a burst of 900 beside workers, with a dataset in page cache
        (
            {"sampled": 600, "memcg_peak": 1800, "cache": 300, "process_anon": 400, "largest_rss": 1300},
            (1500, "cgroup"),
        ),
        # a checkpoint of 1400 that replaced another: both lay in page cache for a moment
        (
            {"sampled": 4096, "memcg_peak": 6900, "cache": 1400, "process_anon": 4100, "largest_rss": 4120},
            (4096, "samples"),
        ),
        ({"sampled": 4096, "memcg_peak": 6900, "cache": 1400}, (4096, "samples")),
        # a dataset of 2000 that was read and dropped before any row
        (
            {"sampled": 500, "memcg_peak": 2500, "cache": 10, "process_anon": 495, "largest_rss": 505},
            (500, "samples"),
        ),
        ({"sampled": 4, "memcg_peak": 1060, "largest_rss": 60}, (64, "cgroup")),  # no row of a process
        ({"sampled": 600, "memcg_peak": 880, "cache": 10}, (860, "cgroup")),  # nobody waited for a process
        ({"sampled": 580, "memcg_peak": 593, "cache": 0}, (593, "cgroup")),
        ({"sampled": 588, "memcg_peak": 593, "cache": 0}, (588, "samples")),  # the kernel counts in batches
        # a job at its limit by page cache: what the cache was at the peak, nobody knows to a tenth
        ({"sampled": 30, "memcg_peak": 500, "cache": 440}, (30, "samples")),
        # five processes of 150 each, at once, between two samples: hardly anything was read or written
        ({"sampled": 3, "memcg_peak": 765, "largest_rss": 159, "file_io": 1}, (764, "cgroup")),
        # the same, and a dataset of 2000 that was read and dropped
        (
            {"sampled": 3, "memcg_peak": 2765, "largest_rss": 159, "file_io": 2000},
            (765, "cgroup"),
        ),
        (
            {
                "sampled": 500,
                "memcg_peak": 2500,
                "cache": 10,
                "process_anon": 495,
                "largest_rss": 505,
                "file_io": 2100,
            },
            (500, "samples"),
        ),
        ({"sampled": 7, "largest_rss": 908, "mapped": 8}, (900, "process")),
        ({"sampled": 7, "largest_rss": 30}, (7, "samples")),  # no more than a copy of the keeper
        (
            {"sampled": 300, "memcg_peak": 304, "largest_rss": 900},
            (300, "samples"),
        ),  # the cgroup knows better
        ({"sampled": None}, (None, "samples")),
        ({"sampled": None, "memcg_peak": 100}, (100, "cgroup")),
    ],
)
def test_the_largest_of_those_who_know(
    tmp_path: Path, known: dict[str, int], expected: tuple[int | None, str]
) -> None:
    assert peak(tmp_path, **known) == expected


def test_the_victim_that_the_kernel_measured(tmp_path: Path) -> None:
    assert peak(tmp_path, 400, victims=(470, 490, 0)) == (490, "kernel")


def test_the_victims_that_a_verdict_lists(tmp_path: Path) -> None:
    """Not its own victim: that may be a process which only looks like one of the job's."""
    held = {"anon_rss_bytes": 470 * MIB, "shmem_rss_bytes": 20 * MIB, "total_vm_bytes": 9 * GIB}
    kills = [{"victim": held}, {"victim": None}, "damaged"]
    verdict = {"verdict": {"victim": {"anon_rss_bytes": 9 * GIB}}, "kills": kills}
    peaks = figures_of(Attempt(tmp_path), verdict).peaks
    assert (peaks.use, peaks.source) == (490 * MIB, "kernel")


def test_what_the_guard_acted_on(tmp_path: Path) -> None:
    """Its row is missing where the writer was killed first."""
    (tmp_path / "actions.jsonl").write_text(
        json.dumps({"action": "term", "facts": {"use": 493 * MIB}}) + "\n"
    )
    assert peak(tmp_path, 489) == (493, "guard")


@pytest.mark.parametrize(
    ("levels", "left"),
    [
        ([1200, 1200, 6], 2),  # "the job held 6 MiB 0.0 s before the end" of 1.2 GiB
        ([1200, 1200, 700], 2),
        ([1200, 1200, 800, 300, 0, 0, 0], 2),  # a cgroup outlives its processes
        ([400, 492, 378, 76], 2),
        ([100 << 10, 99 << 10, 95 << 10, 60 << 10, 20 << 10], 1),  # seconds for a large one
        ([900, 4, 4, 4], 4),  # it gave it back and lived on
        ([1200, 1150, 1100], 3),  # a slow decline is no death
        ([33 << 10, (33 << 10) - 300], 2),  # a fall of one batch
        ([0, 0, 0], 3),
        ([5], 1),
        ([], 0),
    ],
)
def test_a_dying_job_is_no_end(levels: list[int], left: int) -> None:
    points = [(float(at), level * MIB) for at, level in enumerate(levels)]
    begin = teardown_begin(points)
    assert [t for t, _ in points if t < begin] == [float(at) for at in range(left)]


@pytest.mark.parametrize(
    ("levels", "left"),
    [
        (
            [580, 586, 586, 149, 148],
            3,
        ),  # torchrun, and its ranks gone: "train, at exit 148 MiB, floor 148 MiB"
        ([585, 918, 1272, 367, 367, 0], 3),  # one rank killed by the kernel, the other ended by the launcher
        ([900, 300, 300, 300, 300, 300, 300], 7),  # it gave it back and lived on
        ([900, 300, 500, 500], 4),  # ... and grew again
        ([900, 800, 700, 700], 4),  # a worker of many went
        ([900, 4], 1),
        ([5], 1),
        ([], 0),
    ],
)
def test_a_launcher_that_outlives_its_ranks_is_no_end_either(levels: list[int], left: int) -> None:
    points = [(float(at), level * MIB) for at, level in enumerate(levels)]
    begin = teardown_begin(points, lingers=3.0)
    assert [t for t, _ in points if t < begin] == [float(at) for at in range(left)]


@given(st.lists(st.integers(0, 1 << 40), max_size=30), st.sampled_from([0.0, 3.0]))
def test_whatever_lingers_the_highest_stays(levels: list[int], lingers: float) -> None:
    points = [(float(at), level) for at, level in enumerate(levels)]
    kept = [level for t, level in points if t < teardown_begin(points, lingers)]
    assert levels[:1] == kept[:1] and max(levels, default=0) == max(kept, default=0)


@given(st.lists(st.integers(0, 1 << 40), max_size=30))
def test_the_first_sample_and_every_rise_stay(levels: list[int]) -> None:
    points = [(float(at), level) for at, level in enumerate(levels)]
    kept = [level for t, level in points if t < teardown_begin(points)]
    assert levels[:1] == kept[:1] and max(levels, default=0) == max(kept, default=0)
    dropped = [level for level in levels[len(kept) :] if level > 64 << 10]  # less is nobody's
    assert dropped == sorted(dropped, reverse=True)


def test_no_reader_gets_the_rows_of_a_dying_job(tmp_path: Path) -> None:
    path = tmp_path / "recording.sqlite"
    writer = Writer(path, {})
    for t, use in enumerate((100, 300, 1200, 1200, 400, 6)):
        writer.put("host", (float(t), 32 * GIB, (30 << 30) - use * MIB, None, 0, 0, 0, 0))
        writer.put("job", (float(t), use * MIB, 0, 0, 0, 0, None, 1, None, None))
        writer.put("process", (float(t), 7, 1, "main", "python", use * MIB, 0, 0, 0, None))
    writer.close()
    with Attempt(tmp_path).recording().series() as series:
        assert series.teardown == 4.0 and series.end() == 5.0
        for kind in (JobRow, HostRow, ProcessRow):
            assert series.newest(kind, 60.0)[-1].t == 3.0
            assert series.between(kind, 0.0, 99.0)[-1].t == 3.0
        assert series.use.at(99.0) == 1200 * MIB and series.use.end == 3.0
        assert [row.use for row in series.living(0.0, 99.0)] == [1200 * MIB]
        assert series.processes()[7][1].use == 1200 * MIB


@pytest.mark.parametrize(
    ("levels", "last"),
    [
        ([(600, ""), (600, ""), (870, "guard"), (600, "")], 3.0),  # a sawtooth that lives
        ([(600, ""), (870, "guard"), (900, "cgroup"), (600, "")], 3.0),
        ([(600, ""), (600, ""), (870, "guard")], 2.0),  # it ended after the look
        ([(600, ""), (870, "guard"), (6, "")], 1.0),
        ([(1200, ""), (1200, ""), (700, "guard"), (6, "")], 1.0),  # the look saw it die
    ],
)
def test_a_burst_between_two_samples_is_no_death(
    tmp_path: Path, levels: list[tuple[int, str]], last: float
) -> None:
    writer = Writer(tmp_path / "recording.sqlite", {})
    for t, (use, source) in enumerate(levels):
        if source:
            writer.put("look", (float(t), source))
        writer.put("job", (float(t), use * MIB, 0, 0, 0, 0, None, 1, None, None))
    writer.close()
    with Attempt(tmp_path).recording().series() as series:
        assert series.newest(JobRow, 60.0)[-1].t == series.use.end == last


def test_shares_of_forked_workers_add_up(tmp_path: Path) -> None:
    """Each maps all 900 MiB that were there before the fork; the job holds them once."""
    writer = Writer(tmp_path / "recording.sqlite", {})
    for pid in (7, 8, 9):
        writer.put("process", (1.0, pid, 1, "worker", "python", 900 * MIB, 0, 0, 0, 300 * MIB))
    writer.put("process", (1.0, 10, 1, "worker", "python", 5 * MIB, 0, 0, 0, 40 * MIB))  # 0.1: with its files
    writer.close()
    with Attempt(tmp_path).recording().series() as series:
        assert [row.use // MIB for row in series.living(0.0, 9.0)] == [300, 300, 300, 5]


def test_the_last_step_of_training_is_the_one_it_was_left_with(tmp_path: Path) -> None:
    """Marks come once a second, so train's last was 333; it was evaluated after step 350, and so was its last."""
    writer = Writer(tmp_path / "recording.sqlite", {})
    for t, name, step in ((1.0, "load", None), (2.0, "train", 1), (3.0, "train", 333), (3.6, "eval", 350)):
        writer.put("phase", (t, name, step, 7, None, None))
        writer.put("job", (t, 10 * MIB, 0, 0, 0, 0, None, 1, None, None))
    writer.close()

    def last_steps() -> dict[str, int | None]:
        with Attempt(tmp_path).recording().series() as series:
            return {row.name: row.last_step for row in phase_rows(series)}

    assert last_steps() == {"load": None, "train": 350, "eval": 350}
    (tmp_path / "agent").mkdir()
    (tmp_path / "agent" / "7-now.txt").write_text("1 9.500 362 -1 train\n")  # what the job itself kept
    assert last_steps() == {"load": None, "train": 362, "eval": 350}

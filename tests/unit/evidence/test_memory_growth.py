"""Growth or size: what a recording shows of the last minutes, and what must not be taken for growth."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from oomproof.evidence.case_evidence import growth_text, other_text
from oomproof.evidence.case_file import Growth
from oomproof.evidence.memory_growth import grown_processes, job_growth, other_jobs
from oomproof.recording.reader import open_recording
from oomproof.recording.writer import Writer

MIB = 1 << 20


class Recorded:
    def __init__(self, folder: Path) -> None:
        self.path = folder / "recording.sqlite"
        self.rows: list[tuple[str, tuple[object, ...]]] = []

    def job(self, t: float, mib: float) -> None:
        self.rows.append(("job", (t, int(mib * MIB), 0, 0, 0, 0, None, 1, None, None)))

    def phase(self, t: float, name: str, step: int | None, mib: float | None = None) -> None:
        anon = int(mib * MIB) if mib is not None else None
        self.rows.append(("phase", (t, name, step, 7, anon, None)))

    def process(self, t: float, pid: int, mib: float, role: str = "main") -> None:
        self.rows.append(("process", (t, pid, 5, role, "python3", int(mib * MIB), 0, 0, 0, None)))

    def other(self, t: float, pid: int, mib: float, start: int, managed: int = 0, swap: float = 0) -> None:
        name = "python3 load.py"
        self.rows.append(("other_job", (t, pid, start, 0, name, managed, int(mib * MIB), int(swap * MIB))))

    def host(self, t: float, mib: float) -> None:
        self.rows.append(("host", (t, 8000 * MIB, int(mib * MIB), 0, 0, 0, None, None)))

    def growth(self) -> Growth | None:
        with self.open() as series:
            return job_growth(series)

    def open(self):  # type: ignore[no-untyped-def]
        writer = Writer(self.path, {"boot_id": "b"})
        for table, row in self.rows:
            writer.put(table, row)
        writer.close()
        return open_recording(self.path).series()


@pytest.fixture
def recorded(tmp_path: Path) -> Recorded:
    return Recorded(tmp_path)


def trained(recorded: Recorded, held: float, per_step: float, steps: int, eval_keeps: float = 0.0) -> None:
    """Loads for 4 s, then a step a second; each tenth step an evaluation of a second, which may keep something."""
    recorded.phase(100.0, "load", None)
    for number in range(40):
        recorded.job(100.0 + number / 10, held * number / 40)
    for step in range(steps):
        t = 104.0 + step * 2
        recorded.phase(t, "train", step)
        recorded.job(t, held + 5)
        held += per_step
        recorded.job(t + 0.9, held)
        if step % 10 == 9:
            recorded.phase(t + 1.0, "eval", None)
            recorded.job(t + 1.2, held + 40)
            held += eval_keeps
            recorded.job(t + 1.9, held)


def test_a_straight_line_is_told_by_the_step(recorded: Recorded) -> None:
    trained(recorded, 300, 12, 54)
    growth = recorded.growth()
    assert growth is not None and growth.kind == "growing"
    assert growth.steps is not None and 36 <= growth.steps <= 50  # without the first ones
    assert growth.bytes_per_step == pytest.approx(12 * MIB, rel=0.1)
    assert growth.bytes_per_second == pytest.approx(6 * MIB, rel=0.1)
    assert growth.phase == "train"
    assert growth_text(growth).startswith("grew 12.") and " MiB a step for " in growth_text(growth)
    assert "without levelling off, nearly all in train" in growth_text(growth)


def test_growth_in_one_phase_only_is_that_phases(recorded: Recorded) -> None:
    trained(recorded, 300, 0, 120, eval_keeps=30)
    growth = recorded.growth()
    assert growth is not None and growth.phase == "eval"
    assert (growth.kind, growth.cycle) == ("steps", "eval")
    assert growth.bytes_per_cycle == pytest.approx(30 * MIB, rel=0.05)
    assert growth_text(growth).startswith("grew 30 MiB per eval for ")


def test_growth_of_an_evaluation_shorter_than_a_sample(recorded: Recorded) -> None:
    """Each sample falls into training; what the job itself held where the phases began tells."""
    recorded.phase(100.0, "load", None, 10)
    for step in range(120):
        kept = 300 + 40 * (step // 10)
        recorded.phase(104.0 + step, "train", step, kept + step % 2)
        if step % 10 == 9:
            recorded.phase(104.9 + step, "eval", step, kept)
            recorded.phase(104.95 + step, "train", step, kept + 40)
        recorded.job(104.5 + step, kept)
    growth = recorded.growth()
    assert growth is not None and growth.phase == "eval"


def test_a_job_that_is_simply_large_has_no_growth(recorded: Recorded) -> None:
    trained(recorded, 900, 0, 60)
    assert recorded.growth() is None


def test_loading_is_no_growth(recorded: Recorded) -> None:
    """A straight line too, but of a job that says it loads."""
    recorded.phase(100.0, "load", None)
    for number in range(60):
        recorded.job(100.0 + number, 20.0 * number)
    assert recorded.growth() is None


def test_what_levels_off_is_no_growth(recorded: Recorded) -> None:
    for number in range(100):
        recorded.job(100.0 + number, min(500, 50 * number))
    assert recorded.growth() is None


def test_a_saw_is_no_growth(recorded: Recorded) -> None:
    for number in range(120):
        recorded.job(100.0 + number, 300 + 50 * (number % 6))
    assert recorded.growth() is None


def test_without_steps_it_is_told_by_the_second_and_without_what_was_loaded_at_once(
    recorded: Recorded,
) -> None:
    recorded.job(99.0, 5)
    for number in range(60):
        recorded.job(100.0 + number, 300 + 10 * number)
    recorded.job(160.0, 40)  # the sample of a job that is being ended
    growth = recorded.growth()
    assert growth is not None and growth.steps is None
    assert growth.bytes_per_second == pytest.approx(10 * MIB, rel=0.1)
    assert growth.from_bytes >= 200 * MIB, "300 MiB came in a moment"
    assert growth.to_bytes == pytest.approx(890 * MIB, rel=0.02)
    assert growth_text(growth).startswith(("grew 10.0 MiB/s for 5", "grew 10.0 MiB/s for 60 s"))


def test_a_straight_ramp_of_ten_seconds_is_growth(recorded: Recorded) -> None:
    for number in range(100):
        recorded.job(100.0 + number / 10, 5 + 1.4 * number)
    growth = recorded.growth()
    assert growth is not None and growth.bytes_per_second == pytest.approx(14 * MIB, rel=0.1)


def test_a_shorter_one_and_one_that_jumps_are_not(recorded: Recorded) -> None:
    for number in range(60):
        recorded.job(100.0 + number / 10, 5 + 1.4 * number)
    assert recorded.growth() is None
    recorded.path, recorded.rows = recorded.path.with_name("jumps.sqlite"), []
    for number in range(120):
        recorded.job(100.0 + number / 10, 5 + number / 10 + (number >= 60) * 100)
    assert recorded.growth() is None


def test_which_process_grew(recorded: Recorded) -> None:
    for number in range(20):
        recorded.process(
            100.0 + number, 11, 10 + min(190, 100 * number)
        )  # loaded at the start, and then level
        recorded.process(100.0 + number, 12, 50 + 10 * number, "worker")
    recorded.process(120.0, 12, 3, "worker")  # it is being ended
    recorded.job(121.0, 300)
    with recorded.open() as series:
        (grown,) = grown_processes(series)
    assert (grown.pid, grown.role, grown.before >> 20, grown.after >> 20) == (12, "worker", 50, 240)


def test_the_only_process_held_what_the_job_held(recorded: Recorded) -> None:
    """ "the job held 146 MiB", and "python grew to 138 MiB": it was looked at less often."""
    for number in range(17):
        recorded.job(100.0 + number / 10, 2 + 9 * number)
    recorded.process(100.0, 11, 2)
    recorded.process(101.5, 11, 137)
    with recorded.open() as series:
        (grown,) = grown_processes(series)
    assert (grown.before >> 20, grown.after >> 20, round(grown.seconds, 1)) == (2, 146, 1.6)


def test_who_had_loaded_is_not_who_grew_at_the_end(recorded: Recorded) -> None:
    recorded.process(100.0, 11, 3)
    recorded.process(104.4, 11, 147)  # importing torch; then a worker takes 350 MiB between two looks
    for number in range(45):
        recorded.job(100.0 + number / 10, 3 + number * 3.2)
    for number in range(20):
        recorded.job(104.5 + number / 20, 147 + number * 18)
    with recorded.open() as series:
        assert grown_processes(series) == ()


def test_who_loaded_half_a_minute_ago_and_breathes_is_not_who_grew_at_the_end(recorded: Recorded) -> None:
    """ "python grew from 2 MiB to 336 MiB in its last 27 s", of a training that a stranger's growth had ended."""
    for number in range(28):
        held = 2 + min(312, 80 * number) + (22 if number % 3 == 2 and number > 4 else 0)
        recorded.process(100.0 + number, 11, held)
        recorded.job(100.0 + number, held)
    with recorded.open() as series:
        assert grown_processes(series) == ()


def test_a_process_that_grew_less_than_the_rest_of_the_job_is_not_named(recorded: Recorded) -> None:
    for number in range(20):
        recorded.process(100.0 + number, 11, 10 + 2 * number)
        recorded.job(100.0 + number, 50 + 10 * number)  # of many small ones, none of them looked at
    with recorded.open() as series:
        assert grown_processes(series) == ()


def test_a_slow_leak_is_named_although_its_last_look_is_seconds_old(recorded: Recorded) -> None:
    for number in range(30):
        recorded.job(100.0 + number, 50 + 2 * number)
        if number % 4 == 1:
            recorded.process(100.0 + number, 11, 50 + 2 * number)
    with recorded.open() as series:
        (grown,) = grown_processes(series)
    assert grown.pid == 11


def test_other_jobs_with_what_they_held_and_how_fast_they_grew(recorded: Recorded) -> None:
    for number in range(10):
        recorded.job(1000.0 + number, 100)
        recorded.other(1000.0 + number, 31, 100 + 20 * number, start=5, swap=10)
        recorded.other(1000.0 + number, 32, 900, start=6, managed=1)
    recorded.other(1009.0, 33, 300, start=100_400)  # began 5 s before it was seen
    with recorded.open() as series:
        large, loader, new = other_jobs(series, 1009.0)
    assert (large.pid, large.managed, large.grew) == (32, True, 0)
    assert (loader.pid, new.pid) == (33, 31)
    assert new.grew == 180 * MIB and new.rate == pytest.approx(20 * MIB)
    assert other_text(new).endswith(
        "held 290 MiB (10 MiB of it in swap) and grew by 180 MiB in 9.0 s (20 MiB/s)"
    )
    assert loader.grew == 300 * MIB and loader.seconds == pytest.approx(5.0)


def test_another_job_beside_what_this_one_and_the_machine_did_meanwhile(recorded: Recorded) -> None:
    for number in range(20):
        recorded.job(1000.0 + number, 100 + 5 * number)
        recorded.host(1000.0 + number, 4000 - 30 * number)
        if number >= 10:
            recorded.other(1000.0 + number, 31, 100 + 20 * number, start=5)
    with recorded.open() as series:
        (other,) = other_jobs(series, 1019.0)
    assert (other.grew, other.job_grew, other.taken) == (180 * MIB, 45 * MIB, 270 * MIB)


def test_a_recording_of_before_knows_nobody_else(recorded: Recorded) -> None:
    recorded.job(1.0, 5)
    recorded.open()
    with sqlite3.connect(recorded.path) as connection:
        connection.execute("DROP TABLE other_job")
    connection.close()
    with open_recording(recorded.path).series() as series:
        assert other_jobs(series, None) == () and grown_processes(series) == ()

"""A sweep on disk: its log after a power cut, who drives it, how it is found; and the fold of its events."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from oomproof.errors import OomproofError
from oomproof.sweeps import sweep_folder
from oomproof.sweeps.sweep_trials import best_trial, fold

INFO = {"command": ["true"]}


def test_half_a_line_of_a_power_cut_costs_no_other() -> None:
    sweep = sweep_folder.create("a", INFO)
    sweep.record("asked", trial=1, values={"lr": "1"})
    with open(sweep.log_file, "ab") as file:
        file.write(b'{"event": "asked", "tri')
    sweep.mend()
    sweep.mend()
    sweep.record("asked", trial=2, values={"lr": "2"})
    assert list(sweep.log().trials) == [1, 2]


def test_what_is_damaged_is_left_out() -> None:
    events = [
        {"event": "asked", "trial": 1, "values": {"lr": 1}},
        {"event": "asked"},
        {"event": "starting", "trial": 9, "try": 1, "name": "x", "values": {}},
        {"event": "ended", "trial": 1, "try": 5, "outcome": "done"},
        {"event": "starting", "trial": 1, "try": 1, "name": "x", "values": {"lr": 1}},
        {"event": "ended", "trial": 1, "try": 1, "outcome": "magic"},
        {"event": "of a later version", "trial": 1},
        {"no": "event"},
    ]
    log = fold(events)
    assert list(log.trials) == [1] and log.trials[1].state == "running"
    ended = {
        "event": "ended",
        "trial": 1,
        "try": 1,
        "outcome": "done",
        "peak": "much",
        "metric": "low",
        "seconds": None,
    }
    log = fold([*events, ended])
    assert (
        log.trials[1].state == "done" and log.trials[1].metric is None and log.trials[1].tries[0].peak is None
    )


def test_one_drives_it_and_the_second_is_told_who() -> None:
    sweep = sweep_folder.create("a", INFO)
    lock = sweep.take()
    assert sweep.is_driven()
    with pytest.raises(OomproofError) as error:
        sweep.take()
    assert f"sweep a is run by pid {os.getpid()} since" in str(error.value)
    os.close(lock)
    assert not sweep.is_driven()
    sweep.stop_file.touch()
    os.close(sweep.take())
    assert not sweep.stop_file.exists(), "a request to stop is for whoever drove it then"


def test_names() -> None:
    sweep_folder.create("first", INFO)
    sweep_folder.create("second-abc", INFO)
    assert sweep_folder.find("first").name == "first" and sweep_folder.find("abc").name == "second-abc"
    with pytest.raises(OomproofError, match=r"no sweep is called 'frist'; did you mean 'first'\?"):
        sweep_folder.find("frist")
    with pytest.raises(OomproofError, match="there is a sweep first already"):
        sweep_folder.create("first", INFO)
    for name in ("a/b", "..", "", "-x", "resume", "a" * 65):
        with pytest.raises(OomproofError, match="cannot be a sweep's name"):
            sweep_folder.check_name(name)
    made = sweep_folder.new_name("my sweep: große Läufe/1")
    assert sweep_folder.check_name(made) == made


def test_of_several_that_are_begun_at_once_one_is() -> None:
    """The others would write their own token over the first one's, by which its runs are found again."""

    def begin(_: int) -> str:
        try:
            return sweep_folder.create("a", INFO).token
        except OomproofError:
            return ""

    with ThreadPoolExecutor(6) as threads:
        tokens = [token for token in threads.map(begin, range(6)) if token]
    assert tokens == [sweep_folder.find("a").token]


def test_one_that_was_killed_before_it_was_anything() -> None:
    (sweep_folder.sweeps_folder() / "a").mkdir(parents=True)
    assert sweep_folder.list_sweeps() == []
    assert sweep_folder.create("a", INFO).info()["command"] == ["true"]


def test_there_is_none() -> None:
    with pytest.raises(OomproofError, match="no sweeps yet"):
        sweep_folder.find(None)


def test_a_full_disk_stops_it_before_anything_is_started(small_disk: Path) -> None:
    sweep = sweep_folder.Sweep(small_disk)
    (small_disk / "ballast").write_bytes(b"x" * (1 << 20)) if _fits(small_disk) else None
    with pytest.raises(OomproofError, match="cannot write"):
        for number in range(10_000):
            sweep.record("asked", trial=number, values={"x": "y" * 1000})


def _fits(folder: Path) -> bool:
    facts = os.statvfs(folder)
    return facts.f_bavail * facts.f_frsize > 1 << 20


def test_a_file_of_another_version_or_damaged() -> None:
    sweep = sweep_folder.create("a", INFO)
    sweep.info_file.write_text(json.dumps({"schema": 9}))
    with pytest.raises(OomproofError, match="newer"):
        sweep.info()
    sweep.info_file.write_text("{")
    with pytest.raises(OomproofError, match="cannot be read"):
        sweep.info()


def test_the_best_and_metrics_that_are_no_numbers() -> None:
    events = []
    for number, metric in enumerate((0.5, "nan", 0.2, 0.2, None), 1):
        events += [
            {"event": "asked", "trial": number, "values": {}},
            {"event": "starting", "trial": number, "try": 1, "name": "x", "values": {}},
            {"event": "ended", "trial": number, "try": 1, "outcome": "done", "metric": metric},
        ]
    log = fold(events)
    assert str(log.trials[2].metric) == "nan"
    lowest, highest = best_trial(log, "minimize"), best_trial(log, "maximize")
    assert lowest is not None and lowest.number == 3 and highest is not None and highest.number == 1
    assert best_trial(fold([]), "minimize") is None

"""The expectations themselves: what counts as broken, and what a fault excuses. No process is started here."""

from __future__ import annotations

import signal
from typing import Any

import chaos_driver
import chaos_expect as expect
import chaos_plan as plan
import pytest
from chaos_expect import JobFacts, RoundFacts, judge
from chaos_plan import PlannedJob


def job(kind: str = "plain", faults: tuple[str, ...] = (), output: str = "pipe", **facts: Any) -> JobFacts:
    """A run that went well: finished with 0, and everybody says so."""
    planned = PlannedJob("j0", kind, output, steps=40, held=4, code=0, begin=0.0)
    good: dict[str, Any] = {
        "truth": expect.FINISHED, "code": 0, "status": 0, "lines": 40, "lines_seen": 40, "lines_logged": 40,
        "row": {"state": "ended", "code": 0}, "why": {"cause": "finished", "certainty": "proven"},
    }  # fmt: skip
    return JobFacts(planned, set(faults), **{**good, **facts})


def names(one: JobFacts, **facts: Any) -> set[str]:
    return {violation.name for violation in judge(RoundFacts([one], set(one.faults), **facts))}


def ended(cause: str, **facts: Any) -> dict[str, Any]:
    return {"code": None, "row": {"state": "ended", "code": None}, "why": {"cause": cause}, **facts}


def test_a_good_end_breaks_nothing() -> None:
    assert names(job()) == set()


@pytest.mark.parametrize(
    ("one", "broken"),
    [
        # the job itself
        (job(truth=expect.KILLED, **ended("killed-unknown", status=137)), {"job-lost", "verdict-wrong"}),
        (job(truth=expect.SIGNALLED, number=15, **ended("interrupted", status=143)), {"job-lost", "verdict-wrong"}),
        (job(truth=expect.FAILED, error="BrokenPipeError", **ended("other-error", status=1)), {"job-lost"}),
        (job(truth=expect.NEVER, row=None, why=None, status=125), {"job-lost"}),
        (job(truth=expect.ALIVE, paused=True, status=None), {"paused-for-good"}),
        (job(truth=expect.ALIVE, status=125), {"job-stuck", "status-wrong"}),
        # the guard
        (job(truth=expect.KILLED, acts=["kill"], **ended("stopped-by-guard", status=137)), {"innocent-killed"}),
        (job(truth=expect.SIGNALLED, number=15, acts=["term"], **ended("stopped-by-guard", status=143)), {"innocent-killed"}),
        (job(asked=True, acts=["request"], why={"cause": "stopped-by-guard"}), {"innocent-killed"}),
        (job("growing", truth=expect.KILLED, oom_killed=True, **ended("oom-kill-memcg", status=137)), {"shortage-not-acted"}),
        (job(reserved=False), {"reservation-lost"}),
        (job(reserved=False, said="Read-only file system: nothing is reserved for this run, another may start"), set()),
        (job("agent", (plan.DATAGRAMS,), heard_after=False), {"agent-deaf"}),
        # what is said
        (job(status=143), {"status-wrong"}),
        (job(front_left="hangs", status=None), {"front-hangs"}),
        (job(row={"state": "vanished", "code": None}), {"runs-wrong"}),
        (job(row={"state": "ended", "code": 3}), {"runs-wrong"}),
        (job(row=None), {"runs-wrong"}),
        (job(why={"cause": "oom-kill-memcg"}), {"verdict-wrong"}),
        (job(why={"cause": "guard-lost"}), {"verdict-wrong"}),
        (job(why=None, why_said="KeyError"), {"why-broken"}),
        (job(recording="damaged"), {"recording-unreadable"}),
        (job(recording="missing"), {"recording-unreadable"}),
        (job(lines_seen=39), {"output-lost"}),
        (job(lines_logged=39), {"output-lost"}),
        # to a file the job writes itself, whoever is killed
        (job(faults=(plan.BOTH_KILL,), output="file", truth=expect.FAILED, error="BrokenPipeError", front_left="killed",
             ended_unseen=True, status=None, row={"state": "vanished"}, why={"cause": "guard-lost"}), {"job-lost"}),
        (job(faults=(plan.BOTH_KILL,), output="file", lines_seen=39, front_left="killed", ended_unseen=True,
             status=None, row={"state": "vanished"}, why={"cause": "guard-lost"}), {"output-lost"}),
        (job(said='Traceback (most recent call last):\n  File "/src/oomproof/x.py"\nKeyError: 1'), {"traceback"}),
        (job(said="Traceback (most recent call last):\nOSError: Python could not start"), set()),
    ],
)  # fmt: skip
def test_without_an_excuse_it_is_broken(one: JobFacts, broken: set[str]) -> None:
    assert names(one) == broken


@pytest.mark.parametrize(
    "one",
    [
        # a user's wish is a reason
        job(faults=(plan.STOP,), truth=expect.SIGNALLED, number=15, **ended("stopped-by-user", status=143)),
        job(faults=(plan.FRONT_INT,), truth=expect.SIGNALLED, number=2, **ended("interrupted", status=130)),
        # so is growth
        job("growing", truth=expect.SIGNALLED, number=15, acts=["term"], **ended("stopped-by-guard", status=143)),
        job("growing", asked=True, acts=["request"], why={"cause": "stopped-by-guard"}),
        job("growing", asked=True, acts=["request"], why={"cause": "stopped-by-guard"}, status=75),
        # without its guard the kernel holds the limit, and the verdict says so
        job("growing", (plan.FRONT_KILL,), truth=expect.KILLED, oom_killed=True, front_left="killed",
            **ended("oom-kill-memcg", status=None)),
        # before the job runs the front may say no
        job(faults=(plan.FDS_AT_START,), truth=expect.NEVER, row=None, why=None, status=125),
        # with both killed nobody sees the end, and nobody reads what it prints
        job(faults=(plan.BOTH_KILL,), truth=expect.FAILED, error="BrokenPipeError", front_left="killed", ended_unseen=True,
            status=None, row={"state": "vanished"}, why={"cause": "guard-lost"}),
        job(faults=(plan.BOTH_KILL,), truth=expect.SIGNALLED, number=int(signal.SIGHUP), front_left="killed",
            ended_unseen=True, status=None, row={"state": "vanished"}, why={"cause": "guard-lost"}),
        # no folder, no history: but the status stays the job's
        job(faults=(plan.RUN_REMOVED,), row=None, why=None, recording="missing"),
        job(faults=(plan.DISK_FULL,), recording="missing", lines_logged=3),
    ],
)  # fmt: skip
def test_what_a_fault_excuses(one: JobFacts) -> None:
    assert names(one) == set()


def test_an_excuse_is_no_blank_cheque() -> None:
    assert names(job(faults=(plan.RUN_REMOVED,), row=None, why=None, status=125)) == {"status-wrong"}
    assert names(
        job(faults=(plan.FRONT_KILL,), truth=expect.KILLED, **ended("killed-unknown", status=137))
    ) == {
        "job-lost",
        "verdict-wrong",
    }
    late = job(faults=(plan.FRONT_TERM,), status=143)
    assert names(late) == {"status-wrong"}, "a signal after the end does not replace the job's status"
    keeper = job(faults=(plan.KEEPER_KILL,), truth=expect.KILLED, **ended("guard-lost", status=125))
    assert "job-lost" in names(keeper), "killing the keeper is no reason for a job to die"


def test_what_is_left_behind() -> None:
    left = {"cgroups": ["a"], "files": ["b"], "reservations": ["c"], "processes": ["d"]}
    assert names(job(), **left) == {"cgroup-left", "file-left", "reservation-left", "process-left"}
    assert names(job(), runs_said="x", next_run="y", trouble="z") == {
        "runs-broken",
        "next-run-blocked",
        "driver-failed",
    }


def test_every_name_has_a_column_of_the_table() -> None:
    columns = (expect.LOST, expect.INNOCENT, expect.UNREADABLE, expect.WRONG, expect.LEFT, expect.BLIND)
    known = set().union(*columns)
    assert len(known) == sum(map(len, columns)), "a name counts once"


def test_plans_are_the_same_for_a_seed_and_make_sense() -> None:
    for seed in range(300):
        drawn = plan.draw(seed)
        assert drawn == plan.draw(seed)
        assert drawn.jobs and drawn.faults
        for one in drawn.jobs:
            assert not (one.need and one.limit) or one.need <= one.limit, "the front would refuse it"
        for fault in drawn.faults:
            assert fault.job < len(drawn.jobs)
            assert hasattr(chaos_driver.Round, "_" + fault.kind.replace("-", "_"))


def test_only_the_faults_that_were_asked_for() -> None:
    assert [fault.kind for fault in plan.draw(5, (plan.STOP, plan.HOG)).faults] == [plan.STOP, plan.HOG]


def test_a_journal_tells_the_end(tmp_path: Any) -> None:
    path = tmp_path / "journal"
    path.write_text("start 7 6\npid 8\nstep 0 1 4\nstep 1 2 10\n")
    found = chaos_driver.read_journal(path)
    assert (found.pid, found.parent, found.workers, found.lines, found.peak, found.over) == (
        7,
        6,
        [8],
        2,
        10,
        False,
    )
    path.write_text("start 7 6\nsignal 15\n")
    assert chaos_driver.read_journal(path).number == 15
    path.write_text("start 7 6\nstep 0 1 4\nasked\ndone 3 1\n")
    found = chaos_driver.read_journal(path)
    assert (found.code, found.asked, found.over) == (3, True, True)
    assert not chaos_driver.read_journal(tmp_path / "none").pid

"""Each way to end, from a folder on disk to the verdict; and the decoys that must not be taken for it."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from pathlib import Path
from signal import SIGABRT, SIGBUS, SIGINT, SIGKILL, SIGSEGV, SIGTERM
from typing import Any

import pytest
from helpers_case import (
    CGROUP,
    END,
    GIB,
    LEADER,
    MACHINE_KILL,
    MIB,
    OTHER_BOOT,
    OWN_KILL,
    START,
    WALL,
    Attempt,
    changed,
    kernel,
)

from oomproof.causes import CAUSES
from oomproof.diagnosis import conclusion
from oomproof.diagnosis.judge import judge
from oomproof.diagnosis.verdict import Verdict
from oomproof.evidence import case_collector as collect_module
from oomproof.evidence.agent_files import AgentMessage
from oomproof.evidence.case_file import CaseFile, Counters, Evidence, ExitStatus, KernelKill
from oomproof.recording import state_files
from oomproof.recording.run_folders import Run, runs_folder
from oomproof.reports.verdict_blocks import long_form
from oomproof.units import format_zone


@pytest.fixture
def attempt(tmp_path: Path) -> Attempt:
    return Attempt(tmp_path)


def check(verdict: Verdict, cause: str, certainty: str) -> Verdict:
    assert (verdict.cause, verdict.certainty) == (cause, certainty), verdict.headline
    assert sum(each.probability for each in verdict.causes) == pytest.approx(1.0, abs=1e-9)
    assert all(each.cause in CAUSES for each in verdict.causes)
    known = {each.id for each in verdict.evidence}
    assert all(id in known for each in verdict.causes for id in each.evidence)
    assert verdict.headline and verdict.why and verdict.next
    assert "total-vm" not in verdict.headline + verdict.why
    return verdict


# -- ends that are no crash


def test_finished(attempt: Attempt) -> None:
    verdict = check(attempt.verdict(), "finished", "proven")
    assert verdict.headline == "finished" and verdict.phase == "train" and verdict.step == 117


def test_slowed_by_its_limit(attempt: Attempt) -> None:
    attempt.run["settings"]["limit"] = 400 * MIB
    text = "slowed by its limit of 400 MiB: read 9.0 GiB back from disk; raise --limit to about 500M"
    case = changed(attempt.case(), told=(AgentMessage(END - 2, "page-cache", text),))
    verdict = judge(case)
    assert verdict.headline == "finished" and verdict.all_well and verdict.why.endswith(f"; {text}")
    assert (
        verdict.next.startswith("to run it at full speed: oomproof run")
        and "--limit 500M -- " in verdict.next
    )
    full = changed(case, told=(AgentMessage(END - 2, "page-cache", "slowed by a full machine: held 2 GiB"),))
    assert judge(full).next == "nothing to do" and "slowed by a full machine" in judge(full).why
    died = changed(
        case,
        status=ExitStatus(None, SIGKILL),
        at_death=Counters(memcg_oom_kill=1),
        at_start=Counters(memcg_oom_kill=0),
    )
    assert "slowed" not in judge(died).why, "that it died of memory is the news"


def test_finished_although_a_worker_was_oom_killed(attempt: Attempt) -> None:
    attempt.ended(code=0, memcg_oom_kill=1, memcg_oom=1, vmstat_oom_kill=8)
    attempt.kernel_lines = kernel(OWN_KILL, pid=4100)
    verdict = check(attempt.verdict(), "finished", "proven")
    assert "killed 1 of its processes for memory" in verdict.headline


def test_words_of_memory_in_a_clean_run_mean_nothing(attempt: Attempt) -> None:
    attempt.output = b"RuntimeError: CUDA out of memory. (caught, retrying)\nKilled process 4067\n"
    check(attempt.verdict(), "finished", "proven")


def test_still_running(attempt: Attempt) -> None:
    attempt.exit = {}
    attempt.keeper_lives()
    assert check(attempt.verdict(), "not-a-crash", "proven").headline == "still running"


def test_one_that_runs_lacks_no_end(attempt: Attempt) -> None:
    attempt.exit = {}
    attempt.keeper_lives()
    verdict = attempt.verdict()
    assert "exit.json" not in [gap.source for gap in verdict.missing]
    assert "oomproof watch r1" in verdict.next, "nobody holds its guard.lock"
    guard = state_files.take_lock(attempt.dir.parent / "guard.lock")
    assert guard is not None
    verdict = attempt.verdict()
    assert verdict.next == "oomproof logs -f r1 follows it; oomproof wait r1 waits for its end"
    assert "keeper" not in verdict.why
    os.close(guard)


def test_python_that_finds_no_script_is_certain(attempt: Attempt) -> None:
    attempt.ended(code=2)
    line = b"/usr/bin/python3: can't open file '/x/nosuch.py': [Errno 2] No such file or directory\n"
    attempt.output = line
    verdict = check(attempt.verdict(), "other-error", "proven")
    assert verdict.headline == "python could not open '/x/nosuch.py'"
    assert "traceback" not in verdict.next and "check the name" in verdict.next
    attempt.output = line + b"step 1\n"
    attempt.ended(code=1)
    assert attempt.verdict().certainty != "proven", "a script went on behind it"


def test_an_exit_code_alone_is_not_called_certain(attempt: Attempt) -> None:
    attempt.ended(code=1)
    verdict = check(attempt.verdict(), "other-error", "likely")
    assert "%" not in long_form(verdict).split("Evidence")[0]


def test_one_that_waits_says_for_what(attempt: Attempt) -> None:
    attempt.exit, attempt.started = {}, {}
    lock = state_files.take_lock(attempt.dir.parent / "waiting.lock")
    assert lock is not None
    reasons = ["needs 12.0 GiB; 9.0 GiB available: short by 3.0 GiB", "in the way: big holds 11.0 GiB"]
    state_files.write_json(attempt.dir.parent / "waiting.json", {"reasons": reasons})
    verdict = check(attempt.verdict(), "not-a-crash", "proven")
    assert verdict.headline == "waiting for 12.0 GiB; it was not started yet"
    assert "big holds 11.0 GiB" in verdict.why and "oomproof stop r1" in verdict.next
    assert not verdict.missing
    os.close(lock)


# -- the kernel's OOM killer


def test_own_limit_by_log_and_counter(attempt: Attempt) -> None:
    attempt.ended(signal=SIGKILL, memcg_oom_kill=1, memcg_oom=1, vmstat_oom_kill=8)
    attempt.kernel_lines = kernel(OWN_KILL)
    attempt.samples = []
    attempt.sample(used=7 * GIB)
    verdict = check(attempt.verdict(), "oom-kill-memcg", "proven")
    assert "the job's own limit of 8.0 GiB was full" in verdict.headline
    assert "holding 7.7 GiB" in verdict.headline  # anon-rss, not the 95 GiB of total-vm
    assert verdict.victim is not None and verdict.victim.pid == LEADER
    assert verdict.next.startswith("oomproof run --limit 10G -- python train.py")
    assert verdict.kills[0].cause == "oom-kill-memcg"


def test_own_limit_by_counters_alone(attempt: Attempt) -> None:
    attempt.ended(signal=SIGKILL, memcg_oom_kill=1, memcg_oom=1, vmstat_oom_kill=8)
    attempt.kernel_lines = None
    verdict = check(attempt.verdict(), "oom-kill-memcg", "proven")
    assert "8.0 GiB" in verdict.headline
    assert any("kmsg" in gap.reason and gap.how_to_grant for gap in verdict.missing)


def test_own_limit_on_cgroup_v1(attempt: Attempt) -> None:
    attempt.started["counters"] = attempt.counters(memcg_oom=None, memcg_failcnt=0)
    attempt.ended(signal=SIGKILL, memcg_oom_kill=1, memcg_oom=None, memcg_failcnt=57, vmstat_oom_kill=8)
    attempt.kernel_lines = None
    check(attempt.verdict(), "oom-kill-memcg", "proven")


def test_v1_with_the_machine_short_too_is_not_proven(attempt: Attempt) -> None:
    attempt.started["counters"] = attempt.counters(memcg_oom=None, memcg_failcnt=0)
    attempt.ended(signal=SIGKILL, memcg_oom_kill=1, memcg_oom=None, memcg_failcnt=3, vmstat_oom_kill=8)
    attempt.sample(available=300 * MIB)
    attempt.kernel_lines = None
    verdict = check(attempt.verdict(), "oom-kill-memcg", "likely")
    assert [each.cause for each in verdict.causes] == ["oom-kill-memcg", "oom-kill-global"]


def test_no_room_for_a_higher_limit(attempt: Attempt) -> None:
    attempt.ended(signal=SIGKILL, memcg_oom_kill=1, memcg_oom=1, vmstat_oom_kill=8)
    attempt.sample(available=5 * GIB)  # 4 GiB of it is margin
    verdict = check(attempt.verdict(), "oom-kill-memcg", "proven")
    assert "no memory for" in verdict.next and "--need 10G --limit 10G" in verdict.next, "it waits for others"
    attempt.samples = []  # and without a sample nothing is said about room
    assert "no memory for" not in check(attempt.verdict(), "oom-kill-memcg", "proven").next


def test_a_limit_above_the_jobs_own(attempt: Attempt) -> None:
    attempt.ended(signal=SIGKILL, memcg_oom_kill=1, memcg_oom=0, vmstat_oom_kill=8)
    lines = [line.replace("oom_memcg={cgroup}", "oom_memcg=/user.slice") for line in OWN_KILL]
    attempt.kernel_lines = kernel(lines)
    verdict = check(attempt.verdict(), "oom-kill-memcg", "proven")
    assert "/user.slice" in verdict.headline and "not the job's own" in verdict.headline


def test_the_whole_machine(attempt: Attempt) -> None:
    # the job's own oom_kill counter moves here too: it must not be taken for the job's limit
    attempt.ended(signal=SIGKILL, memcg_oom_kill=1, memcg_oom=0, vmstat_oom_kill=8)
    attempt.sample(available=200 * MIB)
    attempt.kernel_lines = kernel(MACHINE_KILL)
    verdict = check(attempt.verdict(), "oom-kill-global", "proven")
    assert "whole machine" in verdict.headline


def test_the_whole_machine_without_a_log_is_likely_at_most(attempt: Attempt) -> None:
    attempt.ended(signal=SIGKILL, memcg_oom_kill=1, memcg_oom=0, vmstat_oom_kill=8)
    attempt.sample(available=200 * MIB)
    attempt.kernel_lines = None
    check(attempt.verdict(), "oom-kill-global", "likely")


@pytest.mark.parametrize("counted", [1, None])
def test_a_full_container_without_a_log_is_no_whole_machine(attempt: Attempt, counted: int | None) -> None:
    """Found where the kernel's log is closed: what the guard had in view was the container's limit, and that was full."""
    if counted is None:
        attempt.started["counters"] = attempt.counters(memcg_oom_kill=None, memcg_oom=None)
    attempt.ended(signal=SIGKILL, memcg_oom_kill=counted, memcg_oom=counted and 0, vmstat_oom_kill=8)
    attempt.sample(available=20 * MIB)
    attempt.kernel_lines = None
    (attempt.proc / "meminfo").write_text(f"MemTotal: {1 << 30} kB\n")
    assert "a cgroup above the job" in check(attempt.verdict(), "oom-kill-memcg", "likely").headline


def test_vmstat_alone_with_short_memory(attempt: Attempt) -> None:
    attempt.started["counters"] = attempt.counters(memcg_oom_kill=None, memcg_oom=None)
    attempt.ended(signal=SIGKILL, memcg_oom_kill=None, memcg_oom=None, vmstat_oom_kill=8)
    attempt.sample(available=200 * MIB)
    attempt.kernel_lines = None
    check(attempt.verdict(), "oom-kill-global", "likely")


def test_vmstat_alone_with_ample_memory_is_no_oom(attempt: Attempt) -> None:
    attempt.started["counters"] = attempt.counters(memcg_oom_kill=None, memcg_oom=None)
    attempt.ended(signal=SIGKILL, memcg_oom_kill=None, memcg_oom=None, vmstat_oom_kill=8)
    attempt.kernel_lines = None
    check(attempt.verdict(), "killed-unknown", "possible")


def test_a_kernel_kill_of_somebody_else_is_not_ours(attempt: Attempt) -> None:
    attempt.ended(signal=SIGKILL, vmstat_oom_kill=8)
    attempt.kernel_lines = kernel(MACHINE_KILL, pid=31337, cgroup="/other")
    verdict = check(attempt.verdict(), "killed-unknown", "likely")
    assert verdict.headline == "killed by somebody else, not for memory"
    assert "which is not of this job" in verdict.why


def test_our_pid_used_again_by_another_is_not_ours(attempt: Attempt) -> None:
    attempt.ended(code=1, vmstat_oom_kill=8)
    attempt.processes = [(LEADER, "main", "python3")]
    attempt.output = b'Traceback (most recent call last):\n  File "t", line 1\nValueError: x\n'
    attempt.kernel_lines = kernel(MACHINE_KILL, pid=4100, cgroup="/other")
    check(attempt.verdict(), "other-error", "proven")


def test_in_a_container_only_the_cgroup_counts(attempt: Attempt) -> None:
    attempt.namespace("pid:[4026532999]")
    attempt.ended(signal=SIGKILL, memcg_oom_kill=1, memcg_oom=1, vmstat_oom_kill=8)
    attempt.kernel_lines = kernel(OWN_KILL, pid=987654, cgroup="/docker/abc" + CGROUP)
    verdict = check(attempt.verdict(), "oom-kill-memcg", "proven")
    assert verdict.victim is not None and verdict.victim.pid == 987654
    assert any(gap.source == "pids in the kernel log" for gap in verdict.missing)


def test_a_worker_killed_and_the_parent_raising(attempt: Attempt) -> None:
    attempt.ended(code=1, memcg_oom_kill=1, memcg_oom=1, vmstat_oom_kill=8)
    attempt.output = (
        b'Traceback (most recent call last):\n  File "t", line 1, in <module>\n'
        b"RuntimeError: DataLoader worker (pid 4100) is killed by signal: Killed. \n"
    )
    attempt.kernel_lines = kernel(OWN_KILL, pid=4100)
    verdict = check(attempt.verdict(), "oom-kill-memcg", "proven")
    assert "a process of the job (python3, pid 4100)" in verdict.headline


def test_a_worker_killed_long_before_an_unrelated_error(attempt: Attempt) -> None:
    attempt.ended(code=1, memcg_oom_kill=1, memcg_oom=1, vmstat_oom_kill=8)
    attempt.output = b"Traceback (most recent call last):\n  File \"t\", line 1\nKeyError: 'loss'\n"
    verdict = check(attempt.verdict(), "other-error", "proven")
    assert "oom-kill-memcg" in [each.cause for each in verdict.causes]


def test_through_a_shell(attempt: Attempt) -> None:
    attempt.ended(code=137, memcg_oom_kill=1, memcg_oom=1, vmstat_oom_kill=8)
    verdict = check(attempt.verdict(), "oom-kill-memcg", "proven")
    assert "which a shell gives for SIGKILL" in verdict.why


def test_the_kill_of_the_attempt_before_is_not_ours(attempt: Attempt) -> None:
    """A retry may get a cgroup of the same name a second later."""
    attempt.ended(signal=SIGKILL)
    attempt.kernel_lines = kernel(OWN_KILL, at=START - 1.0, pid=4000)
    assert check(attempt.verdict(), "killed-unknown", "likely").kills == ()
    attempt.ended(signal=SIGKILL, vmstat_oom_kill=8)
    check(attempt.verdict(), "killed-unknown", "likely")


def test_only_this_jobs_kills_stand_in_its_verdict(attempt: Attempt) -> None:
    attempt.ended(signal=SIGKILL, memcg_oom_kill=1, memcg_oom=1, vmstat_oom_kill=9)
    others = kernel(MACHINE_KILL, at=END - 1, pid=77, cgroup="/other")
    attempt.kernel_lines = [*others, *kernel(OWN_KILL, at=END - 0.05, pid=4000)]
    verdict = check(attempt.verdict(), "oom-kill-memcg", "proven")
    assert [kill.victim.pid for kill in verdict.kills] == [4000]
    # memory was short for others too: that is evidence; what was killed an hour before is none
    assert any(item.id.startswith("kernel.other") for item in verdict.evidence)
    kills = tuple(KernelKill(at, 77, "chrome") for at in (END - 3600, END - 10))
    assert changed(CaseFile(), started=END, other_kills=kills).kills_beside == kills[1:]


# -- ours, or somebody's


def test_sigkill_from_somebody_else(attempt: Attempt) -> None:
    attempt.ended(signal=SIGKILL)
    verdict = check(attempt.verdict(), "killed-unknown", "likely")
    assert verdict.headline == "killed by somebody else, not for memory"
    assert not any(each.cause.startswith("oom") for each in verdict.causes)


def test_exit_137_of_a_shell_says_so_with_less_certainty(attempt: Attempt) -> None:
    attempt.ended(code=137)
    verdict = check(attempt.verdict(), "killed-unknown", "possible")
    assert "which a shell gives for SIGKILL" in verdict.why


def test_sigkill_with_memory_short_and_counters_flat(attempt: Attempt) -> None:
    attempt.ended(signal=SIGKILL)
    attempt.sample(available=300 * MIB)
    verdict = check(attempt.verdict(), "killed-unknown", "possible")
    assert "not for memory" not in verdict.headline
    assert {"earlyoom", "systemd-oomd"} <= {each.cause for each in verdict.causes}


def test_sigkill_without_any_samples(attempt: Attempt) -> None:
    attempt.ended(signal=SIGKILL)
    attempt.samples = []
    verdict = check(attempt.verdict(), "killed-unknown", "possible")
    assert "not for memory" not in verdict.headline


def test_fast_growth_after_the_last_sample_is_not_ample(attempt: Attempt) -> None:
    attempt.ended(signal=SIGKILL)
    attempt.samples = []
    attempt.sample(available=6 * GIB)
    for index, each in enumerate(attempt.samples):
        each["used"] = index * 3 * GIB
        each["headroom"] = None
    verdict = attempt.verdict()
    assert verdict.cause == "killed-unknown" and "not for memory" not in verdict.headline


def test_systemd_oomd_by_its_mark(attempt: Attempt) -> None:
    attempt.started["counters"] = attempt.counters(oomd_kill=0)
    attempt.ended(signal=SIGKILL, oomd_kill=2)
    check(attempt.verdict(), "systemd-oomd", "proven")


def test_sigterm_from_somebody_else(attempt: Attempt) -> None:
    attempt.ended(signal=SIGTERM)
    verdict = check(attempt.verdict(), "interrupted", "likely")
    assert verdict.headline == "ended by SIGTERM from somebody else, not for memory"


@pytest.mark.parametrize(("action", "signal"), [("term", SIGTERM), ("kill", SIGKILL)])
def test_stopped_by_the_guard(attempt: Attempt, action: str, signal: int) -> None:
    attempt.ended(signal=signal)
    attempt.act("warn", before=20)
    attempt.act(action)
    verdict = check(attempt.verdict(), "stopped-by-guard", "proven")
    assert "full in 3 s" in verdict.why


def test_a_kill_that_met_a_job_dying_of_sigterm_is_not_what_ended_it(attempt: Attempt) -> None:
    attempt.ended(signal=SIGTERM)
    attempt.act("term", before=0.05, why="the job held 291 MiB of its limit of 300 MiB", scope="limit")
    attempt.act("kill", before=0.01, why="the job held 255 MiB of its limit of 300 MiB", scope="limit")
    verdict = check(attempt.verdict(), "stopped-by-guard", "proven")
    assert verdict.headline.endswith("ended with SIGTERM")
    assert "291 MiB" in verdict.why and "255 MiB" not in verdict.why


@pytest.mark.parametrize(
    ("code", "before"), [(3, "sent SIGTERM, and it exited with code 3"), (137, "killed with SIGKILL")]
)
def test_the_headline_says_how_the_job_itself_ended(attempt: Attempt, code: int, before: str) -> None:
    attempt.ended(code=code)
    attempt.act("term", before=2)
    attempt.act("kill", before=0.1)
    assert before in check(attempt.verdict(), "stopped-by-guard", "proven").headline


def test_asked_by_the_guard_and_it_ended(attempt: Attempt) -> None:
    attempt.run["settings"]["grace"] = 30
    attempt.act("request", before=34)
    verdict = check(attempt.verdict(), "stopped-by-guard", "likely")  # train.py is not there to be asked
    assert verdict.headline.endswith("asked to save and stop, and it ended")


def test_after_its_time_to_save_an_end_is_no_answer_of_a_job_nobody_knows(attempt: Attempt) -> None:
    attempt.run["settings"]["grace"] = 30
    attempt.act("request", before=36)
    check(attempt.verdict(), "finished", "proven")


def test_asked_long_ago_and_finished_is_finished(attempt: Attempt) -> None:
    attempt.act("request", before=5000)
    check(attempt.verdict(), "finished", "proven")


def test_asked_and_no_longer_asked_is_finished(attempt: Attempt) -> None:
    attempt.act("request", before=40)
    attempt.act("withdraw", before=20)
    check(attempt.verdict(), "finished", "proven")


def test_a_pause_is_told_and_is_no_end(attempt: Attempt) -> None:
    attempt.act("pause", before=60)
    attempt.act("resume", before=20)
    assert "paused for 40 s" in check(attempt.verdict(), "finished", "proven").why


def test_a_pause_is_no_hang(attempt: Attempt) -> None:
    attempt.exit = {}
    attempt.keeper_lives()
    attempt.act("pause", before=60)
    verdict = check(attempt.verdict(), "not-a-crash", "proven")
    assert "paused" in verdict.headline and "oomproof resume" in verdict.next
    attempt.act("resume", before=20)
    assert check(attempt.verdict(), "not-a-crash", "proven").headline == "still running"


@pytest.mark.parametrize(("by", "by_itself"), [("guard", True), ("user", False)])
def test_only_what_a_guard_paused_resumes_by_itself(attempt: Attempt, by: str, by_itself: bool) -> None:
    attempt.exit = {}
    attempt.keeper_lives()
    attempt.act("pause", by=by, before=60)
    headline = attempt.verdict().headline
    assert ("it resumes when memory is available" in headline) is by_itself
    assert ("it stays paused until oomproof resume" in headline) is not by_itself


def test_ended_after_a_pause_is_the_guards_doing(attempt: Attempt) -> None:
    attempt.ended(signal=15)
    attempt.act("pause", before=60)
    attempt.act("term", before=1)
    check(attempt.verdict(), "stopped-by-guard", "proven")


def test_a_warning_stops_nobody(attempt: Attempt) -> None:
    attempt.ended(signal=SIGKILL)
    attempt.act("warn")
    check(attempt.verdict(), "killed-unknown", "likely")


def test_term_answered_by_a_traceback_is_still_ours(attempt: Attempt) -> None:
    attempt.ended(code=1)
    attempt.act("term")
    attempt.output = b'Traceback (most recent call last):\n  File "t", line 1\nRuntimeError: shutting down\n'
    check(attempt.verdict(), "stopped-by-guard", "proven")


def test_asked_and_then_an_error_of_its_own(attempt: Attempt) -> None:
    attempt.ended(code=1)
    attempt.act("request", before=20)
    attempt.output = (
        b'Traceback (most recent call last):\n  File "t", line 1\nOSError: [Errno 28] No space left\n'
    )
    verdict = check(attempt.verdict(), "disk-full", "proven")
    assert verdict.causes[1].cause == "stopped-by-guard"


def test_guard_and_kernel_both_the_counter_decides(attempt: Attempt) -> None:
    attempt.ended(signal=SIGKILL, memcg_oom_kill=1, memcg_oom=1, vmstat_oom_kill=8)
    attempt.act("term", before=1)
    verdict = check(attempt.verdict(), "oom-kill-memcg", "proven")
    assert "the guard had sent term as well" in verdict.why


def test_stopped_by_the_user(attempt: Attempt) -> None:
    attempt.ended(signal=SIGTERM)
    attempt.act("term", by="user", why="")
    check(attempt.verdict(), "stopped-by-user", "proven")


@pytest.mark.parametrize(("action", "facts"), [("kill", {}), ("term", {"sigterm_uncaught": True})])
def test_a_finished_job_stays_finished_though_a_stop_was_on_its_way(
    attempt: Attempt, action: str, facts: dict[str, Any]
) -> None:
    attempt.act(action, by="user", before=0.01, why="oomproof stop")
    attempt.actions[-1]["facts"] = facts
    attempt.ended(code=0)
    check(attempt.verdict(), "finished", "proven")
    attempt.ended(signal=SIGTERM if facts else SIGKILL)
    check(attempt.verdict(), "stopped-by-user", "proven")


def test_a_job_that_handles_sigterm_may_have_been_at_its_end_anyhow(attempt: Attempt) -> None:
    attempt.act("term", by="user", why="oomproof stop")
    attempt.ended(code=0)
    check(attempt.verdict(), "stopped-by-user", "likely")


def test_the_keeper_was_asked_to_end(attempt: Attempt) -> None:
    attempt.ended(signal=SIGTERM)
    attempt.keeper_events = [{"boottime": END - 3, "event": "sigterm"}]
    verdict = attempt.verdict()
    assert verdict.cause == "stopped-by-user" and "keeper" in verdict.headline


def test_ctrl_c(attempt: Attempt) -> None:
    attempt.ended(signal=SIGINT)
    check(attempt.verdict(), "interrupted", "proven")


# -- crashes that are not memory


def test_segfault_with_the_kernels_line(attempt: Attempt) -> None:
    attempt.ended(signal=SIGSEGV)
    line = (
        f"python3[{LEADER}]: segfault at 0 ip 00007fa621985ad8 sp 00007ffdc82f2c88 error 4 in "
        "libc.so.6[167ad8,7fa621844000+156000] likely on CPU 1 (core 1, socket 0)"
    )
    attempt.kernel_lines = kernel([line])
    verdict = check(attempt.verdict(), "segfault", "proven")
    assert "libc.so.6" in verdict.headline and "null pointer" in verdict.why
    assert "PYTHONFAULTHANDLER=1" in verdict.next


def test_segfault_through_a_shell(attempt: Attempt) -> None:
    attempt.ended(code=139)
    check(attempt.verdict(), "segfault", "likely")


def test_general_protection_fault(attempt: Attempt) -> None:
    attempt.ended(signal=SIGSEGV)
    attempt.kernel_lines = kernel(
        [f"traps: python3[{LEADER}] general protection fault ip:7f sp:7f error:0 in a.so[7f+1]"]
    )
    check(attempt.verdict(), "gpf", "proven")


@pytest.mark.parametrize(
    ("output", "cause"),
    [
        (
            b"terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc\n",
            "bad-alloc",
        ),
        (b"a.out: a.c:3: main: Assertion `x == 1' failed.\n", "assert"),
        (b"free(): double free detected in tcache 2\n", "abort"),
        (b"epoch 3\n", "abort"),
    ],
)
def test_abort(attempt: Attempt, output: bytes, cause: str) -> None:
    attempt.ended(signal=SIGABRT)
    attempt.output = output
    check(attempt.verdict(), cause, "proven")


def test_bus_error_with_shm_full(attempt: Attempt) -> None:
    attempt.ended(signal=SIGBUS)  # exit.json already sees /dev/shm empty again: the job's pages are gone
    attempt.sample(shm_free=2 * MIB)
    verdict = check(attempt.verdict(), "shm-exhausted", "proven")
    assert "2 MiB of 16.0 GiB free" in verdict.headline
    assert "half of num_workers" in verdict.next  # 16 GiB is half of this machine's RAM already


def test_bus_error_with_the_small_shm_of_a_container(attempt: Attempt) -> None:
    attempt.ended(signal=SIGBUS)
    attempt.exit["shm"] = {"total": 64 * MIB, "free": 0}
    verdict = check(attempt.verdict(), "shm-exhausted", "proven")
    assert "--shm-size=2048M" in verdict.next


def test_bus_error_with_room_in_shm(attempt: Attempt) -> None:
    attempt.ended(signal=SIGBUS)
    check(attempt.verdict(), "bus-error", "proven")


def test_bus_error_of_a_worker_in_the_parents_words(attempt: Attempt) -> None:
    attempt.ended(code=1)
    attempt.output = (
        b"ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory"
        b" (shm).\n"
        b'Traceback (most recent call last):\n  File "t", line 1\n'
        b"RuntimeError: DataLoader worker (pid 4100) is killed by signal: Bus error. It is possible\n"
    )
    check(attempt.verdict(), "shm-exhausted", "likely")


def test_the_stack_that_faulthandler_printed_is_shown_by_a_command(attempt: Attempt) -> None:
    attempt.ended(signal=11)
    attempt.output = (
        b"Fatal Python error: Segmentation fault\n\nCurrent thread 0x00007f5a9720fb80 (most recent call first):\n"
        b'  File "train.py", line 3 in look\n'
    )
    verdict = check(attempt.verdict(), "segfault", "proven")
    assert verdict.next == "read the Python stack that faulthandler printed: oomproof logs r1 | tail -n 40"


# -- nobody saw it


def test_machine_went_down(attempt: Attempt) -> None:
    attempt.exit = {}
    attempt.boot(OTHER_BOOT)
    attempt.sample(available=100 * MIB)
    verdict = check(attempt.verdict(), "machine-down", "proven")
    assert "without a shutdown" in verdict.headline and "memory was nearly gone" in verdict.headline
    assert "others held 27.9 GiB" in verdict.next
    assert "exit.json" not in [gap.source for gap in verdict.missing], "nobody lived to write it"


def test_machine_went_down_with_memory_to_spare(attempt: Attempt) -> None:
    attempt.exit = {}
    attempt.boot(OTHER_BOOT)
    attempt.write_wtmp((2, "reboot", WALL), (2, "reboot", WALL + END + 60))
    verdict = check(attempt.verdict(), "machine-down", "proven")
    assert "memory" not in verdict.headline


def test_orderly_shutdown_by_wtmp(attempt: Attempt) -> None:
    attempt.exit = {}
    attempt.boot(OTHER_BOOT)
    attempt.write_wtmp((2, "reboot", WALL), (1, "shutdown", WALL + END + 3), (2, "reboot", WALL + END + 60))
    assert "in order" in check(attempt.verdict(), "machine-down", "proven").headline


def test_orderly_shutdown_by_the_keepers_word(attempt: Attempt) -> None:
    attempt.exit = {}
    attempt.boot(OTHER_BOOT)
    attempt.keeper_events = [{"boottime": END - 1, "event": "sigterm"}]
    assert "in order" in check(attempt.verdict(), "machine-down", "proven").headline


def test_a_shutdown_of_a_later_boot_is_not_this_one(attempt: Attempt) -> None:
    attempt.exit = {}
    attempt.boot(OTHER_BOOT)
    attempt.write_wtmp((2, "reboot", WALL + END + 60), (1, "shutdown", WALL + END + 9000))
    assert "without a shutdown" in check(attempt.verdict(), "machine-down", "proven").headline


def local(wall: float) -> str:
    return time.strftime("%T", time.localtime(wall))


@pytest.mark.parametrize("known_by", ["wtmp", "the present boot"])
def test_when_the_machine_went_down(attempt: Attempt, known_by: str) -> None:
    attempt.exit = {}
    attempt.boot(OTHER_BOOT)
    if known_by == "wtmp":
        attempt.write_wtmp((2, "reboot", WALL + END + 60))
    else:
        (attempt.proc / "stat").write_text(f"cpu 1 2\nbtime {WALL + END + 60:.0f}\n")
    verdict = check(attempt.verdict(), "machine-down", "proven")
    last, boot = local(WALL + END - 1), f"{local(WALL + END + 60)} {format_zone(WALL)}"
    assert f"between {last} (last sample) and {boot} (next boot), without a shutdown" in verdict.headline
    assert "20.0 GiB of 32.0 GiB was available, no swap, the job held 4.0 GiB" in verdict.why
    assert ("wtmp.boot" in {each.id for each in verdict.evidence}) == (known_by == "wtmp")


@pytest.mark.parametrize(("said", "cause"), [("stopping", "machine-down"), ("running", "interrupted")])
def test_told_to_end_while_systemd_stops_the_machine(
    attempt: Attempt, monkeypatch: pytest.MonkeyPatch, said: str, cause: str
) -> None:
    attempt.ended(signal=SIGTERM)
    monkeypatch.setattr(collect_module, "boottime", lambda: END + 2)
    monkeypatch.setattr(collect_module.systemd_manager, "is_shutting_down", lambda _: said == "stopping")
    check(attempt.verdict(), cause, "proven" if said == "stopping" else "likely")


def test_a_kernel_kill_while_the_machine_stops_stays_one(
    attempt: Attempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt.ended(signal=SIGKILL, memcg_oom_kill=1, memcg_oom=1, vmstat_oom_kill=8)
    monkeypatch.setattr(collect_module, "boottime", lambda: END + 2)
    monkeypatch.setattr(collect_module.systemd_manager, "is_shutting_down", lambda _: True)
    check(attempt.verdict(), "oom-kill-memcg", "proven")


def test_machine_wide_kill_between_two_samples_is_known_by_the_peak(attempt: Attempt) -> None:
    """Seen in the lab: the guard was starved, the last sample showed room, the job took it all after that."""
    attempt.kernel_lines = None
    attempt.ended(signal=SIGKILL, memcg_oom_kill=2, vmstat_oom_kill=9, memcg_peak=25 * GIB)
    check(attempt.verdict(), "oom-kill-global", "likely")


def test_a_sample_after_the_kill_does_not_hide_the_shortage(attempt: Attempt) -> None:
    """Seen in the lab: the victim's memory is free again before its wait status comes."""
    attempt.kernel_lines = None
    attempt.samples.clear()
    attempt.sample(available=100 * MIB)
    attempt.samples[-1]["available"] = 30 * GIB
    attempt.ended(signal=SIGKILL, memcg_oom_kill=1, vmstat_oom_kill=8)
    check(attempt.verdict(), "oom-kill-global", "likely")


def test_an_orderly_shutdown_that_left_an_exit_status(attempt: Attempt) -> None:
    attempt.ended(signal=SIGTERM)
    attempt.keeper_events = [{"boottime": END - 2, "event": "sigterm"}]
    attempt.boot(OTHER_BOOT)
    attempt.write_wtmp((1, "shutdown", WALL + END + 5), (2, "reboot", WALL + END + 60))
    assert "in order" in check(attempt.verdict(), "machine-down", "proven").headline


def test_a_run_that_ended_before_the_reboot_keeps_its_own_story(attempt: Attempt) -> None:
    attempt.ended(signal=SIGSEGV)
    attempt.boot(OTHER_BOOT)
    attempt.write_wtmp((1, "shutdown", WALL + END + 50), (2, "reboot", WALL + END + 99))
    check(attempt.verdict(), "segfault", "proven")


def test_keeper_gone_without_a_word(attempt: Attempt) -> None:
    attempt.exit = {}
    check(attempt.verdict(), "guard-lost", "likely")


def test_keeper_gone_and_the_kernel_names_the_job(attempt: Attempt) -> None:
    attempt.exit = {}
    attempt.kernel_lines = kernel(MACHINE_KILL, at=END - 1)
    assert attempt.verdict().cause == "oom-kill-global"


def test_an_empty_folder(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path)
    from oomproof.diagnosis.judge import judge

    check(judge(attempt.collect()), "other-error", "possible")


# -- form


def test_json_is_schema_1_and_comes_back(attempt: Attempt) -> None:
    from oomproof.diagnosis.verdict import from_json

    attempt.ended(signal=SIGKILL, memcg_oom_kill=1, memcg_oom=1, vmstat_oom_kill=8)
    attempt.kernel_lines = kernel(OWN_KILL)
    verdict = attempt.verdict()
    value = json.loads(json.dumps(verdict.to_json()))
    assert list(value) == [
        "schema", "run", "attempt", "verdict", "causes", "evidence", "kills", "missing", "remedies", "growth", "culprit",
    ]  # fmt: skip
    assert list(value["verdict"]) == [
        "cause", "certainty", "probability", "headline", "why", "next", "next_steps", "phase", "step", "victim", "gpu",
    ]  # fmt: skip
    assert value["schema"] == 1 and value["run"] == "r1" and value["attempt"] == 1
    assert set(value["verdict"]["victim"]) == {
        "pid", "name", "total_vm_bytes", "anon_rss_bytes", "file_rss_bytes", "shmem_rss_bytes",
    }  # fmt: skip
    assert set(value["evidence"][0]) == {"id", "source", "time", "text", "says"}
    assert set(value["remedies"][0]["change"]) == {"kind", "file", "key", "from", "to"}
    assert from_json(value) == verdict
    assert value["kills"][0]["time"] == pytest.approx(WALL + END - 0.05, abs=0.1)
    assert START < END


def test_judged_again_when_more_can_be_read(attempt: Attempt, monkeypatch: pytest.MonkeyPatch) -> None:
    attempt.ended(signal=9, memcg_oom_kill=1, memcg_oom=None, vmstat_oom_kill=8)
    attempt.kernel_lines = None
    stored = attempt.verdict()
    assert stored.missing and stored.victim is not None and stored.victim.anon_rss_bytes is None
    (attempt.dir / "verdict.json").write_text(json.dumps(stored.to_json()))
    monkeypatch.setattr(conclusion, "collect", lambda folder: attempt.collect())
    written: list[Verdict] = []

    def store(run: object, case: object, verdict: Verdict) -> conclusion.Conclusion:
        written.append(verdict)
        return conclusion.Conclusion(verdict, stored=True)

    monkeypatch.setattr(conclusion, "_store", store)
    run = Run(attempt.dir.parent)

    def now() -> Verdict:
        return conclusion.conclude_once(run).verdict

    assert now() == stored, "nothing more can be read"
    attempt.kernel_lines = kernel(OWN_KILL)
    attempt.case()
    again = now()
    assert again.certainty == "proven" and again.victim is not None and again.victim.anon_rss_bytes
    found = conclusion.conclusion_of(run)
    assert found is not None and found.verdict == stored, "who only reads reads what is stored"
    seen_then = Evidence("sample.twin", "/proc", None, "pid 7", "the same command")
    richer = replace(stored, evidence=(*stored.evidence, seen_then))
    (attempt.dir / "verdict.json").write_text(json.dumps(richer.to_json()))
    assert now() == richer and written == [again], "what was seen then is not given up"


def test_a_verdict_made_of_nothing_is_not_kept() -> None:
    """Seen in chaos: judged on a full disk before the status could be written, and told for ever."""
    run = Run(runs_folder() / "20260921-221500-abc")
    attempt = run.folder / "1"
    attempt.mkdir(parents=True)
    (run.folder / "run.json").write_text(json.dumps({"schema": 1, "id": run.id, "argv": ["true"]}))
    assert conclusion.conclude(run).verdict.headline == "how it ended is not known"
    (attempt / "exit.json").write_text(
        json.dumps({"boottime": 5.0, "wall": 1.0, "status": 0, "code": 0, "signal": None})
    )
    assert conclusion.conclude_once(Run(run.folder)).verdict.cause == "finished"

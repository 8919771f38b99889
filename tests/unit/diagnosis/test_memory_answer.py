"""What to do about a death for memory: about the other job, about growth, about size; and the answers that were wrong."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from signal import SIGKILL, SIGTERM
from typing import Any

import pytest
from helpers_case import END, GIB, LEADER, MACHINE_KILL, MIB, OTHER_BOOT, OWN_KILL, Attempt, changed, kernel

from oomproof.diagnosis.advice import command, merged, smaller_job, with_workers
from oomproof.diagnosis.cause_texts import REMEDIES
from oomproof.diagnosis.judge import judge
from oomproof.diagnosis.memory_answer import answer
from oomproof.diagnosis.verdict import Verdict, from_json, sentence
from oomproof.evidence.agent_files import AgentMessage
from oomproof.evidence.case_evidence import describe
from oomproof.evidence.case_file import (
    CaseFile,
    Growth,
    GrowthPlace,
    HostSample,
    JobSample,
    OtherJob,
    ProcessGrowth,
    ProcessSeen,
    Twin,
)
from oomproof.leaf.action_kinds import NEAR_LIMIT, OTHERS_GROWTH
from oomproof.leaf.attempt_names import NOW
from oomproof.records import replace
from oomproof.runner.code_identity import hash_file

LOADER = OtherJob(812, "python3 load.py", None, False, 3 * GIB, 0, 2 * GIB, 20.0, END - 1)
LEAK = Growth("growing", "train", 6.0 * MIB, 12.0 * MIB, 48, 96.0, 300 * MIB, 876 * MIB)
NOT_OURS = "the growth is not this job's"
AT_LIMIT = "the job held 592 MiB of its limit of 600 MiB, grew by 10 MiB/s"


@pytest.fixture
def attempt(tmp_path: Path) -> Attempt:
    return Attempt(tmp_path)


def stopped(attempt: Attempt, why: str, *, limit: int | None = None, **facts: Any) -> Verdict:
    attempt.run["settings"]["limit"] = limit
    attempt.ended(signal=SIGTERM)
    attempt.act("term", why=why, scope="limit" if limit else "machine", others_growth=NOT_OURS in why)
    if why == AT_LIMIT:
        figures = {"held": 592 * MIB, "limit": 600 * MIB, "rate": 10.0 * MIB}
        attempt.actions[-1].update(reason=NEAR_LIMIT, figures=figures)
    case = changed(attempt.case(), **facts)
    return judge(case)


def everything(verdict: Verdict) -> str:
    return json.dumps(verdict.to_json(), ensure_ascii=False)


def test_next_keeps_every_flag_that_was_typed(attempt: Attempt) -> None:
    attempt.run["flags"] = {"limit": "600M", "stop_signal": "USR1", "alert_desktop": "", "name": "usr1"}
    attempt.sample(used=592 * MIB)
    verdict = stopped(attempt, AT_LIMIT, limit=600 * MIB)
    assert "oomproof run --name usr1 --alert-desktop --stop-signal USR1 --limit 750M --" in verdict.next


def test_a_lower_limit_at_which_it_died_too_is_told(attempt: Attempt) -> None:
    verdict = stopped(attempt, AT_LIMIT, limit=600 * MIB, died_at=(300 * MIB, 600 * MIB, 900 * MIB))
    assert "the same command also died at 300 MiB" in verdict.why and "900" not in verdict.why


def test_held_and_headroom_add_up_to_the_limit(attempt: Attempt) -> None:
    attempt.samples = []
    attempt.sample(used=296 * MIB)
    case = attempt.case()
    assert case.samples.job is not None
    job = replace(case.samples.job, headroom=1000 << 10)
    item = next(
        item for item in describe(changed(case, job=job, limit=300 * MIB), None) if item.id == "sample.job"
    )
    assert "1000 KiB below its limit of 300 MiB: 3 MiB of page cache and kernel memory count too" in item.text
    job = replace(job, headroom=4 * MIB)
    (item,) = (
        item for item in describe(changed(case, job=job, limit=300 * MIB), None) if item.id == "sample.job"
    )
    assert "4 MiB below its limit, " in item.text


# --- what the witnesses found


def test_the_line_that_made_it_is_next_and_stays_readable(attempt: Attempt) -> None:
    place = GrowthPlace("/x/serve.py", 41, "", "", 60 * MIB, "tracemalloc")
    made = "`cache[key] = 1` at serve.py:41 made 96% of it: +2.0 MiB a step (tracemalloc)"
    grew = replace(LEAK, made_at=made, where=(place,))
    verdict = stopped(attempt, AT_LIMIT, limit=600 * MIB, growth=grew)
    assert verdict.next.startswith(f"{made}; a smaller batch only delays the end")
    value = json.loads(json.dumps(verdict.to_json()))
    assert value["growth"]["where"] == [
        {
            "file": "/x/serve.py",
            "line": 41,
            "function": "",
            "owner": "",
            "bytes": 60 * MIB,
            "witness": "tracemalloc",
        }
    ]
    assert from_json(value).growth == grew
    assert any(item.id == "agent.trace" for item in describe(changed(attempt.case(), growth=grew), None))


def test_what_the_c_library_kept_is_no_leak(attempt: Attempt) -> None:
    grew = replace(LEAK, not_a_leak="the C library kept 120 MiB that nothing used: not a leak")
    verdict = stopped(attempt, AT_LIMIT, limit=600 * MIB, growth=grew)
    assert verdict.next.startswith(grew.not_a_leak) and "MALLOC_ARENA_MAX=2 oomproof run" in verdict.next
    assert from_json(json.loads(everything(verdict))).growth == grew


# --- somebody else's growth


def test_ended_for_an_unmanaged_jobs_growth(attempt: Attempt) -> None:
    attempt.run["flags"] = {"name": "night"}
    verdict = stopped(attempt, f"58 MiB of RAM available; {NOT_OURS}", others=(LOADER,), job_peak=4 * GIB)
    assert "python3 load.py (pid 812) held 3.0 GiB and grew by 2.0 GiB in 20 s (102 MiB/s)" in verdict.why
    assert verdict.culprit is not None and verdict.culprit.bytes_per_second == pytest.approx(2 * GIB / 20)
    assert "python3 load.py (pid 812)" in verdict.next
    assert "oomproof run --name night --need 4G -- python train.py" in verdict.next, "another one than died"
    text = everything(verdict)
    assert "halve" not in text and "half the batch" not in text and "fewer" not in text
    assert [remedy.command for remedy in verdict.remedies][:2] == [
        "kill -STOP 812",
        "oomproof run --need 3072M -- python3 load.py",
    ]
    assert from_json(json.loads(text)) == verdict


def test_the_recorded_scope_counts_and_not_the_words(attempt: Attempt) -> None:
    attempt.run["settings"]["limit"] = 600 * MIB
    attempt.ended(signal=SIGTERM)
    attempt.act("term", why="58 MiB of RAM available")
    attempt.actions[-1].update(scope="machine", others_growth=True)
    assert judge(changed(attempt.case(), others=(LOADER,))).culprit is not None
    attempt.actions[-1].update(why=f"{AT_LIMIT}; {NOT_OURS}", others_growth=False)
    case = attempt.case()
    assert (case.actions[-1].scope, case.actions[-1].others_growth) == ("machine", False)
    assert judge(changed(case, others=(LOADER,))).culprit is None


def test_what_the_guard_named_is_not_told_twice(attempt: Attempt) -> None:
    why = f"58 MiB of RAM available; {NOT_OURS}: python3 load.py (pid 812) grew by 2.0 GiB in 20 s"
    stopped(attempt, why)
    attempt.actions[-1].update(reason=OTHERS_GROWTH, figures={"culprit": LOADER.pid})
    assert judge(changed(attempt.case(), others=(LOADER,))).why.count("load.py") == 1
    attempt.actions[-1].update(figures={"culprit": 813})
    assert judge(changed(attempt.case(), others=(LOADER,))).why.count("load.py") == 2


def test_its_own_growth_is_not_blamed_on_a_neighbour_that_grew_less(attempt: Attempt) -> None:
    why = "58 MiB of RAM available, the job holds 4 GiB and grows by 400 MiB/s"
    verdict = stopped(attempt, why, others=(LOADER,))
    assert verdict.culprit is None and "load.py" not in verdict.next, "the guard looked at both"
    attempt.actions = []
    attempt.ended(signal=SIGKILL, memcg_oom_kill=1, memcg_oom=0, vmstat_oom_kill=8)
    attempt.kernel_lines = kernel(MACHINE_KILL)
    case = changed(attempt.case(), others=(LOADER,))
    assert judge(case).culprit is not None
    grew = changed(case, others=(replace(LOADER, job_grew=8 * GIB),))
    assert judge(grew).culprit is None, "in the same seconds"


def test_a_browser_that_breathed_is_not_blamed_for_a_leak(attempt: Attempt) -> None:
    """The job leaks slowly and made no step in its last second: firefox grew by 40 MiB in three minutes."""
    attempt.ended(signal=SIGKILL, memcg_oom_kill=1, memcg_oom=0, vmstat_oom_kill=8)
    attempt.kernel_lines = kernel(MACHINE_KILL)
    attempt.run["settings"]["limit"] = None
    firefox = OtherJob(900, "firefox", None, False, 2 * GIB, 0, 40 * MIB, 170.0, END - 1)
    case = changed(attempt.case(), others=(firefox,))
    leaking = judge(changed(case, growth=LEAK))
    assert leaking.culprit is None and leaking.growth == LEAK
    assert judge(changed(case, others=(replace(firefox, taken=GIB),))).culprit is None, "a small share"
    assert judge(changed(case, others=(replace(firefox, taken=100 * MIB),))).culprit is not None


def test_a_run_of_ours_beside_it_is_named_by_its_run(attempt: Attempt) -> None:
    other = replace(LOADER, managed=True, run="night")
    verdict = stopped(attempt, f"58 MiB available; {NOT_OURS}", others=(other,), job_peak=4 * GIB)
    named = "python3 load.py of run night (pid 812"
    assert f"{named}) held 3.0 GiB and grew by 2.0 GiB in 20 s" in verdict.why
    assert verdict.culprit is not None and (verdict.culprit.managed, verdict.culprit.run) == (True, "night")
    assert verdict.next.startswith(f"pause or finish {named}) first; then oomproof run --need 4G")
    assert verdict.remedies[0].command == "oomproof pause night"
    text = everything(verdict)
    assert "kill -STOP" not in text and "with oomproof as well" not in text and "halve" not in text
    assert from_json(json.loads(text)) == verdict


def test_a_run_of_ours_that_is_not_known_by_name(attempt: Attempt) -> None:
    other = replace(LOADER, managed=True)
    verdict = stopped(attempt, f"58 MiB available; {NOT_OURS}", others=(other,))
    assert "another run of oomproof (pid 812)" in verdict.next
    assert verdict.remedies[0].command is None and "oomproof resume RUN" in verdict.remedies[0].title


def test_after_a_reboot_nobody_is_to_pause_a_run_that_died_too(attempt: Attempt) -> None:
    attempt.exit = {}
    attempt.boot(OTHER_BOOT)
    attempt.samples = []
    attempt.sample(available=200 * MIB)
    verdict = judge(changed(attempt.case(), others=(replace(LOADER, managed=True, run="night"),)))
    assert verdict.culprit is not None and "of run night (pid 812) held 3.0 GiB" in verdict.why
    assert "pause" not in verdict.next and not verdict.remedies


def test_the_kernel_killed_the_job_that_did_not_grow(attempt: Attempt) -> None:
    attempt.ended(signal=SIGKILL, memcg_oom_kill=1, memcg_oom=0, vmstat_oom_kill=8)
    attempt.kernel_lines = kernel(MACHINE_KILL)
    attempt.run["settings"]["limit"] = None
    verdict = judge(changed(attempt.case(), others=(LOADER,)))
    assert verdict.cause == "oom-kill-global" and verdict.culprit is not None
    assert "load.py (pid 812) held 3.0 GiB" in verdict.why and "halve" not in everything(verdict)


def test_at_its_own_limit_nobody_else_is_to_blame(attempt: Attempt) -> None:
    attempt.ended(signal=SIGKILL, memcg_oom_kill=1, memcg_oom=1, vmstat_oom_kill=8)
    attempt.kernel_lines = kernel(OWN_KILL)
    verdict = judge(changed(attempt.case(), others=(LOADER,)))
    assert verdict.cause == "oom-kill-memcg" and verdict.culprit is None and "load.py" not in verdict.next


def test_the_machine_that_went_down_names_who_filled_it(attempt: Attempt) -> None:
    attempt.exit = {}
    attempt.boot(OTHER_BOOT)
    attempt.samples = []
    attempt.sample(available=200 * MIB)
    verdict = judge(changed(attempt.case(), others=(LOADER,)))
    assert verdict.cause == "machine-down" and verdict.culprit is not None
    assert "load.py (pid 812) held 3.0 GiB" in verdict.why and "load.py" in verdict.next


# --- the guard's own verdict


def test_the_limit_was_the_only_thing_in_the_way(attempt: Attempt) -> None:
    """22 GiB were free, and the advice was to halve batch or workers."""
    attempt.samples = []
    attempt.sample(available=22 * GIB, used=592 * MIB)
    grown = ProcessGrowth(4100, "pt_data_worker", "worker", 60 * MIB, 410 * MIB, 22.0)
    verdict = stopped(attempt, AT_LIMIT, limit=600 * MIB, grown=(grown,))
    assert verdict.next.startswith("oomproof run --limit 750M -- python train.py")
    (raised,) = [remedy for remedy in verdict.remedies if remedy.change and remedy.change.key == "--limit"]
    assert raised.change is not None and (raised.change.before, raised.change.after) == ("600M", "750M")
    assert "pt_data_worker (pid 4100, worker) grew from 60 MiB to 410 MiB" in verdict.why
    attempt.processes = [(4100, "main", "python3")]
    alone = stopped(attempt, AT_LIMIT, limit=600 * MIB, grown=(grown,))
    assert "grew from 60 MiB" not in alone.why, "of a job that is one process its own figures say it"
    assert verdict.growth is None


def test_a_higher_limit_for_a_command_too_long_to_type(attempt: Attempt) -> None:
    """What stands in a sentence is no command that a page offers to copy."""
    attempt.run["argv"] = ["python", "-c", "x = 1\n" * 99]
    attempt.samples = []
    attempt.sample(available=22 * GIB, used=592 * MIB)
    verdict = stopped(attempt, AT_LIMIT, limit=600 * MIB)
    assert "the same command again with --limit 750M" in verdict.next and "None" not in verdict.next
    (raised,) = [remedy for remedy in verdict.remedies if remedy.change and remedy.change.key == "--limit"]
    assert raised.command is None


def test_no_higher_limit_is_offered_where_the_machine_has_none(attempt: Attempt) -> None:
    attempt.samples = []
    attempt.sample(available=GIB, used=592 * MIB)
    verdict = stopped(attempt, AT_LIMIT, limit=600 * MIB)
    assert "no memory for a higher limit: others held 30.4 GiB" in verdict.next
    assert verdict.next.endswith(
        "waits for its turn: oomproof run --need 750M --limit 750M -- python train.py"
    )


# --- a command that died is not advised again as it was


def killed(attempt: Attempt, machine: bool, **facts: Any) -> Verdict:
    attempt.run["settings"]["limit"] = None if machine else 8 * GIB
    attempt.ended(signal=SIGKILL, memcg_oom_kill=1, memcg_oom=0 if machine else 1, vmstat_oom_kill=8)
    attempt.kernel_lines = kernel(MACHINE_KILL if machine else OWN_KILL)
    return judge(changed(attempt.case(), **facts))


def test_on_a_machine_that_others_filled_it_waits_for_them(attempt: Attempt) -> None:
    attempt.samples = []
    attempt.sample(available=GIB, used=9 * GIB)
    verdict = killed(attempt, machine=True)
    assert verdict.next == (
        "others held 22.0 GiB (oomproof check); this waits for its turn: oomproof run --need 9G -- python train.py"
    )
    verdict = killed(attempt, machine=True, twin=Twin(77, 21 * GIB))
    assert (
        verdict.next.startswith("the same command ran as pid 77 and held 21.0 GiB")
        and "--need 9G" in verdict.next
    )


def test_alone_on_the_machine_the_machine_or_the_data_has_to_change(attempt: Attempt) -> None:
    attempt.samples = []
    attempt.sample(available=GIB, used=30 * GIB)
    verdict = killed(attempt, machine=True)
    assert "give the machine swap (32.0 GiB RAM and no swap): oomproof system --need 30G" in verdict.next
    assert "unchanged it ends the same way. Then oomproof run" in verdict.next
    attempt.run["argv"] = ["python", "train.py", "--data=my data.npz", "--out", "model.bin"]
    assert "oomproof data inspect 'my data.npz'; unchanged" in killed(attempt, machine=True).next
    attempt.run["argv"] = ["python", "train.py", "rows.parquet", "--batch", "8"]
    assert killed(attempt, machine=True).next.endswith("rows.parquet --batch 4"), "an argument comes first"


def test_without_samples_the_machine_is_asked_first(attempt: Attempt) -> None:
    attempt.samples = []
    verdict = killed(attempt, machine=False)
    assert verdict.next == (
        "see whether the machine has more: oomproof check --need 10G; then oomproof run --limit 10G -- python train.py"
    )


def test_a_burst_over_the_limit_is_not_answered_with_a_quarter_more(attempt: Attempt) -> None:
    """Samples saw 0.1 of 8 GiB: nobody knows how much more it wanted."""
    attempt.samples = []
    attempt.sample(available=30 * GIB, used=100 * MIB)
    verdict = killed(attempt, machine=False)
    assert (
        "it took the last 7.9 GiB of 8.0 GiB within 1.0 s: how much more it wanted is not known"
        in verdict.why
    )
    # what it could have had beside the margin of 4
    assert verdict.next.startswith(
        "to learn how much it takes: oomproof run --limit 27G -- python train.py, or"
    )
    (learn,) = [remedy for remedy in verdict.remedies if remedy.change and remedy.change.key == "--limit"]
    assert "once with a much larger limit: 8.0 GiB to 27G" in learn.title and "10G" not in everything(verdict)
    attempt.samples = []
    attempt.sample(available=20 * GIB, used=7 * GIB)
    seen = killed(attempt, machine=False)
    assert seen.next.startswith("oomproof run --limit 10G") and "is not known" not in seen.why


def test_a_job_that_was_growing_fast_at_its_limit_is_not_either(attempt: Attempt) -> None:
    attempt.samples = []
    attempt.sample(available=22 * GIB, used=592 * MIB)
    job = attempt.case().samples.job
    assert job is not None
    verdict = stopped(attempt, AT_LIMIT, limit=600 * MIB, job=replace(job, rate=58.0 * MIB))
    assert "it was growing to its last moment: how much more it wanted is not known" in verdict.why
    assert "--limit 5G" in verdict.next, "150 MiB more would have lasted 3 s"
    slow = stopped(attempt, AT_LIMIT, limit=600 * MIB, job=replace(job, rate=1.0 * MIB))
    assert "--limit 750M" in slow.next


def test_a_step_up_that_was_tried_is_followed_by_a_leap(attempt: Attempt) -> None:
    attempt.samples = []
    attempt.sample(available=22 * GIB, used=592 * MIB)
    verdict = stopped(attempt, AT_LIMIT, limit=600 * MIB, died_at=(480 * MIB,))
    assert "to learn how much it takes: oomproof run --limit 5G" in verdict.next, "eight times at most"


def test_workers_are_changed_where_the_command_says_how_many(attempt: Attempt) -> None:
    attempt.run["argv"] = ["python", "train.py", "--num-workers", "4"]
    case = attempt.case()
    assert sentence(with_workers(case, 0)).endswith("-- python train.py --num-workers 0")
    assert sentence(with_workers(case)).endswith("-- python train.py --num-workers 2")
    attempt.run["argv"] = ["python", "train.py"]
    assert sentence(with_workers(attempt.case(), 0)).startswith(
        "num_workers=0 in its code, then oomproof run"
    )


def test_the_batch_of_a_gpu_job_is_named_too(attempt: Attempt) -> None:
    attempt.run["argv"] = ["python", "train.py", "--batch-size", "32"]
    attempt.ended(code=1)
    attempt.output = b"""Traceback (most recent call last):
  File "train.py", line 9, in <module>
    loss.backward()
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.64 GiB of which 1.10 GiB is free.
"""
    verdict = attempt.verdict()
    assert verdict.cause == "cuda-oom" and verdict.next.endswith("-- python train.py --batch-size 16")
    assert any("--batch-size 32 → 16" in remedy.title for remedy in verdict.remedies)


# --- growth or size


def test_growth_is_not_answered_with_half_the_batch(attempt: Attempt) -> None:
    attempt.run["argv"] = ["python", "train.py", "--batch-size", "32"]
    attempt.samples = []
    attempt.sample(available=22 * GIB, used=592 * MIB)
    verdict = stopped(attempt, AT_LIMIT, limit=600 * MIB, growth=LEAK)
    assert "it grew 12.0 MiB a step for 48 steps without levelling off, nearly all in train" in verdict.why
    assert verdict.why.count("grew") == 1, "one rate: not that of the guard's last looks as well"
    assert "find what is kept from step to step" in verdict.next
    text = everything(verdict)
    assert "half the batch" not in text and "halve" not in text
    assert "600M → 750M lasts 12 steps longer" in text, "no remedy, and it says how far it carries"
    told = verdict.to_json()["growth"]
    assert (told["kind"], told["phase"], told["steps"], told["bytes_per_step"]) == (
        "growing",
        "train",
        48,
        12 * MIB,
    )
    assert from_json(json.loads(text)) == verdict


def test_growth_in_evaluation_only(attempt: Attempt) -> None:
    verdict = stopped(attempt, AT_LIMIT, limit=600 * MIB, growth=replace(LEAK, phase="eval"))
    assert "in each evaluation" in verdict.next and "keep less of each evaluation" in everything(verdict)


# --- remedies that name the argument


def test_the_batch_argument_with_its_old_and_new_value(attempt: Attempt) -> None:
    attempt.run["argv"] = ["python", "train.py", "--batch-size", "32", "--accum-steps=2"]
    attempt.run["flags"] = {"name": "night", "grace": "90", "stop_file": "/tmp/stop here"}
    verdict = stopped(attempt, "58 MiB of RAM available and grows by 10 MiB/s")
    (half,) = [remedy for remedy in verdict.remedies if "half the batch" in remedy.title]
    assert "--batch-size 32 → 16" in half.title
    flags = "--name night --grace 90 --stop-file '/tmp/stop here'"
    assert half.command == f"oomproof run {flags} -- python train.py --batch-size 16 --accum-steps=4"
    assert verdict.next == half.command, "a command that differs from the one that died"


def test_accumulation_grows_as_the_batch_shrinks(attempt: Attempt) -> None:
    words = ["python", "t.py", "--per_device_train_batch_size=8", "--gradient_accumulation_steps", "4"]
    attempt.run["argv"] = words
    verdict = stopped(attempt, "58 MiB of RAM available and grows by 10 MiB/s")
    assert verdict.next.endswith("--per_device_train_batch_size=4 --gradient_accumulation_steps 8")


def test_workers_as_asked_for_and_as_many_as_fit(attempt: Attempt) -> None:
    """16 were asked for; ten were seen at the last sample, each with 60 MiB of its own."""
    attempt.run["argv"] = ["python", "train.py", "--workers", "16", "--batch-size", "64"]
    attempt.samples = []
    attempt.sample(available=GIB, used=1300 * MIB)
    workers = {
        pid: ProcessSeen(pid, "worker", "pt_data_worker", END - 60, END - 1, 90 * MIB, 60 * MIB)
        for pid in range(5000, 5010)
    }
    verdict = stopped(attempt, AT_LIMIT, limit=1300 * MIB, processes=workers)
    (fewer,) = [remedy for remedy in verdict.remedies if "fewer DataLoader workers" in remedy.title]
    # 85 % of 1300 MiB, less the 700 that are not the workers': 405 of 60 each
    assert "--workers 16 → 6; each held 60 MiB of its own" in fewer.title
    assert fewer.change is not None and (fewer.change.before, fewer.change.after) == ("16", "6")
    assert fewer.command is not None and "--workers 6 --batch-size 64" in fewer.command
    assert verdict.next.endswith(fewer.command)


def test_the_checkpoint_to_resume_from_is_named(attempt: Attempt) -> None:
    told = (AgentMessage(END - 30, "saved", "saved out/ckpt-40.pt at step 40"),)
    verdict = stopped(attempt, AT_LIMIT, limit=600 * MIB, told=told)
    assert verdict.next.endswith("; resume from out/ckpt-40.pt at step 40")
    found = stopped(attempt, AT_LIMIT, limit=600 * MIB, checkpoint="ckpt_29.pt")
    assert found.next.endswith("; resume from ckpt_29.pt"), "a plain loop tells nobody"
    attempt.actions = []
    attempt.ended(code=0)
    assert "resume" not in judge(changed(attempt.case(), told=told)).next


def test_an_argument_and_the_general_word_for_it_are_one_remedy(attempt: Attempt) -> None:
    attempt.run["argv"] = ["python", "train.py", "--workers", "8", "--batch-size", "32"]
    case = attempt.case()
    general = tuple(REMEDIES[name] for name in ("half-the-batch", "fewer-workers"))
    first, *rest = merged(general, smaller_job(case))
    assert "--workers 8 → 4" in first.title and "--batch-size 32 → 16" in rest[-1].title
    assert len(rest) == 2, "and one copy of the data"


@pytest.mark.parametrize(
    ("phase", "where", "loading"),
    [
        ("generate", "from one generate() to the next", False),
        ("eval", "in each evaluation", False),
        ("", "", True),
    ],
)
def test_what_grows_where_it_generates_is_not_loading(phase: str, where: str, loading: bool) -> None:
    """A loop of generate() that kept its outputs for 17 minutes was asked whether it was still loading."""
    host = HostSample(END, 64 * GIB, 40 * GIB, 0, 0, None, 40 * GIB)
    job = JobSample(END, GIB, 0, 0, 0, 0, 1, None, None, 0.0)
    case = changed(
        CaseFile(),
        argv=("python", "gen.py"),
        host=host,
        job=job,
        growth=replace(LEAK, phase=phase, steps=None),
    )
    following = sentence(answer(case, GIB, machine=False).next)
    assert ("if it was still loading" in following) is loading and where in following


def of_script(attempt: Attempt, source: str, *arguments: str, **facts: Any) -> Verdict:
    """A death at a limit of 600 MiB on a machine without memory for more."""
    script = attempt.dir.parent / "job.py"
    script.write_text(source)
    attempt.processes = [(LEADER, "main", "python3")]
    attempt.run["code"] = {"script": str(script), "script_sha256": hash_file(str(script))}
    attempt.run |= {"cwd": str(script.parent), "argv": ["python", str(script), *arguments]}
    attempt.sample(used=592 * MIB)
    (attempt.dir / "agent").mkdir()
    (attempt.dir / "agent" / f"{LEADER}-{NOW}").write_text(f"1 {END - 9} -1 0 load\n")
    return stopped(attempt, AT_LIMIT, limit=600 * MIB, **facts)


@pytest.mark.parametrize(
    "source",
    [
        "import pandas\n",
        "k = []  # a batch at a time\n",
        "from multiprocessing import Pool\nPool(8)\n",
        "batch_size = 3\n",
    ],
)
def test_what_is_no_training_gets_no_advice_on_one(attempt: Attempt, source: str) -> None:
    verdict = of_script(attempt, source)
    text = " ".join([verdict.next, *(remedy.title for remedy in verdict.remedies)])
    assert "batch" not in text and "workers" not in text and "accumulation" not in text
    assert ("processes" in text) is ("Pool" in source)


@pytest.mark.parametrize(
    ("source", "arguments"),
    [("import torch\nbatch = 3\n", ()), ("", ("--batch-size=9",))],
)
def test_a_batch_that_is_seen_is_advised(attempt: Attempt, source: str, arguments: tuple[str, ...]) -> None:
    verdict = of_script(attempt, source, *arguments)
    assert any("half the batch" in remedy.title for remedy in verdict.remedies)


@pytest.mark.parametrize("argv", [["node", "rows.js"], ["java", "-jar", "rows.jar"], ["./convert", "a.csv"]])
def test_a_program_of_another_kind_gets_no_advice_on_a_training(attempt: Attempt, argv: list[str]) -> None:
    attempt.processes = [(LEADER, "main", argv[0])]
    attempt.run["argv"] = argv
    attempt.sample(used=592 * MIB)
    (attempt.dir / "agent").mkdir()
    attempt.no_phase = True
    verdict = stopped(attempt, AT_LIMIT, limit=600 * MIB)
    text = " ".join([verdict.next, *(remedy.title for remedy in verdict.remedies)])
    assert "batch" not in text and "workers" not in text and "accumulation" not in text


def test_code_on_the_command_line_is_read_too(attempt: Attempt) -> None:
    attempt.processes = [(LEADER, "main", "python3")]
    attempt.run["argv"] = ["python", "-u", "-c", "k = [bytes(1 << 20) for _ in range(900)]"]
    attempt.sample(used=592 * MIB)
    attempt.no_phase = True
    verdict = stopped(attempt, AT_LIMIT, limit=600 * MIB)
    text = " ".join([verdict.next, *(remedy.title for remedy in verdict.remedies)])
    assert "batch" not in text and "workers" not in text
    assert "stream the data, keep less of it" in verdict.next


def test_a_pool_takes_fewer_processes(attempt: Attempt) -> None:
    seen = {
        700 + number: ProcessSeen(700 + number, "worker", "python", END - 9, END - 1, 70 * MIB, 70 * MIB)
        for number in range(8)
    }
    verdict = of_script(
        attempt, "from multiprocessing import Pool\nPool(8)\n", processes=seen, job_peak=592 * MIB
    )
    (fewer,) = [remedy for remedy in verdict.remedies if remedy.title.startswith("fewer processes")]
    assert "Pool(8) → Pool(6)" in fewer.title and "each held 70 MiB of its own" in fewer.title


def test_a_command_of_several_lines_can_be_typed(attempt: Attempt) -> None:
    attempt.run["argv"] = ["python", "-c", "k = []\nprint('it\\\\s')"]
    typed = command(attempt.case(), "--limit 750M")
    got = subprocess.run(
        ["bash", "-c", f"oomproof() {{ printf '%s\\0' \"$@\"; }}; {typed}"], capture_output=True
    )
    assert got.stdout.decode().split("\0")[-4:-1] == attempt.run["argv"] and "\n" not in typed
    attempt.run["argv"][2] += "\nx = 1" * 99
    assert command(attempt.case(), "--limit 750M") == "the same command again with --limit 750M"

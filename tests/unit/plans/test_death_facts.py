"""What a death tells about how to go on: of memory or not, whose growth, how much, and whether a person wanted it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers_case import END, GIB, LEADER, MACHINE_KILL, OWN_KILL, Attempt, changed, kernel
from helpers_gpu import account

from oomproof.diagnosis.judge import judge
from oomproof.evidence.case_file import ProcessSeen
from oomproof.leaf.attempt_names import NOW
from oomproof.plans.death_facts import DeathFacts, facts_of
from oomproof.runner.code_identity import hash_file


@pytest.fixture
def attempt(tmp_path: Path) -> Attempt:
    return Attempt(tmp_path)


def facts(attempt: Attempt) -> DeathFacts:
    case = attempt.case()
    return facts_of(case, judge(case))


def test_a_kill_at_its_own_limit(attempt: Attempt) -> None:
    attempt.ended(signal=9, memcg_oom_kill=1, memcg_oom=1)
    attempt.kernel_lines = kernel(OWN_KILL)
    told = facts(attempt)
    assert told.memory == "host" and not told.others and not told.stopped
    assert told.held == 8 * GIB, "the limit was full, whatever the last sample says"
    assert told.allowed == int(8 * GIB * 0.85)


def test_a_full_machine(attempt: Attempt) -> None:
    attempt.ended(signal=9, memcg_oom_kill=1, vmstat_oom_kill=8)
    attempt.kernel_lines = kernel(MACHINE_KILL)
    told = facts(attempt)
    assert told.memory == "host" and told.allowed == 20 * GIB, (
        "what it held and what was left, less the margin"
    )


@pytest.mark.parametrize(
    "output",
    [
        b'Traceback (most recent call last):\n  File "t.py", line 3, in <module>\nValueError: labels and rows differ\n',
        b'Traceback (most recent call last):\n  File "t.py", line 3, in <module>\nRuntimeError: loss is nan\n',
        b"Traceback (most recent call last):\n  File \"t.py\", line 1, in <module>\nModuleNotFoundError: No module named 'x'\n",
        b'Traceback (most recent call last):\n  File "t.py", line 9, in <module>\nAssertionError\n',
    ],
)
def test_what_is_not_memory(attempt: Attempt, output: bytes) -> None:
    attempt.ended(code=1)
    attempt.output = output
    assert facts(attempt).memory is None


def test_a_kill_by_somebody_else_is_not_memory(attempt: Attempt) -> None:
    attempt.ended(signal=9)
    assert facts(attempt).memory is None


def test_a_persons_stop_is_never_tried_again_whatever_else_happened(attempt: Attempt) -> None:
    attempt.ended(signal=9, memcg_oom_kill=1, memcg_oom=1)
    attempt.kernel_lines = kernel(OWN_KILL)
    attempt.act("interrupt", by="user", why="Ctrl-C")
    told = facts(attempt)
    assert told.stopped


def test_a_signal_that_was_only_passed_on_is_no_stop(attempt: Attempt) -> None:
    attempt.ended(signal=9, memcg_oom_kill=1, memcg_oom=1)
    attempt.kernel_lines = kernel(OWN_KILL)
    attempt.act("signal", by="user", why="SIGUSR1", before=60.0)
    assert not facts(attempt).stopped


def test_the_guard_stopped_it_for_its_own_limit(attempt: Attempt) -> None:
    attempt.ended(signal=15)
    attempt.act("term", why="the job held 7.9 GiB of its limit of 8.0 GiB", scope="limit")
    attempt.actions[-1].update(scope="limit", others_growth=False)
    told = facts(attempt)
    assert told.memory == "host" and not told.others and told.allowed == int(8 * GIB * 0.85)


def test_the_guard_stopped_it_for_others(attempt: Attempt) -> None:
    attempt.ended(signal=15)
    attempt.act("term", why="1 GiB of RAM available")
    attempt.actions[-1].update(scope="machine", others_growth=True)
    told = facts(attempt)
    assert told.memory == "host" and told.others


def test_the_guard_stopped_it_for_the_machine_and_it_was_the_job_itself(attempt: Attempt) -> None:
    attempt.ended(signal=15)
    attempt.act("term", why="1 GiB of RAM available")
    attempt.actions[-1].update(scope="machine", others_growth=False)
    told = facts(attempt)
    assert told.memory == "host" and not told.others, "unchanged it would fill the machine again"


def test_workers_of_the_end_with_their_own_pages(attempt: Attempt) -> None:
    attempt.ended(signal=9, memcg_oom_kill=1, memcg_oom=1)
    attempt.kernel_lines = kernel(OWN_KILL)
    told = with_processes(attempt, main=GIB, workers=16, each=GIB // 3)
    assert told.workers == 16 and told.worker_bytes == GIB // 3 and not told.alone
    told = with_processes(attempt, main=GIB // 10, workers=16, each=2 << 20)
    assert (told.workers, told.worker_bytes) == (16, 0), "seen before they had filled: nobody knows"
    told = with_processes(attempt, main=7 * GIB, workers=0, each=0)
    assert told.alone, "no worker, and one process with nearly all"


def with_processes(attempt: Attempt, main: int, workers: int, each: int) -> DeathFacts:
    case = attempt.case()
    seen = {LEADER: ProcessSeen(LEADER, "main", "python3", END - 60, END - 1, main, main)}
    for pid in range(5000, 5000 + workers):
        seen[pid] = ProcessSeen(pid, "worker", "pt", END - 60, END - 1, each, each)
    return facts_of(changed(case, processes=seen), judge(case))


def task_list(main: int, each: int, workers: int) -> list[str]:
    """As the kernel prints it; memory in MiB."""
    header = "[  pid  ]   uid  tgid total_vm      rss pgtables_bytes swapents oom_score_adj name"
    rows = [(LEADER, main, "pt_main_thread")]
    rows += [(5000 + number, each, "pt_data_worker") for number in range(workers)]
    return [
        header,
        *(
            f"[{pid:7d}]     0{pid:6d}{(mib + 900) << 8:9d}{mib << 8:9d}   450560        0             0 {name}"
            for pid, mib, name in rows
        ),
    ]


def test_workers_that_no_sample_saw_are_in_the_kernels_own_list(attempt: Attempt) -> None:
    attempt.ended(signal=9, memcg_oom_kill=2, memcg_oom=2, vmstat_oom_kill=9)
    attempt.processes = [(LEADER, "main", "python3")]
    usage = OWN_KILL[:1]
    first = kernel([*usage, *task_list(900, 300, 16), *OWN_KILL[1:]], at=END - 1, pid=5003)
    second = kernel([*usage, *task_list(900, 450, 15), *OWN_KILL[1:]], at=END - 0.5)
    attempt.kernel_lines = [*first, *second]
    told = facts(attempt)
    assert told.workers == 16 and told.worker_bytes == 450 << 20, "as many as the first, as large as the last"
    assert not told.alone and told.worker_share is not None and told.worker_share > 0.8
    remedy = next(remedy for remedy in judge(attempt.case()).remedies if "DataLoader workers" in remedy.title)
    assert "each held 450 MiB" in remedy.title and remedy.basis == "measured"


def test_a_list_of_one_process_tells_of_no_workers(attempt: Attempt) -> None:
    attempt.ended(signal=9, memcg_oom_kill=1, memcg_oom=1, vmstat_oom_kill=8)
    attempt.processes = [(LEADER, "main", "python3")]
    attempt.kernel_lines = kernel([*OWN_KILL[:1], *task_list(8000, 0, 0), *OWN_KILL[1:]])
    told = facts(attempt)
    assert (told.workers, told.worker_bytes) == (0, 0)


def test_while_it_was_loading(attempt: Attempt) -> None:
    attempt.ended(signal=9, memcg_oom_kill=1, memcg_oom=1)
    case = changed(attempt.case(), phase="load", step=None)
    verdict = judge(case)
    assert facts_of(case, verdict).loading
    assert not any("batch" in remedy.title for remedy in verdict.remedies), "none had been asked for"
    assert "load less" in verdict.next and any("mmap=True" in remedy.title for remedy in verdict.remedies)
    again = changed(attempt.case(), phase="load", step=40)
    assert not facts_of(again, judge(again)).loading, "a checkpoint that is read again in the middle"
    attempt.output = b"Epoch 1/3\nstep 100 loss 2.31\nstep 200 loss 2.20\n"
    other = changed(attempt.case(), phase="load", step=None)
    assert not facts_of(other, judge(other)).loading, (
        "it trains with another framework, and only imports torch"
    )


def test_of_a_loop_that_makes_its_own_batches_nobody_knows_where_loading_ends(attempt: Attempt) -> None:
    attempt.ended(signal=9, memcg_oom_kill=1, memcg_oom=1)
    case = changed(attempt.case(), phase="load", step=None, own_batches=True)
    verdict = judge(case)
    assert facts_of(case, verdict).memory == "host" and not facts_of(case, verdict).loading
    assert "still loading" not in verdict.next
    inside = changed(case, loading_call=True)
    assert facts_of(inside, judge(inside)).loading, "in from_pretrained() no batch was made yet"


@pytest.mark.parametrize("loader", [True, False])
def test_whose_batches_is_read_from_the_script_that_ran(attempt: Attempt, loader: bool) -> None:
    script = attempt.dir.parent / "train.py"
    script.write_text("import torch\n" + ("from torch.utils.data import DataLoader\n" if loader else ""))
    attempt.run["code"] = {"script": str(script), "script_sha256": hash_file(str(script))}
    attempt.run["cwd"] = str(script.parent)
    attempt.processes = [(LEADER, "main", "python3")]  # a worker that ran would be a loader by itself
    attempt.ended(signal=9, memcg_oom_kill=1, memcg_oom=1)
    (attempt.dir / "agent").mkdir()
    (attempt.dir / "agent" / f"{LEADER}-{NOW}").write_text(f"1 {END - 9} -1 0 load\n")
    case = attempt.case()
    assert case.agent.phase == "load" and case.program.own_batches is not loader
    assert facts_of(case, judge(case)).loading is loader


CUDA = (
    b'Traceback (most recent call last):\n  File "t.py", line 3, in <module>\n'
    b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0 has a total capacity of 24.00 GiB of which "
    b"512.00 MiB is free. Including non-PyTorch memory, this process has 21.75 GiB memory in use. Of the allocated memory "
    b"20.00 GiB is allocated by PyTorch, and 1.00 GiB is reserved by PyTorch but unallocated.\n"
)


def with_account(attempt: Attempt, **changed: object) -> None:
    attempt.ended(code=1)
    attempt.output = CUDA
    agent = attempt.dir / "agent"
    agent.mkdir()
    (agent / "4067-cuda-oom-1.json").write_text(json.dumps(account(**changed)))


def test_a_full_card_by_the_message_alone(attempt: Attempt) -> None:
    attempt.ended(code=1)
    attempt.output = CUDA
    told = facts(attempt)
    assert told.memory == "gpu" and told.gpu_fixed is None
    assert told.gpu_wanted == int(21.5 * GIB) and told.gpu_capacity == int(20.5 * GIB)


def test_a_card_that_is_full_of_weights(attempt: Attempt) -> None:
    with_account(attempt, phase="load", step=None)
    case = changed(attempt.case(), phase="load", step=None)
    verdict = judge(case)
    assert facts_of(case, verdict).loading and facts_of(case, verdict).memory == "gpu"
    titles = " ".join(remedy.title for remedy in verdict.remedies)
    assert "smaller type" in titles and "half the batch" not in titles


def test_a_full_card_by_its_account(attempt: Attempt) -> None:
    with_account(attempt, phase="train", step=400)
    told = facts(attempt)
    assert (told.memory, told.phase, told.steps) == ("gpu", "train", 400)
    assert told.gpu_fixed == 6 * GIB, "parameters and optimizer"
    assert told.gpu_wanted == int(21.5 * GIB) and told.gpu_capacity == int(20.5 * GIB)


def test_a_neighbour_on_the_card(attempt: Attempt) -> None:
    with_account(attempt, outside=9 * GIB, outside_first=2 * GIB, neighbours=[{"pid": 77, "used": 7 * GIB}])
    told = facts(attempt)
    assert told.memory == "gpu" and "pid 77" in told.others


def test_a_finished_job_has_nothing_to_tell(attempt: Attempt) -> None:
    assert facts(attempt).memory is None and END

"""Texts in, one verdict out: shares that mean something, mentions that are no deaths, handlers that kept silent."""

from __future__ import annotations

from pathlib import Path

import pytest

from oomproof.diagnosis.judge import judge_texts
from oomproof.diagnosis.verdict import TRUST, Verdict
from oomproof.evidence.texts.quoted_source import Surroundings, only_mentions
from oomproof.evidence.texts.text_case import read_texts


@pytest.fixture
def judge(tmp_path: Path) -> object:
    def of(text: str) -> Verdict:
        path = tmp_path / "text.log"
        path.write_text(text)
        return judge_texts(read_texts([str(path)]))

    return of


TRACEBACK = 'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n    main()\n'


def test_every_share_is_a_share_with_its_reason() -> None:
    assert all(0 < weight < 1 and len(weight.reason) > 10 for weight in TRUST.values())


@pytest.mark.parametrize(
    ("more", "less"),
    [
        (
            TRACEBACK + "RuntimeError: CUDA error: out of memory\n",
            "RuntimeError: CUDA error: out of memory\n",
        ),
        ("KeyError: 'lr'\n", "I get the error `KeyError: 'lr'` on every second start of it\n"),
        (TRACEBACK + "KeyError: 'lr'\n", TRACEBACK),
        (TRACEBACK + "KeyError: 'lr'\n", "step 1\nError: could not go on\n"),
        (
            "epoch 3 loss 0.1\nTraining complete.\n",
            "epoch 3 loss 0.1\nthe second worker crashed again\nand so on\n",
        ),
        (
            "Segmentation fault (core dumped)\n",
            "it ends with a Segmentation fault (core dumped) after an hour\n",
        ),
    ],
)
def test_the_better_told_the_surer(judge: object, more: str, less: str) -> None:
    assert callable(judge)
    assert judge(more).probability > judge(less).probability


def test_a_cut_traceback_is_not_certain(judge: object) -> None:
    assert callable(judge)
    verdict = judge(TRACEBACK)
    assert verdict.cause == "other-error"
    assert verdict.probability < 0.8


@pytest.mark.parametrize(
    "line",
    [
        "elif 'RuntimeError: CUDA error: an illegal memory access' in log:",
        'f"ERROR {name}: CUDA out of memory",',
        "// Process finished with exit code 137 (interrupted by signal 9: SIGKILL)",
        "| `exit code 137` | the kernel killed it | more memory |",
        "--skip-oom  go on when CUDA runs out of memory",
        'logger.error("DataLoader worker (pid 1) is killed by signal: Killed")',
        "When a job fails (exit code 137), the scheduler should say so.",
        'body: _("The kernel appears to have died."),',
        'CHECK(error == cudaSuccess) << "Check failed: error == cudaSuccess (2 vs. 0)";',
        "- Fixed: DataLoader worker (pid 123) is killed by signal: Segmentation fault (#88)",
        "fix(loader): RuntimeError: CUDA out of memory when the last batch is larger",
        "Q: training stops with `Segmentation fault (core dumped)`, what now?",
    ],
)
def test_source_tables_and_rules_only_mention(line: str) -> None:
    assert only_mentions(line)


@pytest.mark.parametrize(
    "line",
    [
        "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 8.00 GiB total capacity)",
        "run.sh: line 3: 4321 Killed                  python train.py",
        'Error: Error("missing field", line: 3)',
        "ollama  | ggml: allocating 35533.34 MiB on device 0: cudaMalloc failed: out of memory",
        "slurmstepd: error: Detected 1 oom_kill event in StepId=1.0.",
        "# RuntimeError: CUDA out of memory. Tried to allocate 2.87 GiB",
    ],
)
def test_reports_are_no_mentions(line: str) -> None:
    assert not only_mentions(line)


def test_a_comment_counts_as_one_only_inside_a_program() -> None:
    around = Surroundings()
    assert not around.program(1)
    for number, line in enumerate(["import torch", "export A=1", "x = model(y)"], 1):
        around.look(number, line)
    assert around.program(4)
    assert only_mentions("# RuntimeError: CUDA error: an illegal memory access", in_program=True)
    assert not around.program(200)


def test_a_handler_that_kept_silent_excludes_what_it_watches_for(judge: object) -> None:
    assert callable(judge)
    verdict = judge(
        "step 10 loss 2.1\n"
        "WARNING: CUDA out of memory. Tried to allocate 2.00 GiB, skipping this batch\n"
        "step 11 loss 2.0\nstep 12 loss 2.0\nstep 13 loss 1.9\nKilled\n"
    )
    assert verdict.cause == "killed-unknown"
    assert "said nothing this time" in verdict.why
    assert "cuda-oom" not in [each.cause for each in verdict.causes]


def test_a_death_without_a_word_says_that_python_saw_nothing(judge: object) -> None:
    assert callable(judge)
    assert (
        "nothing in Python saw it coming" in judge("step 3 loss 1.0\nSegmentation fault (core dumped)\n").why
    )
    told = judge("step 3 loss 1.0\n" + TRACEBACK + "KeyError: 'x'\n")
    assert "nothing in Python" not in told.why


def test_sigkill_leaves_room_for_the_kernel(judge: object) -> None:
    assert callable(judge)
    causes = {each.cause: each.probability for each in judge("epoch 1\nKilled\n").causes}
    assert 0.2 < causes["oom-kill-global"] < causes["killed-unknown"]


NATIVE = "-------\nC++ Traceback (most recent call last):\n-------\n0   paddle::memory::Alloc()\n\n"


@pytest.mark.parametrize(
    ("text", "cause", "pid"),
    [
        (
            "what():  std::bad_alloc\n[node14:06120] *** Process received signal ***\n[node14:06120] Signal: Aborted (6)\n",
            "bad-alloc",
            6120,
        ),
        (
            f"{NATIVE}FatalError: `Segmentation fault` is detected by the operating system.\n"
            "  [SignalInfo: *** SIGSEGV (@0x0) received by PID 125 (TID 0x7d) from PID 0 ***]\n",
            "segfault",
            125,
        ),
        (
            f"{TRACEBACK}RuntimeError: The server socket has failed to listen\n"
            "[E] failed (exitcode: 1) local_rank: 2 (pid: 3304) of binary: python\n"
            "Root Cause (first observed failure):\n  exitcode  : 1 (pid: 3304)\n",
            "other-error",
            3304,
        ),
        (
            "=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\n=   PID 4242 RUNNING AT node7\n=   EXIT CODE: 9\n",
            "killed-unknown",
            4242,
        ),
        ("run.sh: ligne 4 :  4312 Processus arrêté      python train.py\n", "killed-unknown", 4312),
        (
            "[node7:4242 :0:4242] Caught signal 11 (Segmentation fault: address not mapped to object)\n",
            "segfault",
            4242,
        ),
    ],
)
def test_who_died_may_stand_in_another_line(judge: object, text: str, cause: str, pid: int) -> None:
    assert callable(judge)
    verdict = judge(text)
    assert (verdict.cause, verdict.victim and verdict.victim.pid) == (cause, pid)


def test_an_earlier_failure_of_another_chain_names_nobody(judge: object) -> None:
    assert callable(judge)
    steps = "".join(f"step {number} loss 0.5\n" for number in range(2, 9))
    text = f"step 1 loss 0.5\nfailed (exitcode: 1) local_rank: 0 (pid: 77) of binary: python\n{steps}{TRACEBACK}KeyError: 'lr'\n"
    verdict = judge(text)
    assert (verdict.cause, verdict.victim) == ("other-error", None)

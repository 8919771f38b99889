"""A run that printed a text and failed gets the cause that ``oomproof why FILE`` finds in that text."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from signal import SIGABRT, SIGBUS, SIGINT, SIGKILL, SIGSEGV, SIGTERM

import pytest
from helpers_case import END, LEADER, OWN_KILL, Attempt, kernel

from oomproof.diagnosis.judge import judge_texts
from oomproof.evidence.texts.text_case import read_texts

CORPUS = Path(__file__).parents[2] / "corpus"
TEXTS = [json.loads(line)["file"] for line in (CORPUS / "logs/truth.jsonl").read_text().splitlines()]
# how a job that prints such a text ends, where it is not its own exit code
SIGNALS = {
    "segfault": SIGSEGV,
    "bus-error": SIGBUS,
    "abort": SIGABRT,
    "bad-alloc": SIGABRT,
    "killed-unknown": SIGKILL,
}


@pytest.mark.parametrize("how", ["code", "signal"])
@pytest.mark.parametrize("name", TEXTS)
def test_the_same_cause_as_the_text(tmp_path: Path, name: str, how: str) -> None:
    told = judge_texts(read_texts([str(CORPUS / name)]))
    attempt = Attempt(tmp_path)
    attempt.output = (CORPUS / name).read_bytes()
    if how == "signal" and told.cause not in SIGNALS:
        return
    attempt.ended(code=1) if how == "code" else attempt.ended(signal=SIGNALS[told.cause])
    verdict = attempt.verdict()
    if told.cause in ("not-a-crash", "silent-end"):
        # the run's own proof says better: it did fail
        assert verdict.cause == "other-error" and verdict.certainty != "proven", verdict.headline
        return
    assert verdict.cause == told.cause, verdict.headline
    assert verdict.gpu == told.gpu
    if verdict.cause.startswith("oom-kill-"):  # of another machine: a launcher tells of its pod
        assert verdict.certainty != "proven", "no counter moved"
    known = {each.id for each in verdict.evidence}
    assert all(id in known for each in verdict.causes for id in each.evidence)


def test_step_phase_and_line_come_from_the_text(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path)
    attempt.ended(code=1)
    attempt.output = (CORPUS / "logs/cuda-1.12-validate.txt").read_bytes()
    attempt.case()
    import sqlite3

    with sqlite3.connect(attempt.dir / "recording.sqlite") as db:
        db.execute("DELETE FROM phase")
    from oomproof.diagnosis.judge import judge

    verdict = judge(attempt.collect())
    assert verdict.phase == "eval" and "output.log:" in verdict.why


def test_the_marked_phase_wins_over_the_text(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path)
    attempt.ended(code=1)
    attempt.output = (CORPUS / "logs/cuda-1.12-validate.txt").read_bytes()
    verdict = attempt.verdict()
    assert (verdict.phase, verdict.step) == ("train", 117)


def test_the_jobs_own_kernel_kill_explains_what_it_printed(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path)
    attempt.ended(code=1, memcg_oom_kill=1, memcg_oom=1, vmstat_oom_kill=8)
    attempt.processes.append((164244, "worker", "pt_data_worker"))
    attempt.output = (CORPUS / "logs/real-worker_killed.txt").read_bytes()
    attempt.kernel_lines = kernel(OWN_KILL, pid=164244)
    verdict = attempt.verdict()
    assert (verdict.cause, verdict.certainty) == ("oom-kill-memcg", "proven")


def test_a_kill_of_another_process_in_the_output_is_not_ours(tmp_path: Path) -> None:
    """The job printed the machine's log: its own counter and pids are the proof, not those words."""
    attempt = Attempt(tmp_path)
    attempt.output = "\n".join(OWN_KILL).format(pid=31337, cgroup="/other").encode() + b"\ndone looking\n"
    for counter in (7, 8):  # nothing was killed; something was, but nothing of ours
        attempt.ended(code=1, vmstat_oom_kill=counter)
        verdict = attempt.verdict()
        assert verdict.cause == "other-error", verdict.headline
        assert not any(each.cause.startswith("oom-kill") for each in verdict.causes)


def test_bus_errors_and_a_kill_are_one_story(tmp_path: Path) -> None:
    """Seen on Slurm: bus errors on two ranks, a memcg kill on a third: /dev/shm is charged to the cgroup."""
    attempt = Attempt(tmp_path)
    attempt.ended(code=1, memcg_oom_kill=1, memcg_oom=1, vmstat_oom_kill=8)
    attempt.kernel_lines = kernel(OWN_KILL, pid=4100)
    attempt.output = (
        b"ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory"
        b' (shm).\nTraceback (most recent call last):\n  File "t", line 1\n'
        b"RuntimeError: DataLoader worker (pid 4100) is killed by signal: Bus error. It is possible\n"
    )
    attempt.sample(shm_free=1 << 20)
    verdict = attempt.verdict()
    assert (verdict.cause, verdict.certainty) == ("oom-kill-memcg", "proven")
    assert "one cause" in verdict.why and len(verdict.causes) == 1


@pytest.mark.parametrize(
    ("signal", "text"), [(SIGTERM, "logs/slurm-cgroup-v2.txt"), (SIGKILL, "logs/ray-task.txt")]
)
def test_who_killed_it_says_so_in_the_output(tmp_path: Path, signal: int, text: str) -> None:
    attempt = Attempt(tmp_path)
    attempt.ended(signal=signal)
    attempt.output = (CORPUS / text).read_bytes()
    assert attempt.verdict().cause == judge_texts(read_texts([str(CORPUS / text)])).cause


def test_an_old_error_does_not_explain_a_kill_from_outside(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path)
    attempt.ended(signal=SIGKILL)
    attempt.output = (CORPUS / "logs/real-numpy_alloc.txt").read_bytes()
    verdict = attempt.verdict()
    assert verdict.cause == "killed-unknown"


def test_an_exception_and_a_crash_on_the_way_out(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path)
    attempt.ended(signal=SIGSEGV)
    attempt.output = (CORPUS / "logs/cuda-2.1-capacty-neighbour.txt").read_bytes()
    verdict = attempt.verdict()
    assert [each.cause for each in verdict.causes][:2] == ["cuda-oom", "segfault"]
    assert verdict.certainty == "likely"


def test_ctrl_c_by_signal_or_by_code(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path)
    attempt.output = (CORPUS / "logs/real-interrupt.txt").read_bytes()
    for ended in ({"signal": SIGINT}, {"code": 130}, {"code": 1}):
        attempt.ended(**ended)  # type: ignore[arg-type]
        assert attempt.verdict().cause == "interrupted"


def test_an_xid_of_our_process_is_the_root(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path)
    attempt.ended(code=1)
    attempt.output = (CORPUS / "logs/illegal-access.txt").read_bytes()
    line = "NVRM: Xid (PCI:0000:08:00): 31, pid={pid}, name=python3, Ch 00000008, intr 10000000. MMU Fault"
    attempt.kernel_lines = kernel([line])
    verdict = attempt.verdict()
    assert (verdict.cause, verdict.certainty) == ("xid", "likely") or verdict.certainty == "proven"
    assert verdict.victim is not None and verdict.victim.pid == LEADER
    attempt.kernel_lines = kernel([line], pid=31337)
    assert attempt.verdict().cause == "illegal-access"


def test_a_clean_end_reads_no_parsers(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path)
    attempt.output = b"RuntimeError: CUDA out of memory. (caught, retrying)\n" * 10
    attempt.case()
    program = (
        "import sys; from pathlib import Path\n"
        "from oomproof.diagnosis.judge import judge; from oomproof.evidence.case_collector import collect\n"
        "from oomproof.recording.attempt import Attempt\n"
        f"verdict = judge(collect(Attempt(Path({str(attempt.dir)!r})), proc={str(attempt.proc)!r}))\n"
        "assert verdict.cause == 'finished', verdict\n"
        "heavy = [name for name in sys.modules if name.startswith('oomproof.evidence.texts.')]\n"
        "assert set(heavy) <= {'oomproof.evidence.texts.finding', 'oomproof.evidence.texts.root_failure'}, heavy\n"
        "assert 'oomproof.diagnosis.cause_texts' not in sys.modules and 'oomproof.evidence.script_handlers' not in sys.modules\n"
        "assert 'subprocess' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert END

"""Whose doing an end was: ours, the kernel's, a person's, the job's own. Each with the wrong answer it once got."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from signal import SIGABRT, SIGINT, SIGPIPE, SIGTERM

import pytest
from helpers_case import END, GIB, LEADER, MACHINE_KILL, Attempt, changed, kernel

from oomproof.diagnosis.judge import judge, judge_texts
from oomproof.evidence.agent_files import AgentMessage
from oomproof.evidence.texts.text_case import read_texts
from oomproof.runner.code_identity import hash_file


@pytest.fixture
def attempt(tmp_path: Path) -> Attempt:
    return Attempt(tmp_path)


def asked(attempt: Attempt, before: float, script: str | None) -> None:
    attempt.act("request", before=before)
    if script is not None:
        attempt.run["argv"] = ["python", "-c", script]


# asked to stop


def test_a_job_that_never_listens_and_ends_later_finished_by_itself(attempt: Attempt) -> None:
    asked(attempt, 148, "import time; time.sleep(300)")
    attempt.run["settings"]["grace"] = 30
    verdict = attempt.verdict()
    assert verdict.cause == "finished"
    assert "asked it to save and stop 2 min before, which nothing in it looks for" in verdict.why
    assert "and it did" not in verdict.headline


def test_a_job_that_nobody_told_and_that_ends_right_after_finished_by_itself(attempt: Attempt) -> None:
    """A whole result must not be taken for half a one: `run` would end with 75."""
    asked(attempt, 0.5, "import time; time.sleep(300)")
    assert attempt.verdict().cause == "finished"


def test_a_job_whose_code_names_the_file_probably_did_as_it_was_asked(attempt: Attempt) -> None:
    """Its word is no witness: it may be a comment."""
    asked(attempt, 148, "import os; os.environ['OOMPROOF_STOP_FILE']")
    verdict = attempt.verdict()
    assert (verdict.cause, verdict.certainty) == ("stopped-by-guard", "likely")
    assert verdict.headline.endswith("asked to save and stop, and it ended")


def test_a_stop_signal_is_no_witness_either(attempt: Attempt) -> None:
    asked(attempt, 148, "import time; time.sleep(300)")
    attempt.run["settings"]["stop_signal"] = 10
    assert (attempt.verdict().cause, attempt.verdict().certainty) == ("stopped-by-guard", "likely")


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo])
def test_what_a_job_lays_in_the_agents_folder_holds_nobody_up(
    attempt: Attempt, make: Callable[[Path], None]
) -> None:
    asked(attempt, 148, "import time; time.sleep(300)")
    (attempt.dir / "agent").mkdir()
    for name in ("4067-listens.txt", "4067-now.txt", "4067-fault.txt"):
        make(attempt.dir / "agent" / name)
    assert attempt.verdict().cause == "finished"


def test_the_agents_mark_shows_that_it_did(attempt: Attempt) -> None:
    asked(attempt, 148, None)
    (attempt.dir / "agent").mkdir()
    (attempt.dir / "agent/stop.taken").touch()
    assert attempt.verdict().headline.endswith("and it did")


@pytest.mark.parametrize(("mark", "certainty"), [("", "likely"), ("stop.taken", "proven")])
def test_a_users_request_is_proven_by_the_agents_mark_too(
    attempt: Attempt, mark: str, certainty: str
) -> None:
    attempt.act("request", by="user", before=10, why="oomproof stop")
    attempt.run["settings"]["stop_file"] = "/home/me/stop"
    attempt.ended(code=0)
    (attempt.dir / "agent").mkdir()
    if mark:
        (attempt.dir / "agent" / mark).touch()
    assert (attempt.verdict().cause, attempt.verdict().certainty) == ("stopped-by-user", certainty)


def test_whoever_listens_and_did_not_take_it_up_ended_by_itself(attempt: Attempt) -> None:
    asked(attempt, 148, None)
    (attempt.dir / "agent").mkdir()
    (attempt.dir / "agent/4067-listens.txt").write_text("save stop\nthe Hugging Face Trainer\n")
    assert attempt.verdict().cause == "finished"


def test_an_error_long_after_a_request_nobody_heard_is_the_jobs_own(attempt: Attempt) -> None:
    attempt.ended(code=1)
    attempt.output = b"cannot go on\n"
    asked(attempt, 148, "raise SystemExit(1)")
    assert attempt.verdict().cause == "other-error"


# signals that we handed on


def test_a_sigterm_that_was_passed_on_is_told_as_such(attempt: Attempt) -> None:
    attempt.ended(signal=SIGTERM)
    attempt.act("signal", by="user", before=0.2, why="SIGTERM")
    verdict = attempt.verdict()
    assert verdict.cause == "interrupted"
    assert "sent it to `oomproof run`, which passed it on" in verdict.headline
    assert "did not send" not in verdict.why


def test_one_that_was_not_is_somebody_elses(attempt: Attempt) -> None:
    attempt.ended(signal=SIGTERM)
    assert "which oomproof did not send" in attempt.verdict().why


@pytest.mark.parametrize("output", [b"0\n", b"0\nTraceback (most recent call last):\n  File \"a.py\", line 2, in <module>\n    print(i)\nBrokenPipeError: [Errno 32] Broken pipe\n"])  # fmt: skip
def test_a_reader_that_went_away(attempt: Attempt, output: bytes) -> None:
    attempt.ended(**({"signal": SIGPIPE} if output == b"0\n" else {"code": 1}))
    attempt.output = output
    attempt.act("signal", by="front", before=0.2, why="SIGPIPE")
    verdict = attempt.verdict()
    assert (verdict.cause, verdict.certainty) == ("interrupted", "proven")
    assert "the reader of its output went away" in verdict.headline
    assert "who or what sends" not in verdict.next and "read the traceback" not in verdict.next


@pytest.mark.parametrize("before", [1.0, 70.0])
def test_a_failure_without_a_word_after_the_reader_went_proves_nothing(
    attempt: Attempt, before: float
) -> None:
    attempt.ended(code=3)
    attempt.output = b"0\n"
    attempt.run["settings"]["grace"] = 30
    attempt.act("signal", by="front", before=before, why="SIGPIPE")
    verdict = attempt.verdict()
    assert verdict.certainty != "proven"
    assert {"interrupted", "other-error"} <= {claim.cause for claim in verdict.causes}
    assert verdict.cause == ("interrupted" if before == 1.0 else "other-error")


def test_a_programs_own_word_about_the_closed_pipe(attempt: Attempt) -> None:
    attempt.ended(code=1)
    attempt.output = b"yes: standard output: Broken pipe\n"
    attempt.act("signal", by="front", before=1.0, why="SIGPIPE")
    assert (attempt.verdict().cause, attempt.verdict().certainty) == ("interrupted", "proven")


@pytest.mark.parametrize(
    ("error", "cause"), [("No space left on device", "disk-full"), ("Input/output error", "other-error")]
)
def test_output_that_cannot_be_written_is_no_reader_that_went_away(
    attempt: Attempt, error: str, cause: str
) -> None:
    attempt.ended(signal=SIGPIPE)
    attempt.output = b"0\n"
    attempt.act("output-lost", by="front", before=0.2, why=error)
    verdict = attempt.verdict()
    assert verdict.cause == cause and f"could not be written: {error}" in verdict.headline
    assert "reader" not in verdict.headline + verdict.why + verdict.next


def test_output_that_stops_in_a_bar_is_no_silent_end_where_the_status_is_known(attempt: Attempt) -> None:
    attempt.ended(signal=SIGABRT)
    attempt.output = b"Epoch 1/30\n 42%|####      | 472/1122 [00:59<01:21,  8.00it/s]"
    verdict = attempt.verdict()
    assert verdict.cause != "silent-end" and "died without a word" not in verdict.headline
    assert "SIGABRT" in verdict.why + verdict.headline


def test_a_closed_pipe_of_the_jobs_own_asks_for_no_sender(attempt: Attempt) -> None:
    attempt.ended(signal=SIGPIPE)
    verdict = attempt.verdict()
    assert "whoever read what it wrote" in verdict.headline and "ask who" not in verdict.next


# a pool that lost a worker


def pool(attempt: Attempt, *, pid: int = 4090, before: float = 40.0, name: str = "python3") -> None:
    """Without a cgroup of its own; the worker lived between two samples."""
    attempt.started["backend"] = {"name": "watch"}
    attempt.ended(signal=SIGINT, memcg_oom_kill=None, vmstat_oom_kill=8)
    attempt.kernel_lines = kernel(
        [line.replace("python3", name) for line in MACHINE_KILL], at=END - before, pid=pid, cgroup="/user"
    )


def test_a_pools_worker_between_two_samples_is_of_this_job(attempt: Attempt) -> None:
    pool(attempt)
    verdict = attempt.verdict()
    assert (verdict.cause, verdict.certainty) == ("oom-kill-global", "likely")
    assert "(python3, pid 4090)" in verdict.headline
    assert (
        "40 s later, from outside: what waits for a killed process (a pool's map) can never finish"
        in verdict.why
    )
    assert not any("not of this job" in item.says for item in verdict.evidence)


@pytest.mark.parametrize("other", [{"pid": 9000}, {"name": "chrome"}])
def test_a_kill_of_something_else_stays_somebody_elses(attempt: Attempt, other: dict[str, object]) -> None:
    pool(attempt, **other)  # type: ignore[arg-type]
    verdict = attempt.verdict()
    assert (verdict.cause, verdict.certainty) == ("interrupted", "proven")
    assert any("not of this job" in item.says for item in verdict.evidence)


@pytest.mark.parametrize(("started_in", "ours"), [("/user", True), ("/user/tests-17", False), ("/", True)])
def test_a_process_that_looks_alike_died_where_the_job_was_started(
    attempt: Attempt, started_in: str, ours: bool
) -> None:
    """Another program's python, in a container of its own, is no worker of this job."""
    pool(attempt)
    attempt.started["memcg"] = started_in.rstrip("/") or None
    assert bool(attempt.case().kernel.our_kills) is ours


def test_a_process_that_looks_alike_explains_no_end_that_was_ours(attempt: Attempt) -> None:
    """The guard sent SIGTERM; nobody waited for a lost worker."""
    pool(attempt)
    attempt.exit["signal"] = SIGTERM
    attempt.act("term", before=2.0, why="58 MiB of RAM available, the job held 3 GiB")
    verdict = attempt.verdict()
    assert (verdict.cause, verdict.certainty) == ("stopped-by-guard", "proven")
    attempt.actions = []
    attempt.act("term", by="user", before=2.0, why="oomproof stop")
    assert attempt.verdict().headline == "stopped by you"


def test_a_process_that_looks_alike_long_before_is_somebody_elses(attempt: Attempt) -> None:
    attempt.started["boottime"] = END - 900
    pool(attempt, before=500)
    verdict = attempt.verdict()
    assert verdict.cause == "interrupted" and "python3, pid 4090" not in verdict.headline


def test_what_a_process_that_looks_alike_held_is_not_the_jobs_peak(attempt: Attempt) -> None:
    pool(attempt)
    case = attempt.case()
    assert [kill.sure for kill in case.kernel.our_kills] == [False]
    assert case.samples.job_peak == case.samples.sampled_peak and judge(case).kills == ()


def test_a_job_killed_itself_is_not_explained_by_another_python(attempt: Attempt) -> None:
    pool(attempt)
    attempt.exit["signal"] = 9
    assert attempt.verdict().cause == "killed-unknown"


def test_a_pools_worker_killed_in_the_jobs_own_cgroup(attempt: Attempt) -> None:
    attempt.ended(signal=SIGINT, memcg_oom_kill=1, vmstat_oom_kill=8)
    attempt.kernel_lines = kernel(MACHINE_KILL, at=END - 300, pid=4090)
    attempt.started["boottime"] = END - 400
    verdict = attempt.verdict()
    assert (verdict.cause, verdict.certainty) == ("oom-kill-global", "proven")
    assert "5 min later, from outside" in verdict.why


def test_ctrl_c_of_a_job_that_went_on_after_it_is_ctrl_c(attempt: Attempt) -> None:
    attempt.ended(signal=SIGINT, memcg_oom_kill=1, vmstat_oom_kill=8)
    attempt.kernel_lines = kernel(MACHINE_KILL, at=END - 80, pid=4090)
    verdict = judge(changed(attempt.case(), step=900, step_time=END - 1))
    assert verdict.cause == "interrupted"


# a loader's worker


LOST = b"RuntimeError: DataLoader worker (pid(s) 4100) exited unexpectedly\n"


def test_a_worker_that_exited_by_its_own_error_was_not_killed(attempt: Attempt) -> None:
    attempt.ended(code=1)
    attempt.output = b'Traceback (most recent call last):\n  File "a.py", line 2, in <module>\n' + LOST
    told = AgentMessage(
        END - 1, "worker-lost", "DataLoader worker (pid 4100) exited unexpectedly with exit code 3."
    )
    verdict = judge(changed(attempt.case(), told=(told,)))
    assert verdict.cause == "other-error" and "ended by an error of its own" in verdict.headline
    assert "killed" not in verdict.headline and "dmesg" not in verdict.next
    assert not any("worker" in remedy.title for remedy in verdict.remedies)


def test_a_log_that_tells_of_its_exit_code_says_so_too(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    sentence = (
        b"RuntimeError: DataLoader worker (pid 4100) exited unexpectedly with exit code 3. Details are lost\n"
    )
    log.write_bytes(b'Traceback (most recent call last):\n  File "a.py", line 2, in <module>\n' + sentence)
    verdict = judge_texts(read_texts([str(log)]))
    assert "ended by an error of its own, with exit code 3" in verdict.headline
    assert "killed" not in verdict.headline and "dmesg" not in verdict.next
    assert "kernel" not in verdict.causes[0].test and not verdict.remedies


def test_counters_that_rule_the_kernel_out_send_nobody_to_its_log(attempt: Attempt) -> None:
    attempt.ended(code=1)
    attempt.output = b'Traceback (most recent call last):\n  File "a.py", line 2, in <module>\n' + LOST
    verdict = attempt.verdict()
    assert verdict.cause == "dataloader-killed"
    assert "the kernel killed nothing" in verdict.why
    assert "dmesg" not in verdict.next and "kernel's log" not in verdict.causes[0].test


def test_a_pool_without_a_loader_gets_no_advice_on_one(attempt: Attempt, tmp_path: Path) -> None:
    script = tmp_path / "pool.py"
    script.write_text(
        "from concurrent.futures import ProcessPoolExecutor\nwith ProcessPoolExecutor(2): pass\n"
    )
    attempt.run |= {
        "argv": ["python", str(script)],
        "code": {"script": str(script), "script_sha256": hash_file(str(script))},
    }
    attempt.processes = [(LEADER, "main", "python3")]
    attempt.ended(code=1)
    words = b"concurrent.futures.process.BrokenProcessPool: A process in the process pool was terminated abruptly\n"
    attempt.output = b'Traceback (most recent call last):\n  File "a.py", line 2, in <module>\n' + words
    verdict = attempt.verdict()
    assert verdict.cause == "killed-unknown" and "num_workers" not in verdict.next
    assert "ask who or what sent it" in verdict.next and "dmesg" not in verdict.next


# Ctrl-C


LAUNCHER = b"""W1118 torch/distributed/elastic/agent/server/api.py:753] Received 2 death signal, shutting down workers
Traceback (most recent call last):
  File "torchrun", line 8, in <module>
torch.distributed.elastic.multiprocessing.api.SignalException: Process 4197 got signal: 2
"""


def test_ctrl_c_that_a_launcher_turns_into_a_code_is_still_ctrl_c(attempt: Attempt) -> None:
    """It was "stopped from outside (likely)", though we had passed it on ourselves."""
    attempt.act("interrupt", by="user", before=4.1, why="SIGINT")
    attempt.ended(code=1)
    attempt.output = LAUNCHER
    verdict = attempt.verdict()
    assert (verdict.cause, verdict.certainty) == ("interrupted", "proven")
    assert "Ctrl-C" in verdict.headline and "passed it on" in verdict.why
    assert "oomproof run" in verdict.next


def test_an_error_of_its_own_after_ctrl_c_is_told_as_that(attempt: Attempt) -> None:
    attempt.act("interrupt", by="user", before=4.1, why="SIGINT")
    attempt.ended(code=1)
    attempt.output = b'Traceback (most recent call last):\n  File "a.py", line 2, in <module>\nKeyError: 3\n'
    assert attempt.verdict().cause == "other-error"


def test_ctrl_c_long_before_is_not_why(attempt: Attempt) -> None:
    attempt.act("interrupt", by="user", before=400, why="SIGINT")
    attempt.ended(code=1)
    attempt.output = LAUNCHER
    assert attempt.verdict().certainty != "proven"


# shared memory of the job's own


def test_shm_of_the_jobs_own_namespace(attempt: Attempt) -> None:
    """The sample was of its own 64 MiB; at the exit only the machine's 23.5 GiB could be read."""
    attempt.ended(signal=7)
    attempt.exit["shm"] = {"total": 24 * GIB, "free": 24 * GIB}
    attempt.samples = []
    attempt.sample(shm_free=4 << 20)
    case = attempt.case()
    assert (case.samples.shm_total, case.samples.shm_free) == (
        16 * GIB,
        4 << 20,
    )  # of one and the same /dev/shm


NO_SPACE = (
    b'Traceback (most recent call last):\n  File "t.py", line 1, in <module>\n'
    b"RuntimeError: unable to allocate shared memory(shm) for file </torch_30412_307_0>: "
    b"No space left on device (28)\n"
)


def test_a_full_shm_that_nobody_saw_full_is_not_told_with_the_figures_of_another(attempt: Attempt) -> None:
    """It was "full (23.5 GiB of 23.5 GiB free)", to be made smaller with mount -o remount."""
    attempt.ended(code=1)
    attempt.output = NO_SPACE
    verdict = attempt.verdict()
    assert verdict.cause == "shm-exhausted"
    assert "free" not in verdict.headline
    assert "16.0 GiB of 16.0 GiB were free" in verdict.why and "of its own" in verdict.why
    assert "df -h /dev/shm" in verdict.next and "num_workers=0" in verdict.next
    assert not [remedy for remedy in verdict.remedies if "remount" in (remedy.command or "")]


def test_the_failing_process_tells_the_shm_that_it_saw(attempt: Attempt) -> None:
    """It ended before the first sample that would have seen its mount namespace."""
    attempt.ended(code=1)
    attempt.output = NO_SPACE
    attempt.case()
    db = sqlite3.connect(attempt.dir / "recording.sqlite")
    told = json.dumps({"pid": 4100, "shm": [20 << 20, 18 << 20]})  # the dead worker has given its pages back
    db.execute("INSERT INTO event VALUES(?,?,?,?)", (END - 1, "exception", "RuntimeError at t.py:1", told))
    db.commit()
    db.close()
    verdict = judge(attempt.collect())
    assert "/dev/shm was full (20 MiB in all)" in verdict.headline
    assert "num_workers=0" in verdict.next and "half of num_workers" not in verdict.next
    assert "--shm-size=2048M" in verdict.next


@pytest.mark.parametrize(("before", "cause"), [(0.2, "interrupted"), (-0.2, "other-error")])
def test_a_signal_that_came_after_the_end_did_not_end_it(attempt: Attempt, before: float, cause: str) -> None:
    attempt.ended(code=7)
    attempt.act("interrupt", by="user", before=before, why="SIGINT")
    assert attempt.verdict().cause == cause

"""Logs as jobs leave them: several runs in one file, stray complaints, broken lines, exceptions without words."""

from __future__ import annotations

import pytest

from oomproof.diagnosis.judge import judge_texts
from oomproof.evidence.texts.finding import Finding
from oomproof.evidence.texts.root_failure import root
from oomproof.evidence.texts.text_case import read_texts
from oomproof.evidence.texts.training_parser import TrainingParser

OPENS = "2024-05-01 10:00:0{} INFO Starting the experiment with seed {}\n"
FAILS = 'Traceback (most recent call last):\n  File "run.py", line 3, in train\n    x()\n{}\n'


@pytest.fixture
def cause(tmp_path):
    def judge(text: str) -> str:
        path = tmp_path / "log.txt"
        path.write_text(text)
        return judge_texts(read_texts([str(path)])).cause

    return judge


def dies_of(text: str) -> Finding:
    parser = TrainingParser("-")
    for number, line in enumerate(text.splitlines(), 1):
        parser.feed(number, line)
    found = root(parser.finish())
    assert found is not None
    return found


def test_the_last_of_several_runs_counts() -> None:
    text = (
        OPENS.format(1, 1) + FAILS.format("KeyError: 'a'") + OPENS.format(2, 2) + FAILS.format("MemoryError")
    )
    assert dies_of(text).cause == "python-memory-error"


def test_a_run_that_says_nothing_more_takes_nothing_back() -> None:
    text = OPENS.format(1, 1) + FAILS.format("KeyError: 'a'") + OPENS.format(2, 2) + "reading\n"
    assert dies_of(text).cause == "other-error"


def test_a_line_of_every_step_opens_no_run() -> None:
    steps = "".join(OPENS.format(second, 1) for second in range(9))
    text = steps + FAILS.format("KeyError: 'a'") + steps + FAILS.format("MemoryError")
    assert dies_of(text).cause == "other-error"  # the first failure, of one run


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (FAILS.format("Exception: the loader gave nothing"), "other-error"),
        (FAILS.format("Exception"), "other-error"),
        (FAILS.format("lib.errors.ParserError: \nthe file is empty"), "other-error"),
        ("CondaError: Run 'conda init' before 'conda activate'\n" + FAILS.format("ModuleNotFoundError: No module named 'a'"), "import-error"),
        ("CondaError: Run 'conda init' before 'conda activate'\n", "other-error"),
        ("./run.sh: line 8:     7 Killed                  python a.py\n", "killed-unknown"),
        ("libx.so: undefined symbol: f\n", "import-error"),
        ("RuntimeError: DataLoader worker (pid 47) is killed by signal: Bus\nerror. It is possible that workers are out of shared\n", "shm-exhausted"),
        ("ResourceExhaustedError                    Traceback (most recent call last)\n"
         "~/env/tensorflow/python/client/session.py in _do_call(self, fn, *args)\n   1321     try:\n-> 1322       return fn(*args)\n", "tf-oom"),
        ("  Buffer 15:\n    Size: 506.25MiB\n    XLA Label: custom-call\n    Shape: f32[1,64,1080]\n" + FAILS.format("").rstrip() + "\n", "jax-oom"),
    ],
)  # fmt: skip
def test_what_it_was(text: str, kind: str, cause) -> None:
    assert cause(text) == kind


def test_ctrl_c_that_a_finalizer_swallowed(cause) -> None:
    text = 'Exception ignored in: <function Pool.__del__ at 0x7f>\nTraceback (most recent call last):\n  File "pool.py", line 1, in __del__\n    x()\nKeyboardInterrupt: \n'
    assert cause(text) == "interrupted"


def test_ray_names_the_cure_where_its_report_is_cut(cause) -> None:
    text = "(raylet) Refer to the documentation on how to address the out of memory issue: https://docs.ray.io/x.html. Consider provisioning more memory.\n"
    assert cause(text) == "ray-oom"


@pytest.mark.parametrize(
    ("sentence", "asked"),
    [
        ("OOM when allocating tensor of shape [171164,200] and type float", 171164 * 200 * 4),
        ("OOM when allocating tensor with shape[2,3] and type half on /job:a by allocator GPU_0_bfc", 12),
        ("OOM when allocating tensor with shape[2,3]", None),  # of an unknown type
    ],
)
def test_a_tensors_size_by_its_shape(sentence: str, asked: int | None) -> None:
    found = dies_of(FAILS.format(f"tensorflow.errors.ResourceExhaustedError: {sentence}"))
    assert found.cause == "tf-oom"
    assert (found.gpu.requested if found.gpu else None) == asked


def test_a_sentence_broken_inside_its_figures() -> None:
    text = FAILS.format(
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 \nGiB (GPU 0; 11.93 GiB total\n"
        "capacity; 8.75 GiB already allocated; 763.06 MiB free; 10.74 GiB reserved in total by PyTorch)"
    )
    gpu = dies_of(text).gpu
    assert gpu is not None and gpu.requested == 2 << 30 and gpu.total == round(11.93 * (1 << 30))


AGENT = "wandb: Agent Starting Run: {} with config:\n"


def test_a_sweeps_last_run_counts() -> None:
    """One process tries several settings in turn; the figures that matter are of the last one that failed."""
    text = (
        AGENT.format("a1b2c3") + FAILS.format("KeyError: 'a'") + AGENT.format("d4e5f6") + FAILS.format("MemoryError")
    )  # fmt: skip
    assert dies_of(text).cause == "python-memory-error"


def test_an_agent_that_starts_another_run_takes_nothing_back(cause) -> None:
    text = (
        AGENT.format("a1b2c3")
        + FAILS.format("MemoryError")
        + AGENT.format("d4e5f6")
        + "wandb: Run data is saved\n"
    )
    assert cause(text) == "python-memory-error"


def test_what_python_prints_as_a_warning_is_no_death(cause) -> None:
    warned = (
        "/opt/env/lib/python3.11/site-packages/fast_ops/load.py:63: UserWarning: Cannot use 'fast-ops', slower ones are used. "
        "/opt/env/lib/python3.11/site-packages/fast_ops/_ops.so: undefined symbol: _ZN5torch3jit\n"
    )
    assert cause(warned * 2 + "predicting 3 of 9\n") == "not-a-crash"
    assert cause(warned.partition("UserWarning: ")[2]) == "import-error"


@pytest.mark.parametrize(
    ("path", "slug"), [("/tmp/pymp-x1", "disk-full"), ("/dev/shm/pymp-x1", "shm-exhausted")]
)
def test_a_full_disk_is_told_by_its_path(cause, path: str, slug: str) -> None:
    text = (
        'Traceback (most recent call last):\n  File "/usr/lib/python3.8/multiprocessing/reductions.py", line 9, in reduce_storage\n'
        f"    df = DupFd(fd)\nOSError: [Errno 28] No space left on device: '{path}'\n"
    )
    assert cause(text) == slug


def test_a_shell_that_cannot_read_a_script_ends(cause) -> None:
    assert (
        cause("/var/spool/slurmd/job42/slurm_script: 8: .: Can't open /home/me/settings\n") == "other-error"
    )


def test_an_exit_code_in_brackets(cause) -> None:
    assert (
        cause("Last Error: Pod failed.\n[f81-n0-0] terminated with exit code (137). Reason [Error].\n")
        == "killed-unknown"
    )
    assert cause("[f81-n0-0] terminated with exit code (0). Reason [Completed].\n") == "not-a-crash"


STEPS = "".join(f"Epoch 1/2: step {step}/500 loss=0.{step}\n" for step in range(100, 500, 100))
OUT_OF_MEMORY = "slurmstepd: error: Detected 1 oom_kill event in StepId=4242.0. Some of the step tasks have been OOM Killed.\n"
LIMIT = (
    "slurmstepd: error: *** STEP 4242.0 ON node17 CANCELLED AT 2024-05-01T10:00:00 DUE TO TIME LIMIT ***\n"
)


@pytest.mark.parametrize("ended", [OUT_OF_MEMORY, LIMIT])
def test_a_later_attempt_that_finished_counts(cause, ended: str) -> None:
    assert cause(STEPS + ended + STEPS + "Training finished. Model saved to out\n") in (
        "not-a-crash",
        "finished",
    )


@pytest.mark.parametrize("below", ["", "Epoch 1/2: step 500/500 loss=0.1\nTraining finished.\n", STEPS])
def test_an_attempt_that_did_not_finish_takes_nothing_back(cause, below: str) -> None:
    assert cause(STEPS + OUT_OF_MEMORY + below) == "slurm-oom"


def test_a_finished_training_takes_no_kernels_kill_back(cause) -> None:
    killed = "[ 123.456789] Out of memory: Killed process 4242 (python3) total-vm:9000kB, anon-rss:8000kB, file-rss:0kB, shmem-rss:0kB\n"
    assert cause(killed + STEPS + "Training finished.\n") == "oom-kill-global"


NAMESPACE = "Namespace(batch_size={}, seed={})\n"
ASKED = "RuntimeError: CUDA out of memory. Tried to allocate {} MiB (GPU 0; 23.64 GiB total capacity)"


def asked(text: str) -> int | None:
    gpu = dies_of(text).gpu
    return gpu.requested if gpu is not None else None


def test_any_line_of_the_opening_opens_the_next_run() -> None:
    opening = "4 trials, grid search\n===== trial 1/4: lr=0.1 =====\n"
    text = opening + FAILS.format(ASKED.format(20)) + "===== trial 2/4: lr=0.01 =====\n"
    assert asked(text + FAILS.format(ASKED.format(48))) == 48 << 20


def test_what_stands_twice_in_an_opening_opens_nothing() -> None:
    ranks = "".join(f"[rank{rank}]: using the device cuda:{rank} of the node\n" for rank in range(2))
    text = f"torchrun starts two ranks\n{ranks}" + FAILS.format(ASKED.format(20))
    assert asked(text + ranks + FAILS.format(ASKED.format(48))) == 20 << 20


def test_an_epoch_that_goes_back_to_the_first_is_another_run() -> None:
    def epochs(last: int) -> str:
        return "".join(f"Epoch {epoch}/30, train loss: 0.5\n" for epoch in range(1, last))

    text = epochs(9) + FAILS.format(ASKED.format(20)) + epochs(5) + FAILS.format(ASKED.format(48))
    assert asked(text) == 48 << 20


def test_a_kill_above_the_last_run_is_not_its_own(cause) -> None:
    killed = "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=41.batch.\n"
    first = OPENS.format(1, 1) + NAMESPACE.format(8, 1) + killed
    assert cause(first) == "slurm-oom"
    assert cause(first + OPENS.format(2, 2) + FAILS.format("KeyError: 'lr'")) == "other-error"
    assert cause(OPENS.format(1, 1) + FAILS.format("KeyError: 'lr'") + OPENS.format(2, 2) + killed) == "slurm-oom"  # fmt: skip


UNCAUGHT = 'Traceback (most recent call last):\n  File "run.py", line 9, in <module>\n    main()\n{}\n'


def steps(first: int, last: int) -> str:
    return "".join(f"step {step} loss 0.5\n" for step in range(first, last))


@pytest.mark.parametrize(
    "behind",
    [
        steps(60, 90),  # what was still in the buffer
        steps(60, 90) + "srun: error: node17: task 0: Exited with exit code 1\n",
        steps(0, 40),  # the next run
    ],
)
def test_an_exception_that_nobody_caught_is_the_end(behind: str, cause) -> None:
    assert cause(steps(0, 60) + UNCAUGHT.format(ASKED.format(20)) + behind) == "cuda-oom"


def test_errors_in_front_of_what_was_printed(cause) -> None:
    assert cause(UNCAUGHT.format(ASKED.format(20)) + NAMESPACE.format(8, 1) + steps(0, 60)) == "cuda-oom"


@pytest.mark.parametrize(
    ("before", "behind"),
    [
        ("", "batch skipped, continuing\n" + steps(60, 90)),
        ("ERROR:run:could not read the batch\n", steps(60, 90)),
        ("", steps(60, 90) + "Training finished\n"),
        ("", "".join(f"step {step}/90 loss 0.5\n" for step in range(60, 91))),
        ("", steps(60, 900)),  # more than a buffer holds
    ],
)
def test_an_exception_that_was_survived(before: str, behind: str, cause) -> None:
    text = steps(0, 60) + before + UNCAUGHT.format(ASKED.format(20)) + behind
    assert cause(text) in ("not-a-crash", "silent-end")


def test_another_ranks_progress_takes_nothing_back(cause) -> None:
    fails = "".join(f"[rank0]: {line}\n" for line in FAILS.format(ASKED.format(20)).splitlines())
    assert cause(fails + "".join(f"[rank1]: {line}\n" for line in steps(0, 9).splitlines())) == "cuda-oom"
    assert cause(fails + "".join(f"[rank0]: {line}\n" for line in steps(0, 9).splitlines())) == "not-a-crash"


def test_a_program_that_repeats_its_advice_is_no_manual(cause) -> None:
    advice = "RuntimeError: cuDNN error: CUDNN_STATUS_INTERNAL_ERROR\nYou can try to repro this exception using the following code snippet. If that doesn't trigger the error, please include your original repro script when reporting this issue."
    run = "".join(f"step {step} loss 3.0000 lr 0.001\n" for step in range(0, 40, 5)) + FAILS.format(advice)
    assert cause(run + run) == "cudnn"


def test_ctrl_c_behind_an_exception_is_not_why(cause) -> None:
    raised = FAILS.format("TypeError: expected np.ndarray (got NoneType)")
    pressed = "\nDuring handling of the above exception, another exception occurred:\n\n" + FAILS.format(
        "KeyboardInterrupt"
    )
    assert cause(raised + pressed) == "other-error"


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("ValueError: Unable to load checkpoint from a.pth\n\nRuntimeError: unable to mmap 16060617592 bytes from file <a.pth>: Cannot allocate memory (12)\n", "python-memory-error"),
        ("The executor with id 10 exited with exit code -1.\nThe node was low on resource: ephemeral-storage. Container x was using 107260Ki\n", "disk-full"),
        ("Checkpoint saved on signal 10 (SIGUSR1)\nstep 1 loss 0.5\n", "not-a-crash"),
        ("   29 CUDA Error: out of memory\ndarknet: ./src/cuda.c:36: check_error: Assertion `0 'failed.\n", "cuda-oom"),
        ("luajit: not enough memory\n", "python-memory-error"),
        ("distributed.nanny - WARNING - Worker exceeded 95% memory budget.  Restarting\n", "dask-oom"),
        ("RuntimeError:  CUDA out of memory.  Tried to allocate 20.00 MiB\n", "cuda-oom"),
        ("Caused by: No space left on device\n", "disk-full"),
        ("2024-05-03 12:00:00,123 ERROR main: GGML_ASSERT: ggml.c:4321: ctx->mem_buffer != NULL\n", "assert"),
        ("2024-05-03 12:00:00,123 INFO main: step 1 loss 0.5\n", "not-a-crash"),
        ("error: GPU 0: Out of memory, failed to allocate 9 MB\n", "cuda-oom"),
        ("Failed to allocate memory\n", "python-memory-error"),
        ("Failed to allocate memory for the cache, falling back to disk\nstep 1 loss 0.5\nstep 2 loss 0.5\n", "not-a-crash"),
        ("ERROR: std::bad_alloc\n", "bad-alloc"),
        ("GPUassert: out of memory main.cu 123\n", "cuda-oom"),
        ("Vulkan error: VK_ERROR_OUT_OF_DEVICE_MEMORY\n", "cuda-oom"),
        ("MIOpen Error: workspace too large: hipMalloc failed\n", "cuda-oom"),
        ("main: OOMKilled (exit code 137)\n", "oom-kill-memcg"),
        ("E1103 18:23:55.102625 3413782 gpu_cudamallocasync_allocator.cc:73] 2097152, 784\n", "not-a-crash"),
        ("Fatal error: exception Out_of_memory\n", "python-memory-error"),
    ],
)  # fmt: skip
def test_what_fresh_texts_showed(text: str, kind: str, cause) -> None:
    assert cause(text) == kind


@pytest.mark.parametrize(
    ("text", "phase"),
    [
        ('Traceback (most recent call last):\n  File "a.py", line 1, in fit\n    ) = self.sharded_train_step_function(state, batch)\n' + ASKED.format(2) + "\n", "train"),
        ("    self.model = self.model.to(self.device)\n" + ASKED.format(2) + "\n", "load"),
    ],
)  # fmt: skip
def test_phases_that_fresh_texts_showed(text: str, phase: str, tmp_path) -> None:
    path = tmp_path / "log.txt"
    path.write_text(text)
    assert judge_texts(read_texts([str(path)])).phase == phase


STEP_ENDS = "srun: error: node17: task 0: Exited with exit code 2\n"
STEP_CANCELLED = "slurmstepd: error: *** STEP 4242.0 ON node17 CANCELLED AT 2024-05-01T10:00:00 ***\n"


def test_a_step_is_cancelled_when_its_task_failed_by_itself(cause) -> None:
    missing = "slurmstepd: error: execve(): /home/me/run.sh: No such file or directory\n"
    assert cause(missing + STEP_ENDS + STEP_CANCELLED) == "other-error"
    assert dies_of(missing + STEP_ENDS + STEP_CANCELLED).says == "Slurm could not start the program"
    assert cause(STEP_ENDS + STEP_CANCELLED) == "other-error"


def test_a_cancelled_step_or_job_is_interrupted_all_the_same(cause) -> None:
    assert cause(STEP_CANCELLED + STEP_ENDS) == "interrupted", "the task ended with it"
    job = "slurmstepd: error: *** JOB 4242 ON node17 CANCELLED AT 2024-05-01T10:00:00 ***\n"
    assert cause(STEP_ENDS + job) == "interrupted", "of a whole job its owner cancels what is left"


TASK = (
    "[2024-05-01 10:00:00,123: ERROR/ForkPoolWorker-8] Task app.score[8f5a0c3e-0000-4000-8000-123456789abc] "
    "raised unexpected: FileNotFoundError(2, 'No such file')\n"
    + FAILS.format("FileNotFoundError: /tmp/a.csv")
)


@pytest.mark.parametrize(
    "goes_on",
    [
        "[2024-05-02 09:00:00,000: INFO/MainProcess] celery@gpu1 ready.",
        "[2024-05-01 10:00:09,000: INFO/MainProcess] Task app.score[9f5a0c3e-0000-4000-8000-123456789abc] received",
        '10.0.0.7 - - [01/May/2024 10:00:09] "POST /score HTTP/1.1" 200 -',
    ],
)
def test_who_takes_the_next_task_survived_the_last_one(cause, goes_on) -> None:
    assert cause(TASK) == "other-error"
    assert cause(TASK + goes_on + "\n") == "not-a-crash"


def test_a_server_that_ran_out_of_memory_is_told_of_although_it_goes_on(cause) -> None:
    oom = FAILS.format("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.")
    assert cause(oom + '10.0.0.7 - - [01/May/2024 10:00:09] "GET /health HTTP/1.1" 200 -\n') == "cuda-oom"


def test_an_endless_line_of_data_tells_of_no_death(cause) -> None:
    data = (
        "['what we saw when we scrolled was: it crashed with SIGILL', 'core dumped, Killed', 'MemoryError']"
        * 4000
    )
    text = f"[2024-05-01 10:00:00,123 INFO] Processing {data}\n[2024-05-01 10:00:01,123 INFO] Processed instances 6\n"
    assert cause(text) == "not-a-crash"


@pytest.mark.parametrize(
    "last",
    [
        "sh: /home/me/script: No such file or directory",
        "/var/spool/slurmd/job42/slurm_script: line 12: ./run.sh: Permission denied",
        "mv: cannot stat 'out.txt': No such file or directory",
        "build_config failed",
        "[Errno 13] Permission denied: '/0.pkl'",
    ],
)
def test_last_words_of_shells_and_of_programs_that_say_little(cause, last) -> None:
    assert cause(f"Lines: 12\n{last}\n") == "other-error"
    assert cause(f"{last}\nLines: 12\n") == "not-a-crash", "the script went on"
    assert cause(f"Epoch 2/2, step 10/10, loss = 0.1\n{last}\n") == "not-a-crash", "what it was for is done"


def test_a_log_that_goes_on_for_long_did_not_die_of_what_one_part_raised(cause) -> None:
    died = FAILS.format("ZeroDivisionError: division by zero")
    answers = "".join(f"Answered request {n} of a user in {n}.3 s, {n * 7} tokens\n" for n in range(400))
    assert len(answers) > 15_000
    assert cause(answers + died) == "other-error"
    assert cause(died + answers) == "not-a-crash"
    assert cause(died + answers[:4000]) == "other-error", "what was still in a buffer"
    for before in ("  ", "wandb: "):
        below = "".join(before + line + "\n" for line in answers.splitlines())
        assert cause(died + below) == "other-error", "a stack, a table, a summary of the run"


def test_words_at_the_end_are_heard_although_an_older_failure_was_left_behind(cause) -> None:
    died = FAILS.format("ZeroDivisionError: division by zero")
    answers = "".join(f"Answered request {n} of a user in {n}.3 s, {n * 7} tokens\n" for n in range(400))
    assert cause(died + answers + "sh: /home/me/next.sh: No such file or directory\n") == "other-error"


def test_a_death_for_memory_is_never_left_behind(cause) -> None:
    died = FAILS.format("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.")
    answers = "".join(f"Answered request {n} of a user in {n}.3 s, {n * 7} tokens\n" for n in range(400))
    assert cause(died + answers) == "cuda-oom"


def test_the_last_job_of_several_counts_although_all_end_alike() -> None:
    job = (
        "[2024-05-01 10:00:00,123] [ERROR] [launch.py:325:sigkill_handler] ['python', 'train.py'] exits with return code = 1\n"
        + "".join(f"#BSUB -{letter} value {letter}\n" for letter in "abcdefghijklmnopqrstuvwxyz" * 3)
        + "Exited with exit code 1.\n"
    )
    assert dies_of(job).cause == "other-error", "the report below it is not 78 lines of something else"
    assert dies_of(4 * job).cause == "other-error"


def test_a_script_with_wrong_arguments_says_nothing_of_the_next_one(cause) -> None:
    usage = "usage: train.py [-h]\ntrain.py: error: argument --workers: expected one argument\n"
    other = 'Traceback (most recent call last):\n  File "caption.py", line 3, in <module>\n    x()\nKeyboardInterrupt\n'
    assert cause(usage + other) == "interrupted"
    assert cause(usage + other.replace("caption.py", "train.py")) == "other-error", "another rank of the same"


def test_a_complaint_of_each_item_is_not_the_end(cause) -> None:
    items = "".join(f"Error: Index out of range in bond information, CIDS: {n}\n" for n in range(20, 40))
    assert cause(items) == "not-a-crash"
    assert cause("Reading\nError: Index out of range in bond information, CIDS: 20\n") == "other-error"


ENDED = 'Traceback (most recent call last):\n  File "run.py", line 3, in <module>\n    import x\n{}\n'
WARNED = "/env/lib/x/dtypes.py:{}: FutureWarning: this form is old\n  kind = old()\n"
PARTS = "".join(f"loaded part {number} of the data set\n" for number in range(210))


def test_stderr_below_an_ended_process_is_another_run_s(cause) -> None:
    failed = PARTS + ENDED.format("ModuleNotFoundError: No module named 'x'")
    again = "".join(WARNED.format(line) for line in range(3)) + "rows: 8192\n"
    assert cause(failed) == "import-error"
    assert cause(failed + again) == "not-a-crash"
    assert cause(failed + "rows: 8192\nnotes\nmore notes\n") == "import-error", "what was still in a buffer"
    at_exit = "/env/lib/x/resource_tracker.py:{}: UserWarning: there appear to be leaked semaphores\n"
    assert cause(failed + "".join(at_exit.format(line) for line in range(4))) == "import-error"
    inside = PARTS + FAILS.format("KeyError: 'a'")
    assert cause(inside + again) == "other-error", "a piece of a stack: somebody may have caught it"


THREAD = """Exception in thread Thread-1:
Traceback (most recent call last):
  File "/env/lib/python3.10/threading.py", line 1016, in _bootstrap_inner
    self.run()
  File "/env/lib/python3.10/site-packages/writer.py", line 202, in run
    data = self._queue.get(True, wait)
OSError: handle is closed
"""


def test_a_thread_s_exception_at_a_run_s_end_is_not_its_death(cause) -> None:
    bar = " {percent}%|███       | {step}/200 [00:59<01:21,  8.0it/s, loss=0.4]\n"
    whole = "".join(bar.format(percent=step // 2, step=step) for step in range(160, 201))
    assert cause(whole + THREAD) == "not-a-crash"
    assert cause(whole + "End training....\n" + THREAD) == "not-a-crash"
    part = "".join(bar.format(percent=step // 2, step=step) for step in range(60, 101))
    assert cause(part + THREAD) == "other-error"
    assert cause(whole + THREAD + ENDED.format("KeyError: 'a'")) == "other-error"


def test_a_loss_that_is_nan_in_a_program_s_last_words(cause) -> None:
    assert cause("Epoch 3 loss: 0.2\n\nLoss is NAN: batch 7269\n") == "nan"
    assert cause("Epoch 3 loss: 0.2\nthe BANANA loss is fine\n") == "not-a-crash"


def test_a_loud_line_below_which_its_writer_goes_on_is_no_failure(cause) -> None:
    loud = "CRITICAL:__main__:reading the settings\n"
    assert (
        cause(loud + "INFO:__main__:the model is ready\nINFO:__main__:model saved to results\n")
        == "not-a-crash"
    )
    assert cause(loud + "INFO:__main__:shutting down\nINFO:__main__:closed the queue\n") == "other-error"
    assert cause(loud) == "other-error"

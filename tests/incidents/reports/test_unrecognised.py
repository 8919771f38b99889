"""Messages that were once not recognised, and advice that was followed and failed. Wrong answers stand as negatives."""

from __future__ import annotations

from pathlib import Path

import pytest

from oomproof.diagnosis.judge import judge_texts
from oomproof.diagnosis.verdict import Verdict
from oomproof.evidence.texts.text_case import read_texts

GIB = 1 << 30
NODE = """transforming (4213) src/app.ts

<--- Last few GCs --->

[2211:0x6b3e2f0]    61234 ms: Mark-Compact 2041.9 (2083.4) -> 2040.7 (2083.9) MB, 1834.33 / 0.00 ms allocation failure

<--- JS stacktrace --->

FATAL ERROR: Ineffective mark-compacts near heap limit Allocation failed - JavaScript heap out of memory
 1: 0xb8d0a3 node::OOMErrorHandler(char const*, v8::OOMDetails const&) [node]
Aborted (core dumped)
"""
JAVA = """24/03/01 10:12:19 ERROR Executor: Exception in task 3.0 in stage 7.0 (TID 55)
java.lang.OutOfMemoryError: Java heap space
\tat java.base/java.util.Arrays.copyOf(Arrays.java:3537)
\tat org.apache.spark.util.ByteBufferOutputStream.write(ByteBufferOutputStream.scala:41)
"""
DASK = """2024-05-02 10:00:01,123 - distributed.worker.memory - WARNING - Worker is at 81% memory usage. Pausing worker.
2024-05-02 10:00:03,456 - distributed.nanny.memory - WARNING - Worker tcp://127.0.0.1:41233 (pid=4242) exceeded 95% memory budget. Restarting...
2024-05-02 10:00:03,789 - distributed.nanny - WARNING - Restarting worker
Traceback (most recent call last):
  File "features.py", line 31, in <module>
    result = df.compute()
distributed.scheduler.KilledWorker: Attempted to run task 'read-7' on 4 different workers, but all those workers died while running it.
"""
MAPPED = """Traceback (most recent call last):
  File "train.py", line 1, in <module>
    import torch
ImportError: libtorch_cpu.so: failed to map segment from shared object
"""
NEIGHBOUR = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.64 GiB "
    "of which 812.00 MiB is free. Process 1234 has 20.00 GiB memory in use. Including non-PyTorch memory, this process "
    "has 2.80 GiB memory in use. Of the allocated memory 2.10 GiB is allocated by PyTorch, and 210.00 MiB is reserved by "
    "PyTorch but unallocated.\n"
)
HUGE_IMAGE = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 30.00 GiB. GPU 0 has a total capacity of 23.64 GiB "
    "of which 20.00 GiB is free. Including non-PyTorch memory, this process has 3.00 GiB memory in use. Of the allocated "
    "memory 2.10 GiB is allocated by PyTorch, and 210.00 MiB is reserved by PyTorch but unallocated.\n"
)
OOMD = (
    "Jan 12 14:03:22 box systemd-oomd[801]: Killed /user.slice/user-1000.slice/user@1000.service/app.slice/"
    "vte-spawn-1234.scope due to memory pressure for /user.slice/user-1000.slice/user@1000.service being 62.13% > "
    "50.00% for > 20s with reclaim activity\n"
)
SHM = "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).\n"


@pytest.fixture
def judged(tmp_path: Path):  # type: ignore[no-untyped-def]
    def judge(text: str) -> Verdict:
        path = tmp_path / "job.log"
        path.write_text(text)
        return judge_texts(read_texts([str(path)]))

    return judge


@pytest.mark.parametrize(
    ("text", "cause", "never"),
    [
        (NODE, "heap-limit", "abort"),
        (JAVA, "heap-limit", "other-error"),
        ('Exception in thread "main" java.lang.OutOfMemoryError: GC overhead limit exceeded\n', "heap-limit", "other-error"),
        (DASK, "dask-oom", "killed-unknown"),
        (MAPPED, "python-memory-error", "import-error"),
    ],
)  # fmt: skip
def test_it_is_recognised(judged, text: str, cause: str, never: str) -> None:  # type: ignore[no-untyped-def]
    verdict = judged(text)
    assert verdict.cause == cause and verdict.kind.memory
    assert never not in [ranked.cause for ranked in verdict.causes if ranked.probability > 0.2]


def test_each_is_told_what_its_own_runtime_needs(judged) -> None:  # type: ignore[no-untyped-def]
    assert "--max-old-space-size" in judged(NODE).next and "-Xmx" not in judged(NODE).next
    assert "-Xmx8g" in judged(JAVA).next
    php = judged(
        "PHP Fatal error:  Allowed memory size of 134217728 bytes exhausted (tried to allocate 4096 bytes) in x.php on line 5\n"
    )
    assert php.cause == "heap-limit" and "Java" not in php.next
    dask = judged(DASK)
    assert "memory_limit" in dask.next and dask.victim is not None and dask.victim.pid == 4242
    assert "ulimit -v" in judged(MAPPED).next and "install it" not in judged(MAPPED).next


def test_a_library_on_a_mount_without_exec_is_no_lack_of_memory(judged) -> None:  # type: ignore[no-untyped-def]
    text = MAPPED.replace("shared object", "shared object: Operation not permitted")
    assert judged(text).cause == "import-error"


def test_a_cuda_oom_is_none_of_javas(judged) -> None:  # type: ignore[no-untyped-def]
    assert judged(NEIGHBOUR).cause == "cuda-oom"


def test_the_neighbours_pid_stands_in_the_verdict(judged) -> None:  # type: ignore[no-untyped-def]
    verdict = judged(NEIGHBOUR)
    assert "process 1234 on the card held 20.0 GiB" in verdict.headline
    assert "ps -fp 1234" in verdict.next
    assert (verdict.remedies[0].command, verdict.remedies[0].saves_bytes) == ("ps -fp 1234", 20 * GIB)


def test_one_tensor_larger_than_the_card_is_not_answered_with_half_the_batch(judged) -> None:  # type: ignore[no-untyped-def]
    verdict = judged(HUGE_IMAGE)
    assert "resize, crop or tile" in verdict.next and not verdict.next.startswith("halve the batch")
    assert "a smaller input" in verdict.remedies[0].title


def test_the_victim_of_systemd_oomd_is_a_cgroup(judged) -> None:  # type: ignore[no-untyped-def]
    verdict = judged(OOMD)
    assert "vte-spawn-1234.scope" in verdict.headline
    assert verdict.victim is not None and verdict.victim.name == "vte-spawn-1234.scope"
    assert verdict.victim.pid is None


def test_a_full_shm_is_answered_with_a_larger_one(judged) -> None:  # type: ignore[no-untyped-def]
    """The file_system strategy lies in /dev/shm too; fewer workers do not make a batch fit."""
    verdict = judged(SHM)
    assert "--shm-size" in verdict.next and "file_system" not in verdict.next
    assert [remedy.change.key for remedy in verdict.remedies if remedy.change] == ["/dev/shm", "num_workers"]
    assert verdict.remedies[1].change is not None and verdict.remedies[1].change.after == "0"

"""Errors of the program's own, recognised from the end of its output; and texts that must not mislead."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest
from helpers_case import GIB, MIB, Attempt

from oomproof.diagnosis.judge import judge_texts
from oomproof.evidence.texts.text_case import read_texts
from oomproof.runner.supervise import address_space

TRACE = 'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n    step()\n    ~~~~^^\n'
CUDA = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.27 GiB. GPU 0 has a total capacity of "
    "47.53 GiB of which 844.06 MiB is free. Process 244271 has 26.06 MiB memory in use. Including "
    "non-PyTorch memory, this process has 46.68 GiB memory in use. Of the allocated memory 41.21 GiB is "
    "allocated by PyTorch, and 5.15 GiB is reserved by PyTorch but unallocated."
)
OLD_CUDA = (
    "RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 1; 15.90 GiB total capacity; "
    "14.75 GiB already allocated; 53.75 MiB free; 15.07 GiB reserved in total by PyTorch)"
)


@pytest.fixture
def attempt(tmp_path: Path) -> Attempt:
    attempt = Attempt(tmp_path)
    attempt.ended(code=1)
    return attempt


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (CUDA, "cuda-oom"),
        (OLD_CUDA, "cuda-oom"),
        ("MemoryError", "python-memory-error"),
        ("OSError: [Errno 12] Cannot allocate memory", "python-memory-error"),
        (
            "RuntimeError: [enforce fail at alloc_cpu.cpp:135] DefaultCPUAllocator: can't allocate memory: "
            "you tried to allocate 9 bytes. Error code 12",
            "python-memory-error",
        ),
        (
            "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 728. TiB for an array with shape "
            "(10000000, 10000000) and data type float64",
            "numpy-memory-error",
        ),
        ("OSError: [Errno 28] No space left on device: 'x.pt'", "disk-full"),
        ("KeyboardInterrupt", "interrupted"),
        ("ModuleNotFoundError: No module named 'torch'", "import-error"),
        ("AssertionError", "assert"),
        ("ValueError: bad shape", "other-error"),
        ("mypkg.errors.Sorry: no", "other-error"),
        ("RuntimeError: DataLoader worker (pid 9) is killed by signal: Killed. ", "dataloader-killed"),
        ("RuntimeError: DataLoader worker (pid(s) 12, 13) exited unexpectedly", "dataloader-killed"),
        (
            "RuntimeError: unable to write to file </torch_739_144252761_4>: No space left on device (28)",
            "shm-exhausted",
        ),
        ("RuntimeError: CUDA error: device-side assert triggered", "device-assert"),
        ("RuntimeError: CUDA error: an illegal memory access was encountered", "illegal-access"),
        ("RuntimeError: MPS backend out of memory (MPS allocated: 7.80 GiB, ...)", "mps-oom"),
        (
            "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes",
            "jax-oom",
        ),
        (
            "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
            "cublas-alloc",
        ),
    ],
)
def test_the_last_traceback(attempt: Attempt, error: str, cause: str) -> None:
    attempt.output = (TRACE + error + "\n").encode()
    verdict = attempt.verdict()
    assert verdict.cause == cause, verdict.headline
    assert verdict.certainty in ("proven", "likely") and verdict.next
    assert "{" not in verdict.next


def test_cuda_numbers_reach_the_verdict(attempt: Attempt) -> None:
    attempt.output = (TRACE + CUDA).encode()
    verdict = attempt.verdict()
    assert verdict.gpu is not None and verdict.gpu.index == 0
    assert verdict.gpu.total_bytes == round(47.53 * GIB) and verdict.gpu.free_bytes == round(844.06 * MIB)
    assert "asked for 1.3 GiB, 844 MiB of 47.5 GiB was free" in verdict.headline
    assert any("expandable_segments" in (each.command or "") for each in verdict.remedies)


def test_cuda_numbers_of_the_older_wording(attempt: Attempt) -> None:
    attempt.output = (TRACE + OLD_CUDA).encode()
    gpu = attempt.verdict().gpu
    assert gpu is not None and gpu.index == 1
    assert gpu.requested_bytes == 20 * MIB and gpu.free_bytes == int(53.75 * MIB)
    assert gpu.reserved_unallocated_bytes == round((15.07 - 14.75) * GIB)


def test_an_oom_that_was_caught_on_the_way_is_not_proven(attempt: Attempt) -> None:
    attempt.output = (TRACE + CUDA + "\nretrying\n" + TRACE + "KeyError: 'loss'\n").encode()
    verdict = attempt.verdict()
    assert {each.cause for each in verdict.causes} == {"other-error", "cuda-oom"}
    assert verdict.certainty != "proven" and "KeyError" in verdict.why


def test_the_word_memory_in_an_ordinary_error(attempt: Attempt) -> None:
    attempt.output = (TRACE + "ValueError: unknown section 'out of memory' in notes.txt\n").encode()
    assert attempt.verdict().cause == "other-error"


def test_text_after_an_ordinary_error_does_not_change_it(attempt: Attempt) -> None:
    attempt.output = (TRACE + "ValueError: x\nINFO: see also the docs on: CUDA out of memory\n").encode()
    assert attempt.verdict().cause == "other-error"


def test_the_first_error_of_a_chain_is_the_cause(attempt: Attempt) -> None:
    chain = "\nDuring handling of the above exception, another exception occurred:\n\n"
    attempt.output = (TRACE + CUDA + "\n" + chain + TRACE + "WrapperError: step failed\n").encode()
    verdict = attempt.verdict()
    assert verdict.cause == "cuda-oom"
    assert {each.cause for each in verdict.causes} == {"other-error", "cuda-oom"}


def test_words_without_a_traceback_are_likely_at_most(attempt: Attempt) -> None:
    attempt.output = b"cp: error writing 'x': No space left on device\n"
    verdict = attempt.verdict()
    assert (verdict.cause, verdict.certainty) == ("disk-full", "likely")


def test_no_words_at_all(attempt: Attempt) -> None:
    attempt.output = b""
    verdict = attempt.verdict()
    assert verdict.cause == "other-error" and "exit code 1" in verdict.headline


def test_command_not_found(attempt: Attempt) -> None:
    attempt.ended(code=127)
    assert "not found" in attempt.verdict().headline


def test_colours_progress_bars_ranks_and_nuls(attempt: Attempt) -> None:
    attempt.output = (
        b"\x1b[32mepoch\x1b[0m 10%|#   |\r 20%|##  |\r\0\0\n"
        b'[rank0]: Traceback (most recent call last):\n[rank0]:   File "t", line 1\n 30%|###|\rEpoch: 3\n'
        b"[rank0]:     step()\n"
        b"[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
    )
    assert attempt.verdict().cause == "cuda-oom"


def test_latin_1_output(attempt: Attempt) -> None:
    attempt.output = (
        "é è à ü ö ß — ".encode("latin-1", "ignore") * 9 + b"\n" + (TRACE + "MemoryError\n").encode()
    )
    assert attempt.verdict().cause == "python-memory-error"


@pytest.mark.parametrize(("limit", "told"), [(900_000 << 10, True), (1 << 46, False), (None, False)])
def test_what_ulimit_refused_is_told_so(attempt: Attempt, limit: int | None, told: bool) -> None:
    """20 GiB were free, and the advice was to load it in parts."""
    attempt.run["address_space"] = limit
    attempt.ended(code=1)
    attempt.output = (
        b'Traceback (most recent call last):\n  File "t.py", line 2, in <module>\n'
        b"numpy._core._exceptions._ArrayMemoryError: Unable to allocate 1.49 GiB for an array with shape (200000000,) "
        b"and data type float64\n"
    )
    verdict = attempt.verdict()
    assert verdict.cause == "numpy-memory-error"
    assert ("address space was limited to 879 MiB (ulimit -v)" in verdict.why) is told
    assert ("from a shell without that limit" in verdict.next) is told
    assert (verdict.remedies[0].change is not None and verdict.remedies[0].change.key == "ulimit -v") is told


def test_the_limit_of_address_space_is_kept() -> None:
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    assert address_space() == (None if soft == resource.RLIM_INFINITY else soft)
    ask = "import resource; resource.setrlimit(resource.RLIMIT_AS, (1 << 40, 1 << 40))"
    show = "from oomproof.runner.supervise import address_space; print(address_space())"
    done = subprocess.run(
        [sys.executable, "-c", f"{ask}; {show}"], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == str(1 << 40)


NODE = (
    "<--- Last few GCs --->\n\n<--- JS stacktrace --->\n\n"
    "FATAL ERROR: Reached heap limit Allocation failed - JavaScript heap out of memory\n"
)
JAVA = 'Exception in thread "main" java.lang.OutOfMemoryError: Java heap space\n\tat Fill.main(Fill.java:2)\n'


@pytest.mark.parametrize(
    ("argv", "output", "larger"),
    [
        (["node", "--max-old-space-size=150", "a.js"], NODE, "-- node --max-old-space-size=600 a.js"),
        (["node", "a.js"], NODE, "NODE_OPTIONS=--max-old-space-size=6144 oomproof run"),  # 3/4 of its limit
        (["java", "-Xmx1g", "-jar", "a.jar"], JAVA, "-- java -Xmx4096m -jar a.jar"),
        (["sh", "-c", "exec java -Xmx200m Fill"], JAVA, "'exec java -Xmx800m Fill'"),
        (["java", "Fill"], JAVA, "JAVA_TOOL_OPTIONS=-Xmx6144m oomproof run"),
        (["java", "-Xmx7g", "Fill"], JAVA, "of the run's limit of 8.0 GiB: raise both"),
    ],
)
def test_a_full_heap_of_its_own_names_its_argument(
    attempt: Attempt, argv: list[str], output: str, larger: str
) -> None:
    """It was told to set NODE_OPTIONS before CMD, which its own flag overrides, and to halve its batch."""
    attempt.run["argv"], attempt.processes = argv, [(4067, "main", argv[0])]
    attempt.output = output.encode()
    verdict = attempt.verdict()
    assert verdict.cause == "heap-limit"
    assert larger in verdict.next and "CMD" not in verdict.next
    assert not [remedy for remedy in verdict.remedies if "batch" in remedy.title or ".npy" in remedy.title]


FULL = OLD_CUDA.replace("15.07", "14.80")  # nothing of it in pieces
EVALUATES = 'Traceback (most recent call last):\n  File "train.py", line 3, in evaluate\n    model(batch)\n'
GENERATES = 'Traceback (most recent call last):\n  File "chat.py", line 3, in generate\n    model(tokens)\n'
LOADS = 'Traceback (most recent call last):\n  File "chat.py", line 3, in load_model\n    model.cuda()\n'


@pytest.mark.parametrize(
    ("frames", "advice"),
    [(EVALUATES, "torch.no_grad()"), (GENERATES, "max_new_tokens"), (LOADS, "weights in a smaller type"), (TRACE, "accumulation")],
)  # fmt: skip
def test_outside_of_training_no_gradient_accumulation_is_proposed(
    tmp_path: Path, frames: str, advice: str
) -> None:
    log = tmp_path / "job.log"
    log.write_text(f"{frames}{FULL}\n")
    verdict = judge_texts(read_texts([str(log)]))
    said = [verdict.next, *(remedy.title for remedy in verdict.remedies)]
    assert advice in verdict.next and any(advice in each for each in said[1:]), said
    assert (advice == "accumulation") == any("accumulation:" in each for each in said)


def test_the_batch_of_the_evaluation_by_its_name_on_the_command_line(attempt: Attempt) -> None:
    attempt.run["argv"] = ["python", "train.py", "--train-batch-size", "32", "--eval-batch-size=64"]
    attempt.no_phase = True
    attempt.output = (EVALUATES + FULL).encode()
    verdict = attempt.verdict()
    assert "--eval-batch-size 64 → 32" in verdict.next and "--eval-batch-size=32" in verdict.next
    assert "--train-batch-size 32" in verdict.next
    assert [remedy.change.after for remedy in verdict.remedies if remedy.change] == ["32"]

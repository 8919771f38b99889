"""Which exceptions are a lack of memory: every form that `why` knows, and none that it does not."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

from oomproof.sizing.fitting.oom_errors import memory_cause, phase_of

torch = pytest.importorskip("torch", reason="the extra [ml] is not installed")

# In the libraries' own formats
FORMS: list[tuple[str, BaseException]] = [
    ("cuda-oom", torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 23.65 GiB of which 9.06 MiB is free. Including non-PyTorch memory, this process has 23.63 GiB memory in use.")),
    ("cuda-oom", RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 23.65 GiB total capacity; 20.00 GiB already allocated)", "a second argument")),
    ("cuda-oom", RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.")),
    ("cuda-oom", getattr(torch, "AcceleratorError", RuntimeError)("CUDA error: out of memory")),
    ("cuda-oom", RuntimeError("CUDA driver error: out of memory")),
    ("cuda-oom", RuntimeError("Triton Error [CUDA]: out of memory")),
    ("cuda-oom", RuntimeError("NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:219, unhandled cuda error, NCCL version 2.14.3\nncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 2 'out of memory'")),
    ("cuda-oom", RuntimeError("HIP out of memory. Tried to allocate 2.00 GiB.")),
    ("mps-oom", RuntimeError("MPS backend out of memory (MPS allocated: 8.00 GB, other allocations: 1.00 GB, max allowed: 9.07 GB). Tried to allocate 256.00 MB on private pool.")),
    ("cublas-alloc", RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`")),
    ("cudnn", RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED")),
    ("cudnn", RuntimeError("cuDNN error: CUDNN_STATUS_NOT_SUPPORTED. This error may appear if you passed in a non-contiguous input.")),
    ("python-memory-error", RuntimeError("[enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 1125899906842624 bytes. Error code 12 (Cannot allocate memory)")),
    ("python-memory-error", MemoryError()),
    ("python-memory-error", OSError(12, "Cannot allocate memory")),
    ("bad-alloc", RuntimeError("std::bad_alloc")),
    ("dataloader-killed", RuntimeError("DataLoader worker (pid 4242) is killed by signal: Killed. ")),
    ("shm-exhausted", RuntimeError("unable to write to file </torch_4242_123>: No space left on device (28)")),
    ("shm-exhausted", RuntimeError("DataLoader worker (pid 4242) is killed by signal: Bus error. It is possible that dataloader's workers are out of shared memory. Please try to raise your shared memory limit.")),
]  # fmt: skip


@pytest.mark.parametrize(
    "cause, error", FORMS, ids=[f"{cause}-{index}" for index, (cause, _) in enumerate(FORMS)]
)
def test_forms(cause: str, error: BaseException) -> None:
    assert memory_cause(error) == cause


def test_more_forms_than_the_peers_know() -> None:
    accelerate = pytest.importorskip("accelerate.utils.memory", reason="the extra [ml] is not installed")
    lightning = pytest.importorskip(
        "lightning.pytorch.utilities.memory", reason="the extra [ml] is not installed"
    )
    errors = [error for _, error in FORMS]
    known_there = (
        sum(map(accelerate.should_reduce_batch_size, errors)),
        sum(map(lightning.is_oom_error, errors)),
    )
    assert known_there < (len(FORMS) // 2, len(FORMS) // 2), known_there


def test_a_real_one_of_the_cpu() -> None:
    with pytest.raises(RuntimeError) as raised:
        torch.empty(1 << 50)
    assert memory_cause(raised.value) == "python-memory-error"


def test_one_behind_another() -> None:
    class TrainingFailed(Exception):
        pass

    def wrapped(**chain: Any) -> BaseException:
        error = TrainingFailed("step 3 failed")
        for name, value in chain.items():
            setattr(error, name, value)
        return error

    oom = torch.OutOfMemoryError(
        "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 23.65 GiB"
    )
    assert memory_cause(wrapped(__cause__=oom)) == "cuda-oom"
    assert memory_cause(wrapped(__context__=oom)) == "cuda-oom"
    assert memory_cause(wrapped(__cause__=ValueError("x"), __context__=oom)) is None, (
        "it was raised from something else"
    )
    assert memory_cause(ExceptionGroup("two", [ValueError("x"), oom])) == "cuda-oom"
    loop = wrapped()
    loop.__cause__ = loop
    assert memory_cause(loop) is None


@pytest.mark.parametrize("error", [
    RuntimeError("CUDA error: device-side assert triggered"),
    ValueError("Expected input batch_size (4) to match target batch_size (8)."),
    RuntimeError("shape '[4, 8]' is invalid for input of size 31"),
    OSError(28, "No space left on device"), KeyError("memory"), AssertionError(), KeyboardInterrupt(), SystemExit(1),
    subprocess.CalledProcessError(1, ["train"]),
], ids=repr)  # fmt: skip
def test_what_is_none(error: BaseException) -> None:
    assert memory_cause(error) is None


def test_an_exception_without_a_text() -> None:
    class Odd(Exception):
        def __str__(self) -> str:
            raise ValueError

    assert memory_cause(Odd()) is None


def test_the_phase_is_read_from_the_stack() -> None:
    def evaluate() -> None:
        raise MemoryError

    def training_step() -> None:
        raise MemoryError

    def generate() -> None:
        raise MemoryError

    for function, phase in ((evaluate, "eval"), (training_step, "train"), (generate, "generate")):
        with pytest.raises(MemoryError) as raised:
            function()
        assert phase_of(raised.value) == phase

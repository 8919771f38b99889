"""What the words of an error mean: one table from text to cause, first match wins, most specific first."""

from __future__ import annotations

import re
from dataclasses import dataclass

from oomproof.diagnosis.verdict import Gpu

_SIZES = {"bytes": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40,
          "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30}  # fmt: skip
_SIZE = r"(\d+(?:\.\d+)?) ([KMGT]?i?B|bytes)"


# torch's own wording when /dev/shm is full, which the rule of bus errors looks for as well
SHM_ERROR = (
    r"unable to (?:write to file|open shared memory object|allocate shared memory)"
    r".*(?:torch_|/dev/shm|No space)"
)


@dataclass(frozen=True, slots=True)
class Meaning:
    cause: str
    headline: str
    next: str


def _means(cause: str, headline: str, next_step: str, *patterns: str) -> tuple[re.Pattern[str], Meaning]:
    return re.compile("|".join(patterns)), Meaning(cause, headline, next_step)


# The patterns look at "Type: message"; {command} and {output} are filled in by the rule.
_TABLE = (
    _means(
        "cuda-oom",
        "out of GPU memory (CUDA)",
        "halve the batch and double gradient accumulation: {command}",
        r"^(?:torch\.(?:cuda\.)?)?OutOfMemoryError: ",
        r"CUDA out of memory",
        r"CUDA error: out of memory",
        r"cudaErrorMemoryAllocation",
        r"CUDA_ERROR_OUT_OF_MEMORY",
    ),
    _means(
        "mps-oom",
        "out of GPU memory (Apple MPS)",
        "halve the batch size, then {command}",
        r"MPS backend out of memory",
    ),
    _means(
        "jax-oom",
        "out of GPU memory (XLA)",
        "halve the batch, or XLA_PYTHON_CLIENT_PREALLOCATE=false {command}",
        r"XlaRuntimeError: RESOURCE_EXHAUSTED",
        r"RESOURCE_EXHAUSTED.*(?:allocat|memory)",
    ),
    _means(
        "tf-oom",
        "out of GPU memory (TensorFlow)",
        "halve the batch size, then {command}",
        r"ResourceExhaustedError",
    ),
    _means(
        "cublas-alloc",
        "cuBLAS could not start: most often no GPU memory is left for it",
        "nvidia-smi, then half the batch: {command}; if the GPU had room, check label and token ids",
        r"CUBLAS_STATUS_(?:ALLOC_FAILED|NOT_INITIALIZED)",
    ),
    _means(
        "cudnn",
        "cuDNN failed: no GPU memory for its workspace, or versions that do not fit",
        "nvidia-smi, then half the batch: {command}",
        r"CUDNN_STATUS_\w+",
    ),
    _means(
        "device-assert",
        "an assertion failed on the GPU: most often an index out of range",
        "CUDA_LAUNCH_BLOCKING=1 {command}",
        r"device-side assert triggered",
    ),
    _means(
        "illegal-access",
        "a GPU kernel touched a bad address",
        "CUDA_LAUNCH_BLOCKING=1 {command}",
        r"illegal memory access",
    ),
    _means(
        "shm-exhausted",
        "shared memory exhausted: /dev/shm was full",
        "docker run --shm-size=8G (or: sudo mount -o remount,size=8G /dev/shm), or fewer workers",
        SHM_ERROR,
        r"killed by signal: Bus error",
    ),
    _means(
        "dataloader-killed",
        "a DataLoader worker died under the job",
        "once with num_workers=0 to see its own error, or half the workers: {command}",
        r"DataLoader worker \(pid\(?s?\)? [\d, ]+\) (?:is killed by signal|exited unexpectedly)",
    ),
    _means(
        "numpy-memory-error",
        "NumPy could not allocate an array",
        "map the file instead (np.load(..., mmap_mode='r')) or take a smaller piece or dtype",
        r"_ArrayMemoryError",
        r"Unable to allocate .* for an array with shape",
    ),
    _means(
        "python-memory-error",
        "Python could not get memory",
        "see who refused: ulimit -v; cat /proc/sys/vm/overcommit_memory; then a smaller batch: {command}",
        r"DefaultCPUAllocator: (?:can't|not enough)",
        r"\bMemoryError\b",
        r"\[Errno 12\]",
        r"Cannot allocate memory",
    ),
    _means(
        "bad-alloc",
        "C++ could not allocate (std::bad_alloc)",
        "check ulimit -v; halve the batch: {command}",
        r"std::bad_alloc",
    ),
    _means(
        "disk-full",
        "the disk is full",
        "df -h . /tmp; free some space, then {command}",
        r"\[Errno 28\]",
        r"No space left on device",
        r"\[Errno 122\]",
        r"Disk quota exceeded",
    ),
    _means("interrupted", "interrupted with Ctrl-C", "to start it again: {command}", r"^KeyboardInterrupt"),
    _means(
        "import-error",
        "a Python module could not be imported",
        "install it in this environment, then {command}",
        r"^(?:ModuleNotFoundError|ImportError)\b",
    ),
    _means(
        "nccl",
        "NCCL failed: most often another rank had died first",
        "look for the first rank that died: {output}; NCCL_DEBUG=WARN {command}",
        r"NCCL (?:error|timeout|failure)",
        r"nccl(?:SystemError|UnhandledCudaError|RemoteError)",
        r"Watchdog caught collective operation timeout",
    ),
    _means("assert", "an assertion failed", "read the traceback: {output}", r"^AssertionError\b"),
    _means(
        "nan",
        "a value became NaN",
        "lower the learning rate, or look at the batch before it: {output}",
        r"^(?:FloatingPointError|ValueError|RuntimeError): .*\b(?:nan|NaN|not finite)\b",
    ),
)

OTHER = Meaning("other-error", "Python error", "read the traceback: {output}")


def meaning_of(text: str) -> Meaning | None:
    return next((meaning for pattern, meaning in _TABLE if pattern.search(text)), None)


def _size(match: re.Match[str] | None, group: int = 1) -> int | None:
    return (
        int(float(match[group]) * _SIZES[match[group + 1]]) if match and match[group + 1] in _SIZES else None
    )


def gpu_numbers(text: str) -> Gpu | None:
    """The numbers in PyTorch's CUDA OOM message, its present and its older wording."""
    index = re.search(r"GPU (\d+)", text)
    total = re.search(rf"total capaci?ty of {_SIZE}", text) or re.search(rf"{_SIZE} total capacity", text)
    free = re.search(rf"of which {_SIZE} is free", text) or re.search(rf"{_SIZE} free", text)
    asked = re.search(rf"[Tt]ried to allocate {_SIZE}", text)
    allocated = re.search(rf"{_SIZE} is allocated by PyTorch", text) or re.search(
        rf"{_SIZE} already allocated", text
    )
    spare = _size(re.search(rf"{_SIZE} is reserved by PyTorch but unallocated", text))
    if spare is None:
        reserved, live = _size(re.search(rf"{_SIZE} reserved in total", text)), _size(allocated)
        spare = max(0, reserved - live) if reserved is not None and live is not None else None
    gpu = Gpu(
        int(index[1]) if index else None, _size(total), _size(free), _size(asked), _size(allocated), spare
    )
    return gpu if gpu != Gpu(None) else None

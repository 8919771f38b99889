"""What each cause is called when a text shows it, what to do next, and the remedies in the order a good engineer tries."""

from __future__ import annotations

from dataclasses import dataclass

from oomproof.diagnosis.advice import HALF_THE_BATCH
from oomproof.diagnosis.verdict import Change, Remedy
from oomproof.evidence.texts.finding import Finding, GpuNumbers
from oomproof.units import MIB, format_size

_AGAIN = "then run it under watch: oomproof run -- CMD"


@dataclass(frozen=True, slots=True)
class Words:
    headline: str
    next: str
    test: str


_OOM_TEST = "the kernel's log around that time: journalctl -k, or dmesg"

WORDS: dict[str, Words] = {
    "oom-kill-global": Words(
        "out of memory: the kernel killed {victim}, the whole machine had run out",
        f"start fewer things at once, or make this one smaller (workers, data copies, batch); {_AGAIN}",
        _OOM_TEST,
    ),
    "oom-kill-memcg": Words(
        "out of memory: the kernel killed {victim} at the memory limit of its cgroup{cgroup}",
        "raise that limit (container --memory, Slurm --mem, systemd MemoryMax), or make the job smaller",
        _OOM_TEST,
    ),
    "oom-kill-cpuset": Words(
        "out of memory: the kernel killed {victim}, the memory nodes of its cpuset were full",
        "give the cpuset more memory nodes (cpuset.mems), or the job fewer",
        _OOM_TEST,
    ),
    "oom-kill-mempolicy": Words(
        "out of memory: the kernel killed {victim}, the NUMA nodes it was bound to were full",
        "loosen the binding (numactl --preferred in place of --membind)",
        _OOM_TEST,
    ),
    "systemd-oomd": Words(
        "killed by systemd-oomd{victim_of}: memory pressure or swap use crossed its line",
        "run it in a scope of its own: oomproof run -- CMD; or ManagedOOMPreference=avoid for it",
        "journalctl -u systemd-oomd",
    ),
    "earlyoom": Words(
        "killed by earlyoom{victim_of}: available memory fell below its line",
        f"make the job smaller or free memory; {_AGAIN}",
        "journalctl -u earlyoom",
    ),
    "nohang": Words(
        "killed by nohang{victim_of}",
        f"make the job smaller or free memory; {_AGAIN}",
        "journalctl -u nohang",
    ),
    "oomd": Words(
        "killed by oomd{victim_of}",
        "look at the rule it names in oomd's configuration",
        "dmesg | grep 'oomd kill'",
    ),
    "jetsam": Words(
        "killed by macOS{victim_of}: memory and swap had run out",
        "close other programs, or make the job smaller",
        "log show --predicate 'eventMessage CONTAINS \"memorystatus\"'",
    ),
    "ray-oom": Words(
        "killed by Ray's memory monitor: the node was above its threshold",
        "fewer parallel tasks or more num_cpus per task, so that fewer run at once",
        "the raylet's log on that node",
    ),
    "slurm-oom": Words(
        "out of memory: the kernel killed a task at the Slurm job's memory limit",
        "ask for more: sbatch --mem=…, or make the job smaller; what it took: sacct -j JOB -o MaxRSS,ReqMem,State",
        "sacct -j JOB -o State,MaxRSS,ReqMem",
    ),
    "cuda-oom": Words(
        "out of GPU memory (CUDA){gpu}",
        "{gpu_next}",
        "nvidia-smi while it runs: who else is on the card",
    ),
    "jax-oom": Words(
        "out of memory in JAX/XLA{gpu}",
        "halve the batch; XLA_PYTHON_CLIENT_PREALLOCATE=false shows what is really used",
        "the allocator's table in the log",
    ),
    "tf-oom": Words(
        "out of memory in TensorFlow{gpu}",
        "halve the batch, or set memory growth on the GPU",
        "the allocator's table in the log",
    ),
    "mps-oom": Words(
        "out of memory on Apple's GPU (MPS){gpu}",
        "halve the batch; the GPU shares the machine's RAM, so close what else is large",
        "Activity Monitor while it runs",
    ),
    "cublas-alloc": Words(
        "cuBLAS could not start or allocate: most often the card was full",
        "look at the free memory at that moment: nvidia-smi; an index out of range can look the same (CUDA_LAUNCH_BLOCKING=1)",
        "the same run with CUDA_LAUNCH_BLOCKING=1, and with half the batch",
    ),
    "cudnn": Words(
        "cuDNN failed: a full card or a mismatch of versions",
        "half the batch tells which: if it goes on failing, compare torch.version.cuda with the driver",
        "the same run with half the batch",
    ),
    "dataloader-killed": Words(
        "a DataLoader worker was killed{pids}",
        "the kernel's log says by whom: dmesg | grep -i 'killed process'; num_workers=0 shows whether the data is the load",
        "the kernel's log for the worker's pid",
    ),
    "shm-exhausted": Words(
        "/dev/shm was full: DataLoader workers pass batches through it",
        "a larger one (docker run --shm-size=8g), fewer workers, or torch.multiprocessing.set_sharing_strategy('file_system')",
        "df -h /dev/shm while it runs",
    ),
    "numpy-memory-error": Words(
        "NumPy could not allocate an array{request}",
        "load it in parts, or np.load(..., mmap_mode='r') for .npy (never works for .npz)",
        "ulimit -v; free -h at that moment",
    ),
    "python-memory-error": Words(
        "Python ran out of memory{request}",
        "load less at once; ulimit -v shows whether a limit of address space is set",
        "ulimit -v; free -h at that moment",
    ),
    "bad-alloc": Words(
        "native code could not allocate memory (std::bad_alloc)",
        "make the job smaller; ulimit -v shows whether a limit of address space is set",
        "ulimit -v; the same run with half the data",
    ),
    "killed-unknown": Words(
        "killed by SIGKILL; this text does not say by whom",
        "ask the kernel: dmesg | grep -i 'killed process'; next time: oomproof run -- CMD tells",
        "the kernel's log at that time; sacct under Slurm",
    ),
    "segfault": Words(
        "crashed: segmentation fault{fault}, not an OOM kill",
        "get the Python stack: PYTHONFAULTHANDLER=1 CMD",
        "PYTHONFAULTHANDLER=1, or a core dump in gdb",
    ),
    "bus-error": Words(
        "crashed: bus error (SIGBUS), not an OOM kill",
        "check /dev/shm and the disk behind mapped files: df -h",
        "df -h /dev/shm while it runs",
    ),
    "abort": Words(
        "aborted by its own native code (SIGABRT), not an OOM kill",
        "read the lines before it: the library says why",
        "PYTHONFAULTHANDLER=1",
    ),
    "gpf": Words(
        "crashed: general protection fault{fault}, not an OOM kill",
        "suspect memory hardware or a driver if it recurs in different programs",
        "memtest, and the same run on another machine",
    ),
    "xid": Words(
        "the GPU driver reported an error (Xid{xid}), not an OOM",
        "look the number up in NVIDIA's Xid table; 31 is mostly the program, 48/63/64/79 the hardware",
        "nvidia-smi -q; the same job on another card",
    ),
    "nccl": Words(
        "a collective operation failed (NCCL): often another rank died first",
        "find the first rank that failed; NCCL_DEBUG=WARN",
        "the logs of the other ranks",
    ),
    "nan": Words(
        "the loss became NaN or infinite",
        "lower the learning rate, clip gradients, look at the batch before it",
        "torch.autograd.set_detect_anomaly(True)",
    ),
    "assert": Words("an assertion failed: {message}", "read the traceback", "the line it names"),
    "device-assert": Words(
        "a check inside a GPU kernel failed, most often an index out of range",
        "CUDA_LAUNCH_BLOCKING=1 shows the line; check labels and vocabulary size",
        "the same step on the CPU",
    ),
    "illegal-access": Words(
        "an illegal memory access or instruction",
        "CUDA_LAUNCH_BLOCKING=1 shows the line; compute-sanitizer finds it",
        "compute-sanitizer CMD",
    ),
    "disk-full": Words(
        "the disk was full", "df -h; old checkpoints and caches first", "df -h of the folder it wrote to"
    ),
    "interrupted": Words("stopped from outside{message_in}", "start it again", "the scheduler's log"),
    "import-error": Words(
        "a module could not be imported: {message}",
        "install it, or mend the version it names",
        "python -c 'import …' in the same environment",
    ),
    "other-error": Words("failed with {message}", "read the traceback", "the line it names"),
    "not-a-crash": Words(
        "no crash found here", "if a job died, give its log or the kernel's: oomproof why FILE…", ""
    ),
}


def victim_words(finding: Finding) -> str:
    victim = finding.victim
    if victim is None or (victim.name is None and victim.pid is None):
        return "a process"
    name = victim.name or "a process"
    pid = f" (pid {victim.pid})" if victim.pid is not None else ""
    held = (victim.anon_rss or 0) + (victim.shmem_rss or 0)
    return f"{name}{pid}" + (f", which held {format_size(held)}" if held else "")


def fill(finding: Finding) -> tuple[str, str]:
    """(headline, next) with this finding's own names and figures."""
    words = WORDS[finding.cause]
    victim = victim_words(finding)
    limit = (
        f" ({finding.cgroup}" + (f", {format_size(finding.limit)}" if finding.limit else "") + ")"
        if finding.cgroup
        else ""
    )
    if not limit and finding.limit:
        limit = f" ({format_size(finding.limit)})"
    job, kernel = finding.job, finding.kernel
    message = job.exception or job.message or finding.says
    if job.exception and job.message:
        message = f"{job.exception}: {job.message}"
    values = {
        "victim": victim,
        "victim_of": "" if victim == "a process" else f": {victim}",
        "cgroup": limit,
        "gpu": gpu_words(finding.gpu),
        "gpu_next": gpu_next(finding.gpu),
        "pids": f" (pid {', '.join(map(str, finding.pids))})" if finding.pids else "",
        "fault": f" in {kernel.library}" if kernel.library else "",
        "request": f": {job.message}" if job.message else "",
        "message": _short(message),
        "message_in": f" ({_short(job.message)})" if job.message else "",
        "xid": f" {kernel.xid}" if kernel.xid is not None else "",
    }
    return words.headline.format_map(values), words.next.format_map(values)


def _short(text: str, width: int = 160) -> str:
    text = " ".join(text.split())
    return text if len(text) <= width else text[: width - 1] + "…"


def gpu_words(gpu: GpuNumbers | None) -> str:
    if gpu is None or (gpu.requested is None and gpu.free is None):
        return ""
    parts = []
    if gpu.requested is not None:
        parts.append(f"asked for {format_size(gpu.requested)}")
    if gpu.free is not None:
        total = f" of {format_size(gpu.total)}" if gpu.total is not None else ""
        parts.append(f"{format_size(gpu.free)}{total} was free")
    if gpu.neighbours:
        parts.append(f"others on the card held {format_size(gpu.neighbours)}")
    return ": " + ", ".join(parts)


def fragmented(gpu: GpuNumbers) -> bool:
    """Enough was reserved and unused for the request, in pieces: splitting, not size, was the trouble."""
    unused, asked = gpu.reserved_unallocated, gpu.requested
    return unused is not None and asked is not None and unused >= max(asked, 256 * MIB)


def gpu_next(gpu: GpuNumbers | None) -> str:
    if gpu is not None and gpu.neighbours and gpu.requested and gpu.neighbours >= gpu.requested:
        return "another process holds the card: nvidia-smi shows which; wait for it or take another card"
    if gpu is not None and fragmented(gpu):
        return (
            "PYTORCH_ALLOC_CONF=expandable_segments:True (PYTORCH_CUDA_ALLOC_CONF before 2.9), then the batch"
        )
    return "halve the batch and double gradient accumulation: the same effective batch"


_GPU = ("cuda-oom", "jax-oom", "tf-oom", "mps-oom", "cublas-alloc")
_HOST_KILLS = ("oom-kill-global", "oom-kill-memcg", "slurm-oom")


def remedies(finding: Finding) -> tuple[Remedy, ...]:
    """Twin or neighbour first, then fragmentation, workers, data copies; the batch last."""
    cause = finding.cause
    found = [*_beside(finding), *_on_the_card(finding), *_settings(cause)]
    if cause in ("dataloader-killed", "shm-exhausted", "killed-unknown", *_HOST_KILLS):
        found.append(
            Remedy(
                "fewer DataLoader workers: each holds its own batches and, in time, a copy of the data set's Python objects",
                change=Change("code", "num_workers"),
            )
        )
    if cause in ("numpy-memory-error", "python-memory-error", *_HOST_KILLS):
        found.append(
            Remedy(
                "one copy of the data: stream it or map it (.npy, Arrow), delete what was converted",
                change=Change("code", "data"),
            )
        )
    if cause in (*_GPU, *_HOST_KILLS):
        found.append(HALF_THE_BATCH)
    return tuple(found)


def _beside(finding: Finding) -> list[Remedy]:
    """Who else was large when the machine ran out, by the kernel's own table."""
    if finding.cause != "oom-kill-global" or finding.victim is None:
        return []
    large = [
        task for task in finding.kernel.largest if task.rss >= 1 << 30 and task.pid != finding.victim.pid
    ]
    others = [f"{task.name or '?'} ({task.pid}) {format_size(task.rss)}" for task in large[:3]]
    if not others:
        return []
    return [Remedy(f"end or move what else was large then: {', '.join(others)}", "measured")]


def _on_the_card(finding: Finding) -> list[Remedy]:
    gpu = finding.gpu
    if finding.cause != "cuda-oom" or gpu is None:
        return []
    found = []
    if gpu.neighbours:
        title = "end or move the other process on the card"
        found.append(Remedy(title, "measured", gpu.neighbours, command="nvidia-smi"))
    if fragmented(gpu):
        change = Change("env", "PYTORCH_ALLOC_CONF", after="expandable_segments:True")
        title = "let segments grow in place of splitting (before PyTorch 2.9: PYTORCH_CUDA_ALLOC_CONF)"
        found.append(Remedy(title, "measured", gpu.reserved_unallocated, change=change))
    return found


def _settings(cause: str) -> list[Remedy]:
    """One setting that is often all it takes."""
    if cause == "shm-exhausted":
        return [
            Remedy(
                "a larger /dev/shm: docker run --shm-size=8g, or on the machine itself",
                command="sudo mount -o remount,size=8G /dev/shm",
                change=Change("system", "/dev/shm", after="8G"),
            )
        ]
    if cause == "jax-oom":
        change = Change("env", "XLA_PYTHON_CLIENT_PREALLOCATE", after="false")
        return [Remedy("let JAX take memory as it needs it: a neighbour then finds room", change=change)]
    if cause == "tf-oom":
        change = Change("env", "TF_FORCE_GPU_ALLOW_GROWTH", after="true")
        return [
            Remedy("let TensorFlow take memory as it needs it: a neighbour then finds room", change=change)
        ]
    return []

"""Every cause of an end, once: what kind of end it is, what it is called and what helps. A leaf: anybody may ask."""

from __future__ import annotations

from typing import Literal

from oomproof.records import dataclass


@dataclass(frozen=True, slots=True)
class Cause:
    """One cause. Headline, next and test are for a text alone; ``{...}`` is filled from the finding."""

    slug: str
    # --- what kind of end
    memory: bool = False  # of memory, host or GPU: what a retry with a smaller plan may answer
    killed_by: Literal["", "kernel", "daemon", "engine"] = ""  # who kills for memory in this way
    gpu: bool = False
    device: str = ""  # the only device that can fail so
    good: bool = False  # not a failure: finished, or no end at all
    stopped_by: Literal["", "guard", "person"] = ""  # stopped on purpose
    from_outside: bool = False  # something outside of the job ended it: the same again may end well
    # --- what it may be a sign of
    sign_of_kill: bool = False  # what a kill looks like from inside the job: who killed explains it
    sign_of_gpu_fault: bool = False  # what the program sees of an error that the GPU's driver reports
    lost_process: bool = False  # what the sudden end of one process looks like to the others
    killer_in_kernel_log: bool = False  # its advice is to look there
    # an allocation of the host's that the kernel refused, as under a limit of address space
    refused: bool = False
    shared_memory: bool = False  # what a full /dev/shm looks like: its samples decide
    by_signal: bool = False  # a process ended by a signal it could not catch, or by its own abort
    kernel_fault: bool = False  # a fault of a program in the kernel's log
    echo: bool = False  # seldom a cause in itself: the peers of a rank that died, an abort after an error
    generic: bool = False  # any exception: a more telling one nearby wins
    unexplained: bool = False  # nobody saw or explained the end: memory is one of several explanations
    # its text has other causes as well: only the free memory of that moment would decide
    doubtful: bool = False
    # --- words
    label: str = ""  # in a table, where the slug without dashes would not do
    constraint: str = ""  # the kernel's word for whose memory was full
    reason: str = ""  # the same in plain words
    handled_as: str = ""  # what a handler in the job's own script would have caught
    remedies: tuple[str, ...] = ()  # what often helps, in the order to try
    headline: str = ""
    next: str = ""
    test: str = ""  # what would confirm it or rule it out

    @property
    def title(self) -> str:
        """What people read; the slug is for programs."""
        return self.label or self.slug.replace("-", " ")

    @property
    def kill(self) -> bool:
        """Somebody outside the job killed it for memory, and says so."""
        return bool(self.killed_by)

    @property
    def kernel_kill(self) -> bool:
        return self.killed_by == "kernel"

    @property
    def tone(self) -> Literal["good", "ours", "bad"]:
        """How a report colours it: all well, stopped on purpose, failed."""
        return "good" if self.good else "ours" if self.stopped_by else "bad"


RUN = "oomproof run -- CMD"  # stands where a template says {run}
RAISE_LIMIT = "raise that limit (container --memory, Slurm --mem, systemd MemoryMax)"
_AGAIN = "then run it under watch: {run}"
_KERNEL_LOG = "the kernel's log around that time: journalctl -k, or dmesg"

_TABLE = (
    Cause("oom-kill-global", memory=True, killed_by="kernel", label="kernel: machine full",
          constraint="CONSTRAINT_NONE", reason="the whole machine was out of memory",
          remedies=("fewer-workers", "one-data-copy", "half-the-batch"),
          headline="out of memory: the kernel killed {victim}, the whole machine had run out",
          next=f"start fewer things at once, or make this one smaller (workers, data copies, batch); {_AGAIN}",
          test=_KERNEL_LOG),
    Cause("oom-kill-memcg", memory=True, killed_by="kernel", label="kernel: cgroup limit",
          constraint="CONSTRAINT_MEMCG", reason="its memory cgroup was at its limit",
          remedies=("fewer-workers", "one-data-copy", "half-the-batch"),
          headline="out of memory: the kernel killed {victim} at the memory limit of its cgroup{cgroup}",
          next=f"{RAISE_LIMIT}, or make the job smaller",
          test=_KERNEL_LOG),
    Cause("oom-kill-cpuset", memory=True, killed_by="kernel", label="kernel: cpuset full",
          constraint="CONSTRAINT_CPUSET", reason="the memory nodes of its cpuset were full",
          headline="out of memory: the kernel killed {victim}, the memory nodes of its cpuset were full",
          next="give the cpuset more memory nodes (cpuset.mems), or the job fewer",
          test=_KERNEL_LOG),
    Cause("oom-kill-mempolicy", memory=True, killed_by="kernel", label="kernel: NUMA node full",
          constraint="CONSTRAINT_MEMORY_POLICY", reason="the memory nodes its policy binds it to were full",
          headline="out of memory: the kernel killed {victim}, the NUMA nodes it was bound to were full",
          next="loosen the binding (numactl --preferred in place of --membind)",
          test=_KERNEL_LOG),
    Cause("systemd-oomd", memory=True, killed_by="daemon",
          headline="killed by systemd-oomd{victim_of}: memory pressure or swap use crossed its threshold",
          next="run it in a scope of its own: {run}; or ManagedOOMPreference=avoid for it",
          test="journalctl -u systemd-oomd"),
    Cause("earlyoom", memory=True, killed_by="daemon",
          headline="killed by earlyoom{victim_of}: available memory fell below its threshold",
          next=f"make the job smaller or free memory; {_AGAIN}",
          test="journalctl -u earlyoom"),
    Cause("nohang", memory=True, killed_by="daemon",
          headline="killed by nohang{victim_of}",
          next=f"make the job smaller or free memory; {_AGAIN}",
          test="journalctl -u nohang"),
    Cause("oomd", memory=True, killed_by="daemon",
          headline="killed by oomd{victim_of}",
          next="look at the rule it names in oomd's configuration",
          test="dmesg | grep 'oomd kill'"),
    Cause("jetsam", label="macOS: memory full", memory=True, killed_by="daemon",
          headline="killed by macOS{victim_of}: memory and swap had run out",
          next="close other programs, or make the job smaller",
          test="log show --predicate 'eventMessage CONTAINS \"memorystatus\"'"),
    Cause("ray-oom", label="Ray: node full", memory=True, killed_by="engine",
          headline="killed by Ray's memory monitor: the node was above its threshold",
          next="fewer parallel tasks or more num_cpus per task, so that fewer run at once",
          test="the raylet's log on that node"),
    Cause("dask-oom", label="Dask: worker limit", memory=True, killed_by="engine", lost_process=True,
          headline="killed by Dask's nanny{victim_of}: the worker was at its own memory limit",
          next="fewer threads or larger memory_limit per worker (LocalCluster(n_workers=…, memory_limit=…)), or smaller partitions: "
               "df.repartition(partition_size='100MB')",
          test="the worker's page of the dashboard: memory by task"),
    Cause("slurm-oom", label="Slurm: job limit", memory=True, killed_by="engine", lost_process=True,
          remedies=("fewer-workers", "one-data-copy", "half-the-batch"),
          headline="out of memory: the kernel killed a task at the Slurm job's memory limit",
          next="ask for more: sbatch --mem=…, or make the job smaller; what it took: sacct -j JOB -o MaxRSS,ReqMem,State",
          test="sacct -j JOB -o State,MaxRSS,ReqMem"),
    Cause("cuda-oom", label="GPU memory full (CUDA)", memory=True, gpu=True, device="cuda", handled_as="a full GPU",
          remedies=("half-the-batch",),
          headline="out of GPU memory (CUDA){gpu}",
          next="{gpu_next}",
          test="nvidia-smi while it runs: who else is on the card"),
    Cause("jax-oom", label="memory full (JAX)", memory=True, gpu=True, handled_as="a full GPU",
          remedies=("jax-preallocate", "half-the-batch"),
          headline="out of memory in JAX/XLA{gpu}",
          next="{halve}; XLA_PYTHON_CLIENT_PREALLOCATE=false shows what is really used",
          test="the allocator's table in the log"),
    Cause("tf-oom", label="memory full (TensorFlow)", memory=True, gpu=True, handled_as="a full GPU",
          remedies=("tensorflow-growth", "half-the-batch"),
          headline="out of memory in TensorFlow{gpu}",
          next="{halve}, or set memory growth on the GPU",
          test="the allocator's table in the log"),
    Cause("mps-oom", label="GPU memory full (MPS)", memory=True, gpu=True, device="mps", remedies=("half-the-batch",),
          headline="out of memory on Apple's GPU (MPS){gpu}",
          next="{halve}; the GPU shares the machine's RAM, so close what else is large",
          test="Activity Monitor while it runs"),
    Cause("cublas-alloc", label="cuBLAS failed", memory=True, gpu=True, device="cuda", sign_of_gpu_fault=True, doubtful=True,
          remedies=("half-the-batch",),
          headline="cuBLAS could not start or allocate: most often the card was full",
          next="look at the free memory at that moment: nvidia-smi; an index out of range can look the same (CUDA_LAUNCH_BLOCKING=1)",
          test="the same run with CUDA_LAUNCH_BLOCKING=1, and with half the batch"),
    Cause("cudnn", label="cuDNN failed", gpu=True, device="cuda", sign_of_gpu_fault=True, doubtful=True,
          headline="cuDNN failed: a full card or a mismatch of versions",
          next="half the batch tells which: if it still fails, compare torch.version.cuda with the driver",
          test="the same run with half the batch"),
    Cause("dataloader-killed", label="loader worker died", sign_of_kill=True, lost_process=True, killer_in_kernel_log=True, remedies=("fewer-workers",),
          headline="{worker_end}{pids}",
          next="the kernel's log says by whom: dmesg | grep -i 'killed process'; num_workers=0 shows whether the data is the load",
          test="the kernel's log for the worker's pid"),
    Cause("shm-exhausted", label="/dev/shm full", memory=True, shared_memory=True, sign_of_kill=True, lost_process=True,
          remedies=("larger-shm", "no-workers"),
          headline="/dev/shm was full: DataLoader workers pass batches through it",
          next="a larger one (docker run --shm-size=8g, or --ipc=host); fewer workers do not help where one batch is larger than it, num_workers=0 does",
          test="df -h /dev/shm while it runs"),
    Cause("numpy-memory-error", label="NumPy: out of memory", memory=True, refused=True, handled_as="a MemoryError", remedies=("one-data-copy",),
          headline="NumPy could not allocate an array{request}",
          next="load it in parts, or np.load(..., mmap_mode='r') for .npy (never works for .npz)",
          test="ulimit -v; free -h at that moment"),
    Cause("python-memory-error", label="Python: out of memory", memory=True, refused=True, handled_as="a MemoryError", remedies=("one-data-copy",),
          headline="Python ran out of memory{request}",
          next="load less at once; ulimit -v shows whether a limit of address space is set",
          test="ulimit -v; free -h at that moment"),
    Cause("heap-limit", label="runtime's own heap full", memory=True,
          headline="out of memory inside its own runtime: {message}",
          next="{heap_next}; the machine itself need not be short",
          test="the same with a larger heap; free -h while it runs"),
    Cause("bad-alloc", label="native code: out of memory", memory=True, refused=True,
          headline="native code could not allocate memory (std::bad_alloc)",
          next="make the job smaller; ulimit -v shows whether a limit of address space is set",
          test="ulimit -v; the same run with half the data"),
    Cause("killed-unknown", from_outside=True, killer_in_kernel_log=True, unexplained=True, label="killed, not known by whom", sign_of_kill=True, lost_process=True, by_signal=True, doubtful=True,
          remedies=("fewer-workers",),
          headline="killed by SIGKILL; this text does not say by whom",
          next="ask the kernel: dmesg | grep -i 'killed process'; next time start it with: {run}",
          test="the kernel's log at that time; sacct under Slurm"),
    Cause("segfault", label="segmentation fault", sign_of_gpu_fault=True, by_signal=True, kernel_fault=True,
          headline="crashed: segmentation fault{fault}, not an OOM kill",
          next="get the Python stack: PYTHONFAULTHANDLER=1 CMD",
          test="PYTHONFAULTHANDLER=1, or a core dump in gdb"),
    Cause("bus-error", shared_memory=True, sign_of_kill=True, lost_process=True, by_signal=True,
          headline="crashed: bus error (SIGBUS), not an OOM kill",
          next="check /dev/shm and the disk behind mapped files: df -h",
          test="df -h /dev/shm while it runs"),
    Cause("abort", label="aborted (SIGABRT)", sign_of_kill=True, by_signal=True, echo=True,
          headline="aborted by its own native code (SIGABRT), not an OOM kill",
          next="read the lines before it: the library says why",
          test="PYTHONFAULTHANDLER=1"),
    Cause("gpf", label="general protection fault", kernel_fault=True,
          headline="crashed: general protection fault{fault}, not an OOM kill",
          next="suspect memory hardware or a driver if it recurs in different programs",
          test="memtest, and the same run on another machine"),
    Cause("xid", label="GPU driver error (Xid)", kernel_fault=True,
          headline="the GPU driver reported an error (Xid{xid}), not an OOM",
          next="look the number up in NVIDIA's Xid table; 31 is mostly the program, 48/63/64/79 the hardware",
          test="nvidia-smi -q; the same job on another card"),
    Cause("nccl", label="collective failed (NCCL)", sign_of_kill=True, sign_of_gpu_fault=True, echo=True, doubtful=True,
          headline="a collective operation failed (NCCL): often another rank died first",
          next="find the first rank that failed; NCCL_DEBUG=WARN",
          test="the logs of the other ranks"),
    Cause("nan", label="loss was NaN", doubtful=True, handled_as="a NaN",
          headline="the loss became NaN or infinite",
          next="lower the learning rate, clip gradients, look at the batch before it",
          test="torch.autograd.set_detect_anomaly(True)"),
    Cause("assert", label="assertion failed", generic=True,
          headline="an assertion failed: {message}",
          next="read the traceback",
          test="the line it names"),
    Cause("device-assert", label="GPU assertion failed", sign_of_gpu_fault=True,
          headline="a check inside a GPU kernel failed, most often an index out of range",
          next="CUDA_LAUNCH_BLOCKING=1 shows the line; check labels and vocabulary size",
          test="the same step on the CPU"),
    Cause("illegal-access", label="illegal memory access", sign_of_gpu_fault=True,
          headline="an illegal memory access or instruction",
          next="CUDA_LAUNCH_BLOCKING=1 shows the line; compute-sanitizer finds it",
          test="compute-sanitizer CMD"),
    Cause("disk-full",
          headline="the disk was full",
          next="df -h; old checkpoints and caches first",
          test="df -h of the folder it wrote to"),
    Cause("interrupted", from_outside=True, stopped_by="person", sign_of_kill=True,
          headline="stopped from outside{message_in}",
          next="start it again",
          test="the scheduler's log"),
    Cause("import-error",
          headline="a module could not be imported: {message}",
          next="install it, or correct the version it names",
          test="python -c 'import …' in the same environment"),
    Cause("other-error", sign_of_kill=True, sign_of_gpu_fault=True, generic=True,
          headline="failed with {message}",
          next="read the traceback",
          test="the line it names"),
    Cause("not-a-crash", label="no crash", good=True,
          headline="no crash found here",
          next="if a job died, give its log or the kernel's: oomproof why FILE…"),
    Cause("finished", good=True),
    Cause("stopped-by-guard", memory=True, stopped_by="guard", label="stopped by oomproof"),
    Cause("stopped-by-user", label="stopped by a person", stopped_by="person"),
    Cause("machine-down", from_outside=True, unexplained=True, label="machine went down"),
    Cause("guard-lost", from_outside=True, unexplained=True, label="end not seen"),
    Cause("silent-end", unexplained=True, label="silent end", doubtful=True,
          headline="died without a word: the log stops before its own end",
          next="next time under watch, which sees the signal, the kernel's counters and the memory: {run}; "
               "several such logs: oomproof why --all FILE…",
          test="the same run under oomproof run: it records how it ended"),
)  # fmt: skip

CAUSES: dict[str, Cause] = {cause.slug: cause for cause in _TABLE}


def cause_of(slug: str) -> Cause:
    """The table's row; a bare one for what another version wrote down."""
    return CAUSES.get(slug) or Cause(slug)


def kernel_kill(constraint: str | None) -> str | None:
    """The slug for the ``CONSTRAINT_...`` in the kernel's log; None for what it does not print."""
    return next((cause.slug for cause in _TABLE if cause.constraint == constraint and constraint), None)

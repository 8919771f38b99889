"""DataLoader workers and the shared memory they hand their batches over in."""

from __future__ import annotations

import re

from oomproof.evidence.texts.failures.hit import Hit, Said, is_message

ANCHORS = (
    "encountered in worker", "DataLoader worker", "DataLoader process", "workers exit unexpectedly", "bus error", "Bus error", "shared memory", "/torch_", "/dev/shm", "/psm_", "No space left",
           "unable to mmap", "posix_fallocate")  # fmt: skip

# PyTorch says "worker", Paddle "process" and "N workers exit unexpectedly, pids: …"
_WORKER = re.compile(
    r"DataLoader (?:worker|process) \(pid(?:\(s\))?:? ?(?P<pids>[\d, ]+)\)(?P<rest>.{0,160})"
    r"|DataLoader \d+ workers (?P<gone>exit unexpectedly), pids: (?P<many>[\d, ]+)"
)
_BY_SIGNAL = re.compile(r"killed by signal: (?P<signal>[A-Z][\w ]*)")
_SHM = re.compile(
    r"insufficient shared memory|out of shared memory|unable to (?:write to|resize|allocate shared|mmap|map)[^\n]{0,60}"
    r"(?:</?torch_|</psm_|/dev/shm)|shared memory object </?torch_[^\n]{0,60}(?:No space|Cannot allocate)"
    r"|No space left on device[^\n]{0,40}/dev/shm|/dev/shm[^\n]{0,120}No space left|(?:Error while )?creating shared memory segment"
    r"|(?:failed to extend|ftruncate\(\) failed on) /dev/shm|(?:Call to )?posix_fallocate failed : No space|unable to (?:write|open)[^\n]{0,80}/torch_[^\n]{0,80}No space left"
)
# Files of the standard library and of torch that write nowhere but into /dev/shm
_SHM_FILES = re.compile(
    r"multiprocessing/(?:heap|shared_memory|synchronize|reductions|sharedctypes)\.py|storage\.py _?share"
)
_UNEXPECTED = re.compile(r"Unexpected (?P<signal>segmentation fault|bus error) encountered in worker")
_FD = re.compile(r"Too many open files")
_SIGNALS = {
    "Killed": ("dataloader-killed", "a DataLoader worker was killed (SIGKILL): most often for memory"),
    "Bus error": ("shm-exhausted", "a DataLoader worker hit a bus error: /dev/shm is full"),
    "Segmentation fault": ("segfault", "a DataLoader worker crashed in native code"),
    "Aborted": ("abort", "a DataLoader worker aborted"),
    "Terminated": ("interrupted", "a DataLoader worker was told to end (SIGTERM)"),
    "Interrupt": ("interrupted", "a DataLoader worker was interrupted"),
    "Hangup": ("interrupted", "a DataLoader worker lost its terminal"),
}


def recognise(said: Said) -> Hit | None:
    text = said.text
    worker = _WORKER.search(text)
    if worker:
        rest = worker["rest"] or ""
        pids = tuple(int(each) for each in re.findall(r"\d{1,10}", worker["pids"] or worker["many"])[:16])
        if by := _BY_SIGNAL.search(rest):
            name = by["signal"].strip()
            cause, says = _SIGNALS.get(
                name, ("other-error", f"a DataLoader worker died of a signal: {name[:40]}")
            )
            return Hit(cause, says, 0.9, pids=pids, details={"worker_signal": name[:40]})
        if worker["gone"] or "exited unexpectedly" in rest:
            code = re.search(r"exit code (\d{1,3})", rest)
            details = {"worker_exit": code[1]} if code else {}
            return Hit(
                "dataloader-killed",
                "a DataLoader worker died without a word",
                0.6,
                pids=pids,
                details=details,
            )
    if unexpected := _UNEXPECTED.search(text):
        cause, says = _SIGNALS.get(
            unexpected["signal"].capitalize(), ("other-error", "a DataLoader worker crashed")
        )
        return Hit(cause, says, 0.9)
    if said.quiet or _FD.search(text):
        return None
    shared = _SHM.search(text)
    if shared and (
        said.raised
        or "torch_" in shared[0]
        or "failed" in shared[0]
        or "/dev/shm/nccl" in text
        or is_message(shared, said, strict=True)
    ):
        return Hit("shm-exhausted", "shared memory (/dev/shm) is full", 0.93)
    full = "No space left on device" in text or "[Errno 28]" in text
    if said.raised and full and _SHM_FILES.search(said.files):
        return Hit("shm-exhausted", "shared memory (/dev/shm) is full", 0.85)
    return None

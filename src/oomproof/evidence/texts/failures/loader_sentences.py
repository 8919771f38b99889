"""DataLoader workers and the shared memory they hand their batches over in."""

from __future__ import annotations

import re

from oomproof.evidence.texts.failures.recogniser import FailureText, is_message
from oomproof.evidence.texts.failures.rules import Row, Rule

# PyTorch says "worker", Paddle "process" and "N workers exit unexpectedly, pids: …"
_WORKER = r"DataLoader (?:worker|process) \(pid(?:\(s\))?:? ?(?P<pids>[\d, ]+)\).{0,140}?"
# a title has no pid for it, or dots
_NAMELESS = r"DataLoader (?:worker|process)(?: \(pid[^)\d]{0,12}\))? (?:is|was) "
_FULL = "shared memory (/dev/shm) is full"
# Files of the standard library and of torch that write nowhere but into /dev/shm
_SHM_FILES = re.compile(
    r"multiprocessing/(?:heap|shared_memory|synchronize|reductions|sharedctypes)\.py|storage\.py _?share"
)
_ELSEWHERE = re.compile(r"No space left on device: ['\"]/(?!dev/shm)")  # the path says which disk


def _by_signal(cause: str, says: str, signal: str) -> Rule:
    example = f"RuntimeError: DataLoader worker (pid 4242) is killed by signal: {signal}."
    # … broken behind "Bus"
    named = rf"{signal}\b" if " " not in signal else rf"(?:{signal}\b|{signal.partition(' ')[0]}$)"
    row = Row("killed by signal: ", example, rf"{_WORKER}killed by signal: {named}", {"pids": (4242,)})
    return Rule(cause, says, 0.9, row)


def _said_by_itself(said: FailureText, match: re.Match[str]) -> bool:
    return bool(said.raised) or is_message(match, said, strict=True)


def _own_words(said: FailureText, match: re.Match[str]) -> bool:
    """Of the process that met it, not about one."""
    told = "torch_" in match[0] or "failed" in match[0] or "/dev/shm/nccl" in said.text
    return bool(said.raised) or told or is_message(match, said, strict=True)


LOADER = (
    _by_signal("dataloader-killed", "a DataLoader worker was killed (SIGKILL): most often for memory", "Killed"),
    _by_signal("shm-exhausted", "a DataLoader worker hit a bus error: /dev/shm is full", "Bus error"),
    _by_signal("segfault", "a DataLoader worker crashed in native code", "Segmentation fault"),
    _by_signal("abort", "a DataLoader worker aborted", "Aborted"),
    _by_signal("interrupted", "a DataLoader worker was told to end (SIGTERM)", "Terminated"),
    _by_signal("interrupted", "a DataLoader worker was interrupted", "Interrupt"),
    _by_signal("interrupted", "a DataLoader worker lost its terminal", "Hangup"),
    Rule("dataloader-killed", "a DataLoader worker was killed (SIGKILL): most often for memory", 0.7,
         Row("killed by signal: ", "DataLoader worker is killed by signal: Killed", rf"{_NAMELESS}killed by signal: Killed\W{{0,4}}$",
             other="- **DataLoader worker is killed by signal: Killed**: lower `--workers`."),
         fits=_said_by_itself),
    Rule("other-error", "a DataLoader worker died of a signal: {signal}", 0.9,
         Row("killed by signal: ", "RuntimeError: DataLoader worker (pid 4242) is killed by signal: Illegal instruction.",
             rf"{_WORKER}killed by signal: (?P<signal>[A-Z][\w ]{{0,39}})", {"pids": (4242,)})),
    Rule("dataloader-killed", "a DataLoader worker died without a word", 0.6,
         Row("is killed by", "RuntimeError: DataLoader worker (pid 4242) is killed by", rf"{_WORKER}is killed by(?: signal:?)?$", {"pids": (4242,)}),  # cut off
         Row("exited unexpectedly", "RuntimeError: DataLoader worker (pid(s) 4242, 4243) exited unexpectedly",
             rf"{_WORKER}exited unexpectedly", {"pids": (4242, 4243)}),
         Row("exit unexpectedly", "RuntimeError: DataLoader 1 workers exit unexpectedly, pids: 4242",
             r"DataLoader \d+ workers exit unexpectedly, pids: (?P<pids>[\d, ]+)", {"pids": (4242,)})),
    Rule("shm-exhausted", "a DataLoader worker hit a bus error: /dev/shm is full", 0.9,
         Row("nexpected bus error encountered in worker", "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).")),
    Rule("segfault", "a DataLoader worker crashed in native code", 0.9,
         Row("Unexpected segmentation fault encountered in worker", "ERROR: Unexpected segmentation fault encountered in worker.")),
    Rule("shm-exhausted", _FULL, 0.93,
         Row("insufficient shared memory", "RuntimeError: insufficient shared memory (shm)"),
         Row("Insufficient shared memory", "ERROR: Insufficient shared memory", r"^(?:\w+: )?Insufficient shared memory\b"),
         Row("out of shared memory", "RuntimeError: DataLoader worker is out of shared memory. Please try to raise your shared memory limit."),
         Row("unable to ", "RuntimeError: unable to write to file </torch_4242_1>",
             r"unable to (?:write to|resize|allocate shared|mmap|map)[^\n]{0,60}(?:</?torch_|</psm_|/dev/shm)"),
         Row("shared memory object ", "RuntimeError: unable to open shared memory object </torch_4242_1> in read-write mode: No space left on device (28)",
             r"shared memory object </?torch_[^\n]{0,60}(?:No space|Cannot allocate)"),
         Row("/dev/shm", "OSError: [Errno 28] No space left on device: '/dev/shm/x'", r"No space left on device[^\n]{0,40}/dev/shm|/dev/shm[^\n]{0,120}No space left"),
         Row("creating shared memory segment", "node17:4242:4300 [0] NCCL WARN Error while creating shared memory segment /dev/shm/nccl-7dK2 (size 9637888)",
             r"(?:Error while )?creating shared memory segment"),
         Row("/dev/shm", "node17:4242:4300 [0] include/shm.h:48 NCCL WARN Error: failed to extend /dev/shm/nccl-7dK2 to 9637892 bytes",
             r"(?:failed to extend|ftruncate\(\) failed on) /dev/shm"),
         Row("posix_fallocate failed", "NCCL WARN Call to posix_fallocate failed : No space left on device", r"(?:Call to )?posix_fallocate failed : No space"),
         Row("/torch_", "RuntimeError: unable to write to file: /torch_4242_1: No space left on device", r"unable to (?:write|open)[^\n]{0,80}/torch_[^\n]{0,80}No space left"),
         loud=True, unless="Too many open files", fits=_own_words),
    Rule("shm-exhausted", _FULL, 0.85,  # Open MPI
         Row("there is not enough space for /dev/shm", "It appears as if there is not enough space for /dev/shm/vader_segment.node17 (the shared-memory backing file).")),
    Rule("shm-exhausted", _FULL, 0.85,
         Row("No space left on device", 'Traceback (most recent call last):\n  File "/usr/lib/python3.11/multiprocessing/heap.py", line 80, in __init__\n'
             "    os.ftruncate(self.fd, size)\nOSError: [Errno 28] No space left on device",
             other='Traceback (most recent call last):\n  File "save.py", line 8, in save\n    file.write(data)\nOSError: [Errno 28] No space left on device'),
         only="raised", unless="Too many open files", fits=lambda said, match: _SHM_FILES.search(said.files) is not None and not _ELSEWHERE.search(said.text)),
)  # fmt: skip

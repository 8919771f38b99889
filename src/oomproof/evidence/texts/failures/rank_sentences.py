"""What PyTorch and NCCL print of other processes: DataLoader workers, the shared memory they use, and the other ranks of the job."""

from __future__ import annotations

import re

from oomproof.evidence.texts.failures.rules import FailureText, Match, Row, Rule, is_message

# PyTorch says "worker", Paddle "process"
_WORKER = r"DataLoader (?:worker|process) \(pid(?:\(s\))?:? ?(?P<pids>[\d, ]+)\).{0,140}?"
_FULL = "shared memory (/dev/shm) is full"
# Files of the standard library and of torch that write only into /dev/shm
_SHM_FILES = re.compile(
    r"multiprocessing/(?:heap|shared_memory|synchronize|reductions|sharedctypes)\.py|storage\.py _?share"
)
_ELSEWHERE = re.compile(r"No space left on device: ['\"]/(?!dev/shm)")  # the path names another disk


def _by_signal(cause: str, says: str, signal: str) -> Rule:
    example = f"RuntimeError: DataLoader worker (pid 4242) is killed by signal: {signal}."
    # a title may be cut behind "Bus"
    named = rf"{signal}\b" if " " not in signal else rf"(?:{signal}\b|{signal.partition(' ')[0]}$)"
    return Rule(
        cause,
        says,
        0.9,
        Row("killed by signal: ", example, rf"{_WORKER}killed by signal: {named}", {"pids": (4242,)}),
    )


def _is_message(said: FailureText, match: Match) -> bool:
    return bool(said.raised) or is_message(match, said, strict=True)


def _is_own(said: FailureText, match: Match) -> bool:
    """True for the words of the process that met the failure."""
    return (
        any(word in match[0] for word in ("torch_", "failed", "not enough"))
        or "/dev/shm/nccl" in said.text
        or _is_message(said, match)
    )


LOADER = (
    _by_signal("dataloader-killed", "a DataLoader worker was killed (SIGKILL): most often for memory", "Killed"),
    _by_signal("shm-exhausted", "a DataLoader worker hit a bus error: /dev/shm is full", "Bus error"),
    _by_signal("segfault", "a DataLoader worker crashed in native code", "Segmentation fault"),
    _by_signal("abort", "a DataLoader worker aborted", "Aborted"),
    _by_signal("interrupted", "a DataLoader worker was told to end (SIGTERM)", "Terminated"),
    Rule("other-error", "a DataLoader worker died of a signal: {signal}", 0.9,
        Row("killed by signal: ", "RuntimeError: DataLoader worker (pid 4242) is killed by signal: Illegal instruction.",
            rf"{_WORKER}killed by signal: (?P<signal>[A-Z][\w ]{{0,39}})", {"pids": (4242,)})),
    Rule("dataloader-killed", "a DataLoader worker was killed (SIGKILL): most often for memory", 0.7,
        Row("killed by signal: ", "DataLoader worker is killed by signal: Killed",
            r"DataLoader (?:worker|process)(?: \(pid[^)\d]{0,12}\))? (?:is|was) killed by signal: Killed\W{0,4}$",
            other="- **DataLoader worker is killed by signal: Killed**: lower `--workers`."),
        fits=_is_message),
    Rule("dataloader-killed", "a DataLoader worker died without a word", 0.6,
        Row("exited unexpectedly", "RuntimeError: DataLoader worker (pid(s) 4242, 4243) exited unexpectedly",
            rf"{_WORKER}exited unexpectedly", {"pids": (4242, 4243)}),
        Row("workers exit unexpectedly, pids: ", "DataLoader 1 workers exit unexpectedly, pids: 4242",  # Paddle
            r"DataLoader \d+ workers exit unexpectedly, pids: (?P<pids>[\d, ]+)", {"pids": (4242,)})),
    Rule("shm-exhausted", "a DataLoader worker hit a bus error: /dev/shm is full", 0.9, Row("nexpected bus error encountered in worker")),
    Rule("segfault", "a DataLoader worker crashed in native code", 0.9, Row("nexpected segmentation fault encountered in worker")),
    Rule("shm-exhausted", _FULL, 0.93,
        Row("nsufficient shared memory", "insufficient shared memory (shm)", "[Ii]nsufficient shared memory"), Row("out of shared memory"),
        Row("unable to ", "RuntimeError: unable to write to file </torch_4242_1>",
            r"unable to [^\n]{0,80}(?:</?torch_|</psm_|/dev/shm|: /torch_[^\n]{0,40}No space)"),
        Row("/dev/shm", "OSError: [Errno 28] No space left on device: '/dev/shm/x'",
            r"No space left on device[^\n]{0,40}/dev/shm|/dev/shm[^\n]{0,120}No space left"),
        Row("/dev/shm", "NCCL WARN Error: failed to extend /dev/shm/nccl-7dK2 to 9637892 bytes",  # and Open MPI
            r"(?:failed to extend|ftruncate\(\) failed on|not enough space for) /dev/shm"),
        Row("creating shared memory segment", "NCCL WARN Error while creating shared memory segment /dev/shm/nccl-7dK2 (size 9637888)",
            r"(?:Error while )?creating shared memory segment"),
        loud=True, unless="Too many open files", fits=_is_own),
    Rule("shm-exhausted", _FULL, 0.85,
        Row("No space left on device",
            'Traceback (most recent call last):\n  File "/usr/lib/python3.11/multiprocessing/heap.py", line 80, in f\n'
            "    os.ftruncate(self.fd, size)\nOSError: [Errno 28] No space left on device",
            other='Traceback (most recent call last):\n  File "a.py", line 8, in f\n    f()\nOSError: [Errno 28] No space left on device'),
        only="raised", unless="Too many open files",
        fits=lambda said, match: _SHM_FILES.search(said.files) is not None and not _ELSEWHERE.search(said.text)),
)  # fmt: skip

_NOT_THIS = r"[Cc]uda failure[ :]*(?:2 )?'?out of memory|Address already in use|EADDRINUSE"
_SHUTDOWN = re.compile(
    r"destroy_process_group|NCCL INFO|has NOT been destroyed|NCCL version|is deprecated|not implemented|Guessing device|using GPU \d"
)


def _happened(said: FailureText, match: Match) -> bool:
    return bool(said.raised) or "ERROR" in said.text or not _SHUTDOWN.search(said.text)


def _reported(said: FailureText, match: Match) -> bool:
    return _happened(said, match) and (bool(said.raised) or said.level not in ("INFO", "DEBUG"))


# Nearly always the echo of another rank's death
RANKS = (
    Rule("nccl", "collective communication failed or waited in vain for another rank", 0.85,
        Row("CCL ", "RuntimeError: NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:825, unhandled cuda error",
            r"[HNR]CCL (?:error|failure|timeout|communicator was aborted|operations have failed|Error \d|Watchdog|function error)"
            r"|setting up NCCL communicator|NCCL WARN .{0,60}(?:Error|failed with|Abort)|Timeout at NCCL work"),
        Row("nccl", "ncclInternalError: Internal check failed.",
            r"nccl(?:System|UnhandledCuda|Internal|Remote|Invalid\w+)Error|nccl(?:Unhandled|Invalid)|nccl\w{3,40} failed"),
        Row("atchdog ", "watchdog thread terminated with exception: failure", "atchdog (?:caught|got stuck|thread terminated)"),
        Row("DistBackendError"), Row("Heartbeat monitor timed out"), Row("HorovodInternalError"),
        unless=_NOT_THIS, fits=_reported),
    # NCCL also warns and goes on: a weak hit, which progress after it discards
    Rule("nccl", "NCCL says that a call or a connection failed", 0.4,
        Row("CCL WARN ", "node17:4242:4300 [0] NCCL WARN Call to connect returned Connection refused",
            r"[NR]CCL WARN [^\n]{0,120}?(?:(?:Cuda|HIP) failure|failed|Connection (?:closed|refused)|Duplicate GPU|Mismatched|[Ii]nvalid"
            r"|Got completion|[Tt]imed? ?out|Broken pipe|remote process exited|no socket interface)"),
        unless=_NOT_THIS, fits=_happened),
    Rule("nccl", "another rank was gone: the group was shut down", 0.5,
        Row("Horovod has been shut down"), unless=_NOT_THIS, fits=_happened),
    Rule("nccl", "the connection to another rank was lost", 0.6,
        Row("gloo", "RuntimeError: gloo/transport/tcp/pair.cc:598] Connection closed by peer [10.0.0.1]:4242",
            "gloo.{0,200}(?:Connection (?:closed|reset)|Timed out|Broken pipe|error)"),
        Row("Connection closed by peer ["), Row("Read error ["), Row("wait timeout after"), Row("Timeout waiting for key"),
        Row("ocket ", "RuntimeError: Socket Timeout", "[Ss]ocket Timeout|client socket has (?:timed out|failed)"),
        Row("torch.distributed.Dist", "torch.distributed.DistStoreError: Timed out", "Dist(?:Store|Network)Error"),
        Row("TCPStore", "RuntimeError: TCPStore.cpp:100 recvValue failed", "TCPStore.{0,80}(?:failed|timed)"),
        Row("Timed out initializing process group"), Row("monitoredBarrier"),
        printed=0.4, loud=True, unless=_NOT_THIS, fits=_happened),
)  # fmt: skip

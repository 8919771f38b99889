"""NCCL, gloo and the rendezvous: nearly always the echo of another rank's death."""

from __future__ import annotations

import re

from oomproof.evidence.texts.failures.recogniser import FailureText
from oomproof.evidence.texts.failures.rules import Row, Rule

_NOT_THIS = r"[Cc]uda failure[ :]*(?:2 )?'?out of memory|Address already in use|EADDRINUSE"
_SHUTDOWN = re.compile(
    r"destroy_process_group|NCCL INFO|has NOT been destroyed|NCCL version|is deprecated|not implemented|Guessing device|using GPU \d"
)


def _happened(said: FailureText, match: re.Match[str]) -> bool:
    return bool(said.raised) or "ERROR" in said.text or not _SHUTDOWN.search(said.text)


def _reported(said: FailureText, match: re.Match[str]) -> bool:
    return _happened(said, match) and (bool(said.raised) or said.level not in ("INFO", "DEBUG"))


RANKS = (
    Rule("nccl", "collective communication failed or waited in vain for another rank", 0.85,
         Row("CCL ", "RuntimeError: NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:825, unhandled cuda error",
             r"[NR]CCL (?:error|failure|timeout)|NCCL (?:communicator was aborted|operations have failed|Error \d|Watchdog)|HCCL (?:error|function error)|setting up NCCL communicator"
             r"|NCCL WARN .{0,60}(?:Error|failed with|Abort)|Timeout at NCCL work"),
         Row("nccl", "ncclInternalError: Internal check failed.",
             r"nccl(?:System|UnhandledCuda|Internal|Remote|InvalidUsage|InvalidArgument)Error|nccl(?:Unhandled|Invalid(?:Usage|Argument))|nccl\w{3,40} failed"),
         Row("caught collective operation timeout", "[E ProcessGroupNCCL.cpp:475] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=8)"),
         Row("atchdog ", "[rank1]:[E ProcessGroupNCCL.cpp:1182] watchdog thread terminated with exception: failure", r"Watchdog caught|watchdog got stuck|watchdog thread terminated with exception"),
         Row("DistBackendError", "torch.distributed.DistBackendError: failed"),
         Row("Heartbeat monitor timed out", "[E ProcessGroupNCCL.cpp:1316] [PG 0 Rank 3] Heartbeat monitor timed out! Process will be terminated"),
         Row("HorovodInternalError", "horovod.common.exceptions.HorovodInternalError: failed"),
         unless=_NOT_THIS, fits=_reported),
    # NCCL also warns and goes on: weak, so that a run that went on fades it
    Rule("nccl", "NCCL says that a call or a connection failed", 0.4,
         Row("CCL WARN ", "node17:4242:4300 [0] NCCL WARN Call to connect returned Connection refused, NCCL call failed",
             r"[NR]CCL WARN [^\n]{0,120}?(?:Cuda failure|HIP failure|Call to \w+ failed|Connection closed|Connection refused|Socket (?:recv|send) failed"
             r"|Duplicate GPU|Mismatched|[Ii]nvalid (?:argument|usage|config)|Got completion|[Tt]imed? ?out|Broken pipe|remote process exited|no socket interface found)"),
         unless=_NOT_THIS, fits=_happened),
    Rule("nccl", "another rank was gone: the group was shut down", 0.5,
         Row("Horovod has been shut down", "RuntimeError: Horovod has been shut down. This was caused by an exception on one of the ranks"),
         Row("MPI communication peer process has unexpectedly disconnected", "MPI communication peer process has unexpectedly disconnected."),
         unless=_NOT_THIS, fits=_happened),
    Rule("nccl", "the connection to another rank was lost", 0.6,
         Row("gloo", "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:598] Connection closed by peer [10.0.0.1]:4242",
             r"gloo.{0,200}(?:Connection (?:closed|reset)|Timed out|Broken pipe|error)"),
         Row("Connection closed by peer [", "RuntimeError: Connection closed by peer [10.0.0.1]:4242"),
         Row("Read error [", "RuntimeError: Read error [10.0.0.1]:4242: Connection reset by peer"),
         Row("wait timeout after", "RuntimeError: wait timeout after 300000ms"),
         Row("ocket Timeout", "RuntimeError: Socket Timeout", r"[Ss]ocket Timeout"),
         Row("DistNetworkError", "torch.distributed.DistNetworkError: The server socket has failed"),
         Row("DistStoreError", "torch.distributed.DistStoreError: Timed out after 901 seconds waiting for clients"),
         Row("client socket has ", "RuntimeError: The client socket has timed out after 900s", r"client socket has (?:timed out|failed)"),
         Row("Timeout waiting for key", "RuntimeError: Timeout waiting for key: default_pg/0/0 after 1800000 ms"),
         Row("TCPStore", "RuntimeError: TCPStore.cpp:100 recvValue failed", r"TCPStore.{0,80}(?:failed|timed)"),
         Row("Timed out initializing process group", "RuntimeError: Timed out initializing process group in store based barrier on rank: 0"),
         Row("monitoredBarrier", "RuntimeError: Rank 1 failed to pass monitoredBarrier in 1800000 ms"),
         printed=0.4, loud=True, unless=_NOT_THIS, fits=_happened),
)  # fmt: skip

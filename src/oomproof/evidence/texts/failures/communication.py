"""NCCL, gloo and the rendezvous: nearly always the echo of another rank's death."""

from __future__ import annotations

import re

from oomproof.evidence.texts.failures.hit import Hit, Said

ANCHORS = ("NCCL", "nccl", "RCCL", "gloo", "DistBackendError", "DistNetworkError", "DistStoreError", "ocket Timeout", "TCPStore", "c10d", "store->get",
           "collective", "client socket", "Timeout waiting for key", "peer", "oCCL", "wait timeout", "HCCL", "process group", "store based barrier", "orovod")  # fmt: skip

_NCCL = re.compile(
    r"[NR]CCL (?:error|failure|timeout)|nccl(?:System|UnhandledCuda|Internal|Remote|InvalidUsage|InvalidArgument)Error|nccl(?:Unhandled|Invalid(?:Usage|Argument))"
    r"|caught collective operation timeout|Watchdog caught|NCCL communicator was aborted|NCCL operations have failed|Timeout at NCCL work"
    r"|watchdog got stuck|DistBackendError|NCCL Error \d|NCCL Watchdog|watchdog thread terminated with exception|Heartbeat monitor timed out"
    r"|setting up NCCL communicator|nccl\w{3,40} failed|HorovodInternalError|NCCL WARN .{0,60}(?:Error|failed with|Abort)|HCCL (?:error|function error)"
)
_OTHERS = re.compile(
    r"gloo.{0,200}(?:Connection (?:closed|reset)|Timed out|Broken pipe|error)|Connection closed by peer \[|Read error \[|wait timeout after"
    r"|[Ss]ocket Timeout|DistNetworkError|DistStoreError|client socket has (?:timed out|failed)|Timeout waiting for key|TCPStore.{0,80}(?:failed|timed)"
    r"|Timed out initializing process group|monitoredBarrier"
)
# NCCL also warns and goes on: weak, so that a run that went on fades it
_WARNED = re.compile(
    r"[NR]CCL WARN [^\n]{0,120}?(?:Cuda failure|HIP failure|Call to \w+ failed|Connection closed|Connection refused|Socket (?:recv|send) failed"
    r"|Duplicate GPU|Mismatched|[Ii]nvalid (?:argument|usage|config)|Got completion|[Tt]imed? ?out|Broken pipe|remote process exited|no socket interface found)"
)
_SHUT_DOWN = re.compile(
    r"Horovod has been shut down|MPI communication peer process has unexpectedly disconnected"
)
_MEMORY = re.compile(r"[Cc]uda failure[ :]*(?:2 )?'?out of memory")
_SHUTDOWN = re.compile(
    r"destroy_process_group|NCCL INFO|has NOT been destroyed|NCCL version|is deprecated|not implemented|Guessing device|using GPU \d"
)


def recognise(said: Said) -> Hit | None:
    text = said.text
    if _MEMORY.search(text) or (not said.raised and _SHUTDOWN.search(text) and "ERROR" not in text):
        return None
    if "Address already in use" in text or "EADDRINUSE" in text:
        return None
    if _NCCL.search(text) and not (said.level in ("INFO", "DEBUG") and not said.raised):
        return Hit("nccl", "collective communication failed or waited in vain for another rank", 0.85)
    if _WARNED.search(text):
        return Hit("nccl", "NCCL says that a call or a connection failed", 0.4)
    if _SHUT_DOWN.search(text):
        return Hit("nccl", "another rank was gone: the group was shut down", 0.5)
    if _OTHERS.search(text) and not said.quiet:
        return Hit("nccl", "the connection to another rank was lost", 0.6 if said.raised else 0.4)
    return None

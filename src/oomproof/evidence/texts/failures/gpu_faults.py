"""GPU faults that are no lack of memory: device-side asserts and bad addresses."""

from __future__ import annotations

import re

from oomproof.evidence.texts.failures.hit import Hit, Said

ANCHORS = ("device-side assert", "illegal memory", "ILLEGAL_ADDRESS", "IllegalAddress", "thread: [", "ErrorAssert",
           "ERROR_ASSERT", "misaligned address", "launch failure", "illegal instruction", "Memory access fault", "LAUNCH_FAILED",
           "Device-side assertion", "GPU is lost", "CUDA error:", "CUDA Error:", "HIP error:", "fallen off the bus", "ECC error", "device handle for", "cudaSuccess")  # fmt: skip

# glog prints only CUDA's number: "Check failed: error == cudaSuccess (77 vs. 0)"; numbers changed with CUDA 10.1
_ASSERT = re.compile(
    r"device-side assert|cudaErrorAssert|CUDA_ERROR_ASSERT|Device-side assertion|== ?cudaSuccess[^\n]{0,80}\((?:59|710) vs\.? 0\)"
)
_KERNEL_ASSERT = re.compile(
    r"block: \[[\d,]+\],? thread: \[[\d,]+\]\W+Assertion [`'](?P<what>.{0,200}?)(?:[`'] failed|$)"
)
_ACCESS = re.compile(
    r"illegal memory access|CUDA_ERROR_ILLEGAL_ADDRESS|cudaErrorIllegalAddress|misaligned address"
    r"|an illegal instruction was encountered|Memory access fault by GPU|unspecified launch failure|CUDA_ERROR_LAUNCH_FAILED"
    r"|hipErrorIllegalAddress|== ?cudaSuccess[^\n]{0,80}\((?:4|74|77|700|716|719) vs\.? 0\)"
)
# the card itself is gone; without the driver's Xid nothing says why
_LOST = re.compile(
    r"GPU is lost|fallen off the bus|[Uu]ncorrectable ECC error|Unable to determine the device handle for"
)
_CALL = re.compile(
    r"(?:CUDA|HIP) (?:[Ee]rror|ERROR): (?!.{0,80}(?:out of memory|illegal|misaligned|assert))\w+ \w+"
)
_HINT = re.compile(r"to enable device-side assertions?")


def recognise(said: Said) -> Hit | None:
    text = said.text
    if match := _KERNEL_ASSERT.search(text):
        return Hit(
            "device-assert",
            f"a GPU kernel's check failed: {match['what']}",
            0.9,
            details={"check": match["what"]},
        )
    if _ASSERT.search(_HINT.sub("", text)):  # PyTorch adds that hint to every CUDA error
        return Hit("device-assert", "an assertion failed inside a GPU kernel", 0.95 if said.raised else 0.7)
    if _LOST.search(text) and "Xid" not in text and not said.quiet:
        return Hit("other-error", "the GPU does not answer any more, or its memory is faulty", 0.7)
    if not said.raised and not said.quiet and _CALL.match(text):
        return Hit("other-error", "a call to the GPU failed", 0.5)
    if _ACCESS.search(text):
        return Hit(
            "illegal-access",
            "a GPU kernel touched an address that is not its own",
            0.95 if said.raised else 0.75,
        )
    return None

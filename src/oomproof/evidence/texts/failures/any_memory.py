"""Any library's words for "no memory": what the known sentences of the other families leave over."""

from __future__ import annotations

import re

from oomproof.evidence.texts.failures.recogniser import FailureText, Hit, is_message
from oomproof.evidence.texts.failures.rules import CodeRule
from oomproof.evidence.texts.finding import GpuNumbers, JobFacts
from oomproof.evidence.texts.quantities import SIZE, amount

_ANCHORS = ("lloc", "LLOC", "ut of memory", "ut of GPU memory", "ut Of Memory", "ut of Memory", "ut_of_memory", "OUT_OF_", "cudaErrorMemoryAllocation", "hipErrorOutOfMemory", "hipMalloc", "OOM", "nough memory", "nsufficient", "emory available", "emory is not enough")  # fmt: skip

# Something was asked for and not given. "Allocate" alone is not enough: schedulers allocate nodes, launchers ports.
_REFUSED = re.compile(
    r"(?:[Cc]ould not|[Cc]annot|[Cc]an't|[Cc]ouldn't|[Uu]nable to|[Ff]ail(?:ed|ure|s|ing)? (?:to|in|when)|[Ee]rror(?: in| while|:)?) ?(?:\w+ )?(?:re)?[Aa]llocat\w*[^\n]{0,60}?"
    r"(?:memory|bytes\b|buffer|tensor|vector of size|\d ?[KMGT]i?B\b)|\b[Oo]ut[ _-][Oo]f[ _-](?:\w{3,6} )?[Mm]emory\b|[Nn]ot enough (?:\w+ ){0,4}?(?:memory|RAM|VRAM)\b"
    r"|[Ii]nsufficient (?:\w+ ){0,3}?memory\b|[Mm]emory allocation (?:failed|failure|error)|: bad allocation\b|[Ff]ail\w* to (?:alloc|malloc)\b|\bOut_of_memory\b|\b(?:cudaErrorMemoryAllocation|CUDA_ERROR_OUT_OF_MEMORY|VK_ERROR_OUT_OF_\w{4,10}MEMORY|CL_OUT_OF_(?:RESOURCES|HOST_MEMORY)|hipErrorOutOfMemory)\b|\bhipMalloc failed|\b[mc]alloc\w*(?:\(\))? (?:failed|error|returned)"
)
_GPU = re.compile(
    r"GPU|\bVK_|[Cc]uda|CUDA|VRAM|[Vv]ideo memory|[Dd]evice memory|\bHIP\b|\bhip|ROCm|TensorRT|\[TRT\]|DirectML|[Vv]ulkan|OpenCL|CL_|MPS|Metal|\bNPU\b|\bMLU\b|\bXPU\b|\bTPU\b|HBM|BFCArena|cudnn|\.cu[h:(]"
)
_TOLD = re.compile(
    rf"\b(\d{{3,16}})[ -]?bytes?\b|{SIZE}|buffer of size (\d{{3,16}})|size (\d{{5,16}})\b|memory of (\d{{3,16}}) size|[Rr]equested memory: (\d{{3,16}})\b"
    r"|vector of size ([\d.]{1,12}) ([KMGT])b\b"  # R
)
# It goes on, or tells how to avoid it
_MILD = re.compile(
    r"fall(?:ing|s)? ?back|retry|try again|will try|trying (?:with|again)|[Ss]kipping|may (?:run|go|lead)|might|[Tt]o avoid|[Ii]f you|in case|could (?:run|lead|cause|result)|continu|[Rr]educ(?:e|ing) the|prevent|of pinned memory|^\W{0,3}[Ww]arning\b|\bmlock|lock memory"
)
_SHORT = 80
# A program that lists what it may have been
_GUESS = re.compile(
    r"(?i)\bcould be because\b|\bseveral reasons\b|\bmost common (?:are|causes|reasons)\b|\bpossible (?:causes|reasons)\b"
)
_ERROR_FIRST = re.compile(
    r"^\s*what\(\): |^\W{0,4}(?:\w{0,12} ){0,2}(?:[Ee]rror|ERROR|FATAL|PANIC|[Ff]atal(?: error)?)\b\W|^EXITING because of \w{0,12} ?ERROR\b|^\[\w{4,60}\] (?=[Ff]ail)|^[\w./-]{2,40}: (?=not enough memory$)|^\w{2,20}assert: |^\w{4,40}: (?=CL_OUT_OF_\w{4,20}$)|^(?=[A-Z]{2,4}_\w{2,40}_MEMORY$)"
)
# the kernel's and other guards' words have readers of their own
_NOT_MEMORY = re.compile(
    r"No space left|[Tt]oo many open files|heap|thread|semaphore|\bport\b|address|TLS block|SIG|[Kk]ill|Perhaps out of|avail: \d|[Ii]nvalid argument"
)


def _recognise(said: FailureText) -> Hit | None:
    text = said.text
    refused = _REFUSED.search(text)
    if refused is None or _NOT_MEMORY.search(text):
        return None
    if (
        said.raised
        and text[: refused.start()].endswith(("'", '"'))
        and text[refused.end() :].startswith(("'", '"'))
    ):
        return None  # "unknown section 'out of memory'": a name, not a complaint
    if _GUESS.search(text[: refused.start()]):
        return None
    size = _size(text)
    if not said.raised and (said.quiet or _MILD.search(text) or not _spoken(refused, said, size)):
        return None
    if "bad allocation" in refused[0]:
        return Hit("bad-alloc", "native code could not allocate memory", 0.75)
    strength = 0.8 if said.raised else 0.65
    if _GPU.search(text):
        gpu = GpuNumbers(requested=size) if size else None
        return Hit("cuda-oom", "the GPU's memory could not be had", strength, gpu=gpu)
    facts = JobFacts(requested=size or None)
    return Hit("python-memory-error", "the host refused memory", strength, facts=facts)


def _spoken(refused: re.Match[str], said: FailureText, size: int | None) -> bool:
    """A program's own line: at an error's level or after an error's name, or a sentence of its own with a figure."""
    if said.level in ("ERROR", "FATAL", "CRITICAL") or _ERROR_FIRST.match(said.text):
        return True
    if refused.start() == 0 and len(said.text) <= _SHORT and refused[0][0] in "FUC":
        return True  # all that the line says
    return size is not None and is_message(refused, said, strict=True)


def _size(text: str) -> int | None:
    match = _TOLD.search(text)
    if match is None:
        return None
    if plain := match[1] or match[4] or match[5] or match[6] or match[7]:
        return int(plain)
    return amount(match[8], f"{match[9]}B") if match[8] else amount(match[2], match[3])


ANY_MEMORY = (CodeRule(_ANCHORS, _recognise),)

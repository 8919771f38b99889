"""What programs print when the host refuses memory or a runtime's own limit is reached: Python, NumPy, PyTorch's CPU allocator,
C++, Rust, Java, node and the servers beside a job; last, any other words for a lack of memory."""

from __future__ import annotations

import re

from oomproof.evidence.texts.failures.rules import (
    CodeRule,
    FailureText,
    Hit,
    Match,
    Row,
    Rule,
    is_message,
    talk_if_quiet,
)
from oomproof.evidence.texts.finding import GpuNumbers, JobFacts
from oomproof.evidence.texts.quantities import SIZE, amount

_TRIED = re.compile(
    r"(?:(?:tried|attempted) to allocate |more system memory \()(\d[\d.]*) ?([KMGT]?i?B|bytes|GB)"
    r"|(?:alloc of size|alloc memory of|allocation of|allocation failed|[Ff]ailed to (?:map|allocate)|unable to mmap"
    r"|commit_memory\(0x[0-9a-f]+,) (\d+)"
)
_NUMPY = re.compile(
    rf"nable to allocate (?:array|{SIZE}) ?(?:for an array )?(?:with )?shape \((?P<shape>[\d, ]*)\) and data type (?P<type>\S+)"
)
_WIDTH = re.compile(
    r"^[<>|=]?(?:[a-z]+?(?P<bits>8|16|32|64|128|256)|[fiuc](?P<bytes>1|2|4|8|16)|(?P<bool>bool|\|?b1)|[<>]U(?P<chars>\d+)"
    r"|(?P<object>object))$"
)
_GPU_WORDS = r"cudaError|CUDA|rmm|out_of_memory"


def _tried(text: str) -> int | None:
    match = _TRIED.search(text)
    return None if match is None else int(match[3]) if match[3] else amount(match[1], match[2])


def _array(text: str) -> int | None:
    """The bytes of the array. NumPy rounds the size it prints to three digits; shape and type give it exactly."""
    match = _NUMPY.search(text)
    if match is None:
        told = re.search(rf"nable to allocate {SIZE} for an array", text)
        return amount(told[1], told[2]) if told else None
    width = _WIDTH.match(match["type"].strip("'\"`.,"))
    parts = [part for part in match["shape"].replace(" ", "").split(",") if part]
    if width is None or not parts:
        return amount(match[1], match[2]) if match[1] else None
    if width["bits"]:
        size = int(width["bits"]) // 8
    elif width["chars"]:
        size = 4 * int(width["chars"][:9])
    else:
        size = int(width["bytes"] or (8 if width["object"] else 1))
    for part in parts[:32]:
        size *= int(part[:18])
    return size


def _ended_by_it(said: FailureText, match: Match) -> bool:
    told = any(word in said.text for word in ("what()", "terminate called", "uncaught exception", "failed"))
    return bool(said.raised) or told or said.text.endswith("bad_alloc")


HOST_MEMORY = (
    # the machine or a limit around it had no more to give, not Java's heap
    Rule("python-memory-error", "Java could not get memory from the system", 0.93,
        Row("os::commit_memory(", "os::commit_memory(0x00007f4a6c2b2000, 4096, 0) failed", gives={"requested": 4096}),
        Row("insufficient memory for the Java Runtime Environment"),
        Row("unable to create", "java.lang.OutOfMemoryError: unable to create native thread",
            "OutOfMemoryError: unable to create (?:new )?native"),
        requested=_tried),
    Rule("heap-limit", "node's heap was full", 0.95,
        Row("Allocation failed - process out of memory"), Row("ERR_WORKER_OUT_OF_MEMORY"), Row("Array buffer allocation failed"),
        Row("Fatal process out of memory"), Row("<--- Last few GCs --->", pattern="^<--- Last few GCs --->$"),
        Row("JavaScript heap out of memory", other="use --max-old-space-size=4096 to avoid JavaScript heap out of memory"),
        unless=r"(?i)\b(?:avoid|prevent|fix|handle|work around)(?:s|e?d|ing)?\b[^\n]{0,40}JavaScript heap"),
    Rule("heap-limit", "Java's heap was full: {what}", 0.95,
        Row("MemoryError", "java.lang.OutOfMemoryError: Java heap space",
            r"OutOf(?:Direct)?MemoryError:? (?P<what>Java heap space|Metaspace|GC overhead limit exceeded|Compressed class space"
             r"|(?:Cannot reserve .{0,40})?[Dd]irect buffer memory"
            r"|Requested array size exceeds VM limit|failed to allocate \d+ byte|Unable to acquire \d+ byte)",
            other="torch.OutOfMemoryError: CUDA out of memory."),
        unless="HeapDumpOnOutOfMemoryError"),
    Rule("heap-limit", "the program reached the memory limit of its own runtime", 0.93,
        Row("Allowed memory size of ", "Allowed memory size of 134217728 bytes exhausted (tried to allocate 4096 bytes)",  # PHP
            gives={"requested": 4096}),
        requested=_tried),
    Rule("python-memory-error", "a library could not be mapped: the address space was limited (ulimit -v) or used up", 0.93,
        Row("failed to map segment from shared object", pattern="failed to map segment from shared object(?!: Operation not permitted)",
            other="ImportError: /tmp/x.so: failed to map segment from shared object: Operation not permitted")),
    Rule("numpy-memory-error", "NumPy could not allocate an array", 0.95,
        Row("nable to allocate ", "Unable to allocate 7.45 GiB for an array with shape (1000, 1000000) and data type float64",
            rf"Unable to allocate array with shape|nable to allocate {SIZE} for an array", {"requested": 8_000_000_000}),
        Row("_ArrayMemoryError"), Row("core._exceptions.MemoryError"),
        requested=_array, refine=talk_if_quiet),
    Rule("python-memory-error", "PyTorch could not allocate host memory", 0.95,
        Row("DefaultCPUAllocator: ", "DefaultCPUAllocator: can't allocate memory: you tried to allocate 4096 bytes.",
            "DefaultCPUAllocator: (?:can't allocate|not enough) memory", {"requested": 4096}),
        Row("not enough memory: you tried to allocate"),
        requested=_tried, refine=talk_if_quiet),
    Rule("bad-alloc", "C++ could not allocate memory", 0.93,
        Row("std::bad_alloc", "terminate called after throwing an instance of 'std::bad_alloc'"),
        Row("memory allocation of ", "memory allocation of 4096 bytes failed",  # Rust
            r"(?:^|[`'\"“])\W*memory allocation of \d+ bytes failed", {"requested": 4096}),
        unless=_GPU_WORDS, fits=_ended_by_it, requested=_tried, refine=talk_if_quiet),
    Rule("bad-alloc", "a debugger's stack in which `new` threw: C++ could not allocate memory", 0.7,
        Row("__throw_bad_alloc", "#5  0x00007f02 in std::__throw_bad_alloc () from libstdc++.so.6",
            r"^#\d+ .{0,40}\b__throw_bad_alloc ?\("),
        only="printed"),
    Rule("python-memory-error", "Python could not get memory from the system", 0.93,
        Row("MemoryError", pattern=r"^(?:[\w.]{1,80}(?:Exception|Error): )?(?:\w+\.)*MemoryError\b"),
        Row("Cannot recover from MemoryErrors"), Row("[Errno 12]"), Row("(os error 12)"), Row("aging file is too small"),
        Row("Cannot allocate memory", "bash: fork: Cannot allocate memory",
            r": Cannot allocate memory|Cannot allocate memory \(12\)|^OSError: Cannot allocate"),
        Row("ArrowMemoryError"), Row("OutOfMemoryError()"),  # Arrow, polars
        Row("posix_memalign", "posix_memalign(&data, gAlignment, nbytes) == 0. 12 vs 0", r"posix_memalign\([^\n]{0,80}== 0\. 12 vs 0"),
        Row("errno", "mmap(0x0, 4096) failed with errno 12, Error", r"(?:mmap|alloc)\w*\([^\n]{0,40}\) failed[^\n]{0,40}errno[ =]12\b"),
        Row("Memory allocation still failed after"),  # OpenBLAS
        Row("unable to allocate CPU"), Row("not enough space in the context's memory pool"),  # llama.cpp
        Row("an instance type with more memory"),  # SageMaker
        printed=0.7, loud=True, unless=r"continuing anyway|[Cc]ould not lock memory|mlock(?:all)?\b|Error: bad allocation\b",
            requested=_tried),
    # a library's exception in these words alone
    Rule("python-memory-error", "the host refused memory", 0.7,
        Row("emory", "ValueError: Memory allocation failed", r"Error: (?:[Mm]emory allocation failed|not enough memory)\b"),
        Row("not enough RAM"), only="raised", unless=_GPU_WORDS, requested=_tried),
    Rule("python-memory-error", "the program could not get memory from the system", 0.9,
        Row("-byte block (", "runtime: cannot allocate 4096-byte block (8192 in use)"),  # Go
        Row("requires more system memory (", "model requires more system memory (8.0 GiB) than is available",
            gives={"requested": 8 << 30}),  # Ollama
        requested=_tried),
)  # fmt: skip

_ANCHORS = ("lloc", "LLOC", "ut of memory", "ut of GPU memory", "ut Of Memory", "ut of Memory", "ut_of_memory", "OUT_OF_", "OOM",
            "nough memory", "nsufficient", "emory available")  # fmt: skip
# Something was asked for and not given. "Allocate" alone is not enough: schedulers allocate nodes, launchers ports.
_REFUSED = re.compile(
    r"(?:[Cc]ould not|[Cc]annot|[Cc]an't|[Cc]ouldn't|[Uu]nable to|[Ff]ail(?:ed|ure|s|ing)? (?:to|in|when)|[Ee]rror(?: in| while|:)?)"
    r" ?(?:\w+ )?(?:re)?[Aa]llocat\w*[^\n]{0,60}?(?:memory|bytes\b|buffer|tensor|vector of size|\d ?[KMGT]i?B\b)"
    r"|\b[Oo]ut[ _-][Oo]f[ _-](?:\w{3,6} )?[Mm]emory\b"
    r"|[Nn]ot enough (?:\w+ ){0,4}?(?:memory|RAM|VRAM)\b|[Ii]nsufficient (?:\w+ ){0,3}?memory\b"
    r"|[Mm]emory allocation (?:failed|failure|error)"
    r"|: bad allocation\b|[Ff]ail\w* to (?:alloc|malloc)\b|\b(?:VK_ERROR_OUT_OF_\w{4,10}MEMORY|CL_OUT_OF_(?:RESOURCES|HOST_MEMORY))\b"
    r"|\b(?:[mc]|hipM|cudaM)alloc\w*(?:\(\))? (?:failed|error|returned)"
)
_GPU = re.compile(
    r"GPU|\bVK_|[Cc]uda|CUDA|VRAM|[Vv]ideo memory|[Dd]evice memory|\bHIP\b|\bhip|ROCm|TensorRT|\[TRT\]|DirectML|[Vv]ulkan|OpenCL|CL_|MPS"
    r"|Metal|\bNPU\b|\bMLU\b|\bXPU\b|\bTPU\b|HBM|BFCArena|cudnn|\.cu[h:(]"
)
_TOLD = re.compile(
    rf"\b(\d{{3,16}})[ -]?bytes?\b|{SIZE}|(?:buffer of size|size|memory of|[Rr]equested memory:) (\d{{3,16}})\b"
)
# It goes on, or tells how to avoid it
_MILD = re.compile(
    r"fall(?:ing|s)? ?back|retry|try again|will try|trying (?:with|again)|[Ss]kipping|may (?:run|go|lead)|might|[Tt]o avoid|[Ii]f you"
    r"|in case|could (?:run|lead|cause|result)|continu|[Rr]educ(?:e|ing) the|prevent|of pinned memory|^\W{0,3}[Ww]arning\b"
    r"|\bmlock|lock memory"
)
_GUESS = re.compile(
    r"(?i)\bcould be because\b|\breasons\b|\bpossible causes\b"
)  # a list of what it may have been
_ERROR_FIRST = re.compile(
    r"^\s*what\(\): |^\w{2,20}assert: |^\W{0,4}(?:\w{0,12} ){0,2}(?:[Ee]rror|ERROR|FATAL|PANIC|[Ff]atal(?: error)?)\b\W"
    r"|^[\w./-]{2,40}: (?=not enough memory$)"
)
# the kernel's and other guards' words have readers of their own
_NOT_MEMORY = re.compile(
    r"No space left|[Tt]oo many open files|heap|thread|semaphore|\bport\b|address|TLS block|SIG|[Kk]ill|Perhaps out of"
    r"|avail: \d|[Ii]nvalid argument"
)


def _recognise(said: FailureText) -> Hit | None:
    text = said.text
    refused = _REFUSED.search(text)
    if refused is None or _NOT_MEMORY.search(text) or _GUESS.search(text[: refused.start()]):
        return None
    if (
        said.raised
        and text[: refused.start()].endswith(("'", '"'))
        and text[refused.end() :].startswith(("'", '"'))
    ):
        return None  # "unknown section 'out of memory'": a name, not a complaint
    told = _TOLD.search(text)
    size = (int(told[1] or told[4]) if told[1] or told[4] else amount(told[2], told[3])) if told else None
    if not said.raised and (said.quiet or _MILD.search(text) or not _spoken(refused, said, size)):
        return None
    if "bad allocation" in refused[0]:
        return Hit("bad-alloc", "native code could not allocate memory", 0.75)
    strength = 0.8 if said.raised else 0.65
    if _GPU.search(text):
        gpu = GpuNumbers(requested=size) if size else None
        return Hit("cuda-oom", "the GPU's memory could not be had", strength, gpu=gpu)
    return Hit(
        "python-memory-error", "the host refused memory", strength, facts=JobFacts(requested=size or None)
    )


def _spoken(refused: Match, said: FailureText, size: int | None) -> bool:
    """True for a program's own line: at an error's level or after an error's name, or a sentence of its own with a figure."""
    if said.level in ("ERROR", "FATAL", "CRITICAL") or _ERROR_FIRST.match(said.text):
        return True
    if refused.start() == 0 and len(said.text) <= 80 and refused[0][0] in "FUC":
        return True  # all that the line says
    return size is not None and is_message(refused, said, strict=True)


ANY_MEMORY = (CodeRule(_ANCHORS, _recognise),)

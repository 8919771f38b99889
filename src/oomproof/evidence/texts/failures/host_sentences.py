"""The host refused memory: NumPy, Python, PyTorch's CPU allocator, C++, Rust, Java, R."""

from __future__ import annotations

import re

from oomproof.evidence.texts.failures.recogniser import FailureText, is_message
from oomproof.evidence.texts.failures.rules import Row, Rule, talk_if_quiet
from oomproof.evidence.texts.quantities import SIZE, amount

_TRIED = re.compile(
    r"(?:tried|attempted) to allocate (\d[\d.]*) ?([KMGT]?i?B|bytes|GB)|(?:re)?alloc of size (\d+)|requested buffer of size (\d+)|memory allocation of (\d+) bytes|Failed to allocate (\d+) bytes|alloc memory of (\d+) size|unable to mmap (\d+) bytes|failed to (?:map|allocate) (\d+) byte|re-allocate memory \((\d+) bytes|allocation of (\d+) bytes failed|tcmalloc: allocation failed (\d+)|commit_memory\(0x[0-9a-f]+, (\d+),"
)
_ARRAY = re.compile(
    r"Unable to allocate (?:array|(?P<size>[\d.,]+) ?(?P<unit>[KMGTPE]?i?B|bytes)) ?(?:for an array )?with shape \((?P<shape>[\d, ]*)\) and data type (?P<type>\S+)"
)
_ARRAY_SIZE = re.compile(rf"nable to allocate {SIZE} for an array")
_WIDTH = re.compile(
    r"^[<>|=]?(?:[a-z]+?(?P<bits>8|16|32|64|128|256)|[fiuc](?P<bytes>1|2|4|8|16)|(?P<bool>bool|\|?b1)|[<>]U(?P<chars>\d+)|(?P<object>object))$"
)
_VECTOR = re.compile(
    r"can(?: ?not|'t) allocate (?:an? |of )?vector of size (\d[\d.]{0,12}) ?([KMGT])i?[Bb]\b"
)
_GPU = r"cudaError|CUDA|rmm|out_of_memory"
# a library that says so and goes on: "Could not lock memory - continuing anyway: Cannot allocate memory"
_GOES_ON = r"continuing anyway|[Cc]ould not lock memory|mlock(?:all)?\b"


def _tried(text: str) -> int | None:
    match = _TRIED.search(text)
    if not match:
        return None
    number = next((group for group in match.groups()[2:] if group), None)
    return int(number) if number else amount(match[1] or "", match[2] or "")


def _array_told(text: str) -> int | None:
    match = _ARRAY_SIZE.search(text)
    return amount(match[1], match[2]) if match else None


def _vector(text: str) -> int | None:
    match = _VECTOR.search(text)
    return amount(match[1], f"{match[2]}B") if match else None


def _array(text: str) -> int | None:
    """NumPy rounds the size it prints to three digits; shape and type give it exactly."""
    match = _ARRAY.search(text)
    if match is None:
        return None
    width = _WIDTH.match(match["type"].strip("'\"`.,"))
    parts = [part for part in match["shape"].replace(" ", "").split(",") if part]
    if width is None or not parts:
        return amount(match["size"], match["unit"]) if match["size"] else None
    if width["bits"]:
        size = int(width["bits"]) // 8
    elif width["chars"]:
        size = 4 * int(width["chars"][:9])
    else:
        size = int(width["bytes"] or (8 if width["object"] else 1))
    for part in parts[:32]:
        size *= int(part[:18])
    return size


def _ended_by_it(said: FailureText, match: re.Match[str]) -> bool:
    text = said.text
    told = any(word in text for word in ("what()", "terminate called", "uncaught exception", "failed"))
    return bool(said.raised) or told or text.endswith("bad_alloc")


HOST_MEMORY = (
    # not its heap: the machine, or a limit around it, had no more to give
    Rule("python-memory-error", "Java could not get memory from the system", 0.93,
         Row("Native memory allocation (", "# Native memory allocation (mmap) failed to map 4096 bytes for committing reserved memory.",
             r"Native memory allocation \(\w+\) failed to (?:map|allocate) \d+ bytes", {"requested": 4096}),
         Row("os::commit_memory(", "OpenJDK 64-Bit Server VM warning: INFO: os::commit_memory(0x00007f4a6c2b2000, 4096, 0) failed; error='Cannot allocate memory' (errno=12)",
             r"os::commit_memory\(0x[0-9a-f]+, \d+, \d\) failed", {"requested": 4096}),
         Row("insufficient memory for the Java Runtime Environment", "# There is insufficient memory for the Java Runtime Environment to continue."),
         Row("unable to create", "java.lang.OutOfMemoryError: unable to create native thread: possibly out of memory or process/resource limits reached",
             r"OutOfMemoryError: unable to create (?:new )?native thread"),
         Row("Could not reserve enough space for ", "Could not reserve enough space for 2097152KB object heap", r"Could not reserve enough space for (?:\d+KB )?object heap"),
         Row("Could not allocate metaspace: ", "Could not allocate metaspace: 1073741824 bytes", r"Could not allocate metaspace: \d"),
         requested=_tried),
    Rule("python-memory-error", "R could not get memory for a vector", 0.93,
         Row("allocate ", "Error: cannot allocate vector of size 4.5 Gb", _VECTOR.pattern, {"requested": round(4.5 * (1 << 30))}),
         printed=0.8, fits=lambda said, match: bool(said.raised) or is_message(match, said), requested=_vector),
    Rule("python-memory-error", ".NET could not get memory from the system", 0.93,
         Row("System.OutOfMemoryException", "Unhandled exception. System.OutOfMemoryException: Exception of type 'System.OutOfMemoryException' was thrown.")),
    Rule("heap-limit", "node's heap was full", 0.95,
         Row("Allocation failed - process out of memory", "FATAL ERROR: CALL_AND_RETRY_LAST Allocation failed - process out of memory"),
         Row("Fatal process ", "# Fatal process out of memory: Zone", r"^#? ?Fatal process (?:out of memory: |OOM in )"),
         Row("ERR_WORKER_OUT_OF_MEMORY", "Error [ERR_WORKER_OUT_OF_MEMORY]: Worker terminated due to reaching memory limit: JS heap out of memory"),
         Row("<--- Last few GCs --->", "<--- Last few GCs --->", r"^<--- Last few GCs --->$"),
         Row("JavaScript heap out of memory", "FATAL ERROR: Ineffective mark-compacts near heap limit Allocation failed - JavaScript heap out of memory",
             other="use --max-old-space-size=4096 to avoid JavaScript heap out of memory"),
         unless=r"(?i)\b(?:avoid|prevent|fix|handle|work around)(?:s|e?d|ing)?\b[^\n]{0,40}JavaScript heap"),
    Rule("heap-limit", "Java's heap was full: {what}", 0.95,
         Row("OutOfMemoryError Java heap space", "Exception: java.lang.OutOfMemoryError Java heap space", r"OutOfMemoryError (?P<what>Java heap space)"),
         Row("OutOfMemoryError: ", "java.lang.OutOfMemoryError: Java heap space",
             r"OutOfMemoryError: (?P<what>Java heap space|GC overhead limit exceeded|Metaspace|Compressed class space|(?:Cannot reserve .{0,40})?[Dd]irect buffer memory|Requested array size exceeds VM limit)",
             other="torch.OutOfMemoryError: CUDA out of memory."),
         Row("OutOfDirectMemoryError: ", "io.netty.util.internal.OutOfDirectMemoryError: failed to allocate 16777216 byte(s) of direct memory (used: 9, max: 9)", r"OutOfDirectMemoryError: (?P<what>failed to allocate \d+ byte)"),
         Row("SparkOutOfMemoryError: ", "org.apache.spark.memory.SparkOutOfMemoryError: Unable to acquire 65536 bytes of memory, got 0", r"SparkOutOfMemoryError: (?P<what>[^\n]{1,80})"),
         unless="HeapDumpOnOutOfMemoryError"),
    Rule("python-memory-error", "a library could not be mapped: the address space was limited (ulimit -v) or used up", 0.93,
         Row("failed to map segment from shared object", "ImportError: libtorch_cpu.so: failed to map segment from shared object",
             r"failed to map segment from shared object(?!: Operation not permitted)",
             other="ImportError: /tmp/x.so: failed to map segment from shared object: Operation not permitted")),
    Rule("numpy-memory-error", "NumPy could not allocate an array", 0.95,
         Row("Unable to allocate ", "MemoryError: Unable to allocate 7.45 GiB for an array with shape (1000, 1000000) and data type float64", _ARRAY.pattern,
             {"requested": 8_000_000_000}),
         requested=_array, refine=talk_if_quiet),
    Rule("numpy-memory-error", "NumPy could not allocate an array", 0.9,
         Row("_ArrayMemoryError", "numpy.core._exceptions._ArrayMemoryError"),
         Row("_exceptions.MemoryError", "numpy.core._exceptions.MemoryError", r"\bnumpy\.\w{0,8}core\._exceptions\.MemoryError"),
         Row("Unable to allocate ", "MemoryError: Unable to allocate 7.45 GiB for an array", rf"Unable to allocate {SIZE} for an array|Unable to allocate array with shape"),
         Row("nable to allocate ", "unable to allocate 4.00 GiB for an array shape (10, 207) and data type float", rf"^unable to allocate {SIZE} for an array", {"requested": 4 << 30}),
         requested=_array_told, refine=talk_if_quiet),
    Rule("python-memory-error", "PyTorch could not allocate host memory", 0.95,
         Row("DefaultCPUAllocator: ", "RuntimeError: [enforce fail at alloc_cpu.cpp:83] DefaultCPUAllocator: can't allocate memory: you tried to allocate 4096 bytes.",
             r"DefaultCPUAllocator: (?:can't allocate|not enough) memory", {"requested": 4096}),
         Row("not enough memory: you tried to allocate", "RuntimeError: not enough memory: you tried to allocate 4096 bytes.", gives={"requested": 4096}),
         requested=_tried, refine=talk_if_quiet),
    Rule("bad-alloc", "C++ could not allocate memory", 0.93,
         Row("std::bad_alloc", "terminate called after throwing an instance of 'std::bad_alloc'"),
         Row("bad allocation", "RuntimeError: bad allocation", r"(?:Error|Exception): bad allocation\b"),
         Row("std::bad_alloc", "ERROR: std::bad_alloc", r"^(?:\w{1,20} ){0,2}(?:ERROR|FATAL|Error|Exception|Fatal error): ?std::bad_alloc\b"),
         Row("memory allocation of ", "memory allocation of 4096 bytes failed", r"(?:^|[`'\"“])\W*memory allocation of \d+ bytes failed", {"requested": 4096}),
         Row("bad_array_new_length", "RuntimeError: std::bad_array_new_length"),
         unless=_GPU, fits=_ended_by_it, requested=_tried, refine=talk_if_quiet),
    Rule("bad-alloc", "a debugger's stack in which `new` threw: C++ could not allocate memory", 0.7,
         Row("__throw_bad_alloc", "#5  0x00007f02c9b841d9 in std::__throw_bad_alloc () from /usr/lib64/libstdc++.so.6", r"^#\d+ .{0,40}\b__throw_bad_alloc ?\("),
         only="printed"),
    Rule("python-memory-error", "Python could not get memory from the system", 0.93,
         Row("MemoryError", "MemoryError", r"^(?:[\w.]{1,80}(?:Exception|Error): )?(?:\w+\.)*MemoryError\b"),
         Row("[Errno 12]", "OSError: [Errno 12] Cannot allocate memory"),
         Row("Cannot allocate memory", "bash: fork: Cannot allocate memory",
             r": Cannot allocate memory|Cannot allocate memory \(12\)|^\w+: fork: (?:retry: )?Cannot allocate|^OSError: Cannot allocate",
             other="WARNING: Could not lock memory - continuing anyway: Cannot allocate memory"),
         Row("ArrowMemoryError", "pyarrow.lib.ArrowMemoryError: malloc of size 4096 failed", gives={"requested": 4096}),
         Row("-4:Insufficient memory", "cv2.error: OpenCV(4.8.0) alloc.cpp:73: error: (-4:Insufficient memory) Failed to allocate 4096 bytes in function 'OutOfMemoryError'",
             gives={"requested": 4096}),
         Row("posix_memalign", "RuntimeError: posix_memalign(&data, gAlignment, nbytes) == 0. 12 vs 0", r"posix_memalign\([^\n]{0,80}== 0\. 12 vs 0"),
         Row("errno", "mmap(0x0, 4096) failed with errno 12, Error", r"(?:mmap|malloc|alloc)\w*\([^\n]{0,40}\) failed[^\n]{0,40}errno[ =]12\b"),
         Row("(os error 12)", "Error: Cannot read the shard (os error 12)"),
         Row("WinError 1455", "OSError: [WinError 1455] The paging file is too small for this operation to complete."),
         Row("aging file is too small", "ImportError: The paging file is too small for this operation to complete."),
         Row("Cannot recover from MemoryErrors", "Fatal Python error: Cannot recover from MemoryErrors while normalizing exceptions."),
         Row("Not enough memory to perform factorization", "MemoryError: Not enough memory to perform factorization."),  # SuperLU
         Row("Error in PARDISO memory allocation", "*** Error in PARDISO memory allocation: FACTORIZE_SOLVING_LU_DATA, allocation of 4096 bytes failed", gives={"requested": 4096}),
         Row("Memory allocation still failed after", "OpenBLAS error: Memory allocation still failed after 10 retries, giving up."),
         Row("final link failed: memory exhausted", "/usr/bin/ld: final link failed: memory exhausted"),
         Row("tcmalloc: allocation failed ", "tcmalloc: allocation failed 4096", gives={"requested": 4096}),
         Row(": Error in ", "<jemalloc>: Error in malloc(): out of memory", r"^(?:<jemalloc>)?: Error in \w{3,30}\(\): out of memory"),
         Row("runtime/cgo: out of memory", "runtime/cgo: out of memory in thread_start"),
         Row("alloc' could not ", "'Realloc' could not re-allocate memory (4096 bytes)", r"'(?:C|Re)alloc' could not (?:re-)?allocate memory \(\d", {"requested": 4096}),
         Row("emory exhausted (limit reached?)", "Error: memory exhausted (limit reached?)", r"Error: (?:cons )?memory exhausted \(limit reached\?\)"),  # R
         Row("an instance type with more memory", "ClientError: Please use an instance type with more memory, or reduce the size of training data processed on an instance."),  # SageMaker
         Row("Failed to allocate CPU Memory", "MXNetError: Check failed: dptr != nullptr: Failed to allocate CPU Memory"),
         Row("unable to allocate CPU", "llama_model_load: error loading model: unable to allocate CPU buffer", r"unable to allocate CPU\w* buffer"),
         Row("C error: out of memory", "pandas.errors.ParserError: Error tokenizing data. C error: out of memory"),
         Row("insufficient memory (attempted to allocate", "RuntimeError: insufficient memory (attempted to allocate 9MB)"),
         Row("not enough space in the context's memory pool", "ggml_new_object: not enough space in the context's memory pool (needed 9, available 8)"),
         Row("OutOfMemoryError()", "polars error: OutOfMemoryError()", r"\bOutOfMemoryError\(\)$|(?:^|[`'\"]|: |\t)OutOfMemoryError\(\)(?![\w.])|^OutOfMemoryError\(\)"),
         printed=0.7, loud=True, unless=rf"{_GOES_ON}|Error: bad allocation\b", requested=_tried),
    # a library's exception in these words alone
    Rule("python-memory-error", "the host refused memory", 0.7,
         Row("emory", "ValueError: Memory allocation failed", r"Error: (?:[Mm]emory allocation failed|not enough memory)\b"),
         Row("not enough RAM", "RuntimeError: not enough RAM", r"Error: not enough RAM\b"),
         only="raised", unless=_GPU, requested=_tried),
)  # fmt: skip

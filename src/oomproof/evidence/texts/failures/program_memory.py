"""Out of memory as other languages' runtimes and programs of science, databases and servers say it."""

from __future__ import annotations

import re

from oomproof.evidence.texts.failures.rules import Row, Rule
from oomproof.evidence.texts.quantities import SIZE, amount

_ASKED = re.compile(
    rf"tried to allocate (\d+) bytes|Cannot (?:re)?allocate (\d+) bytes|cannot allocate (\d+)-byte block|attempt to allocate chunk of (\d+) bytes|Failed on request of size (\d+)|\({SIZE}\) array exceeds|more system memory \({SIZE}\)"
)


def _asked(text: str) -> int | None:
    match = _ASKED.search(text)
    if match is None:
        return None
    plain = next((group for group in match.groups()[:5] if group), None)
    if plain:
        return int(plain)
    number, unit = (match[6], match[7]) if match[6] else (match[8], match[9])
    return amount(number, unit)


PROGRAM_MEMORY = (
    Rule("heap-limit", "the program reached the memory limit of its own runtime", 0.93,
         Row("Allowed memory size of ", "PHP Fatal error:  Allowed memory size of 134217728 bytes exhausted (tried to allocate 4096 bytes) in x.php on line 5",
             r"Allowed memory size of \d+ bytes exhausted", {"requested": 4096}),
         Row("Heap exhausted; Current maximum", "ghc: Heap exhausted; Current maximum heap size is 1073741824 bytes (1024 MB)."),
         Row("GC thrashing", "Shutting down JVM after 8 consecutive periods of measured GC thrashing.", r"Shutting down JVM after \d+ consecutive periods of measured GC thrashing"),
         Row("JVM heap space is exhausted", "Expiring Daemon because JVM heap space is exhausted"),
         Row("ExceededMemoryLimit", "MongoServerError: ExceededMemoryLimit: Sort exceeded memory limit of 104857600 bytes", r"\bExceededMemoryLimit\b: "),
         Row("Data too large, data for [", "[parent] Data too large, data for [<http_request>] would be [2087772160/1.9gb], which is larger than the limit of [2040109465/1.9gb]"),  # Elasticsearch
         Row("command not allowed when used memory > ", "redis.exceptions.OutOfMemoryError: command not allowed when used memory > 'maxmemory'."),
         Row("Array buffer allocation failed", "RangeError: Array buffer allocation failed"),
         requested=_asked),
    Rule("python-memory-error", "the program could not get memory from the system", 0.9,
         Row("eheap_alloc: ", 'eheap_alloc: Cannot allocate 4096 bytes of memory (of type "heap").', r"eheap_alloc: Cannot (?:re)?allocate \d+ bytes", {"requested": 4096}),  # Erlang
         Row("-byte block (", "runtime: cannot allocate 4096-byte block (8192 in use)", r"runtime: cannot allocate \d+-byte block", {"requested": 4096}),  # Go
         Row("Out of memory", "Out of memory!", r"^Out of memory(?: in perl\b[^\n]{0,60}| during [^\n]{0,60})?!$"),  # Perl
         Row("array exceeds maximum array size", "Requested 100000x100000 (74.5GB) array exceeds maximum array size preference.",
             r"Requested \S{1,60} \([\d.]+ ?[KMGT]B\) array exceeds maximum array size", {"requested": round(74.5 * (1 << 30))}),  # MATLAB
         Row("Out of memory. Type", 'Out of memory. Type "help memory" for your options.'),
         Row("vector memory ", "Error: vector memory exhausted (limit reached?)", r"vector memory (?:exhausted \(limit|limit of [\d.]+ ?[KMGT]b reached)"),  # R
         Row("insufficient virtual memory", "forrtl: severe (41): insufficient virtual memory"),  # Fortran
         Row("galloc: ", "galloc:  could not allocate memory.", r"\bgalloc: +could not allocate memory"),  # Gaussian
         Row("Not enough memory. Failed to ", "Not enough memory. Failed to malloc 1610612736 elements of size 4 for x", r"Not enough memory\. Failed to [mcre]{1,2}alloc"),  # GROMACS
         Row("new cannot satisfy memory request", "new cannot satisfy memory request."),  # OpenFOAM
         Row("FATAL ERROR: not enough memory", "EXITING because of FATAL ERROR: not enough memory for BAM sorting:"),  # STAR
         Row("requires more system memory (", "Error: model requires more system memory (8.0 GiB) than is available (5.7 GiB)", gives={"requested": 8 << 30}),  # Ollama
         Row("exceeded: would use ", "DB::Exception: Memory limit (total) exceeded: would use 9.31 GiB", r"Memory limit \([\w ]{1,20}\) exceeded: would use "),  # ClickHouse
         requested=_asked),
)  # fmt: skip

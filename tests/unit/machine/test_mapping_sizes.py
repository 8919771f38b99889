"""The classes of anonymous mappings of real processes, and which of them grew."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from oomproof.machine.mapping_sizes import (
    ANONYMOUS,
    ARENAS,
    SHARED,
    STACKS,
    MappingClass,
    grown_class,
    mapping_sizes,
)
from oomproof.runner.mapping_watch import mapping_text

MIB = 1 << 20

THREADS = """
import ctypes, sys, threading
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
threading.stack_size(3 << 20)
begun = threading.Barrier(9)

def work():
    ctypes.memset(libc.malloc(1 << 16), 1, 1 << 16)
    begun.wait()
    over.wait()

over = threading.Event()
print(flush=True); sys.stdin.readline()
for _ in range(8):
    threading.Thread(target=work, daemon=True).start()
begun.wait()
print(flush=True); sys.stdin.readline()
"""

SHARED_MEMORY = """
import ctypes, mmap, sys
print(flush=True); sys.stdin.readline()
kept = [mmap.mmap(-1, 1 << 20) for _ in range(6)]
libc = ctypes.CDLL(None)
libc.mmap.restype, libc.mmap.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
for _ in range(6):  # with a guard page, or the kernel joins them
    begin = libc.mmap(None, (5 << 20) + 4096, 3, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    libc.mprotect(begin + (5 << 20), 4096, 0)
print(flush=True); sys.stdin.readline()
"""


def before_and_after(script: str) -> tuple[dict[MappingClass, tuple[int, int]], ...]:
    job = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )
    assert job.stdin and job.stdout
    looks = []
    for _ in range(2):
        job.stdout.readline()
        sizes = mapping_sizes(job.pid)
        assert sizes is not None
        looks.append(sizes)
        job.stdin.write("\n")
    job.communicate()
    return tuple(looks)


def more(script: str) -> dict[MappingClass, int]:
    before, after = before_and_after(script)
    return {of: number - before.get(of, (0, 0))[0] for of, (number, _) in after.items()}


def test_threads_bring_stacks_and_arenas() -> None:
    grown = more(THREADS)
    assert grown[MappingClass(STACKS, 3 * MIB)] == 8
    assert grown[MappingClass(ARENAS, 64 * MIB)] >= 4, "as many as the machine has cores, times eight"


def test_what_a_library_maps_by_itself_is_counted_by_size() -> None:
    before, after = before_and_after(SHARED_MEMORY)
    assert after[MappingClass(SHARED, 0)][1] - before.get(MappingClass(SHARED, 0), (0, 0))[1] == 6 * MIB
    number = after.get(MappingClass(ANONYMOUS, 5 * MIB), (0, 0))[0]
    assert number - before.get(MappingClass(ANONYMOUS, 5 * MIB), (0, 0))[0] >= 4
    of, number, size = grown_class(before, after) or (None, 0, 0)
    assert of == MappingClass(ANONYMOUS, 5 * MIB) and size == number * 5 * MIB


def test_some_more_are_no_habit() -> None:
    class_of = MappingClass(ANONYMOUS, MIB)
    assert grown_class({class_of: (5, 5 * MIB)}, {class_of: (8, 8 * MIB)}) is None
    assert grown_class({}, {}) is None


def test_a_process_that_is_gone_and_lines_that_are_none(tmp_path: Path) -> None:
    assert mapping_sizes(1, str(tmp_path)) is None
    (tmp_path / "1/task/1").mkdir(parents=True)
    (tmp_path / "1/maps").write_text("\n-\nnonsense\n7f0000000000-7f0000100000 rw-p\nx-y rw-p 0 0 0\n")
    assert mapping_sizes(1, str(tmp_path)) == {MappingClass(ANONYMOUS, MIB): (1, MIB)}


def test_in_words() -> None:
    arenas, stacks, other = (MappingClass(kind, 64 * MIB) for kind in (ARENAS, STACKS, ANONYMOUS))
    assert mapping_text(arenas, 24, MIB, "14:02").startswith(
        "24 more mappings of 64 MiB since 14:02: arenas of the C library"
    )
    assert "threads" in mapping_text(stacks, 9, MIB, "14:02") and "library" in mapping_text(
        other, 9, MIB, "14:02"
    )
    assert mapping_text(MappingClass(SHARED, 0), 9, 5 * MIB, "14:02").startswith(
        "9 more mappings of shared memory (5 MiB)"
    )

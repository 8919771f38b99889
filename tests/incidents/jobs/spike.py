"""Holds BASE MiB, for a moment BURST MiB more, then lives on: between two samples."""

import mmap
import sys
import time

_POPULATE = 0x8000  # the kernel fills it within the call: faster than any look


def hold(size: int) -> mmap.mmap:
    return mmap.mmap(-1, size << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _POPULATE)


base, burst, after = hold(int(sys.argv[1])), int(sys.argv[2]), float(sys.argv[3])
time.sleep(1.5)
hold(burst).close()
time.sleep(after)

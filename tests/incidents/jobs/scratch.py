"""Holds BASE MiB; writes SIZE MiB to a file and removes it at once, so that its page cache is gone before the next sample."""

import mmap
import os
import sys
import time

_POPULATE = 0x8000  # the kernel fills it within the call
base, size, path = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
held = mmap.mmap(-1, base << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _POPULATE)
block = bytes(1 << 20)
for _ in range(2):
    time.sleep(1.5)
    with open(path, "wb") as file:
        for _ in range(size):
            file.write(block)
    os.unlink(path)
time.sleep(2.5)

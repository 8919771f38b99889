"""An innocent program: wakes every 100 ms, touches its memory and its program's pages, keeps its longest stall in FILE.

Its pid is in FILE.pid.
"""

import mmap
import os
import sys
import time

fd = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
with open(f"{sys.argv[1]}.pid", "w") as file:
    file.write(str(os.getpid()))
mine = bytearray(os.urandom(4 << 20))
with open(sys.executable, "rb") as file:
    program = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)  # what a desktop re-reads from disk when short
longest = 0.0
last = time.monotonic()
while True:
    time.sleep(0.1)
    mine[::4096] = mine[::4096]
    sum(program[::4096])
    now = time.monotonic()
    if now - last - 0.1 > longest:
        longest = now - last - 0.1
        os.pwrite(fd, f"{longest:8.3f}\n".encode(), 0)
    last = now

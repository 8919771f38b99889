"""An innocent program: wakes every 100 ms, touches its memory and its program's pages, keeps its longest stall in FILE.

bystander.py FILE [MIB [SECONDS]]: with MIB of its own (4), awake every SECONDS (0.1).

Its pid is in FILE.pid.
"""

import mmap
import os
import sys
import time

fd = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
with open(f"{sys.argv[1]}.pid", "w") as file:
    file.write(str(os.getpid()))
mine = bytearray(os.urandom(int(sys.argv[2]) << 20 if len(sys.argv) > 2 else 4 << 20))
rest = float(sys.argv[3]) if len(sys.argv) > 3 else 0.1
with open(sys.executable, "rb") as file:
    program = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)  # what a desktop re-reads from disk when short
longest = 0.0
last = time.monotonic()
while True:
    time.sleep(rest)
    mine[::4096] = mine[::4096]
    sum(program[::4096])
    now = time.monotonic()
    if now - last - rest > longest:
        longest = now - last - rest
        os.pwrite(fd, f"{longest:8.3f}\n".encode(), 0)
    last = now

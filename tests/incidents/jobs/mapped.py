"""Holds HELD MiB and goes over a mapped FILE for SECONDS, as a program does over its libraries and weights; says how often."""

import mmap
import sys
import time

held, path, seconds = int(sys.argv[1]), sys.argv[2], float(sys.argv[3])
data = bytearray(held << 20)
for at in range(0, len(data), 4096):
    data[at] = 1
rounds, end = 0, time.monotonic() + seconds
with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
    while rounds < 3 or time.monotonic() < end:
        for at in range(0, len(mapped), 4096):
            mapped[at]
        rounds += 1
print(f"{rounds} rounds", flush=True)

"""Holds HELD MiB, forks WORKERS that sleep (or, with "write", write to all of it), says "forked", ends when asked to.

Forked, not spawned: the workers share the parent's pages, as a DataLoader's do."""

import os
import sys
import time

held, workers = int(sys.argv[1]), int(sys.argv[2])
writes = sys.argv[3:] == ["write"]
data = bytearray(held << 20)
for at in range(0, len(data), 4096):
    data[at] = 1
print("holding", flush=True)
for _ in range(workers):
    if os.fork() == 0:
        parent = os.getppid()
        for at in range(0, len(data) if writes else 0, 4096):
            data[at] = 2
            if at % (1 << 20) == 0:
                time.sleep(0.01)
        while os.getppid() == parent:
            time.sleep(0.05)
        os._exit(0)
print("forked", flush=True)
stop = os.environ.get("OOMPROOF_STOP_FILE", "")
end = time.monotonic() + (60 if writes else 3)
while time.monotonic() < end and not os.path.exists(stop):
    time.sleep(0.05)
os._exit(0)

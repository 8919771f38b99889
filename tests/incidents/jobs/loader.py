"""A model loader: takes TOTAL MiB at RATE MiB/s, holds them for SECONDS, checks every byte, prints "intact", exits 0."""

import os
import sys
import time

rate, total, seconds = float(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
noise = os.urandom(1 << 20)
held = []
print("loading", flush=True)
due = time.monotonic()
for number in range(total):
    block = bytearray(noise)
    block[:8] = number.to_bytes(8, "little")
    held.append(block)
    due = (
        max(due, time.monotonic() - 0.1) + 1 / rate
    )  # its pace; what a pause or a busy machine cost is not made up for
    time.sleep(max(0.0, due - time.monotonic()))
print("ready", flush=True)
time.sleep(seconds)
for number, block in enumerate(held):
    assert block[:8] == number.to_bytes(8, "little") and block[8:] == noise[8:], f"block {number} changed"
print("intact", flush=True)

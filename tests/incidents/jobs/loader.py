"""A model loader: takes TOTAL MiB at RATE MiB/s, holds them for SECONDS, checks every byte, prints "intact", exits 0."""

import os
import sys
import time

rate, total, seconds = float(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
noise = os.urandom(1 << 20)
held = []
print("loading", flush=True)
for number in range(total):
    block = bytearray(noise)
    block[:8] = number.to_bytes(8, "little")
    held.append(block)
    time.sleep(1 / rate)  # its pace, also after a pause: a loader does not make up for lost time
print("ready", flush=True)
time.sleep(seconds)
for number, block in enumerate(held):
    assert block[:8] == number.to_bytes(8, "little") and block[8:] == noise[8:], f"block {number} changed"
print("intact", flush=True)

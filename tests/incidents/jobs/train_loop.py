"""A training job: holds TOTAL MiB that do not compress, touches all of it over and over for SECONDS, then checks it.

Prints "ready" when it holds everything, "step N" as it goes, "intact" and exits 0 when every byte is what it was.
"""

import os
import sys
import time

total, seconds = int(sys.argv[1]), float(sys.argv[2])
noise = os.urandom(1 << 20)
held = []
for number in range(total):
    block = bytearray(noise)
    block[:8] = number.to_bytes(8, "little")
    held.append(block)
print("ready", flush=True)
end = time.monotonic() + seconds
step = 0
while time.monotonic() < end:
    for block in held:
        block[4096::4096] = block[4096::4096]  # every page, read and written
    step += 1
    print("step", step, flush=True)
    time.sleep(0.05)
for number, block in enumerate(held):
    assert block[:8] == number.to_bytes(8, "little") and block[8:] == noise[8:], f"block {number} changed"
print("intact", flush=True)

"""A training job: holds TOTAL MiB that do not compress, touches all of it over and over, then checks every byte.

train_loop.py TOTAL UNTIL: UNTIL is a number of seconds, or a file to wait for. Prints "ready" when it holds everything,
"step N" as it goes, "intact" when every byte is what it was.
"""

import os
import sys
import time

total, until = int(sys.argv[1]), sys.argv[2]
noise = os.urandom(1 << 20)
held = []
for number in range(total):
    block = bytearray(noise)
    block[:8] = number.to_bytes(8, "little")
    held.append(block)
print("ready", flush=True)
begun = time.monotonic()
step = 0
while not (os.path.exists(until) if until.startswith("/") else time.monotonic() - begun > float(until)):
    for block in held:
        block[4096::4096] = block[4096::4096]  # every page, read and written
    step += 1
    print("step", step, flush=True)
    time.sleep(0.05)
for number, block in enumerate(held):
    assert block[:8] == number.to_bytes(8, "little") and block[8:] == noise[8:], f"block {number} changed"
print("intact", flush=True)

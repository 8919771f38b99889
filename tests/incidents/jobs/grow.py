"""Grows by RATE MiB/s up to TOTAL MiB, prints "ready" there, then stays. Saves and stops when asked to.

    grow.py RATE TOTAL [SAVED [AT_ONCE]]

AT_ONCE MiB are there from the start: slow growth near a limit, without waiting for it."""

import os
import sys
import time

rate, total = float(sys.argv[1]), int(sys.argv[2])
saved = (sys.argv[3] if len(sys.argv) > 3 else "") or None
stop = os.environ.get("OOMPROOF_STOP_FILE", "")
page = b"x" * (1 << 20)
held = [bytearray(page) for _ in range(int(sys.argv[4]) if len(sys.argv) > 4 else 0)]
at_once = len(held)
begun = time.monotonic()
print("growing", flush=True)
while len(held) < total:
    held.append(bytearray(page))
    late = begun + (len(held) - at_once) / rate - time.monotonic()
    if late > 0:
        time.sleep(late)
    if saved and os.path.exists(stop):
        with open(saved, "w") as file:
            file.write(str(len(held)))
        print("saved", flush=True)
        sys.exit(0)
print("ready", flush=True)
while True:
    time.sleep(0.05)
    if os.path.exists(stop):
        print("stopped", flush=True)
        sys.exit(0)

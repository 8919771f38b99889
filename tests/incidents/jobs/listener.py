"""Grows steadily and answers a request to save and go on, as the agent does for trainers: MiB/s."""

import os
import sys
import time

folder = os.path.dirname(os.environ["OOMPROOF_STOP_FILE"])
os.makedirs(f"{folder}/agent", exist_ok=True)
with open(f"{folder}/agent/{os.getpid()}-listens.txt", "w") as file:
    file.write("save\nthis loop\n")
kept = []
while True:
    kept.append(bytearray(b"x") * (1 << 20))
    time.sleep(1 / float(sys.argv[1]))
    if os.path.exists(f"{folder}/save"):
        os.unlink(f"{folder}/save")
        print("saved", len(kept), flush=True)

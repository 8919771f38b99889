"""Grows until it is asked to stop, does not listen, grows no more, and ends when it is no longer asked."""

import os
import time

stop = os.environ["OOMPROOF_STOP_FILE"]
folder = os.path.dirname(stop)
os.makedirs(f"{folder}/agent", exist_ok=True)
with open(f"{folder}/agent/{os.getpid()}-listens.txt", "w") as file:
    file.write("stop\nthis loop\n")
kept = [bytearray(b"x") * (90 << 20)]
while not os.path.exists(stop):
    kept.append(bytearray(b"x") * (1 << 19))
    time.sleep(0.06)
while os.path.exists(stop):
    time.sleep(0.05)
print("no longer asked", flush=True)

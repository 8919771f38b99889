"""The job of `oomproof demo`: a training loop that keeps every batch, and saves when it is asked to stop."""

import os
import sys
import time

history = []
for step in range(1, 1000):
    history.append(bytearray(b"x") * (3_670_016))  # the leak: 3.5 MiB a step, four steps a second
    if step % 8 == 0:
        print(f"step {step:3d}  loss {2.3 / step**0.4:.3f}", flush=True)
    if os.path.exists(os.environ["OOMPROOF_STOP_FILE"]):
        print(f"step {step:3d}  asked to stop: checkpoint saved, leaving", flush=True)
        sys.exit(0)
    time.sleep(0.25)

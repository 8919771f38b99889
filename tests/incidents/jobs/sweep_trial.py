"""A trial: holds a MiB for each sample of its batch, tells a loss. Waits while the gate of its batch is closed."""

import argparse
import os
import time

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, required=True)
parser.add_argument("--accum", type=int, default=1)
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--gates", default="")
parser.add_argument("--seconds", type=float, default=0.3)
arguments = parser.parse_args()

held = bytearray(b"x") * (arguments.batch << 20)
print("waiting", flush=True)
gate = os.path.join(arguments.gates, f"closed-{arguments.batch}")
while arguments.gates and os.path.exists(gate):
    time.sleep(0.02)
time.sleep(arguments.seconds)
print(f"samples={arguments.batch * arguments.accum}", flush=True)
print(f"loss={1 / arguments.batch + arguments.lr:.6f}", flush=True)

"""--bs N --accum N: a training whose memory follows its batch size and not its accumulation."""

import argparse
import time

parser = argparse.ArgumentParser()
parser.add_argument("--bs", type=int, required=True)
parser.add_argument("--accum", type=int, required=True)
parser.add_argument("--steps", type=int, default=3)
arguments = parser.parse_args()
SAMPLE = b"x" * (4 << 20)
for _step in range(arguments.steps):
    for _micro_batch in range(arguments.accum):
        batch = [bytearray(SAMPLE) for _ in range(arguments.bs)]
        time.sleep(0.05)
        del batch
print("trained", flush=True)

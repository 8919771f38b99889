"""Stands in for `wandb agent`: starts one trial after the other, as processes of their own, and lives on whatever becomes of
them. (The real one, too, takes a trial that SIGKILL ended for a good one: its exit status is below zero.)"""

import subprocess
import sys

for values in sys.argv[2:]:
    status = subprocess.call([sys.executable, sys.argv[1], *values.split()])
    print(f"trial {values!r} ended with {status}", flush=True)

"""Waits for the file GO, then takes SIZE MiB at once."""

import os
import sys
import time

print("waiting", flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.01)
held = b"x" * (int(sys.argv[2]) << 20)
print("held", flush=True)

"""hold_for.py MIB SECONDS: takes that much, says so, keeps it that long."""

import sys
import time

held = bytearray(b"x") * (int(sys.argv[1]) << 20)
print("holding", flush=True)
time.sleep(float(sys.argv[2]))

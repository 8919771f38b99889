"""Prints a number every 50 ms, in the main process and in two children; stops when asked by SIGTERM."""

import os
import sys
import time

if len(sys.argv) < 2:
    for name in ("a", "b"):
        if os.fork() == 0:
            os.execv(sys.executable, [sys.executable, __file__, name])
name = sys.argv[1] if len(sys.argv) > 1 else "main"
number = 0
while True:
    number += 1
    os.write(1, f"{name} {number}\n".encode())
    time.sleep(0.05)

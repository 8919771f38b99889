"""A job that forks, double-forks, changes its session and ignores SIGTERM. Prints the pids, then does as told."""

import os
import signal
import sys
import time


def stay() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        time.sleep(1)


def child() -> int:
    pid = os.fork()
    if pid == 0:
        stay()
    return pid


def grandchild_in_its_own_session() -> int:
    read_end, write_end = os.pipe()
    if os.fork() == 0:
        os.setsid()
        pid = os.fork()
        if pid == 0:
            stay()
        os.write(write_end, str(pid).encode())
        os._exit(0)
    os.wait()
    return int(os.read(read_end, 32))


pids = [child(), child(), grandchild_in_its_own_session()]
print("family", *pids, flush=True)
if sys.argv[1] == "exit":
    os._exit(int(sys.argv[2]))
stay()

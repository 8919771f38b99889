"""A pool of two workers; one waits for the file GO, then takes SIZE MiB at once: its task is lost if it is killed."""

import multiprocessing
import os
import sys
import time


def task(number: int) -> int:
    if number == 3:
        print("waiting", flush=True)
        while not os.path.exists(sys.argv[1]):
            time.sleep(0.01)
        held = b"x" * (int(sys.argv[2]) << 20)
        return len(held)
    return number


if __name__ == "__main__":
    with multiprocessing.Pool(2) as pool:
        print(pool.map(task, range(8), chunksize=1), flush=True)

"""So many processes that take so many MiB each, wait for one another, and are gone: count, MiB."""

import multiprocessing
import sys


def spike(size, together):
    block = bytearray(b"x") * (size << 20)
    together.wait()
    del block


if __name__ == "__main__":
    count, size = int(sys.argv[1]), int(sys.argv[2])
    together = multiprocessing.Barrier(count)
    spikes = [multiprocessing.Process(target=spike, args=(size, together)) for _ in range(count)]
    for process in spikes:
        process.start()
    for process in spikes:
        process.join()

"""A plain program that makes no steps: `grows_or_not.py extension LIBRARY|cache|retained|warm-up`. A minute or so."""

import ctypes
import functools
import sys
import threading
import time

from _oomproof.agent import agent_core, trace_window  # what a run puts into a job

agent_core._HEAP, trace_window._STEPS, trace_window._SHORTEST = (
    1.0,
    5,
    5.0,
)  # half a minute is too long for a test


@functools.cache
def describe(row):
    return f"row {row}, " + "described in some words, which are kept " * 8


def serve():
    blocks = [bytearray(20_000) for _ in range(2000)]
    words.append(blocks.pop())  # it lies above the rest: the arena of this thread keeps that
    del blocks
    threading.Event().wait()


words = []


def main(kind):
    if kind == "extension":
        library = ctypes.CDLL(sys.argv[2])
        library.tokenize.argtypes = [ctypes.c_size_t]
    rows = []
    for tick in range(700):
        if kind == "extension":
            library.tokenize(800 << 10)
        elif kind == "cache":
            for row in range(1200):
                describe((tick, row))
        elif kind == "retained" and tick % 40 == 0:
            threading.Thread(target=serve, daemon=True).start()
        elif kind == "warm-up" and tick < 250:
            rows.append(bytearray(1 << 20))
        time.sleep(0.1)


main(sys.argv[1])

"""A training that fits only when it is small: in RAM by its workers, on a card that is not there by its batch."""

import argparse
import multiprocessing
import sys
import time

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument("--accum", type=int, default=1)
parser.add_argument("--workers", type=int, default=0)
parser.add_argument("--most-batch", type=int, default=10**9)
parser.add_argument("--each", type=int, default=30)  # MiB a worker
parser.add_argument("--fails", default="")
parser.add_argument("--seconds", type=float, default=0.5)
parser.add_argument("--apart", type=float, default=0.0)  # seconds between the starts of two workers
arguments = parser.parse_args()

CUDA = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.69 GiB of which 1.00 GiB is free."


def work() -> None:
    kept = bytearray(b"x") * (arguments.each << 20)
    time.sleep(arguments.seconds)
    del kept


def main() -> None:
    print("started with", arguments.batch_size, arguments.accum, arguments.workers, flush=True)
    if arguments.fails == "import":
        import nothing_of_that_name  # noqa: F401
    if arguments.fails == "nan":
        raise FloatingPointError("loss is nan at step 12")
    if arguments.fails == "assert":
        assert arguments.accum < 0, "rows and labels differ"
    if arguments.fails == "wait":
        time.sleep(600)
    processes = [multiprocessing.Process(target=work) for _ in range(arguments.workers)]
    for process in processes:
        process.start()
        time.sleep(arguments.apart)
    for process in processes:
        process.join()
    killed = [process.pid for process in processes if process.exitcode]
    if killed:
        raise RuntimeError(f"DataLoader worker (pid(s) {killed}) exited unexpectedly")
    if arguments.batch_size > arguments.most_batch:
        raise RuntimeError(CUDA)
    if not sys.stdin.isatty():
        print("read", len(sys.stdin.read()), flush=True)
    print("trained with an effective batch of", arguments.batch_size * arguments.accum, flush=True)


if __name__ == "__main__":
    main()

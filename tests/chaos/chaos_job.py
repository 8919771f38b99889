"""The job of a chaos round: works in small steps and keeps a journal, by which the driver knows what became of it.

chaos_job.py KIND JOURNAL STEPS MIB CODE [quiet]

The journal lies on a disk that no fault touches. Its lines: ``start PID PPID``, ``pid PID`` (a worker), ``step N LINES MIB``,
``told BOOTTIME`` (a datagram to the guard), ``signal N``, ``error TEXT``, ``asked`` (it stopped because it was asked to),
``done CODE LINES``. A journal that ends in a step, of a process that is gone, is a SIGKILL.
"""

import json
import os
import signal
import socket
import sys
import time
import zlib

KIND, JOURNAL, STEPS, MIB, CODE = (
    sys.argv[1],
    sys.argv[2],
    int(sys.argv[3]),
    int(sys.argv[4]),
    int(sys.argv[5]),
)
QUIET = "quiet" in sys.argv[6:]
STEP = 0.05
journal = os.open(JOURNAL, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)


def note(*words: object) -> None:
    os.write(journal, (" ".join(map(str, words)) + "\n").encode())


def on_signal(number: int, _: object) -> None:
    note("signal", number)
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def block(number: int) -> bytearray:
    return bytearray(number.to_bytes(8, "little") * (1 << 17))


def feed(pipe: int) -> None:
    """A loader worker: batches with their checksum, until nobody reads."""
    while True:
        batch = os.urandom(60_000)
        data = zlib.crc32(batch).to_bytes(4, "little") + batch
        while data:
            data = data[os.write(pipe, data) :]  # a pause cuts a write to a full pipe short


def fork(work, *arguments: object) -> int:
    pid = os.fork()
    if pid:
        note("pid", pid)
        return pid
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    try:
        work(*arguments)
    finally:
        os._exit(0)


def read_exactly(pipe: int, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = os.read(pipe, size - len(data))
        if not part:
            raise RuntimeError("a loader worker is gone")
        data += part
    return data


def stop_file() -> str:
    return os.environ.get("OOMPROOF_STOP_FILE", "")


class Teller:
    """What an agent would send: phases to the guard's socket."""

    def __init__(self) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.setblocking(False)
        folder = os.environ.get("OOMPROOF_AGENT", "")
        try:
            with open(f"{folder}/{os.getpid()}-listens.txt", "w") as file:
                file.write("save stop\nthis loop\n")
        except OSError:
            pass

    def tell(self, step: int) -> None:
        value = {
            "kind": "chaos",
            "pid": os.getpid(),
            "t": time.clock_gettime(time.CLOCK_BOOTTIME),
            "rank": 0,
            "fields": {"text": f"step {step}"},
        }
        note("told", value["t"])
        try:
            self.socket.sendto(json.dumps(value).encode(), os.environ["OOMPROOF_AGENT_SOCKET"])
        except (OSError, KeyError):
            pass


def main() -> int:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, on_signal)
    note("start", os.getpid(), os.getppid())
    held = [block(number) for number in range(MIB)]
    pipes, workers = [], []
    if KIND == "forking":
        for _ in range(8):
            read_end, write_end = os.pipe()
            workers.append(fork(lambda end, mine: (os.close(mine), os.read(end, 1)), read_end, write_end))
            os.close(read_end)
            pipes.append(write_end)
    elif KIND == "loader":
        for _ in range(2):
            read_end, write_end = os.pipe()
            workers.append(fork(lambda end, mine: (os.close(mine), feed(end)), write_end, read_end))
            os.close(write_end)
            pipes.append(read_end)
    teller = Teller() if KIND == "agent" else None
    lines = 0
    for step in range(STEPS):
        if KIND == "growing":
            held.extend(block(number) for number in range(len(held), len(held) + 2))
        elif KIND == "loader":
            batch = read_exactly(pipes[step % 2], 60_004)
            if zlib.crc32(batch[4:]).to_bytes(4, "little") != batch[:4]:
                raise RuntimeError("a batch is damaged")
        elif teller is not None and step % 4 == 0:
            teller.tell(step)
        if not QUIET:
            os.write(1, f"line {lines}\n".encode())
            lines += 1
        note("step", step, lines, len(held))
        if stop_file() and os.path.exists(stop_file()):
            note("asked")
            break
        time.sleep(STEP)
    for number, one in enumerate(held):
        if one != block(number):
            raise RuntimeError(f"block {number} of its memory is damaged")
    for pid in workers:
        os.kill(pid, signal.SIGTERM)
        os.waitpid(pid, 0)
    # what comes from now on comes too late: its status is settled
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT, signal.SIGHUP))
    note("done", CODE, lines)
    return CODE


try:
    code = main()
except BaseException as error:
    note("error", type(error).__name__, error)
    os._exit(1)
os._exit(code)

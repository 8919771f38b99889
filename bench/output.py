"""How fast a job's output passes through `oomproof run`, beside the same job without it. Aim: 0.8 of bare.

A job writes as fast as it can to a file, to one that is shared (`>>`), to a pipe and to a terminal; what it took is what the
job itself measured. Then once more through each, with checksums of all that came out and of what output.log kept. Where the
output has to pass through us, the least that could do that (relay.c: it reads and writes, and keeps nothing) runs beside it.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import pty
import subprocess
import sys

from lab import OOMPROOF, Lab, lab, quantile, save, table

LINE = b"".join(
    b"%06d step loss 0.12345 accuracy 0.98765 tokens/s 12345\n" % number for number in range(1200)
)
BLOCK = 65536
# argv: megabytes, where to write the seconds it took
JOB = """
import os, sys, time
line = b"".join(b"%06d step loss 0.12345 accuracy 0.98765 tokens/s 12345\\n" % number for number in range(1200))
left, begun = int(sys.argv[1]) << 20, time.perf_counter()
while left:
    data = memoryview(line)[:left]
    while data:
        written = os.write(1, data)
        left -= written
        data = data[written:]
open(sys.argv[2], "w").write(repr(time.perf_counter() - begun))
"""
MEGABYTES = {"file": 512, "shared file": 512, "pipe": 1024, "terminal": 48}
BARE, OURS, RELAY = "bare", "ours", "relay"
RELAYED = {"shared file": "pipe", "terminal": "terminal"}  # what stands between job and relay


def expected(megabytes: int) -> str:
    left, digest = megabytes << 20, hashlib.sha256()
    while left:
        part = LINE[:left]
        digest.update(part)
        left -= len(part)
    return digest.hexdigest()


def consume(fd: int, kept: bytearray | None) -> None:
    while True:
        try:
            data = os.read(fd, 1 << 20)
        except OSError:  # EIO: the terminal's last user has gone
            return
        if not data:
            return
        if kept is not None:
            kept += data


def once(here: Lab, kind: str, through: str, check: bool = False) -> tuple[float, str]:
    """(seconds the job took, checksum of what arrived)"""
    took = here.folder / "took"
    words = [sys.executable, "-I", "-S", "-c", JOB, str(MEGABYTES[kind]), str(took)]
    if through == OURS:
        words = [OOMPROOF, "run", "--no-agent", "--name", "output", "--", *words]
    elif through == RELAY:
        words = [here.compile("relay.c"), RELAYED[kind], *words]
    kept = bytearray() if check else None
    quiet = {"stdin": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "env": here.environment}
    if kind.endswith("file"):
        target, sign = here.folder / "out", ">" if kind == "file" else ">>"
        shell = [
            "sh",
            "-c",
            f'file=$1; shift; exec "$@" {sign} "$file"',
            "sh",
            str(target),
        ]  # as a user types it
        subprocess.run([*shell, *words], check=True, **quiet)  # type: ignore[call-overload]
        if kept is not None:
            kept += target.read_bytes()
        target.unlink()
    elif kind == "pipe":
        with subprocess.Popen(words, stdout=subprocess.PIPE, **quiet) as job:  # type: ignore[call-overload]
            consume(job.stdout.fileno(), kept)
    else:
        pid, master = pty.fork()
        if pid == 0:
            os.execvpe(words[0], words, here.environment)
        consume(master, kept)
        os.waitpid(pid, 0)
        os.close(master)
    return float(took.read_text()), checksum(bytes(kept), MEGABYTES[kind] << 20) if kept is not None else ""


def checksum(shown: bytes, size: int) -> str:
    """Of the job's own words: on a terminal ours stand before and after them, and each line ends as terminals do."""
    shown = shown.replace(b"\r", b"")
    begin = max(0, shown.find(LINE[:1000]))
    return hashlib.sha256(shown[begin : begin + size]).hexdigest()


def log_is_right(here: Lab, kind: str) -> bool:
    """What output.log keeps since its last gap is the end of what was printed."""
    text = (here.attempt("output") / "output.log").read_bytes().rpartition(b"of output not stored]\n")[2]
    text = text.replace(b"\r", b"")
    end = LINE[: (MEGABYTES[kind] << 20) % len(LINE)]
    return bool(text) and (LINE * (1 + len(text) // len(LINE)) + end).endswith(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--kind", choices=MEGABYTES, action="append")
    parser.add_argument("--megabytes", type=int, help="printed by the job, instead of the usual for its kind")
    arguments = parser.parse_args()
    if arguments.megabytes:
        MEGABYTES.update(dict.fromkeys(MEGABYTES, arguments.megabytes))
    rows, results = [], {}
    for kind in arguments.kind or MEGABYTES:
        size = MEGABYTES[kind]
        ways = (BARE, OURS, RELAY) if kind in RELAYED else (BARE, OURS)
        speed: dict[str, list[float]] = {way: [] for way in ways}
        with lab() as here:
            for _ in range(arguments.repeats):  # in turn, so that a neighbour's load falls on all
                for way in ways:
                    speed[way].append(size / once(here, kind, way)[0])
                for run in (here.folder / "state/oomproof/runs").iterdir():
                    subprocess.run(["rm", "-r", str(run)], check=True)
            _, digest = once(here, kind, OURS, check=True)
            right = digest == expected(size)
            kept = log_is_right(here, kind)
        ratios = {
            way: [one / other for one, other in zip(speed[way], speed[BARE], strict=True)] for way in ways
        }
        ratio = quantile(ratios[OURS], 0.5)
        least = quantile(ratios[RELAY], 0.5) if RELAY in ratios else None
        results[kind] = {
            **{f"{way}_mib_s": figures for way, figures in speed.items()},
            "ratio": ratio,
            "relay_ratio": least,
            "checksum": right,
            "log": kept,
        }
        rows.append(
            [kind, f"{quantile(speed[BARE], 0.5):.0f}", f"{quantile(speed[OURS], 0.5):.0f}", f"{ratio:.2f}",
             f"{min(ratios[OURS]):.2f} to {max(ratios[OURS]):.2f}", f"{least:.2f}" if least else "",
             "right" if right and kept else "WRONG"]
        )  # fmt: skip
    title = (
        f"A job's output at full speed, MiB/s, {arguments.repeats} repeats (load {os.getloadavg()[0]:.1f})"
    )
    table(title, ["to a", "bare", "through oomproof", "ratio", "from, to", "relay.c", "checksums"], rows)
    print(f"\naim: 0.8 each: {'met' if all(row['ratio'] >= 0.8 for row in results.values()) else 'MISSED'}")
    if not arguments.kind and not arguments.megabytes:
        save("output", {"repeats": arguments.repeats, "kinds": results})


if __name__ == "__main__":
    main()

"""Feeds broken texts to `oomproof why FILE`: no exception, no slow text, no growing memory.

    python bench/fuzz_why.py --seconds 600                 guided by coverage where atheris is installed (pip install atheris)
    python bench/fuzz_why.py --seconds 60 --plain          cuts, splices and flips of the corpus, without it
    python bench/fuzz_why.py FILE …                        what a found text does, once, with its traceback

The seeds are the texts of tests/corpus and of every --corpus DIR. A text that breaks a promise is kept in --keep (default:
the working folder) as `crash-…`, `timeout-…` or `oom-…`.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent
LONGEST = 24_000  # bytes of one text: long enough for a report, short enough for thousands of tries a minute
SECONDS = 2.0  # processor time one such text may take; an ordinary one takes milliseconds
MEMORY = 768  # MiB


class Broken(AssertionError):
    """A promise of `why` that a text broke."""


def judge() -> Callable[[bytes], None]:
    """Imported late: atheris has to instrument these modules first."""
    from oomproof.diagnosis.judge import judge_texts
    from oomproof.errors import OomproofError
    from oomproof.evidence.texts.text_case import read_texts

    shared = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.NamedTemporaryFile(prefix="oomproof-fuzz-", dir=shared, delete=False) as file:
        path = file.name

    def one(data: bytes) -> None:
        with open(path, "wb") as file:
            file.write(data)
        begun = time.process_time()
        try:
            said = judge_texts(read_texts([path])).to_json()
        except OomproofError:
            return  # a clear line: nothing to read in it
        spent = time.process_time() - begun
        if spent > SECONDS:
            raise Broken(f"{len(data)} bytes took {spent:.1f} s of processor time")
        json.dumps(said)
        shares = [each["probability"] for each in said["causes"]]
        if abs(sum(shares) - 1) > 0.01 or min(shares) < 0:
            raise Broken(f"the probabilities are {shares}")
        if any(len(each["text"]) > 700 for each in said["evidence"]):
            raise Broken("a quoted line is longer than it may be")

    return one


def seeds(folder: Path, sources: list[Path]) -> int:
    count = 0
    for source in sources:
        for path in sorted(source.rglob("*.txt")):
            data = path.read_bytes()
            for start in range(0, min(len(data), 8 * LONGEST), LONGEST):
                (folder / f"{count:05d}").write_bytes(data[start : start + LONGEST])
                count += 1
    return count


def guided(arguments: list[str]) -> None:
    """One libFuzzer process; it ends by itself."""
    import atheris

    with atheris.instrument_imports(include=["oomproof.evidence.texts", "oomproof.diagnosis"]):
        one = judge()
    atheris.Setup([sys.argv[0], *arguments], one)
    atheris.Fuzz()


def plain(folder: Path, seconds: float, keep: Path) -> int:
    one = judge()
    chance = random.Random(time.time_ns())
    texts = [path.read_bytes() for path in sorted(folder.iterdir())]
    lines = [line for text in texts for line in text.split(b"\n")]
    tries = bad = 0
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        data = mutated(chance, texts, lines)
        tries += 1
        try:
            one(data)
        except Exception as error:
            bad += 1
            found = keep / f"crash-{tries}-{abs(hash(data)):x}"
            found.write_bytes(data)
            print(f"{found}: {type(error).__name__}: {error}")
    print(f"{tries} texts, {bad} of them broke a promise; most memory {memory():.0f} MiB")
    return bad


def mutated(chance: random.Random, texts: list[bytes], lines: list[bytes]) -> bytes:
    data = bytearray(chance.choice(texts))
    for _ in range(chance.randint(1, 8)):
        at = chance.randint(0, len(data))
        match chance.randint(0, 6):
            case 0:
                del data[at : at + chance.randint(1, 2000)]
            case 1:
                data[at:at] = chance.choice(lines) + b"\n"
            case 2:
                data[at:at] = chance.randbytes(chance.randint(1, 8))
            case 3:
                other = chance.choice(texts)
                data[at:] = other[chance.randint(0, len(other)) :]
            case 4:
                data[at : at + 1] = chance.choice(
                    (b"", b"\n", b"\r", b"\0", b"(", b"[", b"\x1b[", b"\xff", b"9" * 40)
                )
            case 5:
                rows = bytes(data).split(b"\n")
                chance.shuffle(rows)
                data = bytearray(b"\n".join(rows))
            case _:
                piece = bytes(data[at : at + chance.randint(1, 40)])
                data[at:at] = piece * chance.randint(2, 200)
    return bytes(data[:LONGEST])


def memory() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> int:
    if len(sys.argv) > 1 and sys.argv[1] == "--guided":
        guided(sys.argv[2:])
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("file", nargs="*", type=Path, help="look at these texts once, and nothing else")
    options.add_argument("--seconds", type=int, default=60)
    options.add_argument(
        "--plain", action="store_true", help="without coverage, even where atheris is installed"
    )
    options.add_argument("--corpus", type=Path, action="append", default=[])
    options.add_argument("--keep", type=Path, default=Path())
    chosen = options.parse_args()
    if chosen.file:
        one = judge()
        for path in chosen.file:
            one(path.read_bytes())
            print(f"{path}: fine")
        return 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        print(f"{seeds(folder, [HERE / 'tests' / 'corpus', *chosen.corpus])} seeds")
        try:
            import atheris  # noqa: F401
        except ImportError:
            chosen.plain = True
            print("atheris is not installed: without coverage")
        if chosen.plain:
            return 1 if plain(folder, chosen.seconds, chosen.keep) else 0
        flags = [
            f"-max_total_time={chosen.seconds}", f"-max_len={LONGEST}", "-timeout=30", f"-rss_limit_mb={MEMORY}",
            f"-artifact_prefix={chosen.keep}/", "-print_final_stats=1", str(folder),
        ]  # fmt: skip
        return subprocess.run([sys.executable, __file__, "--guided", *flags]).returncode


if __name__ == "__main__":
    sys.exit(main())

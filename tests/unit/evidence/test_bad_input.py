"""Whatever is given to `oomproof why`: a clear line, no traceback, nothing of it changed, bounded memory."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from oomproof.evidence.texts import text_stream
from oomproof.evidence.texts.line_reader import open_lines
from oomproof.evidence.texts.text_stream import Stream, UnreadableText

WORDS = b"".join(b"step %d loss %f\n" % (n, random.Random(n).random()) for n in range(20_000))
DEATH = b'Traceback (most recent call last):\n  File "x.py", line 1, in f\nMemoryError: caf\xe9\n'
WHY = [sys.executable, "-m", "oomproof.cli.main", "why"]


def why(*words: str, home: Path, **options: object) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "XDG_STATE_HOME": str(home)}
    return subprocess.run(
        [*WHY, *words], env=environment, capture_output=True, text=True, timeout=240, **options
    )  # type: ignore[call-overload, no-any-return]


def zstd(data: bytes) -> bytes:
    if shutil.which("zstd") is None:
        pytest.skip("no zstd here")
    return subprocess.run(["zstd", "-qc"], input=data, capture_output=True, check=True).stdout


REFUSED: dict[str, tuple[Callable[[], bytes], str]] = {
    "empty": (lambda: b"", "odd is empty"),
    "all bytes": (lambda: bytes(range(256)) * 64, "binary data, not text"),
    "random": (lambda: random.Random(3).randbytes(100_000), "binary data, not text"),
    "zeros": (lambda: bytes(100_000), "only zero bytes"),
    "an array": (lambda: b"\x93NUMPY\x01\x00v\x00", "a NumPy array"),
    "a program": (lambda: Path(sys.executable).read_bytes()[:5000], "a program or a core dump"),
    "broken xz": (lambda: b"\xfd7zXZ\x00garbage", "broken archive"),
    "broken gz": (lambda: b"\x1f\x8bgarbage", "broken archive"),
    "broken zst": (lambda: zstd(WORDS)[:4] + b"garbage", "broken archive"),
    "packed binary": (lambda: gzip.compress(random.Random(3).randbytes(100_000)), "binary data"),
    "packed nothing": (lambda: gzip.compress(b""), "is empty"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_refused_with_one_clear_line(tmp_path: Path, kind: str) -> None:
    data, says = REFUSED[kind][0](), REFUSED[kind][1]
    path = tmp_path / "odd"
    path.write_bytes(data)
    done = why("odd", home=tmp_path, cwd=tmp_path)
    assert done.returncode == 2 and done.stdout == ""
    assert says in done.stderr and "hint:" in done.stderr and "Traceback" not in done.stderr
    assert path.read_bytes() == data


@pytest.mark.parametrize(
    ("pack", "cut"), [(gzip.compress, 0.5), (lzma.compress, 0.5), (bz2.compress, 0.9), (zstd, 0.5)]
)
def test_a_cut_archive_is_read_as_far_as_it_goes_and_says_so(
    tmp_path: Path, pack: Callable[[bytes], bytes], cut: float
) -> None:
    data = pack(WORDS * 4)
    (tmp_path / "log").write_bytes(data[: int(len(data) * cut)])
    for flags in (["--short"], []):
        done = why(*flags, "log", home=tmp_path, cwd=tmp_path)
        assert done.returncode == 0 and "no crash found here" in done.stdout
        assert "could be read only in part" in done.stdout + done.stderr, (
            "silence about the rest would be a lie"
        )


def test_a_folder_a_device_and_nothing_at_all(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    for what, says in (
        ("logs", "logs is a directory"),
        ("/dev/zero", "is a device"),
        ("/dev/null", "is a device"),
        ("nosuch.log", "no file and no run is called 'nosuch.log'"),
        ("logs/nosuch", "no file and no run"),
        ("nosuchrun", "there are no runs yet"),
    ):
        done = why(what, home=tmp_path, cwd=tmp_path)
        assert done.returncode == 2 and says in done.stderr, done.stderr
        assert "hint:" in done.stderr and "Traceback" not in done.stderr


def test_not_ours_to_read(tmp_path: Path) -> None:
    path = tmp_path / "secret.log"
    path.write_bytes(WORDS)
    path.chmod(0)
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == os.getuid() and folder != Path("/") and not folder.stat().st_mode & 0o001:
            folder.chmod(folder.stat().st_mode | 0o011)  # so that it is the file that refuses
    child = os.fork()
    if child == 0:  # root may read all: as somebody else
        status = 9
        try:
            if os.getuid() == 0:
                os.setgroups([])
                os.setgid(65534)
                os.setuid(65534)
            Stream(str(path))
        except UnreadableText as error:
            status = 0 if error.kind == "unreadable" and "sudo oomproof why" in error.hint else 8
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_latin_1_and_nul_bytes(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"na\xefve \0\0\0 start\n" + WORDS + DEATH)
    done = why("--short", "log", home=tmp_path, cwd=tmp_path)
    assert done.returncode == 0 and "Python ran out of memory" in done.stdout and "é" in done.stdout


def test_a_log_without_a_death(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(WORDS)
    done = why("log", home=tmp_path, cwd=tmp_path)
    assert done.returncode == 0 and "no crash found here" in done.stdout and done.stderr == ""


def test_a_file_that_grows_while_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(DEATH + WORDS * 5)
    stop = threading.Event()

    def grow() -> None:
        with path.open("ab", buffering=0) as file:
            while not stop.wait(0.001):
                file.write(WORDS[:2000])

    writer = threading.Thread(target=grow)
    writer.start()
    try:
        done = why("--short", "log", home=tmp_path, cwd=tmp_path)
    finally:
        stop.set()
        writer.join()
    assert done.returncode == 0 and "Traceback" not in done.stderr


@pytest.mark.parametrize("piece", [b"step 1 loss 2\n" * 1000, b"x" * (1 << 16), b"50%|##   |\r" * 5000])
def test_endless_input_takes_bounded_memory(tmp_path: Path, piece: bytes) -> None:
    """6 MB of short lines, of one line, of one progress bar; the end is when we say so."""
    program = (
        "from oomproof.cli.main import main\n"
        "assert main(['why', '--short', '-']) == 0\n"
        "print(next(line for line in open('/proc/self/status') if line.startswith('VmHWM')).split()[1])\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None and process.stdout is not None
    for _ in range((6 << 20) // len(piece)):
        process.stdin.write(piece)
    said, _ = process.communicate(timeout=240)
    assert process.returncode == 0 and b"no crash found here" in said
    assert int(said.split()[-1]) < 64 << 10, "KiB"


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_of_an_endless_line_the_beginning_and_the_end_are_read(
    tmp_path: Path, pack: Callable[[bytes], bytes]
) -> None:
    line = b"begin " + b"x" * (40 << 20) + b" end"
    (tmp_path / "log").write_bytes(pack(line + b"\n" + WORDS + b"\n" + line + b"\nlast"))
    lines = open_lines(str(tmp_path / "log"))
    read = list(lines)
    assert sum(len(text) for _, text in read) < len(WORDS) + (22 << 20)
    first = [text for number, text in read if number == 1]
    assert first[0].startswith("begin x") and first[-1].endswith("x end")
    between = len(WORDS.split(b"\n"))
    assert "\n".join(text for number, text in read if 2 <= number < 2 + between) == WORDS.decode()
    assert read[-1] == (between + 3, "last")
    (note,) = lines.notes
    assert note.startswith(f"{tmp_path / 'log'} was read only in part: 6") and "MiB out of the middle" in note


def test_an_archive_that_asks_for_gigabytes_is_refused(tmp_path: Path) -> None:
    """The header alone says how much memory unpacking takes; the file has a hundred bytes."""
    dictionary = {"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": 1 << 20}
    packed = bytearray(lzma.compress(DEATH, check=lzma.CHECK_NONE, filters=[dictionary]))
    at = packed.index(b"\x21\x01") + 2  # the size of the dictionary, behind the filter's name
    packed[at] = 40  # 4 GiB
    size = (packed[12] + 1) * 4
    packed[12 + size - 4 : 12 + size] = zlib.crc32(packed[12 : 12 + size - 4]).to_bytes(4, "little")
    (tmp_path / "big.xz").write_bytes(packed)
    done = why("big.xz", home=tmp_path, cwd=tmp_path)
    assert done.returncode == 2
    assert "big.xz: unpacking it takes more than 80 MiB of memory" in done.stderr
    assert "xz -d" in done.stderr


def test_xz_of_the_highest_level_and_of_several_streams(tmp_path: Path) -> None:
    parts = [WORDS[:100_000], WORDS[100_000:], DEATH]
    (tmp_path / "log.xz").write_bytes(b"\0\0\0\0".join(lzma.compress(part, preset=9) for part in parts))
    assert b"".join(Stream(str(tmp_path / "log.xz")).blocks()) == b"".join(parts)


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress, zstd])
def test_what_grows_without_end_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pack: Callable[[bytes], bytes]
) -> None:
    monkeypatch.setattr(text_stream, "_MOST_UNPACKED", 8 << 20)
    monkeypatch.setattr(text_stream, "_MOST_GROWTH", 100)
    (tmp_path / "log").write_bytes(pack(b"\n" * (32 << 20)))
    stream = Stream(str(tmp_path / "log"))
    given = sum(map(len, stream.blocks()))
    assert (7 << 20) <= given < (20 << 20)
    assert "was read only in part" in stream.notes[0] and "which is not a log" in stream.notes[0]


@pytest.mark.parametrize(
    "pack",
    [
        gzip.compress,
        pytest.param(bz2.compress, marks=pytest.mark.long),  # packing it takes a minute
        lzma.compress,
        zstd,
    ],
)
def test_unpacking_takes_bounded_memory(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    (tmp_path / "log").write_bytes(pack(b"step 1 loss 2\n" * (3 << 20)))  # 42 MiB
    program = (
        "import sys\nfrom oomproof.evidence.texts.text_stream import Stream\n"
        "assert sum(map(len, Stream(sys.argv[1]).blocks())) == 14 * (3 << 20)\n"
        "print(next(line for line in open('/proc/self/status') if line.startswith('VmHWM')).split()[1])\n"
    )
    said = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "log")], capture_output=True, check=True, timeout=60
    ).stdout
    assert int(said) < 48 << 10, "KiB"


def test_ctrl_c_leaves_no_traceback(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*WHY, "-"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a job in the background ignores it
    )
    assert process.stdin is not None and process.stderr is not None
    for _ in range(60):  # past its start: the pipe is being read
        process.stdin.write(WORDS[:60_000])
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 130 and b"Traceback" not in said


@pytest.mark.parametrize("how", ["no rows", "an empty file", "no file", "not a database"])
def test_a_recording_without_samples(tmp_path: Path, how: str) -> None:
    """The verdict, both pages and the bundle say what there is."""
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path)}
    job = [sys.executable, "-c", "raise MemoryError('none left')"]
    words = [sys.executable, "-m", "oomproof.cli.main", "run", "--name", "bare", "--", *job]
    assert subprocess.run(words, env=environment, capture_output=True).returncode == 1
    (attempt,) = tmp_path.glob("oomproof/runs/*/1")
    (attempt / "verdict.json").unlink()
    recording = attempt / "recording.sqlite"
    if how == "no rows":
        with sqlite3.connect(recording) as db:
            for table in ("host", "job", "process", "gpu", "event", "phase", "meta"):
                db.execute(f"DELETE FROM {table}")
    else:
        for each in attempt.glob("recording.sqlite*"):
            each.unlink()
        if how != "no file":
            recording.write_bytes(b"" if how == "an empty file" else b"not a database at all" * 100)
    done = why(
        "--md", "r.md", "--html", "r.html", "--bundle", "r.tgz", "bare", home=tmp_path, cwd=tmp_path
    )  # fmt: skip
    assert done.returncode == 0 and "Python ran out of memory: none left (proven)" in done.stdout
    assert "Traceback" not in done.stderr
    assert all((tmp_path / name).stat().st_size > 500 for name in ("r.md", "r.html", "r.tgz"))

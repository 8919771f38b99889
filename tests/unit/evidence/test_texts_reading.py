"""Any file as lines: packed, coloured, growing, huge; and a clear word where there is nothing to read."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import shutil
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oomproof.evidence.texts.kernel_parser import ANCHORS, REPORT_END, REPORT_STARTS, KernelParser
from oomproof.evidence.texts.line_reader import LONGEST, UnreadableText, open_lines
from oomproof.evidence.texts.long_texts import marked_lines

TEXT = b"one\ntwo\r\nthree"


def read(path: Path) -> list[tuple[int, str]]:
    return list(open_lines(str(path)))


@pytest.mark.parametrize("pack", [bytes, gzip.compress, lzma.compress, bz2.compress])
def test_packed_by_content_not_by_name(tmp_path: Path, pack: object) -> None:
    (tmp_path / "log").write_bytes(pack(TEXT))  # type: ignore[operator]
    assert read(tmp_path / "log") == [(1, "one"), (2, "two"), (3, "three")]


@pytest.mark.skipif(shutil.which("zstd") is None, reason="no zstd here")
def test_zstd(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(TEXT * 100_000)
    subprocess.run(["zstd", "-q", tmp_path / "log", "-o", tmp_path / "packed"], check=True)
    assert len(read(tmp_path / "packed")) == len(read(tmp_path / "log"))


def test_a_cut_archive_gives_what_it_has(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(
        gzip.compress(os.urandom(300_000).hex().encode() + b"\nend\n" + TEXT * 99)[:200_000]
    )
    lines = open_lines(str(tmp_path / "log"))
    assert len(list(lines)) >= 1 and "only in part" in lines.notes[0]


@pytest.mark.parametrize(
    ("data", "texts"),
    [
        (b"a\x00\x00b\n\x00\x00\x00\nc", ["ab", "", "c"]),
        (b"\x1b[31mred\x1b[0m \x1b]0;title\x07x", ["red x"]),
        (b"10%|#\r20%|##\r30%|###\nend", ["10%|#", "20%|##", "30%|###", "end"]),
        ("größe".encode("latin-1"), ["größe"]),
        ("größe\n".encode() + b"\xff x", ["größe", "\ufffd x"]),
        ("a\nü".encode("utf-16"), ["a", "ü"]),
        (b"\xef\xbb\xbfa", ["a"]),
    ],
)
def test_odd_bytes(tmp_path: Path, data: bytes, texts: list[str]) -> None:
    (tmp_path / "log").write_bytes(data)
    assert [text for _, text in read(tmp_path / "log")] == texts


def test_long_lines_come_in_pieces_under_one_number(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"x" * (3 << 20) + b"\nend\n" + b"y" * (2 << 20))
    lines = read(tmp_path / "log")
    assert max(len(text) for _, text in lines) <= LONGEST
    assert sum(len(text) for number, text in lines if number == 1) == 3 << 20
    assert (2, "end") in lines and lines[-1][0] == 3


def test_a_growing_file_is_read_to_the_size_it_had(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"a\nb\n")
    lines = open_lines(str(path))
    with open(path, "ab") as file:
        file.write(b"c\n")
    assert [text for _, text in lines] == ["a", "b"]


@pytest.mark.parametrize(
    ("data", "kind"),
    [(b"", "empty"), (gzip.compress(b"", mtime=0), "empty"), (bytes(4096), "binary"), (b"\x7fELF" + bytes(99), "binary"),
     (b"LPKSHHRH" + bytes(99), "binary"), (bytes(range(1, 32)) * 99, "binary"), (b"\x1f\x8b\x08broken", "unreadable")],
)  # fmt: skip
def test_nothing_to_read(tmp_path: Path, data: bytes, kind: str) -> None:
    (tmp_path / "log").write_bytes(data)
    with pytest.raises(UnreadableText) as raised:
        open_lines(str(tmp_path / "log"))
    assert raised.value.kind == kind and raised.value.hint and str(tmp_path / "log") in raised.value.message


def test_no_file(tmp_path: Path) -> None:
    for path, kind in (
        (tmp_path, "directory"),
        (tmp_path / "none", "missing"),
        (Path("/dev/zero"), "device"),
    ):
        with pytest.raises(UnreadableText) as raised:
            open_lines(str(path))
        assert raised.value.kind == kind and raised.value.hint


def test_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "log").write_bytes(gzip.compress(TEXT))
    with open(tmp_path / "log") as file:
        monkeypatch.setattr(sys, "stdin", file)
        assert [text for _, text in open_lines("-")] == ["one", "two", "three"]


def test_a_fifo(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with subprocess.Popen(["sh", "-c", f"printf 'a\\nb\\n' > {path}"]):
        assert [text for _, text in open_lines(str(path))] == ["a", "b"]


# the quick way through a huge log


def marked(path: Path) -> list[tuple[int, str]]:
    return list(marked_lines(str(path), ANCHORS, REPORT_STARTS, REPORT_END))


LINES = st.lists(
    st.sampled_from([
        "noise", "", "x invoked oom-killer: gfp_mask=0x0, order=0", "[  pid  ]   uid  tgid total_vm      rss name",
        "[    5]     0     5       10        5 init", "Out of memory: Killed process 5 (init) total-vm:40kB",
        "anon-rss:1kB, file-rss:0kB", "a[1]: segfault at 0 ip 0 sp 0", "error 4 in b[0+1]", "memory: usage 1kB, limit 1kB",
    ]),
    max_size=40,
)  # fmt: skip


@settings(max_examples=60)
@given(LINES, st.booleans())
def test_the_quick_way_finds_what_reading_all_finds(tmp_path: Path, lines: list[str], ended: bool) -> None:
    path = tmp_path / "log"
    path.write_text("\n".join(["begin", *lines]) + "\n" * ended)
    whole = read(path)
    assert set(marked(path)) <= set(whole)

    def found(numbered: list[tuple[int, str]]) -> object:
        parser = KernelParser("k")
        for number, line in numbered:
            parser.feed(number, line)
        return parser.finish()

    assert found(marked(path)) == found(whole)


def test_the_quick_way_in_bounded_memory(tmp_path: Path) -> None:
    path = tmp_path / "log"
    noise = b"Nov 15 10:00:00 host kernel: eth0: link is up, nothing else to be told of it\n" * 13_000
    kill = b"[1.000001] Out of memory: Killed process 5 (init) total-vm:40kB, anon-rss:4kB, file-rss:0kB, shmem-rss:0kB\n"
    with open(path, "wb") as file:
        for _ in range(24):
            file.write(noise)
        file.write(kill + noise)
    tracemalloc.start()
    lines = marked(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(lines) == 5 and lines[0][0] == 24 * 13_000 + 1
    assert peak < 16 << 20


def test_a_log_cut_in_place_begins_with_zeros(tmp_path: Path) -> None:
    """`truncate` under a writer leaves a hole as long as the old log: the new text stands behind it."""
    path = tmp_path / "cut.log"
    with path.open("wb") as file:
        file.seek(3 << 30)  # a hole: takes no room
        file.write(b"epoch 3\nKilled\n")
    assert [text for _, text in open_lines(str(path)) if text.strip("\0")] == ["epoch 3", "Killed"]
    packed = tmp_path / "zeros.log"
    packed.write_bytes(b"\0" * 2_500_000 + b"epoch 4\n")
    assert [text for _, text in open_lines(str(packed)) if text][-1].strip("\0") == "epoch 4"

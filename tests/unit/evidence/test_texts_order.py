"""Texts read from their end, texts of unknown length, and anything at all: the whole way from bytes to verdict."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oomproof.diagnosis.judge import judge_texts
from oomproof.errors import OomproofError
from oomproof.evidence.texts import long_texts
from oomproof.evidence.texts.newest_first import Ordered, falls
from oomproof.evidence.texts.text_case import read_texts

CORPUS = Path(__file__).parents[2] / "corpus" / "kernel"
TEXTS = sorted(CORPUS.glob("*.txt"))
KILL = "Out of memory: Killed process {0} (job{0}) total-vm:{0}kB, anon-rss:1kB, file-rss:0kB, shmem-rss:0kB"


def journal(kills: int) -> list[str]:
    return [
        f"Nov 15 11:{number:02d}:07 node7 kernel: {KILL.format(number)}" for number in range(1, kills + 1)
    ]


@pytest.mark.parametrize("backwards", [False, True])
def test_the_last_kill_is_the_latest_whichever_way_the_text_runs(tmp_path: Path, backwards: bool) -> None:
    lines = journal(5)
    verdict = judge_texts(read_texts([_written(tmp_path, lines[::-1] if backwards else lines)]))
    assert verdict.victim is not None and verdict.victim.pid == 5
    assert [kill.victim.pid for kill in verdict.kills] == [1, 2, 3, 4, 5]
    assert f":{1 if backwards else 5} says" in verdict.why  # the line where it stands


def test_a_job_that_talks_of_earlier_times_is_not_turned_round() -> None:
    assert not falls(
        [f"2024-05-0{9 - day} 10:00:00 epoch {day} done" for day in range(5)]
    )  # nobody signed these
    assert not falls(journal(5)) and falls(journal(5)[::-1])
    assert not falls(["[  12.000001] a", "[  11.000001] b", "[  13.000001] c", "[  14.000001] d"])
    assert falls([f"[  {20 - n}.000001] x" for n in range(5)])


def test_a_long_text_is_taken_as_it_comes() -> None:
    lines = [(number, line + " " * 400_000) for number, line in enumerate(journal(40)[::-1], 1)]
    ordered = Ordered(iter(lines))
    assert not ordered.reversed and list(ordered) == lines


def noise(megabytes: int) -> Iterator[str]:
    for number in range(megabytes * 10_000):
        yield f"[{number:12.6f}] usb 1-{number % 9}: new high-speed USB device number {number % 99} using xhci_hcd, again and {number}"


def test_of_a_long_kernel_log_through_a_pipe_only_marked_lines_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(long_texts, "LARGE", 1 << 20)
    lines = list(noise(4))
    lines.insert(100, f"[    1.000001] {KILL.format(7)}")
    lines.insert(30_000, f"[    2.000001] {KILL.format(8)}")
    lines.append(f"[    3.000001] {KILL.format(9)}")
    path = Path(_written(tmp_path, lines))
    kills = long_texts.Marks.of(["illed process "], [], "illed process ")
    seen = list(long_texts.Skimmed(str(path), kills, kills))
    assert len(seen) < 25_000  # of some 40,000
    assert [(number, line) for number, line in seen if "illed process" in line] == [
        (number, line) for number, line in enumerate(lines, 1) if "illed process" in line
    ]


def test_a_long_pipe_is_held_in_little_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_texts, "LARGE", 1 << 20)
    path = _written(tmp_path, list(noise(16)))
    tracemalloc.start()
    kills = long_texts.Marks.of(["illed process "], [], "illed process ")
    for _ in long_texts.Skimmed(path, kills, kills):
        pass
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10 << 20  # of 15


OOM = "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
STEPS = [f"step {number} of 90000, loss 0.{number % 1000:03d}" for number in range(1, 80_001)]
BARS = [
    f"Training: {number // 900}%|###   | {number}/90000 [10:00<20:00, 3.21it/s]"
    for number in range(1, 80_001)
]


@pytest.mark.parametrize("between", ["\n", "\r"])
def test_a_long_training_log_is_skimmed(tmp_path: Path, between: str) -> None:
    (tmp_path / "a.log").write_text(between.join(BARS) + f"\n{OOM}\n")
    marks = long_texts.Marks.of(["memory"], [], "never")
    seen = list(long_texts.Skimmed(str(tmp_path / "a.log"), marks, marks))
    assert len(seen) < 0.5 * len(BARS) and seen[-1] == (len(BARS) + 1 if between == "\n" else 2, OOM)
    case = read_texts([str(tmp_path / "a.log")])
    assert (case.training[-1].cause, case.progress.step, case.progress.total) == ("cuda-oom", 80_000, 90_000)


def test_what_a_long_log_went_on_after_is_no_death(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("\n".join([*STEPS[:40_000], OOM, *STEPS[40_000:]]))
    (finding,) = read_texts([str(tmp_path / "a.log")]).training
    assert (finding.line, finding.job.role) == (40_001, "noise")


def test_a_word_that_comes_again_and_again_does_not_hide_another(tmp_path: Path) -> None:
    lines = [f"{line}, memory: 10123" for line in STEPS]
    (tmp_path / "a.log").write_text(
        "\n".join([*lines[:60_000], OOM, *[line + " MiB" for line in lines[60_000:60_100]], *["."] * 20_000])
    )
    assert read_texts([str(tmp_path / "a.log")]).training[-1].line == 60_001


@settings(max_examples=60)
@given(st.data())
def test_no_text_breaks_the_verdict(tmp_path: Path, data: st.DataObject) -> None:
    """Cut, spliced, reversed, shuffled and salted pieces of the corpus: a verdict whose shares add up, or a clear refusal."""
    pieces = [
        data.draw(st.sampled_from(TEXTS)).read_bytes()
        for _ in range(data.draw(st.integers(1, 3), label="texts"))
    ]
    text = bytearray()
    for piece in pieces:
        start = data.draw(st.integers(0, len(piece)))
        text += piece[start : start + data.draw(st.integers(0, 6000))]
    for _ in range(data.draw(st.integers(0, 4))):
        at = data.draw(st.integers(0, len(text)))
        text[at:at] = data.draw(
            st.sampled_from([b"\n", b"\r", b"\0", b"(" * 50, b"\x1b[", b"\xff\xfe", b"9" * 60, b"{"])
        )
    lines = bytes(text).split(b"\n")
    if data.draw(st.booleans()):
        lines.reverse()
    path = tmp_path / "any"
    path.write_bytes(b"\n".join(lines))
    try:
        verdict = judge_texts(read_texts([str(path)])).to_json()
    except OomproofError as refused:
        assert str(refused)
        return
    json.dumps(verdict)
    assert sum(each["probability"] for each in verdict["causes"]) == pytest.approx(1, abs=0.01)
    assert all(len(each["text"]) <= 700 for each in verdict["evidence"])


def _written(tmp_path: Path, lines: list[str]) -> str:
    path = tmp_path / "text.log"
    path.write_text("\n".join(lines) + "\n")
    return str(path)

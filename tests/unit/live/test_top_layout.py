"""The screen as text: what is told at which size, and that nothing in a name is obeyed."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers_live import GIB, MIB, detail, jobs, machine, snapshot

from oomproof.cli.top import as_ascii
from oomproof.live.job_chart import chart_lines, ribbon
from oomproof.live.job_table import arranged, full_text, job_rows, peak_text, rate_text
from oomproof.live.live_snapshot import CardState, JobState, LiveSnapshot, to_json
from oomproof.live.memory_bars import bar, machine_lines
from oomproof.live.top_layout import Choice, lay_out, once
from oomproof.recording.phase_spans import Span
from oomproof.records import replace
from oomproof.reports.chart import columns
from oomproof.reports.table_text import plain
from oomproof.trend.leaks import Range


def text_of(width: int, height: int, choice: Choice | None = None, of: LiveSnapshot | None = None) -> str:
    layout = lay_out(of or snapshot(), detail(), choice or Choice(), width, height)
    assert len(layout.lines) == height
    assert all(sum(len(text) for text, _ in line) <= width for line in layout.lines)
    return "\n".join(plain(line) for line in layout.lines)


@pytest.fixture
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("utc")
@pytest.mark.parametrize("size", ["80x24", "120x40", "40x10"])
def test_the_whole_screen(size: str) -> None:
    """As it was looked at. A change that is meant: OOMPROOF_NEW_SCREENS=1 writes the files anew."""
    width, height = map(int, size.split("x"))
    text = text_of(width, height) + "\n"
    stored = Path(__file__).with_name(f"screen-{size}.txt")
    if os.environ.get("OOMPROOF_NEW_SCREENS"):
        stored.write_text(text)
    assert text == stored.read_text()


def test_bars_add_up_and_have_their_marks() -> None:
    drawn = plain(bar([(8, "a", ""), (4, "b", "")], 16, 16, [(15, "|")]))
    assert drawn == "aaaaaaaabbbb···|"
    full = plain(bar([(99, "a", "")], 16, 8))
    assert full == "aaaaaaaa", "more than there is fills the bar, and no more"


def test_what_is_not_known_is_not_zero() -> None:
    hidden = CardState(1, "card", 24 * GIB, 15 * GIB, None)
    unified = CardState(2, "GB10", note="unified memory")
    lines = [plain(line) for line in machine_lines(snapshot(cards=(hidden, unified)), 100)]
    assert any("15.0 (whose is not known)" in line and "9.0  of 24.0 GiB" in line for line in lines)
    assert any("GB10: unified memory" in line for line in lines)
    (row,) = [plain(line) for line in job_rows(jobs()[-1:], 100).lines[1:]]
    assert "theirs" in row and "?" in row and "0 B" not in row
    told = to_json(snapshot())["jobs"][-1]
    assert told["use_bytes"] is None and told["swap_bytes"] is None and told["bytes_per_second"] is None
    assert to_json(snapshot(cards=(hidden,)))["gpus"][0]["unmanaged_bytes"] is None


def test_below_the_margin_is_told_in_gib() -> None:
    (ram, *_) = machine_lines(snapshot(machine=machine(available=3 * GIB, reserved=0)), 80)
    assert ("· 3.0", "bad") in ram and "%" not in plain(ram)


@pytest.mark.parametrize("size", [(40, 10), (30, 6), (24, 5), (23, 4), (1, 1), (200, 60), (80, 16), (80, 15)])
def test_any_size_is_filled_and_never_overrun(size: tuple[int, int]) -> None:
    assert text_of(*size)


def test_a_telephone_has_ram_and_jobs() -> None:
    text = text_of(40, 10)
    assert "20.0 of 32.0 GiB" in text
    assert "big" in text and "12.0 GiB" in text and "42 to 65 min" in text


def test_hostile_names_are_shown_not_obeyed() -> None:
    bad = JobState("r", "a\x1b[2Jb\nc\u202e", "waiting", "\x1b]0;x\x07", need=1, reasons=("\x1b[31mred",))
    for width, height in ((80, 24), (40, 10), (120, 40)):
        text = text_of(width, height, of=snapshot(jobs=(bad,), troubles=("\x1b[2J",)))
        assert "\x1b" not in text and "\u202e" not in text and len(text.splitlines()) <= height
    assert "\x1b" not in "\n".join(plain(line) for line in once(snapshot(jobs=(bad,)), 80))


@pytest.mark.usefixtures("utc")
def test_waiting_and_paused_ones_say_until_when() -> None:
    text = "\n".join(plain(line) for line in job_rows(jobs(), 120).lines)
    assert "paused by the guard until 14:23:20 at the latest (full in 9 s)" in text
    assert "waits: needs 20.0 GiB; 12.0 GiB available: short by 13.0 GiB; in the way: big" in text
    by_hand = replace(jobs()[1], paused_by="user", paused_until=None, gpu_given_back=True)
    assert "paused by you, its GPU memory given back" in plain(job_rows([by_hand], 120).lines[2])


def test_narrow_tables_lose_the_least_telling_columns() -> None:
    wide, narrow = (plain(job_rows(jobs(), width).lines[0]) for width in (160, 60))
    assert "VRAM" in wide and "peak (last)" in wide and "reserved" in wide
    assert "VRAM" not in narrow and "RAM" in narrow and "full in" in narrow


def test_times_to_full_are_ranges() -> None:
    assert full_text(Range(2500, 3000, 3900)) == "42 to 65 min"
    assert full_text(Range(30, 60, 300)) == "30 s to 5 min"
    assert full_text(Range(600, 600, 600)) == "10 min"
    assert full_text(Range(600, 1200, float("inf"))) == "over 10 min"
    assert full_text(None) == "–"
    assert (rate_text(None), rate_text(100.0), rate_text(MIB), rate_text(-MIB)) == ("–", "0", "+60", "-60")


def test_runs_first_then_by_the_order() -> None:
    names = [job.name for job in arranged(jobs())]
    assert names == ["big", "evaluation", "theirs", "next", "chromium"]
    assert [job.name for job in arranged(jobs(), "name")] == [
        "big",
        "evaluation",
        "theirs",
        "next",
        "chromium",
    ]
    assert [job.name for job in arranged(jobs(), wanted="EVAL")] == ["evaluation"]
    assert [job.name for job in arranged(jobs(), wanted="unmanaged")] == ["chromium"]


def test_the_selected_job_stays_in_sight() -> None:
    many = tuple(JobState(f"r{n}", f"job{n:02}", "running", use=(50 - n) * GIB) for n in range(40))
    for chosen in ("r0", "r20", "r39"):
        text = text_of(80, 24, Choice(selected=chosen), snapshot(jobs=many))
        assert f"› job{int(chosen[1:]):02}" in text
    assert "more below" in text_of(80, 24, Choice(), snapshot(jobs=many))


def test_a_selected_job_that_has_gone_is_the_first() -> None:
    assert "› big" in text_of(80, 24, Choice(selected="gone"))


def test_lines_lead_to_their_jobs() -> None:
    layout = lay_out(snapshot(), detail(), Choice(), 80, 24)
    for line, job_id in layout.rows.items():
        job = next(job for job in jobs() if job.id == job_id)
        assert (
            job.name[:8] in plain(layout.lines[line])
            or "waits" in plain(layout.lines[line])
            or "paused" in plain(layout.lines[line])
        )


def test_a_chart_keeps_every_peak_and_has_its_limit() -> None:
    points = [(float(n), 100 if n == 50 else 10) for n in range(100)]
    values = columns(points, 10, 0.0, 100.0)
    assert values[5] == 100 and values.count(10) == 9
    assert columns([(5.0, 7)], 4, 0.0, 10.0) == [None, None, 7, 7]
    assert columns([(-5.0, 3)], 2, 0.0, 10.0) == [3, 3], "what was before the window holds"
    lines = [plain(line) for line in chart_lines(values, 4, 200, "", "RAM")]
    assert "┄" in lines[0] and "200 B" in lines[0] and "RAM" in lines[-1]
    far = [plain(line) for line in chart_lines(values, 4, 5000, "", "RAM")]
    assert "┄" not in "".join(far), "a limit far above would press the curve flat"


def test_short_phases_are_not_lost_in_the_ribbon() -> None:
    phases = [Span(0, 50, "train"), Span(50, 51, "eval"), Span(51, 100, "train"), Span(100, 101, "unknown")]
    assert ribbon(phases, 0.0, 100.0, 20) == "ttttttttttettttttttt"
    assert ribbon([], 0.0, 1.0, 20) == ""


def test_a_plain_terminal_gets_ascii() -> None:
    text = as_ascii("\n".join(plain(line) for line in once(snapshot(), 100)))
    assert text.isascii() and "?" not in text.replace("theirs", "").splitlines()[1]


@pytest.mark.parametrize(
    ("peak", "shown"),
    [(4097 * MIB, "(as before)"), (4090 * MIB, "(as before)"), (5 * GIB, "(+25%)"), (3 * GIB, "(-25%)")],
)
def test_a_peak_beside_the_last_one(peak: int, shown: str) -> None:
    """It was "(-0%)"."""
    job = replace(jobs()[0], peak=peak, peak_before=4 * GIB, spill=0)
    assert peak_text(job).endswith(shown)

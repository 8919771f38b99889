"""The crash page in a real browser: draws without errors, runs nothing of the job's, fits a phone and paper."""

from __future__ import annotations

import os
import re
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from shutil import rmtree
from typing import Any

import pytest
from helpers_report import END, GIB, HOSTILE, WALL, make_run, verdict

from oomproof.diagnosis.verdict import RankedCause
from oomproof.errors import OomproofError
from oomproof.recording.sqlite_files import TABLES
from oomproof.reports import html, html_chart, html_parts
from oomproof.reports.document import Paragraph, Table, section
from oomproof.reports.html import write_html
from oomproof.reports.redaction import Redactor
from oomproof.reports.story import tell
from oomproof.reports.timeline import Mark, Timeline

CHROMIUM = "/usr/bin/chromium"


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path


def page_of(state: Path, **options: Any) -> Path:
    run = make_run(state, **options)
    path = state / "page.html"
    write_html(verdict(run.id, options.get("texts", "")), run, path)
    return path


def test_sections_follow_the_data(state: Path) -> None:
    def titles(text: str) -> set[str]:
        return set(re.findall(r"<h2>(.*?)</h2>", text))

    full = titles(page_of(state).read_text())
    assert {
        "Memory",
        "Who held the memory at the end",
        "Phases",
        "What to do",
        "What decides it",
        "What it printed last",
        "Environment",
    } <= full
    write_html(verdict(), None, state / "text.html")
    text = (state / "text.html").read_text()
    assert not titles(text) & {"Memory", "Who held the memory at the end", "Phases", "Environment"}
    assert "The card when it failed" in titles(text) and "<figure" not in text


def test_one_small_file_that_fetches_nothing(state: Path) -> None:
    path = page_of(state, seconds=30_000)
    with sqlite3.connect(path.parent / "oomproof/runs/20260921-221500-abc/1/recording.sqlite") as db:
        db.executemany(
            "INSERT INTO gpu VALUES(?,?,?,?,?)",
            [(END - s, card, 9 * GIB, 24 * GIB, 8 * GIB) for s in range(5000) for card in range(1, 8)],
        )
    from oomproof.recording.run_folders import find

    write_html(verdict("20260921-221500-abc"), find(None), path, force=True)
    text = path.read_text()
    assert len(text.encode()) < 2_000_000
    assert not re.search(r"""(?:src|href)\s*=|url\(|@import|https?://""", text)


def test_a_recording_without_samples(state: Path) -> None:
    run = make_run(state, seconds=60)
    recording = run.attempt / "recording.sqlite"
    for name in ("", "-wal", "-shm"):
        Path(f"{recording}{name}").unlink(missing_ok=True)
    with sqlite3.connect(recording) as db:
        db.executescript(TABLES)
    write_html(verdict(run.id), run, state / "p.html")
    assert "<figure" not in (state / "p.html").read_text()


def test_refuses_to_overwrite(state: Path) -> None:
    write_html(verdict(), None, state / "p.html")
    with pytest.raises(OomproofError, match="exists already"):
        write_html(verdict(), None, state / "p.html")


# --- in the browser -----------------------------------------------------------------------------------------


NUMBERS = {
    "host": ("t", "mem_total", "mem_available", "swap_total"),
    "job": ("t", "anon", "shmem", "file", "swap", "headroom"),
    "process": ("t", "pid", "start", "anon", "shmem", "swap", "file", "pss"),
    "gpu": ("t", "idx", "used", "total", "job_used"),
    "phase": ("t", "step", "anon", "gpu"),
    "event": ("t",),
}
BAD_NUMBERS = (
    "</script><script>window.hacked=1</script>",
    '"><img src=x onerror=hacked()>',
    float("inf"),
    b"<b>",
)


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.scripts, self.odd = 0, []  # type: int, list[str]

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.scripts += tag == "script"
        if tag in ("img", "iframe") or any(name.startswith("on") for name, _ in attributes):
            self.odd.append(tag)


@pytest.mark.parametrize("table", NUMBERS)
def test_a_text_where_a_number_belongs_is_no_markup(state: Path, table: str) -> None:
    """SQLite keeps any text in a column of integers."""
    for number, column in enumerate(NUMBERS[table]):
        for turn, bad in enumerate(BAD_NUMBERS):
            run = make_run(state, f"20260921-22{number:02d}{turn:02d}-abc", seconds=40)
            with closing(sqlite3.connect(run.attempt / "recording.sqlite")) as db:
                rows = f"SELECT max(rowid) FROM {table}"
                db.execute(f"UPDATE {table} SET {column} = ? WHERE rowid = ({rows})", (bad,))
                db.commit()
            path = state / "page.html"
            write_html(verdict(run.id), run, path, force=True)
            tags = _Tags()
            tags.feed(path.read_text())
            assert tags.scripts <= 2 and not tags.odd
            rmtree(run.folder)


def test_a_verdict_with_texts_for_numbers_gets_no_page(state: Path) -> None:
    bad: Any = BAD_NUMBERS[0]
    found = verdict(None)
    assert found.gpu is not None and found.victim is not None
    hostile = replace(
        found, step=bad, gpu=replace(found.gpu, index=bad), victim=replace(found.victim, pid=bad)
    )
    with pytest.raises(TypeError, match="damaged"):  # `why` says that in one line
        write_html(hostile, None, state / "page.html")
    assert not (state / "page.html").exists()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if not os.path.exists(CHROMIUM):
        pytest.skip(f"needs {CHROMIUM}: apt-get install chromium")
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install playwright")
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(
            executable_path=CHROMIUM,
            args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"],
        )
        yield chromium
        chromium.close()


def opened(browser: Any, path: Path, **options: Any) -> tuple[Any, list[str]]:
    context = browser.new_context(**{"viewport": {"width": 1100, "height": 900}, **options})
    page, trouble = context.new_page(), []
    page.on("console", lambda message: trouble.append(message.text))
    page.on("pageerror", lambda error: trouble.append(str(error)))
    page.on("request", lambda request: request.url.startswith("file:") or trouble.append(request.url))
    page.goto(path.as_uri())
    return page, trouble


def test_draws_without_errors_and_text_can_be_selected(state: Path, browser: Any) -> None:
    page, trouble = opened(browser, page_of(state))
    assert trouble == []
    assert page.inner_text("h1").startswith("Killed at 31.1 GiB after 60 min")
    assert "the kernel killed the job" in page.inner_text(".headline")
    area = page.locator(".plot.host .area")
    box = area.bounding_box()
    assert box["width"] > 600 and box["height"] > 150
    drawn = page.evaluate(
        "[...document.querySelectorAll('.plot.host path')].map(p => p.getBoundingClientRect().height)"
    )
    assert len(drawn) == 5 and all(height > 20 for height in drawn[-2:])
    selected = page.evaluate(
        "getSelection().selectAllChildren(document.querySelector('h1')), getSelection().toString()"
    )
    assert "31.1 GiB" in selected
    ticks = page.evaluate(
        "[...document.querySelectorAll('.axis span')].map(s => s.getBoundingClientRect().left)"
    )
    assert len(ticks) >= 4 and all(b - a > 40 for a, b in pairwise(ticks))


def test_the_top_half_needs_no_script(state: Path, browser: Any) -> None:
    page, _ = opened(browser, page_of(state), java_script_enabled=False)
    assert page.locator(".controls").is_hidden()
    assert (
        page.locator(".plot.host svg path").count() == 5 and page.locator(".plot.gpu svg path").count() == 2
    )
    assert page.locator(".events li").count() == 4 and page.locator(".mark:visible").all_inner_texts() == [
        "1",
        "2–3",
        "4",
    ]
    assert page.locator(".phase:visible").all_inner_texts() == ["eval 1250", "train 1300–1450"]
    assert "limit 30.0 GiB" in page.inner_text(".plot.host")


def test_zoom_and_readout(state: Path, browser: Any) -> None:
    page, trouble = opened(browser, page_of(state))
    assert page.inner_text(".about >> nth=0") == "The last ten minutes"
    page.click("[data-show=all]")
    assert page.inner_text(".about >> nth=0") == "The whole run, 60 min"
    assert page.locator(".phase:visible").count() > 5
    box = page.locator(".plot.host .area").bounding_box()
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] / 4, middle)
    assert "GPU 0: job" in page.inner_text(".readout")
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] / 2, middle)
    page.mouse.up()
    about = page.inner_text(".about >> nth=0")
    assert about.endswith("15 min") and " to " in about
    page.dblclick(".plot.host .area")
    assert page.inner_text(".about >> nth=0") == "The last ten minutes" and trouble == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_light_and_dark(state: Path, browser: Any, scheme: str) -> None:
    page, _ = opened(browser, page_of(state), color_scheme=scheme)
    paper, ink = page.evaluate("(s => [s.backgroundColor, s.color])(getComputedStyle(document.body))")
    lightness = [sum(map(int, re.findall(r"\d+", colour)[:3])) for colour in (paper, ink)]
    assert (
        (lightness[0] < 150 and lightness[1] > 600)
        if scheme == "dark"
        else (lightness[0] > 700 and lightness[1] < 200)
    )


@pytest.mark.parametrize("width", [360, 768, 1400])
@pytest.mark.parametrize("texts", ["", "x" * 400], ids=["plain", "long-words"])
def test_fits_the_screen(state: Path, browser: Any, texts: str, width: int) -> None:
    page, _ = opened(browser, page_of(state, texts=texts), viewport={"width": width, "height": 740})
    page.evaluate("document.querySelectorAll('details').forEach(part => { part.open = true })")
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert page.evaluate("parseFloat(getComputedStyle(document.body).fontSize)") >= 14


def test_the_keyboard_is_enough(state: Path, browser: Any) -> None:
    """Every fold and button in the order of the page; the chart zooms, moves and goes back; a command is copied."""
    page, trouble = opened(browser, page_of(state))
    focused, reached = "document.activeElement", []
    for _ in range(40):
        page.keyboard.press("Tab")
        tag = page.evaluate(f"{focused}.id || {focused}.className || {focused}.tagName")
        if tag == "BODY":
            break
        reached.append(tag)
        if tag == "chart":
            page.keyboard.press("+")
            assert page.inner_text(".about >> nth=0").endswith("5 min")
            page.keyboard.press("ArrowLeft")
            page.keyboard.press("0")
            assert page.inner_text(".about >> nth=0") == "The last ten minutes"
        elif tag == "copy":
            page.keyboard.press("Enter")
            assert page.evaluate(f"{focused}.textContent") == "Copied"
        elif tag == "SUMMARY":
            page.keyboard.press("Enter")
            assert page.evaluate(f"{focused}.parentNode.open")
    assert reached.count("copy") == page.locator(".copy:visible").count() and "chart" in reached
    assert reached.count("SUMMARY") == page.locator("summary").count() and trouble == []


@pytest.mark.parametrize("width", [390, 1280])
def test_words_of_a_table_and_clocks_of_the_axis_stay_whole(state: Path, browser: Any, width: int) -> None:
    """`AFTE R`, `69/40 0` in a table of seven columns; the last clock stood half outside the card."""
    head = ("DATE (UTC)", "RUN", "WHEN", "AFTER", "HELD", "CAUSE", "LAST LINE")
    row = (
        "now",
        "x",
        "2026-11-18 21:49",
        "7.4 s",
        "496 MiB",
        "stopped by oomproof",
        "step 60/400 loss 2.3953 and more",
    )
    path = state / "deaths.html"
    path.write_text(html_parts.page((section(Paragraph("1 death")), section(Table(head, (row,))))))
    page, _ = opened(browser, path, viewport={"width": width, "height": 740})
    for cell in ("7.4 s", "496 MiB", "2026-11-18 21:49", "AFTER"):
        line = "(e => { const r = document.createRange(); r.selectNodeContents(e); return r.getClientRects().length === 1 })"
        assert page.get_by_text(cell, exact=True).evaluate(line), cell
    assert page.evaluate("document.documentElement.scrollWidth") == width
    causes = tuple(
        RankedCause(cause, 0.5, (), "see the log " * 9) for cause in ("oom-kill-global", "segfault")
    )
    path.write_text(html.render(tell(replace(verdict(), causes=causes), None, Redactor({}))))
    page, _ = opened(browser, path, viewport={"width": width, "height": 740})
    word = "(e => { const r = document.createRange(); r.setStart(e.firstChild, 0); r.setEnd(e.firstChild, 12); return r.getClientRects().length === 1 })"
    assert page.get_by_role("cell", name="segmentation fault").evaluate(word), "`segmentatio n fault`"
    page, _ = opened(browser, page_of(state, seconds=61), viewport={"width": width, "height": 740})
    edges = "[...document.querySelectorAll('.axis span')].map(e => e.getBoundingClientRect().right)"
    inside = page.evaluate("document.querySelector('.axis .area').getBoundingClientRect().right")
    assert max(page.evaluate(edges)) <= inside + 1


def test_a_printed_page_is_filled(state: Path, browser: Any) -> None:
    """The chart and its events were kept together: half of the first sheet stayed empty."""
    page, _ = opened(browser, page_of(state))
    page.emulate_media(media="print")
    kept = "[...document.querySelectorAll('*')].filter(e => getComputedStyle(e).breakInside === 'avoid').map(e => e.offsetHeight)"
    assert max(page.evaluate(kept)) < 400, "nothing that is kept together is as high as half a sheet"
    assert page.evaluate("getComputedStyle(document.querySelector('.plot')).breakInside") == "avoid"


def test_prints(state: Path, browser: Any) -> None:
    page, _ = opened(browser, page_of(state), color_scheme="dark")
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.locator(".controls").is_hidden()
    assert len(page.pdf(format="A4", print_background=True)) > 10_000


def test_nothing_of_the_job_runs(state: Path, browser: Any) -> None:
    """Names, events, evidence, commands: each may be hostile. Escaped, and the page's policy is a second lock."""
    attack = HOSTILE + "</script></title></style>\"'><svg onload=window.hacked=3>"
    make_run(state, "20260920-100000-old", seconds=60, created=WALL, argv=["python", "--x=" + attack])
    path = page_of(
        state, seconds=900, texts=attack, name=attack, argv=["python", "--x=" + attack[::-1] + attack]
    )
    page, trouble = opened(browser, path)
    page.click("[data-show=all]")
    page.hover(".plot.host .area")
    assert page.evaluate("window.hacked") is None and trouble == []
    assert page.evaluate("document.querySelectorAll('img').length") == 0
    assert page.evaluate("document.scripts.length") == 2
    assert "<script>window.hacked=1</script>" in page.inner_text(".headline")
    assert "unsafe-inline'; script" in path.read_text() and "script-src 'sha256-" in path.read_text()


def test_the_axis_over_a_change_of_the_clock(
    state: Path, browser: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At 16:46:40, half an hour before the end, the clock was set back by an hour; the page is looked at elsewhere."""
    monkeypatch.setenv("TZ", "CET-1CEST,M3.5.0,J265/16:46:40")
    time.tzset()
    try:
        path = page_of(state)
    finally:
        monkeypatch.undo()
        time.tzset()
    page, trouble = opened(browser, path, timezone_id="Asia/Kolkata")
    assert page.locator(".axis .zone").count() == 0, "the last ten minutes have one zone"
    page.click("[data-show=all]")
    labels = page.locator(".axis span").all_inner_texts()
    assert labels == ["16:20\nUTC+02:00", "16:30", "16:40", "15:50\nUTC+01:00", "16:00", "16:10"]
    boxes = page.evaluate(
        "[...document.querySelectorAll('.axis span')].map(s => s.getBoundingClientRect()).map(b => [b.left, b.right])"
    )
    assert all(a[1] < b[0] for a, b in pairwise(boxes)) and trouble == []
    assert "Times are UTC+02:00, from 2026-09-22 15:46:40 on UTC+01:00." in page.inner_text("body")
    page.hover(".plot.host .area")
    assert re.match(r"\d\d:\d\d:\d\d UTC\+0[12]:00 ", page.inner_text(".readout"))


def test_a_clock_that_was_set_back_during_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Summer time ended at 01:00 UTC: an event of half an hour before has the clock of then."""
    monkeypatch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
    time.tzset()
    try:
        end = 1_792_891_800.0  # 2026-10-25 01:30 UTC, 02:30 CET
        timeline = Timeline(begin=-7200.0, end_wall=end)
        marks = [Mark(-3600.0, "warn", "before"), Mark(-60.0, "warn", "after")]
        shown = html_chart._event_list(marks, timeline)
    finally:
        monkeypatch.undo()
        time.tzset()
    assert re.findall(r"<time>(.*?)</time>", shown) == ["02:30:00 UTC+02:00", "02:29:00 UTC+01:00"]

"""One run, one set of figures: whatever a recording holds, every reader says the same about the same thing."""

from __future__ import annotations

import json
import os
import re
import signal
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from helpers_case import changed
from helpers_page import Page
from helpers_report import make_run
from hypothesis import example, given, settings
from hypothesis import strategies as st

from oomproof.cli.main import main
from oomproof.evidence.case_file import CaseFile
from oomproof.ledger import peak_history
from oomproof.ledger.ledger_entries import Peak
from oomproof.ledger.ledger_store import open_ledger
from oomproof.machine import kernel_log, processes
from oomproof.machine.host_identity import host_name, machine_id
from oomproof.recording.run_folders import Run
from oomproof.recording.writer import Writer
from oomproof.settings import ledger_setting
from oomproof.units import format_duration, format_exact, format_rate, format_size

MIB = 1 << 20
START, WALL = 1000.0, 1_790_000_000.0
LEADER = 4_100_000  # beyond any pid of this machine
_numbers = count()


@dataclass(frozen=True)
class Recipe:
    """What a run did, in MiB and seconds."""

    levels: tuple[int, ...]  # what it held at each sample; the last is no fall
    pace: float = 1.0
    looks: tuple[int, ...] = ()  # after these samples, not the last ones, the guard saw twice as much
    teardown: tuple[float, ...] = ()  # shares of the last level that samples saw while it died
    cache: int = 0
    charged: int | None = None  # the cgroup's own peak
    file_io: int | None = None  # what all of it read and wrote
    largest: int | None = None  # the largest process's, where there is no cgroup
    workers: int = 0
    phases: tuple[tuple[str, int], ...] = ()  # at each sample, with the steps until then
    step: int | None = None  # in the job's own record, of the last phase
    code: int | None = 0
    signal: int | None = None
    by_guard: bool = False
    limit: int | None = None

    @property
    def held(self) -> int:
        """At the end: before its teardown."""
        return self.levels[-1] * MIB

    @property
    def peak(self) -> int:
        seen = max([*self.levels, *(2 * self.levels[at] for at in self.looks)]) * MIB
        if self.charged is not None:
            # no process is on record that bears it out: page cache may have been more than was seen, as far as it did file io
            gone = self.cache if self.file_io is None else min(self.cache, self.file_io)
            unseen = (self.charged - self.cache - gone) * MIB
            doubt = max(4 * MIB, self.charged * MIB // 50 + self.cache * MIB // 8)
        elif self.largest is not None:
            unseen, doubt = self.largest * MIB, max(32 * MIB, self.largest * MIB // 50)
        else:
            return seen
        return max(seen, unseen) if unseen > seen + doubt else seen


@st.composite
def recipes(draw: st.DrawFn) -> Recipe:
    levels = draw(st.lists(st.integers(4, 6000), min_size=1, max_size=8))
    pace = draw(st.sampled_from([0.1, 1.0]))
    last = (
        len(levels) if pace < 1 else 5
    )  # in the last 3 s a fall by half is a job's end, when a launcher outlives it
    for at in range(max(1, len(levels) - last), len(levels)):
        levels[at] = max(levels[at - 1 : at + 1])
    names = st.sampled_from(["load", "train", "eval", "save"])
    steps = sorted(draw(st.lists(st.integers(0, 500), min_size=len(levels), max_size=len(levels))))
    phases = tuple((draw(names), step) for step in steps) if draw(st.booleans()) else ()
    by_guard = draw(st.booleans())
    signal_number = (
        signal.SIGTERM if by_guard else draw(st.sampled_from([None, signal.SIGKILL, signal.SIGTERM]))
    )
    return Recipe(
        levels=tuple(levels),
        pace=pace,
        looks=tuple(at for at in draw(st.sets(st.integers(0, 5), max_size=2)) if at < len(levels) - 2),
        teardown=tuple(draw(st.sampled_from([(), (0.0,), (0.5,), (0.6, 0.1), (0.5, 0.0, 0.0)]))),
        cache=draw(st.sampled_from([0, 3, 700])),
        charged=draw(st.none() | st.integers(4, 20_000)),
        file_io=draw(st.none() | st.integers(0, 2000)),
        largest=draw(st.none() | st.integers(4, 20_000)),
        workers=draw(st.integers(0, 3)),
        phases=phases,
        step=draw(st.none() | st.integers(500, 600)) if phases else None,
        code=None if signal_number else draw(st.sampled_from([0, 1])),
        signal=signal_number,
        by_guard=by_guard,
        limit=draw(st.none() | st.integers(100, 9000)),
    )


def written(recipe: Recipe, home: Path) -> Run:
    """The folder as front and keeper leave it, in a history of its own; the recording by the real writer."""
    run_id = f"20260921-{next(_numbers):06}-fig"
    os.environ["XDG_STATE_HOME"] = str(home / run_id)  # put back by the fixture
    folder = home / run_id / "oomproof" / "runs" / run_id
    attempt = folder / "1"
    (attempt / "agent").mkdir(parents=True)
    end = START + recipe.pace * (len(recipe.levels) + len(recipe.teardown))
    writer = Writer(attempt / "recording.sqlite", {"boot_id": processes.boot_id(), "wall_offset": repr(WALL)})
    falls = [int(share * recipe.levels[-1] * MIB) for share in recipe.teardown]
    for at, use in enumerate([*(level * MIB for level in recipe.levels), *falls]):
        t = START + recipe.pace * at
        if at < len(recipe.phases):
            writer.put("phase", (t, recipe.phases[at][0], recipe.phases[at][1], LEADER, None, None))
        sample(writer, recipe, t, use)
        if at in recipe.looks:
            writer.put("look", (t + recipe.pace / 2, "guard"))
            sample(writer, recipe, t + recipe.pace / 2, 2 * use)
    writer.close()
    if recipe.step is not None:
        record = f"1 {end:.3f} {recipe.step} -1 {recipe.phases[-1][0]}"
        (attempt / "agent" / f"{LEADER}-now.txt").write_text(record + "\n")
    counters = {"memcg_peak": None, "largest_rss": None, "memcg_oom_kill": 0, "vmstat_oom_kill": 0}
    if recipe.charged is not None:
        counters |= {"memcg_peak": recipe.charged * MIB, "memcg_active_file": recipe.cache * MIB}
        counters["file_io"] = None if recipe.file_io is None else recipe.file_io * MIB
    elif recipe.largest is not None:
        counters["largest_rss"] = recipe.largest * MIB
    limit = recipe.limit * MIB if recipe.limit else None
    files: dict[str, dict[str, Any]] = {
        "run.json": {
            "schema": 1, "id": run_id, "name": None, "argv": ["python", "train.py"], "cwd": "/", "env": {},
            "created": WALL + START, "boot_id": processes.boot_id(), "host": host_name(), "machine": machine_id(),
            "settings": {"limit": limit, "agent": True}, "claim": {"key": run_id},
        },
        "1/started.json": {
            "boot_id": processes.boot_id(), "boottime": START, "wall": WALL + START, "job": {"pid": LEADER, "start": 1},
            "keeper": {"pid": LEADER + 1, "start": 1}, "backend": {"name": "cgroup v2", "limit": limit},
            "counters": dict.fromkeys(counters, 0),
        },
        "1/exit.json": {
            "boottime": end, "wall": WALL + end + 7.0, "code": recipe.code, "signal": recipe.signal, "core": False,
            "leftovers": [], "counters": counters,
        },
    }  # fmt: skip
    for name, value in files.items():
        (folder / name).write_text(json.dumps(value))
    (attempt / "output.log").write_text("working\n")
    if recipe.by_guard:
        at = end - recipe.pace
        action = {"boottime": at, "wall": WALL + at, "by": "guard", "action": "term", "why": "full"}
        (attempt / "actions.jsonl").write_text(json.dumps(action) + "\n")
    return Run(folder)


def sample(writer: Writer, recipe: Recipe, t: float, use: int) -> None:
    writer.put("host", (t, 64 << 30, 32 << 30, None, 0, 0, 0, 0))
    writer.put("job", (t, use, 0, recipe.cache * MIB, 0, 0, None, 1 + recipe.workers, None, None))
    share = use // (recipe.workers + 1)  # all of it was there before they were forked
    for number in range(recipe.workers + 1):
        role = "worker" if number else "main"
        writer.put("process", (t, LEADER + number, 1, role, "python", use, 0, 0, 0, share))


def said(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main([*words]) == 0
    return capsys.readouterr().out


def evidence(verdict: dict[str, Any], name: str) -> str:
    return next((item["text"] for item in verdict["evidence"] if item["id"] == name), "")


@pytest.fixture
def no_kernel_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")  # a table that is cut to the screen shows half of a pid
    monkeypatch.setattr(
        kernel_log, "read", lambda *_, **__: kernel_log.KernelLog("kernel log", reason="closed here")
    )


@settings(max_examples=25)
@given(recipe=recipes())
# 480 MiB within 1.7 s, of which one sample saw 4; a burst of 900 beside 7; an evaluation's 870 beside 435
@example(recipe=Recipe(levels=(4,), charged=481, code=None, signal=9))
@example(recipe=Recipe(levels=(7, 7, 7), charged=908))
@example(recipe=Recipe(levels=(7, 7, 7), cache=100, charged=908, file_io=1))
@example(recipe=Recipe(levels=(7, 7, 7), largest=908))
@example(
    recipe=Recipe(
        levels=(435, 435, 435), looks=(0,), phases=(("eval", 1), ("train", 333), ("eval", 350)), step=350
    )
)
# a job of 1.2 GiB, whose last sample was taken while it died
@example(recipe=Recipe(levels=(900, 1200), teardown=(0.005,), code=None, signal=9, workers=3))
@example(recipe=Recipe(levels=(480,), teardown=(0.0,), code=None, signal=15, by_guard=True, limit=500))
def test_every_reader_says_the_same(
    recipe: Recipe, folders_of_their_own: Path, no_kernel_log: None, capsys: pytest.CaptureFixture[str]
) -> None:
    run = written(recipe, folders_of_their_own)
    unjudged = json.loads(said(capsys, "runs", "--json", "show", run.id))
    verdict = json.loads(said(capsys, "why", "--json", run.id))
    shown = json.loads(said(capsys, "runs", "--json", "show", run.id))
    row = next(row for row in json.loads(said(capsys, "runs", "--json"))["runs"] if row["id"] == run.id)
    patterns = json.loads(said(capsys, "why", "--all", "--json", run.id))
    pages = {name: run.folder / f"page.{name}" for name in ("md", "html")}
    said(capsys, "why", "--md", str(pages["md"]), "--html", str(pages["html"]), run.id)
    texts = {name: path.read_text() for name, path in pages.items()}
    texts |= {"why": said(capsys, "why", run.id), "show": said(capsys, "runs", "show", run.id)}
    texts["runs"] = said(capsys, "runs", "--all").splitlines()[1]

    # the peak
    peak = format_size(recipe.peak)
    assert {value["peak_bytes"] for value in (row, shown["run"], unjudged["run"])} == {recipe.peak}
    assert evidence(verdict, "sample.peak") == f"the job held at most {peak}"
    assert {shown["run"]["peak_source"], unjudged["run"]["peak_source"]} == {row["peak_source"]}
    for name, text in texts.items():
        assert peak in text, name
    for name, pattern in (("md", r"\| peak \| ([\d.]+ \w+)"), ("show", r"\n +peak  ([\d.]+ \w+)")):
        assert re.findall(pattern, texts[name]) == [peak], name
    kept = open_ledger(ledger_setting()).peaks(run.id)
    counted = recipe.charged is not None or recipe.largest is not None
    if row["seconds"] >= 2.0 or (counted and recipe.peak >= 64 * MIB):
        assert [remembered.use for remembered in kept] == [recipe.peak]

    # what it held last: no teardown
    held = format_size(recipe.held)
    assert evidence(verdict, "sample.job").startswith(f"the job held {held} in ")
    for name in ("md", "html"):
        told = re.findall(r"The job as a whole held ([\d.]+ \w+)", texts[name])
        assert told == [held] or (name == "html" and not told)  # a page leaves out what is not about memory
    deaths = patterns["deaths"]
    assert {death["held_bytes"] for death in deaths} <= {recipe.held}
    machine = json.loads(said(capsys, "why", "--system", "--since", "2020-01-01", "--json"))["kills"]
    told = [kill["held_bytes"] for kill in machine if kill["run"] == run.id]
    assert told == ([recipe.held] if recipe.by_guard else [])
    if recipe.by_guard:
        table = said(capsys, "why", "--system", "--since", "2020-01-01")
        assert re.findall(rf"\({LEADER}\) +([\d.]+ \w+)  ", table) == [held]
    phases = shown["phases"]
    if phases:
        last = next(phase for phase in phases if phase["phase"] == recipe.phases[-1][0])
        if (
            last["entered"] == 1
        ):  # of one that was entered often, exit is that of the span with the highest peak
            assert recipe.held in (last["exit_bytes"], last["peak_bytes"])
        assert min(phase["floor_bytes"] for phase in phases) >= min(recipe.levels) * MIB
        assert max(phase["peak_bytes"] for phase in phases) <= recipe.peak

    # the shares of the processes are the job's
    table = re.findall(r"\| python \| \w+ \| \d+ \| ([\d.]+ \w+) \|", texts["md"])
    assert table == [format_size(recipe.held // (recipe.workers + 1))] * (recipe.workers + 1)

    # the last step, how long, the limit, the exit
    steps = [
        step for step in (recipe.step, recipe.phases[-1][1] if recipe.phases else None) if step is not None
    ]
    step = steps[0] if steps else None
    assert verdict["verdict"]["step"] == step and {death["step"] for death in deaths} <= {step}
    if phases:
        assert max(phase["last_step"] for phase in phases) == step
        last = next(phase for phase in phases if phase["phase"] == recipe.phases[-1][0])
        assert last["last_step"] == step
    seconds = recipe.pace * (len(recipe.levels) + len(recipe.teardown))
    assert {round(death["uptime"], 6) for death in deaths} <= {round(seconds, 6)}
    assert round(row["seconds"], 6) == round(seconds, 6)
    for name in ("runs", "show", "md", "html"):
        assert format_duration(row["seconds"]) in texts[name], name
    if recipe.limit:
        limit = format_size(recipe.limit * MIB)
        assert f"limit  {limit}, " in texts["show"] and f"| limit | {limit} |" in texts["md"]
    assert {(value["code"], value["signal"]) for value in (row, shown["run"], shown["exit"])} == {
        (recipe.code, recipe.signal)
    }

    page_says_the_same(Page(texts["html"]), recipe, verdict, shown, texts["md"])

    # a sentence and its probability
    judged = verdict["verdict"]
    assert judged["certainty"] == "proven" or judged["probability"] < 1.0 or judged["cause"] == "other-error"
    assert abs(sum(cause["probability"] for cause in verdict["causes"]) - 1.0) < 1e-6


def page_says_the_same(
    page: Page, recipe: Recipe, judged: dict[str, Any], shown: dict[str, Any], markdown: str
) -> None:
    """Every figure of the page that another reader has too: the JSON of `why` and of `runs show`, and the Markdown."""
    verdict, run = judged["verdict"], shown["run"]
    lasted, peak = format_duration(run["seconds"]), format_size(recipe.peak)

    # the head: the verdict's lines, and the run's facts
    facts = page.pairs
    assert (facts.pop("why"), facts.pop("next")) == (verdict["why"], verdict["next"])
    assert page.probability == f"{verdict['probability']:.0%}"
    assert page.badge in ("", verdict["certainty"])
    table = dict(re.findall(r"^\| ([\w ]+) \| ([^|]*) \|$", markdown, re.M))
    assert facts == {name: table[name].strip("`") for name in facts}
    assert facts["run"] == run["id"] and facts["lasted"] == lasted
    assert facts["peak"].startswith(f"{peak} (") and facts["command"] == run["command"]
    assert facts["least left on the machine"] == format_size(run["lowest_available_bytes"])
    assert facts.get("limit") == (format_size(recipe.limit * MIB) if recipe.limit else None)
    step = f", step {verdict['step']}" if verdict["step"] is not None else ""
    assert facts.get("phase", "unknown") == verdict["phase"] + (step if "phase" in facts else "")
    assert page.title.startswith(page.sentence) and f" {lasted}" in page.sentence
    known = [peak, lasted, facts.get("limit", ""), verdict["headline"]]
    if (growth := judged["growth"]) is not None:
        known.append(f"{format_size(growth['bytes_per_second'])}/s")
    sizes = re.findall(r"[\d.]+ [KMGT]?i?B\b", page.sentence)
    assert all(any(size in text for text in known) for size in sizes), page.sentence

    # the evidence, and what could not be read
    proof = "\n".join(page.items("What decides it"))
    for item in judged["evidence"]:
        assert item["text"].strip() in proof and item["says"] in proof, item
    assert page.items("Could not be read") == [
        f"{gap['source']}: {gap['reason']}" + (f"{gap['how_to_grant']}Copy" if gap["how_to_grant"] else "")
        for gap in judged["missing"]
    ]

    # what to do
    remedies = page.items("What to do")
    for text, remedy in zip(remedies, judged["remedies"], strict=False):
        saves = remedy["saves_bytes"]
        assert text.lower().startswith(remedy["title"].lower())
        assert f"\n{remedy['basis']}" + (f", saves {format_size(saves)}" if saves is not None else "") in text
        assert remedy["command"] is None or f"{remedy['command']}Copy" in text
    assert len(remedies) >= len(judged["remedies"])
    held = [
        size for text in remedies for size in re.findall(r"([\d.]+ \w+) it held|it held ([\d.]+ \w+)", text)
    ]
    assert {size for sizes in held for size in sizes if size} <= {peak}

    # the causes
    causes = [cause for cause in judged["causes"] if cause["probability"] >= 0.01]
    rows = [(probability, test) for probability, _, test in page.rows("Causes considered")]
    expected = [(f"{cause['probability']:.0%}", cause["test"]) for cause in causes]
    assert rows == (expected if len(causes) > 1 else [])

    # who died, who held it, and the phases
    victim, died = judged["verdict"]["victim"], dict(page.rows("The process that died"))
    assert bool(died) is bool(victim)
    if victim:
        assert str(victim["pid"]) in died["process"]
        for name, key in (("its own memory", "anon"), ("shared memory", "shmem"), ("files mapped", "file")):
            size = victim[f"{key}_rss_bytes"]
            assert died.get(name) == (format_size(size) if size is not None else None)
    holders = page.rows("Who held the memory at the end")
    share = format_size(recipe.held // (recipe.workers + 1))
    assert [row[:4] for row in holders] in (
        [],  # not about memory
        [
            ["python", "worker" if number else "main", str(LEADER + number), share]
            for number in range(recipe.workers + 1)
        ],
    )
    assert page.rows("Phases") == [
        [
            phase["phase"], str(phase["entered"]), format_duration(phase["seconds"]),
            *(format_size(phase[f"{what}_bytes"]) if phase[f"{what}_bytes"] is not None else "–"
              for what in ("entry", "peak", "exit", "floor")),
            str(phase["last_step"]) if phase["last_step"] is not None else "–",
        ]
        for phase in shown["phases"]
    ]  # fmt: skip

    # the chart: what is under the pointer, and how long it is
    if not page.chart:
        return
    held_there = [sum(layers[:-1]) for _, *layers in page.samples["host"]]  # without the page cache
    assert max(held_there) <= recipe.peak and held_there[-1] == recipe.held
    assert {name for _, name, _ in page.samples["phases"]} == {phase["phase"] for phase in shown["phases"]}
    assert re.findall(r"The whole run, ([\d.]+ \w+)<", page.chart) in ([], [lasted])
    assert re.findall(r">limit ([\d.]+ \w+)<", page.chart) in ([], [facts.get("limit")])


def test_the_need_of_the_next_run_is_what_no_sample_saw(
    folders_of_their_own: Path, no_kernel_log: None, capsys: pytest.CaptureFixture[str]
) -> None:
    """A burst of 900 MiB was on record as 7 MiB: such a command never waited."""
    run = written(Recipe(levels=(7, 7, 7), charged=908), folders_of_their_own)
    found: list[Peak] = peak_history.peaks_of(open_ledger(ledger_setting()), run.id)
    assert [peak.use for peak in found] == [908 * MIB]


def test_advice_is_for_what_it_held(
    folders_of_their_own: Path, no_kernel_log: None, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a job that filled 480 of 500 MiB the advice was `check --need 64M`, and all deaths were at 4 MiB."""
    recipe = Recipe(levels=(4,), charged=481, code=None, signal=15, by_guard=True, limit=500)
    run = written(recipe, folders_of_their_own)
    info = json.loads((run.folder / "run.json").read_text())
    (run.folder / "run.json").write_text(json.dumps(info | {"flags": {"limit": "500M"}}))
    actions = run.folder / "1/actions.jsonl"
    actions.write_text(json.dumps(json.loads(actions.read_text()) | {"scope": "limit"}) + "\n")
    page = run.folder / "page.md"
    said(capsys, "why", "--md", str(page), run.id)
    assert "check --need 512M" in page.read_text() and "--need 64M" not in page.read_text()
    limits = set(re.findall(r"oomproof run .*--limit (\w+)", page.read_text()))
    assert limits == {"4000M"}, "no command has the limit it died at"


@st.composite
def grown(draw: st.DrawFn) -> Recipe:
    """Two minutes that end at the limit, with steps or without."""
    rate, begin = draw(st.integers(4, 40)), draw(st.integers(50, 2000))
    levels = tuple(begin + rate * second for second in range(120))
    phases = tuple(("train", 1 + second // 2) for second in range(120)) if draw(st.booleans()) else ()
    return Recipe(
        levels=levels, phases=phases, code=None, signal=signal.SIGTERM, by_guard=True, limit=levels[-1] + 10
    )


@settings(max_examples=6)
@given(recipe=grown())
@example(recipe=Recipe(tuple(range(100, 580, 4)), code=None, signal=15, by_guard=True, limit=600))
def test_growth_is_one_figure_too(
    recipe: Recipe, folders_of_their_own: Path, no_kernel_log: None, capsys: pytest.CaptureFixture[str]
) -> None:
    """`trend`, the verdict, the pages and `runs show` have one estimate, and the figures they print are the same."""
    run = written(recipe, folders_of_their_own)
    trend = json.loads(said(capsys, "trend", run.id, "--json"))
    text = said(capsys, "trend", run.id)
    judged = json.loads(said(capsys, "why", "--json", run.id))
    verdict, growth = judged["verdict"], judged["growth"]
    pages = {name: run.folder / f"page.{name}" for name in ("md", "html")}
    said(capsys, "why", "--md", str(pages["md"]), "--html", str(pages["html"]), run.id)
    assert trend["kind"] == growth["kind"] == "growing"
    assert (
        growth["bytes_per_second"]
        == trend["bytes_per_second"]
        == pytest.approx((recipe.levels[1] - recipe.levels[0]) * MIB, rel=0.05)
    )
    assert growth["bytes_per_step"] == trend["bytes_per_step"] and bool(trend["bytes_per_step"]) == bool(
        recipe.phases
    )
    assert (
        growth["to_bytes"] == trend["held_bytes"]
        and growth["to_bytes"] - growth["from_bytes"] == trend["grown_bytes"]
    )
    rate = format_rate(trend["bytes_per_second"])
    told = f"{format_exact(trend['bytes_per_step'])} a step" if recipe.phases else rate
    assert f"+{rate}" in text and f"+{told}" in text
    assert f"it grew {told} for " in verdict["why"]
    assert f"growing, +{rate}" in " ".join(said(capsys, "runs", "show", run.id).split())
    assert f"grew by {rate}</span>" in pages["html"].read_text()
    assert f"grew {told} for " in pages["md"].read_text()


def test_a_run_that_waited_began_when_its_job_did_and_events_are_told_in_words(
    folders_of_their_own: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(
        folders_of_their_own / "state", seconds=600, gpu=False, phases=False
    )  # it waited for 50 minutes
    page = tmp_path / "page.md"
    assert main(["runs", "show", run.id]) == main(["why", "--md", str(page), run.id]) == 0
    shown = re.search(r"started  (.*)", capsys.readouterr().out)
    assert shown is not None and f"| started | {shown[1]} |" in page.read_text()
    assert main(["runs"]) == main(["runs", "show", run.id]) == 0
    table, _, screen = capsys.readouterr().out.partition("next: ")
    assert shown[1].split()[1] in table or shown[1].split()[1][:5] in table
    for words in ("warned: grows by", "asked to stop: asked to save", "sent SIGKILL: no answer"):
        assert words in screen and words in page.read_text(), words


@pytest.mark.parametrize(("name", "typed"), [("big", "big"), ("my run", "RUN"), ("$(date)", "RUN")])
def test_a_command_names_a_run_by_what_a_shell_takes_for_one_word(name: str, typed: str) -> None:
    assert changed(CaseFile(), name=name, run="RUN").called == typed

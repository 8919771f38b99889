"""What the crash page says and quotes: its sentence, the user's code, the log, what was seen before; and what it never quotes."""

from __future__ import annotations

import json
import os
import re
import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from helpers_report import END, GIB, MIB, WALL, make_run, verdict

from oomproof.diagnosis.verdict import Culprit, Gpu, RankedCause, Verdict
from oomproof.evidence.case_file import Evidence, Growth
from oomproof.recording.run_folders import Run
from oomproof.reports import html, html_parts, markdown_parts
from oomproof.reports.document import Items, Labels, Paragraph, Table, section, terminal
from oomproof.reports.html_parts import prose
from oomproof.reports.redaction import Redactor
from oomproof.reports.story import sentence, tell

SECRET = "hf_" + "Ab1" * 12


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path


def page(found: Verdict, run: Run | None, **quoted: object) -> str:
    return html.render(tell(found, run, Redactor({}), **quoted))  # type: ignore[arg-type]


def told(found: Verdict, run: Run | None = None) -> str:
    return sentence(tell(found, run, Redactor({})))


def test_the_sentence_has_its_figures(state: Path) -> None:
    run = make_run(state, seconds=900, settings={"limit": 32 * GIB})
    found = verdict(run.id)
    assert told(found, run) == "Killed at 30.3 of 32.0 GiB after 15 min"
    stopped = replace(found, cause="stopped-by-guard", headline="stopped by oomproof's guard")
    assert told(stopped, run) == "Stopped at 30.3 of 32.0 GiB after 15 min"
    crashed = replace(found, cause="segfault", headline="crashed: segmentation fault at a.py:3")
    assert told(crashed, run) == "Crashed: segmentation fault at a.py:3; it had run for 15 min"
    assert (
        told(replace(found, cause="finished", headline="finished"), run)
        == "Finished after 15 min; held at most 30.3 GiB"
    )
    full = replace(found, cause="cuda-oom", gpu=Gpu(0, 24 * GIB, 412 * MIB, 2 * GIB, None, None))
    assert (
        told(full, run) == "Out of GPU memory after 15 min: asked for 2.0 GiB with 412 MiB of 24.0 GiB free"
    )
    assert told(replace(found, headline="no crash found here")) == "No crash found here"


def test_the_sentence_says_what_the_verdict_says_of_growth(state: Path) -> None:
    run = make_run(state, seconds=900, settings={"limit": 32 * GIB})
    grew = Growth("growing", "eval", 6.0 * MIB, 12.0 * MIB, 48, 96.0, 300 * MIB, 876 * MIB)
    text = told(replace(verdict(run.id), growth=grew), run)
    assert text.endswith(
        "; grew 12.0 MiB a step for 48 steps without levelling off, nearly all in eval, probably a leak"
    )
    other = Culprit(812, "python load.py", None, 3 * GIB, 0, 2 * GIB, 20.0, 102.0 * MIB)
    text = told(replace(verdict(run.id), culprit=other), run)
    assert text.endswith("; python load.py (pid 812) beside it grew by 102 MiB/s") and "leak" not in text


def test_the_page_claims_no_growth_that_the_verdict_has_not(state: Path) -> None:
    """The samples rise to the end, as those of a job do that was still loading."""
    run = make_run(state, seconds=900)
    text = page(verdict(run.id), run)
    assert "leak" not in re.findall(r"<h1>(.*?)</h1>", text)[0] and 'line class="growth"' not in text
    grew = Growth("growing", "", 20.0 * MIB, None, None, 400.0, 22 * GIB, 30 * GIB)
    text = page(replace(verdict(run.id), growth=grew), run)
    assert 'line class="growth"' in text and "grew by 20 MiB/s</span>" in text


def texts_in(value: object) -> Iterator[str]:
    """Every text of a story; the run itself is only asked for its name and its files."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for element in (*value.keys(), *value.values()):
            yield from texts_in(element)
    elif isinstance(value, list | tuple):
        for element in value:
            yield from texts_in(element)
    elif hasattr(value, "__dataclass_fields__"):
        for name in value.__dataclass_fields__:
            yield from texts_in(getattr(value, name))


def test_no_text_of_a_story_holds_a_secret(state: Path) -> None:
    value = "s3cr3t-of-the-team"
    hidden = f" api_key={value}"
    run = make_run(state, seconds=60, texts=hidden)
    with sqlite3.connect(run.attempt / "recording.sqlite") as db:
        db.execute("INSERT INTO meta VALUES('trouble', ?)", (hidden,))
        db.execute("INSERT INTO other_job VALUES(?,31,5,0,?,0,?,0)", (END - 1, "load.py" + hidden, 100 * MIB))
    account = {
        "device": 0, "total": 24 * GIB, "free": 0, "allocated": GIB, "reserved": GIB, "phase": hidden, "torch": hidden,
        "lines": [{"line": "train.py:3" + hidden, "bytes": MIB, "count": 1}], "stack": ["train.py:3" + hidden],
        "owners": [{"owner": "model" + hidden, "kind": "parameter", "bytes": MIB, "count": 1, "example": hidden}],
        "neighbours": [{"pid": 7, "used": MIB, "name": "python" + hidden}],
    }  # fmt: skip
    run.attempt.agent_folder.mkdir(exist_ok=True)
    (run.attempt.agent_folder / "4067-cuda-oom-1.json").write_text(json.dumps(account))
    outage = (section(Items(("it" + hidden,)), title="of it" + hidden),)
    story = tell(replace(verdict(run.id, hidden), cause="cuda-oom"), run, Redactor({}), outage=outage)
    assert story.timeline.phase_rows and story.timeline.problem and story.timeline.unmanaged
    assert story.gpu_oom is not None and story.gpu_oom.lines and story.gpu_oom.neighbours
    texts = list(texts_in(story))
    assert sum("•••" in text for text in texts) > 20
    assert [text for text in texts if value in text] == []


def crash(run: Run, *frames: tuple[str, int]) -> None:
    run.attempt.agent_folder.mkdir(exist_ok=True)
    lines = [
        "Fatal Python error: Segmentation fault",
        "",
        "Current thread 0x00007f0000000000 (most recent call first):",
    ]
    lines += [f'  File "{file}", line {line} in work' for file, line in frames]
    (run.attempt.agent_folder / "4067-fault.txt").write_text("\n".join(lines) + "\n")


def test_the_stack_has_three_lines_around_the_users_own(state: Path) -> None:
    run = make_run(state, seconds=60)
    source = state / "train.py"
    source.write_text(
        "\n".join(f"line_{number} = {number}" for number in range(1, 30)) + f"\ntoken = '{SECRET}'\n"
    )
    library = state / "site-packages" / "lib.py"
    library.parent.mkdir()
    library.write_text("secret_of_a_library = 1\n")
    crash(run, (str(library), 1), (str(source), 10), (str(source), 29))
    text = page(verdict(run.id), run)
    shown = re.findall(r'class="line[^"]*"><i>(\d+)</i>', text)
    assert shown == [str(number) for number in (*range(7, 14), *range(26, 32))]
    assert '<span class="line here"><i>10</i>line_10 = 10</span>' in text
    assert "secret_of_a_library" not in text and SECRET not in text and "•••" in text
    without = page(verdict(run.id), run, source=False)
    assert f"{source}:10" in without and "line_10" not in without


@pytest.mark.parametrize("name", ["id_rsa", "notes.txt", "fifo.py", "huge.py", "folder.py"])
def test_a_path_in_a_stack_opens_no_other_file(state: Path, name: str) -> None:
    """The job writes the stack: it may name anything this user can read."""
    run, path = make_run(state, seconds=60), state / name
    if name == "fifo.py":
        os.mkfifo(path)
    elif name == "folder.py":
        path.mkdir()
    else:
        path.write_text("stolen = 1\n" * (400_000 if name == "huge.py" else 1))
    crash(run, (str(path), 1))
    text = page(verdict(run.id), run)
    assert str(path) in text and "stolen" not in text


def test_the_last_traceback_is_the_stack(state: Path) -> None:
    run, source = make_run(state, seconds=60), state / "net.py"
    source.write_text("def forward(x):\n    return x.view(3)\n")
    log = f'step 1\nTraceback (most recent call last):\n  File "{source}", line 2, in forward\n    return x.view(3)\nAttributeError: view\n'
    run.attempt.output_file.write_text(log)
    text = page(verdict(run.id), run)
    assert f"{source}:2" in text and '<span class="line here"><i>2</i>' in text


def test_the_traceback_of_a_text_is_its_stack_and_no_file_is_opened(state: Path) -> None:
    source, path = state / "net.py", state / "train.log"
    source.write_text("secret = 1\nother = 2\n")
    path.write_text(
        "step 1\nTraceback (most recent call last):\n"
        f'  File "{source}", line 2, in forward\n    loss.backward(token="{SECRET}")\n    ^^^^^\n'
        '  File "/opt/venv/lib/python3.11/site-packages/torch/_tensor.py", line 581, in backward\n'
        "    torch.autograd.backward(\n"
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
    )
    text = page(verdict(), None, sources=[str(path)])
    assert "The last traceback in it; innermost first." in text and SECRET not in text
    assert '<span class="line here"><i>2</i>loss.backward(' in text and "other = 2" not in text
    stack = text.partition("The last traceback in it")[2].partition("</section>")[0]
    assert stack.index("_tensor.py:581") < stack.index("net.py:2")
    assert "torch.autograd.backward(" not in stack, "a library's code is not shown"
    without = page(verdict(), None, sources=[str(path)], log=False)
    assert "net.py:2" in without and "loss.backward(" not in without, "that line stands in the log too"


def test_without_the_log_no_fact_quotes_it(state: Path) -> None:
    run = make_run(state, seconds=60)
    last = Evidence("output.last", "output.log", None, "step 117 loss 2.31", "the last line the job printed")
    assert "loss 2.31" in page(replace(verdict(run.id), evidence=(last,)), run)
    assert "loss 2.31" not in page(replace(verdict(run.id), evidence=(last,)), run, log=False)


def test_what_to_look_at_first_can_be_copied() -> None:
    look = "journalctl -k --since '2026-01-02 03:04:05' | grep -i 'killed process'"
    silent = replace(verdict(), cause="silent-end", causes=(RankedCause("oom-kill-global", 0.6, (), look),))
    shown = page(silent, None).partition("What to do")[2].partition("</section>")[0]
    assert shown.index("journalctl") < shown.index("oomproof run") and shown.count("Copy</button>") >= 2
    words = replace(silent, causes=(RankedCause("interrupted", 0.6, (), "was its terminal closed"),))
    assert "journalctl" not in page(words, None) and "First see" not in page(words, None)


def test_the_log_is_folded_short_and_without_secrets(state: Path) -> None:
    run = make_run(state, seconds=60)
    bar = "\r".join(f"{done}%" for done in range(100))
    run.attempt.output_file.write_text(
        "".join(f"step {n}\n" for n in range(200)) + f"login --token {SECRET}\n{bar}\n"
    )
    text = page(verdict(run.id), run)
    log = re.findall(
        r'<details><summary>the last 50 lines</summary><pre class="log">(.*?)</pre>', text, re.DOTALL
    )[0]
    assert log.startswith("step 152\n") and log.endswith("\n99%") and SECRET not in text
    without = page(verdict(run.id), run, log=False)
    assert "What it printed last" not in without and "step 199" not in without


def test_the_log_of_a_text_is_in_its_page(state: Path) -> None:
    path = state / "train.log"
    path.write_text(f"step 1\nHF_TOKEN={SECRET}\nstep 2\n")
    text = page(verdict(), None, sources=[str(path)])
    assert "step 2" in text and SECRET not in text
    assert "step 2" not in page(verdict(), None, sources=[str(path)], log=False)


def test_three_facts_open_and_the_silent_ones_folded(state: Path) -> None:
    run = make_run(state, seconds=60)
    items = (
        Evidence("exit", "wait status", None, "ended by SIGKILL", "ended by a signal"),
        Evidence("counter.memcg_oom", "cgroup", None, "memcg_oom: 0 at start, 0 at death", "times"),
        Evidence(
            "counter.failcnt",
            "cgroup",
            None,
            "failcnt: 0 at start, 57 at death",
            "times its limit was reached",
        ),
        Evidence("action.1", "actions.jsonl", None, "guard: warn", "what oomproof did"),
        Evidence("action.2", "actions.jsonl", None, "guard: kill", "what oomproof did"),
        Evidence("kernel.kill.1", "kernel log", None, "Killed process 4067", "of this job"),
        Evidence(
            "kernel.other.1", "kernel log", None, "Killed process 99 (chrome)", "which is not of this job"
        ),
    )
    found = verdict(run.id)
    first = replace(found.causes[0], evidence=tuple(item.id for item in items[:-1]))
    text = page(replace(found, evidence=items, causes=(first, *found.causes[1:])), run)
    opened = text[text.index("What decides it") : text.index("<details>", text.index("What decides it"))]
    assert re.findall(r"<code>(.*?)</code>", opened) == [
        "Killed process 4067",
        "guard: kill",
        "ended by SIGKILL",
    ]
    assert (
        "<summary>2 more facts</summary>" in text and "<summary>checked, nothing found: 1</summary>" in text
    )
    assert "chrome" not in text, "somebody else's kill"


def test_beside_the_last_good_run_and_seen_before(state: Path) -> None:
    def ended(name: str, cause: str, wall: float, workers: str) -> Run:
        run = make_run(
            state,
            name,
            seconds=300,
            created=wall,
            name=None,
            argv=["python", "train.py", "--workers", workers],
        )
        (run.attempt / "verdict.json").write_text(json.dumps(replace(verdict(name), cause=cause).to_json()))
        return run

    good = ended("20260918-100000-aaa", "finished", WALL, "4")
    ended("20260919-100000-bbb", "oom-kill-memcg", WALL + 86400, "8")
    ended("20260920-100000-ccc", "oom-kill-memcg", WALL + 2 * 86400, "8")
    ended("20260920-110000-ddd", "segfault", WALL + 2 * 86400 + 3600, "8")
    run = make_run(state, seconds=900, created=WALL + END + 3 * 86400)
    text = page(verdict(run.id), run)
    assert "Beside the last good run" in text and good.id in text
    assert "<td class=k>workers</td><td class=k>4</td><td class=k>16</td>" in text
    assert "<dt>seen before</dt><dd>2 times, first " in text


def test_an_end_that_is_not_about_memory_has_a_small_chart(state: Path) -> None:
    run = make_run(state, seconds=60)
    crashed = replace(verdict(run.id), cause="segfault", headline="crashed")
    assert '<figure id="chart" class=small' in page(crashed, run)
    text = page(verdict(run.id), run)
    assert "class=small" not in text and "RAM of the machine, 32.0 GiB" in text and "Swap in use" in text


OUTAGE = (
    section(
        Labels(
            (
                ("verdict", "the machine went down; memory was nearly gone (likely)"),
                ("why", "the boot id changed"),
                ("next", "start it again: oomproof run -- python train.py"),
            ),
            commands=("oomproof run -- python train.py",),
        )
    ),
    section(
        Items(("it needed 4.0 GiB (as last time)", "short by 1.0 GiB")),
        title="Needed and available",
    ),
    section(
        Table(
            ("RUN", "STARTED", "HELD", "COMMAND"),
            (("nightly", "2026-09-22 14:48:20", "3.3 GiB", f"python train.py --token {SECRET}"),),
        ),
        title="Who was alive",
    ),
)


def test_one_document_on_the_terminal_as_markdown_and_as_a_page() -> None:
    assert terminal(OUTAGE[:2], 44).split("\n") == [
        "verdict  the machine went down; memory was",
        "         nearly gone (likely)",
        "why      the boot id changed",
        "next     start it again:",
        "         oomproof run -- python train.py",
        "",
        "Needed and available",
        "  it needed 4.0 GiB (as last time)",
        "  short by 1.0 GiB",
    ]
    text = markdown_parts.page(OUTAGE)
    assert text.startswith("# The machine went down; memory was nearly gone (likely)\n")
    assert "## Needed and available\n\n- it needed 4.0 GiB (as last time)\n- short by 1.0 GiB" in text
    assert "| RUN | STARTED | HELD | COMMAND |" in text and SECRET not in text
    assert "| nightly | 2026-09-22 14:48:20 | 3.3 GiB | python train.py --token" in text
    shown = html_parts.page(OUTAGE)
    assert "<h1>The machine went down; memory was nearly gone (likely)</h1>" in shown and SECRET not in shown
    assert "<dt>next</dt><dd>start it again: oomproof run -- python train.py</dd>" in shown
    assert (
        "<h2>Who was alive</h2>" in shown and "<th>HELD</th>" in shown and "<td class=k>3.3 GiB</td>" in shown
    )


MACHINE = (
    section(Paragraph("the machine went down under a run once (below); 1 kill for memory")),
    section(Table(("TIME", "VICTIM"), (("10:00:00", "python (7)"),))),
    section(
        Table(("PROGRAM", "PROCESSES", "RAM", "END"), (("python", "2", "100 MiB", "killed"),)),
        Labels((("asked", "python asked for 4 KiB more"),)),
        title="Who held what when python (7) was killed",
    ),
    section(Labels((("verdict", "the machine froze"), ("why", "memory ran out")))),
    section(Labels((("next", "oomproof why a"),))),
)


def test_another_storys_verdict_stands_in_its_place_and_a_label_is_no_row() -> None:
    shown = html_parts.page(MACHINE)
    head, _, rest = shown.partition("</header>")
    assert "<dt>next</dt><dd>oomproof why a</dd>" in head and "verdict</dt>" not in head
    assert '<section><dl class="lines"><dt>verdict</dt><dd>the machine froze</dd><dt>why</dt>' in rest
    assert '<dl class="lines"><dt>asked</dt><dd>python asked for 4 KiB more</dd></dl>' in rest
    assert "<th>END</th>" in rest and "<td class=k>killed</td>" in rest
    text = markdown_parts.page(MACHINE)
    assert "**verdict** the machine froze" in text and "- **asked** python asked for 4 KiB more" in text


def test_no_empty_box_below_the_headline_and_no_flag_is_broken() -> None:
    shown = html_parts.page(
        (
            section(Paragraph("2 deaths: segmentation fault")),
            section(Table(("DATE", "RUN"), (("now", "a --b"),))),
            section(Labels((("next", "oomproof why --all a-b"),))),
        )
    )
    assert prose("x --lr 1e-4") == 'x <span class="whole">--lr</span> <span class="whole">1e-4</span>'
    assert "<section class=long></section>" not in shown
    assert '<dd>oomproof why <span class="whole">--all</span> a-b</dd>' in shown
    assert "<td>a --b</td>" in shown, "only in sentences"


def test_a_size_of_the_headline_stays_on_its_line(state: Path) -> None:
    run = make_run(state, seconds=900, settings={"limit": 32 * GIB})
    whole = '<span class="whole">32.0 GiB</span> after <span class="whole">15 min</span>'
    assert f"<h1>Killed at 30.3 of {whole}</h1>" in page(verdict(run.id), run)


def test_how_to_prevent_it_fits_the_cause(state: Path) -> None:
    run = make_run(state, seconds=900, settings={"limit": 32 * GIB}, flags={"grace": "9"})
    leak = replace(verdict(run.id), growth=Growth("growing", "train", 1e6, 1e6, 90, 90.0, GIB, 30 * GIB))
    for shown, asked in ((page(verdict(run.id), run), True), (page(leak, run), False)):
        assert ("Ask before the start whether it fits" in shown) is asked, (
            "what grows without end fits nowhere"
        )
        assert shown.count("OOMPROOF_STOP_FILE") == 1
        commands = re.findall(r"<pre>(oomproof run .*?)</pre>", shown)
        assert len(commands) == len(set(commands)), "no command twice"
    run.attempt.agent_folder.mkdir(exist_ok=True)
    (run.attempt.agent_folder / "4067-listens.txt").write_text("1\nthe Hugging Face Trainer\n")
    assert "OOMPROOF_STOP_FILE" not in page(verdict(run.id), run), "it answers already"
    full = replace(verdict(), cause="cuda-oom", gpu=Gpu(0, 24 * GIB, 412 * MIB, 2 * GIB, None, None))
    text = page(full, None)
    assert (
        "what it holds on the card is recorded" in text
        and "--alert-gpu-above 21G" not in text.split("<pre>")[0]
    )
    assert "asked to save" not in text and "OOMPROOF_STOP_FILE" not in text, (
        "the guard acts on host memory only"
    )


def test_unmanaged_jobs_are_on_the_machines_chart(state: Path) -> None:
    run = make_run(state, seconds=300)
    assert "unmanaged" not in page(verdict(run.id), run)
    with sqlite3.connect(run.attempt / "recording.sqlite") as db:
        columns = "t REAL, pid INT, start INT, uid INT, name TEXT, managed INT, ram INT, swap INT"
        db.execute(f"CREATE TABLE IF NOT EXISTS other_job ({columns})")
        for second in range(0, 300, 10):
            row = (END - 300 + second, 77, 1, 1000, "python load.py", 0, (1 + second // 30) * GIB, 0)
            db.execute("INSERT INTO other_job VALUES (?,?,?,?,?,?,?,?)", row)
        # the same pid and name, another job
        db.execute("INSERT INTO other_job VALUES (?,77,9,1000,'python load.py',0,?,0)", (END - 2, 3 * GIB))
        db.execute("INSERT INTO other_job VALUES (?,9,1,0,'a run of ours',1,?,0)", (END - 5, 20 * GIB))
    text = page(verdict(run.id), run)
    assert "python load.py (pid 77), unmanaged, up to 10.0 GiB" in text and '<path class="u0"' in text
    assert "python load.py (pid 77), unmanaged, up to 3.0 GiB" in text
    assert "a run of ours" not in text


def test_what_leaves_the_machine_its_floor_is_no_limit_of_the_users(state: Path) -> None:
    for limit, shown in ((32 * GIB, "<dd>32.0 GiB</dd>"), (None, "<dd>none; capped at 30.0 GiB</dd>")):
        run = make_run(state, f"20260921-22150{bool(limit):d}-abc", seconds=60, settings={"limit": limit})
        (run.attempt / "started.json").write_text(
            json.dumps(run.attempt.started() | {"backend": {"name": "cgroup-v2", "limit": limit or 30 * GIB}})
        )
        text = page(verdict(run.id), Run(run.folder))
        assert shown in text
        assert ("lies far above" in text) is False or limit is not None


def test_the_command_to_run_next_names_the_script_of_a_texts_traceback(state: Path) -> None:
    path = state / "train.log"
    path.write_text(
        'Traceback (most recent call last):\n  File "/home/me/nlp/fine tune.py", line 40, in <module>\n    main()\n'
        '  File "/home/me/nlp/fine tune.py", line 7, in main\n    loss.backward()\n'
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
    )
    assert "oomproof run -- python &#x27;fine tune.py&#x27;" in page(verdict(), None, sources=[str(path)])
    path.write_text("step 1\n")
    assert "oomproof run -- python train.py" in page(verdict(), None, sources=[str(path)])

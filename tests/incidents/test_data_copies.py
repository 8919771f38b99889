"""Incident I1: data kept in three forms fills the machine. Warned, named, stopped with a checkpoint; the other way fits."""

from __future__ import annotations

import json
import random
import signal
import sys
from pathlib import Path

import pytest
from conftest import JOBS, Lab, until

pytestmark = pytest.mark.timeout(280)
SCRIPT = JOBS / "ml" / "prepare_data.py"
LIMIT, ROWS = "200M", 20_000


def write_rows(path: Path, rows: int) -> None:
    numbers = random.Random(1)
    words = ["".join(numbers.choices("abcdefghijklmnop", k=6)) for _ in range(3000)]
    long = " ".join(numbers.choices(words, k=40_000))
    with path.open("w") as file:
        for number in range(rows):
            at = numbers.randrange(len(long) - 1800)
            file.write(json.dumps({"id": number, "text": f"row {number} {long[at : at + 1800]}"}) + "\n")


@pytest.mark.usefixtures("kernel_limit")
def test_three_copies_are_named_and_the_streaming_way_fits(lab: Lab, tmp_path: Path) -> None:
    for library in ("datasets", "tokenizers"):
        pytest.importorskip(library, reason="the extra [ml] is not installed")
    rows, saved = tmp_path / "rows.jsonl", tmp_path / "checkpoint.json"
    write_rows(rows, ROWS)
    job = [sys.executable, str(SCRIPT)]
    streaming = lab.start("stream", "--limit", LIMIT, "--", *job, "stream", str(rows), str(saved))
    ended = lab.run(
        "run",
        "--name",
        "naive",
        "--limit",
        LIMIT,
        "--grace",
        "10",
        "--",
        *job,
        "naive",
        str(rows),
        str(saved),
    )
    assert ended.returncode == 75, ended.stderr
    assert ROWS / 4 < json.loads(saved.read_text())["rows"] < ROWS, (
        "asked while there was memory for a checkpoint"
    )
    warned, asked = (
        ended.stderr.find(text) for text in ("memory is getting short", "asked the job to save and stop")
    )
    assert 0 <= warned < asked
    assert "hold the same" in ended.stderr and ": 3 copies" in ended.stderr, "told while it ran"
    judged = json.loads(lab.run("why", "naive", "--json").stdout)
    lines = SCRIPT.read_text().splitlines()
    fills = {
        name: 1 + next(at for at, line in enumerate(lines) if line.strip().startswith(start))
        for name, start in (("examples", "examples.extend("), ("train_data", "train_data.extend("))
    }
    assert judged["verdict"]["cause"] == "stopped-by-guard" and judged["verdict"]["certainty"] == "proven"
    said = judged["verdict"]["next"]
    assert "`del examples, train_data`" in said and "once dataset is made" in said
    assert f"(prepare_data.py:{fills['examples']} and :{fills['train_data']} in naive())" in said
    census = next(item for item in judged["evidence"] if item["id"] == "agent.census")
    assert all(name in census["text"] for name in ("examples", "train_data", "dataset"))
    remedy = judged["remedies"][0]
    assert remedy["basis"] == "measured" and remedy["saves_bytes"] > 1000 * ROWS
    assert json.loads(lab.run("trend", "naive", "--json").stdout)["kind"] in ("growing", "slowing")
    look = json.loads(lab.run("inspect", "naive", "--json").stdout)
    assert [sorted(holder[0] for holder in group["holders"]) for group in look["copies"]] == [
        ["dataset", "examples", "train_data"]
    ]

    assert streaming.wait() == 0
    streaming.output_has(f"tokenized {ROWS} rows")
    flat = json.loads(lab.run("trend", "stream", "--json").stdout)
    assert flat["kind"] not in ("growing", "steps") and flat["alert"] is None
    compared = lab.run("runs", "compare", "naive", "stream").stdout
    peaks = {run["name"]: run["peak_bytes"] for run in json.loads(lab.run("runs", "--json").stdout)["runs"]}
    assert (
        peaks["stream"] < 0.85 * peaks["naive"]
        and "stopped by oomproof" in compared
        and "finished" in compared
    )


PLAIN = """
import time
def main():
    rows = [{"number": number, "text": f"row number {number} of the data"} for number in range(50_000)]
    print("ready", flush=True)
    grown = []
    while True:
        grown.append("x" * 10_000)
        time.sleep(0.001)
main()
"""


def test_inspect_tells_what_grew_and_says_why_it_cannot(lab: Lab, tmp_path: Path) -> None:
    script = tmp_path / "plain.py"
    script.write_text(PLAIN)
    running = lab.start("plain", "--", sys.executable, str(script))
    running.output_has("ready")
    first = lab.run("inspect", "plain")
    assert first.returncode == 0, first.stderr
    assert (
        "rows" in first.stdout
        and "plain.py:4 in main()" in first.stdout
        and "list of 50,000 dict" in first.stdout
    )

    def grew() -> bool:
        return "grew    grown (plain.py:" in lab.run("inspect").stdout

    assert until(grew, "what grew to be told")
    running.process.send_signal(signal.SIGSTOP)  # the guard is no part of it
    told = json.loads(lab.run("inspect", "plain", "--json").stdout)
    running.process.send_signal(signal.SIGCONT)
    assert {"rows", "grown"} <= {thing["name"] for thing in told["things"]}
    assert next(thing for thing in told["things"] if thing["name"] == "grown")["assigned_line"] == 8
    lab.run("stop", "--kill", "plain")
    running.wait()
    after = lab.run("inspect", "plain")
    assert after.returncode == 0 and "grown" in after.stdout, "of a run that has ended, the last look"
    for name, words in (("bare", ["--no-agent"]), ("isolated", [])):
        flags = ["-I"] if name == "isolated" else []
        other = lab.start(name, *words, "--", sys.executable, *flags, "-c", "import time; time.sleep(600)")
        other.started()
        refused = lab.run("inspect", name)
        assert refused.returncode == 125 and "the agent is absent" in refused.stderr, refused.stderr
        lab.run("stop", "--kill", name)
        other.wait()
    refused = lab.run("inspect", "bare")
    assert (
        refused.returncode == 125 and "is not running" in refused.stderr and "--census 10m" in refused.stderr
    )

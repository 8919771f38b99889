"""What a collector puts around every line is no part of the verdict: found out by its habit, taken off."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from oomproof.diagnosis.judge import judge_texts
from oomproof.evidence.texts.collected_lines import Collected, common_prefix, holds_records, unpacked
from oomproof.evidence.texts.text_case import read_texts

CORPUS = Path(__file__).parents[2] / "corpus" / "logs"
TRUTHS = {
    truth["file"].removeprefix("logs/"): truth
    for truth in map(json.loads, (CORPUS / "truth.jsonl").read_text().splitlines())
}
NAMES = sorted(
    name
    for name in TRUTHS
    if name.startswith("real-") and len((CORPUS / name).read_text().splitlines()) >= 10
)[::2]

FAILED = (
    "Epoch 3: 12 of 40, loss 1.25",
    "Traceback (most recent call last):",
    '  File "train.py", line 41, in main',
    "    fit(model)",
    '  File "train.py", line 12, in fit',
    "    loss.backward()",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.64 GiB of which 1.12 GiB is free.",
)

Wrap = Callable[[int, str], str]
WRAPS: dict[str, Wrap] = {
    "pdsh": lambda number, line: f"node01: {line}",
    "stern": lambda number, line: f"train-7c5d-xk2lp worker {line}",
    "kubectl": lambda number, line: f"[pod/train-7c5d/worker] {line}",
    "stamp alone": lambda number, line: f"May 03 12:00:{number % 60:02d} {line}",
    "CI step": lambda number, line: f"train\tRun it\t2024-05-03T12:00:{number % 60:02d}.1234567Z {line}",
    "pm2": lambda number, line: f"0|train    | {line}",
    "srun": lambda number, line: f" 3: {line}",
    "rsyslog": lambda number, line: (
        f"2024-05-03T12:00:{number % 60:02d}.123456+00:00 gpu01 train.sh[4242]: {line}"
    ),
    "docker's file": lambda number, line: json.dumps(
        {"log": f"{line}\n", "stream": "stderr", "time": f"2024-05-03T12:00:{number % 60:02d}.1Z"}
    ),
    "cloud console": lambda number, line: json.dumps(
        {"insertId": "x", "textPayload": line, "timestamp": f"2024-05-03T12:00:{number % 60:02d}Z"}
    ),
    "shipper": lambda number, line: "kube.train: " + json.dumps({"log": line, "stream": "stdout"}),
}


@pytest.mark.parametrize("how", WRAPS)
def test_a_collected_log_gets_the_verdict_of_the_log(how: str, tmp_path: Path) -> None:
    wrong = []
    for name in NAMES:
        lines = (CORPUS / name).read_text().splitlines()
        path = tmp_path / name
        path.write_text("\n".join(WRAPS[how](number, line) for number, line in enumerate(lines)))
        verdict = judge_texts(read_texts([str(path)])).to_json()["verdict"]
        truth = TRUTHS[name]
        if verdict["cause"] not in (truth["kind"], *(truth.get("also") or ())):
            wrong.append((name, truth["kind"], verdict["cause"]))
    assert len(NAMES) > 8
    assert wrong == []


def without(lines: list[str]) -> list[str]:
    return [line for _, line in Collected(enumerate(lines, 1))]


def test_ranks_in_a_prefix_are_one_prefix() -> None:
    assert without([f"worker-{number % 3}: {line}" for number, line in enumerate(FAILED)]) == list(FAILED)


def test_a_level_that_all_lines_share_says_nothing() -> None:
    assert without([f"2024-05-03 12:00:01,123 - INFO - {line}" for line in FAILED]) == [
        f"2024-05-03 12:00:01,123 {line}" for line in FAILED
    ]


def test_a_level_that_differs_is_kept() -> None:
    lines = [
        f"node01: [WARNING] {line}" if number < 2 else f"node01: [ERROR] {line}"
        for number, line in enumerate(FAILED)
    ]
    assert without(lines)[0] == f"WARNING: {FAILED[0]}"


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param([f"Epoch {number}: loss {1 / (number + 1):.3f}" for number in range(40)], id="a loop's own words"),
        pytest.param(
            [f"[train] step {number} of 90, loss 0.1" for number in range(40)] + ["[eval] accuracy 0.3"] * 4,
            id="what the program is doing",
        ),
        pytest.param(
            [f"2024-05-03 12:00:{number:02d},100 - trainer - INFO - {word}" for number, word in enumerate(("load", "a model", "ready", "go", "done"))],
            id="a logger's records",
        ),
        pytest.param(list(FAILED), id="nothing"),
    ],
)  # fmt: skip
def test_what_is_no_collectors_stays(lines: list[str]) -> None:
    assert without(lines) == lines


def test_the_rest_of_a_collected_text_may_lack_the_prefix() -> None:
    lines = [f"node01: {line}" for line in FAILED * 3]
    lines[9] = "a line of the launcher's own"
    assert without(lines) == [*FAILED, *FAILED[:2], lines[9], *FAILED[3:], *FAILED]


def test_records_of_figures_hold_no_lines() -> None:
    assert not holds_records([json.dumps({"epoch": number, "loss": 0.1}) for number in range(9)])
    assert not holds_records([json.dumps({"text": "an example to learn from", "label": 1})] * 9)


def test_a_record_gives_its_stack_behind_its_words() -> None:
    record = {"timestamp": "2024-05-03T12:00:01Z", "level": "error", "message": "the run failed",
              "exc_info": "Traceback (most recent call last):\n  File \"a.py\", line 1, in f\nValueError: x"}  # fmt: skip
    stamp = "2024-05-03T12:00:01Z "
    assert unpacked(json.dumps(record)) == [
        f"{stamp}the run failed",
        f"{stamp}Traceback (most recent call last):",
        f'{stamp}  File "a.py", line 1, in f',
        f"{stamp}ValueError: x",
    ]


def test_a_warning_in_a_record_stays_a_warning() -> None:
    record = {"time": "2024-05-03T12:00:01Z", "level": "warning", "msg": "out of memory, one size smaller"}
    assert unpacked(json.dumps(record)) == ["2024-05-03T12:00:01Z WARNING: out of memory, one size smaller"]


def test_a_journals_record_is_left_to_its_reader() -> None:
    line = json.dumps(
        {"MESSAGE": "x", "__REALTIME_TIMESTAMP": "1700000000000000", "message": "y", "time": "z"}
    )
    assert unpacked(line) == [line]


def test_few_lines_show_no_habit() -> None:
    assert common_prefix(["node01: Killed", "node01: Traceback (most recent call last):"]) is None

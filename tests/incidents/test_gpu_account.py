"""The whole way of an out of memory, from inside the job to the verdict, on a card that is only figures.

The card itself is tried by hand: tests/gpu/eval_oom.py."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from conftest import JOBS, Lab

CARD = JOBS / "card"
GIB = 1 << 30


def test_the_account_reaches_the_verdict(lab: Lab) -> None:
    lab.environment["PYTHONPATH"] = str(CARD)
    done = lab.run(
        "run", "--name", "eval", "--gpu-limit", "22G", "--", sys.executable, str(CARD / "evaluates.py")
    )
    assert done.returncode == 1
    verdict = lab.verdict("eval")
    head = verdict["verdict"]
    assert head["cause"] == "cuda-oom" and head["phase"] == "eval"
    assert head["headline"].startswith(
        "out of GPU memory (CUDA) in eval: the list all_logits in evaluate (evaluates.py:"
    )
    assert "kept 9.0 GiB of results on the card" in head["headline"]
    assert head["gpu"]["requested_bytes"] == 15 * GIB
    assert (
        verdict["remedies"][0]["change"]["key"] == ".cpu()"
        and verdict["remedies"][0]["saves_bytes"] == 9 * GIB
    )
    folder = lab.folder_of("eval")
    assert folder is not None
    assert len(list((folder / "1/agent").glob("*-cuda-oom-*.json"))) == 2  # the first one was caught
    (account,) = (folder / "1/agent").glob("*-cuda-oom-2.json")
    assert account.stat().st_mode & 0o777 == 0o600
    assert json.loads(account.read_text())["uuid"] == "card-of-this-test"
    # the limit was set when the job started CUDA, less what CUDA itself takes: (22 - 0.75) / 24
    assert "fraction 0.8854 of card 0" in (folder / "1/output.log").read_text()
    shown = lab.run("runs", "show", "eval").stdout
    assert "who held the card when it ran out" in shown and "list all_logits" in shown


def test_without_the_agent_the_sentence_alone_speaks(lab: Lab) -> None:
    lab.environment["PYTHONPATH"] = str(CARD)
    done = lab.run("run", "--name", "alone", "--no-agent", "--", sys.executable, str(CARD / "evaluates.py"))
    assert done.returncode == 1
    head = lab.verdict("alone")["verdict"]
    assert head["cause"] == "cuda-oom" and "asked for 15.0 GiB" in head["headline"]


PYTHONS = sorted(
    path for minor in range(8, 14) for path in Path.home().glob(f".pyenv/versions/3.{minor}.*/bin/python")
)


@pytest.mark.parametrize("python", PYTHONS, ids=lambda path: path.parents[1].name)
def test_on_every_python_a_job_may_have(lab: Lab, python: Path) -> None:
    lab.environment["PYTHONPATH"] = str(CARD)
    assert lab.run("run", "--name", "one", "--", str(python), str(CARD / "evaluates.py")).returncode == 1
    assert "the list all_logits in evaluate (evaluates.py:" in lab.verdict("one")["verdict"]["headline"]
    folder = lab.folder_of("one")
    assert folder is not None and "freed" in (folder / "1/output.log").read_text()

"""Leaks that people really have, in real trainings: the verdict names the line that keeps the memory, and what to keep instead."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from conftest import Lab

pytest.importorskip("torch", reason="the extra [ml] is not installed")
pytestmark = pytest.mark.timeout(280)

TRAIN = """import time

import torch


class Cache:
    def __init__(self):
        self.outputs = {{}}


def main():
    model = torch.nn.Linear(512, 512)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    losses, history, cache = [], [], Cache()
    for step in range(2000):
        loss = model(torch.randn(600, 512)).square().mean()
        optimizer.zero_grad()
        loss.backward(retain_graph=True)
        optimizer.step()
        history.append(loss.item())
        {keep}
        time.sleep(0.4)


main()
"""


@pytest.mark.parametrize(
    ("keep", "said"),
    [
        ("losses.append(loss)", "losses, a list of main(), got "),
        pytest.param(
            "cache.outputs[step] = torch.ones(600, 512)",
            "Cache.outputs, a dict, got ",
            marks=pytest.mark.long,
        ),
    ],
    ids=["losses with their graph", "a cache without bound"],
)
def test_the_line_that_leaks_is_named(lab: Lab, tmp_path: Path, keep: str, said: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAIN.format(keep=keep))
    ended = lab.run(
        "run", "--name", "leak", "--limit", "900M", "--", sys.executable, str(script), timeout=260
    )
    assert ended.returncode != 0
    judged = json.loads(lab.run("why", "leak", "--json").stdout)
    verdict = judged["verdict"]
    number = 1 + next(at for at, line in enumerate(script.read_text().splitlines()) if keep in line)
    assert f"train.py:{number} `{keep}`: {said}" in verdict["next"]
    assert ("with its graph (keep .item() or .detach() of it)" in verdict["next"]) == ("losses" in keep)
    assert "history" not in verdict["next"], "a log of numbers is no leak"
    trend = json.loads(lab.run("trend", "leak", "--json").stdout)
    assert (
        trend["kind"] in ("growing", "slowing")
        and trend["phase"] == "train"
        and trend["heap"]["kind"] == "native"
    )
    assert 600 * 512 * 4 / 2 < trend["bytes_per_step"] < 8 * 600 * 512 * 4, "an activation or two a step"

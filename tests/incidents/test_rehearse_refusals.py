"""What cannot be rehearsed, or does not fit, is told by its name; the script's own errors stay its own."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_rehearse_programs import rehearse

pytest.importorskip("torch", reason="the extra [ml] is not installed")
pytestmark = pytest.mark.timeout(280)

# What the evaluation of hour nine keeps is told from a few of its batches.
KEEPS = """
import time, torch
torch.set_num_threads(1)
model = torch.nn.Linear(8, 250_000)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
results = []
for epoch in range(3):
    for batch in torch.utils.data.DataLoader(torch.randn(16, 8), batch_size=4):
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    model.eval()
    with torch.no_grad():
        for batch in torch.utils.data.DataLoader(torch.randn(1_000_000, 8), batch_size=4):
            results.append(model(batch))
            time.sleep(0.15)
    model.train()
"""


def test_a_second_evaluation_that_will_not_fit_is_refused_beforehand(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    value, done = rehearse(KEEPS, tmp_path / "work", "--time-limit", "15s")
    assert value["refused"] is None, done.stderr
    evaluation = next(phase for phase in value["phases"] if phase["phase"] == "eval")
    assert done.returncode == 69 and value["status"] == 69
    assert evaluation["kept_bytes"] > 500 << 30, "250,000 batches of 4 MB, and again"
    assert any("still there in the next" in note for note in value["notes"])
    assert value["verdicts"][0]["status"] == "never"


@pytest.mark.parametrize(
    ("script", "status", "said"),
    [
        ("import torch\nname = input('which? ')", 1, "failed by itself"),
        ("print('no torch here')", 2, "never imported torch"),
        ("import os\nos.environ['WORLD_SIZE'] = '2'\nimport torch", 2, "2 ranks; rehearse one of them"),
    ],
)
def test_what_cannot_be_rehearsed(tmp_path: Path, script: str, status: int, said: str) -> None:
    (tmp_path / "work").mkdir()
    value, done = rehearse(script, tmp_path / "work")
    assert said in value["refused"] and done.returncode == status


STREAM = """
import torch
torch.set_num_threads(1)
class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        number = 0
        while True:  # never repeats, never ends
            number += 1
            yield torch.ones(200 if number == 33 else 3, 8)
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for batch in torch.utils.data.DataLoader(Stream(), batch_size=None):
    model(batch).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_a_stream_that_never_ends(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    value, done = rehearse(STREAM, tmp_path / "work", "--time-limit", "8s")
    assert (value["refused"], done.returncode) == (None, 0), done.stderr
    assert value["batches"][0]["shapes"] == ["float32 [200, 8]"] and value["batches"][0]["of"] is None
    assert value["steps"] >= 3 and not value["evaluations"]

"""Ranks of one training, as real processes with gloo: all take the smallest batch, and start over together or not at all."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from oomproof.errors import OomproofError
from oomproof.sizing.fitting import rank_agreement

torch = pytest.importorskip("torch", reason="the extra [ml] is not installed")

RANK = """
import json, os, sys
from datetime import timedelta
import torch, torch.distributed as dist
import oomproof
from oomproof.sizing.fitting import rank_agreement
torch.set_num_threads(1)
rank_agreement._TOGETHER = timedelta(seconds=5)
rank, world, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)
calls = []

def steps(batch, fails=False, count=3):
    calls.append((batch.size, batch.accum, batch.probing))
    torch.manual_seed(rank)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for step in range(count):
        for _ in range(batch.accum):
            held = torch.ones(batch.size, 2 << 20)
            loss = batch.scale(model(torch.randn(batch.size, 8)).square().mean())
            if fails:
                torch.empty(1 << 50)
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return [float(value) for value in model.module.weight.detach().flatten()[:4]]

def tell(**told):
    with open(f"{folder}/{rank}.json", "w") as file:
        json.dump({"calls": calls, **told}, file)
"""


def ranks(tmp_path: Path, body: str, world: int = 2, **asked: Any) -> list[dict[str, Any]]:
    code = RANK + body
    children = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(rank), str(world), str(tmp_path)],
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(world)
    ]
    texts = [child.communicate(timeout=240)[1] for child in children]
    told = []
    for rank in range(world):
        path = tmp_path / f"{rank}.json"
        assert path.exists(), texts[rank]
        told.append({**json.loads(path.read_text()), "stderr": texts[rank]})
    return told


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """One pair of processes for what goes well: they take seconds to start."""
    return ranks(
        tmp_path_factory.mktemp("ranks"),
        """
from oomproof.sizing.fitting.fitted_batch import Batch
from oomproof.sizing.fitting.memory_meter import HostMeter
oomproof.fit_batch(effective=2, capacity="100G", quiet=True)(steps)()

calls.clear()
fitted = oomproof.fit_batch(effective=64, capacity=HostMeter.own() + (28 - 16 * rank) * (8 << 20))(steps)
smallest = {"weights": fitted(), "state": fitted.state_dict(), "calls": list(calls)}

calls.clear()
fitted = oomproof.fit_batch(effective=16, capacity="100G", quiet=True)(
    lambda batch: steps(batch, fails=batch.size > 2 and not batch.probing)
)
over = {"weights": fitted(), "calls": list(calls)}

data = torch.arange(1.0, 11.0).reshape(10, 1).double()
mine = [data[:1], data[1:4]] if rank == 0 else [data[4:9], data[9:]]
weight = torch.nn.Linear(1, 1, bias=False).double()
torch.nn.init.ones_(weight.weight)
model = torch.nn.parallel.DistributedDataParallel(weight)
(group,) = Batch(4, accum=2, world=2).groups(mine)
with model.no_sync():
    (model(group[0][0]).square().mean() * group[0][1]).backward()
(model(group[1][0]).square().mean() * group[1][1]).backward()
shared = {"gradient": float(weight.weight.grad), "shares": [share for _, share in group]}
tell(smallest=smallest, over=over, shared=shared)
""",
    )


def test_all_take_the_smallest(together: list[dict[str, Any]]) -> None:
    """Rank 1 has less memory; the weights are the same on both, as DDP wants them, at the same effective batch."""
    first, second = (rank["smallest"] for rank in together)
    assert first["calls"] == second["calls"]
    assert first["calls"][-1] in ([8, 4, False], [4, 8, False]), first["calls"]
    assert first["weights"] == second["weights"]
    assert first["state"]["effective"] == 64 and first["state"]["world"] == 2
    said = [rank["stderr"] for rank in together]
    assert "oomproof: batch" in said[0] and "oomproof: batch" not in said[1], "said once"


def test_ranks_that_fail_together_start_over_together(together: list[dict[str, Any]]) -> None:
    for rank in together:
        assert [size for size, _, probing in rank["over"]["calls"] if not probing] == [8, 4, 2]
    assert together[0]["over"]["weights"] == together[1]["over"]["weights"]


def test_weights_over_all_ranks(together: list[dict[str, Any]]) -> None:
    """Unequal counts on unequal ranks: the averaged gradient is that of the mean over everything."""
    whole = sum(2 * value * value for value in range(1, 11)) / 10
    for rank in together:
        assert rank["shared"]["gradient"] == pytest.approx(whole, rel=1e-12)
    assert together[0]["shared"]["shares"] == [2 * 1 / 10, 2 * 3 / 10]


def test_one_rank_alone_cannot_start_over(tmp_path: Path) -> None:
    """The others are inside a collective with it: it says so and ends, and the launcher ends them."""
    told = ranks(
        tmp_path,
        """
fitted = oomproof.fit_batch(effective=16, capacity="100G", quiet=True)(
    lambda batch: steps(batch, fails=rank == 1 and not batch.probing)
)
try:
    fitted()
    tell(error=None)
except Exception as error:
    tell(error=str(error), notes=getattr(error, "__notes__", []))
    os._exit(1)
""",
    )
    assert "can't allocate memory" in told[1]["error"]
    assert "other ranks had enough and wait for this one" in told[1]["notes"][0]
    assert told[0]["error"] is not None and "can't allocate" not in told[0]["error"], (
        "the connection was closed"
    )


def test_one_process_needs_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WORLD_SIZE", "RANK"):
        monkeypatch.delenv(name, raising=False)
    alone = rank_agreement.here()
    assert (alone.rank, alone.world) == (0, 1) and alone.agree(7) == 7 and alone.all_report("x")


def test_several_that_cannot_speak_to_each_other_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "1")
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)
    with pytest.raises(OomproofError, match="one of 4 ranks") as raised:
        rank_agreement.here()
    assert "init_process_group" in raised.value.hint


def test_torchrun_before_the_group_is_started(tmp_path: Path) -> None:
    """Scripts whose function starts the group itself, as accelerate's do: the launcher's store is there."""
    script = tmp_path / "train.py"
    script.write_text(
        """
import os, sys, torch
from oomproof.sizing.fitting import rank_agreement
ranks = rank_agreement.here()
agreed = f"agreed {ranks.agree(10 + ranks.rank)} {ranks.agree(ranks.rank, max)}\\n"
sys.stdout.write(agreed)  # two ranks, one pipe: each line in one piece
"""
    )
    ended = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)],
        capture_output=True, text=True, timeout=240, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert ended.stdout.count("agreed 10 1") == 2, ended.stdout + ended.stderr

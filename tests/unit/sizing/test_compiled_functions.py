"""``torch.compile`` on a GPU that is not there: what is saved for the backward pass, what is fused, and what happens where it cannot be followed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from helpers_sizing import on_virtual_gpu

from oomproof.sizing import script_sizing, virtual_run
from oomproof.sizing.script_sizing import size_command
from oomproof.sizing.virtual_gpu.step_limits import EAGER

pytest.importorskip("torch", reason="the extra [ml] is not installed")
pytestmark = pytest.mark.timeout(280)
MIB = 1 << 20
ROOT = Path(__file__).parents[3]
LEFT_OUT = "torch.compile was left out"

CHAIN = """
import torch
from torch import nn

class Chain(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(1024, 1024))
    def forward(self, x):
        y = x @ self.weight
        assert y.device.type == "cuda", "what is traced sees the card"
        return (y.sin().exp().tanh() + torch.ones(1024, device=y.device)).square().cos().sum()

model = Chain().cuda()
run = model if COMPILED is None else torch.compile(model, **COMPILED)
x = torch.zeros(4096, 1024, device="cuda")
for step in range(3):
    before = torch.cuda.memory_allocated()
    loss = run(x)
    print("saved", step, torch.cuda.memory_allocated() - before)
    loss.backward()
    del loss
    with torch.no_grad():
        model.weight -= model.weight.grad
        model.weight.grad = None
"""
ELEMENTS = 4096 * 1024 * 4


def allocated(script: str, folder: Path, compiled: str) -> tuple[int, list[str]]:
    run, _ = on_virtual_gpu(f"COMPILED = {compiled}\n{script}", folder)
    return virtual_run.replay(run).allocated, run.result.notes


def test_fused_functions_keep_nothing(tmp_path: Path) -> None:
    """Of six functions after a product only the product itself is kept for the backward pass; each of them is without the compiler."""
    kept = {}
    for name, compiled in (("compiled", "{}"), ("eager", "None")):
        (tmp_path / name).mkdir()
        run, output = on_virtual_gpu(f"COMPILED = {compiled}\n{CHAIN}", tmp_path / name)
        assert run.result.notes == []
        kept[name] = int(output.rpartition("saved 2 ")[2].split()[0])
    assert kept["compiled"] == pytest.approx(ELEMENTS, rel=0.01)
    assert kept["eager"] >= 5 * ELEMENTS


def test_no_driver_is_woken_by_a_torch_that_has_cuda(tmp_path: Path) -> None:
    """Such a torch starts CUDA before the first fake tensor on a card that there seems to be."""
    wakes = """
import torch
from torch._subclasses import fake_tensor

def wake(device):
    if torch.cuda.is_available():
        raise RuntimeError("Found no NVIDIA driver on your system")

fake_tensor.init_gpu_context = wake
"""
    run, output = on_virtual_gpu(f"COMPILED = {{}}\n{wakes}{CHAIN}", tmp_path)
    assert run.result.notes == []
    assert int(output.rpartition("saved 2 ")[2].split()[0]) == pytest.approx(ELEMENTS, rel=0.01)


def test_where_a_graph_cannot_be_planned_it_runs_as_it_is(tmp_path: Path) -> None:
    """The same bytes as without torch.compile, and a note."""
    broken = "import torch._inductor.compile_fx as inner\ninner.compile_fx = lambda *given, **named: 1 / 0\n"
    for name in ("eager", "broken"):
        (tmp_path / name).mkdir()
    eager, _ = allocated(CHAIN, tmp_path / "eager", "None")
    fallen_back, notes = allocated(broken + CHAIN, tmp_path / "broken", "{}")
    assert fallen_back == eager
    assert len(notes) == 1 and notes[0].startswith(LEFT_OUT) and "ZeroDivisionError" in notes[0]


def test_what_is_not_followed_is_told(tmp_path: Path) -> None:
    """CUDA graphs have memory of their own; backends of others are not known."""
    for name in ("graphs", "other"):
        (tmp_path / name).mkdir()
    _, notes = allocated(CHAIN, tmp_path / "graphs", "dict(mode='reduce-overhead')")
    assert [note.partition(" of ")[0] for note in notes] == ["CUDA graphs"]
    _, notes = allocated(CHAIN, tmp_path / "other", "dict(backend='onnxrt')")
    assert notes == [f"{LEFT_OUT}: it usually needs less than the figure here"]


PARTS = """
import torch
from torch import nn

class Halves(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.seen = nn.Linear(256, 256), nn.Linear(256, 256), 0
    def forward(self, x):
        x = self.first(x).relu()
        self.seen += 1
        print("between", x.abs().max().item(), x.device)  # cuts the graph
        return self.second(x)

model = Halves().cuda()
model.compile(dynamic=None)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for length in (64, 128, 192, 96):  # from the second on sizes are symbols
    model(torch.zeros(length, 256, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
model.eval()
with torch.no_grad():
    model(torch.zeros(32, 256, device="cuda"))
print("seen", model.seen)
"""


def test_a_model_in_parts_with_batches_of_many_lengths(tmp_path: Path) -> None:
    run, output = on_virtual_gpu(PARTS, tmp_path)
    assert output.count("cuda:0") == 5 and "seen 5" in output
    assert run.result.notes == [] and run.result.steps == 4
    assert run.result.phases == {"train": 4, "eval": 1}


def test_a_script_that_dies_when_it_is_followed_is_sized_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text(
        "COMPILED = {}\n"
        + CHAIN
        + f"    import os\n    if not os.environ.get({EAGER!r}):\n        os.abort()\n"
    )
    monkeypatch.chdir(tmp_path)
    told: list[str] = []
    sized = size_command(
        [sys.executable, "-W", "ignore", "train.py"],
        time_limit=60.0, gpu_total=None, allow_writes=False, tell=told.append,
    )  # fmt: skip
    if sized.sizing.refused and "cannot be kept private here" in sized.sizing.refused:
        pytest.skip(sized.sizing.refused)
    assert sized.sizing.refused is None and sized.status == 0
    assert any(note.startswith(LEFT_OUT) for note in sized.sizing.notes)
    assert told == [], "nothing is said of the run that was repeated"


@pytest.mark.parametrize("job", ["llama-compiled-8x512", "mixer-128-compiled"])
def test_as_much_as_was_taken_on_a_card(tmp_path: Path, job: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Measured on an H200, when the compiler was left out here: the first was told 41 % too much. Live tensors within 1 %, what is
    reserved within 3 %."""
    monkeypatch.syspath_prepend(str(ROOT / "bench" / "sizing"))
    import jobs

    if "llama" in job:
        pytest.importorskip("transformers", reason="the extra [ml] is not installed")
    took = {
        row["job"]: row
        for name in ("fresh2", "fresh3")
        for row in map(
            json.loads, (ROOT / "bench" / "results" / f"sizing-{name}-h200.jsonl").read_text().splitlines()
        )
    }[job]
    command = [sys.executable, "-W", "ignore", *jobs.command(job)]
    environment = script_sizing._environment(str(tmp_path), 120.0, None)
    subprocess.run(
        command,
        env={**os.environ, **environment},
        cwd=jobs.PROGRAMS,
        capture_output=True,
        timeout=270,
        check=True,
    )
    run = virtual_run.read(str(tmp_path))
    assert run is not None and run.result.notes == []
    found = virtual_run.replay(run)
    assert found.allocated / MIB == pytest.approx(took["allocated"], rel=0.01)
    assert found.reserved / MIB == pytest.approx(took["reserved"], rel=0.03)

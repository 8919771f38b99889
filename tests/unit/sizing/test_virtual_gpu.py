"""An unmodified script on a GPU that is not there: it sees a card, and what it puts there is counted to the byte."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers_sizing import on_virtual_gpu

from oomproof.sizing import virtual_run

pytest.importorskip("torch", reason="the extra [ml] is not installed")
pytestmark = pytest.mark.timeout(240)
MIB = 1 << 20

LOOKS = """
import copy, torch
from torch import nn
import torch.nn.functional as F
assert torch.cuda.is_available() and torch.cuda.device_count() == 1

def graph(tensor):
    nodes, names = [tensor.grad_fn], []
    while nodes:
        node = nodes.pop()
        if node is not None:
            names.append(node.name())
            nodes += [below for below, _ in node.next_functions]
    return " ".join(names)

# host tensors stay real, those of the card have no bytes
host = torch.arange(6.0).reshape(2, 3)
card = host.to("cuda")
assert card.device == torch.device("cuda", 0) and card.is_cuda and not host.is_cuda
assert host.sum().item() == 15
assert torch.zeros(3, device=card.device).is_cuda and torch.zeros_like(card).is_cuda
assert not card.cpu().is_cuda and card.cpu().numpy().shape == (2, 3)
assert isinstance(card.sum().item(), float) and f"{card.sum():.2f}"
assert torch.tensor([1, 2], device="cuda").tolist() == [1, 2]
with torch.device("cuda"):
    assert nn.Linear(2, 2).weight.is_cuda

# ties, and an optimizer made before the module was moved
class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(1000, 64), nn.Linear(64, 1000, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("mask", torch.ones(4))

model = Tied()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
assert model.head.weight.device.type == "cpu"
model.to("cuda")
assert model.head.weight is model.embedding.weight and model.mask.is_cuda
assert optimizer.param_groups[0]["params"][0] is model.head.weight and model.head.weight.is_cuda
assert len(list(model.parameters())) == 1
model.half()
assert model.head.weight.dtype is torch.float16 and isinstance(model.head.weight, nn.Parameter)
twin = copy.deepcopy(model)
assert twin.head.weight is not model.head.weight and twin.head.weight.is_cuda
assert twin.head.weight is twin.embedding.weight
model.cpu()
assert not model.head.weight.is_cuda
images = nn.Conv2d(3, 8, 3).cuda().to(memory_format=torch.channels_last)(torch.ones(2, 3, 8, 8, device="cuda"))
assert images.shape == (2, 8, 6, 6)

# autocast by the card's lists, dropout by its kernels, attention by its choice
x = torch.ones(4, 8, 16, 64, device="cuda", requires_grad=True)
with torch.autocast("cuda", dtype=torch.bfloat16):
    assert (x @ x.transpose(-1, -2)).dtype is torch.bfloat16
    assert F.layer_norm(x.bfloat16(), (64,)).dtype is torch.float32
    assert F.softmax(x.bfloat16(), -1).dtype is torch.float32
    assert F.gelu(x.bfloat16()).dtype is torch.bfloat16
    attended = F.scaled_dot_product_attention(x, x, x, dropout_p=0.1)
    assert attended.dtype is torch.bfloat16 and "Cudnn" in graph(attended)
real = torch.ones(4, 8)
with torch.autocast("cuda", dtype=torch.bfloat16):
    assert (real @ real.T).dtype is torch.float32, "a tensor of the host"
assert "Efficient" in F.scaled_dot_product_attention(x, x, x, dropout_p=0.1).grad_fn.name()
assert "NativeDropout" in F.dropout(x, 0.5).grad_fn.name()
assert F.dropout(torch.ones(1000), 0.5).unique().numel() == 2, "of the host: real"

# sizes that depend on values: those that nobody knows, as if all were taken
assert card[card > 0].shape == (5,) and torch.nonzero(card).shape == (5, 2)
unknown = nn.Linear(3, 3).cuda()(card)
assert unknown[unknown > 0].shape == (6,) and torch.nonzero(unknown).shape == (6, 2)

# one rank of a process group
import torch.distributed as dist
dist.init_process_group("nccl")
assert dist.get_world_size() == 1 and dist.get_rank() == 0
before = torch.cuda.memory_allocated()
wrapped = nn.parallel.DistributedDataParallel(nn.Linear(1024, 1024, bias=False).cuda())
assert torch.cuda.memory_allocated() - before == 2 * 4 * 1024 * 1024, "the weight, and a bucket for its gradient"
dist.all_reduce(wrapped(torch.ones(1, 1024, device="cuda")).sum())

# a large model takes no memory of this process
large = nn.ModuleList(nn.Linear(8192, 8192, bias=False) for _ in range(32)).half().cuda()
assert torch.cuda.memory_allocated() > 4 << 30
most = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))  # ru_maxrss has the parent's too
assert int(most.split()[1]) < 1 << 20, "8 GiB of weights in less than 1 GiB"
print("seen all")
"""


def test_what_a_script_sees(tmp_path: Path) -> None:
    run, output = on_virtual_gpu(LOOKS, tmp_path)
    assert "seen all" in output
    assert run.result.notes == [], "one rank of one is the whole job"
    assert run.result.widened == {"a boolean mask": 1, "nonzero": 1}
    assert 8 << 30 <= run.result.peak["host"] < 9 << 30, "float32 on the host, by arithmetic"
    assert 4 << 30 <= virtual_run.replay(run).allocated < 5 << 30


TRAINING = """
import torch
from torch import nn
model = nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
scaler = torch.amp.GradScaler("cuda")
for step in range(3):
    for part in range(2):
        x = torch.randn(256, 1024).cuda(non_blocking=True)
        with torch.autocast("cuda", dtype=torch.float16):
            loss = (model(x) - x).square().mean()
        scaler.scale(loss / 2).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
model.eval()
with torch.no_grad():
    model(torch.randn(64, 1024, device="cuda"))
torch.save(model.state_dict(), "/no/such/folder/model.pt")
"""


def test_parts_of_a_training(tmp_path: Path) -> None:
    """Weights, gradients and AdamW's state by arithmetic; at the peak of the optimizer one more of each as a temporary."""
    weights = 4 * (1024 * 4096 * 2 + 4096 + 1024)
    run, _ = on_virtual_gpu(TRAINING, tmp_path)
    assert run.result.steps == 3
    assert run.result.phases == {"train": 6, "eval": 1}
    assert run.result.saved == 4 * 1024 * 4096, (
        "counted, not written; its largest storage is on the host for a moment"
    )
    parts = virtual_run.replay(run).parts
    assert parts["weights"] == weights
    assert parts["gradients"] == weights
    assert parts["optimizer state"] == 2 * weights
    assert weights <= parts["temporary"] < weights + MIB, "the square roots of the multi-tensor AdamW"
    assert parts["workspaces"] == 64 * MIB
    assert run.result.peak_place == "optimizer step", "no file: the script came by -c"
    assert run.result.peak["host"] < 2 * weights


BY_HAND = """
import os, torch
from torch import nn
model = nn.Sequential(nn.Linear(1024, 1024, bias=False), nn.Linear(1024, 512, bias=False).requires_grad_(False)).cuda()
for passed in range(1000):
    assert passed < 20, "nobody stopped it"
    model(torch.ones(8, 1024, device="cuda")).sum().backward()
    for parameter in model[0].parameters():
        parameter.data.add_(parameter.grad, alpha=-0.1)
"""


def test_a_loop_without_an_optimizer_is_seen_to_step(tmp_path: Path) -> None:
    run, _ = on_virtual_gpu(BY_HAND.replace("range(1000)", "range(6)"), tmp_path)
    assert run.result.steps >= 3
    estimate, _ = virtual_run.gpu_estimate(run, False)
    assert (estimate.parts["gradients"], estimate.parts["weights"]) == (4 * MIB, 6 * MIB)
    assert run.result.frozen == [["1", 512, 1024, 4]], "what could be quantized"


GATHERS = """
import torch
from torch import nn
model = nn.Linear(1024, 1024, bias=False).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for passed in range(24):
    model(torch.ones(8, 1024, device="cuda")).sum().backward()
"""


def test_gradients_that_are_gathered_for_long_do_not_hide_the_optimizers_state(tmp_path: Path) -> None:
    run, _ = on_virtual_gpu(GATHERS, tmp_path)
    estimate, _ = virtual_run.gpu_estimate(run, False)
    assert estimate.parts["optimizer state"] >= 8 * MIB and estimate.parts["gradients"] >= 4 * MIB
    assert any("accumulated over more than" in note for note in run.result.notes)


READS_BACK = """
import os, torch
from torch import nn
model = nn.Linear(64, 64).cuda()
with open("model.pt", "wb") as file:
    torch.save(model, file)
torch.save({"model": model.state_dict(), "step": 7, "loss": [torch.ones(2, device="cuda")]}, "state.pt")
with open("model.pt", "rb") as file:
    assert torch.load(file) is model
state = torch.load("state.pt", map_location="cpu")
assert state["step"] == 7 and state["model"]["weight"].shape == (64, 64) and not state["model"]["weight"].is_cuda
model.load_state_dict(state["model"])
assert torch.load("state.pt")["loss"][0].is_cuda
torch.save(torch.arange(5), "host.pt")
assert torch.load("host.pt").tolist() == [0, 1, 2, 3, 4] and os.path.getsize("host.pt")
"""


def test_a_script_reads_back_what_it_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run, _ = on_virtual_gpu(READS_BACK, tmp_path)
    assert run.result.saved >= 64 * 64 * 4


FETCHES = """
import queue, threading, torch
from concurrent.futures import ThreadPoolExecutor
model = torch.nn.Linear(256, 256).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
batches = queue.Queue(2)

def fetch():
    for _ in range(200):
        batches.put((torch.ones(64, 256).cuda(), torch.zeros(64, 256, device="cuda")))
    batches.put(None)

threading.Thread(target=fetch, daemon=True).start()
with ThreadPoolExecutor(2) as pool:
    assert all(pool.map(lambda size: torch.ones(size).to("cuda").is_cuda, range(1, 50)))
while (batch := batches.get()) is not None:
    (model(batch[0]) + torch.ones(64, 256, device="cuda") - batch[1]).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_a_thread_that_fetches_batches_onto_the_card(tmp_path: Path) -> None:
    run, _ = on_virtual_gpu(FETCHES, tmp_path)
    assert run.result.steps >= 3 and virtual_run.gpu_estimate(run)[0].parts["weights"] == 4 * 256 * 257


LOOKED_FOR = """
import importlib.util
assert importlib.util.find_spec("torch") is not None     # as datasets does it: found, and not loaded
import torch
assert torch.cuda.is_available(), "the virtual GPU came with torch all the same"
model = torch.nn.DataParallel(torch.nn.Linear(4, 2)).cuda()
assert model(torch.ones(3, 4)).is_cuda, "the batch was moved to the one card"
torch.distributions.Categorical(torch.softmax(torch.ones(1, 2, device="cuda"), -1)).sample()
"""


def test_a_module_that_is_only_looked_for_and_one_card_of_many(tmp_path: Path) -> None:
    run, _ = on_virtual_gpu(LOOKED_FOR, tmp_path)
    assert run.events


BUFFERS = """
import io, sys, types
import numpy as np
import torch
faiss = types.ModuleType("faiss")

class IndexFlat:
    pass

IndexFlat.__module__ = "faiss"
bank, index = np.ones((8 << 20,), dtype=np.float32), IndexFlat()
view = bank[:10]

class Rows(torch.utils.data.Dataset):
    def __init__(self):
        self.rows = torch.ones(5 << 20)

data = Rows()
model = torch.nn.Linear(1024, 1024).cuda()
torch.save(model.state_dict(), "streamed.pt")
"""


def test_large_buffers_have_the_scripts_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run, _ = on_virtual_gpu(BUFFERS, tmp_path)
    assert run.result.buffers == {
        "bank, array": 32 * MIB,
        "data.rows, tensor": 20 * MIB,
        "index, faiss.IndexFlat": 0,
    }
    assert run.result.saved == 4 * MIB, "torch.save copies one storage at a time from the card"


LOADER = """
import time, torch
from torch.utils.data import DataLoader, Dataset

class Rows(Dataset):
    def __init__(self):
        self.paths = [f"path {index}" for index in range(20_000)]

    def __len__(self):
        return 64

    def __getitem__(self, index):
        time.sleep(0.01)
        return torch.ones(1024)

rows = Rows()
model = torch.nn.Linear(1024, 1).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in DataLoader(rows, 4, num_workers=2, pin_memory=True):
    model(batch.cuda()).sum().backward()
    optimizer.step()
with torch.no_grad():
    assert len(list(DataLoader(rows, 1))) <= 5, "an evaluation is cut short"
"""


def test_what_a_loader_holds_when_its_queue_is_full(tmp_path: Path) -> None:
    run, _ = on_virtual_gpu(LOADER, tmp_path)
    (loader,) = run.result.loaders
    assert (loader.workers, loader.prefetch, loader.batch, loader.settled) == (2, 2, 16384, True)
    assert loader.pinned == 16384
    assert loader.copied == 64 * 4096 // 2, "a page for each sample that a worker looks at"


def test_in_inference_mode_an_operation_has_the_parts_that_it_has_elsewhere(tmp_path: Path) -> None:
    """A teacher's convolutions take workspaces there too."""
    run, _ = on_virtual_gpu(
        """
import torch
net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.Flatten(), torch.nn.Linear(8 * 900, 4)).cuda()
teacher = torch.nn.Sequential(torch.nn.Conv2d(3, 16, 5), torch.nn.BatchNorm2d(16), torch.nn.MaxPool2d(2)).cuda().eval()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(4):
    images = torch.randn(16, 3, 32, 32).cuda()
    with torch.inference_mode(), torch.autocast("cuda", torch.bfloat16):
        assert teacher(images).dtype is torch.bfloat16
    net(images).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
""",
        tmp_path,
    )
    weights = [
        signature["args"][1]["shape"]
        for signature in run.result.signatures
        if signature["op"] == "aten.convolution.default"
    ]
    assert [16, 3, 5, 5] in weights and [8, 3, 3, 3] in weights
    assert not run.result.unfamiliar

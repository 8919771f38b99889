"""Weights that a script reads straight onto the card: a checkpoint that was saved there, a model of transformers with a device_map."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers_sizing import on_virtual_gpu

torch = pytest.importorskip("torch", reason="the extra [ml] is not installed")
pytestmark = pytest.mark.timeout(240)

READS = """
import torch
def read(file, **how):
    before = torch.cuda.memory_allocated()
    state = torch.load(file, **how)
    weight = state["weight"]
    assert weight.is_cuda and weight.shape == (1024, 1024), (file, how, weight)
    assert state["tied"].data_ptr() == weight.data_ptr() and state["turned"].shape == (10, 1024)
    assert state["turned"].stride() == (1, 1024) and state["step"] == 3
    assert state["count"].item() == 17 or file == "old.pt", "a format in which tensors are made before they are read"
    taken = torch.cuda.memory_allocated() - before
    assert 4 << 20 <= taken < 5 << 20, f"{taken}: the weight once, whoever shares it"
for file in ("saved.pt", "old.pt"):
    for place in (None, "cuda", torch.device("cuda:0"), lambda storage, place: storage.cuda(0), {"cuda:0": "cuda:0"}):
        read(file, map_location=place)
read("saved.pt", weights_only=False)
read("saved.pt", map_location="cuda", mmap=True)
assert not torch.load("saved.pt", map_location="cpu")["weight"].is_cuda
assert torch.load("saved.pt", map_location=lambda storage, place: storage)["weight"].sum().item() == 1 << 20
large = torch.load("large.pt")
most = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
assert large[0].is_cuda and int(most.split()[1]) < 700 << 10, f"{most}: 512 MiB are read in parts of 64"
"""


def test_a_checkpoint_that_was_saved_on_a_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    weight = torch.ones(1024, 1024)
    state = {
        "weight": weight,
        "tied": weight,
        "turned": weight.t()[:10],
        "count": torch.tensor(17),
        "step": 3,
    }
    monkeypatch.setattr(torch.serialization, "location_tag", lambda storage: "cuda:0")
    torch.save(state, "saved.pt")
    torch.save(state, "old.pt", _use_new_zipfile_serialization=False)
    torch.save([torch.empty(16 << 20) for _ in range(8)], "large.pt")
    on_virtual_gpu(READS, tmp_path)


MAPPED = """
import torch
from transformers import AutoModelForCausalLM
assert torch.device(0) == torch.device("cuda", 0) and torch.device("cpu").type == "cpu"
for places in ("cuda", "auto", {"": 0}):
    model = AutoModelForCausalLM.from_pretrained("model", device_map=places, dtype=torch.bfloat16)
    assert all(weight.is_cuda and weight.dtype is torch.bfloat16 for weight in model.parameters()), places
    model(input_ids=torch.ones(1, 8, dtype=torch.int64, device="cuda")).logits.sum().backward()
"""


def test_a_model_with_a_device_map(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers 5 reads weights in threads of its own, and asks for a card by its number."""
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    monkeypatch.chdir(tmp_path)
    shape = transformers.LlamaConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, vocab_size=1000
    )
    transformers.LlamaForCausalLM(shape).save_pretrained("model")
    on_virtual_gpu(MAPPED, tmp_path)

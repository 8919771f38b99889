"""What the virtual card takes to be chosen and known, beside what an H200 did."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch
from helpers_sizing import on_virtual_gpu

from oomproof.sizing.virtual_gpu.cuda_kernels import chosen_attention

# dtype, width, mask, grouped → chosen by an H200 with PyTorch 2.11 and cuDNN 9.19 (bench/sizing/attention_choice.py, 2,520 cases)
CHOSEN = (
    ("float32", 64, "", False, "efficient"),
    ("float32", 64, "bool", False, "efficient"),
    ("float32", 64, "learnt", False, "efficient"),
    ("float32", 64, "", True, "math"),
    ("bfloat16", 64, "", False, "cudnn"),
    ("bfloat16", 64, "", True, "cudnn"),
    ("bfloat16", 64, "bool", False, "cudnn"),
    ("float16", 128, "float", True, "cudnn"),
    ("float16", 128, "learnt", False, "efficient"),
    ("float16", 128, "learnt", True, "math"),
    ("bfloat16", 100, "", False, "flash"),
    ("bfloat16", 100, "bool", False, "math"),
    ("bfloat16", 320, "", False, "efficient"),
    ("bfloat16", 320, "", True, "math"),
    ("float32", 64, "permuted", False, "math"),
)


@pytest.mark.parametrize(("dtype", "width", "kind", "grouped", "chosen"), CHOSEN)
def test_attention(dtype: str, width: int, kind: str, grouped: bool, chosen: str) -> None:
    of = getattr(torch, dtype)
    query = torch.zeros(2, 8, 32, width, dtype=of, device="meta")
    key = torch.zeros(2, 2 if grouped else 8, 32, width, dtype=of, device="meta")
    mask = None
    if kind:
        mask = torch.zeros(2, 1, 32, 32, dtype=torch.bool if kind == "bool" else of, device="meta")
        mask = mask.transpose(-1, -2) if kind == "permuted" else mask
        mask.requires_grad_(kind == "learnt")
    assert chosen_attention(query, key, key, mask, False, grouped) == chosen


KNOWN = """
import torch
from torch.nn import functional as F
mask = torch.ones(4, 8, dtype=torch.long, device="cuda")
assert mask.all() and mask.bool().all() and not (mask == 0).any() and mask.sum() == mask.numel()
assert torch.ones(3, 3, dtype=torch.bool).cuda().all(), "read on the host before it left"
assert not torch.tensor([[1, 1], [1, 0]]).cuda().all()
assert torch.zeros((), device="cuda").sum(dim=0).shape == ()
written = torch.ones(3, 3, dtype=torch.bool, device="cuda")
written[0, 0] = False
assert not written.all(), "nobody knows any more"
filled = torch.zeros(1 << 18, device="cuda")
assert filled[:5].cpu().tolist() == [0.0] * 5 and filled[1:].fill_(2.0) is not None
assert filled[:5].cpu()[0] == 0.1, "a part of a large one was filled: unknown"

# a dtype that is asked for is kept by autocast: cross_entropy asks for its input's
logits = torch.zeros(4096, 1024, device="cuda", dtype=torch.bfloat16, requires_grad=True)
before = torch.cuda.memory_allocated()
with torch.autocast("cuda", dtype=torch.bfloat16):
    loss = F.cross_entropy(logits, torch.zeros(4096, dtype=torch.long, device="cuda"))
took = torch.cuda.memory_allocated() - before
assert 6 * logits.numel() <= took < 6.1 * logits.numel(), "its logarithm in bfloat16, once more in float32 for nll_loss"

# experts in float32: the card multiplies them group by group
if hasattr(torch, "_grouped_mm"):
    rows = torch.zeros(32, 64, device="cuda", requires_grad=True)
    experts = torch.zeros(4, 64, 16, device="cuda", requires_grad=True)
    ends = torch.tensor([8, 16, 24, 32], dtype=torch.int32, device="cuda")
    made = torch._grouped_mm(rows, experts, offs=ends)
    assert made.shape == (32, 16) and made.dtype is torch.float32
    grads = torch.autograd.grad(made.sum(), (rows, experts))  # backward() would be a step
    assert [grad.shape for grad in grads] == [rows.shape, experts.shape]

# a CTC loss: lengths are values of the card
scores = torch.zeros(50, 3, 20, device="cuda", requires_grad=True)
lengths = torch.full((3,), 50, device="cuda"), torch.full((3,), 9, device="cuda")
for targets in (torch.ones(3, 12, dtype=torch.long, device="cuda"), torch.ones(27, dtype=torch.long, device="cuda")):
    with torch.backends.cudnn.flags(enabled=False):
        lost = F.ctc_loss(scores.log_softmax(2), targets, *lengths)
        assert torch.autograd.grad(lost, scores)[0].shape == scores.shape

# recurrent layers: one kernel for all steps, its reserve until the backward pass
from torch import nn
for kind, more in ((nn.LSTM, {"proj_size": 8}), (nn.LSTM, {"batch_first": True}), (nn.GRU, {"bidirectional": True}), (nn.RNN, {})):
    layer, rows = kind(32, 64, 2, **more).cuda(), torch.zeros(50, 6, 32, device="cuda", requires_grad=True)
    before = torch.cuda.memory_allocated()
    result, ends = layer(rows)
    width = more.get("proj_size", 64) * (2 if more.get("bidirectional") else 1)
    assert result.shape == (50, 6, width)
    kept = torch.cuda.memory_allocated() - before
    widths = {nn.LSTM: 11, nn.GRU: 13, nn.RNN: 3}[kind]
    assert kept >= widths * 4 * 300 * 64 * (2 if more.get("bidirectional") else 1), "what the backward pass needs"
    learnt = (rows, *layer.parameters())
    with torch.no_grad():
        before = torch.cuda.memory_allocated()
        assert layer.eval()(rows)[0].shape == (50, 6, width) and torch.cuda.memory_allocated() == before, "nothing is kept"
        layer.train()
    assert [grad.shape for grad in torch.autograd.grad(result.sum(), learnt)] == [part.shape for part in learnt]
    with torch.autocast("cuda", dtype=torch.float16):
        assert layer(rows)[0].dtype is torch.float16
    del result, ends
texts = nn.utils.rnn.pack_padded_sequence(torch.zeros(7, 3, 32, device="cuda"), torch.tensor([7, 5, 2]))
packed_rows = nn.LSTM(32, 64).cuda()(texts)[0]
assert packed_rows.data.shape == (14, 64)
assert nn.utils.rnn.pad_packed_sequence(packed_rows)[0].shape == (7, 3, 64)
assert nn.GRU(32, 64).cuda()(texts)[1].shape == (1, 3, 64), "its first state is as wide as the host's tensor says"
assert torch.zeros(2, 3, pin_memory=True).shape == (2, 3)

# a layer as bitsandbytes keeps it: 4.127 bits a weight, the input kept only where 8 bits need it
from _oomproof_sizing.virtual_gpu.quantized_layers import QuantizedLinear
class Config:
    load_in_8bit, bnb_4bit_compute_dtype, bnb_4bit_use_double_quant = False, torch.bfloat16, True
torch.zeros(8, 8, device="cuda") @ torch.zeros(8, 8, device="cuda")  # its workspace stays
for eight, bits in ((False, 4.127), (True, 8.063)):
    Config.load_in_8bit, before = eight, torch.cuda.memory_allocated()
    with torch.device("meta"):
        plain = nn.Linear(512, 2048, bias=False)
    layer = QuantizedLinear(plain, Config)
    held = torch.cuda.memory_allocated() - before
    assert abs(8 * held / (512 * 2048) - bits) < 0.01, held
    rows = torch.zeros(4096, 512, device="cuda", requires_grad=True)
    inner, before = rows * 2, torch.cuda.memory_allocated()
    result = layer(inner)
    kept = torch.cuda.memory_allocated() - before - 4096 * 2048 * 4
    assert kept == (4096 * 512 * 2 if eight else 0), kept
    result.sum().backward()
    assert rows.grad.shape == rows.shape and layer.weight.grad is None and isinstance(layer, nn.Linear)
    del inner, result, rows, layer

# a shape that goes to the card and comes back, as accelerate compares those of the ranks
sent = torch.tensor((32, 384, 9), device="cuda")
assert sent[None].cpu().tolist() == [[32, 384, 9]] and sent[1:].to("cpu").tolist() == [384, 9]
sent += 1
assert sent.cpu().tolist() == [33, 385, 10], "what a card makes of it is known too"
assert nn.GRU(4, 5)(torch.zeros(3, 2, 4))[0].shape == (3, 2, 5), "on the host as ever"

# positions that count on are of one text, for which transformers makes no mask
try:
    from transformers.masking_utils import find_packed_sequence_indices as packed
except ImportError:
    packed = None
if packed is not None:
    positions = torch.arange(8, device="cuda") + 3
    assert packed(positions.unsqueeze(0).expand(2, -1)) is None
    assert packed(torch.arange(5)[None].cuda()) is None, "read on the host before they left"
    assert packed(torch.tensor([[0, 1, 2, 0, 1]]).cuda()) is not None, "two texts in a row"
    assert packed(torch.arange(0, 16, 2, device="cuda")[None]) is not None
    assert packed(positions[None] - torch.zeros(8, dtype=torch.long, device="cuda")) is None
    assert packed(positions[None] - torch.empty(8, dtype=torch.long, device="cuda")) is not None, "nobody knows"
    positions[3] = 0
    assert packed(positions[None]) is not None
print("seen all")
"""


def test_what_is_known_of_values(tmp_path: Path) -> None:
    _, output = on_virtual_gpu(KNOWN, tmp_path)
    assert "seen all" in output

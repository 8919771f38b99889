"""Scripts whose sizes hang on values of a card that is not there: boxes that are left out, answers that are cut, masks."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from helpers_sizing import on_virtual_gpu
from test_virtual_run import a_run

from oomproof.sizing import script_sizing, virtual_run

pytest.importorskip("torch", reason="PyTorch is not installed")

from oomproof.sizing.virtual_gpu.cuda_autocast import on_card
from oomproof.sizing.virtual_gpu.step_limits import CARD_TORCH

UNKNOWN = """
import torch
weights = torch.nn.Linear(4, 2000).cuda()
def unknown(*shape):
    return weights(torch.rand(4, device="cuda")).detach()[: torch.Size(shape).numel()].reshape(shape)
"""
MARKED = (
    UNKNOWN
    + """
def marked(count):
    mask = torch.zeros(2000, dtype=torch.uint8, device="cuda")
    mask[unknown(2000).argsort()[:count]] = 1
    return mask
first, second = marked(128), marked(384)
assert torch.where(first | second)[0].shape == (512,), "as many as were marked"
assert torch.where(torch.cat([first, second]))[0].shape == (512,)
assert torch.where(first.bool())[0].shape == (128,)
assert torch.zeros(9, device="cuda").nonzero().shape == (0, 1)
first[:5] += 1
assert torch.where(first)[0].shape == (2000,), "nobody knows any more"
first.zero_()
first[torch.arange(7, device="cuda")] = 1
assert torch.where(first)[0].shape == (7,)
assert torch.where(unknown(30) > 0.5)[0].shape == (30,)
print("seen all")
"""
)
CHECKED = (
    UNKNOWN
    + """
boxes = unknown(5, 4)
if not (boxes[:, 2:] >= boxes[:, :2]).all():  # as transformers does with DETR's
    raise ValueError("corners that are not corners")
assert torch.isfinite(boxes).all() and (boxes < 2).all()
assert not (unknown(5).argmax(keepdim=True) > 3).all(), "of a mask nobody knows"
assert not (boxes > 2).any() and not (boxes == boxes.clone()).all()
below = boxes < 2
below[0] = False
assert not below.all()
print("seen all")
"""
)
KNOWN = (
    UNKNOWN
    + """
labels = torch.arange(3000) % 7
on_card = labels.cuda()
assert on_card.tolist() == labels.tolist() and on_card.max().item() == 6 and (on_card.cpu() == labels).all()
values = unknown(1000).repeat(3)
assert values[on_card == 2].shape == (429,) and torch.masked_select(values, on_card != 2).shape == (2571,)
assert torch.where(on_card == 0)[0].tolist() == list(range(0, 3000, 7))
edges = torch.tensor([[0, 1, 1, 2], [1, 1, 0, 5]]).cuda()
assert edges[:, edges[0] != edges[1]].tolist() == [[0, 1, 2], [1, 0, 5]]
assert edges.unique().tolist() == [0, 1, 2, 5] and torch.bincount(edges[0]).tolist() == [1, 2, 1]
assert torch.repeat_interleave(torch.arange(3, device="cuda"), torch.tensor([1, 0, 2]).cuda()).tolist() == [0, 2, 2]
assert torch.equal(edges, edges.clone()) and not torch.equal(edges, edges + 1)
# the same places as before, and not those of another tensor
changed = on_card.clone()
changed[3:5] = 9
changed.add_(1)
assert changed[:6].tolist() == [1, 2, 3, 10, 10, 6] and on_card[3].item() == 3
changed[0] = unknown(2000).argmax()
assert changed.tolist() == [1] * 3000, "nobody knows any more"
# random numbers of the card are not those of the host
torch.manual_seed(3)
first = torch.rand(2)
torch.manual_seed(3)
kept = torch.rand(1000, device="cuda") < 0.3
assert torch.rand(2).tolist() == first.tolist() and 200 < kept.sum().item() < 400
assert sorted(torch.randperm(50, device="cuda").tolist()) == list(range(50))
assert torch.empty(3, device="cuda").tolist() == torch.full((3,), 0.1).tolist(), "of an empty one nobody knows"
norm = torch.nn.BatchNorm1d(4).cuda()
norm(unknown(5, 4))
assert norm.running_mean.tolist() == torch.full((4,), 0.1).tolist() and norm.num_batches_tracked.item() == 1
assert (unknown(9) > 0).float().tolist() == [0.0] * 9, "predictions are zeros and ones"
assert torch.cat([(unknown(2) > 0).float(), (unknown(2) > 0).double()]).cpu().tolist() == [0.0] * 4
# a guess of its own is asked for once more than there is room
for _ in range(40):
    held = [torch.arange(1 << 20).cuda() for _ in range(2)]
assert held[1][-1].item() == (1 << 20) - 1
assert torch.arange(3 << 20).cuda()[5].item() == 1, "of a larger one nobody asks"
print("seen all")
"""
)
OLD_TYPES = (
    UNKNOWN
    + """
kind = torch.cuda.FloatTensor
made = kind(3, 4).fill_(1)
assert made.is_cuda and made.shape == (3, 4) and isinstance(made, kind) and not isinstance(made, torch.cuda.LongTensor)
assert kind([1, 2]).tolist() == [1.0, 2.0] and torch.cuda.LongTensor(torch.Size([2, 5])).shape == (2, 5)
assert torch.ones(3).type(kind).is_cuda and torch.ones(3).type(torch.cuda.HalfTensor).dtype is torch.float16
assert not made.type(torch.FloatTensor).is_cuda and made.type(torch.LongTensor).dtype is torch.int64
assert unknown(4).new(2, 3).is_cuda and made.type() == "torch.cuda.FloatTensor"
torch.set_default_tensor_type("torch.cuda.FloatTensor")
assert torch.ones(2).is_cuda and torch.nn.Linear(2, 2).weight.is_cuda
torch.set_default_tensor_type(torch.FloatTensor)
assert not torch.ones(2).is_cuda
print("seen all")
"""
)
SAVED = (
    UNKNOWN
    + """
import io, os
class Graph:
    def __init__(self, tensor):
        self.parts = {"x": [tensor]}
torch.save(Graph(torch.ones(3)), "graph.pt")
assert torch.load("graph.pt", weights_only=False).parts["x"][0].tolist() == [1, 1, 1], "data of the host, in any object"
torch.save({"epoch": 3}, "epoch.pt")
assert os.path.getsize("epoch.pt") and torch.load("epoch.pt")["epoch"] == 3
buffer = io.BytesIO()
torch.save(Graph(unknown(4)), buffer)
assert not buffer.getvalue(), "it has no bytes"
torch.save(weights, "weights.pt")
assert not os.path.exists("weights.pt")
print("seen all")
"""
)
MATRICES = """
import torch
from torch import nn
places = torch.randint(0, 1000, (2, 5000))
graph = torch.sparse.FloatTensor(places, torch.ones(5000), torch.Size([1000, 1000])).to("cuda")
assert graph.is_sparse and graph.is_cuda and graph.shape == (1000, 1000) and graph.layout is torch.sparse_coo
rows = nn.Linear(16, 64).cuda()(torch.ones(1000, 16, device="cuda"))
rows.retain_grad()
for product in (torch.spmm(graph, rows), graph @ rows, torch.sparse.mm(graph.coalesce(), rows), graph.mm(rows), graph.t().mm(rows)):
    rows.grad = None
    product.sum().backward(retain_graph=True)
    assert product.is_cuda and product.shape == rows.grad.shape == (1000, 64)
numbers = torch.ones(5000, device="cuda", requires_grad=True)
attention = torch.sparse_coo_tensor(places.cuda(), numbers, (1000, 1000))
(attention @ rows).sum().backward()
assert numbers.grad.shape == (5000,) and attention.to_dense().shape == (1000, 1000) and attention._nnz() == 5000
assert not graph.cpu().is_cuda and (graph @ rows[:, 0]).shape == (1000,)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("graph", torch.eye(5).to_sparse())
    def forward(self, x):
        return torch.sparse.mm(self.graph, x)
assert Net().cuda()(torch.ones(5, 3, device="cuda")).shape == (5, 3)
print("seen all")
torch.add(graph, graph)
"""
BOXES = """
import torch
try:
    torch.ops.torchvision.nms
except AttributeError:
    torch.library.define("torchvision::nms", "(Tensor dets, Tensor scores, float threshold) -> Tensor")
boxes, scores = torch.rand(4000, 4).cuda(), torch.rand(4000).cuda()
kept = torch.ops.torchvision.nms(boxes, scores, 0.5)
assert kept.shape == (4000,) and kept.dtype is torch.int64 and kept.is_cuda
print("seen all")
"""
ANSWERS = """
import torch, transformers
config = transformers.WhisperConfig(d_model=32, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2,
                                    encoder_ffn_dim=32, decoder_ffn_dim=32)
model = transformers.WhisperForConditionalGeneration(config).cuda().eval()
model.generation_config.suppress_tokens = model.generation_config.begin_suppress_tokens = None
with torch.no_grad():
    print("made", *model.generate(torch.rand(2, 80, 3000).cuda(), max_length=60, min_new_tokens=50).shape)
"""
NORM = """
import torch
x = torch.rand(4, 8, device="cuda", dtype=torch.bfloat16)
with torch.autocast("cuda", dtype=torch.bfloat16):
    print(torch.nn.functional.rms_norm(x, (8,), x[0]).dtype)
"""


def test_what_was_marked_is_all_that_is_found(tmp_path: Path) -> None:
    run, printed = on_virtual_gpu(MARKED, tmp_path)
    assert "seen all" in printed
    assert run.result.widened == {"nonzero": 2}, "those that were not known"


def test_what_came_from_the_host_keeps_its_elements(tmp_path: Path) -> None:
    run, printed = on_virtual_gpu(KNOWN, tmp_path)
    assert "seen all" in printed
    assert run.result.widened == {}


def test_types_of_the_card_as_older_programs_call_them(tmp_path: Path) -> None:
    assert "seen all" in on_virtual_gpu(OLD_TYPES, tmp_path)[1]


def test_what_has_bytes_is_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "seen all" in on_virtual_gpu(SAVED, tmp_path)[1]


def test_products_of_sparse_matrices_are_followed_and_the_rest_refused() -> None:
    told: list[str] = []
    sized = script_sizing.size_command(
        [sys.executable, "-W", "ignore", "-c", MATRICES],
        time_limit=60.0,
        gpu_total=None,
        allow_writes=True,
        tell=told.append,
    )
    assert "aten.add" in (sized.sizing.refused or "") and "sparse matrix" in (sized.sizing.refused or ""), (
        sized.sizing,
        told,
    )


def test_sparse_gradients_are_refused_by_name() -> None:
    script = "import torch\nrows = torch.nn.Embedding(9, 4, sparse=True).cuda()\nrows(torch.tensor([1, 2]).cuda()).sum().backward()"
    sized = script_sizing.size_command(
        [sys.executable, "-W", "ignore", "-c", script],
        time_limit=60.0,
        gpu_total=None,
        allow_writes=True,
        tell=print,
    )
    assert "sparse gradients" in (sized.sizing.refused or "")


def test_a_sparse_matrix_takes_its_places_and_numbers(tmp_path: Path) -> None:
    run, printed = on_virtual_gpu(MATRICES.rpartition("torch.add")[0], tmp_path)
    assert "seen all" in printed
    sizes = [size for number, size in run.events if number > 0]
    assert 2 * 5000 * 8 in sizes and 5000 * 4 in sizes and 4 * (1001 + 5000) in sizes


def test_a_check_of_numbers_passes(tmp_path: Path) -> None:
    assert "seen all" in on_virtual_gpu(CHECKED, tmp_path)[1]


def test_boxes_that_overlap_are_all_kept(tmp_path: Path) -> None:
    run, printed = on_virtual_gpu(BOXES, tmp_path)
    assert "seen all" in printed
    assert run.result.widened == {"nms": 1}


def test_an_answer_of_whisper_is_one_segment(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="transformers is not installed")
    _, printed = on_virtual_gpu(ANSWERS, tmp_path)
    assert printed.split()[:2] == ["made", "2"]


@pytest.mark.parametrize(
    ("version", "dtype"), [("2.11.0+cu130", "torch.bfloat16"), ("2.13.1", "torch.float32")]
)
def test_autocast_goes_by_the_lists_of_the_cards_torch(
    version: str, dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CARD_TORCH, version)
    assert on_virtual_gpu(NORM, tmp_path)[1].split() == [dtype]


def test_the_version_of_the_cards_file_reaches_the_script() -> None:
    script = NORM.replace("print(", "assert torch.float32 is (") + "raise SystemExit(7)"
    statuses = [
        script_sizing.size_command(
            [sys.executable, "-W", "ignore", "-c", script], time_limit=60.0, gpu_total=None, allow_writes=True,
            tell=lambda line: None, card_torch=version,
        ).status
        for version in ("2.12.0", "2.11.0")
    ]  # fmt: skip
    assert statuses == [7, 1]


def test_a_version_that_nobody_names_is_this_one() -> None:
    assert on_card("rms_norm", True, "") and not on_card("rms_norm", False, "")
    assert on_card("rms_norm", False, "2.12.0a0+git") and not on_card("rms_norm", True, "2.9")
    assert on_card("mm", True, "2.1") and not on_card("relu", False, "2.13")


def test_a_log_that_no_card_could_hold_is_no_answer() -> None:
    huge = [(1, 2 << 40), (-1, 2 << 40)]
    assert "unique" in virtual_run.by_values(a_run(huge, widened={"unique": 3}))
    assert not virtual_run.by_values(a_run(huge, widened={})), "a script that asks for it by itself"
    assert not virtual_run.by_values(a_run([(1, 30 << 30)], widened={"unique": 3}))

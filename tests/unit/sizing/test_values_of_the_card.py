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

MARKED = """
import torch
def marked(count):
    mask = torch.zeros(2000, dtype=torch.uint8, device="cuda")
    mask[torch.randperm(2000, device="cuda")[:count]] = 1
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
assert torch.where(torch.rand(30, device="cuda") > 0.5)[0].shape == (30,)
print("seen all")
"""
CHECKED = """
import torch
boxes = torch.rand(5, 4, device="cuda")
if not (boxes[:, 2:] >= boxes[:, :2]).all():  # as transformers does with DETR's
    raise ValueError("corners that are not corners")
assert torch.isfinite(boxes).all() and (boxes < 2).all()
assert not (torch.randint(0, 9, (5,), device="cuda") > 3).all(), "of a mask nobody knows"
assert not (boxes > 2).any() and not (boxes == boxes.clone()).all()
below = boxes < 2
below[0] = False
assert not below.all()
print("seen all")
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
    assert run.result["widened"] == {"nonzero": 2}, "those that were not known"


def test_a_check_of_numbers_passes(tmp_path: Path) -> None:
    assert "seen all" in on_virtual_gpu(CHECKED, tmp_path)[1]


def test_boxes_that_overlap_are_all_kept(tmp_path: Path) -> None:
    run, printed = on_virtual_gpu(BOXES, tmp_path)
    assert "seen all" in printed
    assert run.result["widened"] == {"nms": 1}


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

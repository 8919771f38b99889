"""Copies that convolutions on the CPU make: measured ones, and two that run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from helpers_sizing import on_virtual_gpu

from oomproof.sizing import virtual_run

torch = pytest.importorskip("torch", reason="the extra [ml] is not installed")
if not torch.backends.mkldnn.is_available():
    pytest.skip("this torch has no oneDNN", allow_module_level=True)

from torch._subclasses import FakeTensorMode  # noqa: E402

from oomproof.sizing.virtual_gpu import virtual_mode  # noqa: E402

aten = torch.ops.aten
MIB = 1 << 20
# (samples, channels, side, dimensions, filters, pixels, step, groups, channels last, gradient of the image), MiB that were taken beyond
# operands and results: forward and backward
AVX512 = {
    (64, 3, 192, 2, 32, 3, 1, 1, False, False): (288, 288),
    (64, 4, 192, 2, 32, 3, 1, 1, False, False): (288, 360),
    (64, 9, 192, 2, 4, 3, 1, 1, False, False): (144, 216),
    (64, 4, 192, 2, 4, 3, 1, 1, False, True): (144, 252),
    (32, 32, 128, 2, 20, 3, 1, 1, False, True): (88, 128),
    (64, 48, 96, 2, 1, 1, 1, 1, False, True): (142, 144),
    (64, 64, 96, 2, 64, 3, 1, 64, False, True): (144, 288),
    (64, 64, 96, 2, 32, 3, 2, 1, False, True): (144, 288),
    (32, 32, 128, 2, 32, 3, 1, 1, True, True): (0, 0),
    (64, 64, 16384, 1, 64, 3, 1, 1, False, True): (256, 512),
    (8, 32, 32, 3, 32, 3, 1, 1, False, True): (32, 64),
    (64, 512, 28, 2, 512, 3, 1, 1, False, True): (107, 205),
}
AVX2 = {
    (64, 4, 192, 2, 4, 3, 1, 1, False, True): (72, 144),
    (64, 9, 192, 2, 4, 3, 1, 1, False, True): (180, 216),
    (64, 2, 192, 2, 16, 3, 1, 1, False, False): (144, 216),
    (64, 3, 192, 2, 10, 3, 1, 1, False, True): (144, 189),
    (64, 20, 16384, 1, 40, 9, 1, 1, False, True): (160, 256),
}
CASES = [(capability, case, took) for capability, rows in (("AVX512", AVX512), ("AVX2", AVX2)) for case, took in rows.items()]  # fmt: skip


@pytest.mark.parametrize(("capability", "case", "took"), CASES)
def test_what_was_measured(
    capability: str, case: tuple, took: tuple, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    samples, channels, side, dimensions, filters, pixels, step, groups, last, wanted = case
    with FakeTensorMode():
        image = torch.empty((samples, channels, *[side] * dimensions))
        weight = torch.empty((filters, channels // groups, *[pixels] * dimensions))
        if last:
            image = image.to(memory_format=torch.channels_last)
        steps, edges, ones = [step] * dimensions, [pixels // 2] * dimensions, [1] * dimensions
        given = [image, weight, None, steps, edges, ones, False, [0] * dimensions, groups]
        out = aten.convolution.default(*given)
        backward = [out, image, weight, None, *given[3:], [wanted, True, False]]
        found = [
            virtual_mode.copies(aten.convolution.default, given, out),
            virtual_mode.copies(aten.convolution_backward.default, backward, None),
        ]
    assert [size / MIB for size in found] == pytest.approx(took, rel=0.03, abs=1)


SCRIPT = """
import torch
from torch import nn

model = nn.Sequential(nn.Conv2d(9, 16, 3, 1, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 2))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
pictures = torch.randn(16, 9, 96, 96)
for step in range(3):
    model(pictures).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_a_training_on_the_cpu_counts_them(tmp_path: Path) -> None:
    run, _ = on_virtual_gpu(SCRIPT, tmp_path)
    assert virtual_run.host_parts(run)["workspaces"] == (2 * 16 * 16 * 96 * 96 + 16 * 9 * 9) * 4


RUNS = """
import torch

def held(name):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) >> 10 for line in file if line.startswith(name))

image = torch.randn(16, 20, 256, 256, requires_grad=True)
weight = torch.randn(24, 20, 3, 3, requires_grad=True)
for samples in (1, 4):  # some 34 MiB are taken once, by the first large one
    torch.nn.functional.conv2d(image[:samples], weight, padding=1).sum().backward()
image.grad = None
before = held("VmRSS")
out = torch.nn.functional.conv2d(image, weight, padding=1)
forward = held("VmHWM") - before
after = held("VmRSS")  # lower than before by what was given back
torch.autograd.grad(out, [image, weight], out.detach())
print(forward, held("VmHWM") - after, torch.backends.cpu.get_cpu_capability())
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_a_convolution_that_runs() -> None:
    ended = subprocess.run([sys.executable, "-c", RUNS], capture_output=True, text=True, check=True)
    forward, backward, capability = ended.stdout.split()
    if capability not in ("AVX512", "AVX2"):
        pytest.skip(f"{capability}: another machine than those that were measured")
    with FakeTensorMode():
        image, weight = torch.empty(16, 20, 256, 256), torch.empty(24, 20, 3, 3)
        given = [image, weight, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1]
        out = aten.convolution.default(*given)
        made = out.numel() * 4 / MIB + virtual_mode.copies(aten.convolution.default, given, out) / MIB
        backward_given = [out, image, weight, None, *given[3:], [True, True, False]]
        copied = virtual_mode.copies(aten.convolution_backward.default, backward_given, None) / MIB
    assert float(forward) == pytest.approx(made, rel=0.1)
    assert float(backward) == pytest.approx(image.numel() * 4 / MIB + copied, rel=0.1)

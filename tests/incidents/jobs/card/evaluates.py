"""Keeps every logit of its evaluation, on a card that is only figures."""

from __future__ import annotations

import torch

GIB = 1 << 30


def evaluate():
    all_logits = []
    for _ in range(9):
        all_logits.append(torch.Tensor(16, 16, 1 << 20))  # a GiB
        torch.Figures.allocated += GIB
        torch.Figures.reserved += GIB
        torch.Figures.free -= GIB
    torch.refuse(15 * GIB)


torch.start_cuda()
torch.Figures.allocated, torch.Figures.reserved, torch.Figures.free = 2 * GIB, 2 * GIB, 21 * GIB
import oomproof  # noqa: E402

with oomproof.phase("eval"):
    evaluate()

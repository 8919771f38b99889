"""Keeps every logit of its evaluation, on a card that is only figures."""

from __future__ import annotations

import weakref

import torch

GIB = 1 << 30


def survives():
    """A job that catches the error and frees something must get it back: the account may keep nothing alive."""
    temporary = torch.Tensor(8, 1 << 20)
    alive = weakref.ref(temporary)
    try:
        torch.refuse(GIB)
    except torch.OutOfMemoryError:
        pass
    del temporary
    print("freed" if alive() is None else "KEPT ALIVE", flush=True)


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

survives()
with oomproof.phase("eval"):
    evaluate()

"""Leaves the card full of gaps: of every gigabyte a little in the middle stays alive; then asks for two in one piece."""

from __future__ import annotations

import torch

GIB, MIB = 1 << 30, 1 << 20


def evaluate() -> None:
    gigabytes = torch.cuda.mem_get_info()[0] // GIB
    blocks = [torch.empty(GIB, dtype=torch.uint8, device="cuda") for _ in range(gigabytes)]
    del blocks  # segments of a gigabyte, free
    pieces = [torch.empty(64 * MIB, dtype=torch.uint8, device="cuda") for _ in range(gigabytes * 16)]
    pieces.sort(key=lambda piece: piece.data_ptr())
    features = pieces[8::16]
    del pieces
    print(f"allocated {torch.cuda.memory_allocated()} reserved {torch.cuda.memory_reserved()}", flush=True)
    whole = torch.empty(2 * GIB, dtype=torch.uint8, device="cuda")
    print(f"done {len(features)} {whole.numel()}", flush=True)


model = torch.nn.Linear(64, 64).cuda()
model(torch.ones(1, 64, device="cuda")).sum().backward()
model.eval()
with torch.no_grad():
    evaluate()

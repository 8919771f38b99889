"""Takes the card in pieces of a quarter gigabyte until it is refused."""

from __future__ import annotations

import torch

model = torch.nn.Linear(1024, 1024).cuda()
model(torch.ones(8, 1024, device="cuda")).sum().backward()
held = []
while True:
    held.append(torch.empty(256 << 20, dtype=torch.uint8, device="cuda"))
    print(f"holds {len(held) / 4} GiB", flush=True)

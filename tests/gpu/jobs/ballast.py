"""Holds a card so that only SIZE GiB of it are free, until standard input closes: a small card made of a large one."""

from __future__ import annotations

import sys

import torch

GIB, MIB = 1 << 30, 1 << 20
wanted = int(float(sys.argv[1]) * GIB)
held = []
piece = GIB
while piece >= 16 * MIB:
    free, total = torch.cuda.mem_get_info()
    if free - piece >= wanted:
        held.append(torch.empty(piece, dtype=torch.uint8, device="cuda"))
    else:
        piece //= 2
free, total = torch.cuda.mem_get_info()
print(f"ready {free} {total}", flush=True)
sys.stdin.read()

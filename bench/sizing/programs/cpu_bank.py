"""A bank of vectors searched by brute force, as a flat index does it, for a network that learns from the neighbours."""

import numpy as np
import torch
from torch import nn

rng = np.random.default_rng(0)
bank = rng.standard_normal((250_000, 256), dtype=np.float32)
norms = (bank**2).sum(1)
encoder = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 256))
optimizer = torch.optim.Adam(encoder.parameters())
for _ in range(4):
    queries = encoder(torch.randn(64, 512))
    found = queries.detach().numpy()
    distances = norms[None] - 2 * found @ bank.T
    nearest = np.argpartition(distances, 10, axis=1)[:, :10]
    targets = torch.from_numpy(bank[nearest].mean(1))
    optimizer.zero_grad()
    (queries - targets).square().mean().backward()
    optimizer.step()
print(nearest.shape)

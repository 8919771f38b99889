"""Two large embeddings, as a recommender has them, trained on the CPU with dense Adam."""

import torch
from torch import nn

users, items = nn.Embedding(120_000, 64), nn.Embedding(60_000, 64)
pairs = torch.stack([torch.randint(0, 120_000, (200_000,)), torch.randint(0, 60_000, (200_000,))], 1)
optimizer = torch.optim.Adam([*users.parameters(), *items.parameters()])
for rows in pairs[:40_000].split(8192):
    optimizer.zero_grad()
    (users(rows[:, 0]) * items(rows[:, 1])).sum(1).sub(1).square().mean().backward()
    optimizer.step()

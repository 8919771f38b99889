"""A plain PyTorch loop, as tutorials write it: a residual network, loader workers, evaluation and torch.save per epoch."""

from __future__ import annotations

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(width, width, 3, padding=1) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x + self.second(torch.relu(self.first(x))))


if __name__ == "__main__":
    batch, workers = int(sys.argv[1]), int(sys.argv[2])
    torch.manual_seed(0)
    images, labels = torch.randn(768, 3, 32, 32), torch.randint(0, 10, (768,))
    train = DataLoader(TensorDataset(images[:640], labels[:640]), batch, shuffle=True, num_workers=workers)
    test = DataLoader(TensorDataset(images[640:], labels[640:]), batch, num_workers=workers)
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), *(Block(32) for _ in range(3)), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(512, 10)
    )  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(3):
        model.train()
        for x, y in train:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            right = sum(int((model(x).argmax(1) == y).sum()) for x, y in test)
        print(f"epoch {epoch} loss {loss.item():.3f} right {right}", flush=True)
        torch.save(model.state_dict(), "model.pt")

"""A dataset that keeps what it has decoded: memory grows through the whole first epoch, then no more."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Cached(Dataset[torch.Tensor]):
    def __init__(self, count: int) -> None:
        self.count = count
        self.kept: dict[int, torch.Tensor] = {}

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> torch.Tensor:
        if index not in self.kept:
            self.kept[index] = torch.randn(256, 256, generator=torch.Generator().manual_seed(index))
        return self.kept[index]


if __name__ == "__main__":
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    loader = DataLoader(Cached(900), batch_size=8, shuffle=True)
    for epoch in range(3):
        for x in loader:
            optimizer.zero_grad()
            for _ in range(4):
                loss = nn.functional.mse_loss(model(x), x)
                loss.backward()
            optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.3f}", flush=True)

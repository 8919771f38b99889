"""Convolutions on the CPU whose inputs are large beside their weights: satellite pictures of many channels, a small U-Net, or sound."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("network", choices=("satellite", "coarse", "segments", "sounds", "strided"))
parser.add_argument("--batch", type=int, default=64)
parser.add_argument("--side", type=int, default=192)
parser.add_argument("--last", action="store_true")
parser.add_argument("--steps", type=int, default=5)
args = parser.parse_args()
torch.manual_seed(0)


class Segments(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList(
            [nn.Conv2d(3, 24, 3, 1, 1), nn.Conv2d(24, 48, 3, 2, 1), nn.Conv2d(48, 96, 3, 2, 1)]
        )
        self.up = nn.ModuleList([nn.ConvTranspose2d(96, 48, 2, 2), nn.ConvTranspose2d(48, 24, 2, 2)])
        self.out = nn.Conv2d(24, 5, 1)

    def forward(self, x):
        kept = []
        for layer in self.down:
            x = layer(x).relu()
            kept.append(x)
        for layer, before in zip(self.up, reversed(kept[:-1]), strict=True):
            x = layer(x).relu() + before
        return self.out(x).flatten(2).mean(2)


def network() -> tuple[nn.Module, torch.Tensor]:
    if args.network == "satellite":
        layers = [
            nn.Conv2d(9, 16, 3, 1, 1),
            nn.ReLU(),
            nn.MaxPool2d(4),
            nn.Conv2d(16, 32, 3, 1, 1),
            nn.ReLU(),
        ]
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 5)), torch.randn(
            args.batch, 9, args.side, args.side
        )
    if args.network == "coarse":
        layers = [nn.Conv2d(9, 8, 7, 4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)]
        return nn.Sequential(*layers), torch.randn(args.batch, 9, args.side, args.side)
    if args.network == "segments":
        return Segments(), torch.randn(args.batch, 3, args.side, args.side)
    if args.network == "sounds":
        layers = [
            nn.Conv1d(1, 32, 9, 4, 4),
            nn.GELU(),
            nn.Conv1d(32, 64, 9, 2, 4),
            nn.GELU(),
            nn.Conv1d(64, 64, 3, 1, 1),
        ]
        return nn.Sequential(*layers, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(64, 5)), torch.randn(
            args.batch, 1, args.side * 256
        )
    layers = [
        nn.Conv2d(3, 64, 7, 2, 3),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.Conv2d(64, 64, 3, 2, 1),
        nn.BatchNorm2d(64),
        nn.ReLU(),
    ]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 5)), torch.randn(
        args.batch, 3, args.side, args.side
    )


model, pictures = network()
if args.last:
    model, pictures = (
        model.to(memory_format=torch.channels_last),
        pictures.to(memory_format=torch.channels_last),
    )
optimizer = torch.optim.SGD(model.parameters(), 0.01)
labels = torch.randint(0, 5, (args.batch,))
for step in range(args.steps):
    loss = F.cross_entropy(model(pictures), labels)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(step, loss.item(), flush=True)

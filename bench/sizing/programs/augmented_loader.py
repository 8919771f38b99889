"""Images, heavily augmented by the workers of a DataLoader, for a small network: most of its memory is the host's."""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Images(Dataset):
    """Pictures as a decoder gives them, larger than what is wanted; ``kept``: MiB of labels and paths as Python objects."""

    def __init__(self, count: int, side: int, kept: int) -> None:
        self.count, self.side = count, side
        self.paths = [
            f"/data/train/class-{index % 1000:04}/picture-{index:08}.jpg" for index in range(kept * 9000)
        ]

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if self.paths:
            self.paths[index * 7919 % len(self.paths)].rpartition("/")
        rng = np.random.default_rng(index)
        large = 2 * self.side
        image = rng.integers(0, 256, (large, large, 3), dtype=np.uint8)
        top, left = rng.integers(0, self.side, 2)
        image = image[top : top + self.side, left : left + self.side][:, :: rng.choice((1, -1))]
        pixels = image.astype(np.float64) / 255.0
        pixels = np.clip((pixels - pixels.mean()) * rng.uniform(0.6, 1.4) + rng.uniform(0.3, 0.7), 0.0, 1.0)
        tensor = torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1))).float()
        blurred = F.avg_pool2d(tensor[None], 5, 1, 2)[0]
        tensor = torch.where(torch.rand(1) < 0.5, blurred, tensor)
        return (tensor - 0.45) / 0.225, index % 10


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--prefetch", type=int)
    parser.add_argument("--method", default="")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--side", type=int, default=112)
    parser.add_argument("--kept", type=int, default=0)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--pin", action="store_true")
    parser.add_argument("--persistent", action="store_true")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--pause", type=float, default=0.1)
    args = parser.parse_args()
    loader = DataLoader(
        Images(args.batch * args.steps, args.side, args.kept), args.batch, shuffle=True, num_workers=args.workers,
        prefetch_factor=args.prefetch, multiprocessing_context=args.method or None, pin_memory=args.pin,
        persistent_workers=args.persistent,
    )  # fmt: skip
    model = nn.Sequential(
        nn.Conv2d(3, 8, 7, 4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10)
    ).to(args.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step, (images, labels) in enumerate(loader):
        loss = F.cross_entropy(model(images.to(args.device, non_blocking=True)), labels.to(args.device))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(args.pause)  # a larger network
        if step % 20 == 0:
            print(step, loss.item(), flush=True)


if __name__ == "__main__":
    main()

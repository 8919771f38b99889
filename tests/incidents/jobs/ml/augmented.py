"""A training whose DataLoader augments heavily: each worker holds a batch of large float copies, the queue holds more of them."""

import argparse

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument("--accum", type=int, default=1)
parser.add_argument("--workers", type=int, default=16)
parser.add_argument("--samples", type=int, default=1536)
arguments = parser.parse_args()
torch.set_num_threads(1)
SIDE = 96


class Images(Dataset):
    def __len__(self) -> int:
        return arguments.samples

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        rng = np.random.default_rng(index)
        image = rng.integers(0, 255, (3, SIDE, SIDE), dtype=np.uint8).astype(np.float64) / 255
        crops = [np.roll(image, shift, axis=(1, 2))[:, ::turn] for shift in range(4) for turn in (1, -1)]
        return torch.from_numpy(np.concatenate(crops).astype(np.float32)), index % 10


loader = DataLoader(Images(), arguments.batch_size, num_workers=arguments.workers)
model = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(4), torch.nn.Flatten(), torch.nn.Linear(24 * 16, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
seen = steps = pending = 0
effective = set()
for batch, (images, labels) in enumerate(loader, 1):
    loss = torch.nn.functional.cross_entropy(model(images), labels) / arguments.accum
    loss.backward()
    seen, pending = seen + len(images), pending + len(images)
    if batch % arguments.accum == 0:
        optimizer.step()
        optimizer.zero_grad()
        steps += 1
        effective.add(pending)
        pending = 0
print(f"{seen} samples in {steps} steps of {sorted(effective)}", flush=True)

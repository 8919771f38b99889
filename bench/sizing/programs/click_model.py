"""DLRM: tables of categories, a network for numbers, products of all pairs, one answer; the defaults of the published model."""

import argparse
from itertools import pairwise

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=32768)
parser.add_argument("--steps", type=int, default=4)
args = parser.parse_args()
TABLES = (1460, 583, 1000000, 200000, 305, 24, 12517, 633, 3, 93145, 5683, 800000, 3194, 27, 14992, 500000, 10, 5652, 2173, 4, 700000, 18, 15,
          286181, 105, 142572)  # fmt: skip
WIDTH = 16


def network(widths, last):
    layers = []
    for inner, outer in pairwise(widths):
        layers += [nn.Linear(inner, outer), nn.ReLU()]
    layers[-1] = last
    return nn.Sequential(*layers)


class Clicks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, WIDTH, mode="sum") for rows in TABLES)
        self.bottom = network((13, 512, 256, 64, WIDTH), nn.ReLU())
        pairs = (len(TABLES) + 1) * len(TABLES) // 2
        self.top = network((pairs + WIDTH, 512, 256, 1), nn.Sigmoid())
        row, column = torch.tril_indices(len(TABLES) + 1, len(TABLES) + 1, -1)
        self.register_buffer("row", row)
        self.register_buffer("column", column)

    def forward(self, numbers, categories):
        x = self.bottom(numbers)
        offsets = torch.arange(len(x), device=x.device)
        vectors = [x, *(table(categories[:, index], offsets) for index, table in enumerate(self.tables))]
        stacked = torch.stack(vectors, 1)
        products = torch.bmm(stacked, stacked.transpose(1, 2))[:, self.row, self.column]
        return self.top(torch.cat([x, products], 1)).squeeze(1)


torch.manual_seed(0)
model = Clicks().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(args.steps):
    numbers = torch.rand(args.batch, 13).cuda()
    categories = torch.stack([torch.randint(0, rows, (args.batch,)) for rows in TABLES], 1).cuda()
    clicked = torch.randint(0, 2, (args.batch,)).float().cuda()
    loss = nn.functional.binary_cross_entropy(model(numbers, categories), clicked)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.4f}", flush=True)

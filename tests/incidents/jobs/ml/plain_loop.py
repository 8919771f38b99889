"""A plain PyTorch loop that listens: its loader is watched, what comes after the loop saves."""

import sys

import torch
from torch.utils.data import DataLoader, TensorDataset

import oomproof


def main():
    path = sys.argv[1]
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = DataLoader(TensorDataset(torch.randn(10_000_000, 8), torch.randn(10_000_000, 1)), batch_size=4)
    step = 0
    for x, y in oomproof.watch(data):
        loss = ((model(x) - y) ** 2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        step += 1
    with oomproof.inference():
        model(torch.randn(1, 8))
    torch.save({"model": model.state_dict(), "step": step}, path)
    print(f"saved at step {step}", flush=True)


if __name__ == "__main__":
    main()

"""Incident I2: a two-tower training with a progress bar that dies in one of five ways after a given number of batches."""

import argparse
import ctypes
import os
import sys
import time

import torch
from torch.utils.data import DataLoader, TensorDataset
from tqdm import tqdm


def take_everything():
    held = []
    while True:
        held.append(bytearray(os.urandom(1 << 20) * 16))


def die(how, go):
    if how in ("oom", "killed"):
        print("waiting", flush=True)
        while not os.path.exists(go):
            time.sleep(0.05)
        take_everything()
    elif how == "segfault":
        ctypes.string_at(0)
    elif how == "abort":
        os.abort()
    elif how == "error":
        raise ValueError("the bank has 3 vectors fewer than the batch asks for")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--die", default="")
    parser.add_argument("--at", type=int, default=0)
    parser.add_argument("--go", default="")
    arguments = parser.parse_args()
    left, right = torch.nn.Linear(32, 16), torch.nn.Linear(32, 16)
    optimizer = torch.optim.AdamW([*left.parameters(), *right.parameters()], lr=1e-3)
    data = DataLoader(TensorDataset(torch.randn(4000, 32), torch.randn(4000, 32)), batch_size=4)
    bar = tqdm(data, desc="train", mininterval=0, file=sys.stderr)
    for done, (a, b) in enumerate(bar):
        if done == arguments.at:
            die(arguments.die, arguments.go)
        loss = (left(a) - right(b)).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print("done", flush=True)


if __name__ == "__main__":
    main()

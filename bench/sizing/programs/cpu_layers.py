"""Two wide layers trained on the CPU: activations just below and well below what malloc maps, weights above it."""

import argparse

import torch

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=2000)
parser.add_argument("--hidden", type=int, default=4096)
options = parser.parse_args()

model = torch.nn.Sequential(
    torch.nn.Linear(2048, options.hidden), torch.nn.ReLU(), torch.nn.Linear(options.hidden, 2048)
)
optimizer = torch.optim.Adam(model.parameters())
inputs = torch.randn(options.batch, 2048)
for _ in range(12):
    loss = torch.nn.functional.mse_loss(model(inputs), inputs)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()

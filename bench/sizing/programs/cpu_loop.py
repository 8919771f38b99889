"""A convolutional network trained on the CPU by a plain loop, with an evaluation and a checkpoint."""

import os
import tempfile

import torch
from torch import nn

torch.manual_seed(0)


def block(inner: int, outer: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(inner, outer, 3, 1, 1), nn.BatchNorm2d(outer), nn.ReLU(), nn.MaxPool2d(2))


model = nn.Sequential(
    block(3, 32),
    block(32, 64),
    block(64, 128),
    nn.Flatten(),
    nn.Linear(128 * 8 * 8, 1024),
    nn.ReLU(),
    nn.Linear(1024, 10),
)
data = torch.utils.data.TensorDataset(torch.randn(384, 3, 64, 64), torch.randint(0, 10, (384,)))
optimizer = torch.optim.AdamW(model.parameters())
for epoch in range(2):
    model.train()
    for images, labels in torch.utils.data.DataLoader(data, 32, shuffle=True):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        right = sum(
            (model(images).argmax(1) == labels).sum().item()
            for images, labels in torch.utils.data.DataLoader(data, 128)
        )
    with tempfile.TemporaryDirectory() as folder:
        torch.save(
            {"model": model.state_dict(), "optimizer": optimizer.state_dict()},
            os.path.join(folder, "last.pt"),
        )
    print(epoch, right)

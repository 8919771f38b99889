"""A transformer encoder that learns to classify on the CPU, its data in one tensor."""

import torch
from torch import nn

data = torch.randn(2000, 48, 192)
labels = torch.randint(0, 5, (2000,))
layer = nn.TransformerEncoderLayer(192, 4, 768, batch_first=True)
model = nn.ModuleDict({"encoder": nn.TransformerEncoder(layer, 3), "head": nn.Linear(192, 5)})
optimizer = torch.optim.AdamW(model.parameters())
for rows in torch.arange(320).split(64):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model["head"](model["encoder"](data[rows]).mean(1)), labels[rows]).backward()
    optimizer.step()

"""A table of features in numpy, scaled and split as scikit-learn does it, then a network on all of it."""

import numpy as np
import torch
from torch import nn

rng = np.random.default_rng(0)
features = rng.standard_normal((200_000, 120))
labels = (features[:, :3].sum(1) > 0).astype(np.int64)
scaled = (features - features.mean(0)) / features.std(0)
order = rng.permutation(len(scaled))
train, test = scaled[order[:160_000]].astype(np.float32), scaled[order[160_000:]].astype(np.float32)
x, y = torch.from_numpy(train), torch.from_numpy(labels[order[:160_000]])
model = nn.Sequential(nn.Linear(120, 256), nn.ReLU(), nn.Linear(256, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for rows in torch.randperm(len(x)).split(8192):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
    optimizer.step()
with torch.no_grad():
    print((model(torch.from_numpy(test)).argmax(1).numpy() == labels[order[160_000:]]).mean())

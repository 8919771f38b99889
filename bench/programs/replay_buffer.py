"""Reinforcement learning with a replay buffer: it fills for half of the training, then the oldest give way."""

from __future__ import annotations

import random
from collections import deque

import torch
from torch import nn

if __name__ == "__main__":
    random.seed(0)
    buffer: deque[tuple[torch.Tensor, int, float]] = deque(maxlen=4000)
    model = nn.Sequential(nn.Linear(84 * 84, 64), nn.ReLU(), nn.Linear(64, 4))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    for step in range(8000):
        state = torch.rand(84 * 84)
        with torch.no_grad():
            action = int(model(state).argmax()) if random.random() > 0.1 else random.randrange(4)
        buffer.append((state, action, float(state.mean())))
        if step % 4 == 0 and len(buffer) >= 64:
            states, actions, rewards = zip(*random.sample(list(buffer), 32), strict=True)
            value = model(torch.stack(states)).gather(1, torch.tensor(actions)[:, None])[:, 0]
            loss = nn.functional.mse_loss(value, torch.tensor(rewards))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    print(f"loss {loss.item():.4f}")

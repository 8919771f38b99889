"""A training with one of the leaks that everybody has had: `known_leaks.py losses|hook|cache|logits|workers`. Ends after 3000 steps."""

import sys
import time

import torch
from _oomproof.agent import agent_core  # what a run puts into a job

agent_core._HEAP, agent_core._HEAP_COST = (
    1.0,
    0.0,
)  # a look at the heap each ten seconds is too rare for a test
torch.set_num_threads(1)
CACHE = {}


class Recorder:
    def __init__(self):
        self.activations = []

    def hook(self, module, inputs, output):
        self.activations.append(output)


class Rows(torch.utils.data.Dataset):
    def __init__(self):
        self.rows = [f"row {number} with some words in it" for number in range(2_000_000)]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return len(self.rows[index])


def main(kind):
    model = torch.nn.Linear(512, 512)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    recorder, losses, history, outputs = Recorder(), [], [], []
    if kind == "hook":
        model.register_forward_hook(recorder.hook)
    for step in range(3000):
        loss = model(torch.randn(600, 512)).square().mean()
        optimizer.zero_grad()
        loss.backward(retain_graph=True)
        optimizer.step()
        history.append(loss.item())
        if kind == "losses":
            losses.append(loss)
        elif kind == "cache":
            CACHE[step] = torch.ones(600, 512)
        elif kind == "logits" and step % 5 == 4:
            model.eval()
            with torch.no_grad():
                for _ in range(5):
                    outputs.append(model(torch.randn(600, 512)))
            model.train()
        time.sleep(0.15)


def load():
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    loader = torch.utils.data.DataLoader(Rows(), batch_size=3000, num_workers=2)
    for batch in loader:
        optimizer.zero_grad()
        model(batch.float()[:8, None]).mean().backward()
        optimizer.step()
        time.sleep(0.08)


if __name__ == "__main__":
    load() if sys.argv[1] == "workers" else main(sys.argv[1])

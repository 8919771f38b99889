"""What the agent inside the job costs: a Python's start, and a training step. Aim: under 0.5 % of a step.

Each pair of measurements is taken in turn, with and without the agent, so that a neighbour's load falls on both.
The agent's own microseconds are measured on a tiny model, where they show; a larger one shows what they are worth.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from lab import quantile, save, table

SITE = Path(__file__).parents[1] / "src" / "oomproof" / "agent" / "site"

# One process, with the agent in it; its hooks are taken out and put back in turn, a block of steps each.
LOOP = """
import json, sys, time
import torch
from torch.utils.data import DataLoader, TensorDataset, dataloader

torch.set_num_threads(1)
width, layers, batch, steps, blocks = map(int, sys.argv[1:])
model = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(layers)))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
data = DataLoader(TensorDataset(torch.randn(batch * steps, width)), batch_size=batch)
hooks = sys.modules["torch.optim.optimizer"]._global_optimizer_post_hooks
ours = dict(hooks)
iterator, module = dataloader._BaseDataLoaderIter, torch.nn.Module
wrapped = [(iterator, "__next__"), (torch.autograd, "backward"), (module, "train"), (module, "eval")]
patches = [(owner, name, getattr(owner, name)) for owner, name in wrapped]
assert len(ours) == 1 and all(hasattr(patch, "__wrapped__") for _, _, patch in patches), "the agent is not here"

def put(agent):
    hooks.clear()
    hooks.update(ours if agent else {})
    for owner, name, patch in patches:
        setattr(owner, name, patch if agent else patch.__wrapped__)

taken = {True: [], False: []}
for block in range(2 * blocks + 2):
    put(block % 2 == 1)
    begun = time.process_time()
    model.train()
    for (x,) in data:
        loss = model(x).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    if block > 1:
        taken[block % 2 == 1].append((time.process_time() - begun) / steps)
print(json.dumps([taken[False], taken[True]]))
"""


def environment(folder: str, agent: bool) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OOMPROOF", "PYTHON"))}
    if not agent:
        return kept
    return {
        **kept,
        "PYTHONPATH": str(SITE),
        "OOMPROOF_AGENT": folder,
        "OOMPROOF_AGENT_SOCKET": f"{folder}/socket",
        "OOMPROOF_STOP_FILE": f"{folder}/stop",
    }


def listen(folder: str) -> None:
    """Somebody who reads, as a front does."""
    receiver = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    receiver.bind(f"{folder}/socket")

    def read() -> None:
        while True:
            receiver.recv(65536)

    threading.Thread(target=read, daemon=True).start()


def start_up(folder: str, repeats: int) -> tuple[list[float], list[float]]:
    """CPU seconds of `python -c pass`: (without, with)."""
    taken: tuple[list[float], list[float]] = ([], [])
    for turn in range(repeats + 1):
        for agent in (False, True):
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run([sys.executable, "-c", "pass"], env=environment(folder, agent), check=True)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            if turn:  # the first compiles bytecode
                taken[agent].append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return taken


def steps(folder: str, *shape: int) -> tuple[list[float], list[float]]:
    """CPU seconds of a step, block by block: (without, with)."""
    done = subprocess.run(
        [sys.executable, "-c", LOOP, *map(str, shape)],
        env=environment(folder, True),
        check=True,
        capture_output=True,
        text=True,
    )
    without, with_agent = json.loads(done.stdout)
    return without, with_agent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=60)
    repeats = parser.parse_args().repeats
    with tempfile.TemporaryDirectory() as folder:
        listen(folder)
        measured = (
            ("start of Python, ms of CPU", 1e3, start_up(folder, repeats)),
            ("step of a tiny model, µs of CPU", 1e6, steps(folder, 16, 1, 4, 200, repeats)),
            ("step of eight layers of 512, µs of CPU", 1e6, steps(folder, 512, 8, 32, 10, repeats // 2)),
        )
    rows = []
    results: dict[str, object] = {"repeats": repeats}
    for name, unit, (without, with_agent) in measured:
        # the quickest tenth: what the neighbours on the machine add is never negative
        low, high = (quantile(each, 0.1) * unit for each in (without, with_agent))
        middle, above = (quantile(each, 0.5) * unit for each in (without, with_agent))
        rows.append(
            [name, f"{low:.1f}", f"{high:.1f}", f"{high - low:+.1f}", f"{middle:.1f}", f"{above:.1f}"]
        )
        results[name] = {"without": without, "with": with_agent}
    title = f"The agent (load {os.getloadavg()[0]:.1f}); p10 of {repeats} each, then the medians"
    table(title, ["", "without", "with", "more", "median without", "with"], rows)
    tiny, usual = measured[1][2], measured[2][2]
    cost = quantile(tiny[1], 0.1) - quantile(tiny[0], 0.1)
    share = cost / quantile(usual[0], 0.1)
    print(
        f"\naim: under 0.5 % of a training step: {cost * 1e6:.1f} µs, {share:.3%} of the second model's",
        end=", ",
    )
    print("met" if share < 0.005 else "MISSED")
    save("agent", {**results, "cost_s": cost, "share": share})


if __name__ == "__main__":
    main()

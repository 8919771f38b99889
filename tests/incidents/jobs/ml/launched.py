"""A plain loop without a DataLoader, in a process that something else starts: a launcher, mp.spawn, or hogwild's parent."""

import os
import sys
import time

import torch
import torch.multiprocessing as mp


def train(rank, steps, model=None):
    model = model or torch.nn.Linear(64, 64)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        torch.distributed.init_process_group("gloo")
        model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    kept = []
    for _ in range(steps):
        loss = model(torch.randn(8, 64)).pow(2).mean()
        kept.append(torch.ones(1 << 20))
        time.sleep(0.01)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def main():
    how, steps = sys.argv[1], int(sys.argv[2])
    if how == "spawn":
        mp.spawn(train, args=(steps,), nprocs=2)
    elif how == "hogwild":
        mp.set_start_method("spawn")
        model = torch.nn.Linear(64, 64).share_memory()
        workers = [mp.Process(target=train, args=(rank, steps, model)) for rank in range(2)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    else:
        train(0, steps)


if __name__ == "__main__":
    main()

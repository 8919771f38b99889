"""Distributed data parallel on the CPU: every rank asks for itself, all must stop in the same step."""

import sys

import torch
import torch.distributed as dist

import oomproof


def main():
    path = sys.argv[1]
    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    step = 0
    while True:
        step += 1
        loss = model(torch.randn(4, 8)).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if oomproof.stop_requested():
            break
    if dist.get_rank() == 0:
        torch.save({"model": model.module.state_dict(), "step": step}, path)
    print(f"rank {dist.get_rank()} stopped at step {step}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

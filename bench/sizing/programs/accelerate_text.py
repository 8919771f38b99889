"""A loop around Hugging Face Accelerate: mixed precision, accumulation, clipping."""

import argparse

import torch
from accelerate import Accelerator
from shapes import make

parser = argparse.ArgumentParser()
parser.add_argument("model")
parser.add_argument("--batch", type=int, default=16)
parser.add_argument("--length", type=int, default=256)
parser.add_argument("--accumulate", type=int, default=2)
args = parser.parse_args()

accelerator = Accelerator(mixed_precision="bf16", gradient_accumulation_steps=args.accumulate)
model = make(args.model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
data = torch.utils.data.TensorDataset(
    torch.randint(0, 30000, (args.batch * args.accumulate * 4, args.length)),
    torch.randint(0, 2, (args.batch * args.accumulate * 4,)),
)
model, optimizer, loader = accelerator.prepare(
    model, optimizer, torch.utils.data.DataLoader(data, args.batch)
)
model.train()
for ids, labels in loader:
    with accelerator.accumulate(model):
        loss = model(input_ids=ids, labels=labels).loss
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
print(f"loss {loss.item():.3f}", flush=True)

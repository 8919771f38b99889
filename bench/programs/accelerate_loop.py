"""accelerate: a loop of its own with gradient accumulation and saved states, a GPT-2 with random weights."""

from __future__ import annotations

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset
from transformers import GPT2Config, GPT2LMHeadModel

if __name__ == "__main__":
    accelerator = Accelerator(gradient_accumulation_steps=4, cpu=True)
    ids = torch.randint(0, 2000, (480, 64), generator=torch.Generator().manual_seed(1))
    model = GPT2LMHeadModel(GPT2Config(vocab_size=2000, n_embd=256, n_layer=3, n_head=4, n_positions=64))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    model, optimizer, loader = accelerator.prepare(
        model, optimizer, DataLoader(TensorDataset(ids), batch_size=4)
    )
    for epoch in range(2):
        for (batch,) in loader:
            with accelerator.accumulate(model):
                loss = model(batch, labels=batch).loss
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
        print(f"epoch {epoch} loss {loss.item():.3f}", flush=True)
        accelerator.save_state("state")

"""transformers: a GPT-2 with random weights generates; the cache grows within each call and is given back."""

from __future__ import annotations

import torch
from transformers import GPT2Config, GPT2LMHeadModel

if __name__ == "__main__":
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=2000, n_embd=256, n_layer=4, n_head=4)).eval()
    for _ in range(4):
        prompt = torch.randint(0, 2000, (8, 16))
        told = model.generate(prompt, max_new_tokens=200, do_sample=True, pad_token_id=0)
        print(tuple(told.shape), flush=True)

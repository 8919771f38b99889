"""A decoder with random weights: a few training steps, then an evaluation that generates, then steps again. By hand, on a GPU."""

import argparse

import torch
from transformers import LlamaConfig, LlamaForCausalLM

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, required=True)
parser.add_argument("--steps", type=int, default=4)
parser.add_argument("--new-tokens", type=int, default=256)
options = parser.parse_args()


class Texts(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((256,), index % 32000)


config = LlamaConfig(
    hidden_size=1024, intermediate_size=2816, num_hidden_layers=16, num_attention_heads=16, num_key_value_heads=16,
    vocab_size=32000, max_position_embeddings=2048, eos_token_id=None, pad_token_id=0,
)  # fmt: skip
model = LlamaForCausalLM(config).cuda()
optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
loader = torch.utils.data.DataLoader(Texts(), batch_size=options.batch_size)
for _ in range(2):
    model.train()
    for step, batch in enumerate(loader):
        if step == options.steps:
            break
        batch = batch.cuda()
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(input_ids=batch, labels=batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.eval()
    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
        prompt = torch.ones(options.batch_size, 64, dtype=torch.long, device="cuda")
        model.generate(prompt, max_new_tokens=options.new_tokens, do_sample=False)
free, total = torch.cuda.mem_get_info()
print(
    f"peak {torch.cuda.max_memory_reserved()} retries {torch.cuda.memory_stats()['num_alloc_retries']}",
    flush=True,
)

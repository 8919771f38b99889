"""A training that evaluates now and then, as people write them: nothing in here knows of oomproof.

Modes: generate (KV cache), logits (results kept in a list), quiet (generates, then trains on slowly until --until FILE exists),
steps (training only, prints seconds per step), plain (a large temporary in the evaluation, then training).
"""

from __future__ import annotations

import argparse
import json
import os
import time

import torch

parser = argparse.ArgumentParser()
parser.add_argument("mode")
parser.add_argument("--batch", type=int, default=512)
parser.add_argument("--prompt", type=int, default=384)
parser.add_argument("--new-tokens", type=int, default=512)
parser.add_argument("--steps", type=int, default=3)
parser.add_argument("--evals", type=int, default=1)
parser.add_argument("--to-cpu", action="store_true")
parser.add_argument("--until", default="")
parser.add_argument(
    "--hold", default=""
)  # of two copies: the first holds its evaluation until this file exists
parser.add_argument("--device", default="cuda")
options = parser.parse_args()
DEVICE = options.device
TINY = DEVICE == "cpu"  # to try the script itself
VOCABULARY = 64 if TINY else 32000


def language_model():
    from transformers import LlamaConfig, LlamaForCausalLM

    # 64 KiB of cache for a token: 8 layers, 16 heads of 128, two bytes
    config = LlamaConfig(
        hidden_size=64 if TINY else 1024, intermediate_size=2048, num_hidden_layers=1 if TINY else 8, num_attention_heads=16, num_key_value_heads=16,
        head_dim=128, vocab_size=VOCABULARY, max_position_embeddings=8192, eos_token_id=None, bos_token_id=1, pad_token_id=0,
    )  # fmt: skip
    return LlamaForCausalLM(config).to(DEVICE, torch.float32 if TINY else torch.bfloat16)


class Tower(torch.nn.Module):
    """Small, and its logits are large."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(VOCABULARY, 512)
        self.layers = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(4)])
        self.head = torch.nn.Linear(512, VOCABULARY)

    def forward(self, tokens):
        return self.head(self.layers(self.embedding(tokens)))


def train_step(model, optimizer, length=8 if TINY else 256, batch=8):
    model.train()
    tokens = torch.randint(2, VOCABULARY, (batch, length), device=DEVICE)
    if isinstance(model, Tower):
        loss = torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1).float(), tokens.flatten())
    else:
        loss = model(tokens, labels=tokens).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss


def evaluate_by_generating(model):
    model.eval()
    prompts = torch.randint(2, VOCABULARY, (options.batch, options.prompt), device=DEVICE)
    return model.generate(
        prompts, max_new_tokens=options.new_tokens, min_new_tokens=options.new_tokens, do_sample=False
    )


@torch.no_grad()
def evaluate_by_logits(model, batches=14):
    model.eval()
    all_logits = []
    for number in range(batches):
        tokens = torch.randint(2, VOCABULARY, (options.batch, 8 if TINY else 512), device=DEVICE)
        logits = model(tokens)
        all_logits.append(
            logits.cpu()
            if options.to_cpu and number < 2
            else logits[:, -1].cpu()
            if options.to_cpu
            else logits
        )
        print(f"eval batch {number}: {len(all_logits)} kept", flush=True)
    return all_logits


@torch.no_grad()
def evaluate_with_a_large_temporary(model, gigabytes):
    model.eval()
    pieces = [
        torch.empty(1 << 10 if TINY else 1 << 30, dtype=torch.uint8, device=DEVICE) for _ in range(gigabytes)
    ]
    score = float(sum(piece[0].float() for piece in pieces))
    if options.hold:
        open(options.hold + ".holding", "w").close()
        while not os.path.exists(options.hold):
            time.sleep(0.1)
    return score


def held() -> str:
    if DEVICE == "cpu":
        return "cpu"
    return json.dumps({"allocated": torch.cuda.memory_allocated(), "reserved": torch.cuda.memory_reserved()})


def main() -> None:
    model = language_model() if options.mode in ("generate", "quiet") else Tower().to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for step in range(1, options.steps + 1):
        begun = time.perf_counter()
        loss = train_step(model, optimizer)
        if options.mode == "steps":
            loss.item()
            print(f"step {step} {time.perf_counter() - begun:.6f}", flush=True)
        else:
            print(f"step {step} loss {loss.item():.3f} {held()}", flush=True)
    for _ in range(options.evals):
        if options.mode in ("generate", "quiet"):
            evaluate_by_generating(model)
        elif options.mode == "logits":
            evaluate_by_logits(model)
        elif options.mode == "plain":
            evaluate_with_a_large_temporary(model, options.batch)
        print(f"evaluated {held()}", flush=True)
        train_step(model, optimizer)
        print(f"after {held()}", flush=True)
    if options.until:
        open(options.until + ".ready", "w").close()
        while not os.path.exists(options.until):
            train_step(model, optimizer)
            time.sleep(0.2)
    print("done", flush=True)


main()

"""Trains a Whisper on random spectrograms."""

import argparse
import contextlib

import torch
from transformers import WhisperConfig, WhisperForConditionalGeneration

parser = argparse.ArgumentParser()
parser.add_argument("shape", choices=("tiny", "small"))
parser.add_argument("--batch", type=int, default=16)
parser.add_argument("--amp", action="store_true")
parser.add_argument("--checkpointing", action="store_true")
parser.add_argument("--steps", type=int, default=4)
args = parser.parse_args()

width, layers, heads = {"tiny": (384, 4, 6), "small": (768, 12, 12)}[args.shape]
model = WhisperForConditionalGeneration(WhisperConfig(
    d_model=width, encoder_layers=layers, decoder_layers=layers, encoder_attention_heads=heads, decoder_attention_heads=heads,
    encoder_ffn_dim=4 * width, decoder_ffn_dim=4 * width,
)).cuda().train()  # fmt: skip
if args.checkpointing:
    model.gradient_checkpointing_enable()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
for step in range(args.steps):
    sound = torch.randn(args.batch, 80, 3000).cuda()
    words = torch.randint(0, 50000, (args.batch, 224)).cuda()
    with torch.autocast("cuda", torch.bfloat16) if args.amp else contextlib.nullcontext():
        loss = model(input_features=sound, labels=words).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {step} loss {loss.item():.3f}", flush=True)

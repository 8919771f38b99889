"""Images and texts in one space: a ViT and a text encoder, float16 with a GradScaler, a loss over all pairs of the batch."""

import argparse

import torch
import torch.nn.functional as F
from transformers import CLIPConfig, CLIPModel

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=256)
args = parser.parse_args()

model = CLIPModel(CLIPConfig()).cuda().train()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
scaler = torch.amp.GradScaler("cuda")
for step in range(4):
    images, words = (
        torch.randn(args.batch, 3, 224, 224).cuda(),
        torch.randint(1, 49000, (args.batch, 77)).cuda(),
    )
    with torch.autocast("cuda", torch.float16):
        out = model(pixel_values=images, input_ids=words, attention_mask=torch.ones_like(words))
        target = torch.arange(args.batch, device="cuda")
        loss = (
            F.cross_entropy(out.logits_per_image, target) + F.cross_entropy(out.logits_per_text, target)
        ) / 2
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    print(f"step {step} loss {loss.item():.3f}", flush=True)

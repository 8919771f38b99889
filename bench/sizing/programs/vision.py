"""Trains a torchvision model on random images: what people write around `torchvision.models`."""

import argparse
import contextlib

import torch
import torchvision
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("model")
parser.add_argument("--batch", type=int, default=64)
parser.add_argument("--size", type=int, default=224)
parser.add_argument("--frames", type=int, default=0)
parser.add_argument("--optimizer", default="SGD")
parser.add_argument("--amp", choices=("bfloat16", "float16"))
parser.add_argument("--channels-last", action="store_true")
parser.add_argument("--benchmark", action="store_true")
parser.add_argument("--steps", type=int, default=4)
args = parser.parse_args()

torch.backends.cudnn.benchmark = args.benchmark
device = torch.device("cuda")
family = torchvision.models
dense = hasattr(family.segmentation, args.model)
if args.frames:
    family = family.video
elif dense:
    family = family.segmentation
options = {"weights": None, "num_classes": 1000}
if dense:
    options.update(num_classes=21, weights_backbone=None)
model = getattr(family, args.model)(**options)
if args.channels_last:
    model = model.to(memory_format=torch.channels_last)
model = model.to(device).train()
kwargs = {"momentum": 0.9} if args.optimizer == "SGD" else {}
optimizer = getattr(torch.optim, args.optimizer)(model.parameters(), lr=1e-4, **kwargs)
scaler = torch.amp.GradScaler("cuda", enabled=args.amp == "float16")
criterion = nn.CrossEntropyLoss()
frames = (args.frames,) if args.frames else ()

for step in range(args.steps):
    images = torch.randn(args.batch, 3, *frames, args.size, args.size)
    labels = torch.randint(
        0, 21 if dense else 1000, (args.batch, args.size, args.size) if dense else (args.batch,)
    )
    images, labels = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
    if args.channels_last:
        images = images.contiguous(memory_format=torch.channels_last)
    optimizer.zero_grad()
    mixed = torch.autocast("cuda", getattr(torch, args.amp)) if args.amp else contextlib.nullcontext()
    with mixed:
        out = model(images)
        loss = criterion(out["out"] if dense else out, labels)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    print(f"step {step} loss {loss.item():.3f}", flush=True)

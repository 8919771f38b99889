"""torchvision's detectors as its own reference script trains them: lists of images, lists of boxes, a sum of losses."""

import argparse
import contextlib

import torch
import torchvision

parser = argparse.ArgumentParser()
parser.add_argument("model")
parser.add_argument("--batch", type=int, default=4)
parser.add_argument("--size", type=int, default=512)
parser.add_argument("--amp", action="store_true")
parser.add_argument("--steps", type=int, default=4)
args = parser.parse_args()

torch.manual_seed(0)
model = getattr(torchvision.models.detection, args.model)(weights=None, weights_backbone=None, num_classes=21)
model = model.cuda().train()
optimizer = torch.optim.SGD(
    [p for p in model.parameters() if p.requires_grad], lr=1e-4, momentum=0.9, weight_decay=1e-4
)
for step in range(args.steps):
    images, targets = [], []
    for _ in range(args.batch):
        corners = torch.rand(8, 2) * args.size * 0.5
        sizes = 16 + torch.rand(8, 2) * args.size * 0.4
        target = {
            "boxes": torch.cat([corners, corners + sizes], 1),
            "labels": torch.randint(1, 21, (8,)),
        }
        if "mask" in args.model:
            target["masks"] = (torch.rand(8, args.size, args.size) > 0.5).to(torch.uint8)
        images.append(torch.rand(3, args.size, args.size).cuda())
        targets.append({key: value.cuda() for key, value in target.items()})
    with torch.autocast("cuda", torch.bfloat16) if args.amp else contextlib.nullcontext():
        loss = sum(model(images, targets).values())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.3f}", flush=True)

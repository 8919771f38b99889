"""Images pixel by pixel, and boxes: DETR with a matching, a pyramid with upsampling, optical flow by warping, super-resolution, a feature teacher, odd sides."""

import argparse
import itertools

import torch
import torch.nn.functional as F
import torchvision
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

parser = argparse.ArgumentParser()
parser.add_argument("recipe")
parser.add_argument("--batch", type=int, default=8)
parser.add_argument("--size", type=int, default=512)
parser.add_argument("--steps", type=int, default=4)
args = parser.parse_args()
BATCH, SIZE = args.batch, args.size


class Detr(nn.Module):
    def __init__(self, width=256, queries=100) -> None:
        super().__init__()
        whole = torchvision.models.resnet50(weights=None, norm_layer=torchvision.ops.FrozenBatchNorm2d)
        self.body = nn.Sequential(*list(whole.children())[:-2])
        self.into, self.queries = nn.Conv2d(2048, width, 1), nn.Embedding(queries, width)
        self.transformer = nn.Transformer(width, 8, 6, 6, 2048, 0.1, batch_first=True)
        self.rows, self.columns = nn.Embedding(64, width // 2), nn.Embedding(64, width // 2)
        self.kinds, self.boxes = (
            nn.Linear(width, 92),
            nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 4)),
        )

    def forward(self, x):
        x = self.into(self.body(x))
        height, width = x.shape[-2:]
        rows = self.rows(torch.arange(height, device=x.device))[:, None].expand(-1, width, -1)
        columns = self.columns(torch.arange(width, device=x.device))[None].expand(height, -1, -1)
        place = torch.cat([rows, columns], -1).flatten(0, 1)
        found = self.transformer(
            x.flatten(2).transpose(1, 2) + place, self.queries.weight.expand(x.shape[0], -1, -1)
        )
        return self.kinds(found), self.boxes(found).sigmoid()


def detr():
    """Images of many sides in one epoch: each batch has one, as a sampler by shape makes it."""
    model = Detr().cuda().train()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    sides = [480, 512, 544, 576, 608, 640, 672, 704, 736, 768, 800]
    order = [
        sides[n] for n in torch.randint(0, len(sides), (40,), generator=torch.Generator().manual_seed(2))
    ]

    def collate(rows):
        return (
            torch.randn(BATCH, 3, rows[0], rows[0] * 4 // 3),
            torch.randint(0, 91, (BATCH, 12)),
            torch.rand(BATCH, 12, 4),
        )

    loader = torch.utils.data.DataLoader(
        [side for side in order for _ in range(BATCH)], BATCH, collate_fn=collate
    )
    for step, (images, kinds, boxes) in enumerate(loader):
        if step == args.steps:
            break
        kinds, boxes = kinds.cuda(), boxes.cuda()
        scores, places = model(images.cuda())
        with torch.no_grad():
            cost = -scores.softmax(-1).gather(2, kinds[:, None].expand(-1, 100, -1)) + 5 * torch.cdist(
                places, boxes, p=1
            )
            chosen = cost.argmin(1)
        wanted = torch.full(scores.shape[:2], 91, device="cuda").scatter_(1, chosen, kinds)
        near = places.gather(1, chosen[..., None].expand(-1, -1, 4))
        loss = F.cross_entropy(scores.transpose(1, 2), wanted) + 5 * F.l1_loss(near, boxes)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        yield step, loss


class Pyramid(nn.Module):
    """UPerNet-like: pooled context, levels joined from above by bilinear upsampling, group norms."""

    def __init__(self, classes=150, width=256) -> None:
        super().__init__()
        self.body = torchvision.models.convnext_small(weights=None).features
        self.side = nn.ModuleList(nn.Conv2d(w, width, 1) for w in (96, 192, 384, 768))
        self.smooth = nn.ModuleList(
            nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.GroupNorm(32, width), nn.ReLU(True))
            for _ in range(4)
        )
        self.pools = nn.ModuleList(
            nn.Sequential(nn.AdaptiveAvgPool2d(n), nn.Conv2d(768, width, 1)) for n in (1, 2, 3, 6)
        )
        self.join, self.head = nn.Conv2d(768 + 4 * width, 768, 3, padding=1), nn.Conv2d(4 * width, classes, 1)

    def forward(self, x):
        size, levels = x.shape[-2:], []
        for index, part in enumerate(self.body):
            x = part(x)
            if index % 2:
                levels.append(x)
        top = levels[-1]
        context = [F.interpolate(pool(top), top.shape[-2:], mode="bilinear") for pool in self.pools]
        levels[-1] = self.join(torch.cat([top, *context], 1))
        levels = [side(level) for side, level in zip(self.side, levels, strict=True)]
        for index in (2, 1, 0):
            levels[index] = levels[index] + F.interpolate(
                levels[index + 1], levels[index].shape[-2:], mode="bilinear"
            )
        levels = [smooth(level) for smooth, level in zip(self.smooth, levels, strict=True)]
        levels = [F.interpolate(level, levels[0].shape[-2:], mode="bilinear") for level in levels]
        return F.interpolate(self.head(torch.cat(levels, 1)), size, mode="bilinear", align_corners=False)


def pyramid():
    model = Pyramid().cuda().train()
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.999))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, weight_decay=0.05)
    for step in range(args.steps):
        with torch.autocast("cuda", torch.bfloat16):
            scores = model(torch.randn(BATCH, 3, SIZE, SIZE).cuda())
            loss = F.cross_entropy(
                scores, torch.randint(0, 150, (BATCH, SIZE, SIZE)).cuda(), ignore_index=255
            )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        average.update_parameters(model)
        yield step, loss


def convolved(*widths, stride=1):
    layers = []
    for inner, outer in itertools.pairwise(widths):
        layers += [nn.Conv2d(inner, outer, 3, stride, 1), nn.InstanceNorm2d(outer), nn.LeakyReLU(0.1)]
    return nn.Sequential(*layers)


def flow():
    """RAFT-like: all pairs of pixels, twelve looks at it by grid_sample, a convolutional GRU."""
    body, start = convolved(3, 64, 128, stride=2).cuda(), convolved(3, 64, 128, stride=2).cuda()
    gates, change = (
        nn.Conv2d(128 + 128 + 2 + 81, 256, 3, padding=1).cuda(),
        nn.Conv2d(128 + 128 + 2 + 81, 128, 3, padding=1).cuda(),
    )
    head = nn.Conv2d(128, 2, 3, padding=1).cuda()
    nets = (body, start, gates, change, head)
    optimizer = torch.optim.AdamW([p for net in nets for p in net.parameters()], 4e-4)
    side = SIZE // 4
    near = torch.stack(torch.meshgrid(*[torch.arange(-4.0, 5)] * 2, indexing="ij"), -1).flip(-1).cuda()
    grid = torch.stack(torch.meshgrid(*[torch.arange(float(side))] * 2, indexing="ij")).flip(0).cuda()
    for step in range(args.steps):
        first, second = (torch.randn(BATCH, 3, SIZE, SIZE).cuda() for _ in range(2))
        a, b, known = body(first), body(second), start(first)
        pairs = (
            torch.einsum("bcn,bcm->bnm", a.flatten(2), b.flatten(2)).view(BATCH * side * side, 1, side, side)
            / 11.3
        )
        hidden, moved, loss = known.tanh(), torch.zeros(BATCH, 2, side, side, device="cuda"), 0
        for _ in range(4):
            moved = moved.detach()
            centre = (grid + moved).permute(0, 2, 3, 1).reshape(-1, 1, 1, 2)
            looked = F.grid_sample(pairs, (centre + near) * 2 / (side - 1) - 1, align_corners=True)
            facts = torch.cat([known, moved, looked.view(BATCH, side, side, 81).permute(0, 3, 1, 2)], 1)
            z, r = gates(torch.cat([hidden, facts], 1)).sigmoid().chunk(2, 1)
            hidden = (1 - z) * hidden + z * change(torch.cat([r * hidden, facts], 1)).tanh()
            moved = moved + head(hidden)
            large = 4 * F.interpolate(moved, scale_factor=4, mode="bicubic", align_corners=True)
            loss = loss + (large - torch.randn(BATCH, 2, SIZE, SIZE).cuda()).abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield step, loss


def resolution():
    """Residual blocks at low resolution, pixel shuffle up, losses against VGG's features; channels last."""
    width = 64
    blocks = [
        nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1), nn.PReLU(), nn.Conv2d(width, width, 3, padding=1)
        )
        for _ in range(16)
    ]
    first, trunk = nn.Conv2d(3, width, 9, padding=4), nn.ModuleList(blocks)
    up = nn.Sequential(
        nn.Conv2d(width, 4 * width, 3, padding=1), nn.PixelShuffle(2), nn.PReLU(),
        nn.Conv2d(width, 4 * width, 3, padding=1), nn.PixelShuffle(2), nn.PReLU(), nn.Conv2d(width, 3, 9, padding=4),
    )  # fmt: skip
    model = nn.ModuleList([first, trunk, up]).cuda().to(memory_format=torch.channels_last)
    judge = torchvision.models.vgg19(weights=None).features[:18].cuda().eval().requires_grad_(False)
    optimizer, scaler = torch.optim.Adam(model.parameters(), 1e-4), torch.amp.GradScaler("cuda")
    for step in range(args.steps):
        large = torch.rand(BATCH, 3, SIZE, SIZE).cuda().contiguous(memory_format=torch.channels_last)
        small = F.interpolate(large, scale_factor=0.25, mode="bicubic", antialias=True)
        with torch.autocast("cuda", torch.float16):
            x = first(small)
            for block in trunk:
                x = x + block(x)
            made = up(x)
            with torch.no_grad():
                wanted = judge(large)
            loss = F.mse_loss(made, large) + 0.006 * F.mse_loss(judge(made), wanted)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        yield step, loss


def features():
    """A small network learns the features of a large one, which runs in inference mode, at three levels."""
    teacher = torchvision.models.resnet152(weights=None).cuda().eval().to(memory_format=torch.channels_last)
    student = (
        torchvision.models.mobilenet_v3_large(weights=None)
        .cuda()
        .train()
        .to(memory_format=torch.channels_last)
    )
    turn = nn.Conv2d(960, 2048, 1).cuda()
    optimizer = torch.optim.SGD([*student.parameters(), *turn.parameters()], 0.1, momentum=0.9, nesterov=True)
    body = nn.Sequential(*list(teacher.children())[:-2])
    for step in range(args.steps):
        images = torch.randn(BATCH, 3, SIZE, SIZE).cuda().contiguous(memory_format=torch.channels_last)
        with torch.autocast("cuda", torch.bfloat16):
            with torch.inference_mode():
                known = body(images)
            deep = student.features(images)
            scores = student.classifier(student.avgpool(deep).flatten(1))
            loss = F.mse_loss(turn(deep), known.clone()) + F.cross_entropy(
                scores, torch.randint(0, 1000, (BATCH,)).cuda()
            )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield step, loss


torch.manual_seed(0)
for step, loss in globals()[args.recipe]():
    print(f"step {step} loss {loss.item():.3f}", flush=True)

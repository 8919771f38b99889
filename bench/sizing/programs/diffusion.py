"""A small U-Net that learns to remove noise: GroupNorm, attention at low resolution, EMA of the weights."""

import argparse
import contextlib
import copy

import torch
import torch.nn.functional as F
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=32)
parser.add_argument("--size", type=int, default=64)
parser.add_argument("--channels", type=int, default=128)
parser.add_argument("--amp", action="store_true")
parser.add_argument("--ema", action="store_true")
parser.add_argument("--steps", type=int, default=4)
args = parser.parse_args()


class Residual(nn.Module):
    def __init__(self, inner: int, outer: int, time: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(32, inner), nn.Conv2d(inner, outer, 3, padding=1)
        self.norm2, self.conv2 = nn.GroupNorm(32, outer), nn.Conv2d(outer, outer, 3, padding=1)
        self.time = nn.Linear(time, outer)
        self.skip = nn.Conv2d(inner, outer, 1) if inner != outer else nn.Identity()

    def forward(self, x, t):
        h = self.conv1(F.silu(self.norm1(x)))
        h = h + self.time(F.silu(t))[:, :, None, None]
        return self.skip(x) + self.conv2(F.silu(self.norm2(h)))


class Attention(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = (
            nn.GroupNorm(32, channels),
            nn.Conv2d(channels, 3 * channels, 1),
            nn.Conv2d(channels, channels, 1),
        )

    def forward(self, x):
        b, c, h, w = x.shape
        q, k, v = self.qkv(self.norm(x)).reshape(b, 3, 4, c // 4, h * w).transpose(-1, -2).unbind(1)
        return x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(-1, -2).reshape(b, c, h, w))


class UNet(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        widths, time = [channels, 2 * channels, 4 * channels], 4 * channels
        self.time = nn.Sequential(nn.Linear(channels, time), nn.SiLU(), nn.Linear(time, time))
        self.first, self.channels = nn.Conv2d(3, channels, 3, padding=1), channels
        self.down, self.up, width = nn.ModuleList(), nn.ModuleList(), channels
        for level, outer in enumerate(widths):
            self.down.append(
                nn.ModuleList(
                    [
                        Residual(width, outer, time),
                        Residual(outer, outer, time),
                        Attention(outer) if level else nn.Identity(),
                        nn.Conv2d(outer, outer, 3, stride=2, padding=1),
                    ]
                )
            )
            width = outer
        self.middle = Residual(width, width, time)
        for level, outer in reversed(list(enumerate(widths))):
            self.up.append(
                nn.ModuleList(
                    [
                        nn.ConvTranspose2d(width, outer, 4, stride=2, padding=1),
                        Residual(2 * outer, outer, time),
                        Residual(outer, outer, time),
                        Attention(outer) if level else nn.Identity(),
                    ]
                )
            )
            width = outer
        self.last = nn.Sequential(nn.GroupNorm(32, width), nn.SiLU(), nn.Conv2d(width, 3, 3, padding=1))

    def forward(self, x, t):
        angles = t[:, None].float() * torch.exp(-torch.arange(self.channels // 2, device=x.device) / 10)
        t = self.time(torch.cat([angles.sin(), angles.cos()], dim=1))
        x, kept = self.first(x), []
        for one, two, attention, smaller in self.down:
            x = attention(two(one(x, t), t))
            kept.append(x)
            x = smaller(x)
        x = self.middle(x, t)
        for larger, one, two, attention in self.up:
            x = torch.cat([larger(x), kept.pop()], dim=1)
            x = attention(two(one(x, t), t))
        return self.last(x)


model = UNet(args.channels).cuda()
average = copy.deepcopy(model).requires_grad_(False) if args.ema else None
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for step in range(args.steps):
    images = torch.randn(args.batch, 3, args.size, args.size).cuda()
    noise, t = torch.randn_like(images), torch.randint(0, 1000, (args.batch,), device="cuda")
    share = torch.cos(t / 1000 * 1.57)[:, None, None, None]
    noisy = share * images + (1 - share**2).sqrt() * noise
    with torch.autocast("cuda", torch.bfloat16) if args.amp else contextlib.nullcontext():
        loss = F.mse_loss(model(noisy, t).float(), noise)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    if average is not None:
        with torch.no_grad():
            for kept, new in zip(average.parameters(), model.parameters(), strict=True):
                kept.lerp_(new, 0.001)
    print(f"step {step} loss {loss.item():.3f}", flush=True)

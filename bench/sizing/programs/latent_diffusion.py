"""Diffusion in a latent space: a U-Net with cross-attention to a frozen text encoder, or a transformer with adaptive norms (DiT); EMA."""

import argparse
import copy

import torch
import torch.nn.functional as F
import transformers as hf
from torch import nn
from torch.utils.checkpoint import checkpoint

parser = argparse.ArgumentParser()
parser.add_argument("network", choices=("unet", "dit"))
parser.add_argument("--batch", type=int, default=8)
parser.add_argument("--size", type=int, default=64)
parser.add_argument("--checkpointing", action="store_true")
parser.add_argument("--steps", type=int, default=4)
args = parser.parse_args()


class Block(nn.Module):
    def __init__(self, inner, outer, time, words) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(32, inner), nn.Conv2d(inner, outer, 3, padding=1)
        self.norm2, self.conv2 = nn.GroupNorm(32, outer), nn.Conv2d(outer, outer, 3, padding=1)
        self.time, self.skip = nn.Linear(time, 2 * outer), nn.Conv2d(inner, outer, 1)
        self.words = words
        if words:
            self.norm3 = nn.LayerNorm(outer)
            self.self = nn.MultiheadAttention(outer, 8, batch_first=True)
            self.cross = nn.MultiheadAttention(outer, 8, kdim=words, vdim=words, batch_first=True)
            self.feed = nn.Sequential(
                nn.LayerNorm(outer), nn.Linear(outer, 4 * outer), nn.GELU(), nn.Linear(4 * outer, outer)
            )

    def forward(self, x, t, text):
        scale, shift = self.time(F.silu(t))[:, :, None, None].chunk(2, 1)
        h = self.conv1(F.silu(self.norm1(x)))
        x = self.skip(x) + self.conv2(F.silu(self.norm2(h) * (1 + scale) + shift))
        if not self.words:
            return x
        flat = x.flatten(2).transpose(1, 2)
        y = self.norm3(flat)
        flat = flat + self.self(y, y, y, need_weights=False)[0]
        flat = flat + self.cross(flat, text, text, need_weights=False)[0]
        return (flat + self.feed(flat)).transpose(1, 2).reshape(x.shape)


class UNet(nn.Module):
    def __init__(self, widths=(192, 384, 768), words=512) -> None:
        super().__init__()
        time = 4 * widths[0]
        self.time = nn.Sequential(nn.Linear(widths[0], time), nn.SiLU(), nn.Linear(time, time))
        self.first, width = nn.Conv2d(4, widths[0], 3, padding=1), widths[0]
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        for level, outer in enumerate(widths):
            self.down.append(Block(width, outer, time, words if level else 0))
            width = outer
        self.middle = Block(width, width, time, words)
        for level, outer in reversed(list(enumerate(widths))):
            self.up.append(Block(width + outer, outer, time, words if level else 0))
            width = outer
        self.last = nn.Conv2d(width, 4, 3, padding=1)

    def forward(self, x, t, text):
        t, x, kept = self.time(waves(t, self.time[0].in_features)), self.first(x), []
        for block in self.down:
            x = run(block, x, t, text)
            kept.append(x)
            x = F.avg_pool2d(x, 2)
        x = self.middle(x, t, text)
        for block in self.up:
            x = torch.cat([F.interpolate(x, scale_factor=2.0, mode="nearest"), kept.pop()], 1)
            x = run(block, x, t, text)
        return self.last(x)


class AdaptiveLayer(nn.Module):
    def __init__(self, width, heads) -> None:
        super().__init__()
        self.norm1, self.norm2 = (nn.LayerNorm(width, elementwise_affine=False) for _ in range(2))
        self.qkv, self.out, self.heads = nn.Linear(width, 3 * width), nn.Linear(width, width), heads
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU("tanh"), nn.Linear(4 * width, width))
        self.adapt = nn.Sequential(nn.SiLU(), nn.Linear(width, 6 * width))

    def forward(self, x, c, _):
        a, b, g, d, e, h = self.adapt(c)[:, None].chunk(6, -1)
        q, k, v = (
            self.qkv(self.norm1(x) * (1 + a) + b).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        )
        x = x + g * self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + h * self.feed(self.norm2(x) * (1 + d) + e)


class DiT(nn.Module):
    def __init__(self, width=768, depth=12, words=512) -> None:
        super().__init__()
        self.patches = nn.Conv2d(4, width, 2, 2)
        self.places = nn.Parameter(torch.zeros(1, (args.size // 2) ** 2, width))
        self.time, self.text = (
            nn.Sequential(nn.Linear(256, width), nn.SiLU(), nn.Linear(width, width)),
            nn.Linear(words, width),
        )
        self.layers = nn.ModuleList(AdaptiveLayer(width, 12) for _ in range(depth))
        self.last = nn.Linear(width, 16)

    def forward(self, x, t, text):
        c = self.time(waves(t, 256)) + self.text(text.mean(1))
        x = self.patches(x).flatten(2).transpose(1, 2) + self.places
        for layer in self.layers:
            x = run(layer, x, c, None)
        side = args.size // 2
        x = self.last(x).view(-1, side, side, 2, 2, 4)
        return torch.einsum("nhwpqc->nchpwq", x).reshape(-1, 4, args.size, args.size)


def run(block, *values):
    return checkpoint(block, *values, use_reentrant=False) if args.checkpointing else block(*values)


def waves(t, width):
    angles = t[:, None] * torch.exp(-9.2 * torch.arange(width // 2, device=t.device) / (width // 2))
    return torch.cat([angles.cos(), angles.sin()], -1)


torch.manual_seed(0)
reader = hf.CLIPTextModel(hf.CLIPTextConfig()).to(torch.bfloat16).cuda().eval().requires_grad_(False)
model = (UNet() if args.network == "unet" else DiT()).cuda().train()
average = copy.deepcopy(model).requires_grad_(False)
optimizer = torch.optim.AdamW(model.parameters(), 1e-4, foreach=True)
noise_levels = torch.linspace(1e-4, 0.02, 1000).neg().add(1).cumprod(0).cuda()
for step in range(args.steps):
    latents, words = (
        torch.randn(args.batch, 4, args.size, args.size).cuda(),
        torch.randint(0, 49000, (args.batch, 77)).cuda(),
    )
    t, noise = torch.randint(0, 1000, (args.batch,), device="cuda"), torch.randn_like(latents)
    share = noise_levels[t][:, None, None, None]
    with torch.autocast("cuda", torch.bfloat16):
        with torch.no_grad():
            text = reader(input_ids=words).last_hidden_state
        found = model(share.sqrt() * latents + (1 - share).sqrt() * noise, t.float(), text)
        loss = F.mse_loss(found.float(), noise)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    with torch.no_grad():
        torch._foreach_lerp_(list(average.parameters()), list(model.parameters()), 1e-4)
    print(f"step {step} loss {loss.item():.3f}", flush=True)

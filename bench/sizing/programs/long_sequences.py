"""Sequences without the usual attention: a selective scan in plain torch, long convolutions by FFT, linear attention by einsum, texts packed behind a mask, latents that look at bytes."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

parser = argparse.ArgumentParser()
parser.add_argument("network")
parser.add_argument("--batch", type=int, default=8)
parser.add_argument("--length", type=int, default=1024)
parser.add_argument("--width", type=int, default=512)
parser.add_argument("--layers", type=int, default=8)
parser.add_argument("--amp", action="store_true")
parser.add_argument("--steps", type=int, default=4)
args = parser.parse_args()
BATCH, LENGTH, WIDTH, WORDS = args.batch, args.length, args.width, 32000


class SelectiveScan(nn.Module):
    """Mamba's recurrence, by chunks: inside a chunk in parallel over cumulated sums, from chunk to chunk in a loop."""

    def __init__(self, width, state=16, chunk=64) -> None:
        super().__init__()
        self.state, self.chunk = state, chunk
        self.into, self.out = nn.Linear(width, 4 * width, bias=False), nn.Linear(2 * width, width, bias=False)
        self.conv = nn.Conv1d(2 * width, 2 * width, 4, padding=3, groups=2 * width)
        self.chosen, self.step = nn.Linear(2 * width, 2 * state, bias=False), nn.Linear(2 * width, 2 * width)
        self.decay, self.skip = (
            nn.Parameter(torch.rand(2 * width, state)),
            nn.Parameter(torch.ones(2 * width)),
        )

    def forward(self, x):
        x, gate = self.into(x).chunk(2, -1)
        x = F.silu(self.conv(x.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2))
        time, (into, out) = F.softplus(self.step(x)).float(), self.chosen(x).float().chunk(2, -1)
        state, found = x.new_zeros(x.shape[0], x.shape[2], self.state, dtype=torch.float32), []
        for t, u, b, c in zip(
            *(part.split(self.chunk, 1) for part in (time, x.float(), into, out)), strict=True
        ):
            logs = (-self.decay.exp() * t[..., None]).cumsum(1)
            added = ((t * u)[..., None] * b[:, :, None] * (-logs).clamp(max=30).exp()).cumsum(1)
            states = logs.exp() * (added + state[:, None])
            found.append(torch.einsum("blds,bls->bld", states, c))
            state = states[:, -1]
        y = torch.cat(found, 1).to(gate.dtype) + self.skip * x
        return self.out(y * F.silu(gate))


class LongConvolution(nn.Module):
    """Hyena-like: a filter as long as the text, made by a small network, applied through FFT."""

    def __init__(self, width) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.short = nn.Conv1d(3 * width, 3 * width, 3, padding=2, groups=3 * width)
        self.filter = nn.Sequential(
            nn.Linear(33, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, width)
        )

    def forward(self, x):
        length = x.shape[1]
        v, a, b = self.short(self.into(x).transpose(1, 2))[..., :length].chunk(3, 1)
        place = torch.linspace(0, 1, length, device=x.device)[:, None] * torch.arange(33, device=x.device)
        with torch.autocast("cuda", enabled=False):
            kernel = torch.fft.rfft(self.filter(place.cos()).T, n=2 * length)
            y = torch.fft.irfft(torch.fft.rfft((v * a).float(), n=2 * length) * kernel, n=2 * length)[
                ..., :length
            ]
        return self.out((y.to(b.dtype) * b).transpose(1, 2))


class LinearAttention(nn.Module):
    def __init__(self, width, heads=8, chunk=128) -> None:
        super().__init__()
        self.heads, self.chunk, self.qkv, self.out = (
            heads,
            chunk,
            nn.Linear(width, 3 * width),
            nn.Linear(width, width),
        )

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.heads, -1)) for t in self.qkv(x).chunk(3, -1))
        q, k = F.elu(q) + 1, F.elu(k) + 1
        q, k, v = (t.unflatten(1, (-1, self.chunk)) for t in (q, k, v))
        sums = torch.einsum("bnchd,bnche->bnhde", k, v).cumsum(1)
        before = torch.cat([torch.zeros_like(sums[:, :1]), sums[:, :-1]], 1)
        near = torch.einsum("bnchd,bnjhd->bnhcj", q, k).tril()
        y = torch.einsum("bnchd,bnhde->bnche", q, before) + torch.einsum("bnhcj,bnjhd->bnchd", near, v)
        return self.out(y.flatten(1, 2).flatten(2))


class PackedAttention(nn.Module):
    def __init__(self, width, heads=8) -> None:
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x, mask):
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        return self.out(F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(2))


class Layer(nn.Module):
    def __init__(self, mixer) -> None:
        super().__init__()
        self.norm, self.mixer = nn.LayerNorm(WIDTH), mixer
        self.feed = nn.Sequential(
            nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x, *more):
        x = x + self.mixer(self.norm(x), *more)
        return x + self.feed(x)


class Texts(nn.Module):
    def __init__(self, kind) -> None:
        super().__init__()
        self.words, self.layers = (
            nn.Embedding(WORDS, WIDTH),
            nn.ModuleList(Layer(kind(WIDTH)) for _ in range(args.layers)),
        )
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, ids, *more, recomputed=False):
        x = self.words(ids)
        for layer in self.layers:
            x = checkpoint(layer, x, *more, use_reentrant=False) if recomputed else layer(x, *more)
        return self.norm(x) @ self.words.weight.T


def trained(kind, extra=lambda: (), **options):
    model = Texts(kind).cuda().train()
    optimizer = torch.optim.AdamW(model.parameters(), 3e-4, fused=True)
    for step in range(args.steps):
        ids = torch.randint(0, WORDS, (BATCH, LENGTH)).cuda()
        with torch.autocast("cuda", torch.bfloat16, enabled=args.amp):
            logits = model(ids, *extra(), **options)
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        yield step, loss


def scan():
    return trained(SelectiveScan, recomputed=True)


def convolutions():
    return trained(LongConvolution)


def linear():
    return trained(LinearAttention)


def packed():
    """Several texts in a row, each of which sees itself alone: a mask of blocks."""

    def mask():
        texts = (torch.rand(BATCH, LENGTH) < 0.005).cumsum(1).cuda()
        before = torch.ones(LENGTH, LENGTH, dtype=torch.bool, device="cuda").tril()
        return (((texts[:, :, None] == texts[:, None]) & before)[:, None],)

    return trained(PackedAttention, mask)


def latents():
    """Perceiver-like: 256 latents look at 8,192 bytes, then at each other."""
    look = nn.MultiheadAttention(WIDTH, 8, kdim=256, vdim=256, batch_first=True).cuda()
    body = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(WIDTH, 8, 4 * WIDTH, 0.1, "gelu", batch_first=True, norm_first=True),
        args.layers,
    ).cuda()
    start, head = nn.Parameter(torch.randn(256, WIDTH).cuda()), nn.Linear(WIDTH, 10).cuda()
    table = nn.Embedding(256, 256).cuda()
    optimizer = torch.optim.NAdam(
        [*look.parameters(), *body.parameters(), start, *head.parameters(), *table.parameters()], 1e-4
    )
    for step in range(args.steps):
        data = table(torch.randint(0, 256, (BATCH, 8 * LENGTH)).cuda())
        with torch.autocast("cuda", torch.bfloat16, enabled=args.amp):
            seen, _ = look(start.expand(BATCH, -1, -1), data, data, need_weights=False)
            loss = F.cross_entropy(head(body(seen).mean(1)), torch.randint(0, 10, (BATCH,)).cuda())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield step, loss


torch.manual_seed(0)
for step, loss in globals()[args.network]():
    print(f"step {step} loss {loss.item():.3f}", flush=True)

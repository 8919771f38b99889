"""Networks that make things: a VQ-GAN, a flow with exact chances, a style-based GAN with a penalty, flow matching with text, a video transformer, colours by tokens."""

import argparse
import copy
import itertools

import torch
import torch.nn.functional as F
import torchvision
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("recipe")
parser.add_argument("--batch", type=int, default=8)
parser.add_argument("--size", type=int, default=256)
parser.add_argument("--steps", type=int, default=4)
args = parser.parse_args()
BATCH, SIZE = args.batch, args.size


class Block(nn.Module):
    def __init__(self, inner, outer) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.GroupNorm(32, inner), nn.SiLU(), nn.Conv2d(inner, outer, 3, padding=1))
        self.second = nn.Sequential(nn.GroupNorm(32, outer), nn.SiLU(), nn.Conv2d(outer, outer, 3, padding=1))
        self.skip = nn.Conv2d(inner, outer, 1) if inner != outer else nn.Identity()

    def forward(self, x):
        return self.skip(x) + self.second(self.first(x))


class Codes(nn.Module):
    def __init__(self, widths=(64, 128, 256), codes=4096) -> None:
        super().__init__()
        down, up = [nn.Conv2d(3, 64, 3, padding=1)], [nn.Conv2d(256, 256, 3, padding=1)]
        for inner, outer in zip((64, *widths), widths, strict=False):
            down += [Block(inner, outer), Block(outer, outer), nn.Conv2d(outer, outer, 3, 2, 1)]
            up[1:1] = [
                Block(outer, outer),
                nn.Upsample(scale_factor=2),
                nn.Conv2d(outer, outer, 3, padding=1),
                Block(outer, inner),
            ]
        self.down, self.up = (
            nn.Sequential(*down),
            nn.Sequential(*up, nn.GroupNorm(32, 64), nn.SiLU(), nn.Conv2d(64, 3, 3, padding=1)),
        )
        self.codes = nn.Embedding(codes, 256)

    def forward(self, x):
        z = self.down(x).permute(0, 2, 3, 1)
        flat = z.flatten(0, 2)
        nearest = torch.cdist(flat, self.codes.weight).argmin(1)
        chosen = self.codes(nearest).view_as(z)
        lost = F.mse_loss(chosen, z.detach()) + 0.25 * F.mse_loss(chosen.detach(), z)
        return self.up((z + (chosen - z).detach()).permute(0, 3, 1, 2)), lost


def vqgan():
    """A codebook between encoder and decoder; losses of pixels, VGG's features and a judge of patches."""
    model = Codes().cuda()
    judge = nn.Sequential(
        nn.Conv2d(3, 64, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(64, 128, 4, 2, 1), nn.BatchNorm2d(128), nn.LeakyReLU(0.2),
        nn.Conv2d(128, 256, 4, 2, 1), nn.BatchNorm2d(256), nn.LeakyReLU(0.2), nn.Conv2d(256, 1, 4, 1, 1),
    ).cuda()  # fmt: skip
    look = torchvision.models.vgg16(weights=None).features[:16].cuda().eval().requires_grad_(False)
    first, second = (torch.optim.Adam(net.parameters(), 4.5e-6, betas=(0.5, 0.9)) for net in (model, judge))
    for step in range(args.steps):
        x = torch.randn(BATCH, 3, SIZE, SIZE).cuda()
        made, lost = model(x)
        loss = F.l1_loss(made, x) + lost + F.mse_loss(look(made), look(x)) - 0.1 * judge(made).mean()
        first.zero_grad()
        loss.backward()
        first.step()
        second.zero_grad()
        (F.relu(1 - judge(x)).mean() + F.relu(1 + judge(made.detach())).mean()).backward()
        second.step()
        yield step, loss


class Coupling(nn.Module):
    def __init__(self, channels, width=256) -> None:
        super().__init__()
        self.mix = nn.Parameter(torch.linalg.qr(torch.randn(channels, channels))[0])
        self.net = nn.Sequential(
            nn.Conv2d(channels // 2, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, width, 1), nn.ReLU(),
            nn.Conv2d(width, channels, 3, padding=1),
        )  # fmt: skip

    def forward(self, x):
        pixels = x.shape[2] * x.shape[3]
        chance = torch.linalg.slogdet(self.mix)[1] * pixels
        a, b = F.conv2d(x, self.mix[..., None, None]).chunk(2, 1)
        scale, move = self.net(a).chunk(2, 1)
        scale = torch.sigmoid(scale + 2)
        return torch.cat([a, (b + move) * scale], 1), chance + scale.log().flatten(1).sum(1)


def glow():
    """Images to noise and back, by steps whose determinants are known."""
    levels = nn.ModuleList(
        nn.ModuleList(Coupling(channels) for _ in range(12)) for channels in (12, 24, 48)
    ).cuda()
    optimizer = torch.optim.Adamax(levels.parameters(), 1e-4)
    for step in range(args.steps):
        x, total, ends = torch.rand(BATCH, 3, SIZE, SIZE).cuda(), 0, []
        for index, level in enumerate(levels):
            x = F.pixel_unshuffle(x, 2)
            for layer in level:
                x, chance = layer(x)
                total = total + chance
            if index < 2:
                x, end = x.chunk(2, 1)
                ends.append(end)
        loss = -(total - 0.5 * sum(end.pow(2).flatten(1).sum(1) for end in (*ends, x))).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield step, loss


class Styled(nn.Module):
    """A convolution whose weights each sample scales: all samples are groups of one."""

    def __init__(self, inner, outer) -> None:
        super().__init__()
        self.weight, self.style = (
            nn.Parameter(torch.randn(outer, inner, 3, 3) / (9 * inner) ** 0.5),
            nn.Linear(512, inner),
        )

    def forward(self, x, w):
        batch, _, height, width = x.shape
        weight = self.weight * (self.style(w) + 1)[:, None, :, None, None]
        weight = weight * torch.rsqrt(weight.pow(2).sum((2, 3, 4), keepdim=True) + 1e-8)
        x = F.conv2d(x.reshape(1, -1, height, width), weight.flatten(0, 1), padding=1, groups=batch)
        x = x.view(batch, -1, height, width)
        return F.leaky_relu(x + 0.1 * torch.randn(batch, 1, height, width, device=x.device), 0.2)


class Stylist(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        widths = (512, 512, 256, 128, 64)
        self.map = nn.Sequential(
            *[part for _ in range(8) for part in (nn.Linear(512, 512), nn.LeakyReLU(0.2))]
        )
        self.start = nn.Parameter(torch.randn(1, 512, 8, 8))
        self.layers = nn.ModuleList(Styled(a, b) for a, b in itertools.pairwise(widths))
        self.colour = nn.Conv2d(64, 3, 1)

    def forward(self, z):
        w, x = self.map(z), self.start.expand(z.shape[0], -1, -1, -1)
        for layer in self.layers:
            x = layer(F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False), w)
        return self.colour(x)


def style():
    """128×128, an average of the generator, R1 on the judge each step."""
    generator = Stylist().cuda()
    slow = copy.deepcopy(generator).eval().requires_grad_(False)
    layers, inner = [nn.Conv2d(3, 64, 1)], 64
    for outer in (128, 256, 512, 512):
        layers += [nn.LeakyReLU(0.2), nn.Conv2d(inner, outer, 3, padding=1), nn.AvgPool2d(2)]
        inner = outer
    judge = nn.Sequential(*layers, nn.Flatten(), nn.Linear(512 * 64, 1)).cuda()
    first, second = (
        torch.optim.Adam(net.parameters(), 2e-3, betas=(0.0, 0.99)) for net in (generator, judge)
    )
    for step in range(args.steps):
        real = torch.randn(BATCH, 3, 128, 128).cuda().requires_grad_(True)
        scores = judge(real)
        slope = torch.autograd.grad(scores.sum(), real, create_graph=True)[0]
        made = generator(torch.randn(BATCH, 512).cuda())
        loss = (
            F.softplus(-scores).mean()
            + F.softplus(judge(made.detach())).mean()
            + 5 * slope.pow(2).sum((1, 2, 3)).mean()
        )
        second.zero_grad()
        loss.backward()
        second.step()
        first.zero_grad()
        F.softplus(-judge(made)).mean().backward()
        first.step()
        with torch.no_grad():
            torch._foreach_lerp_(list(slow.parameters()), list(generator.parameters()), 0.005)
        yield step, loss


class TwoStreams(nn.Module):
    """Image and text tokens, each with weights of its own, in one attention; QK norms."""

    def __init__(self, width, heads) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(2))
        self.norms = nn.ModuleList(nn.RMSNorm(width // heads) for _ in range(4))
        self.out = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.feed = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 4 * width), nn.GELU("tanh"), nn.Linear(4 * width, width))
            for _ in range(2)
        )
        self.scales = nn.ModuleList(nn.Linear(width, 6 * width) for _ in range(2))

    def forward(self, streams, time):
        made, queries, keys, values = [], [], [], []
        for index, x in enumerate(streams):
            scales = self.scales[index](F.silu(time))[:, None].chunk(6, -1)
            h = F.layer_norm(x, x.shape[-1:]) * (1 + scales[0]) + scales[1]
            q, k, v = (
                t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv[index](h).chunk(3, -1)
            )
            queries.append(self.norms[2 * index](q))
            keys.append(self.norms[2 * index + 1](k))
            values.append(v)
            made.append(scales)
        joined = [torch.cat(parts, 2) for parts in (queries, keys, values)]
        joined = [part.to(values[0].dtype) for part in joined]
        seen = F.scaled_dot_product_attention(*joined).transpose(1, 2).flatten(2)
        parts = seen.split([x.shape[1] for x in streams], 1)
        out = []
        for index, (x, part, scales) in enumerate(zip(streams, parts, made, strict=True)):
            x = x + scales[2] * self.out[index](part)
            h = F.layer_norm(x, x.shape[-1:]) * (1 + scales[3]) + scales[4]
            out.append(x + scales[5] * self.feed[index](h))
        return out


class Matching(nn.Module):
    def __init__(self, width=768, depth=12) -> None:
        super().__init__()
        self.patch, self.text, self.time = (
            nn.Conv2d(16, width, 2, 2),
            nn.Linear(1024, width),
            nn.Linear(256, width),
        )
        self.layers, self.out = (
            nn.ModuleList(TwoStreams(width, 12) for _ in range(depth)),
            nn.Linear(width, 64),
        )

    def forward(self, x, text, t):
        waves = (t[:, None] * torch.exp(-9.2 * torch.arange(128, device=t.device) / 128) * 1000).float()
        time = self.time(torch.cat([waves.cos(), waves.sin()], -1))
        streams = [self.patch(x).flatten(2).transpose(1, 2), self.text(text)]
        for layer in self.layers:
            streams = layer(streams, time)
        return self.out(streams[0])


def matching():
    """Flow matching on latents of 64 × 64 × 16 with 154 tokens of text."""
    model = Matching().cuda().train()
    slow = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=True)
    for step in range(args.steps):
        x, noise, t = (
            torch.randn(BATCH, 16, 64, 64).cuda(),
            torch.randn(BATCH, 16, 64, 64).cuda(),
            torch.rand(BATCH).cuda(),
        )
        mixed = torch.lerp(noise, x, t[:, None, None, None])
        with torch.autocast("cuda", torch.bfloat16):
            found = model(mixed, torch.randn(BATCH, 154, 1024).cuda(), t)
            wanted = F.pixel_unshuffle(x - noise, 2).flatten(2).transpose(1, 2)
            loss = F.mse_loss(found.float(), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for average, parameter in zip(slow.parameters(), model.parameters(), strict=True):
                average.lerp_(parameter, 0.001)
        yield step, loss


class SpaceTime(nn.Module):
    def __init__(self, width, heads) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.time, self.space = (nn.MultiheadAttention(width, heads, 0.1, batch_first=True) for _ in range(2))
        self.feed = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Dropout(0.1), nn.Linear(4 * width, width)
        )

    def forward(self, x):
        batch, frames, places, width = x.shape
        h = self.norms[0](x).transpose(1, 2).reshape(-1, frames, width)
        x = x + self.time(h, h, h, need_weights=False)[0].view(batch, places, frames, width).transpose(1, 2)
        h = self.norms[1](x).flatten(0, 1)
        x = x + self.space(h, h, h, need_weights=False)[0].view_as(x)
        return x + self.feed(self.norms[2](x))


def video():
    """Tubelets of 2 × 16 × 16, attention over time and over space in turn."""
    width = 512
    cut, head = nn.Conv3d(3, width, (2, 16, 16), (2, 16, 16)).cuda(), nn.Linear(width, 400).cuda()
    body = nn.Sequential(*[SpaceTime(width, 8) for _ in range(10)]).cuda().train()
    optimizer = torch.optim.AdamW([*cut.parameters(), *body.parameters(), *head.parameters()], 1e-4)
    scaler = torch.amp.GradScaler("cuda")
    for step in range(args.steps):
        for _ in range(2):
            clip = torch.randn(BATCH, 3, 16, 224, 224).cuda()
            with torch.autocast("cuda", torch.float16):
                x = cut(clip).flatten(3).permute(0, 2, 3, 1)
                loss = F.cross_entropy(head(body(x).mean((1, 2))), torch.randint(0, 400, (BATCH,)).cuda()) / 2
            scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(body.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        yield step, loss


torch.manual_seed(0)
for step, loss in globals()[args.recipe]():
    print(f"step {step} loss {loss.item():.3f}", flush=True)

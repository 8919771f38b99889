"""Loops that are not one loss a step: a critic with a gradient penalty, PPO, a replay memory on the card, sparse embeddings, rays, a compiled network."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("loop")
parser.add_argument("--batch", type=int, default=64)
parser.add_argument("--steps", type=int, default=4)
args = parser.parse_args()
BATCH = args.batch


def critic():
    """WGAN-GP at 128×128: the penalty is a gradient of a gradient."""
    layers, inner = [], 256
    make = [nn.Linear(128, 256 * 8 * 8), nn.Unflatten(1, (256, 8, 8))]
    for outer in (256, 128, 64, 64):
        make += [
            nn.Upsample(scale_factor=2),
            nn.Conv2d(inner, outer, 3, padding=1),
            nn.BatchNorm2d(outer),
            nn.ReLU(True),
        ]
        inner = outer
    generator = nn.Sequential(*make, nn.Conv2d(64, 3, 3, padding=1), nn.Tanh()).cuda()
    inner = 3
    for outer in (64, 128, 256, 512):
        layers += [nn.Conv2d(inner, outer, 5, 2, 2), nn.LeakyReLU(0.2)]
        inner = outer
    judge = nn.Sequential(*layers, nn.Flatten(), nn.Linear(512 * 8 * 8, 1)).cuda()
    first, second = (torch.optim.Adam(net.parameters(), 1e-4, betas=(0.0, 0.9)) for net in (generator, judge))
    for step in range(args.steps):
        for _ in range(2):
            real, made = (
                torch.randn(BATCH, 3, 128, 128).cuda(),
                generator(torch.randn(BATCH, 128).cuda()).detach(),
            )
            share = torch.rand(BATCH, 1, 1, 1).cuda()
            between = (share * real + (1 - share) * made).requires_grad_(True)
            slope = torch.autograd.grad(judge(between).sum(), between, create_graph=True)[0]
            loss = (
                judge(made).mean()
                - judge(real).mean()
                + 10 * (slope.flatten(1).norm(dim=1) - 1).pow(2).mean()
            )
            second.zero_grad()
            loss.backward()
            second.step()
        first.zero_grad()
        (-judge(generator(torch.randn(BATCH, 128).cuda())).mean()).backward()
        first.step()
        yield step, loss


class Player(nn.Module):
    def __init__(self, actions=6) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(), nn.Conv2d(64, 64, 3), nn.ReLU(),
            nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(),
        )  # fmt: skip
        self.policy, self.value = nn.Linear(512, actions), nn.Linear(512, 1)

    def forward(self, frames):
        h = self.body(frames.float() / 255)
        return self.policy(h), self.value(h).squeeze(-1)


def ppo():
    """Many games side by side, 64 moves collected on the card, then four rounds over them in four pieces."""
    player, games, moves = Player().cuda(), BATCH, 64
    optimizer = torch.optim.Adam(player.parameters(), 2.5e-4, eps=1e-5)
    for step in range(args.steps):
        frames = torch.zeros(moves, games, 4, 84, 84, dtype=torch.uint8, device="cuda")
        values, logs, rewards = (torch.zeros(moves, games, device="cuda") for _ in range(3))
        actions = torch.zeros(moves, games, dtype=torch.long, device="cuda")
        with torch.no_grad():
            for move in range(moves):
                frames[move] = torch.randint(0, 256, (games, 4, 84, 84), dtype=torch.uint8).cuda()
                logits, values[move] = player(frames[move])
                chances = torch.distributions.Categorical(logits=logits)
                actions[move] = chances.sample()
                logs[move] = chances.log_prob(actions[move])
                rewards[move] = torch.randn(games).cuda()
            gains, last = torch.zeros_like(rewards), 0
            for move in reversed(range(moves)):
                after = values[move + 1] if move + 1 < moves else values[move]
                last = rewards[move] + 0.99 * after - values[move] + 0.99 * 0.95 * last
                gains[move] = last
        wanted = (gains + values).flatten()
        flat = [part.flatten(0, 1) for part in (frames, actions, logs, gains)]
        for _ in range(4):
            for rows in torch.randperm(moves * games, device="cuda").chunk(4):
                seen, done, before, gain = (part[rows] for part in flat)
                logits, value = player(seen)
                chances = torch.distributions.Categorical(logits=logits)
                ratio = (chances.log_prob(done) - before).exp()
                gain = (gain - gain.mean()) / (gain.std() + 1e-8)
                loss = torch.max(-gain * ratio, -gain * ratio.clamp(0.9, 1.1)).mean()
                loss = loss - 0.01 * chances.entropy().mean() + 0.5 * F.mse_loss(value, wanted[rows])
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(player.parameters(), 0.5)
                optimizer.step()
        yield step, loss


def replay():
    """A hundred thousand frames of past games stay on the card; two networks, one of them a slow copy."""
    player, slow = Player().cuda(), Player().cuda()
    slow.load_state_dict(player.state_dict())
    memory = torch.zeros(100_000, 4, 84, 84, dtype=torch.uint8, device="cuda")
    optimizer = torch.optim.Adam(player.parameters(), 1e-4)
    for step in range(args.steps):
        rows = torch.randint(0, 99_999, (BATCH,)).cuda()
        with torch.no_grad():
            wanted = 0.99 * slow(memory[rows + 1])[0].amax(1) + torch.randn(BATCH).cuda()
        found = player(memory[rows])[0].gather(1, torch.randint(0, 6, (BATCH, 1)).cuda()).squeeze(1)
        loss = F.smooth_l1_loss(found, wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield step, loss


class Clicks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(2_000_000, 64, mode="sum", sparse=True) for _ in range(8))
        self.bottom = nn.Sequential(nn.Linear(13, 512), nn.ReLU(), nn.Linear(512, 64), nn.ReLU())
        self.top = nn.Sequential(
            nn.Linear(64 + 36, 1024), nn.ReLU(), nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 1)
        )

    def forward(self, numbers, bags):
        dense = self.bottom(numbers)
        parts = torch.stack([dense, *(table(bag) for table, bag in zip(self.tables, bags, strict=True))], 1)
        pairs = torch.bmm(parts, parts.transpose(1, 2))
        row, column = torch.tril_indices(9, 9, -1, device=pairs.device)
        return self.top(torch.cat([dense, pairs[:, row, column]], 1)).squeeze(1)


def clicks():
    model = Clicks().cuda()
    sparse = torch.optim.SparseAdam(list(model.tables.parameters()), 1e-3)
    dense = torch.optim.Adam([*model.bottom.parameters(), *model.top.parameters()], 1e-3)
    for step in range(args.steps):
        numbers = torch.randn(BATCH, 13).cuda()
        bags = [torch.randint(0, 2_000_000, (BATCH, 4)).cuda() for _ in range(8)]
        loss = F.binary_cross_entropy_with_logits(
            model(numbers, bags), (torch.rand(BATCH) > 0.5).float().cuda()
        )
        for optimizer in (sparse, dense):
            optimizer.zero_grad()
        loss.backward()
        for optimizer in (sparse, dense):
            optimizer.step()
        yield step, loss


class Field(nn.Module):
    def __init__(self, width=256) -> None:
        super().__init__()
        self.first = nn.Sequential(
            nn.Linear(63, width),
            nn.ReLU(),
            *[part for _ in range(3) for part in (nn.Linear(width, width), nn.ReLU())],
        )
        self.second = nn.Sequential(
            nn.Linear(width + 63, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()
        )
        self.density, self.colour = (
            nn.Linear(width, 1),
            nn.Sequential(nn.Linear(width + 27, 128), nn.ReLU(), nn.Linear(128, 3)),
        )

    def forward(self, places, ways):
        coded = encoded(places, 10)
        h = self.second(torch.cat([self.first(coded), coded], -1))
        return self.density(h).squeeze(-1), self.colour(torch.cat([h, encoded(ways, 4)], -1)).sigmoid()


def encoded(x, count):
    waves = [wave(2.0**power * x) for power in range(count) for wave in (torch.sin, torch.cos)]
    return torch.cat([x, *waves], -1)


def rays():
    """A radiance field: 128 samples along each ray, summed up by what shines through."""
    field = Field().cuda()
    optimizer = torch.optim.Adam(field.parameters(), 5e-4)
    for step in range(args.steps):
        start, way = torch.randn(BATCH, 3).cuda(), F.normalize(torch.randn(BATCH, 3).cuda(), dim=-1)
        depth = (
            torch.linspace(2, 6, 128, device="cuda").expand(BATCH, 128)
            + torch.rand(BATCH, 128, device="cuda") / 32
        )
        places = start[:, None] + way[:, None] * depth[..., None]
        density, colour = field(places, way[:, None].expand_as(places))
        opaque = 1 - torch.exp(-F.relu(density) / 32)
        left = torch.cumprod(torch.cat([torch.ones_like(opaque[:, :1]), 1 - opaque + 1e-10], -1), -1)[:, :-1]
        loss = F.mse_loss(((opaque * left)[..., None] * colour).sum(1), torch.rand(BATCH, 3).cuda())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield step, loss


class Mixer(nn.Module):
    def __init__(self, places, width) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.across = nn.Sequential(nn.Linear(places, 4 * places), nn.GELU(), nn.Linear(4 * places, places))
        self.along = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        x = x + self.across(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.along(self.norm2(x))


def mixer(compiled=False):
    model = nn.Sequential(nn.Conv2d(3, 512, 16, 16), nn.Flatten(2)).cuda()
    body = nn.Sequential(*[Mixer(196, 512) for _ in range(8)]).cuda()
    head = nn.Linear(512, 1000).cuda()
    parameters = [*model.parameters(), *body.parameters(), *head.parameters()]
    run = torch.compile(body) if compiled else body
    optimizer = torch.optim.RAdam(parameters, 1e-3, foreach=False)
    for step in range(args.steps):
        x = model(torch.randn(BATCH, 3, 224, 224).cuda()).transpose(1, 2)
        loss = F.cross_entropy(head(run(x).mean(1)), torch.randint(0, 1000, (BATCH,)).cuda())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield step, loss


def compiled_mixer():
    return mixer(True)


torch.manual_seed(0)
for step, loss in globals()[args.loop]():
    print(f"step {step} loss {loss.item():.3f}", flush=True)

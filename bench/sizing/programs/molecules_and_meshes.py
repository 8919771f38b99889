"""Graphs: messages by scatter, molecules of many sizes whose forces are gradients, a neighbourhood sampled anew each step, a Fourier operator on a grid."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("network")
parser.add_argument("--batch", type=int, default=32)
parser.add_argument("--steps", type=int, default=4)
args = parser.parse_args()
BATCH = args.batch


class Messages(nn.Module):
    def __init__(self, width) -> None:
        super().__init__()
        self.edge = nn.Sequential(nn.Linear(2 * width + 16, width), nn.SiLU(), nn.Linear(width, width))
        self.node = nn.Sequential(nn.Linear(3 * width, width), nn.SiLU(), nn.Linear(width, width))
        self.norm = nn.LayerNorm(width)

    def forward(self, x, edges, facts):
        source, target = edges
        sent = self.edge(torch.cat([x[source], x[target], facts], -1))
        total = torch.zeros_like(x).index_add_(0, target, sent)
        most = torch.zeros_like(x).scatter_reduce_(
            0, target[:, None].expand_as(sent), sent, "amax", include_self=True
        )
        return self.norm(x + self.node(torch.cat([x, total, most], -1)))


def mesh():
    """A simulation of a mesh: 60 thousand nodes, 400 thousand edges, twelve rounds of messages."""
    nodes, edges, width = 60_000, 400_000, 96
    layers = nn.ModuleList(Messages(width) for _ in range(8)).cuda()
    first, last = nn.Linear(12, width).cuda(), nn.Linear(width, 3).cuda()
    optimizer = torch.optim.Adam([*layers.parameters(), *first.parameters(), *last.parameters()], 1e-4)
    links, facts = torch.randint(0, nodes, (2, edges)).cuda(), torch.randn(edges, 16).cuda()
    for step in range(args.steps):
        x = first(torch.randn(nodes, 12).cuda())
        for layer in layers:
            x = layer(x, links, facts)
        loss = F.mse_loss(last(x), torch.randn(nodes, 3).cuda())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield step, loss


class Energy(nn.Module):
    """SchNet-like."""

    def __init__(self, width=128, rounds=4) -> None:
        super().__init__()
        self.kinds = nn.Embedding(100, width)
        self.filters = nn.ModuleList(
            nn.Sequential(nn.Linear(50, width), nn.Softplus(), nn.Linear(width, width)) for _ in range(rounds)
        )
        self.mixes = nn.ModuleList(
            nn.Sequential(nn.Linear(width, width), nn.Softplus(), nn.Linear(width, width))
            for _ in range(rounds)
        )
        self.out = nn.Sequential(nn.Linear(width, 64), nn.Softplus(), nn.Linear(64, 1))

    def forward(self, kinds, places, source, target, molecule, count):
        far = (places[source] - places[target]).norm(dim=-1)
        bells = torch.exp(-10 * (far[:, None] - torch.linspace(0, 5, 50, device=far.device)).pow(2))
        x = self.kinds(kinds)
        for make, mix in zip(self.filters, self.mixes, strict=True):
            sent = x[source] * make(bells)
            x = x + mix(torch.zeros_like(x).scatter_add_(0, target[:, None].expand_as(sent), sent))
        return x.new_zeros(count).index_add_(0, molecule, self.out(x).squeeze(-1))


def forces():
    """60 batches of molecules of 10 to 80 atoms, all pairs: energies, and forces as their gradient, which is trained through."""
    model = Energy().cuda().train()
    optimizer = torch.optim.Adam(model.parameters(), 5e-4)
    atoms = torch.randint(10, 81, (60 * BATCH,), generator=torch.Generator().manual_seed(7)).tolist()

    def collate(counts):
        starts = [sum(counts[:index]) for index in range(len(counts))]
        pairs = [
            torch.combinations(torch.arange(count)) + start
            for count, start in zip(counts, starts, strict=True)
        ]
        edges = torch.cat(pairs).T
        molecule = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
        return (
            torch.randint(1, 100, (sum(counts),)),
            torch.randn(sum(counts), 3),
            torch.cat([edges, edges.flip(0)], 1),
            molecule,
        )

    loader = torch.utils.data.DataLoader(atoms, BATCH, shuffle=True, collate_fn=collate)
    for step, (kinds, places, edges, molecule) in enumerate(loader):
        if step == args.steps:
            break
        places, edges = places.cuda().requires_grad_(True), edges.cuda()
        energy = model(kinds.cuda(), places, edges[0], edges[1], molecule.cuda(), BATCH)
        pull = -torch.autograd.grad(energy.sum(), places, create_graph=True)[0]
        loss = F.mse_loss(energy, torch.randn(BATCH).cuda()) + 100 * pull.pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield step, loss


class Fourier(nn.Module):
    def __init__(self, width, modes) -> None:
        super().__init__()
        self.modes = modes
        self.weight = nn.Parameter(torch.randn(2, width, width, modes, modes, dtype=torch.cfloat) / width)
        self.point = nn.Conv2d(width, width, 1)

    def forward(self, x):
        spectrum, m = torch.fft.rfft2(x), self.modes
        kept = torch.zeros_like(spectrum)
        kept[:, :, :m, :m] = torch.einsum("bixy,ioxy->boxy", spectrum[:, :, :m, :m], self.weight[0])
        kept[:, :, -m:, :m] = torch.einsum("bixy,ioxy->boxy", spectrum[:, :, -m:, :m], self.weight[1])
        return F.gelu(torch.fft.irfft2(kept, s=x.shape[-2:]) + self.point(x))


def operator():
    """A Fourier neural operator: a flow on a grid of 256 × 256, four steps ahead through itself."""
    width = 48
    body = nn.Sequential(
        nn.Conv2d(3, width, 1), *[Fourier(width, 24) for _ in range(4)], nn.Conv2d(width, 1, 1)
    ).cuda()
    optimizer = torch.optim.Adam(body.parameters(), 1e-3, weight_decay=1e-4)
    grid = torch.stack(
        torch.meshgrid(torch.linspace(0, 1, 256), torch.linspace(0, 1, 256), indexing="ij")
    ).cuda()
    for step in range(args.steps):
        field, loss = torch.randn(BATCH, 1, 256, 256).cuda(), 0
        for _ in range(2):
            field = field + body(torch.cat([field, grid.expand(BATCH, -1, -1, -1)], 1))
            loss = loss + (field - torch.randn(BATCH, 1, 256, 256).cuda()).flatten(1).norm(dim=1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield step, loss


torch.manual_seed(0)
for step, loss in globals()[args.network]():
    print(f"step {step} loss {loss.item():.3f}", flush=True)

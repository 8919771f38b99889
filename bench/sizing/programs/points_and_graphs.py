"""Sets without an order: PointNet, DGCNN with neighbours found anew in every layer, attention over the edges of a graph by scatter."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("network", choices=("pointnet", "dgcnn", "graph"))
parser.add_argument("--batch", type=int, default=32)
parser.add_argument("--points", type=int, default=2048)
parser.add_argument("--edges", type=int, default=2_000_000)
parser.add_argument("--steps", type=int, default=4)
args = parser.parse_args()


def shared(inner, *widths):
    layers = []
    for outer in widths:
        layers += [nn.Conv1d(inner, outer, 1), nn.BatchNorm1d(outer), nn.ReLU()]
        inner = outer
    return nn.Sequential(*layers)


class Turn(nn.Module):
    def __init__(self, width) -> None:
        super().__init__()
        self.width, self.body = width, shared(width, 64, 128, 1024)
        self.head = nn.Sequential(
            nn.Linear(1024, 256), nn.BatchNorm1d(256), nn.ReLU(), nn.Linear(256, width * width)
        )

    def forward(self, x):
        turn = self.head(self.body(x).amax(2)).view(-1, self.width, self.width)
        turn = turn + torch.eye(self.width, device=x.device)
        return torch.bmm(x.transpose(1, 2), turn).transpose(1, 2), turn


class PointNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.turn1, self.first, self.turn2 = Turn(3), shared(3, 64, 64), Turn(64)
        self.second, self.head = (
            shared(64, 128, 1024),
            nn.Sequential(shared(1088, 512, 256, 128), nn.Conv1d(128, 50, 1)),
        )

    def forward(self, x):
        x, _ = self.turn1(x)
        local, turn = self.turn2(self.first(x))
        whole = self.second(local).amax(2, keepdim=True).expand(-1, -1, x.shape[2])
        away = torch.bmm(turn, turn.transpose(1, 2)) - torch.eye(64, device=x.device)
        return self.head(torch.cat([local, whole], 1)), 0.001 * away.pow(2).sum((1, 2)).mean()


class DGCNN(nn.Module):
    def __init__(self, near=20) -> None:
        super().__init__()
        self.near = near
        self.layers = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(2 * inner, outer, 1, bias=False), nn.BatchNorm2d(outer), nn.LeakyReLU(0.2)
            )
            for inner, outer in ((3, 64), (64, 64), (64, 128), (128, 256))
        )
        self.join, self.head = (
            shared(512, 1024),
            nn.Sequential(nn.Linear(1024, 512), nn.ReLU(), nn.Dropout(0.5), nn.Linear(512, 50)),
        )

    def forward(self, x):
        kept = []
        for layer in self.layers:
            rows = x.transpose(1, 2)
            near = torch.cdist(rows, rows).topk(self.near, largest=False).indices
            batch = torch.arange(len(x), device=x.device)[:, None, None]
            around = rows[batch, near]
            middle = rows[:, :, None].expand_as(around)
            x = layer(torch.cat([around - middle, middle], -1).permute(0, 3, 1, 2)).amax(-1)
            kept.append(x)
        return self.head(self.join(torch.cat(kept, 1)).amax(2))[:, :, None], 0.0


class EdgeAttention(nn.Module):
    def __init__(self, inner, heads, each) -> None:
        super().__init__()
        self.heads, self.body = heads, nn.Linear(inner, heads * each, bias=False)
        self.source, self.target = (nn.Parameter(torch.randn(heads, each) * 0.1) for _ in range(2))

    def forward(self, x, edges):
        source, target = edges
        h = self.body(x).unflatten(1, (self.heads, -1))
        score = (h * self.source).sum(-1)[source] + (h * self.target).sum(-1)[target]
        score = F.leaky_relu(score, 0.2)
        index = target[:, None].expand_as(score)
        top = torch.full((len(x), self.heads), -1e9, device=x.device).scatter_reduce(0, index, score, "amax")
        weight = (score - top[target]).exp()
        total = torch.zeros(len(x), self.heads, device=x.device).index_add(0, target, weight)
        weight = F.dropout(weight / (total[target] + 1e-16), 0.1)
        return torch.zeros_like(h).index_add(0, target, h[source] * weight[..., None]).flatten(1)


torch.manual_seed(0)
if args.network == "graph":
    nodes = args.edges // 12
    layers = nn.ModuleList([EdgeAttention(128, 4, 32), EdgeAttention(128, 4, 32)]).cuda()
    head = nn.Linear(128, 40).cuda()
    optimizer = torch.optim.Adam([*layers.parameters(), *head.parameters()], 5e-3)
    x, y = torch.randn(nodes, 128).cuda(), torch.randint(0, 40, (nodes,)).cuda()
    edges = torch.randint(0, nodes, (2, args.edges)).cuda()
else:
    model = (PointNet() if args.network == "pointnet" else DGCNN()).cuda().train()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
for step in range(args.steps):
    optimizer.zero_grad()
    if args.network == "graph":
        h = x
        for layer in layers:
            h = F.elu(layer(F.dropout(h, 0.1), edges))
        loss = F.cross_entropy(head(h), y)
    else:
        logits, extra = model(torch.randn(args.batch, 3, args.points).cuda())
        loss = F.cross_entropy(logits, torch.randint(0, 50, (args.batch, logits.shape[2])).cuda()) + extra
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.3f}", flush=True)

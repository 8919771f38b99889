"""Search and recommendation: two towers over bags of features, dense tables with Adagrad, sessions with sampled answers, sentences of many lengths."""

import argparse

import torch
import torch.nn.functional as F
import transformers as hf
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("recipe")
parser.add_argument("--batch", type=int, default=4096)
parser.add_argument("--steps", type=int, default=4)
args = parser.parse_args()
BATCH = args.batch


class Tower(nn.Module):
    def __init__(self, rows, width=128) -> None:
        super().__init__()
        self.table = nn.EmbeddingBag(rows, width, mode="mean")
        self.layers = nn.Sequential(
            nn.Linear(width, 512),
            nn.BatchNorm1d(512),
            nn.ReLU(),
            nn.Linear(512, 256),
            nn.ReLU(),
            nn.Linear(256, 128),
        )

    def forward(self, features, starts):
        return F.normalize(self.layers(self.table(features, starts)), dim=-1)


def towers():
    """Each query against all items of the batch and 65 thousand that came before it."""
    queries, items = Tower(3_000_000).cuda(), Tower(2_000_000).cuda()
    optimizer = torch.optim.Adagrad([*queries.parameters(), *items.parameters()], 0.05)
    known = F.normalize(torch.randn(65536, 128), dim=-1).cuda()
    starts = torch.arange(0, 20 * BATCH, 20).cuda()
    for step in range(args.steps):
        q = queries(torch.randint(0, 3_000_000, (20 * BATCH,)).cuda(), starts)
        i = items(torch.randint(0, 2_000_000, (20 * BATCH,)).cuda(), starts)
        scores = q @ torch.cat([i, known]).T / 0.05
        loss = F.cross_entropy(scores, torch.arange(BATCH, device="cuda"))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        known = torch.cat([known[BATCH:], i.detach()])
        yield step, loss


class DeepAndCross(nn.Module):
    def __init__(self, tables=26, rows=100_000, width=64) -> None:
        super().__init__()
        self.tables, inner = (
            nn.ModuleList(nn.Embedding(rows, width) for _ in range(tables)),
            tables * width + 13,
        )
        self.crosses = nn.ModuleList(nn.Linear(inner, inner) for _ in range(3))
        self.deep = nn.Sequential(
            nn.Linear(inner, 1024),
            nn.ReLU(),
            nn.Dropout(0.2),
            nn.Linear(1024, 512),
            nn.ReLU(),
            nn.Dropout(0.2),
            nn.Linear(512, 1),
        )

    def forward(self, kinds, numbers):
        x = torch.cat([*(table(kinds[:, index]) for index, table in enumerate(self.tables)), numbers], 1)
        start = x
        for cross in self.crosses:
            x = start * cross(x) + x
        return self.deep(x).squeeze(1)


def crosses():
    model = DeepAndCross().cuda().train()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3, fused=True)
    for step in range(args.steps):
        kinds, numbers = torch.randint(0, 100_000, (BATCH, 26)).cuda(), torch.randn(BATCH, 13).cuda()
        loss = F.binary_cross_entropy_with_logits(
            model(kinds, numbers), (torch.rand(BATCH) > 0.7).float().cuda()
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield step, loss


def sessions():
    """SASRec-like: what comes next among one right answer and 256 drawn ones."""
    width, length, items = 256, 200, 500_000
    table, places = nn.Embedding(items, width, padding_idx=0).cuda(), nn.Embedding(length, width).cuda()
    body = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(width, 4, 4 * width, 0.2, "gelu", batch_first=True, norm_first=True), 4
    ).cuda()
    parameters = [*table.parameters(), *places.parameters(), *body.parameters()]
    optimizer = torch.optim.Adam(parameters, 1e-3)
    mask = nn.Transformer.generate_square_subsequent_mask(length, device="cuda")
    for step in range(args.steps):
        ids = torch.randint(1, items, (BATCH, length + 1)).cuda()
        x = body(table(ids[:, :-1]) + places(torch.arange(length, device="cuda")), mask, is_causal=True)
        drawn = torch.randint(1, items, (256,)).cuda()
        right = (x * table(ids[:, 1:])).sum(-1, keepdim=True)
        scores = torch.cat([right, x @ table(drawn).T], -1)
        loss = F.cross_entropy(
            scores.flatten(0, 1), torch.zeros(BATCH * length, dtype=torch.long, device="cuda")
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield step, loss


def sentences():
    """Pairs of sentences, each side padded to its longest of the batch, 80 batches: contrast within the batch, mean of the tokens."""
    model = hf.BertModel(hf.BertConfig(), add_pooling_layer=False).cuda().train()
    optimizer = torch.optim.AdamW(model.parameters(), 2e-5)
    lengths = (
        (torch.rand(80 * BATCH, 2, generator=torch.Generator().manual_seed(11)).pow(3) * 240 + 12)
        .long()
        .tolist()
    )

    pairs = [tuple(torch.randint(5, 30000, (length,)) for length in pair) for pair in lengths]

    def collate(rows):
        return [nn.utils.rnn.pad_sequence(side, batch_first=True) for side in zip(*rows, strict=True)]

    def embedded(ids):
        mask = (ids != 0).long()
        hidden = model(input_ids=ids, attention_mask=mask).last_hidden_state
        return F.normalize((hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True), dim=-1)

    loader = torch.utils.data.DataLoader(
        pairs, BATCH, shuffle=True, collate_fn=collate, drop_last=True, pin_memory=True
    )
    for step, (first, second) in enumerate(loader):
        if step == args.steps:
            break
        with torch.autocast("cuda", torch.bfloat16):
            scores = embedded(first.cuda(non_blocking=True)) @ embedded(second.cuda(non_blocking=True)).T * 20
        loss = F.cross_entropy(scores.float(), torch.arange(BATCH, device="cuda"))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield step, loss


torch.manual_seed(0)
for step, loss in globals()[args.recipe]():
    print(f"step {step} loss {loss.item():.3f}", flush=True)

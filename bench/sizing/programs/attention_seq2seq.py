"""Translation as it was before transformers: a bidirectional GRU reads, a GRU cell writes word by word and attends to what was read."""

import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=128)
parser.add_argument("--length", type=int, default=50)
parser.add_argument("--hidden", type=int, default=512)
parser.add_argument("--vocabulary", type=int, default=16000)
parser.add_argument("--steps", type=int, default=4)
args = parser.parse_args()


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(args.hidden, args.hidden), nn.Linear(2 * args.hidden, args.hidden)
        self.score = nn.Linear(args.hidden, 1)

    def forward(self, state, keys, memory):
        weights = self.score(torch.tanh(self.query(state)[:, None] + keys)).softmax(1)
        return (weights * memory).sum(1)


class Translator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.source, self.target = (nn.Embedding(args.vocabulary, args.hidden) for _ in range(2))
        self.reader = nn.GRU(args.hidden, args.hidden, bidirectional=True, batch_first=True)
        self.attention, self.writer = Attention(), nn.GRUCell(3 * args.hidden, args.hidden)
        self.start, self.head = (
            nn.Linear(args.hidden, args.hidden),
            nn.Linear(3 * args.hidden, args.vocabulary),
        )

    def forward(self, source, target):
        memory, last = self.reader(self.source(source))
        state, keys = torch.tanh(self.start(last[0])), self.attention.key(memory)
        logits = []
        for word in self.target(target).unbind(1):
            context = self.attention(state, keys, memory)
            state = self.writer(torch.cat([word, context], -1), state)
            logits.append(self.head(torch.cat([state, context], -1)))
        return torch.stack(logits, 1)


torch.manual_seed(0)
model = Translator().cuda().train()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-4)
for step in range(args.steps):
    source, target = (torch.randint(1, args.vocabulary, (args.batch, args.length)).cuda() for _ in range(2))
    logits = model(source, target)
    loss = nn.functional.cross_entropy(logits.transpose(1, 2), target, ignore_index=0)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    print(f"step {step} loss {loss.item():.3f}", flush=True)

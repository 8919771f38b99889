"""A language model of LSTM layers with hidden states carried over."""

import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=128)
parser.add_argument("--length", type=int, default=128)
parser.add_argument("--width", type=int, default=1024)
args = parser.parse_args()


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.drop = nn.Embedding(33278, args.width), nn.Dropout(0.2)
        self.lstm, self.out = nn.LSTM(args.width, args.width, 2, dropout=0.2), nn.Linear(args.width, 33278)

    def forward(self, ids, hidden):
        output, hidden = self.lstm(self.drop(self.words(ids)), hidden)
        return self.out(self.drop(output)), hidden


model = Words().cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
hidden = tuple(torch.zeros(2, args.batch, args.width, device="cuda") for _ in range(2))
for step in range(4):
    ids = torch.randint(0, 33278, (args.length, args.batch)).cuda()
    hidden = tuple(part.detach() for part in hidden)
    logits, hidden = model(ids, hidden)
    loss = nn.functional.cross_entropy(logits.view(-1, 33278), ids.view(-1))
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.25)
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {step} loss {loss.item():.3f}", flush=True)

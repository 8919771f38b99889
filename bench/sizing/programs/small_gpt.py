"""A GPT written by hand, fused AdamW, bfloat16, accumulation, an evaluation and samples between: the common teaching script."""

import argparse
import math

import torch
import torch.nn.functional as F
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=12)
parser.add_argument("--length", type=int, default=1024)
parser.add_argument("--layers", type=int, default=12)
parser.add_argument("--width", type=int, default=768)
parser.add_argument("--accumulate", type=int, default=4)
parser.add_argument("--dropout", type=float, default=0.0)
args = parser.parse_args()
VOCABULARY, HEADS = 50304, args.width // 64


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(args.width), nn.LayerNorm(args.width)
        self.qkv, self.proj = nn.Linear(args.width, 3 * args.width), nn.Linear(args.width, args.width)
        self.fc, self.out = nn.Linear(args.width, 4 * args.width), nn.Linear(4 * args.width, args.width)
        self.drop = nn.Dropout(args.dropout)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (
            part.view(b, t, HEADS, 64).transpose(1, 2) for part in self.qkv(self.ln1(x)).split(c, dim=2)
        )
        y = F.scaled_dot_product_attention(
            q, k, v, is_causal=True, dropout_p=args.dropout if self.training else 0.0
        )
        x = x + self.drop(self.proj(y.transpose(1, 2).reshape(b, t, c)))
        return x + self.drop(self.out(F.gelu(self.fc(self.ln2(x)))))


class GPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, args.width), nn.Embedding(args.length, args.width)
        self.blocks, self.ln = nn.ModuleList(Block() for _ in range(args.layers)), nn.LayerNorm(args.width)
        self.head = nn.Linear(args.width, VOCABULARY, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids, targets=None):
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.ln(x))
        return logits, None if targets is None else F.cross_entropy(
            logits.view(-1, VOCABULARY), targets.view(-1)
        )


def batch():
    data = (
        torch.randint(0, VOCABULARY, (args.batch, args.length + 1)).pin_memory().to("cuda", non_blocking=True)
    )
    return data[:, :-1].contiguous(), data[:, 1:].contiguous()


@torch.no_grad()
def evaluate(model):
    model.eval()
    losses = []
    for _ in range(3):
        with torch.autocast("cuda", torch.bfloat16):
            losses.append(model(*batch())[1].item())
    model.train()
    return sum(losses) / len(losses)


torch.set_float32_matmul_precision("high")
model = GPT().cuda()
decay = [p for p in model.parameters() if p.dim() > 1]
rest = [p for p in model.parameters() if p.dim() <= 1]
optimizer = torch.optim.AdamW(
    [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}], lr=6e-4, fused=True
)
for step in range(4):
    for _ in range(args.accumulate):
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(*batch())[1] / args.accumulate
        loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    print(f"step {step} perplexity {math.exp(min(20.0, loss.item() * args.accumulate)):.1f}", flush=True)
print(f"eval {evaluate(model):.3f}", flush=True)

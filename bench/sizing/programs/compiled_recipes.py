"""Trainings under torch.compile: a GPT as nanoGPT makes it, a ResNet in channels-last, the Trainer, texts of two lengths, and a model that the compiler has to cut in parts."""

import argparse
import tempfile

import torch
import torch.nn.functional as F
import transformers as hf
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("recipe")
parser.add_argument("--batch", type=int, default=12)
parser.add_argument("--length", type=int, default=1024)
parser.add_argument("--size", type=int, default=224)
parser.add_argument("--steps", type=int, default=4)
args = parser.parse_args()
BATCH = args.batch


class Attention(nn.Module):
    def __init__(self, width, heads) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (
            part.view(b, t, self.heads, c // self.heads).transpose(1, 2) for part in self.qkv(x).split(c, 2)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(b, t, c))


class Block(nn.Module):
    def __init__(self, width, heads) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(width), Attention(width, heads)
        self.norm2, self.up, self.down = (
            nn.LayerNorm(width),
            nn.Linear(width, 4 * width),
            nn.Linear(4 * width, width),
        )

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    def __init__(self, vocabulary=50304, width=768, layers=12, heads=12) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(args.length, width)
        self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids, targets):
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        logits = self.head(self.norm(self.blocks(x)))
        return logits, F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))


def gpt():
    """As nanoGPT: bfloat16, fused AdamW, clipped gradients, two passes a step, an evaluation."""
    torch.set_float32_matmul_precision("high")
    model = GPT().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), 6e-4, fused=True)
    run = torch.compile(model)

    def loss():
        ids = torch.randint(0, 50304, (BATCH, args.length + 1)).pin_memory().to("cuda", non_blocking=True)
        with torch.autocast("cuda", torch.bfloat16):
            return run(ids[:, :-1].contiguous(), ids[:, 1:].contiguous())[1]

    for step in range(args.steps):
        if step == 2:
            model.eval()
            with torch.no_grad():
                print(f"eval {loss().item():.3f}", flush=True)
            model.train()
        for _ in range(2):
            last = loss() / 2
            last.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        yield step, last


def resnet():
    model = hf.ResNetForImageClassification(hf.ResNetConfig(num_labels=1000))
    model = model.cuda().to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    model.compile()
    for step in range(args.steps):
        images = torch.randn(BATCH, 3, args.size, args.size).cuda().to(memory_format=torch.channels_last)
        labels = torch.randint(0, 1000, (BATCH,)).cuda()
        with torch.autocast("cuda", torch.bfloat16):
            loss = F.cross_entropy(model(pixel_values=images).logits, labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield step, loss


class Tokens(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> dict:
        ids = torch.randint(0, 30000, (args.length,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": ids, "labels": ids}


def trainer():
    with tempfile.TemporaryDirectory() as folder:
        hf.Trainer(
            model=hf.BertForMaskedLM(hf.BertConfig()),
            args=hf.TrainingArguments(
                folder, max_steps=args.steps, per_device_train_batch_size=BATCH, bf16=True, torch_compile=True, report_to=[],
                logging_steps=1, save_strategy="no", disable_tqdm=True,
            ),
            train_dataset=Tokens(),
        ).train()  # fmt: skip
    yield args.steps, torch.zeros(())


def lengths():
    """The second length makes the compiler's sizes symbols."""
    model = GPT(32000, 512, 8, 8).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), 3e-4)
    run = torch.compile(model)
    for step in range(args.steps + 2):
        length = args.length if step % 2 else args.length // 2
        ids = torch.randint(0, 32000, (BATCH, length)).cuda()
        with torch.autocast("cuda", torch.bfloat16):
            loss = run(ids, ids)[1]
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield step, loss


class Halves(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (
            nn.Sequential(*[Block(768, 12) for _ in range(6)]),
            nn.Sequential(*[Block(768, 12) for _ in range(6)]),
        )
        self.largest = 0.0

    def forward(self, x):
        x = self.first(x)
        self.largest = max(self.largest, x.abs().max().item())
        return self.second(x)


def parts():
    """A value is read in the middle: two graphs."""
    model = torch.compile(Halves().cuda())
    optimizer = torch.optim.Adam(model.parameters(), 1e-4)
    for step in range(args.steps):
        loss = model(torch.randn(BATCH, args.length, 768).cuda()).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield step, loss


torch.manual_seed(0)
for step, loss in globals()[args.recipe]():
    print(f"step {step} loss {loss.item():.3f}", flush=True)

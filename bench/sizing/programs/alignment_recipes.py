"""Language models after their training: groups of answers with rewards (GRPO), a model of rewards, adapters that scale directions, Lion and Shampoo, texts as long as they are, a compiled model."""

import argparse

import torch
import torch.nn.functional as F
import transformers as hf
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("recipe")
parser.add_argument("--batch", type=int, default=8)
parser.add_argument("--length", type=int, default=512)
parser.add_argument("--steps", type=int, default=4)
args = parser.parse_args()
BATCH, LENGTH, WORDS = args.batch, args.length, 32000


def tokens(batch=BATCH, length=LENGTH):
    return torch.randint(5, WORDS, (batch, length)).cuda()


def config(width, inner, layers, heads, groups):
    return hf.LlamaConfig(
        hidden_size=width, intermediate_size=inner, num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=groups,
        vocab_size=WORDS, max_position_embeddings=4096, tie_word_embeddings=True, pad_token_id=0,
    )  # fmt: skip


def grpo():
    """Eight answers of 128 tokens to each prompt, their chances under a frozen copy, a clipped gain."""
    with torch.device("cuda"):
        model, frozen = (
            hf.LlamaForCausalLM(config(1024, 2816, 16, 16, 4)).to(torch.bfloat16) for _ in range(2)
        )
    frozen.eval().requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-6)

    def chances(net, ids):
        logits = net(input_ids=ids, use_cache=False).logits[:, :-1]
        return torch.gather(logits.float().log_softmax(-1), 2, ids[:, 1:, None]).squeeze(2)[:, LENGTH - 1 :]

    for step in range(args.steps):
        model.eval()
        with torch.no_grad():
            ids = model.generate(
                tokens(BATCH // 8).repeat_interleave(8, 0),
                max_new_tokens=128,
                min_new_tokens=128,
                do_sample=True,
                temperature=1.0,
            )
            before, known = chances(model, ids), chances(frozen, ids)
        rewards = torch.rand(BATCH // 8, 8).cuda()
        gains = ((rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-4)).flatten()[
            :, None
        ]
        model.train()
        now = chances(model, ids)
        ratio = (now - before).exp()
        penalty = (known - now).exp() - (known - now) - 1
        loss = (-torch.min(ratio * gains, ratio.clamp(0.8, 1.2) * gains) + 0.04 * penalty).mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        yield step, loss


def rewards():
    """Which of two answers is better: a head on a decoder, checkpointing, GradScaler, four passes a step."""
    model = hf.LlamaForSequenceClassification(config(1024, 2816, 20, 16, 8)).cuda().train()
    model.score = nn.Linear(1024, 1, bias=False).cuda()
    model.config.num_labels = 1
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": True})
    model.enable_input_require_grads()
    optimizer, scaler = torch.optim.Adam(model.parameters(), 1e-5, fused=True), torch.amp.GradScaler("cuda")
    for step in range(args.steps):
        for _ in range(4):
            with torch.autocast("cuda", torch.float16):
                hidden = model.model(
                    input_ids=torch.cat([tokens(), tokens()]), use_cache=False
                ).last_hidden_state
                better, worse = model.score(hidden[:, -1]).float().chunk(2)
                loss = -F.logsigmoid(better - worse).mean() / 4
            scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        yield step, loss


class Direction(nn.Module):
    """DoRA: a frozen matrix and a small change, of which the direction is kept and the length learned."""

    def __init__(self, base, rank=16) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(rank, base.in_features, device="cuda") * 0.01)
        self.b = nn.Parameter(torch.zeros(base.out_features, rank, device="cuda"))
        self.length = nn.Parameter(base.weight.float().norm(dim=1))

    def forward(self, x):
        change = self.b @ self.a
        whole = (self.base.weight + change.to(x.dtype)).float().norm(dim=1).detach()
        small = F.linear(F.linear(F.dropout(x, 0.05, self.training), self.a.to(x.dtype)), self.b.to(x.dtype))
        return (self.base(x) + small) * (self.length / whole).to(x.dtype)


def directions():
    with torch.device("cuda"):
        model = hf.LlamaForCausalLM(config(2048, 5632, 16, 32, 8)).to(torch.bfloat16)
    model.requires_grad_(False)
    for module in list(model.modules()):
        for name in ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"):
            if isinstance(getattr(module, name, None), nn.Linear):
                setattr(module, name, Direction(getattr(module, name)))
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.train()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 1e-4)
    for step in range(args.steps):
        ids = tokens()
        loss = model(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield step, loss


class Lion(torch.optim.Optimizer):
    def __init__(self, parameters, lr) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                average = self.state[p].setdefault("average", torch.zeros_like(p))
                p.mul_(1 - group["lr"] * 0.1).add_((average * 0.9 + p.grad * 0.1).sign(), alpha=-group["lr"])
                average.mul_(0.99).add_(p.grad, alpha=0.01)


class Shampoo(torch.optim.Optimizer):
    """Each matrix is multiplied by roots of its own statistics on both sides, found by eigenvalues."""

    def __init__(self, parameters, lr) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                grad, state = p.grad, self.state[p]
                if grad.ndim == 2 and max(grad.shape) <= 4096:
                    if not state:
                        state["left"], state["right"] = (
                            torch.eye(n, device=p.device) * 1e-4 for n in grad.shape
                        )
                    state["left"].add_(grad @ grad.T)
                    state["right"].add_(grad.T @ grad)
                    grad = self.root(state["left"]) @ grad @ self.root(state["right"])
                p.add_(grad, alpha=-group["lr"])

    @staticmethod
    def root(matrix):
        values, vectors = torch.linalg.eigh(matrix)
        return vectors @ (values.clamp_min(1e-8).pow(-0.25)[:, None] * vectors.T)


def causal(optimizer, width, inner, layers, heads, groups, compiled=False):
    model = hf.LlamaForCausalLM(config(width, inner, layers, heads, groups)).cuda().train()
    run, optimizer = torch.compile(model) if compiled else model, optimizer(model.parameters())
    for step in range(args.steps):
        ids = tokens()
        with torch.autocast("cuda", torch.bfloat16):
            loss = run(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield step, loss


def lion():
    return causal(lambda parameters: Lion(parameters, 1e-4), 1024, 4096, 16, 16, 16)


def shampoo():
    return causal(lambda parameters: Shampoo(parameters, 1e-3), 512, 1536, 4, 8, 8)


def compiled():
    return causal(
        lambda parameters: torch.optim.AdamW(parameters, 1e-4, fused=True), 768, 2048, 4, 12, 12, True
    )


def lengths():
    """Instructions as long as they are, 70 batches, each padded to its longest; the answer counts, not the question."""
    model = hf.Qwen2ForCausalLM(
        hf.Qwen2Config(
            hidden_size=896, intermediate_size=4864, num_hidden_layers=12, num_attention_heads=14, num_key_value_heads=2,
            vocab_size=64000, tie_word_embeddings=True,
        )
    ).cuda().to(torch.bfloat16).train()  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), 1e-5)
    sizes = (
        torch.randn(70 * BATCH, generator=torch.Generator().manual_seed(13))
        .mul(0.6)
        .add(5.3)
        .exp()
        .clamp(30, 1024)
        .int()
        .tolist()
    )

    def collate(rows):
        ids = nn.utils.rnn.pad_sequence(rows, batch_first=True)
        return {
            "input_ids": ids,
            "attention_mask": (ids != 0).long(),
            "labels": ids.masked_fill(ids == 0, -100),
        }

    loader = torch.utils.data.DataLoader(
        [torch.randint(5, 64000, (size,)) for size in sizes], BATCH, shuffle=True, collate_fn=collate
    )
    for step, batch in enumerate(loader):
        if step == args.steps:
            break
        loss = model(**{key: value.cuda() for key, value in batch.items()}, use_cache=False).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield step, loss


torch.manual_seed(0)
for step, loss in globals()[args.recipe]():
    print(f"step {step} loss {loss.item():.3f}", flush=True)

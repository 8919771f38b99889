"""Language models with a recipe around them: preferences (DPO), distillation, adapters on every layer, experts, state spaces, Muon, padding by batch."""

import argparse
import math

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
BATCH, LENGTH = args.batch, args.length


def tokens(vocabulary, batch=BATCH, length=LENGTH):
    return torch.randint(5, vocabulary, (batch, length)).cuda()


def llama(width, inner, layers, heads, groups, vocabulary=32000):
    return hf.LlamaConfig(
        hidden_size=width, intermediate_size=inner, num_hidden_layers=layers, num_attention_heads=heads,
        num_key_value_heads=groups, vocab_size=vocabulary, max_position_embeddings=4096, tie_word_embeddings=True,
    )  # fmt: skip


def dpo():
    config = llama(960, 2560, 32, 15, 5, 49152)
    with torch.device("cuda"):
        policy, reference = (hf.LlamaForCausalLM(config).to(torch.bfloat16) for _ in range(2))
    policy.train()
    reference.eval().requires_grad_(False)
    optimizer = torch.optim.RMSprop(policy.parameters(), 5e-7)

    def chances(model, ids):
        logits = model(input_ids=ids, use_cache=False).logits[:, :-1].float()
        return torch.gather(logits.log_softmax(-1), 2, ids[:, 1:, None]).squeeze(2)[:, LENGTH // 4 :].sum(-1)

    for step in range(args.steps):
        both = torch.cat([tokens(49152), tokens(49152)])
        with torch.no_grad():
            known = chances(reference, both)
        gain = chances(policy, both) - known
        loss = -F.logsigmoid(0.1 * (gain[:BATCH] - gain[BATCH:])).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        yield step, loss


def distillation():
    teacher = hf.BertForMaskedLM(
        hf.BertConfig(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096)
    )
    student = hf.DistilBertForMaskedLM(hf.DistilBertConfig())
    teacher, student = teacher.cuda().eval().half(), student.cuda().train()
    optimizer = torch.optim.AdamW(student.parameters(), 5e-4, fused=True)
    scaler = torch.amp.GradScaler("cuda")
    for step in range(args.steps):
        ids = tokens(30000)
        with torch.inference_mode():
            wanted = teacher(input_ids=ids).logits
        with torch.autocast("cuda", torch.float16):
            out = student(input_ids=ids, labels=ids)
            soft = F.kl_div(
                F.log_softmax(out.logits / 2, -1), F.softmax(wanted.clone() / 2, -1), reduction="batchmean"
            )
            loss = 4 * soft / LENGTH + out.loss
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        yield step, loss


class Adapter(nn.Module):
    def __init__(self, base, rank) -> None:
        super().__init__()
        self.base, self.drop, self.scale = base, nn.Dropout(0.05), 2.0
        self.down = nn.Parameter(torch.randn(rank, base.in_features, device="cuda") / math.sqrt(rank))
        self.up = nn.Parameter(torch.zeros(base.out_features, rank, device="cuda"))

    def forward(self, x):
        side = F.linear(F.linear(self.drop(x), self.down.to(x.dtype)), self.up.to(x.dtype))
        return self.base(x) + self.scale * side


def adapters():
    """A 7B's layers, twelve of them, adapters on every linear layer, checkpointing, padded labels, accumulation."""
    config = hf.Qwen2Config(
        hidden_size=3584, intermediate_size=18944, num_hidden_layers=12, num_attention_heads=28,
        num_key_value_heads=4, vocab_size=152064,
    )  # fmt: skip
    with torch.device("cuda"):
        model = hf.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.requires_grad_(False)
    for name, module in list(model.model.named_modules()):
        if isinstance(module, nn.Linear):
            parent = model.model.get_submodule(name.rpartition(".")[0])
            setattr(parent, name.rpartition(".")[2], Adapter(module, 64))
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.enable_input_require_grads()
    model.train()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 2e-4, fused=True)
    for step in range(args.steps):
        for _ in range(2):
            ids = tokens(152064)
            labels = ids.clone()
            labels[:, : LENGTH // 4] = -100
            with torch.autocast("cuda", torch.bfloat16):
                loss = model(input_ids=ids, labels=labels, use_cache=False).loss / 2
            loss.backward()
        nn.utils.clip_grad_norm_([p for p in model.parameters() if p.requires_grad], 0.3)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        yield step, loss


class Experts(nn.Module):
    """The best two of eight, each token's, with a loss that keeps them equally busy."""

    def __init__(self, width) -> None:
        super().__init__()
        self.gate = nn.Linear(width, 8, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
            for _ in range(8)
        )
        self.room = 1.25

    def forward(self, x):
        flat = x.flatten(0, 1)
        chances = self.gate(flat).float().softmax(-1)
        weights, chosen = chances.topk(2, -1)
        room = int(self.room * 2 * len(flat) / 8)
        out = torch.zeros_like(flat)
        for index, expert in enumerate(self.experts):
            score = (weights * (chosen == index)).sum(-1)
            best, rows = score.topk(room)
            out = out.index_add(0, rows, expert(flat[rows]) * best[:, None].to(flat.dtype))
        self.balance = (chances.mean(0) ** 2).sum() * 8
        return out.view_as(x)


class ExpertLayer(nn.Module):
    def __init__(self, width, heads) -> None:
        super().__init__()
        self.norm1, self.norm2, self.heads = nn.RMSNorm(width), nn.RMSNorm(width), heads
        self.qkv, self.out, self.experts = (
            nn.Linear(width, 3 * width),
            nn.Linear(width, width),
            Experts(width),
        )

    def forward(self, x):
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.experts(self.norm2(x))


def experts():
    width, vocabulary = 768, 32000
    words, layers = nn.Embedding(vocabulary, width), nn.ModuleList(ExpertLayer(width, 12) for _ in range(6))
    model = nn.ModuleDict({"words": words, "layers": layers, "norm": nn.RMSNorm(width)}).cuda().train()
    optimizer = torch.optim.AdamW(model.parameters(), 3e-4, betas=(0.9, 0.95))
    for step in range(args.steps):
        ids = tokens(vocabulary)
        with torch.autocast("cuda", torch.bfloat16):
            x = model["words"](ids)
            for layer in model["layers"]:
                x = layer(x)
            logits = model["norm"](x) @ model["words"].weight.T
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten())
            loss = loss + 0.01 * sum(layer.experts.balance for layer in model["layers"])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        yield step, loss


def olmoe():
    config = hf.OlmoeConfig(
        hidden_size=1024, intermediate_size=512, num_hidden_layers=8, num_attention_heads=16, num_key_value_heads=16,
        num_experts=16, num_experts_per_tok=4, vocab_size=50304,
    )  # fmt: skip
    return _causal(hf.AutoModelForCausalLM.from_config(config), 50304)


def mamba():
    config = hf.MambaConfig(hidden_size=768, num_hidden_layers=6, vocab_size=50280)
    return _causal(hf.MambaForCausalLM(config), 50280, use_cache=False)


def _causal(model, vocabulary, **options):
    model = model.cuda().train()
    optimizer = torch.optim.AdamW(model.parameters(), 3e-4)
    for step in range(args.steps):
        ids = tokens(vocabulary)
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(input_ids=ids, labels=ids, **options).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        yield step, loss


def muon():
    """Matrices by Muon, the rest by AdamW, in bfloat16 all over, the loss over pieces of the sequence."""
    model = hf.LlamaForCausalLM(llama(1024, 2816, 24, 16, 16)).cuda().to(torch.bfloat16).train()
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
    rest = [p for name, p in model.named_parameters() if p.ndim != 2 or "embed" in name]
    optimizers = [torch.optim.Muon(matrices, 0.02), torch.optim.AdamW(rest, 3e-4)]
    for step in range(args.steps):
        ids = tokens(32000)
        hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state[:, :-1]
        losses = [
            F.cross_entropy(model.lm_head(part).flatten(0, 1).float(), wanted.flatten(), reduction="sum")
            for part, wanted in zip(hidden.chunk(4, 1), ids[:, 1:].chunk(4, 1), strict=True)
        ]
        loss = sum(losses) / ids[:, 1:].numel()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        yield step, loss


def padding():
    """Masked words, batches padded to their longest text, as a collator does it."""
    model = (
        hf.RobertaForMaskedLM(hf.RobertaConfig(vocab_size=50265, max_position_embeddings=514)).cuda().train()
    )
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    lengths = torch.randint(
        LENGTH // 3, LENGTH + 1, (1000,), generator=torch.Generator().manual_seed(3)
    ).tolist()
    texts = [torch.randint(5, 50265, (length,)) for length in lengths]

    def collate(rows):
        ids = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=1)
        labels = ids.clone()
        labels[torch.rand(ids.shape) > 0.15] = -100
        return {"input_ids": ids, "attention_mask": (ids != 1).long(), "labels": labels}

    loader = torch.utils.data.DataLoader(texts, BATCH, collate_fn=collate, pin_memory=True)
    for step, batch in enumerate(loader):
        if step == args.steps:
            break
        loss = model(**{key: value.cuda(non_blocking=True) for key, value in batch.items()}).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield step, loss


torch.manual_seed(0)
for step, loss in globals()[args.recipe]():
    print(f"step {step} loss {loss.item():.3f}", flush=True)

"""`oomproof.size` in the user's own process: figures as of a script, and everything as it was afterwards."""

from __future__ import annotations

import random
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers_sizing import on_virtual_gpu

torch = pytest.importorskip("torch", reason="the extra [ml] is not installed")

import oomproof  # noqa: E402
from oomproof.errors import OomproofError  # noqa: E402
from oomproof.sizing import calibrated_card, virtual_run  # noqa: E402
from oomproof.sizing.calibrated_card import CalibratedCard  # noqa: E402

nn, functional = torch.nn, torch.nn.functional
MIB = 1 << 20


class Block(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(500, 64)
        self.heads = nn.Linear(64, 192)
        self.drop = nn.Dropout(0.1)
        self.out = nn.Linear(64, 500, bias=False)
        self.out.weight = self.tokens.weight

    def forward(self, tokens: Any) -> Any:
        rows = self.tokens(tokens)
        parts = self.heads(rows).view(*tokens.shape, 4, 48).transpose(1, 2).split(16, dim=-1)
        rows = functional.scaled_dot_product_attention(*parts, is_causal=True).transpose(1, 2).flatten(2)
        return self.out(self.drop(rows))


def plain_step(model: Any, optimizer: Any, batch: Any) -> None:
    optimizer.zero_grad()
    logits = model(batch)
    functional.cross_entropy(logits.flatten(0, 1), batch.flatten()).backward()
    optimizer.step()


def parts_of_a_training() -> tuple[Any, Any, Any]:
    model = Block()
    return model, torch.optim.AdamW(model.parameters()), torch.randint(0, 500, (8, 128))


def everything() -> dict[str, Any]:
    """Each attribute of each module and class of torch, by its identity."""
    found: dict[str, Any] = {}
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] != "torch" or not isinstance(module, types.ModuleType):
            continue
        for key, value in list(vars(module).items()):
            if isinstance(value, types.ModuleType):
                continue
            found[f"{name}.{key}"] = value
            if isinstance(value, type) and value.__module__.startswith("torch"):
                found.update({f"{name}.{key}.{inner}": item for inner, item in list(vars(value).items())})
            elif "hooks" in key and isinstance(value, dict):
                found[f"{name}.{key}()"] = tuple(value)
    return found


# caches and counters that torch and the standard library keep
_OWN = ("__doc__", "__annotations__", "cache", "counter", "_abc_impl", "__warningregistry__", "next_id", "NEXT_ID", "__slotnames__")  # fmt: skip


def changes(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    names = [
        name
        for name in before
        if name not in after or (after[name] is not before[name] and after[name] != before[name])
    ]
    names += [name for name in after if name not in before]
    return sorted(name for name in names if not any(part in name.rsplit(".", 1)[1] for part in _OWN))


@pytest.fixture
def unchanged() -> Iterator[None]:
    """Of torch and its kernels, whatever happens."""
    oomproof.size(plain_step, *parts_of_a_training())  # imports are made now
    before, computed = everything(), kernels()
    yield
    assert changes(before, everything()) == []
    assert all(torch.equal(now, then) for now, then in zip(kernels(), computed, strict=True))


def kernels() -> list[Any]:
    """What the virtual GPU replaces, for tensors of the CPU."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        rows = torch.randn(2, 4, 16, 8)
        layer = nn.Linear(8, 8)
        with torch.autocast("cpu", torch.bfloat16):
            cast = layer(rows)
        attended = functional.scaled_dot_product_attention(rows, rows, rows, is_causal=True)
        return [cast, attended, functional.dropout(rows, 0.5), nn.Parameter(rows), rows.softmax(-1)]


def test_the_figures_are_those_of_a_script(unchanged: None, tmp_path: Path) -> None:
    script = Path(__file__).read_text().split("class Block")[1].split("def parts_of_a_training")[0]
    text = f"""
import torch
from typing import Any
nn, functional = torch.nn, torch.nn.functional
class Block{script}
model = Block().cuda()
optimizer = torch.optim.AdamW(model.parameters())
batch = torch.randint(0, 500, (8, 128)).cuda()
for _ in range(3):
    plain_step(model, optimizer, batch)
"""
    run, _ = on_virtual_gpu(text, tmp_path)
    expected, _ = virtual_run.gpu_estimate(run)
    sizing = oomproof.size(plain_step, *parts_of_a_training())
    assert sizing.gpu is not None and sizing.refused is None
    assert abs(sizing.gpu.expected - expected.expected) <= 2 * MIB
    assert sizing.gpu.parts["weights"] == expected.parts["weights"], "tied weights are counted once"
    assert sizing.gpu.parts["optimizer state"] == expected.parts["optimizer state"]


def test_model_optimizer_and_batch_stay_as_they_are(unchanged: None) -> None:
    model, optimizer, batch = parts_of_a_training()
    plain_step(model, optimizer, batch)
    tensors = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state = {name: tensor.clone() for name, tensor in optimizer.state[model.heads.weight].items()}
    gradients = [parameter.grad.clone() for parameter in model.parameters()]
    saved = batch.clone()

    def step(*given: Any) -> None:
        random.random()
        torch.randn(3)
        plain_step(*given)

    numbers, others = torch.get_rng_state(), random.getstate()
    oomproof.size(step, model, optimizer, batch)
    assert torch.equal(torch.get_rng_state(), numbers) and random.getstate() == others
    assert all(torch.equal(tensor, tensors[name]) for name, tensor in model.state_dict().items())
    assert all(type(parameter) is nn.Parameter for parameter in model.parameters())
    now = optimizer.state[model.heads.weight]
    assert all(torch.equal(tensor, state[name]) for name, tensor in now.items())
    assert all(torch.equal(item.grad, then) for item, then in zip(model.parameters(), gradients, strict=True))
    assert torch.equal(batch, saved)
    plain_step(model, optimizer, batch)
    assert int(now["step"]) == 2


def test_mixed_precision_with_a_scaler_from_outside(unchanged: None) -> None:
    scaler = torch.amp.GradScaler("cuda", enabled=False)
    schedules: list[Any] = []

    def step(model: Any, optimizer: Any, batch: Any) -> None:
        with torch.autocast("cuda", torch.bfloat16):
            logits = model(batch)
            loss = functional.cross_entropy(logits.flatten(0, 1), batch.flatten())
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        schedule.step()
        optimizer.zero_grad()

    model, optimizer, batch = parts_of_a_training()
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    schedules.append(schedule.last_epoch)
    mixed, full = (
        oomproof.size(step, model, optimizer, batch),
        oomproof.size(plain_step, model, optimizer, batch),
    )
    assert mixed.gpu is not None and full.gpu is not None, (mixed, full)
    assert mixed.gpu.parts["activations"] != full.gpu.parts["activations"]
    assert schedules == [schedule.last_epoch] and optimizer.param_groups[0]["lr"] == 1e-3


@pytest.fixture
def gpt2() -> Any:
    transformers = pytest.importorskip("transformers", reason="the extra [ml] is not installed")
    config = transformers.GPT2Config(n_layer=2, n_embd=64, n_head=4, vocab_size=500, n_positions=128)
    return transformers.GPT2LMHeadModel(config)


def test_a_model_of_transformers(gpt2: Any, unchanged: None) -> None:
    model = gpt2
    tokens = torch.randint(0, 500, (4, 128))

    def step(model: Any, optimizer: Any, batch: Any) -> float:
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return float(loss.item())

    batch = {"input_ids": tokens, "labels": tokens}
    sizing = oomproof.size(step, model, torch.optim.AdamW(model.parameters()), batch, gpu="24G")
    assert sizing.gpu is not None, sizing
    weights = sum(parameter.numel() * 4 for parameter in model.parameters())
    assert 2 * weights <= sizing.gpu.parts["optimizer state"] < 2.1 * weights
    text = repr(sizing)
    assert "GPU:" in text and "optimizer state" in text and "fits on a 24.0 GiB card" in text, text
    assert sizing.as_json()["gpu"]["expected_bytes"] == sizing.gpu.expected


def test_an_error_of_the_step_is_raised_and_nothing_stays_behind(unchanged: None) -> None:
    def step(model: Any, optimizer: Any, batch: Any) -> None:
        model(batch)
        raise ValueError("its own mistake")

    with pytest.raises(ValueError, match="its own mistake"):
        oomproof.size(step, *parts_of_a_training())


def test_an_interrupt_is_an_interrupt(unchanged: None) -> None:
    def step(model: Any, optimizer: Any, batch: Any) -> None:
        model(batch)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        oomproof.size(step, *parts_of_a_training())


def test_the_users_own_model_is_copied_where_the_step_takes_it_from_outside(unchanged: None) -> None:
    model, optimizer, batch = parts_of_a_training()

    def forward(tokens: Any) -> Any:
        return model(tokens)

    def step(_: Any, __: Any, batch: Any) -> None:
        functional.cross_entropy(forward(batch).flatten(0, 1), batch.flatten()).backward()
        optimizer.step()

    sizing = oomproof.size(step, model, optimizer, batch)
    assert sizing.gpu is not None and sizing.gpu.parts["optimizer state"] > 0
    assert not optimizer.state and all(parameter.grad is None for parameter in model.parameters())


def test_what_cannot_be_followed_is_refused_by_name(unchanged: None) -> None:
    model, optimizer, batch = parts_of_a_training()
    holder = types.SimpleNamespace(model=model)

    def hidden(_: Any, __: Any, batch: Any) -> None:
        holder.model(batch).sum().backward()

    refused = oomproof.size(hidden, model, optimizer, batch)
    assert (
        refused.gpu is None and refused.refused is not None and "with its arguments alone" in refused.refused
    )
    assert "Not sized" in repr(refused) and all(parameter.grad is None for parameter in model.parameters())

    lazy = nn.Sequential(nn.LazyLinear(8))
    refused = oomproof.size(plain_step, lazy, optimizer, batch)
    assert refused.refused is not None and "Lazy" in refused.refused

    model.lock = __import__("threading").Lock()
    refused = oomproof.size(plain_step, model, optimizer, batch)
    assert refused.refused is not None and "the model cannot be copied" in refused.refused
    with pytest.raises(OomproofError, match="first argument is the step"):
        oomproof.size(model, None, None, None) if not callable(model) else oomproof.size(
            3, model, optimizer, batch
        )  # type: ignore[arg-type]


def test_a_method_and_gradients_that_are_accumulated(unchanged: None) -> None:
    class Trainer:
        def __init__(self) -> None:
            self.count = 0

        def step(self, model: Any, optimizer: Any, batch: Any) -> None:
            self.count += 1
            model(batch).float().mean().backward()
            if self.count % 4 == 0:
                optimizer.step()
                optimizer.zero_grad()

    trainer = Trainer()
    sizing = oomproof.size(trainer.step, *parts_of_a_training())
    assert sizing.gpu is not None and not any("only" in note for note in sizing.notes), sizing.notes
    assert trainer.count == 0


def test_for_a_calibrated_card(tmp_path: Path) -> None:
    card = CalibratedCard(
        {"name": "NVIDIA H200", "torch": "2.11", "total": 100 << 20}, {"with_matrices": 750 * MIB, "with_convolutions": 768 * MIB}
    )  # fmt: skip
    calibrated_card.write(tmp_path / "card.json", card)
    sizing = oomproof.size(plain_step, *parts_of_a_training(), card=str(tmp_path / "card.json"))
    assert sizing.gpu is not None and sizing.gpu.parts["context and libraries"] == 768 * MIB
    assert "NVIDIA H200 calibrated, 0 of" in sizing.basis and "short by" in repr(sizing)


def test_importing_oomproof_stays_cheap() -> None:
    asked = "import oomproof, sys; print(sorted(name for name in sys.modules if name.startswith(('oomproof.', 'torch'))))"
    ended = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "[]"
    assert "size" in dir(oomproof)

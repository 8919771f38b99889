"""`oomproof.fit_batch(step, model, optimizer, make_batch)`: measured, and everything as before; or predicted for a card that is not here."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the extra [ml] is not installed")

from helpers_fitting import A_SAMPLE, capacity_for, too_large  # noqa: E402
from torch import nn  # noqa: E402

import oomproof  # noqa: E402
from oomproof.errors import OomproofError  # noqa: E402
from oomproof.sizing.fitting.put_back import put_back  # noqa: E402

GIB = 1 << 30


def parts() -> tuple[Any, Any]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.1), nn.Linear(16, 4))
    return model, torch.optim.AdamW(model.parameters(), lr=0.1)


def make_batch(size: int) -> Any:
    return torch.ones(size, 8)


def step(model: Any, optimizer: Any, batch: Any) -> None:
    held = torch.ones(len(batch), A_SAMPLE // 4)
    model(batch).square().mean().backward()
    del held
    optimizer.step()
    optimizer.zero_grad()


def state_of(model: Any, optimizer: Any) -> Any:
    grads = [None if parameter.grad is None else parameter.grad.clone() for parameter in model.parameters()]
    return copy.deepcopy(
        (model.state_dict(), optimizer.state_dict(), grads, torch.get_rng_state(), model.training)
    )


def assert_same(first: Any, second: Any) -> None:
    torch.testing.assert_close(first, second, rtol=0, atol=0)


def test_the_largest_that_fits_with_everything_as_before(capsys: pytest.CaptureFixture[str]) -> None:
    model, optimizer = parts()
    for _ in range(2):  # a training that has begun: the optimizer has a state, the parameters have gradients
        model(make_batch(4)).square().mean().backward()
        optimizer.step()
    capacity = capacity_for(24)
    before = state_of(model, optimizer)
    batch = oomproof.fit_batch(step, model, optimizer, make_batch, effective=64, capacity=capacity)
    assert (batch.size, batch.accum) == (16, 4)
    assert_same(state_of(model, optimizer), before)
    text = capsys.readouterr().err
    assert (
        "oomproof: batch 16 × 4 passes = 64" in text
        and "note: a BatchNorm layer takes mean and variance of 16 samples instead of 64" in text
    )


def test_a_scaler_a_schedule_and_an_averaged_model_are_put_back() -> None:
    model, optimizer = parts()
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    averaged = torch.optim.swa_utils.AveragedModel(model)
    before = copy.deepcopy((schedule.state_dict(), averaged.state_dict(), optimizer.state_dict()))

    def scheduled(model: Any, optimizer: Any, batch: Any) -> None:
        model(batch).square().mean().backward()
        optimizer.step()
        schedule.step()
        averaged.update_parameters(model)

    oomproof.fit_batch(scheduled, model, optimizer, make_batch, effective=8, capacity="100G", quiet=True)
    assert_same((schedule.state_dict(), averaged.state_dict(), optimizer.state_dict()), before)


def test_put_back_after_an_error_of_the_step() -> None:
    model, optimizer = parts()
    before = state_of(model, optimizer)

    def wrong(model: Any, optimizer: Any, batch: Any) -> None:
        step(model, optimizer, batch)
        model.eval()
        raise ValueError("its own mistake")

    with pytest.raises(ValueError, match="its own mistake"):
        oomproof.fit_batch(wrong, model, optimizer, make_batch, effective=8, capacity="100G", quiet=True)
    assert_same(state_of(model, optimizer), before)


def test_memory_that_runs_out_is_no_error() -> None:
    model, optimizer = parts()
    before = state_of(model, optimizer)

    def failing(model: Any, optimizer: Any, batch: Any) -> None:
        step(model, optimizer, batch)
        if len(batch) > 12:
            too_large()

    batch = oomproof.fit_batch(
        failing, model, optimizer, make_batch, effective=64, capacity="100G", quiet=True
    )
    assert batch.size == 8
    assert_same(state_of(model, optimizer), before)


def test_nothing_fits() -> None:
    def failing(model: Any, optimizer: Any, batch: Any) -> None:
        too_large()

    with pytest.raises(OomproofError, match="not even a batch of 1 fits"):
        oomproof.fit_batch(failing, *parts(), make_batch, effective=8, capacity="100G", quiet=True)


def test_the_batch_of_a_checkpoint() -> None:
    def never(*given: Any) -> None:
        raise AssertionError

    batch = oomproof.fit_batch(
        never, *parts(), make_batch, effective=64, capacity="100G", quiet=True, resume={"size": 4}
    )
    assert (batch.size, batch.accum) == (4, 16)


def test_tensors_stay_the_same_objects() -> None:
    model, optimizer = parts()
    step(model, optimizer, make_batch(4))
    states = [state["exp_avg"] for state in optimizer.state.values()]
    with put_back(step, model, optimizer) as back:
        step(model, optimizer, make_batch(4))
        back()
    assert all(kept is state["exp_avg"] for kept, state in zip(states, optimizer.state.values(), strict=True))


# -- predicted ---------------------------------------------------------------------------------------------


def wide() -> tuple[Any, Any]:
    model = nn.Sequential(
        nn.Linear(256, 4096), nn.GELU(), nn.Linear(4096, 4096), nn.GELU(), nn.Linear(4096, 16)
    )
    return model, torch.optim.AdamW(model.parameters())


def plain(model: Any, optimizer: Any, batch: Any) -> None:
    model(batch).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def predicted(step: Callable[..., None], gpu: str, **asked: Any) -> Any:
    return oomproof.fit_batch(step, *wide(), lambda size: torch.ones(size, 256), gpu=gpu, **asked)


def test_a_card_that_is_not_here(capsys: pytest.CaptureFixture[str]) -> None:
    model, optimizer = wide()
    before = state_of(model, optimizer)
    batch = oomproof.fit_batch(
        plain, model, optimizer, lambda size: torch.ones(size, 256), gpu="4G", effective=1 << 17
    )
    assert_same(state_of(model, optimizer), before)
    # of each sample: five activations of 4096 numbers at most, beside what is fixed
    assert batch.need is not None and batch.capacity is not None and batch.need <= batch.capacity < 3.3 * GIB
    assert batch.effective == 1 << 17 and 16384 <= batch.size <= 65536
    larger = oomproof.size(plain, model, optimizer, torch.ones(batch.size * 2, 256))
    assert larger.gpu is not None and larger.gpu.expected > 4 * GIB
    assert "predicted for a card of 4.0 GiB" in capsys.readouterr().err


def test_a_loss_that_compares_samples_is_seen_by_its_tensors(capsys: pytest.CaptureFixture[str]) -> None:
    def contrastive(model: Any, optimizer: Any, batch: Any) -> None:
        vectors = nn.functional.normalize(model(batch))
        scores = vectors @ vectors.T
        nn.functional.cross_entropy(scores, torch.arange(len(batch), device=scores.device)).backward()
        optimizer.step()
        optimizer.zero_grad()

    batch = predicted(contrastive, "4G", effective=1 << 16)
    assert batch.accum > 1 and any("compares the samples" in note for note in batch.notes)
    assert not any("compares" in note for note in predicted(plain, "4G", effective=1 << 17, quiet=True).notes)


def test_lengths_that_differ_are_seen_in_the_batch() -> None:
    from oomproof.sizing.fitting.batch_api import unequal_in

    ids = torch.ones(2, 4, dtype=torch.long)
    assert unequal_in({"input_ids": ids, "attention_mask": torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1]])})
    assert unequal_in({"input_ids": ids, "labels": torch.tensor([[1, -100, 1, 1], [1, 1, 1, 1]])})
    assert unequal_in({"input_ids": ids, "labels": ids, "attention_mask": ids}) == ""
    assert unequal_in(ids) == ""


def test_a_card_too_small_for_one() -> None:
    with pytest.raises(OomproofError, match="not even a batch of 1 fits: it needs"):
        predicted(plain, "900M", effective=64, quiet=True)


def test_a_step_that_cannot_be_followed_says_so() -> None:
    def hidden(_: Any, __: Any, batch: Any) -> None:
        raise_with = torch.ones(3).numpy()
        holder["model"](batch).sum().backward()
        assert raise_with is not None

    model, optimizer = wide()
    holder: Any = type("Holder", (), {"__getitem__": lambda self, name: model})()
    with pytest.raises(OomproofError, match="the step cannot be predicted"):
        oomproof.fit_batch(hidden, model, optimizer, lambda size: torch.ones(size, 256), gpu="4G", quiet=True)

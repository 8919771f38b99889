"""After steps were made to measure them everything is as before: what a step touches, and what a process has once."""

from __future__ import annotations

import copy
import functools
import random
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the extra [ml] is not installed")

import numpy  # noqa: E402
from torch import nn  # noqa: E402

import oomproof  # noqa: E402
from oomproof.sizing.fitting.process_state import process_state, rewind  # noqa: E402
from oomproof.sizing.fitting.put_back import put_back  # noqa: E402


def make_batch(size: int) -> Any:
    return torch.rand(size, 4)


def fit(step: Any, model: Any, optimizer: Any) -> None:
    oomproof.fit_batch(step, model, optimizer, make_batch, most=8, capacity="100G", quiet=True)


def assert_same(first: Any, second: Any) -> None:
    torch.testing.assert_close(first, second, rtol=0, atol=0)


def scaled_step(model: Any, optimizer: Any, batch: Any, *, scaler: Any, clips: bool) -> None:
    optimizer.zero_grad()
    scaler.scale(model(batch).square().mean()).backward()
    if clips:
        scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()


@pytest.mark.parametrize("clips", [False, True])
def test_the_first_step_behind_it_is_made_with_gradients_that_are_not_scaled(clips: bool) -> None:
    weights = []
    for is_fitted in (False, True):
        torch.manual_seed(0)
        model, scaler = nn.Linear(4, 1), torch.amp.GradScaler("cpu")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        step = functools.partial(scaled_step, scaler=scaler, clips=clips)
        if is_fitted:
            fit(step, model, optimizer)
        step(model, optimizer, make_batch(8))
        weights.append((model.weight.detach(), scaler.state_dict()))
    assert_same(*weights)


def test_a_scaler_that_only_the_frames_know() -> None:
    model, holder = nn.Linear(4, 1), {"scaler": torch.amp.GradScaler("cpu")}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(model: Any, optimizer: Any, batch: Any) -> None:
        scaled_step(model, optimizer, batch, scaler=holder["scaler"], clips=True)

    fit(step, model, optimizer)
    step(model, optimizer, make_batch(8))  # raises where it is left between unscaling and updating


class Counting(nn.Module):
    """Does at its first batch what later ones do not, and keeps a list."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.scale = nn.Linear(4, 1), nn.Parameter(torch.ones(1))
        self.is_initialized, self.losses = False, [0.5]

    def forward(self, batch: Any) -> Any:
        if not self.is_initialized:
            self.is_initialized = True
            self.scale.data.fill_(float(batch.std()))
        loss = (self.layer(batch) * self.scale).square().mean()
        self.losses.append(float(loss.detach()))
        return loss


def plain_step(model: Any, optimizer: Any, batch: Any) -> None:
    model(batch).backward()
    optimizer.step()


def test_what_a_module_notes_of_its_own() -> None:
    model = Counting()
    losses = model.losses
    fit(plain_step, model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert model.losses is losses and losses == [0.5] and not model.is_initialized
    assert model.scale.item() == 1 and model.scale.grad is None


def test_a_parameter_of_no_module_and_keys_that_a_schedule_adds() -> None:
    model, temperature = nn.Linear(4, 1), torch.ones(1, requires_grad=True)
    optimizer = torch.optim.SGD([*model.parameters(), temperature], lr=0.1)
    groups = copy.deepcopy(optimizer.state_dict()["param_groups"])

    def step(model: Any, optimizer: Any, batch: Any) -> None:
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        (model(batch) * temperature).square().mean().backward()
        optimizer.step()
        schedule.step()

    fit(step, model, optimizer)
    assert temperature.item() == 1 and temperature.grad is None
    assert optimizer.state_dict()["param_groups"] == groups and "step" not in vars(optimizer)


def test_lists_of_tensors_in_an_optimizers_state_as_often_as_it_is_put_back() -> None:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)

    def step() -> None:
        def loss() -> Any:
            optimizer.zero_grad()
            value = model(make_batch(8)).square().mean()
            value.backward()
            return value

        optimizer.step(loss)

    step()
    step()
    before = copy.deepcopy(optimizer.state_dict()["state"])
    with put_back(None, model, optimizer) as back:
        for _ in range(2):
            step()
            back()
    assert_same(optimizer.state_dict()["state"], before)


def test_several_models_and_optimizers() -> None:
    models = {"first": nn.Linear(4, 1), "second": nn.Linear(4, 1)}
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models.values()]
    before = copy.deepcopy([model.state_dict() for model in models.values()])

    def step(models: Any, optimizers: Any, batch: Any) -> None:
        for model, optimizer in zip(models.values(), optimizers, strict=True):
            model(batch).square().mean().backward()
            optimizer.step()

    fit(step, models, optimizers)
    assert_same([model.state_dict() for model in models.values()], before)


def test_a_step_of_two_networks_that_is_cut_short() -> None:
    """As a GAN's: each has its gradients off while the other one is trained."""
    first, second = nn.Linear(4, 4), nn.Linear(4, 1)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (first, second)]

    def step(models: Any, optimizers: Any, batch: Any) -> None:
        for model, other, optimizer in ((first, second, optimizers[0]), (second, first, optimizers[1])):
            other.requires_grad_(False)
            model.requires_grad_(True)
            second(first(batch)).mean().backward()
            optimizer.step()

    fit(step, [first, second], optimizers)
    assert all(parameter.requires_grad for model in (first, second) for parameter in model.parameters())


class Average:
    """With a state of its own, which it takes as it is given."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.value = state["value"]


def test_what_a_step_averages() -> None:
    model, average = nn.Linear(4, 1), Average(torch.ones(2))

    def step(model: Any, optimizer: Any, batch: Any) -> None:
        plain_step(lambda batch: model(batch).mean(), optimizer, batch)
        average.value.mul_(0.5)

    fit(step, model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert_same(average.value, torch.ones(2))


# -- once in a process -------------------------------------------------------------------------------------

own = torch.Generator()


def test_random_numbers_of_a_batch_that_is_made() -> None:
    arrays, python = numpy.random.default_rng(0), random.Random(0)
    loader = torch.utils.data.DataLoader([1], generator=torch.Generator())

    def taken() -> list[float]:
        return [
            float(torch.rand(1)), random.random(), float(numpy.random.rand()), float(torch.rand(1, generator=own)),
            float(arrays.random()), python.random(), float(torch.rand(1, generator=loader.generator)),
        ]  # fmt: skip

    def make_batch(size: int) -> Any:
        taken()
        return torch.rand(size, 4)

    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    back = process_state(taken)
    expected = taken()
    back()
    step = functools.partial(plain_step, lambda batch: taken() and model(batch).mean())
    oomproof.fit_batch(
        lambda _, optimizer, batch: taken() and step(optimizer, batch), model, optimizer, make_batch, most=4, capacity="100G",
        quiet=True,
    )  # fmt: skip
    assert taken() == expected


def test_modes_after_an_interrupt() -> None:
    def step(model: Any, optimizer: Any, batch: Any) -> None:
        torch.set_default_dtype(torch.float64)
        torch.set_default_device("meta")
        torch.set_grad_enabled(False)
        raise KeyboardInterrupt

    model = nn.Linear(4, 1)
    try:
        with pytest.raises(KeyboardInterrupt):
            fit(step, model, torch.optim.SGD(model.parameters(), lr=0.1))
        assert torch.get_default_dtype() == torch.float32 and torch.is_grad_enabled()
        assert getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None) is None
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_default_device(None)
        torch.set_grad_enabled(True)


def test_generators_that_were_started_while_it_was_measured_begin_anew() -> None:
    generator = torch.Generator()
    generator.manual_seed(7)
    first = torch.rand(2, generator=generator)
    rewind([generator])
    assert_same(torch.rand(2, generator=generator), first)

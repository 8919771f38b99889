"""`FitBatch` in a real Lightning training: sizes are set, the training is as before, the batch comes back from a checkpoint."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the extra [ml] is not installed")
lightning = pytest.importorskip("lightning.pytorch", reason="the extra [ml] is not installed")

import torchmetrics  # noqa: E402
from lightning.pytorch.plugins import MixedPrecision  # noqa: E402

from oomproof.errors import OomproofError  # noqa: E402
from oomproof.sizing.fitting.memory_meter import HostMeter  # noqa: E402
from oomproof.sizing.integrations.lightning import FitBatch  # noqa: E402

MIB = 1 << 20
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


class Module(lightning.LightningModule):  # type: ignore[misc, name-defined]
    """8 MiB for each row while a step runs."""

    def __init__(self, batch_size: int = 32) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.layer = torch.nn.Linear(4, 1)
        self.rows: list[int] = []

    def training_step(self, batch: Any, index: int) -> Any:
        (values,) = batch
        self.rows.append(len(values))
        held = torch.ones(len(values), 8 * MIB // 4)
        loss = self.layer(values).square().mean() + 0 * held[0, 0]
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.1)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]

    def train_dataloader(self) -> Any:
        data = torch.utils.data.TensorDataset(torch.ones(128, 4))
        return torch.utils.data.DataLoader(data, batch_size=self.hparams.batch_size)


class Begins(lightning.Callback):  # type: ignore[misc, name-defined]
    """What the training finds when it starts."""

    found: dict[str, Any]

    def on_train_start(self, trainer: Any, module: Any) -> None:
        self.found = {
            "size": module.hparams.batch_size, "accum": trainer.accumulate_grad_batches, "step": trainer.global_step,
            "weights": module.layer.weight.detach().clone(), "states": len(trainer.optimizers[0].state),
            "rate": trainer.optimizers[0].param_groups[0]["lr"], "random": torch.get_rng_state(), "files": sorted(Path(trainer.default_root_dir).iterdir()),
        }  # fmt: skip
        module.rows.clear()


def trained(
    module: Any, tmp_path: Path, *callbacks: Any, ckpt_path: str | None = None, **settings: Any
) -> Any:
    trainer = lightning.Trainer(
        accelerator="cpu", devices=1, default_root_dir=tmp_path, logger=False, enable_progress_bar=False, enable_model_summary=False,
        callbacks=list(callbacks), **{"max_epochs": 1, "enable_checkpointing": False, **settings},
    )  # fmt: skip
    trainer.fit(module, ckpt_path=ckpt_path)
    return trainer


class WithNet(Module):
    """As lightning-hydra-template has it: the network is one of the saved settings."""

    def __init__(self, net: Any, batch_size: int = 4) -> None:
        super().__init__(batch_size)
        self.save_hyperparameters()


def test_settings_that_hold_a_module(tmp_path: Path) -> None:
    callback = FitBatch(capacity="100G", quiet=True)
    trained(WithNet(torch.nn.Linear(2, 2)), tmp_path, callback, max_steps=1)
    assert callback.batch is not None and not list(tmp_path.iterdir()), "its checkpoint is gone"


class Copied(Module):
    """lightning-hydra-template's data module copies the size when it is made."""

    def __init__(self, batch_size: int = 4) -> None:
        super().__init__(batch_size)
        self.batch_size_per_device = batch_size

    def train_dataloader(self) -> Any:
        data = torch.utils.data.TensorDataset(torch.ones(128, 4))
        return torch.utils.data.DataLoader(data, batch_size=self.batch_size_per_device)


def test_a_loader_that_does_not_read_it_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        OomproofError, match="batch_size was set to 2, but the train loader makes batches of 4"
    ):
        trained(Copied(), tmp_path, FitBatch(effective=64, capacity="100G", quiet=True), max_steps=1)
    callback = FitBatch(effective=64, name="batch_size_per_device", capacity="100G", quiet=True)
    module = Copied()
    trained(module, tmp_path, callback, max_steps=1)
    assert callback.batch is not None and module.rows[-1] * callback.batch.accum == 64


def test_the_effective_batch_is_kept_and_the_training_is_as_before(tmp_path: Path) -> None:
    first, begins = FitBatch(capacity="100G", quiet=True), Begins()
    trained(Module(), tmp_path, first, begins, max_steps=2)  # what libraries take once is held from here on
    assert first.batch is not None and (begins.found["size"], begins.found["accum"]) == (32, 1)
    module, begins = Module(), Begins()
    weight = module.layer.weight.detach().clone()
    callback = FitBatch(capacity=HostMeter.own() + 11 * 8 * MIB + 24 * MIB, quiet=True)
    trainer = trained(module, tmp_path, callback, begins)
    found, batch = begins.found, callback.batch
    assert batch is not None and batch.size in (4, 8, 16) and batch.effective == 32
    assert (found["size"], found["accum"], found["step"]) == (batch.size, batch.accum, 0)
    assert torch.equal(found["weights"], weight) and found["states"] == 0 and found["rate"] == 0.1
    assert found["files"] == [], "the checkpoint that was made for it is gone"
    assert module.rows == [batch.size] * (128 // batch.size) and trainer.global_step == 4


class Shuffled(Module):
    """All that a checkpoint does not hold: order, gradients that are cleared after the step, sums of its own, a check of the validation."""

    def __init__(self) -> None:
        super().__init__(batch_size=32)
        self.automatic_optimization = False
        self.register_buffer("passing", torch.zeros(1), persistent=False)
        self.metric = torchmetrics.MeanMetric()

    def training_step(self, batch: Any, index: int) -> None:
        loss = self.layer(batch[0]).square().mean()
        self.passing += 1
        self.metric.update(loss.detach())
        self.rows.append(float(batch[0].sum()))
        self.manual_backward(loss)
        self.optimizers().step()
        self.optimizers().zero_grad()

    def train_dataloader(self) -> Any:
        data = torch.utils.data.TensorDataset(torch.arange(512.0).view(128, 4) / 512)
        return torch.utils.data.DataLoader(data, batch_size=self.hparams.batch_size, shuffle=True)

    def validation_step(self, batch: Any, index: int) -> None:
        self.rows.append("validation")

    def val_dataloader(self) -> Any:
        return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(2, 4)))


def test_what_no_checkpoint_holds_is_as_before_too(tmp_path: Path) -> None:
    modules = []
    for callbacks in ([], [FitBatch(most=32, capacity="100G", quiet=True)]):
        torch.manual_seed(0)
        modules.append(Shuffled())
        scaled = MixedPrecision("16-mixed", "cpu", scaler=torch.amp.GradScaler("cpu"))
        trained(modules[-1], tmp_path, *callbacks, plugins=[scaled], max_steps=3)
    plain, fitted = modules
    assert plain.rows == fitted.rows and plain.rows[0] == "validation"
    assert torch.equal(plain.layer.weight, fitted.layer.weight)
    assert float(fitted.passing) == 3 and plain.metric.compute() == fitted.metric.compute()


def test_a_number_of_batches_stays_as_many_samples(tmp_path: Path) -> None:
    module = Module(batch_size=4)
    callback = FitBatch(most=2, capacity="100G", quiet=True)
    trainer = trained(module, tmp_path, callback, Begins(), limit_train_batches=4)
    assert module.rows == [2] * 8 and trainer.global_step == 4


def test_an_interrupt_leaves_the_module_as_it_was(tmp_path: Path) -> None:
    class Interrupted(Module):
        def training_step(self, batch: Any, index: int) -> Any:
            raise KeyboardInterrupt

    module = Interrupted(batch_size=16)
    with pytest.raises(SystemExit):
        trained(module, tmp_path, FitBatch(capacity="100G", quiet=True))
    assert module.hparams.batch_size == 16 and not list(tmp_path.iterdir())


def test_a_checkpoint_keeps_it(tmp_path: Path) -> None:
    callback = FitBatch(64, most=16, capacity="100G", quiet=True)
    trainer = trained(Module(), tmp_path, callback, enable_checkpointing=True)
    assert trainer.global_step == 2 and callback.batch is not None and callback.batch.size == 16
    path = trainer.checkpoint_callback.best_model_path
    again, module, begins = FitBatch(64, capacity="100G", quiet=True), Module(), Begins()
    resumed = trained(module, tmp_path, again, begins, ckpt_path=path, max_epochs=2)
    assert again.batch is not None and (again.batch.size, again.batch.accum) == (16, 4)
    assert begins.found["step"] == 2 and resumed.global_step == 4 and module.rows == [16] * 8
    # one that no longer holds: measured anew, and training still goes on where it stopped
    other, module, begins = FitBatch(64, most=8, capacity="100G", quiet=True), Module(), Begins()
    resumed = trained(module, tmp_path, other, begins, ckpt_path=path, max_epochs=2)
    assert other.batch is not None and other.batch.size == 8
    assert begins.found["step"] == 2 and begins.found["states"] == 2 and resumed.global_step == 4


def test_modules_that_cannot_be_given_another_batch(tmp_path: Path) -> None:
    class Without(Module):
        def __init__(self) -> None:
            lightning.LightningModule.__init__(self)
            self.layer, self.rows = torch.nn.Linear(4, 1), []

    with pytest.raises(OomproofError, match="has batch_size, which the train loader"):
        trained(Without(), tmp_path, FitBatch(quiet=True))
    loader = Module().train_dataloader()
    trainer = lightning.Trainer(
        accelerator="cpu", logger=False, enable_checkpointing=False, callbacks=[FitBatch(quiet=True)]
    )
    with pytest.raises(OomproofError, match="cannot be made again"):
        trainer.fit(Module(), loader)


def test_memory_that_runs_out_while_it_is_measured(tmp_path: Path) -> None:
    class Small(Module):
        def training_step(self, batch: Any, index: int) -> Any:
            if len(batch[0]) > 9:
                torch.empty(1 << 50)
            return super().training_step(batch, index)

    callback, module = FitBatch(capacity="100G", quiet=True), Small()
    trained(module, tmp_path, callback, max_steps=1)
    assert callback.batch is not None and callback.batch.size == 8
    assert module.rows[-4:] == [8] * 4

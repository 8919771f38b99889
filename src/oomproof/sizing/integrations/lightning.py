"""`FitBatch` for Lightning: the largest batch that fits, measured before training starts, the effective batch kept by accumulation."""

from __future__ import annotations

import inspect
import os
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from importlib import import_module
from typing import Any

from oomproof.errors import USAGE, OomproofError
from oomproof.records import replace
from oomproof.sizing.fitting import rank_agreement
from oomproof.sizing.fitting.fitted_batch import ANY, Asked, Batch, effective_note, wanted_effective
from oomproof.sizing.fitting.measured_fit import MeasuredFit, settings_of
from oomproof.sizing.fitting.module_state import beside_weights, gradients_back, modules_of, passing_buffers
from oomproof.sizing.fitting.module_state import kept as kept_on_host
from oomproof.sizing.fitting.probe_plan import START
from oomproof.sizing.fitting.process_state import is_scaler, process_state, scaler_back
from oomproof.sizing.fitting.released_memory import release

# Two names of one library; whichever the script has imported
_PACKAGE = (
    "pytorch_lightning"
    if "pytorch_lightning" in sys.modules and "lightning.pytorch" not in sys.modules
    else "lightning.pytorch"
)
Callback: Any = import_module(f"{_PACKAGE}.callbacks").Callback
_MOST_STEPS = 64  # of one measurement: it ends by itself after two or three


class FitBatch(Callback):  # type: ignore[misc]
    """As a callback: ``Trainer(callbacks=[FitBatch(effective=512)])``.

    ``effective``: samples of one optimizer step on all devices; None: as it is configured; "any": the largest batch, one pass a step.
    ``name``: the attribute of the module, its hparams or the data module that the train loader takes its batch size from. What was found
    is kept in checkpoints, and taken from there when training resumes. Works with several devices: all take the smallest."""

    def __init__(
        self,
        effective: int | str | None = None,
        *,
        most: int | None = None,
        start: int = START,
        capacity: str | int | None = None,
        name: str = "batch_size",
        quiet: bool = False,
    ) -> None:
        self.effective, self.name = effective, name
        self.settings = settings_of(None, most, start, capacity, quiet=quiet)
        self.batch: Batch | None = None
        self._state: dict[str, Any] | None = None

    def state_dict(self) -> dict[str, Any]:
        return dict(self.batch.state_dict()) if self.batch is not None else {}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        self._state = dict(state_dict) or None

    def setup(self, trainer: Any, pl_module: Any, stage: str | None = None) -> None:
        if stage != "fit":
            return
        if not _parsing().lightning_hasattr(pl_module, self.name):
            raise OomproofError(
                f"neither the module nor the data module has {self.name}, which the train loader would take its batch size from",
                f"self.{self.name} = 32, and DataLoader(…, batch_size=self.{self.name}); or FitBatch(name=…)", USAGE,
            )  # fmt: skip
        if not trainer.fit_loop._data_source.is_module():
            raise OomproofError(
                "a loader given to fit() cannot be made again with another batch size",
                "give the module or a data module a train_dataloader()", USAGE,
            )  # fmt: skip

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        if trainer.fast_dev_run:
            return
        size = int(_parsing().lightning_getattr(pl_module, self.name))
        before = size * trainer.accumulate_grad_batches * trainer.world_size
        asked = Asked(wanted_effective(self.effective, before), self.settings.most, trainer.world_size)
        asked.check()
        training = _Training(trainer, self.name)
        fit = MeasuredFit(
            training.run, self.settings, asked, rank_agreement.here(), training.as_before, confirm=True
        )
        fitted = fit.fitted(self._state)
        self.batch = replace(fitted, resumed=None)  # processes that are spawned get it pickled
        training.set(self.batch)
        training.forget_loaders()
        for text in training.count_samples(size, self.batch.size):
            fit.tell(text)
        if note := effective_note(self.effective, before, self.batch.effective):
            fit.tell(note)


def _parsing() -> Any:
    return import_module(f"{_PACKAGE}.utilities.parsing")


class _Training:
    """The trainer's own loop, for a few steps at a time; as Lightning's own finder runs it."""

    def __init__(self, trainer: Any, name: str) -> None:
        self.trainer, self.name = trainer, name
        self.loop = trainer.fit_loop

    def set(self, batch: Batch) -> None:
        _parsing().lightning_setattr(self.trainer.lightning_module, self.name, batch.size)
        if self.trainer.lightning_module.automatic_optimization:
            self.trainer.accumulate_grad_batches = batch.accum

    def forget_loaders(self) -> None:
        """They are asked for anew where Lightning itself asks for them: in the same order, with the same random numbers."""
        for loop in (self.loop, self.loop.epoch_loop.val_loop):
            if loop._data_fetcher is not None:
                loop._data_fetcher.teardown()  # with its workers
                loop._data_fetcher = None
            loop._combined_loader = None

    def count_samples(self, before: int, now: int) -> Iterator[str]:
        """What is set as a number of batches stays as many samples. Yields a sentence for each."""
        for name in ("limit_train_batches", "val_check_interval"):
            batches = getattr(self.trainer, name)
            if isinstance(batches, int) and batches and now != before:
                scaled = max(1, round(batches * before / now))
                setattr(self.trainer, name, scaled)
                yield f"{name} was {batches} batches of {before}, and is {scaled} of {now}"

    def _refuse_other_size(self, size: int) -> None:
        """A loader that reads another attribute would be measured and trained with the size it had. Raises OomproofError."""
        loaders = self.loop._combined_loader.flattened
        made = [
            loader.batch_size for loader in loaders if isinstance(getattr(loader, "batch_size", None), int)
        ]
        if made and size not in made:
            raise OomproofError(
                f"{self.name} was set to {size}, but the train loader makes batches of {made[0]}",
                f"read self.{self.name} in train_dataloader(), or name what it reads: FitBatch(name=…)", USAGE,
            )  # fmt: skip

    def run(self, batch: Batch) -> None:
        self.set(batch)
        self.forget_loaders()
        self.loop.setup_data()
        self._refuse_other_size(batch.size)
        self._begin()
        self.loop.run()

    def _begin(self) -> None:
        loop = self.loop
        loop.load_state_dict(deepcopy(self._loop_state))
        _begins_anew(loop)
        optimization = (
            loop.epoch_loop.automatic_optimization.optim_progress
            if self.trainer.lightning_module.automatic_optimization
            else loop.epoch_loop.manual_optimization.optim_step_progress
        )
        optimization.reset()
        loop.epoch_progress.reset()

    @contextmanager
    def as_before(self) -> Iterator[Callable[[], None]]:
        """Weights, optimizers, loops, loggers and callbacks, by a checkpoint that is made and removed."""
        trainer, loop = self.trainer, self.loop
        connector = trainer._checkpoint_connector
        kept = {
            name: getattr(trainer, name)
            for name in ("loggers", "callbacks", "limit_val_batches", "limit_train_batches")
        }
        accumulate, most_steps = trainer.accumulate_grad_batches, loop.epoch_loop.max_steps
        size = _parsing().lightning_getattr(trainer.lightning_module, self.name)
        resuming = connector._loaded_checkpoint, connector._ckpt_path
        self._loop_state = deepcopy(loop.state_dict())
        path = trainer.strategy.broadcast(
            os.path.join(trainer.default_root_dir, f".oomproof_fit_{uuid.uuid4().hex}.ckpt")
        )
        back = _not_in_checkpoints(trainer)
        bar, is_saved = trainer.progress_bar_callback, False
        try:
            trainer.save_checkpoint(path)
            is_saved = True
            if bar is not None:
                bar.disable()
            trainer.logger = _dummy_logger() if trainer.logger is not None else None
            trainer.callbacks, trainer.limit_val_batches, trainer.limit_train_batches = [], 0, 1.0
            loop.epoch_loop.max_steps = _MOST_STEPS
            yield back
        finally:
            for name, value in kept.items():
                setattr(trainer, name, value)
            trainer.accumulate_grad_batches, loop.epoch_loop.max_steps = accumulate, most_steps
            _parsing().lightning_setattr(trainer.lightning_module, self.name, size)
            loop.load_state_dict(deepcopy(self._loop_state))
            _begins_anew(loop)
            self.forget_loaders()
            loop.reset()
            if bar is not None:
                bar.enable()
            try:
                if is_saved:
                    _restore(connector, path)
            finally:
                trainer.strategy.remove_checkpoint(path)
            _begins_anew(loop)
            # of a training that resumes: still to be restored
            connector._loaded_checkpoint, connector._ckpt_path = resuming
            back()
            release()


def _begins_anew(loop: Any) -> None:
    """A loop whose state was loaded takes itself for one that resumes, and leaves out the check of the validation. Its own setter would not do:
    with ``max_steps`` it says so in any case."""
    for name in ("_restarting", "_loaded_from_state_dict", "_resuming_from_checkpoint"):
        if name in vars(loop):
            setattr(loop, name, False)
    for inner in vars(loop).values():
        if hasattr(inner, "_restarting"):
            _begins_anew(inner)


def _not_in_checkpoints(trainer: Any) -> Callable[[], None]:
    """What puts back what steps change and no checkpoint of Lightning holds."""
    module = trainer.lightning_module
    modules = modules_of(module)
    buffers = [(buffer, kept_on_host(buffer)) for buffer in passing_buffers(modules)]
    parts = [gradients_back(module.parameters()), beside_weights(modules)]
    scaler = getattr(trainer.precision_plugin, "scaler", None)
    if is_scaler(scaler):
        parts.append(scaler_back(scaler))
    parts.append(process_state())

    def back() -> None:
        for buffer, value in buffers:
            buffer.detach().copy_(value)
        for part in parts:
            part()

    return back


def _restore(connector: Any, path: str) -> None:
    """It is our own file of a moment ago: settings that hold whole modules come back too, which torch.load does not do by itself."""
    if "weights_only" in inspect.signature(connector.restore).parameters:
        connector.restore(path, weights_only=False)
    else:
        connector.restore(path)


def _dummy_logger() -> Any:
    made: Callable[[], Any] = import_module(f"{_PACKAGE}.loggers.logger").DummyLogger
    return made()


__all__ = ["ANY", "FitBatch"]

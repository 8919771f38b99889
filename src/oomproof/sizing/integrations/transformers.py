"""`fit_trainer` for transformers' Trainer: the largest per-device batch that fits, the effective batch kept by accumulation."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

from transformers import TrainerCallback
from transformers.trainer_utils import get_last_checkpoint

from oomproof.errors import USAGE, OomproofError
from oomproof.records import replace
from oomproof.sizing.fitting import rank_agreement
from oomproof.sizing.fitting.fitted_batch import Asked, Batch, effective_note, wanted_effective
from oomproof.sizing.fitting.measured_fit import MeasuredFit, settings_of
from oomproof.sizing.fitting.probe_plan import START
from oomproof.sizing.fitting.process_state import is_scaler, process_state, scaler_back
from oomproof.sizing.fitting.put_back import put_back
from oomproof.sizing.fitting.released_memory import empty_cache

FILE = "oomproof_batch.json"  # in each checkpoint's folder
_MOST_STEPS = 64  # of one measurement: it ends by itself after two or three
_ROWS = 50_000  # of a data set whose lengths are looked at
_LOOKED_AT = 2_000  # the same where each row has to be made
_REPEATED = 16_384  # times the longest row stands in what is measured


def fit_trainer(
    trainer: Any,
    effective: int | str | None = None,
    *,
    most: int | None = None,
    start: int = START,
    capacity: str | int | None = None,
    resume_from_checkpoint: str | bool | None = None,
    quiet: bool = False,
) -> Batch:
    """Sets ``per_device_train_batch_size`` and ``gradient_accumulation_steps``; call ``trainer.train()`` afterwards.

    ``effective``: samples of one optimizer step on all devices; None: as configured; "any": the largest batch, one pass a step. Measured in a
    few steps of the trainer's own, with the longest sample where lengths can be told; weights, optimizer, schedule and random numbers
    are put back, nothing is saved, logged or evaluated. ``resume_from_checkpoint``: as for ``train``; the batch of that checkpoint is taken."""
    args = trainer.args
    if getattr(args, "auto_find_batch_size", False):
        raise OomproofError(
            "auto_find_batch_size would search once more, and shrink the batch for an evaluation's lack of memory",
            "leave one of the two out", USAGE,
        )  # fmt: skip
    settings = settings_of(None, most, start, capacity, quiet=quiet)
    before, devices = int(trainer.get_total_train_batch_size(args)), devices_of(trainer)
    asked = Asked(wanted_effective(effective, before), most, devices)
    asked.check()
    state = _stored(resume_from_checkpoint, args.output_dir)

    def run(batch: Batch) -> None:
        set_batch(trainer, batch)
        trainer.train()

    fit = MeasuredFit(run, settings, asked, rank_agreement.here(), lambda: _as_before(trainer), confirm=True)
    batch = fit.fitted(state)
    set_batch(trainer, batch)
    trainer.remove_callback(_Remembers)
    trainer.add_callback(_Remembers(replace(batch, resumed=None)))  # what would keep it from being pickled
    if note := effective_note(effective, before, batch.effective):
        fit.tell(note)
    return batch


def devices_of(trainer: Any) -> int:
    """That share an effective batch: data-parallel ranks, and cards of DataParallel."""
    args = trainer.args
    ranks: int = int(trainer.get_total_train_batch_size(args)) // (
        trainer._train_batch_size * args.gradient_accumulation_steps
    )
    return max(1, ranks) * max(1, int(args.n_gpu))


def set_batch(trainer: Any, batch: Batch) -> None:
    trainer.args.per_device_train_batch_size = batch.size
    trainer.args.gradient_accumulation_steps = batch.accum
    trainer._train_batch_size = trainer.args.train_batch_size


class _Nobody(list[Any]):
    """The callbacks while it is measured: who joins by himself (to save when the guard asks) would save what the measured steps made."""

    def append(self, callback: Any) -> None:
        return None


class _Remembers(TrainerCallback):  # type: ignore[misc]
    """Writes the batch beside each checkpoint."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        folder = os.path.join(args.output_dir, f"checkpoint-{state.global_step}")
        if state.is_world_process_zero and os.path.isdir(folder):
            with open(os.path.join(folder, FILE), "w") as file:
                json.dump(self.batch.state_dict(), file)


def _stored(resume: str | bool | None, output_dir: str | None) -> Mapping[str, Any] | None:
    """The batch of the checkpoint that training resumes from."""
    if resume is True:
        resume = get_last_checkpoint(output_dir) if output_dir and os.path.isdir(output_dir) else None
    if not resume or not isinstance(resume, str):
        return None
    try:
        with open(os.path.join(resume, FILE)) as file:
            state = json.load(file)
    except (OSError, ValueError):  # of a training that was not fitted
        return None
    return state if isinstance(state, dict) else None


@contextmanager
def _as_before(trainer: Any) -> Iterator[Callable[[], None]]:
    """Yields what puts the trainer back; the settings that would save, log or evaluate are off inside."""
    args, handler = trainer.args, trainer.callback_handler
    names = (
        "per_device_train_batch_size",
        "gradient_accumulation_steps",
        "max_steps",
        "eval_on_start",
        "load_best_model_at_end",
    )
    settings = {name: getattr(args, name) for name in names if hasattr(args, name)}
    own = (
        "optimizer",
        "lr_scheduler",
        "state",
        "control",
        "model_wrapped",
        "train_dataset",
        "_train_batch_size",
        "_created_lr_scheduler",
    )
    parts = {name: getattr(trainer, name) for name in own if hasattr(trainer, name)}
    callbacks = handler.callbacks
    forward = {
        name: vars(trainer.model).get(name)
        for name in ("forward", "_original_forward", "_is_accelerate_prepared")
    }
    model = trainer.model if trainer.model_init is None else None
    schedule = parts.get("lr_scheduler")
    schedule_state = deepcopy(schedule.state_dict()) if schedule is not None else None
    numbers, scaler = process_state(), getattr(trainer.accelerator, "scaler", None)
    scaler_as_before = scaler_back(scaler) if scaler is not None and is_scaler(scaler) else None
    with put_back(None, model, parts["optimizer"]) as back:
        handler.callbacks = _Nobody()
        args.max_steps, args.eval_on_start, args.load_best_model_at_end = _MOST_STEPS, False, False
        trainer.train_dataset = longest_only(parts["train_dataset"])

        def as_before() -> None:
            handle = getattr(trainer, "neftune_hook_handle", None)
            if handle is not None:
                handle.remove()
            trainer.accelerator.free_memory()
            for name, value in parts.items():
                if name != "train_dataset":
                    setattr(trainer, name, value)
            for name, value in forward.items():
                if value is None:
                    vars(trainer.model).pop(name, None)
                else:
                    setattr(trainer.model, name, value)
            trainer.is_in_train = False
            if schedule is not None:
                schedule.load_state_dict(deepcopy(schedule_state))
            back()
            if scaler_as_before is not None:
                scaler_as_before()
            empty_cache()
            numbers()

        try:
            yield as_before
        finally:
            as_before()
            trainer.train_dataset, handler.callbacks = parts["train_dataset"], callbacks
            for name, value in settings.items():
                setattr(args, name, value)


def longest_only(dataset: Any) -> Any:
    """The longest row, again and again: a batch that holds it is padded to it. The data set as it is where lengths cannot be told."""
    lengths = _lengths(dataset)
    if not lengths:
        return dataset
    from torch.utils.data import Subset

    return Subset(dataset, [max(range(len(lengths)), key=lambda row: lengths[row])] * _REPEATED)


def _lengths(dataset: Any) -> Sequence[int]:
    """Of the first rows: by the column ``length`` or ``input_ids`` of a data set with columns, else by the rows themselves."""
    try:
        count = min(len(dataset), _ROWS)
        columns = getattr(dataset, "column_names", None)
        if isinstance(columns, list):
            plain = dataset.with_format(None).select(range(count))
            if "length" in columns:
                return [int(length) for length in plain["length"]]
            return [len(row) for row in plain["input_ids"]] if "input_ids" in columns else ()
        if count and isinstance(dataset[0], Mapping) and "input_ids" in dataset[0]:
            return [len(dataset[row]["input_ids"]) for row in range(min(count, _LOOKED_AT))]
    except Exception:  # a data set of its own kind: measured in its own order
        return ()
    return ()

"""`fit_trainer` on a real Trainer: sizes are set, the trainer is as before, the batch is found again in a checkpoint."""

from __future__ import annotations

import copy
import json
import pickle
import threading
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers", reason="the extra [ml] is not installed")
torch = pytest.importorskip("torch", reason="the extra [ml] is not installed")

import transformers  # noqa: E402

from oomproof.agent.trainers.phases_transformers import make_callback  # noqa: E402
from oomproof.errors import OomproofError  # noqa: E402
from oomproof.sizing.fitting.memory_meter import HostMeter  # noqa: E402
from oomproof.sizing.integrations.transformers import FILE, fit_trainer, longest_only  # noqa: E402

MIB = 1 << 20
torch.set_num_threads(1)


class Noted(list[Any]):
    """Not put back: a plain list of the model's would be."""


class Model(torch.nn.Module):
    """As transformers calls it; 8 MiB for each row of 64 tokens while it runs."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(50, 8)
        self.lengths: Any = Noted()

    def forward(self, input_ids: Any, labels: Any = None) -> dict[str, Any]:
        self.lengths.append(tuple(input_ids.shape))
        held = torch.ones(input_ids.numel(), (8 * MIB) // 64 // 4)
        return {"loss": self.table(input_ids).square().mean() + 0 * held[0, 0]}


class Asked(transformers.TrainerCallback):  # type: ignore[misc]
    """Would log, save and evaluate."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def on_train_begin(self, *given: Any, **named: Any) -> None:
        self.events.append("begin")

    def on_step_end(self, *given: Any, **named: Any) -> None:
        self.events.append("step")


def collated(rows: list[dict[str, Any]]) -> dict[str, Any]:
    longest = max(len(row["input_ids"]) for row in rows)
    ids = torch.zeros(len(rows), longest, dtype=torch.long)
    return {"input_ids": ids, "labels": ids.clone()}


def make(tmp_path: Path, **settings: Any) -> Any:
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path), use_cpu=True, report_to=[], disable_tqdm=True, max_steps=2, save_strategy="no",
        logging_strategy="no", per_device_train_batch_size=16, gradient_accumulation_steps=2, remove_unused_columns=False, **settings,
    )  # fmt: skip
    rows = [{"input_ids": [1] * (64 if row == 7 else 8)} for row in range(64)]
    return transformers.Trainer(
        Model(), arguments, train_dataset=rows, data_collator=collated, callbacks=[Asked()]
    )


def with_samples(count: int) -> int:
    return HostMeter.own() + count * 8 * MIB + 24 * MIB


def test_the_effective_batch_is_kept_and_the_trainer_is_as_before(tmp_path: Path) -> None:
    trainer = make(tmp_path)
    fit_trainer(trainer, capacity="100G", quiet=True)  # what libraries take once is held from here on
    assert (trainer.args.per_device_train_batch_size, trainer.args.gradient_accumulation_steps) == (32, 1)
    trainer = make(tmp_path)
    weights = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    asked = next(callback for callback in trainer.callback_handler.callbacks if isinstance(callback, Asked))
    random = torch.get_rng_state()
    batch = fit_trainer(trainer, capacity=with_samples(10), quiet=True)
    assert batch.size in (4, 8) and batch.effective == 32, batch
    assert trainer.args.per_device_train_batch_size == batch.size
    assert trainer.args.gradient_accumulation_steps == batch.accum
    assert all(torch.equal(weights[name], value) for name, value in trainer.model.state_dict().items())
    assert torch.equal(random, torch.get_rng_state())
    assert trainer.optimizer is None and trainer.state.global_step == 0 and trainer.args.max_steps == 2
    assert asked.events == [] and list(tmp_path.iterdir()) == []
    assert {length for _, length in trainer.model.lengths} == {64}, "measured with the longest row"
    trainer.model.lengths.clear()
    trainer.train()
    assert asked.events == ["begin", "step", "step"]
    assert [rows for rows, _ in trainer.model.lengths] == [batch.size] * (2 * batch.accum)


def test_a_trainer_with_the_agents_callback_can_be_copied() -> None:
    class Agent:
        folder, connection = "", threading.Lock()  # which nobody can copy

    callback = make_callback(transformers.TrainerCallback, Agent())
    for copied in (copy.deepcopy(callback), pickle.loads(pickle.dumps(callback))):
        assert type(copied) is transformers.TrainerCallback


class Saves(transformers.TrainerCallback):  # type: ignore[misc]
    """As the agent's, when a guard is short of memory."""

    def on_step_end(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        control.should_save = True


class Scaled(transformers.Trainer):  # type: ignore[misc]
    """Mixed precision in float16, which Trainer has on a card only, with PyTorch's own scaler for the CPU. Somebody joins in train()."""

    def create_accelerator_and_postprocess(self) -> None:
        super().create_accelerator_and_postprocess()
        self.accelerator.scaler = torch.amp.GradScaler("cpu", growth_interval=1)
        self.accelerator.native_amp = True

    def train(self, *given: Any, **named: Any) -> Any:
        self.add_callback(Saves())
        return super().train(*given, **named)


def test_nothing_is_half_done_and_nothing_saved_of_what_is_measured(tmp_path: Path) -> None:
    plain, rows = make(tmp_path), [{"input_ids": [1]}] * 64
    optimizer = torch.optim.SGD(plain.model.parameters(), lr=0.1)
    trainer = Scaled(
        plain.model, plain.args, train_dataset=rows, data_collator=collated, optimizers=(optimizer, None)
    )
    scaler = trainer.accelerator.scaler
    before = scaler.state_dict()
    fit_trainer(trainer, most=2, capacity="100G", quiet=True)
    assert scaler.state_dict() == before and not scaler._per_optimizer_states
    assert "step" not in vars(optimizer) and "initial_lr" not in optimizer.param_groups[0]
    assert not list(tmp_path.iterdir())
    assert pickle.loads(pickle.dumps(trainer.callback_handler.callbacks[-1])).batch.size == 2


def test_the_batch_of_a_checkpoint(tmp_path: Path) -> None:
    trainer = make(tmp_path)
    trainer.args.save_strategy, trainer.args.save_steps = "steps", 1
    trainer.callback_handler.add_callback(_SaveAlways())
    batch = fit_trainer(trainer, most=4, capacity="100G", quiet=True)
    trainer.train()
    stored = json.loads((tmp_path / "checkpoint-2" / FILE).read_text())
    assert stored["size"] == batch.size == 4
    again = make(tmp_path)
    found = fit_trainer(again, capacity="100G", quiet=True, resume_from_checkpoint=True)
    assert found.size == 4 and again.args.gradient_accumulation_steps == 8
    assert again.model.lengths == [], "nothing was measured"
    other = make(tmp_path)
    (tmp_path / "checkpoint-2" / FILE).write_text("{")
    assert (
        fit_trainer(
            other, capacity="100G", quiet=True, resume_from_checkpoint=str(tmp_path / "checkpoint-2")
        ).size
        == 32
    )


class _SaveAlways(transformers.TrainerCallback):  # type: ignore[misc]
    def on_step_end(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        control.should_save = True


def test_the_largest_batch_whatever_the_learning_rate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer = make(tmp_path)
    batch = fit_trainer(trainer, "any", most=20, capacity="100G")
    assert (batch.size, batch.accum) == (20, 1)
    assert "the effective batch changes from 32 to 20: the learning rate too" in capsys.readouterr().err


def test_not_beside_the_trainers_own_search(tmp_path: Path) -> None:
    with pytest.raises(OomproofError, match="auto_find_batch_size would search once more"):
        fit_trainer(make(tmp_path, auto_find_batch_size=True))
    with pytest.raises(OomproofError, match="effective='all' is no batch"):
        fit_trainer(make(tmp_path), "all")


def test_an_error_of_the_users_leaves_the_trainer_as_it_was(tmp_path: Path) -> None:
    trainer = make(tmp_path)
    before = trainer.args.max_steps, trainer.train_dataset, list(trainer.callback_handler.callbacks)
    trainer.data_collator = None.__class__  # fails when it is called with rows
    with pytest.raises(TypeError):
        fit_trainer(trainer, capacity="100G", quiet=True)
    assert (trainer.args.max_steps, trainer.train_dataset, list(trainer.callback_handler.callbacks)) == before
    assert trainer.args.per_device_train_batch_size == 16


def test_the_longest_row_of_data_sets_of_every_kind() -> None:
    datasets = pytest.importorskip("datasets", reason="the extra [ml] is not installed")
    rows = [[1] * length for length in (3, 9, 5)]
    listed = datasets.Dataset.from_dict({"input_ids": rows})
    assert [len(longest_only(listed)[row]["input_ids"]) for row in range(3)] == [9, 9, 9]
    known = datasets.Dataset.from_dict({"length": [3, 9, 5]})
    assert longest_only(known)[0]["length"] == 9
    plain = [{"input_ids": row} for row in rows]
    assert len(longest_only(plain)[0]["input_ids"]) == 9 and len(longest_only(plain)) > 1000
    images = [{"pixel_values": 1}]
    assert longest_only(images) is images
    stream = iter(plain)
    assert longest_only(stream) is stream

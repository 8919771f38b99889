"""Lightning: phases and steps from a callback of our own, and requests to save or to stop answered by it."""

from __future__ import annotations

import functools
import os

from ..agent_core import in_phase
from .job_requests import Requests, listen, on_several_machines, world_size

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..agent_core import Agent


def install(module: Any, agent: Agent) -> None:
    trainer = module.Trainer
    for name in ("validate", "test", "predict"):
        setattr(trainer, name, in_phase(agent, "eval", trainer.__dict__[name]))
    trainer.save_checkpoint = in_phase(agent, "save", trainer.__dict__["save_checkpoint"])
    original = trainer.fit

    @functools.wraps(original)
    def fit(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            if not any(type(callback).__name__ == "OomproofCallback" for callback in self.callbacks):
                self.callbacks.append(make_callback())
        except Exception as error:
            agent.failed("lightning", error)
        return original(self, *args, **kwargs)

    trainer.fit = fit


def make_callback() -> Any:
    """Also how a spawned process gets it back: the class is made anew there, from that process's Lightning."""
    import sys

    from .. import agent_start

    agent: Any = agent_start.agent()
    name = "lightning.pytorch" if "lightning.pytorch" in sys.modules else "pytorch_lightning"
    base: Any = sys.modules[name].Callback

    class OomproofCallback(base):  # type: ignore[misc]
        def __init__(self) -> None:
            self.requests = Requests(agent, "Lightning")
            self.open: list[Any] = []
            self.validation: Any = None  # how much of it the script asked for, while we hold it back
            self.planned = False

        def __reduce__(self) -> Any:
            return make_callback, ()

        def on_train_start(self, trainer: Any, module: Any) -> None:
            agent.steps_told, self.planned = True, False
            agent.set_base("train")
            if not on_several_machines():
                listen(agent, "save stop", "Lightning")

        def on_train_end(self, trainer: Any, module: Any) -> None:
            agent.steps_told = False
            self.validate_again(trainer)

        def on_validation_start(self, trainer: Any, module: Any) -> None:
            self.open.append(agent.phase("eval").__enter__())

        def on_validation_end(self, trainer: Any, module: Any) -> None:
            while self.open:
                self.open.pop().__exit__()

        def on_exception(self, trainer: Any, module: Any, error: BaseException) -> None:
            self.validate_again(trainer)  # the phase it died in stays open: that is what the verdict tells

        def on_train_batch_end(self, trainer: Any, module: Any, *_: Any) -> None:
            try:
                step = int(trainer.global_step)
                if step != agent.step:
                    agent.stepped(step)
                if not self.planned:
                    self.tell_plan(trainer)
                # batches, not optimizer steps: accumulated gradients leave the latter where they were
                asked = self.requests.due(int(trainer.fit_loop.epoch_loop.total_batch_idx) + 1)
                if asked:
                    self.keep(trainer, step, asked)
                if asked == "stop":
                    trainer.should_stop = True
                    self.skip_validation(trainer)
                elif asked:
                    self.requests.save.done()
            except Exception as error:
                agent.failed("lightning step", error)

        def tell_plan(self, trainer: Any) -> None:
            """With the first batch: Lightning has counted its loaders by then."""
            self.planned = True
            batches, together = trainer.num_training_batches, int(trainer.accumulate_grad_batches)
            planned = trainer.estimated_stepping_batches
            if planned != float("inf"):  # a data set without a length, and no max_steps
                in_epoch = -(-int(batches) // together) if batches != float("inf") else 0
                agent.plan(int(planned), in_epoch)

        def on_validation_batch_end(self, trainer: Any, module: Any, *_: Any) -> None:
            """A validation may take longer than the guard can wait: saved here, at once, where one process decides."""
            try:
                alone = trainer.state.fn == "fit" and not trainer.sanity_checking and world_size() < 2
                if alone and self.requests.stop.due(0):
                    self.keep(trainer, int(trainer.global_step), "stop")
                    trainer.should_stop = True
            except Exception as error:
                agent.failed("lightning validation", error)

        def skip_validation(self, trainer: Any) -> None:
            """Lightning validates before it stops early; who is asked to stop for memory has no time for that. What
            waits for a figure of a validation that never was would fail without it, and gets it."""
            waiting = [getattr(callback, "monitor", None) for callback in trainer.callbacks]
            waiting += [config.monitor for config in trainer.lr_scheduler_configs if config.reduce_on_plateau]
            if self.validation is None and {*waiting} - {None} <= {*trainer.callback_metrics}:
                self.validation, trainer.limit_val_batches = trainer.limit_val_batches, 0

        def validate_again(self, trainer: Any) -> None:
            if self.validation is not None:
                trainer.limit_val_batches, self.validation = self.validation, None

        def keep(self, trainer: Any, step: int, asked: str) -> None:
            """On every rank: writing is a joint act there, and only rank 0 writes."""
            if trainer.should_stop:
                return
            self.requests.announce(asked, step)
            callback = trainer.checkpoint_callback
            folder = getattr(callback, "dirpath", None) or trainer.default_root_dir
            path = os.path.join(folder, f"oomproof-step={step}.ckpt")
            trainer.save_checkpoint(path)
            self.requests.saved(path, step, asked)

    return OomproofCallback()

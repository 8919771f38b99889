"""The Hugging Face Trainer (generate() is generation.py's). Its phases, its own step count, and requests to save or to stop."""

from __future__ import annotations

import functools
import os

from ..agent_core import in_phase
from .job_requests import Requests, listen, on_several_machines

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..agent_core import Agent


def install(module: Any, agent: Agent) -> None:
    trainer = module.Trainer
    for name, phase in (
        ("evaluate", "eval"),
        ("predict", "eval"),
        ("_save_checkpoint", "save"),
        ("save_model", "save"),
    ):
        if name in trainer.__dict__:
            setattr(trainer, name, in_phase(agent, phase, trainer.__dict__[name]))
    original = trainer.train

    @functools.wraps(original)
    def train(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            add_callback(self, module, agent)
        except Exception as error:
            agent.failed("trainer", error)
        return original(self, *args, **kwargs)

    trainer.train = train


def add_callback(trainer: Any, module: Any, agent: Agent) -> None:
    handler = trainer.callback_handler
    if not any(type(callback).__name__ == "OomproofCallback" for callback in handler.callbacks):
        trainer.add_callback(make_callback(module.TrainerCallback, agent))


def make_callback(base: Any, agent: Agent) -> Any:
    class OomproofCallback(base):  # type: ignore[misc]
        """Counts steps, and answers requests at the end of one."""

        def __init__(self) -> None:
            self.requests = Requests(agent, "the Hugging Face Trainer")
            self.asked = ""
            self.planned = False

        def __reduce__(self) -> Any:
            """Copied or pickled with its trainer it becomes one that does nothing; the next train() brings ours."""
            return base, ()

        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            agent.steps_told, self.planned = True, False
            agent.set_base("train")
            if on_several_machines():
                agent.tell("requests to save or stop are not answered: this job spans several machines")
            else:
                listen(agent, "save stop", "the Hugging Face Trainer")

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            try:
                agent.stepped(int(state.global_step))
                if not self.planned:
                    self.tell_plan(state)
                asked = self.requests.due(state.global_step)
                if not asked:
                    return
                control.should_save = True
                if asked == "stop":
                    control.should_training_stop = True
                if not self.asked:
                    self.requests.announce(asked, state.global_step)
                self.asked = asked
            except Exception as error:
                agent.failed("trainer step", error)

        def tell_plan(self, state: Any) -> None:
            """With the first step: only then an epoch's steps are known."""
            self.planned = True
            epoch, step = float(state.epoch or 0.0), int(state.global_step)
            agent.plan(int(state.max_steps), round(step / epoch) if epoch > 0 else 0)

        def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            asked, self.asked = self.asked, ""
            if asked == "save":
                self.requests.save.done()
            folder = os.path.join(args.output_dir, f"checkpoint-{state.global_step}")
            self.requests.saved(folder, int(state.global_step), asked)

        def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            agent.steps_told = False

    return OomproofCallback()

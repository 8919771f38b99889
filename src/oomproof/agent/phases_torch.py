"""Phases and steps of a PyTorch program, from the few calls that every training makes.

Each of ours steps aside while a graph is being compiled: torch.compile then sees the call it would have seen.
"""

from __future__ import annotations

import functools
import os
import sys
import time

from .agent_core import in_phase

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .agent_core import Agent


_LAST_MOMENTS = 0.5  # seconds a dying process is waited for, by a job that has failed already


class _Mode:
    """Of this process."""

    evaluating = False  # what the last eval() or train() of an outermost module said


def install(module: Any, agent: Agent) -> None:
    if module.__name__ == "torch.utils.data.dataloader":
        _watch_loader(module, agent)
        return
    agent.set_base("load")
    watched = _Watched(module, agent)
    for part in (watched.optimizer, watched.backward, watched.modes, watched.files, watched.first_forward):
        try:
            part()
        except Exception as error:  # a torch of another age lacks one of them: the others still tell
            agent.failed("phases_torch." + part.__name__, error)


class _Watched:
    def __init__(self, torch: Any, agent: Agent) -> None:
        self.torch, self.agent = torch, agent
        self.compiling = getattr(getattr(torch, "compiler", None), "is_compiling", None) or _never
        self.steps: dict[int, int] = {}
        self.inside = False  # train() calls itself for every submodule

    def optimizer(self) -> None:
        agent, compiling, steps = self.agent, self.compiling, self.steps

        def stepped(optimizer: Any, *_: Any) -> None:
            if compiling():
                return
            key = id(optimizer)
            steps[key] = steps.get(key, 0) + 1
            _Mode.evaluating = False
            if agent.base != "train":
                agent.set_base("train")
            if not agent.steps_told:  # a trainer that counts for itself knows better, also after a resume
                agent.stepped(max(steps.values()))

        sys.modules["torch.optim.optimizer"].register_optimizer_step_post_hook(stepped)

    def backward(self) -> None:
        agent, compiling = self.agent, self.compiling
        original = self.torch.autograd.backward

        @functools.wraps(original)
        def backward(*args: Any, **kwargs: Any) -> Any:
            if agent.base != "train" and not compiling():
                agent.set_base("train")
            return original(*args, **kwargs)

        self.torch.autograd.backward = backward

    def modes(self) -> None:
        module = self.torch.nn.Module
        train, evaluate = module.train, module.eval

        @functools.wraps(train)
        def ours_train(this: Any, mode: bool = True) -> Any:
            if self.inside or self.compiling():
                return train(this, mode)
            self.inside = True
            try:
                return train(this, mode)
            finally:
                self.inside = False
                self.switched(not mode)

        @functools.wraps(evaluate)
        def ours_eval(this: Any) -> Any:
            if self.inside or self.compiling():
                return evaluate(this)
            self.inside = True
            try:
                return evaluate(this)
            finally:
                self.inside = False
                self.switched(True)

        module.train, module.eval = ours_train, ours_eval

    def first_forward(self) -> None:
        """Loading ends with the first pass through a model that has weights: also in a loop without a DataLoader.

        Not ``__call__``, which the compiler and fx compare with their own; and only until then, so that later calls
        cost nothing."""
        module = self.torch.nn.Module
        original = module._call_impl

        @functools.wraps(original)
        def _call_impl(this: Any, *args: Any, **kwargs: Any) -> Any:
            if not self.compiling() and self.ends_loading(this) and module._call_impl is _call_impl:
                module._call_impl = original
            return original(this, *args, **kwargs)

        module._call_impl = _call_impl

    def ends_loading(self, model: Any) -> bool:
        """False while a narrower phase is open: a model that is being loaded or generates tells nothing of the loop."""
        agent = self.agent
        try:
            if agent.base != "load":
                return agent.base in ("train", "eval")
            if agent.narrowed or next(model.parameters(), None) is None:
                return False  # without weights: a transform of the data, a loss
            _Mode.evaluating = not (model.training and self.torch.is_grad_enabled())
            agent.set_base("eval" if _Mode.evaluating else "train")
        except Exception as error:  # a module whose parameters cannot be asked for
            agent.failed("phases_torch.forward", error)
        return True

    def switched(self, evaluating: bool) -> None:
        agent = self.agent
        if agent.phase_now == "load":  # loading leaves a model in eval mode, which says nothing yet
            return
        _Mode.evaluating = evaluating
        if agent.base in ("train", "eval"):
            agent.set_base("eval" if evaluating else "train")

    def files(self) -> None:
        torch, agent = self.torch, self.agent
        for name, phase in (("save", "save"), ("load", "load")):
            wrapped = in_phase(agent, phase, getattr(torch, name))
            setattr(torch, name, wrapped)
            setattr(torch.serialization, name, wrapped)  # the same in both places: it is pickled by its name


def _watch_loader(module: Any, agent: Agent) -> None:
    """A batch taken while gradients are off is for evaluation, whether or not anybody called eval()."""
    iterator = module._BaseDataLoaderIter
    original = iterator.__next__

    @functools.wraps(original)
    def ours(this: Any) -> Any:
        try:
            batch = original(this)
        except StopIteration:
            raise
        except Exception as error:
            _tell_lost_workers(this, error, agent)
            raise
        torch = sys.modules["torch"]
        name = "train" if torch.is_grad_enabled() and not _Mode.evaluating else "eval"
        if agent.base != name:
            agent.set_base(name)
        return batch

    iterator.__next__ = ours


def _tell_lost_workers(iterator: Any, error: BaseException, agent: Agent) -> None:
    """A worker that dies while it hands a batch over leaves the parent with whatever error comes first: a broken
    connection, or PyTorch's own words. A connection breaks some moments before its process can be asked for."""
    lost = isinstance(error, (OSError, EOFError))
    try:
        deadline = time.monotonic() + (_LAST_MOMENTS if lost else 0.0)
        while not _found_dead(iterator, agent) and time.monotonic() < deadline:
            time.sleep(0.01)
    except RuntimeError as told:  # PyTorch's handler of SIGCHLD came in between, and says it better
        if "DataLoader worker" in str(told):
            agent.report("worker-lost", text=str(told).strip()[:500])
    except Exception as problem:
        agent.failed("workers", problem)


def _found_dead(iterator: Any, agent: Agent) -> bool:
    """Asked without reaping: who waits for it shall still find it."""
    any_dead = False
    for worker in getattr(iterator, "_workers", ()):
        status = os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if status is None or (status.si_code == os.CLD_EXITED and status.si_status == 0):
            continue
        any_dead = True
        if status.si_code == os.CLD_EXITED:
            how = f"exited unexpectedly with exit code {status.si_status}"
        else:
            import signal

            how = f"is killed by signal: {signal.strsignal(status.si_status)}"
        agent.report("worker-lost", text=f"DataLoader worker (pid {worker.pid}) {how}.", worker=worker.pid)
    return any_dead


def _never() -> bool:
    return False

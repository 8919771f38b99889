"""Phases and steps of a PyTorch program, from the few calls that every training makes.

Each of ours steps aside while a graph is being compiled: torch.compile then sees the call it would have seen.
"""

from __future__ import annotations

import functools
import os
import sys
import time

from ..agent_core import compiling_of, in_phase

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..agent_core import Agent


_LAST_MOMENTS = 0.5  # seconds a dying process is waited for, by a job that has failed already
_SAVED_EVERY = 5.0  # seconds between two checkpoints that are told


# Loading and saving by the libraries around PyTorch: (class, or None for functions of the module; method: phase)
_METHODS = {
    "transformers.modeling_utils": (
        "PreTrainedModel",
        {"from_pretrained": "load", "save_pretrained": "save"},
    ),
    "accelerate.accelerator": (
        "Accelerator",
        {"save_state": "save", "load_state": "load", "save_model": "save"},
    ),
    "safetensors.torch": (None, {"save_file": "save", "load_file": "load"}),
}


class _Mode:
    """Of this process."""

    evaluating = False  # what the last eval() or train() of an outermost module said


def install(module: Any, agent: Agent) -> None:
    if module.__name__ in _METHODS:
        _watch_files(module, agent)
        return
    if module.__name__ == "torch.utils.data.dataloader":
        _watch_loader(module, agent)
        return
    if module.__name__ == "torch._dynamo.utils":  # it compares with PyTorch's own to take the short way
        known = getattr(module, "unpatched_nn_module_call_impl", None)
        module.unpatched_nn_module_call_impl = getattr(known, "__wrapped__", known)
        return
    agent.set_base("load")
    agent.on_phase(_back_to_training)
    watched = _Watched(module, agent)
    for part in (watched.optimizer, watched.backward, watched.modes, watched.files, watched.first_forward):
        try:
            part()
        except Exception as error:  # a torch of another age lacks one of them: the others still tell
            agent.failed("phases_torch." + part.__name__, error)


def _back_to_training(agent: Agent, before: str, now: str) -> None:
    """A trainer's evaluation is over: its model stays in eval mode until the next step, which has taken its batch by then."""
    if now == "train" and not agent.narrowed:
        _Mode.evaluating = False


class _Watched:
    def __init__(self, torch: Any, agent: Agent) -> None:
        self.torch, self.agent = torch, agent
        self.compiling = compiling_of(torch)
        self.steps: dict[int, int] = {}
        self.inside = False  # train() calls itself for every submodule
        # of nn.Module: PyTorch's own and ours, while ours is there
        self.forward: tuple[Any, Any] | None = None

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
                self.forget_forward()
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

        Not ``__call__``, which fx and the compiler replace; and only until then, so that later calls cost nothing."""
        original = self.torch.nn.Module._call_impl

        @functools.wraps(original)
        def _call_impl(this: Any, *args: Any, **kwargs: Any) -> Any:
            if not self.compiling() and self.ends_loading(this):
                self.forget_forward()
            return original(this, *args, **kwargs)

        self.forward, self.torch.nn.Module._call_impl = (original, _call_impl), _call_impl
        compile_it = getattr(self.torch, "compile", None)
        if compile_it is not None:
            self.torch.compile = self.before_compiling(compile_it)

    def before_compiling(self, compile_it: Any) -> Any:
        """A compiled function must never have seen ours: it would be compiled again when ours is gone. A compiled model is
        called as any other, and ours is gone by the time its forward is compiled."""
        ours = self.torch.nn.Module._call_impl

        @functools.wraps(compile_it)
        def compile(model: Any = None, *args: Any, **kwargs: Any) -> Any:
            if not isinstance(model, self.torch.nn.Module):
                self.forget_forward()
                function = getattr(model, "__func__", None)
                if function is not None and function is ours:  # of Module.compile()
                    model = ours.__wrapped__.__get__(model.__self__)
            return compile_it(model, *args, **kwargs)

        return compile

    def forget_forward(self) -> None:
        module = self.torch.nn.Module
        if self.forward is not None and module._call_impl is self.forward[1]:
            module._call_impl = self.forward[0]
        self.forward = None

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
            if name == "save":
                wrapped = _telling_where(agent, wrapped)
            setattr(torch, name, wrapped)
            setattr(torch.serialization, name, wrapped)  # the same in both places: it is pickled by its name


def _telling_where(agent: Agent, save: Any) -> Any:
    """Where a training put its checkpoint, for who must resume from it. Not each part of a trainer's own checkpoint, and not
    a cache of samples: one in seconds, of a dictionary."""
    due = 0.0

    @functools.wraps(save)
    def ours(*args: Any, **kwargs: Any) -> Any:
        nonlocal due
        nested, begun = agent.phase_now == "save", time.monotonic()
        saved = save(*args, **kwargs)
        try:
            what, path = (*args, *kwargs.values(), None, None)[:2]
            whole = isinstance(what, dict) and isinstance(path, (str, os.PathLike))
            if whole and not nested and agent.step is not None and not agent.rank and begun >= due:
                due = begun + _SAVED_EVERY
                agent.report("saved", path=os.path.abspath(os.fspath(path)), step=agent.step)
        except Exception as error:  # a path of the user's own class; the working folder is gone
            agent.failed("phases_torch.saved", error)
        return saved

    return ours


def _watch_loader(module: Any, agent: Agent) -> None:
    """A batch taken while gradients are off is for evaluation, whether or not anybody called eval()."""
    iterator = module._BaseDataLoaderIter
    original, made = iterator.__next__, iterator.__init__

    @functools.wraps(made)
    def ours_made(this: Any, *args: Any, **kwargs: Any) -> None:
        """Loading ends where the first batch is asked for: making it may be what memory is too small for."""
        try:
            if agent.base == "load":
                agent.set_base(_loop_of_batches())
        except Exception as error:
            agent.failed("phases_torch.loader", error)
        made(this, *args, **kwargs)

    @functools.wraps(original)
    def ours(this: Any) -> Any:
        try:
            batch = original(this)
        except StopIteration:
            raise
        except Exception as error:
            _tell_lost_workers(this, error, agent)
            raise
        name = _loop_of_batches()
        if agent.base != name:
            agent.set_base(name)
        for callback in agent.on_batch:
            callback(batch)
        return batch

    iterator.__next__, iterator.__init__ = ours, ours_made


def _loop_of_batches() -> str:
    torch = sys.modules["torch"]
    return "train" if torch.is_grad_enabled() and not _Mode.evaluating else "eval"


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


def _watch_files(module: Any, agent: Agent) -> None:
    owner_name, methods = _METHODS[module.__name__]
    owner = module if owner_name is None else getattr(module, owner_name)
    for name, phase in methods.items():
        plain = owner.__dict__.get(name)
        if isinstance(plain, classmethod):
            setattr(owner, name, classmethod(in_phase(agent, phase, plain.__func__)))
        elif plain is not None:
            setattr(owner, name, in_phase(agent, phase, plain))

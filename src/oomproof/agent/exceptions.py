"""The exception that ended the job, or a thread of it: where, and how large the variables were. Sizes, never values."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .agent_core import Agent

_FRAMES = 12
_NAMES = 8
_MANY = 200  # variables looked at in one frame
_WORDS, _LONGEST_WORD = 40, 200  # of a command line


def describe(agent: Agent, error: BaseException, traceback: Any, thread: str | None = None) -> None:
    try:
        frames = []
        while traceback is not None:
            frames.append((traceback.tb_frame, traceback.tb_lineno))
            traceback = traceback.tb_next
        told = [_frame(frame, line) for frame, line in frames[-_FRAMES:]]
        of_memory = {"memory": True, "argv": _command()} if is_memory_error(error) else {}
        agent.report(
            "exception",
            type=f"{type(error).__module__}.{type(error).__qualname__}",
            phase=agent.phase_now,
            step=agent.step,
            thread=thread,
            frames=told,
            shm=_shared_memory(),
            **of_memory,
        )
        if "torch" in sys.modules:
            from .allocator import memory_owners_report

            memory_owners_report(agent, error)
    except Exception as problem:
        agent.failed("exception", problem)


def _shared_memory() -> list[int] | None:
    """/dev/shm, as large and as free as it is here: in a container or a mount namespace only the job itself sees it."""
    try:
        told = os.statvfs("/dev/shm")
    except (OSError, AttributeError):
        return None
    return [told.f_blocks * told.f_frsize, told.f_bavail * told.f_frsize]


def is_memory_error(error: BaseException) -> bool:
    text = str(error)
    return isinstance(error, MemoryError) or any(
        words in text for words in ("out of memory", "DefaultCPUAllocator", "Cannot allocate memory")
    )


def _command() -> list[str]:
    """Which of the job's programs this is, where it has several; what is secret in it the reader masks."""
    words = getattr(sys, "orig_argv", None) or ["python", *sys.argv]
    return [str(word)[:_LONGEST_WORD] for word in words[:_WORDS]]


def _frame(frame: Any, line: int) -> dict[str, Any]:
    code = frame.f_code
    variables: list[list[Any]] = []
    for name, value in list(frame.f_locals.items())[:_MANY]:
        if name.startswith("__"):
            continue
        size, what = size_of(value)
        if size >= 1024:
            variables.append([name, size, what])
    variables.sort(key=lambda variable: -variable[1])
    return {"file": code.co_filename, "line": line, "name": code.co_name, "locals": variables[:_NAMES]}


def size_of(value: Any) -> tuple[int, str]:
    """(bytes, what it is) without touching what it holds: no call into the object that could fail or take long."""
    kind = type(value)
    name = kind.__name__
    torch = sys.modules.get("torch")
    try:
        if torch is not None and isinstance(value, torch.Tensor):
            shape = "x".join(str(dimension) for dimension in value.shape)
            size = value.numel() * value.element_size()
            return size, "{} [{}] {} on {}".format(
                name,
                shape,
                str(value.dtype).replace("torch.", ""),
                value.device,
            )
        numpy = sys.modules.get("numpy")
        if numpy is not None and isinstance(value, numpy.ndarray):
            return value.nbytes, "{} [{}] {}".format(name, "x".join(str(n) for n in value.shape), value.dtype)
        if isinstance(value, (str, bytes, bytearray)):
            return sys.getsizeof(value), name
        if kind in (list, tuple, set, frozenset, dict):
            return _container(value, name, torch)
    except Exception:  # an object of the user's whose size cannot be asked
        pass
    return 0, name


def _container(value: Any, name: str, torch: Any) -> tuple[int, str]:
    """The container itself and, of its first thousand members, what is plain to see; the rest in proportion."""
    total = sys.getsizeof(value)
    members = list(value.values()) if isinstance(value, dict) else list(value)
    seen = members[:1000]
    inside = 0
    for element in seen:
        if torch is not None and isinstance(element, torch.Tensor):
            inside += element.numel() * element.element_size()
        elif hasattr(type(element), "nbytes"):
            inside += int(element.nbytes)
        elif isinstance(element, (str, bytes, bytearray, int, float)):
            inside += sys.getsizeof(element)
    if seen:
        inside = inside * len(members) // len(seen)
    return total + inside, f"{name} of {len(members)}"

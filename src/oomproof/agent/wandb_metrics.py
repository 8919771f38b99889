"""What a trial of a sweep logs with wandb, left beside its metric file: an unmodified script tells its metric by that alone.

The newest value of each name. Written once a second at most, and when the script ends.
"""

from __future__ import annotations

import functools
import os
import time

from ..leaf.small_files import replace_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .agent_core import Agent

_BEHIND = ".wandb"
_EVERY = 1.0  # seconds
_MOST = 500  # names
_DEEPEST = 4


def install(module: Any, agent: Agent) -> None:
    path = os.environ.get("OOMPROOF_METRIC_FILE")
    if not path or os.environ.get("RANK", "0") not in ("", "0"):
        return
    logged = _Logged(path + _BEHIND, agent)
    module.Run.log = logged.after_log(module.Run.log)
    import atexit

    atexit.register(logged.write)


class _Logged:
    def __init__(self, path: str, agent: Agent) -> None:
        self.path, self.agent, self.pid = path, agent, os.getpid()
        self.values: dict[str, float] = {}
        self.due = 0.0

    def after_log(self, log: Any) -> Any:
        @functools.wraps(log)
        def ours(this: Any, *args: Any, **kwargs: Any) -> Any:
            result = log(this, *args, **kwargs)
            try:
                self.take(args[0] if args else kwargs.get("data"))
                if time.monotonic() >= self.due:
                    self.due = time.monotonic() + _EVERY
                    self.write()
            except Exception as error:  # the training matters more
                self.agent.failed("wandb_metrics", error)
            return result

        return ours

    def take(self, data: Any, before: str = "", depth: int = 0) -> None:
        if not isinstance(data, dict) or depth > _DEEPEST:
            return
        for key, value in list(data.items()):
            name = before + str(key)
            if isinstance(value, dict):
                self.take(value, name + ".", depth + 1)
            elif name in self.values or len(self.values) < _MOST:
                number = _number(value)
                if number is not None:
                    self.values[name] = number

    def write(self) -> None:
        """A fork of the script has none of its own to tell."""
        if not self.values or os.getpid() != self.pid:
            return
        import json

        try:
            replace_file(self.path, (json.dumps(self.values) + "\n").encode(), synced=False)
        except Exception as error:
            self.agent.failed("wandb_metrics.write", error)


def _number(value: Any) -> float | None:
    """Of a number, or of a tensor or an array with one; wandb has brought it from the card already."""
    if isinstance(value, (bool, str, bytes)) or not hasattr(value, "__float__"):
        return None
    try:
        return float(value)
    except Exception:  # an array of several
        return None

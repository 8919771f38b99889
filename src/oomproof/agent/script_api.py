"""What a training script may call: phase, inference, report_metric, stop_requested, watch. Outside `oomproof run` they do nothing.

The same file serves scripts whose environment has oomproof installed and, found last of all, those that have not.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

__all__ = ["inference", "phase", "report_metric", "stop_requested", "watch"]


def _agent() -> Any:
    start = sys.modules.get("_oomproof.agent.agent_start")
    return start.agent() if start is not None else None


class _Nothing:
    """The phase of a job that nobody watches."""

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: Any) -> None:
        return None

    def __call__(self, function: Any) -> Any:
        return function


def phase(name: str) -> Any:
    """`with oomproof.phase("eval"):` names what the job does, for the recording and the verdict. Also a decorator."""
    agent = _agent()
    return agent.phase(name) if agent is not None else _Nothing()


class _Inference:
    def __init__(self, agent: Any) -> None:
        self._parts = [agent.phase("eval")]
        if agent.around_inference is not None:
            try:
                self._parts.append(agent.around_inference())
            except Exception as error:
                agent.failed("inference", error)

    def __enter__(self) -> Any:
        for part in self._parts:
            part.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        for part in reversed(self._parts):
            part.__exit__(*error)


def inference() -> Any:
    """`with oomproof.inference():` around evaluation or generation inside training."""
    agent = _agent()
    return _Inference(agent) if agent is not None else _Nothing()


def stop_requested() -> bool:
    """True once the job was asked to save and stop: by `oomproof stop`, by the guard, by the stop file.

    Call it once a step, on every rank: all ranks then say yes in the same step."""
    agent = _agent()
    if agent is not None:
        from importlib import import_module

        return bool(import_module("_oomproof.agent.trainers.job_requests").stop_requested(agent))
    path = os.environ.get("OOMPROOF_STOP_FILE")
    return path is not None and os.path.exists(path)


def report_metric(**values: Any) -> None:
    """`oomproof.report_metric(loss=0.5)` tells a sweep how well the trial does; the last value counts. Rank 0 speaks for all."""
    path = os.environ.get("OOMPROOF_METRIC_FILE")
    if not path or os.environ.get("RANK", "0") not in ("", "0"):
        return
    try:
        import json

        told = {name: float(value) for name, value in values.items()}
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(fd, (json.dumps({**told, "by": "report_metric"}) + "\n").encode())
        finally:
            os.close(fd)
    except Exception:  # a value that is no number, a full disk: the training matters more
        pass


class watch:
    """`for batch in oomproof.watch(loader):` ends early once the job was asked to stop."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[Any]:
        for batch in self.loader:
            yield batch
            if stop_requested():
                return

    def __len__(self) -> int:
        return len(self.loader)

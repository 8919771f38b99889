"""A command in a child that is watched until it ends, and the first of the reasons why it gave no figures.

`size` and `rehearse` differ in the module that starts in the command's Python, and in what they note at each look.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from oomproof.errors import NOT_FOUND, OomproofError
from oomproof.records import dataclass
from oomproof.sizing import watched_child
from oomproof.sizing.watched_child import Watched

_GRACE = (
    60.0  # seconds beyond those that the child has for its steps: imports, and the answer's own arithmetic
)
_HERE = os.path.dirname(os.path.abspath(__file__))


@contextlib.contextmanager
def own_folder(argv: Sequence[str], prefix: str) -> Iterator[str]:
    """The folder in which the child writes down what it saw."""
    if shutil.which(argv[0]) is None:
        raise OomproofError(f"{argv[0]}: command not found", "", NOT_FOUND)
    folder = tempfile.mkdtemp(prefix=prefix)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def environment_for(folder: str, code: str, start: str, time_limit: float) -> dict[str, str]:
    """``code``: the folder of ours that has the module ``start``."""
    return watched_child.environment_for(folder, os.path.join(_HERE, code), start, time_limit)


def follow(
    argv: Sequence[str],
    folder: str,
    environment: Mapping[str, str],
    *,
    seconds: float,
    allow_writes: bool,
    look: Callable[[Watched, bool], None],
) -> Watched:
    """``seconds`` from the moment at which something of ours starts in the command; one in which nothing does runs for no purpose.
    ``look``: called after each look at the child's processes, with whether it succeeded."""
    with watched_child.running(argv, folder, environment, allow_writes) as (child, limit):
        watched, started = Watched(limit=limit, has_network=allow_writes), time.monotonic()
        if allow_writes:
            watched.shared_before = watched_child.shared_in_use()
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                watched.status = child.wait(watched_child.LOOK)
                return watched
            for pid in watched_child.script_processes(child.pid, not allow_writes):
                is_whole = watched_child.look(pid, watched, folder)
                watched.over_limit = watched.peak > limit
                look(watched, is_whole)
            if watched.over_limit:
                return watched
            patience = seconds if watched_child.is_started(folder) else 0
            if time.monotonic() > started + patience + _GRACE:
                watched.timed_out = True
                return watched


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a command that has ended gave no figures. ``passing``: at another moment, or on another machine, it may give some;
    ``failed``: the command failed by itself, and its status counts."""

    holds: Callable[[Any], object]
    text: Callable[[Any], str]
    passing: bool = False
    failed: bool = False


def first_reason(reasons: Sequence[Reason], ended: Any) -> Reason | None:
    return next((reason for reason in reasons if reason.holds(ended)), None)


def private_refused(why: str) -> str:
    return f"the script's writes cannot be kept private here ({why}); with --allow-writes it runs as it is"


def failure(folder: str, watched: Watched, tell: Callable[[str], None], when: str, where: str = "") -> str:
    """Shows the end of the command's output."""
    cause = watched_child.cause_of_failure(folder, tell, has_network=watched.has_network, when=when)
    return with_status(cause or "the command failed by itself", watched, where)


def with_status(cause: str, watched: Watched, where: str = "") -> str:
    return f"{cause}{where}, with status {watched.status}; its error is above"

"""One experiment of `oomproof bisect`: an `oomproof run` of its own, ended in order when its time is over."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from threading import Thread

from oomproof.alerts.receivers import OFF
from oomproof.errors import OUR_FAILURE, OomproofError
from oomproof.own_command import OWN_COMMAND
from oomproof.recording.run_folders import Run, newest_runs

_TICK = 0.1


def run_experiment(
    name: str,
    flags: Sequence[str],
    command: Sequence[str],
    environment: Mapping[str, str],
    max_time: float | None,
    tell: Callable[[str], None],
) -> tuple[Run, bool]:
    """(the run, whether it was ended because its time was over). Raises OomproofError when it did not start; on
    KeyboardInterrupt the job is ended in order first, and the exception raised again."""
    before = {run.id for run in newest_runs(100)}
    process = subprocess.Popen(
        # what a settings file says of retries would change what is being varied
        [*OWN_COMMAND, "run", "--name", name, "--retry", "0", *flags, "--", *command],
        env={**environment, OFF: "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,  # it is in output.log
        stderr=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C is for us: we end it in order
    )
    tail: deque[bytes] = deque(maxlen=8)
    assert process.stderr is not None
    chunks = iter(partial(process.stderr.read1, 4096), b"")  # type: ignore[attr-defined]  # a progress bar has no lines
    reader = Thread(target=tail.extend, args=(chunks,), daemon=True)
    reader.start()
    run: Run | None = None
    timed_out = False
    try:
        while run is None and process.poll() is None:
            run = _new_run(name, before)
            time.sleep(_TICK)
        if run is not None:
            timed_out = _wait(process, run, max_time, tell)
    except KeyboardInterrupt:
        tell("ending the experiment in order; Ctrl-C again kills it")
        _end(process, run or _new_run(name, before))
        raise
    run = run or _new_run(name, before)
    if run is not None and run.keeper_lives():  # its front was killed: the next must not run beside it
        _stop(run)
    reader.join(5.0)
    if run is None or not run.started():
        text = b"".join(tail).decode(errors="replace").strip().removeprefix("oomproof: ")
        raise OomproofError(text or "an experiment did not start", "", process.returncode or OUR_FAILURE)
    return run, timed_out


def _new_run(name: str, before: set[str]) -> Run | None:
    return next(
        (run for run in newest_runs(100) if run.id not in before and run.info.get("name") == name), None
    )


def _wait(
    process: subprocess.Popen[bytes], run: Run, max_time: float | None, tell: Callable[[str], None]
) -> bool:
    """To its end, or to the end of its time, which begins with the job and not with the wait for memory."""
    waits = False
    deadline = None
    while process.poll() is None:
        if deadline is None and run.started():
            deadline = time.monotonic() + max_time if max_time is not None else float("inf")
        if not waits and (reasons := run.waits_for()):
            waits = True
            tell(f"waiting for memory: {'; '.join(reasons)}")
        if deadline is not None and time.monotonic() >= deadline:
            _end(process, run)
            return True
        time.sleep(_TICK)
    return False


def _end(process: subprocess.Popen[bytes], run: Run | None) -> None:
    """As `oomproof stop` does: asked, SIGTERM, killed. A Ctrl-C meanwhile goes straight to the kill."""
    try:
        if run is not None:
            _stop(run)
        if process.poll() is None and (run is None or not run.exit()):
            process.terminate()  # just starting, or waiting for memory
        process.wait()
    except KeyboardInterrupt:
        if run is not None:
            _stop(run, "--kill")
        process.wait()
        raise


def _stop(run: Run, *flags: str) -> None:
    with contextlib.suppress(OSError):
        subprocess.run(
            [*OWN_COMMAND, "stop", *flags, run.id],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            check=False,
        )

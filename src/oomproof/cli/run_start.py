"""One attempt from its way in to its end: a new run, or a further attempt of one. What was never started leaves no trace."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

from oomproof.cli.run_admission import admit, look_for_twins, wait_for_gpu_turn
from oomproof.errors import USAGE, OomproofError
from oomproof.guard.guard_actions import STOP_TEXT
from oomproof.recording import run_folders, state_files
from oomproof.runner.supervise import Order, Outcome, supervise
from oomproof.runner.waiting_run import Cancelled

# run, order, how its limit is enforced, what else is to be told, how to tell it
StartupMessage = Callable[[run_folders.Run, Order, str, list[str], Callable[[str], None]], None]
OnWaiting = Callable[[run_folders.Run, str], None]


def start_run(order: Order, startup_message: StartupMessage, on_waiting: OnWaiting) -> Outcome:
    """Stays until its first attempt has ended."""
    run = run_folders.new_run()
    # from now on, and as long as this process lives: between waiting and running nobody may take it for a failed start
    with contextlib.suppress(OSError):  # a full disk: what is written next says it in words
        state_files.take_lock(run.guard_lock)
    return start_attempt(run, order, startup_message, on_waiting)


def start_attempt(
    run: run_folders.Run, order: Order, startup_message: StartupMessage, on_waiting: OnWaiting
) -> Outcome:
    """Stays until it has ended. The caller has the guard's lock; the attempt's folder is there, and empty."""
    attempt = run.attempt
    try:
        ticket = admit(run, order, lambda text: on_waiting(run, text))
        share = None
        try:
            if ticket.waited:
                look_for_twins(order)  # it may have been started meanwhile
            if order.chosen.gpu_share:
                share = wait_for_gpu_turn(run, order, lambda text: on_waiting(run, text))
            return supervise(
                run,
                order,
                lambda sentence, tell: startup_message(
                    run, order, sentence, ticket.told + (ticket.details if order.verbosity > 0 else []), tell
                ),
                ticket,
                share,
            )
        except (OomproofError, Cancelled, KeyboardInterrupt):
            ticket.drop()
            raise
        finally:
            if share is not None:
                share.close()
    except (OomproofError, Cancelled, KeyboardInterrupt):
        from shutil import rmtree

        if not attempt.started():  # nothing was run: leave no trace that looks like a run
            rmtree(attempt.folder if (attempt.number or 1) > 1 else run.folder, ignore_errors=True)
        raise


def check_stop_file(path: Path | None) -> None:
    """One left from before would stop the job at its first step. Ours is removed; another's is not."""
    if path is None or not path.exists():
        return
    try:
        ours = path.read_bytes().startswith(STOP_TEXT.encode())
    except OSError:
        ours = False
    if not ours:
        raise OomproofError(
            f"--stop-file {path} is already there: the job would stop at once", f"rm {path}", USAGE
        )
    path.unlink()

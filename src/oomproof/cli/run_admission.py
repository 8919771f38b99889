"""A run's way in: the same job twice, sizing it first, its turn for memory and for the card."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from oomproof.errors import NOT_NOW, USAGE, OomproofError
from oomproof.guard.guard_actions import STOP_TEXT
from oomproof.guard.host_view import HostView
from oomproof.leaf.command_lines import script_of
from oomproof.printable import folded_message, message_width, printable
from oomproof.recording import run_folders, state_files
from oomproof.records import replace
from oomproof.runner.admission_request import Ticket, ask
from oomproof.runner.guard_settings import guard_settings
from oomproof.runner.run_flags import SIZE_FIRST
from oomproof.runner.supervise import Order, Outcome, describe_run, supervise, working_folder, write_info
from oomproof.runner.waiting_run import Cancelled

if TYPE_CHECKING:  # what a start does not need
    from oomproof.runner.gpu_share import GpuShare


def admit(run: run_folders.Run, order: Order, on_waiting: Callable[[str], None]) -> Ticket:
    """Memory for the run, after a wait if need be; while it waits it can be listed and stopped."""

    def waiting(text: str) -> None:
        host = HostView()
        with contextlib.suppress(OomproofError):  # a full disk: it waits all the same
            settings = guard_settings(order.chosen, host)
            write_info(run.attempt, order, describe_run(run, order, settings))
        on_waiting(text)

    folder = working_folder()
    if order.chosen.need == SIZE_FIRST:
        _size_first(run, order, folder, waiting)
    if not order.chosen.allow_twin and script_of(order.argv, folder) is not None:
        from oomproof.machine.twins import identity

        order.asked.twin = identity(order.argv, folder, os.environ, gpu_is_here())
    asked = order.asked
    if order.chosen.gpu_share:
        sized = replace(asked.sized, gpu=None) if asked.sized is not None else None
        asked = replace(asked, gpu_need=None, gpu=None, sized=sized)
    return ask(run, order.argv, order.chosen.name, asked, folder, tell, waiting)


def _size_first(run: run_folders.Run, order: Order, folder: str, on_waiting: Callable[[str], None]) -> None:
    """--need auto. Meanwhile the run is listed as waiting, and Ctrl-C or `oomproof stop` ends it."""
    from oomproof.islands import island_part
    from oomproof.machine import processes
    from oomproof.runner.waiting_run import ListedAsWaiting

    me = os.getpid()

    def say(text: str) -> None:
        if order.verbosity >= 0:
            tell(f"oomproof: {text}")

    def begins(text: str) -> None:
        say(text)
        waiting.write([text])
        on_waiting(text)

    with ListedAsWaiting(run, None, (me, processes.start_time(me))) as waiting:
        sized = island_part("sizing", "need_auto").find(order.argv, folder, order.asked.ledger, say, begins)
    order.asked.sized, order.predicted = sized.need, sized.predicted
    if order.chosen.gpu_share and sized.need is not None and order.asked.gpu_need is None:
        order.asked.gpu_need = sized.need.gpu


def wait_for_gpu_turn(run: run_folders.Run, order: Order, on_waiting: Callable[[str], None]) -> GpuShare:
    """With --gpu-share: its place on the card, after a wait if need be."""
    from oomproof.runner.gpu_share import join

    def say(text: str) -> None:
        tell(text)
        on_waiting(text.removeprefix("oomproof: "))

    return join(run.id, order.asked.gpu, order.asked.gpu_need, order.chosen.gpu_turn, say)


def look_for_twins(order: Order) -> None:
    folder = working_folder()
    if order.chosen.allow_twin or script_of(order.argv, folder) is None:
        return
    from oomproof.machine import twins

    twin_jobs = twins.of(order.argv, folder, os.environ, os.getppid())
    if not twin_jobs:
        return
    closest = twin_jobs[0]
    alike = [twin for twin in twin_jobs if twin.likeness == closest.likeness]
    pids = " and ".join(str(twin.pid) for twin in alike)
    pids = f"pid {pids}" if len(alike) == 1 else f"pids {pids}"
    if closest.likeness == "output":
        raise OomproofError(
            f"the same job runs already and writes to the same folder {closest.output}: {pids}",
            "wait for it, give another output folder, or add --allow-twin",
            NOT_NOW,
        )
    if closest.likeness == "arguments" and gpu_is_here():
        raise OomproofError(
            f"the same job runs already with the same arguments on the same GPU: {pids}",
            "wait for it, set CUDA_VISIBLE_DEVICES to another card, or add --allow-twin",
            NOT_NOW,
        )
    if order.verbosity < 0:
        return
    how = "the same arguments" if closest.likeness == "arguments" else "other arguments"
    tell(f"oomproof: the same script runs already with {how}: {pids}")


def tell(text: str) -> None:
    tell_as_is(folded_message(printable(text), message_width()))


def tell_as_is(text: str) -> None:
    """Straight to the descriptor: a full disk or a closed pipe behind it must cost neither job, guard nor status."""
    with contextlib.suppress(OSError):
        os.write(2, f"{text}\n".encode())


def gpu_is_here() -> bool:
    from oomproof.machine.nvidia import any_driver_present

    return any_driver_present()


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

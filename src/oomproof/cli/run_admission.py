"""A run's way in: the same job twice, sizing it first, its turn for memory and for the card."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from oomproof.errors import NOT_NOW, OomproofError
from oomproof.guard.host_view import HostView
from oomproof.leaf.command_lines import script_of
from oomproof.printable import folded_message, message_width, printable
from oomproof.recording import run_folders
from oomproof.records import replace
from oomproof.runner.admission_request import Ticket, ask
from oomproof.runner.guard_settings import guard_settings
from oomproof.runner.run_flags import SIZE_FIRST
from oomproof.runner.supervise import Order, describe_run, working_folder, write_info

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

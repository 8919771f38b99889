"""Ends runs in order: asks each to save and stop, then SIGTERM, then kills all its processes. One that waits leaves the queue.

It is asked only when somebody in it listens (a trainer, a loop that looks for the stop file, --stop-file, --stop-signal).
Each step gets the run's grace (--grace to change it); --now goes straight to SIGTERM, --kill to the end.

  oomproof stop big
  oomproof stop --grace 120 big
  oomproof stop big small             one after the other
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time

from oomproof.cli.command_parser import refuse
from oomproof.cli.pause import CARD_SECONDS, live_run
from oomproof.errors import OomproofError
from oomproof.guard import freezer
from oomproof.guard.gpu_pause import GpuPause
from oomproof.guard.guard_actions import Actions, TaskThread
from oomproof.guard.job_handle import Job
from oomproof.leaf.action_kinds import KILL, REQUEST, RESUME, TERM
from oomproof.machine import processes
from oomproof.machine.gpu import Query
from oomproof.printable import tell
from oomproof.recording import run_folders, state_files
from oomproof.runner.run_flags import from_json, seconds
from oomproof.units import format_duration

_TICK = 0.05


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "runs",
        nargs="*",
        metavar="RUN",
        help="id, part of an id, or name (default: the newest that runs or waits)",
    )
    parser.add_argument(
        "--grace", type=seconds("--grace"), metavar="SECONDS", help="time for each step (default: the run's)"
    )
    parser.add_argument("--now", action="store_true", help="do not ask first: SIGTERM")
    parser.add_argument("--kill", action="store_true", help="kill at once")


def run(arguments: argparse.Namespace) -> int:
    if arguments.kill:
        refuse(arguments, ("now", "grace"), "does nothing with --kill", "leave out one of the two")
    targets = list(
        dict.fromkeys(run_folders.find_alive(name, run_folders.ALIVE, 0) for name in arguments.runs or [None])
    )
    worst = 0
    for target in targets:
        try:
            status = _stop(target, arguments)
        except OomproofError as error:  # the others are to be stopped all the same
            if len(targets) == 1:
                raise
            print(f"oomproof: {error}", file=sys.stderr)
            status = error.status
        worst = worst or status
    return worst


def _stop(target: run_folders.Run, arguments: argparse.Namespace) -> int:
    if target.waits():
        return _cancel(target)
    if target.attempt.has_ended() and target.may_be_retried():
        return _end_retries(target)
    target = live_run(target.id, 0)
    chosen = from_json(target.info.get("settings") or {})
    grace = arguments.grace if arguments.grace is not None else chosen.grace
    job = Job(target.started())
    task_thread = TaskThread()
    stop_files = [target.attempt.stop_file, *([chosen.stop_file] if chosen.stop_file else [])]
    actions = Actions(job, target.attempt, task_thread, stop_files, chosen.stop_signal, by="user", tell=tell)
    steps = [KILL] if arguments.kill else [TERM, KILL] if arguments.now else [REQUEST, TERM, KILL]
    if steps[0] == REQUEST and not _listens(target):
        del steps[0]
    words = {
        REQUEST: "asked it to save and stop",
        TERM: "sent SIGTERM",
        KILL: "killed all processes of the job",
    }
    try:
        # it could not answer; a kill needs no resume of its own
        if target.pause_mark() or job.freezer.is_paused():
            if steps != [KILL]:
                actions.take(RESUME, "oomproof stop")
            freezer.remove_mark(target.attempt)
        pause = GpuPause(target.attempt)
        if pause.paused and steps != [KILL] and not pause.take_back(Query().answer(CARD_SECONDS).gpus).done:
            print(
                "oomproof: its GPU memory could not be restored: it may not be able to save", file=sys.stderr
            )
        for step in steps:
            actions.take(step, "oomproof stop")
            wait = 30.0 if step == KILL else grace
            print(f"oomproof: {words[step]}; waiting up to {format_duration(wait)}", file=sys.stderr)
            if _ended(target, wait):
                print(f"oomproof: {target.name} has ended", file=sys.stderr)
                return 0
    finally:
        task_thread.close()
        job.close()
    raise OomproofError(
        f"{target.name} is still there after SIGKILL: it hangs inside the kernel or a driver",
        f"see its state: ps -o pid,stat,wchan:30,cmd -p {job.leader}",
    )


def _listens(run: run_folders.Run) -> bool:
    """Whether anybody can answer: somebody in it told the agent so, or its settings or its code name the request."""
    if run.attempt.listeners("stop"):
        return True
    from oomproof.evidence.script_handlers import may_listen  # reads and parses the script

    return bool(may_listen(run.info))


def _cancel(run: run_folders.Run) -> int:
    """It waits for memory: its front leaves the queue when told to end."""
    front = state_files.read_json(run.waiting_file).get("front") or {}
    pid, start = front.get("pid"), front.get("start")
    if not isinstance(pid, int) or not processes.is_alive(pid, start):
        raise OomproofError(f"{run.name} is just starting", "try again in a moment")
    name, again = run.name, run.attempt.has_ended() or len(run.attempts()) > 1
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + 10.0
    while run.waits() and time.monotonic() < deadline:
        time.sleep(_TICK)
    never = "it is not tried again" if again else "it was never started"
    print(f"oomproof: {name} no longer waits; {never}", file=sys.stderr)
    return 0


def _end_retries(run: run_folders.Run) -> int:
    """Its attempt has ended, and its front judges whether another follows: a signal now says no."""
    guard = run.started().get("guard") or {}
    pid, start = guard.get("pid"), guard.get("start")
    if isinstance(pid, int) and processes.is_alive(pid, start):
        os.kill(pid, signal.SIGTERM)
    print(f"oomproof: {run.name} has ended; it is not tried again", file=sys.stderr)
    return 0


def _ended(run: run_folders.Run, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if run.exit() or not run.keeper_lives():
            return True
        time.sleep(_TICK)
    return False

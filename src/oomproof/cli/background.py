"""Continues in the background while the command returns: the child says once how it went, the parent prints it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from oomproof.errors import OUR_FAILURE, OomproofError
from oomproof.recording import run_folders

Announce = Callable[[str, str], None]  # run id, what it does now


def run_in_background(work: Callable[[Announce], int], hints: bool = True) -> int:
    """``work`` runs in a process of its own session; it calls ``said`` once, when it can be left alone.

    ``hints``: also print how to follow it; a quiet run prints its id, and what went wrong."""
    read_end, write_end = os.pipe()
    first = os.fork()
    if first:
        os.close(write_end)
        os.waitpid(first, 0)
        with os.fdopen(read_end) as answer:
            text = answer.read()
        return _show(text, hints)
    os.setsid()
    if os.fork():
        os._exit(0)
    os.close(read_end)
    status = 0
    try:
        null = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(null, stream)
        pipe = os.fdopen(write_end, "w")

        def said(run_id: str, sentence: str) -> None:
            if not pipe.closed:
                pipe.write(f"ok\n{run_id}\n{sentence}")
                pipe.close()

        try:
            status = work(said)
        except OomproofError as error:
            if not pipe.closed:
                pipe.write(f"error\n{error.status}\n{error}")
                pipe.close()
    finally:
        os._exit(status)


def _show(text: str, hints: bool) -> int:
    kind, _, rest = text.partition("\n")
    if kind == "ok":
        run_id, _, sentence = rest.partition("\n")
        print(run_id)
        if not hints:
            if sentence:
                print(f"oomproof: {sentence}", file=sys.stderr)
            return 0
        run = run_folders.Run(run_folders.runs_folder() / run_id)
        called = run_folders.to_type(run)
        # the output of one that was adopted is not ours
        look = (
            f"look:    oomproof runs show {called}"
            if run.info.get("adopted")
            else f"follow:  oomproof logs -f {called}"
        )
        print(
            f"oomproof: {sentence}\n"
            f"  {look}\n  wait:    oomproof wait {called}\n"
            f"  stop:    oomproof stop {called}",
            file=sys.stderr,
        )
        return 0
    number, _, message = rest.partition("\n")
    raise OomproofError(message or "the run did not start", "", int(number or OUR_FAILURE))

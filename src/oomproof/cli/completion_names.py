"""What a shell offers for RUN: names, and ids of runs without one, newest first. It waits for this at each Tab."""

from __future__ import annotations

from oomproof.recording.run_folders import ALIVE, newest_runs

_MOST = 100  # reading so many takes about 5 ms


def print_names(alive: bool = False) -> None:
    runs = [run for run in newest_runs(_MOST) if run.info and (not alive or run.state() in ALIVE)]
    # a name with a newline could not be typed: the id can
    names = dict.fromkeys(run.name if run.name == run.info.get("name") else run.id for run in runs)
    print("".join(f"{name}\n" for name in names), end="")

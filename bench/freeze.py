"""Two heavy jobs on one machine: the replay of the paused desktop under each guard, and how soon a job is paused.

Parts: replay (in the lab's virtual machine: 1 GB, 128 MB of zram, a training of 480 MB that has run for 25 s, then a loader
of 480 MB at 80 MB/s, a bystander that wakes every 100 ms), still (on this host, in a cgroup of 2 GiB).
"""

from __future__ import annotations

import argparse
import bisect
import json
import os
import shlex
import signal
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from guard import stamps
from lab import (
    GIB,
    MIB,
    RESULTS,
    end,
    inside,
    is_gone,
    lab,
    quantile,
    read_json,
    save,
    small_machine,
    table,
    until,
)
from virtual_lab import IN_GUEST, JOBS, virtual

from oomproof.guard import detect_pause
from oomproof.guard.view import PolicyInput, Settings

# --- the replay ------------------------------------------------------------------------------------------------------

TRAINING_SECONDS, HEAD_START, PATIENCE = 60, 25.0, 240.0
OOMD = "systemd-oomd.service systemd-oomd.socket"
GUARDS = {
    "none": "true",
    "earlyoom": "systemctl start earlyoom",
    "nohang": "systemctl start nohang",
    "systemd-oomd": f"systemctl unmask {OOMD} && systemctl start systemd-oomd",
    "oomproof": "true",
}
# How each job is started. systemd-oomd ends whole cgroups, and a shell's jobs are all in that of the login session: there it
# ended the shell, the bystander and both jobs. Desktops give each program a scope of its own, so it gets that here.
PREFIX = {"systemd-oomd": "systemd-run --user --scope --quiet --", "oomproof": "oomproof run --"}


@dataclass
class Replay:
    training: str  # finished, or how it ended
    loader: str
    stall: float  # the bystander's longest from the training's start on, seconds
    idle_stall: float  # its longest in ten idle seconds before
    seconds: float  # from the training's start to the end of both
    load: float  # of the host
    bystander_lived: bool = True


def ending(code: int | None, text: str) -> str:
    if code is None:
        return "never came back"
    if code == 0 and "intact" in text:
        return "finished"
    return (
        "killed" if code in (137, 9, -9) else "ended by SIGTERM" if code in (143, 15) else f"failed ({code})"
    )


def wait(machine: Any, handle: Any) -> tuple[int | None, str]:
    """(status, what it printed); no status when it did not end in time, or its shell was killed with it."""
    end_by = time.monotonic() + PATIENCE
    while time.monotonic() < end_by:
        try:
            done = machine.wait(handle, timeout=10)
            return done.rc, done.out
        except AssertionError:  # the lab's own error
            continue
    return None, machine.output(handle)


def replay_once(machine: Any, session: Any, guard: str) -> Replay:
    machine.zram(128)
    machine.run("rm -rf /home/ada/.local/state/oomproof")  # nothing is known of these commands from before
    stall, before = f"/tmp/stall-{time.monotonic_ns()}", PREFIX.get(guard, "")
    apart = before if guard == "systemd-oomd" else ""
    session.start(f"{apart} python3 {IN_GUEST}/bystander.py {stall}")
    machine.wait_until(f"test -s {stall}")
    time.sleep(10)
    idle = float(machine.get(stall))
    begun = time.monotonic()
    training = session.start(f"{before} python3 {IN_GUEST}/train_loop.py 480 {TRAINING_SECONDS}")
    machine.wait_until(f"grep -qs ready {training.output}")
    time.sleep(HEAD_START)
    loader = session.start(f"{before} python3 {IN_GUEST}/loader.py 80 480 0")
    done = [wait(machine, one) for one in (loader, training)]
    seconds = time.monotonic() - begun
    longest = float(machine.get(stall))
    lived = machine.run(f"kill -9 $(cat {stall}.pid)", check=False).rc == 0
    machine.swapoff()
    if guard == "oomproof":
        print(*(line for line in done[0][1].splitlines() if line.startswith("oomproof:")), sep="\n")
    return Replay(
        ending(*done[1]),
        ending(*done[0]),
        longest,
        idle,
        seconds,
        os.getloadavg()[0],
        lived,
    )


def replay(guards: list[str], repeats: int, add: bool) -> None:
    virtual.ensure_image()
    kept = read_json(RESULTS / "freeze-replay.json").get("rounds", {})
    for guard in guards:
        rounds: list[Replay] = []
        with virtual.Machine(memory_mib=1024) as machine:
            machine.put(JOBS, IN_GUEST)
            machine.run(GUARDS[guard])
            session = machine.login("ada")
            for _ in range(repeats):
                one = replay_once(machine, session, guard)
                print(guard, shlex.quote(str(asdict(one))), flush=True)
                rounds.append(one)
                machine.wait_until("! pgrep -u ada python3", timeout=60)
        kept[guard] = [*(kept.get(guard, []) if add else []), *(asdict(one) for one in rounds)]
        save("freeze-replay", {"repeats": repeats, "rounds": kept})
    rows = []
    for guard in GUARDS:
        if guard in kept:
            best = min(kept[guard], key=lambda one: one["stall"])
            stalls = ", ".join(f"{one['stall']:.2f}" for one in kept[guard])
            rows.append(
                [
                    guard,
                    *(both(kept[guard], who) for who in ("training", "loader")),
                    f"{best['stall']:.2f}",
                    f"{best['stall'] / max(0.001, best['idle_stall']):.0f}",
                    stalls,
                ]
            )
    header = ["guard", "training", "loader", "longest stall, s: best", "as a ratio to idle", "all rounds, s"]
    table(
        f"The replay, best of {min(len(kept[guard]) for guard in kept)} (host load {os.getloadavg()[0]:.1f})",
        header,
        rows,
    )


def both(rounds: list[dict[str, Any]], who: str) -> str:
    """How it ended, over all rounds."""
    found = [one[who] for one in rounds]
    return " · ".join(f"{how} {found.count(how)} of {len(found)}" for how in dict.fromkeys(found))


# --- from the line to standing still ---------------------------------------------------------------------------------


@dataclass
class Still:
    """One job that grew beside an older run until it was paused. Times in seconds from the line, sizes in bytes."""

    rate: float
    decided: float  # line to the guard's decision (its look)
    still: float  # line to the last byte written
    headroom: int  # left on the small machine then
    how: str


def still_once(here: Any, outer: Path, rate: int, number: str) -> Still | None:
    log = here.folder / f"{number}.log"
    prefill = 1280 if rate == 100 else 768
    job = [here.compile("fill.c"), str(log), str(rate), "4096", str(prefill), "800", "1"]
    process = here.start(
        "--name", number, "--pause-max", "2", "--grace", "1", "--", *job, prefix=inside(outer)
    )
    attempt = here.attempt(number)
    try:
        until(lambda: (attempt / "paused.json").exists(), "the pause", 60)
        time.sleep(0.5)
        times = stamps(log)
    finally:
        end(process)
        keeper = int(read_json(attempt / "started.json")["keeper"]["pid"])
        until(lambda: is_gone(keeper), "the keeper to end")
    lines = [json.loads(line) for line in (attempt / "actions.jsonl").read_text().splitlines()]
    act = next(line for line in lines if line["action"] == "pause")
    given = read_json(attempt.parent / "run.json")["settings"]
    settings = Settings(margin=given["margin"], floor=given["floor"], grace=given["grace"])
    facts = PolicyInput(**act["facts"])
    line = detect_pause.pause_threshold(settings, facts)
    base = facts.available + bisect.bisect_right(times, facts.t) * MIB
    crossed = next((t for index, t in enumerate(times) if base - (index + 1) * MIB <= line), facts.t)
    true_rate = sum(at > facts.t - 0.2 for at in times if at <= facts.t) * MIB / 0.2
    how = str(read_json(attempt / "started.json")["backend"].get("freezer") or "SIGSTOP").rpartition("/")[2]
    return Still(true_rate, facts.t - crossed, times[-1] - crossed, base - len(times) * MIB, how)


def still(repeats: int) -> None:
    rows, results = [], {}
    with lab() as here, small_machine(2 * GIB) as outer:
        if outer is None:
            return
        older = here.start("--name", "older", "--", "sleep", "3600", prefix=inside(outer))
        here.attempt("older")
        try:
            for rate in (100, 500, 1000, 0):
                found = [still_once(here, outer, rate, f"still-{rate}-{index}") for index in range(repeats)]
                done = [one for one in found if one is not None]
                results[str(rate or "full speed")] = [asdict(one) for one in done]

                def spread(pick: Callable[[Still], float], all_of: list[Still] = done) -> str:
                    values = [1000 * pick(one) for one in all_of]
                    return f"{quantile(values, 0.5):.0f} / {max(values):.0f}"

                rows.append(
                    [
                        f"{rate} MiB/s" if rate else "full speed",
                        f"{quantile([one.rate for one in done], 0.5) / MIB:.0f}",
                        spread(lambda one: one.decided),
                        spread(lambda one: one.still),
                        f"{min(one.headroom for one in done) / MIB:.0f}",
                        done[0].how,
                    ]
                )
        finally:
            end(older)
    header = [
        "fill rate", "measured MiB/s", "line to decision, ms: median / max", "line to the last byte, ms: median / max",
        "least room then, MiB", "by",
    ]  # fmt: skip
    table(
        f"From the line to standing still, {repeats} times each (load {os.getloadavg()[0]:.1f})", header, rows
    )
    save("freeze-still", {"repeats": repeats, "rounds": results})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", default=["still", "replay"])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--guards", nargs="*", default=list(GUARDS))
    parser.add_argument(
        "--add", action="store_true", help="to the replays kept from before, not in their place"
    )
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that what we started is ended
    if "still" in arguments.parts:
        still(max(5, arguments.repeats))
    if "replay" in arguments.parts:
        replay(arguments.guards, arguments.repeats, arguments.add)


if __name__ == "__main__":
    main()

"""What the guard costs beside its peers, how soon it acts, and up to which fill rate it is sooner than the kernel.

Parts: rest, reaction, scale. Everything that fills memory does so inside a memory cgroup of at most 6 GiB.
"""

from __future__ import annotations

import argparse
import bisect
import json
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import scale
from lab import (
    GIB,
    MIB,
    RESULTS,
    Lab,
    cpu_seconds,
    end,
    inside,
    is_gone,
    kernel_kills,
    lab,
    memory,
    quantile,
    read_json,
    save,
    small_machine,
    table,
    until,
    wake_ups,
)

from oomproof.guard import ladder
from oomproof.guard.detect_limit import default_limit_floor
from oomproof.guard.view import ActionHistory, PolicyInput, Settings
from oomproof.own_command import OWN_COMMAND

# Root without CAP_IPC_LOCK and with Debian's default limit: mlockall fails, as it does for an ordinary user.
UNLOCKED = ["prlimit", "--memlock=8388608", "setpriv", "--bounding-set=-ipc_lock", "--inh-caps=-ipc_lock"]
# No cgroup can be made, as in a container: the guard has only /proc and signals.
READ_ONLY = [
    "unshare", "-m", "sh", "-c",
    """for m in $(grep -E ' cgroup2? ' /proc/mounts | cut -d' ' -f2); do mount -o remount,bind,ro "$m"; done; exec "$@\"""",
    "sh",
]  # fmt: skip

# --- at rest ---------------------------------------------------------------------------------------------------------


def peers(folder: Path) -> dict[str, subprocess.Popen[bytes]]:
    """earlyoom and nohang where they are installed, with thresholds that cannot fire at rest."""
    found = {
        "earlyoom": ["earlyoom", "-m", "1", "-s", "1", "--dryrun"],
        "nohang": ["nohang", "--monitor", "--config", "/etc/nohang/nohang.conf"],
    }
    started = {}
    for name, command in found.items():
        if shutil.which(command[0]) is None:
            print(f"{name} is not installed (apt install {name}): left out")
            continue
        with open(folder / f"{name}.log", "wb") as log:
            started[name] = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    return started


def processes_of(here: Lab, name: str) -> dict[str, int]:
    """Pid of the front (the guard), the keeper and, where there is one, the GPU helper."""
    attempt = here.attempt(name)
    started = until(lambda: read_json(attempt / "started.json"), f"{name} to start")
    guard, keeper = int(started["guard"]["pid"]), int(started["keeper"]["pid"])
    found = {"guard": guard, "keeper": keeper}
    for task in Path(f"/proc/{guard}/task").iterdir():
        for child in map(int, (task / "children").read_text().split()):
            if child != keeper and b"machine.gpu" in Path(f"/proc/{child}/cmdline").read_bytes():
                found["GPU helper"] = child
    return found


def at_rest(seconds: float, settle: float, crowd_size: int) -> None:
    with lab() as here:
        ours = str(Path(ladder.__file__).parents[1])
        compiled = [sys.executable, "-m", "compileall", "-q", "-j", "0", ours]
        subprocess.run(compiled, env=here.environment, check=True)  # as an installation does
        here.start(
            "--", "true"
        ).wait()  # and the standard library's, which looks for its own in the same folder
        others = peers(here.folder)
        words = [*OWN_COMMAND, "guard"]
        with open(here.folder / "guard.log", "wb") as log:
            others["oomproof guard (machine)"] = subprocess.Popen(words, env=here.environment, stderr=log)
        crowd = [subprocess.Popen(["sleep", "100000"]) for _ in range(crowd_size)]
        length = str(int(seconds + settle + 60))
        runs = {
            "locked": here.start("--name", "locked", "--", "sleep", length),
            "unlocked": here.start("--name", "unlocked", "--", "sleep", length, prefix=UNLOCKED),
            "limit-1G": here.start("--name", "limit-1G", "--limit", "1G", "--", "sleep", length),
        }
        watched: dict[str, int] = {name: process.pid for name, process in others.items()}
        for name in runs:
            for part, pid in processes_of(here, name).items():
                watched[f"oomproof {part}, {name}"] = pid
        time.sleep(settle)
        before = {name: cpu_seconds(pid) for name, pid in watched.items()}
        waited = {name: wake_ups(pid) for name, pid in watched.items()}
        begun = time.monotonic()
        time.sleep(seconds)
        elapsed = time.monotonic() - begun
        results = {}
        for name, pid in watched.items():
            share = (cpu_seconds(pid) - before[name]) / elapsed
            results[name] = {
                "cpu_percent": 100 * share,
                "wake_ups_per_s": (wake_ups(pid) - waited[name]) / elapsed,
                "cpu_at_start_s": before[name],
                **memory(pid),
            }
        for process in (*runs.values(), *others.values(), *crowd):
            end(process)
    rows = [
        [
            name,
            f"{one['cpu_percent']:.4f}",
            f"{one['wake_ups_per_s']:.2f}",
            *(f"{one[key] / MIB:.1f}" for key in ("rss", "anon", "pss", "locked")),
            f"{1000 * one['cpu_at_start_s']:.0f}",
        ]
        for name, one in results.items()
    ]
    header = [
        "process",
        "CPU, % of a core",
        "waits a second",
        "RSS MiB",
        "anon MiB",
        "PSS MiB",
        "locked MiB",
        "CPU to start, ms",
    ]
    beside = f", beside {crowd_size} sleeping processes" if crowd_size else ""
    table(
        f"At rest, {elapsed:.0f} s after {settle:.0f} s, all at once (load {os.getloadavg()[0]:.1f}){beside}",
        header,
        rows,
    )
    name = "rest-crowd" if crowd_size else "rest"
    save(name, {"seconds": elapsed, "settle_s": settle, "crowd": crowd_size, "processes": results})


# --- reaction --------------------------------------------------------------------------------------------------------


# MiB/s (0: as fast as it goes), threads (-1: one, over huge pages)
SPEEDS = ((100, 1), (500, 1), (1000, 1), (2000, 1), (0, 1), (0, 2), (0, -1))
MANY = ((0, 4), (0, 8)) if (os.cpu_count() or 1) >= 8 else ()


@dataclass(frozen=True)
class Case:
    """One way of running out: which line, in what, and how the job gets near it."""

    key: str
    title: str
    size: int  # of the limit, or of the small machine
    prefill_mib: int
    own_limit: bool
    prefix: Sequence[str] = ()
    speeds: Sequence[tuple[int, int]] = SPEEDS
    still: float = 0.8  # seconds before it fills


CASES = (
    Case("limit", "`--limit 1G`", GIB, 0, own_limit=True, speeds=(*SPEEDS, *MANY)),
    Case(
        "still",
        "`--limit 1G`, after 18 s without growth",
        GIB,
        0,
        own_limit=True,
        speeds=((500, 1), (0, 1), (0, 2), (0, -1), *MANY),
        still=18.0,
    ),
    Case(
        "calm",
        "`--limit 1G`, after 80 s without growth",
        GIB,
        0,
        own_limit=True,
        speeds=((500, 1), (0, 1), (0, 2), (0, -1), *MANY),
        still=80.0,
    ),
    Case(
        "machine",
        "machine of 2 GiB, no limit",
        2 * GIB,
        768,
        own_limit=False,
        speeds=((100, 1), (500, 1), (1000, 1), (0, 1), (0, 2)),
    ),
    Case(
        "watching",
        "machine of 2 GiB, no cgroup to be had",
        2 * GIB,
        768,
        own_limit=False,
        prefix=READ_ONLY,
        speeds=((0, 1), (0, 2)),
    ),
)


@dataclass
class Fill:
    """One job that filled memory until somebody ended it. Times in seconds, sizes in bytes."""

    by: str  # guard, kernel, nobody
    backend: str
    action: str  # term or kill; "" when the guard came to neither
    rate: float = 0.0  # the true one, over the last tenth of a second before the action
    reaction: float | None = (
        None  # from crossing the guard's line (by its own figure of the rate) to the action
    )
    late: float | None = None  # the same for the line by the true rate; negative: sooner than needed
    room_at_action: float | None = None  # under the limit, or on the small machine
    room_at_end: float | None = None
    end_after: float | None = None  # from the action to the last byte written


def stamps(path: Path) -> list[float]:
    data = path.read_bytes()
    return sorted(value for value in struct.unpack(f"={len(data) // 8}d", data) if value > 0)


def line_at(case: Case, given: dict[str, Any], facts: dict[str, Any], rate: float) -> int:
    """The room at which a job of that rate is to be ended: asked of the policy itself, by halving."""
    settings = Settings(
        margin=given["margin"],
        floor=given["floor"],
        grace=given["grace"],
        limit=given["limit"],
        limit_floor=default_limit_floor(given["limit"]) if given["limit"] else 0,
    )
    name = "limit_headroom" if case.own_limit else "available"
    low, high = 0, case.size
    while high - low > 64 * 1024:
        middle = (low + high) // 2
        moment = PolicyInput(**{**facts, "rate": rate, "limit_rate": rate, "shrink": rate, name: middle})
        acts = ladder.choose(settings, moment, ActionHistory()).kind in ("term", "kill")
        low, high = (middle, high) if acts else (low, middle)
    return low


def judge(case: Case, prefill: int, attempt: Path, log: Path, kills: int) -> Fill:
    started, ended = read_json(attempt / "started.json"), read_json(attempt / "exit.json")
    run = read_json(attempt.parent / "run.json")
    counters = [(started.get("counters") or {}), (ended.get("counters") or {})]
    own = [one.get("memcg_oom_kill") or 0 for one in counters]
    by_kernel = kills > 0 or own[1] > own[0]
    backend = started.get("backend", {})
    path = attempt / "actions.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    act = next((line for line in lines if line["action"] in ("term", "kill")), None)
    by = "kernel" if by_kernel else "guard" if act else "nobody"
    fill = Fill(by, str(backend.get("name")), act["action"] if act else "")
    times = stamps(log)
    if act is None or not times:
        return fill
    facts, at = act["facts"], act["boottime"]
    room_then = facts["limit_headroom"] if case.own_limit else facts["available"]

    def written(t: float) -> int:
        return bisect.bisect_right(times, t) * MIB

    base = int(room_then) + written(facts["t"])  # the room before the first byte, by the guard's own reading

    def available(t: float) -> float:
        return base - written(t)

    ramp = times[prefill] if len(times) > prefill else times[-1]
    since = max(at - 0.1, ramp)
    fill.rate = (written(at) - written(since)) / max(0.005, at - since)

    def crossed(rate: float) -> float:
        """When the room fell to the line for that rate; foreseen from the action where it had not yet."""
        line = line_at(case, run["settings"], facts, rate)
        seen = next((t for t in times if t >= ramp and available(t) <= line), None)
        return seen if seen is not None and seen <= at else at + (available(at) - line) / max(rate, MIB)

    fill.reaction = at - crossed(facts["rate"] if case.own_limit else facts["shrink"])
    fill.late = at - crossed(fill.rate)
    fill.room_at_action, fill.room_at_end = available(at), available(times[-1])
    fill.end_after = max(0.0, times[-1] - at)
    return fill


@contextmanager
def warm_pages(here: Lab, size: int, warm: Path | None) -> Iterator[subprocess.Popen[bytes] | None]:
    """Holds memory that was written a moment ago, to be let go when the job begins.

    A virtual machine gives free pages back to its host, and takes them again at 0.24 GiB/s instead of 1.7 (measured
    here): without this the host's pace would be measured, not ours.
    """
    if warm is None:
        yield None
        return
    log = here.folder / "warm.log"
    log.unlink(missing_ok=True)
    mib = size // MIB
    command = [*inside(warm), here.compile("fill.c"), str(log), "-1", str(mib), "0", "0", "-1"]
    process = subprocess.Popen(command)
    try:
        until(lambda: log.exists() and len(stamps(log)) == mib, "the pages to be warm", 60)
        yield process
    finally:
        end(process)


def fill_once(
    here: Lab, case: Case, rate: int, threads: int, number: str, outer: Path | None, warm: Path | None
) -> Fill:
    log = here.folder / f"{number}.log"
    prefill = case.prefill_mib or (512 if rate == 100 else 0)
    still = case.still + (random.random() if case.still > 1 else 0.0)  # at any moment between two looks
    job = [
        here.compile("fill.c"),
        str(log),
        str(rate),
        str(2 * case.size // MIB),
        str(prefill),
        str(round(1000 * still)),
        str(threads),
    ]
    limit = ["--limit", str(case.size)] if case.own_limit else []
    before = kernel_kills(outer) if outer else 0
    with warm_pages(here, case.size, warm) as warmer:
        words = ["--name", number, *limit, "--", *job]
        process = here.start(*words, prefix=[*(inside(outer) if outer else []), *case.prefix])
        until(log.exists, "the job to begin")
        time.sleep(max(0.0, still - 1.0))
        if warmer is not None:
            end(warmer)
        process.wait(120)
    kills = kernel_kills(outer) - before if outer else 0
    attempt = here.attempt(number)
    keeper = int(read_json(attempt / "started.json")["keeper"]["pid"])
    until(lambda: is_gone(keeper), "the keeper to end")
    return judge(case, prefill, attempt, log, kills)


def speed_name(rate: int, threads: int) -> str:
    if rate:
        return f"{rate} MiB/s"
    return {1: "full speed", -1: "full speed, huge pages"}.get(threads, f"full speed, {threads} threads")


def summary(fills: list[Fill]) -> list[str]:
    acted = [one for one in fills if one.reaction is not None]
    times = [1000 * one.reaction for one in acted if one.reaction is not None]
    late = [1000 * one.late for one in acted if one.late is not None]
    rooms = [one.room_at_action / MIB for one in acted if one.room_at_action is not None]
    ends = [one.room_at_end / MIB for one in acted if one.room_at_end is not None]
    by = {who: sum(one.by == who for one in fills) for who in ("guard", "kernel", "nobody")}
    return [
        f"{quantile([one.rate for one in acted], 0.5) / MIB:.0f}" if acted else "–",
        f"{quantile(times, 0.5):.0f} / {quantile(times, 0.9):.0f} / {max(times):.0f}" if times else "–",
        f"{quantile(late, 0.5):.0f} / {max(late):.0f}" if late else "–",
        f"{quantile(rooms, 0.5):.0f} / {min(rooms):.0f}" if rooms else "–",
        f"{quantile(ends, 0.5):.0f} / {min(ends):.0f}" if ends else "–",
        f"{by['guard']} of {len(fills)}" + (f" (kernel {by['kernel']})" if by["kernel"] else ""),
    ]


HEADER = [
    "fill rate", "measured MiB/s", "line to action, ms: median / p90 / max",
    "by the true rate, ms: median / max", "room at the action, MiB: median / least",
    "room when dead, MiB: median / least", "ended by us",
]  # fmt: skip


def reaction(repeats: int, cases: list[str]) -> None:
    fastest: dict[str, float] = {}
    for case in CASES:
        results: dict[str, Any] = {}
        if case.key not in cases:
            continue
        available = case.size + (GIB if case.own_limit else 0)
        with lab() as here, small_machine(available) as outer, small_machine(4 * GIB, "bench-warm") as warm:
            if outer is None and not case.own_limit:
                continue
            rows = []
            for rate, threads in case.speeds:
                fills = [
                    fill_once(here, case, rate, threads, f"{case.key}-{rate}-{threads}-{i}", outer, warm)
                    for i in range(repeats)
                ]
                name = speed_name(rate, threads)
                rows.append([name, *summary(fills)])
                results[name] = [asdict(one) for one in fills]
                if all(one.by == "guard" for one in fills):
                    measured = quantile([one.rate for one in fills], 0.5) / MIB
                    fastest[case.key] = max(fastest.get(case.key, 0.0), measured)
            title = f"Reaction: {case.title} ({fills[0].backend}), {repeats} times each"
            table(title, HEADER, rows)
            best = fastest.get(case.key, 0.0)
            print(f"\nfastest fill of which all {repeats} were ended by us: {best:.0f} MiB/s")
            old = read_json(RESULTS / "reaction.json")  # a case that is not repeated this time stays
            save(
                "reaction",
                {
                    "repeats": repeats,
                    "fastest_mib_s": {**old.get("fastest_mib_s", {}), case.key: best},
                    "fills": {**old.get("fills", {}), case.key: results},
                },
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", default=["rest", "reaction", "scale"])
    parser.add_argument("--seconds", type=float, default=90.0, help="length of each look at rest")
    parser.add_argument(
        "--crowd", type=int, default=0, help="with rest: so many sleeping processes beside it"
    )
    parser.add_argument(
        "--settle", type=float, default=90.0, help="seconds before it; a job is calm after a minute"
    )
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--cases", nargs="*", default=[case.key for case in CASES if case.still < 60])
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that what we started is ended
    if "rest" in arguments.parts:
        at_rest(arguments.seconds, arguments.settle, crowd_size=arguments.crowd)
    if "reaction" in arguments.parts:
        reaction(arguments.repeats, arguments.cases)
    if "scale" in arguments.parts:
        scale.measure(min(60.0, arguments.seconds))


if __name__ == "__main__":
    main()

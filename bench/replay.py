"""Random mixes of three to five jobs in the lab's virtual machine (1 GB, 128 MB of zram) under each guard, by hand.

    python bench/replay.py --seeds 1-20 --minutes 60     goes on where it stopped: results/replay.json has every round
    python bench/replay.py --seeds 7 --guards oomproof --again

Who finished; innocents lost (a bystander, or a job that held all it wanted and grew no more); the bystander's longest stall.
Under oomproof the guard of the machine runs as ada's service, and those of the mix that are managed are started by `run`.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from freeze import GUARDS, OOMD, PREFIX, ending
from lab import RESULTS, read_json, save, table
from replay_mixes import MixJob, draw, oracle
from virtual_lab import IN_GUEST, JOBS, ROOT, virtual

OURS, UNIT = "oomproof", "oomproof-guard.service"
STOP = {
    "earlyoom": "systemctl stop earlyoom",
    "nohang": "systemctl stop nohang",
    "systemd-oomd": f"systemctl stop {OOMD}; systemctl mask {OOMD}",
}


@dataclass
class Round:
    guard: str
    seed: int
    ends: list[str]  # of each job: finished, or how it ended
    ready: list[bool]  # whether it held all it wanted
    bystander_lived: bool
    stall: float  # the bystander's longest, seconds
    kernel_kills: int
    seconds: float  # from the first start to the last end
    load: float  # of the host
    log: list[str]  # what oomproof said
    rules: str = ""  # ours: which version of the guard's rules decided

    @property
    def innocents(self) -> int:
        lost = sum(
            ready and end not in ("finished", "never came back")
            for ready, end in zip(self.ready, self.ends, strict=True)
        )
        return lost + (not self.bystander_lived)


class SmallMachine:
    """One boot for many rounds; a machine that no longer answers is replaced."""

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self._machine: Any = None
        self._session: Any = None

    def ready(self) -> tuple[Any, Any]:
        if self._machine is None:
            self._machine = self._stack.enter_context(virtual.Machine(memory_mib=1024))
            self._machine.put(JOBS, IN_GUEST)
        if self._session is None or not self._session.alive():
            self._session = self._machine.login("ada")
        return self._machine, self._session

    def close(self) -> None:
        self._stack.close()
        self._machine = self._session = None


@contextlib.contextmanager
def guarded(machine: Any, session: Any, guard: str) -> Iterator[None]:
    machine.run("rm -rf /home/ada/.local/state/oomproof")  # nothing is known of these commands from before
    machine.zram(128)
    machine.run(GUARDS[guard])
    if guard == OURS:
        session.run("oomproof guard install")
        machine.wait_until(
            f"journalctl -b -o cat _SYSTEMD_USER_UNIT={UNIT} | tail -n 1 | grep -q 'guarding this'"
        )
    try:
        yield
    finally:
        machine.run("pkill -9 -u ada -f /loader.py", check=False)
        machine.wait_until("! pgrep -u ada -f /loader.py", timeout=60)
        if guard == OURS and session.alive():
            session.run(f"systemctl --user stop {UNIT}", check=False)
        machine.run(STOP.get(guard, "true"), check=False)
        machine.swapoff()


def words(guard: str, job: MixJob) -> str:
    plain = f"python3 {IN_GUEST}/loader.py {job.rate} {job.size} {job.hold:.0f}"
    if guard != OURS:
        return f"{PREFIX.get(guard, '')} {plain}"
    need = f"--need {job.peak}M" if job.declared else ""
    return f"oomproof run {need} -- {plain}" if job.managed else plain


def play(machine: Any, session: Any, guard: str, seed: int) -> Round:
    jobs, stall = draw(seed), f"/tmp/stall-{guard}-{seed}"
    kills = "awk '/^oom_kill / {print $2}' /proc/vmstat"
    before = int(machine.run(kills).out)
    apart = PREFIX["systemd-oomd"] if guard == "systemd-oomd" else ""
    session.start(f"{apart} python3 {IN_GUEST}/bystander.py {stall}")
    machine.wait_until(f"test -s {stall}")
    begun = time.monotonic()
    handles = []
    for job in jobs:
        time.sleep(max(0.0, begun + job.start - time.monotonic()))
        handles.append(session.start(words(guard, job)))
    deadline = begun + 60 + 3 * oracle(jobs).seconds
    done = [outcome(machine, handle, deadline) for handle in handles]
    seconds = time.monotonic() - begun
    texts = [text for _, text in done]
    if guard == OURS:
        since = f"--since=-{int(seconds) + 5}s"
        texts.append(machine.run(f"journalctl -o cat {since} _SYSTEMD_USER_UNIT={UNIT}", check=False).out)
    longest = float(machine.get(stall))
    lived = machine.run(f"kill -9 $(cat {stall}.pid)", check=False).rc == 0
    return Round(
        guard,
        seed,
        [ending(*result) for result in done],
        ["ready" in text for _, text in done],
        lived,
        longest,
        int(machine.run(kills).out) - before,
        seconds,
        os.getloadavg()[0],
        [line for text in texts for line in text.splitlines() if line.startswith("oomproof:")],
        rules() if guard == OURS else "",
    )


def rules() -> str:
    """A name for the guard as it is now: rounds under other rules do not belong into one table."""
    files = sorted((ROOT / "src" / "oomproof" / "guard").glob("*.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:8]


def keep_logs(machine: Any, folder: Path, name: str) -> None:
    """The guard's journal with times, and what its runs have recorded."""
    folder.mkdir(parents=True, exist_ok=True)
    machine.run(
        f"cd /home/ada/.local/state && journalctl -b -o short-unix _SYSTEMD_USER_UNIT={UNIT} >oomproof/journal.txt; "
        "tar -czf /tmp/logs.tgz oomproof",
        check=False,
    )
    (folder / f"{name.replace(' ', '-')}.tgz").write_bytes(machine.get("/tmp/logs.tgz"))


def outcome(machine: Any, handle: Any, deadline: float) -> tuple[int | None, str]:
    """(status, what it printed); no status when it did not end in time, or its shell was killed with it."""
    try:
        done = machine.wait(handle, timeout=max(1.0, deadline - time.monotonic()))
        return done.rc, done.out
    except virtual.LabError:
        return None, machine.output(handle)


def measure(
    seeds: Sequence[int], guards: Sequence[str], until: float, again: bool, logs: Path | None
) -> dict[str, Any]:
    before = read_json(RESULTS / "replay.json")
    kept: dict[str, Any] = before.get("rounds", {})
    earlier: list[dict[str, Any]] = before.get("earlier", [])  # rounds that were run again since
    small = SmallMachine()
    try:
        for seed in seeds:
            for guard in guards:
                name = f"{guard} {seed}"
                if (name in kept and not again) or time.monotonic() > until:
                    continue
                try:
                    machine, session = small.ready()
                    with guarded(machine, session, guard):
                        result = play(machine, session, guard, seed)
                        if logs is not None and guard == OURS:
                            keep_logs(machine, logs, name)
                except virtual.LabError as error:  # the others are worth having
                    print(f"{name}: {error}", file=sys.stderr, flush=True)
                    small.close()
                    continue
                if name in kept:
                    earlier.append(kept[name])
                kept[name] = asdict(result)
                print(name, result.ends, f"stall {result.stall:.2f} s", *result.log, sep="\n  ", flush=True)
                save("replay", {"rounds": kept, "earlier": earlier})
    finally:
        small.close()
    return kept


def report(kept: dict[str, Any], guards: Sequence[str]) -> None:
    rounds = [Round(**values) for values in kept.values()]
    complete = sorted(
        seed
        for seed in {result.seed for result in rounds}
        if {result.guard for result in rounds if result.seed == seed} >= set(guards)
    )
    rows, wanted = [], {seed: oracle(draw(seed)) for seed in complete}
    total = sum(len(draw(seed)) for seed in complete)
    for guard in guards:
        mine = [result for result in rounds if result.guard == guard and result.seed in complete]
        if not mine:
            continue
        stalls = [result.stall for result in mine]
        rows.append(
            [
                guard,
                f"{sum(result.ends.count('finished') for result in mine)} of {total}",
                str(sum(result.innocents for result in mine)),
                str(sum(result.kernel_kills for result in mine)),
                f"{median(stalls):.2f} / {max(stalls):.2f}",
                f"{median(result.seconds for result in mine):.0f}",
            ]
        )
        if guard == OURS:
            for result in mine:
                lost = [at for at in wanted[result.seed].finished if result.ends[at] != "finished"]
                if lost:
                    print(f"seed {result.seed}: the oracle saves {lost}, ours: {result.ends}")
    saved = sum(len(outcome.finished) for outcome in wanted.values())
    seconds = median(outcome.seconds for outcome in wanted.values()) if wanted else 0.0
    rows.append(["oracle (simulated)", f"{saved} of {total}", "0", "0", "–", f"{seconds:.0f}"])
    header = ["guard", "jobs finished", "innocents lost", "kills by the kernel", "longest stall, s: median / worst", "seconds, median"]  # fmt: skip
    table(f"{len(complete)} mixes, seeds {complete}", header, rows)


def numbers(text: str) -> list[int]:
    first, _, last = text.partition("-")
    return list(range(int(first), int(last or first) + 1))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=numbers, default=numbers("1-20"), metavar="A-B")
    parser.add_argument("--guards", nargs="*", default=list(GUARDS), choices=list(GUARDS))
    parser.add_argument("--minutes", type=float, default=600.0, help="begin no round after so long")
    parser.add_argument("--again", action="store_true", help="also what is kept from before")
    parser.add_argument(
        "--logs", type=Path, metavar="FOLDER", help="keep the guard's journal and recordings of ours"
    )
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the machine is switched off
    virtual.ensure_image()
    until = time.monotonic() + 60 * arguments.minutes
    kept = measure(arguments.seeds, arguments.guards, until, arguments.again, arguments.logs)
    report(kept, list(GUARDS))


if __name__ == "__main__":
    main()

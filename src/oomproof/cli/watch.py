"""Takes the guard of a run up again, after `oomproof run` was killed or the login session ended.

The job runs on under its limit meanwhile; this follows its output, goes on with the recording and guards it as before.
Ctrl-C leaves: the job goes on.

  oomproof watch big
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from oomproof.cli.freeze import living
from oomproof.cli.status import exit_status
from oomproof.errors import OomproofError
from oomproof.guard.detect_limit import default_limit_floor
from oomproof.guard.host_view import HostView
from oomproof.guard.view import FREEZE_MAX, Settings
from oomproof.machine import processes
from oomproof.machine.clock import boottime
from oomproof.recording import runs
from oomproof.runner.sampler import Alerts
from oomproof.runner.supervise import Watch, known_need, usual_peak


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "run", nargs="?", metavar="RUN", help="id, part of an id, or name (default: the newest)"
    )


def run(arguments: argparse.Namespace) -> int:
    found = runs.find_here(arguments.run)
    if found.waits():
        raise OomproofError(f"{found.name} waits for room", f"wait for it: oomproof wait {found.id}")
    found = living(found.id, 0)
    lock = runs.take_lock(found.folder / "guard.lock")
    if lock is None:
        raise OomproofError(
            f"{found.name} has its guard", f"follow its output: oomproof logs -f {found.id}", 0
        )
    from oomproof.cli.logs import follow
    from oomproof.runner import stand_in

    started = found.started()
    adopted = os.pidfd_open(int(started["job"]["pid"])) if found.info.get("adopted") else None
    settings = _settings(found)
    kept = found.info.get("settings") or {}
    stop_file = kept.get("stop_file")
    watch = Watch(
        found,
        started,
        settings,
        HostView(),
        lambda text: print(text, file=sys.stderr, flush=True),
        Alerts(**kept.get("alerts", {})),
        stop_file=Path(stop_file) if stop_file else None,
        stop_signal=kept.get("stop_signal"),
        agent=bool(kept.get("agent")),
    )
    runs.write_json(
        found.attempt / "started.json",
        {**started, "guard": {"pid": os.getpid(), "start": processes.start_time(os.getpid())}},
    )
    watch.writer.event(boottime(), "guard", "the guard was taken up again")
    print(f"oomproof: guarding {found.name} again; Ctrl-C leaves it running", file=sys.stderr)
    watch.start()
    # Held, not read: should the keeper be killed, the job's next line must not end it.
    held = stand_in.reopen(started, [watch.job.leader])
    try:
        follow(found, from_end=True)
        while not found.keeper_lives() and not found.exit() and found.job_lives() and not adopted:
            print("oomproof: its keeper was killed; a new one keeps it from now on", file=sys.stderr)
            watch.job.keeper = 0
            stand_in.revive(found)
            follow(found, from_end=True)
    except KeyboardInterrupt:
        print(f"\noomproof: left; {found.name} runs on without its guard", file=sys.stderr)
        return 0
    finally:
        watch.stop()
        for fd in held.values():
            os.close(fd)
    if adopted is not None:
        from oomproof.runner.adopt import stay

        stay(found, int(started["job"]["pid"]), adopted)
    from oomproof.reports.after import conclude
    from oomproof.reports.verdict import fitted

    conclusion = conclude(found)
    print(fitted(conclusion.text, sys.stderr), file=sys.stderr)
    return exit_status(found, conclusion)


def _settings(run: runs.Run) -> Settings:
    kept = run.info.get("settings") or {}
    limit = kept.get("limit")
    return Settings(
        margin=int(kept.get("margin", 0)),
        floor=int(kept.get("floor", 0)),
        grace=float(kept.get("grace", 30.0)),
        limit=limit,
        limit_floor=default_limit_floor(limit) if limit else 0,
        watch_only=bool(kept.get("watch_only")),
        protected=bool(kept.get("protect")),
        freeze_max=float(kept.get("freeze_max", FREEZE_MAX)),
        need=known_need(run.info.get("claim")),
        usual_peak=usual_peak(run.info.get("claim")),
    )

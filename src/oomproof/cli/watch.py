"""Takes the guard of a run up again, after `oomproof run` was killed or the login session ended.

Until then the job runs under its limit alone; this follows its output, continues the recording and guards it as before.
Ctrl-C leaves; the job continues.

  oomproof watch big
"""

from __future__ import annotations

import argparse
import os
import sys

from oomproof.alerts.alert_channel import Alerts
from oomproof.cli.command_parser import add_run
from oomproof.cli.pause import live_run
from oomproof.cli.run_end import exit_status, tell_end
from oomproof.errors import OomproofError
from oomproof.guard.host_view import HostView
from oomproof.leaf.proc_files import with_start
from oomproof.machine.clock import boottime
from oomproof.printable import coloured_stream
from oomproof.recording import run_folders, state_files
from oomproof.runner.guard_settings import guard_settings
from oomproof.runner.job_watch import Watch
from oomproof.runner.run_flags import add_receiver_flags, of_watch


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    add_run(parser, "the newest that lost its oomproof")
    add_receiver_flags(parser)


def run(arguments: argparse.Namespace) -> int:
    target = run_folders.find_alive(arguments.run, ("unguarded",), 0)
    if target.waits():
        raise OomproofError(
            f"{target.name} does not run now: it waits",
            f"see for what: oomproof runs show {run_folders.to_type(target)}",
        )
    target = live_run(target.id, 0)
    lock = state_files.take_lock(target.guard_lock)
    if lock is None:
        raise OomproofError(
            f"{target.name} is guarded already",
            f"follow its output: oomproof logs -f {run_folders.to_type(target)}",
            0,
        )
    from oomproof.cli.logs import follow
    from oomproof.runner import stand_in

    started = target.started()
    adopted = os.pidfd_open(int(started["job"]["pid"])) if target.info.get("adopted") else None
    chosen, host = of_watch(target.info.get("settings") or {}, vars(arguments)), HostView()
    alerts = Alerts(chosen.alert_settings())
    settings = guard_settings(chosen, host, target.info.get("claim"))
    agent = not chosen.no_agent and adopted is None
    watch = Watch(
        target,
        started,
        settings,
        host,
        lambda text: print(text, file=sys.stderr, flush=True),
        chosen,
        agent,
        alerts=alerts,
    )
    state_files.write_json(
        target.attempt.started_file,
        {**started, "guard": with_start(os.getpid())},
    )
    watch.writer.event(boottime(), "guard", "the run is guarded again")
    print(f"oomproof: guarding {target.name} again; Ctrl-C leaves it running", file=sys.stderr)
    watch.start()
    # Held, not read: should the keeper be killed, the job's next line must not end it.
    held = stand_in.reopen(started, [watch.job.leader])
    try:
        place = follow(target, from_end=True)
        while not target.keeper_lives() and not target.exit() and target.job_lives() and not adopted:
            print("oomproof: its keeper was killed; a new one has taken over", file=sys.stderr)
            watch.job.keeper = 0
            stand_in.revive(target)
            place = follow(target, place)
    except KeyboardInterrupt:
        alerts.close()
        print(f"\noomproof: left; {target.name} continues without its guard", file=sys.stderr)
        return 0
    finally:
        watch.stop()
        for fd in held.values():
            os.close(fd)
    if adopted is not None:
        from oomproof.runner.adoption import stay

        stay(target, int(started["job"]["pid"]), adopted, watch)
    from oomproof.diagnosis.conclusion import conclude
    from oomproof.reports.verdict_text import at_end

    conclusion = conclude(target)
    print(at_end(conclusion.verdict, sys.stderr), file=coloured_stream(sys.stderr))
    if target.retries() and conclusion.died_of_memory:
        print("oomproof: not tried again: only the oomproof run that began it can do that", file=sys.stderr)
    status = exit_status(target, conclusion)
    tell_end(alerts, target, conclusion, status)
    return status

"""Asks the ledger for room on a machine of a fixed size, says when it was let in, holds it, and ends.

asker.py BUDGET NEED SECONDS JOURNAL: writes "in RUN BOOTTIME NEED" after it was let in and "out RUN BOOTTIME" before it
leaves, so that what stands there is never longer than the truth.
"""

from __future__ import annotations

import os
import sys
import time

from oomproof.ledger import room
from oomproof.ledger.budget import Budget
from oomproof.machine.clock import boottime
from oomproof.recording import runs
from oomproof.runner.admission import Asked, ask


def main() -> None:
    budget, need, seconds = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    # the one thing that is not real: how much memory there is, so that many processes can want it
    room.read = lambda *_, **__: Budget(budget, budget, 0, 0, 0)  # type: ignore[assignment]
    journal = os.open(sys.argv[4], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    run = runs.new_run()

    def write(*words: object) -> None:
        os.write(journal, (" ".join(map(str, words)) + "\n").encode())

    write("asks", run.id, os.getpid(), need)
    ticket = ask(run, ["asker"], None, Asked(need=need), os.getcwd(), lambda _: None, lambda _: None)
    write("in", run.id, boottime(), need)
    time.sleep(seconds)
    write("out", run.id, boottime())
    ticket.drop()


main()

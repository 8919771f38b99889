"""crowd.py COUNT BUDGET SEED JOURNAL: that many processes ask the ledger for room at once; every fifth is killed at random.

The machine has BUDGET bytes. Each process writes into JOURNAL "in RUN BOOTTIME NEED" after it was let in and "out RUN
BOOTTIME" before it leaves; a kill is written before it is done. So what stands there is never longer than the truth.
Ends with 0 when everyone who was not killed has ended with 0.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time

from oomproof.ledger import ledger_snapshot
from oomproof.ledger.budget import Budget
from oomproof.machine.clock import boottime
from oomproof.recording import run_folders
from oomproof.runner import (
    queue_wait,
)  # imported before the fork: they shall meet in the ledger, not in the imports
from oomproof.runner.admission_request import Asked, ask

GIB = 1 << 30


def one(need: int, seconds: float, journal: int) -> None:
    def write(*words: object) -> None:
        os.write(journal, (" ".join(map(str, words)) + "\n").encode())

    run = run_folders.new_run()
    write("asks", run.id, os.getpid())
    ticket = ask(run, ["crowd"], None, Asked(need=need), os.getcwd(), lambda _: None, lambda _: None)
    write("in", run.id, boottime(), need)
    time.sleep(seconds)
    write("out", run.id, boottime())
    ticket.drop()


def main() -> int:
    count, budget, seed = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    # the one thing that is not real: how much memory there is, so that many can want it
    queue_wait.current_budget = ledger_snapshot.current_budget = lambda *_, **__: Budget(
        budget, budget, 0, 0, 0
    )
    journal = os.open(sys.argv[4], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    choose = random.Random(seed)
    gate_read, gate = os.pipe()
    children = []
    for _ in range(count):
        need, seconds = choose.choice((1, 2, 5, 8, 11, 11, 11, 12)) * GIB, choose.uniform(0.0, 0.2)
        pid = os.fork()
        if pid == 0:
            os.close(gate)
            os.read(gate_read, 1)  # until everybody is there
            try:
                one(need, seconds, journal)
            except BaseException as error:
                os.write(2, f"{type(error).__name__}: {error}\n".encode())
                os._exit(1)
            os._exit(0)
        children.append(pid)
    os.close(gate)
    victims = choose.sample(children, count // 5)
    ended: dict[int, int] = {}
    while len(ended) < count:
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                break
            ended[pid] = status
            if len(ended) == count:
                break
        if victims and (victim := victims.pop()) not in ended:
            os.write(journal, f"killed {victim} {boottime()}\n".encode())
            os.kill(victim, signal.SIGKILL)
        time.sleep(choose.uniform(0.0, 0.1))
    return int(any(status not in (0, signal.SIGKILL) for status in ended.values()))


sys.exit(main())

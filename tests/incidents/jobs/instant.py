"""instant.py ROUNDS COUNT: in each round that many processes ask at one instant for 45 % of the machine each, and do not wait.

Prints per round how many were let in. Nobody waits in a queue here, so only the ledger's lock tells them apart.
"""

from __future__ import annotations

import os
import sys

from oomproof.errors import OomproofError
from oomproof.ledger import ledger_snapshot
from oomproof.ledger.budget import Budget
from oomproof.recording import run_folders
from oomproof.runner import queue_wait
from oomproof.runner.admission_request import Asked, ask

BUDGET = 20 << 30


def one(gate: int, answer: int, over: int) -> None:
    run = run_folders.new_run()
    os.read(gate, 1)  # until everybody is there
    try:
        asked = Asked(need=BUDGET * 45 // 100, wait=False)
        ticket = ask(run, ["instant"], None, asked, os.getcwd(), lambda _: None, lambda _: None)
    except OomproofError as error:
        os.write(answer, b"." if error.status == 75 else b"?")
        return
    os.write(answer, b"!")
    os.read(over, 1)  # hold it until all have their answer
    ticket.drop()


def main() -> None:
    queue_wait.current_budget = ledger_snapshot.current_budget = lambda *_, **__: Budget(
        BUDGET, BUDGET, 0, 0, 0
    )
    for _ in range(int(sys.argv[1])):
        count = int(sys.argv[2])
        gate_read, gate = os.pipe()
        answers, answer = os.pipe()
        over_read, over = os.pipe()
        children = []
        for _ in range(count):
            pid = os.fork()
            if pid == 0:
                os.close(gate)
                os.close(over)
                one(gate_read, answer, over_read)
                os._exit(0)
            children.append(pid)
        os.close(gate)
        heard = b""
        while len(heard) < count:
            heard += os.read(answers, count)
        os.close(over)
        for pid in children:
            os.waitpid(pid, 0)
        print(heard.count(b"!"), "?" if b"?" in heard else "", flush=True)


main()

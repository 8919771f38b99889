"""Real jobs, and what breaks around them: a short list of rounds with fixed seeds. `bench/chaos.py` runs them by the thousand."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import chaos_driver
import chaos_plan as plan
import pytest

AT_A_TIME = 2  # a round mostly waits

# Every kind of fault at least once. Some go in pairs: what blinds the guard with a shortage, a pause with what loses it.
ROUNDS: list[tuple[int, tuple[str, ...]]] = [
    (1, (plan.FRONT_KILL, plan.LEDGER_REMOVED)),
    (2, (plan.KEEPER_KILL,)),
    (3, (plan.BOTH_KILL, plan.PAUSE)),
    (4, (plan.FRONT_INT,)),
    (5, (plan.FRONT_TERM, plan.OLD_JSON)),
    (6, (plan.FRONT_STOP, plan.RUNTIME_FULL)),
    (7, (plan.FDS_LOWERED,)),
    (8, (plan.FDS_AT_START, plan.OLD_RECORDING)),
    (9, (plan.STOP, plan.LEDGER_FLIPPED)),
    (10, (plan.DATAGRAMS, plan.DISK_FULL)),
    (11, (plan.RUN_REMOVED, plan.PAUSE)),
    (12, (plan.DISK_READONLY,)),
    (13, (plan.STATE_REMOVED,)),
    (14, (plan.STATE_GONE,)),
    (15, (plan.SHORTAGE, plan.RUNTIME_REMOVED)),
    (16, (plan.LEDGER_EMPTIED, plan.NO_THREADS)),
    (17, (plan.THREADS_AT_START,)),
    (18, (plan.NO_RIGHTS,)),
    (19, (plan.HOG,)),
]


@pytest.fixture(scope="module")
def played(request: pytest.FixtureRequest) -> Iterator[dict[int, Future[dict[str, Any]]]]:
    """The rounds that were asked for, some at a time; a test waits for its own."""
    chosen = [item.callspec.params for item in request.session.items if item.name.startswith("test_round")]  # type: ignore[attr-defined]
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        yield {one["seed"]: pool.submit(chaos_driver.run_round, one["seed"], one["kinds"]) for one in chosen}


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("seed", "kinds"), ROUNDS, ids=["+".join(kinds) for _, kinds in ROUNDS])
def test_round(played: dict[int, Future[dict[str, Any]]], seed: int, kinds: tuple[str, ...]) -> None:
    result = played[seed].result()
    print(f"seed {seed}: {result['plan']}")
    if result.get("unavailable"):
        pytest.skip(result["unavailable"])
    again = f"bench/chaos.py --seed {seed} --rounds 1 --faults {','.join(kinds)}"
    broken = "\n".join(f"{name} {job}: {text}" for name, job, text in result["violations"])
    assert not broken, f"{broken}\nplan: {result['plan']}\nagain: {again}\nfolder: {result.get('folder')}"


def test_every_fault_has_its_round() -> None:
    assert {kind for _, kinds in ROUNDS for kind in kinds} == set(plan.KINDS)

"""A sweep as it was asked for and as `resume` changed it, and what a trial of it may hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from oomproof.errors import OomproofError
from oomproof.ledger.budget import current_budget
from oomproof.machine import nvidia
from oomproof.records import dataclass, replace
from oomproof.runner.run_flags import of_run
from oomproof.sweeps.search_space import SearchSpace, space_from_json
from oomproof.sweeps.sweep_folder import Sweep
from oomproof.sweeps.sweep_trials import SweepLog
from oomproof.sweeps.trial_plans import Knobs, knobs_as_json, knobs_from_json

RUN_FLAGS = ("limit", "gpu_limit", "grace")  # handed to every trial as they were typed
_CARD_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class SweepOrder:
    words: tuple[str, ...]
    cwd: str
    space: SearchSpace
    knobs: Knobs
    settings: Mapping[str, Any]  # limit, need, gpu_need, gpu_limit, grace: as typed; parallel
    by_config: bool  # its values also reach wandb.config
    seed: int

    @property
    def parallel(self) -> int:
        return int(self.settings.get("parallel") or 1)

    @property
    def total(self) -> int | None:
        """How many trials; None: that is not known."""
        points, trials = self.space.points, self.space.trials
        known = [count for count in (points, trials) if count is not None]
        return min(known) if known else None

    def as_json(self) -> dict[str, Any]:
        return {
            "command": list(self.words),
            "cwd": self.cwd,
            "space": self.space.as_json(),
            "knobs": knobs_as_json(self.knobs),
            "settings": dict(self.settings),
            "by_config": self.by_config,
            "seed": self.seed,
        }


def order_of(sweep: Sweep, log: SweepLog) -> SweepOrder:
    """Raises OomproofError where it is damaged."""
    info = sweep.info()
    try:
        space = space_from_json(info["space"])
        changed = dict(log.settings)
        space = replace(space, trials=changed.pop("trials", space.trials))
        return SweepOrder(
            tuple(str(word) for word in info["command"]),
            str(info["cwd"]),
            space,
            knobs_from_json(info["knobs"]),
            {**info["settings"], **changed},
            bool(info["by_config"]),
            int(info["seed"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise OomproofError(
            f"{sweep.info_file} is damaged ({error})", f"remove it: rm -r {sweep.folder}"
        ) from error


def budget_of(settings: Mapping[str, Any]) -> dict[str, int]:
    """What a trial may hold at most when it is alone on this machine: host, and gpu where there is one. What was not typed is
    as `oomproof run` would have it, from variables and settings files."""
    chosen = of_run({name: settings.get(name) for name in ("limit", "gpu_limit")})
    budget = {"host": current_budget(chosen.margin).ever}
    if chosen.limit is not None:
        budget["host"] = min(budget["host"], chosen.limit)
    if nvidia.driver_present():
        from oomproof.machine.gpu import Query  # only where a driver is

        totals = [
            card.total for card in Query().answer(_CARD_SECONDS).gpus if card.total and not card.unified
        ]
        limits = [held for held, _ in chosen.gpu_limit if held]
        if totals:
            budget["gpu"] = min([max(totals), *limits[:1]])
    return budget

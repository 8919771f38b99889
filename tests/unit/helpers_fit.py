"""A training made of arithmetic: what a virtual run of each batch would have measured."""

from __future__ import annotations

from oomproof.plans.plan import Plan
from oomproof.sizing.estimate import Estimate
from oomproof.sizing.host_figures import HostFigures
from oomproof.sizing.planning.fit_points import EXPANDABLE, NATIVE, CardNeed, Point
from oomproof.sizing.virtual_gpu.child_results import BatchFacts, Loader
from oomproof.units import GIB, MIB


class Training:
    """Bytes: ``fixed`` and ``a_sample`` on the card, an evaluation of its own size; ``runs`` are the plans that were measured."""

    def __init__(
        self,
        *,
        fixed: int = 2 * GIB,
        a_sample: int = 256 * MIB,
        evaluation: int = 0,
        card: bool = True,
        host: int = GIB,
    ) -> None:
        self.fixed, self.a_sample, self.evaluation, self.card, self.host = (
            fixed,
            a_sample,
            evaluation,
            card,
            host,
        )
        self.samples: int | None = None
        self.varies = self.persistent = False
        self.runs: list[Plan] = []

    def bytes_of(self, batch: int) -> int:
        return max(self.fixed + batch * self.a_sample, self.evaluation)

    def measure(self, plan: Plan) -> Point:
        self.runs.append(plan)
        batch = int(plan.get("batch") or 0)
        workers = int(plan.get("workers") or 0)
        size = self.bytes_of(batch)
        ahead = int(plan.get("prefetch") or 2)
        loaders = (Loader(workers, ahead, batch * MIB),) if workers else ()
        host = HostFigures(
            {"process": self.host, "loader workers": workers * 100 * MIB, "shared-memory queue": (ahead * workers + 1) * batch * MIB if workers else 0},
            loaders, 100 * MIB, self.card,
        )  # fmt: skip
        if not self.card:
            host = HostFigures({**host.parts, "activations": size}, loaders, 100 * MIB)
        phases = {"train": min(size, self.fixed + batch * self.a_sample)}
        if self.evaluation:
            phases["eval"] = self.evaluation
        needs = {}
        if self.card:
            spread = Estimate(size * 95 // 100, size, size * 105 // 100, {})
            needs = {
                NATIVE: CardNeed(spread, size * 98 // 100),
                EXPANDABLE: CardNeed(spread, size * 97 // 100),
            }
        return Point(
            batch, needs, host, phases if self.card else {}, BatchFacts(), samples=self.samples, varies=self.varies, persistent=self.persistent
        )  # fmt: skip

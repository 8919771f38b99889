"""An hour of bench/soak.py: the machine's guard on a simulated machine does not grow, and does not talk all the time."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from oomproof.guard.machine_guard import MachineGuard


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    folder = Path(__file__).parents[3] / "bench"
    sys.path.insert(0, str(folder))  # for what the benchmarks share
    try:
        spec = importlib.util.spec_from_file_location("soak", folder / "soak.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules["soak"] = module
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(folder))
    return module


@pytest.mark.long  # twenty seconds; bench/soak.py is the whole of it
def test_an_hour_leaves_nothing_behind(bench: ModuleType) -> None:
    seen = bench.soak(1.0, seed=3, parts=0.125)
    assert len(seen.hours) == 8 and seen.growth_kib < 32, seen.hours
    assert seen.descriptors[1] <= seen.descriptors[0] and seen.counts["pause files left"] == 0
    assert not [kind for kind in seen.kinds if kind.startswith("trouble")], seen.kinds
    assert sum(hour.messages for hour in seen.hours) <= 72, "twelve in ten minutes at most"


def test_a_guard_that_forgets_nothing_is_seen(bench: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative: a few hundred bytes at each look."""
    step = MachineGuard.step

    def leaks(self: MachineGuard, t: float) -> float:
        hoard.append(self._reader.read(t))
        return step(self, t)

    hoard: list[object] = []
    monkeypatch.setattr(MachineGuard, "step", leaks)
    assert bench.soak(0.25, seed=3, parts=0.0625).growth_kib > 32

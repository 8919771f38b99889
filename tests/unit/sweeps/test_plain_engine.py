"""Grid and random without Optuna: every point once, ranges kept, the same after a kill."""

from __future__ import annotations

import subprocess
import sys

from oomproof.sweeps.optuna_engine import PlainEngine
from oomproof.sweeps.search_space import Parameter, SearchSpace, key_of, parse_param

HIDDEN = "import sys; sys.modules['optuna'] = None; from oomproof.cli.main import main; sys.exit(main(sys.argv[1:]))"


def test_a_grid_once_each() -> None:
    space = SearchSpace((parse_param("a=1,2"), parse_param("b=1..3")), "grid")
    tried: list[str] = []
    while (point := PlainEngine(space, 1).ask(len(tried) + 1, set(tried))) is not None:
        tried.append(key_of(point))
    assert tried == [key_of(point) for point in space.grid()]


def test_by_chance_within_the_ranges_and_the_same_again() -> None:
    space = SearchSpace(
        (
            parse_param("lr=1e-5..1e-3:log"), parse_param("n=2..20:step=6"), parse_param("w=16..512:log"), parse_param("o=a,b"),
            parse_param("d=0.0..0.5:step=0.25"), Parameter("x", "normal", (), 0.0, 1.0),
        ),
        "random", trials=50,
    )  # fmt: skip
    points = [PlainEngine(space, 3).ask(number, set()) for number in range(1, 51)]
    assert points == [PlainEngine(space, 3).ask(number, set()) for number in range(1, 51)]
    assert points != [PlainEngine(space, 4).ask(number, set()) for number in range(1, 51)]
    rates = [float(point["lr"]) for point in points if point is not None]
    assert min(rates) < 3e-5 and max(rates) > 3e-4, "evenly by its logarithm"
    assert {point["n"] for point in points if point is not None} == {2, 8, 14, 20}
    assert {point["d"] for point in points if point is not None} == {0.0, 0.25, 0.5}
    assert all(
        16 <= point["w"] <= 512 and isinstance(point["w"], int) for point in points if point is not None
    )


def test_a_small_space_comes_to_its_end() -> None:
    space = SearchSpace((parse_param("a=1,2,3"),), "random")
    tried: set[str] = set()
    for number in range(1, 4):
        point = PlainEngine(space, 1).ask(number, tried)
        assert point is not None
        tried.add(key_of(point))
    assert PlainEngine(space, 1).ask(4, tried) is None


def test_without_optuna_only_bayes_is_refused() -> None:
    def sweep(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", HIDDEN, "sweep", *words, "--", "true", "{a}"]
        return subprocess.run(command, capture_output=True, text=True, timeout=120)

    refused = sweep("--param", "a=0.1..0.9", "--trials", "2", "--metric", "loss")
    assert (
        refused.returncode == 2
        and "method bayes needs Optuna" in refused.stderr
        and "oomproof[sweep]" in refused.stderr
    )
    done = sweep("--param", "a=0.1..0.9", "--trials", "2", "--method", "random")
    assert done.returncode == 0 and "2 of 2 trials: 2 done" in done.stdout, done.stderr

"""What the guard does in each situation, and when, is what it did when decisions.json was recorded.

Situations of many looks take most of the time: they are `long`, run by `make bench`.

A change of policy that is meant: `python tests/unit/guard/test_decisions.py` records anew; read the difference.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from simulated_guard import simulate
from situations import every_situation

RECORDED = Path(__file__).parent / "decisions.json"
SITUATIONS = dict(every_situation())
DECISIONS = json.loads(RECORDED.read_text())
MANY_LOOKS = 1200


def _weighed(name: str) -> object:
    looks = DECISIONS.get(name, {}).get("looks", 0)
    return pytest.param(name, marks=pytest.mark.long) if looks > MANY_LOOKS else name


def test_every_situation_was_recorded() -> None:
    assert DECISIONS.keys() == SITUATIONS.keys()


@pytest.mark.parametrize("name", [_weighed(name) for name in SITUATIONS])
def test_the_guard_does_what_it_did(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert simulate(SITUATIONS[name], monkeypatch) == DECISIONS[name]


if __name__ == "__main__":
    with pytest.MonkeyPatch.context() as patch:
        results = {name: simulate(given, patch) for name, given in SITUATIONS.items()}
    lines = [f"{json.dumps(name)}: {json.dumps(result)}" for name, result in results.items()]
    RECORDED.write_text("{\n" + ",\n".join(lines) + "\n}\n")

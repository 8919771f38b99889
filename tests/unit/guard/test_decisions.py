"""What the guard does in each situation, and when, is what it did when decisions.json was recorded.

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


@pytest.fixture(scope="module")
def recorded() -> dict[str, object]:
    found: dict[str, object] = json.loads(RECORDED.read_text())
    return found


def test_every_situation_was_recorded(recorded: dict[str, object]) -> None:
    assert recorded.keys() == SITUATIONS.keys()


@pytest.mark.parametrize("name", SITUATIONS)
def test_the_guard_does_what_it_did(
    name: str, recorded: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert simulate(SITUATIONS[name], monkeypatch) == recorded[name]


if __name__ == "__main__":
    with pytest.MonkeyPatch.context() as patch:
        results = {name: simulate(given, patch) for name, given in SITUATIONS.items()}
    lines = [f"{json.dumps(name)}: {json.dumps(result)}" for name, result in results.items()]
    RECORDED.write_text("{\n" + ",\n".join(lines) + "\n}\n")

"""Whom a census asks: the process that trains, or the one that holds far more."""

from __future__ import annotations

import pytest

from oomproof.runner.census_watch import whom_to_ask

MIB = 1 << 20


@pytest.mark.parametrize(
    ("held", "speaker", "asked"),
    [
        ({}, 5, None),
        ({5: 300 * MIB, 6: 310 * MIB}, 5, 5),
        ({5: 300 * MIB, 6: 900 * MIB}, 5, 6),  # rank 1 leaks: rank 0 said "nothing large has a name"
        ({5: 20 * MIB, 6: 60 * MIB}, 5, 5),
        ({4: 50 * MIB, 6: 900 * MIB}, None, 6),  # nobody trains yet
        ({4: 50 * MIB, 6: 900 * MIB}, 5, 6),  # the one that trains does not answer
    ],
)
def test_whom_to_ask(held: dict[int, int], speaker: int | None, asked: int | None) -> None:
    assert whom_to_ask(held, speaker) == asked

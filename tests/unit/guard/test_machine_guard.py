"""How often the guard of the machine warns. What it does: tests/incidents/test_machine_guard.py."""

from __future__ import annotations

import pytest

from oomproof.guard.machine_guard import may_warn
from oomproof.guard.view import JobKey

FIRST, SECOND = (30, 1), (31, 2)


@pytest.mark.parametrize(
    ("t", "who", "warned", "expected"),
    [
        (100.0, None, {}, True),
        (100.0, FIRST, {}, True),
        (110.0, FIRST, {FIRST: 100.0}, False),
        (110.0, SECOND, {FIRST: 100.0}, False),  # no storm
        (121.0, SECOND, {FIRST: 100.0}, True),
        (121.0, FIRST, {FIRST: 100.0}, False),
        (121.0, None, {FIRST: 100.0}, False),
        (121.0, FIRST, {None: 100.0}, True),
        (130.0, FIRST, {SECOND: 100.0, None: 115.0}, False),
    ],
)
def test_each_job_once_and_nobody_too_soon_after_another(
    t: float, who: JobKey | None, warned: dict[JobKey | None, float], expected: bool
) -> None:
    assert may_warn(t, who, warned) is expected

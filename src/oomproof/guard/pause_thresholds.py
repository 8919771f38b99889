"""How deep into the floor a job may go that has its turn while the others are paused, and when a job that takes nothing is ended beside
it. Both in one place: a turn that reached the line at which somebody else dies would be no turn."""

from __future__ import annotations

# So many parts of the floor are left to the one that runs: at its first turn, and later. The same for runs and for jobs that were
# not started by us: who waits longest would else never get what the others may take.
PARTS = (2, 4, 8)
_LAST = 2 * PARTS[-1]
# Of the present growth. Less than a pause comes before its line (detect_pause.PAUSE_REACTION_SECONDS), so that the pause is first.
_SECONDS_LEFT = 0.2


def turn_floor(floor: int, turns: int) -> int:
    """The floor of one that had so many turns."""
    return floor // PARTS[min(turns, len(PARTS) - 1)]


def line_beside_a_turn(floor: int, shrink: float) -> float:
    """At so much left a job that takes nothing is ended while another one has its turn."""
    return max(floor / _LAST, min(floor / 2, shrink * _SECONDS_LEFT))

"""Where in the training the deaths sit: at one step, at multiples of an interval, at epoch ends. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

from oomproof.diagnosis.coincidence import at_least, range_within
from oomproof.diagnosis.pattern_facts import Ending, Gaps, Statement, all_deaths, excluded, moments, tied
from oomproof.evidence import run_settings
from oomproof.records import replace

_NAMES = {
    "accumulation": "optimizer steps",
    "eval": "evaluations",
    "save": "checkpoints",
    "log": "log lines",
}
_NEAR = 8  # from this interval on, one step beside a multiple counts: the last line printed may be one behind
_EDGE = 0.02  # of an epoch


def step_patterns(
    deaths: Sequence[Ending], intervals: Mapping[str, int], untested: list[tuple[str, str]]
) -> list[Statement]:
    steps = [death.step for death in deaths if death.step is not None and death.step > 0]
    if len(steps) < 2:
        untested.append(("steps", "fewer than two deaths tell their step"))
        return _epoch_ends(deaths, untested)
    statements = [_one_step(deaths, steps)]
    tested = {kind: number for kind, number in intervals.items() if kind != "log"}
    resolution = _resolution(steps, intervals.get("log"))
    for kind, interval in tested.items():
        statement = _multiples(kind, interval, steps, resolution, len(tested))
        if _counted_anew(deaths, interval) and statement.found != "open":
            text = f"{statement.text}; counted from the start of each epoch, which the interval may not be"
            statement = replace(statement, text=text, strength="weak")
        statements.append(statement)
    if not tested:
        untested.append(
            (
                "accumulation, eval and save intervals",
                "none is in the settings; name them, as in --interval eval=50",
            )
        )
    common = math.gcd(*steps)
    if common > 1 and len(set(steps)) >= 3 and resolution == 1 and common not in tested.values():
        chance = at_least(len(steps), len(steps), 1 / common)
        text = f"all steps are multiples of {common}; that may be how often the log prints, not when the job dies"
        statements.append(Statement("steps", "open", text, chance, "weak"))
    statements += _epoch_ends(deaths, untested)
    return statements


def _counted_anew(deaths: Sequence[Ending], interval: int) -> bool:
    """Whether the steps seem to begin anew in each epoch, while the interval runs on over its end."""
    epochs = {death.epoch for death in deaths if death.epoch is not None}
    whole = all(float(epoch).is_integer() for epoch in epochs)
    return len(epochs) > 1 and whole and any(death.total and death.total % interval for death in deaths)


def _resolution(steps: Sequence[int], log: int | None) -> int:
    """How far behind the last printed step the death may lie."""
    return log if log and all(step % log == 0 for step in steps) else 1


def _one_step(deaths: Sequence[Ending], steps: Sequence[int]) -> Statement:
    low, high = min(steps), max(steps)
    span = max([high, *(death.total for death in deaths if death.total)])
    if high - low <= max(1, high // 50):
        chance = range_within((high - low + 1) / span, len(steps))
        where = f"step {low}" if low == high else f"steps {low} to {high}"
        text = f"{all_deaths(len(steps))} sit at {where} (of {span} seen)"
        return tied("one step", text + _by_accident(chance), chance)
    listed = _listed(steps)
    text = f"not at one step: {listed}, spread over {high - low} steps"
    # two lone steps far apart refute "one step" as surely as ten
    return excluded("one step", text, len(set(steps)) - 1)


def _multiples(kind: str, interval: int, steps: Sequence[int], resolution: int, tries: int) -> Statement:
    name = _NAMES.get(kind, kind)
    topic = f"{name} (every {interval})"
    if resolution >= interval:
        text = f"{name} (every {interval}): cannot be told, the log prints only every {resolution} steps"
        return Statement(topic, "open", text)
    exact = [step for step in steps if step % interval == 0]
    near = [step for step in steps if _near(step, interval, resolution)]
    share = min(1.0, _width(interval, resolution) / interval)
    chance = at_least(len(near), len(steps), share)
    residues = {step % interval for step in steps}
    if len(near) == len(steps) or chance * tries < 0.05:
        at = "at" if len(exact) == len(near) else "at or next to"
        counted = "all" if len(near) == len(steps) else f"{len(near)} of {len(steps)}"
        text = f"{counted} deaths sit {at} multiples of {interval}, the {name}: {_listed(near)}"
        if resolution == 1 and math.gcd(*steps) % interval == 0:
            text += "; unless the log prints only then"
        return tied(topic, text + _by_accident(min(1.0, chance * tries)), chance, tries)
    if len(residues) == 1:
        offset = residues.pop()
        chance = (1 / interval) ** (len(steps) - 1)
        text = f"all deaths sit {offset} steps after a multiple of {interval} ({name}): {_listed(steps)}"
        return tied(topic, text + _by_accident(min(1.0, chance * tries)), chance, tries)
    off = [step for step in steps if step not in near]
    clear = max(off, key=lambda step: min(step % interval, interval - step % interval))  # farthest from any
    text = f"not tied to {name}: {clear} is no multiple of {interval} ({clear / interval:.4g} × {interval})"
    others = [step for step in off if step != clear]
    if others:
        text += f", nor {'is' if len(others) == 1 else 'are'} {_listed(others)}"
    if exact:
        text += f"; {_listed(exact)} {'is' if len(exact) == 1 else 'are'}"
    beside = [step for step in near if step not in exact]
    if beside:
        text += f"; {_listed(beside)} {'stands' if len(beside) == 1 else 'stand'} beside one"
    if near:
        text += f"; {len(near)} or more of {len(steps)} so near come by accident {chance:.0%} of the time"
    return excluded(topic, text, len(off), chance)


def _near(step: int, interval: int, resolution: int) -> bool:
    if resolution > 1:
        return -step % interval <= resolution
    return step % interval == 0 or (interval >= _NEAR and step % interval in (1, interval - 1))


def _width(interval: int, resolution: int) -> int:
    """How many of ``interval`` residues count as near."""
    if resolution > 1:
        return resolution + 1
    return 3 if interval >= _NEAR else 1


def _epoch_ends(deaths: Sequence[Ending], untested: list[tuple[str, str]]) -> list[Statement]:
    parts = [part for death in deaths if (part := _part_of_epoch(death)) is not None]
    if len(parts) < 2:
        untested.append(("epoch ends", "fewer than two deaths tell how far into an epoch they were"))
        return []
    ends = [part for part in parts if part >= 1 - _EDGE or part <= _EDGE / 2]
    chance = at_least(len(ends), len(parts), 1.5 * _EDGE)
    if len(ends) == len(parts) or (chance < 0.05 and len(ends) >= 2):
        text = f"{len(ends)} of {len(parts)} deaths sit at the end of an epoch"
        return [tied("epoch ends", text + _by_accident(chance), chance)]
    listed = ", ".join(f"{part:.0%}" for part in sorted(parts) if part not in ends)
    text = f"not tied to epoch ends: {len(parts) - len(ends)} of {len(parts)} died inside one (at {listed})"
    return [excluded("epoch ends", text, len(parts) - len(ends), chance)]


def _part_of_epoch(ending: Ending) -> float | None:
    if ending.epoch is not None and not float(ending.epoch).is_integer():
        return ending.epoch % 1.0
    per_epoch = run_settings.steps_per_epoch(ending.settings)
    if per_epoch and ending.step is not None:
        return (ending.step % per_epoch) / per_epoch
    # a bar beside a whole epoch's number counts the batches of that epoch
    if ending.epoch is not None and ending.total and ending.step is not None and ending.step <= ending.total:
        return ending.step / ending.total
    return None


def gaps(deaths: Sequence[Ending], intervals: Mapping[str, int]) -> Gaps:
    batches = {batch for death in deaths if (batch := run_settings.batch_size(death.settings))}
    return Gaps(
        tuple((later - earlier) / 86400 for earlier, later in pairwise(moments(deaths))),
        tuple(death.step for death in deaths if death.step is not None),
        batches.pop() if len(batches) == 1 else None,  # runs of different batches have no common count
        intervals.get("accumulation"),
    )


def _listed(steps: Sequence[int], most: int = 8) -> str:
    words = [str(step) for step in sorted(set(steps))]
    return ", ".join(words[:most]) + (f" and {len(words) - most} more" if len(words) > most else "")


def _by_accident(chance: float) -> str:
    return f" (by accident: {percent(chance)})"


def percent(chance: float) -> str:
    return f"{chance:.0%}" if chance >= 0.01 else f"{chance:.1%}" if chance >= 0.001 else "under 0.1%"

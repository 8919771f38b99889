"""In what state the deaths find the job: memory, uptime, device, phase, cause, and how regularly they come. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from oomproof.diagnosis.coincidence import alike_lifetimes
from oomproof.diagnosis.pattern_facts import Ending, Statement, all_deaths, excluded, moments, tied
from oomproof.diagnosis.pattern_steps import percent
from oomproof.units import format_duration, format_size, format_span

_ALIKE = 0.1  # spread over the middle value up to which levels and times count as equal
_AMPLE = 0.1  # of what the job held: less left than that is a full machine


def state_patterns(deaths: Sequence[Ending], untested: list[tuple[str, str]]) -> list[Statement]:
    return [
        *_memory(deaths, untested),
        *_uptime(deaths, untested),
        *_one_of(deaths, "device", [death.device for death in deaths], "on"),
        *_one_of(
            deaths, "phase", [None if death.phase == "unknown" else death.phase for death in deaths], "in"
        ),
        *_rhythm(deaths, untested),
    ]


def in_days(seconds: float) -> str:
    return f"{seconds / 86400:.1f} days" if seconds >= 86400 else format_duration(seconds)


def _middle(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]


def _memory(deaths: Sequence[Ending], untested: list[tuple[str, str]]) -> list[Statement]:
    known = [death.memory for death in deaths if death.memory is not None]
    trends = [memory.growing for memory in known if memory.growing is not None]
    held = [memory.held for memory in known if memory.held]
    statements = []
    if len(trends) < 2:
        reason = "fewer than two deaths have a recording that is long enough"
        if not known:
            reason = "fewer than two deaths have a recording; run the next ones with: oomproof run -- CMD"
        untested.append(("growing or constant memory", reason))
    else:
        growing = sum(trends)
        rates = [memory.rate for memory in known if memory.growing]
        if growing == len(trends):
            rate = format_size(_middle(rates) * 3600)
            # a coin for each: growth and rest are taken as equally likely beforehand
            statements.append(
                tied(
                    "memory",
                    f"memory was growing at {all_deaths(growing)}, by {rate} an hour (median)",
                    0.5 ** len(trends),
                )
            )
        elif growing == 0:
            text = f"not a leak that was still growing: memory was constant at {all_deaths(len(trends))}"
            statements.append(excluded("memory growth", text, len(trends)))
        else:
            text = f"memory was growing at {growing} of {len(trends)} deaths and constant at the others"
            statements.append(Statement("memory", "open", text))
    if len(held) >= 2:
        low, high = min(held), max(held)
        alike = (high - low) <= _ALIKE * _middle(held)
        levels = format_span(format_size(low), format_size(high))
        if alike:
            text = f"all deaths found the job at one level of memory: {levels}, as at a limit"
            statements.append(Statement("memory level", "open", text))
        else:
            text = f"not at one level of memory: it held {levels}"
            statements.append(excluded("memory level", text, len(held) - 1))
    available = [memory.available for memory in known if memory.available is not None]
    if len(available) >= 2 and len(held) == len(available) and min(available) > _AMPLE * max(held):
        text = f"not a full machine: at least {format_size(min(available))} was available at every death"
        if any(
            memory.headroom is not None and memory.headroom <= _AMPLE * (memory.held or 0) for memory in known
        ):
            text += "; but the job's own limit was near"
        statements.append(excluded("memory shortage", text, len(available)))
    return statements


def _uptime(deaths: Sequence[Ending], untested: list[tuple[str, str]]) -> list[Statement]:
    times = [death.uptime for death in deaths if death.uptime is not None and death.uptime > 0]
    if len(times) < 2:
        untested.append(("equal uptime", "fewer than two deaths tell how long the run had lasted"))
        return []
    low, high = min(times), max(times)
    lasted = format_span(format_duration(low), format_duration(high))
    if high - low <= _ALIKE * _middle(times):
        chance = alike_lifetimes(low, high, sum(times) / len(times), len(times))
        text = f"all died after about the same time: {lasted}"
        return [tied("uptime", f"{text} (by accident: {percent(chance)})", chance)]
    text = f"not tied to the time since the start: {lasted}"
    return [excluded("uptime", text, len(times) - 1)]


def _one_of(deaths: Sequence[Ending], topic: str, values: Sequence[str | None], word: str) -> list[Statement]:
    counts = Counter(value for value in values if value is not None)
    told = sum(counts.values())
    if told < 2:
        return []
    if len(counts) == 1:
        (value,) = counts
        # without runs that lived elsewhere this is no test: the job may know no other device or phase
        return [Statement(topic, "open", f"{all_deaths(told)} with a known {topic} were {word} {value}")]
    listed = ", ".join(f"{value} {count}" for value, count in counts.most_common())
    fewest = min(counts.values())
    return [excluded(topic, f"not tied to one {topic}: {listed}", min(told - 1, fewest + 1))]


def _rhythm(deaths: Sequence[Ending], untested: list[tuple[str, str]]) -> list[Statement]:
    between = [later - earlier for earlier, later in pairwise(moments(deaths))]
    if len(between) < 2:
        untested.append(("a regular interval in days", "it takes three deaths, and a date for each"))
        return []
    low, high, middle = min(between), max(between), _middle(between)
    spread = f"{format_span(in_days(low), in_days(high))} apart"
    if middle > 0 and high - low <= 0.3 * middle:
        chance = alike_lifetimes(low, high, sum(between) / len(between), len(between))
        text = f"deaths come at a regular interval, every {in_days(middle)} ({spread})"
        return [tied("days between", f"{text} (by accident: {percent(chance)})", chance)]
    return [Statement("days between", "open", f"no regular interval: {spread}")]

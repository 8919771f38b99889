"""The memory chart of the crash page: SVG layers on one time axis, labels as HTML so that they stay readable.

Paths are drawn once, for the whole run; a window is only a ``viewBox``. So the page shows the last ten minutes
without a script, and the script zooms by changing four numbers."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from html import escape

from oomproof.evidence.case_file import Growth
from oomproof.recording.series import told_kind, told_text
from oomproof.reports.chart import clock_spans, ticks
from oomproof.reports.story import Story
from oomproof.reports.timeline import POINTS, GpuPoint, HostPoint, Mark, Timeline, drawn
from oomproof.units import GIB, MIB, TIB, format_duration, format_rate, format_size, format_time

_SHORT = 3600.0  # seconds: below this, hundredths of a second can be told apart
_EVENTS = 40
_FEWEST = 4  # samples that make a curve
_NOTICED = 0.02  # of the time: less pressure is no news
_CLOSE = 0.05  # of the width: nearer marks share one label
_LAST_LABEL = 0.92  # of the width: behind it a label centred on its moment leaves the card
_LAYERS = (
    ("main", "main process"),
    ("workers", "workers"),
    ("other", "other processes"),
    ("shared", "shared memory"),
    ("swap", "in swap"),
    ("cache", "page cache (given back when needed)"),
)


def chart(story: Story) -> str:
    """The whole figure: small for an end that is not about memory, none of a few samples, which draw no line."""
    timeline = story.timeline
    if len(timeline.host) < _FEWEST and not timeline.gpus:
        return ""
    events = timeline.events[-_EVENTS:]
    small = not story.may_be_memory
    parts = [_host(story, events)] if timeline.host else []
    parts += [_gpu(index, series, timeline, events) for index, series in timeline.gpus.items() if series]
    if not small:
        parts += [_machine(timeline, events), _swap(timeline, events), _pressure(timeline, events)]
    phases = _phases(timeline)
    axis = _axis(timeline)
    longer = timeline.begin < timeline.window
    about = "The last ten minutes" if longer else _whole(timeline)
    return (
        f'<figure id="chart"{" class=small" if small else ""} data-begin="{timeline.begin:.2f}" data-window="{timeline.window:.2f}" '
        f'data-scale="{_scale(timeline)}" data-clock="{timeline.end_wall:.2f}" data-zones="{_zones(timeline)}">'
        f'<div class="controls" hidden><button type="button" data-show="window">{"Last 10 minutes" if longer else "Whole run"}</button>'
        + ('<button type="button" data-show="all">Whole run</button>' if longer else "")
        + '<span class="hint">drag to zoom, double-click to go back; keys: + − ← → 0</span></div>'
        f'<p class="about">{about}</p>'
        f"{''.join(parts)}{phases}{axis}{_overview(timeline) if longer else ''}"
        f'<p class="readout" aria-live="polite"></p>{_event_list(events, timeline)}{_note(story)}'
        f'</figure><script type="application/json" id="samples">{_samples(timeline)}</script>'
    )


def _whole(timeline: Timeline) -> str:
    return f"The whole {'run' if timeline.is_whole else 'recording'}, {format_duration(-timeline.begin)}"


# --- the plots ----------------------------------------------------------------------------------------------


def _host(story: Story, events: Sequence[Mark]) -> str:
    timeline = story.timeline
    points = drawn(timeline.host, timeline)
    used = [name for name, _ in _LAYERS if any(getattr(point, name) for point in points)]
    peak = max(_sum(point, used) for point in points)
    limit = story.limit if story.limit and story.limit < 4 * max(peak, 1) else None
    top = max(peak, limit or 0, 1) * 1.06
    layers = [
        _area(name, [(p.t, _sum(p, used[: number + 1])) for p in points], top, timeline)
        for number, name in enumerate(used)
    ]
    drawing = "".join(reversed(layers))  # the highest sum first, the lower ones over it
    extra, labels = "", ""
    if limit:
        extra = _line("limit", timeline, limit / top)
        labels = f'<span class="tag limit" style="bottom:{100 * limit / top:.2f}%">limit {format_size(limit)}</span>'
    if growth := story.verdict.growth:
        extra += _trend(points, growth, top, timeline)
        labels += f'<span class="tag growth">grew by {format_rate(growth.bytes_per_second)}</span>'
    if not story.verdict.kind.good:
        x = -0.002 * timeline.window * _scale(timeline)
        extra += f'<line class="end" x1="{-x:.1f}" x2="{-x:.1f}" y1="0" y2="1000"/>'
        clock = format_time(timeline.end_wall, date=False, zone=False)
        labels += f'<span class="tag end">end {clock}</span>'
    legend = "".join(f'<li class="{name}">{text}</li>' for name, text in _LAYERS if name in used)
    caption = "Host memory of the job"
    return _plot("host", caption, legend, top, drawing + extra, labels, timeline, events)


def _trend(points: Sequence[HostPoint], growth: Growth, top: float, timeline: Timeline) -> str:
    """The growth as a straight line through the middle of its points of the last ten minutes, as far as it lies on the
    chart."""
    rate = growth.bytes_per_second
    inside = [point for point in points if point.t >= max(timeline.window, -growth.seconds)] or points[-1:]
    # where the line stands at the end
    middle = sorted(point.use - rate * point.t for point in inside)[len(inside) // 2]
    begin = max(inside[0].t, -middle / rate)
    scale = _scale(timeline)
    y = [f"{1000 - 1000 * (middle + rate * t) / top:.1f}" for t in (begin, 0.0)]
    return f'<line class="growth" x1="{begin * scale:.0f}" x2="0" y1="{y[0]}" y2="{y[1]}"/>'


def _machine(timeline: Timeline, events: Sequence[Mark]) -> str:
    """The machine's RAM on the same axis: what this job held of it, what everything else did, what was available."""
    points = drawn(timeline.machine, timeline)
    top = float(max((point.total for point in points), default=0))
    if len(points) < _FEWEST or not top:
        return ""
    host, times = timeline.host, [point.t for point in timeline.host]

    def own(t: float) -> int:
        return host[max(0, bisect_right(times, t + 0.5) - 1)].use if host else 0

    drawing = _area("others", [(p.t, p.use) for p in points], top, timeline)
    drawing += _area("job", [(p.t, min(p.use, own(p.t))) for p in points], top, timeline)
    legend = (
        '<li class="job">this job</li><li class="others">everything else</li><li class="free">available</li>'
    )
    for number, job in enumerate(timeline.unmanaged):
        drawing += _curve(f"u{number}", job.points, top, timeline)
        legend += f'<li class="u{number}">{escape(job.name)}, unmanaged, up to {format_size(job.peak)}</li>'
    return _plot(
        "machine", f"RAM of the machine, {format_size(top)}", legend, top, drawing, "", timeline, events
    )


def _swap(timeline: Timeline, events: Sequence[Mark]) -> str:
    points = drawn(timeline.machine, timeline)
    top = float(max((point.swap_total for point in points), default=0))
    used = [(point.t, max(0, point.swap_total - point.swap_free)) for point in points]
    if len(points) < _FEWEST or not any(size for _, size in used):
        return ""
    drawing = _area("swap", used, top, timeline)
    return _plot("strip", f"Swap in use, of {format_size(top)}", "", top, drawing, "", timeline, events)


def _pressure(timeline: Timeline, events: Sequence[Mark]) -> str:
    shares = [(point.t, point.stalled) for point in timeline.machine if point.stalled is not None]
    if len(shares) < _FEWEST or max(share for _, share in shares) < _NOTICED:
        return ""
    drawing = _area("pressure", shares, 1.0, timeline)
    caption = "Memory pressure: share of the time in which every task waited"
    return _plot("strip", caption, "", 1.0, drawing, "", timeline, events, ((0.0, "0"), (1.0, "100 %")))


def _gpu(index: int, points: Sequence[GpuPoint], timeline: Timeline, events: Sequence[Mark]) -> str:
    series = drawn(points, timeline)
    top = float(max(point.total for point in series))
    if any(point.job is not None for point in series):
        drawing = _area("others", [(p.t, p.used) for p in series], top, timeline)
        drawing += _area("job", [(p.t, min(p.used, p.job or 0)) for p in series], top, timeline)
        legend = '<li class="job">this job</li><li class="others">others and the driver</li>'
    else:
        drawing = _area("others", [(p.t, p.used) for p in series], top, timeline)
        legend = '<li class="others">in use; the driver does not say by whom</li>'
    legend += '<li class="free">free</li>'
    caption = f"GPU {index}, {format_size(top)}"
    return _plot("gpu", caption, legend, top, drawing, "", timeline, events)


def _plot(
    kind: str, caption: str, legend: str, top: float, drawing: str, labels: str, timeline: Timeline,
    events: Sequence[Mark], ticks: Sequence[tuple[float, str]] = (),
) -> str:  # fmt: skip
    scale = _scale(timeline)
    low = kind == "strip"
    ticks = ticks or [
        (tick, format_size(tick) if tick else "0") for tick in ((0, top) if low else _size_ticks(top))
    ]
    grid = "".join(_line("grid", timeline, tick / top) for tick, _ in ticks if tick)
    lines = "".join(
        f'<line class="event {_slug(mark.kind)}" x1="{mark.t * scale:.0f}" x2="{mark.t * scale:.0f}" y1="0" y2="1000"/>'
        for mark in events
    )
    sizes = "".join(f'<span style="bottom:{100 * tick / top:.2f}%">{words}</span>' for tick, words in ticks)
    marks = "".join(_marks(events, timeline)) if kind == "host" or not timeline.host else ""
    return (
        f'<div class="legend"><b>{escape(caption)}</b><ul>{legend}</ul></div>'
        f'<div class="plot {kind}"><div class="sizes">{sizes}</div><div class="area">'
        f'<svg class="zoom" viewBox="{_view(timeline)}" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(caption)} over time">{grid}{drawing}{lines}</svg>{labels}{marks}</div></div>'
    )


def _area(name: str, points: Sequence[tuple[float, float]], top: float, timeline: Timeline) -> str:
    """A filled curve; where samples are missing for a minute or more, it is broken and not bridged."""
    scale, path, open_at = _scale(timeline), [], None
    gap = max(60.0, -timeline.begin / 200)
    last: float | None = None
    for t, value in points:
        x, y = round(t * scale), f"{1000 - 1000 * value / top:.1f}".removesuffix(".0")
        if last is None or t - last > gap:
            if open_at is not None and last is not None:
                path.append(f"V1000H{open_at}Z")
            path.append(f"M{x} 1000V{y}")
            open_at = x
        else:
            path.append(f"L{x} {y}")
        last = t
    if open_at is not None:
        path.append(f"V1000H{open_at}Z")
    return f'<path class="{name}" d="{"".join(path)}"/>'


def _curve(name: str, points: Sequence[tuple[float, int]], top: float, timeline: Timeline) -> str:
    """A line without what lies below it; a single look holds to the end."""
    scale = _scale(timeline)
    places = [f"{t * scale:.0f} {1000 - 1000 * min(value, top) / top:.1f}" for t, value in points]
    return f'<path class="{name}" d="M{"L".join(places)}{"H0" if len(places) == 1 else ""}"/>'


def _line(name: str, timeline: Timeline, share: float) -> str:
    y = f"{1000 - 1000 * share:.1f}"
    return f'<line class="{name}" x1="{timeline.begin * _scale(timeline):.0f}" x2="0" y1="{y}" y2="{y}"/>'


def _overview(timeline: Timeline) -> str:
    """The whole run, small, with the window marked on it."""
    begin = timeline.begin
    series: list[tuple[float, float]]
    if timeline.host:
        series = [(point.t, point.use) for point in drawn(timeline.host, timeline)]
    else:
        series = [(point.t, point.used) for point in drawn(next(iter(timeline.gpus.values())), timeline)]
    top = max(value for _, value in series) * 1.1 or 1
    left = 100 * (timeline.window - begin) / -begin
    return (
        f'<div class="overview"><p class="about">{_whole(timeline)}</p>'
        f'<div class="area"><svg viewBox="{begin * _scale(timeline):.0f} 0 {-begin * _scale(timeline):.0f} 1000" '
        f'preserveAspectRatio="none" role="img" aria-label="memory over the whole run">'
        f'{_area("main", series, top, timeline)}</svg><div class="window" style="left:{left:.2f}%;right:0"></div></div></div>'
    )


# --- time: axis, phases, events -----------------------------------------------------------------------------


def _axis(timeline: Timeline) -> str:
    begin, length = timeline.window, max(-timeline.window, 0.01)
    labels = [
        f'<span{" class=zone" if tick.zone else ""} style="left:{100 * (tick.t - begin) / length:.2f}%{_inside(tick.t, timeline)}">'
        f"{tick.text}{f'<br>{tick.zone}' if tick.zone else ''}</span>"
        for tick in ticks(timeline.end_wall, begin)
    ]
    zones = " zones" if len(clock_spans(timeline.end_wall, timeline.begin)) > 1 else ""
    return f'<div class="axis{zones}"><div class="area">{"".join(labels)}</div></div>'


def _inside(t: float, timeline: Timeline) -> str:
    """A label at the right end stands left of its moment, in the card."""
    last = t > timeline.window * (1 - _LAST_LABEL)
    return ";transform:translateX(-100%)" if last else ""


def _phases(timeline: Timeline) -> str:
    if not timeline.phases:
        return ""
    names = list(dict.fromkeys(span.name for span in timeline.phases))
    cells = []
    for span in timeline.phases[-400:]:
        steps = ""
        if span.last_step is not None:
            same = span.first_step in (None, span.last_step)
            steps = escape(f" {span.last_step}" if same else f" {span.first_step}–{span.last_step}")
        left, right = (_percent(t, timeline) for t in (span.begin, span.end))
        style, hidden = _between(left, right)
        text = escape(span.name) + f"<i>{steps}</i>"
        cells.append(
            f'<div class="phase p{names.index(span.name) % 5}" data-t="{span.begin:.2f}" data-u="{span.end:.2f}" '
            f'title="{escape(span.name)}{steps}" style="{style}"{hidden}>{text}</div>'
        )
    return f'<div class="phases"><div class="area">{"".join(cells)}</div></div>'


def _between(left: float, right: float) -> tuple[str, str]:
    outside = right <= 0 or left >= 100
    left, right = max(0.0, left), min(100.0, right)
    return f"left:{left:.2f}%;width:{max(0.0, right - left):.2f}%", " hidden" if outside else ""


def _marks(events: Sequence[Mark], timeline: Timeline) -> Iterable[str]:
    """Numbers over the event lines; where they would cover each other, one label for all of them."""
    at: float | None = None
    group: list[int] = []
    placed: list[tuple[float, list[int]]] = []
    for number, mark in enumerate(events, 1):
        left = _percent(mark.t, timeline)
        if at is not None and left - at < 100 * _CLOSE and (left < 0) == (at < 0):
            group.append(number)
            continue
        at, group = left, [number]
        placed.append((left, group))
    for left, numbers in placed:
        text = str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]}–{numbers[-1]}"
        hidden = " hidden" if left < 0 else ""
        yield f'<span class="mark" style="left:{left:.2f}%"{hidden}>{text}</span>'


def _event_list(events: Sequence[Mark], timeline: Timeline) -> str:
    if not events:
        return ""
    several = len(clock_spans(timeline.end_wall, timeline.begin)) > 1
    rows = "".join(
        f'<li data-t="{mark.t:.2f}"><time>{format_time(timeline.wall(mark.t), date=False, zone=several)}</time> '
        f'<b class="{_slug(mark.kind)}">{escape(told_kind(mark.kind))}</b> {escape(told_text(mark.kind, mark.text))}</li>'
        for mark in events
    )
    left_out = timeline.earlier_events + len(timeline.events) - len(events)
    more = f'<p class="note">{left_out} earlier events are not shown.</p>' if left_out > 0 else ""
    return f'<ol class="events">{rows}</ol>{more}'


def _note(story: Story) -> str:
    timeline = story.timeline
    words = []
    if (
        story.limit
        and story.limit_was_set
        and timeline.host
        and story.limit >= 4 * max(p.use for p in timeline.host)
    ):
        words.append(f"The limit of {format_size(story.limit)} lies far above and is not drawn.")
    sliced = timeline.begin < timeline.window and len(timeline.host) >= POINTS
    if sliced or len(timeline.host) > len(drawn(timeline.host, timeline)):
        words.append("Of each slice of time the highest sample is drawn.")
    if timeline.problem:
        words.append(f"The recording has a gap: {timeline.problem}.")
    return f'<p class="note">{escape(" ".join(words))}</p>' if words else ""


# --- numbers ------------------------------------------------------------------------------------------------


def _samples(timeline: Timeline) -> str:
    """What the script reads out under the pointer. ``<`` is written so that no text can end the script element."""
    names = [name for name, _ in _LAYERS]
    value = {
        "layers": dict(_LAYERS),
        "host": [
            [round(p.t, 2), *(getattr(p, name) for name in names)] for p in drawn(timeline.host, timeline)
        ],
        "gpus": {
            str(index): [[round(p.t, 2), p.used, p.total, p.job] for p in drawn(series, timeline)]
            for index, series in timeline.gpus.items()
        },
        "phases": [[round(s.begin, 2), s.name, s.last_step] for s in timeline.phases[-400:]],
        "events": [round(mark.t, 2) for mark in timeline.events[-_EVENTS:]],
    }
    return json.dumps(value, separators=(",", ":")).replace("<", "\\u003c")


def _size_ticks(top: float) -> list[int]:
    for unit in (MIB, GIB, TIB):
        for count in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512):
            if top / (unit * count) <= 5:
                step = unit * count
                return list(range(0, int(top) + 1, step))
    return [0]


def _sum(point: HostPoint, names: Sequence[str]) -> int:
    return sum(getattr(point, name) for name in names)


def _scale(timeline: Timeline) -> int:
    return 100 if -timeline.begin <= _SHORT else 10


def _view(timeline: Timeline) -> str:
    scale = _scale(timeline)
    return f"{timeline.window * scale:.0f} 0 {max(1.0, -timeline.window * scale):.0f} 1000"


def _percent(t: float, timeline: Timeline) -> float:
    return 100 * (t - timeline.window) / max(-timeline.window, 0.01)


def _zones(timeline: Timeline) -> str:
    """For the script: since when, seconds from UTC, name."""
    spans = clock_spans(timeline.end_wall, timeline.begin)
    return escape(json.dumps([[round(span.begin, 2), span.offset, span.zone] for span in spans]))


def _slug(kind: str) -> str:
    return kind if kind.isalpha() and kind.isascii() else "news"

"""What `oomproof size` prints: for each model or file what it takes, then whether it fits, and what to type next."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from oomproof.errors import USAGE, OomproofError
from oomproof.leaf.command_lines import short_name
from oomproof.printable import one_line
from oomproof.recording import spill_record
from oomproof.recording.run_folders import Run, to_type
from oomproof.recording.run_peak import figures_of
from oomproof.records import dataclass
from oomproof.reports.table_text import folded, table
from oomproof.sizing.card_constants import LOADING_PROCESS
from oomproof.sizing.data.load_cost import LoadCost, plural
from oomproof.sizing.estimate import Estimate, Sizing
from oomproof.sizing.fit_verdict import Fit, Place, fit
from oomproof.sizing.kv_sizes import KvCache
from oomproof.sizing.model_sizing import Loading, ModelSizing, Variant
from oomproof.units import GIB, MIB, format_exact, format_size

SCHEMA = 1
_KINDS = {"host": "RAM", "gpu": "GPU"}


@dataclass(frozen=True, slots=True)
class Comparison:
    """Bytes; ``measured`` None: not recorded."""

    kind: str
    low: int
    expected: int
    high: int
    measured: int | None

    @property
    def error(self) -> float | None:
        """Of the expected figure: above 0 is too much."""
        return (self.expected - self.measured) / self.measured if self.measured else None

    @property
    def verdict(self) -> str:
        if self.measured is None:
            return "not recorded"
        if self.measured > self.high:
            return f"above high by {format_size(self.measured - self.high)}"
        if self.measured < self.low:
            return f"below low by {format_size(self.low - self.measured)}"
        return "inside"

    def as_json(self) -> dict[str, Any]:
        return {
            "low_bytes": self.low,
            "expected_bytes": self.expected,
            "high_bytes": self.high,
            "measured_bytes": self.measured,
            "error": None if self.error is None else round(self.error, 4),
            "verdict": self.verdict,
        }


def compare(run: Run) -> list[Comparison]:
    predicted = run.info.get("predicted") or {}
    peaks = figures_of(run.attempt).peaks
    # --spill is no part of it
    own = None if peaks.use is None else max(0, peaks.use - spill_record.pinned(run.attempt))
    measured = {"host": own, "gpu": peaks.gpu}
    rows = []
    for kind in _KINDS:
        figures = predicted.get(kind) or {}
        if all(isinstance(figures.get(name), int) for name in ("low", "expected", "high")):
            rows.append(
                Comparison(kind, figures["low"], figures["expected"], figures["high"], measured[kind])
            )
    if not rows:
        raise OomproofError(
            f"{run.name} was not sized before it started",
            "oomproof run --need auto -- CMD sizes it, and records what it predicted",
            USAGE,
        )
    return rows


def as_json(run: Run, rows: list[Comparison]) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "run": run.id,
        "state": run.state(),
        "host": next((row.as_json() for row in rows if row.kind == "host"), None),
        "gpu": next((row.as_json() for row in rows if row.kind == "gpu"), None),
    }


def lines(run: Run, rows: list[Comparison], width: int) -> list[str]:
    cells = [["", "LOW", "EXPECTED", "HIGH", "MEASURED", "ERROR", ""]]
    for row in rows:
        measured = "–" if row.measured is None else format_size(row.measured)
        error = "" if row.error is None else f"{row.error:+.1%}".replace("%", " %").replace("-", "−")
        sizes = [format_size(size) for size in (row.low, row.expected, row.high)]
        cells.append([_KINDS[row.kind], *sizes, measured, error, row.verdict])
    title = f"{run.name}: {short_name(run.argv)}, predicted and measured{_how_far(run)}"
    return [title, "", *table(cells, width, right=(1, 2, 3, 4, 5), drop=(1, 3))]


def _how_far(run: Run) -> str:
    """What was measured of a run that did not come to its end is only a part."""
    if not run.exit():
        return " so far: it has not ended"
    if run.exit().get("code") != 0:
        return f"; it did not come to its end (oomproof why {to_type(run)})"
    return ""


_HEAD = 11
_FITS = ("fits", "close")


def model_block(model: ModelSizing, places: Sequence[Place], width: int) -> list[str]:
    lines = [one_line(_headline(model)), "", *_variants(model, places, width), ""]
    lines += _row("KV cache", _cache(model), width)
    for number, loading in enumerate(model.loadings):
        lines += _row("" if number else "loading", f"{_loaded(loading)}: {loading.call}", width)
    if model.training is not None:
        small, large = model.training
        lines += _row(
            "training",
            f"at least {format_size(small)} in bf16, {format_size(large)} in fp32 or with autocast: weights, gradients and "
            "AdamW's state, before any activations",
            width,
        )
    for note in model.notes:
        lines += _row("note", note, width)
    return lines


def file_block(path: str, cost: LoadCost, width: int) -> list[str]:
    lines = [one_line(f"{path}: {cost.format}, {cost.contents}, {format_size(cost.disk)} on disk")]
    lines += _row(
        "in RAM",
        f"{format_size(cost.peak)} at the peak, {format_size(cost.kept)} kept: {cost.usual} ({cost.basis})",
        width,
    )
    process = f"{format_size(LOADING_PROCESS.usual)} beside it with torch, {format_size(LOADING_PROCESS.low)} with numpy alone, at most {format_size(LOADING_PROCESS.high)}"
    lines += _row("process", process, width)
    lines += _row("more", f"oomproof data inspect {path}", width)
    return lines


def verdict_lines(fits: Sequence[Fit], width: int) -> list[str]:
    lines: list[str] = []
    for number, judged in enumerate(fits):
        lines += _row("" if number else "verdict", judged.sentence, width)
    return lines


def next_lines(name: str, host: Estimate | None, gpu: Estimate | None, fits: Sequence[Fit]) -> list[str]:
    """What to type: the start where it fits, on a card before RAM; the question where it does not."""
    cards = [judged for judged in fits if judged.place.kind == "gpu"]
    ram = next((judged for judged in fits if judged.place.kind == "ram"), None)
    here = ram is not None and ram.place.name == "this machine's RAM"
    lines = []
    if here and gpu is not None and any(judged.status in _FITS for judged in cards):
        lines = [
            "Next: start it under the guard, on the card:",
            f"  oomproof run --gpu-need {typed(gpu.high)} -- CMD",
        ]
    elif here and host is not None and ram is not None and ram.status in _FITS:
        lines = [
            "Next: start it under the guard, with its need:",
            f"  oomproof run --need {typed(host.high)} -- CMD",
        ]
    else:
        when = "ask again when memory is free:" if here else "on that machine ask:"
        need = f" --need {typed(host.high)}" if ram is not None and host is not None else ""
        need += f" --gpu-need {typed(gpu.high)}" if not need and gpu is not None else ""
        lines = [f"Next: {when}", f"  oomproof check{need}"]
    if ram is None or host is None:
        return lines
    return [
        *lines,
        "beside another job:",
        f"  oomproof check --together {_job_name(name)}={typed(host.high)},train=19G",
    ]


def typed(size: int) -> str:
    """A size to type, rounded up."""
    return f"{-(-size // MIB)}M" if size < 4 * GIB else f"{-(-size * 10 // GIB) / 10:g}G"


def _job_name(name: str) -> str:
    """As `check --together` takes it."""
    base = re.sub(r"[^\w.@+:-]", "", name.rstrip("/").rpartition("/")[2])
    return base.partition(".safetensors")[0].partition(".gguf")[0] or "model"


def _headline(model: ModelSizing) -> str:
    weights = model.weights
    types = [kind for kind, size in weights.by_type.items() if size > weights.bytes // 50][:3]
    count = weights.parameters
    words = [
        *([model.title] if model.title else []),
        f"{count / 1e9:.1f} billion parameters" if count >= 1e9 else f"{count / 1e6:.1f} million parameters",
        " and ".join(types),
        f"{format_size(weights.bytes)} in {plural(model.files, 'file')} ({weights.kind})",
    ]
    if model.adapter:
        words.append(f"an adapter of {format_size(model.adapter)}")
    return f"{model.name}: {', '.join(words)}"


def _variants(model: ModelSizing, places: Sequence[Place], width: int) -> list[str]:
    ram = next((place for place in places if place.kind == "ram"), None)
    card = max((place for place in places if place.kind == "gpu"), key=lambda place: place.now, default=None)
    rows = [["", "WEIGHTS", "IN RAM", "", "ON A GPU", ""]]
    for variant in model.variants:
        stored = ", as stored" if variant.stored else ""
        rows.append(
            [
                f"{variant.kind}{stored}",
                format_size(variant.weights),
                format_size(variant.host.expected),
                _short(ram, variant.host),
                format_size(variant.gpu.expected),
                _short(card, variant.gpu),
            ]
        )
    return table(rows, width, right=(1, 2, 4))


def _short(place: Place | None, estimate: Estimate) -> str:
    if place is None:
        return ""
    judged = fit(place, estimate)
    return {"fits": "fits", "close": "just fits"}.get(
        judged.status, f"short by {format_size(judged.short_by)}"
    )


def _cache(model: ModelSizing) -> str:
    cache, wanted = model.cache, model.wanted
    if not isinstance(cache, KvCache):
        return cache
    beams = f", {wanted.beams} beams" if wanted.beams > 1 else ""
    each = cache.size / max(1, wanted.context * wanted.batch * wanted.beams)
    most = f" to {format_size(cache.high)}" if cache.high > cache.size else ""
    return (
        f"{format_size(cache.size)}{most} in {wanted.kind}: context of {wanted.context:,} tokens, batch {wanted.batch}{beams} "
        f"({format_exact(each)} a token)"
    )


def _loaded(loading: Loading) -> str:
    if not loading.own:
        return f"{format_size(loading.mapped)} as pages of the file, which the kernel can take back"
    text = format_size(loading.own)
    return (
        f"{text}, with {format_size(loading.mapped)} of the file's pages beside it"
        if loading.mapped
        else text
    )


def _row(head: str, text: str, width: int) -> list[str]:
    return folded(head.rjust(_HEAD - 2) + "  ", text, width)


def smaller(model: ModelSizing, place: Place) -> list[tuple[str, Estimate]]:
    """The other types that are smaller than what is stored, the finest first."""

    def estimate(variant: Variant) -> Estimate:
        return variant.host if place.kind == "ram" else variant.gpu

    less = [variant for variant in model.variants[1:] if variant.weights < model.stored.weights]
    return [
        (variant.kind, estimate(variant)) for variant in sorted(less, key=lambda variant: -variant.weights)
    ]


def sizing_lines(sizing: Sizing, width: int) -> list[str]:
    """An estimate by itself: the table of its parts, its phases, where its peak is."""
    if sizing.refused:
        return folded("Not sized: ", sizing.refused, width)
    lines: list[str] = []
    for title, estimate in (("GPU", sizing.gpu), ("RAM", sizing.host)):
        if estimate is None:
            continue
        lines.append(
            f"{title}: {format_size(estimate.expected)} expected, {format_size(estimate.low)} to {format_size(estimate.high)}"
        )
        rows = [[f"  {name}", format_size(size)] for name, size in estimate.parts.items()]
        lines += table(rows, width, shrink={0: 20}, right=(1,)) if rows else []
        lines.append("")
    if sizing.peak:
        lines += [*_row("peak", sizing.peak, width), ""]
    if sizing.phases:
        kinds = [
            kind
            for kind in ("gpu", "host")
            if any(getattr(phase, kind) is not None for phase in sizing.phases)
        ]
        rows = [["  PHASE", *({"gpu": "GPU", "host": "RAM"}[kind] for kind in kinds), ""]]
        for phase in sizing.phases:
            sizes = [getattr(phase, kind) for kind in kinds]
            figures = [format_size(size) if size is not None else "" for size in sizes]
            rows.append([f"  {phase.name}", *figures, "" if phase.reached else "not reached"])
        lines += [*table(rows, width, right=range(1, len(kinds) + 1)), ""]
    lines += _row("basis", sizing.basis, width)
    for note in sizing.notes:
        lines += _row("note", note, width)
    return lines

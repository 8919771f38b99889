"""Puts what a calibrated card really took for each operation into the log of a virtual run, in place of the estimates there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from oomproof.records import replace
from oomproof.sizing import virtual_run
from oomproof.sizing.calibrated_card import CalibratedCard, signature_key
from oomproof.sizing.card_constants import ANY_CARD
from oomproof.sizing.virtual_run import VirtualRun
from oomproof.units import format_size

EMPTIED = (0, 0)  # an event: the allocator gave its cached segments back
_WORKSPACES = "workspaces"
_LIBRARIES = ("matrix_workspace", "matrix_workspace_backward")  # in the order in which a script comes to them


def applied(run: VirtualRun, card: CalibratedCard, search: bool = True) -> VirtualRun:
    """``result`` gets ``measured`` and ``unmeasured``: how many of its signatures the card's file has. ``search``: with what
    cudnn.benchmark takes when a convolution is met first."""
    signatures = run.result.signatures
    found = [card.signatures.get(signature_key(signature)) for signature in signatures]
    unknown = [signature for signature, measured in zip(signatures, found, strict=True) if measured is None]
    if not search:
        found = [
            _as_later(measured) if signature.get("flags", {}).get("benchmark") else measured
            for signature, measured in zip(signatures, found, strict=True)
        ]
    events, kinds, moved = _Rewriting(run, found, card.constants).rewritten()
    births = run.births + bytes(max(0, max((number for number, _ in events), default=0) - len(run.births)))
    result = replace(
        run.result,
        kinds=kinds,
        marks=[(2 * moved[min(at // 2, len(run.events))], name) for at, name in run.result.marks],
        step_ends=[moved[min(at, len(run.events))] for at in run.result.step_ends],
        unfamiliar=_still_unfamiliar(run.result.unfamiliar, signatures, unknown),
        measured=len(signatures) - len(unknown),
        unmeasured=len(unknown),
        unmeasured_convolutions=sum("convolution" in signature["op"] for signature in unknown),
    )
    return replace(run, result=result, events=events, births=births)


def _as_later(measured: dict[str, Any] | None) -> dict[str, Any] | None:
    return measured and {name: value for name, value in measured.items() if name != "first"}


def _still_unfamiliar(
    counts: Mapping[str, int], signatures: list[dict[str, Any]], unknown: list[dict[str, Any]]
) -> dict[str, int]:
    """Operations of which not every kind was measured."""
    tried, missing = ({str(signature["op"]) for signature in some} for some in (signatures, unknown))
    return {name: count for name, count in counts.items() if name in missing or name not in tried}


def _parts(history: list[int], places: int) -> list[list[int]]:
    """What an operation took, by its workspaces in the log: cut where it holds nothing, what is too much at the end."""
    parts: list[list[int]] = [[]]
    held = taken = before = 0
    for step in history:
        parts[-1].append(step + before if step < 0 else step)
        held += (step > 0) - (step < 0)
        taken += step > 0
        if step < 0 and not held and len(parts) < places:
            parts.append([])
            before = taken
    return parts


class _Rewriting:
    def __init__(
        self, run: VirtualRun, found: list[dict[str, Any] | None], constants: Mapping[str, int]
    ) -> None:
        self.run, self.found, self.constants = run, found, constants
        self.signed = run.result.signed
        self.kinds = dict(run.result.kinds)
        self.next = max(len(run.births), max((number for number, _ in run.events), default=0)) + 1
        self.met: set[int] = set()
        self.parts: dict[int, list[list[int]]] = {}  # signature → what is to come in its operation
        self.events: list[tuple[int, int]] = []

    def rewritten(self) -> tuple[list[tuple[int, int]], dict[int, str], list[int]]:
        """The last value: old index → new index, and the length at the end."""
        lasting = self._libraries()
        places = self._places()
        moved = []
        for number, size in self.run.events:
            moved.append(len(self.events))
            index = self.signed.get(abs(number))
            measured = self._measured(index)
            if measured is None or index is None:
                self.events.append((number, lasting.get(number, size)))
            elif number > 0:
                if index >= 0:
                    history = (
                        measured["later"] if index in self.met else measured.get("first", measured["later"])
                    )
                    self.met.add(index)
                    self.parts[index] = _parts(history, places[number])
                parts = self.parts[max(index, ~index)]
                self._add(parts.pop(0) if parts else [])
        return self.events, self.kinds, [*moved, len(self.events)]

    def _places(self) -> dict[int, int]:
        """Number of an operation's first workspace → how many it has in the log."""
        places: dict[int, int] = {}
        first = 0
        for number, index in sorted(self.signed.items()):
            first = number if index >= 0 else first
            places[first] = places.get(first, 0) + 1
        return places

    def _measured(self, index: int | None) -> dict[str, Any] | None:
        """``~index``: of an operation's further workspaces, which are in what stands for the first."""
        if index is None:
            return None
        index = index if index >= 0 else ~index
        return self.found[index] if index < len(self.found) else None

    def _add(self, history: list[int]) -> None:
        numbers: list[tuple[int, int]] = []
        for step in history:
            if step > 0:
                numbers.append((self.next, step))
                self.kinds[self.next] = _WORKSPACES
                self.events.append(numbers[-1])
                self.next += 1
            elif step < 0:
                number, size = numbers[-step - 1]
                self.events.append((-number, size))
            else:
                self.events.append(EMPTIED)

    def _libraries(self) -> dict[int, int]:
        """Of workspaces that are never given back: number → measured bytes."""
        freed = {-number for number, _ in self.run.events if number < 0}
        lasting = [
            number
            for number, _ in self.run.events
            if number > 0 and number not in freed and number not in self.signed
            and self.kinds.get(number) == _WORKSPACES
        ]  # fmt: skip
        sizes = [self.constants[name] for name in _LIBRARIES if name in self.constants]
        return dict(zip(lasting, sizes, strict=False))


_MATTERS = 0.9  # a job that needs less than this share of its upper end without the search


def measured_run(
    run: VirtualRun, calibrated: CalibratedCard, expandable: bool, total: int | None
) -> tuple[VirtualRun, str]:
    """The run with what was measured on the card, and a note. Without the search where only that makes it more than ``total``, the card's
    bytes."""
    whole = applied(run, calibrated)
    if not run.result.benchmark:
        return whole, ""
    bare = applied(run, calibrated, search=False)
    card = calibrated.card(ANY_CARD)
    most, needed = (virtual_run.gpu_estimate(some, expandable, card)[0] for some in (whole, bare))
    if needed.high > _MATTERS * most.high:
        return whole, ""
    search = format_size(most.expected - needed.expected)
    if total and most.high > total:
        return (
            bare,
            f"while cudnn.benchmark tries kernels it takes up to {search} more, for a moment and where the GPU has that free",
        )
    return whole, (
        f"{search} of it only while cudnn.benchmark tries kernels, for a moment and where the GPU has that free; "
        f"the job needs at most {format_size(needed.high)}"
    )

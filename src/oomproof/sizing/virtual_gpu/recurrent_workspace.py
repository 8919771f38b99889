"""What cuDNN keeps and takes for itself in LSTM, GRU and RNN layers, in bytes.

Neither size is published. From 379 layers on an H200 (cuDNN 9.19): what is kept between the passes is exact; of the workspace half are within a few
bytes, 95 of 100 within 1.2 % of both together. Which kernels run, and so the workspace, depends on the width, the length, and whether both directions
are read.
"""

from __future__ import annotations

from dataclasses import dataclass  # the job's own Python has none of ours

_STREAM = 8 << 20  # bytes, for each layer and direction
_NARROW = {"lstm": 128, "gru": 128}  # up to that width other kernels run
_NARROW_PLAIN = 256
_LONG = 400  # steps: from there on other kernels run, in one direction (seen between 300 and 500)
_GATES = {"lstm": 4, "gru": 3}


@dataclass(frozen=True)
class Layers:
    """``rows``: steps × sequences, less what packing leaves out. ``is_half``: the module's own weights have two bytes, not autocast's copies."""

    kind: str  # lstm, gru, or another
    rows: int
    sequences: int
    inputs: int
    width: int
    count: int
    both_ways: bool = False
    projected: int = 0
    dropout: bool = False
    packed: bool = False
    is_half: bool = False
    item: int = 4  # bytes of a number

    @property
    def directions(self) -> int:
        return 2 if self.both_ways else 1

    @property
    def weights(self) -> int:
        """Numbers, without biases."""
        out = self.projected or self.width
        sources = self.inputs + (self.count - 1) * out * self.directions
        gates = _GATES.get(self.kind, 1) * self.width * (sources + self.count * out)
        return self.directions * (gates + self.count * self.projected * self.width)


def reserve(layers: Layers) -> int:
    """Lives from the forward to the backward pass."""
    each = {"lstm": 5, "gru": 6}.get(layers.kind, 1)
    unit = layers.rows * layers.directions
    width, count = layers.width, layers.count
    numbers = unit * width * (count * (each + 1) - 1)
    if layers.projected:  # 13 widths and 2 projections where there are two layers
        numbers = unit * (width * (13 * count) // 2 + count * layers.projected)
    masks = unit * width * (count - 1) // 8 * layers.directions if layers.dropout else 0
    return numbers * layers.item + masks


def workspace(layers: Layers) -> int:
    """Taken in both passes, twice in the backward one."""
    needs = _narrow(layers) if _is_narrow(layers) else ((_for_a_row(layers), _for_a_sequence(layers)),)
    numbers = max(
        layers.rows * row + layers.count * layers.sequences * layers.width * columns for row, columns in needs
    )
    return (numbers + layers.weights) * layers.item + _STREAM * layers.count * layers.directions


def _is_narrow(layers: Layers) -> bool:
    is_short = layers.width <= _NARROW.get(layers.kind, _NARROW_PLAIN)
    return is_short and not (layers.kind in _GATES and layers.is_half)


def _narrow(layers: Layers) -> tuple[tuple[int, int], ...]:
    """Numbers for a row, and widths for a layer and sequence; of several the largest is taken. Within 1 % of all that were measured."""
    width, inputs = layers.width, layers.inputs
    is_one, larger = layers.count == 1, max(layers.inputs, layers.width)
    if layers.both_ways:
        if layers.kind == "lstm":
            return (30 * width + inputs, 20), (20 * width + 6 * inputs, 26)
        more = (22 if layers.kind == "gru" else 17) - 2 * is_one
        return ((more + 4) * width + 2 * inputs, 14), (more * width + 6 * inputs, 14)
    if layers.kind == "lstm":
        return (21 * width + inputs, 8), ((16 - is_one) * width + 3 * inputs, 12)
    return ((({"gru": 18}.get(layers.kind, 13) - is_one) * width + 2 * inputs + larger, 6),)


def _for_a_sequence(layers: Layers) -> int:
    """Widths, for each layer."""
    return {
        ("lstm", False): 10, ("lstm", True): 24, ("gru", False): 5, ("gru", True): 14
    }.get((layers.kind, layers.both_ways), 13)  # fmt: skip


def _for_a_row(layers: Layers) -> int:
    """Numbers."""
    kind, width, inputs = layers.kind, layers.width, layers.inputs
    is_gated, is_one = kind in _GATES, layers.count == 1
    larger = max(inputs, width)
    beyond = 4 * (larger - width)
    if layers.both_ways:
        if layers.packed and is_gated:
            return (12 if kind == "lstm" else 10) * width
        if kind == "lstm" and not (layers.is_half and width <= _NARROW[kind]):
            return 14 * width + inputs + beyond
        return (12 if is_gated or not is_one else 10) * width + 2 * inputs + beyond
    if layers.packed and is_gated:
        return (4 if kind == "lstm" else 3) * width
    if not is_gated or layers.rows >= _LONG * layers.sequences:
        return (2 + is_one) * width + 2 * inputs + larger
    more = width if layers.dropout else 0
    if kind == "lstm":
        return more + (3 * width + inputs + 2 * larger if is_one else 4 * width + inputs + larger)
    return more + (3 * width + 2 * inputs + larger if is_one else 2 * width + inputs + 2 * larger)

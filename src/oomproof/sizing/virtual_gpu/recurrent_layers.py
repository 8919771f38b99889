"""LSTM, GRU and RNN as cuDNN runs them: all steps in one kernel, with a workspace in both passes and a reserve that lives from one to the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

# What cuDNN keeps and takes for itself in LSTM, GRU and RNN layers, in bytes.
#
# Neither size is published. From 379 layers on an H200 (cuDNN 9.19): what is kept between the passes is exact; of the workspace half are within a few
# bytes, 95 of 100 within 1.2 % of both together. Which kernels run, and so the workspace, depends on the width, the length, and whether both directions
# are read.

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


def reserve_of(layers: Layers) -> int:
    """Lives from the forward to the backward pass."""
    each = {"lstm": 5, "gru": 6}.get(layers.kind, 1)
    unit = layers.rows * layers.directions
    width, count = layers.width, layers.count
    numbers = unit * width * (count * (each + 1) - 1)
    if layers.projected:  # 13 widths and 2 projections where there are two layers
        numbers = unit * (width * (13 * count) // 2 + count * layers.projected)
    masks = unit * width * (count - 1) // 8 * layers.directions if layers.dropout else 0
    return numbers * layers.item + masks


def workspace_of(layers: Layers) -> int:
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


aten = torch.ops.aten
_KINDS = ("lstm", "gru", "rnn_tanh", "rnn_relu")


class _Recurrent(torch.autograd.Function):  # type: ignore[misc]
    """``facts``: whether batches come first, the layers, whether they train, how wide the result is. Values are nobody's: these are tensors without
    bytes. The order is that of torch's RNN.cpp."""

    @staticmethod
    def forward(context: Any, facts: tuple[bool, Layers, bool, int], source: Any, *rest: Any) -> Any:
        batch_first, layers, trains, width = facts
        states = rest[:2] if rest[1] is not None else rest[:1]
        rows = source.transpose(0, 1).contiguous() if batch_first else source
        result = rows.new_empty((*rows.shape[:-1], width))
        ends = [torch.empty_like(state) for state in states]
        workspace = _bytes(source, workspace_of(layers))
        kept = _bytes(source, reserve_of(layers) if trains else 0)
        del workspace
        out = result.transpose(0, 1) if batch_first else result
        context.facts = facts
        context.save_for_backward(source, *(value for value in rest if value is not None), out, kept)
        context.states = len(states)
        return (out, *ends)

    @staticmethod
    def backward(context: Any, grad: Any, *ends: Any) -> Any:
        batch_first, layers, _, _ = context.facts
        source, *rest, _, _ = context.saved_tensors
        states, weights = rest[: context.states], rest[context.states :]
        rows = source.transpose(0, 1).contiguous() if batch_first else source
        made = torch.empty_like(rows) if context.needs_input_grad[1] else None
        grads = [torch.empty_like(state) for state in states]
        workspace = _bytes(source, workspace_of(layers))
        del workspace  # another one is taken for the gradients of the weights, which are parts of one tensor
        together = weights[0].new_empty(sum(weight.numel() for weight in weights))
        workspace = _bytes(source, workspace_of(layers))
        del workspace
        start = 0
        for weight in weights:
            grads.append(together[start : start + weight.numel()].view(weight.shape))
            start += weight.numel()
        if made is not None and batch_first:
            made = made.transpose(0, 1)
        return (None, made, *grads[: len(states)], *([None] * (2 - len(states))), *grads[len(states) :])


def _bytes(like: Any, count: int) -> Any:
    return like.new_empty(count, dtype=torch.uint8)


def _replaced(mode: Any, kind: str, packed: bool) -> Any:
    packet = getattr(aten, kind)
    whole = packet.data if packed else packet.input

    def run(source: Any, *rest: Any) -> Any:
        if not mode.is_on_card(source):
            return whole.decompose(source, *rest)
        if packed:
            _, states, weights, _, layers, dropout, trains, both_ways = rest
            batch_first = False
        else:
            states, weights, _, layers, dropout, trains, both_ways, batch_first = rest
        first, cells = (states[0], states[1]) if kind == "lstm" else (states, None)
        is_half = weights[0].itemsize == 2
        if torch.is_autocast_enabled("cuda"):
            dtype = torch.get_autocast_dtype("cuda")
            source, first = source.to(dtype), first.to(dtype)
            cells = cells.to(dtype) if cells is not None else None
            weights = [weight.to(dtype) for weight in weights]
        width, out = int((cells if cells is not None else first).shape[-1]), int(first.shape[-1])
        shape = Layers(
            kind, int(source.shape[:-1].numel()), int(first.shape[1]), int(source.shape[-1]), width, int(layers), bool(both_ways),
            out if out != width else 0, bool(dropout) and bool(trains), packed, is_half, int(source.itemsize),
        )  # fmt: skip
        facts = (bool(batch_first), shape, bool(trains), out * shape.directions)
        return _Recurrent.apply(facts, source, first, cells, *weights)

    return run


def _flatten(mode: Any) -> None:
    """On the card the weights of a module become parts of one tensor, for cuDNN; those they were are given back."""

    def flatten(self: Any) -> None:
        weights = self._flat_weights
        if len(weights) != len(self._flat_weights_names) or not weights or not torch.backends.cudnn.enabled:
            return
        if not all(map(mode.is_on_card, weights)) or len({weight.dtype for weight in weights}) > 1:
            return
        if len({weight.untyped_storage()._cdata for weight in weights}) == len(weights):
            with torch.no_grad():
                together = weights[0].new_empty(sum(weight.numel() for weight in weights))
                start = 0
                for weight in weights:
                    weight.data = together[start : start + weight.numel()].view(weight.shape)
                    start += weight.numel()

    torch.nn.RNNBase.flatten_parameters = flatten


def install(mode: Any, library: Any) -> None:
    _flatten(mode)
    for kind in _KINDS:
        for packed in (False, True):
            packet = getattr(aten, kind)
            mode.take(library, packet.data if packed else packet.input, _replaced(mode, kind, packed))

"""LSTM, GRU and RNN as cuDNN runs them: all steps in one kernel, with a workspace in both passes and a reserve that lives from one to the other."""

from __future__ import annotations

from typing import Any

import torch

from . import recurrent_workspace
from .recurrent_workspace import Layers

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
        workspace = _bytes(source, recurrent_workspace.workspace(layers))
        kept = _bytes(source, recurrent_workspace.reserve(layers) if trains else 0)
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
        workspace = _bytes(source, recurrent_workspace.workspace(layers))
        del workspace  # another one is taken for the gradients of the weights, which are parts of one tensor
        together = weights[0].new_empty(sum(weight.numel() for weight in weights))
        workspace = _bytes(source, recurrent_workspace.workspace(layers))
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
            kernel = _replaced(mode, kind, packed)
            packet = getattr(aten, kind)
            mode.whole[packet.data if packed else packet.input] = kernel
            for key in ("CPU", "AutogradCPU"):
                library.impl(f"{kind}.{'data' if packed else 'input'}", kernel, key)

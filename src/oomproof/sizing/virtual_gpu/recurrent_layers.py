"""LSTM, GRU and RNN as cuDNN runs them: all steps in one kernel, with a workspace in both passes and a reserve that lives from one to the other.

Neither size is published. As numbers for each step, sample, direction, layer and unit they were found from two jobs on an H200: with them an LSTM
of two layers and a GRU of two in both directions have the tensors they had there (10,297 and 2,681 MiB).
"""

from __future__ import annotations

from typing import Any

import torch

aten = torch.ops.aten
_RESERVE, _WORKSPACE = 5.5, 5.0
_KINDS = ("lstm", "gru", "rnn_tanh", "rnn_relu")


class _Recurrent(torch.autograd.Function):  # type: ignore[misc]
    """``facts``: whether batches come first, for how many units something is kept, how wide the result is. Values are nobody's: these are tensors without bytes."""

    @staticmethod
    def forward(context: Any, facts: tuple[bool, int, int], source: Any, *rest: Any) -> Any:
        batch_first, units, width = facts
        states = rest[:2] if rest[1] is not None else rest[:1]
        rows = source.transpose(0, 1).contiguous() if batch_first else source
        result = rows.new_empty((*rows.shape[:-1], width))
        ends = [torch.empty_like(state) for state in states]
        learns = any(context.needs_input_grad)
        workspace = source.new_empty(int(_WORKSPACE * units) if learns else 0)
        kept = source.new_empty(int(_RESERVE * units) if learns else 0)
        del workspace
        out = result.transpose(0, 1) if batch_first else result
        context.facts = facts
        context.save_for_backward(source, *(value for value in rest if value is not None), out, kept)
        context.states = len(states)
        return (out, *ends)

    @staticmethod
    def backward(context: Any, grad: Any, *ends: Any) -> Any:
        batch_first, units, _ = context.facts
        source, *rest, _, kept = context.saved_tensors
        states, weights = rest[: context.states], rest[context.states :]
        rows = source.transpose(0, 1).contiguous() if batch_first else source
        workspace = kept.new_empty(int(_WORKSPACE * units))
        made = torch.empty_like(rows) if context.needs_input_grad[1] else None
        grads = [torch.empty_like(value) for value in (*states, *weights)]
        del workspace
        if made is not None and batch_first:
            made = made.transpose(0, 1)
        return (None, made, *grads[: len(states)], *([None] * (2 - len(states))), *grads[len(states) :])


def _replaced(mode: Any, kind: str, packed: bool) -> Any:
    packet = getattr(aten, kind)
    whole = packet.data if packed else packet.input

    def run(source: Any, *rest: Any) -> Any:
        if not mode.is_on_card(source):
            return whole.decompose(source, *rest)
        if packed:
            _, states, weights, _, layers, _, _, both_ways = rest
            batch_first = False
        else:
            states, weights, _, layers, _, _, both_ways, batch_first = rest
        first, cells = (states[0], states[1]) if kind == "lstm" else (states, None)
        directions = 2 if both_ways else 1
        steps = source.shape[0] if packed else source.shape[0] * source.shape[1]
        units = steps * layers * directions * (cells if cells is not None else first).shape[-1]
        if torch.is_autocast_enabled("cuda"):
            dtype = torch.get_autocast_dtype("cuda")
            source, first = source.to(dtype), first.to(dtype)
            cells = cells.to(dtype) if cells is not None else None
            weights = [weight.to(dtype) for weight in weights]
        facts = (batch_first, units, directions * first.shape[-1])
        return _Recurrent.apply(facts, source, first, cells, *weights)

    return run


def install(mode: Any, library: Any) -> None:
    for kind in _KINDS:
        for packed in (False, True):
            kernel = _replaced(mode, kind, packed)
            for key in ("CPU", "AutogradCPU"):
                library.impl(f"{kind}.{'data' if packed else 'input'}", kernel, key)

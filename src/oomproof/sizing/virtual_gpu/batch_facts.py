"""What of a training ties the samples of a batch together, so that splitting the batch changes what is learnt."""

from __future__ import annotations

from typing import Any

import torch

aten = torch.ops.aten
_LOSSES = {aten.nll_loss_forward.default, aten.nll_loss2d_forward.default}
_PRODUCTS = {aten.mm.default, aten.addmm.default}
WATCHED = _LOSSES | _PRODUCTS
_MEAN = 1  # of torch's reductions
_MOST = 64


class BatchFacts:
    """``rows``: of losses that are the mean over them. ``squares``: n of products that are n × n: each sample with each other."""

    def __init__(self) -> None:
        self.norms = 0  # layers that take mean and variance of the batch
        self.rows: set[int] = set()
        self.squares: set[int] = set()

    def see(self, func: Any, args: Any, out: Any) -> None:
        if func in _LOSSES:
            if args[3] == _MEAN and len(self.rows) < _MOST:
                self.rows.add(int(args[1].numel()))
        elif out.shape[0] == out.shape[1] and len(self.squares) < _MOST:
            self.squares.add(int(out.shape[0]))

    def see_module(self, module: Any) -> None:
        kind = torch.nn.modules.batchnorm._BatchNorm
        self.norms += sum(part.training for part in module.modules() if isinstance(part, kind))

    def as_json(self) -> dict[str, Any]:
        return {"norms": self.norms, "rows": sorted(self.rows), "squares": sorted(self.squares)}

"""A loop with several optimizers has made a step when each of them has made one."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers_sizing import on_virtual_gpu

pytest.importorskip("torch", reason="PyTorch is not installed")

from oomproof.sizing.virtual_gpu.training_flow import RESTS, OptimizerRounds


class Named:
    pass


FOUR = """
import torch
from torch import nn
nets = [nn.Linear(1024, 1024, bias=False).cuda() for _ in range(4)]
makers = [torch.optim.Adam(net.parameters()) for net in nets]
for (x,) in torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(400, 1024)), batch_size=8):
    x = x.cuda()
    for net, maker in zip(nets, makers):
        maker.zero_grad()
        net(x).sum().backward()
        maker.step()
"""


def test_one_optimizer_counts_by_itself() -> None:
    rounds, only = OptimizerRounds(), Named()
    assert [rounds.stepped(only, [only]) for _ in range(3)] == [1, 2, 3]


def test_the_one_that_has_made_the_fewest_counts() -> None:
    rounds, first, second = OptimizerRounds(), Named(), Named()
    both = [first, second]
    assert [rounds.stepped(first, both), rounds.stepped(first, both), rounds.stepped(second, both)] == [
        0,
        0,
        1,
    ]
    assert rounds.stepped(second, both) == 2


def test_one_that_never_steps_is_not_waited_for_for_ever() -> None:
    rounds, first, idle = OptimizerRounds(), Named(), Named()
    made = [rounds.stepped(first, [first, idle]) for _ in range(RESTS + 3)]
    assert made[RESTS - 1] == 0 and made[-1] == 3
    assert rounds.stepped(first, [first, idle], patient=False) == RESTS + 4


def test_a_critic_that_steps_more_often_is_waited_with() -> None:
    rounds, critic, generator = OptimizerRounds(), Named(), Named()
    made = [rounds.stepped(who, [critic, generator]) for who in ([critic] * 5 + [generator]) * 3]
    assert made[5] == 1 and made[11] == 2 and made[17] == 3


def test_four_optimizers_have_their_state_at_the_peak(tmp_path: Path) -> None:
    run, _ = on_virtual_gpu(FOUR, tmp_path, seconds=30.0)
    assert run.result.steps == 3
    state = [number for number, kind in run.result.kinds.items() if kind == "optimizer state"]
    assert len(state) == 8, "two of each"
    assert run.result.peak["gpu"] > 4 * 3 * (4 << 20), "weights and state of all"

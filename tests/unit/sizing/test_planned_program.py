"""A program as torch's compiler writes it, run for the memory it takes: without kernels, without a card."""

from __future__ import annotations

import types
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the extra [ml] is not installed")

from oomproof.sizing.virtual_gpu.planned_graphs import PADDED, runnable  # noqa: E402
from oomproof.sizing.virtual_gpu.storage_log import GPU, StorageLog  # noqa: E402
from oomproof.sizing.virtual_gpu.virtual_mode import VirtualMode  # noqa: E402

CACHE = 1 << 20
SOURCE = '''
import torch
import triton
from torch._inductor.async_compile import AsyncCompile
from torch._C import _cuda_getCurrentRawStream as get_raw_stream

empty_strided_cuda = torch._C._dynamo.guards._empty_strided_cuda
empty_strided_of_tomorrow = torch._C._dynamo.guards._empty_strided_of_tomorrow
async_compile = AsyncCompile()

triton_poi_fused_relu_0 = async_compile.triton('triton_poi_fused_relu_0', """
@triton_heuristics.pointwise(
    triton_meta={'signature': {'in_out_ptr0': '*fp32', 'xnumel': 'i32'}, 'device': 0},
    inductor_meta={'mutated_arg_names': ['in_out_ptr0']},
)
""", device_str='cuda')

async_compile.wait(globals())
del async_compile

class Runner:
    def call(self, args):
        left, right, = args
        args.clear()
        assert_size_stride(left, (256, 512), (512, 1), 'input')
        with torch.cuda._DeviceGuard(0):
            torch.cuda.set_device(0)
            buf0 = empty_strided_cuda((256, 1024), (1024, 1), torch.float32)
            extern_kernels.mm(left, reinterpret_tensor(right, (512, 1024), (1, 512), 0), out=buf0)
            del left
            buf1 = buf0; del buf0  # reuse
            raw_stream0 = get_raw_stream(0)
            triton_poi_fused_relu_0.run(buf1, 262144, stream=raw_stream0)
            triton_poi_fused_relu_0.run(buf1, 262144, stream=raw_stream0)
            buf2 = empty_strided_cuda((256, ), (1, ), torch.float32)
        return (buf2, )

call = Runner().call

if __name__ == "__main__":
    raise RuntimeError("this is no program of its own")
'''


@pytest.fixture
def mode(monkeypatch: pytest.MonkeyPatch) -> VirtualMode:
    card = types.SimpleNamespace(L2_cache_size=CACHE)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device=None: card)
    mode = VirtualMode(StorageLog())
    mode.workspaces = lambda func, *given: (4096,) if func is torch.ops.aten.mm.default else ()
    return mode


def made(mode: VirtualMode, *shape: int) -> Any:
    with mode.making(GPU):
        return torch.empty(*shape)


def events(mode: VirtualMode) -> list[tuple[int, int]]:
    flat = mode.log.events[GPU]
    return list(zip(flat[::2], flat[1::2], strict=True))


def test_buffers_are_taken_reused_and_given_back_in_the_programs_order(mode: VirtualMode) -> None:
    program = runnable(mode, SOURCE)
    left, right = made(mode, 256, 512), made(mode, 1024, 512)
    operands = [left, right]
    before = len(events(mode))
    del left
    (out,) = program(operands)
    assert tuple(out.shape) == (256,)
    product, operand, buffer = 256 * 1024 * 4, 256 * 512 * 4, 256 * 4
    seen = [(number > 0, size) for number, size in events(mode)[before:]]
    assert seen[:4] == [(True, product), (True, 4096), (False, 4096), (False, operand)], (
        "the last use frees it"
    )
    # the first launch tries its configurations; a clone of what it changes would not fit below the peak, so none is made
    assert seen[4:] == [(True, CACHE), (False, CACHE), (True, buffer), (False, product)]
    assert mode.unfamiliar == {}


def test_a_first_launch_clones_what_it_changes_where_that_does_not_raise_the_peak(mode: VirtualMode) -> None:
    made(mode, 4 << 20)  # the peak, before it
    program = runnable(mode, SOURCE)
    before = len(events(mode))
    program([made(mode, 256, 512), made(mode, 1024, 512)])
    clones = [number for number, size in events(mode)[before:] if number > 0 and size == 256 * 1024 * 4]
    assert len(clones) == 4, (
        "the product, a clone before the cache is emptied and one beside it, the cache of as many bytes"
    )


def test_a_missing_gradient_is_zeros_on_the_card(mode: VirtualMode) -> None:
    """autograd makes them, where it is asked for a gradient that nobody gave: for logits beside a loss."""
    program = runnable(mode, SOURCE)
    before = mode.log.live[GPU]
    program([torch.zeros(256, 512), made(mode, 1024, 512)])
    assert mode.log.live[GPU] == before
    assert (256 * 512 * 4) in [size for number, size in events(mode) if number > 0]


def test_odd_matrices_leave_room_for_wider_ones(mode: VirtualMode) -> None:
    program = runnable(mode, SOURCE.replace("1024", "1023"))
    program([made(mode, 256, 512), made(mode, 1023, 512)])
    assert mode.unfamiliar == {PADDED: 1}
    assert list(mode.log.possible.values()) == [4 * (256 * 512 + 512 * 1023 + 256 * 1023)]

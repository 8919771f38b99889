"""What a LoRA's base would take in 8 or 4 bits."""

from __future__ import annotations

from oomproof.sizing.estimate import Estimate
from oomproof.sizing.quantized_weights import frozen_weights, quantized_note
from oomproof.sizing.virtual_gpu.child_results import VirtualResult

GIB = 1 << 30
LAYER = [("model.layers.0.up_proj", 16384, 4096, 2)] * 16  # 2 GiB in bfloat16
HEAD = ("lm_head", 128000, 4096, 2)


def test_four_bits_with_their_scales_and_the_largest_layer_in_sixteen() -> None:
    weights = frozen_weights(VirtualResult(frozen=[*LAYER, HEAD]))
    assert weights is not None and weights.held == 2 * GIB, "the head stays as it is"
    assert round(8 * weights.quantized["nf4"] / (16384 * 4096 * 16), 3) == 4.127, "bits a weight"
    assert weights.largest == 128 << 20
    assert weights.less("nf4") == 2 * GIB - weights.quantized["nf4"] - (128 << 20)
    shifted = weights.shifted(Estimate(3 * GIB, 4 * GIB, 5 * GIB, {}), "int8")
    assert 2.8 * GIB < shifted.expected < 3.2 * GIB and shifted.high - shifted.low == 2 * GIB


def test_only_where_it_is_worth_it() -> None:
    assert frozen_weights(VirtualResult()) is None
    assert frozen_weights(VirtualResult(frozen=LAYER), 100 * GIB) is None, "a hundredth of the card"
    assert frozen_weights(VirtualResult(frozen=[("a", 16384, 4096, 1)] * 16)) is None, (
        "they are in 8 bits as it is"
    )
    weights = frozen_weights(VirtualResult(frozen=LAYER), 4 * GIB)
    assert weights is not None
    assert quantized_note(weights).startswith("its frozen linear weights take 2.0 GiB; by arithmetic")

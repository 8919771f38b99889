"""What the same weights take in other types, against the sizes llama.cpp publishes."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers_models import LLAMA_8B, llama_shapes, sparse_safetensors

from oomproof.sizing.data.load_cost import Part
from oomproof.sizing.model_weights import Weights, read_weights
from oomproof.sizing.quantized_weights import TYPES, bytes_as


def weights_of(shapes: dict[str, tuple[int, ...]]) -> Weights:
    return Weights("safetensors", tuple(Part(name, "BF16", shape, 0) for name, shape in shapes.items()), 0)


# bits a weight of Llama 3.1 8B, from the table in llama.cpp's tools/quantize/README.md
PUBLISHED = {"q8_0": 8.5008, "q6_k": 6.5633, "q5_k_m": 5.7036, "q4_k_m": 4.8944}


@pytest.mark.parametrize("kind", PUBLISHED)
def test_as_llama_cpp_publishes_it(kind: str) -> None:
    weights = weights_of(LLAMA_8B)
    assert weights.parameters == 8_030_261_248
    assert bytes_as(kind, weights) * 8 / weights.parameters == pytest.approx(PUBLISHED[kind], abs=0.0001)


def test_bitsandbytes_leaves_embeddings_and_output_in_16_bits() -> None:
    """Linear layers are a byte a number and a scale a row, or half a byte and a scale for 64 numbers."""
    weights = weights_of({"model.embed_tokens.weight": (1000, 64), "lm_head.weight": (1000, 64), "model.layers.0.mlp.up_proj.weight": (128, 64), "model.norm.weight": (64,)})  # fmt: skip
    rest = 2 * (2 * 64_000 + 64)
    assert bytes_as("int8", weights) == rest + 128 * 64 + 128 * 4
    assert bytes_as("nf4", weights) == rest + 128 * 64 // 2 + 128 * 64 // 64 * 4


def test_tied_embeddings_are_the_output() -> None:
    """llama.cpp keeps what it multiplies with at the end finer: without an output of its own, the embeddings."""
    tied, untied = (weights_of(llama_shapes(2, 256, 512, 256, 1024, tied=tied)) for tied in (True, False))
    matrix = 1024 * 256
    assert bytes_as("q4_k_m", untied) - bytes_as("q4_k_m", tied) == matrix * 144 // 256


def test_rows_that_are_no_multiple_of_256() -> None:
    shapes = {
        "model.layers.0.mlp.up_proj.weight": (100, 96),
        "model.layers.0.mlp.gate_proj.weight": (100, 30),
        "lm_head.weight": (100, 96),
    }
    weights = weights_of(shapes)
    assert bytes_as("q4_k_m", weights) == 9600 // 32 * 22 + 3000 * 2 + 9600 // 32 * 34


def test_smaller_types_are_smaller() -> None:
    sizes = [
        bytes_as(kind, weights_of(LLAMA_8B)) for kind in ("fp32", "bf16", "q8_0", "q6_k", "q5_k_m", "q4_k_m")
    ]
    assert sizes == sorted(sizes, reverse=True) and set(TYPES) >= {"int8", "nf4"}


def test_packed_weights_are_counted_unpacked(tmp_path: Path) -> None:
    """GPTQ keeps eight parameters of four bits in an int32."""
    path = sparse_safetensors(tmp_path / "m.safetensors", {"model.layers.0.mlp.up_proj.qweight": (8, 64), "model.layers.0.mlp.up_proj.scales": (1, 64)}, "I32")  # fmt: skip
    weights = read_weights([str(path)], {"quantization_config": {"quant_method": "gptq", "bits": 4}})
    assert weights.parameters == 8 * 64 * 8 and weights.quantized

"""What the same weights take in another type: plain arithmetic on names and shapes.

GGUF's mixtures follow llama.cpp (llama-quant.cpp): matrices only, the output and half of the value and down projections
finer than the rest. bitsandbytes replaces linear layers only: embeddings and the output stay in 16 bits.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence

from oomproof.records import dataclass
from oomproof.sizing.data.gguf_header import GGML
from oomproof.sizing.data.load_cost import Part
from oomproof.sizing.estimate import Estimate
from oomproof.sizing.model_weights import Weights
from oomproof.sizing.virtual_gpu.child_results import VirtualResult
from oomproof.units import format_size

_BLOCKS = {name: (numbers, size) for name, numbers, size in GGML.values()}
_EMBEDDING = re.compile(
    r"embed_tokens|\bwte\b|word_embeddings|token_embd|embed_in|tok_embeddings|(?:^|\.)shared\.|decoder\.embed"
)
_POSITIONS = re.compile(r"\bwpe\b|position_embed|embed_positions|token_type|pos_embd")
_OUTPUT = re.compile(r"lm_head|(?:^|\.)output\.weight|embed_out")
_ROUTER = re.compile(r"(?:mlp|block_sparse_moe)\.(?:gate|router)\.|ffn_gate_inp|router\.")
_VALUE = re.compile(
    r"\bv_proj\b|attn_v\b|\bwv\b|qkv_proj|c_attn|query_key_value|attn_qkv|attn_kv_b|kv_b_proj"
)
_DOWN = re.compile(r"down_proj|ffn_down|\.w2\b|\bfc2\b|mlp\.c_proj|dense_4h_to_h")
_NORM = re.compile(r"norm|conv1d|layernorm|\bln_")
_LAYER = re.compile(r"\.(\d+)\.")
_FALLBACK = {"Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"}  # for rows that are no multiple of 256

# type → (of most matrices, of the output and of half of the value and down projections)
_MIXTURES = {
    "q8_0": ("Q8_0", "Q8_0"),
    "q6_k": ("Q6_K", "Q6_K"),
    "q5_k_m": ("Q5_K", "Q6_K"),
    "q4_k_m": ("Q4_K", "Q6_K"),
}
_NF4 = 0.5 + 4 / 64  # bytes of a parameter: four bits and a scale of fp32 for 64 of them
NF4_DOUBLE = 0.5 + 1 / 64 + 4 / (64 * 256)  # with the scales in 8 bits (double quantization, as for training)

TYPES = ("fp32", "bf16", "int8", "nf4", "q8_0", "q6_k", "q5_k_m", "q4_k_m")
MADE_BY = {
    "fp32": "dtype=torch.float32",
    "bf16": "dtype=torch.bfloat16",
    "int8": "BitsAndBytesConfig(load_in_8bit=True)",
    "nf4": 'BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4")',
    **{name: f"llama-quantize … {name}" for name in _MIXTURES},
}


def bytes_as(kind: str, weights: Weights) -> int:
    """All weights in ``kind``, one of TYPES."""
    if kind in ("fp32", "bf16"):
        return weights.parameters * (4 if kind == "fp32" else 2)
    layers = _layers(weights.tensors)
    tied = not any(_OUTPUT.search(part.name) for part in weights.tensors)
    size: Callable[[Part, int], int]
    if kind in _MIXTURES:
        base, finer = _MIXTURES[kind]
        size = lambda part, count: _ggml_bytes(part, count, _chosen(part, base, finer, layers, tied))  # noqa: E731
    else:
        size = lambda part, count: _bitsandbytes(part, count, kind)  # noqa: E731
    return sum(size(part, weights.parameters_in(part)) for part in weights.tensors)


def _layers(tensors: Sequence[Part]) -> int:
    return 1 + max((int(match[1]) for part in tensors if (match := _LAYER.search(part.name))), default=0)


def _is_matrix(part: Part) -> bool:
    shape = part.shape or ()
    return len([length for length in shape if length > 1]) >= 2 and not _NORM.search(part.name)


def _chosen(part: Part, base: str, finer: str, layers: int, tied: bool) -> str:
    name = part.name
    if not _is_matrix(part) or _POSITIONS.search(name) or _ROUTER.search(name):
        return "F32"
    if _OUTPUT.search(name) or (tied and _EMBEDDING.search(name)):
        return "Q6_K" if base != "Q8_0" else base
    if _VALUE.search(name) or _DOWN.search(name):
        match = _LAYER.search(name)
        return finer if match and _use_more_bits(int(match[1]), layers) else base
    return base


def _use_more_bits(layer: int, layers: int) -> bool:
    """llama.cpp's choice: the first and the last eighth, and every third between."""
    return layer < layers // 8 or layer >= 7 * layers // 8 or (layer - layers // 8) % 3 == 2


def _ggml_bytes(part: Part, count: int, kind: str) -> int:
    numbers, size = _BLOCKS[kind]
    row = (part.shape or (count,))[-1]
    if row % numbers and kind in _FALLBACK:
        numbers, size = _BLOCKS[_FALLBACK[kind]]
    if row % numbers:
        numbers, size = _BLOCKS["F16"]
    return math.ceil(count / numbers) * size


def _bitsandbytes(part: Part, count: int, kind: str) -> int:
    if not _is_matrix(part) or any(
        pattern.search(part.name) for pattern in (_EMBEDDING, _POSITIONS, _OUTPUT, _ROUTER)
    ):
        return count * 2
    rows = (part.shape or (1,))[0]
    return count + rows * 4 if kind == "int8" else math.ceil(count * _NF4)


KINDS = {"nf4": "4 bits (nf4)", "int8": "8 bits"}
# bitsandbytes leaves the head as it is
_KEPT = re.compile(r"(?:^|\.)(?:lm_head|embed_out|output|score|classifier)(?:\.|$)")
_WORTH = 0.1  # of the card's figure: less is no reason to quantize
_COMPUTED_IN = 2  # bytes: bfloat16 or float16


@dataclass(frozen=True, slots=True)
class FrozenWeights:
    """Bytes: as they are, in each kind, and the largest of them in 16 bits."""

    held: int
    quantized: Mapping[str, int]
    largest: int

    def less(self, kind: str) -> int:
        """By how much the card's figure goes down."""
        return self.held - self.quantized[kind] - self.largest

    def shifted(self, estimate: Estimate, kind: str) -> Estimate:
        less = self.less(kind)
        return Estimate(
            max(0, estimate.low - less), max(0, estimate.expected - less), max(0, estimate.high - less), {}
        )


def frozen_weights(result: VirtualResult, used: int = 0) -> FrozenWeights | None:
    """Of a virtual run; None where too little is frozen for quantizing to be worth it, beside ``used`` bytes of the card."""
    parts = [
        (rows, columns, size)
        for name, rows, columns, size in result.frozen
        if size > 1 and not _KEPT.search(name)  # size 1: is quantized as it is
    ]
    if not parts:
        return None
    found = FrozenWeights(
        sum(rows * columns * size for rows, columns, size in parts),
        {
            "nf4": int(sum(rows * columns for rows, columns, _ in parts) * NF4_DOUBLE),
            "int8": sum(rows * columns + 4 * rows for rows, columns, _ in parts),
        },
        max(rows * columns for rows, columns, _ in parts) * _COMPUTED_IN,
    )
    return found if found.less("nf4") > _WORTH * used else None


def quantized_note(weights: FrozenWeights) -> str:
    """For `size`: what the frozen weights would take."""
    kinds = " or ".join(
        f"{format_size(weights.less(kind))} less in {words}"
        for kind, words in KINDS.items()
        if weights.less(kind) > 0
    )
    return f"its frozen linear weights take {format_size(weights.held)}; by arithmetic, the card would hold {kinds} ({MADE_BY['nf4']})"

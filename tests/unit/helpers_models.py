"""Models that are headers with nothing behind them: sparse files of any size, made with the standard library."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from oomproof.sizing.data.gguf_header import BITS, GGML

Shapes = Mapping[str, tuple[int, ...]]
GGML_NUMBER = {name: number for number, (name, _, _) in GGML.items()}


def llama_shapes(
    layers: int = 2,
    hidden: int = 64,
    inner: int = 128,
    cached: int = 32,
    vocabulary: int = 256,
    tied: bool = False,
) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (vocabulary, hidden),
        "model.norm.weight": (hidden,),
    }
    if not tied:
        shapes["lm_head.weight"] = (vocabulary, hidden)
    for number in range(layers):
        layer = f"model.layers.{number}"
        shapes |= {
            f"{layer}.self_attn.q_proj.weight": (hidden, hidden), f"{layer}.self_attn.k_proj.weight": (cached, hidden),
            f"{layer}.self_attn.v_proj.weight": (cached, hidden), f"{layer}.self_attn.o_proj.weight": (hidden, hidden),
            f"{layer}.mlp.gate_proj.weight": (inner, hidden), f"{layer}.mlp.up_proj.weight": (inner, hidden),
            f"{layer}.mlp.down_proj.weight": (hidden, inner), f"{layer}.input_layernorm.weight": (hidden,),
            f"{layer}.post_attention_layernorm.weight": (hidden,),
        }  # fmt: skip
    return shapes


LLAMA_8B = llama_shapes(32, 4096, 14336, 1024, 128256)
LLAMA_8B_CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "hidden_size": 4096, "intermediate_size": 14336, "vocab_size": 128256,
    "max_position_embeddings": 131072, "dtype": "bfloat16",
}  # fmt: skip
SMALL_CONFIG = {
    **LLAMA_8B_CONFIG, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 64,
    "intermediate_size": 128, "vocab_size": 256, "max_position_embeddings": 2048,
}  # fmt: skip


def sparse_safetensors(path: Path, shapes: Shapes, dtype: str = "BF16") -> Path:
    header, end = {}, 0
    for name, shape in shapes.items():
        size = math.prod(shape) * BITS[dtype] // 8
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)
    return path


def model_folder(
    folder: Path,
    shapes: Shapes | None = None,
    config: Mapping[str, Any] | None = None,
    shards: int = 1,
    dtype: str = "BF16",
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    shapes = llama_shapes() if shapes is None else shapes
    (folder / "config.json").write_text(json.dumps(SMALL_CONFIG if config is None else config))
    if shards == 1:
        sparse_safetensors(folder / "model.safetensors", shapes, dtype)
        return folder
    names = [f"model-{number:05d}-of-{shards:05d}.safetensors" for number in range(1, shards + 1)]
    parts: list[dict[str, tuple[int, ...]]] = [{} for _ in names]
    for number, (name, shape) in enumerate(shapes.items()):
        parts[number % shards][name] = shape
    for name, part in zip(names, parts, strict=True):
        sparse_safetensors(folder / name, part, dtype)
    listed = {tensor: name for name, part in zip(names, parts, strict=True) for tensor in part}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": listed}))
    return folder


def _text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def _value(value: Any) -> bytes:
    if isinstance(value, str):
        return struct.pack("<I", 8) + _text(value)
    if isinstance(value, bool):
        return struct.pack("<I?", 7, value)
    if isinstance(value, list) and value and isinstance(value[0], str):
        return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(_text, value))
    if isinstance(value, list):
        kind, form = (7, "?") if value and isinstance(value[0], bool) else (4, "I")
        return struct.pack(f"<IIQ{len(value)}{form}", 9, kind, len(value), *value)
    return struct.pack("<II", 4, value)


def sparse_gguf(
    path: Path, metadata: Mapping[str, Any], tensors: Mapping[str, tuple[tuple[int, ...], str]]
) -> Path:
    """``tensors``: name → (shape as GGUF has it, the row first; type)"""
    entries = b"".join(_text(name) + _value(value) for name, value in metadata.items())
    listed, end = b"", 0
    for name, (shape, kind) in tensors.items():
        _, numbers, size = GGML[GGML_NUMBER[kind]]
        listed += _text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, GGML_NUMBER[kind], end)
        end += math.prod(shape) // numbers * size
    with path.open("wb") as file:
        file.write(b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata)) + entries + listed)
        file.truncate(file.tell() + 64 + end)
    return path


LLAMA_GGUF = {
    "general.architecture": "llama", "general.name": "Llama", "llama.block_count": 32, "llama.embedding_length": 4096,
    "llama.feed_forward_length": 14336, "llama.attention.head_count": 32, "llama.attention.head_count_kv": 8,
    "llama.context_length": 131072, "tokenizer.ggml.tokens": ["a", "b"],
}  # fmt: skip


def llama_gguf(path: Path, layers: int = 2, kind: str = "Q4_K", **more: Any) -> Path:
    tensors: dict[str, tuple[tuple[int, ...], str]] = {"token_embd.weight": ((4096, 512), kind)}
    for number in range(layers):
        tensors[f"blk.{number}.attn_v.weight"] = ((4096, 1024), "Q6_K")
        tensors[f"blk.{number}.ffn_up.weight"] = ((4096, 14336), kind)
        tensors[f"blk.{number}.attn_norm.weight"] = ((4096,), "F32")
    return sparse_gguf(path, {**LLAMA_GGUF, "llama.block_count": layers, **more}, tensors)

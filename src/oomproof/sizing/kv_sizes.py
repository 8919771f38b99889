"""The key/value cache of a model for a context, a batch and beams: from its config, a GGUF's metadata, or its tensors' shapes.

The arithmetic is leaf/kv_cache.py's, which the agent uses on live models too; here are the sources, and what that leaves open:
latent attention (two forms, by the program that runs it) and layers with a state of a fixed size.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from oomproof.leaf.kv_cache import Call, Layer, Layout, layout_of, need_of
from oomproof.records import dataclass
from oomproof.sizing.data.load_cost import Part
from oomproof.sizing.json_source import whole_number

# bytes of a cached number; q8_0 and q4_0 as llama.cpp packs them: 32 numbers and a scale
ELEMENT = {"fp32": 4.0, "fp16": 2.0, "bf16": 2.0, "fp8": 1.0, "q8_0": 34 / 32, "q4_0": 18 / 32}
_MOST_LAYERS = 10_000  # a config that claims more is damaged
_LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "decoder_layers", "num_decoder_layers", "n_layers")
_KEY = re.compile(r"\.(\d+)\.(?:[\w.]*\.)?(?:k_proj|attn_k|wk|key)\.weight$")
_VALUE = re.compile(r"\.(\d+)\.(?:[\w.]*\.)?(?:v_proj|attn_v|wv|value)\.weight$")
_NO_CACHE = re.compile(
    r"(?:MaskedLM|Classification|QuestionAnswering|ForPreTraining|Encoder|MultipleChoice)\w*$"
)
_TEXT = ("text_config", "llm_config", "language_config")
# GGUF: of how many layers all but the last have a window, by architecture (llama.cpp's set_swa_pattern)
_WINDOWED = {
    "gemma2": 2,
    "gemma3": 6,
    "gemma3n": 5,
    "cohere2": 4,
    "gpt-oss": 2,
    "llama4": 4,
    "olmo2": 4,
    "phi3": 1,
}


@dataclass(frozen=True, slots=True)
class KvCache:
    """Bytes. ``high`` where programs differ. ``grows``: a copy of one layer's part while transformers makes it longer."""

    size: int
    high: int
    grows: int
    logits: int
    note: str = ""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is asked for. ``kind``: of the cached numbers, one of ELEMENT; empty: as the model's own are."""

    context: int
    batch: int = 1
    beams: int = 1
    kind: str = ""

    def of_model(self, kind: str) -> Wanted:
        """For a model in that type."""
        return (
            self
            if self.kind
            else Wanted(self.context, self.batch, self.beams, "fp32" if kind == "fp32" else "fp16")
        )


def cache_of_config(config: Mapping[str, Any], tensors: Sequence[Part], wanted: Wanted) -> KvCache | str:
    """Of a config.json; a sentence where it cannot be told."""
    text = text_config(config)
    if _is_encoder(config, text):
        return "it does not generate: no key/value cache"
    if _most_layers(config) > _MOST_LAYERS:
        return "its config claims more layers than any model has"
    layers = whole_number(text, *_LAYERS)
    if (rank := whole_number(text, "kv_lora_rank")) and layers:
        return _latent(text, rank, layers, wanted)
    layout = layout_of(_namespace(config))
    note = ""
    if isinstance(layout, str):
        other = _layout_of_tensors(tensors, text)
        if other is None:
            return layout
        note = (
            ""
            if "does not say" in layout
            else "its other layers keep a state of a fixed size, which is not counted"
        )
        layout = other
    return _cache(layout, wanted, note)


def cache_of_gguf(metadata: Mapping[str, Any], vocabulary: int, wanted: Wanted) -> KvCache | str:
    """As llama.cpp keeps it; a sentence where it cannot be told."""
    name = str(metadata.get("general.architecture", ""))
    keys = {
        key.removeprefix(f"{name}."): value for key, value in metadata.items() if key.startswith(f"{name}.")
    }
    layers, heads = whole_number(keys, "block_count"), whole_number(keys, "attention.head_count")
    hidden = whole_number(keys, "embedding_length")
    if not layers or layers > _MOST_LAYERS or not hidden:
        return "its metadata does not say how many layers and heads there are"
    vocabulary = whole_number(keys, "vocab_size") or vocabulary
    if rank := whole_number(keys, "attention.kv_lora_rank"):
        rotary = whole_number(keys, "rope.dimension_count") or 64
        return _cache(Layout([Layer(rank + rotary, rank + rotary)] * layers, [], vocabulary), wanted, "")
    counts = keys.get("attention.head_count_kv", heads)
    each_layer = list(counts) if isinstance(counts, tuple) else [counts or heads] * layers
    if isinstance(keys.get("attention.head_count"), tuple):
        heads = max((int(count) for count in keys["attention.head_count"]), default=0) or None
    if not all(isinstance(count, int) and 0 <= count < 1 << 20 for count in each_layer):
        return "its metadata does not say how many heads are cached"
    key = whole_number(keys, "attention.key_length") or (hidden // heads if heads else None)
    value = whole_number(keys, "attention.value_length") or key
    if key is None or value is None:
        return "its metadata does not say how large a head is"
    windows = _gguf_windows(keys, name, layers)
    parts = [
        Layer(count * (key + value), count * max(key, value), windows[number])
        for number, count in enumerate(each_layer[:layers])
        if count
    ]
    note = (
        "its other layers keep a state of a fixed size, which is not counted" if len(parts) < layers else ""
    )
    return _cache(Layout(parts, [], vocabulary), wanted, note)


def text_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Of a model with images or audio the part that generates."""
    for name in _TEXT:
        inner = config.get(name)
        if isinstance(inner, dict) and inner:
            return inner
    return dict(config)


def _most_layers(config: Mapping[str, Any]) -> int:
    """Of the config and of those in it."""
    numbers = [config.get(name) for name in (*_LAYERS, "num_kv_shared_layers")]
    most = max((abs(number) for number in numbers if isinstance(number, int)), default=0)
    return max([most, *(_most_layers(inner) for inner in config.values() if isinstance(inner, Mapping))])


def _is_encoder(config: Mapping[str, Any], text: Mapping[str, Any]) -> bool:
    architectures = config.get("architectures")
    names = [str(name) for name in architectures] if isinstance(architectures, list) else []
    generates = config.get("is_encoder_decoder") or text.get("is_decoder")
    return bool(names) and not generates and all(_NO_CACHE.search(name) for name in names)


def _cache(layout: Layout, wanted: Wanted, note: str, high: int | None = None) -> KvCache:
    """``high``: numbers a token takes where the other form is kept."""
    rows, element = wanted.batch * wanted.beams, ELEMENT[wanted.kind or "fp16"]
    call = Call(rows, wanted.context, wanted.context, wanted.context if layout.cross else 0, element_size=1)
    need = need_of(layout, call)
    size = round(need.cache * element)
    logits = rows * layout.vocabulary * 6  # of the last position, in 16 bits and as fp32
    most = size if high is None else round(high * wanted.context * rows * element)
    return KvCache(size, max(size, most), round(need.copy * element), logits, note)


def _latent(text: Mapping[str, Any], rank: int, layers: int, wanted: Wanted) -> KvCache:
    rotary = whole_number(dict(text), "qk_rope_head_dim") or 64
    heads = whole_number(dict(text), "num_attention_heads") or 1
    key = (whole_number(dict(text), "qk_nope_head_dim") or 128) + rotary
    value = whole_number(dict(text), "v_head_dim") or 128
    vocabulary = whole_number(dict(text), "vocab_size") or 0
    layout = Layout([Layer(rank + rotary, rank + rotary)] * layers, [], vocabulary)
    expanded = layers * heads * (key + value)
    times = expanded / (layers * (rank + rotary))
    return _cache(
        layout,
        wanted,
        f"latent attention: counted as latents, which vLLM and llama.cpp keep; a program that keeps whole keys and values takes {times:.0f} times as much",
        expanded,
    )


def _layout_of_tensors(tensors: Sequence[Part], text: Mapping[str, Any]) -> Layout | None:
    """From the shapes of the key and value projections: also of layers that no config describes."""
    sizes: dict[int, list[int]] = {}
    for part in tensors:
        if part.type not in ("F32", "F16", "BF16", "F8_E4M3") or not part.shape or len(part.shape) != 2:
            continue
        if (match := _KEY.search(part.name) or _VALUE.search(part.name)) and "vision" not in part.name:
            sizes.setdefault(int(match[1]), []).append(part.shape[0])
    whole = {layer: rows for layer, rows in sizes.items() if len(rows) == 2}
    if not whole or len(whole) != len(sizes):
        return None
    types = text.get("layer_types")
    window = whole_number(dict(text), "sliding_window")

    def limit(layer: int) -> int | None:
        sliding = isinstance(types, list) and layer < len(types) and "sliding" in str(types[layer])
        return window if sliding else None

    layers = [Layer(sum(rows), max(rows), limit(layer)) for layer, rows in sorted(whole.items())]
    return Layout(layers, [], whole_number(dict(text), "vocab_size") or 0)


def _gguf_windows(keys: Mapping[str, Any], name: str, layers: int) -> list[int | None]:
    window = whole_number(dict(keys), "attention.sliding_window")
    pattern = keys.get("attention.sliding_window_pattern")
    if window is None:
        return [None] * layers
    if isinstance(pattern, tuple) and len(pattern) >= layers:
        return [window if sliding else None for sliding in pattern[:layers]]
    period = pattern if isinstance(pattern, int) and not isinstance(pattern, bool) else _WINDOWED.get(name)
    if not period:
        return [None] * layers  # which of them is not known: none, to be safe
    return [None if period > 1 and (layer + 1) % period == 0 else window for layer in range(layers)]


def _namespace(value: Any) -> Any:
    """As transformers' own configs are: attributes, not keys."""
    if isinstance(value, Mapping):
        return SimpleNamespace(
            **{str(key): _namespace(inner) for key, inner in value.items() if str(key).isidentifier()}
        )
    return value

"""The key/value cache from a config, a GGUF's metadata or shapes; against real caches in tests/unit/leaf/test_kv_cache.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from helpers_models import LLAMA_8B, LLAMA_8B_CONFIG, LLAMA_GGUF, llama_gguf, llama_shapes

from oomproof.sizing.data.load_cost import Part
from oomproof.sizing.kv_sizes import KvCache, Wanted, cache_of_config, cache_of_gguf
from oomproof.sizing.model_weights import read_weights

TOKEN = 128 << 10  # bytes of Llama 3.1 8B's cache, a token


def cache(
    config: dict[str, Any], wanted: Wanted, shapes: dict[str, tuple[int, ...]] | None = None
) -> KvCache:
    tensors = [Part(name, "BF16", shape, 0) for name, shape in (shapes or {}).items()]
    result = cache_of_config(config, tensors, wanted)
    assert isinstance(result, KvCache), result
    return result


def test_context_batch_beams_and_type() -> None:
    assert cache(LLAMA_8B_CONFIG, Wanted(4096)).size == 4096 * TOKEN
    assert cache(LLAMA_8B_CONFIG, Wanted(1000, 3, 2)).size == 6000 * TOKEN
    assert cache(LLAMA_8B_CONFIG, Wanted(1000, kind="fp32")).size == 2000 * TOKEN
    assert cache(LLAMA_8B_CONFIG, Wanted(1000, kind="q8_0")).size == 1000 * TOKEN * 34 // 64


def test_a_window_stops_growing() -> None:
    config = {
        **LLAMA_8B_CONFIG,
        "sliding_window": 1024,
        "layer_types": (["sliding_attention"] * 3 + ["full_attention"]) * 8,
    }
    assert cache(config, Wanted(4096)).size == 4096 * TOKEN // 4 + 1024 * TOKEN * 3 // 4


def test_latent_attention_is_an_interval() -> None:
    config = {**LLAMA_8B_CONFIG, "model_type": "deepseek_v3", "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128}  # fmt: skip
    both = cache(config, Wanted(1000))
    assert both.size == 1000 * 32 * 576 * 2 and both.high == 1000 * 32 * 32 * 320 * 2
    assert "18 times" in both.note


def test_a_hybrid_is_read_from_its_tensors() -> None:
    """Three layers of four keep a state; the fourth has keys and values."""
    shapes = {
        name: shape
        for name, shape in LLAMA_8B.items()
        if "self_attn" not in name or int(name.split(".")[2]) % 4 == 3
    }
    config = {
        **LLAMA_8B_CONFIG,
        "model_type": "qwen3_next",
        "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 8,
    }
    result = cache(config, Wanted(1000), shapes)
    assert result.size == 1000 * TOKEN // 4 and "state of a fixed size" in result.note


def test_a_config_without_heads_is_read_from_its_tensors() -> None:
    """Gemma 3's text_config leaves out what is the default."""
    config = {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "text_config": {"hidden_size": 64, "num_hidden_layers": 2},
    }
    assert cache(config, Wanted(100), llama_shapes()).size == 100 * 2 * 64 * 2


@pytest.mark.parametrize(
    ("config", "word"),
    [
        ({"architectures": ["BertForMaskedLM"], "model_type": "bert"}, "does not generate"),
        ({**LLAMA_8B_CONFIG, "num_hidden_layers": 10**12}, "claims more layers"),
        ({**LLAMA_8B_CONFIG, "model_type": "mamba2"}, "mamba2"),
        ({"decoder": {"num_hidden_layers": 10**18, "hidden_size": 1}}, "claims more layers"),
        ({}, "layers and heads"),
        ({"num_hidden_layers": "many", "hidden_size": None}, "layers and heads"),
    ],
)
def test_what_cannot_be_told_is_said(config: dict[str, Any], word: str) -> None:
    assert word in str(cache_of_config(config, [], Wanted(1000)))


def gguf_cache(wanted: Wanted, **more: Any) -> KvCache:
    metadata = {**LLAMA_GGUF, **more}
    result = cache_of_gguf(
        {key: tuple(value) if isinstance(value, list) else value for key, value in metadata.items()},
        1000,
        wanted,
    )
    assert isinstance(result, KvCache), result
    return result


def test_gguf_says_the_same_as_the_config(tmp_path: Path) -> None:
    assert gguf_cache(Wanted(4096)).size == 4096 * TOKEN
    weights = read_weights([str(llama_gguf(tmp_path / "m.gguf"))])
    assert weights.metadata is not None and weights.vocabulary == 2
    result = cache_of_gguf(weights.metadata, weights.vocabulary, Wanted(4096))
    assert isinstance(result, KvCache) and result.size == 4096 * TOKEN * 2 // 32


def test_gguf_with_heads_by_layer_windows_and_latents() -> None:
    assert (
        gguf_cache(Wanted(100), **{"llama.attention.head_count_kv": [8, 0, 0, 0] * 8}).size
        == 100 * TOKEN // 4
    )
    windowed = {
        "llama.attention.sliding_window": 10,
        "llama.attention.sliding_window_pattern": [True, False] * 16,
    }
    assert gguf_cache(Wanted(100), **windowed).size == (50 + 5) * TOKEN
    assert gguf_cache(Wanted(100), **{"llama.attention.sliding_window": 10}).size == 100 * TOKEN, (
        "which layers is not known"
    )
    latent = {"llama.attention.kv_lora_rank": 512, "llama.rope.dimension_count": 64}
    assert gguf_cache(Wanted(100), **latent).size == 100 * 32 * 576 * 2
    assert "layers and heads" in str(cache_of_gguf({"general.architecture": "llama"}, 0, Wanted(1)))

"""What is read from the files of real (tiny, random) models against the models themselves: parameters, bytes, caches."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from oomproof.sizing.kv_sizes import KvCache, Wanted
from oomproof.sizing.model_files import model_files
from oomproof.sizing.model_sizing import ModelSizing, size_model

BATCH, PROMPT, NEW = 2, 24, 8
COMMON = {"vocab_size": 96, "bos_token_id": 1, "eos_token_id": None, "pad_token_id": 0}
ROPE = {
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_size": 64,
    "intermediate_size": 96,
}
LINEAR = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}
MOE = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
}
LATENT = {"kv_lora_rank": 16, "q_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 16, "n_routed_experts": 4,
          "n_group": 1, "topk_group": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "first_k_dense_replace": 1, "num_key_value_heads": 4}  # fmt: skip

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", ROPE),
    "gpt2": ("GPT2Config", {"n_layer": 3, "n_head": 4, "n_embd": 64, "n_positions": 256}),
    "gemma3": ("Gemma3TextConfig", {**ROPE, "num_hidden_layers": 6, "head_dim": 32, "sliding_window": 8}),
    "qwen3": ("Qwen3Config", {**ROPE, "head_dim": 32}),
    "mixtral": ("MixtralConfig", {**ROPE, "num_local_experts": 2}),
    "qwen3-next": ("Qwen3NextConfig", {**ROPE, **LINEAR, **MOE, "head_dim": 32}),
    "lfm2": ("Lfm2Config", {**ROPE, "layer_types": ["conv", "full_attention", "conv", "full_attention"]}),
    "deepseek": ("DeepseekV3Config", {**ROPE, **LATENT}),
}
EVERY_TIME = ("llama", "gemma3")


def made(family: str, folder: Path, dtype: str) -> Any:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    name, settings = FAMILIES[family]
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.manual_seed(1)
    config = getattr(transformers, name)(**COMMON, **settings)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype)).eval()
    model.save_pretrained(folder)
    return model


def sized(folder: Path, context: int) -> ModelSizing:
    files = model_files(str(folder))
    assert files is not None
    return size_model(files, Wanted(0, BATCH), context)


def cached(cache: Any) -> Iterator[Any]:
    for layer in cache.layers:
        for name in ("keys", "values"):
            tensor = getattr(layer, name, None)
            if tensor is not None and hasattr(tensor, "untyped_storage"):
                yield tensor


@pytest.mark.parametrize(
    "family",
    [family if family in EVERY_TIME else pytest.param(family, marks=pytest.mark.long) for family in FAMILIES],
)
def test_files_tell_what_the_model_has(family: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    model = made(family, tmp_path, "float32")
    prompt = torch.randint(2, 90, (BATCH, PROMPT))
    with torch.inference_mode():
        done = model.generate(
            prompt, max_new_tokens=NEW, min_new_tokens=NEW, do_sample=False, return_dict_in_generate=True
        )
    read = sized(tmp_path, PROMPT + NEW - 1)
    tensors = {tensor.data_ptr(): tensor.numel() for tensor in model.state_dict().values()}  # tied ones once
    assert (
        read.weights.parameters == sum(tensors.values()) and read.weights.bytes == 4 * read.weights.parameters
    )
    assert isinstance(read.cache, KvCache), read.cache
    storages = {
        tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes()
        for tensor in cached(done.past_key_values)
    }
    real = sum(storages.values())
    if family == "deepseek":  # as latents, or as whole keys and values, by the version
        assert real in (read.cache.size, read.cache.high)
    elif family == "gemma3":  # a window keeps one token less than it says, or is a view of one more
        assert abs(read.cache.size - real) <= real / 7
    else:
        assert read.cache.size == real


def test_torchs_own_format_tells_the_same(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    model = made("llama", tmp_path / "a", "bfloat16")
    (tmp_path / "b").mkdir()
    model.config.save_pretrained(tmp_path / "b")
    torch.save(model.state_dict(), tmp_path / "b" / "pytorch_model.bin")
    first, second = sized(tmp_path / "a", 100), sized(tmp_path / "b", 100)
    assert (
        first.weights.by_type == second.weights.by_type
        and first.weights.parameters == second.weights.parameters
    )
    assert [variant.weights for variant in first.variants] == [variant.weights for variant in second.variants]

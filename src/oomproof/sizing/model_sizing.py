"""What running a model takes, from its files alone: on a card, in RAM, while it is loaded, and in other types."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from oomproof.records import dataclass, replace
from oomproof.sizing.card_constants import RUNNING
from oomproof.sizing.data.load_cost import call
from oomproof.sizing.estimate import Estimate, Phase, Sizing
from oomproof.sizing.json_source import whole_number
from oomproof.sizing.kv_sizes import KvCache, Wanted, cache_of_config, cache_of_gguf, text_config
from oomproof.sizing.model_files import ModelFiles
from oomproof.sizing.model_weights import Weights, read_weights
from oomproof.sizing.quantized_weights import TYPES, bytes_as
from oomproof.units import MIB

DEFAULT_CONTEXT = 4096
# Python with torch, transformers and the model's modules imported: 253 MiB (bench/model_sizes.py); llama.cpp has next to nothing
_PROCESS = (200 * MIB, 260 * MIB, 400 * MIB)
_LLAMA_CPP = (10 * MIB, 40 * MIB, 120 * MIB)
_ON_CPU = 2  # what oneDNN and malloc keep beside the activations themselves (bench/model_sizes.py)
_INNER = ("intermediate_size", "n_inner", "d_ff", "ffn_dim", "feed_forward_length")
_EXPERT = ("moe_intermediate_size", "expert_feed_forward_length")
_UBATCH = 512  # tokens that llama.cpp works on at once
_EXPERT_TENSOR = re.compile(r"\.experts\.\d+\.")


@dataclass(frozen=True, slots=True)
class Loading:
    """Bytes at the peak: ``own`` memory, and ``mapped`` pages of the file, which the kernel can take back."""

    call: str
    own: int
    mapped: int


def loadings_of(weights: Weights, name: str, files: Sequence[str], has_config: bool) -> tuple[Loading, ...]:
    """The usual way first. As measured with transformers 5.22 and torch 2.13 (bench/model_sizes.py)."""
    size = weights.bytes + weights.optimizer
    if weights.kind == "GGUF":
        return (Loading("llama.cpp, which maps it", 0, size), Loading("llama.cpp with --no-mmap", size, 0))
    loader = "safetensors.torch.load_file" if weights.kind == "safetensors" else "torch.load"
    way = f"{call(loader, files[0]) if len(files) == 1 else f'{loader}() of each shard'}, then model.load_state_dict()"
    # the model's own memory, and beside it the file that is being copied into it
    beside = weights.largest_file
    copied = Loading(way, size, beside) if weights.kind == "safetensors" else Loading(way, size + beside, 0)
    if not has_config:
        return (copied,)
    # what need not be converted is mapped; of a mixture, transformers 5 joins the experts of each layer into tensors of its own
    joined = sum(part.bytes or 0 for part in weights.tensors if _EXPERT_TENSOR.search(part.name))
    ways = [Loading(call("from_pretrained", name), joined, size)]
    if not weights.quantized:
        kind, other = ("fp32", "float32") if "fp32" not in list(weights.by_type)[:1] else ("bf16", "bfloat16")
        ways.append(
            Loading(call("from_pretrained", name, f"dtype=torch.{other}"), bytes_as(kind, weights), size)
        )
    return (*ways, copied)


@dataclass(frozen=True, slots=True)
class Variant:
    """The model in one type. ``stored``: as it is in its files."""

    kind: str
    stored: bool
    weights: int
    gpu: Estimate
    host: Estimate


@dataclass(frozen=True, slots=True)
class ModelSizing:
    """``variants``: as stored first. ``cache``: a sentence where there is none."""

    name: str
    title: str  # LlamaForCausalLM
    weights: Weights
    adapter: int
    files: int
    wanted: Wanted
    cache: KvCache | str
    variants: tuple[Variant, ...]
    loadings: tuple[Loading, ...]
    training: tuple[int, int] | None  # at least: in bf16, in fp32 or autocast
    notes: tuple[str, ...]

    @property
    def stored(self) -> Variant:
        return self.variants[0]

    @property
    def sizing(self) -> Sizing:
        stored = self.stored
        usual = self.loadings[0]
        phases = (
            Phase("load", None, usual.own + usual.mapped, True),
            Phase("generate", stored.gpu.expected, stored.host.expected, True),
        )
        return Sizing(
            stored.gpu, stored.host, phases, "the headers of its files; nothing was loaded", notes=self.notes
        )

    def as_json(self) -> dict[str, Any]:
        cache = self.cache if isinstance(self.cache, KvCache) else None
        return {
            "name": self.name,
            "architecture": self.title or None,
            "format": self.weights.kind,
            "files": self.files,
            "parameters": self.weights.parameters,
            "weights_bytes": self.weights.bytes,
            "types": self.weights.by_type,
            "adapter_bytes": self.adapter,
            "optimizer_bytes": self.weights.optimizer,
            "context": self.wanted.context,
            "batch": self.wanted.batch,
            "beams": self.wanted.beams,
            "kv_type": self.wanted.kind,
            "kv_cache_bytes": cache.size if cache else None,
            "kv_cache_note": cache.note if cache else self.cache,
            "variants": [
                {"type": variant.kind, "stored": variant.stored, "weights_bytes": variant.weights,
                 "gpu": variant.gpu.as_json(), "host": variant.host.as_json()}
                for variant in self.variants
            ],
            "loading": [
                {"call": loading.call, "own_bytes": loading.own, "mapped_bytes": loading.mapped} for loading in self.loadings
            ],
            "training_at_least_bytes": {"bf16": self.training[0], "fp32": self.training[1]} if self.training else None,
        }  # fmt: skip


def size_model(model: ModelFiles, wanted: Wanted | None = None, context: int | None = None) -> ModelSizing:
    """``context``: as the user asked; else Ollama's setting, else 4096 or what the model can do."""
    weights = read_weights(model.files, model.config)
    adapter = read_weights(model.adapters).bytes if model.adapters else 0
    config = dict(model.config or {})
    asked = wanted or Wanted(0)
    longest = _longest(config, weights)
    context = context or model.context or min(DEFAULT_CONTEXT, longest or DEFAULT_CONTEXT)
    asked = replace(asked, context=context)
    stored = _stored_kind(weights)
    wanted = asked.of_model(stored)
    cache = _cache(config, weights, wanted)
    notes = list(model.notes)
    if longest and context > longest:
        notes.append(f"a context of {context:,} tokens is more than the {longest:,} it was made for")
    if isinstance(cache, KvCache) and cache.note:
        notes.append(cache.note)
    if weights.optimizer:
        notes.append(
            "a checkpoint of a training: its optimizer state is loaded with it, and is not needed to run it"
        )
    if weights.kind == "pickle":
        notes.append(
            "a file of torch.save before 1.6: the types in it are not known, fp32 is taken; it was not unpickled"
        )
    is_whole = isinstance(cache, KvCache) or bool(config)
    variants = [_variant(stored, True, weights.bytes, adapter, config, weights, asked)]
    if weights.kind != "pickle":
        variants += [
            _variant(kind, False, bytes_as(kind, weights), adapter, config, weights, asked)
            for kind in TYPES
            if kind != stored
        ]
    training = (
        (weights.parameters * 8, weights.parameters * 16)
        if is_whole and not weights.quantized and weights.kind != "GGUF"
        else None
    )
    return ModelSizing(
        model.name,
        _title(config, weights),
        weights,
        adapter,
        len(model.files),
        wanted,
        cache,
        tuple(variants),
        loadings_of(weights, model.name, model.files, bool(config)),
        training,
        tuple(notes),
    )


def _title(config: Mapping[str, Any], weights: Weights) -> str:
    names = config.get("architectures")
    if isinstance(names, list) and names:
        return str(names[0])
    if weights.metadata is not None:
        return str(weights.metadata.get("general.name") or weights.metadata.get("general.architecture") or "")
    return str(config.get("model_type") or "")


def _stored_kind(weights: Weights) -> str:
    """bf16, q4_k: of the type that most bytes have."""
    return next(iter(weights.by_type))


def _longest(config: Mapping[str, Any], weights: Weights) -> int | None:
    if weights.metadata is not None:
        name = weights.metadata.get("general.architecture", "")
        return whole_number(dict(weights.metadata), f"{name}.context_length")
    return whole_number(text_config(config), "max_position_embeddings", "n_positions", "max_seq_len", "n_ctx")


def _cache(config: Mapping[str, Any], weights: Weights, wanted: Wanted) -> KvCache | str:
    if weights.metadata is not None:
        return cache_of_gguf(weights.metadata, weights.vocabulary, wanted)
    if not config:
        return "no config.json beside it: its key/value cache is not known"
    return cache_of_config(config, () if weights.quantized else weights.tensors, wanted)


def _variant(
    kind: str,
    stored: bool,
    size: int,
    adapter: int,
    config: Mapping[str, Any],
    weights: Weights,
    asked: Wanted,
) -> Variant:
    wanted = asked.of_model(kind)
    cache = _cache(config, weights, wanted)
    by_llama_cpp = (weights.kind == "GGUF" and stored) or kind.startswith("q")
    work = _work(config, weights, wanted, by_llama_cpp, cache)
    if kind == "fp32" and not by_llama_cpp:
        work *= 2
    process = _LLAMA_CPP if by_llama_cpp else _PROCESS
    return Variant(
        kind,
        stored,
        size,
        _estimate(
            size, adapter, cache, work, "context and libraries", (RUNNING.low, RUNNING.usual, RUNNING.high)
        ),
        _estimate(size, adapter, cache, work if by_llama_cpp else _ON_CPU * work, "process", process),
    )


def _estimate(
    weights: int, adapter: int, cache: KvCache | str, work: int, base: str, figures: tuple[int, int, int]
) -> Estimate:
    kept = cache if isinstance(cache, KvCache) else KvCache(0, 0, 0, 0)
    parts = {
        "weights": weights,
        "adapter": adapter,
        "KV cache": kept.size,
        "activations": work,
        base: figures[1],
    }
    parts = {name: size for name, size in parts.items() if size}
    fixed = weights + adapter
    # a prompt of a few tokens works on next to nothing; what a forward pass holds differs most between models; a cache that
    # grows by copying has the old part beside the new one
    low = fixed + kept.size + figures[0]
    high = fixed + kept.high + kept.grows + work + work // 2 + figures[2]
    return Estimate(low, sum(parts.values()), max(high, sum(parts.values())), parts)


def _work(
    config: Mapping[str, Any], weights: Weights, wanted: Wanted, by_llama_cpp: bool, cache: KvCache | str
) -> int:
    """Activations of a prompt as long as the context, the most that a forward pass holds at once: in the MLP, of each token
    three inner vectors beside four hidden ones; queries and their rotated copy."""
    if not isinstance(cache, KvCache):
        return 0
    text = text_config(config)
    if weights.metadata is not None:
        name = weights.metadata.get("general.architecture", "")
        text = {key.removeprefix(f"{name}."): value for key, value in weights.metadata.items()}
    hidden = whole_number(text, "hidden_size", "n_embd", "d_model", "embedding_length") or 0
    inner = whole_number(text, *_EXPERT) or whole_number(text, *_INNER) or 4 * hidden
    inner *= whole_number(text, "num_experts_per_tok", "expert_used_count") or 1
    heads = whole_number(text, "num_attention_heads", "n_head", "num_heads", "attention.head_count") or 0
    queries = heads * (whole_number(text, "head_dim", "attention.key_length") or 0) or hidden
    each = 4 * hidden + 3 * inner + 2 * queries
    if by_llama_cpp:
        vocabulary = whole_number(text, "vocab_size") or weights.vocabulary
        return min(_UBATCH, wanted.context) * (each + vocabulary) * 4
    return wanted.batch * wanted.beams * wanted.context * each * 2 + cache.logits

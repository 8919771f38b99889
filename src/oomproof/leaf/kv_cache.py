"""How large a key/value cache becomes, from a model's config alone: no tensor is made, nothing is loaded.

What is cached per layer and token is a key and a value for every key/value head. Sliding-window layers stop growing
at their window. An encoder-decoder caches the encoder's tokens once more, for cross attention. Where a model keeps
something else (state spaces, compressed attention), the answer is a sentence that says so, never a guess.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Layer(NamedTuple):
    """One attention layer: elements cached per token, and the window it stops at."""

    elements: int  # of key and value together
    largest: int  # of the larger of the two: what one concatenation copies
    window: int | None = None


class Layout(NamedTuple):
    layers: list[Layer]
    cross: list[Layer]  # of the encoder's tokens; empty for a decoder alone
    vocabulary: int


class Call(NamedTuple):
    """One generate() in numbers."""

    rows: int  # sequences in the cache: batch times beams or returned sequences
    tokens: int  # cached at the end: prompt and new tokens, less the last one, which is never fed back
    new_tokens: int
    source: int = 0  # the encoder's tokens
    element_size: int = 2
    static: bool = False  # allocated whole at the start, in place
    scores: int = 0  # float32 logits kept per new token: output_scores, output_logits


class Need(NamedTuple):
    """Bytes. ``cache`` is what the cache object holds at the end, the rest what stands beside it at the peak."""

    cache: int
    copy: (
        int  # a growing cache is concatenated layer by layer: the old one and the new one stand side by side
    )
    logits: int

    @property
    def total(self) -> int:
        return self.cache + self.copy + self.logits


_CAREFUL = 0.9  # of what is within reach: reserved memory exceeds what is live by 2 to 12 % (measured)
# Layer types of transformers whose state is not a key and a value per token.
_UNKNOWN = (
    "mamba",
    "linear_attention",
    "conv",
    "hybrid",
    "recurrent",
    "rwkv",
    "compressed",
    "indexed",
    "sparse",
)
_UNKNOWN_MODELS = ("mamba", "rwkv", "xlstm", "reformer", "xlnet", "minimax", "recurrent", "jamba", "zamba",
                   "falcon_mamba", "falcon_h1", "bamba", "lfm2", "nemotron_h", "plamo2", "granitemoehybrid",
                   "transfo")  # fmt: skip


def layout_of(config: Any, windows: bool = True) -> Layout | str:
    """What the model caches; a sentence where that cannot be told. ``windows``: whether this version of
    transformers lets a growing cache stop at the window (4.56 and newer)."""
    # an encoder-decoder that names its decoder's own sizes is asked itself: transformers 5 hands out a copy in which
    # they are the defaults
    text = config if _first(config, "decoder_layers", "num_decoder_layers") else _decoder(config)
    kind = str(_get(text, "model_type") or "")
    if any(kind.startswith(name) for name in _UNKNOWN_MODELS) and not kind.startswith("minimax_m"):
        return f"a {kind} keeps a state that is no key/value cache"
    count = _first(
        text, "decoder_layers", "num_decoder_layers", "num_hidden_layers", "n_layer", "num_layers", "n_layers"
    )
    heads = _first(text, "decoder_attention_heads", "num_attention_heads", "n_head", "num_heads", "n_heads")
    hidden = _first(text, "d_model" if kind in ("t5", "mt5", "umt5", "bart", "mbart") else "hidden_size",
                    "hidden_size", "n_embd", "d_model")  # fmt: skip
    vocabulary = _first(text, "vocab_size") or _first(config, "vocab_size") or 0
    if not count or not heads or not hidden:
        return "its config does not say how many layers and heads there are"
    if _get(text, "kv_lora_rank"):
        # 5.22 caches the latents, others the expanded keys and values: a factor of ten, and no field that tells
        return "it caches compressed keys and values (latent attention), in a form that differs by version"
    types = _get(text, "layer_types")
    window, chunk = _get(text, "sliding_window"), _get(text, "attention_chunk_size")
    if _get(text, "use_sliding_window") is False:
        window = None
    if not isinstance(types, (list, tuple)) or len(types) < count:
        types = [
            "sliding_attention" if window else "chunked_attention" if chunk else "full_attention"
        ] * count
    shared = _first(text, "num_kv_shared_layers") or 0
    layers = []
    for index, layer_kind in enumerate(list(types)[: count - shared]):
        name = str(layer_kind)
        if any(part in name for part in _UNKNOWN):
            return f"its layers of type {name} keep a state that is no key/value cache"
        limit = window if "sliding" in name else chunk if "chunked" in name else None
        sizes = _heads(_layer_config(text, index), heads, hidden)
        if sizes is None:
            return "its config does not say how large a head is"
        layers.append(Layer(sum(sizes), max(sizes), int(limit) if limit and windows else None))
    cross = []
    if _get(config, "is_encoder_decoder") or _get(text, "add_cross_attention"):
        cross = [Layer(layer.elements, layer.largest) for layer in layers]
    return Layout(layers, cross, int(vocabulary))


def need_of(layout: Layout, call: Call) -> Need:
    """The bytes of one call at its peak, without the activations of the forward pass."""
    size = call.rows * call.element_size
    cache = sum(layer.elements * _kept(layer, call) for layer in layout.layers) * size
    cache += sum(layer.elements for layer in layout.cross) * call.source * size
    copy = 0
    if not call.static and layout.layers:
        copy = max(layer.largest * _kept(layer, call) for layer in layout.layers) * size
    # the last position's logits, once in the model's type and once as float32 for the processors
    logits = call.rows * layout.vocabulary * (call.element_size + 4)
    logits += call.rows * layout.vocabulary * 4 * call.new_tokens * call.scores
    return Need(cache, copy, logits)


def usable(reach: int, beside: int = 0) -> int:
    """What a call's plan may count on of the bytes within reach: a cache that grows by copying leaves gaps between its
    blocks. ``beside``: what is known to go to something that the plan does not hold."""
    return int(max(0, reach - beside) * _CAREFUL)


def largest_that_fits(layout: Layout, call: Call, group: int, available: int) -> Any:
    """(batch, new tokens): the largest batch at this length, and the largest length at this batch, within ``available``.

    ``group`` is how many rows of the cache one example takes (beams). 0 where not even one fits."""
    batch = _most(
        call.rows // max(1, group),
        lambda n: need_of(layout, call._replace(rows=n * group)).total <= available,
    )

    def shorter(new: int) -> bool:
        tokens = call.tokens - call.new_tokens + new
        return need_of(layout, call._replace(tokens=tokens, new_tokens=new)).total <= available

    return batch, _most(call.new_tokens, shorter)


def _most(upper: int, fits: Any) -> int:
    """The largest n in 0..upper that fits; what fits must also fit when smaller."""
    low, high = 0, max(0, upper)
    while low < high:
        middle = (low + high + 1) // 2
        if fits(middle):
            low = middle
        else:
            high = middle - 1
    return low


def _kept(layer: Layer, call: Call) -> int:
    return min(call.tokens, layer.window) if layer.window else call.tokens


def _heads(config: Any, heads: int, hidden: int) -> Any:
    """(elements of a key, elements of a value) per token, or None."""
    if _get(config, "new_decoder_architecture"):
        groups = heads  # Falcon 40B: few key/value heads, but they are repeated before they are cached
    elif _get(config, "multi_query") is not None:
        groups = 1 if _get(config, "multi_query") else heads  # GPT-BigCode, Falcon 7B
    else:
        groups = _first(config, "num_key_value_heads", "num_kv_heads", "multi_query_group_num") or heads
    size = _first(config, "head_dim", "d_kv", "attention_head_size")
    if size is None:
        if hidden % heads:
            return None
        size = hidden // heads
    return groups * size, groups * size


def _decoder(config: Any) -> Any:
    get = getattr(config, "get_text_config", None)
    if get is not None:
        try:
            return get(decoder=True)
        except Exception:  # an older signature, or a config with several decoders
            pass
    for name in ("text_config", "llm_config", "language_config", "decoder"):
        inner = _get(config, name)
        if inner is not None and not isinstance(inner, (str, int, dict)):
            return inner
    return config


def _layer_config(config: Any, index: int) -> Any:
    """Some models have layers of different shapes (OpenELM, DeciLM): transformers 5 tells each one's."""
    try:
        layers = config.per_layer_config
        return layers[index]
    except Exception:  # configs without layers of their own
        return config


def _get(config: Any, name: str) -> Any:
    try:
        return getattr(config, name, None)
    except Exception:  # a config may compute what it is asked for, and fail at it
        return None


def _first(config: Any, *names: str) -> int | None:
    for name in names:
        value = _get(config, name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return None

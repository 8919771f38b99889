"""Models that transformers loads with a BitsAndBytesConfig: their linear layers as bitsandbytes keeps and multiplies them, without its kernels.

From its source (0.50): 4 bits with a scale for 64 weights, those scales in 8 bits where double quantization is asked for; in 8 bits a scale a row. A
weight is made anew in the type it is computed in, in both passes. Nothing of this was measured on a card.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.nn import functional

# left as they are, unless the config names others
_HEADS = ("lm_head", "embed_out", "output", "score", "classifier")
_BLOCK, _SCALES = 64, 256


class _Product(torch.autograd.Function):  # type: ignore[misc]
    """``eight``: whether the input is quantized too, and kept for the backward pass."""

    @staticmethod
    def forward(context: Any, source: Any, shape: tuple[int, int], eight: bool) -> Any:
        context.shape = shape
        if eight:
            rows = source.new_empty(source.shape, dtype=torch.int8)
            whole = source.new_empty((*source.shape[:-1], shape[0]), dtype=torch.int32)
            result = source.new_empty(whole.shape)
            del rows, whole
            context.save_for_backward(source)
            return result
        return functional.linear(source, source.new_empty(shape))

    @staticmethod
    def backward(context: Any, grad: Any) -> Any:
        return grad @ grad.new_empty(context.shape), None, None


class QuantizedLinear(nn.Linear):  # type: ignore[misc]
    """A linear layer for everybody who asks; its weight is packed."""

    def __init__(self, plain: nn.Linear, config: Any) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = plain.in_features, plain.out_features
        self.eight = bool(getattr(config, "load_in_8bit", False))
        self.compute_dtype = (
            torch.float16 if self.eight else getattr(config, "bnb_4bit_compute_dtype", torch.float32)
        )
        count = plain.weight.numel()
        packed = torch.empty(count if self.eight else (count + 1) // 2, 1, dtype=torch.uint8, device="cuda")
        self.weight = nn.Parameter(packed, requires_grad=False)
        if self.eight:
            scales = [torch.empty(self.out_features, device="cuda")]
        elif getattr(config, "bnb_4bit_use_double_quant", False):
            blocks = -(-count // _BLOCK)
            scales = [
                torch.empty(blocks, dtype=torch.uint8, device="cuda"),
                torch.empty(-(-blocks // _SCALES), device="cuda"),
            ]
        else:
            scales = [torch.empty(-(-count // _BLOCK), device="cuda")]
        self.scales = scales
        made = plain.bias is not None
        self.bias = (
            nn.Parameter(torch.empty(self.out_features, dtype=plain.weight.dtype, device="cuda"))
            if made
            else None
        )

    def forward(self, source: Any) -> Any:
        result = _Product.apply(
            source.to(self.compute_dtype), (self.out_features, self.in_features), self.eight
        )
        if self.bias is not None:
            result = result + self.bias.to(result.dtype)
        return result.to(source.dtype)


def install(module: Any, tell: Any) -> None:
    """After transformers' modeling_utils was imported. ``tell``: a note for the user."""
    owner = module.PreTrainedModel
    plain = owner.__dict__["from_pretrained"].__func__

    def from_pretrained(cls: Any, name: Any, *args: Any, **kwargs: Any) -> Any:
        config = _quantization(kwargs)
        if config is None:
            return plain(cls, name, *args, **kwargs)
        try:
            model = _made(cls, name, config, kwargs)
        except Exception as error:
            from .cuda_queries import Refused

            raise Refused(
                f"a model that bitsandbytes quantizes was not followed ({type(error).__name__}: {error}); leave quantization_config out: "
                "then it is told what its frozen weights would save"
            ) from error
        bits = "8 bits" if config.load_in_8bit else "4 bits"
        tell(f"weights in {bits}: what bitsandbytes' kernels take is from its source, not measured")
        return model

    owner.from_pretrained = classmethod(from_pretrained)


def _quantization(kwargs: dict[str, Any]) -> Any:
    """What the script asks for, or what the model's own config says it is stored in."""
    asked = kwargs.get("quantization_config")
    if asked is not None:
        return asked if type(asked).__name__ == "BitsAndBytesConfig" else None
    stored = getattr(kwargs.get("config"), "quantization_config", None)
    if isinstance(stored, dict) and stored.get("quant_method") == "bitsandbytes":
        dtype = getattr(torch, str(stored.get("bnb_4bit_compute_dtype")), torch.float32)
        return SimpleNamespace(
            **{"load_in_8bit": False, "load_in_4bit": False, **stored, "bnb_4bit_compute_dtype": dtype}
        )
    return None


def _made(cls: Any, name: Any, config: Any, kwargs: dict[str, Any]) -> Any:
    """As it would be on the card; its values are nobody's, so that no file is read but the config."""
    shape = kwargs.get("config")
    if shape is None or isinstance(shape, str):
        shape = cls.config_class.from_pretrained(shape or name)
    dtype = kwargs.get("dtype", kwargs.get("torch_dtype"))
    if not isinstance(dtype, torch.dtype):
        dtype = getattr(torch, dtype, None) if isinstance(dtype, str) else None
        known = getattr(shape, "dtype", None)
        dtype = dtype or (known if isinstance(known, torch.dtype) else torch.bfloat16)
    chosen = {key: kwargs[key] for key in ("attn_implementation",) if kwargs.get(key)}
    with torch.device("meta"):
        try:
            model = cls._from_config(shape, dtype=dtype, **chosen)
        except TypeError:  # transformers 4
            model = cls._from_config(shape, torch_dtype=dtype, **chosen)
    kept = tuple(getattr(config, "llm_int8_skip_modules", None) or _HEADS)
    for parent in list(model.modules()):
        for own, child in list(parent.named_children()):
            if type(child) is nn.Linear and own not in kept:
                setattr(parent, own, QuantizedLinear(child, config))
    for part in model.modules():
        if not isinstance(part, QuantizedLinear):
            part.to_empty(device="cuda", recurse=False)
    model.tie_weights()
    model.is_loaded_in_8bit, model.is_loaded_in_4bit = bool(config.load_in_8bit), bool(config.load_in_4bit)
    return model.eval()


def install_paged(module: Any, tell: Any) -> None:
    """After bitsandbytes' functional was imported: the states of its paged optimizers, which a driver moves to and fro."""

    def get_paged(*shape: int, dtype: Any = torch.float32, device: Any = None) -> Any:
        tell(
            "states of a paged optimizer count as on the card; where it is full, the driver moves them to RAM"
        )
        return torch.zeros(*shape, dtype=dtype, device="cuda")

    for name in ("fill", "prefetch_tensor"):
        setattr(module, name, lambda *args, **kwargs: None)
    module.get_paged = get_paged

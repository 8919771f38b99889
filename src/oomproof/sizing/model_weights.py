"""The weights of a model from its files' headers: how many parameters, in which types, how many bytes."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from oomproof.records import dataclass, replace
from oomproof.sizing.data.file_formats import load_cost
from oomproof.sizing.data.gguf_header import read_header
from oomproof.sizing.data.load_cost import LoadCost, Part, call
from oomproof.sizing.data.source_file import BadFile, open_source
from oomproof.sizing.json_source import read_object

_OPTIMIZER = re.compile(r"exp_avg|exp_avg_sq|max_exp_avg_sq|momentum_buffer|square_avg|exp_inf")
_LONGEST_NAME = 1000  # letters; names are searched for what a tensor is
_NAMES = {
    "F64": "fp64",
    "F32": "fp32",
    "F16": "fp16",
    "BF16": "bf16",
    "F8_E4M3": "fp8",
    "F8_E5M2": "fp8",
    "I8": "int8",
    "U8": "uint8",
}
# what quantizers add to a matrix: scales, zero points, the table of values
_SCALES = re.compile(
    r"\.(?:SCB|absmax|quant_map|nested_absmax|nested_quant_map|scales|qzeros|g_idx|weight_scale\w*|input_scale|\w+_scales)$"
    r"|\.quant_state\."
)


@dataclass(frozen=True, slots=True)
class Weights:
    """``tensors`` of the model itself; ``optimizer``: bytes of a checkpoint's optimizer state beside them."""

    kind: str  # safetensors, torch.save, GGUF
    tensors: tuple[Part, ...]
    disk: int
    packed: int = 1  # how many parameters one stored number holds, of matrices that are packed
    optimizer: int = 0
    metadata: Mapping[str, Any] | None = None  # of a GGUF
    largest_file: int = 0  # bytes of the tensors in it
    vocabulary: int = 0  # of a GGUF, from the length of its list of tokens

    @property
    def bytes(self) -> int:
        return sum(part.bytes or 0 for part in self.tensors)

    @property
    def parameters(self) -> int:
        return sum(self.parameters_in(part) for part in self.tensors)

    @property
    def by_type(self) -> dict[str, int]:
        """Type → bytes, the most first."""
        sizes: dict[str, int] = {}
        for part in self.tensors:
            name = _NAMES.get(part.type, part.type.lower())
            sizes[name] = sizes.get(name, 0) + (part.bytes or 0)
        return dict(sorted(sizes.items(), key=lambda item: -item[1]))

    @property
    def quantized(self) -> bool:
        if self.kind == "GGUF":
            return any(part.type[0] in "QITM" for part in self.tensors)
        return self.packed > 1 or any(
            part.type in ("I8", "U8") or part.type.startswith("F8") for part in self.tensors
        )

    def parameters_in(self, part: Part) -> int:
        if part.shape is None:
            return (part.bytes or 0) // 4  # of a type that is not known; most are fp32
        if _SCALES.search(part.name):
            return 0
        count = math.prod(part.shape)
        integers = part.type in ("I32", "U8", "I8")
        return count * self.packed if self.packed > 1 and integers else count


def read_weights(files: Sequence[str], config: Mapping[str, Any] | None = None) -> Weights:
    """Headers only; raises ``OomproofError``."""
    costs = [_cost(path) for path in files]
    tensors = [part for cost in costs for part in cost.parts]
    if (longest := max((len(part.name) for part in tensors), default=0)) > _LONGEST_NAME:
        raise BadFile(files[0], f"has a tensor with a name of {longest:,} letters", "check what wrote it")
    optimizer = [part for part in tensors if _OPTIMIZER.fullmatch(part.name)]
    if optimizer:
        tensors = [part for part in tensors if not _OPTIMIZER.fullmatch(part.name) and part.name != "step"]
    if not tensors:
        raise BadFile(files[0], "holds no tensors", "name the file with the model's weights")
    if len(files) > 1:
        _check_index(files, {part.name for part in tensors})
    metadata, vocabulary = _gguf_metadata(files[0]) if costs[0].format == "GGUF" else (None, 0)
    return Weights(
        costs[0].format,
        tuple(tensors),
        sum(cost.disk for cost in costs),
        _packed(config, tensors),
        sum(part.bytes or 0 for part in optimizer),
        metadata,
        max(sum(part.bytes or 0 for part in cost.parts) for cost in costs),
        vocabulary,
    )


def _cost(path: str) -> LoadCost:
    """By its content; torch.save before 1.6 wrote pickles, of which only the size is known."""
    cost = load_cost(path)
    if cost.format in ("safetensors", "torch.save", "GGUF"):
        return cost
    if cost.format == "pickle":
        with open_source(path) as file:
            if file.read(1) != b"\x80":
                raise BadFile(
                    path,
                    "does not begin as a file of torch.save does",
                    "download it again, or check what wrote it",
                )
        part = Part(os.path.basename(path), "unknown", None, cost.disk)
        return replace(cost, peak=cost.disk, kept=cost.disk, parts=(part,))
    raise BadFile(path, f"is {cost.format}, not a model's weights", f"oomproof data inspect {path}")


def _gguf_metadata(path: str) -> tuple[Mapping[str, Any], int]:
    with open_source(path) as file:
        header = read_header(file, path)
    return header.metadata, header.lengths.get("tokenizer.ggml.tokens", 0)


def _check_index(files: Sequence[str], there: set[str]) -> None:
    """A shard of another model, or of an interrupted download of a newer one, lacks what the index names."""
    folder = os.path.dirname(files[0])
    for index in ("model.safetensors.index.json", "pytorch_model.bin.index.json"):
        path = os.path.join(folder, index)
        if os.path.isfile(path) and index.endswith(f"{os.path.splitext(files[0])[1]}.index.json"):
            listed = read_object(path).get("weight_map") or {}
            missing = [name for name in listed if name not in there]
            if missing:
                raise BadFile(
                    folder,
                    f"{len(missing):,} of {len(listed):,} tensors that {index} names are in none of its shards ({missing[0]})",
                    "a shard is of another model: download or copy the folder again",
                )


def _packed(config: Mapping[str, Any] | None, tensors: Sequence[Part]) -> int:
    """GPTQ and AWQ keep several parameters in an int32, bitsandbytes two in a byte."""
    settings = (config or {}).get("quantization_config")
    if not isinstance(settings, dict):
        return 1
    bits = settings.get("bits") or settings.get("w_bit")
    if any(part.name.endswith(".qweight") for part in tensors) and bits in (2, 3, 4, 8):
        return 32 // int(bits)
    if settings.get("load_in_4bit") or settings.get("quant_method") == "mxfp4":
        return 2
    return 1


_EXPERT = re.compile(r"\.experts\.\d+\.")


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
    joined = sum(part.bytes or 0 for part in weights.tensors if _EXPERT.search(part.name))
    ways = [Loading(call("from_pretrained", name), joined, size)]
    if not weights.quantized:
        other, width = ("bfloat16", 2) if "fp32" in list(weights.by_type)[:1] else ("float32", 4)
        converted = call("from_pretrained", name, f"dtype=torch.{other}")
        ways.append(Loading(converted, width * weights.parameters, size))
    return (*ways, copied)

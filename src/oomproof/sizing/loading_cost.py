"""What bringing weights into memory costs: once or twice, of the process's own or pages of the file."""

from __future__ import annotations

import re
from collections.abc import Sequence

from oomproof.records import dataclass
from oomproof.sizing.data.load_cost import call
from oomproof.sizing.model_weights import Weights
from oomproof.sizing.quantized_weights import bytes_as

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
        kind, other = ("fp32", "float32") if "fp32" not in list(weights.by_type)[:1] else ("bf16", "bfloat16")
        ways.append(
            Loading(call("from_pretrained", name, f"dtype=torch.{other}"), bytes_as(kind, weights), size)
        )
    return (*ways, copied)

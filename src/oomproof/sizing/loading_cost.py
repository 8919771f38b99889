"""What bringing weights into memory costs: once or twice, of the process's own or pages of the file."""

from __future__ import annotations

from oomproof.data.load_cost import call
from oomproof.records import dataclass
from oomproof.sizing.model_weights import Weights


@dataclass(frozen=True, slots=True)
class Loading:
    """Bytes at the peak: ``own`` memory, and ``mapped`` pages of the file, which the kernel can take back."""

    call: str
    own: int
    mapped: int


def loadings_of(weights: Weights, path: str, has_config: bool) -> tuple[Loading, ...]:
    """The usual way first."""
    size = weights.bytes + weights.optimizer
    if weights.kind == "GGUF":
        return (Loading("llama.cpp, which maps it", 0, size), Loading("llama.cpp with --no-mmap", size, 0))
    if weights.kind == "safetensors":
        own = Loading(
            call("safetensors.torch.load_file", path) + ", then model.load_state_dict()", size, size
        )
        return (Loading(call("from_pretrained", path), 0, size), own) if has_config else (own,)
    twice = Loading(call("torch.load", path) + ", then model.load_state_dict()", 2 * size, 0)
    return (Loading(call("from_pretrained", path), size, 0), twice) if has_config else (twice,)

"""Which attention kernel a real card chooses, beside what the virtual one takes it to choose: prints every case, and the count of differences.

python bench/sizing/attention_choice.py
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "src/oomproof/sizing"))

from virtual_gpu.cuda_kernels import chosen_attention

CHOICES = {0: "math", 1: "flash", 2: "efficient", 3: "cudnn"}


def mask_of(kind: str, batch: int, heads: int, length: int, dtype: Any) -> Any:
    shape = (1 if "broadcast" in kind else batch, heads if "heads" in kind else 1, length, length)
    if kind == "none":
        return None
    if kind.startswith("bool"):
        return torch.ones(shape, dtype=torch.bool, device="cuda")
    return torch.zeros(shape, dtype=dtype, device="cuda", requires_grad="learnt" in kind)


def main() -> None:
    wrong = 0
    kinds = ("none", "bool", "bool broadcast", "float", "float heads broadcast", "float heads broadcast learnt", "float heads learnt")  # fmt: skip
    for dtype, width, kind, dropout, learns, length in itertools.product(
        (torch.float32, torch.bfloat16, torch.float16), (32, 64, 80, 100, 128, 256, 320), kinds, (0.0, 0.1), (True, False), (256, 77),
    ):  # fmt: skip
        for grouped, causal in ((False, False), (True, False), (False, True)):
            if causal and kind != "none":
                continue
            query = torch.zeros(2, 8, length, width, dtype=dtype, device="cuda", requires_grad=learns)
            key = torch.zeros(
                2, 2 if grouped else 8, length, width, dtype=dtype, device="cuda", requires_grad=learns
            )
            mask = mask_of(kind, 2, 8, length, dtype)
            real = CHOICES.get(torch._fused_sdp_choice(query, key, key, mask, dropout, causal, enable_gqa=grouped), "?")  # fmt: skip
            ours = chosen_attention(query, key, key, mask, causal, grouped)
            wrong += real != ours
            case = f"{str(dtype)[6:]} width {width} mask {kind} dropout {dropout} learns {learns} length {length} grouped {grouped} causal {causal}"
            print(f"{'ok  ' if real == ours else 'DIFF'} {real:9s} {ours:9s} {case}")
    print(f"{wrong} differences")


if __name__ == "__main__":
    main()

"""Loads a model's folder in one of several ways and tells what that took, as data/load_child.py does.

    python load_model.py WAY FOLDER [CONTEXT BATCH]

Standard output has two lines of JSON: what it held before, and after."""

from __future__ import annotations

import gc
import json
import sys
import time
from typing import Any

import torch
import transformers
from safetensors.torch import load_file

from oomproof.sizing.data import load_child


def new_model(folder: str, config: Any) -> Any:
    return transformers.AutoModelForCausalLM.from_config(config, dtype=config.dtype)


def load(way: str, folder: str, config: Any) -> Any:
    chosen = transformers.AutoModelForCausalLM
    if way in ("fp32", "bf16"):
        return chosen.from_pretrained(folder, dtype=torch.float32 if way == "fp32" else torch.bfloat16)
    if way == "torch.load":
        model = new_model(folder, config)
        model.load_state_dict(torch.load(f"{folder}/pytorch_model.bin", weights_only=True))
        return model
    if way == "load_file":
        model = new_model(folder, config)
        model.load_state_dict(load_file(f"{folder}/model.safetensors"), strict=False)
        return model
    if way == "assign":
        with torch.device("meta"):
            model = new_model(folder, config)
        state = torch.load(f"{folder}/pytorch_model.bin", weights_only=True, mmap=True)
        model.load_state_dict(state, strict=False, assign=True)
        return model
    return chosen.from_pretrained(folder)


def main(way: str, folder: str, context: int, batch: int) -> dict[str, Any]:
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    config = transformers.AutoConfig.from_pretrained(folder)
    gc.collect()
    load_child.forget_peak()
    before = load_child.memory()
    if context:  # of a whole job, what Python and its imports have counts too; pages of their files do not
        before |= {"anon": 0, "all": before["file"]}
    print(json.dumps({"before": before}), flush=True)
    begun = time.perf_counter()
    model = load(way, folder, config)
    if context:
        prompt = torch.ones(batch, context - 8, dtype=torch.long)
        with torch.inference_mode():
            model.generate(prompt, max_new_tokens=8, min_new_tokens=8, do_sample=False)
    else:  # a mapped page takes nothing before it is touched
        for parameter in model.parameters():
            parameter.data.view(-1).view(torch.uint8)[::4096].sum()
    return {"before": before, "after": load_child.memory(), "seconds": time.perf_counter() - begun}


if __name__ == "__main__":
    numbers = [int(word) for word in sys.argv[3:5]] or [0, 0]
    print(json.dumps(main(sys.argv[1], sys.argv[2], *numbers)))

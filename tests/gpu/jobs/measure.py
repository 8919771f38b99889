"""Figures from inside: what a sample costs, and the KV cache predicted against the real one. Prints one JSON object."""

from __future__ import annotations

import json
import sys
import time
from types import SimpleNamespace

import torch

from oomproof.agent import allocator, allocator_segments, cuda_memory
from oomproof.agent.generation import plan_of
from oomproof.agent.tensor_owners import tensor_owners
from oomproof.leaf.kv_cache import need_of

DEVICE = sys.argv[1] if len(sys.argv) > 1 else "cuda"


def seconds(call, times=100):
    call()
    begun = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - begun) / times


def cost() -> dict:
    tensors = [
        torch.empty((number % 37 + 1) << 20, dtype=torch.uint8, device=DEVICE) for number in range(600)
    ]
    del tensors[::3]
    agent = SimpleNamespace(report=lambda *_, **__: None, settings={}, phase_now="train", step=1)
    watch = allocator.Watch(torch, agent)
    watch._write = lambda available: None

    def sample() -> None:
        watch._samples_left = 4.0
        watch.sample("step")

    found = {
        "read_us": 1e6 * seconds(lambda: cuda_memory.read(torch, 0)),
        "sample_us": 1e6 * seconds(sample),
        "step_without_sample_us": 1e6 * seconds(lambda: watch.stepped(agent, 1), 10000),
        "snapshot_ms": 1e3
        * seconds(lambda: allocator_segments.summarize(torch.cuda.memory_snapshot(), 0), 10),
        "blocks": sum(len(each["blocks"]) for each in torch.cuda.memory_snapshot()),
        "biggest_ms": 1e3 * seconds(lambda: tensor_owners(torch, "cuda", 0), 3),
    }
    del tensors
    torch.cuda.empty_cache()
    return found


def storages(cache) -> int:
    found = {}
    for part in (
        (cache.self_attention_cache, cache.cross_attention_cache)
        if hasattr(cache, "cross_attention_cache")
        else (cache,)
    ):
        for layer in part.layers:
            for tensor in (layer.keys, layer.values):
                found[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
    return sum(found.values())


def caches() -> dict:
    import transformers as hf

    hf.logging.set_verbosity_error()
    common = {"vocab_size": 8000, "eos_token_id": None, "bos_token_id": 1, "pad_token_id": 0}
    rope = {
        "hidden_size": 512,
        "intermediate_size": 512,
        "num_hidden_layers": 6,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
    }
    models = {
        "gpt2": (hf.GPT2LMHeadModel, hf.GPT2Config(n_layer=6, n_head=8, n_embd=512, n_positions=1024, **common)),
        "llama-gqa": (hf.LlamaForCausalLM, hf.LlamaConfig(**rope, **common)),
        "mistral-window": (hf.MistralForCausalLM, hf.MistralConfig(**rope, **common, sliding_window=128)),
        "gemma2": (hf.Gemma2ForCausalLM, hf.Gemma2Config(**{**rope, "head_dim": 64}, **common, sliding_window=128)),
        "qwen3": (hf.Qwen3ForCausalLM, hf.Qwen3Config(**{**rope, "head_dim": 128}, **common)),
        "t5": (hf.T5ForConditionalGeneration, hf.T5Config(num_layers=6, num_heads=8, d_model=512, d_kv=64, d_ff=512, decoder_start_token_id=0, **common)),
    }  # fmt: skip
    found = {}
    for name, (kind, config) in models.items():
        model = kind(config).eval().to(DEVICE, torch.bfloat16 if DEVICE != "cpu" else torch.float32)
        inputs = torch.randint(2, 7999, (32, 200), device=DEVICE)
        call = {
            "max_new_tokens": 80,
            "min_new_tokens": 80,
            "do_sample": False,
            "return_dict_in_generate": True,
        }
        plan = plan_of(torch, model, (inputs,), call)
        if isinstance(plan, str):
            found[name] = {"cannot_tell": plan}
            continue
        need = need_of(plan.layout, plan.call)
        entry = {"predicted": need.cache, "predicted_peak": need.total}
        if DEVICE != "cpu":
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
        out = model.generate(inputs, **call)
        entry["real"] = storages(out.past_key_values)
        if DEVICE != "cpu":
            entry["real_peak"] = torch.cuda.max_memory_allocated() - before
        entry["error"] = entry["predicted"] / entry["real"] - 1
        found[name] = entry
        del out, model
    return found


result = {"torch": torch.__version__}
if DEVICE != "cpu":
    result["observer"] = hasattr(torch._C, "_cuda_attach_out_of_memory_observer")
    result["cost"] = cost()
result["caches"] = caches()
print(json.dumps(result))

"""What `oomproof size` predicts of a model's folder against what real transformers take on the CPU: loading and generating.

Models of five families with random weights are saved with save_pretrained; each load runs in a process of its own within a memory
cgroup. Own memory and pages of files are told apart. Aim: within 10 %."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from lab import MIB, lab, save, small_machine, table

from oomproof.sizing.data.load_proof import measure
from oomproof.sizing.kv_sizes import Wanted
from oomproof.sizing.model_files import model_files
from oomproof.sizing.model_sizing import ModelSizing, size_model
from oomproof.sizing.model_weights import Loading

LIMIT = 4 << 30
PROGRAM = str(Path(__file__).parent / "programs" / "load_model.py")
ROPE = {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 8, "num_attention_heads": 16, "num_key_value_heads": 4, "vocab_size": 32000}  # fmt: skip
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {**ROPE, "tie_word_embeddings": False}),
    "qwen3": ("Qwen3Config", {**ROPE, "head_dim": 128}),
    "gemma3": ("Gemma3TextConfig", {**ROPE, "head_dim": 128, "num_hidden_layers": 12, "sliding_window": 512}),
    "gpt2": ("GPT2Config", {"n_positions": 4096, "n_embd": 1024, "n_head": 16, "n_layer": 8}),
    "mixtral": ("MixtralConfig", {**ROPE, "intermediate_size": 1024, "num_local_experts": 4}),
}


def write(folder: Path, family: str, dtype: str) -> None:
    """In a process of its own: torch keeps what it has taken."""
    config, settings = FAMILIES[family]
    code = f"""
import torch, transformers
torch.set_num_threads(1)
transformers.logging.disable_progress_bar()
config = transformers.{config}(**{settings!r}, bos_token_id=1, eos_token_id=None, pad_token_id=0)
model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.{dtype})
model.save_pretrained({str(folder)!r})
"""
    if family == "llama":
        code += f"""
model.save_pretrained({str(folder) + "-shards"!r}, max_shard_size="100MB")
model.config.save_pretrained({str(folder) + "-bin"!r})
torch.save(model.state_dict(), {str(folder) + "-bin/pytorch_model.bin"!r})
"""
    status = os.spawnv(os.P_WAIT, sys.executable, [sys.executable, "-c", code])
    assert status == 0, family


def sized(folder: Path, context: int = 1024, batch: int = 1) -> ModelSizing:
    model = model_files(str(folder))
    assert model is not None
    return size_model(model, Wanted(0, batch), context)


def loading_rows(folder: Path, machine: Path, results: list[dict[str, Any]]) -> list[list[str]]:
    rows = []
    for dtype in ("float32", "bfloat16"):
        base = folder / f"llama-{dtype}"
        write(base, "llama", dtype)
        other = "bf16" if dtype == "float32" else "fp32"
        ways = [(base, "from_pretrained"), (Path(f"{base}-shards"), "from_pretrained"), (base, other), (Path(f"{base}-bin"), "from_pretrained"),
                (base, "load_file"), (Path(f"{base}-bin"), "torch.load"), (Path(f"{base}-bin"), "assign")]  # fmt: skip
        for place, way in ways:
            proof = measure(
                [sys.executable, PROGRAM, way, str(place)], str(place), LIMIT, [f"{machine}/cgroup.procs"]
            )
            predicted = _predicted(sized(place), way)
            result = {
                "file": place.name,
                "way": way,
                "own": proof.peak,
                "kept": proof.kept,
                "mapped": proof.mapped,
            }
            result |= (
                {"predicted_own": predicted.own, "predicted_mapped": predicted.mapped} if predicted else {}
            )
            results.append(result)
            figures = [sized(place).weights.bytes, proof.peak, proof.kept, proof.mapped]
            told = [predicted.own, predicted.mapped] if predicted else []
            rows.append([place.name, way, *(f"{figure / MIB:.0f}" for figure in [*figures, *told])])
            print(*rows[-1], flush=True)
    return rows


def _predicted(model: ModelSizing, way: str) -> Loading | None:
    names = {
        "from_pretrained": "from_pretrained(",
        "load_file": "load_file",
        "torch.load": "torch.load",
        "assign": "assign=True",
    }
    wanted = names.get(way, f"dtype={'torch.float32' if way == 'fp32' else 'torch.bfloat16'}")
    return next((loading for loading in model.loadings if wanted in loading.call), None)


def generating_rows(folder: Path, machine: Path, results: list[dict[str, Any]]) -> list[list[str]]:
    rows = []
    for family in FAMILIES:
        place = folder / f"{family}-bfloat16"
        if not place.exists():
            write(place, family, "bfloat16")
        for context, batch in ((256, 1), (1024, 4)):
            words = [sys.executable, PROGRAM, "from_pretrained", str(place), str(context), str(batch)]
            proof = measure(words, str(place), LIMIT, [f"{machine}/cgroup.procs"])
            estimate = sized(place, context, batch).stored.host
            measured = proof.peak + proof.mapped
            results.append(
                {
                    "family": family,
                    "context": context,
                    "batch": batch,
                    "measured": measured,
                    "predicted": estimate.as_json(),
                }
            )
            figures = [estimate.low, estimate.expected, estimate.high, measured]
            rows.append(
                [
                    family,
                    str(context),
                    str(batch),
                    *(f"{figure / MIB:.0f}" for figure in figures),
                    f"{estimate.expected / measured:.2f}",
                ]
            )
            print(*rows[-1], flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=["loading", "generating"])
    only = parser.parse_args().only
    loading: list[dict[str, Any]] = []
    generating: list[dict[str, Any]] = []
    with lab() as here, small_machine(LIMIT, "models") as machine:
        if machine is None:
            return
        if only != "generating":
            rows = loading_rows(here.folder, machine, loading)
            table(
                "Loading, MiB",
                ["file", "way", "weights", "own at most", "own kept", "mapped", "predicted own", "mapped"],
                rows,
            )
        if only != "loading":
            rows = generating_rows(here.folder, machine, generating)
            header = [
                "model",
                "context",
                "batch",
                "low",
                "expected",
                "high",
                "measured",
                "expected ÷ measured",
            ]
            table("Generating, MiB", header, rows)
    save("model-sizes", {"loading": loading, "generating": generating})


if __name__ == "__main__":
    main()

"""Masks tokens and passwords before anything of the user's is written down."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

MASK = "•••"

# `--tokenizer gpt2`, `--max_tokens 512` and `--sort_key name` are settings, not secrets: the words must stand alone.
_NAME = re.compile(
    r"(passw(or)?d|passphrase|(^|[-_])(pass|pwd|secret|token|pat|auth|authorization|credentials?|cookie|dsn)$|secret[-_]"
    r"|(api|access|private|secret|session|account|signing|encryption)[-_]?key)",
    re.IGNORECASE,
)
# Shapes of well-known tokens, wherever they stand: Hugging Face, GitHub, OpenAI-like, AWS, Slack, GitLab, JWT.
_SHAPE = re.compile(
    r"\b(hf_[A-Za-z0-9]{8,}|gh[pousr]_[A-Za-z0-9]{16,}|github_pat_\w{16,}|sk-[A-Za-z0-9_-]{16,}|AKIA[0-9A-Z]{12,}"
    r"|xox[abprs]-[A-Za-z0-9-]{10,}|glpat-[\w-]{16,}|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*)"
)
_URL = re.compile(r"(\w+://[^\s/@:]*):[^\s/@]+@")
_WANDB = re.compile(r"\b[0-9a-f]{40}\b")

# Only what explains a run's memory or its launch is worth keeping of the environment.
_KEPT = re.compile(
    r"^(CUDA_|NVIDIA_|PYTORCH_|TORCH_|XLA_|TF_|JAX_|OMP_|MKL_|OPENBLAS_|NUMEXPR_|MALLOC_|LD_PRELOAD$|PYTHON\w*$|HF_"
    r"|TRANSFORMERS_|DATASETS_|TOKENIZERS_|ACCELERATE_|WANDB_|NCCL_|GLOO_|SLURM_|RAY_|RANK$|LOCAL_RANK$|WORLD_SIZE$"
    r"|MASTER_|CONDA_DEFAULT_ENV$|VIRTUAL_ENV$|PATH$|LANG$|TMPDIR$|OOMPROOF_|DISPLAY$|TERM$|SHELL$|ROCR_|HIP_)"
)


def mask_text(text: str) -> str:
    """Token shapes and passwords inside URLs."""
    return _URL.sub(rf"\1:{MASK}@", _SHAPE.sub(MASK, text))


def mask_argv(argv: Iterable[str]) -> list[str]:
    """``--token X``, ``--token=X``, ``key=X`` and token shapes; the rest word for word."""
    masked: list[str] = []
    hide_next = False
    for word in argv:
        if hide_next and not word.startswith("-"):
            masked.append(MASK)
            hide_next = False
            continue
        hide_next = False
        name, equals, value = word.partition("=")
        bare = name.lstrip("-").rpartition(".")[2]
        if _NAME.search(bare) and equals and value:
            masked.append(f"{name}={MASK}")
            continue
        hide_next = word.startswith("-") and not equals and bool(_NAME.search(bare))
        masked.append(mask_text(word))
    return masked


def mask_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The part of the environment that explains a run, masked; everything else is left out."""
    kept: dict[str, str] = {}
    for name, value in sorted(environment.items()):
        if not _KEPT.match(name):
            continue
        secret = _NAME.search(name) or (name.startswith("WANDB_") and _WANDB.search(value))
        kept[name] = MASK if secret else mask_text(value)
    return kept

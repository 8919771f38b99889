"""Masks tokens and passwords before anything of the user's is written down."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial

MASK = "•••"

# One table for what `run` writes down and for what a report or a bundle sends away.
# Shapes that are secret wherever they stand, each with strings (lower case) without which it cannot match: looking for
# those first makes a log of 8 MB a matter of a second, and a run compiles only the shapes its command line may hold.
# A group called ``secret`` is all that is hidden of a match.
SHAPES: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("private key", ("private key",), r"(?s)-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
     r"(?:.{0,20000}?-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----|[A-Za-z0-9+/=\s\\:,-]{0,20000})"),
    ("Hugging Face token", ("hf_", "api_org_"), r"\b(?:hf|api_org)_[A-Za-z0-9]{8,}"),
    ("GitHub token", ("gh", "github_pat_"), r"\bgh[pousr]_[A-Za-z0-9]{16,}|\bgithub_pat_\w{16,}"),
    ("GitLab token", ("gl",), r"\bgl(?:pat|ptt|rt|cbt|dt|soat)-[\w-]{16,}"),
    ("OpenAI-like key", ("sk-", "sk_", "rk-", "rk_", "pk-", "pk_"), r"\b[srp]k(?:-(?:ant-|proj-)?|_(?:live|test)_)[A-Za-z0-9_-]{16,}"),
    ("AWS key id", ("akia", "asia", "abia", "acca", "aroa", "aida"), r"\bA(?:KIA|SIA|BIA|CCA|ROA|IDA)[0-9A-Z]{12,}"),
    ("Google key", ("aiza", "ya29.", "gocspx-", "1//0"), r"\bAIza[\w-]{30,}|\bya29\.[\w.-]{16,}|\bGOCSPX-[\w-]{16,}|\b1//0[\w-]{20,}"),
    ("Slack token", ("xox", "xapp-", "hooks.slack.com"),
     r"\bxox[abeoprs]-[A-Za-z0-9-]{10,}|\bxapp-[A-Za-z0-9-]{10,}|https://hooks\.slack\.com/services/[\w/]+"),
    ("Discord webhook", ("/api/webhooks/",), r"https://(?:ptb\.|canary\.)?discord(?:app)?\.com/api/webhooks/[\w/-]+"),
    ("Telegram token", (":aa",), r"\b\d{8,10}:AA[\w-]{32,}"),
    ("JSON web token", ("eyj",), r"\beyJ[\w-]{8,}(?:\.[\w-]{8,}\.[\w-]*|[\w-]{40,}={0,2})"),
    ("W&B key", ("wandb_v1_", "local-"), r"\bwandb_v1_\w{16,}|\blocal-[0-9a-f]{40}\b"),
    ("registry token", ("pypi-", "npm_", "dckr_pat_"), r"\bpypi-[\w-]{16,}|\bnpm_[A-Za-z0-9]{30,}|\bdckr_pat_[\w-]{16,}"),
    ("cloud token", ("dapi", "dop_v1_", "hvs.", "r8_", "nvapi-", "gsk_", "tgp_v1_", "sg.", "kgat_"),
     r"\bdapi[0-9a-f]{32}|\bdop_v1_[0-9a-f]{32,}|\bhvs\.[\w-]{20,}|\br8_\w{30,}|\bnvapi-[\w-]{16,}|\bgsk_\w{20,}"
     r"|\btgp_v1_[\w-]{16,}|\bSG\.[\w-]{16,}\.[\w-]{16,}|\bKGAT_\w{16,}"),
    ("authorization header", ("bearer ", "basic ", "authorization: token "),
     r"(?i)(?<=\bbearer )[\w.~+/=-]{8,}|(?<=\bbasic )[A-Za-z0-9+/]{8,}={0,2}(?![\w])|(?<=authorization: token )\S{8,}"),
    ("password in a URL", ("://",), r"(?<=://)[^\s/@:'\"<>]{0,200}:(?P<secret>[^\s/@'\"<>]{1,400})(?=@)"),
    ("token in a URL", ("://",), r"(?<=://)[^\s/@:'\"<>]{16,400}(?=@)"),
    ("signed URL", ("?", "&"), r"(?i)(?<=[?&])(?:sig|signature|x-amz-signature|x-amz-credential|x-amz-security-token|x-goog-signature"
     r"|x-goog-credential|token|access_token|id_token|api_key|apikey|key|password|secret|code)=[^\s&'\"<>#]+"),
    ("netrc password", ("password ",), r"(?im)(?<=\bpassword )\S+(?=[ \t]*$)|(?<=\blogin )\S+ +password +\S+"),
)  # fmt: skip

# A secret by its name. `--tokenizer gpt2`, `--max_tokens 512` and `--sort_key name` are settings, not secrets: the words
# must stand alone.
SECRET_WORDS = "pass|pwd|pw|secrets?|token|pat|auth|authorization|credentials?|cookie|dsn|webhook"
SECRET_KEYS = (
    "api|access|private|secret|session|account|signing|encryption|license|storage|shared|master|service"
)
_NAME = re.compile(
    rf"passw(?:or)?d|passphrase|(?:^|[-_])(?:{SECRET_WORDS})$|secret[-_]|(?:{SECRET_KEYS})[-_]?key",
    re.IGNORECASE,
)
# The shell keeps its folder under the name that ODBC has for a password: what it holds tells them apart.
_SHELL_FOLDER = re.compile(r"(?:OLD)?PWD", re.IGNORECASE)
_FOLDER = re.compile(
    r"/(?:(?:home|root|tmp|work|workspace|mnt|media|data|datasets|opt|var|usr|srv|etc|run|scratch|project|projects|nfs|gpfs"
    r"|lustre|share|shared|content|kaggle|app|code|Users|Volumes|private)(?:/.*)?)?|[A-Za-z]:[\\/]Users[\\/].*",
    re.DOTALL,
)
# Settings of ours: a line of shell may hold a token anywhere, and who is told is nobody's business.
_PERSONAL = {"OOMPROOF_ON_ALERT", "OOMPROOF_ON_END", "OOMPROOF_ALERT_WEBHOOK", "OOMPROOF_ALERT_MAIL"}
_WANDB = re.compile(r"\b[0-9a-f]{40}\b")

# Only what explains a run's memory or its launch is worth keeping of the environment.
_KEPT = re.compile(
    r"^(CUDA_|NVIDIA_|PYTORCH_|TORCH_|XLA_|TF_|JAX_|OMP_|KMP_|MKL_|OPENBLAS_|NUMEXPR_|MALLOC_|LD_PRELOAD$|PYTHON\w*$|HF_"
    r"|TRANSFORMERS_|DATASETS_|TOKENIZERS_|ACCELERATE_|WANDB_|NCCL_|GLOO_|SLURM_|RAY_|RANK$|LOCAL_RANK$|WORLD_SIZE$"
    r"|MASTER_|CONDA_DEFAULT_ENV$|VIRTUAL_ENV$|PATH$|LANG$|TMPDIR$|OOMPROOF_|DISPLAY$|TERM$|SHELL$|ROCR_|HIP_)"
)


@cache
def _compiled(shape: str) -> re.Pattern[str]:
    return re.compile(shape)


def hide_shapes(text: str, hide: Callable[[str, str], str]) -> str:
    """``text`` with what ``hide(value, kind)`` answers in place of each value that is secret by its shape."""
    lower = text.lower()
    for kind, needs, shape in SHAPES:
        if any(need in lower for need in needs):
            text = _compiled(shape).sub(partial(_hidden, hide, kind), text)
    return text


def _hidden(hide: Callable[[str, str], str], kind: str, match: re.Match[str]) -> str:
    group = "secret" if match.re.groupindex.get("secret") else 0
    begin, end = match.start(group) - match.start(), match.end(group) - match.start()
    return match[0][:begin] + hide(match[group], kind) + match[0][end:]


def mask_text(text: str) -> str:
    """Token shapes and passwords inside URLs."""
    return hide_shapes(text, lambda value, kind: MASK)


def is_folder(name: str, value: str) -> bool:
    """``PWD=/home/ada/nlp`` is where the shell stands; ``PWD=hunter2`` and ``DB_PWD=…`` are passwords."""
    return bool(_SHELL_FOLDER.fullmatch(name) and _FOLDER.fullmatch(value))


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
        if _NAME.search(bare) and equals and value and not is_folder(bare, value):
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
        secret = (
            name in _PERSONAL or _NAME.search(name) or (name.startswith("WANDB_") and _WANDB.search(value))
        )
        kept[name] = MASK if secret else mask_text(value)
    return kept

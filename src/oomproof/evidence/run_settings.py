"""Settings that a command line or a log's opening tells: intervals, batch, device; and the last date of a text."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence

ACCUMULATION = re.compile(
    r"^(?:gradient_|grad_)?(?:accum(?:ulation|ulate)?)(?:_grad)?(?:_steps|_batches|_iter(?:s|ations)?)?$|^update_freq$"
)
# What people call the intervals at which something heavy happens. Order decides: the first that fits names it.
_INTERVALS = (
    ("accumulation", ACCUMULATION),
    ("eval", re.compile(r"^(?:eval|evaluation|val|validation|valid|test)(?:_(?:check|check_interval|steps|every|interval|freq|frequency|iters?|every_n_steps))+$")),
    ("save", re.compile(r"^(?:save|checkpoint|checkpointing|ckpt|snapshot)(?:_(?:steps|every|interval|freq|frequency|iters?|every_n_steps|every_n_train_steps))+$")),
    ("log", re.compile(r"^(?:log|logging|print)(?:_(?:steps|every|interval|freq|frequency|iters?|every_n_steps))+$")),
)  # fmt: skip
BATCH = re.compile(
    r"^(?:per_device_train_|per_gpu_train_|train_|micro_|per_device_)?batch_?size$|^bs$|^batch$"
)
EVAL_BATCH = re.compile(
    r"^(?:per_device_|per_gpu_)?(?:eval|evaluation|val|valid|validation|test)_batch(?:_?size)?$"
)
_ASSIGNED = re.compile(
    r"""(?<![\w./-])-{0,2}["']?([A-Za-z][\w-]{1,60}?)["']?\s{0,3}(?:=|:|\s)\s{0,12}["']?(\d{1,9})(?![\w.%/])"""
)
_DEVICE = re.compile(
    r"(?i)\b(?:using |on |training on |device|accelerator)\s{0,3}(?:device)?[\s:='\"]{1,4}(?:torch\.device\()?(?:type=)?['\"]?"
    r"(cuda(?::\d+)?|mps(?::\d+)?|cpu|xpu(?::\d+)?|tpu|gpu)\b"
)
_ACCUMULATION_WORDS = re.compile(r"(?i)gradient accumulation(?: steps)?\s*[:=]\s*(\d{1,6})")
_DATE = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[T _](\d\d)[:h](\d\d)(?::(\d\d))?(?:[.,]\d{1,9})?\s?(Z|UTC|[+-]\d\d:?\d\d)?"
)
# "+ python train.py --workers 16" of a shell's trace, "Command: torchrun …", "$ python …"
_COMMAND = re.compile(
    r"(?:^|[$#+>:]\s|\s)(?P<command>(?:\S*/)?(?:python[\d.]*|torchrun|accelerate launch|deepspeed)\s[^|;&<>]*?\S+\.py\b[^|;&<>]*)"
)


def command_in(lines: Iterable[str]) -> tuple[str, ...]:
    """The training's command, where the opening of a log tells it; empty where it does not."""
    for line in lines:
        if ".py" in line and "File " not in line and (match := _COMMAND.search(line[:4000])):
            try:
                return tuple(shlex.split(match["command"].strip().rstrip("'\"`)]")))
            except ValueError:  # an open quote
                continue
    return ()


def options(argv: Sequence[str]) -> dict[str, str]:
    """``--key value``, ``--key=value``, ``key=value`` and bare flags, as they stand on a command line."""
    settings: dict[str, str] = {}
    waiting: str | None = None
    for word in argv:
        if word.startswith("-") and not re.fullmatch(r"-\d[\d.e+-]*", word):
            if waiting is not None:
                settings[waiting] = "on"
            name, equals, value = word.lstrip("-").partition("=")
            waiting = None if equals else name
            if equals and name:
                settings[name] = value
        elif waiting is not None:
            settings[waiting], waiting = word, None
        elif "=" in word and re.match(r"[+~]{0,2}[A-Za-z_][\w.]*=", word):  # hydra
            name, _, value = word.partition("=")
            settings[name.lstrip("+~")] = value
    if waiting:
        settings[waiting] = "on"
    settings.pop("", None)
    return settings


def intervals(settings: Mapping[str, str]) -> dict[str, int]:
    """``{"accumulation": 16, "eval": 50}`` out of any settings; 1 and 0 are no intervals."""
    by_name: dict[str, int] = {}
    for key, value in settings.items():
        name = key.rpartition(".")[2].replace("-", "_").lower()
        number = int(value) if value.isdecimal() and len(value) < 10 else 0
        if number < 2:
            continue
        for kind, pattern in _INTERVALS:
            if pattern.match(name):
                by_name.setdefault(kind, number)
    return by_name


def told_in(lines: Iterable[str]) -> dict[str, str]:
    """Settings a log prints about itself ("eval_steps=50", "'save_steps': 500", "Gradient Accumulation steps = 16"):
    only the intervals, sizes and the device that matter here, the first mention of each."""
    settings: dict[str, str] = {}
    for line in lines:
        line = line[:4000]
        if match := _ACCUMULATION_WORDS.search(line):
            settings.setdefault("gradient_accumulation_steps", match[1])
        if match := _DEVICE.search(line):
            settings.setdefault("device", match[1].lower())
        for match in _ASSIGNED.finditer(line):
            name = match[1].replace("-", "_").lower()
            # "batch 117" is progress; a size of that name needs to say so
            patterns = (BATCH, *(pattern for _, pattern in _INTERVALS))
            if name not in ("batch", "bs") and any(pattern.match(name) for pattern in patterns):
                settings.setdefault(name, match[2])
    return settings


def device(settings: Mapping[str, str]) -> str | None:
    for key, value in settings.items():
        if key.rpartition(".")[2].lower() in ("device", "accelerator"):
            return value.lower()
    return None


def last_date(text: str) -> float | None:
    """Epoch seconds of the last date with a clock in the text; without a zone it is the reader's own."""
    return next((at for match in reversed(list(_DATE.finditer(text))) if (at := _at(match))), None)


def first_date(text: str) -> float | None:
    return next((at for match in _DATE.finditer(text) if (at := _at(match))), None)


def _at(match: re.Match[str]) -> float | None:
    zone = {None: "", "Z": "+00:00", "UTC": "+00:00"}.get(match[7], match[7])
    date = f"{match[1]}-{match[2]}-{match[3]}T{match[4]}:{match[5]}:{match[6] or '00'}{zone}"
    try:
        from datetime import datetime  # only for a run whose settings hold a date

        return datetime.fromisoformat(date).timestamp()
    except (ValueError, OverflowError, OSError):
        return None

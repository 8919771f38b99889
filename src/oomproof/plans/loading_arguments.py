"""What a script's own arguments offer for loading less: streaming, a smaller type, mapped files. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from oomproof.diagnosis.smaller_command import bare_name

# Hugging Face's examples, TRL, Axolotl-like scripts; what most scripts call these things
_NAMES = (
    "streaming", "low_cpu_mem_usage", "torch_dtype", "dtype", "load_in_8bit", "load_in_4bit", "device_map",
    "mmap", "lazy",
)  # fmt: skip
_ADDED = re.compile(r"""add_argument\(\s*(?:["']-\w["'],\s*)?["']--([\w-]+)["']""")
_FIELD = re.compile(r"^    (\w+)\s*:[^\n=]*=", re.MULTILINE)  # of a dataclass that HfArgumentParser reads


def loading_arguments(script: str, argv: Sequence[str]) -> tuple[str, ...]:
    """As they are typed, without those that the command has already."""
    added = {bare_name(match[1]): f"--{match[1]}" for match in _ADDED.finditer(script)}
    if "HfArgumentParser" in script:
        added = {**{match[1]: f"--{match[1]}" for match in _FIELD.finditer(script)}, **added}
    given = {bare_name(word.partition("=")[0]) for word in argv if word.startswith("-")}
    return tuple(added[name] for name in _NAMES if name in added and name not in given)


def loading_hint(script: str, argv: Sequence[str]) -> str:
    """What may be typed after a death while loading; empty where the script offers nothing."""
    offered = loading_arguments(script, argv)
    if not offered:
        return ""
    return f"its script has arguments for loading less: {', '.join(offered)}"

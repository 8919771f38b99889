"""Common beliefs about memory: found where a text or a script mentions them, corrected with a figure of this death."""

from __future__ import annotations

import re
from collections.abc import Iterator, Set

from oomproof.causes import Cause
from oomproof.units import format_size

_MUCH_MORE = 2  # times what was held: below, total-vm is not mistaken for it
# the belief: how it shows, the deaths it matters for, and the correction
_BELIEFS = {
    "overcommit_memory": (
        r"overcommit_memory ?(?:=|to|is) ?1\b|\b1 ?(?:>|\| ?(?:sudo )?tee) ?/proc/sys/vm/overcommit_memory", "any",
        "1 protects nothing: no request is refused any more, and the kernel kills once the pages are used{held}",
    ),
    "zram": (
        r"\bzram\d?\b", "any",
        "it is not extra memory: what is swapped to it stays in RAM, at about a third of its size",
    ),
    "empty_cache": (
        r"\bempty_cache\(\)", "gpu", "it frees no tensor: it gives back what is reserved and unused{spare}",
    ),
    "gc.collect": (r"\bgc\.collect\(\)", "memory", "it frees only what nobody refers to any more{alive}"),
    "writer_batch_size": (
        r"\bwriter_batch_size\b", "memory",
        "it bounds the rows that wait to be written (1000), not the copies that the script holds",
    ),
}  # fmt: skip

ANCHORS = tuple(_BELIEFS)


def beliefs_in(text: str) -> set[str]:
    return {name for name, (pattern, _, _) in _BELIEFS.items() if name in text and re.search(pattern, text)}


def corrections(
    names: Set[str],
    cause: Cause,
    held: int | None,
    total_vm: int | None,
    spare: int | None,
    alive: int | None,
) -> Iterator[tuple[str, str]]:
    """(belief, correction). ``spare`` and ``alive``: bytes of the card reserved but unused, and allocated."""
    if held and total_vm and total_vm >= _MUCH_MORE * held:
        size = format_size(total_vm)
        yield "total-vm", f"{size} of total-vm is address space, not use: it held {format_size(held)}"
    figures = {
        "held": f", here at {format_size(held)}" if held else "",
        "spare": f", at most {format_size(spare)} here" if spare is not None else "",
        "alive": f"; the {format_size(alive)} allocated here were in use" if alive else "",
    }
    deaths = {"any": True, "gpu": cause.gpu, "memory": cause.memory}
    for name, (_, death, sentence) in _BELIEFS.items():
        if name in names and deaths[death]:
            yield name, sentence.format_map(figures)

"""Words that show a common belief about memory: supposed cures that a log or a script mentions."""

from __future__ import annotations

import re

# what is said of each: diagnosis/beliefs.py
BELIEFS: dict[str, re.Pattern[str]] = {
    "zram": re.compile(r"\bzram\d?\b"),
    "overcommit": re.compile(r"overcommit_memory ?(?:=|to|is) ?1\b|\b1 ?> ?/proc/sys/vm/overcommit_memory"),
    "empty_cache": re.compile(r"\bempty_cache\(\)"),
    "gc.collect": re.compile(r"\bgc\.collect\(\)"),
    "writer_batch_size": re.compile(r"\bwriter_batch_size\b"),
}
ANCHORS = ("zram", "overcommit_memory", "empty_cache", "gc.collect", "writer_batch_size")


def beliefs_in(text: str) -> set[str]:
    if not any(anchor in text for anchor in ANCHORS):
        return set()
    return {name for name, pattern in BELIEFS.items() if pattern.search(text)}

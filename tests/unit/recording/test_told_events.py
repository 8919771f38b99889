"""What happened, in words: each once, and none of them a name from our own code."""

from __future__ import annotations

import pytest

from oomproof.recording.series import told_kind, told_text


@pytest.mark.parametrize(
    ("kind", "text", "shown"),
    [
        ("saved", "saved /out/checkpoint-40 at step 40", "saved: /out/checkpoint-40 at step 40"),
        ("agent:tell", "the Trainer saves", "told by the job: the Trainer saves"),
        ("stacks", "when it was asked: a.py:3", "where it stood: when it was asked: a.py:3"),
        ("agent:trace", "too little headroom", "trace of allocations: too little headroom"),
        ("pause", "memory ran short", "paused: memory ran short"),
        ("worker-lost", "pid 7", "worker lost: pid 7"),
        ("warn", "warned", "warned: warned"),
    ],
)
def test_an_event_in_words(kind: str, text: str, shown: str) -> None:
    assert f"{told_kind(kind)}: {told_text(kind, text)}" == shown

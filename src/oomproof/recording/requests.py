"""Requests to a job that somebody inside it answers: who listens, and asking it to save and continue."""

from __future__ import annotations

import os
import time

from oomproof.leaf.attempt_names import LISTENS, RELEASE_REQUEST
from oomproof.recording import state_files
from oomproof.recording.attempt import Attempt

SAVE_TEXT = "oomproof asks this job to save and continue"


def listeners(attempt: Attempt, what: str, proc: str = "/proc") -> list[str]:
    """Who in the living job answers this kind of request ("save", "stop"): "the Hugging Face Trainer", …"""
    listening = []
    for path in sorted((attempt.agent_folder).glob(f"*-{LISTENS}")):
        try:
            kinds, by = state_files.read_small(path).decode("utf-8", "replace").split("\n")[:2]
        except (OSError, ValueError):
            continue
        if what in kinds.split() and os.path.exists(f"{proc}/{path.name.split('-')[0]}"):
            listening.append(by)
    return list(dict.fromkeys(listening))


def is_begun(attempt: Attempt, what: str) -> bool:
    """Whether somebody in the job has begun to act on this kind of request."""
    return any((attempt.agent_folder / f"{what}.{mark}").exists() for mark in ("at", "taken"))


def ask_to_release(attempt: Attempt) -> None:
    """Each process of the job that has a card gives back what PyTorch keeps there and does not use, at the end of its step; one that was
    started with ``--release never`` does not. A new request has another time."""
    path = attempt.agent_folder / RELEASE_REQUEST
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
    now = time.time_ns()  # finer than the clock of the file system: two requests are never one
    os.utime(path, ns=(now, now))


def ask_to_save(attempt: Attempt, why: str) -> None:
    """The file is taken away by whoever saved. One that is there already has not been answered yet."""
    path = attempt.save_file
    if not path.exists():
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, f"{SAVE_TEXT}: {why}\n".encode("utf-8", "replace"))
        finally:
            os.close(fd)

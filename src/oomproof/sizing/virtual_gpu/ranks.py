"""Which process of several ranks is sized: the first on this machine. It must not import torch: the hook that waits for torch is not there yet."""

from __future__ import annotations

import os
import sys
import time

_LAUNCHERS = ("torchrun", "accelerate")
_LAUNCHING_MODULES = ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch")


def number(name: str, otherwise: int) -> int:
    """Of the environment, as launchers set it."""
    value = os.environ.get(name, "")
    return int(value) if value.isdigit() else otherwise


def is_another() -> bool:
    return number("WORLD_SIZE", 1) > 1 and number("LOCAL_RANK", 0) > 0


def is_launcher(argv: list[str]) -> bool:
    """By the command that started this Python: it imports torch too, and trains nothing."""
    names = [os.path.basename(argument) for argument in argv[:2]]
    module = argv[argv.index("-m") + 1 : argv.index("-m") + 2] if "-m" in argv[:4] else []
    started = "LOCAL_RANK" in os.environ
    return not started and (
        any(name in _LAUNCHERS for name in names) or module[:1] in [[name] for name in _LAUNCHING_MODULES]
    )


def wait_for_the_first(folder: str) -> None:
    """Ends when the first rank has written down what it saw, or the launcher is gone."""
    parent = os.getppid()
    while os.getppid() == parent and not any(
        name.endswith(".json") and name[:-5].isdigit() for name in os.listdir(folder)
    ):
        time.sleep(0.1)
    sys.stdout.flush()
    os._exit(0)

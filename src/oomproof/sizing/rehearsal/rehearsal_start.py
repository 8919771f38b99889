"""Puts a rehearsal into a Python that has just imported torch, and writes down what was seen when it ends."""

from __future__ import annotations

import atexit
import os
import threading
import time
from typing import Any

from ..virtual_gpu.child_results import Batch, RehearsalResult, write
from ..virtual_gpu.virtual_start import end_here, follow_script, tell_main

LIMIT = "OOMPROOF_SIZE_SECONDS"
_PATIENCE = 3  # times the time limit, until the first batch
_own: dict[str, Any] = {}


def begin(folder: str) -> None:
    """Called by sitecustomize: nothing happens until torch is imported."""

    def loop(name: str) -> Any:
        """What to do with a module: a function of rehearsed_loop."""
        return lambda module: getattr(_loop_module(), name)(module, _own["loop"])

    afterwards = {
        "torch": lambda module: _install(folder),
        "transformers.trainer_callback": loop("hurry_trainer"),
        "transformers.generation.utils": loop("follow_generation"),
        "lightning.pytorch.loops.training_epoch_loop": loop("hurry_lightning"),
        "pytorch_lightning.loops.training_epoch_loop": loop("hurry_lightning"),
        "safetensors.torch": lambda module: setattr(
            module, "save_file", _own["loop"].saving(module.save_file, 0)
        ),
    }
    _own["error"] = ""

    def told(kind: Any, error: Any, trace: Any) -> bool:
        _own["error"] = f"{kind.__name__}: {error}"
        _own["memory_error"] = _is_memory(kind, error)
        return True

    follow_script(folder, afterwards, told)


def _loop_module() -> Any:
    from . import rehearsed_loop

    return rehearsed_loop


def _is_memory(kind: Any, error: Any) -> bool:
    words = str(error)
    return (
        kind.__name__ in ("OutOfMemoryError", "MemoryError")
        or "out of memory" in words
        or "can't allocate memory" in words
    )


def _install(folder: str) -> None:
    ranks = os.environ.get("WORLD_SIZE", "")
    if ranks.isdigit() and int(ranks) > 1:
        why = f"the command starts {ranks} ranks; rehearse one of them: torchrun --nproc-per-node 1"
        write(folder, RehearsalResult(refused=why))
        os._exit(0)
    from .phase_peaks import PhasePeaks
    from .rehearsed_loop import RehearsedLoop
    from .worst_batches import WorstBatches

    limit = float(os.environ.get(LIMIT, "120"))
    peaks = PhasePeaks(folder)
    loop = RehearsedLoop(peaks, lambda reason: _finish(folder, reason), limit)
    batches = WorstBatches(loop)
    loop.install()
    batches.install()
    tell_main(folder)
    _own.update(peaks=peaks, loop=loop, batches=batches, pid=os.getpid(), started=time.monotonic())
    atexit.register(_at_exit, folder)
    threading.Thread(target=_alarm, args=(folder, limit), daemon=True).start()


def _alarm(folder: str, limit: float) -> None:
    """For a script that never comes to a place where we look."""
    while True:
        time.sleep(0.5)
        began = _own["loop"].began
        over = (
            time.monotonic() - began > limit + 10
            if began is not None
            else time.monotonic() - _own["started"] > _PATIENCE * limit
        )
        if over:
            _finish(folder, "time limit")


def _at_exit(folder: str) -> None:
    if _own.get("pid") == os.getpid():
        write(folder, _result("failed" if _own["error"] else "script ended"))


def _finish(folder: str, reason: str) -> None:
    """Ends this process here and now: what the script would do at its end is not rehearsed."""
    if _own.get("pid") != os.getpid():
        return
    write(folder, _result(reason))
    end_here()


def _result(reason: str) -> RehearsalResult:
    import torch

    from ..virtual_gpu.loader_flow import with_own
    from .phase_peaks import card_facts

    peaks, loop, batches = _own["peaks"], _own["loop"], _own["batches"]
    peaks.note()
    return RehearsalResult(
        reason=reason,
        error=_own["error"],
        memory_error=bool(_own.get("memory_error")),
        phase=peaks.now,
        steps=loop.steps,
        step_seconds=loop.step_seconds,
        entered=peaks.entered,
        host=peaks.host,
        cards={
            phase: {str(card): sizes for card, sizes in by_card.items()}
            for phase, by_card in peaks.cards.items()
        },
        card_facts=card_facts(),
        evaluations=len(loop.evaluations) + loop.early,
        generations=loop.generations,
        tokens_left=loop.tokens_left,
        kept=loop.kept,
        across=loop.across,
        saves=loop.saves,
        saved=loop.saved,
        loaders={phase: with_own(loaders) for phase, loaders in batches.loaders.items()},
        batches=[
            Batch(worst.training, worst.how, worst.looked, worst.of, worst.usual, worst.largest, worst.shapes)
            for worst in batches.worst.values()
        ],
        ooms=loop.ooms,
        no_card=torch.version.cuda is not None and not torch.cuda.is_available(),
        notes=loop.notes,
    )

"""Runs an unmodified script on a virtual GPU, in a child whose writes nobody sees, and says what it would need."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from oomproof.errors import NOT_FOUND, OomproofError
from oomproof.records import dataclass, replace
from oomproof.sizing import measured_workspaces, virtual_run, watched_child
from oomproof.sizing.calibrated_card import CalibratedCard
from oomproof.sizing.card_constants import ANY_CARD, Card
from oomproof.sizing.estimate import Estimate, Phase, Sizing
from oomproof.sizing.host_figures import (
    LAUNCHER,
    OTHERS,
    PINNED,
    PROCESS,
    QUEUE,
    QUEUE_NOT_FULL,
    SAVED,
    UNSEEN,
    WORKERS,
    HostFigures,
    loader_memory,
    loaders_of,
    not_settled,
    unseen,
    workers_hold,
)
from oomproof.sizing.quantized_weights import frozen_weights, quantized_note
from oomproof.sizing.sizing_cache import python_of
from oomproof.sizing.virtual_gpu.step_limits import CARD_TORCH, COMPILED, EAGER, PATIENCE, STEPS, WHOLE_EPOCH
from oomproof.sizing.watched_child import Watched
from oomproof.units import MIB, format_size

_CODE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "virtual_gpu")
# seconds beyond those that the child has for its steps: imports, and the answer's own arithmetic
_GRACE = 60.0
# chosen on the first five CPU trainings of bench/sizing/host.py: oneDNN's and MKL's own memory, and what malloc keeps of what is freed
_ON_CPU, _BESIDE = 60 * MIB, 0.35
_KEPT = 32 * MIB  # malloc gives larger blocks back at once (glibc's largest M_MMAP_THRESHOLD)
_NO_TORCH = "No module named 'torch'"
CardOf = Callable[[Mapping[str, Any]], CalibratedCard | None]


@dataclass(frozen=True, slots=True)
class SizedScript:
    """``status``: of a script that failed by itself, else 0. ``seen``: the log of its allocations; ``run``: the same as the card would
    see them; None where it was refused. ``held_back``: what became of its files."""

    sizing: Sizing
    status: int = 0
    run: virtual_run.VirtualRun | None = None
    card: Card = ANY_CARD
    host: HostFigures | None = None
    seen: virtual_run.VirtualRun | None = None
    held_back: tuple[str, ...] = ()


def size_command(
    argv: Sequence[str],
    *,
    time_limit: float,
    gpu_total: int | None,
    allow_writes: bool,
    tell: Callable[[str], None],
    card_of: CardOf = lambda result: None,
    whole_epoch: bool = True,
    card_torch: str = "",
) -> SizedScript:
    """``gpu_total``: 0 for a machine without a card, None where its size does not matter. ``card_of``: from what the virtual GPU
    wrote down to the calibrated card for it, if there is one. ``whole_epoch``: of batches of many shapes as many as there is time for are
    followed, else three with the largest among them. ``card_torch``: the version on the card, where that is known before."""
    if shutil.which(argv[0]) is None:
        raise OomproofError(f"{argv[0]}: command not found", "", NOT_FOUND)
    for compiled in (True, False):
        folder = tempfile.mkdtemp(prefix="oomproof-size-")
        try:
            watched = _run(
                list(argv), folder, time_limit, gpu_total, allow_writes, whole_epoch, card_torch, compiled
            )
            last = not compiled or not os.path.exists(os.path.join(folder, COMPILED))
            answer = _answer(argv, folder, watched, gpu_total, tell if last else _tell_nobody, card_of)
            if last or not answer.sizing.refused:
                break
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    return answer


def _waits(run: virtual_run.VirtualRun) -> str:
    """Where a loop may wait for a value of the card to change."""
    line = run.result.get("reads_at")
    return (
        f"at its end it read values of the GPU at {line}, and a virtual GPU has none: a loop that waits for one never ends; leave the loop out for sizing, or run it there with: oomproof run"
        if line
        else ""
    )


def _tell_nobody(text: str) -> None:
    """What a run says that is repeated without torch.compile, since following that may be what failed."""


def _run(
    argv: list[str],
    folder: str,
    time_limit: float,
    gpu_total: int | None,
    allow_writes: bool,
    whole_epoch: bool,
    card_torch: str = "",
    compiled: bool = True,
) -> Watched:
    environment = {
        **_environment(folder, time_limit, gpu_total),
        WHOLE_EPOCH: "1" if whole_epoch else "",
        CARD_TORCH: card_torch,
        EAGER: "" if compiled else "1",
    }
    with watched_child.running(argv, folder, environment, allow_writes) as (child, limit):
        return _watch(child, limit, time_limit, folder, is_wrapped=not allow_writes)


def _environment(folder: str, time_limit: float, gpu_total: int | None) -> dict[str, str]:
    """With a folder on PYTHONPATH that starts the virtual GPU in every Python of the command."""
    return {
        **watched_child.environment_for(folder, _CODE, "virtual_start", time_limit),
        "OOMPROOF_SIZE_GPU": "" if gpu_total is None else str(gpu_total),
        "CUDA_VISIBLE_DEVICES": "", "PYTORCH_JIT": "0",
        "HF_DEACTIVATE_ASYNC_LOAD": "1",  # transformers would read weights in threads, where tensors are real
    }  # fmt: skip


def _watch(
    child: subprocess.Popen[bytes], limit: int, time_limit: float, folder: str, is_wrapped: bool
) -> Watched:
    """``is_wrapped``: the command is the child's child. One in which nothing of ours started runs as ever, to no purpose."""
    looks = 0
    watched, started = Watched(limit=limit, has_network=not is_wrapped), time.monotonic()
    if not is_wrapped:
        watched.shared_before = watched_child.shared_in_use()
    while True:
        try:
            watched.status = child.wait(watched_child.LOOK)
            return watched
        except subprocess.TimeoutExpired:
            pass
        for pid in watched_child.script_processes(child.pid, is_wrapped):
            if watched_child.look(pid, watched, folder):
                looks += 1
                watched_child.tell_looks(folder, looks)
        if watched.peak > limit:
            watched.over_limit = True
            return watched
        if not watched.is_training and os.path.exists(os.path.join(folder, "training")):
            watched.is_training = True
            watched.earlier, watched.earlier_workers = watched.main, watched.workers
            watched.peak = watched.main = watched.workers = 0
        patience = PATIENCE * time_limit if watched_child.is_started(folder) else 0
        if time.monotonic() > started + patience + _GRACE:
            watched.timed_out = True
            return watched


def _answer(
    argv: Sequence[str],
    folder: str,
    watched: Watched,
    gpu_total: int | None,
    tell: Callable[[str], None],
    card_of: CardOf,
) -> SizedScript:
    if why := watched_child.cannot_be_private(watched.status, folder):
        return _refused(
            f"the script's writes cannot be kept private here ({why}); with --allow-writes it runs as it is",
            passing=True,
        )
    if watched.over_limit:
        return _refused(
            f"the script held {format_size(watched.peak)} on the host before its third step, more than is available now; end something large first",
            passing=True,
        )
    run = virtual_run.read(folder)
    failed = watched.status != 0 and (run is None or run.result.get("steps", 0) < STEPS)
    if run is not None and run.result.get("refused"):
        return _refused(str(run.result["refused"]))
    if watched.timed_out and not watched_child.is_started(folder):
        return _refused(watched_child.NOT_STARTED)
    if watched.timed_out and run is None:
        return _refused(
            "the script made no step in time; give it longer with --time-limit, or size it with a smaller model"
        )
    if failed and watched.status in (-signal.SIGKILL, 128 + signal.SIGKILL):
        return _refused(
            f"the script was killed, most likely at the limit of {format_size(watched.limit)} on the host, before its third step; end something large first"
        )
    if failed and watched.status in (-signal.SIGSEGV, 128 + signal.SIGSEGV):
        watched_child.cause_of_failure(folder, tell, has_network=True, when="")
        return _refused(
            "the command crashed (SIGSEGV), by itself or in compiled code that was given an address in the GPU's memory, of which a virtual GPU has none; run it there with: oomproof run",
            status=watched.status,
        )
    if failed:
        cause = watched_child.cause_of_failure(
            folder, tell, has_network=watched.has_network, when="while sizing"
        )
        if not cause and run is not None and run.result.get("widened"):
            # torch.unique, x[mask]: as many as there can be, which a check of the script's own may not like
            cause = f"the command failed, by itself or for lack of real values (a virtual GPU has none, and it used {', '.join(run.result['widened'])})"
        elif not cause and run is None and watched_child.printed(folder, _NO_TORCH):
            return _refused(
                f"{python_of(argv[0]) or argv[0]} has no torch; start the command with the Python of your environment",
                status=watched.status,
            )
        cause = cause or "the command failed by itself"
        return _refused(f"{cause}, with status {watched.status}; its error is above", status=watched.status)
    if run is None and not watched_child.is_started(folder):
        return _refused(watched_child.NOT_STARTED)
    if run is None:
        return _refused("the script never imported torch; size its files instead: oomproof size FILE")
    if run.result.get("unfed") and run.result["steps"] < STEPS and run.result["reason"] == "time limit":
        return _refused(
            f"the loader's {run.result['unfed']} workers made no batch in time, so what they hold was not seen; give it longer with --time-limit 5m"
        )
    if run.result.get("reason") == "time limit" and not run.result["steps"] and not run.result["phases"]:
        return _refused(
            "the script called no model and made no step in time; give it longer with --time-limit, or size its files: oomproof size FILE"
        )
    if not run.result["steps"] and run.result.get("trains"):
        if run.result["reason"] == "time limit":
            return _refused(
                "the script has an optimizer, and made no step with it in time: what training takes was not seen; "
                + (
                    _waits(run)
                    or "give it longer with --time-limit 5m, or let its first evaluation be shorter"
                )
            )
        if run.result["reason"] == "script ended" and not {"eval", "generate"} & run.result["phases"].keys():
            return _refused(
                "the script has an optimizer, and ended without a step of it: what training takes was not seen; does it find its data?"
            )
    if not run.events and not run.result["peak"]["host"]:
        return _refused(
            "the script put nothing on a GPU and made no model; size its files instead: oomproof size FILE"
        )
    if why := virtual_run.by_values(run) or virtual_run.by_allocator(run):
        return _refused(why)
    seen = SizedScript(
        Sizing(None, None, (), ""),
        seen=run,
        host=host_figures(run, watched),
        held_back=tuple(watched_child.held_back(folder)),
    )
    return with_card(seen, card_of(run.result), gpu_total)


def with_card(sized: SizedScript, calibrated: CalibratedCard | None, gpu_total: int | None) -> SizedScript:
    """The same virtual run with what that card really took for its operations."""
    assert sized.seen is not None and sized.host is not None
    run, card, searched = sized.seen, ANY_CARD, ""
    expandable = virtual_run.asked_expandable(run)
    if calibrated is not None:
        run, searched = measured_workspaces.measured_run(run, calibrated, expandable, gpu_total)
        card = calibrated.card(ANY_CARD)
    gpu: Estimate | None = None
    tight, lighter, growing = virtual_run.tight(run, gpu_total, card) if gpu_total else "", "", ""
    phases: tuple[Phase, ...] = ()
    if run.events:
        gpu, phases = virtual_run.gpu_estimate(run, expandable, card)
        growing = "" if expandable else virtual_run.growing_note(run, gpu, card)
        frozen = frozen_weights(run.result, gpu.expected)
        lighter = quantized_note(frozen) if frozen is not None else ""
    else:
        phases = virtual_run.host_phases(run, sized.host.estimate().expected)
    sizing = Sizing(
        gpu, sized.host.estimate(), phases, _basis(run, calibrated),
        notes=tuple(note for note in (*_notes(run), _other_torch(run, calibrated), *sized.held_back, tight, searched, growing, lighter) if note), peak=str(run.result.get("peak_place", "")),
    )  # fmt: skip
    return replace(sized, sizing=sizing, run=run, card=card)


def _other_torch(run: virtual_run.VirtualRun, calibrated: CalibratedCard | None) -> str:
    """Another version may keep other tensors for the same layer: `nn.RMSNorm` in autocast keeps two in 2.11 and one in 2.13 (7 % of a job)."""
    card = calibrated.facts.get("torch") if calibrated is not None else None
    ours, its = (".".join(str(version or "").split(".")[:2]) for version in (run.result.get("torch"), card))
    if not ours or not its or ours == its:
        return ""
    return f"sized with torch {ours}, and the card's file is of torch {its}: size it with the version that it will run with"


def _basis(run: virtual_run.VirtualRun, calibrated: CalibratedCard | None) -> str:
    if not run.events:
        return "script run for its first steps; it uses no GPU"
    basis = "script run on a virtual GPU"
    if calibrated is None:
        return basis
    of = run.result["measured"] + run.result["unmeasured"]
    return f"{basis}; {calibrated.name} calibrated, {run.result['measured']} of its {of} operations measured there"


def host_figures(run: virtual_run.VirtualRun, watched: Watched) -> HostFigures:
    """Measured, less what the virtual GPU itself took, plus what had no bytes here."""
    result, on_card = run.result, bool(run.events)
    loaders = loaders_of(result["loaders"], on_card)
    held = [loader_memory(loader) for loader in loaders]
    seen = sum(loader_memory(replace(loader, pinned=0)).queue for loader in loaders)
    copied = sum(loader["workers"] * loader["copied"] for loader in result["loaders"])
    workers = max(watched.workers, watched.earlier_workers, sum(map(workers_hold, result["loaders"])))
    for told, loader in zip(result["loaders"], loaders, strict=True):
        if not told["settled"] and not told["own"]:  # a system that does not tell of itself
            workers = max(workers, loader.workers * watched.largest, loader_memory(loader).private)
    process = max(0, max(watched.main, result["own"]["since"]) - result["overhead"])
    buffers = {name: size for name, size in result["buffers"].items() if size}
    if sum(buffers.values()) > process:  # pages that were never touched, or of a file
        buffers = {}
    parts = {
        PROCESS: process - sum(buffers.values()),
        **buffers,
        WORKERS if seen else OTHERS: workers + copied,
        UNSEEN: sum(map(unseen, loaders)),
        QUEUE: sum(memory.queue for memory in held),
        "shared memory": _shared_beside(result, watched.shared - seen),
        **({"model on the host": result["peak"]["host"]} if on_card else _on_cpu(run)),
        PINNED: sum(memory.pinned for memory in held),
        SAVED: result["saved"],
    }
    # what it held before it trained, where that is more than all the rest
    earlier = max(watched.earlier, result["own"]["before"])
    parts[PROCESS] += max(0, earlier - result["overhead"] - sum(parts.values()))
    parts[LAUNCHER] = max(watched.launcher, result.get("launcher", 0))
    count = sum(loader.workers for loader in loaders)
    own = (workers + copied) // count if count else 0
    return HostFigures(parts, loaders, own, on_card, result.get("ranks", 1))


def _shared_beside(result: Mapping[str, Any], more: int) -> int:
    """The script's own shared memory, ``more`` being the most that was seen beyond its loaders' queues: a batch of each may be there besides
    while we do something between two of them."""
    beside = result.get("shared_beside")
    between = sum(loader["batch"] for loader in result["loaders"] if loader["workers"])
    if beside is not None and more <= beside + between + MIB:
        more = int(beside)
    return more if more > MIB else 0


def _on_cpu(run: virtual_run.VirtualRun) -> dict[str, int]:
    """With what malloc and oneDNN hold beside the tensors of a model that trains on the CPU."""
    parts = virtual_run.host_parts(run)
    if not parts.get("gradients") and not parts.get("activations"):
        return parts
    small = virtual_run.host_peak_of_small(run, _KEPT)
    kept = int(_BESIDE * small) + virtual_run.host_left_in_heap(run, _KEPT)
    return {**parts, "malloc and oneDNN": min(_ON_CPU, small) + kept}


def _notes(run: virtual_run.VirtualRun) -> Iterator[str]:
    result = run.result
    yield from result["notes"]
    if result["steps"] < STEPS:
        yield f"only {result['steps']} optimizer steps were reached: {result['reason']}"
    yield from virtual_run.widening_notes(result, on_card=bool(run.events))
    if not_settled(result["loaders"]):
        yield QUEUE_NOT_FULL
    elif result.get("unfed") and result["reason"] == "time limit":
        yield f"{result['unfed']} workers of a further loader made no batch in time: what they hold is not counted; give it longer with --time-limit"
    for name, size in result["buffers"].items():
        if not size:
            yield f"a native index: {name}; it is part of the process"


def _refused(why: str, passing: bool = False, status: int = 0) -> SizedScript:
    sizing = Sizing(None, None, (), "script run on a virtual GPU", refused=why, passing=passing)
    return SizedScript(sizing, status)

"""Rehearses an unmodified script: its largest batch, an evaluation, a generation and a checkpoint, on the real device, in a child
whose writes nobody sees; and says what each took."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from oomproof.errors import NOT_FOUND, OomproofError
from oomproof.records import dataclass, replace
from oomproof.sizing import watched_child
from oomproof.sizing.host_figures import (
    QUEUE_NOT_FULL,
    loader_memory,
    loaders_of,
    not_settled,
    unseen,
    workers_hold,
)
from oomproof.sizing.virtual_gpu.step_limits import STEPS
from oomproof.sizing.watched_child import Watched
from oomproof.units import GIB, MIB, format_size

PHASES = ("load", "train", "eval", "generate", "save")
SCHEMA = 1
_GRACE = 60.0  # seconds beyond those that the child has: imports
_PATIENCE = 4  # times the time limit, from the start to the end
CONTEXT = 768 * MIB  # of CUDA and its libraries, where the driver does not tell: 751 to 771 MiB on an H200
_LEAST_CONTEXT, _MOST_CONTEXT = 256 * MIB, 4 * GIB


@dataclass(frozen=True, slots=True)
class PhasePeak:
    """Bytes at most. ``gpu``: on the card that it filled most, CUDA's own with it; ``host``: with its workers, shared pages once."""

    name: str
    reached: bool
    gpu: int | None = None
    host: int | None = None
    allocated: int | None = None  # of ``gpu``, what tensors used
    kept: int = 0  # of it, what was not seen but follows: outputs of the batches that were left out

    def as_json(self) -> dict[str, Any]:
        return {
            "phase": self.name,
            "reached": self.reached,
            "gpu_bytes": self.gpu,
            "gpu_allocated_bytes": self.allocated,
            "host_bytes": self.host,
            "kept_bytes": self.kept,
        }


@dataclass(frozen=True, slots=True)
class Batch:
    """The one a loader was made to give first."""

    training: bool
    how: str
    looked: int
    of: int | None
    usual: int  # bytes of a sample, or of a batch of a stream
    largest: int
    shapes: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        return {
            "training": self.training, "how": self.how, "looked_at": self.looked, "of": self.of, "usual_bytes": self.usual,
            "largest_bytes": self.largest, "shapes": list(self.shapes),
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    phase: str
    where: str  # gpu or host
    text: str
    others: int = 0  # bytes that other processes held on the card


@dataclass(frozen=True, slots=True)
class Rehearsal:
    phases: tuple[PhasePeak, ...] = ()
    batches: tuple[Batch, ...] = ()
    steps: int = 0
    evaluations: int = 0
    generations: int = 0
    saves: int = 0
    saved: int = 0  # bytes of the largest checkpoint
    seconds: float = 0.0
    step_seconds: float | None = None  # of the quickest step after the first, nothing else between
    card: int | None = None  # the one that its figures are of, as the script counts them
    card_total: int | None = None
    card_others: int = 0  # held there by others
    out_of_memory: OutOfMemory | None = None
    notes: tuple[str, ...] = ()
    refused: str | None = None
    status: int = 0  # of a script that failed by itself

    def peak(self, name: str) -> int | None:
        """``gpu`` or ``host``, of all phases."""
        return max(
            (size for phase in self.phases if (size := getattr(phase, name)) is not None), default=None
        )

    def as_json(self) -> dict[str, Any]:
        oom = self.out_of_memory
        return {
            "schema": SCHEMA,
            "phases": [phase.as_json() for phase in self.phases],
            "batches": [batch.as_json() for batch in self.batches],
            "steps": self.steps,
            "evaluations": self.evaluations,
            "generations": self.generations,
            "saves": self.saves,
            "checkpoint_bytes": self.saved,
            "seconds": self.seconds,
            "step_seconds": self.step_seconds,
            "gpu": None
            if self.card is None
            else {
                "index": self.card,
                "total_bytes": self.card_total,
                "others_bytes": self.card_others,
                "peak_bytes": self.peak("gpu"),
            },
            "host": {"peak_bytes": self.peak("host")},
            "out_of_memory": None
            if oom is None
            else {"phase": oom.phase, "where": oom.where, "text": oom.text},
            "notes": list(self.notes),
            "refused": self.refused,
        }


@dataclass
class Looks:
    """What the processes held, by phase, as seen from outside."""

    watched: Watched
    phases: dict[
        str, tuple[int, int]
    ]  # phase → bytes of all, of those beside the main process; /dev/shm in both


def rehearse(
    argv: Sequence[str], *, time_limit: float, allow_writes: bool, tell: Callable[[str], None]
) -> Rehearsal:
    if shutil.which(argv[0]) is None:
        raise OomproofError(f"{argv[0]}: command not found", "", NOT_FOUND)
    folder = tempfile.mkdtemp(prefix="oomproof-rehearse-")
    began = time.monotonic()
    try:
        others = cards_used()
        looks = _run(list(argv), folder, time_limit, allow_writes)
        rehearsal = _answer(folder, looks, others, tell)
        return replace(rehearsal, seconds=round(time.monotonic() - began, 1))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def cards_used() -> dict[str, int]:
    """uuid or number of each card → bytes in use on it now."""
    from oomproof.machine.gpu import Query
    from oomproof.machine.nvidia import driver_present

    if not driver_present():
        return {}
    used = {}
    for card in Query().answer(5.0).gpus:
        used[str(card.index)] = card.used or 0
    return used


def _wants_card() -> bool:
    from oomproof.machine.nvidia import driver_present

    return driver_present() and os.environ.get("CUDA_VISIBLE_DEVICES", "0") not in ("", "-1")


def _run(argv: list[str], folder: str, time_limit: float, allow_writes: bool) -> Looks:
    code = os.path.join(os.path.dirname(os.path.abspath(__file__)), "rehearsal")
    environment = watched_child.environment_for(folder, code, "rehearsal_start", time_limit)
    with watched_child.running(argv, folder, environment, allow_writes) as (child, limit):
        return _watch(child, limit, time_limit, folder, is_wrapped=not allow_writes)


def _watch(
    child: subprocess.Popen[bytes], limit: int, time_limit: float, folder: str, is_wrapped: bool
) -> Looks:
    looks = Looks(Watched(limit=limit, has_network=not is_wrapped), {})
    watched, started = looks.watched, time.monotonic()
    if not is_wrapped:
        watched.shared_before = watched_child.shared_in_use()
    while True:
        try:
            watched.status = child.wait(watched_child.LOOK)
            return looks
        except subprocess.TimeoutExpired:
            pass
        for pid in watched_child.script_processes(child.pid, is_wrapped):
            watched.peak = watched.main = watched.workers = 0
            if watched_child.look(pid, watched, folder):
                phase = _phase(folder)
                before = looks.phases.get(phase, (0, 0))
                now = (watched.peak + watched.shared_now, watched.workers + watched.shared_now)
                looks.phases[phase] = max(before, now)
                if watched.peak > limit:
                    watched.over_limit = True
                    return looks
        patience = _PATIENCE * time_limit if watched_child.is_started(folder) else 0
        if time.monotonic() > started + patience + _GRACE:
            watched.timed_out = True
            return looks


def _phase(folder: str) -> str:
    with (
        contextlib.suppress(OSError),
        open(os.path.join(folder, "phase"), errors="replace", opener=watched_child.regular_only) as file,
    ):
        return file.read(32).strip() or "load"
    return "load"


def _answer(folder: str, looks: Looks, others: Mapping[str, int], tell: Callable[[str], None]) -> Rehearsal:
    watched = looks.watched
    if why := watched_child.cannot_be_private(watched.status, folder):
        return Rehearsal(
            refused=f"the script's writes cannot be kept private here ({why}); with --allow-writes it runs as it is"
        )
    result = _read(folder)
    if result is not None and result.get("refused"):
        return Rehearsal(refused=str(result["refused"]))
    if result is not None and result.get("no_card") and not watched.has_network and _wants_card():
        return Rehearsal(
            refused="the script saw no GPU: this machine's driver cannot be reached with private files; with --allow-writes it can"
        )
    killed = watched.status in (-signal.SIGKILL, 128 + signal.SIGKILL)
    if watched.over_limit or killed:
        phase = _phase(folder)
        held = max((size for size, _ in looks.phases.values()), default=0)
        text = f"held {format_size(held)} of the {format_size(watched.limit)} that this machine can give now"
        return Rehearsal(
            phases=_phases(result or {}, looks, 0), out_of_memory=OutOfMemory(phase, "host", text), notes=_notes(result or {}, folder)
        )  # fmt: skip
    if result is None or not result.get("steps"):
        if result is not None and result.get("memory_error"):
            return _rehearsed(result, looks, others, folder)
        return _nothing_seen(result, watched, folder, tell)
    failed = watched.status != 0 and not result.get("memory_error")
    rehearsal = _rehearsed(result, looks, others, folder)
    if failed:
        cause = watched_child.cause_of_failure(
            folder, tell, has_network=watched.has_network, when="in a rehearsal"
        )
        cause = cause or "the command failed by itself"
        return replace(
            rehearsal,
            refused=f"{cause} in {result['phase']}, with status {watched.status}; its error is above",
            status=watched.status,
        )
    return rehearsal


def _nothing_seen(
    result: Mapping[str, Any] | None, watched: Watched, folder: str, tell: Callable[[str], None]
) -> Rehearsal:
    if watched.timed_out and not watched_child.is_started(folder):
        return Rehearsal(refused=watched_child.NOT_STARTED)
    if watched.status != 0 and not watched.timed_out:
        cause = watched_child.cause_of_failure(
            folder, tell, has_network=watched.has_network, when="in a rehearsal"
        )
        cause = cause or "the command failed by itself"
        return Rehearsal(
            refused=f"{cause}, with status {watched.status}; its error is above", status=watched.status
        )
    if not watched_child.is_started(folder):
        return Rehearsal(refused=watched_child.NOT_STARTED)
    if result is None and not watched.timed_out:
        return Rehearsal(refused="the script never imported torch: there is nothing to rehearse")
    if result is not None and result.get("reason") == "script ended":
        return Rehearsal(refused="the script ended without a step of training: there is nothing to rehearse")
    return Rehearsal(refused="the script made no step in time; give it longer with --time-limit")


def _read(folder: str) -> dict[str, Any] | None:
    """Of the process that trained: launchers and helpers import torch as well."""
    results = []
    for name in os.listdir(folder):
        if name.endswith(".json") and name[:-5].isdigit():
            with (
                contextlib.suppress(OSError, ValueError),
                open(os.path.join(folder, name), opener=watched_child.regular_only) as file,
            ):
                results.append(json.load(file))
    return max(
        results, key=lambda result: (bool(result.get("refused")), result.get("steps", 0)), default=None
    )


def _rehearsed(result: Mapping[str, Any], looks: Looks, others: Mapping[str, int], folder: str) -> Rehearsal:
    card = _fullest(result)
    facts: dict[str, Any] = next((fact for fact in result["card_facts"] if str(fact["index"]) == card), {})
    held_by_others = others.get(card or "", 0) if len(others) > 1 or card in others else 0
    context = _context(facts, held_by_others) if facts else 0
    rehearsal = Rehearsal(
        phases=_phases(result, looks, context, card),
        batches=tuple(_batch(batch) for batch in result["batches"]),
        steps=result["steps"],
        evaluations=result["evaluations"],
        generations=result["generations"],
        saves=result["saves"],
        saved=result["saved"],
        step_seconds=result.get("step_seconds"),
        card=int(card) if card is not None else None,
        card_total=facts.get("total"),
        card_others=held_by_others,
        notes=_notes(result, folder),
    )
    if result.get("memory_error"):
        return replace(rehearsal, out_of_memory=_out_of_memory(result, held_by_others))
    return rehearsal


def _fullest(result: Mapping[str, Any]) -> str | None:
    reserved: dict[str, int] = {}
    for by_card in result["cards"].values():
        for card, (_, held) in by_card.items():
            reserved[card] = max(reserved.get(card, 0), held)
    return max(reserved, key=lambda card: reserved[card], default=None)


def _context(facts: Mapping[str, Any], others: int) -> int:
    """What CUDA and its libraries took on the card beside PyTorch's allocator."""
    beside = facts["total"] - facts["free"] - facts["reserved"] - others
    return beside if _LEAST_CONTEXT <= beside <= _MOST_CONTEXT else CONTEXT


def _out_of_memory(result: Mapping[str, Any], others: int) -> OutOfMemory:
    error = str(result.get("error") or "")
    ooms = result.get("ooms") or []
    if ooms:
        last = ooms[-1]
        text = f"asked for {format_size(last['requested'])} with {format_size(last['free'])} free on the card"
        if last["free"] > last["requested"]:
            text += ", of which a limit of its own (per_process_memory_fraction) lets it take no more"
        return OutOfMemory(str(last["phase"]), "gpu", text, others)
    where = "gpu" if "CUDA" in error else "host"
    return OutOfMemory(str(result.get("phase") or "load"), where, error[:200], others)


def _phases(
    result: Mapping[str, Any], looks: Looks, context: int, card: str | None = None
) -> tuple[PhasePeak, ...]:
    entered, kept = result.get("entered") or {}, int(result.get("kept") or 0) + int(result.get("across") or 0)
    phases = []
    for name in PHASES:
        seen, workers = looks.phases.get(name, (0, 0))
        own = int((result.get("host") or {}).get(name, 0))
        workers = max(workers, _loaders_hold((result.get("loaders") or {}).get(name, ())))
        host = max(seen, own + workers if own else 0) or None
        sizes = ((result.get("cards") or {}).get(name) or {}).get(card or "")
        reached = bool(entered.get(name)) if entered else name in looks.phases
        more = kept if name == "eval" else 0
        gpu = allocated = None
        if sizes is not None:
            allocated = sizes[0] + more
            gpu = context + max(sizes[1], allocated)
        elif host is not None:
            host += more
        phases.append(
            PhasePeak(name, reached, gpu, host if reached else None, allocated, more if reached else 0)
        )
    return tuple(phases)


def _loaders_hold(loaders: Sequence[Mapping[str, Any]]) -> int:
    """Bytes that the workers of a phase's loaders hold at most, by what each told of itself, and their full queue: no look need have
    seen all of it at once."""
    total = 0
    for told, loader in zip(loaders, loaders_of(loaders, on_card=True), strict=True):
        memory = loader_memory(loader)
        total += max(workers_hold(told) + unseen(loader), 0 if told["own"] else memory.private)
        total += memory.queue + memory.pinned
    return total


def _batch(value: Mapping[str, Any]) -> Batch:
    return Batch(
        bool(value["training"]), str(value["how"]), int(value["looked"]), value["of"], int(value["usual"]), int(value["largest"]),
        tuple(value["shapes"]),
    )  # fmt: skip


def _notes(result: Mapping[str, Any], folder: str) -> tuple[str, ...]:
    notes = [str(note) for note in result.get("notes") or ()]
    if 0 < int(result.get("steps") or 0) < STEPS:
        notes.append(f"only {result['steps']} steps were reached: {result['reason']}")
    if not_settled(loader for loaders in (result.get("loaders") or {}).values() for loader in loaders):
        notes.append(QUEUE_NOT_FULL)
    if left := int(result.get("tokens_left") or 0):
        notes.append(f"the time was over before the generation was: {left} tokens more are not counted")
    if kept := int(result.get("kept") or 0):
        notes.append(
            f"the evaluation keeps its outputs: {format_size(kept)} more for the batches that were left out"
        )
    if int(result.get("across") or 0):
        notes.append("what an evaluation keeps is still there in the next: each adds as much")
    if any(oom for oom in result.get("ooms") or ()) and not result.get("memory_error"):
        notes.append(f"the script was out of GPU memory in {result['ooms'][-1]['phase']}, and caught it")
    notes += watched_child.held_back(folder)
    return tuple(notes)

"""Rehearses an unmodified script: its largest batch, an evaluation, a generation and a checkpoint, on the real device, in a child
whose writes nobody sees; and says what each took."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from oomproof.records import dataclass, replace
from oomproof.sizing import followed_command, watched_child
from oomproof.sizing.followed_command import Reason, first_reason, private_refused
from oomproof.sizing.host_figures import (
    QUEUE_NOT_FULL,
    loader_memory,
    not_settled,
    unseen,
    workers_hold,
)
from oomproof.sizing.virtual_gpu import child_results
from oomproof.sizing.virtual_gpu.child_results import Batch, CardFacts, Loader, RehearsalResult
from oomproof.sizing.virtual_gpu.step_limits import STEPS
from oomproof.sizing.watched_child import Watched
from oomproof.units import GIB, MIB, format_size

PHASES = ("load", "train", "eval", "generate", "save")
SCHEMA = 1
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


def _batch_json(batch: Batch) -> dict[str, Any]:
    return {
        "training": batch.training, "how": batch.how, "looked_at": batch.looked, "of": batch.of, "usual_bytes": batch.usual,
        "largest_bytes": batch.largest, "shapes": batch.shapes,
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
            "batches": [_batch_json(batch) for batch in self.batches],
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
    """What the processes held as seen from outside. ``phases``: phase → bytes of all, and of those beside the main process; both with
    /dev/shm."""

    watched: Watched
    phases: dict[str, tuple[int, int]]


def rehearse(
    argv: Sequence[str], *, time_limit: float, allow_writes: bool, tell: Callable[[str], None]
) -> Rehearsal:
    with followed_command.own_folder(argv, "oomproof-rehearse-") as folder:
        began = time.monotonic()
        others = cards_used()
        looks = _run(argv, folder, time_limit, allow_writes)
        rehearsal = _answer(folder, looks, others, tell)
        return replace(rehearsal, seconds=round(time.monotonic() - began, 1))


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


def _run(argv: Sequence[str], folder: str, time_limit: float, allow_writes: bool) -> Looks:
    phases: dict[str, tuple[int, int]] = {}

    def look(watched: Watched, is_whole: bool) -> None:
        if is_whole:
            phase = _phase(folder)
            now = (watched.peak + watched.shared_now, watched.workers + watched.shared_now)
            phases[phase] = max(phases.get(phase, (0, 0)), now)
        watched.peak = watched.main = watched.workers = 0

    environment = followed_command.environment_for(folder, "rehearsal", "rehearsal_start", time_limit)
    watched = followed_command.follow(
        argv, folder, environment, seconds=_PATIENCE * time_limit, allow_writes=allow_writes, look=look
    )
    return Looks(watched, phases)


def _phase(folder: str) -> str:
    with (
        contextlib.suppress(OSError),
        open(os.path.join(folder, "phase"), errors="replace", opener=watched_child.regular_only) as file,
    ):
        return file.read(32).strip() or "load"
    return "load"


@dataclass(frozen=True, slots=True)
class _Ended:
    """A command that has ended, and what its Python wrote down."""

    folder: str
    watched: Watched
    tell: Callable[[str], None]
    result: RehearsalResult | None

    @property
    def seen(self) -> RehearsalResult:
        return self.result or RehearsalResult()

    @property
    def cannot(self) -> str:
        return watched_child.cannot_be_private(self.watched.status, self.folder)

    @property
    def started(self) -> bool:
        return watched_child.is_started(self.folder)

    def failure(self, where: str = "") -> str:
        return followed_command.failure(self.folder, self.watched, self.tell, "in a rehearsal", where)


_REFUSALS = (
    Reason(lambda ended: ended.cannot, lambda ended: private_refused(ended.cannot)),
    Reason(lambda ended: ended.seen.refused, lambda ended: ended.seen.refused),
    Reason(
        lambda ended: ended.seen.no_card and not ended.watched.has_network and _wants_card(),
        lambda _: (
            "the script saw no GPU: this machine's driver cannot be reached with private files; with --allow-writes it can"
        ),
    ),
)
_NOTHING_SEEN = (
    Reason(lambda ended: ended.watched.status != 0, _Ended.failure, failed=True),
    Reason(lambda ended: not ended.started, lambda _: watched_child.NOT_STARTED),
    Reason(
        lambda ended: ended.result is None and not ended.watched.timed_out,
        lambda _: "the script never imported torch: there is nothing to rehearse",
    ),
    Reason(
        lambda ended: ended.seen.reason == "script ended",
        lambda _: "the script ended without a step of training: there is nothing to rehearse",
    ),
    Reason(lambda _: True, lambda _: "the script made no step in time; give it longer with --time-limit"),
)
_FAILED_LATER = (
    Reason(
        lambda ended: ended.watched.status != 0 and not ended.seen.memory_error,
        lambda ended: ended.failure(f" in {ended.seen.phase}"),
        failed=True,
    ),
)


def _answer(folder: str, looks: Looks, others: Mapping[str, int], tell: Callable[[str], None]) -> Rehearsal:
    watched, result = looks.watched, _read(folder)
    ended = _Ended(folder, watched, tell, result)
    seen = ended.seen
    rehearsal = Rehearsal()
    reason = first_reason(_REFUSALS, ended)
    if reason is None and (watched.over_limit or watched.status in (-signal.SIGKILL, 128 + signal.SIGKILL)):
        held = max((size for size, _ in looks.phases.values()), default=0)
        text = f"held {format_size(held)} of the {format_size(watched.limit)} that this machine can give now"
        oom = OutOfMemory(_phase(folder), "host", text)
        return Rehearsal(phases=_phases(seen, looks, 0), out_of_memory=oom, notes=_notes(seen, folder))
    if reason is None and not seen.steps and not seen.memory_error:
        reason = first_reason(_NOTHING_SEEN, ended)
    elif reason is None:
        rehearsal = _rehearsed(seen, looks, others, folder)
        reason = first_reason(_FAILED_LATER, ended)
    if reason is None:
        return rehearsal
    return replace(rehearsal, refused=reason.text(ended), status=watched.status if reason.failed else 0)


def _read(folder: str) -> RehearsalResult | None:
    """Of the process that trained."""
    results = map(RehearsalResult.from_json, child_results.read(folder, watched_child.regular_only).values())
    return max(results, key=lambda result: (bool(result.refused), result.steps), default=None)


def _rehearsed(result: RehearsalResult, looks: Looks, others: Mapping[str, int], folder: str) -> Rehearsal:
    card = _fullest(result)
    facts = next((facts for facts in result.card_facts if str(facts.index) == card), None)
    held_by_others = others.get(card or "", 0) if len(others) > 1 or card in others else 0
    context = _context(facts, held_by_others) if facts else 0
    rehearsal = Rehearsal(
        phases=_phases(result, looks, context, card),
        batches=tuple(result.batches),
        steps=result.steps,
        evaluations=result.evaluations,
        generations=result.generations,
        saves=result.saves,
        saved=result.saved,
        step_seconds=result.step_seconds,
        card=int(card) if card is not None else None,
        card_total=facts.total if facts else None,
        card_others=held_by_others,
        notes=_notes(result, folder),
    )
    if result.memory_error:
        return replace(rehearsal, out_of_memory=_out_of_memory(result, held_by_others))
    return rehearsal


def _fullest(result: RehearsalResult) -> str | None:
    reserved: dict[str, int] = {}
    for by_card in result.cards.values():
        for card, (_, held) in by_card.items():
            reserved[card] = max(reserved.get(card, 0), held)
    return max(reserved, key=lambda card: reserved[card], default=None)


def _context(facts: CardFacts, others: int) -> int:
    """What CUDA and its libraries took on the card beside PyTorch's allocator."""
    beside = facts.total - facts.free - facts.reserved - others
    return beside if _LEAST_CONTEXT <= beside <= _MOST_CONTEXT else CONTEXT


def _out_of_memory(result: RehearsalResult, others: int) -> OutOfMemory:
    if result.ooms:
        last = result.ooms[-1]
        text = f"asked for {format_size(last.requested)} with {format_size(last.free)} free on the card"
        if last.free > last.requested:
            text += ", of which a limit of its own (per_process_memory_fraction) lets it take no more"
        return OutOfMemory(last.phase, "gpu", text, others)
    where = "gpu" if "CUDA" in result.error else "host"
    return OutOfMemory(result.phase, where, result.error[:200], others)


def _phases(
    result: RehearsalResult, looks: Looks, context: int, card: str | None = None
) -> tuple[PhasePeak, ...]:
    entered, kept = result.entered, result.kept + result.across
    phases = []
    for name in PHASES:
        seen, workers = looks.phases.get(name, (0, 0))
        own = result.host.get(name, 0)
        workers = max(workers, _loaders_hold(result.loaders.get(name, ())))
        host = max(seen, own + workers if own else 0) or None
        sizes = result.cards.get(name, {}).get(card or "")
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


def _loaders_hold(loaders: Sequence[Loader]) -> int:
    """Bytes that the workers of a phase's loaders hold at most, by what each told of itself, and their full queue: no look need have
    seen all of it at once."""
    total = 0
    for loader in loaders:
        memory = loader_memory(loader)
        total += max(workers_hold(loader) + unseen(loader), 0 if loader.own else memory.private)
        total += memory.queue + memory.pinned
    return total


def _notes(result: RehearsalResult, folder: str) -> tuple[str, ...]:
    notes = list(result.notes)
    if 0 < result.steps < STEPS:
        notes.append(f"only {result.steps} steps were reached: {result.reason}")
    if not_settled(loader for loaders in result.loaders.values() for loader in loaders):
        notes.append(QUEUE_NOT_FULL)
    if left := result.tokens_left:
        notes.append(f"the time was over before the generation was: {left} tokens more are not counted")
    if result.kept:
        notes.append(
            f"the evaluation keeps its outputs: {format_size(result.kept)} more for the batches that were left out"
        )
    if result.across:
        notes.append("what an evaluation keeps is still there in the next: each adds as much")
    if result.ooms and not result.memory_error:
        notes.append(f"the script was out of GPU memory in {result.ooms[-1].phase}, and caught it")
    return (*notes, *watched_child.held_back(folder))

"""Runs an unmodified script on a virtual GPU, in a child whose writes nobody sees, and says what it would need."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence

from oomproof.records import dataclass, replace
from oomproof.sizing import followed_command, measured_workspaces, virtual_run, watched_child
from oomproof.sizing.calibrated_card import CalibratedCard
from oomproof.sizing.card_constants import ANY_CARD, Card
from oomproof.sizing.estimate import Estimate, Phase, Sizing
from oomproof.sizing.followed_command import Reason, first_reason, private_refused
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
    not_settled,
    unseen,
    workers_hold,
)
from oomproof.sizing.quantized_weights import frozen_weights, quantized_note
from oomproof.sizing.sizing_cache import python_of
from oomproof.sizing.virtual_gpu.child_results import VirtualResult
from oomproof.sizing.virtual_gpu.step_limits import CARD_TORCH, COMPILED, EAGER, PATIENCE, STEPS, WHOLE_EPOCH
from oomproof.sizing.watched_child import Watched
from oomproof.units import MIB, format_size

# chosen on the first five CPU trainings of bench/sizing/host.py: oneDNN's and MKL's own memory, and what malloc keeps of what is freed
_ON_CPU, _BESIDE = 60 * MIB, 0.35
_KEPT = 32 * MIB  # malloc gives larger blocks back at once (glibc's largest M_MMAP_THRESHOLD)
_NO_TORCH = "No module named 'torch'"
CardOf = Callable[[VirtualResult], CalibratedCard | None]


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
    for compiled in (True, False):
        with followed_command.own_folder(argv, "oomproof-size-") as folder:
            watched = _run(
                argv, folder, time_limit, gpu_total, allow_writes, whole_epoch, card_torch, compiled
            )
            last = not compiled or not os.path.exists(os.path.join(folder, COMPILED))
            run = virtual_run.read(folder)
            ended = _Ended(argv[0], folder, watched, tell if last else _tell_nobody, run)
            answer = _answer(ended, gpu_total, card_of)
            if last or not answer.sizing.refused:
                break
    return answer


def _tell_nobody(text: str) -> None:
    """What a run says that is repeated without torch.compile, since following that may be what failed."""


def _run(
    argv: Sequence[str],
    folder: str,
    time_limit: float,
    gpu_total: int | None,
    allow_writes: bool,
    whole_epoch: bool = True,
    card_torch: str = "",
    compiled: bool = True,
) -> Watched:
    environment = {
        **_environment(folder, time_limit, gpu_total),
        WHOLE_EPOCH: "1" if whole_epoch else "",
        CARD_TORCH: card_torch,
        EAGER: "" if compiled else "1",
    }
    seconds = PATIENCE * time_limit
    return followed_command.follow(
        argv, folder, environment, seconds=seconds, allow_writes=allow_writes, look=_Looks(folder)
    )


def _environment(folder: str, time_limit: float, gpu_total: int | None) -> dict[str, str]:
    """With a folder on PYTHONPATH that starts the virtual GPU in every Python of the command."""
    return {
        **followed_command.environment_for(folder, "virtual_gpu", "virtual_start", time_limit),
        "OOMPROOF_SIZE_GPU": "" if gpu_total is None else str(gpu_total),
        "CUDA_VISIBLE_DEVICES": "", "PYTORCH_JIT": "0",
        "HF_DEACTIVATE_ASYNC_LOAD": "1",  # transformers would read weights in threads, where tensors are real
    }  # fmt: skip


class _Looks:
    """Tells the child of the looks at it, and keeps what it held before it trained apart from what it held since."""

    def __init__(self, folder: str) -> None:
        self.folder, self.count = folder, 0

    def __call__(self, watched: Watched, is_whole: bool) -> None:
        if is_whole:
            self.count += 1
            watched_child.tell_looks(self.folder, self.count)
        if not watched.is_training and os.path.exists(os.path.join(self.folder, "training")):
            watched.is_training = True
            watched.earlier, watched.earlier_workers = watched.main, watched.workers
            watched.peak = watched.main = watched.workers = 0


@dataclass(frozen=True, slots=True)
class _Ended:
    """A command that has ended, and what its Python wrote down."""

    program: str
    folder: str
    watched: Watched
    tell: Callable[[str], None]
    run: virtual_run.VirtualRun | None

    @property
    def result(self) -> VirtualResult:
        return self.run.result if self.run is not None else VirtualResult()

    @property
    def cannot(self) -> str:
        return watched_child.cannot_be_private(self.watched.status, self.folder)

    @property
    def started(self) -> bool:
        return watched_child.is_started(self.folder)

    @property
    def failed(self) -> bool:
        return self.watched.status != 0 and self.result.steps < STEPS

    def ended_by(self, number: int) -> bool:
        return self.failed and self.watched.status in (-number, 128 + number)

    @property
    def is_late(self) -> bool:
        return self.result.reason == "time limit"

    def has_no_step_of(self, reason: str) -> bool:
        return self.result.trains and not self.result.steps and self.result.reason == reason

    def failure(self) -> str:
        """Shows the end of its output."""
        network = self.watched.has_network
        cause = watched_child.cause_of_failure(
            self.folder, self.tell, has_network=network, when="while sizing"
        )
        if not cause and self.result.widened:
            # torch.unique, x[mask]: as many as there can be, which a check of the script's own may not like
            cause = f"the command failed, by itself or for lack of real values (a virtual GPU has none, and it used {', '.join(self.result.widened)})"
        elif not cause and self.run is None and watched_child.printed(self.folder, _NO_TORCH):
            python = python_of(self.program) or self.program
            return f"{python} has no torch; start the command with the Python of your environment"
        return followed_command.with_status(cause or "the command failed by itself", self.watched)

    def crash(self) -> str:
        watched_child.cause_of_failure(self.folder, self.tell, has_network=True, when="")
        return "the command crashed (SIGSEGV), by itself or in compiled code that was given an address in the GPU's memory, of which a virtual GPU has none; run it there with: oomproof run"

    def without_steps(self) -> str:
        """Names the line at which a loop may wait for a value of the card to change."""
        advice = "give it longer with --time-limit 5m, or let its first evaluation be shorter"
        if line := self.result.reads_at:
            advice = f"at its end it read values of the GPU at {line}, and a virtual GPU has none: a loop that waits for one never ends; leave the loop out for sizing, or run it there with: oomproof run"
        return f"the script has an optimizer, and made no step with it in time: what training takes was not seen; {advice}"


_REFUSALS = (
    Reason(lambda ended: ended.cannot, lambda ended: private_refused(ended.cannot), passing=True),
    Reason(
        lambda ended: ended.watched.over_limit,
        lambda ended: (
            f"the script held {format_size(ended.watched.peak)} on the host before its third step, more than is available now; end something large first"
        ),
        passing=True,
    ),
    Reason(lambda ended: ended.result.refused, lambda ended: ended.result.refused),
    Reason(lambda ended: ended.watched.timed_out and not ended.started, lambda _: watched_child.NOT_STARTED),
    Reason(
        lambda ended: ended.watched.timed_out and ended.run is None,
        lambda _: (
            "the script made no step in time; give it longer with --time-limit, or size it with a smaller model"
        ),
    ),
    Reason(
        lambda ended: ended.ended_by(signal.SIGKILL),
        lambda ended: (
            f"the script was killed, most likely at the limit of {format_size(ended.watched.limit)} on the host, before its third step; end something large first"
        ),
    ),
    Reason(lambda ended: ended.ended_by(signal.SIGSEGV), _Ended.crash, failed=True),
    Reason(lambda ended: ended.failed, _Ended.failure, failed=True),
    Reason(lambda ended: ended.run is None and not ended.started, lambda _: watched_child.NOT_STARTED),
    Reason(
        lambda ended: ended.run is None,
        lambda _: "the script never imported torch; size its files instead: oomproof size FILE",
    ),
    Reason(
        lambda ended: ended.result.unfed and ended.result.steps < STEPS and ended.is_late,
        lambda ended: (
            f"the loader's {ended.result.unfed} workers made no batch in time, so what they hold was not seen; give it longer with --time-limit 5m"
        ),
    ),
    Reason(
        lambda ended: ended.is_late and not ended.result.steps and not ended.result.phases,
        lambda _: (
            "the script called no model and made no step in time; give it longer with --time-limit, or size its files: oomproof size FILE"
        ),
    ),
    Reason(lambda ended: ended.has_no_step_of("time limit"), _Ended.without_steps),
    Reason(
        lambda ended: (
            ended.has_no_step_of("script ended") and not {"eval", "generate"} & ended.result.phases.keys()
        ),
        lambda _: (
            "the script has an optimizer, and ended without a step of it: what training takes was not seen; does it find its data?"
        ),
    ),
    Reason(
        lambda ended: not ended.run.events and not ended.result.peak["host"],
        lambda _: (
            "the script put nothing on a GPU and made no model; size its files instead: oomproof size FILE"
        ),
    ),
    Reason(lambda ended: virtual_run.by_values(ended.run), lambda ended: virtual_run.by_values(ended.run)),
    Reason(
        lambda ended: virtual_run.by_allocator(ended.run), lambda ended: virtual_run.by_allocator(ended.run)
    ),
)


def _answer(ended: _Ended, gpu_total: int | None, card_of: CardOf) -> SizedScript:
    if reason := first_reason(_REFUSALS, ended):
        sizing = Sizing(
            None, None, (), "script run on a virtual GPU", refused=reason.text(ended), passing=reason.passing
        )
        return SizedScript(sizing, ended.watched.status if reason.failed else 0)
    assert ended.run is not None
    seen = SizedScript(
        Sizing(None, None, (), ""),
        seen=ended.run,
        host=host_figures(ended.run, ended.watched),
        held_back=tuple(watched_child.held_back(ended.folder)),
    )
    return with_card(seen, card_of(ended.result), gpu_total)


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
        notes=tuple(note for note in (*_notes(run), _other_torch(run, calibrated), *sized.held_back, tight, searched, growing, lighter) if note), peak=run.result.peak_place,
    )  # fmt: skip
    return replace(sized, sizing=sizing, run=run, card=card)


def _other_torch(run: virtual_run.VirtualRun, calibrated: CalibratedCard | None) -> str:
    """Another version may keep other tensors for the same layer: `nn.RMSNorm` in autocast keeps two in 2.11 and one in 2.13 (7 % of a job)."""
    card = calibrated.facts.get("torch") if calibrated is not None else None
    ours, its = (".".join(str(version or "").split(".")[:2]) for version in (run.result.torch, card))
    if not ours or not its or ours == its:
        return ""
    return f"sized with torch {ours}, and the card's file is of torch {its}: size it with the version that it will run with"


def _basis(run: virtual_run.VirtualRun, calibrated: CalibratedCard | None) -> str:
    if not run.events:
        return "script run for its first steps; it uses no GPU"
    basis = "script run on a virtual GPU"
    if calibrated is None:
        return basis
    of = run.result.measured + run.result.unmeasured
    return (
        f"{basis}; {calibrated.name} calibrated, {run.result.measured} of its {of} operations measured there"
    )


def host_figures(run: virtual_run.VirtualRun, watched: Watched) -> HostFigures:
    """Measured, less what the virtual GPU itself took, plus what had no bytes here."""
    result, on_card = run.result, bool(run.events)
    loaders = tuple(loader if on_card else replace(loader, pinned=0) for loader in result.loaders)
    held = [loader_memory(loader) for loader in loaders]
    seen = sum(loader_memory(replace(loader, pinned=0)).queue for loader in loaders)
    copied = sum(loader.workers * loader.copied for loader in loaders)
    workers = max(watched.workers, watched.earlier_workers, sum(map(workers_hold, loaders)))
    for loader in loaders:
        if not loader.settled and not loader.own:  # a system that does not tell of itself
            workers = max(workers, loader.workers * watched.largest, loader_memory(loader).private)
    process = max(0, max(watched.main, result.held_since) - result.overhead)
    buffers = {name: size for name, size in result.buffers.items() if size}
    if sum(buffers.values()) > process:  # pages that were never touched, or of a file
        buffers = {}
    parts = {
        PROCESS: process - sum(buffers.values()),
        **buffers,
        WORKERS if seen else OTHERS: workers + copied,
        UNSEEN: sum(map(unseen, loaders)),
        QUEUE: sum(memory.queue for memory in held),
        "shared memory": _shared_beside(result, watched.shared - seen),
        **({"model on the host": result.peak["host"]} if on_card else _on_cpu(run)),
        PINNED: sum(memory.pinned for memory in held),
        SAVED: result.saved,
    }
    # what it held before it trained, where that is more than all the rest
    earlier = max(watched.earlier, result.held_before)
    parts[PROCESS] += max(0, earlier - result.overhead - sum(parts.values()))
    parts[LAUNCHER] = max(watched.launcher, result.launcher)
    count = sum(loader.workers for loader in loaders)
    own = (workers + copied) // count if count else 0
    return HostFigures(parts, loaders, own, on_card, result.ranks)


def _shared_beside(result: VirtualResult, more: int) -> int:
    """The script's own shared memory, ``more`` being the most that was seen beyond its loaders' queues: a batch of each may be there besides
    while we do something between two of them."""
    beside = result.shared_beside
    between = sum(loader.batch for loader in result.loaders if loader.workers)
    if beside is not None and more <= beside + between + MIB:
        more = beside
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
    yield from result.notes
    if result.steps < STEPS:
        yield f"only {result.steps} optimizer steps were reached: {result.reason}"
    yield from virtual_run.widening_notes(result, on_card=bool(run.events))
    if not_settled(result.loaders):
        yield QUEUE_NOT_FULL
    elif result.unfed and result.reason == "time limit":
        yield f"{result.unfed} workers of a further loader made no batch in time: what they hold is not counted; give it longer with --time-limit"
    for name, size in result.buffers.items():
        if not size:
            yield f"a native index: {name}; it is part of the process"

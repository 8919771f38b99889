"""What a child that runs a script writes down, and its parent reads: the results of a virtual run and of a rehearsal.

Both sides import this file, the child by its path in the user's Python: it needs the standard library only. Sizes are in bytes.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Loader:
    """A DataLoader at the moment at which the batches of all loaders took most."""

    workers: int
    prefetch: float = 2  # batches of each worker that wait
    batch: int = 0  # the largest batch
    method: str = "fork"  # how its workers are started
    pinned: int = 0  # a batch in pinned memory; 0: none is pinned
    settled: bool = True  # its workers were seen until their queue was full
    copied: int = 0  # of the dataset's Python objects, what each forked worker copies in an epoch
    samples: int | None = None  # length of the dataset; None for a stream
    persistent: bool = False  # its workers live on between epochs
    varies: bool = False  # its samples differ in size
    pids: list[int] = field(default_factory=list)  # of its workers
    own: list[int] = field(default_factory=list)  # what each worker reported to hold itself at most


@dataclass
class Epoch:
    """Batches of many shapes, of which more than three steps were followed."""

    batches: int | None  # of an epoch; None for a stream
    seen: int  # of them, how many were followed
    order: str = ""  # FIXED, SEEDED or DRAWN


@dataclass
class CutGeneration:
    """A generation that was ended after its first tokens."""

    cuts: list[int]  # events of the card before each of the last four tokens
    left: int  # tokens that were left out


@dataclass
class BatchFacts:
    """What a step does with the samples of its batch together."""

    norms: int = 0  # layers that take mean and variance of the batch
    rows: list[int] = field(default_factory=list)  # of losses that are the mean over them
    squares: list[int] = field(
        default_factory=list
    )  # n of products that are n × n: each sample with each other


@dataclass
class VirtualResult:
    """What a script did on the virtual GPU. Storages are known by their number in the log of events."""

    reason: str = ""  # why it ended: done, time limit, script ended, failed, refused
    refused: str = ""  # a sentence where it cannot be followed
    steps: int = 0  # optimizer steps that were followed
    trains: bool = False  # an optimizer was made
    phases: dict[str, int] = field(default_factory=dict)  # train, eval, generate → outermost forward passes
    marks: list[tuple[int, str]] = field(
        default_factory=list
    )  # twice the card's events before a phase, its name
    host_marks: list[tuple[int, str]] = field(default_factory=list)  # the same for the host's events
    step_ends: list[int] = field(default_factory=list)  # events of the card before the end of each step
    peak: dict[str, int] = field(default_factory=lambda: {"gpu": 0, "host": 0})  # tensors alive at most
    peak_place: str = ""  # where the card's peak was: part of the step, line, module
    kinds: dict[int, str] = field(default_factory=dict)  # storage → weights, gradients, optimizer state, …
    sums: dict[int, list[int]] = field(
        default_factory=dict
    )  # in backward: storage → the two it is the sum of
    possible: dict[int, int] = field(
        default_factory=dict
    )  # storage of a workspace that may be taken → its size
    signed: dict[int, int] = field(
        default_factory=dict
    )  # storage of a workspace → index of its signature; ~index: a further one
    signatures: list[dict[str, Any]] = field(
        default_factory=list
    )  # operations, as a calibrated card's file has them
    scalars: int = 0  # values of the GPU that the script read
    reads_at: str = ""  # the line that read values of the GPU when the time was over
    widened: dict[str, int] = field(
        default_factory=dict
    )  # operation of unknown result size → how often it was counted whole
    unfamiliar: dict[str, int] = field(
        default_factory=dict
    )  # operation with unknown workspace → how often it was met
    convolutions: int = 0  # convolutions whose workspace is an estimate
    matrices: int = 0  # operations that multiply matrices by another name
    solvers: list[str] = field(default_factory=list)  # operations of linear algebra
    recurrent: bool = False  # the model has layers of cuDNN's recurrent kind
    benchmark: bool = False  # torch.backends.cudnn.benchmark
    frozen: list[tuple[str, int, int, int]] = field(
        default_factory=list
    )  # linear weights that do not learn: name, rows, columns, bytes of an element
    allocator: list[str] | None = None  # settings of the allocator at the end; None: not known
    generates: bool = False  # the model could generate
    generations: list[CutGeneration] = field(default_factory=list)
    kept: int = 0  # what an evaluation would keep on the card beyond the batches that were seen
    saved: int = 0  # a checkpoint on the host at most
    many_shapes: Epoch | None = None
    batch_facts: BatchFacts = field(default_factory=BatchFacts)
    loaders: list[Loader] = field(default_factory=list)
    unfed: int = 0  # workers that made no batch
    shared_beside: int | None = None  # the script's own /dev/shm beside full queues; None: no queue was full
    held_before: int = 0  # anonymous memory of the process at most, before the model's first pass
    held_since: int = 0  # and since
    overhead: int = 0  # of it, what the virtual GPU took
    ranks: int = 1  # processes of this job on this machine
    launcher: int = 0  # what the process that starts the ranks holds
    buffers: dict[str, int] = field(
        default_factory=dict
    )  # named arrays and indexes of the script; 0: size not known
    torch: str = ""  # its version
    notes: list[str] = field(default_factory=list)
    # added by the parent, from a calibrated card's file
    measured: int = 0  # signatures that it has
    unmeasured: int = 0  # and has not
    unmeasured_convolutions: int | None = None  # of those, convolutions; None: no card's file was asked

    @staticmethod
    def from_json(value: dict[str, Any]) -> VirtualResult:
        result = VirtualResult(**value)
        for name in ("kinds", "sums", "possible", "signed"):
            by_number = {int(number): item for number, item in getattr(result, name).items()}
            setattr(result, name, by_number)
        result.loaders = [Loader(**loader) for loader in value.get("loaders", ())]
        result.generations = [CutGeneration(**cut) for cut in value.get("generations", ())]
        result.many_shapes = Epoch(**value["many_shapes"]) if value.get("many_shapes") else None
        result.batch_facts = BatchFacts(**value.get("batch_facts", {}))
        return result


@dataclass
class Batch:
    """The batch that a rehearsal made a loader give first."""

    training: bool
    how: str  # how it was found
    looked: int  # samples, or batches of a stream, that were looked at
    of: int | None  # samples of the dataset
    usual: int  # size of a sample, or of a batch of a stream
    largest: int
    shapes: list[str]


@dataclass
class CardFacts:
    """A card at the end of a rehearsal."""

    index: int
    free: int
    total: int
    reserved: int  # by PyTorch


@dataclass
class OutOfCard:
    """The card was out of memory."""

    phase: str
    requested: int
    free: int


@dataclass
class RehearsalResult:
    """What a script did in a rehearsal. Phases are load, train, eval, generate and save."""

    reason: str = ""  # why it ended: done, time limit, script ended, failed
    refused: str = ""  # a sentence where it cannot be rehearsed
    error: str = ""  # that ended the script
    memory_error: bool = False  # the error is one of memory
    phase: str = "load"  # the last one
    steps: int = 0
    step_seconds: float | None = None  # of the quickest step after the first
    entered: dict[str, int] = field(default_factory=dict)  # phase → how often it began
    host: dict[str, int] = field(default_factory=dict)  # phase → anonymous memory of the process at most
    cards: dict[str, dict[str, list[int]]] = field(
        default_factory=dict
    )  # phase → card → allocated and reserved at most
    card_facts: list[CardFacts] = field(default_factory=list)
    evaluations: int = 0
    generations: int = 0
    tokens_left: int = 0  # of a generation that the end of the time cut short
    kept: int = 0  # what an evaluation keeps of the batches that were left out
    across: int = 0  # of it, what is still there in the next evaluation
    saves: int = 0
    saved: int = 0  # size of the largest checkpoint
    loaders: dict[str, list[Loader]] = field(
        default_factory=dict
    )  # phase → those alive when their batches took most
    batches: list[Batch] = field(default_factory=list)
    ooms: list[OutOfCard] = field(default_factory=list)
    no_card: bool = False  # a torch for CUDA sees no card
    notes: list[str] = field(default_factory=list)

    @staticmethod
    def from_json(value: dict[str, Any]) -> RehearsalResult:
        result = RehearsalResult(**value)
        result.card_facts = [CardFacts(**card) for card in value.get("card_facts", ())]
        result.batches = [Batch(**batch) for batch in value.get("batches", ())]
        result.ooms = [OutOfCard(**oom) for oom in value.get("ooms", ())]
        result.loaders = {
            phase: [Loader(**loader) for loader in loaders]
            for phase, loaders in value.get("loaders", {}).items()
        }
        return result


def write(folder: str, result: Any) -> None:
    """Whole or not at all, under this process's number."""
    path = os.path.join(folder, str(os.getpid()))
    with open(path + ".tmp", "w") as text:
        json.dump(vars(result), text, default=vars)
    os.replace(path + ".tmp", path + ".json")


def read(folder: str, opener: Any) -> dict[str, dict[str, Any]]:
    """Path without its ending → what each process of the command wrote: launchers and helpers import torch as well."""
    results = {}
    for name in os.listdir(folder):
        if name.endswith(".json") and name[:-5].isdigit():
            path = os.path.join(folder, name[:-5])
            try:
                with open(path + ".json", opener=opener) as file:
                    results[path] = json.load(file)
            except (OSError, ValueError):
                continue
    return results

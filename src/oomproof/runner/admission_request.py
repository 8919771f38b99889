"""A run's way in: what it needs, and, when that is known, its turn in the queue. Imports little: every start comes by here."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from oomproof.errors import USAGE, OomproofError
from oomproof.leaf.command_lines import command_key
from oomproof.ledger import peak_history
from oomproof.ledger.ledger_entries import (
    ADMITTED,
    CLAIM,
    NEGLIGIBLE,
    WAITING,
    Entry,
    Need,
    Peak,
    declared,
    from_history,
    with_spill,
    with_started,
)
from oomproof.ledger.ledger_store import Busy, Ledger, open_ledger
from oomproof.machine import processes
from oomproof.machine.clock import boottime
from oomproof.recording import run_folders
from oomproof.recording.secrets import mask_argv
from oomproof.records import dataclass, field, replace
from oomproof.units import MIB, format_size

if TYPE_CHECKING:
    import threading

WORTH_A_CARD = 256 << 20  # of GPU memory in the history, below which the driver is not asked
_CARDS = "/proc/driver/nvidia/gpus"
_TOO_SHORT = 0.5  # seconds; a command that ends sooner never stands in the ledger


@dataclass
class Asked:
    """What the user said about memory and time."""

    need: int | None = None
    gpu_need: int | None = None
    gpu: int | None = None
    priority: int = 0
    wait: bool = True
    wait_max: float | None = None  # seconds
    not_before: float | None = None  # wall clock
    margin: int | None = None
    limit: int | None = None
    spill: int = 0  # bytes of host memory that will be pinned
    ledger: str | None = None  # folder
    sized: Need | None = None  # by --need auto, where no measured peak counts before it
    twin: str = ""  # what tells the same job; empty: not to be asked


@dataclass
class Ticket:
    """The run's entry in the ledger, from the moment it may start."""

    entry: Entry
    ledger: Ledger | None
    told: list[str] = field(default_factory=list)  # what went wrong, for the user at the start
    details: list[str] = field(default_factory=list)  # the same, for whoever asks
    environment: dict[str, str] = field(default_factory=dict)
    waited: bool = False
    entered: bool = True  # False: nothing was weighed, so nothing stands in the ledger yet

    def started(self, started: dict[str, Any], over: threading.Event) -> None:
        """Off the path of the start: from now on the entry lives as long as the keeper or the job."""
        if self.ledger is None:
            return
        try:
            if not self.entered and over.wait(_TOO_SHORT):
                return  # gone before anybody could have reckoned with it
            with self.ledger.decision():
                self.ledger.put(with_started(self.entry, started))
        except (Busy, OomproofError):
            pass  # then the entry lives as long as the front, and a reader finds the keeper in the run's folder
        finally:
            self.ledger.close()
            self.ledger = None

    def drop(self) -> None:
        """The job could not be started."""
        if self.ledger is not None:
            with contextlib.suppress(Busy):
                self.ledger.remove([self.entry.run])
            self.ledger.close()
            self.ledger = None

    def as_json(self) -> dict[str, Any]:
        """For run.json: what a lost ledger is rebuilt from, and the key under which the peak is kept."""
        return {name: getattr(self.entry, name) for name in CLAIM}


@dataclass
class Question:
    """One run that asks: what it needs and who it is."""

    run: run_folders.Run
    asked: Asked
    need: Need | None
    entry: Entry


def question(
    ledger: Ledger, run: run_folders.Run, argv: Sequence[str], name: str | None, asked: Asked, folder: str
) -> Question:
    key = command_key(mask_argv(argv), folder)
    peaks = peak_history.peaks_of(ledger, key)
    need = _need(peaks, asked)
    if asked.gpu_need:
        gpu_need, gpu = asked.gpu_need, asked.gpu
    elif asked.sized is not None:
        gpu_need, gpu = on_a_sure_card(asked.sized.gpu or 0, os.environ)
        if asked.sized.gpu and not gpu_need:
            size = f"{-(-asked.sized.gpu // MIB)}M"
            ledger.notes.append(f"nothing is reserved on a card: which one? --gpu-need {size}:0")
    else:
        gpu_need, gpu = gpu_from_history(peaks, os.environ)
    me = os.getpid()
    entry = Entry(
        run=run.id,
        uid=os.getuid(),
        name=name or run.id,
        key=key,
        state=WAITING,
        boot=processes.boot_id(),
        asked=boottime(),
        front_pid=me,
        front_start=processes.start_time(me),
        folder=str(run.folder),
        priority=asked.priority,
        need_low=need.low if need else None,
        need=need.high if need else None,
        basis=need.basis if need else "",
        gpu_need=gpu_need,
        gpu=gpu,
        cap=asked.limit,
        twin=asked.twin,
    )
    return Question(run, asked, need, entry)


def gpu_from_history(
    peaks: Sequence[Peak], environment: Mapping[str, str], cards: str = _CARDS
) -> tuple[int, int | None]:
    """(bytes, card) it held before."""
    return on_a_sure_card(max((peak.gpu or 0 for peak in peaks), default=0), environment, cards)


def on_a_sure_card(need: int, environment: Mapping[str, str], cards: str = _CARDS) -> tuple[int, int | None]:
    """(bytes, card), where there is no doubt which card is meant: the only one, or the one it may see."""
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    try:
        only = len(os.listdir(cards)) == 1
    except OSError:
        only = False
    if (
        need < WORTH_A_CARD
        or not (only or (visible or "").isdigit())
        or (only and visible not in (None, "0"))
    ):
        return 0, None
    return need, 0 if only else int(visible or 0)


def _need(peaks: Sequence[Peak], asked: Asked) -> Need | None:
    own = declared(asked.need) if asked.need is not None else asked.sized or from_history(peaks)
    need = with_spill(own, asked.spill)
    if need is not None and asked.limit is not None and need.high > asked.limit:
        if asked.need is not None and asked.spill:
            raise OomproofError(
                f"--need {format_size(asked.need)} and --spill {format_size(asked.spill)} are "
                f"{format_size(need.high)} together, more than --limit {format_size(asked.limit)} allows",
                "raise --limit, or give a smaller --spill",
                USAGE,
            )
        if asked.need is not None:
            raise OomproofError(
                f"--need {format_size(asked.need)} is more than --limit {format_size(asked.limit)} allows",
                "raise --limit, or lower --need",
                USAGE,
            )
        need = replace(need, low=min(need.low, asked.limit), high=asked.limit)
    return need


def ask(
    run: run_folders.Run,
    argv: Sequence[str],
    name: str | None,
    asked: Asked,
    folder: str,
    say: Callable[[str], None],
    on_waiting: Callable[[str], None],
) -> Ticket:
    """Returns when the run may start. Raises 69 when it can never, 75 when not now and it shall not wait."""
    ledger = open_ledger(asked.ledger)
    try:
        mine = question(ledger, run, argv, name, asked, folder)
        small = asked.need is None and (mine.need is None or mine.need.high < NEGLIGIBLE)
        if (
            small
            and not mine.entry.gpu_need
            and (asked.not_before is None or asked.not_before <= time.time())
        ):
            return at_once(mine, ledger)
        from oomproof.runner.queue_wait import QueueWait

        return QueueWait(mine, ledger, say, on_waiting).take(small)
    except BaseException:
        with contextlib.suppress(Exception):
            ledger.remove([run.id])
        ledger.close()
        raise


def at_once(mine: Question, ledger: Ledger) -> Ticket:
    """Nothing to weigh: it starts, and stands in the ledger a moment later (see Ticket.started)."""
    unknown = (
        "need unknown: starts at once, with what it holds and ten minutes of its growth reserved, and is the first to be "
        "paused (--need SIZE changes that)"
    )
    details = [unknown] if mine.need is None else []
    entry = replace(mine.entry, state=ADMITTED, admitted=boottime())
    return Ticket(entry, ledger, list(ledger.notes), details, entered=False)


def enter(run: run_folders.Run, argv: Sequence[str], name: str | None, asked: Asked, folder: str) -> Ticket:
    """For a job that runs already: no question of memory, it holds it already."""
    ledger = open_ledger(asked.ledger)
    mine = question(ledger, run, argv, name, asked, folder)
    details = [f"reserved {mine.need.sentence}"] if mine.need is not None else []
    entry = replace(mine.entry, state=ADMITTED, admitted=boottime())
    return Ticket(entry, ledger, list(ledger.notes), details)

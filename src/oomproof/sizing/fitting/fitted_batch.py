"""The batch a training function is given: samples of one pass, passes of one optimizer step, and what each pass counts for."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from oomproof.causes import cause_of
from oomproof.errors import USAGE, OomproofError
from oomproof.plans.plan import divisors, learning_rate_note, split_note
from oomproof.printable import printable
from oomproof.records import dataclass
from oomproof.units import format_size

ANY = "any"


def wanted_effective(asked: int | str | None, configured: int) -> int | None:
    """None: whatever one pass of the largest batch makes. Raises OomproofError."""
    if asked is None:
        return configured
    if asked == ANY:
        return None
    if isinstance(asked, str):
        raise OomproofError(
            f"effective={asked!r} is no batch", 'give a whole number, None to keep it, or "any"', USAGE
        )
    return asked


def effective_note(asked: int | str | None, configured: int, now: int) -> str:
    """What another effective batch means for the learning rate, where nobody asked for that one by number."""
    return learning_rate_note(configured, now) if asked is None or asked == ANY else ""


STATE = ("size", "effective", "world", "need", "capacity")


@dataclass(frozen=True, slots=True)
class Batch:
    """``size``: samples of one forward pass on one device. ``accum``: passes of one optimizer step. ``effective``: samples of one
    optimizer step on all devices. ``probing``: only a few steps are made with it, to measure. ``need`` and ``capacity``: bytes, where known."""

    size: int
    accum: int = 1
    world: int = 1
    probing: bool = False
    need: int | None = None
    capacity: int | None = None
    notes: tuple[str, ...] = ()
    # who takes a state that is loaded while it runs
    resumed: Callable[[Mapping[str, Any]], None] | None = None

    @property
    def effective(self) -> int:
        return self.size * self.accum * self.world

    def scale(self, loss: Any) -> Any:
        """A loss that is the mean over one pass, as its share of an optimizer step. Right where all passes count alike: for lengths or last
        batches that differ take ``groups``."""
        return loss / self.accum

    def groups(
        self, loader: Iterable[Any], count: Callable[[Any], Any] | None = None
    ) -> Iterator[list[tuple[Any, float]]]:
        """The passes of one optimizer step at a time, each with the factor for its mean loss.

        ``count(piece)``: what the loss is the mean over, such as the labels that count; the samples where it is left out. The sum of
        (loss × factor) is then the mean over the whole step, on all devices together, however unequal the pieces are."""
        pieces = iter(loader)
        while group := list(islice(pieces, self.accum)):
            counts = [float(count(piece) if count is not None else samples_of(piece)) for piece in group]
            total = self._over_ranks(sum(counts))
            yield [
                (piece, self.world * part / total if total else 0.0)
                for piece, part in zip(group, counts, strict=True)
            ]

    def _over_ranks(self, total: float) -> float:
        if self.world == 1:
            return total
        from oomproof.sizing.fitting.rank_agreement import summed

        return summed(total)

    def state_dict(self) -> dict[str, int]:
        """For a checkpoint: plain numbers."""
        return {name: value for name in STATE if (value := getattr(self, name)) is not None}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """What a checkpoint says of its batch. Inside a function that ``fit_batch`` calls: where that is another size, the function is
        called again with it."""
        remembered = size_in(state)
        if remembered == self.size and not self.probing:
            return
        if self.resumed is None:
            raise OomproofError(
                f"this batch is of {self.size}, the checkpoint's of {remembered}",
                "give the checkpoint's state before: fit_batch(…, resume=state)",
            )
        self.resumed(state)

    def __str__(self) -> str:
        text = f"batch {self.size}"
        if self.accum > 1 or self.world > 1:
            devices = f" × {self.world} devices" if self.world > 1 else ""
            text += f" × {self.accum} passes{devices} = {self.effective}"
        if self.need is not None and self.capacity is not None:
            text += f" ({format_size(self.need)} of {format_size(self.capacity)})"
        return text


def samples_of(piece: Any) -> int:
    """Rows of the first tensor or list in it."""
    if isinstance(piece, Mapping):
        return samples_of(next(iter(piece.values())))
    shape = getattr(piece, "shape", None)
    if shape is not None:
        return int(shape[0])
    if isinstance(piece, (list, tuple)) and piece and hasattr(piece[0], "shape"):
        return samples_of(piece[0])
    try:
        return len(piece)
    except TypeError:
        raise OomproofError(
            f"cannot count the samples of a {type(piece).__name__}",
            "say how: batch.groups(loader, count=lambda piece: …)",
        ) from None


def size_in(state: Mapping[str, Any]) -> int:
    size = state.get("size") if isinstance(state, Mapping) else None
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise OomproofError(
            "this is no state of a fitted batch", "store batch.state_dict() in the checkpoint"
        )
    return size


@dataclass(frozen=True, slots=True)
class Asked:
    """What a batch may be: ``effective`` samples of an optimizer step on all devices (None: one pass a step, any size), at ``most`` so many
    at once."""

    effective: int | None = None
    most: int | None = None
    world: int = 1

    def sizes(self) -> list[int] | None:
        """Every size allowed; None: any up to ``most``."""
        if self.effective is None:
            return None
        return sorted(size for size in divisors(self.share) if self.most is None or size <= self.most)

    @property
    def share(self) -> int:
        """Samples of one optimizer step on one device."""
        assert self.effective is not None
        return self.effective // self.world

    def check(self) -> None:
        """Raises OomproofError."""
        for name, value in (("effective", self.effective), ("most", self.most)):
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                raise OomproofError(f"{name}={value!r} is no batch", "give a whole number from 1 on", USAGE)
        if self.effective is not None and self.effective % self.world:
            near = max(1, round(self.effective / self.world)) * self.world
            raise OomproofError(
                f"an effective batch of {self.effective} cannot be shared by {self.world} devices evenly",
                f"take {near}", USAGE,
            )  # fmt: skip

    def batch(
        self, size: int, *, most: int | None = None, notes: tuple[str, ...] = (), **facts: Any
    ) -> Batch:
        """``most``: the largest size that would fit, allowed or not."""
        accum = self.share // size if self.effective is not None else 1
        note = split_note(self.share, most, size) if self.effective is not None and most else ""
        return Batch(size, accum, self.world, notes=(*notes, *([note] if note else [])), **facts)

    def probe(self, size: int, resumed: Callable[[Mapping[str, Any]], None] | None = None) -> Batch:
        """Two passes a step where more are meant: gradients are there while the second runs, and later ones need no more."""
        whole = self.effective is None or size >= self.share
        return Batch(size, 1 if whole else 2, self.world, probing=True, resumed=resumed)


def remembered(state: Mapping[str, Any], asked: Asked, capacity: int | None) -> tuple[int | None, str]:
    """The size of a checkpoint's batch where it still holds, and a sentence where it does not, or where it means something else."""
    size, need = size_in(state), state.get("need")
    if asked.most is not None and size > asked.most:
        return None, f"the checkpoint's batch of {size} is more than is asked for now"
    if asked.effective is not None and asked.share % size:
        return None, f"the checkpoint's batch of {size} does not divide {asked.share}"
    if isinstance(need, int) and capacity is not None and need > capacity:
        return (
            None,
            f"the checkpoint's batch of {size} needs {format_size(need)}, and there are {format_size(capacity)} here",
        )
    before = state.get("effective")
    now = asked.effective if asked.effective is not None else size * asked.world
    return size, learning_rate_note(before if isinstance(before, int) else None, now)


TIGHT = (
    "it fits only since PyTorch gives cached memory back at every step, which takes time: "
    "PYTORCH_ALLOC_CONF=expandable_segments:True needs less of it (PYTORCH_CUDA_ALLOC_CONF before PyTorch 2.11)"
)
EVALUATES_FIRST = (
    "the evaluation before the first optimizer step is run for every batch that is measured: "
    "`if not batch.probing:` before it saves that time"
)
SMALLER_MODEL = "gradient checkpointing, bf16, a smaller model or shorter sequences make it fit"
Tell = Callable[[str], None]
_CHANGES = {
    "eval": "the evaluation needs a smaller batch of its own, torch.no_grad(), and outputs that are moved to the CPU",
    "generate": "generation needs a smaller batch of its own, or fewer new tokens",
    "save": "save from copies on the CPU, or fewer tensors at once",
    "load": "the model itself does not fit: a smaller type, or layers on the CPU",
}
_SMALLER = "resume from the last checkpoint with a smaller batch: fit_batch(…, most={smaller})"


def to_stderr(text: str) -> None:
    print(f"oomproof: {printable(text)}", file=sys.stderr, flush=True)


def silent(text: str) -> None:
    return None


def chosen(batch: Batch, measured: Sequence[int]) -> str:
    at = f", measured at {' and '.join(map(str, measured))}" if measured else ""
    return f"{batch}{at}"


def starts_over(cause: str, failed: int, smaller: int) -> str:
    return f"{cause_of(cause).title} at batch {failed}: starting over with {smaller}"


def passed_on(cause: str, phase: str, steps: int, batch: int, why: str = "") -> str:
    """``steps``: good optimizer steps before it."""
    where = f" in {phase}" if phase else ""
    after = f" after {steps:,} optimizer steps" if steps else ""
    reason = why or (f"not started over: {steps:,} steps would be lost" if steps else "not started over")
    change = _CHANGES.get(phase) or _SMALLER.format(smaller=max(1, batch // 2))
    return f"oomproof: {cause_of(cause).title}{where}{after} at batch {batch}; {reason}; {change}"


def smallest_failed(cause: str, phase: str, batch: int) -> str:
    where = f" in {phase}" if phase else ""
    return f"oomproof: {cause_of(cause).title}{where} at batch {batch}, the smallest allowed: {SMALLER_MODEL}"

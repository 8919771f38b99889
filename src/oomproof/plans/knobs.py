"""What of a command may be changed for memory's sake (batch, accumulation, workers, whatever the user names), and how far."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Literal

from oomproof.diagnosis.smaller_command import WORKERS, bare_name
from oomproof.errors import USAGE, OomproofError
from oomproof.evidence.run_settings import ACCUMULATION, BATCH
from oomproof.records import dataclass

Kind = Literal["workers", "prefetch", "batch", "accum", "eval_batch", "number", "choice"]
NAME = r"[A-Za-z_][A-Za-z0-9_.-]*"
_EVAL_BATCH = re.compile(
    r"^(?:per_device_|per_gpu_)?(?:eval|val|valid|validation|test)_batch_?size$|^eval_(?:batch|bs)$"
)
_PREFETCH = re.compile(r"^(?:dataloader_)?prefetch(?:_factor)?$")
# In the order in which they are looked for: `eval_batch_size` is no batch of the training.
_KINDS: tuple[tuple[Kind, re.Pattern[str]], ...] = (
    ("eval_batch", _EVAL_BATCH),
    ("workers", WORKERS),
    ("prefetch", _PREFETCH),
    ("accum", ACCUMULATION),
    ("batch", BATCH),
)
# What gives way first. Workers change no result; a batch that is split changes none either, where accumulation makes up for it;
# recomputing costs time, precision digits, a shorter sequence what is learnt.
_SACRIFICE = (
    re.compile(r"checkpoint|ckpt|recompute|remat"),
    re.compile(r"precision|dtype|bf16|fp16|half|amp\b|bits|quant"),
    re.compile(r""),
    re.compile(r"seq|len|tokens|context|image|img|resolution|size"),
)
_FIRST: tuple[Kind, ...] = ("workers", "prefetch", "batch", "accum", "eval_batch")
_NEEDS_WORKERS = re.compile(
    r"""persistent_workers['"]?\s*[=:]\s*true\b|prefetch_factor['"]?\s*[=:]\s*[1-9]""", re.IGNORECASE
)
_RANGE = re.compile(r"(\d{1,9})\.\.(\d{1,9})")
_MOST_VALUES = 64


@dataclass(frozen=True, slots=True)
class Knob:
    """``values``: those it may have, the preferred first; none: any whole number from ``most`` (None: any) down to ``least``.
    ``first``: where it stands, None: that is to be found. ``described``: by the user, not only recognised by its name."""

    name: str
    kind: Kind
    values: tuple[str, ...] = ()
    first: int | None = None
    least: int = 1
    most: int | None = None
    described: bool = True

    def smaller(self, value: str) -> Iterator[str]:
        """What it may be set to after ``value``, one after the other: the next in the list, or half each time."""
        if self.values:
            at = self.values.index(value) if value in self.values else -1
            yield from self.values[at + 1 :]
            return
        number = int(value)
        while number > self.least:
            number = max(self.least, number // 2)
            yield str(number)

    def allows(self, number: int) -> bool:
        """Whether a number is among its values."""
        if self.values:
            return str(number) in self.values
        return number >= self.least and (self.most is None or number <= self.most)


def kind_of(name: str) -> Kind | None:
    """Of an argument, by what people call it; None where its name tells nothing."""
    key = bare_name(name)
    return next((kind for kind, pattern in _KINDS if pattern.match(key)), None)


def least_of(kind: Kind) -> int:
    return 0 if kind == "workers" else 1


def least_workers(text: str) -> int:
    """Of a script or a file of settings: PyTorch refuses persistent workers and prefetching where there are none."""
    return 1 if _NEEDS_WORKERS.search(text) else 0


def known_knob(name: str) -> Knob | None:
    """Of a placeholder that needs no description, such as {batch}."""
    kind = kind_of(name)
    return Knob(name, kind, least=least_of(kind)) if kind is not None else None


def parse_knob(text: str) -> Knob:
    """``batch=64..4``, ``seq_len=2048,1024,512``, ``ckpt=,--gradient-checkpointing``: the preferred value first.
    Raises OomproofError."""
    name, equals, listed = text.partition("=")
    if not equals or not re.fullmatch(NAME, name):
        raise OomproofError(
            f"cannot read --knob {text!r}",
            "write NAME=FIRST..LEAST or NAME=VALUE,VALUE: --knob batch=64..4",
            USAGE,
        )
    kind = kind_of(name)
    if match := _RANGE.fullmatch(listed):
        first, least = int(match[1]), int(match[2])
        if first < least:
            raise OomproofError(
                f"--knob {text} begins with the smaller value",
                f"write the preferred one first: {name}={least}..{first}",
                USAGE,
            )
        if first == 0 or (least == 0 and kind not in (None, "workers")):
            raise OomproofError(
                f"--knob {text}: {name} cannot be 0", f"give the least it may be: {name}={first}..1", USAGE
            )
        return Knob(name, kind or "number", first=first, least=least, most=None if kind == "accum" else first)
    # a comma inside a value is written \,
    values = tuple(value.replace("\\,", ",") for value in re.split(r"(?<!\\),", listed))
    if len(values) < 2 and ".." in listed:
        raise OomproofError(
            f"--knob {text} is no range of whole numbers", f"write {name}=64..4, or {name}=VALUE,VALUE", USAGE
        )
    if len(values) < 2:
        raise OomproofError(
            f"--knob {text} has one value: nothing can change",
            f"add others, or a range: {name}={values[0] or 'VALUE'},VALUE",
            USAGE,
        )
    if len(set(values)) < len(values) or len(values) > _MOST_VALUES:
        raise OomproofError(f"--knob {text} has a value twice, or too many", "give each value once", USAGE)
    numbers = [int(value) for value in values if value.isdecimal() and len(value) < 10]
    if kind is not None and len(numbers) < len(values):
        raise OomproofError(
            f"--knob {text}: {name} is a whole number", f"{name}=64,32,16, or {name}=64..4", USAGE
        )
    if kind is None:
        return Knob(name, "choice", values)
    return Knob(name, kind, values, first=numbers[0], least=min(numbers))


def sacrifice_order(knobs: Sequence[Knob], asked: Sequence[str] = ()) -> tuple[Knob, ...]:
    """What gives way first: as the user says, then workers, batch, recomputing, precision, length. Raises OomproofError."""
    known = {knob.name: knob for knob in knobs}
    for name in asked:
        if name not in known:
            raise OomproofError(
                f"--order names {name}, which is not changed here",
                f"known are: {', '.join(known) or 'none'}",
                USAGE,
            )
    rest = [knob for knob in knobs if knob.name not in asked]
    return (*(known[name] for name in asked), *sorted(rest, key=_rank))


def _rank(knob: Knob) -> int:
    if knob.kind in _FIRST:
        return _FIRST.index(knob.kind)
    # a switch tells by what it switches on: gc=,--gradient-checkpointing
    name = " ".join([knob.name, *(value for value in knob.values if value.startswith("-"))]).lower()
    for rank in (0, 1, 3):
        if _SACRIFICE[rank].search(name):
            return len(_FIRST) + rank
    return len(_FIRST) + 2

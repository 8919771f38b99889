"""What of a command may be changed to save memory (batch, accumulation, workers, whatever the user names), how far, and the command with
{placeholders} for it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal

from oomproof.diagnosis.smaller_command import WORKERS, bare_name
from oomproof.errors import USAGE, OomproofError, did_you_mean
from oomproof.evidence.run_settings import ACCUMULATION, BATCH
from oomproof.leaf.command_lines import script_of
from oomproof.records import dataclass, replace

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
KINDS: tuple[Kind, ...] = (
    "workers",
    "prefetch",
    "batch",
    "accum",
    "eval_batch",
)  # in the order in which they give way
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


def is_count(value: str, kind: Kind) -> bool:
    """Whether a knob of that kind may have the value."""
    return value.isdecimal() and len(value) < 10 and int(value) >= least_of(kind)


def config_knob(kind: Kind, value: str, texts: Iterable[str]) -> Knob:
    """A knob for a value found in the settings files of a run. ``texts``: of all those files."""
    least = max(map(least_workers, texts), default=0) if kind == "workers" else 1
    return Knob(kind, kind, first=int(value), least=least, described=False)


def unused(name: str, near: str = "") -> OomproofError:
    """The error for a placeholder that the command lacks. ``near``: a name that was perhaps meant."""
    hint = f"put {{{name}}} where its value belongs: python train.py --{name} {{{name}}}"
    return OomproofError(f"the command does not use {{{name}}}{near}", hint, USAGE)


def listed_values(text: str) -> tuple[str, ...]:
    """The values of ``NAME=VALUE,VALUE``; a comma inside a value is written ``\\,``."""
    return tuple(value.replace("\\,", ",") for value in re.split(r"(?<!\\),", text))


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
    values = listed_values(listed)
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
    if knob.kind in KINDS:
        return KINDS.index(knob.kind)
    # a switch tells by what it switches on: gc=,--gradient-checkpointing
    name = " ".join([knob.name, *(value for value in knob.values if value.startswith("-"))]).lower()
    for rank in (0, 1, 3):
        if _SACRIFICE[rank].search(name):
            return len(KINDS) + rank
    return len(KINDS) + 2


# {name}; or {{name}}, which is {name} as it stands. Any other brace is the command's own: JSON, a shell's function
PLACEHOLDER = re.compile(rf"\{{\{{({NAME})\}}\}}|\{{({NAME})\}}")


@dataclass(frozen=True, slots=True)
class Template:
    """``words``: with a placeholder for each knob, ``typed`` by the user or recognised by us. ``overrides``: knobs that the command does not
    name, each with what is put before its value: ``data.batch_size=`` for Hydra."""

    words: tuple[str, ...]
    knobs: tuple[Knob, ...]
    typed: bool = True
    overrides: tuple[tuple[str, str], ...] = ()

    def command(self, values: Mapping[str, str]) -> list[str]:
        """What is as it was needs no override."""
        first = {knob.name: str(knob.first) for knob in self.knobs}
        changed = [f"{begin}{values[name]}" for name, begin in self.overrides if values[name] != first[name]]
        return [*filled(self.words, values), *changed]

    def knob(self, kind: str) -> Knob | None:
        return next((knob for knob in self.knobs if knob.kind == kind), None)


def placeholders(words: Sequence[str]) -> list[str]:
    return [match[2] for word in words for match in PLACEHOLDER.finditer(word) if match[2]]


def filled(words: Sequence[str], values: Mapping[str, str]) -> list[str]:
    """Each word stays one word, whatever a value holds; one that is only a placeholder goes when its value is empty."""
    made = []
    for word in words:
        text = PLACEHOLDER.sub(lambda match: values[match[2]] if match[2] else f"{{{match[1]}}}", word)
        if text or not word:
            made.append(text)
    return made


def template_of(command: Sequence[str], described: Sequence[Knob] = (), *, folder: str = ".") -> Template:
    """The knobs of a command: its placeholders; else the arguments that ``described`` or their own names tell.
    Raises OomproofError where a placeholder has no values, or a knob no place."""
    names = list(dict.fromkeys(placeholders(command)))
    if names:
        return Template(tuple(command), tuple(_knobs(names, described)))
    return _recognised(command, described, folder)


def _knobs(names: Sequence[str], described: Sequence[Knob]) -> Iterator[Knob]:
    given = _by_name(described)
    for name in given:
        if name not in names:
            raise unused(name, did_you_mean(name, names))
    for name in names:
        knob = given.get(name) or known_knob(name)
        if knob is None:
            hint = f"add --knob {name}=VALUE,VALUE, the preferred one first; for braces as they stand write {{{{{name}}}}}"
            raise OomproofError(
                f"nothing says what {{{name}}} may be{did_you_mean(name, KINDS)}", hint, USAGE
            )
        yield knob


_SHORT = {"-b": "batch"}  # PyTorch's ImageNet example, torchvision's references, timm


def _by_name(described: Sequence[Knob]) -> dict[str, Knob]:
    given: dict[str, Knob] = {}
    for knob in described:
        if knob.name in given:
            raise OomproofError(f"--knob {knob.name} is given twice", "give all its values at once", USAGE)
        given[knob.name] = knob
    return given


def _recognised(command: Sequence[str], described: Sequence[Knob], folder: str) -> Template:
    """The last argument of a name counts, as in every parser. Words before the script are the interpreter's or a launcher's."""
    given = _by_name(described)
    words = list(command)
    knobs: dict[str, Knob] = {}
    for name, at, joined in _arguments(command, folder):
        value = words[at].partition("=")[2] if joined else words[at]
        knob = _argument_knob(name, value, given)
        if knob is None:
            continue
        if earlier := knobs.get(knob.name):
            words = [
                filled([word], {earlier.name: str(earlier.first)})[0]
                if f"{{{earlier.name}}}" in word
                else word
                for word in words
            ]
        knobs[knob.name] = knob
        words[at] = f"{words[at].partition('=')[0]}={{{knob.name}}}" if joined else f"{{{knob.name}}}"
    for name in given:
        if name not in knobs:
            hint = f"name an argument of the command, or put {{{name}}} where its value belongs"
            raise OomproofError(f"the command has no argument {name!r}", hint, USAGE)
    return Template(tuple(words), tuple(knobs.values()), typed=False)


def _argument_knob(name: str, value: str, given: Mapping[str, Knob]) -> Knob | None:
    """Of ``--batch-size 64``: what the user described under that name, or what the name itself tells."""
    key = _SHORT.get(name) or bare_name(name)
    described = next(
        (
            knob
            for known, knob in given.items()
            if bare_name(known) in (key, bare_name(name)) or (kind_of(key) == knob.kind != "number")
        ),
        None,
    )
    if described is not None:
        is_number = value.isdecimal() and len(value) < 10
        return replace(described, first=int(value)) if is_number and not described.values else described
    kind = kind_of(key)
    if kind is None or not is_count(value, kind):
        return None
    return Knob(kind, kind, first=int(value), least=least_of(kind), described=False)


def _arguments(command: Sequence[str], folder: str) -> Iterator[tuple[str, int, bool]]:
    """(name as typed, the word that holds the value, whether both are one word) behind the script."""
    start = _behind_script(command, folder)
    for at in range(start, len(command)):
        name, equals, _ = command[at].partition("=")
        if equals and (name.startswith("-") or re.match(r"[+~]{0,2}[A-Za-z_]", name)):
            yield name, at, True
        elif (
            name.startswith("-")
            and not equals
            and at + 1 < len(command)
            and not command[at + 1].startswith("-")
        ):
            yield name, at + 1, False


def _behind_script(command: Sequence[str], folder: str) -> int:
    """A launcher's own ``--num_processes`` or ``-j`` says nothing of the training."""
    script = script_of(command, folder)
    if script is not None:
        base = script.rpartition("/")[2]
        return next((at + 1 for at, word in enumerate(command) if word.endswith(base)), 1)
    if "-m" in command[:-1]:
        return list(command).index("-m") + 2
    return 1

"""A command with {placeholders}: typed by the user, or made of the arguments whose names tell what they are."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from oomproof.diagnosis.smaller_command import bare_name
from oomproof.errors import USAGE, OomproofError, did_you_mean
from oomproof.leaf.command_lines import script_of
from oomproof.plans.knobs import NAME, Knob, kind_of, known_knob, least_of
from oomproof.records import dataclass, replace

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
            hint = f"put {{{name}}} where its value belongs: python train.py --{name} {{{name}}}"
            raise OomproofError(
                f"the command does not use {{{name}}}{did_you_mean(name, names)}", hint, USAGE
            )
    for name in names:
        knob = given.get(name) or known_knob(name)
        if knob is None:
            hint = f"add --knob {name}=VALUE,VALUE, the preferred one first; for braces as they stand write {{{{{name}}}}}"
            raise OomproofError(
                f"nothing says what {{{name}}} may be{did_you_mean(name, _KNOWN)}", hint, USAGE
            )
        yield knob


_SHORT = {"-b": "batch"}  # PyTorch's ImageNet example, torchvision's references, timm
_KNOWN = ("batch", "accum", "workers", "prefetch", "eval_batch")


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
        if earlier := next(
            (known for known in knobs.values() if known.kind == knob.kind and known.name == knob.name), None
        ):
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
    is_number = value.isdecimal() and len(value) < 10
    if described is not None:
        if described.values:
            return described
        return replace(described, first=int(value)) if is_number else described
    kind = kind_of(key)
    if kind is None or not is_number or int(value) < least_of(kind):
        return None
    short = {
        "batch": "batch",
        "accum": "accum",
        "workers": "workers",
        "prefetch": "prefetch",
        "eval_batch": "eval_batch",
    }[kind]
    return Knob(short, kind, first=int(value), least=least_of(kind), described=False)


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

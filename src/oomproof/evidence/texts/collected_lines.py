"""A text that a collector wrote: what it put around every line (records of JSON, a pod's name, a stamp) is taken off again.

The prefixes that `line_cleaner` and `line_prefixes` know are theirs. Here only what stands before nearly all lines counts,
an exception's and its frames' among them: a logger signs its own records, a collector everything.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

from oomproof.evidence.texts.line_cleaner import clean
from oomproof.evidence.texts.line_prefixes import strip
from oomproof.records import dataclass

Numbered = tuple[int, str]

_LOOK = 400  # lines that are looked at before any is given out
_LOOK_SIZE = 1 << 20  # characters of them
_FEWEST = 3  # lines with words: fewer show no habit
_FEW = 8  # … of which each must show it
_NEARLY_ALL = 0.9
_WRITERS = 16  # pods, hosts or ranks that share a text


class Collected:
    """The lines of one text as its program wrote them, under their own numbers."""

    def __init__(self, lines: Iterable[Numbered]) -> None:
        rest = iter(lines)
        held: list[Numbered] = []
        size = 0
        for number, line in rest:
            held.append((number, line))
            size += len(line)
            if len(held) >= _LOOK or size > _LOOK_SIZE:
                break
        every: Iterator[Numbered] = chain(held, rest)
        self.records = holds_records([line for _, line in held])
        if self.records:
            held = [(number, piece) for number, line in held for piece in unpacked(line)]
            every = chain(held, ((number, piece) for number, line in rest for piece in unpacked(line)))
        self.prefix = common_prefix([line for _, line in held])
        if self.prefix is not None:
            off = self.prefix.without
            every = ((number, off(line)) for number, line in every)
        self._lines = every

    def __iter__(self) -> Iterator[Numbered]:
        return self._lines


# Records: docker's and Kubernetes' files, cloud consoles, log shippers, structured loggers

_WORDS = ("log", "message", "msg", "line", "textPayload", "@message", "_raw")
_BESIDE = (
    "time", "ts", "timestamp", "@timestamp", "asctime", "datetime", "date", "level", "levelname", "severity", "stream",
    "logger", "insertId", "labels", "kubernetes",
)  # fmt: skip
_TIMES = ("time", "timestamp", "@timestamp", "ts", "asctime", "datetime")
_LEVELS = ("level", "levelname", "severity", "log.level")
_TELLING = {"warning": "WARNING", "warn": "WARNING"}  # a collector calls all of stderr an error
_STACKS = ("exc_info", "exception", "stack_trace", "stacktrace", "traceback", "error.stack_trace", "exc_text")
_ISO = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d")
_SHIPPER = 160  # characters of what may stand before a record


def _record(line: str) -> dict[str, Any] | None:
    at = line.find("{", 0, _SHIPPER)
    if at < 0 or not line.rstrip().endswith("}"):
        return None
    try:
        record = json.loads(line[at:])
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict):
        return None
    inner = record.get("jsonPayload")
    return {**record, **inner} if isinstance(inner, dict) else record


def _words(record: dict[str, Any]) -> str | None:
    # a journal's own record is read with its fields, and one of figures only holds no line of a program
    if "MESSAGE" in record or not any(key in record for key in _BESIDE):
        return None
    return next((value for key in _WORDS if isinstance(value := record.get(key), str)), None)


def holds_records(lines: Sequence[str]) -> bool:
    written = [line for line in lines if line.strip()]
    if not written or "{" not in written[0][:_SHIPPER]:
        return False
    records = [record for line in written if (record := _record(line)) is not None]
    with_words = sum(_words(record) is not None for record in records)
    return with_words >= _NEARLY_ALL * len(written)


def unpacked(line: str) -> list[str]:
    """The program's lines in one record, each with the record's time; another line as it is."""
    record = _record(line)
    words = _words(record) if record is not None else None
    if record is None or words is None:
        return [line]
    time = next((value for key in _TIMES if isinstance(value := record.get(key), str)), "")
    stamp = f"{time} " if _ISO.match(time) else ""
    level = next((value for key in _LEVELS if isinstance(value := record.get(key), str)), "")
    telling = _TELLING.get(level.lower(), "")
    pieces = words.rstrip("\r\n").split("\n")
    pieces[0] = f"{telling}: {pieces[0]}" if telling and pieces[0].strip() else pieces[0]
    for key in _STACKS:
        if isinstance(stack := record.get(key), str) and stack not in words:
            pieces += stack.rstrip("\r\n").split("\n")
    return [f"{stamp}{piece.rstrip()}" if strip(piece).time is None else piece for piece in pieces]


# A prefix of fields: stamps, hosts, pods, steps of a pipeline, loggers' names

_FIELD = re.compile(
    r"(?P<stamp>\[?(?:[A-Z][a-z]{2},? )?(?:\d{4}[-/.]\d\d[-/.]\d\d|\d\d[-/.]\d\d[-/.]\d{2,4}|\d\d[-/]\d\d|[A-Z][a-z]{2} [ \d]\d)?[T ,_:]{0,2}"
    r"\d\d:\d\d:\d\d(?:[.,:]\d{1,9})?(?: ?(?:Z\b|UTC\b|[AP]M\b|[+-]\d\d:?\d\d))?(?: \d{4}(?=\W))?\]?:?)"
    r"|(?P<level>\[?(?:TRACE|DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|FATAL|debug|info|warning|error)\b\s{0,4}\]?(?: ?[:|-]{1,2}(?=\s))?)"
    r"|(?P<group>\[[^\[\]\n]{1,80}\]:?|\([^()\n]{1,80}\)|\{[^{}\n]{1,60}\}|<[^<>\n]{1,60}>:?)"
    r"|(?P<named>(?:\d{1,4}\|)?[\w.@/#+-][\w.@/:#+-]{0,80}?(?:\[\d{1,9}\])?(?: {0,12}\|{1,2}|:)(?=\s|$))"
    r"|(?P<rule>(?:-{1,2}|–|—|\|{1,2}|::|>)(?= ))"
    r"|(?P<word>[\w.@/#+-][\w.@/:#+<>-]{0,80}(?=[ \t]))"
)
_DEEPEST = 7
_DIGITS = re.compile(r"\d+|(?<=[-_/])[0-9a-z]{4,10}(?=[-_/\] :]|$)")
_OF_THE_RUN = re.compile(  # what a program counts or is doing is its own word
    r"(?i)epoch|step|iter|batch|train(?:ing)?\b|\bval|eval|test|load|loss|lr\b|acc|%|=|trace|error|exception|warn|file|killed|fault|abort"
)
_SAME_WORDS = re.compile(r"[A-Za-z]{1,40}|$")


@dataclass(frozen=True, slots=True)
class Prefix:
    kinds: tuple[str, ...]
    values: tuple[frozenset[str], ...]  # of each field less its digits; empty for a stamp
    level: bool  # a field that says how grave a line is, and differs from line to line

    def without(self, line: str) -> str:
        """The line less its prefix, behind the stamp it had; as it is where it does not begin so."""
        at, stamp, level = len(line) - len(line.lstrip()) if line[:1].isspace() else 0, "", ""
        if at and not line[at : at + 1].isdigit():
            return line
        for kind, values in zip(self.kinds, self.values, strict=True):
            match = _FIELD.match(line, at)
            if match is None or match.lastgroup != kind or (values and _shape(match[0]) not in values):
                return line
            if kind == "stamp" and not stamp:
                stamp = match[0]
            elif kind == "level" and self.level:
                level = match[0].strip("[]:|- \t")
            at = _behind(line, match.end())
        rest = line[at:]
        if level and rest.strip():
            rest = f"{level.upper()}: {rest}"
        return f"{stamp} {rest}" if stamp and _known(stamp) else rest


def common_prefix(lines: Sequence[str]) -> Prefix | None:
    """What a collector put before nearly all of these lines, where nobody else would take it off."""
    written = [line[:600] for line in lines if line.strip()]
    if len(written) < _FEWEST:
        return None
    enough = _NEARLY_ALL * len(written) if len(written) > _FEW else len(written)
    at = [len(line) - len(line.lstrip()) if line.lstrip()[:1].isdigit() else 0 for line in written]
    kinds: list[str] = []
    values: list[frozenset[str]] = []
    levels: set[str] = set()
    best: tuple[int, list[int]] | None = None
    while len(kinds) < _DEEPEST:
        matches = [
            _FIELD.match(line, begin) if begin >= 0 else None for line, begin in zip(written, at, strict=True)
        ]
        kind = Counter(match.lastgroup for match in matches if match).most_common(1)
        if not kind or kind[0][1] < enough or kind[0][0] is None:
            break
        name = kind[0][0]
        shapes = Counter(_shape(match[0]) for match in matches if match and match.lastgroup == name)
        dated = (
            name == "word"
            and _dated(line[begin:_SHIPPER] for line, begin in zip(written, at, strict=True)) >= enough
        )
        kept = frozenset(shapes) if dated and len(shapes) == 1 else _kept(name, shapes, enough)
        if kept is None:
            break
        kinds.append(name)
        values.append(kept)
        if name == "level":
            levels |= set(shapes)
        at = [
            _behind(line, match.end())
            if match and match.lastgroup == name and (not kept or _shape(match[0]) in kept)
            else -1
            for line, match in zip(written, matches, strict=True)
        ]
        if _differ([line[begin:] for line, begin in zip(written, at, strict=True) if begin >= 0]):
            best = (len(kinds), list(at))
    if best is None:
        return None
    depth, at = best
    rests = [(line, line[begin:]) for line, begin in zip(written, at, strict=True) if begin >= 0]
    if not any(map(_SIGNED.match, (rest for _, rest in rests))):
        return None  # no more than a logger's records
    cleaned = [clean(line) for line, _ in rests]
    same = sum(line.text.strip() == rest.strip() for line, (_, rest) in zip(cleaned, rests, strict=True))
    one_level = (
        len({line.level for line in cleaned}) == 1 and cleaned[0].level
    )  # which then says nothing of a line
    if same >= enough and not one_level:
        return None
    if sum(_is_system(line) for line, _ in rests) > len(rests) / 2:
        return None
    return Prefix(tuple(kinds[:depth]), tuple(values[:depth]), len(levels) > 1)


# What no logger signs: frames and their code, a chain of exceptions, the shell's words
_SIGNED = re.compile(
    r"\s{2,}\S|Traceback \(most recent|[A-Za-z_][\w.]{2,80}(?:Error|Exception|Interrupt)(?::|$)|(?:Killed|Terminated|Aborted|Segmentation fault)\b"
    r"|\s{0,4}\d{1,3}%\||\[\s{0,8}\d{1,8}\.\d{6}\]"
)


_DATE = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d")


def _dated(lines: Iterable[str]) -> int:
    """In how many lines a stamp is still to come: what stands before it is no program's."""
    return sum(_DATE.search(line) is not None for line in lines)


def _known(stamp: str) -> bool:
    """Whether all who read the line find its words behind such a stamp."""
    return strip(f"{stamp} x").time is not None and clean(f"{stamp} x").text == "x"


def _is_system(line: str) -> bool:
    stamp = strip(line)
    return stamp.tag is not None


def _kept(kind: str, shapes: Counter[str], enough: float) -> frozenset[str] | None:
    """The values of one field that a prefix may have; None where it is no field of a prefix."""
    if kind in ("stamp", "level", "rule"):
        return frozenset()
    common = [shape for shape, _ in shapes.most_common(1 if kind == "word" else _WRITERS)]
    if sum(shapes[shape] for shape in common) < enough or any(map(_OF_THE_RUN.search, common[1:])):
        return None
    if _OF_THE_RUN.search(common[0]) and kind != "group" and "-" not in common[0] and "0" not in common[0]:
        return None
    if len(common) > 1 and sum(shapes.values()) < 3 * len(common):
        return None
    return frozenset(common)


def _differ(rests: Sequence[str]) -> bool:
    """What stands behind a prefix begins in many ways; behind a sentence's own words it does not."""
    first = {len(rest) - len(rest.lstrip()) or _SAME_WORDS.search(rest[:60])[0] for rest in rests}  # type: ignore[index]
    return len(first) >= max(2, min(4, len(rests) // 2))


def _behind(line: str, at: int) -> int:
    return at + 1 if line[at : at + 1] in (" ", "\t") else at


def _shape(text: str) -> str:
    return _DIGITS.sub("0", text)

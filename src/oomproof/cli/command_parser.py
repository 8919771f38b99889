"""The parser of one verb: nothing is ignored, and what is not known is answered with what was probably meant."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

from oomproof.errors import USAGE, OomproofError, did_you_mean
from oomproof.printable import terminal_columns

# argparse looks for translations of its headings, of which there are none, by way of `locale`: 0.4 MiB and a millisecond.
argparse._ = str  # type: ignore[attr-defined]

_BESIDE, _BELOW = 30, 8  # columns: the least beside an example, and the indent below it


class Help(argparse.RawDescriptionHelpFormatter):
    """argparse makes one for every flag it is told of; asked for the width itself, it imports shutil and all its archives."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=terminal_columns() - 2)

    def _split_lines(self, text: str, width: int) -> list[str]:
        """Of a flag's help: `--resume_from_checkpoint` in it is not broken behind its hyphens."""
        import textwrap

        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        """Sentences are wrapped, and what stands beside an example; the example itself is one line to copy."""
        import textwrap

        lines: list[str] = []
        for fixed, block in blocks_of(text):
            if fixed:
                lines += [part for line in block for part in example_lines(line, width)]
            else:
                lines += textwrap.wrap(" ".join(block), width, break_on_hyphens=False)
        return "\n".join(lines)


def example_lines(line: str, width: int) -> list[str]:
    """A command and what it does: that continues in its own column, or below where there is no space beside it."""
    import textwrap

    split = re.match(r"(\s*\S.*?\S)(\s{2,})(\S.*)$", line)
    if len(line) <= width or split is None:
        return [line]
    command, gap, told = split.groups()
    column = len(command) + len(gap)
    below = width - column < _BESIDE
    indent = " " * (_BELOW if below else column)
    wrapped = textwrap.wrap(
        told, width, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False
    )
    return [command, *wrapped] if below else [command + gap + wrapped[0].lstrip(), *wrapped[1:]]


def blocks_of(text: str) -> Iterator[tuple[bool, list[str]]]:
    """(as it stands, its lines): examples and empty lines are, sentences may be broken elsewhere. The formatter of our sources
    moves a docstring of nothing but examples to the margin."""
    for fixed, block in groupby(text.strip("\n").split("\n"), _is_example):
        yield fixed, [f"  {line}" if line.startswith("oomproof ") else line for line in block]


def _is_example(line: str) -> bool:
    return not line or line.startswith(("  ", "oomproof "))


class _Once(argparse.Action):
    """A value that is given once: of two, the first would be ignored."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        flag: str | None = None,
    ) -> None:
        given = vars(namespace).setdefault("given_flags", set())
        if flag is not None and self.dest in given:
            words = f"{getattr(namespace, self.dest)} and {values}"
            if self.dest == "alert_webhook":  # as a whole a secret
                raise OomproofError(f"{flag} is given twice", f"give both at once: {flag} 'URL URL'", USAGE)
            raise OomproofError(f"{flag} is given twice: {words}", "give it once", USAGE)
        if flag is not None:
            given.add(self.dest)
        setattr(namespace, self.dest, values)


class CommandParser(argparse.ArgumentParser):
    """Errors are ours: one line and a hint."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**{"formatter_class": Help, "allow_abbrev": False, **arguments})
        self._positionals.title = "arguments"
        self.register("action", None, _Once)
        self.register("action", "store", _Once)

    def error(self, message: str) -> Any:
        raise OomproofError(message.removeprefix("argument "), f"see: {self.prog} --help", USAGE)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        known = list(action.choices)
        raise OomproofError(
            f"unknown {(action.metavar or action.dest).lower()} {value!r}{did_you_mean(str(value), known)}",  # type: ignore[union-attr]
            f"known: {', '.join(map(str, known))}; see: {self.prog} --help",
            USAGE,
        )

    def parse(self, words: Sequence[str]) -> argparse.Namespace:
        """A verb that takes files or a command has a default for ``command``: what stands behind --, untouched. argparse itself
        would take its words for files."""
        command: list[str] = []
        if self.get_default("command") is not None and "--" in words:
            at = list(words).index("--")
            words, command = words[:at], list(words[at + 1 :])
        arguments, unknown = self.parse_known_args(list(words))
        unknown = self._behind_flags(arguments, unknown)
        if unknown:
            chosen = self.chosen(words)
            name = unknown[0].partition("=")[0]
            what = "flag" if name.startswith("-") else "argument"
            raise OomproofError(
                f"unknown {what} {name!r}{did_you_mean(name, flags_of(chosen)) if what == 'flag' else ''}",
                f"see: {chosen.prog} --help",
                USAGE,
            )
        if command:
            arguments.command = command
        return arguments

    def _behind_flags(self, arguments: argparse.Namespace, unknown: list[str]) -> list[str]:
        """`sweep status --json NAME`: argparse takes the words of a list only where they stand together."""
        of_list = next(
            (action for action in self._actions if action.nargs == "*" and not action.option_strings), None
        )
        if of_list is None or any(word.startswith("-") for word in unknown):
            return unknown
        setattr(arguments, of_list.dest, [*(getattr(arguments, of_list.dest) or ()), *unknown])
        return []

    def chosen(self, words: Iterable[str]) -> CommandParser:
        """The parser of `runs show` in `runs show X`."""
        actions = actions_of(self)
        return next((actions[word] for word in words if word in actions), self)


def actions_of(parser: argparse.ArgumentParser) -> dict[str, CommandParser]:
    """show, compare…: what a verb has parsers of its own for."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


def flags_of(parser: argparse.ArgumentParser) -> list[str]:
    """The flags of --help."""
    return [flag for action in parser._actions for flag in action.option_strings]


def count(what: str) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not (text.isascii() and text.isdigit()):
            raise argparse.ArgumentTypeError(f"{text!r} is not a number of {what}")
        return int(text)

    return parse


def add_run(parser: argparse.ArgumentParser, default: str, more: str = "") -> None:
    """The argument RUN of a verb for one run; ``default``: which one is meant without it; ``more``: what else may be given."""
    text = f"id, part of an id, or name (default: {default}){more}"
    parser.add_argument("run", nargs="?", metavar="RUN", help=text)


def refuse(arguments: argparse.Namespace, names: Iterable[str], why: str, hint: str) -> None:
    """Flags that would be ignored here are an error."""
    for name in names:
        if getattr(arguments, name):
            raise OomproofError(f"--{name.replace('_', '-')} {why}", hint, USAGE)

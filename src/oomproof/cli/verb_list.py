"""Every verb as its parser has it, for whoever writes it down elsewhere: the completions and the man page."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from oomproof.cli.command_parser import CommandParser, actions_of
from oomproof.cli.main import VERBS, parser_of
from oomproof.records import dataclass


@dataclass(frozen=True, slots=True)
class Argument:
    """A flag with its names, or a word of the command line without."""

    flags: tuple[str, ...]
    metavar: str  # empty: a switch
    help: str
    group: str  # under which heading of --help; empty: none
    repeats: bool
    optional: bool


@dataclass(frozen=True, slots=True)
class Verb:
    words: tuple[str, ...]  # ("runs", "show")
    summary: str
    description: str
    usage: str
    arguments: tuple[Argument, ...]

    @property
    def flags(self) -> list[Argument]:
        return [argument for argument in self.arguments if argument.flags]

    @property
    def positional(self) -> list[Argument]:
        return [argument for argument in self.arguments if not argument.flags]


def verbs() -> Iterator[Verb]:
    """In the order of --help, each followed by its actions."""
    for name, (_, summary) in VERBS.items():
        parser, _ = parser_of(name)
        yield _verb((name,), summary, parser)
        helps = {choice.dest: choice.help or "" for action in parser._actions for choice in _choices(action)}
        for action, its_parser in actions_of(parser).items():
            yield _verb((name, action), helps[action], its_parser)


def _choices(action: argparse.Action) -> list[argparse.Action]:
    return list(action._get_subactions()) if isinstance(action, argparse._SubParsersAction) else []


def _verb(words: tuple[str, ...], summary: str, parser: CommandParser) -> Verb:
    arguments = []
    for group in parser._action_groups:
        own = group.title if group not in (parser._positionals, parser._optionals) else ""
        for action in group._group_actions:
            elsewhere = isinstance(action, (argparse._SubParsersAction, argparse._HelpAction))
            if not elsewhere:
                arguments.append(_argument(action, own or ""))
    before = [_shown(argument) for argument in arguments if not argument.flags]
    flags = " [options]" if any(argument.flags for argument in arguments) else ""
    usage = parser.usage or f"oomproof {' '.join(words)}{flags}{''.join(f' {word}' for word in before)}"
    return Verb(words, summary, parser.description or "", usage, tuple(arguments))


def _argument(action: argparse.Action, group: str) -> Argument:
    switch = action.nargs == 0
    metavar = "" if switch else str(action.metavar or action.dest.upper())
    text = (action.help or "").replace("%%", "%")
    repeats = action.nargs in ("*", "+") or isinstance(action, argparse._AppendAction)
    return Argument(tuple(action.option_strings), metavar, text, group, repeats, action.nargs in ("?", "*"))


def _shown(argument: Argument) -> str:
    word = f"{argument.metavar}{'...' if argument.repeats else ''}"
    return f"[{word}]" if argument.optional else word

"""The command line: finds the verb, imports only that verb's module, shows errors as one line and a cure."""

from __future__ import annotations

import argparse
import importlib
import os
import sys

from oomproof.errors import OomproofError

# verb -> (module, one line for --help). A verb appears here when it works.
VERBS: dict[str, tuple[str, str]] = {
    "run": ("run", "run a command under watch, inside its memory limit, and say why when it dies"),
    "demo": ("demo", "see it work in 15 seconds: a leaking job is warned about, asked to stop, explained"),
    "why": ("why", "why a job died, with proof: a run, or any log"),
    "check": ("check", "what this machine holds, what is safe to start now, what is risky"),
    "runs": ("runs", "the history: show, compare, export"),
    "logs": ("logs", "what a run printed; -f follows"),
    "wait": ("wait", "wait for a run and exit with its status"),
    "stop": ("stop", "end a run in order: ask, SIGTERM, kill"),
    "watch": ("watch", "guard a run again after its oomproof was killed"),
}


def _version() -> str:
    from importlib.metadata import version

    return f"oomproof {version('oomproof')}"


def _parser(verb: str | None) -> argparse.ArgumentParser:
    """With a verb, only its module is imported: `run` must start fast."""
    parser = argparse.ArgumentParser(
        prog="oomproof",
        description="Keeps machine-learning jobs from dying of memory; when one dies anyway, says why, with proof. "
        "Each verb has its own --help.",
        epilog="Start with:  oomproof run -- python train.py",
    )
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    subparsers = parser.add_subparsers(dest="verb", metavar="VERB")
    for name, (module_name, summary) in VERBS.items():
        if verb is not None and name != verb:
            continue
        module = importlib.import_module(f"oomproof.cli.{module_name}")
        subparser = subparsers.add_parser(
            name,
            help=summary,
            description=module.__doc__,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.prepare_parser(subparser)
        subparser.set_defaults(handler=module.run)
    return parser


def main(argv: list[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    verb = argv[0] if argv and argv[0] in VERBS else None
    if argv[:1] == ["--version"]:  # without importing every verb
        print(_version())
        return 0
    try:
        parser = _parser(verb)
        arguments = parser.parse_args(argv)
        if arguments.verb is None:
            parser.print_help()
            return 0
        return int(arguments.handler(arguments))
    except OomproofError as error:
        print(f"oomproof: {error}", file=sys.stderr)
        return error.status
    except BrokenPipeError:
        # `oomproof runs | head`: the reader has gone, which is no error of ours
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 141
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())

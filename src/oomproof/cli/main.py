"""The command line: finds the verb, imports only that verb's module, shows errors as one line and a cure."""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import os
import sys

from oomproof import __version__
from oomproof.errors import OUR_FAILURE, OomproofError
from oomproof.printable import PrintableStream

# verb -> (module, one line for --help). A verb appears here when it works.
VERBS: dict[str, tuple[str, str]] = {
    "run": ("run", "run a command under watch, inside its memory limit, and say why when it dies"),
    "demo": ("demo", "see it work in 15 seconds: a leaking job is warned about, asked to stop, explained"),
    "why": ("why", "why a job died, with proof: a run, or any log"),
    "check": ("check", "how this machine uses its memory, what is safe to start now, what is risky"),
    "runs": ("runs", "the history: show, compare, export"),
    "logs": ("logs", "what a run printed; -f follows"),
    "wait": ("wait", "wait for a run and exit with its status"),
    "pause": ("pause", "pause a run until you resume it"),
    "resume": ("resume", "resume a paused run"),
    "stop": ("stop", "end a run in order: ask, SIGTERM, kill"),
    "save": ("save", "ask a running job to write a checkpoint and continue"),
    "adopt": ("adopt", "take a process that runs already under watch"),
    "watch": ("watch", "guard a run again after its oomproof was killed"),
}
ALIASES = {"freeze": "pause", "thaw": "resume"}  # as they were called first; not in --help


class _Help(argparse.RawDescriptionHelpFormatter):
    """argparse makes one for every flag it is told of; asked for the width itself, it imports shutil and all its archives."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=_columns() - 2)


def _columns() -> int:
    with contextlib.suppress(ValueError, OSError):
        return int(os.environ.get("COLUMNS") or 0) or os.get_terminal_size(1).columns
    return 80


def _parser(verb: str | None) -> argparse.ArgumentParser:
    """With a verb, only its module is imported: `run` must start fast."""
    parser = argparse.ArgumentParser(
        prog="oomproof",
        description="Keeps machine-learning jobs from dying of memory; when one dies anyway, says why, with proof. "
        "Each verb has its own --help.",
        epilog="Start with:  oomproof run -- python train.py",
    )
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    # with prog argparse need not lay out a usage line to find it
    subparsers = parser.add_subparsers(dest="verb", metavar="VERB", prog="oomproof")
    for name, (module_name, summary) in VERBS.items():
        if verb is not None and name != verb:
            continue
        module = importlib.import_module(f"oomproof.cli.{module_name}")
        subparser = subparsers.add_parser(
            name,
            help=summary,
            description=module.__doc__,
            formatter_class=_Help,
        )
        module.prepare_parser(subparser)
        subparser.set_defaults(handler=module.run)
    return parser


def _open_standard_streams() -> None:
    """A closed 0, 1 or 2 would be taken by the next file we open, and the job or a print would write into it."""
    while (fd := os.open(os.devnull, os.O_RDWR)) < 3:
        os.set_inheritable(fd, True)
    os.close(fd)
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115 - for the whole process
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115


def main(argv: list[str] | None = None) -> int:
    """The status; as a program (without ``argv``) it ends the process itself."""
    gc.set_threshold(
        50_000, 10, 10
    )  # imports make nothing but what stays; 0.02 s of a start went into looking
    _open_standard_streams()
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # an argument or a log may hold bytes that are no text
            stream.reconfigure(errors="backslashreplace")
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = PrintableStream(sys.stdout), PrintableStream(sys.stderr)
    try:
        status = _main(argv)
        if argv is None:
            _leave(status)
        return status
    finally:
        sys.stdout, sys.stderr = before


def _leave(status: int) -> None:
    """At once: taking every module apart takes the interpreter 0.03 s, and all that matters is written by now."""
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except Exception:  # a full disk, a reader that has gone: the usual way says it
        return
    os._exit(status & 0xFF)


def _main(argv: list[str] | None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    argv = [*(ALIASES.get(word, word) for word in argv[:1]), *argv[1:]]
    verb = argv[0] if argv and argv[0] in VERBS else None
    if argv[:1] == ["--version"]:  # without importing every verb
        print(f"oomproof {__version__}")
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
    except Exception as error:  # a bug, or a machine we did not think of: one line, never a wall of text
        if os.environ.get("OOMPROOF_DEBUG"):
            raise
        print(
            f"oomproof: {type(error).__name__}: {error}\n  hint: OOMPROOF_DEBUG=1 shows where; please report it",
            file=sys.stderr,
        )
        return OUR_FAILURE


if __name__ == "__main__":
    sys.exit(main())

"""The command line: finds the verb, imports only that verb's module, shows errors as one line and a hint."""

from __future__ import annotations

import errno
import gc
import importlib
import os
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from oomproof import __version__
from oomproof.errors import INTERRUPTED, MORE_FILES, OUR_FAILURE, USAGE, OomproofError, did_you_mean
from oomproof.islands import island_part
from oomproof.printable import MessageStream, PrintableStream, allow_any_text, tell

if TYPE_CHECKING:
    from oomproof.cli.command_parser import CommandParser


_MOST_NAMES = 100  # reading so many takes about 5 ms


def print_names(alive: bool = False) -> None:
    """What a shell offers for RUN at each Tab: names, and ids of runs without one, newest first."""
    from oomproof.recording.run_folders import ALIVE, newest_runs

    runs = [run for run in newest_runs(_MOST_NAMES) if run.info and (not alive or run.state() in ALIVE)]
    # a name with a newline could not be typed: the id can
    names = dict.fromkeys(run.name if run.name == run.info.get("name") else run.id for run in runs)
    print("".join(f"{name}\n" for name in names), end="")


# verb -> (module in cli, or ISLAND.verbs.MODULE; one line for --help). A verb appears here when it works.
VERBS: dict[str, tuple[str, str]] = {
    "run": ("run", "run a command under watch, inside its memory limit, and say why when it dies"),
    "demo": ("demo", "see it work in 20 seconds: a leaking job is warned about, asked to stop, explained"),
    "why": ("why", "why a job died, with proof: a run, or any log"),
    "check": ("check", "how this machine uses its memory, what is safe to start now, what is risky"),
    "top": ("top", "the machine and its jobs, live: bars, growth, time to full; keys pause, save, stop"),
    "status": ("status", "one line for a prompt or a tmux bar"),
    "system": ("system", "which settings of this machine to change for your jobs: swap, kernel, cgroups"),
    "runs": ("runs", "the history: show, compare, export"),
    "trend": ("trend", "whether memory grows without end, and when it will be full: a run, or any table"),
    "inspect": (
        "inspect",
        "what a running job's variables hold, now: sizes, copies of the same data, growth",
    ),
    "size": (
        "sizing.verbs.size",
        "how much a model, a data file or a command will need, before it runs, and whether it fits",
    ),
    "rehearse": (
        "sizing.verbs.rehearse",
        "the largest batch, an evaluation and a checkpoint of a command first: what fails, fails in minutes",
    ),
    "fit": (
        "sizing.verbs.fit",
        "the largest batch, accumulation and workers that fit, found without a crash",
    ),
    "calibrate": (
        "sizing.verbs.calibrate",
        "measure this machine's GPU once, so that sizes for it are narrower",
    ),
    "data": ("sizing.verbs.data", "what loading a data file costs in memory, and how to read it for less"),
    "bisect": (
        "sweeps.verbs.bisect",
        "run a job with one thing changed at a time, to see which change its death follows",
    ),
    "sweep": (
        "sweeps.verbs.sweep",
        "run a sweep without dying of memory: trials that fit, a smaller plan after a death, resumed after a kill",
    ),
    "fix": ("fix", "what to change in a run's files so that it fits: a diff; --apply writes it, --undo"),
    "profile": (
        "profile",
        "run a Python command with memray around it, and keep the page with the run",
    ),
    "logs": ("logs", "what a run printed; -f follows"),
    "wait": ("wait", "wait for a run and exit with its status"),
    "pause": ("pause", "pause a run until you resume it"),
    "resume": ("resume", "resume a paused run or job"),
    "stop": ("stop", "end a run in order: ask, SIGTERM, kill"),
    "save": ("save", "ask a running job to write a checkpoint and continue"),
    "guard": ("guard", "pause the job that fills the machine before anything dies, whoever started it"),
    "adopt": ("adopt", "take a process that runs already under watch"),
    "watch": ("watch", "guard a run again after its oomproof was killed"),
    "config": ("config", "which settings apply here, and from where"),
    "completion": ("completion", "make the shell complete verbs, flags and names of runs: bash, zsh, fish"),
    "help": ("help", "the help of a verb, or this list"),
}
# heading of --help -> verbs under it, the most asked for first
GROUPS: dict[str, tuple[str, ...]] = {
    "start here": ("run", "why", "check", "demo"),
    "while jobs run": ("top", "status", "logs", "wait", "pause", "resume", "stop", "save", "inspect", "adopt", "watch"),
    "afterwards": ("runs", "trend", "fix", "bisect", "profile"),
    "before a run": ("size", "rehearse", "fit", "sweep", "calibrate", "data"),
    "this machine": ("system", "guard"),
    "oomproof itself": ("config", "completion", "help"),
}  # fmt: skip
_GUARDS = ("run", "guard", "adopt", "watch")  # may live for weeks
ALIVE_RUNS = "alive"  # behind it: only those that have not ended
RUN_NAMES = "__runs"  # asked by the shells at each Tab, what RUN may be; not in --help


def module_of(verb: str) -> Any:
    """The verb's module; raises ``OomproofError`` where its island is not installed."""
    island, _, name = VERBS[verb][0].rpartition(".verbs.")
    return island_part(island, f"verbs.{name}") if island else importlib.import_module(f"oomproof.cli.{name}")


def parser_of(verb: str) -> tuple[CommandParser, Callable[[Any], int]]:
    """Its parser and what it does; no other verb's module is imported: `run` must start fast."""
    from oomproof.cli.command_parser import CommandParser

    module = module_of(verb)
    parser = CommandParser(prog=f"oomproof {verb}", description=module.__doc__)
    module.prepare_parser(parser)
    return parser, module.run


def overview() -> CommandParser:
    """`oomproof --help`: the verbs, a line each."""
    from oomproof.cli.command_parser import CommandParser

    parser = CommandParser(
        prog="oomproof",
        usage="oomproof VERB ...",
        description="Keeps machine-learning jobs from dying of memory; when one dies anyway, says why, with proof.",
        epilog="Start with:\n  oomproof run -- python train.py\n\nEach verb has its own help:\n  oomproof help run",
    )
    for title, names in GROUPS.items():
        group = parser.add_argument_group(title)
        for name in names:
            group.add_argument(name, help=VERBS[name][1])
    parser.add_argument("-V", "--version", action="store_true", help="print the version and exit")
    parser._action_groups.remove(parser._optionals)
    parser._action_groups.append(parser._optionals)
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
    # imports make nothing but what stays; 0.02 s of a start went into looking
    gc.set_threshold(50_000, 10, 10)
    _open_standard_streams()
    allow_any_text(sys.stdout, sys.stderr)
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = PrintableStream(sys.stdout), MessageStream(sys.stderr)
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
    if argv is None:
        argv = sys.argv[1:]
    try:
        return obey(argv)
    except OomproofError as error:
        tell(str(error))
        return error.status
    except BrokenPipeError:
        # `oomproof runs | head`: the reader has gone, which is no error of ours
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 141
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:  # a bug, or a machine we did not think of: one line, never a wall of text
        if os.environ.get("OOMPROOF_DEBUG"):
            raise
        text, hint = f"{type(error).__name__}: {error}", "OOMPROOF_DEBUG=1 shows where; please report it"
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            text, hint = f"{error.strerror}: {error.filename or 'what it prints'}", "free some space there"
        elif isinstance(error, OSError) and error.errno == errno.EMFILE:
            text, hint = "too few open files are allowed here", MORE_FILES
        tell(f"{text}\n  hint: {hint}")
        return OUR_FAILURE


def obey(argv: list[str]) -> int:
    word, words = (argv[0], argv[1:]) if argv else ("--help", [])
    if word in ("-h", "--help"):
        overview().print_help()
        return 0
    if word in ("-V", "--version"):
        print(f"oomproof {__version__}")
        return 0
    if word == RUN_NAMES:
        print_names(alive=ALIVE_RUNS in words)
        return 0
    if word not in VERBS:
        raise _unknown(word, argv)
    arguments, act = _parsed(word, words)
    if word in _GUARDS:
        gc.collect()  # the parser refers to itself
    return int(act(arguments))


def _parsed(verb: str, words: list[str]) -> tuple[SimpleNamespace, Callable[[Any], int]]:
    parser, act = parser_of(verb)
    return SimpleNamespace(**vars(parser.parse(words))), act


def _unknown(word: str, argv: list[str]) -> OomproofError:
    if word.startswith("-"):
        from oomproof.cli.command_parser import flags_of

        known, hint = (
            flags_of(overview()),
            "flags of a verb come after it: oomproof run --limit 20G -- python train.py",
        )
        return OomproofError(f"unknown flag {word!r}{did_you_mean(word, known)}", hint, USAGE)
    if word in ("show", "compare", "export", "rm", "prune"):
        return OomproofError(f"unknown verb {word!r}", f"oomproof runs {' '.join(argv)}", USAGE)
    near = did_you_mean(word, VERBS)
    hint = "the verbs: oomproof --help"
    folders = ["", *os.get_exec_path()]
    if not near and any(os.path.isfile(os.path.join(folder, word)) for folder in folders):
        hint = f"oomproof run -- {'python ' if word.endswith('.py') else ''}{' '.join(argv)}"
    return OomproofError(f"unknown verb {word!r}{near}", hint, USAGE)


if __name__ == "__main__":
    sys.exit(main())

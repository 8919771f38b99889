"""Says why a job died, with proof: a run of ours, or any text that a death left behind.

  oomproof why                     the last run that failed; the newest where none did
  oomproof why big                 the run called big
  oomproof why train.log           a training log, kernel log, journal or notebook, in any mix; .gz, .xz, .zst too
  dmesg | oomproof why -           from standard input
  oomproof why --html crash.html --md report.md big
  oomproof why --all big           all runs of that name or script: what the deaths have in common
  oomproof why --all a.log b.log   the same over several logs, one death each
  oomproof why --system --since "2 hours ago"    what was killed on this machine

A log's name wins over a run's; that of a folder, a program or a script does not.
Texts in which nothing died are told so, with status 0.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import select
import shlex
import stat
import struct
import sys
import termios
import time
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oomproof.cli.command_parser import refuse
from oomproof.cli.damaged_runs import readable
from oomproof.errors import USAGE, OomproofError
from oomproof.printable import coloured_stream, printable, tell, terminal_columns, wants_colour
from oomproof.recording import run_folders
from oomproof.records import replace

if TYPE_CHECKING:
    from oomproof.diagnosis.death_patterns import Ending
    from oomproof.diagnosis.outage_verdict import Outage
    from oomproof.diagnosis.verdict import Verdict
    from oomproof.reports.document import Document

_INPUT_WAIT = 0.1  # seconds
_WEEK = 7 * 86400.0
_PASTE = "paste what the job printed (its last 200 lines, the traceback whole) and what dmesg shows, then: oomproof why FILE"


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("what", nargs="*", metavar="RUN|FILE", help="a run, or files; default: the last run that failed")
    add("--json", action="store_true", help="schema 1, for machines")
    add("--again", action="store_true", help="judge a run again, with all that can be read now")
    add("--short", action="store_true", help="only the three lines")
    add("--md", metavar="FILE", help="also write the report as Markdown, ready to commit; -: standard output")
    add("--html", metavar="FILE", help="also write the crash page: one offline file; -: standard output")
    add("--no-source", action="store_true", help="with --md, --html: without lines of your source code")
    add("--no-log", action="store_true", help="with --md, --html: without the last lines of the log")
    add(
        "--bundle",
        metavar="FILE",
        help="also pack everything for somebody who will help (.tar.gz, secrets redacted)",
    )
    add("--config", action="append", default=[], metavar="FILE", help="with --bundle: a file to pack too")
    add("--force", action="store_true", help="overwrite FILE if it is there")
    add(
        "--all",
        action="store_true",
        help="patterns over all runs of that name or script, or over several logs",
    )
    add(
        "--system",
        action="store_true",
        help="what was killed on this machine, by whom, and whether it was a run",
    )
    add(
        "--since",
        metavar="WHEN",
        help='with --system: "2 hours ago", 30m, yesterday, a date (default: a week)',
    )


def run(arguments: argparse.Namespace) -> int:
    _refuse_needless(arguments)
    if arguments.system:
        return _system(arguments)
    return _patterns(arguments) if arguments.all else _explain_one(arguments)


def _refuse_needless(arguments: argparse.Namespace) -> None:
    one_only = ("again", "short", "bundle")
    if arguments.system:
        hint = "oomproof why --system"
        if arguments.what:
            raise OomproofError("--system looks at the machine, not at a run", hint, USAGE)
        refuse(arguments, ("all", *one_only), "does not go with --system", hint)
    else:
        refuse(arguments, ("since",), "goes with --system", "oomproof why --system --since yesterday")
    if arguments.all:
        refuse(arguments, one_only, "goes with one run or one story, not with --all", "oomproof why RUN")
    if _are_files(arguments.what):
        refuse(arguments, ("again",), "goes with one run", "oomproof why --again RUN")
    if arguments.json:
        refuse(
            arguments,
            ("short",),
            "does nothing with --json, which is always whole",
            "leave out one of the two",
        )
    if not arguments.bundle:
        refuse(
            arguments, ("config",), "goes with --bundle", "oomproof why --bundle help.tar.gz --config FILE"
        )
    if not (arguments.md or arguments.html):
        refuse(
            arguments,
            ("no_source", "no_log"),
            "goes with --md or --html",
            "oomproof why --html FILE --no-log RUN",
        )
    elif arguments.all or arguments.system:
        hint = "leave it out: such a document quotes neither"
        refuse(arguments, ("no_source", "no_log"), "goes with the page of one death", hint)
    if arguments.md == arguments.html == "-":
        raise OomproofError("only one document fits on standard output", "oomproof why --md - RUN", USAGE)
    if "-" in (arguments.md, arguments.html):
        refuse(
            arguments, ("json", "short"), "does nothing where a document is on standard output", "name a file"
        )
    if not (arguments.md or arguments.html or arguments.bundle):
        refuse(
            arguments,
            ("force",),
            "overwrites a file that is written: name one",
            "add --md, --html or --bundle",
        )
    for name in arguments.config:
        if not os.path.isfile(name):
            raise OomproofError(f"--config {name}: there is no such file", "check the path", USAGE)


def _are_files(what: list[str]) -> bool:
    if len(what) != 1:
        return bool(what) and not _are_runs(what)
    return what[0] == "-" or (os.path.exists(what[0]) and not _names_runs(what[0]))


def _names_runs(word: str) -> bool:
    """Of a word that is a path too: a folder or a program that is called as a run is, or a script that was run. A log wins."""
    if "/" in word:
        return False
    if word.endswith(".py"):
        return _newest_of_script(word) is not None
    return os.access(word, os.X_OK) and any(run.info.get("name") == word for run in run_folders.list_runs())


def _newest_of_script(name: str) -> run_folders.Run | None:
    scripts = ((run, (run.info.get("code") or {}).get("script")) for run in run_folders.list_runs())
    return next((run for run, script in scripts if os.path.basename(script or "") == name), None)


def _are_runs(what: list[str]) -> bool:
    """Several names of runs, none of them a file's."""
    known = {name for run in run_folders.list_runs() for name in (run.id, run.info.get("name"))}
    return all(name in known and not os.path.exists(name) for name in what)


def _width() -> int:
    return min(120, terminal_columns(110))


def _show(arguments: argparse.Namespace, value: dict[str, Any], text: str, coloured: bool = False) -> int:
    """``coloured``: made printable before the colours were put in. A document on standard output stands there alone."""
    if "-" in (arguments.md, arguments.html):
        return 0
    out = coloured_stream(sys.stdout) if coloured else sys.stdout
    print(json.dumps(value, indent=1) if arguments.json else text, file=out)
    return 0


def _write_documents(arguments: argparse.Namespace, document: Document) -> None:
    """What the terminal shows, as Markdown and as a page."""
    if not arguments.md and not arguments.html:
        return
    from oomproof.reports import html_parts, markdown_parts, report_file

    for name, page in ((arguments.md, markdown_parts.page), (arguments.html, html_parts.page)):
        if name:
            report_file.write(Path(name), partial(page, document), force=arguments.force)
            _wrote(name)


def _explain_one(arguments: argparse.Namespace) -> int:
    from oomproof.reports.verdict_blocks import long_form
    from oomproof.reports.verdict_text import three_lines

    story = which = ""
    verdict: Verdict
    if len(arguments.what) > 1 and _are_runs(arguments.what):
        hint = f"what they have in common: oomproof why --all {shlex.join(arguments.what)}"
        raise OomproofError("this explains one run, or several files", hint, USAGE)
    run: run_folders.Run | None = None
    outage: Outage | None = None
    if _are_files(arguments.what):
        from oomproof.diagnosis.judge import judge_texts
        from oomproof.diagnosis.silent_end import with_log_file
        from oomproof.evidence.texts.text_case import read_texts
        from oomproof.evidence.texts.text_names import by_name

        texts = read_texts(arguments.what)
        if texts.no_log:
            raise OomproofError(
                f"{', '.join(texts.sources)}: no log found, no line was printed by a program", _PASTE, USAGE
            )
        verdict = judge_texts(by_name(with_log_file(texts)))
        for gap in verdict.missing if arguments.short else ():
            tell(f"{gap.source} {gap.reason}")  # the long form has it at its end
    else:
        if not arguments.what and _input_waits():
            tell("standard input was not read; to have it explained: oomproof why -")
        run = _found(arguments.what[0] if arguments.what else None)
        if not arguments.what:
            which = f"run      {run.name}" + (f" ({run.id})" if run.name != run.id else "") + "\n"
        if which and arguments.short:
            tell(which.strip())
        which += _which_attempt(run)
        with readable(run):
            verdict = _judged(run, arguments.again)
            if verdict.cause == "machine-down" and (outage := _outage(run)) is not None:
                verdict = _with_its_next(verdict, outage)
                if not arguments.short:
                    from oomproof.reports.system_kill_table import outage_text

                    story = f"\n\n{outage_text(outage, width=_width(), beside_verdict=True)}"
    with readable(run) if run is not None else nullcontext():
        _write_files(arguments, verdict, run, outage)
    colour = wants_colour(sys.stdout)
    if arguments.short or (run is not None and verdict.all_well):
        text = three_lines(verdict, colour=colour, width=_width() if sys.stdout.isatty() else None)
    else:
        text = long_form(verdict, colour=colour, width=_width())
    return _show(
        arguments,
        verdict.to_json(),
        ("" if arguments.short else printable(which)) + text + printable(story),
        colour,
    )


def _input_waits() -> bool:
    """`dmesg | oomproof why`. Told only, never taken: in `while read` it is the loop's."""
    try:
        mode = os.fstat(0).st_mode
        if not (stat.S_ISFIFO(mode) or stat.S_ISREG(mode)):
            return False
        # the other side of a pipe starts when we do; its end alone is no text
        ready = select.select([0], [], [], _INPUT_WAIT)[0]
        return bool(ready) and struct.unpack("i", fcntl.ioctl(0, termios.FIONREAD, b"\0" * 4))[0] > 0
    except OSError:
        return False


def _which_attempt(run: run_folders.Run) -> str:
    """Of a run that was tried again; and where it would have been."""
    if not run.retries():
        return ""
    from oomproof.reports.run_tables import cut_off

    count, name = len(run.attempts()), run_folders.to_type(run.at(None))
    text = ""
    if count > 1:
        other = f"{name}/1" if run.attempt.number != 1 else name
        text = f"attempt  {run.attempt.number} of {count}; another: oomproof why {other}\n"
    return text + (f"retry    {told}\n" if (told := cut_off(run)) else "")


def _judged(run: run_folders.Run, again: bool) -> Verdict:
    from oomproof.diagnosis.conclusion import conclude_again, conclude_once

    if not again:
        return conclude_once(run).verdict
    conclusion, gone = conclude_again(run)
    if gone:
        tell(f"less can be read now than when it was judged ({', '.join(gone)}): that verdict stands")
    return conclusion.verdict


def last_death() -> run_folders.Run | None:
    """The newest run that has ended and not well, nor by `oomproof stop`; judged here where nobody has yet."""
    from oomproof.diagnosis.conclusion import conclusion_of

    for run in run_folders.list_runs():
        conclusion = conclusion_of(run)
        if conclusion is None:
            continue
        kind = conclusion.verdict.kind
        if not kind.good and (kind.stopped_by != "person" or kind.from_outside):
            return run
    return None


def _found(name: str | None) -> run_folders.Run:
    if name is None and (dead := last_death()) is not None:
        return dead
    try:
        return run_folders.find(name)
    except OomproofError:
        if name is None or not ("/" in name or "." in name):
            raise
        if (run := _newest_of_script(name)) is not None:
            return run
        hint = "check the path; `oomproof runs` lists the runs, `-` reads standard input"
        raise OomproofError(f"no file and no run is called {name!r}", hint, USAGE) from None


def _write_files(
    arguments: argparse.Namespace, verdict: Verdict, run: run_folders.Run | None, outage: Outage | None
) -> None:
    """The pages and the bundle that were asked for; what was written goes to standard error."""
    force = arguments.force
    sources = [name for name in arguments.what if name != "-"] if run is None else []
    quoted: dict[str, Any] = {
        "sources": sources,
        "source": not arguments.no_source,
        "log": not arguments.no_log,
    }
    if outage is not None:
        from oomproof.reports.system_kill_table import outage_document

        quoted["outage"] = outage_document(outage, beside_verdict=True)
    if arguments.md:
        from oomproof.reports.markdown import write_markdown

        write_markdown(verdict, run, Path(arguments.md), force=force, **quoted)
        _wrote(arguments.md)
    if arguments.html:
        from oomproof.reports.html import write_html

        write_html(verdict, run, Path(arguments.html), force=force, **quoted)
        _wrote(arguments.html, "; open it in any browser, it needs no network")
    if arguments.bundle:
        from oomproof.reports.bundle import write_bundle

        configs = [Path(name) for name in arguments.config]
        texts = [Path(name) for name in sources]
        redacted = write_bundle(verdict, run, texts, Path(arguments.bundle), configs=configs, force=force)
        told = f"{len(redacted)} places redacted, listed in it" if redacted else "nothing needed redacting"
        tell(f"wrote {arguments.bundle} ({told}); look into it before you send it")


def _wrote(name: str, hint: str = "") -> None:
    if name != "-":
        tell(f"wrote {name}{hint}")


def _outage(run: run_folders.Run) -> Outage | None:
    """The machine went down: the story over all runs that were alive then."""
    from oomproof.diagnosis.outage_verdict import judge_outage
    from oomproof.evidence.outage_finder import outage_of

    facts = outage_of(run)
    return judge_outage(facts) if facts else None


def _with_its_next(verdict: Verdict, outage: Outage) -> Verdict:
    """Where memory filled, what to do is known by who was alive, not by one run: starting it as before fills it again."""
    from oomproof.reports.system_kill_table import next_steps

    # an unmanaged culprit beside it has an answer of its own
    unmanaged = verdict.culprit is not None and not verdict.culprit.managed
    filled = outage.kind in ("memory", "filling") and not unmanaged
    return replace(verdict, next_steps=next_steps(outage)) if filled else verdict


def _patterns(arguments: argparse.Namespace) -> int:
    from oomproof.diagnosis.death_patterns import find_patterns
    from oomproof.diagnosis.endings import endings_of_runs, endings_of_texts, runs_of
    from oomproof.reports.document import terminal
    from oomproof.reports.pattern_report import patterns_document

    what = arguments.what
    following: Document = ()
    if _are_files(what):
        endings = endings_of_texts(what)
    else:
        names = what or [run_folders.find(None).name]
        endings = endings_of_runs(dict.fromkeys(run for name in names for run in runs_of(name)))
        following = _why_the_last(endings)
    patterns = find_patterns(endings)
    document = (*patterns_document(patterns), *following)
    _write_documents(arguments, document)
    return _show(arguments, patterns.to_json(), terminal(document, _width()))


def _why_the_last(endings: list[Ending]) -> Document:
    """The command that explains the newest death, as a paragraph of its own."""
    from oomproof.reports.document import Labels, section

    last = next((ending for ending in reversed(endings) if ending.died), None)
    if last is None:
        return ()
    return (
        section(Labels((("next", f"oomproof why {run_folders.to_type(run_folders.find(last.label))}"),))),
    )


def _system(arguments: argparse.Namespace) -> int:
    from oomproof.diagnosis.outage_verdict import system_history
    from oomproof.evidence.time_expressions import parse_since
    from oomproof.reports.document import terminal
    from oomproof.reports.system_kill_table import system_document

    now = time.time()
    since = parse_since(arguments.since, now) if arguments.since else now - _WEEK
    history = system_history(since)
    document = system_document(history)
    _write_documents(arguments, document)
    return _show(arguments, history.to_json(), terminal(document, _width()))

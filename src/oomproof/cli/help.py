"""Shows the help of a verb, or the list of verbs.

oomproof help run
oomproof help runs show
oomproof help --man | man -l -      all of it as a man page
"""

from __future__ import annotations

import argparse
from itertools import groupby

from oomproof import __version__
from oomproof.cli.command_parser import blocks_of, example_lines
from oomproof.cli.main import overview
from oomproof.cli.verb_list import Verb, verbs
from oomproof.errors import USAGE, OomproofError

_WIDTH = 69  # columns beside the margins of a page of 80
_END = r"""
.SH FILES
.TP
\fIoomproof.toml\fR, \fIpyproject.toml\fR
Settings of a project, in its folder or one above it; in \fIpyproject.toml\fR under \fB[tool.oomproof]\fR.
.TP
\fI~/.config/oomproof/config.toml\fR, \fI/etc/oomproof/config.toml\fR
Settings of a user and of the machine. \fBoomproof config\fR shows what applies, and from where.
.TP
\fI~/.local/state/oomproof/runs\fR
The runs: recording, output, verdict.
.SH ENVIRONMENT
.TP
\fBOOMPROOF_\fR\fINAME\fR
A setting, by the name of its flag: \fBOOMPROOF_LIMIT=20G\fR.
.TP
\fBNO_COLOR\fR
No colours.
.TP
\fBXDG_CONFIG_HOME\fR, \fBXDG_STATE_HOME\fR, \fBXDG_RUNTIME_DIR\fR
Where those files are.
.TP
\fBOOMPROOF_DEBUG\fR
Where oomproof itself fails, show where.
"""


def man_page() -> str:
    described = (overview().description or "").rstrip(".")
    listed = list(verbs())
    parts = [
        f'.TH OOMPROOF 1 "" "oomproof {__version__}" "User Commands"',
        f".SH NAME\noomproof \\- {_text(described[0].lower() + described[1:])}",
        ".SH SYNOPSIS\n.B oomproof\n\\fIVERB\\fR [\\fIoptions\\fR] ...\n.PP\n.B oomproof run\n\\-\\- \\fICMD\\fR ...",
        ".SH DESCRIPTION\n"
        + "\n".join(
            f".TP\n.B {_text(' '.join(verb.words))}\n{_text(verb.summary)}"
            for verb in listed
            if len(verb.words) == 1
        ),
        ".SH VERBS",
        *map(_verb, listed),
    ]
    return "\n".join(parts) + _END


def _verb(verb: Verb) -> str:
    lines = [f".SS {_text(verb.usage)}"]
    lines += _description(verb.description or f"{verb.summary[:1].upper()}{verb.summary[1:]}.")
    for group, arguments in groupby(verb.arguments, lambda argument: argument.group):
        if group:
            lines.append(f".PP\n.I {_text(group)}:")
        for argument in arguments:
            names = ", ".join(f"\\fB{_text(flag)}\\fR" for flag in argument.flags)
            value = f"\\fI{_text(argument.metavar)}\\fR" if argument.metavar else ""
            lines.append(f".TP\n{' '.join(filter(None, (names, value)))}\n{_text(argument.help)}")
    return "\n".join(lines)


def _description(text: str) -> list[str]:
    """Sentences as paragraphs, indented lines as they are."""
    lines = []
    for fixed, block in blocks_of(text):
        if any(block):
            parts = [part for line in block for part in example_lines(line, _WIDTH)] if fixed else block
            body = "\n".join(_text(line if fixed else line.strip()) for line in parts if line)
            lines.append(f".PP\n.RS 2\n.nf\n{body}\n.fi\n.RE" if fixed else f".PP\n{body}")
    return lines


def _text(text: str) -> str:
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{escaped}" if escaped.startswith((".", "'")) else escaped


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("verb", nargs="?", metavar="VERB", help="default: the list of verbs")
    parser.add_argument("action", nargs="?", metavar="ACTION", help="such as show, of runs")
    parser.add_argument("--man", action="store_true", help="the man page, as `man -l` reads it")


def run(arguments: argparse.Namespace) -> int:
    if arguments.man:
        if arguments.verb:
            raise OomproofError("--man is the page of all verbs", "oomproof help --man", USAGE)
        print(man_page(), end="")
        return 0
    from oomproof.cli.main import obey

    return obey([word for word in (arguments.verb, arguments.action) if word] + ["--help"])

"""Shows the help of a verb, or the list of verbs.

oomproof help run
oomproof help runs show
oomproof help --man | man -l -      all of it as a man page
"""

from __future__ import annotations

import argparse

from oomproof.errors import USAGE, OomproofError


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("verb", nargs="?", metavar="VERB", help="default: the list of verbs")
    parser.add_argument("action", nargs="?", metavar="ACTION", help="such as show, of runs")
    parser.add_argument("--man", action="store_true", help="the man page, as `man -l` reads it")


def run(arguments: argparse.Namespace) -> int:
    if arguments.man:
        from oomproof.cli.man_page import man_page

        if arguments.verb:
            raise OomproofError("--man is the page of all verbs", "oomproof help --man", USAGE)
        print(man_page(), end="")
        return 0
    from oomproof.cli.main import obey

    return obey([word for word in (arguments.verb, arguments.action) if word] + ["--help"])

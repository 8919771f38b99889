"""One line for a prompt or a tmux bar: RAM in use, what the runs hold, how many are paused or wait.

The RAM is always there; runs only when there are some. It reads a few small files and asks no driver: `oomproof top` has the
cards.

  oomproof status
  oomproof status --json

In ~/.tmux.conf:
  set -g status-right '#(oomproof status)'
"""

from __future__ import annotations

import argparse
import json

from oomproof.live.status_line import read_status, status_json, status_text


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print schema 1 JSON")


def run(arguments: argparse.Namespace) -> int:
    status = read_status()
    print(json.dumps(status_json(status)) if arguments.json else status_text(status))
    return 0

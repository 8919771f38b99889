"""Shows every setting of `run` as it applies in this folder: its value, and where that comes from.

A flag counts before a variable OOMPROOF_NAME, that before oomproof.toml or [tool.oomproof] in pyproject.toml (the nearest
upwards), that before the user's file, that before the machine's. Give flags of `run` to see what they change.

  oomproof config
  oomproof config --all              also what nobody has set
  oomproof config --limit 20G
  oomproof config --json
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

from oomproof import settings
from oomproof.alerts import receivers
from oomproof.guard.host_view import HostView
from oomproof.printable import terminal_columns
from oomproof.recording.secrets import MASK
from oomproof.reports.table_text import folded, table
from oomproof.runner.guard_settings import guard_settings
from oomproof.runner.run_flags import FLAGS, add_flags, may_be_secret, settle
from oomproof.units import format_size


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    parser.usage = "oomproof config [--all] [--json] [flags of run]"
    parser.add_argument("--all", action="store_true", help="also settings that are at their default")
    parser.add_argument("--json", action="store_true", help="machine-readable output")
    add_flags(parser)


def run(arguments: argparse.Namespace) -> int:
    given = settings.resolve(vars(arguments), set(FLAGS), tell=False)
    chosen = settle(given)
    guard = guard_settings(chosen, HostView())
    rows = []
    for name in FLAGS:
        value, source = shown(name, getattr(chosen, name)), given.source(name)
        text = str(given[name]) if name not in settings.PERSONAL else _default(value)
        if source == "default":
            value = {"margin": guard.margin, "floor": guard.floor}.get(name, value)
            text = format_size(value) if name in ("margin", "floor") else _default(value)
        rows.append(
            {
                "name": name,
                "value": os.fspath(value) if isinstance(value, Path) else value,
                "from": source,
                "where": given.origin(name).removesuffix(f": {name}") if source != "default" else None,
                "text": {"True": "yes", "False": "no"}.get(text, text),
            }
        )
    if arguments.json:
        settings_json = [{key: row[key] for key in ("name", "value", "from", "where")} for row in rows]
        value = {
            "schema": 1,
            "settings": settings_json,
            "files": [str(path) for path in given.read],
            "passed_over": [{"what": what, "why": why} for what, why in given.passed_over.items()],
        }
        print(json.dumps(value, indent=1))
    else:
        print(_text(rows, given, arguments.all))
    return 0


def _text(rows: list[dict[str, Any]], given: settings.Resolved, whole: bool) -> str:
    width = terminal_columns(100)
    shown = [row for row in rows if whole or row["from"] != "default"]
    cells = [("SETTING", "VALUE", "FROM")]
    cells += [(row["name"], row["text"], row["where"] or "default") for row in shown]
    lines = (
        table(cells, width, shrink={1: 12, 2: 20})
        if shown
        else ["nothing is set: every setting is at its default"]
    )
    if not whole:
        lines.append(f"({len(rows) - len(shown)} at their default: oomproof config --all)")
    lines.append("")
    for path in given.read:
        lines += folded("read         ", str(path), width)
    for what, why in given.passed_over.items():
        lines += folded("passed over  ", f"{what}: {why}", width)
    if not given.read:
        places = f"oomproof.toml or pyproject.toml here or above, {settings.user_file()}, {settings.SYSTEM}"
        lines += folded("looked for   ", places, width)
    return "\n".join(lines)


def shown(name: str, value: Any) -> Any:
    """Commands and receivers without what is secret in them."""
    if name == "alert_webhook":
        return [receivers.shown(webhook) for webhook in value]
    return (
        MASK if isinstance(value, str) and name in settings.PERSONAL and may_be_secret(name, value) else value
    )


def _default(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    if value and isinstance(value, list) and isinstance(value[0], str):
        return ", ".join(value)
    return "-" if value in (None, [], (None, None)) else str(value)

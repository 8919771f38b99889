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
import shutil
from pathlib import Path
from typing import Any

from oomproof import settings
from oomproof.errors import did_you_mean
from oomproof.guard.host_view import HostView
from oomproof.reports.table_text import folded, table
from oomproof.runner.run_flags import FLAGS, add_flags, settle
from oomproof.runner.supervise import guard_settings
from oomproof.units import format_size

# Variables of ours that are no settings of `run`.
_OTHERS = ("OOMPROOF_RUN", "OOMPROOF_STOP_FILE", "OOMPROOF_SAVE_FILE", "OOMPROOF_DEBUG")


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    parser.usage = "oomproof config [--all] [--json] [flags of run]"
    parser.add_argument("--all", action="store_true", help="also settings that nobody has set")
    parser.add_argument("--json", action="store_true", help="machine-readable output")
    add_flags(parser)


def run(arguments: argparse.Namespace) -> int:
    given = settings.resolve(vars(arguments), set(FLAGS), tell=False)
    chosen = settle(given)
    guard = guard_settings(chosen, HostView())
    rows = []
    for name in FLAGS:
        value, source = getattr(chosen, name), given.source(name)
        text = str(given[name])
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
    unknown = _unknown_variables()
    if arguments.json:
        settings_json = [{key: row[key] for key in ("name", "value", "from", "where")} for row in rows]
        value = {
            "schema": 1,
            "settings": settings_json,
            "files": [str(path) for path in given.read],
            "passed_over": [{"file": file, "why": why} for file, why in given.passed_over.items()],
            "unknown_variables": sorted(unknown),
        }
        print(json.dumps(value, indent=1))
    else:
        print(_text(rows, given, unknown, arguments.all))
    return 0


def _text(rows: list[dict[str, Any]], given: settings.Resolved, unknown: dict[str, str], whole: bool) -> str:
    width = shutil.get_terminal_size((100, 24)).columns
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
    for file, why in given.passed_over.items():
        lines += folded("passed over  ", f"{file}: {why}", width)
    for name, near in unknown.items():
        lines += folded("passed over  ", f"{name}: unknown setting{near}", width)
    if not given.read:
        places = f"oomproof.toml or pyproject.toml here or above, {settings.user_file()}, {settings.SYSTEM}"
        lines += folded("looked for   ", places, width)
    return "\n".join(lines)


def _default(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return "-" if value in (None, [], (None, None)) else str(value)


def _unknown_variables() -> dict[str, str]:
    """Variables of that name which no part of oomproof reads, each with what was probably meant."""
    known = [*(f"OOMPROOF_{name.upper()}" for name in FLAGS), *_OTHERS]
    return {
        name: did_you_mean(name, known)
        for name in sorted(os.environ)
        if name.startswith("OOMPROOF_") and name not in known and not name.startswith("OOMPROOF_AGENT")
    }

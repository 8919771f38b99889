"""Whether memory grows without end, and when it will be full: of a run, or of any table of time and bytes.

The lowest of each period counts (an epoch, an evaluation, or what repeats itself), and not what was loaded before. The time to
full is right 4 times in 5. Of a run it is told in steps and epochs too, beside the step at which it ends, and for each GPU.

  oomproof trend                           the newest run
  oomproof trend big                       the run called big, also while it runs
  oomproof trend big --limit 61G           would it fit there, and how long?
  oomproof trend memory.csv --limit 61G    a table: CSV, or `ps`, `free` or `vmstat` in a loop
  oomproof trend ps.txt --every 5s         the loop printed no dates: this far apart
  oomproof trend log.txt --time 1 --column 3 --unit KiB
"""

from __future__ import annotations

import argparse
import json
import os
import sys

from oomproof.errors import USAGE, OomproofError
from oomproof.printable import one_line, terminal_columns
from oomproof.recording import run_folders
from oomproof.reports.table_text import folded_line
from oomproof.reports.trend_text import Answer, answer_of, trend_json, trend_lines
from oomproof.units import GIB, KIB, MIB, parse_duration, parse_size

_UNITS = {"bytes": 1, "kib": KIB, "kb": KIB, "mib": MIB, "mb": MIB, "gib": GIB, "gb": GIB}


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what",
        nargs="?",
        metavar="RUN|FILE",
        help="a run (default: the newest), or a table of time and bytes",
    )
    parser.add_argument(
        "--limit",
        metavar="SIZE",
        help="when is it full? (default: the run's limit, or what the machine had left)",
    )
    parser.add_argument(
        "--gpu-limit",
        metavar="SIZE",
        help="the same for GPU memory (default: the run's --gpu-limit, or the card)",
    )
    parser.add_argument(
        "--time", metavar="COLUMN", help="of a table: the column with the time, by name or number"
    )
    parser.add_argument(
        "--column",
        metavar="COLUMN",
        help="of a table: the column with the memory, by name or number; of ps aux a pid",
    )
    parser.add_argument(
        "--unit", metavar="UNIT", help="of a table: bytes, KiB, MiB or GiB (default: from its name)"
    )
    parser.add_argument("--every", metavar="TIME", help="of a table without times: the time between two rows")
    parser.add_argument("--json", action="store_true", help="print schema 1 JSON")


def run(arguments: argparse.Namespace) -> int:
    limit = parse_size(arguments.limit) if arguments.limit else None
    what = arguments.what
    is_file = what is not None and (os.path.sep in what or os.path.isfile(what))
    of_table = [f"--{name}" for name in ("time", "column", "unit", "every") if getattr(arguments, name)]
    if of_table and not is_file:
        raise OomproofError(f"{of_table[0]} is for a table, and {what or 'a run'} is no file", status=USAGE)
    gpu_limit = parse_size(arguments.gpu_limit) if arguments.gpu_limit else None
    if gpu_limit is not None and is_file:
        raise OomproofError("--gpu-limit is for a run; of a table: --limit", status=USAGE)
    lines, answer = _of_table(arguments, limit) if is_file else _of_run(what, limit, gpu_limit)
    if sys.stdout.isatty():
        lines = [part for line in lines for part in folded_line(line, terminal_columns())]
    print(json.dumps(answer, indent=2) if arguments.json else "\n".join(lines))
    return 0


def _of_run(
    name: str | None, limit: int | None, gpu_limit: int | None
) -> tuple[list[str], dict[str, object]]:
    target = run_folders.find(name)
    answer = answer_of(target, limit, gpu_limit)
    if answer is None:
        raise OomproofError(
            f"{target.name} has no samples after loading", "a trend takes minutes of training", status=USAGE
        )
    return trend_lines(one_line(target.name), answer), {"run": target.id, **trend_json(answer)}


def _of_table(arguments: argparse.Namespace, limit: int | None) -> tuple[list[str], dict[str, object]]:
    from oomproof.evidence.memory_tables import Wanted, read_memory_table
    from oomproof.trend.leaks import trend_of

    unit = arguments.unit
    if unit and unit.lower() not in _UNITS:
        raise OomproofError(f"unknown unit {unit!r}", "bytes, KiB, MiB or GiB", USAGE)
    every = parse_duration(arguments.every) if arguments.every else None
    wanted = Wanted(arguments.time, arguments.column, _UNITS[unit.lower()] if unit else None, every)
    table = read_memory_table(arguments.what, wanted)
    samples = table.samples
    seen = samples[-1][0] - samples[0][0]
    end_wall = samples[-1][0] if table.is_wall else None
    trend = trend_of(samples, limit)
    answer = Answer(trend, limit, "--limit" if limit else "", seen, end_wall)
    lines = trend_lines(one_line(arguments.what), answer)
    told = f"{len(samples)} rows: {table.told}"
    lines.append(f"  read     {one_line(told)}" + (f"; {table.skipped} other lines" if table.skipped else ""))
    return lines, {"file": arguments.what, "rows": len(samples), "read": told, **trend_json(answer)}

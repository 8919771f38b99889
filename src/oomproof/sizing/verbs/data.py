"""What loading a data file costs in memory, told from its headers, and how to read it for less.

  oomproof data inspect train.npz rows.csv       what loading them takes; --prove measures it
  oomproof data convert train.npz train/         each array as .npy, which can be mapped
  oomproof data split rows.jsonl --rows 50000    parts: JSON Lines, CSV, Parquet
  oomproof data head train.npz small.npz         the first rows: .npz, .npy, JSON Lines, CSV

Files are read in pieces: memory stays small whatever their size. The input is never changed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import Any

from oomproof.cli.command_parser import count
from oomproof.errors import NOT_NOW, USAGE, OomproofError
from oomproof.printable import one_line, terminal_columns
from oomproof.records import asdict, replace
from oomproof.reports.table_text import folded, table
from oomproof.sizing.data import file_formats
from oomproof.sizing.data.load_cost import AT_LEAST, LoadCost, Part, call, plural
from oomproof.sizing.data.load_proof import Proof
from oomproof.units import format_duration, format_size

_MAPPED = 'mmap_mode="r"'


_INSPECT = """What loading data files costs in memory, told from their headers.

  oomproof data inspect train.npz rows.csv
  oomproof data inspect --prove train.npz
        loads it in a child process and measures
"""
_CONVERT = """Makes each array of a .npz a .npy file, which can be mapped.

  oomproof data convert train.npz train/
"""
_SPLIT = """Copies JSON Lines, CSV or Parquet into parts.

  oomproof data split rows.jsonl --rows 50000
"""
_HEAD = """Copies the first rows: a small file for experiments.

  oomproof data head train.npz small.npz --rows 100
"""


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    inspect = actions.add_parser(
        "inspect", help="what loading files costs in memory, from their headers", description=_INSPECT
    )
    inspect.add_argument(
        "files",
        nargs="+",
        metavar="FILE",
        help=".npy, .npz, CSV, JSON Lines, Parquet, Arrow, pickle, .pt, safetensors, GGUF",
    )
    inspect.add_argument(
        "--prove",
        action="store_true",
        help="load each in a child process, within what the machine can spare, and measure it (never a pickle: that runs code)",
    )
    inspect.add_argument(
        "--python",
        metavar="EXE",
        help="the Python whose libraries --prove uses (default: the one that runs oomproof)",
    )
    inspect.add_argument("--json", action="store_true", help="machine-readable output")
    convert = actions.add_parser(
        "convert", help="make each array of a .npz a .npy file, which can be mapped", description=_CONVERT
    )
    convert.add_argument("file", metavar="FILE", help="a .npz file")
    convert.add_argument("folder", metavar="FOLDER", help="where the .npy files go")
    split = actions.add_parser("split", help="copy JSON Lines, CSV or Parquet into parts", description=_SPLIT)
    split.add_argument("file", metavar="FILE", help="JSON Lines, CSV or Parquet")
    split.add_argument("--rows", type=count("rows"), required=True, metavar="N", help="rows of each part")
    split.add_argument("--out", metavar="FOLDER", help="where the parts go (default: beside the file)")
    head = actions.add_parser(
        "head", help="copy the first rows: a small file for experiments", description=_HEAD
    )
    head.add_argument("file", metavar="FILE", help=".npz, .npy, JSON Lines or CSV")
    head.add_argument("target", metavar="OUT", help="the small file")
    head.add_argument("--rows", type=count("rows"), default=100, metavar="N", help="how many (default: 100)")
    for action in (convert, split, head):
        action.add_argument("--force", action="store_true", help="replace files that exist")


def run(arguments: argparse.Namespace) -> int:
    if arguments.action is None:
        raise OomproofError("an action is missing", "oomproof data inspect FILE", USAGE)
    if getattr(arguments, "rows", None) == 0:
        raise OomproofError("--rows 0 would copy nothing", "give 1 or more", USAGE)
    verbs = {"inspect": _inspect, "convert": _convert, "split": _split, "head": _head}
    return verbs[arguments.action](arguments)


def _inspect(arguments: argparse.Namespace) -> int:
    """Each file by itself: one that cannot be read does not hide the others. The status is that of the first problem."""

    if arguments.python and not arguments.prove:
        raise OomproofError("--python goes with --prove", "oomproof data inspect --prove FILE", USAGE)
    status, values = 0, []
    available = _available()
    for number, path in enumerate(arguments.files):
        value: dict[str, Any] = {"path": path}
        values.append(value)
        try:
            cost = _with_writer(file_formats.load_cost(path), path)
            value |= cost.as_json()
            proof = None
            try:
                proof = _prove(cost, path, available, arguments.python) if arguments.prove else None
                value |= {"measured": asdict(proof)} if proof else {}
            finally:
                if not arguments.json:
                    text = block(path, cost, available, proof, terminal_columns(100))
                    print(f"\n{text}" if number else text)
        except OomproofError as error:
            status = status or error.status
            value |= {"problem": error.message, "hint": error.hint}
            if not arguments.json:
                sys.stdout.flush()
                print(f"oomproof: {error}", file=sys.stderr)
    if arguments.json:
        print(json.dumps({"schema": 1, "files": values}, indent=1))
    return status


def _with_writer(cost: LoadCost, path: str) -> LoadCost:
    from oomproof.evidence.log_file import writer_of

    writer = writer_of(path)
    if writer is None:
        return cost
    note = f"{writer[1]} (process {writer[0]}) is still writing it: these are its figures as it is now"
    return replace(cost, notes=(*cost.notes, note))


def _available() -> int | None:
    """Memory that is available here, in a container too; None where that cannot be told."""
    from oomproof.machine import cgroup_limits, memory

    try:
        now = memory.read()
    except OSError:
        return None  # a Mac
    limit = cgroup_limits.read("self").machine(now.total)
    return min(now.available, limit.left) if limit is not None else now.available


def _prove(cost: LoadCost, path: str, available: int | None, python: str | None) -> Any:
    from oomproof.sizing.data.load_proof import prove
    from oomproof.sizing.watched_child import limited

    if not cost.loader:
        raise OomproofError(f"{path}: not proved: loading it would run code of the file", "leave out --prove")
    if available is None or not os.path.exists("/proc/self/status"):
        raise OomproofError(f"{path}: --prove needs /proc, which is not here", "prove it on Linux")
    limit = available - available // 8  # the rest stays for everybody else
    if cost.peak is not None and not cost.mapped and cost.peak > limit:
        raise OomproofError(
            f"{path}: not proved: loading it takes {format_size(cost.peak)}, and {format_size(limit)} may be used now",
            "prove a part of it: oomproof data head",
            NOT_NOW,
        )
    with limited(limit) as join:
        return prove(cost.loader, path, limit, python or sys.executable, join)


def _convert(arguments: argparse.Namespace) -> int:
    from oomproof.sizing.data.row_copy import convert_npz

    copied = convert_npz(arguments.file, arguments.folder, arguments.force)
    print(f"{plural(len(copied.names), 'array')}, {format_size(copied.size)}, in {arguments.folder}")
    print(f"read them with: {call('np.load', copied.names[0], _MAPPED)}")
    return _left_out(arguments.file, copied.left_out)


def _split(arguments: argparse.Namespace) -> int:
    from oomproof.sizing.data.row_copy import split_rows

    folder = arguments.out if arguments.out is not None else os.path.dirname(arguments.file)
    parts = split_rows(arguments.file, arguments.rows, folder, arguments.force)
    first, last = parts.names[0], parts.names[-1]
    print(
        f"{parts.rows:,} rows in {plural(len(parts.names), 'part')}: {first}{'' if first == last else f' to {last}'}"
    )
    return 0


def _head(arguments: argparse.Namespace) -> int:
    from oomproof.sizing.data import row_copy
    from oomproof.sizing.data.source_file import open_source

    ends = [os.path.splitext(name)[1].lower() for name in (arguments.file, arguments.target)]
    if ends[0] != ends[1]:
        raise OomproofError(
            f"{arguments.target}: the copy has the format of {arguments.file}, and must end as it does",
            f"name it {os.path.splitext(arguments.target)[0]}{ends[0]}",
            USAGE,
        )
    with open_source(arguments.file) as file:
        kind = file_formats.format_of(file, arguments.file)
    if kind in ("csv", "jsonl"):
        rows = row_copy.head_rows(arguments.file, arguments.target, arguments.rows, arguments.force)
        print(f"{plural(rows, 'row')} in {arguments.target}")
        return 0
    if kind not in ("zip", "npy"):
        raise OomproofError(
            f"{arguments.file}: has no rows that can be copied", "known: .npz, .npy, JSON Lines, CSV"
        )
    copy = row_copy.head_npz if kind == "zip" else row_copy.head_npy
    copied = copy(arguments.file, arguments.target, arguments.rows, arguments.force)
    print(f"{plural(len(copied.names), 'array')}, {format_size(copied.size)}, in {arguments.target}")
    return _left_out(arguments.file, copied.left_out)


def _left_out(path: str, names: tuple[str, ...]) -> int:
    if not names:
        return 0
    print(
        f"oomproof: {path}: left out: {', '.join(names)} (Python objects, pickled: reading them would run code of the file)",
        file=sys.stderr,
    )
    return 1


# What `oomproof data inspect` prints: a short block for each file.

_SHOWN_PARTS = 6  # the largest; all are in --json
_MARGIN = 11


def block(path: str, cost: LoadCost, available: int | None, proof: Proof | None, width: int) -> str:
    lines = [one_line(f"{path}: {cost.format}, {cost.contents}, {format_size(cost.disk)} on disk")]
    lines += _row("memory", _memory(cost), width)
    if proof is not None:
        lines += _row("measured", _measured(cost, proof), width)
    if available is not None and cost.peak is not None and not cost.mapped and cost.peak > available:
        lines += _row("too large", f"only {format_size(available)} of memory are available now", width)
    lines += _parts(cost.parts, width)
    for note in cost.notes:
        lines += _row("note", note, width)
    for number, line in enumerate(cost.cheaper):
        # code and commands are not folded: they are there to be copied
        lines.append(one_line(("" if number else "cheaper").rjust(_MARGIN - 2) + "  " + line))
    return "\n".join(lines)


def _row(head: str, text: str, width: int) -> list[str]:
    return folded(head.rjust(_MARGIN - 2) + "  ", text, width)


def _memory(cost: LoadCost) -> str:
    if cost.mapped:
        return (
            f"{format_size(cost.kept)} once every page is touched, as pages of the file, which the kernel can take back: "
            f"{cost.usual} ({cost.basis})"
        )
    if cost.basis == AT_LEAST:
        return f"at least {format_size(cost.kept)}: {cost.usual}"
    return f"peak {format_size(cost.peak)}, kept {format_size(cost.kept)}: {cost.usual} ({cost.basis})"


def _measured(cost: LoadCost, proof: Proof) -> str:
    seconds = format_duration(proof.seconds)
    if cost.mapped:
        return f"{format_size(proof.mapped)} of pages of the file and {format_size(proof.peak)} of its own, in {seconds}"
    told = f"peak {format_size(proof.peak)}, kept {format_size(proof.kept)}, in {seconds}"
    return f"{told}: {proof.peak / cost.peak:.0%} of the predicted peak" if cost.peak else told


def _parts(parts: tuple[Part, ...], width: int) -> list[str]:
    """The largest, in the order of the file."""
    if len(parts) == 1 and not parts[0].name:
        return _row("array", f"{_shape(parts[0])} {parts[0].type}", width)
    sizes = sorted((part.bytes or 0 for part in parts), reverse=True)
    least = sizes[_SHOWN_PARTS - 1] if len(parts) > _SHOWN_PARTS else -1
    shown = [part for part in parts if (part.bytes or 0) >= least][:_SHOWN_PARTS]
    rows = [
        [
            part.name or "(no name)",
            part.type,
            _shape(part),
            "?" if part.bytes is None else format_size(part.bytes),
        ]
        for part in shown
    ]
    lines = [
        " " * _MARGIN + line
        for line in (table(rows, width - _MARGIN, shrink={0: 12, 1: 8}, right=(3,)) if rows else [])
    ]
    if len(parts) > len(shown):
        lines.append(" " * _MARGIN + f"and {len(parts) - len(shown)} smaller")
    return lines


def _shape(part: Part) -> str:
    return "" if part.shape is None else "×".join(map(str, part.shape)) or "a single value"

"""The account the job's own allocator gave when GPU memory ran out: figures, who held the tensors, who else was there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from oomproof.evidence.json_files import integer, number, string
from oomproof.leaf.attempt_names import ALLOCATOR, TENSORS
from oomproof.recording.attempt import Attempt
from oomproof.recording.run_folders import Run
from oomproof.records import dataclass, replace
from oomproof.units import format_size

_LARGEST = 1 << 20  # bytes of one account; the agent writes about 10 KiB
_STALE = 900.0  # seconds: a neighbour's older figures are of another time


@dataclass(frozen=True, slots=True)
class Owner:
    """Tensors that one thing keeps alive. ``kind``: parameter, gradient, optimizer, buffer, kv-cache, list, dict, activation…"""

    kind: str
    owner: str
    bytes: int
    count: int = 1
    example: str = ""


@dataclass(frozen=True, slots=True)
class OnTheCard:
    """Another process on the card. ``unused``: reserved by its PyTorch but not in use, where it is a run of ours."""

    pid: int
    used: int | None
    name: str = ""
    twin: bool = False
    unused: int | None = None
    run: str | None = None


@dataclass(frozen=True, slots=True)
class Generating:
    """The generate() in which it happened."""

    batch: int
    tokens: int
    new_tokens: int
    cache: int
    fitting_batch: int
    fitting_new_tokens: int


@dataclass(frozen=True, slots=True)
class Line:
    line: str
    bytes: int
    count: int


@dataclass(frozen=True, slots=True)
class GpuOom:
    """Bytes; None for what nobody could tell."""

    device: int
    requested: int | None
    total: int
    free: int
    allocated: int
    reserved: int
    largest_free: int | None = None  # one piece, inside what is reserved
    split_free: int | None = None  # free pieces of segments that are partly in use
    # used on the card by other than this allocator: neighbours and this process's own context
    outside: int = 0
    outside_first: int | None = None  # the least that was while the job ran
    others: int | None = None  # the same without the context
    context: int | None = None
    allowed: int | None = None  # by --gpu-limit or the job's own fraction
    retries: int = 0
    number: int = 1
    backend: str = "native"
    expandable: bool = False
    phase: str = ""
    step: int | None = None
    owners: tuple[Owner, ...] = ()
    unseen: int = 0  # allocated, but by no tensor that Python knows: kept for backward, workspaces
    neighbours: tuple[OnTheCard, ...] = ()
    generating: Generating | None = None
    lines: tuple[Line, ...] = ()
    stack: tuple[str, ...] = ()
    torch: str = ""
    ignored: str = ""  # a setting of the allocator that the user made and that was off
    snapshot: str | None = None
    pid: int | None = None
    wall: float | None = None
    uuid: str | None = None  # of the card
    spill: int = 0  # host memory that --spill had pinned, in none of the card's figures
    spilled: int = 0  # of it, what tensors used

    @property
    def unused(self) -> int:
        return max(0, self.reserved - self.allocated)

    @property
    def reach(self) -> int:
        """What the driver could still give this process in one piece."""
        return self.free if self.allowed is None else min(self.free, max(0, self.allowed - self.reserved))

    @property
    def missing(self) -> int:
        return max(1, (self.requested or 0) - self.reach)

    def held(self, *kinds: str) -> int:
        return sum(owner.bytes for owner in self.owners if owner.kind in kinds)


def last_oom(attempt: Attempt) -> GpuOom | None:
    """The newest account in the attempt's folder, neighbours looked up among our own runs."""
    newest: GpuOom | None = None
    for path in _files(attempt.agent_folder, "*-cuda-oom-*.json"):
        oom = parse(_load(path))
        if oom is not None and (
            newest is None or (oom.wall or 0.0, oom.number) >= (newest.wall or 0.0, newest.number)
        ):
            newest = oom
    if newest is None:
        return None
    return _with_our_runs(newest, attempt)


def host_owners(attempt: Attempt) -> tuple[Owner, ...]:
    """Who kept tensors alive in the host's memory, or on Apple's GPU, when an allocation there was refused."""
    owners: list[Owner] = []
    for path in _files(attempt.agent_folder, f"*-{TENSORS}"):
        owners += [_owner(owner) for owner in _dicts(_load(path).get("owners"))]
    return tuple(sorted(owners, key=lambda owner: -owner.bytes)[:6])


def parse(value: dict[str, Any]) -> GpuOom | None:
    """An account as the agent wrote it; None for anything else."""
    total, free = integer(value.get("total")), integer(value.get("free"))
    allocated, reserved = integer(value.get("allocated")), integer(value.get("reserved"))
    if total is None or free is None or allocated is None or reserved is None:
        return None
    pieces = value.get("pieces") if isinstance(value.get("pieces"), dict) else {}
    assert isinstance(pieces, dict)
    return GpuOom(
        device=integer(value.get("device")) or 0,
        requested=integer(value.get("requested")),
        total=total,
        free=free,
        allocated=allocated,
        reserved=reserved,
        largest_free=integer(pieces.get("largest_free")),
        split_free=integer(pieces.get("split_free")),
        outside=integer(value.get("outside")) or 0,
        outside_first=integer(value.get("outside_first")),
        others=integer(value.get("others")),
        context=integer(value.get("context")),
        allowed=integer(value.get("allowed")),
        retries=integer(value.get("retries")) or 0,
        number=integer(value.get("number")) or 1,
        backend=string(value.get("backend")) or "native",
        expandable=value.get("expandable") is True,
        phase=string(value.get("phase")) or "",
        step=integer(value.get("step")),
        owners=tuple(_owner(owner) for owner in _dicts(value.get("owners"))),
        unseen=integer(value.get("unseen")) or 0,
        neighbours=tuple(
            _on_the_card(neighbour)
            for neighbour in _dicts(value.get("neighbours"))
            if integer(neighbour.get("pid"))
        ),
        generating=_generating(value.get("generating")),
        lines=tuple(
            Line(
                str(line.get("line") or "?"), integer(line.get("bytes")) or 0, integer(line.get("count")) or 0
            )
            for line in _dicts(value.get("lines"))
        ),
        stack=tuple(str(line) for line in _list(value.get("stack"))[:8]),
        torch=string(value.get("torch")) or "",
        ignored=string(value.get("ignored")) or "",
        snapshot=string(value.get("snapshot")),
        pid=integer(value.get("pid")),
        wall=number(value.get("wall")),
        uuid=string(value.get("uuid")),
        spill=integer(value.get("spill")) or 0,
        spilled=integer(value.get("spilled")) or 0,
    )


def _owner(value: dict[str, Any]) -> Owner:
    return Owner(
        string(value.get("kind")) or "unnamed",
        string(value.get("owner")) or "?",
        integer(value.get("bytes")) or 0,
        integer(value.get("count")) or 1,
        string(value.get("example")) or "",
    )


def _on_the_card(value: dict[str, Any]) -> OnTheCard:
    return OnTheCard(
        integer(value.get("pid")) or 0,
        integer(value.get("used")),
        string(value.get("name")) or "",
        value.get("twin") is True,
    )


def _generating(value: object) -> Generating | None:
    if not isinstance(value, dict):
        return None
    names = ("batch", "tokens", "new_tokens", "cache", "fitting_batch", "fitting_new_tokens")
    figures = [integer(value.get(name)) for name in names]
    if any(figure is None for figure in figures):
        return None
    return Generating(*(figure or 0 for figure in figures))


def _with_our_runs(oom: GpuOom, attempt: Attempt) -> GpuOom:
    """Neighbours that are runs of ours have told how much of their memory they use; one that the driver does not list
    (it gives pids of another namespace, or none) is found by its card's id."""
    by_pid = {neighbour.pid: neighbour for neighbour in oom.neighbours}
    mine = Run(attempt.run_folder).info
    for path in _files(attempt.run_folder.parent, f"*/[0-9]*/agent/*-{ALLOCATOR}"):
        theirs = Attempt(path.parents[1])
        if theirs.run_folder == attempt.run_folder:
            continue
        if oom.wall is not None and _changed(path) < oom.wall - _STALE:
            continue
        value, pid = _load(path), _pid(path)
        at, reserved = number(value.get("wall")), integer(value.get("reserved"))
        if pid is None or at is None or not reserved or not _was_alive(theirs, at, oom.wall):
            continue
        known = by_pid.get(pid)
        same_card = oom.uuid is not None and value.get("uuid") == oom.uuid
        if known is None and not same_card:
            continue
        run = Run(theirs.run_folder).info
        argv = [str(word) for word in _list(run.get("argv"))]
        by_pid[pid] = OnTheCard(
            pid,
            known.used if known is not None and known.used is not None else reserved,
            (known.name if known is not None else "") or _short_name(argv),
            (known is not None and known.twin) or (bool(argv) and _same(run, mine)),
            integer(value.get("unused")),
            theirs.run_folder.name,
        )
    largest_first = sorted(by_pid.values(), key=lambda neighbour: -(neighbour.used or 0))
    return replace(oom, neighbours=tuple(largest_first))


def _was_alive(attempt: Attempt, told: float, wall: float | None) -> bool:
    if wall is None:
        return True
    ended = number(attempt.exit().get("wall"))
    return wall - _STALE <= told <= wall + _STALE and (ended is None or ended >= wall)


def _same(run: dict[str, Any], mine: dict[str, Any]) -> bool:
    return run.get("argv") == mine.get("argv") and run.get("cwd") == mine.get("cwd")


def _short_name(argv: list[str]) -> str:
    return " ".join(word.rpartition("/")[2] for word in argv[:2])


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _pid(path: Path) -> int | None:
    first = path.name.split("-")[0]
    return int(first) if first.isdigit() else None


def describe(
    oom: GpuOom | None, on_host: tuple[Owner, ...] = ()
) -> Iterator[tuple[str, str, float | None, str, str]]:
    """(id, source, wall-clock seconds, text, what it says) for the list of evidence."""
    for index, owner in enumerate(on_host[:4], 1):
        says = "who kept tensors alive when the allocation was refused"
        yield f"tensor.owner.{index}", "the job's tensors", None, _owner_text(owner), says
    if oom is None:
        return
    asked = f"asked for {format_size(oom.requested)}, " if oom.requested is not None else ""
    pieces = (
        f", the largest free piece {format_size(oom.largest_free)}" if oom.largest_free is not None else ""
    )
    yield (
        "gpu.oom", "the job's allocator", oom.wall,
        f"GPU {oom.device}: {asked}{format_size(oom.free)} free of {format_size(oom.total)}; tensors held "
        f"{format_size(oom.allocated)} of {format_size(oom.reserved)} reserved{pieces}; {oom.retries} retries",
        "what PyTorch's allocator held at that moment",
    )  # fmt: skip
    if oom.spill:
        text = (
            f"{format_size(oom.spilled)} of the {format_size(oom.spill)} that --spill had pinned were in use"
        )
        yield (
            "gpu.spill",
            "the job's allocator",
            oom.wall,
            text,
            "what did not fit the card was in host memory already",
        )
    for index, owner in enumerate(oom.owners[:6], 1):
        says = "who kept tensors alive on the card"
        yield f"gpu.owner.{index}", "the job's tensors", oom.wall, _owner_text(owner), says
    for index, neighbour in enumerate(oom.neighbours[:4], 1):
        yield (
            f"gpu.neighbour.{index}",
            "NVML",
            oom.wall,
            neighbour_text(neighbour),
            "another process on the same card",
        )


def _owner_text(owner: Owner) -> str:
    example = f", such as {owner.example}" if owner.example else ""
    many = "1 tensor" if owner.count == 1 else f"{owner.count} tensors"
    return f"{owner.owner}: {format_size(owner.bytes)} in {many}{example}"


def neighbour_text(neighbour: OnTheCard) -> str:
    who = f"pid {neighbour.pid}" + (f" ({neighbour.name})" if neighbour.name else "")
    text = (
        f"{who} held {format_size(neighbour.used)}"
        if neighbour.used is not None
        else f"{who} was on the card too"
    )
    if neighbour.unused is not None:
        text += f", {format_size(neighbour.unused)} of it reserved and unused"
    return text + (", the same command as this job" if neighbour.twin else "")


def _files(folder: Path, pattern: str) -> list[Path]:
    try:
        return sorted(folder.glob(pattern))
    except OSError:
        return []


def _load(path: Path) -> dict[str, Any]:
    try:
        with open(path, "rb") as file:
            value = json.loads(file.read(_LARGEST))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _dicts(value: object) -> list[dict[str, Any]]:
    return [item for item in _list(value) if isinstance(item, dict)]

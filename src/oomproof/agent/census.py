"""The census: what is alive in this process, who owns it and how large it is. Names, types, lengths and sizes, never values.

Taken between two steps or, where there are none, between two bytecodes of the main thread; see docs/inspect.md."""

from __future__ import annotations

import gc
import os
import sys
import time

from ..leaf.attempt_names import CENSUS_REQUEST
from ..leaf.proc_files import boottime
from ..leaf.small_files import replace_file
from .agent_core import _anonymous, _is_library
from .census_kinds import (
    CONTAINERS,
    DICT,
    LEAF,
    TABLES,
    Clock,
    Kinds,
    OutOfTime,
    Sizer,
    own_size,
    sample,
)
from .census_rows import copies
from .census_tables import Tables
from .census_walk import SMALL, Thing, Walk
from .frame_variables import is_ours

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .agent_core import Agent

_SECONDS, _WAITING = 0.3, 1.0  # of CPU; of waiting, where the heap is in swap
_COPIES = 0.1  # of CPU for comparing rows, on top
_TOLD = 40  # things
_ENTRIES = 8  # of a holder that are told one by one
_LEAST = 64 << 10  # bytes: below, a thing is not told by itself
_KEPT = 8  # files of the newest; the first one stays too


class _Taken:
    """Of this process."""

    pid, number = 0, 0


def answer(agent: Agent) -> None:
    """The question that was written down for this process, if there is one."""
    path = os.path.join(agent.folder, f"{os.getpid()}-{CENSUS_REQUEST}")
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            request, why = file.read(4096).split("\n")[:2]
        os.unlink(path)
    except Exception as error:  # nobody asks any more
        if not is_ours(error):
            raise
        return
    take(agent, request, why)


def take(agent: Agent, request: str, why: str) -> None:
    """``request``: what the asker recognises its answer by. Never raises what is ours."""
    collecting = gc.isenabled()
    try:
        gc.disable()  # a collection would run finalizers of the job's in here
        told = look()
        told.update(
            schema=1, pid=os.getpid(), request=request, why=why, phase=agent.phase_now, step=agent.step,
            rank=agent.rank, wall=time.time(),
        )  # fmt: skip
        _write(agent, told)
    except Exception as error:
        if not is_ours(error):
            raise
        agent.failed("census", error)
    finally:
        if collecting:
            gc.enable()


def look(seconds: float = _SECONDS, waiting: float = _WAITING) -> dict[str, Any]:
    kinds, clock = Kinds(), Clock(seconds, waiting)
    walk = Walk(kinds, clock, _is_library)
    things, complete = walk.things, True
    told: dict[str, Any] = {"t": boottime(), "anon": _anonymous()}
    try:
        try:
            walk.go()
            _measure(things, kinds, clock, walk.ids)
        except OutOfTime:
            complete = False
        _forget_views(things)
        things.sort(key=lambda thing: -thing.size)
        same: list[dict[str, Any]] = []
        try:
            same = copies(things[: 4 * _TOLD], kinds, Clock(_COPIES, waiting))
        except OutOfTime:
            complete = False
        _gather_entries(things, {place for group in same for holder in group["holders"] for place in holder})
        told["things"], told["copies"] = _rows(things, same)
        told["seen"] = sum(thing.ram for thing in things)
        told["mapped"] = sum(thing.mapped for thing in things)
        told["gpu"] = sum(thing.gpu for thing in things)
        told["complete"] = complete and walk.all_named and all(thing.seen for thing in things)
        told["seconds"] = round(time.thread_time() - clock.worked, 4)
        return told
    finally:
        for thing in things:
            thing.value = thing.parent = None  # nothing of the job's may outlive this
        things.clear()


def _measure(things: list[Thing], kinds: Kinds, clock: Clock, named: set[int]) -> None:
    """What is counted fast first, then the longest: what the time does not reach is small."""
    tables = Tables(kinds, lambda values: _objects_size(values, kinds))
    sizer = Sizer(kinds, clock, tables.inside, named)
    order = sorted(things, key=_order)
    for thing in order:
        clock.tick()
        kind = thing.kind
        if kind.role in TABLES:
            extent = tables.extent(thing.value, kind)
            thing.ram, thing.mapped, thing.gpu = extent.ram, extent.mapped, extent.gpu
            thing.what, thing.rows, thing.length = extent.what, extent.rows, extent.rows
            thing.address = extent.address
            tables.counted.add(extent.address)  # a model that holds the same memory does not count it again
        elif kind.role == LEAF:
            thing.ram = own_size(thing.value, kind)
        else:
            if kind.role in CONTAINERS:
                thing.what = _container_text(thing, kinds)
                thing.ram = sizer.container(thing.value, kind)
            else:
                thing.ram = sizer.whole(thing.value)
            thing.mapped, thing.gpu = int(sizer.mapped), int(sizer.gpu)
        thing.seen = True


def _order(thing: Thing) -> tuple[int, int]:
    if thing.kind.role in TABLES:
        return (0, 0)
    # an object before the small lists of its parts
    return (1, -thing.length) if thing.length > SMALL else (2, 0)


def _objects_size(values: list[Any], kinds: Kinds) -> int:
    """Of Python objects in an array: texts and numbers, as far as nobody else holds them."""
    total = 0.0
    for value in values:
        kind = kinds.of(value)
        if kind.role == LEAF:
            total += own_size(value, kind) / max(1, sys.getrefcount(value) - 3)
    return int(total)


def _container_text(thing: Thing, kinds: Kinds) -> str:
    """``list of 300,000 dict``."""
    elements, _ = sample(thing.value, thing.kind, 8)
    if thing.kind.role == DICT:
        elements = elements[len(elements) // 2 :]
    names = sorted({kinds.of(element).name for element in elements})
    of = f" {names[0]}" if len(names) == 1 else ""
    return f"{thing.kind.name} of {thing.length:,}{of}"


def _forget_views(things: list[Thing]) -> None:
    """Of several that show one memory, the first name counts; those that look at a part of it are told without bytes."""
    claimed: set[int] = set()
    for thing in things:
        if thing.address and thing.kind.role in TABLES:
            if thing.address in claimed:
                thing.ram = thing.mapped = thing.gpu = 0
            claimed.add(thing.address)


def _gather_entries(things: list[Thing], apart: set[int]) -> None:
    """The entries of a list, and of a holder of many (a state dict), are told as one. ``apart``: those that are named as copies."""
    named = {id(things[place]) for place in apart}
    of_parts: dict[int, tuple[Thing, str, int]] = {}  # what of a whole is of a model or an optimizer
    for thing in things:
        whole = _whole_of(thing, named)
        if whole is not thing:
            if thing.part:
                held = of_parts.get(id(whole), (whole, "", 0))[2] + thing.ram + thing.gpu
                of_parts[id(whole)] = whole, thing.part, held
            whole.ram += thing.ram
            whole.mapped += thing.mapped
            whole.gpu += thing.gpu
            thing.ram = thing.mapped = thing.gpu = 0
    for whole, part, held in of_parts.values():
        if 2 * held > whole.ram + whole.gpu:
            whole.part = whole.part or part


def _whole_of(thing: Thing, named: set[int]) -> Thing:
    """What it is told with. ``outs[3]['logits']`` and ``outs[3].logits`` are names of a list that grows, too; of few elements
    the inner names tell more."""
    whole = at = thing
    most_apart = 0  # elements whose inner names are told one by one
    while id(at) not in named:
        if at.parent is None:
            most_apart = _ENTRIES
        above = at.parent or at.holder
        if above is None:
            break
        at = above
        if not _is_told_whole(at):
            most_apart = max(most_apart, 1)
        elif at.entries > most_apart:
            whole = at
    return whole


def _is_told_whole(holder: Thing) -> bool:
    return holder.numbered or holder.entries > _ENTRIES


def _rows(
    things: list[Thing], same: list[dict[str, Any]]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    wanted = {place for group in same for holder in group["holders"] for place in holder}
    places: dict[int, int] = {}
    rows: list[dict[str, Any]] = []
    largest = sorted(range(len(things)), key=lambda place: -things[place].size)
    for number, place in enumerate(largest):
        thing = things[place]
        large = number < _TOLD and thing.size >= _LEAST
        if large or place in wanted:
            places[place] = len(rows)
            owner = thing.owner
            rows.append(
                {
                    "name": thing.name, "scope": owner.scope, "function": owner.function, "file": owner.file,
                    "line": owner.line, "what": thing.what[:120], "length": thing.length, "ram": thing.ram,
                    "mapped": thing.mapped, "gpu": thing.gpu, "part": thing.part,
                }
            )  # fmt: skip
    groups = [
        {
            "rows": group["rows"],
            "holders": [[places[place] for place in holder] for holder in group["holders"]],
        }
        for group in same
    ]
    return rows, groups


def _write(agent: Agent, told: dict[str, Any]) -> None:
    import json

    if _Taken.pid != os.getpid():
        _Taken.pid, _Taken.number = os.getpid(), 0
    _Taken.number += 1
    name = f"{os.getpid()}-census-{_Taken.number}.json"
    data = json.dumps(told, separators=(",", ":")).encode("utf-8", "replace")
    replace_file(os.path.join(agent.folder, name), data, synced=False)
    old = _Taken.number - _KEPT
    if old > 1:
        try:
            os.unlink(os.path.join(agent.folder, f"{os.getpid()}-census-{old}.json"))
        except OSError:
            pass
    agent.report("census", file=name, request=told["request"], why=told["why"])

"""What to do about what the job's variables held: the same data in several forms, one that grew, one that is most of it. Pure."""

from __future__ import annotations

import re

from oomproof.diagnosis.verdict import Change, Remedy
from oomproof.evidence.case_file import CaseFile, Growth
from oomproof.evidence.variable_line import where, where_all
from oomproof.recording.census_record import Copies, Grown, Thing, grown, thing_text
from oomproof.records import dataclass
from oomproof.units import format_size

_NAMED = 3
_MOSTLY = 0.3  # of the job's growth
_AT_MOST_OF_IT = 2.0  # times what the job grew by: more was loaded in between
_MANY, _OBJECTS = 1000, re.compile(r"(list|dict|set|tuple|deque) of ")
_AT_MOST = 1.3  # of what they take: pages hold a few others too
_MOST = 0.5  # of what the job held
_WORTH = 0.2  # of what the process held when it was looked into: copies that take less are not what to change first
# of that share, of what the job held at its end: it may have been looked into at the warning last
_AT_END = 0.5


def worth_changing(case: CaseFile) -> Remedy | None:
    """The remedy for the copies that the job's variables held; None where they were no good part of it."""
    group = case.agent.censuses[-1].largest_copies if case.agent.censuses else None
    if group is None:
        return None
    remedy = advice(group, case.exit.started_wall or 0.0)
    return remedy if (remedy.saves_bytes or 0) >= _least(case, _WORTH) else None


def kept_predictions(case: CaseFile) -> Remedy | None:
    """The Hugging Face Trainer keeps all that an evaluation predicts, and joins each batch to it by a copy: for a while twice."""
    kept = (
        [thing for thing in case.agent.censuses[-1].things if thing.function == "evaluation_loop"]
        if case.agent.censuses
        else []
    )
    ram = sum(thing.ram for thing in kept)
    if not kept or ram < _least(case, _WORTH / 2):
        return None
    return Remedy(
        f"the Trainer keeps the predictions of a whole evaluation: {thing_text(kept[0])}; keep what your metrics need, "
        "preprocess_logits_for_metrics=lambda logits, labels: logits.argmax(-1), or prediction_loss_only=True; "
        "eval_do_concat_batches=False saves the copy that is made with each batch",
        "measured",
        ram,
        change=Change("code", "preprocess_logits_for_metrics"),
    )


def kept_in(case: CaseFile, growth: Growth) -> str:
    """The variable that grew from one census to the next by a good part of what the job did; empty where none is known. What
    was loaded before the growth began is none, though a census was taken in the middle of that."""
    since = case.agent.censuses[-1].t - growth.seconds
    lately = [census for census in case.agent.censuses if census.t >= since]
    if len(lately) > 1:
        least = _MOSTLY * growth.bytes_per_second * (lately[-1].t - lately[0].t)
        still = {rise.thing.key for rise in grown(lately) if rise.thing.ram - rise.before >= least}
    elif growth.steps is None:
        least = _MOSTLY * (growth.to_bytes - growth.from_bytes)
        still = {
            rise.thing.key for rise in grown(case.agent.censuses) if rise.thing.ram - rise.before >= least
        }
    else:
        still = _by_the_step(case, growth.bytes_per_step or 0.0)
    rises = (
        rise for rise in grown(case.agent.censuses) if rise.thing.key in still and not _is_part(rise.thing)
    )
    return next((_rise_text(case, rise) for rise in rises), "")


def _by_the_step(case: CaseFile, per_step: float) -> set[tuple[str, ...]]:
    """What grew from the first census of the training to the last, in each step about as much as the job did at its end."""
    trained = [census for census in case.agent.censuses if census.step]
    made = (trained[-1].step or 0) - (trained[0].step or 0) if trained else 0
    expected = per_step * made
    return {
        rise.thing.key
        for rise in grown(trained)
        if 0 < _MOSTLY * expected <= rise.thing.ram - rise.before <= _AT_MOST_OF_IT * expected
    }


@dataclass(frozen=True, slots=True)
class Largest:
    """The variable that held most of what the job did."""

    text: str  # its name, what it is, where, and by how much it grew where that is known
    held: str  # where only one look was had: what it held then; whether it grew is not known
    part: str  # of a model or an optimizer
    copied: bool  # Python objects, which loader workers copy by reading them, and others held a good part of that too


def largest_variable(case: CaseFile) -> Largest | None:
    """By what grew from look to look as memory filled; where only one was had, by what held most then."""
    if len(case.agent.censuses) == 1:
        return _held_mostly(case)
    for rise in grown(case.agent.censuses)[:1]:
        if rise.thing.ram >= _MOST * case.held:
            part = rise.thing.part if _is_part(rise.thing) else ""
            return Largest(_rise_text(case, rise), "", part, _is_copied(case, rise.thing))
    return None


def _held_mostly(case: CaseFile) -> Largest | None:
    """The variable that held half or more of the process at its only census. What was held later is no measure: the census
    may be some seconds older than the end."""
    last = case.agent.censuses[-1]
    largest = max(last.things, key=lambda thing: thing.ram, default=None)
    then = min(last.anon or case.held, case.held) if case.held else last.anon or 0
    if largest is None or not largest.ram or largest.ram < _MOST * then:
        return None
    place = where(largest, case.exit.started_wall or 0.0)
    held = f"held {format_size(largest.ram)} of {format_size(then)} when it was looked into"
    return Largest(
        f"{largest.name}, a {largest.what} ({place})", held, largest.part, _is_copied(case, largest)
    )


def _is_part(thing: Thing) -> bool:
    """Of a model or an optimizer, of which nobody can keep less; of a list that grows by copies of a model one can."""
    return bool(thing.part) and not thing.what.startswith("list of ")


def _is_copied(case: CaseFile, thing: Thing) -> bool:
    """What the job held beside that process, or after that look, is about what its workers' copies of it would take."""
    workers = sum(seen.name.startswith("pt_data_worker") for seen in case.samples.processes.values())
    beside = case.held - (case.agent.censuses[-1].anon or case.held)
    return _are_objects(thing) and _MOSTLY * thing.ram <= beside <= _AT_MOST * workers * thing.ram


def _are_objects(thing: Thing) -> bool:
    plain = _OBJECTS.match(thing.what) and not thing.what.endswith(("Tensor", "ndarray"))
    return bool(plain) and thing.length >= _MANY


def copied_by_workers(case: CaseFile, each: int) -> str:
    """The Python objects of the main process that its workers copy by reading them, where a worker grew by no more than those
    take; empty where none are so many. What tensors and arrays hold is shared."""
    rows = [
        thing
        for thing in case.agent.censuses[-1].things
        if _are_objects(thing) and each <= _AT_MOST * thing.ram
    ]
    largest = max(rows, key=lambda thing: thing.ram, default=None)
    if largest is None:
        return ""
    place = where(largest, case.exit.started_wall or 0.0)
    return f"{largest.name}, a {largest.what} ({format_size(largest.ram)}, {place}),"


def _rise_text(case: CaseFile, rise: Grown) -> str:
    """``rows, a list of 870 str (prep.py:9 in main()), which grew by 420 MiB``."""
    place, more = where(rise.thing, case.exit.started_wall or 0.0), format_size(rise.thing.ram - rise.before)
    if rise.thing.what == "_lru_cache_wrapper":
        return f"{rise.thing.name}, a functools cache ({place}), which grew by {more} (give it a smaller maxsize)"
    return f"{rise.thing.name}, a {rise.thing.what} ({place}), which grew by {more}"


def _least(case: CaseFile, share: float) -> float:
    """Bytes: of what the process held at its last census. By its end it may hold twice as much, of the same data."""
    then, held = case.agent.censuses[-1].anon, case.held
    return share * held if then is None else max(share * min(then, held), _AT_END * share * held)


def advice(group: Copies, started: float) -> Remedy:
    """The smallest form stays: it is the one that the others were converted into, more often than not."""
    ordered = sorted(group.holders, key=lambda holder: sum(thing.ram for thing in holder))
    kept, dropped = ordered[0][0], [thing for holder in ordered[:0:-1] for thing in holder]
    names = ", ".join(thing.name for thing in dropped[:_NAMED])
    places = where_all(dropped[:_NAMED], started)
    return Remedy(
        f"one copy of the data: `del {names}` ({places}) once {kept.name} is made; or read it in pieces, with "
        "oomproof.data.tokenize() or Dataset.from_generator",
        "measured",
        sum(thing.ram for thing in dropped) or None,
        change=Change("code", "data", dropped[0].file, names, kept.name),
    )

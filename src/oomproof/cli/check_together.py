"""`oomproof check --together`: reads the set, finds out what each of its jobs needs and which of them run already."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from typing import TYPE_CHECKING

from oomproof.errors import NOT_NOW, USAGE, OomproofError
from oomproof.leaf.command_lines import is_keeper, program_target
from oomproof.ledger.admission import Card, Claim, card_available
from oomproof.ledger.cards_together import CardPart, CardSpace
from oomproof.ledger.machine_facts import Facts, budget_of
from oomproof.ledger.needs import Need, from_history
from oomproof.ledger.risks import add_swap
from oomproof.ledger.together import Part, Together, together
from oomproof.machine.gpu import Gpus
from oomproof.machine.jobs import Job
from oomproof.printable import terminal_columns
from oomproof.recording import run_folders
from oomproof.records import dataclass, replace
from oomproof.reports import together_screen
from oomproof.runner.admission_request import WORTH_A_CARD
from oomproof.settings import ledger_setting
from oomproof.units import format_size, parse_gpu_need, parse_size

if TYPE_CHECKING:
    from oomproof.ledger.ledger_snapshot import LedgerRun, LedgerSnapshot

REST = ("desktop", "system", "others", "rest")  # names for everything that is no job of the set
_EXAMPLE = "--together train=19G,glm=20G,desktop=3G, or with 14 GiB on GPU 0: train=19G/14G:0"
_NOTEWORTHY = 1 << 30


@dataclass(frozen=True, slots=True)
class Named:
    """A job as it is typed: ``train=19G/14G:0``. ``size`` None: what it held before."""

    name: str
    size: int | None
    card: CardPart | None = None


def parse(text: str) -> list[Named]:
    words = [word.strip() for word in text.split(",") if word.strip()]
    parsed: list[Named] = []
    for word in words:
        name, equals, sizes = (part.strip() for part in word.partition("="))
        size, slash, on_card = (part.strip() for part in sizes.partition("/"))
        if not re.fullmatch(r"[\w.@+:-]+", name) or (equals and not size) or (slash and not on_card):
            raise OomproofError(
                f"--together: {word!r} is not NAME=SIZE or NAME=RAM/GPU", f"write {_EXAMPLE}", USAGE
            )
        if name in [known.name for known in parsed]:
            raise OomproofError(
                f"--together: {name} is named twice",
                f"call them {name}1 and {name}2, each with its size",
                USAGE,
            )
        if name in REST and not equals:
            raise OomproofError(
                f"--together: how much for {name}?",
                f"give a size, {name}=3G, or leave it out: it is measured",
                USAGE,
            )
        if name in REST and slash:
            raise OomproofError(
                f"--together: what {name} takes of the card is measured",
                f"leave it out: {name}={size}",
                USAGE,
            )
        try:
            card = CardPart(*parse_gpu_need(on_card)) if slash else None
            parsed.append(Named(name, parse_size(size) if equals else None, card))
        except OomproofError as error:
            raise OomproofError(f"--together: {name}: {error.message}", error.hint, error.status) from error
    if not [named for named in parsed if named.name not in REST]:
        raise OomproofError("--together: no job is named", f"write {_EXAMPLE}", USAGE)
    if len([named for named in parsed if named.name in REST]) > 1:
        raise OomproofError("--together: everything else is named twice", f"write {_EXAMPLE}", USAGE)
    return parsed


def answer(text: str, facts: Facts, snapshot: LedgerSnapshot | None) -> tuple[Together, str]:
    """The answer, and a note on what may have been meant otherwise."""
    parsed = parse(text)
    running = {run.entry.name: run for run in snapshot.running} if snapshot else {}
    running |= {run.entry.run: run for run in snapshot.running} if snapshot else {}
    rest = sum(named.size or 0 for named in parsed if named.name in REST)
    parts, taken = [], set[int]()
    ours: list[LedgerRun] = []
    for named in parsed:
        if named.name in REST:
            continue
        name, run, job = named.name, running.get(named.name), _job_of(named.name, facts)
        if named.size is not None:
            need, card = Need(named.size, named.size, "as you say"), named.card
        else:
            need, card = _need_before(name, run is None and job is not None)
        if run is not None:
            from oomproof.ledger.ledger_snapshot import pids_of

            ours.append(run)
            card = card or CardPart(run.claim.gpu_need, run.claim.gpu)
            held = _held_on_card(facts.gpus, pids_of(run.entry))
            parts.append(Part(name, need.high, need.basis, run.claim.held, True, _on_card(card, held, facts)))
        elif job is not None:
            taken.add(job.pid)
            basis, held = f"{need.basis} (pid {job.pid})", _held_on_card(facts.gpus, set(job.pids))
            parts.append(Part(name, need.high, basis, job.use + job.swap, True, _on_card(card, held, facts)))
        else:
            parts.append(
                Part(name, need.high, need.basis, card=card or CardPart(), command=_command_of(name))
            )
    others = [run.claim for run in snapshot.running if run not in ours] if snapshot else []
    yet = sum(claim.yet for claim in others) + (snapshot.unmanaged if snapshot else 0)
    parts = [_in_ram(part) for part in parts] if any(card.unified for card in facts.gpus.gpus) else parts
    cards = _cards(facts.gpus, parts, others)
    result = together(budget_of(facts), parts, rest, yet, cards)
    return result, _note(facts, result, taken)


def _held_on_card(gpus: Gpus, pids: set[int]) -> CardPart:
    """The card on which these processes hold most."""
    held = {
        card.index: sum(process.used or 0 for process in card.processes if process.pid in pids)
        for card in gpus.gpus
    }
    index = max(held, key=lambda index: held[index], default=None)
    return CardPart(0, index, held[index]) if index is not None and held[index] else CardPart()


def _on_card(wanted: CardPart | None, held: CardPart, facts: Facts) -> CardPart:
    """Of one that runs. Where the driver does not tell processes apart, it holds what it is said to need."""
    wanted = wanted or CardPart()
    if not held.held:
        hides = [card for card in facts.gpus.gpus if card.note and not card.processes]
        return replace(wanted, held=wanted.need) if hides else wanted
    return CardPart(wanted.need, held.index, held.held)


def _in_ram(part: Part) -> Part:
    """The GPU's memory is the machine's RAM."""
    if not part.card.wanted:
        return part
    basis = f"{part.basis}, with {format_size(part.card.need)} for the GPU, which has no memory of its own"
    return replace(part, need=part.need + part.card.need, basis=basis, card=CardPart())


def _cards(gpus: Gpus, parts: list[Part], others: list[Claim]) -> list[CardSpace]:
    """The cards as the set finds them: without what its own jobs hold, less what other runs have reserved."""
    asked = [part.card for part in parts if part.card.wanted]
    cards = [card for card in gpus.gpus if not card.unified and card.total is not None]
    if not asked:
        return []
    if not cards and gpus.problem:
        raise OomproofError(
            f"--together: {gpus.problem}: cannot tell what fits on the card",
            "leave the card out: train=19G; or look at the driver: nvidia-smi",
            NOT_NOW,
        )
    indexes = [card.index for card in cards]
    for part in asked:
        if cards and part.index is not None and part.index not in indexes:
            known = ", ".join(map(str, indexes))
            raise OomproofError(
                f"--together: there is no GPU {part.index} here", f"choose one of: {known}", USAGE
            )
    spaces = []
    for card in cards:
        held = sum(part.held for part in asked if part.index in (None, card.index))
        reserved = (card.free or 0) - card_available(Card(card.index, card.free or 0), others)
        spaces.append(CardSpace(card.index, card.total or 0, max(0, (card.used or 0) - held) + reserved))
    return spaces


def _job_of(name: str, facts: Facts) -> Job | None:
    """The job that is meant, if it runs: by its pid, or by its script or program, where only one is called so."""
    if name.isdigit():
        return next((job for job in facts.jobs if int(name) in job.pids), None)
    called = [job for job in facts.jobs if name.lower() in _names(job)]
    return called[0] if len(called) == 1 else None


def _names(job: Job) -> set[str]:
    """``train`` and ``train.py`` of ``python train.py --epochs 3``; a program by its own name."""
    target = program_target(job.command[1:])
    words = [job.command[0]] if job.command else []
    if target is not None:
        words = [target[0].removeprefix("-m ")]
    bases = {os.path.basename(word).lower() for word in words}
    return bases | {base.rpartition(".")[0] for base in bases if "." in base}


def _need_before(name: str, is_job: bool) -> tuple[Need, CardPart]:
    """What the command of that run held before, in RAM and on a card; of one that only runs, nothing is known but what it
    holds."""
    try:
        run = run_folders.find(name)
    except OomproofError as error:
        if is_job:
            return Need(0, 0, "what it holds"), CardPart()
        raise OomproofError(
            f"--together: {error.message}",
            f"give its size: {name}=20G; names of past runs: oomproof runs",
            USAGE,
        ) from error
    from oomproof.ledger.ledger_folder import is_there
    from oomproof.ledger.ledger_store import Busy, open_ledger
    from oomproof.ledger.peak_history import peaks_of
    from oomproof.recording.run_peak import figures_of

    key, wanted = (run.info.get("claim") or {}).get("key"), ledger_setting()
    if key and is_there(wanted):
        ledger = open_ledger(wanted)
        try:
            peaks = peaks_of(ledger, str(key))
            if (need := from_history(peaks)) is not None:
                return need, _card_before(max((peak.gpu or 0 for peak in peaks), default=0))
        except Busy:
            pass
        finally:
            ledger.close()
    figures = figures_of(run.attempt).peaks
    if (peak := figures.use) is not None:
        return Need(peak, peak, f"what run {run.id} held"), _card_before(figures.gpu or 0)
    raise OomproofError(
        f"--together: nothing is known of what {name} held", f"give its size: {name}=20G", USAGE
    )


def _command_of(name: str) -> str:
    """What the past run of that name was given to run."""
    try:
        argv = run_folders.find(name).info.get("argv")
    except OomproofError:
        return ""  # a name for something that never ran
    words = shlex.join(map(str, argv)) if isinstance(argv, list) else ""
    return words if words.isprintable() else ""


def _card_before(held: int) -> CardPart:
    return CardPart(held if held >= WORTH_A_CARD else 0)


def _note(facts: Facts, result: Together, taken: set[int]) -> str:
    """A large job that runs and is not named: is it one of the set?"""
    if result.status == "fits" or all(part.running for part in result.parts):
        return ""
    worth = max(_NOTEWORTHY, min(part.need for part in result.parts if not part.running) // 2)
    largest = next((job for job in facts.jobs if job.pid not in taken and job.use + job.swap >= worth), None)
    if largest is None or not largest.command:
        return ""
    if is_keeper(largest.command):
        return ""  # a run of ours, which the reservations know
    held, size = format_size(largest.use + largest.swap), -(-(largest.use + largest.swap) >> 30)
    name = min(_names(largest), key=len, default="it")
    return (
        f"pid {largest.pid} ({name}) holds {held} and counts as everything else; if it is one of these, "
        f"name it by its pid: {largest.pid}={size}G"
    )


def run(text: str, facts: Facts, snapshot: LedgerSnapshot | None, as_json: bool) -> int:
    result, note = answer(text, facts, snapshot)
    if as_json:
        print(json.dumps(together_screen.to_json(result), indent=2))
        return result.exit_status
    width = terminal_columns() if sys.stdout.isatty() else 110
    swap = next((remedy.size for remedy in result.remedies if remedy.way == "swap"), 0)
    command = add_swap(facts, size=swap)[1] if swap and facts.overcommit else ""
    print("\n".join(together_screen.screen(result, width, command, note)))
    return result.exit_status

"""What was measured on one card with one torch: its constants and the workspaces of operations, kept as a file that other machines can read."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from oomproof.errors import USAGE, OomproofError, did_you_mean
from oomproof.leaf.small_files import replace_file, sha256_hex
from oomproof.recording import state_files
from oomproof.recording.json_shapes import parse
from oomproof.records import dataclass, field
from oomproof.sizing.card_constants import MEASURED_CONTEXT, Card, Constant
from oomproof.units import MIB

SCHEMA = 1
_MOST_BYTES = 64 << 20
_MOST_SIGNATURES = 50_000
_IDENTITY = ("name", "capability", "driver", "torch", "cuda", "cudnn")


@dataclass
class CalibratedCard:
    """``facts``: name, capability, driver, torch, cuda, cudnn, total bytes. ``constants``: bytes by name. ``signatures``: an
    operation's signature as text → what it took; ``skipped``: … → why it could not be measured."""

    facts: dict[str, Any]
    constants: dict[str, int] = field(default_factory=dict)
    signatures: dict[str, dict[str, Any]] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return str(self.facts.get("name") or "unknown card")

    @property
    def total(self) -> int | None:
        total = self.facts.get("total")
        return total if isinstance(total, int) else None

    @property
    def key(self) -> str:
        """A file's name: of what makes another measurement of it."""
        told = "\0".join(str(self.facts.get(name)) for name in _IDENTITY)
        words = re.sub(r"[^a-z0-9.]+", "-", f"{self.name} torch {self.facts.get('torch')}".lower()).strip("-")
        return f"{words}-{sha256_hex(told.encode())[:8]}"

    def as_json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "card": dict(self.facts),
            "constants": dict(self.constants),
            "signatures": dict(self.signatures),
            "skipped": dict(self.skipped),
        }

    def merged(self, newer: CalibratedCard) -> CalibratedCard:
        signatures = {**self.signatures, **newer.signatures}
        while len(signatures) > _MOST_SIGNATURES:
            del signatures[next(iter(signatures))]
        skipped = {
            key: why for key, why in {**self.skipped, **newer.skipped}.items() if key not in signatures
        }
        return CalibratedCard(newer.facts, newer.constants or self.constants, signatures, skipped)

    def missing(self, signatures: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """Those that were never tried."""
        known = self.signatures.keys() | self.skipped.keys()
        return [signature for signature in signatures if signature_key(signature) not in known]

    @property
    def context(self) -> Constant | None:
        """From what a matrix takes to what all of it together does; jobs that use other libraries take a little more."""
        least, most = self.constants.get("with_matrices"), self.constants.get("with_convolutions")
        if not least or not most:
            return None
        return Constant(min(least, most) - MEASURED_CONTEXT, most, most + MEASURED_CONTEXT)

    def card(self, usual: Card) -> Card:
        if self.context is None:
            return usual
        bare, least = self.constants.get("context"), self.constants.get("with_matrices")
        return Card(self.context, max(0, least - bare) if bare and least else 0)


def signature_key(signature: Mapping[str, Any]) -> str:
    """The same for the same operation, whoever wrote it down."""
    told = [signature.get(name) for name in ("op", "args", "kwargs", "flags")]
    return json.dumps(told, separators=(",", ":"), sort_keys=True)


def from_json(value: Any) -> CalibratedCard | None:
    """None for what is not ours, or was damaged."""
    if (
        not isinstance(value, dict)
        or value.get("schema") != SCHEMA
        or not isinstance(value.get("card"), dict)
    ):
        return None
    constants, signatures, skipped = (value.get(name) for name in ("constants", "signatures", "skipped"))
    if not isinstance(constants, dict) or not isinstance(signatures, dict):
        return None
    return CalibratedCard(
        value["card"],
        {str(name): size for name, size in constants.items() if _is_size(size)},
        {str(key): measured for key, measured in signatures.items() if _is_measured(measured)},
        {str(key): str(why) for key, why in skipped.items()} if isinstance(skipped, dict) else {},
    )


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 50


def _is_measured(value: Any) -> bool:
    if not isinstance(value, dict) or not _is_size(value.get("extra")):
        return False
    return all(_is_history(value[name]) for name in ("later", "first") if name in value) and "later" in value


def _is_history(steps: Any) -> bool:
    """Nothing is given back before it was taken, nor twice."""
    if not isinstance(steps, list):
        return False
    taken, live = 0, set()
    for step in steps:
        if not isinstance(step, int) or isinstance(step, bool) or abs(step) >= 1 << 50:
            return False
        if step > 0:
            taken += 1
            live.add(taken)
        elif step < 0:
            if -step not in live:
                return False
            live.discard(-step)
    return not live


# files


def folder() -> Path:
    return state_files.state_folder() / "cards"


def read(path: str | os.PathLike[str]) -> CalibratedCard | None:
    try:
        return from_json(parse(state_files.read_small(path, _MOST_BYTES).decode("utf-8", "replace")))
    except (OSError, ValueError):
        return None


def kept() -> dict[str, CalibratedCard]:
    """Name of the file without its ending → card, newest first. Damaged files are not there."""
    paths = sorted(folder().glob("*.json"), key=_time, reverse=True)
    found = {path.stem: read(path) for path in paths}
    return {name: card for name, card in found.items() if card is not None}


def find(name: str | None, driver: str | None, torch: str | None) -> CalibratedCard | None:
    """The newest for this card, driver and torch; what is None is not asked."""
    asked = {"name": name, "driver": driver, "torch": torch}
    for card in kept().values():
        if all(value is None or card.facts.get(key) == value for key, value in asked.items()):
            return card
    return None


def named(word: str) -> CalibratedCard:
    """``--card``: a file, or a card that was calibrated here."""
    if os.path.sep in word or word.endswith(".json") or os.path.isfile(word):
        card = read(word)
        if card is None:
            why = "no such file" if not os.path.exists(word) else "not a calibrated card's file, or damaged"
            raise OomproofError(f"{word}: {why}", "oomproof calibrate --export FILE writes one", USAGE)
        return card
    cards = kept()
    wanted = word.lower()
    for name, card in cards.items():
        if wanted in (name, card.name.lower()):
            return card
    near = [card for card in cards.values() if wanted in card.name.lower()]
    if len({card.name for card in near}) == 1:
        return near[0]
    names = sorted({card.name for card in cards.values()})
    known = f"calibrated here: {', '.join(names)}" if names else "no card was calibrated here"
    raise OomproofError(
        f"no calibrated card {word!r}{did_you_mean(word, names)}", f"{known}; or give its file", USAGE
    )


def store(card: CalibratedCard) -> Path:
    """Joined with what is there. Raises OomproofError when there is nowhere to write."""
    state_files.make_private(state_files.state_folder())
    state_files.make_private(folder())
    path = folder() / f"{card.key}.json"
    before = read(path)
    write(path, before.merged(card) if before is not None else card)
    return path


def write(path: str | os.PathLike[str], card: CalibratedCard) -> None:
    try:
        replace_file(path, json.dumps(card.as_json(), separators=(",", ":")).encode(), synced=True)
    except OSError as error:
        raise OomproofError(
            f"cannot write {path}: {error.strerror}", "name a folder that you may write to"
        ) from error


def _time(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def mib(size: int) -> int:
    return round(size / MIB)

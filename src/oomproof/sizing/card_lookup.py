"""The calibrated card for a script that is sized on this machine; what its file does not have yet is measured, if that may be."""

from __future__ import annotations

from collections.abc import Callable

from oomproof.errors import OomproofError
from oomproof.machine import nvidia
from oomproof.machine.gpu import Query
from oomproof.sizing import calibrated_card, calibration
from oomproof.sizing.calibrated_card import CalibratedCard
from oomproof.sizing.virtual_gpu.child_results import VirtualResult

MEASURING = 20.0  # seconds at most that sizing one script may spend on the card
_DRIVER_SECONDS = 5.0
_SHARE = 0.5  # of the card's free memory: others may want the rest meanwhile


def kept(result: VirtualResult) -> CalibratedCard | None:
    """As it was measured before."""
    if not nvidia.driver_present():
        return None
    driver = nvidia.driver_version()
    for name in _names():
        card = calibrated_card.find(name, driver, result.torch or None)
        if card is not None:
            return card
    return None


def measured(
    python: str | None, tell: Callable[[str], None]
) -> Callable[[VirtualResult], CalibratedCard | None]:
    def card_of(result: VirtualResult) -> CalibratedCard | None:
        known = kept(result)
        if python is None or not nvidia.driver_present():
            return known
        wanted = known.missing(result.signatures) if known is not None else result.signatures
        if known is not None and not wanted:
            return known
        tell(f"measuring {len(wanted)} operations on the card, once…")
        found = calibration.measure(
            python, wanted, seconds=MEASURING, constants=known is None, tell=tell, share=_SHARE
        )
        if found.card is None:
            tell(f"the card was not measured: {calibration.refusal(found, python).message}")
            return known
        try:
            calibrated_card.store(found.card)
        except OomproofError as error:
            tell(f"what was measured is not kept: {error.message}")
        return known.merged(found.card) if known is not None else found.card

    return card_of


def _names() -> list[str]:
    return list(dict.fromkeys(card.name for card in Query().answer(_DRIVER_SECONDS).gpus))

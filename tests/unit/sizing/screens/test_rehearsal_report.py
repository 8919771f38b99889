"""What `oomproof rehearse` proposes to reserve."""

from __future__ import annotations

from oomproof.sizing.verbs import rehearse
from oomproof.units import MIB


def test_the_need_has_room_for_what_another_run_holds_more() -> None:
    class Measured:
        card = None

        def peak(self, name: str) -> int | None:
            return 268 * MIB if name == "host" else None

    assert rehearse.needs(Measured()) == ["--need", "295M"]  # type: ignore[arg-type]

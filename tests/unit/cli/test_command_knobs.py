"""What of a command may change, and how far down its workers may go."""

from __future__ import annotations

from pathlib import Path

import pytest

from oomproof.cli.command_knobs import knobs_of


@pytest.mark.parametrize(
    ("words", "knobs", "source", "least"),
    [
        ("--workers 8", (), "", 0),
        ("--workers 8", (), "DataLoader(persistent_workers=True)", 1),
        ("--workers 8 --prefetch 4", (), "", 1),
        ("--workers {workers} --prefetch {prefetch}", (), "", 1),
        ("--workers 0 --prefetch 4", (), "", 0),
        ("--workers 0", (), "DataLoader(persistent_workers=True)", 0),
        ("--workers {workers} --prefetch {prefetch}", ("workers=8..0",), "", 0),
    ],
)
def test_how_few_workers_a_command_can_do_with(
    tmp_path: Path, words: str, knobs: tuple[str, ...], source: str, least: int
) -> None:
    (tmp_path / "t.py").write_text(source)
    template = knobs_of(["python", "t.py", *words.split()], knobs, str(tmp_path))
    workers = template.knob("workers")
    assert workers is not None and workers.least == least

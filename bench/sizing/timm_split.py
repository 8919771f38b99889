"""Which models of the A100 table are for tuning and which for reporting: by a hash of the name, fixed before any tuning."""

from __future__ import annotations

import csv
import hashlib
import os
from pathlib import Path

TABLE = Path(os.environ.get("OOMPROOF_TIMM_PEAKS", "../shared/data/gpumemnet/timm_a100_40gb.csv"))


def _hash(text: str) -> int:
    return int(hashlib.sha1(text.encode()).hexdigest(), 16)


def half_of(model: str) -> str:
    return "tuning" if _hash(model) % 2 == 0 else "reporting"


def sample(half: str, count: int, first: int = 0) -> list[tuple[str, int, int]]:
    """Model, batch, measured MiB: one batch of each model, models and batches in the order of their hashes. Rows that do not
    rise with the batch come from jobs that had failed, and are left out. ``first``: how many were judged before."""
    rows: dict[str, dict[int, int]] = {}
    with open(TABLE) as file:
        for row in csv.DictReader(file):
            rows.setdefault(row["model"], {})[int(row["batch"])] = int(row["device_peak_mib"])
    chosen = []
    for model in sorted(rows, key=_hash):
        peaks = [rows[model][batch] for batch in sorted(rows[model])]
        if half_of(model) != half or peaks != sorted(set(peaks)):
            continue
        batches = [
            batch for batch in sorted(rows[model]) if rows[model][batch] < 36000
        ]  # above, some had failed
        if not batches:
            continue
        batch = batches[_hash(model + "batch") % len(batches)]
        chosen.append((model, batch, rows[model][batch]))
    return chosen[first : first + count]

"""What a profiler left of an attempt, in its folder ``extra/profile``: the page for people, and the largest lines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from oomproof.recording.attempt import Attempt
from oomproof.recording.state_files import read_json, write_json
from oomproof.records import dataclass

_NAME = "profile.json"


@dataclass(frozen=True, slots=True)
class Profile:
    profiler: str
    page: Path
    lines: tuple[dict[str, Any], ...]  # {"file", "line", "function", "bytes"}, the most first


def folder_of(attempt: Attempt) -> Path:
    return attempt.extra("profile")


def write_profile(attempt: Attempt, profile: Profile) -> None:
    value = {
        "schema": 1,
        "profiler": profile.profiler,
        "page": profile.page.name,
        "lines": list(profile.lines),
    }
    write_json(folder_of(attempt) / _NAME, value)


def profile_of(attempt: Attempt) -> Profile | None:
    """None where no profiler ran, or its page is gone."""
    value = read_json(folder_of(attempt) / _NAME)
    page, lines = value.get("page"), value.get("lines")
    if not isinstance(page, str) or not page or "/" in page:
        return None
    path = folder_of(attempt) / page
    rows = tuple(line for line in lines if isinstance(line, dict)) if isinstance(lines, list) else ()
    return Profile(str(value.get("profiler")), path, rows) if path.is_file() else None

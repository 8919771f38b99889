"""A line of the user's code is quoted only as it was when the run began."""

from __future__ import annotations

import os
from pathlib import Path

from oomproof.recording.traced_lines import user_source


def test_only_a_plain_file_that_was_not_changed_since(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_bytes(b"cache.append(1)  # \xff\n")
    os.utime(script, (1000, 1000))
    assert user_source(str(script), 1000.0) == "cache.append(1)  # �\n"
    assert user_source(str(script), 999.0) is None, "it was changed after the run began"
    assert user_source(str(tmp_path), 3e9) is None and user_source(str(tmp_path / "gone"), 3e9) is None
    os.mkfifo(tmp_path / "pipe")  # whoever opens it waits for ever
    assert user_source(str(tmp_path / "pipe"), 3e9) is None
    assert user_source("no\0path", 3e9) is None

"""pathlib without what it loads for one method; the method works all the same."""

from __future__ import annotations

import subprocess
import sys


def test_as_uri_works_and_loads_what_it_needs_then() -> None:
    script = """
import sys
import oomproof.cli
from pathlib import Path
assert sys.version_info >= (3, 13) or not {"urllib.parse", "ipaddress"} & sys.modules.keys()
print(Path("/a b/ä").as_uri())
import urllib.parse
print(urllib.parse.quote("c d"))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.split() == ["file:///a%20b/%C3%A4", "c%20d"], done.stderr


def test_where_pathlib_was_there_before_nothing_happens() -> None:
    script = (
        "import pathlib, sys; before = sys.modules['urllib.parse'] if sys.version_info < (3, 13) else None\n"
    )
    script += "import oomproof.cli; assert sys.modules.get('urllib.parse') is before; print(pathlib.Path('/x').as_uri())"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.strip() == "file:///x", done.stderr

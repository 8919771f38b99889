"""What a guard at rest does not have in memory: modules that others import for it and it never uses."""

from __future__ import annotations

import subprocess
import sys

import pytest

# each was measured at 0.1 to 0.9 MiB of the 20 that a guard may take
_LEFT_OUT = {"dataclasses", "inspect", "queue", "sqlite3", "datetime", "tomllib"}


@pytest.mark.parametrize(
    ("module", "needed", "unneeded"),
    [
        ("run_command", "oomproof.guard.guard_loop", _LEFT_OUT | {"argparse", "subprocess"}),
        ("guard", "oomproof.guard.machine_guard", _LEFT_OUT | {"_sqlite3"}),
    ],
)
def test_a_guard_leaves_them_out(module: str, needed: str, unneeded: set[str]) -> None:
    script = f"import sys; before = set(sys.modules); import oomproof.cli.{module}; print(*set(sys.modules) - before)"
    done = subprocess.run([sys.executable, "-P", "-c", script], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert needed in loaded
    assert not loaded & unneeded


@pytest.mark.parametrize("words", [["run", "--limit", "1G", "--", "true"], ["guard", "--dry-run"]])
def test_the_parser_is_gone_when_the_guard_begins(words: list[str]) -> None:
    script = f"""
import gc, importlib, sys
sys.argv[1:] = {words!r}
from oomproof.cli import main
module = importlib.import_module("oomproof.cli." + sys.argv[1])
def run(arguments):
    parsers = [thing for thing in gc.get_objects() if type(thing).__name__ in ("ArgumentParser", "CommandParser")]
    print(len(parsers), getattr(arguments, "limit", None))
    return 0
module.run = run
main.main()
"""
    done = subprocess.run([sys.executable, "-P", "-c", script], capture_output=True, text=True)
    limit = "1G" if words[0] == "run" else None
    assert done.stdout.split() == ["0", str(limit)], done.stderr

"""What a guard at rest does not have in memory: modules that only a start or a type checker needs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

# each was measured at 0.1 to 0.5 MiB of the 18 that a run's guard may take
_LEFT_OUT = (
    "typing",
    "dataclasses",
    "inspect",
    "socket",
    "queue",
    "sqlite3",
    "datetime",
    "subprocess",
    "urllib.parse",
)


def _loaded(script: str) -> set[str]:
    done = subprocess.run([sys.executable, "-P", "-c", script], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_what_runs_a_command_leaves_them_out() -> None:
    before = _loaded("import sys; print(*sys.modules)")
    loaded = _loaded("import oomproof.cli.run_command, sys; print(*sys.modules)")
    assert "oomproof.guard.guard_loop" in loaded
    assert not loaded.intersection(_LEFT_OUT) - before


@pytest.mark.parametrize("words", [["run", "--limit", "1G", "--", "true"], ["guard", "--dry-run"]])
def test_the_parser_is_gone_when_the_guard_begins(words: list[str]) -> None:
    script = f"""
import gc, importlib, sys
sys.argv[1:] = {words!r}
from oomproof.cli import main
module = importlib.import_module("oomproof.cli." + sys.argv[1])
def run(arguments):
    parsers = [thing for thing in gc.get_objects() if type(thing).__name__ in ("ArgumentParser", "CommandParser")]
    print(len(parsers), "argparse" in sys.modules, getattr(arguments, "limit", None))
    return 0
module.run = run
main.main()
"""
    done = subprocess.run([sys.executable, "-P", "-c", script], capture_output=True, text=True)
    limit = "1G" if words[0] == "run" else None
    assert done.stdout.split() == ["0", "False", str(limit)], done.stderr


def test_what_read_the_settings_is_gone_when_the_guard_begins(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.oomproof]\nmargin = '4G'\n")
    script = """
import sys
from types import ModuleType
sys.argv[1:] = ["run", "--", "true"]
from oomproof.cli import main
after = sys.modules["oomproof.cli.run_command"] = ModuleType("run_command")
def run_command(argv, chosen, arguments):
    print(argv, chosen.margin, "tomllib" in sys.modules, "datetime" in sys.modules, "typing" in sys.modules, sep=";")
    return 0
after.run_command, after.run_alone = run_command, None
main.main()
"""
    command = [sys.executable, "-P", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout.strip() == f"['true'];{4 << 30};False;False;False", done.stderr

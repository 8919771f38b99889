"""What `oomproof profile` puts memray around, what it reads of what that wrote, and one real run."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from oomproof.cli.profile import wrap
from oomproof.errors import NOT_FOUND, USAGE, OomproofError
from oomproof.leaf.command_lines import without_profiler
from oomproof.own_command import OWN_COMMAND
from oomproof.recording.attempt import Attempt
from oomproof.recording.profile_files import Profile, folder_of, profile_of, write_profile

PYTHON = sys.executable


@pytest.fixture(autouse=True)
def python(tmp_path: Path) -> str:
    """A Python that has memray."""
    path = tmp_path / "python3"
    path.write_text("#!/bin/sh\necho memray\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("options", "target"),
    [
        ([], ["train.py", "--lr", "1"]),
        (["-u", "-X", "dev"], ["train.py"]),
        ([], ["-m", "train", "-x"]),
        ([], ["-c", "pass"]),
    ],
)
def test_memray_stands_behind_the_python(python: str, options: list[str], target: list[str]) -> None:
    """And what is advised next is the command without it."""
    folder = Path("/home/me/.local/state/oomproof/profile-x1")
    argv = [python, *options, *target]
    wrapped = wrap(argv, folder)
    put = ["-m", "memray", "run", "-q", "-o", f"{folder}/memray.bin"]
    assert wrapped == [python, *options, *put, *target]
    assert without_profiler(wrapped) == argv
    assert without_profiler(["python", "-m", "memray", "run", "-q", "-o", "mine.bin", "a.py"])[1] == "-m"


@pytest.mark.parametrize("first", ["#!{}", "#! {} -u", "#!/usr/bin/env {}"])
def test_a_console_script(tmp_path: Path, python: str, first: str) -> None:
    script = tmp_path / "tool"
    script.write_text(f"{first.format(python)}\npass\n")
    script.chmod(0o755)
    wrapped = wrap([str(script), "a"], tmp_path)
    assert (wrapped[0], wrapped[-2:]) == (python, [str(script), "a"])


def test_what_is_no_python_and_what_has_no_memray(tmp_path: Path, python: str) -> None:
    for argv in (["ls"], [python]):
        with pytest.raises(OomproofError) as refused:
            wrap(argv, tmp_path)
        assert refused.value.status == USAGE
    with pytest.raises(OomproofError) as missing:
        wrap(["no-such-program"], tmp_path)
    assert missing.value.status == NOT_FOUND
    Path(python).write_text("#!/bin/sh\nexit 1\n")
    with pytest.raises(OomproofError) as missing:
        wrap([python, "train.py"], tmp_path)
    assert missing.value.hint == f"{python} -m pip install memray"


def test_what_is_kept_of_a_profile(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path / "1")
    assert profile_of(attempt) is None
    folder_of(attempt).mkdir(parents=True)
    page = folder_of(attempt) / "memray.html"
    write_profile(
        attempt, Profile("memray", page, ({"file": "a.py", "line": 1, "function": "f", "bytes": 5},))
    )
    assert profile_of(attempt) is None, "the page is gone"
    page.write_text("<html>")
    kept = profile_of(attempt)
    assert kept is not None and kept.page == page and kept.lines[0]["bytes"] == 5
    (folder_of(attempt) / "profile.json").write_text('{"page": "../../../etc/passwd"}')
    assert profile_of(attempt) is None


@pytest.mark.skipif(importlib.util.find_spec("memray") is None, reason="memray is not installed")
def test_memray_around_a_script_that_fails(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("rows = [bytes(1000) for _ in range(20_000)]\nraise SystemExit(7)\n")
    runtime = tmp_path / "runtime"
    runtime.mkdir(mode=0o700)
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state"), "XDG_RUNTIME_DIR": str(runtime)}
    command = [*OWN_COMMAND, "profile", "--json", "--name", "big", "--", PYTHON, str(script)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 7, done.stderr
    told = json.loads(done.stdout)
    assert told["profiler"] == "memray" and "<html" in Path(told["page"]).read_text()[:200]
    assert (told["lines"][0]["file"], told["lines"][0]["line"]) == (str(script), 1)
    assert 20_000_000 < told["lines"][0]["bytes"] < 30_000_000
    shown = subprocess.run(
        [*OWN_COMMAND, "runs", "show", "big"], env=environment, capture_output=True, text=True
    )
    assert f"{told['page']}(memray)" in "".join(shown.stdout.split())
    left = [name for name in os.listdir(tmp_path / "state/oomproof") if name.startswith("profile-")]
    assert not left, "nothing stays behind"

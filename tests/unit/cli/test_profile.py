"""What `oomproof profile` puts a profiler around, what it reads of what that wrote, and one real run with memray."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from oomproof.cli.profilers import PROFILERS, PythonCommand, largest, massif_lines, python_command
from oomproof.errors import NOT_FOUND, USAGE, OomproofError
from oomproof.leaf.command_lines import without_profiler
from oomproof.own_command import OWN_COMMAND
from oomproof.recording.attempt import Attempt
from oomproof.recording.profile_files import Profile, folder_of, profile_of, write_profile

PYTHON = sys.executable


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["train.py", "--lr", "1"], ((), ("train.py", "--lr", "1"))),
        (["-u", "-X", "dev", "train.py"], (("-u", "-X", "dev"), ("train.py",))),
        (["-m", "train", "-x"], ((), ("-m", "train", "-x"))),
        (["-c", "pass"], ((), ("-c", "pass"))),
    ],
)
def test_a_python_command(words: list[str], expected: tuple[tuple[str, ...], tuple[str, ...]]) -> None:
    assert python_command([PYTHON, *words]) == PythonCommand(PYTHON, *expected)


@pytest.mark.parametrize(
    "first",
    [f"#!{PYTHON}", f"#! {PYTHON} -u", f'#!/bin/sh\n\'\'\'exec\' "{PYTHON}" "$0" "$@"'],
    ids=["a path", "with an option", "as pip writes long paths"],
)
def test_a_console_script(tmp_path: Path, first: str) -> None:
    script = tmp_path / "tool"
    script.write_text(f"{first}\npass\n")
    script.chmod(0o755)
    assert python_command([str(script), "a"]) == PythonCommand(PYTHON, (), (str(script), "a"))


def test_what_is_no_python(tmp_path: Path) -> None:
    assert python_command(["ls"]) is None and python_command([PYTHON]) is None
    with pytest.raises(OomproofError) as refused:
        PROFILERS["memray"].wrapped(["ls"], tmp_path)
    assert refused.value.status == USAGE and "--with valgrind" in refused.value.hint
    with pytest.raises(OomproofError) as missing:
        python_command(["no-such-program"])
    assert missing.value.status == NOT_FOUND


def test_a_profiler_that_is_not_installed(tmp_path: Path) -> None:
    python = tmp_path / "python3"
    python.write_text("#!/bin/sh\necho False\n")
    python.chmod(0o755)
    with pytest.raises(OomproofError) as missing:
        PROFILERS["scalene"].wrapped([str(python), "train.py"], tmp_path)
    assert missing.value.hint == f"{python} -m pip install scalene"


@pytest.mark.parametrize("profiler", ["memray", "scalene", "valgrind"])
@pytest.mark.parametrize("target", [("train.py", "--lr", "1"), ("-m", "train"), ("train.py",)])
def test_what_is_advised_next_is_the_command_without_the_profiler(
    profiler: str, target: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oomproof.cli.profilers.has_module", lambda *_: True)
    monkeypatch.setattr("oomproof.cli.profilers.shutil.which", lambda name: name)
    argv = [PYTHON, "-u", *target]
    wrapped = PROFILERS[profiler].wrapped(argv, Path("/home/me/.local/state/oomproof/profile-x1"))
    assert wrapped != argv and without_profiler(wrapped) == argv
    assert without_profiler(["python", "-m", "memray", "run", "-q", "-o", "mine.bin", "a.py"])[1] == "-m"


MASSIF = """desc: (none)
cmd: ./a
time_unit: i
#-----------
snapshot=0
#-----------
time=0
mem_heap_B=0
heap_tree=empty
#-----------
snapshot=48
#-----------
time=180
mem_heap_B=20050000
heap_tree=detailed
n2: 20050000 (heap allocation functions) malloc/new/new[], --alloc-fns, etc.
 n1: 20000000 0x10917A: row (a.c:3)
  n0: 20000000 0x1091C4: main (a.c:4)
 n0: 50000 0x10917B: std::vector<int>::reserve(unsigned long) (in /usr/lib/libx.so)
#-----------
snapshot=49
#-----------
mem_heap_B=10
heap_tree=peak
n1: 10 (heap allocation functions) malloc/new/new[], --alloc-fns, etc.
 n0: 10 0x10917C: late (a.c:9)
"""


def test_the_largest_of_massif() -> None:
    lines = massif_lines(MASSIF)
    assert lines[0] == {"file": "a.c", "line": 3, "function": "row", "bytes": 20_000_000}
    assert lines[1]["function"].startswith("std::vector<int>::reserve(unsigned long)")
    assert largest(lines) == lines[:1] and massif_lines("nothing") == [] and largest([]) == []


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


@pytest.mark.skipif(shutil.which("valgrind") is None, reason="valgrind is not installed")
def test_valgrind_takes_any_program(tmp_path: Path) -> None:
    wrapped = PROFILERS["valgrind"].wrapped(["ls", "-l"], tmp_path)
    assert wrapped[0] == "valgrind" and wrapped[-2:] == ["ls", "-l"]

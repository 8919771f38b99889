"""Completion in real shells and the man page: made from the parsers, so that they know every verb and flag."""

from __future__ import annotations

import contextlib
import os
import re
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from oomproof.cli.completion import SHELLS
from oomproof.cli.main import VERBS, main
from oomproof.cli.verb_list import verbs
from oomproof.recording import run_folders, state_files


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(list(words)) == 0
    return capsys.readouterr().out


def made(name: str | None) -> run_folders.Run:
    run = run_folders.new_run()
    state_files.write_json(run.info_file, {"schema": 1, "id": run.id, "name": name, "created": time.time()})
    return run


@contextlib.contextmanager
def waiting(run: run_folders.Run) -> Iterator[None]:
    """As its front has it while it waits for memory."""
    lock = state_files.take_lock(run.waiting_lock)
    assert lock is not None
    try:
        yield
    finally:
        os.close(lock)


@pytest.fixture
def environment(folders_of_their_own: Path) -> dict[str, str]:
    return {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOME": str(folders_of_their_own),
        "TERM": "dumb",
        "COLUMNS": "200",
    }


def test_names_of_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, "__runs") == ""
    unnamed, odd = made(None), made("two\nlines")
    for _ in range(2):
        made("big job")
    assert set(printed(capsys, "__runs").splitlines()) == {"big job", unnamed.id, odd.id}


def test_names_of_runs_that_have_not_ended(capsys: pytest.CaptureFixture[str]) -> None:
    made("ended")
    with waiting(made("waits")):
        assert set(printed(capsys, "__runs").splitlines()) == {"ended", "waits"}
        assert printed(capsys, "__runs", "alive").splitlines() == ["waits"]


@pytest.mark.parametrize("shell", SHELLS)
def test_every_verb_and_flag_is_in_the_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    script = printed(capsys, "completion", shell)
    for verb in verbs():
        assert re.search(rf"\b{verb.words[-1]}\b", script)
        for flag in (flag for argument in verb.flags for flag in argument.flags):
            written = (
                flag if shell != "fish" else f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}"
            )
            assert re.search(rf"{re.escape(written)}\b", script), f"{shell}: {verb.words} {flag}"
    if shutil.which(shell):
        assert subprocess.run([shell, "-n"], input=script, text=True, capture_output=True).stderr == ""


BASH = r"""
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(( $# - 1 ))
compopt() { echo "compopt $*"; }
_oomproof; printf '%s\n' "${COMPREPLY[@]}"
"""


@pytest.mark.parametrize(
    ("words", "offered", "not_offered"),
    [
        (["r"], {"run", "runs", "resume"}, {"stop"}),
        (["run", "--gpu"], {"--gpu-need", "--gpu-share"}, {"--limit"}),
        (["run", "--limit", ""], set(), {"--need", "big\\ job"}),
        (["run", "--report", ""], {"compopt -o default"}, {"big\\ job"}),
        (["run", ""], {"--"}, {"big\\ job"}),
        (["run", "--", "pyth"], {"python3"}, {"big\\ job"}),
        (["runs", ""], {"show", "rm"}, {"big\\ job"}),
        (["runs", "show", ""], {"big\\ job", "small"}, {"show"}),
        (["runs", "rm", "small", "b"], {"big\\ job"}, {"small"}),
        (["stop", ""], {"waits"}, {"big\\ job", "small"}),
        (["pause", ""], {"waits"}, {"small"}),
        (["why", ""], {"small", "compopt -o default"}, set()),
        (["completion", ""], set(SHELLS), {"small"}),
        (["help", "ru"], {"run", "runs"}, {"stop"}),
    ],
)
def test_bash_offers(
    words: list[str], offered: set[str], not_offered: set[str], environment: dict[str, str], tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    made("big job"), made("small")
    script = tmp_path / "completion"
    script.write_text(printed(capsys, "completion", "bash"))
    with waiting(made("waits")):
        done = subprocess.run(
            ["bash", "--norc", "-c", BASH, "bash", script, "oomproof", *words],
            env=environment, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
    shown = set(done.stdout.splitlines())
    assert offered <= shown and not (not_offered & shown), done


def typed(command: list[str], environment: dict[str, str], *lines: str, until: str) -> str:
    """What an interactive shell shows after those keys, up to a text that must come."""
    leader, follower = os.openpty()
    shell = subprocess.Popen(command, env=environment, stdin=follower, stdout=follower, stderr=follower)
    os.close(follower)
    shown, deadline = "", time.monotonic() + 60
    try:
        for line in lines:
            os.write(leader, line.encode())
        while until not in shown and time.monotonic() < deadline:
            if select.select([leader], [], [], 1.0)[0]:
                shown += os.read(leader, 1 << 16).decode(errors="replace").replace("\a", "")
    finally:
        shell.kill()
        shell.wait()
        os.close(leader)
    return shown


def test_bash_at_a_terminal(
    environment: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "completion").write_text(printed(capsys, "completion", "bash"))
    with waiting(made("uniquely-named")):
        shown = typed(
            ["bash", "--norc", "--noprofile", "-i"], environment,
            f"source {tmp_path}/completion\n", "oomproof stop uniq\t",
            until="uniquely-named",
        )  # fmt: skip
    assert "oomproof stop uniquely-named" in shown


@pytest.mark.skipif(not shutil.which("zsh"), reason="zsh is not here")
def test_zsh_at_a_terminal(
    environment: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made("uniquely-named-ended")
    (tmp_path / "completion").write_text(printed(capsys, "completion", "zsh"))
    setup = f"autoload -U compinit; compinit -D -u; source {tmp_path}/completion\n"
    for keys, until in (
        ("oomproof stop uniq\t", "uniquely-named"),
        ("oomproof check --gpu\t", "--gpu-need"),
        ("oomproof run --gpu-s\t", "--gpu-share"),
        ("oomproof runs comp\t", "compare"),
    ):
        with waiting(made("uniquely-named")):
            assert until in typed(["zsh", "-f", "-i"], environment, setup, keys, until=until), keys


@pytest.mark.skipif(not shutil.which("fish"), reason="fish is not here")
@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("oomproof r", "resume"),
        ("oomproof run --gpu-s", "--gpu-share"),
        ("oomproof runs s", "show"),
        ("oomproof runs show sm", "small"),
        ("oomproof logs b", "big job"),
        ("oomproof stop ", "waits"),
        ("oomproof run -- pytho", "python3"),
        ("oomproof completion z", "zsh"),
    ],
)
def test_fish_offers(
    line: str, offered: str, environment: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made("big job"), made("small")
    (tmp_path / "completion").write_text(printed(capsys, "completion", "fish"))
    with waiting(made("waits")):
        done = subprocess.run(
            ["fish", "--no-config", "-c", f"source {tmp_path}/completion; complete -C '{line}'"],
            env=environment, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
    assert offered in {word.partition("\t")[0] for word in done.stdout.splitlines()}, done


def test_the_man_page_has_every_verb_and_flag(capsys: pytest.CaptureFixture[str]) -> None:
    page = printed(capsys, "help", "--man").replace("\\-", "-")
    for verb in verbs():
        assert f".SS {verb.usage}" in page
        for flag in (flag for argument in verb.flags for flag in argument.flags):
            assert f"\\fB{flag}\\fR" in page
    assert all(f".B {verb}\n" in page for verb in VERBS)
    assert "SUPPRESS" not in page


@pytest.mark.parametrize("command", [["groff", "-ww", "-man", "-Tutf8"], ["mandoc", "-Tlint", "-Werror"]])
def test_the_man_page_is_sound(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    if not shutil.which(command[0]):
        pytest.skip(f"{command[0]} is not here")
    done = subprocess.run(command, input=printed(capsys, "help", "--man"), capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    if command[0] == "groff":
        shown = re.sub(r".\x08|\x1b\[[\d;]*m", "", done.stdout)
        assert "oomproof run [options] -- CMD ..." in shown and "--gpu-share" in shown

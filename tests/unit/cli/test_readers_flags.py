"""`logs -n`, `runs --failed`, `runs rm`, `stop A B`, and flags that would be ignored."""

from __future__ import annotations

import argparse
import json
import os
import threading
import time
from pathlib import Path

import pytest

from oomproof.cli import runs, stop
from oomproof.cli.main import main, obey
from oomproof.errors import OomproofError
from oomproof.recording import run_folders, state_files


def made(name: str, code: int = 0, output: bytes = b"") -> run_folders.Run:
    run = run_folders.new_run()
    info = {"schema": 1, "id": run.id, "name": name, "argv": ["python", "x.py"], "created": time.time()}
    state_files.write_json(run.info_file, info)
    state_files.write_json(run.attempt.started_file, {"boottime": 1.0, "wall": 1.0})
    state_files.write_json(
        run.attempt.exit_file, {"boottime": 2.0, "wall": 2.0, "code": code, "signal": None}
    )
    run.attempt.output_file.write_bytes(output)
    return run_folders.Run(run.folder)


@pytest.mark.parametrize(
    ("text", "lines", "shown"),
    [
        (b"a\nb\nc\n", 2, b"b\nc\n"),
        (b"a\nb\nc", 2, b"b\nc"),
        (b"a\nb\nc\n", 3, b"a\nb\nc\n"),
        (b"a\nb\nc\n", 99, b"a\nb\nc\n"),
        (b"a\nb\n", 0, b""),
        (b"\n\n\n", 2, b"\n\n"),
        (b"", 5, b""),
        (b"x" * 200_000 + b"\n" + b"y" * 100_000 + b"\n", 1, b"y" * 100_000 + b"\n"),
        (b"1\n" * 100_000, 70_000, b"1\n" * 70_000),
    ],
)
def test_the_last_lines(
    text: bytes, lines: int, shown: bytes, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    made("a", output=text)
    for follow in ([], ["-f"]):
        assert main(["logs", "-n", str(lines), *follow]) == 0
        assert capfdbinary.readouterr().out == shown


def test_the_last_lines_reach_into_the_older_files(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    attempt = made("a", output=b"5\n6\n").attempt
    attempt.output_first_file.write_bytes(b"1\n2\n")
    attempt.output_before_file.write_bytes(b"3\n4\n")
    gap = b"\n[oomproof: the middle of the output was not stored]\n"
    for lines, shown in (
        (1, b"6\n"),
        (3, b"4\n5\n6\n"),
        (4, b"3\n4\n5\n6\n"),
        (5, b"2\n" + gap + b"3\n4\n5\n6\n"),
    ):
        assert main(["logs", "-n", str(lines)]) == 0
        assert capfdbinary.readouterr().out == shown


def test_what_was_killed_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["runs", "kills", "--json"], ["runs", "--json", "kills"]):
        assert main(words) == 0
        assert json.loads(capsys.readouterr().out)["schema"] == 1
    with pytest.raises(OomproofError, match="--json does not go with --keep"):
        obey(["runs", "kills", "--keep", "--json"])


def test_only_the_failed_ones(capsys: pytest.CaptureFixture[str]) -> None:
    made("good")
    assert main(["runs", "--failed"]) == 0
    assert capsys.readouterr().out == "none of 1 runs failed\n"
    made("bad", 1)
    for number in range(25):
        made(f"good{number}")
    assert main(["runs", "--failed"]) == 0
    shown = capsys.readouterr().out
    assert "bad" in shown and "good" not in shown, "also behind more than 20 that went well"
    assert main(["runs", "--failed", "--json"]) == 0
    assert [run["name"] for run in json.loads(capsys.readouterr().out)["runs"]] == ["bad"]


def names() -> set[str]:
    return {run.name for run in run_folders.list_runs()}


def test_rm_removes_what_was_named_and_says_it(capsys: pytest.CaptureFixture[str]) -> None:
    for name in "abc":
        made(name)
    assert main(["runs", "rm", "a"]) == 2
    assert "add --yes: oomproof runs rm --yes a" in capsys.readouterr().err and names() == set("abc")
    assert main(["runs", "rm", "--yes", "a", "nosuch"]) == 2
    assert names() == set("abc"), "all or nothing where one is not there"
    capsys.readouterr()
    assert main(["runs", "rm", "--yes", "a", "a"]) == 0
    said = capsys.readouterr().out
    assert "1 run removed" in said and "a " in said and names() == set("bc")
    assert main(["runs", "rm", "--yes", "--json", "b"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert [run["name"] for run in value["runs"]] == ["b"] and value["bytes"] > 0 and names() == {"c"}


def test_rm_takes_neither_an_empty_text_nor_a_day(capsys: pytest.CaptureFixture[str]) -> None:
    only = made("only")
    for text in ("", only.id[:8]):
        assert main(["runs", "rm", "--yes", text]) == 2
    assert names() == {"only"}
    assert main(["stop", ""]) == 2
    assert "empty text" in capsys.readouterr().err


def test_rm_never_removes_one_that_lives(capsys: pytest.CaptureFixture[str]) -> None:
    made("over")
    lives = made("lives")
    lives.attempt.exit_file.unlink()
    lock = state_files.take_lock(lives.keeper_lock)
    assert main(["runs", "rm", "--yes", "over", "lives"]) == 2
    assert "lives has not ended" in capsys.readouterr().err and names() == {"over", "lives"}
    assert lock is not None
    os.close(lock)


def test_rm_waits_for_the_verdict_of_one_that_has_just_ended(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`oomproof stop big && oomproof runs rm big` was told "big has not ended (ended)"."""
    lock = state_files.take_lock(made("over").guard_lock)
    assert lock is not None
    judged = threading.Timer(0.3, os.close, (lock,))
    judged.start()
    assert main(["runs", "rm", "--yes", "over"]) == 0 and names() == set()
    judged.join()
    lock = state_files.take_lock(made("slow").guard_lock)
    assert lock is not None
    monkeypatch.setattr(runs, "_CLEANS_UP", 0.2)
    capsys.readouterr()
    assert main(["runs", "rm", "--yes", "slow"]) == 125 and names() == {"slow"}
    assert "slow has ended, and its verdict is still being written" in capsys.readouterr().err
    os.close(lock)


@pytest.mark.parametrize(("answer", "left"), [("y", set()), ("", {"a"}), ("n", {"a"})])
def test_rm_asks(answer: str, left: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    made("a")
    monkeypatch.setattr("builtins.input", lambda _: answer)
    for stream in (runs.sys.stdin, runs.sys.stdout):
        monkeypatch.setattr(stream, "isatty", lambda: True, raising=False)
    assert main(["runs", "rm", "a"]) == (1 if left else 0)
    assert names() == left


def test_stop_of_several_goes_on_after_one_that_cannot(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in "abc":
        made(name)
    stopped = []

    def one(target: run_folders.Run, _: argparse.Namespace) -> int:
        stopped.append(target.name)
        if target.name == "a":
            raise OomproofError("a hangs", "look at it")
        return 0

    monkeypatch.setattr(stop, "_stop", one)
    assert main(["stop", "a", "b", "a"]) == 125
    assert stopped == ["a", "b"] and "oomproof: a hangs" in capsys.readouterr().err
    assert main(["stop", "a", "nosuch"]) == 2 and stopped == ["a", "b"], "a typo stops nobody"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("runs --all show a", "--all goes with the list"),
        ("runs --failed prune", "--failed goes with the list"),
        ("runs --json export a", "--json does not go with export"),
        ("stop --kill --now a", "--now does nothing with --kill"),
        ("stop --kill --grace 3 a", "--grace does nothing with --kill"),
        ("stop --grace -1 a", "--grace -1 is not a time"),
        ("stop --grace nan a", "--grace nan is not a time"),
        ("logs -n -3 a", "'-3' is not a number of lines"),
        ("logs -n some a", "'some' is not a number of lines"),
        ("why --since yesterday a", "--since goes with --system"),
        ("why --system a", "--system looks at the machine"),
        ("why --system --all", "--all does not go with --system"),
        ("why --system --again", "--again does not go with --system"),
        ("why --system --short", "--short does not go with --system"),
        ("why --system --bundle x.tgz", "--bundle does not go with --system"),
        ("why --all --bundle x.tgz a", "--bundle goes with one run"),
        ("why --all --short a", "--short goes with one run"),
        ("why --short --json a", "--short does nothing with --json"),
        ("why --config x.yaml a", "--config goes with --bundle"),
        ("why --force a", "--force overwrites a file"),
        ("why --no-log a", "--no-log goes with --md or --html"),
        ("why --all --md x.md --no-source a", "--no-source goes with the page of one death"),
        ("why --system --html x.html --no-log", "--no-log goes with the page of one death"),
        ("why --md - --html - a", "only one document fits on standard output"),
        ("why --md - --json a", "--json does nothing where a document is on standard output"),
        ("why --html - --short a", "--short does nothing where a document is on standard output"),
        ("why --bundle b.tgz --config nosuch.yaml a", "--config nosuch.yaml: there is no such file"),
        ("run --no-wait --wait-max 2h -- true", "--wait-max does nothing here"),
        ("run --protect --pause-max 9 -- true", "--pause-max does nothing here"),
        ("run --no-agent --release auto -- true", "--release does nothing here"),
        ("run --no-agent --trace-alloc -- true", "--trace-alloc does nothing here"),
        ("run --no-agent --gpu-limit 9G -- true", "--gpu-limit is enforced by the agent"),
        ("run --gpu-turn 60 -- true", "--gpu-turn does nothing without --gpu-share"),
        ("run --margin 1G --floor 2G -- true", "--floor is above --margin"),
    ],
)
def test_nothing_is_silently_ignored(
    words: str,
    says: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made("a")
    monkeypatch.chdir(tmp_path)
    assert main(words.split()) == 2
    said = capsys.readouterr().err
    assert says in said and "\n  " in said, "an error with a hint"
    assert not list(tmp_path.iterdir())


def test_a_settings_file_speaks_for_many_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it says for others is no contradiction of a flag."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "oomproof.toml").write_text('wait_max = "2h"\ngpu_turn = 60\npause_max = 9\n')
    assert main(["run", "--no-wait", "--protect", "--", "true"]) == 0


@pytest.mark.parametrize("verb", ["save", "inspect", "watch", "pause", "stop"])
def test_a_hint_calls_a_run_by_its_name(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    run = made("mine")
    main([verb, "mine"])
    assert run.id not in capsys.readouterr().err, "its name is shorter to type"

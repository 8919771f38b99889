"""Every setting of `run` is said once: the flag, the settings file and run.json agree, and a later guard has it again."""

from __future__ import annotations

import argparse
import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from oomproof.alerts.receivers import AlertSettings
from oomproof.errors import OomproofError
from oomproof.runner.run_flags import (
    FLAGS,
    RunSettings,
    add_flags,
    add_receiver_flags,
    as_typed,
    from_json,
    gpu_limits,
    of_adopt,
    of_run,
    of_watch,
    receivers_of,
    to_json,
    typed,
)
from oomproof.settings import PERSONAL

GIB, MIB = 1 << 30, 1 << 20
GIVEN = {  # a word for each flag that takes one
    "limit": "20G", "need": "19G", "gpu_need": "12G:1", "priority": "3", "wait_max": "2h",
    "not_before": "2030-01-31T06:00", "name": "big", "margin": "4G", "floor": "1G", "grace": "60",
    "alert_above": "8G", "alert_gpu_above": "9G", "stop_file": "/tmp/stop", "stop_signal": "USR1",
    "on_alert": "echo a", "on_end": "echo b", "alert_webhook": "slack:https://chat.example.org/hook",
    "alert_mail": "me@example.org", "gpu_limit": "14G:0,20G:1", "spill": "8G", "release": "auto", "pause_max": "600", "gpu_turn": "30", "oom_exit_code": "137", "census": "10m",
    "retry": "3", "knob": "batch=64..4", "order": "workers,batch", "resume_arg": "--resume {checkpoint}",
}  # fmt: skip


@pytest.fixture(autouse=True)
def nothing_around(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in FLAGS:
        monkeypatch.delenv(f"OOMPROOF_{name.upper()}", raising=False)


def parsed(*words: str, adopt: bool = False) -> dict[str, Any]:
    parser = argparse.ArgumentParser()
    add_flags(parser, adopt)
    return vars(parser.parse_args(words))


# flags that make others needless, and those others: never typed together
APART = [
    ("no_agent", "no_wait", "protect", "watch_only"),
    ("no_agent", "wait_max", "pause_max", "leave_unmanaged"),
]
apart = pytest.mark.parametrize("leave_out", APART)


def everything(leave_out: tuple[str, ...]) -> list[str]:
    words = []
    for name, flag in FLAGS.items():
        if flag.help and name not in leave_out:
            words += [f"--{name.replace('_', '-')}", *([GIVEN[name]] if flag.metavar else [])]
    return words


@apart
def test_every_flag_changes_its_setting(leave_out: tuple[str, ...]) -> None:
    chosen, plain = of_run(parsed(*everything(leave_out))), RunSettings()
    same = {name for name in FLAGS if getattr(chosen, name) == getattr(plain, name)}
    assert same == {*leave_out, "ledger"}
    assert (chosen.limit, chosen.gpu_need, chosen.grace) == (20 * GIB, (12 * GIB, 1), 60.0)


@apart
def test_a_settings_file_says_the_same_as_the_flags(
    tmp_path: Path, leave_out: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(GIVEN, "stop_file", str(tmp_path / "stop"))  # a project's file may name only its own
    lines = {
        name: f"{name} = {json.dumps(GIVEN.get(name, True))}\n"
        for name in FLAGS
        if name not in (*leave_out, "ledger")
    }
    (tmp_path / "config" / "oomproof").mkdir(parents=True)
    user_file = tmp_path / "config" / "oomproof" / "config.toml"
    user_file.write_text("".join(line for name, line in lines.items() if name in PERSONAL))
    (tmp_path / "oomproof.toml").write_text("".join(lines[name] for name in lines if name not in PERSONAL))
    assert of_run({}) == of_run(parsed(*everything(leave_out)))


@apart
def test_run_json_gives_back_what_was_asked_for(leave_out: tuple[str, ...]) -> None:
    chosen = of_run(parsed(*everything(leave_out)))
    again = from_json(json.loads(json.dumps(to_json(chosen, 4 * GIB, GIB))))
    for name, flag in FLAGS.items():
        wanted = getattr(chosen if flag.kept else RunSettings(), name)
        assert getattr(again, name) == wanted, name
    assert from_json(to_json(RunSettings(no_agent=True), 1, 2)) == RunSettings(
        no_agent=True, margin=1, floor=2
    )


@apart
def test_what_was_typed_is_typed_again(leave_out: tuple[str, ...]) -> None:
    words = everything((*leave_out, "alert_webhook"))
    kept = json.loads(json.dumps(typed(parsed(*words))))
    again = shlex.split(" ".join(f"{name} {value}" for name, value in as_typed(kept)))
    assert of_run(parsed(*again)) == of_run(parsed(*words)) and len(again) == len(words)
    assert again[0] == "--name"


def test_what_may_be_secret_is_not_written_down() -> None:
    """run.json has neither a webhook's address nor a command with a token in it."""
    url, token = "https://ntfy.sh/topic-that-nobody-knows", "hf_" + "abcdefghij0123456789"
    words = parsed(
        "--alert-webhook", url, "--on-alert", f"curl -H 'X: {token}'", "--on-end", "send --token abc", "--alert-mail", "root"
    )  # fmt: skip
    chosen = of_run(words)
    assert chosen.alert_settings() == AlertSettings(
        f"curl -H 'X: {token}'", "send --token abc", False, [f"ntfy:{url}"], ["root"]
    )
    assert typed(words) == {"alert_mail": "root"}
    assert "topic" not in json.dumps(to_json(chosen, 1, 2)) and "curl" not in json.dumps(
        to_json(chosen, 1, 2)
    )


def test_a_guard_that_is_taken_up_again_has_receivers_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OOMPROOF_ON_END", "echo variable")
    monkeypatch.setenv("OOMPROOF_LIMIT", "1G")
    parser = argparse.ArgumentParser()
    add_receiver_flags(parser)
    chosen = of_watch({"limit": 7, "agent": True}, vars(parser.parse_args(["--on-alert", "echo flag"])))
    assert chosen == RunSettings(limit=7, on_alert="echo flag", on_end="echo variable")
    assert receivers_of({"alert_desktop": True}) == AlertSettings(None, "echo variable", True)


def test_a_settings_file_is_not_typed_and_an_odd_name_is_quoted(tmp_path: Path) -> None:
    (tmp_path / "oomproof.toml").write_text('grace = "60"')
    assert as_typed(typed(parsed("--name", "a b", "--protect"))) == (("--name", "'a b'"), ("--protect", ""))


def test_what_is_damaged_counts_as_not_given() -> None:
    kept = {name: {"no": "value"} for name in FLAGS}
    assert from_json({**kept, "agent": True, "release": "auto"}).limit is None
    assert from_json({"limit": True, "grace": "soon", "agent": True}) == RunSettings()
    assert from_json({}).no_agent, "it says nothing of an agent"


def test_adopt_has_its_own_few_and_no_start(tmp_path: Path) -> None:
    text = 'name = "project"\nneed = "3G"\nmargin = "2G"\ngrace = 7\nprotect = true\n'
    (tmp_path / "oomproof.toml").write_text(text)
    words = parsed("--stop-signal", "USR1", "--watch-only", adopt=True)
    assert set(words) == {
        "name",
        "need",
        "grace",
        "stop_file",
        "stop_signal",
        "watch_only",
        "leave_unmanaged",
        "alert_above",
        "alert_gpu_above",
        *PERSONAL,
    }
    assert of_adopt(words) == RunSettings(margin=2 * GIB, grace=7.0, stop_signal=10, watch_only=True)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--limit", "3M"], "--limit 3M is 3 MiB"),
        (["--limit", "much"], "--limit: "),
        (["--need", "0"], "--need: a need of 0 reserves nothing"),
        (["--grace", "soon"], "--grace soon is not a time"),
        (["--priority", "1000"], "--priority: '1000' is not a priority"),
        (["--oom-exit-code", "300"], "--oom-exit-code 300 is not an exit status"),
        (["--stop-signal", "KILL"], "--stop-signal KILL: no signal"),
        (["--on-alert", " "], "--on-alert: a command is a line of shell"),
        (["--alert-webhook", "hooks.example.org/x"], "--alert-webhook: this is no webhook's address"),
        (["--alert-mail", "a b@"], "--alert-mail: 'b@' is not a mail address"),
        (["--release", "often"], "--release often"),
        (["--gpu-limit", "14G", "--no-agent"], "--no-agent"),
    ],
)
def test_what_is_refused(words: list[str], text: str) -> None:
    with pytest.raises(OomproofError) as error:
        of_run(parsed(*words))
    assert text in error.value.message and error.value.status == 2


def test_without_flags() -> None:
    told = {"release": "warn", "gpu_limit": [], "trace_alloc": False}
    assert RunSettings().agent_settings(5 * GIB) == told
    assert RunSettings(spill=GIB).agent_settings(5 * GIB) == {
        **told, "spill": GIB, "margin": 5 * GIB, "limit": None,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "limits"),
    [
        ("14G", [[14 * GIB, None]]),
        ("14G:0,20G:1", [[14 * GIB, 0], [20 * GIB, 1]]),
        (["14G:0", "1.5G"], [[14 * GIB, 0], [3 * GIB // 2, None]]),  # from a settings file
    ],
)
def test_limits(text: Any, limits: list[list[int | None]]) -> None:
    assert gpu_limits(text) == limits


@pytest.mark.parametrize("text", ["14X", "14G:first", "14G:", "512M", ""])
def test_limits_that_are_none(text: str) -> None:
    with pytest.raises(OomproofError) as error:
        gpu_limits(text)
    assert error.value.status == 2

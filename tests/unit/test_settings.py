"""Settings come only from files that nobody else could have written."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from oomproof import settings
from oomproof.errors import OomproofError

SOMEBODY = 4242
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")


@pytest.fixture(autouse=True)
def nothing_said_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "_said", set())


def project(tmp_path: Path, name: str = "oomproof.toml", text: str = "watch_only = true\n") -> Path:
    """A file in a parent folder of a folder to work in."""
    (tmp_path / "work").mkdir()
    path = tmp_path / name
    path.write_text(text)
    path.chmod(0o644)
    return path


def read(path: Path) -> dict[str, object]:
    return settings.file_settings(path.parent / "work")


def test_ones_own_file_is_obeyed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert read(project(tmp_path)) == {"watch_only": True}
    assert capsys.readouterr().err == ""


@needs_root
@pytest.mark.parametrize("name", ["oomproof.toml", "pyproject.toml"])
def test_another_users_file_is_passed_over_and_named_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    path = project(tmp_path, name, "[tool.oomproof]\nwatch_only = true\n")
    os.chown(path, SOMEBODY, SOMEBODY)
    assert read(path) == {} and read(path) == {}
    assert capsys.readouterr().err.count(f"passed over {path}: it belongs to user {SOMEBODY}") == 1


@needs_root
def test_what_says_nothing_to_us_is_passed_over_in_silence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = project(tmp_path, "pyproject.toml", "[tool.ruff]\n")
    os.chown(path, SOMEBODY, SOMEBODY)
    assert read(path) == {}
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("mode", "says"), [(0o646, "everybody may write it"), (0o666, "everybody may")])
def test_a_file_that_others_may_write(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], mode: int, says: str
) -> None:
    path = project(tmp_path)
    path.chmod(mode)
    assert read(path) == {}
    assert says in capsys.readouterr().err


@needs_root
def test_a_group_of_others_and_a_group_of_ones_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = project(tmp_path)
    path.chmod(0o664)
    assert read(path) == {"watch_only": True}  # root's own group
    os.chown(path, 0, SOMEBODY)
    assert read(path) == {}
    assert "its group may write it" in capsys.readouterr().err


@needs_root
def test_a_link_that_another_user_laid(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_text("watch_only = true\n")
    (tmp_path / "work").mkdir()
    link = tmp_path / "oomproof.toml"
    link.symlink_to(mine)
    assert read(link) == {"watch_only": True}
    os.chown(link, SOMEBODY, SOMEBODY, follow_symlinks=False)
    assert read(link) == {}
    assert "it belongs to user" in capsys.readouterr().err


@needs_root
@pytest.mark.parametrize("text", ["limit = [", "[" * 5000, "\udcff"])
def test_another_users_broken_file_stops_nobody(tmp_path: Path, text: str) -> None:
    path = project(tmp_path)
    path.write_bytes(text.encode(errors="surrogateescape"))
    os.chown(path, SOMEBODY, SOMEBODY)
    assert read(path) == {}


@pytest.mark.parametrize("text", ["limit = [", "x = " + "[" * 5000, "\udcff"])
def test_ones_own_broken_file_is_named(tmp_path: Path, text: str) -> None:
    path = project(tmp_path)
    path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(OomproofError, match=r"cannot read .*oomproof\.toml"):
        read(path)


def test_a_broken_project_that_says_nothing_to_us_keeps_nobody_from_starting(tmp_path: Path) -> None:
    assert read(project(tmp_path, "pyproject.toml", "[tool.ruff\n")) == {}
    (tmp_path / "pyproject.toml").write_text("[tool.oomproof\n")
    with pytest.raises(OomproofError, match=r"cannot read .*pyproject\.toml"):
        settings.file_settings(tmp_path / "work")


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: os.symlink("/dev/zero", path)])
def test_what_is_no_file_is_none_of_ours(tmp_path: Path, make: Callable[[Path], None]) -> None:
    (tmp_path / "work").mkdir()
    make(tmp_path / "oomproof.toml")
    assert read(tmp_path / "oomproof.toml") == {}


@needs_root
def test_the_users_own_file_is_looked_at_alike(
    folders_of_their_own: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = folders_of_their_own / "config" / "oomproof"
    folder.mkdir()
    (folder / "config.toml").write_text('ledger = "/somewhere"\n')
    os.chown(folder / "config.toml", SOMEBODY, SOMEBODY)
    assert settings.file_settings(tmp_path) == {}
    assert "passed over" in capsys.readouterr().err


@needs_root
def test_a_run_below_another_users_file_is_guarded_all_the_same(tmp_path: Path) -> None:
    path = project(tmp_path, text='limit = "1K"\nname = "theirs"\n')
    os.chown(path, SOMEBODY, SOMEBODY)
    done = subprocess.run(
        [sys.executable, "-m", "oomproof", "run", "--", "true"],
        cwd=tmp_path / "work", capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("passed over") == 1
    assert "theirs" not in done.stderr


PERSONAL_LINES = """grace = 7
on-alert = "touch /tmp/owned"
alert_webhook = "https://example.org/theirs"
"""


@pytest.mark.parametrize(("name", "head"), [("oomproof.toml", ""), ("pyproject.toml", "[tool.oomproof]\n")])
def test_a_projects_file_names_no_command_and_no_receiver(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, head: str
) -> None:
    """Whoever clones a folder must not thereby run its commands, or tell its author what runs here."""
    path = project(tmp_path, name, head + PERSONAL_LINES)
    given = settings.resolve({}, {"grace", *settings.PERSONAL}, path.parent / "work")
    assert given["grace"] == 7 and given["on_alert"] is None and given["alert_webhook"] is None
    told = capsys.readouterr().err
    assert (
        f"passed over {path}, line {2 + head.count(chr(10))}: on_alert: commands and receivers count only"
        in told
    )
    assert "alert_webhook" in told and "example.org" not in told and "owned" not in told


@pytest.mark.parametrize("name", ["stop_file", "ledger"])
def test_a_projects_file_names_only_what_lies_below_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    inside = tmp_path / "project"
    (inside / "work").mkdir(parents=True)
    (inside / "link").symlink_to(tmp_path)
    for value, counts in (
        ("stop", True), (f"{inside}/stop", True), ("../stop", True), ("../../stop", False), ("/etc/stop", False),
        ("../link/stop", False), (f"{inside}-not/stop", False),
    ):  # fmt: skip
        (inside / "oomproof.toml").write_text(f'{name} = "{value}"\n')
        (inside / "oomproof.toml").chmod(0o644)
        given = settings.resolve({}, {name}, inside / "work")
        assert given[name] == (value if counts else None), value
    assert f"{name}: outside {inside}" in capsys.readouterr().err


def test_the_users_own_file_and_variables_do(
    folders_of_their_own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = folders_of_their_own / "config" / "oomproof"
    folder.mkdir()
    (folder / "config.toml").write_text(PERSONAL_LINES)
    monkeypatch.setenv("OOMPROOF_ON_END", "echo end")
    given = settings.resolve({}, {"grace", *settings.PERSONAL}, tmp_path)
    assert given["on_alert"] == "touch /tmp/owned" and given["on_end"] == "echo end"


def test_what_an_alerts_command_is_told_is_no_setting(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("OOMPROOF_DISABLE", "0")
    monkeypatch.setenv("OOMPROOF_ALERT_MAILS", "x")
    names = {"grace", "alert_above", *settings.PERSONAL}
    assert "OOMPROOF_ALERT_MAILS" in settings.resolve({}, names, tmp_path, tell=False).passed_over
    monkeypatch.setenv("OOMPROOF_ALERT_KIND", "end")
    assert not settings.resolve({}, names, tmp_path, tell=False).passed_over

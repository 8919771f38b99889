"""`oomproof config`: what applies, and from where."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from oomproof import settings
from oomproof.cli.main import main
from oomproof.runner.run_flags import FLAGS


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(settings, "_said", set())
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def config(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main(["config", "--json", *words]) == 0
    value: dict[str, Any] = json.loads(capsys.readouterr().out)
    return {**value, **{row["name"]: row for row in value["settings"]}}


def test_each_source_is_told(
    project: Path,
    folders_of_their_own: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    own = folders_of_their_own / "config" / "oomproof" / "config.toml"
    own.parent.mkdir()
    own.write_text('limit = "1G"\nrelease = "auto"\n')
    (project / "oomproof.toml").write_text('# ours\nlimit = "2G"\ngrace = 60\nprotect = true\n')
    monkeypatch.setenv("OOMPROOF_GRACE", "70")
    told = config(capsys, "--need", "3G")
    assert {row["name"] for row in told["settings"]} == set(FLAGS)
    assert told["limit"] == {
        "name": "limit", "value": 2 << 30, "from": "file", "where": f"{project}/oomproof.toml, line 2",
    }  # fmt: skip
    assert told["need"] == {"name": "need", "value": 3 << 30, "from": "flag", "where": "--need"}
    assert (told["grace"]["value"], told["grace"]["where"]) == (70.0, "OOMPROOF_GRACE")
    assert (told["release"]["from"], told["release"]["where"]) == ("file", f"{own}, line 2")
    assert (told["floor"]["from"], told["floor"]["where"]) == ("default", None) and told["floor"]["value"] > 0
    assert told["files"] == [f"{project}/oomproof.toml", str(own)] and told["passed_over"] == []


def test_what_does_not_count_is_told_with_its_reason(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "oomproof.toml").write_text("grace = 60\n")
    (project / "oomproof.toml").chmod(0o666)
    (project / "pyproject.toml").write_text("[tool.oomproof]\ngrace = 50\n")
    monkeypatch.setenv("OOMPROOF_LIMTI", "2G")
    assert main(["config"]) == 0
    said, errors = capsys.readouterr()
    assert f"passed over  {project}/oomproof.toml: everybody may write it" in said
    assert "OOMPROOF_LIMTI: unknown setting; did you mean 'OOMPROOF_LIMIT'?" in said
    assert errors == "" and "grace    50" in said
    (project / "oomproof.toml").chmod(0o600)
    told = config(capsys)
    assert told["passed_over"] == [
        {"what": f"{project}/pyproject.toml", "why": "oomproof.toml beside it comes first"},
        {"what": "OOMPROOF_LIMTI", "why": "unknown setting; did you mean 'OOMPROOF_LIMIT'?"},
    ]
    assert told["grace"]["value"] == 60.0


def test_a_misspelt_variable_is_told_by_run_too(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OOMPROOF_LIMTI", "2G")
    monkeypatch.setenv(
        "OOMPROOF_RUN", "20261116-040000-abc"
    )  # what a run tells its job is no setting of the next one
    monkeypatch.setenv("OOMPROOF_SAVE_FILE", "/nonexistent/save")
    assert main(["run", "--", "true"]) == 0
    said = capfd.readouterr().err
    assert said.count("passed over") == 1
    assert "oomproof: passed over OOMPROOF_LIMTI: unknown setting; did you mean 'OOMPROOF_LIMIT'?" in said


def test_nothing_is_set(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config"]) == 0
    said = capsys.readouterr().out
    assert "every setting is at its default" in said and "looked for   oomproof.toml" in said


def test_a_wrong_value_is_refused_as_run_refuses_it(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "oomproof.toml").write_text('limit = "lots"\n')
    for verb in (["config"], ["run", "--", "true"]):
        assert main(verb) == 2
        assert (
            f"{project}/oomproof.toml, line 1: limit: cannot read 'lots' as a size" in capsys.readouterr().err
        )


def test_receivers_are_shown_without_their_secrets(
    folders_of_their_own: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = folders_of_their_own / "config" / "oomproof" / "config.toml"
    own.parent.mkdir()
    lines = 'alert-webhook = ["https://ntfy.sh/hidden-topic", "slack:https://chat.org/hidden"]\n'
    own.write_text(f'{lines}on-alert = "curl --token hidden example.org"\non-end = "echo done"\n')
    told = config(capsys)
    assert told["alert_webhook"]["value"] == ["ntfy (ntfy.sh)", "slack (chat.org)"]
    assert told["on_alert"]["value"] == "•••" and told["on_end"]["value"] == "echo done"
    assert main(["config", "--all"]) == 0
    shown = capsys.readouterr().out
    assert "hidden" not in shown and "ntfy (ntfy.sh), slack (chat.org)" in shown
    assert main(["config", "--alert-webhook", "https://a/hidden", "--alert-webhook", "https://b/hidden"]) == 2
    assert main(["config", "--alert-webhook", "a/hidden"]) == 2
    assert "hidden" not in capsys.readouterr().err

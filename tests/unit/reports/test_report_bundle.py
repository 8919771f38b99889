"""The bundle: everything a helper needs, no secret of any known shape in any file of it."""

from __future__ import annotations

import gzip
import io
import json
import sqlite3
import tarfile
from pathlib import Path

import pytest
from helpers_report import make_run, verdict
from hypothesis import given
from hypothesis import strategies as st

from oomproof.errors import OomproofError
from oomproof.recording.run_folders import Run
from oomproof.reports import bundle
from oomproof.reports.bundle import write_bundle
from oomproof.reports.code_shown import read_capped
from oomproof.reports.redaction import Redactor

# Put together here, so that no scanner takes this file for a leak.
A = "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"
HEX = "0123456789abcdef0123456789abcdef01234567"
SHAPES = {
    "huggingface": "hf" + "_" + A,
    "hf-org": "api_org" + "_" + A,
    "github": "ghp" + "_" + A,
    "github-server": "ghs" + "_" + A,
    "github-fine": "github" + "_pat_" + A,
    "openai": "sk" + "-" + A,
    "openai-project": "sk" + "-proj-" + A,
    "anthropic": "sk" + "-ant-api03-" + A,
    "stripe": "sk" + "_live_" + A,
    "aws-id": "AK" + "IA" + "ABCDEFGH12345678",
    "aws-temporary": "AS" + "IA" + "ABCDEFGH12345678",
    "google": "AI" + "za" + A,
    "google-oauth": "ya29" + "." + A,
    "slack": "xox" + "b-1234567890-" + A,
    "slack-hook": "https://hooks.slack" + ".com/services/T0/B0/" + A,
    "discord-hook": "https://discord" + ".com/api/webhooks/12345/" + A,
    "telegram": "123456789" + ":AA" + A,
    "gitlab": "glpat" + "-" + A,
    "jwt": "eyJ" + A + ".eyJ" + A + "." + A,
    "neptune": "eyJ" + A + A + "==",
    "pypi": "pypi" + "-" + A,
    "npm": "npm" + "_" + A,
    "docker": "dckr" + "_pat_" + A,
    "databricks": "dapi" + HEX[:32],
    "digitalocean": "dop" + "_v1_" + HEX,
    "vault": "hvs" + "." + A,
    "replicate": "r8" + "_" + A,
    "nvidia": "nvapi" + "-" + A,
    "groq": "gsk" + "_" + A,
    "sendgrid": "SG" + "." + A + "." + A,
    "wandb-new": "wandb" + "_v1_" + A,
}
WORD = "correct7horse9battery"
NAMED = [
    "password=" + WORD, 'password: "' + WORD + '"', "PGPASSWORD=" + WORD, "--hf_token " + WORD, "--api-key=" + WORD,
    "WANDB_API_KEY=" + HEX, "wandb: using API key " + HEX, "AWS_SECRET_ACCESS_KEY=" + A + "/+zz",
    "aws_secret_access_key = " + A, "{'access_token': '" + WORD + "'}", '{"api_key": "' + WORD + '"}',
    "Authorization: Bearer " + WORD, "Authorization: Basic " + "dXNlcjpwYXNzd29yZDEyMw==", "authorization: token " + WORD,
    "postgres://me:" + WORD + "@db/x", "https://" + A + "@github.com/a/b", "https://x/y?token=" + WORD + "&a=1",
    "https://s3/x?X-Amz-Signature=" + HEX + "&X-Amz-Credential=" + A, "https://blob/x?sv=1&sig=" + A,
    "machine api.wandb.ai login user password " + HEX, "secret_key: " + WORD, "client_secret=" + WORD,
    "apiKey: '" + WORD + "'", "MY_TOKEN='" + WORD + "'", "DATABASE_DSN=" + WORD, "Cookie: " + WORD,
    "AccountKey=" + A + "==;EndpointSuffix=x", "export COMET_API_KEY=" + WORD,
    '{"username":"ada","key":"' + HEX[:32] + '"} kaggle.json',
    "-----BEGIN RSA PRIVATE " + "KEY-----\n" + A + "\n" + A + "\n-----END RSA PRIVATE " + "KEY-----",
]  # fmt: skip
VALUES = (*SHAPES.values(), A, HEX, HEX[:32], WORD, "dXNlcjpwYXNzd29yZDEyMw")
EVERYTHING = "\n".join([*(f"{name} {value} end" for name, value in SHAPES.items()), *NAMED])


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path


def unpacked(path: Path) -> dict[str, bytes]:
    with tarfile.open(path) as archive:
        return {
            member.name.partition("/")[2]: archive.extractfile(member).read()  # type: ignore[union-attr]
            for member in archive.getmembers()
        }


def leaks(files: dict[str, bytes]) -> list[str]:
    found = []
    for name, data in files.items():
        for value in VALUES:
            if value.encode() in data or value.encode("utf-16-le") in data or value in name:
                found.append(f"{name}: {value[:12]}…")
    return found


def test_no_planted_secret_leaves(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_SERVICE_TOKEN", "bare9value8known7only6by5environment")
    env = {f"X_{name.upper()}": value for name, value in SHAPES.items()}
    env |= {"WANDB_API_KEY": HEX, "PGPASSWORD": WORD, "CUDA_VISIBLE_DEVICES": "0"}
    argv = ["python", "train.py", "--token", WORD, f"--api_key={A}", *SHAPES.values(), *NAMED]
    run = make_run(state, seconds=60, texts=EVERYTHING, env=env, argv=argv, name=SHAPES["github"])
    (run.attempt / "output.first.log").write_text(EVERYTHING)
    (run.attempt / "output.prev.log").write_text("bare9value8known7only6by5environment\n" + WORD)
    (run.attempt / "actions.jsonl").write_text(json.dumps({"why": EVERYTHING, "env": env}) + "\n")
    (run.attempt / "keeper.jsonl").write_text(json.dumps({"event": "x", "text": EVERYTHING}) + "\n")
    log, packed, wide = state / "train.log", state / f"{SHAPES['slack']}.log.gz", state / "powershell.log"
    log.write_text(EVERYTHING)
    packed.write_bytes(gzip.compress(EVERYTHING.encode()))
    wide.write_bytes(b"\xff\xfe" + EVERYTHING.encode("utf-16-le"))
    config, settings = state / "config.json", state / "config.yaml"
    config.write_text(json.dumps({"hub": {"token": WORD, "password": [A]}, "key": EVERYTHING, "batch": 64}))
    settings.write_text("batch: 64\npad_token: <pad>\nhub_token: " + WORD + "\npassword: |\n  " + WORD + "\n")
    path = state / "b.tar.gz"
    redacted = write_bundle(
        verdict(run.id, EVERYTHING), run, [log, packed, wide], path, configs=[config, settings]
    )
    files = unpacked(path)
    assert leaks(files) == []
    assert all(b"bare9value8known7only6by5environment" not in data for data in files.values())
    assert {"report.md", "report.html", "verdict.json", "run.json", "recording.sqlite", "SUMMARY.txt", "REDACTED.txt",
            "run/output.log", "run/output.first.log", "run/output.prev.log", "run/actions.jsonl", "run/keeper.jsonl",
            "started.json", "exit.json", "logs/train.log", "config/config.json", "system/machine.json"} <= set(files)  # fmt: skip
    listing = files["REDACTED.txt"].decode()
    assert (
        all(line in listing for line in redacted)
        and "run/output.log" in listing
        and "recording.sqlite" in listing
    )
    assert b"batch: 64" in files["config/config.yaml"] and b"<pad>" in files["config/config.yaml"]
    assert json.loads(files["verdict.json"])["schema"] == 1 and json.loads(files["run.json"])["host"] == "box"


@pytest.mark.parametrize("secret", [*SHAPES.values(), *NAMED])
def test_each_shape_alone(secret: str) -> None:
    """Alone, nothing learned elsewhere can help."""
    for text in (secret, f"2026-01-01 INFO {secret}", f"[{secret}]", f'"{secret}"'):
        masked = Redactor({}).text(text, "x")
        assert not any(value in masked for value in VALUES), masked


@pytest.mark.parametrize(
    "text",
    [
        "epoch 3 loss 0.12 tokens/s 51234",
        "--tokenizer gpt2 --max_new_tokens 512",
        "pad_token: <pad>, eos_token='</s>', token: false",
        "commit 0123456789abcdef0123456789abcdef01234567",
        "Killed process 4067 (python3) total-vm:99999999kB, anon-rss:8123456kB",
        "key=value sort_key=name batch=64",
        "File '/usr/lib/python3/site-packages/torch/nn/modules/module.py', line 1511, in _call_impl",
        "https://pytorch.org/docs/stable/notes/cuda.html#environment-variables",
        "the token is not set; the password was wrong",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert Redactor({}).text(text, "x") == text


@given(st.text())
def test_redaction_never_fails(text: str) -> None:
    Redactor({}).text(text, "x")


def test_home_only_when_asked(state: Path) -> None:
    text = "/home/ada/nlp/train.py"
    assert Redactor({}).text(text, "x") == text
    assert Redactor({}, hide_user=True).text(text, "x") == "/home/USER/nlp/train.py"
    run = make_run(state, seconds=60)
    write_bundle(verdict(run.id), run, [], state / "b.tar.gz", hide_user=True)
    assert not any(b"/home/ada" in data for data in unpacked(state / "b.tar.gz").values())


def test_the_recording_comes_whole(state: Path) -> None:
    """Also what only the write-ahead log holds so far."""
    run = make_run(state, seconds=60)
    writer = sqlite3.connect(run.attempt / "recording.sqlite")
    writer.execute("INSERT INTO event VALUES(1.0, 'late', 'only in the WAL', NULL)")
    writer.commit()
    assert (run.attempt / "recording.sqlite-wal").stat().st_size > 0
    write_bundle(verdict(run.id), run, [], state / "b.tar.gz")
    writer.close()
    copy = state / "copy.sqlite"
    copy.write_bytes(unpacked(state / "b.tar.gz")["recording.sqlite"])
    with sqlite3.connect(copy) as db:
        assert db.execute("SELECT text FROM event WHERE kind='late'").fetchone() == ("only in the WAL",)
        assert db.execute("SELECT count(*) FROM job").fetchone() == (61,)


def test_a_text_without_a_run(state: Path) -> None:
    log = state / "train.log"
    log.write_text("step 1\nKilled\n")
    write_bundle(verdict(), None, [log, state / "gone.log", state], state / "b.tar.gz")
    files = unpacked(state / "b.tar.gz")
    assert files["logs/train.log"] == b"step 1\nKilled\n" and "recording.sqlite" not in files
    assert b"gone.log: left out" in files["CUT.txt"]
    assert files["SUMMARY.txt"].startswith(b"verdict  out of memory")


def test_broken_recording_and_odd_run(state: Path) -> None:
    run = make_run(state, seconds=60)
    for name in ("-wal", "-shm"):
        Path(f"{run.attempt / 'recording.sqlite'}{name}").unlink(missing_ok=True)
    (run.attempt / "recording.sqlite").write_bytes(
        b"SQLite format 3\0" + SHAPES["huggingface"].encode() * 400
    )
    write_bundle(verdict(run.id), run, [], state / "b.tar.gz")
    files = unpacked(state / "b.tar.gz")
    assert "recording.sqlite" not in files and b"recording.sqlite: left out" in files["CUT.txt"]
    assert leaks(files) == []


def test_long_logs_are_cut_between_lines(state: Path) -> None:
    line = f"step {SHAPES['huggingface']} loss\n"
    log = state / "long.log"
    log.write_text("first\n" + line * 300_000 + "last\n")
    text, note = read_capped(log, 1 << 20)
    assert text.startswith("first\n") and text.endswith("last\n") and "cut out of the middle" in str(note)
    assert len(text) <= (1 << 20) + 200
    assert set(text.split("\n")) - {"first", "last", ""} - {line.strip()} == {
        next(one for one in text.split("\n") if one.startswith("[…"))
    }


def test_total_cap_leaves_the_largest_out(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small, large = state / "small.log", state / "large.log"
    small.write_text("small\n")
    large.write_text("x y z\n" * 200_000)
    write_bundle(verdict(), None, [small, large], state / "b.tar.gz", cap=500_000)
    files = unpacked(state / "b.tar.gz")
    assert "logs/small.log" in files and "logs/large.log" not in files and "report.html" in files
    assert b"logs/large.log: left out" in files["CUT.txt"]


def test_packages_of_the_jobs_python(state: Path) -> None:
    import sys

    run = make_run(state, seconds=60, argv=[sys.executable, "train.py"])
    write_bundle(verdict(run.id), run, [], state / "b.tar.gz")
    assert b"pytest==" in unpacked(state / "b.tar.gz")["system/packages.txt"]


def test_private_and_not_overwritten(state: Path) -> None:
    path = state / "b.tar.gz"
    write_bundle(verdict(), None, [], path)
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(OomproofError, match="exists already"):
        write_bundle(verdict(), None, [], path)
    write_bundle(verdict(), None, [], path, force=True)
    assert io.BytesIO(path.read_bytes()).read(2) == b"\x1f\x8b" and bundle.TOTAL_CAP and Run

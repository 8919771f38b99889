"""Nothing secret is written down, and nothing else is hidden."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oomproof.recording.secrets import MASK, mask_argv, mask_environment, mask_text
from oomproof.reports.redaction import Redactor


@pytest.mark.parametrize(
    ("argv", "masked"),
    [
        (["--token", "abc"], ["--token", MASK]),
        (["--hf_token=abc"], [f"--hf_token={MASK}"]),
        (["--api-key", "abc", "--lr", "3"], ["--api-key", MASK, "--lr", "3"]),
        (["hub.password=abc"], [f"hub.password={MASK}"]),
        (["hf_abcdefghijklmnop"], [MASK]),
        (["postgres://me:secret@db/x"], [f"postgres://me:{MASK}@db/x"]),
        (["sk-abcdefghijklmnopqrstuv"], [MASK]),
        (["--upload", "AIza" + "x" * 35], ["--upload", MASK]),
        (["nvapi-" + "x1" * 20], [MASK]),
        (["https://h/x?sig=abc&n=3"], [f"https://h/x?{MASK}&n=3"]),
    ],
)
def test_masked(argv: list[str], masked: list[str]) -> None:
    assert mask_argv(argv) == masked


@pytest.mark.parametrize(
    "argv",
    [
        ["--tokenizer", "gpt2"],
        ["--max_tokens", "512"],
        ["--max-new-tokens=2048"],
        ["--sort_key", "name"],
        ["--token", "--next-flag"],
        ["python", "train.py", "--author", "me"],
        ["data=train.json"],
        ["--run", "sk_resnet50_imagenet_run_3"],
        ["--name", "pk-abl"],
        ["https://hub/models?revision=main&split=train"],
    ],
)
def test_left_as_it_is(argv: list[str]) -> None:
    assert mask_argv(argv) == argv


def test_environment() -> None:
    kept = mask_environment(
        {
            "HF_TOKEN": "hf_secretsecret",
            "WANDB_API_KEY": "0" * 40,
            "CUDA_VISIBLE_DEVICES": "0",
            "AWS_SECRET_ACCESS_KEY": "x",
            "MY_OWN": "y",
            "TOKENIZERS_PARALLELISM": "false",
        }
    )
    assert kept == {
        "HF_TOKEN": MASK,
        "WANDB_API_KEY": MASK,
        "CUDA_VISIBLE_DEVICES": "0",
        "TOKENIZERS_PARALLELISM": "false",
    }


@given(st.lists(st.text()))
def test_never_fails_and_keeps_the_count(argv: list[str]) -> None:
    assert len(mask_argv(argv)) == len(argv)


@given(st.text())
def test_text_never_fails(text: str) -> None:
    mask_text(text)


FOLDERS = st.lists(st.from_regex(r"[A-Za-z0-9_.+-]{1,12}", fullmatch=True), min_size=1, max_size=5).map(
    lambda parts: "/home/" + "/".join(parts)
)


@given(FOLDERS, st.sampled_from(["PWD", "OLDPWD"]))
def test_where_the_shell_stands_is_no_password(folder: str, name: str) -> None:
    redactor = Redactor({name: folder})
    line = f'File "{folder}/train.py:17"'
    told = redactor.text(f"{line}\n{name}={folder}\n", "log")
    assert told == redactor.shapes(f"{line}\n{name}={folder}\n", "log")  # nothing hidden for its name
    assert mask_argv(["env", f"{name}={folder}"])[1] == mask_text(f"{name}={folder}")
    assert redactor.value({name: folder}, "env") == {name: redactor.shapes(folder, "env")}


PASSWORDS = st.from_regex(r"[A-Za-z0-9]{6,10}[0-9][A-Za-z][!#%+]?", fullmatch=True)
NAMES = st.sampled_from(
    ["DB_PWD", "MYSQL_PWD", "db-pwd", "api-key", "PGPASSWORD", "PASSWORD", "API_KEY", "HF_TOKEN", "AUTH_TOKEN", "client_secret", "PWD", "pwd"]
)  # fmt: skip


@given(NAMES, PASSWORDS)
def test_what_is_secret_by_its_name_stays_hidden(name: str, value: str) -> None:
    redactor = Redactor({})
    assert value not in redactor.text(f"DRIVER=x;UID=sa;{name}={value};", "log")
    assert value not in mask_argv([f"--{name}={value}"])[0]
    assert value not in str(redactor.value({name: value}, "config"))
    learned = Redactor({name: value})
    assert value not in learned.text(f"it says {value} here", "log")


def test_names_as_programs_write_them() -> None:
    secret = {"authToken": "abc12345", "client-secret": "abc12345", "hub.token": "abc12345"}
    assert set(Redactor({}).value(secret, "config").values()) == {MASK}
    plain = {"maxTokens": "2048 or so", "tokenizer": "gpt2-xl", "secretary": "ada", "passes": "3 of 4"}
    assert Redactor({}).value(plain, "config") == plain


def test_a_path_under_another_name_stays_hidden() -> None:
    redactor = Redactor({})
    assert "/home/x9" not in redactor.text("DB_PWD=/home/x9", "log")
    assert "/Zk3/9q" not in redactor.text("UID=sa;PWD=/Zk3/9q", "log")


def test_who_is_told_is_not_kept() -> None:
    """An ntfy topic is a secret without a shape, and a line of shell may hold one anywhere."""
    names = ("ON_ALERT", "ON_END", "ALERT_WEBHOOK", "ALERT_MAIL")
    kept = mask_environment({f"OOMPROOF_{name}": "https://ntfy.sh/topic" for name in names})
    assert kept == {f"OOMPROOF_{name}": MASK for name in names}
    assert mask_environment({"OOMPROOF_LIMIT": "20G"}) == {"OOMPROOF_LIMIT": "20G"}
    words = ["oomproof", "run", "--alert-webhook", "https://ntfy.sh/topic", "--", "python", "train.py"]
    assert "topic" not in " ".join(mask_argv(words)) and mask_argv(words)[-1] == "train.py"

"""Nothing secret is written down, and nothing else is hidden."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oomproof.recording.secrets import MASK, mask_argv, mask_environment, mask_text


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

"""Posts as pages show them: a head above the title, changes under review, titles that ask for something."""

from __future__ import annotations

from pathlib import Path

import pytest

from oomproof.diagnosis.judge import judge_texts
from oomproof.evidence.texts.post_heads import asks, is_change, split_head, spoken_lines
from oomproof.evidence.texts.text_case import read_texts

POST = "# Training dies at epoch 3\n\nI train on one GPU and in epoch 3 I get an OOM in loss.backward() on my V100.\n"


def numbered(text: str) -> list[tuple[int, str]]:
    return list(enumerate(text.splitlines(), 1))


def cause(folder: Path, text: str) -> tuple[str, str]:
    path = folder / "post.txt"
    path.write_text(text)
    verdict = judge_texts(read_texts([str(path)])).to_json()["verdict"]
    return verdict["cause"], verdict["phase"]


@pytest.mark.parametrize(
    "head",
    [
        "acme/net · issue #12 · closed · Python\n",
        "acme/net · issue #12 · open\nlabels: bug, help wanted\n\n",
        "Skip to content\nIssue #12\nOpen\n",
        "https://example.org/acme/net/issues/12\n\n",
        "From: someone\nDate: 3 May 2024\n",
    ],
)
def test_a_page_head_changes_no_verdict(head: str, tmp_path: Path) -> None:
    assert cause(tmp_path, head + POST) == cause(tmp_path, POST) == ("cuda-oom", "train")
    assert split_head(numbered(head + POST))[1][0][1].startswith("# Training")


def test_a_subject_is_a_title_and_who_asked_when_is_none() -> None:
    _, rest = split_head(
        numbered("Subject: Run is gone\nAsked 3 years ago\nViewed 2k times\nIt was killed.\n")
    )
    assert [line for _, line in rest] == ["# Run is gone", "", "", "It was killed."]


@pytest.mark.parametrize(
    "first", ["[    0.000000] Linux version 6.1", "epoch 1 loss 0.3", "# Title", "", "status: running"]
)
def test_of_a_log_nothing_is_above(first: str) -> None:
    lines = numbered(f"{first}\nlabels: 10\nrest")
    assert split_head(lines) == ((), lines)


@pytest.mark.parametrize(
    ("head", "text"),
    [
        (("acme/net · pull request #9 · merged",), "# Something\n\nwords"),
        ((), "# Something\n\nlee · review thread · 2023-06-02\nwhy?"),
        ((), "# [core] fix(log): say that exit code 137 is SIGKILL"),
        ((), "# Refine the error message of a full GPU"),
        ((), "# Something\n\nFixes #41"),
    ],
)
def test_changes(head: tuple[str, ...], text: str) -> None:
    assert is_change(head, numbered(text))


def test_a_report_is_no_change() -> None:
    assert not is_change((), numbered(POST))
    assert not is_change((), numbered("# Fix me: CUDA out of memory\n\nI get it in the first step."))
    assert not is_change((), numbered("# Crash with this patch\n\n```diff\n+x\n```\nI get: Killed"))


def test_what_is_said_of_a_change_did_not_happen(tmp_path: Path) -> None:
    said = "When a task ends with exit code -9 then it is likely that it was out of memory, so we say it in the log."
    assert spoken_lines(numbered(f"# Fix the log\n\n{said}\nexit code 137\n")) == {1, 3}
    assert cause(tmp_path, f"# Fix the log of killed tasks\n\n{said}\n")[0] == "not-a-crash"
    assert (
        cause(tmp_path, f"# Tasks end in the night\n\n{said}\nWorker 3 exited with exit code 137\n")[0]
        == "killed-unknown"
    )


def test_titles_that_ask() -> None:
    assert asks("# Specify that exit code -9 is a lack of RAM") and asks(
        "# [ui] Clearer log for OOMKilled tasks"
    )
    assert not asks("# Report fails with exit code 137") and not asks("Specify that …")


def test_what_a_diff_shows_did_not_happen(tmp_path: Path) -> None:
    kill = (
        "Out of memory: Killed process 4242 (python) total-vm:9kB, anon-rss:8kB, file-rss:0kB, shmem-rss:0kB"
    )
    assert cause(tmp_path, f"# Notes\n\n```diff\n+{kill}\n```\n")[0] == "not-a-crash"
    assert cause(tmp_path, f"# Notes\n\n```\n{kill}\n```\n")[0] == "oom-kill-global"


def test_a_block_of_a_log_is_no_sentence(tmp_path: Path) -> None:
    line = "ggml_cuda_host_malloc: failed to allocate 2048.00 MiB of pinned memory: out of memory"
    assert (
        cause(tmp_path, f"# What is this line?\n\nI see it when my server starts:\n```\n{line}\n```\n")[0]
        == "not-a-crash"
    )

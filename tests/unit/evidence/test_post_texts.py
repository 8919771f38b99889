"""What people tell of a death in their own words, and what is only talk about one."""

from __future__ import annotations

import pytest

from oomproof.diagnosis.judge import judge_texts
from oomproof.evidence.texts.post_deaths import NAMES, ToldName
from oomproof.evidence.texts.post_phases import WHEN, ToldPhase
from oomproof.evidence.texts.text_case import read_texts


@pytest.fixture
def verdict(tmp_path):
    def judge(text: str) -> tuple[str, str]:
        path = tmp_path / "post.txt"
        path.write_text(text)
        said = judge_texts(read_texts([str(path)])).to_json()["verdict"]
        return said["cause"], said["phase"]

    return judge


@pytest.mark.parametrize("name", NAMES, ids=lambda name: f"{name.cause}: {name.example[:30]}")
def test_a_sentence_is_a_report(name: ToldName, verdict) -> None:
    assert verdict(f"# About your code\n\n{name.example}\nAny suggestions?\n")[0] == name.cause


@pytest.mark.parametrize("when", WHEN, ids=lambda when: when.phase)
def test_a_sentence_tells_when(when: ToldPhase, verdict) -> None:
    text = f"# A problem\n\n{when.example}:\n\nRuntimeError: CUDA error: out of memory\n"
    assert verdict(text) == ("cuda-oom", when.phase)


def test_a_title_says_what_a_cut_traceback_does_not(verdict) -> None:
    text = (
        "# [Bug] NPU out of memory when tp=2\n\n"
        'Traceback (most recent call last):\n  File "train.py", line 3, in main\n    fit()\n'
        '  File "train.py", line 9, in validate\n    loss = net(batch)\n'
    )
    assert verdict(text) == ("cuda-oom", "eval")


def test_a_part_of_the_training_wins_over_the_training(verdict) -> None:
    text = "# CUDA out of memory\n\nI train on my GPU. When training comes to the second validation I get the error.\n"
    assert verdict(text) == ("cuda-oom", "eval")


def test_two_parts_are_no_answer(verdict) -> None:
    text = (
        "# A problem\n\nWhen saving the model I get an error, and when loading the checkpoint I get it too:\n"
        "RuntimeError: CUDA error: out of memory\n"
    )
    assert verdict(text) == ("cuda-oom", "unknown")


def test_a_programs_own_words_come_first(verdict) -> None:
    text = "# CUDA out of memory?\n\nI get this on my GPU:\nTraceback (most recent call last):\n"
    text += "  File \"train.py\", line 3, in main\n    x()\nKeyError: 'labels'\n"
    assert verdict(text)[0] == "other-error"


@pytest.mark.parametrize(
    "text",
    [
        "# How can I reduce GPU memory usage?\n\nThe model works well, but my GPU is nearly full. Can I avoid OOM?\n",
        "# Troubleshooting\n\nIf you get CUDA out of memory errors, reduce the batch size.\n\nWe hope this helps.\n",
        "# feat: recover from GPU OOM\n\nWe now catch CUDA out of memory and halve the batch, so I added a test.\n",
        "# Notes\n\nWe saw CUDA out of memory errors on smaller cards, so we use accumulation.\n",
        "# FAQ item missing: GPU out of memory\n\nI think we are missing a good item for it.\n",
        "# Reply\n\nTry a smaller image: on my GPU that would run out of GPU memory as well.\n",
        "# Report\n\nThe job was killed in the lab yesterday. Today I ran it again and it finished.\n",
        "# Fixed\n\nI no longer get CUDA out of memory with the last commit, thanks!\n",
        "# Running out of GPU memory\n\nReduce `--batch-size`.\n\n# A segfault\n\nReinstall the driver.\n",
    ],
)
def test_talk_about_a_death_is_none(text: str, verdict) -> None:
    assert verdict(text)[0] == "not-a-crash"


def test_a_long_log_is_not_read_for_sentences(verdict) -> None:
    text = "# GPU out of memory\n\nI get it on my GPU.\n" + "saved one more line\n" * 400
    assert verdict(text)[0] == "not-a-crash"

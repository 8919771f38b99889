"""The learned reader of posts: what is prose, what its words are, that its weights are there and small."""

from __future__ import annotations

import math
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oomproof.causes import CAUSES
from oomproof.evidence.texts import prose_reader
from oomproof.evidence.texts.death_mentions import candidates
from oomproof.evidence.texts.prose_features import speech, stem, words_of_text
from oomproof.evidence.texts.prose_parts import parts_of
from oomproof.evidence.texts.prose_reader import Instance, Model, ProseReading, models, read_prose

POST = """# The notebook keeps dying

I fit a model on 40 million rows. After ten minutes my kernel dies.
```
Epoch 1: 40%
```
somebody · comment · 2024-05-01
Is it killed by the system? See https://example.org/killed for more.
"""
LOG = "step 1 loss 0.4\n[rank0]: Traceback (most recent call last):\nRuntimeError: CUDA out of memory.\n"


def lines(text: str) -> list[tuple[int, str]]:
    return list(enumerate(text.splitlines(), 1))


def reading(text: str) -> ProseReading:
    found = read_prose(lines(text))
    assert found is not None
    return found


def test_a_person_s_words_and_a_program_s_are_told_apart() -> None:
    parts = parts_of(lines(POST))
    assert parts.title == (1, "The notebook keeps dying")
    assert [sentence for _, sentence in parts.sentences] == [
        "I fit a model on 40 million rows.",
        "After ten minutes my kernel dies.",
        "Is it killed by the system?",
        "See  urlx  for more.",
    ]
    assert parts.program == ("Epoch 1: 40%",)
    assert parts.is_prose


@pytest.mark.parametrize(
    "text",
    [
        "",
        LOG,
        "Some of your processes may have been killed by the cgroup out-of-memory handler.\n",
        "srun: job 3 has been allocated resources\nslurmstepd-n1: error: Detected 1 oom-kill event. Some of your processes may"
        " have been killed.\nsrun: error: n1: task 0: Out Of Memory\n",
        "I tensorflow/core/gpu_device.cc:885] Found device 0. The library is there, and it is used.\n"
        "The current process just got forked, after parallelism has already been used. To avoid deadlocks it is off.\n"
        "If you want to use it, you can set the variable before you start.\n",
    ],
)
def test_logs_are_left_to_the_rules(text: str) -> None:
    assert read_prose(lines(text)) is None


def test_stems_and_who_speaks() -> None:
    assert [stem(word) for word in ("crashes", "crashed", "killing", "stopped", "doesn't", "137", "loss")] == [
        "crash", "crash", "kill", "stop", "NOT", "0", "loss",
    ]  # fmt: skip
    assert "I" in speech(["my", "kernel"]) and "noI" in speech(["your", "kernel"])
    words = words_of_text(parts_of(lines(POST)))
    assert {"t:notebook", "p:kernel die", "P:die&I", "^the", "c:epoch"} <= words


@pytest.mark.parametrize(
    ("sentence", "cause"),
    [
        ("My RTX 3090 runs out of memory.", "cuda-oom"),
        ("It runs out of RAM on my server.", "python-memory-error"),
        ("On my MacBook with mps I get an OOM.", "mps-oom"),
        ("The pod gets OOMKilled.", "oom-kill-memcg"),
        ("The oom killer ended it under sbatch.", "slurm-oom"),
        ("I get std::bad_alloc.", "bad-alloc"),
        ("The kernel dies.", "killed-unknown"),
        ("It ends with a segfault.", "segfault"),
    ],
)
def test_what_a_sentence_may_tell(sentence: str, cause: str) -> None:
    text = f"# A question\n\n{sentence}\n"
    assert cause in [candidate.cause for candidate in candidates(parts_of(lines(text)), text)]


def test_the_weights_are_there_and_small_and_speak_of_causes_we_know() -> None:
    weights = Path(prose_reader.__file__).with_name("prose_weights.json")
    assert weights.stat().st_size < 150_000
    assert all(len(model.weights) > 1000 for model in models().values())
    named = {feature[2:] for feature in models()["told"].weights if feature.startswith("c=")}
    assert named <= set(CAUSES)


def test_the_wheel_carries_the_weights() -> None:
    project = Path(prose_reader.__file__).parents[4] / "pyproject.toml"
    assert '"evidence/texts/prose_weights.json"' in project.read_text()


def test_a_report_is_told_from_a_request() -> None:
    report = reading(
        "# Training is killed\n\nI train on my laptop and after an hour my process gets killed. Why?\n"
    )
    request = reading(
        "# Add a retry option\n\nThis PR adds an option to retry with a smaller batch when OOM errors occur. Tests are added.\n"
    )
    assert (
        report.reports > 0.9 and report.told[0].cause == "killed-unknown" and report.told[0].probability > 0.8
    )
    assert request.reports < 0.3


def test_words_count_the_less_the_more_there_are() -> None:
    model = Model(0.0, {"#x": 2.0, "a": 1.0, "b": 1.0})
    assert model.probability(Instance({"#x": 0.5}, set())) == pytest.approx(1 / (1 + math.exp(-1)))
    assert model.probability(Instance({}, {"a", "b", "unknown"})) == pytest.approx(
        1 / (1 + math.exp(-math.sqrt(2)))
    )


@settings(max_examples=25, deadline=None)
@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=1000))
def test_any_text_is_read(text: str) -> None:
    found = read_prose(lines(f"# {text}"))
    if found is not None:
        assert 0 <= found.reports <= 1 and all(0 <= told.probability <= 1 for told in found.told)


def test_long_lines_are_read_in_bounded_time() -> None:
    text = "# title\n" + "\n".join("the kernel the system process " * 400 for _ in range(150))
    begun = time.process_time()
    assert reading(text).told is not None
    assert time.process_time() - begun < 5

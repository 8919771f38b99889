"""`oomproof size -- CMD`: what is asked of the estimator, and what is printed of its answer."""

from __future__ import annotations

import json
from typing import Any

import pytest

from oomproof.cli.main import main
from oomproof.sizing import script_sizing
from oomproof.sizing.estimate import Estimate, Phase, Sizing
from oomproof.units import GIB, MIB

GPU = Estimate(
    9 * GIB, 10 * GIB, 11 * GIB, {"weights": 2 * GIB, "activations at the peak": 7 * GIB, "context": GIB}
)
HOST = Estimate(2 * GIB, 3 * GIB, 4 * GIB, {"process": GIB, "loader workers": 2 * GIB})
PHASES = (Phase("train", 10 * GIB, 3 * GIB, True), Phase("eval", None, None, False))
SIZED = Sizing(
    GPU,
    HOST,
    PHASES,
    "3 steps on a virtual GPU",
    notes=("2 writes were held off",),
    peak="loss.backward() train.py:41",
)
asked: list[Any] = []


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Sizing, int]]:
    """What the estimator answers next; it is a branch of its own and is tested there."""
    given: list[tuple[Sizing, int]] = []

    def size_command(argv: list[str], **options: Any) -> script_sizing.SizedScript:
        asked.append((argv, options))
        options["tell"]("building the model")
        return script_sizing.SizedScript(*given.pop())

    monkeypatch.setattr(script_sizing, "size_command", size_command)
    asked.clear()
    return given


def test_the_command_stays_as_it_is(
    answers: list[tuple[Sizing, int]], capsys: pytest.CaptureFixture[str]
) -> None:
    answers.append((SIZED, 0))
    words = ["python", "train.py", "--gpu", "2", "--json", "--", "-x"]
    assert (
        main(["size", "--gpu", "12G", "--ram", "32G", "--time-limit", "2m", "--allow-writes", "--", *words])
        == 0
    )
    ((argv, options),) = asked
    assert (
        argv == words
        and options["time_limit"] == 120
        and options["gpu_total"] == 12 * GIB
        and options["allow_writes"] is True
    )
    told = capsys.readouterr()
    assert "building the model" in told.err
    text = " ".join(told.out.split())
    for part in (
        "GPU: 10.0 GiB expected, 9.0 GiB to 11.0 GiB", "activations at the peak 7.0 GiB", "RAM: 3.0 GiB expected",
        "loader workers 2.0 GiB", "peak loss.backward() train.py:41", "eval not reached", "basis 3 steps on a virtual GPU",
        "note 2 writes were held off", "fits in 32.0 GiB of RAM", "fits on a 12.0 GiB card",
        "oomproof run --need 4G --gpu-need 11G -- python train.py --gpu 2 --json -- -x",
    ):  # fmt: skip
        assert part in text, text


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--ram", "32G", "--gpu", "8G"], "Next: make it smaller"),
        (
            ["--ram", "32G", "--gpu", "16G"],
            "Next: start it with its need: oomproof run --need 4G --gpu-need 11G",
        ),
        (
            ["--ram", "32G"],
            "No card to compare with; of one with 24 GiB: oomproof size --gpu 24G -- CMD Next: on the machine",
        ),
    ],
)
def test_what_to_type_next(
    answers: list[tuple[Sizing, int]],
    capsys: pytest.CaptureFixture[str],
    flags: list[str],
    expected: str,
) -> None:
    answers.append((SIZED, 0))
    assert main(["size", *flags, "--", "train"]) == 0
    assert expected in " ".join(capsys.readouterr().out.split())


def test_json(answers: list[tuple[Sizing, int]], capsys: pytest.CaptureFixture[str]) -> None:
    answers.append((SIZED, 0))
    assert main(["size", "--json", "--gpu", "8G", "--", "train"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert (
        value["schema"] == 1
        and value["gpu"]["expected_bytes"] == 10 * GIB
        and value["phases"][1]["reached"] is False
    )
    assert [(judged["status"], judged["short_by_bytes"]) for judged in value["verdicts"]] == [
        ("never", 2 * GIB)
    ]


def test_a_script_that_fails_by_itself_keeps_its_status(
    answers: list[tuple[Sizing, int]], capsys: pytest.CaptureFixture[str]
) -> None:
    answers.append((Sizing(None, None, (), "", refused="it failed by itself"), 3))
    assert main(["size", "--gpu", "8G", "--", "train"]) == 3
    assert not capsys.readouterr().out, "its own error has been shown"


def test_what_is_refused_is_said(
    answers: list[tuple[Sizing, int]], capsys: pytest.CaptureFixture[str]
) -> None:
    answers.append(
        (
            Sizing(
                None, None, (), "", refused="a custom CUDA extension cannot be followed: use oomproof.size()"
            ),
            0,
        )
    )
    assert main(["size", "--ram", "8G", "--", "train"]) == 2
    assert "Not sized: a custom CUDA extension" in capsys.readouterr().out


def test_a_job_without_a_gpu(answers: list[tuple[Sizing, int]], capsys: pytest.CaptureFixture[str]) -> None:
    answers.append((Sizing(None, Estimate(MIB, MIB, MIB, {}), (), "CPU"), 0))
    assert main(["size", "--ram", "8G", "--", "train"]) == 0
    assert "oomproof run --need 1M -- train" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words",
    [["--"], ["model", "--", "train"], ["--context", "5", "--", "train"], ["--batch", "5", "--", "train"], ["--time-limit", "5s", "model"], ["--time-limit", "soon", "--", "x"]],
)  # fmt: skip
def test_what_does_not_go_together(
    words: list[str], answers: list[tuple[Sizing, int]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["size", *words]) == 2 and "hint: " in capsys.readouterr().err and not asked

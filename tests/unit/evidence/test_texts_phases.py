"""What the job was doing: from a traceback's frames, from a stack, and from headings."""

from __future__ import annotations

import pytest

from oomproof.evidence.texts import phases
from oomproof.evidence.texts.phases import of_frames, of_stack
from oomproof.evidence.texts.root_failure import root
from oomproof.evidence.texts.training_parser import TrainingParser

LIBRARY = "/venv/lib/python3.11/site-packages"


def phase_of(text: str) -> str:
    parser = TrainingParser("-")
    for number, line in enumerate(text.splitlines(), 1):
        parser.feed(number, line)
    found = root(parser.finish())
    assert found is not None
    return found.job.phase


@pytest.mark.parametrize(
    ("frames", "phase"),
    [
        ([("train.py", "<module>", "from apex import amp")], "load"),


        ([("train.py", "training", "s = Scene()"), ("scene/__init__.py", "__init__", "x")], "load"),


        ([("run.py", "train_epoch", "x"), ("d.py", "__getitem__", "x"), ("d.py", "load_image", "x")], "train"),
        ([("run.py", "train_epoch", "x"), ("rpn.py", "generate_proposals", "x")], "train"),

        ([("run.py", "train", "x"), ("run.py", "upload", "x")], "train"),

        ([("run.py", "fit", "x"), ("run.py", "validate", "x")], "eval"),
        ([("run.py", "main", "x"), ("run.py", "loadTrainData", "x")], "load"),
        ([("run.py", "TrainOneEpoch", "x"), ("net.py", "forward", "x")], "train"),



        ([("run.py", "train", "hook()"), ("hooks.py", "after_train_epoch", "self._save_checkpoint(runner)")], "save"),
        ([("run.py", "main", "step()"), ("run.py", "step", "loss.backward()")], "train"),




        ([("run.py", "<module>", "x"), ("run.py", "get_data", "a[0]")], "load"),
        ([("aug.py", "main", "x"), ("aug.py", "process_and_save_features", "np.concatenate(a)")], "unknown"),
        ([("utils/preprocess.py", "<module>", "main()"), ("utils/preprocess.py", "main", "a[1]")], "load"),



        ([("s.py", "serve", "x"), ("s.py", "warmup", "x")], "load"),

        ([("t.py", "main", "x"), ("t.py", "DumpModels", "x")], "save"),

        ([("t.py", "train", "x"), (f"{LIBRARY}/wandb/sdk/lib/sock.py", "load_settings", "x")], "train"),
        ([("run.py", "<module>", "work()"), ("run.py", "work", "a / b")], "unknown"),
        ([("solve.py", "<module>", "pickle.dump(result, file)")], "save"),

    ],
)  # fmt: skip
def test_frames(frames: list[tuple[str, str, str]], phase: str) -> None:
    assert of_frames(frames) == phase


def test_a_stack_of_the_thread_that_died() -> None:
    lines = [
        "Thread 0x01 (most recent call first):",
        '  File "/p/load.py", line 3 in load_all',
        "Current thread 0x02 (most recent call first):",
        '  File "/p/net.py", line 20 in forward',
        '  File "/p/a.py", line 50 in train_step',
        "Thread 0x03 (most recent call first):",
        '  File "/p/b.py", line 5 in evaluate',
    ]
    assert of_stack(lines) == "train"


@pytest.mark.parametrize(
    ("line", "phase"),
    [
        ("Start training for 3 epochs", "train"),
        ("\t Started Training", "train"),
        ("loss function: mse", ""),
        ("Evaluation", "eval"),
        ("Test: [ 10/391]  Time 0.1", "eval"),
        ("Preparing data ...", "load"),
        ("Loading data... done", ""),
        ("hello", ""),
    ],
)
def test_headings(line: str, phase: str) -> None:
    assert phases.of_heading(line) == phase


@pytest.mark.parametrize(
    ("text", "phase"),
    [
        ("ModuleNotFoundError: No module named 'x'", "load"),
        ("Epoch 3\nModuleNotFoundError: No module named 'x'", "train"),
        ("ValueError: bad", "unknown"),
    ],
)
def test_errors_that_come_at_the_start(text: str, phase: str) -> None:
    assert phase_of(text) == phase


def test_a_nan_found_at_scoring_was_made_in_training() -> None:
    frames = '  File "a.py", line 3, in train_model\n    x\n  File "a.py", line 9, in evaluate\n    x\n'
    header = "Traceback (most recent call last):\n"
    assert phase_of(f"{header}{frames}ValueError: Input contains NaN.") == "train"
    assert phase_of(f"{header}{frames}ValueError: bad") == "eval"


def test_a_loss_that_is_no_number_is_the_trainings() -> None:
    text = (
        "Epoch 0:   0%|    | 16/224174 [01:41<395:02:20,  0.16it/s, loss=1.0]\n"
        "[Data] Loading video: /d/a.mp4\n[Module] training_step -> loss: nan\n"
    )
    assert phase_of(text) == "train"


def test_a_wrapper_that_tells_nothing_does_not_hide_the_phase() -> None:
    text = (
        "Error executing job with overrides: []\n"
        'Traceback (most recent call last):\n  File "run.py", line 3, in main\n    net = build()\n'
        '  File "run.py", line 9, in build_model\n    x()\nValueError: bad width\n'
    )
    assert phase_of(text) == "load"


BAR = " {percent}%|███       | {step}/400 [00:{step:02}<01:21,  8.0it/s]"


def loop(*lines: str) -> str:
    return phase_of(
        "\n".join([*lines, "slurmstepd: error: *** JOB 42 ON n1 CANCELLED AT 2026-01-02T03:04:05 ***"])
    )


def test_a_bare_bar_below_an_epoch_is_a_training() -> None:
    bars = [BAR.format(percent=step // 4, step=step) for step in range(10, 50, 10)]
    assert loop("Epoch 1/30", *bars) == "train"
    assert loop("Epoch 1/30", *bars, "Evaluating", *bars[:1]) == "eval"
    assert loop("Loaded the model of epoch: 30", *bars) == "unknown"
    other = bars[0].replace("/400", "/80")
    assert loop("Epoch 1/30", *bars, other) == "unknown", "which of the two loops trains nobody says"


def test_a_loop_that_saves_on_its_way_is_a_training() -> None:
    bars = [BAR.format(percent=step // 4, step=step) for step in range(10, 50, 10)]
    assert loop("Hello", *bars[:2], "Saving model to a.pt", *bars[2:]) == "train"
    assert loop("Hello", *bars[:2], "Saving model to a.pt") == "save"


@pytest.mark.parametrize(
    ("line", "phase"),
    [
        ("      #Test samples 1000", ""),
        ("      #Val samples 300", ""),
        ("Test samples: accuracy 0.9", ""),
        ("Testing", "eval"),
    ],
)
def test_what_a_line_announces(line: str, phase: str) -> None:
    assert phases.of_heading(line) == phase


def test_a_notebooks_frames_as_they_are_copied() -> None:
    link = "](https://localhost:8080/#)"
    text = (
        "OutOfMemoryError                 Traceback (most recent call last)\n"
        f"[<ipython-input-7-2c9b0f02eea8>{link} in <cell line: 3>()\n      1 x = 1\n----> 3 evaluate(model)\n\n"
        f"[<ipython-input-6-2c9b0f02eea8>{link} in evaluate(model)\n     11 \n---> 12     model(batch)\n\n"
        "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n"
    )
    assert phase_of(text) == "eval"

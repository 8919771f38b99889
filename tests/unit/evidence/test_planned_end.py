"""When a run ends by itself: by its trainer's plan, or by its own progress bar where that counts the run's steps."""

from __future__ import annotations

from pathlib import Path

import pytest

from oomproof.evidence.planned_end import PlannedEnd, planned_end
from oomproof.recording.reader import open_recording
from oomproof.recording.writer import Writer


def planned(
    folder: Path, printed: str, steps: int | None = 472, plan: dict[str, object] | None = None
) -> PlannedEnd | None:
    """Two seconds a step; with the last one the job has printed this."""
    writer = Writer(folder / "recording.sqlite", {})
    end = 2.0 * (steps or 10)
    for step in range(2, (steps or 0) + 1, 2):
        writer.put("phase", (2.0 * step, "train", step, 7, None, None))
    if plan is not None:
        writer.event(3.0, "agent:plan", "", pid=7, **plan)
    writer.close()
    log = folder / "output.log"
    log.write_text(printed)
    with open_recording(folder / "recording.sqlite").series() as series:
        return planned_end(series, series.phase_marks(), end, [folder / "none", log])


BAR = " 42%|████      | {}/{} [15:44<21:40,  2.0s/it, loss=1.2]"


def test_the_plan_comes_first(tmp_path: Path) -> None:
    ends = planned(tmp_path, BAR.format(472, 600), plan={"steps": 1122, "epoch_steps": 66})
    assert ends == PlannedEnd(472, 1122, pytest.approx(1300), "its trainer", 66)


@pytest.mark.parametrize(
    ("printed", "total"),
    [
        (BAR.format(472, 1122), 1122),
        ("\r".join(BAR.format(step, 1122) for step in range(440, 473)), 1122),
        (f"{BAR.format(471, 1122)}\n 50%|█████     | 5/10 [00:02<00:02, 2.0it/s]", 1122),
        ("Epoch 5/12:  90%|█████  | 72/100 [02:24<00:20, 2.0s/it]", 1200),
        ("Epoch 4/12:  90%|█████  | 72/100 [02:24<00:20, 2.0s/it]", 1200),
        ("step 472/1122 loss 1.2", 1122),
        ("loss 1.2\nloss 1.1", None),
        (BAR.format(40, 66), None),
        (BAR.format(472, 470), None),
        ("", None),
    ],
    ids=["a bar", "redrawn", "an evaluation's below", "of an epoch, from 1", "from 0", "plain", "no count",
         "of something else", "past its end", "silent"],
)  # fmt: skip
def test_its_own_bar(tmp_path: Path, printed: str, total: int | None) -> None:
    ends = planned(tmp_path, printed)
    assert (ends.total if ends else None) == total
    assert ends is None or (
        ends.seconds == pytest.approx(2.0 * (total - 472)) and ends.told_by == "its progress bar"
    )  # type: ignore[operator]


def test_without_steps_a_single_bar_tells(tmp_path: Path) -> None:
    ends = planned(tmp_path, BAR.format(472, 1122), steps=None)
    assert ends is not None and ends.seconds == pytest.approx((15 * 60 + 44) / 472 * 650)


def test_without_steps_two_bars_tell_nothing(tmp_path: Path) -> None:
    assert planned(tmp_path, f"{BAR.format(472, 1122)}\n{BAR.format(3, 10)}", steps=None) is None


@pytest.mark.parametrize("plan", [{"steps": "many"}, {"steps": 100}, {"steps": -1}, {}])
def test_a_plan_that_is_none(tmp_path: Path, plan: dict[str, object]) -> None:
    assert planned(tmp_path, "", plan=plan) is None

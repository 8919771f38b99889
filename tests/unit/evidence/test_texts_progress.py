"""Signs of progress, in the wording of each trainer."""

from __future__ import annotations

from pathlib import Path

import pytest

from oomproof.diagnosis.judge import judge_texts
from oomproof.evidence.texts.finding import Progress
from oomproof.evidence.texts.progress import read_sign
from oomproof.evidence.texts.text_case import read_texts
from oomproof.evidence.texts.training_parser import TrainingParser


@pytest.mark.parametrize(
    ("text", "step", "total", "epoch", "phase"),
    [
        (" 45%|████▌     | 450/1000 [00:10<00:12, 44.21it/s]", 450, 1000, None, "unknown"),
        ("Epoch 3:  45%|████▌     | 450/1000 [00:10<00:12, 44.21it/s, loss=0.2]", 450, 1000, 3.0, "train"),
        ("Validation DataLoader 0:  10%|█         | 4/40 [00:01<00:09]", 4, 40, None, "eval"),
        ("Loading checkpoint shards:  33%|███▎      | 1/3 [00:10<00:20, 10.0s/it]", 1, 3, None, "load"),
        (" 1%|  | 1/90 [0:0] 2%|  | 2/90 [00:02<01:00]", 2, 90, None, "unknown"),
        ("117it [00:10, 11.2it/s]", 117, None, None, "unknown"),
        ("{'loss': 0.5, 'learning_rate': 5e-05, 'epoch': 0.52}", None, None, 0.52, "train"),
        (" 117/938 [==>...........................] - ETA: 2s - loss: 0.3", 117, 938, None, "train"),
        ("117/938 ━━━━━━━━━━━━━━━━━━━━ 2s 3ms/step - loss: 0.3", 117, 938, None, "train"),
        ("Epoch 0/9 ━━━━━━━━━━╸━━━━━━━━━ 117/938 0:00:01 • 0:00:12 68.41it/s", 117, 938, 0.0, "train"),
        ("[Step 60/100] Loss: 0.0 | Tokens/s: 41.56", 60, 100, None, "train"),
        ("epoch=0/micro_step=60/global_step=61, RunningAvgSamplesPerSec=0.11", 60, None, 0.0, "train"),
        (" iteration      100/  500000 | consumed samples: 6400 | lm loss: 9.9", 100, 500000, None, "train"),
        ("Epoch: [3][ 117/5005]  Time 0.3  Loss 2.1", 117, 5005, 3.0, "train"),
        ("Epoch [3/10], Step [100/600], Loss: 0.1", 100, 600, 3.0, "train"),
        ("===> Epoch[10](2500/2500): Loss: 0.4430", 2500, 2500, 10.0, "train"),
        ("Test:  [ 10/ 79]  eta: 0:00:21  acc1: 71.5  time: 0.3", 10, 79, None, "eval"),
        ("Test:  [78/79]  eta: 0:00:00  acc1: 71.5  time: 0.3", 79, 79, None, "eval"),
        ("Train Epoch: 1 [640/60000 (1%)]\tLoss: 2.3", 640, 60000, 1.0, "train"),
        ("iter 117: loss 3.2, time 200ms", 117, None, None, "train"),
        ("step 117", 117, None, None, "unknown"),
        ("After 2600 training step(s), loss on training batch is 1.38629.", 2600, None, None, "train"),
        ("epoch 002:    117 / 938 loss=9.1", 117, 938, 2.0, "train"),
        ("Epoch 4 (validation) acc=0.91:   2%|▏         | 20/1094 [00:41<11:04]", 20, 1094, 4.0, "eval"),
        ("Epoch 4, val loss 0.31, step 90/100", 90, 100, 4.0, "train"),
        ("Tokenizing train dataset:  33%|███▎      | 100/300 [00:10<00:20]", 100, 300, None, "load"),
        (
            "   2/99     7.3G      1.2      3.2        91:  12%|█▏        | 12/100 [00:07<00:45]",
            12,
            100,
            None,
            "train",
        ),
        ("____________Epoch 1/3", None, None, 1.0, "train"),
        ("eta: 1:00:00  iter: 119  total_loss: 8.1  lr: 0.02", 119, None, None, "train"),
    ],
)
def test_signs(text: str, step: int | None, total: int | None, epoch: float | None, phase: str) -> None:
    sign = read_sign(text)
    assert sign is not None
    assert (sign.step, sign.total, sign.epoch, sign.phase) == (step, total, epoch, phase)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("Epoch 3:  45%|████▌     | 450/1000 [00:59<01:22, 44.21it/s, loss=0.2]", 59),
        ("  1%|▏  | 4/900 [1:02:03<9:03:00,  2.00s/it]", 3723),
        ("Epoch 0/9 ━━━━━━━━━━╸━━━━━━━━━ 117/938 0:01:59 • 0:00:12 68.41it/s", 119),
        ("117/938 ━━━━━━━━━━━━━━━━━━━━ 2s 3ms/step - loss: 0.3", None),
        ("12:30:01 step 117/938", None),
    ],
)
def test_a_bar_tells_how_long_it_has_run(text: str, seconds: int | None) -> None:
    sign = read_sign(text)
    assert sign is not None and sign.uptime == seconds


@pytest.mark.parametrize(
    "text",
    [
        "batch size: 8",
        "max_steps 100",
        "num_epochs = 3",
        "hello",
        "",
        "step-by-step guide",
        "Total optimization steps = 900",
        "4711 Killed   python3 fit.py --epochs 9",
    ],
)
def test_settings_are_no_signs(text: str) -> None:
    assert read_sign(text) is None


def test_a_bar_cut_in_the_middle_keeps_the_step_before() -> None:
    parser = TrainingParser("-")
    parser.feed(1, "  4%|▍  | 463/9000 [00:10<03:00]\r  5%|▍  | 464/9000 [00:10<03:00]\r  5%|▍  | 46")
    parser.feed(2, "Killed")
    found = parser.finish()
    assert [each.cause for each in found] == ["killed-unknown"]
    assert (parser.progress.step, parser.progress.total) == (464, 9000)
    assert parser.end == "Killed"


def test_the_bar_that_is_drawn_again_after_the_error_is_no_progress() -> None:
    parser = TrainingParser("-")
    lines = (
        "Training:  40%|████      | 400/1000 [01:00<01:30]",
        "Traceback (most recent call last):",
        '  File "train.py", line 3, in train',
        "    step()",
        "ValueError: bad",
        "Training:  40%|████      | 400/1000 [01:01<01:31]",
        "Epochs:  10%|█         | 1/10 [01:01<09:31]",
    )
    for number, line in enumerate(lines, 1):
        parser.feed(number, line)
    assert [each.job.role for each in parser.finish()] == ["root"]


def test_the_phase_of_the_death_wins() -> None:
    parser = TrainingParser("-")
    lines = (
        "Epoch 3:  45%|████▌     | 450/1000 [00:10<00:12, 44.21it/s, loss=0.2]",
        "Traceback (most recent call last):",
        '  File "run.py", line 3, in validate',
        "    step()",
        "ValueError: bad",
    )
    for number, line in enumerate(lines, 1):
        parser.feed(number, line)
    parser.finish()
    assert (parser.progress.step, parser.progress.phase) == (450, "eval")


BAR = "  1%|▏         | {}/{} [00:10<03:00,  2.00s/it]"
LOSS = "{'loss': 0.5, 'grad_norm': 1.0, 'epoch': 0.1}"


@pytest.mark.parametrize(
    ("lines", "phase"),
    [
        (
            [BAR.format(10, 900), LOSS, BAR.format(11, 900), "done training"],
            "train",
        ),  # a bar without words beside a loss
        (["[10]\ttraining's auc: 0.86\tvalid_1's auc: 0.68", "best iteration: 4"], "train"),
        (["Epoch 2", BAR.format(9, 9), "[INFO] Evaluation", BAR.format(7, 7), "score 0.4"], "train"),
        (["Loading data ... done", "hello"], "unknown"),
        (["Testing 50/50"], "eval"),
        (["Dec  3 04:02:11 box loader: Loading modules"], "unknown"),
    ],
)
def test_the_phase_of_a_text_without_a_death(tmp_path: Path, lines: list[str], phase: str) -> None:
    log = tmp_path / "job.log"
    log.write_text("\n".join(lines))
    verdict = judge_texts(read_texts([str(log)]))
    assert (verdict.cause, verdict.phase) == ("not-a-crash", phase)


def test_another_bar_after_a_loss_tells_no_phase() -> None:
    parser = TrainingParser("-")
    for number, line in enumerate([BAR.format(10, 900), LOSS, BAR.format(1, 20), "Killed"], 1):
        parser.feed(number, line)
    (found,) = parser.finish()
    assert (found.cause, found.job.phase) == ("killed-unknown", "unknown")


def last(text: str) -> Progress:
    parser = TrainingParser("-")
    for number, line in enumerate(text.splitlines(), 1):
        parser.feed(number, line)
    parser.finish()
    return parser.progress


def every(stride: int, total: int, last: int, epochs: str = "2/2") -> str:
    return "".join(
        f"Epoch {epochs}, step {step}/{total}, loss = 0.001\n" for step in range(stride, last + 1, stride)
    )


def test_a_counter_that_is_told_every_tenth_step_ends_at_the_last_tenth() -> None:
    assert last(every(10, 542, 540)).unfinished is False
    assert last(every(10, 542, 540) + "RMSE 30.96, MAPE 0.39\n").unfinished is False
    assert last(every(10, 542, 530)).unfinished is True
    assert last(every(10, 542, 540, "1/3")).unfinished is True, "an epoch is left"


def test_a_bar_drawn_now_and_then_has_no_pace() -> None:
    bars = "".join(f"{step}%|###| {step}/100 [00:{step:02}<00:01, 1.0it/s]\n" for step in (40, 50, 60, 95))
    assert last(bars).unfinished is True
    bars = "".join(f"{step}%|###| {step}/97 [00:{step:02}<00:01, 1.0it/s]\n" for step in (75, 80, 85, 90, 95))
    assert last(bars).unfinished is True


BLOCK = "\nTime Step {n}, time = {n}.5e+06, dt = 1000\nSolve Converged!\n  Finished Solving [ 9.{n} s]\n"


def test_a_text_that_stops_inside_a_step_s_block_of_lines_is_cut_off() -> None:
    whole = "".join(BLOCK.format(n=step) for step in range(1, 9))
    assert last(whole).unfinished is None or last(whole).unfinished is False
    assert last(whole + "\nTime Step 9, time = 9.5e+06, dt = 1000\n").unfinished is True
    few = "".join(BLOCK.format(n=step) for step in range(1, 3))
    assert not last(few + "\nTime Step 3, time = 3.5e+06, dt = 1000\n").unfinished, "two blocks are no habit"


def test_a_line_for_each_step_is_no_block() -> None:
    assert not last("".join(f"After {n} training step(s), loss is 1.38\n" for n in range(90))).unfinished
    assert not last("".join(f"\nTime Step {n}\n" for n in range(90))).unfinished


def test_a_loop_that_says_that_it_finished_is_finished() -> None:
    loop = "".join(f"Iter {n}/8000 Loss: 0.3{n}\n" for n in range(1, 7000, 700))
    assert last(loop).unfinished is True
    for end in (
        "Finished after 8000 iterations.",
        "INFO - run.py - 2023-07-15 13:49:17,758 - Finished after 8000 iterations.",
    ):
        assert not last(loop + end + "\nSaving final checkpoint.\n").unfinished


def test_signs_without_a_total_between_those_of_a_bar_do_not_break_its_pace() -> None:
    lines = [f"Snapshot at step {n}\nIter {n + 1}/8000 Loss: 0.3\n" for n in range(0, 8000, 500)]
    assert last("".join(lines)).unfinished is False, "after 7501 of 8000, told every 500, nothing is to come"
    assert last("".join(lines[:-1])).unfinished is True


def test_the_last_step_of_a_bar_may_be_told_in_words() -> None:
    bar = "".join(f"{n}%|###| {n * 30}/3000 [00:{n // 2:02}<00:01, 1.0it/s]\n" for n in range(20, 99, 11))
    assert last(bar).unfinished is True
    assert not last(bar + "[step=3000] episode=3000 reward=1.5\n").unfinished
    assert last(bar + "[step=2970] episode=2970 reward=1.5\n").unfinished


def test_a_counter_in_brackets_is_no_prefix() -> None:
    sign = last("INFO:root:[epoch 3/15] average loss: 0.31\n")
    assert (sign.epoch, sign.epochs, sign.unfinished) == (3.0, 15, True)


def test_dashes_before_a_heading_are_no_arrow() -> None:
    assert last("-- Epoch 9 / 50\n").unfinished is True
    assert last("--steps 500\n").step is None, "an option of a command"
    assert last("--> 9 for epoch in range(epoch, 50):  # Epoch 9 / 50\n").epoch is None


def test_a_count_at_the_start_of_each_line_is_progress() -> None:
    fetched = "".join(f"[{n}/19796] [ERROR] video {n} is private\n" for n in range(7900, 7954))
    sign = last(fetched)
    assert (sign.step, sign.total, sign.unfinished) == (7953, 19796, True)
    for count in (19796, 19795):  # counted from 1, or from 0
        whole = "".join(f"{n}/19796 -> video\n" for n in range(count - 9, count + 1))
        assert not last(whole).unfinished
    assert not last(fetched + "42 videos are private\n").unfinished
    assert last("3/4 of them are private\n").step is None
    dates = "".join(f"{month}/24 was a good month\n" for month in (7, 12, 3, 11, 5, 4))
    assert last(dates).step is None


OUTER = "Epochs:  {percent}%|▎         | {done}/30 [{done:02}:59<10:00, 59.9s/it]\n"


def test_a_bar_around_the_bars_of_the_steps_tells_the_epoch() -> None:
    inner = " 42%|████▏     | 472/1122 [00:59<01:21,  8.0it/s, loss=0.4]\n"
    sign = last(OUTER.format(percent=3, done=1) + inner)
    assert (sign.epoch, sign.epochs, sign.bar, sign.unfinished) == (2.0, 30, (472, 1122), True)
    whole = " 100%|██████████| 1122/1122 [02:20<00:00,  8.0it/s, loss=0.4]\n"
    assert (
        last(OUTER.format(percent=93, done=28) + whole + OUTER.format(percent=100, done=30)).unfinished
        is False
    )
    steps = last("Epoch:  45%|████▌     | 450/1000 [00:10<00:12, 44.21it/s, loss=0.2]\n")
    assert (steps.step, steps.total) == (450, 1000)


def count(*counts: str, head: str = "Loading data") -> Progress:
    return last("\n".join([head, *counts]))


def test_a_count_may_stand_anywhere_in_its_line() -> None:
    stopped = count(*(f"stored item {number} of 250 in shard {number % 7}" for number in range(11, 19)))
    assert (stopped.bar, stopped.unfinished) == ((18, 250), True)
    ended = count(*(f"stored item {number} of 18 in shard {number % 7}" for number in range(11, 19)))
    assert not ended.unfinished


def test_a_count_whose_words_change_and_one_that_grows_on_one_line() -> None:
    words = ("new", "kept", "broken", "new", "kept", "kept")
    changing = count(*(f"{word} 40{number}/9000 {word}.wav" for number, word in enumerate(words, 1)))
    assert (changing.bar, changing.unfinished) == ((406, 9000), True)
    grown = count("TRAIN  " + "  ".join(f"{number}00/9050" for number in range(1, 8)))
    assert (grown.bar, grown.unfinished) == ((700, 9050), True)
    out = count("TRAIN  " + "  ".join(f"{number}00/750" for number in range(1, 8)))
    assert not out.unfinished, "every hundredth is told: 700 of 750 is the last"


def test_the_next_round_of_a_count_that_was_whole_before() -> None:
    whole = [f"part {number}/12" for number in range(1, 13)]
    assert count(*whole, "part 1/12", "part 2/12").unfinished
    assert not count(*whole, *whole).unfinished
    assert not count("right: 70/120", "right: 64/120", "right: 81/120", "right: 82/120").unfinished, (
        "a score goes up and down"
    )


def test_two_of_many_at_the_start_of_their_lines() -> None:
    assert count("1/60 -> a.mat", "2/60 -> b.mat", head="").unfinished
    assert count("0/60 -> a.mat", ">> 1/60 -> b.mat", "2/60 -> c.mat", head="").unfinished
    assert not count("4/60 -> a.mat", "9/60 -> b.mat", head="").unfinished
    assert not count("run of 03/12/2021", "run of 04/12/2021", "run of 05/12/2021").unfinished, "dates"


def test_what_a_loop_prints_between_its_signs_is_not_its_end() -> None:
    table = ["best so far (0.31)", "kept: 0.1, 0.2", "share of data", "samples drawn", "-----"]
    epoch = [f"[epoch: 3/20, iter: {number}/90] total: 1.2" for number in (10, 20, 30, 40)]
    stopped = last("\n".join([*epoch[:2], *table, *epoch[2:], *table]))
    assert stopped.unfinished
    assert not last("\n".join([*epoch, *table])).unfinished, "never seen before: perhaps its end"


def test_the_planned_epochs_stand_in_the_same_brackets() -> None:
    lines = [f"Epoch: [10/52] Iter:[{number}/247], Loss: 1.9" for number in range(10, 250, 10)]
    assert last("\n".join(lines)).epochs == 52
    assert last("\n".join(lines)).unfinished, "an epoch is over, and more were planned"


def test_a_test_after_an_early_end_has_no_epochs_left() -> None:
    lines = ["Epoch: 40/1000 loss: 0.3", "Finished training: runs/a", "[test] step: [1 / 1] loss 0.4"]
    assert not last("\n".join(lines)).unfinished
    assert last("\n".join([lines[0], lines[2]])).unfinished


def test_a_bar_that_runs_past_its_total_is_out() -> None:
    bar = " 99%|█████████▉| {}/2000 [59:40<00:20,  3.0s/it, loss=0.4]\n".format
    assert last(bar(1998)).unfinished
    assert not last(bar(1998) + "d: 0.1: : 2001it [59:52,  3.0s/it]\n").unfinished
    assert last(bar(1998) + "step 2001 loss 0.3\n").bar == (1998, 2000), "another counter"


def test_steps_that_count_on_below_a_loss_are_the_training_s() -> None:
    told = "global step 300 learning rate 0.05 step-time 10.8\n"
    assert last(told + "step: 300\nstep: 301\nstep: 302\n").phase == "train"
    assert last(told + "417it [00:10, 11.2it/s]\n").phase == "unknown", "another loop's bar"


@pytest.mark.parametrize(
    "lines",
    [
        [f"round {number}: test accuracy {8000 + 90 * number}/10000" for number in range(8)],
        [f"round {number}: correct {500 + 37 * number} of 1000" for number in range(8)],
        [f"| N/A 20C P0 {20 + number} / 300 W | {200 + 30 * number} / 8000 MiB |" for number in range(8)],
        [f"disk use {100 + 2 * number}/512 GB" for number in range(8)],
    ],
)
def test_what_was_got_right_or_is_full_is_no_progress(tmp_path: Path, lines: list[str]) -> None:
    log = tmp_path / "job.log"
    log.write_text("\n".join(lines) + "\n")
    assert judge_texts(read_texts([str(log)])).cause == "not-a-crash"

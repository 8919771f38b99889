"""Several deaths of one job: what they share, what they exclude, how sure one may be. I2 with its real numbers."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oomproof.diagnosis.death_patterns import Ending, MemoryAtEnd, Patterns, Statement, find_patterns
from oomproof.diagnosis.endings import endings_of_runs, endings_of_texts, runs_of
from oomproof.evidence import run_settings
from oomproof.recording.writer import Writer
from oomproof.reports.pattern_report import patterns_text

GIB, DAY = 1 << 30, 86400.0
I2 = ((117, "cpu"), (464, "mps"), (472, "cpu"), (927, "mps"), (951, "cpu"))


def about(patterns: Patterns, topic: str) -> Statement:
    return next(each for each in patterns.statements if each.topic.startswith(topic))


def deaths(*steps: int, **common: Any) -> list[Ending]:
    return [
        Ending(f"run{n}", "silent-end", wall=1.7e9 + n * n * DAY, step=step, **common)
        for n, step in enumerate(steps)
    ]


# I2


def i2() -> Patterns:
    settings = {"gradient_accumulation_steps": "16", "batch_size": "32"}
    return find_patterns(
        [
            Ending(
                f"run{n}", "silent-end", wall=1.7e9 + n**2 * DAY, step=step, device=device, settings=settings
            )
            for n, (step, device) in enumerate(I2)
        ]
    )


def test_i2_rules_out_one_step_one_device_and_optimizer_steps() -> None:
    patterns = i2()
    found = {statement.text for statement in patterns.statements if statement.found == "excluded"}
    assert found == {
        "not at one step: 117, 464, 472, 927, 951, spread over 834 steps",
        "not tied to optimizer steps: 117, 472, 951 are no multiples of 16; at or next to one: 464, 927",
        "not tied to one device: cpu 3, mps 2",
    }
    assert not [statement for statement in patterns.statements if statement.found == "tied"]
    assert "in none of 5 deaths 13% of the time" in patterns.caution


def test_i2_from_its_logs(tmp_path: Path) -> None:
    """Five logs that just stop: no traceback, no "Killed"."""
    paths = []
    for n, (step, device) in enumerate(I2, 1):
        lines = [
            f"Using device: {device}",
            "Config: batch_size=32 gradient_accumulation_steps=16 eval_steps=50",
        ]
        lines += [
            f"2025-09-0{n} 0{n}:{b % 60:02d}:00 Epoch 1 batch {b}/2310 loss 0.43" for b in range(1, step + 1)
        ]
        path = tmp_path / f"run{n}.log"
        path.write_text("\n".join(lines) + "\n")
        paths.append(str(path))
    endings = endings_of_texts(paths)
    assert [(each.step, each.device, each.cause, each.died) for each in endings] == [
        (step, device, "silent-end", True) for step, device in I2
    ]
    text = " ".join(patterns_text(find_patterns(endings)).split())
    assert "117, 472, 951 are no multiples of 16" in text
    assert "not tied to evaluations" in text and "not tied to epoch ends" in text
    assert "117/2310" in text and "Epoch 1 batch 951/2310" in text


@pytest.mark.parametrize(
    ("clock", "program", "cause"),
    [
        ("2026-11-01T04:00:00", "python", "silent-end"),  # of another day
        ("2026-11-10T10:00:30", "python", "segfault"),
        ("2026-11-10T10:00:30", "firefox", "silent-end"),
    ],
)
def test_a_fault_in_a_system_log_explains_a_log_only_around_its_end(
    tmp_path: Path, clock: str, program: str, cause: str
) -> None:
    log, system = tmp_path / "train.log", tmp_path / "kern.log"
    log.write_text("2026-11-10 10:00:10+00:00 epoch 1 step 10/1000 loss 0.5\n")
    os.utime(log, (1.7e9, 1.7e9))  # nobody writes it any more
    system.write_text(
        f"{clock}+00:00 host kernel: {program}[77]: segfault at 0 ip 00007f sp 00007f error 4 in lib.so[7f+1000]\n"
        "2026-11-02T05:00:00+00:00 host kernel: Out of memory: Killed process 42 (python) total-vm:100kB, anon-rss:50kB\n"
    )
    death = endings_of_texts([str(log), str(system)])[0]
    assert (death.label, death.cause) == ("train.log", cause)


# other patterns


@pytest.mark.parametrize(
    ("steps", "settings", "found", "chance"),
    [
        ((50, 100, 150, 350), {"eval_steps": "50"}, "tied", (3 / 50) ** 4),  # I3: out of memory at eval steps
        ((49, 100, 151, 349), {"eval_steps": "50"}, "tied", (3 / 50) ** 4),  # beside one counts
        ((490, 990, 1490), {"save_steps": "500", "logging_steps": "10"}, "tied", (12 / 500) ** 3),
        ((100, 200, 300), {"eval_steps": "50", "logging_steps": "100"}, "open", 1.0),  # printed too seldom
        ((10, 36), {"update_freq": "2"}, "open", 0.25),  # two deaths at even steps prove nothing
        ((50, 100, 150, 333), {"save_every": "500"}, "excluded", None),
    ],
)
def test_multiples_of_an_interval(
    steps: tuple[int, ...], settings: dict[str, str], found: str, chance: float | None
) -> None:
    names = ("evaluations", "checkpoints", "optimizer steps")
    patterns = find_patterns(deaths(*steps, settings=settings))
    (statement,) = [each for each in patterns.statements if each.topic in names]
    assert statement.found == found
    assert statement.chance == (chance and pytest.approx(chance))


def test_the_same_step_and_the_same_uptime() -> None:
    found = find_patterns(
        [Ending(f"r{n}", "segfault", step=500, total=9000, uptime=1980 + n) for n in range(3)]
    )
    assert about(found, "one step").found == "tied"
    assert about(found, "uptime").found == "tied"
    assert about(found, "uptime").text.startswith("all died after about the same time: 33 min (by")


def test_early_deaths_are_not_one_step() -> None:
    """Seen with real runs: 35 and 70 of 2000 are close, and yet twice as far."""
    found = find_patterns(
        [Ending(f"r{n}", "silent-end", step=step, total=2000) for n, step in enumerate((70, 70, 35))]
    )
    assert about(found, "one step").found == "excluded"


def test_epoch_ends() -> None:
    at_ends = [Ending(f"r{n}", "oom-kill-global", step=999, total=1000, epoch=n) for n in (1, 2, 4)]
    assert about(find_patterns(at_ends), "epoch ends").found == "tied"
    inside = [Ending(f"r{n}", "oom-kill-global", step=40 * n, total=1000, epoch=n) for n in (1, 2, 4)]
    assert about(find_patterns(inside), "epoch ends").found == "excluded"


def test_steps_that_begin_anew_in_each_epoch_say_nothing_of_an_interval_that_runs_on() -> None:
    settings = {"eval_steps": "50"}
    for total, said in ((1234, False), (1000, True)):
        found = find_patterns(
            [
                Ending(f"r{n}", "silent-end", step=50 * n, total=total, epoch=n, settings=settings)
                for n in (1, 2, 3)
            ]
        )
        assert any(each.topic == "evaluations" for each in found.statements) is said


def test_growing_and_constant_memory() -> None:
    grown = MemoryAtEnd(50 * GIB, GIB, None, 1e6, True)
    leak = find_patterns([Ending(f"r{n}", "oom-kill-global", memory=grown) for n in range(6)])
    assert (
        leak.statements[0].found == "tied" and "to one level of memory: 50.0 GiB" in leak.statements[0].text
    )
    flat = MemoryAtEnd(5 * GIB, 20 * GIB, GIB // 9, 0.0, False)
    calm = find_patterns([Ending(f"r{n}", "segfault", memory=flat) for n in range(3)])
    assert "not a leak" in about(calm, "memory growth").text
    shortage = about(calm, "memory shortage").text
    assert "not a full machine: at least 20.0 GiB" in shortage and "own limit was near" in shortage


def test_every_eight_days() -> None:
    """I1: killed every ~8 days."""
    walls = [1.7e9 + days * DAY for days in (0, 7.9, 16.1, 24.0, 32.2)]
    found = find_patterns([Ending(f"r{n}", "oom-kill-global", wall=wall) for n, wall in enumerate(walls)])
    assert "every 8.2 days" in about(found, "days between").text
    assert about(found, "days between").found == "tied"
    assert found.to_json()["gaps"]["days"] == pytest.approx((7.9, 8.2, 7.9, 8.2))


def test_runs_started_one_after_the_other_have_no_interval_of_their_own() -> None:
    runs = [Ending(f"r{n}", "segfault", wall=1.7e9 + 240 * n, uptime=235) for n in range(4)]
    assert not [each for each in find_patterns(runs).statements if each.topic == "days between"]


# changes between the runs


def row(*runs: tuple[bool, dict[str, str], dict[str, str]]) -> Patterns:
    return find_patterns(
        [
            Ending(
                f"r{n}",
                "oom-kill-global" if died else "finished",
                died,
                1.7e9 + n * DAY,
                settings=settings,
                code=code,
            )
            for n, (died, settings, code) in enumerate(runs)
        ]
    )


def test_deaths_that_began_after_a_change() -> None:
    few, many = {"workers": "4"}, {"workers": "16"}
    found = row(*[(False, few, {})] * 4, *[(True, many, {})] * 4)
    (change,) = found.changes
    assert change.found == "tied" and "workers 4 → 16" in change.text
    assert "the deaths began after it (0 of 4 runs died before it, 4 of 4 after" in change.text


def test_runs_that_lived_after_a_change_speak_for_it() -> None:
    found = row(
        *[(False, {"lr": "1"}, {})] * 2, *[(False, {"lr": "2"}, {})] * 3, *[(True, {"lr": "3"}, {})] * 2
    )
    assert "0 of 2 runs died before it, 2 of 5 after" in found.changes[0].text
    assert "0 of 5 runs died before it, 2 of 2 after" in found.changes[1].text


def test_deaths_that_were_there_before() -> None:
    found = row(*[(True, {"lr": "1"}, {"git_commit": "a"})] * 3, (True, {"lr": "1"}, {"git_commit": "b"}))
    (change,) = found.changes
    assert (
        change.found == "excluded" and "it did not begin them" in change.text and "the commit" in change.text
    )


def test_going_to_and_fro_is_told_once() -> None:
    one, two = {"device": "cpu"}, {"device": "mps"}
    assert len(row((True, one, {}), (True, two, {}), (True, one, {}), (True, two, {})).changes) == 1


# settings in command lines and texts


def test_settings_of_a_command_line() -> None:
    told = run_settings.options(
        [
            "python",
            "t.py",
            "--eval_steps",
            "50",
            "--fp16",
            "--save-steps=500",
            "trainer.accumulate_grad_batches=8",
            "-x",
            "-1",
        ]
    )
    assert told["fp16"] == "on" and told["x"] == "-1"
    assert run_settings.intervals(told) == {"eval": 50, "save": 500, "accumulation": 8}


@pytest.mark.parametrize(
    ("line", "kind", "number"),
    [
        ("gradient_accumulation_steps=16", "accumulation", 16),
        ("  Gradient Accumulation steps = 4", "accumulation", 4),
        ("TrainingArguments(eval_steps=50, save_steps=200)", "eval", 50),
        ("{'save_steps': 500, 'lr': 0.1}", "save", 500),
        ("val_check_interval: 250", "eval", 250),
        ("python train.py --save_every 1000", "save", 1000),
    ],
)
def test_settings_of_a_text(line: str, kind: str, number: int) -> None:
    assert run_settings.intervals(run_settings.told_in([line]))[kind] == number


@pytest.mark.parametrize(
    "line", ["batch 117/2310", "Epoch 1 step 50", "eval_loss=2", "val_acc: 91", "eval_steps=0.5"]
)
def test_progress_is_no_setting(line: str) -> None:
    told = run_settings.told_in([line])
    assert run_settings.intervals(told) == {}


# runs of ours


def make_run(
    state: Path, name: str, n: int, peak: int, code: int | None, signal: int | None, sha: str
) -> None:
    attempt = state / "oomproof" / "runs" / f"2025111{n}-000000-abc" / "1"
    attempt.mkdir(parents=True)
    start = 1.763e9 + n * DAY
    info = {
        "schema": 1, "id": attempt.parent.name, "name": name, "created": start, "boot_id": "b",
        "argv": ["python", "/w/train.py", "--batch_size", "8"],
        "code": {"script": "/w/train.py", "script_sha256": sha, "git_commit": None},
    }  # fmt: skip
    (attempt.parent / "run.json").write_text(json.dumps(info))
    (attempt / "started.json").write_text(json.dumps({"boot_id": "b", "boottime": 10.0, "wall": start}))
    ended = {"code": code, "signal": signal, "boottime": 110.0, "wall": start + 100}
    (attempt / "exit.json").write_text(json.dumps(ended))
    (attempt / "output.log").write_text(f"step {40 + n}/1000\n")
    writer = Writer(attempt / "recording.sqlite", {"boot_id": "b", "wall_offset": repr(start - 10)})
    for t in range(10, 110):
        writer.put("job", (float(t), peak * t // 110, 0, 0, 0, 0, None, 1, None, None))
        writer.put("host", (float(t), 64 * GIB, 30 * GIB, 30 * GIB, 0, 0, 0, 0))
    writer.close()


def test_all_runs_of_a_name_with_their_recordings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    make_run(tmp_path, "big", 1, GIB, 0, None, "old")
    for n in (2, 3, 4):
        make_run(tmp_path, "big", n, 8 * GIB, None, 9, "new")
    found = find_patterns(endings_of_runs(runs_of("big")))
    assert len(found.endings) == 4 and len(found.deaths) == 3
    assert len({each.label for each in found.endings}) == 4, "one name, four labels"
    assert [each.step for each in found.deaths] == [42, 43, 44]
    assert all(each.uptime == pytest.approx(100) for each in found.deaths)
    assert all(each.memory and each.memory.growing for each in found.deaths)
    assert "the script old → new; the deaths began after it (0 of 1" in found.changes[0].text
    json.dumps(found.to_json())


def test_ids_in_a_narrow_table_keep_what_they_differ_in() -> None:
    endings = [
        Ending(f"20261118-21490{n}-a{n}b", "segfault" if n else "cuda-oom", last_line="x " * 40)
        for n in range(3)
    ]
    text = patterns_text(find_patterns(endings), width=80)
    assert text.startswith("3 deaths: segmentation fault (2), GPU memory full (CUDA) (1)\n")
    assert all(f" 21490{n}-a{n}b " in text for n in range(3))


def test_a_name_used_once_stands_for_its_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    make_run(tmp_path, "first", 1, GIB, 1, None, "a")
    make_run(tmp_path, "second", 2, GIB, 1, None, "a")
    assert len(runs_of("second")) == len(runs_of("train.py")) == 2


def test_damaged_runs_are_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    make_run(tmp_path, "bad", 1, GIB, None, 9, "a")
    (folder,) = (tmp_path / "oomproof" / "runs").iterdir()
    (folder / "1" / "recording.sqlite").write_bytes(os.urandom(5000))
    (folder / "1" / "exit.json").write_text("[1")
    (folder / "1" / "output.log").write_bytes(b"\0\xff" * 900)
    patterns_text(find_patterns(endings_of_runs(runs_of("bad"))))


# nothing breaks


def test_too_few_deaths() -> None:
    assert "at least two" in find_patterns([]).caution
    assert "only one death" in patterns_text(find_patterns(deaths(7)))


_numbers = st.one_of(st.none(), st.integers(-5, 10**9))


@given(
    st.lists(
        st.builds(
            Ending,
            label=st.text(max_size=5),
            cause=st.sampled_from(["silent-end", "segfault", "finished"]),
            died=st.booleans(),
            wall=st.one_of(st.none(), st.floats(0, 2e9)),
            step=_numbers,
            total=_numbers,
            epoch=st.one_of(st.none(), st.floats(-1, 1e6)),
            uptime=st.one_of(st.none(), st.floats(-1, 1e8)),
            device=st.sampled_from([None, "cpu", "mps"]),
            settings=st.dictionaries(
                st.sampled_from(["eval_steps", "batch_size", "lr"]), st.text("0123x", max_size=4)
            ),
        ),
        max_size=8,
    ),
)
def test_any_endings_can_be_told(endings: list[Ending]) -> None:
    found = find_patterns(endings)
    assert patterns_text(found)
    assert all(each.chance is None or 0 <= each.chance <= 1 for each in (*found.statements, *found.changes))


@given(st.lists(st.text(max_size=300), max_size=5))
def test_any_text_can_be_read(lines: list[str]) -> None:
    run_settings.told_in(lines)
    run_settings.options(lines)
    run_settings.last_date("\n".join(lines))

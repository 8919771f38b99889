"""How a run asks for room: sizes, clocks, cards, settings files, and what is said when they make no sense."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from oomproof.cli.main import main
from oomproof.errors import OomproofError
from oomproof.ledger import ledger_snapshot
from oomproof.ledger.budget import Budget
from oomproof.ledger.ledger_entries import ADMITTED, Need
from oomproof.ledger.ledger_store import Ledger
from oomproof.machine.gpu import Gpu, GpuProcess, Gpus
from oomproof.recording import run_folders
from oomproof.records import replace
from oomproof.runner import queue_wait
from oomproof.runner.admission_request import Asked, Ticket, ask
from oomproof.runner.run_flags import clock_time
from oomproof.units import parse_duration

GIB = 1 << 30


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("STATE_HOME", "CONFIG_HOME", "RUNTIME_DIR"):
        (tmp_path / name).mkdir(mode=0o700)
        monkeypatch.setenv(f"XDG_{name}", str(tmp_path / name))
    monkeypatch.chdir(tmp_path)


# --- bad input ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["--need=-3G"], 2, "--need: cannot read '-3G' as a size"),
        (["--need", "0"], 2, "reserves nothing"),
        (["--need", "20X"], 2, "cannot read '20X'"),
        (["--need", "999999T"], 69, "never fits"),
        (["--need", "1e30"], 2, "cannot read"),
        (["--need", "4G", "--limit", "2G"], 2, "more than --limit 2.0 GiB"),
        (["--gpu-need", "4G:x"], 2, "cannot read '4G:x' as a GPU need"),
        (["--gpu-need", "0:1"], 2, "reserves nothing"),
        (["--priority", "high"], 2, "'high' is not a priority"),
        (["--priority", "1000"], 2, "not a priority"),
        (["--wait-max", "soon"], 2, "cannot read 'soon' as a time"),
        (["--not-before", "25:00"], 2, "cannot read '25:00' as a time of day"),
        (["--spill", "100M"], 2, "no batch fits into that"),
        (["--spill", "8G", "--limit", "8G"], 2, "leaves 0 B for the job itself"),
        (["--spill", "8G", "--no-agent"], 2, "--no-agent leaves it out"),
    ],
)
def test_bad_input_is_named_and_starts_nothing(
    words: list[str], status: int, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", *words, "--", "touch", "it-ran"]) == status
    assert said in capsys.readouterr().err
    assert not (tmp_path / "it-ran").exists() and run_folders.list_runs() == []


def test_a_typo_in_a_settings_file_is_named_with_its_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "oomproof.toml"
    file.write_text('# ours\ngrace = 30\n\nlimti = "20G"\n')
    assert main(["run", "--", "true"]) == 2
    said = capsys.readouterr().err
    assert f"{file}, line 4: unknown setting 'limti'" in said and "did you mean 'limit'?" in said
    file.write_text('grace = 30\nneed = "20Q"\n')
    assert main(["run", "--", "true"]) == 2
    assert f"{file}, line 2: need: cannot read '20Q' as a size" in capsys.readouterr().err
    file.write_text("grace = = 30\n")
    assert main(["run", "--", "true"]) == 2
    assert "line 1" in capsys.readouterr().err
    file.unlink()
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "x"\n\n[tool.oomproof]\nwait-maxx = "2h"\n')
    assert main(["run", "--", "true"]) == 2
    said = capsys.readouterr().err
    assert "pyproject.toml, line 5: unknown setting 'wait_maxx'" in said and "wait_max" in said


def test_a_bad_word_in_the_environment_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OOMPROOF_NEED", "much")
    assert main(["run", "--", "true"]) == 2
    assert "OOMPROOF_NEED: cannot read 'much'" in capsys.readouterr().err


def test_durations() -> None:
    assert [parse_duration(text) for text in ("90", "90s", "30m", "2h", "1.5d", "1h30m", "10 min")] == [
        90, 90, 1800, 7200, 129600, 5400, 600,
    ]  # fmt: skip
    for text in ("", "h", "2x", "-5m", "1h later", "99999999999d"):
        with pytest.raises(OomproofError):
            parse_duration(text)


def test_the_clock_means_its_next_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        noon = time.mktime((2026, 11, 15, 12, 0, 0, 0, 0, -1))
        assert clock_time("22:00", noon) == noon + 10 * 3600
        assert clock_time("9:30", noon) == noon + 21.5 * 3600
        eve = time.mktime((2026, 3, 28, 23, 0, 0, 0, 0, -1))  # that night has only 23 hours
        assert clock_time("06:00", eve) == eve + 6 * 3600
        assert clock_time("2026-11-15T13:00", noon) == noon + 3600
    finally:
        monkeypatch.undo()
        time.tzset()


# --- cards --------------------------------------------------------------------------------------------------------


def card(index: int, free: int, *processes: GpuProcess, total: int = 24) -> Gpu:
    return Gpu(index, "card", total * GIB, (total - free) * GIB, free * GIB, processes)


def ask_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpus: Gpus, asked: Asked) -> Ticket:
    """Through the real door; the driver's answer and the amount of RAM are given."""
    monkeypatch.setattr(queue_wait.QueueWait, "_look_at_cards", lambda self: setattr(self, "gpus", gpus))
    here = Budget(64 * GIB, 60 * GIB, 0, 0, 5 * GIB)
    for module in (queue_wait, ledger_snapshot):
        monkeypatch.setattr(module, "current_budget", lambda *_, **__: here)
    return ask(run_folders.new_run(), ["train"], None, asked, str(tmp_path), lambda _: None, lambda _: None)


def test_the_card_with_the_most_room_is_given_and_shown_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    gpus = Gpus((card(0, 10), card(1, 20)))
    ticket = ask_for(tmp_path, monkeypatch, gpus, Asked(gpu_need=14 * GIB))
    assert ticket.entry.gpu == 1 and ticket.entry.state == ADMITTED
    assert ticket.environment == {"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    with pytest.raises(OomproofError, match=r"short by 8\.0 GiB") as refused:  # 14 of the 20 are promised
        ask_for(tmp_path, monkeypatch, gpus, Asked(gpu_need=14 * GIB, gpu=1, wait=False))
    assert refused.value.status == 75
    small = ask_for(tmp_path, monkeypatch, gpus, Asked(gpu_need=8 * GIB, wait=False))
    assert small.entry.gpu == 0, "the other card has more room now"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    kept = ask_for(tmp_path, monkeypatch, gpus, Asked(gpu_need=GIB, gpu=0))
    assert kept.environment == {}, "the user's own choice stays"
    for one in (ticket, small, kept):
        one.drop()


def test_a_sized_card_is_reserved_where_it_is_known_which(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    gpus = Gpus((card(0, 20), card(1, 20)))
    sized = Asked(sized=Need(GIB, 2 * GIB, "sized", 14 * GIB), wait=False)
    ticket = ask_for(tmp_path, monkeypatch, gpus, sized)
    assert (ticket.entry.need, ticket.entry.gpu_need, ticket.entry.gpu) == (2 * GIB, 14 * GIB, 1)
    with pytest.raises(
        OomproofError, match=r"short by 8\.0 GiB"
    ) as refused:  # as with --gpu-need: it would wait
        ask_for(tmp_path, monkeypatch, gpus, sized)
    assert refused.value.status == 75
    too_large = ask_for(tmp_path, monkeypatch, gpus, Asked(sized=Need(GIB, GIB, "sized", 30 * GIB)))
    assert too_large.entry.gpu_need == 0 and "starts, unreserved" in " ".join(too_large.told)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    unknown = ask_for(tmp_path, monkeypatch, gpus, sized)
    assert unknown.entry.gpu_need == 0 and unknown.environment == {}
    assert "nothing is reserved on a card: which one? --gpu-need 14336M:0" in unknown.told
    declared = ask_for(tmp_path, monkeypatch, gpus, replace(sized, gpu_need=GIB, gpu=0))
    assert (declared.entry.gpu_need, declared.entry.gpu) == (GIB, 0), "what the user says counts first"
    for run in (ticket, too_large, unknown, declared):
        run.drop()


def test_cards_that_are_not_there_or_too_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = Gpus((card(0, 10),))
    for asked, status, said in (
        (Asked(gpu_need=GIB, gpu=3), 2, "there is no GPU 3 here"),
        (Asked(gpu_need=30 * GIB), 69, "never fits"),
    ):
        with pytest.raises(OomproofError, match=said) as refused:
            ask_for(tmp_path, monkeypatch, gpus, asked)
        assert refused.value.status == status
    with pytest.raises(OomproofError, match="there is none here") as refused:
        ask_for(tmp_path, monkeypatch, Gpus(), Asked(gpu_need=GIB))
    assert refused.value.status == 69
    with pytest.raises(OomproofError, match="did not answer") as refused:
        ask_for(tmp_path, monkeypatch, Gpus(problem="the GPU driver did not answer"), Asked(gpu_need=GIB))
    assert refused.value.status == 75


def test_what_a_run_holds_on_its_card_is_not_promised_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver's list names the job's process: 9 of its 10 GiB are already gone from what is free."""
    from dataclasses import replace

    from oomproof.machine import processes

    me, start = os.getpid(), processes.start_time(os.getpid())
    first = ask_for(tmp_path, monkeypatch, Gpus((card(0, 24),)), Asked(gpu_need=10 * GIB))
    assert first.ledger is not None
    with first.ledger.decision():
        first.ledger.put(replace(first.entry, keeper_pid=me, keeper_start=start, job_pid=me, job_start=start))
    now = Gpus((card(0, 15, GpuProcess(me, 9 * GIB)),))
    second = ask_for(tmp_path, monkeypatch, now, Asked(gpu_need=14 * GIB, wait=False))
    assert second.entry.gpu == 0
    second.drop()
    first.drop()


def test_unified_memory_is_the_machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = Gpus((Gpu(0, "GB10", None, None, None),))
    ticket = ask_for(tmp_path, monkeypatch, shared, Asked(need=10 * GIB, gpu_need=20 * GIB))
    assert ticket.entry.need == 30 * GIB and ticket.entry.gpu_need == 0
    ticket.drop()


# --- what an old peak may do ----------------------------------------------------------------------------------------


def test_an_old_peak_never_shuts_a_command_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Alone on the machine it may go down to the floor; and what "can never fit" was seen to fit once."""
    from oomproof.leaf.command_lines import command_key
    from oomproof.ledger.ledger_entries import Peak
    from oomproof.recording.state_files import state_folder

    def remember(use: int) -> None:
        state_folder().mkdir(parents=True, exist_ok=True)
        ledger = Ledger(state_folder())
        ledger.remember(Peak("old", command_key(["train"], str(tmp_path)), 1.0, use, None, 60.0, True))
        ledger.close()

    remember(57 * GIB)  # 60 available, a margin of 5: 55 by the book
    ticket = ask_for(tmp_path, monkeypatch, Gpus(), Asked(wait=False))
    assert ticket.entry.need == 57 * GIB
    with pytest.raises(OomproofError) as refused:  # beside another run the margin counts
        ask_for(tmp_path, monkeypatch, Gpus(), Asked(wait=False))
    assert refused.value.status == 75
    ticket.drop()
    remember(70 * GIB)
    ticket = ask_for(tmp_path, monkeypatch, Gpus(), Asked(wait=False))
    assert ticket.entry.need is None and not ticket.entered
    ticket.drop()


def test_the_card_of_an_old_peak_is_asked_only_when_there_is_no_doubt(tmp_path: Path) -> None:
    from oomproof.ledger.ledger_entries import Peak
    from oomproof.runner.admission_request import gpu_from_history

    cards = tmp_path / "gpus"
    cards.mkdir()
    peaks = [Peak("a", "k", 1.0, GIB, 9 * GIB, 5.0, True), Peak("b", "k", 0.0, GIB, 7 * GIB, 5.0, True)]
    (cards / "0000:01:00.0").mkdir()
    assert gpu_from_history(peaks, {}, str(cards)) == (9 * GIB, 0)
    assert gpu_from_history(peaks, {"CUDA_VISIBLE_DEVICES": ""}, str(cards)) == (0, None), (
        "it runs on the CPU"
    )
    assert gpu_from_history([], {}, str(cards)) == (0, None)
    (cards / "0000:02:00.0").mkdir()
    assert gpu_from_history(peaks, {}, str(cards)) == (0, None)
    assert gpu_from_history(peaks, {"CUDA_VISIBLE_DEVICES": "1"}, str(cards)) == (9 * GIB, 1)
    assert gpu_from_history(peaks, {"CUDA_VISIBLE_DEVICES": "0,1"}, str(cards)) == (0, None)


def test_a_twin_that_waits_is_found_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    from oomproof.ledger.ledger_entries import WAITING
    from oomproof.machine.twins import identity

    (tmp_path / "train.py").write_text("")
    same = identity(["python", "train.py", "--out", "o"], str(tmp_path), {}, gpu=False)
    assert same == identity(["python", "train.py", "--lr", "1", "--out", "./o"], str(tmp_path), {}, gpu=False)
    assert identity(["python", "train.py"], str(tmp_path), {}, gpu=False) == ""
    assert identity(["python", "train.py"], str(tmp_path), {"RANK": "1"}, gpu=True) == ""
    first = ask_for(tmp_path, monkeypatch, Gpus(), Asked(need=50 * GIB, twin=same))
    assert first.ledger is not None
    with first.ledger.decision():
        first.ledger.put(replace(first.entry, run="queued", name="queued", state=WAITING))
    with pytest.raises(OomproofError, match="the same job waits already: queued") as refused:
        ask_for(tmp_path, monkeypatch, Gpus(), Asked(need=50 * GIB, twin=same))
    assert refused.value.status == 75
    first.ledger.remove(["queued"])
    first.drop()


# --- memory that will be pinned -------------------------------------------------------------------------------------


def test_what_is_pinned_is_reserved_beside_the_jobs_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unknown = ask_for(tmp_path, monkeypatch, Gpus(), Asked(wait=False, spill=8 * GIB))
    assert (unknown.entry.need, unknown.entry.basis) == (8 * GIB, "at least: what --spill pins")
    unknown.drop()
    known = ask_for(tmp_path, monkeypatch, Gpus(), Asked(need=20 * GIB, wait=False, spill=8 * GIB))
    assert known.entry.need == 28 * GIB and known.entry.basis == "--need, and 8.0 GiB that --spill pins"
    known.drop()
    with pytest.raises(OomproofError, match=r"28\.0 GiB together, more than --limit 24\.0 GiB"):
        asked = Asked(need=20 * GIB, limit=24 * GIB, wait=False, spill=8 * GIB)
        ask_for(tmp_path, monkeypatch, Gpus(), asked)


def test_a_spill_that_does_not_fit_is_refused_with_the_arithmetic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(OomproofError, match=r"short by 1\.0 GiB") as refused:  # 60 available, a margin of 5
        ask_for(tmp_path, monkeypatch, Gpus(), Asked(wait=False, spill=56 * GIB))
    assert refused.value.status == 75
    with pytest.raises(
        OomproofError, match=r"--spill 60\.0 GiB: needs 60\.0 GiB; this machine has 64\.0 GiB RAM"
    ) as never:
        ask_for(tmp_path, monkeypatch, Gpus(), Asked(wait=False, spill=60 * GIB))
    assert never.value.status == 69


def test_without_a_card_nothing_is_pinned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("oomproof.machine.nvidia.driver_present", lambda *_: False)
    assert main(["run", "--spill", "8G", "--", "touch", "it-ran"]) == 2
    assert "there is no card here" in capsys.readouterr().err and not (tmp_path / "it-ran").exists()
    (tmp_path / "oomproof.toml").write_text(
        'spill = "8G"\n'
    )  # speaks for machines that have one, and for larger jobs
    assert main(["run", "--limit", "1G", "--", "touch", "it-ran"]) == 0 and (tmp_path / "it-ran").exists()

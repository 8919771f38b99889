"""What really ran out: a neighbour, a live cache, a list, split segments, the limit, or simply all of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from helpers_case import Attempt, changed
from helpers_gpu import GIB, MIB, account, owners

from oomproof.diagnosis.gpu_shortage import kind_of, shortage
from oomproof.diagnosis.verdict import sentence
from oomproof.evidence.case_file import CaseFile
from oomproof.evidence.gpu_oom import GpuOom, last_oom, parse
from oomproof.leaf.allocator_memory import settings_name
from oomproof.recording.attempt import Attempt as RunAttempt
from oomproof.reports import gpu_account


def oom(**changed: Any) -> GpuOom:
    found = parse(account(**changed))
    assert found is not None
    return found


CASE = changed(CaseFile(), argv=("python", "train.py"))
CACHE = ("kv-cache", "KV cache", 12 * GIB)
LOGITS = ("list", "list all_logits in evaluate (train.py:31)", 11 * GIB)


def test_a_live_cache_is_named() -> None:
    found = shortage(oom(owners=owners(CACHE)), CASE)
    assert found.kind == "cache"
    assert "KV cache held 12.0 GiB" in found.headline
    assert "as they did before" in found.why  # the neighbour that was there all along is told, not blamed


def test_the_cure_of_a_cache_is_the_length_that_fits() -> None:
    call = {
        "batch": 16,
        "tokens": 2111,
        "new_tokens": 2048,
        "cache": 14 * GIB,
        "fitting_batch": 11,
        "fitting_new_tokens": 1400,
    }
    found = shortage(oom(owners=owners(CACHE), phase="generate", generating=call), CASE)
    first, second = found.remedies[:2]
    assert first.change is not None and (first.change.key, first.change.after) == ("max_new_tokens", "1400")
    assert first.saves_bytes and 4 * GIB < first.saves_bytes < 5 * GIB and first.basis == "predicted"
    assert second.change is not None and (second.change.before, second.change.after) == ("16", "11")
    assert "max_new_tokens 2048 to 1400" in sentence(found.next)


def test_a_list_of_predictions_is_named_with_its_place() -> None:
    found = shortage(oom(owners=owners(LOGITS)), CASE)
    assert found.kind == "held"
    assert "all_logits in evaluate (train.py:31)" in found.headline
    assert found.remedies[0].saves_bytes == 11 * GIB and ".cpu()" in found.remedies[0].title
    assert "batch" in found.remedies[-1].title  # last, not first


def test_the_larger_of_list_and_cache_is_the_cause() -> None:
    small = ("kv-cache", "KV cache", 2 * GIB)
    assert kind_of(oom(owners=owners(LOGITS, small))) == "held"
    assert kind_of(oom(owners=owners(CACHE, ("list", "list x in f (a.py:1)", 2 * GIB)))) == "cache"


def test_a_small_list_is_not_blamed() -> None:
    assert kind_of(oom(owners=owners(("list", "list x in f (a.py:1)", 100 * MIB)))) == "too-large"


def test_split_segments() -> None:
    split = oom(
        allocated=12 * GIB, reserved=21 * GIB, pieces={"largest_free": 700 * MIB, "split_free": 9 * GIB}
    )
    found = shortage(split, CASE)
    assert found.kind == "split"
    assert "largest piece was 700 MiB" in found.headline
    first = found.remedies[0]
    assert first.change is not None and first.change.key == "PYTORCH_ALLOC_CONF"
    assert first.command == "PYTORCH_ALLOC_CONF=expandable_segments:True oomproof run -- python train.py"
    assert first.saves_bytes == 9 * GIB
    assert (
        "PYTORCH_ALLOC_CONF from PyTorch 2.11 on" in first.title and "PYTORCH_CUDA_ALLOC_CONF" in first.title
    )
    assert "you set" not in found.why


def test_a_setting_that_was_off_is_said() -> None:
    split = oom(
        allocated=12 * GIB, reserved=21 * GIB, pieces={"largest_free": 700 * MIB, "split_free": 9 * GIB},
        torch="2.9.1+cu128", ignored="PYTORCH_ALLOC_CONF=expandable_segments:True",
    )  # fmt: skip
    found = shortage(split, CASE)
    said = "you set PYTORCH_ALLOC_CONF=expandable_segments:True, and it is off: PyTorch 2.9.1+cu128 reads PYTORCH_CUDA_ALLOC_CONF"
    assert found.kind == "split" and said in found.why
    assert found.remedies[0].change is not None
    assert found.remedies[0].change.key == "PYTORCH_CUDA_ALLOC_CONF"


@pytest.mark.parametrize(
    "changed",
    [
        {
            "pieces": {"largest_free": 2 * GIB, "split_free": 9 * GIB}
        },  # a piece was large enough: it was something else
        {"expandable": True},
        {"requested": 10 * GIB},  # more than all the gaps together
        {"pieces": {}},  # nobody knows the pieces
    ],
)
def test_what_is_no_fragmentation(changed: dict[str, Any]) -> None:
    base: dict[str, Any] = {
        "allocated": 12 * GIB,
        "pieces": {"largest_free": 700 * MIB, "split_free": 9 * GIB},
    }
    assert kind_of(oom(**{**base, **changed})) != "split"


def neighbour(**changed: Any) -> dict[str, Any]:
    return {"pid": 900, "used": 9 * GIB, "name": "python other.py", "twin": False, **changed}


def test_a_neighbour_that_grew_is_the_cause_even_beside_a_large_cache() -> None:
    crowded = oom(outside=12 * GIB, outside_first=3 * GIB, neighbours=[neighbour()], owners=owners(CACHE))
    found = shortage(crowded, CASE)
    assert found.kind == "neighbour"
    assert "took 9.0 GiB more since this job began" in found.headline and "pid 900" in found.headline
    assert "python other.py" in found.remedies[0].title
    titles = [each.title for each in found.remedies]
    assert any(
        "cache" in each or "tokens" in each or "fewer" in each for each in titles[1:]
    )  # the cache's cure is told too


def test_a_neighbour_that_was_always_there_is_not_the_cause() -> None:
    steady = oom(outside=12 * GIB, outside_first=12 * GIB, neighbours=[neighbour()], owners=owners(CACHE))
    assert kind_of(steady) == "cache"


def test_context_growing_in_the_first_steps_is_no_neighbour() -> None:
    assert (
        kind_of(oom(outside=3 * GIB, outside_first=2200 * MIB, requested=600 * MIB, pieces={})) == "too-large"
    )


def test_a_twin_is_the_cause_although_it_was_always_there() -> None:
    found = shortage(oom(neighbours=[neighbour(twin=True)], owners=owners(CACHE)), CASE)
    assert found.kind == "neighbour"
    assert "the same job ran twice" in found.headline
    assert found.remedies[0].command == "kill 900" and found.remedies[0].saves_bytes == 9 * GIB


def test_a_graph_kept_in_an_evaluation() -> None:
    found = shortage(oom(unseen=12 * GIB), CASE)
    assert found.kind == "graph" and "torch.no_grad()" in found.remedies[0].title
    assert kind_of(oom(unseen=12 * GIB, phase="train")) == "too-large"  # there it is what training needs


def test_the_jobs_own_limit() -> None:
    found = shortage(oom(allowed=21 * GIB + 100 * MIB, free=10 * GIB, owners=owners(CACHE)), CASE)
    assert found.kind == "limit"
    assert found.remedies[0].command and "--gpu-limit 25G" in found.remedies[0].command


def test_simply_too_large() -> None:
    found = shortage(oom(), CASE)
    assert found.kind == "too-large" and "its tensors held 20.0 GiB" in found.headline
    assert "half the batch" in found.remedies[0].title


@pytest.mark.parametrize(
    ("torch", "name"),
    [
        ("2.13.0+cu128", "PYTORCH_ALLOC_CONF"),
        ("2.11.0", "PYTORCH_ALLOC_CONF"),
        ("2.10.0+cu128", "PYTORCH_CUDA_ALLOC_CONF"),  # knows the new name, and ignores it on CUDA
        ("2.4.1", "PYTORCH_CUDA_ALLOC_CONF"),
        ("", "PYTORCH_CUDA_ALLOC_CONF"),
    ],
)
def test_the_name_of_the_variable_follows_the_version(torch: str, name: str) -> None:
    assert settings_name(torch) == name


def test_a_neighbour_of_ours_tells_what_it_does_not_use(tmp_path: Path) -> None:
    attempt = tmp_path / "runs/mine/1"
    (attempt / "agent").mkdir(parents=True)
    (attempt / "agent/4067-cuda-oom-1.json").write_text(json.dumps(account(neighbours=[neighbour()])))
    other = tmp_path / "runs/theirs/2/agent"
    other.mkdir(parents=True)
    sample = {"wall": account()["wall"] - 5, "unused": 8 * GIB, "reserved": 9 * GIB}
    (other / "900-allocator.json").write_text(json.dumps(sample).ljust(1023) + "\n")
    read = last_oom(RunAttempt(attempt))
    assert read is not None
    found = shortage(read, CASE)
    assert found.kind == "neighbour"
    assert "kept 8.0 GiB reserved that it did not use: pid 900" in found.headline
    assert found.remedies[0].saves_bytes == 8 * GIB and "theirs" in found.remedies[0].title
    assert "--release always" in (found.remedies[0].command or "")
    (other / "900-allocator.json").write_text(json.dumps({**sample, "wall": 1.0}))  # of a process long gone
    stale = last_oom(RunAttempt(attempt))
    assert stale is not None and stale.neighbours[0].unused is None


def test_a_run_of_ours_that_the_driver_does_not_list_is_found_by_its_card(tmp_path: Path) -> None:
    attempt, other = tmp_path / "runs/mine/1", tmp_path / "runs/theirs/1"
    for folder in (attempt, other):
        (folder / "agent").mkdir(parents=True)
        (folder.parent / "run.json").write_text(json.dumps({"argv": ["python", "/x/train.py"], "cwd": "/x"}))
    (attempt / "agent/4067-cuda-oom-1.json").write_text(json.dumps(account(uuid="GPU-1")))
    sample = {"wall": account()["wall"] - 5, "unused": GIB // 4, "reserved": 9 * GIB, "uuid": "GPU-1"}
    told = other / "agent/77-allocator.json"
    told.write_text(json.dumps(sample))
    read = last_oom(RunAttempt(attempt))
    assert read is not None and read.neighbours[0].twin and read.neighbours[0].name == "python train.py"
    assert shortage(read, CASE).remedies[0].command == "oomproof stop theirs"
    told.write_text(json.dumps({**sample, "uuid": "GPU-2"}))  # on another card
    assert last_oom(RunAttempt(attempt)).neighbours == ()  # type: ignore[union-attr]
    told.write_text(json.dumps(sample))
    (other / "exit.json").write_text(json.dumps({"wall": account()["wall"] - 1}))  # it had ended before
    assert last_oom(RunAttempt(attempt)).neighbours == ()  # type: ignore[union-attr]


SENTENCE = (
    b"Traceback (most recent call last):\n"
    b'  File "train.py", line 31, in evaluate\n'
    b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0 has a total capacity of 24.00 GiB of "
    b"which 512.00 MiB is free. Including non-PyTorch memory, this process has 21.75 GiB memory in use. Of the allocated "
    b"memory 20.00 GiB is allocated by PyTorch, and 1.00 GiB is reserved by PyTorch but unallocated.\n"
)


def died(tmp_path: Path, **changed: Any) -> Attempt:
    attempt = Attempt(tmp_path)
    attempt.ended(code=1)
    attempt.output = SENTENCE
    folder = attempt.dir / "agent"
    folder.mkdir()
    (folder / "4067-cuda-oom-1.json").write_text(json.dumps(account(**changed)))
    return attempt


def test_the_verdict_speaks_with_the_accounts_words(tmp_path: Path) -> None:
    verdict = died(tmp_path, owners=owners(LOGITS)).verdict()
    assert verdict.cause == "cuda-oom" and verdict.certainty == "proven"
    assert verdict.headline.startswith(
        "out of GPU memory (CUDA) in eval, step 50: the list all_logits in evaluate"
    )
    assert verdict.gpu is not None and verdict.gpu.requested_bytes == 1536 * MIB
    ids = [item.id for item in verdict.evidence]
    assert "gpu.oom" in ids and "gpu.owner.1" in ids
    assert verdict.to_json()["remedies"][0]["saves_bytes"] == 11 * GIB


def test_an_older_account_is_not_the_last_error(tmp_path: Path) -> None:
    verdict = died(tmp_path, requested=200 * MIB, owners=owners(LOGITS)).verdict()
    assert verdict.cause == "cuda-oom" and "all_logits" not in verdict.headline


@pytest.mark.parametrize("text", ["", "{", "[]", '{"total": "x"}', '{"total": 1, "free": 1, "allocated": 1, "reserved": 1, "owners": [1], "neighbours": 3, "pieces": []}'])  # fmt: skip
def test_damaged_accounts_cost_nothing(tmp_path: Path, text: str) -> None:
    attempt = died(tmp_path)
    (attempt.dir / "agent/4067-cuda-oom-1.json").write_text(text)
    assert attempt.verdict().cause == "cuda-oom"


def test_the_rows_add_up_to_the_card() -> None:
    told = oom(owners=owners(CACHE, LOGITS), allocated=29 * GIB + 5 * GIB, total=40 * GIB, reserved=36 * GIB, free=GIB,
               outside=3 * GIB, others=2 * GIB + 256 * MIB, context=768 * MIB)  # fmt: skip
    rows = gpu_account.account(told)
    assert sum(part.bytes for part in rows) == told.total
    assert [part.name for part in rows][:2] == ["KV cache", "list all_logits in evaluate (train.py:31)"]
    text = "\n".join(gpu_account.lines(told))
    assert "optimizer state" in text and "free" in text and "at evaluate (train.py:31)" in text


def test_the_page_and_the_report_tell_who_held_the_card(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dataclasses import replace

    from helpers_report import make_run, verdict

    from oomproof.reports import html, markdown
    from oomproof.reports.redaction import Redactor
    from oomproof.reports.story import tell

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    run = make_run(tmp_path, seconds=60)
    folder = run.attempt / "agent"
    folder.mkdir(exist_ok=True)
    hostile = ("list", "list <b>preds</b> in evaluate (train.py:31)", 11 * GIB)
    (folder / "4067-cuda-oom-1.json").write_text(
        json.dumps(account(owners=owners(hostile), snapshot="4067-cuda-oom-1.pickle"))
    )
    story = tell(replace(verdict(run.id), cause="cuda-oom"), run, Redactor())
    page = html.render(story)
    assert "Who held the card&#x27;s memory" in page and "&lt;b&gt;preds" in page and "<b>preds" not in page
    assert "optimizer state" in page and "11.0 GiB" in page and "4067-cuda-oom-1.pickle" in page
    report = markdown.render(story)
    assert "Who held the card's memory" in report and "optimizer state" in report
    other = tell(
        verdict(run.id), run, Redactor()
    )  # died of something else: an OOM it had caught is not its story
    assert "Who held the card" not in html.render(other)


def test_without_an_account_the_sentence_names_the_neighbours(tmp_path: Path) -> None:
    attempt = died(tmp_path)
    (attempt.dir / "agent/4067-cuda-oom-1.json").unlink()
    assert "on the card" not in attempt.verdict().remedies[0].title
    attempt.output = SENTENCE.replace(
        b"is free. Incl", b"is free. Process 900 has 9.00 GiB memory in use. Incl"
    )
    first = attempt.verdict().remedies[0]
    assert "process 900 on the card" in first.title and first.saves_bytes == 9 * GIB


def test_a_spill_that_was_full_too_is_told_and_the_books_add_up() -> None:
    full = oom(allocated=21 * GIB, reserved=21 * GIB, spill=8 * GIB, spilled=7 * GIB, step=900, phase="train")
    found = shortage(full, CASE)
    assert found.kind == "too-large"
    assert "the card and the 8.0 GiB of --spill were both full: its tensors held 28.0 GiB" in found.headline
    assert "7.0 GiB of the 8.0 GiB that --spill had pinned" in found.why
    assert any("a larger spill" in remedy.title for remedy in found.remedies)
    parts = gpu_account.account(full)
    assert sum(part.bytes for part in parts) == pytest.approx(24 * GIB + 8 * GIB, rel=0.01)
    assert "GPU 0 of 24.0 GiB and 8.0 GiB of spill" in gpu_account.heading(full)


@pytest.mark.parametrize(
    ("changed", "offered"),
    [
        ({"step": 900, "phase": "train"}, True),
        ({"step": 3, "phase": "train"}, False),  # the first batches did not fit either
        ({"step": 900, "phase": "load"}, False),
        ({"step": 900, "phase": "train", "number": 4}, False),  # it catches the error, and meets it often
        ({"step": 900, "phase": "train", "torch": "2.9.1+cu128"}, False),
    ],
)
def test_one_batch_that_did_not_fit_after_many_that_did_may_spill(
    changed: dict[str, Any], offered: bool
) -> None:
    remedies = shortage(oom(**changed), CASE).remedies
    spills = [remedy for remedy in remedies if remedy.change is not None and remedy.change.key == "--spill"]
    assert bool(spills) is offered
    if offered:
        assert (
            spills[0].command == "oomproof run --spill 12G -- python train.py"
            and remedies[0] is not spills[0]
        )


def test_a_host_that_was_full_gets_what_was_lent_to_the_card_back_first() -> None:
    from oomproof.diagnosis.advice import smaller_job

    remedies = smaller_job(changed(CASE, spill=8 * GIB))
    assert (
        remedies[0].command == "oomproof run --spill 4G -- python train.py"
        and remedies[0].saves_bytes == 4 * GIB
    )
    assert not any("--spill" in remedy.title for remedy in smaller_job(CASE))

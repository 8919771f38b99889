"""I4: 30 GB of RAM and 8 GB of swap, batch 64 and 16 loader workers, killed after 33 minutes. The kernel's own dump and the
sweep's log in; who held what, and a command that fits, out."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from kernel_dumps import GIB, Row, desktop, dmesg, journal, loader_job, report

COMMAND = "python sweep.py --batch-size 64 --workers 16 --lr 3e-4"
ROWS = [
    *desktop(),
    Row(2210, 1000, "firefox", 420 << 20),
    *loader_job(40112, 40377, 16, 4 * GIB, 1536 << 20, 430 << 20),
]
DUMP = report(ROWS, 40383, ram=30 * GIB, swap_total=8 * GIB, swap_free=0)
LOG = (
    f"+ {COMMAND}\n"
    + "".join(f"Epoch 3: step {step}/900 loss=0.4{step}\n" for step in range(1, 40))
    + "Killed\n"
)


def why(folder: Path, **texts: str) -> dict[str, Any]:
    for name, text in texts.items():
        (folder / f"{name}.log").write_text(text)
    files = [f"{name}.log" for name in texts]
    done = subprocess.run(
        [sys.executable, "-m", "oomproof", "why", "--json", *files],
        cwd=folder,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


@pytest.fixture(params=["dmesg", "journal"])
def dump(request: pytest.FixtureRequest) -> str:
    return dmesg(DUMP, 1234567.5) if request.param == "dmesg" else journal(DUMP, 1794000000.0)


def test_the_dump_tells_the_whole_job_and_the_machine(tmp_path: Path, dump: str) -> None:
    verdict = why(tmp_path, kern=dump)["verdict"]
    assert verdict["cause"] == "oom-kill-global" and verdict["certainty"] == "proven"
    assert "one of 17 processes of one job that held 28.0 GiB and 7.6 GiB of swap" in verdict["headline"]
    assert "212 MiB of 30.0 GiB RAM was free, 0 B of 8.0 GiB swap free" in verdict["why"]


def test_no_advice_on_loader_workers_where_there_is_no_loader(tmp_path: Path) -> None:
    rows = [*desktop(), Row(40112, 1000, "python", 28 * GIB)]
    alone = report(rows, 40112, ram=30 * GIB, swap_total=8 * GIB, swap_free=0)
    titles = [remedy["title"] for remedy in why(tmp_path, kern=dmesg(alone, 1234567.5))["remedies"]]
    assert titles and not any("worker" in title for title in titles)


def test_its_own_workers_are_not_what_else_was_large(tmp_path: Path, dump: str) -> None:
    titles = [remedy["title"] for remedy in why(tmp_path, kern=dump)["remedies"]]
    assert not any("what else was large" in title for title in titles)


def test_somebody_elses_job_is(tmp_path: Path) -> None:
    rows = [*ROWS, Row(60000, 1001, "java", 3 * GIB)]
    text = dmesg(report(rows, 40383, ram=33 * GIB, swap_total=8 * GIB, swap_free=0), 99.0)
    (large,) = [
        r["title"] for r in why(tmp_path, kern=text)["remedies"] if "what else was large" in r["title"]
    ]
    assert "java (pid 60000) 3.0 GiB" in large and "python" not in large


def test_the_remedy_names_the_argument_and_the_next_command_differs(tmp_path: Path, dump: str) -> None:
    answer = why(tmp_path, train=LOG, kern=dump)
    workers = next(r for r in answer["remedies"] if r["change"] and r["change"]["key"] == "--workers")
    assert workers["change"] == {
        "kind": "argument",
        "file": None,
        "key": "--workers",
        "from": "16",
        "to": "10",
    }
    assert "--workers 16 → --workers 10" in workers["title"] and workers["basis"] == "measured"
    assert "30.0 GiB RAM" in workers["title"] and "5.0 GiB margin" in workers["title"]
    command = "python sweep.py --batch-size 64 --workers 10 --lr 3e-4"
    assert answer["verdict"]["next"] == f"oomproof run -- {command}"
    assert COMMAND not in answer["verdict"]["next"]


def test_sixteen_in_the_command_is_sixteen_though_ten_were_left(tmp_path: Path) -> None:
    """The kernel had killed six of the workers before: the table shows ten."""
    rows = [*desktop(), *loader_job(40112, 40377, 10, 4 * GIB, 2 * GIB, 100 << 20)]
    text = dmesg(report(rows, 40380, ram=30 * GIB, swap_total=8 * GIB, swap_free=0), 99.0)
    answer = why(tmp_path, train=LOG, kern=text)
    change = next(r["change"] for r in answer["remedies"] if r["change"] and "workers" in r["change"]["key"])
    assert change["from"] == "16" and int(change["to"]) < 16


def test_without_the_command_the_number_comes_from_the_table(tmp_path: Path, dump: str) -> None:
    answer = why(tmp_path, kern=dump)
    change = next(
        r["change"] for r in answer["remedies"] if r["change"] and r["change"]["key"] == "num_workers"
    )
    assert (change["from"], change["to"]) == ("16", "10")
    assert "set num_workers to 10 (it was 16)" in answer["verdict"]["next"]


def test_of_workers_killed_one_by_one_the_first_table_tells_the_job(tmp_path: Path) -> None:
    """The kernel took two workers within two seconds: the second table has one row less."""
    later = [row for row in ROWS if row.pid != 40383]
    text = dmesg(DUMP, 1000.0) + dmesg(
        report(later, 40384, ram=30 * GIB, swap_total=8 * GIB, swap_free=0), 1002.0
    )
    verdict = why(tmp_path, kern=text)["verdict"]
    assert verdict["victim"]["pid"] == 40384 and "one of 17 processes" in verdict["headline"]


def test_the_kernels_own_line_is_no_complaint_of_a_job(tmp_path: Path, dump: str) -> None:
    says = [item["says"] for item in why(tmp_path, kern=dump)["evidence"]]
    assert says and not any("the text speaks of trouble" in words for words in says)


def test_nine_unknown_processes_are_no_loader(tmp_path: Path) -> None:
    rows = [*desktop(), *(Row(5000 + at, 1000, "python", 3 * GIB + at * (8 << 20)) for at in range(9))]
    text = dmesg(report(rows, 5003, ram=30 * GIB, swap_total=0, swap_free=0), 99.0)
    answer = why(tmp_path, kern=text)
    told = answer["verdict"]["next"] + " ".join(remedy["title"] for remedy in answer["remedies"])
    assert "num_workers" not in told
    assert "fewer processes at once (9 → 8)" in answer["verdict"]["next"]


def test_all_says_what_why_says_of_one_killed_job_and_one_kill(tmp_path: Path) -> None:
    """Neither has a date: the kernel's report was "of other programs", and the log "killed, not known by whom"."""
    (tmp_path / "train.log").write_text(LOG)
    (tmp_path / "kern.log").write_text(dmesg(DUMP, 1234.5))
    words = [sys.executable, "-m", "oomproof", "why", "--all", "--json", "train.log", "kern.log"]
    patterns = json.loads(subprocess.run(words, cwd=tmp_path, capture_output=True, check=True).stdout)
    assert patterns["others"] == []
    (death,) = patterns["deaths"]
    assert (death["label"], death["cause"]) == ("train.log", "oom-kill-global")
    # of two killed jobs nobody knows which it was
    (tmp_path / "second.log").write_text(LOG)
    patterns = json.loads(
        subprocess.run([*words, "second.log"], cwd=tmp_path, capture_output=True, check=True).stdout
    )
    assert [death["cause"] for death in patterns["deaths"]] == ["killed-unknown"] * 2

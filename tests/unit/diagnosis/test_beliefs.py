"""Supposed cures are corrected where a text or a script shows them, with the figure of that death; nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers_case import Attempt, changed

from oomproof.diagnosis.judge import judge, judge_texts
from oomproof.evidence.texts.text_case import read_texts

KILL = (
    "Out of memory: Killed process 41877 (python3) total-vm:{vm}kB, anon-rss:27938820kB, file-rss:71264kB, "
    "shmem-rss:12288kB, UID:1000 pgtables:63120kB oom_score_adj:0\n"
)
OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 86.00 MiB. GPU 0 has a total capacity of 23.68 GiB of "
    "which 61.44 MiB is free. Of the allocated memory 22.91 GiB is allocated by PyTorch, and 312.05 MiB is reserved by "
    "PyTorch but unallocated.\n"
)


def corrected(folder: Path, text: str) -> dict[str, str]:
    path = folder / "post.txt"
    path.write_text(text)
    verdict = judge_texts(read_texts([str(path)]))
    return {item.text: item.says for item in verdict.evidence if item.id.startswith("belief.")}


def test_total_vm_is_not_use(tmp_path: Path) -> None:
    said = corrected(tmp_path, KILL.format(vm=71204112))
    assert said == {"total-vm": "67.9 GiB of total-vm is address space, not use: it held 26.7 GiB"}
    assert corrected(tmp_path, KILL.format(vm=29938820)) == {}


@pytest.mark.parametrize(
    ("mention", "belief", "figure"),
    [
        ("I call torch.cuda.empty_cache() each step\n", "empty_cache", "at most 312 MiB here"),
        ("    gc.collect()\n", "gc.collect", "the 22.9 GiB allocated here were in use"),
        ("ds.map(f, writer_batch_size=100)\n", "writer_batch_size", "(1000)"),
        ("sysctl vm.overcommit_memory=1\n", "overcommit_memory", "protects nothing"),
        ("echo 1 | sudo tee /proc/sys/vm/overcommit_memory\n", "overcommit_memory", "protects nothing"),
        ("/dev/zram0 partition 15.5G 3.9G 100\n", "zram", "about a third"),
    ],
)
def test_where_it_is_mentioned(tmp_path: Path, mention: str, belief: str, figure: str) -> None:
    assert figure in corrected(tmp_path, mention + OOM)[belief]
    assert corrected(tmp_path, OOM) == {}


def test_an_error_that_is_not_of_memory_is_no_place_for_it(tmp_path: Path) -> None:
    text = "torch.cuda.empty_cache(); gc.collect()\nTraceback (most recent call last):\n  File \"a.py\", line 1\nKeyError: 'x'\n"
    assert corrected(tmp_path, text) == {}
    assert "overcommit_memory" not in corrected(tmp_path, "vm.overcommit_memory=0\n" + OOM)


def test_in_a_runs_own_script(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path)
    attempt.ended(code=1)
    attempt.output = (
        b'Traceback (most recent call last):\n  File "a.py", line 1, in <module>\n' + OOM.encode()
    )
    case = changed(attempt.case(), beliefs=frozenset({"empty_cache"}))
    assert any("frees no tensor" in item.says for item in judge(case).evidence)

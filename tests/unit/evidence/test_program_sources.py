"""Programs, changes and searches in sources quote deaths; logs that look a little like them report theirs."""

from __future__ import annotations

from pathlib import Path

import pytest

from oomproof.diagnosis.judge import judge_texts
from oomproof.evidence.texts.text_case import read_texts

DEATHS = (
    "step 20 loss 0.5\nRuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 23.64 GiB total capacity)",
    "Out of memory: Killed process 4242 (python3) total-vm:30290680kB, anon-rss:9234320kB, file-rss:4kB, shmem-rss:0kB",
    "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=4242.batch.",
    "train.sh: line 3:  4242 Killed                  python train.py",
)  # fmt: skip


@pytest.fixture
def good(tmp_path: Path):  # type: ignore[no-untyped-def]
    def judge(text: str) -> bool:
        path = tmp_path / "text"
        path.write_text(text)
        return judge_texts(read_texts([str(path)])).kind.good

    return judge


@pytest.mark.parametrize("death", DEATHS)
def test_quoted_in_a_test(death: str, good) -> None:
    assert good(f'import pytest\n\nLOG = """\\\n{death}\n"""\n\ndef test_read():\n    assert read(LOG)\n')


@pytest.mark.parametrize("death", DEATHS)
def test_quoted_in_a_change(death: str, good) -> None:
    lines = death.split("\n")
    added = "".join(f"+{line}\n" for line in lines)
    head = "diff --git a/t.py b/t.py\n--- a/t.py\n+++ b/t.py\n"
    assert good(f"{head}@@ -1,2 +1,{len(lines) + 2} @@ def test():\n LOG = '''\n{added} '''\n")


@pytest.mark.parametrize("death", DEATHS)
def test_a_death_below_the_change_that_a_log_shows(death: str, good) -> None:
    assert not good(f"@@ -1,2 +1,2 @@ def train():\n-    lr = 1\n+    lr = 2\n     go()\n{death}\n")


@pytest.mark.parametrize("death", DEATHS)
def test_found_by_a_search_in_sources(death: str, good) -> None:
    lines = "".join(
        f"src/words.py:{number}:    ({line!r}, 3),\n" for number, line in enumerate(death.split("\n"), 10)
    )
    assert good(f"src/words.py:3:    # what the kernel prints\n{lines}")


def test_found_by_a_search_in_a_log(good) -> None:
    assert not good(f"kern.log:12:{DEATHS[1]}\n")


def test_a_logger_that_names_its_own_line(good) -> None:
    steps = "".join(f"train.py:88:     step {step} loss 0.5\n" for step in range(4))
    assert not good(f"{steps}train.py:91:RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB\n")


def test_settings_that_happen_to_be_python(good) -> None:
    assert not good("lr = 0.1\nepochs = 3\nKilled\n")

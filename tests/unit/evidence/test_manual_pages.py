"""Texts that explain how things die are no reports; reports and logs that explain themselves are no manuals."""

from __future__ import annotations

import pytest

from oomproof.diagnosis.judge import judge_texts
from oomproof.evidence.texts.manual_pages import explains
from oomproof.evidence.texts.text_case import read_texts

KILL = "[12345.678] Memory cgroup out of memory: Killed process 4821 (java) total-vm:5242880kB, anon-rss:2097152kB, file-rss:0kB\n"
ARTICLES = (
    "Exit code 137 in containers\n\nWhat it means\n137 is 128 + 9: the process got SIGKILL. Usually that is the OOM killer.\n"
    f"The kernel's log shows it:\n{KILL}Common causes\n- Your container's limit is too low.\n",
    "What does oom-kill mean?\n\nAn error such as this:\n\nslurmstepd: error: Detected 1 oom-kill event(s) in step 370.batch cgroup\n\n"
    "indicates that your job used more memory than it had asked for. If you see it, you have two options.\n",
    "Overview\nPandas holds all rows in memory. When a process needs more than there is, the kernel kills the process.\nSymptoms\n"
    "MemoryError: Unable to allocate 8.23 GiB for an array with shape (1105000000,) and data type float64\nStep 1: smaller types\n",
    "Understanding asserts on the GPU\nThe message will usually look like this:\nRuntimeError: CUDA error: device-side assert triggered\n"
    "You should check your labels first.\nCommon causes of the error\n- A label that is too large\n",
)
REPORTS = (
    # who asks says so
    f"OOM, again\n\nWhat does this mean? My job usually works. If you know why, tell me:\n{KILL}",
    # launchers and frameworks explain their warnings
    "If your script expects `--local-rank` to be set, you should change it to read from the environment, as usually recommended.\n"
    "RuntimeError: this error indicates that your module has parameters that were not used. You can set find_unused_parameters.\n",
    # a log, with a warning that tells what usually helps
    "".join(f"2024-05-01 10:00:{second:02} INFO step {second} loss 0.5\n" for second in range(20))
    + "2024-05-01 10:00:21 WARNING This typically means that your loader is slow. If you see it, you can add workers.\n"
    + KILL,
    # maintainers answer in general
    "# Crash\n\nRuntimeError: CUDA error: out of memory\n\nsomebody commented on May 1, 2024\nThis means that your GPU is full. "
    "Usually a smaller batch helps. If you use two GPUs, you can split it.\n",
)


@pytest.fixture
def cause(tmp_path):
    def judge(text: str) -> str:
        path = tmp_path / "text.txt"
        path.write_text(text)
        return judge_texts(read_texts([str(path)])).to_json()["verdict"]["cause"]

    return judge


@pytest.mark.parametrize("text", ARTICLES, ids=lambda text: text[:20])
def test_an_article_reports_no_death(text: str, cause) -> None:
    assert cause(text) == "not-a-crash"


@pytest.mark.parametrize("text", REPORTS, ids=lambda text: text[:20])
def test_a_report_is_no_article(text: str, cause) -> None:
    assert not explains(list(enumerate(text.splitlines(), 1)))
    assert cause(text) != "not-a-crash"

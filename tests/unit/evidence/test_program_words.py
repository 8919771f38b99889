"""Programs' words where they are quoted, broken over lines, or stand behind a log's own prefixes."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from oomproof.causes import cause_of
from oomproof.diagnosis.judge import judge_texts
from oomproof.diagnosis.verdict import Verdict
from oomproof.evidence.texts.line_cleaner import clean
from oomproof.evidence.texts.text_case import read_texts

KERNEL = "Out of memory: Killed process 4242 (python3) total-vm:30000000kB, anon-rss:28000000kB, file-rss:1234kB, shmem-rss:0kB"
CUDA = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.69 GiB of which 1.50 GiB "
    "is free. Of the allocated memory 20.00 GiB is allocated by PyTorch, and 1.00 GiB is reserved by PyTorch but unallocated."
)
SLURM = "slurmstepd: error: Detected 1 oom_kill event in StepId=4242.batch. Some of the step tasks have been OOM Killed."
RUST = "memory allocation of 17179869184 bytes failed"

QUOTED = {
    "diff": '--- a/run.c\n+++ b/run.c\n@@ -1,2 +1,3 @@\n+        fprintf(stderr, "{}");\n         return -1;\n',
    "test": "import pytest\n\n\ndef test_it():\n    text = '{}'\n    assert classify(text) == 'oom'\n",
    "program": 'func f() error {{\n\treturn fmt.Errorf("{}")\n}}\n',
    "search": 'src/alloc.c:120:    log_error("{}");\n',
    "rules": "rules:\n  - name: oom\n    pattern: '{}'\n    severity: high\n",
    "table": "| message | meaning |\n|---|---|\n| `{}` | too little memory |\n",
    "release notes": '## 2.3.0\n\n- Fixed a bug where a worker could fail with "{}"\n- Added Python 3.13\n',
    "questions": 'Q: What does "{}" mean?\n\nA: It asked for too much.\n\nQ: How do I install it?\n\nA: pip install it\n',
    "wish": '# Feature request: a better message\n\nIt would be nice if it detected "{}" and said what to do.\n',
}


def judged(tmp_path: Path, text: str) -> Verdict:
    (tmp_path / "a.log").write_text(text)
    return judge_texts(read_texts([str(tmp_path / "a.log")]))


@pytest.mark.parametrize("message", [KERNEL, SLURM, RUST], ids=["kernel", "slurm", "rust"])
@pytest.mark.parametrize("around", QUOTED.values(), ids=QUOTED.keys())
def test_who_quotes_a_death_has_none(tmp_path: Path, message: str, around: str) -> None:
    assert not cause_of(judged(tmp_path, around.format(message)).cause).memory


@pytest.mark.parametrize("width", [72, 80, 100, 120])
@pytest.mark.parametrize("inside_words", [True, False])
def test_a_broken_kernel_line_keeps_its_sizes(tmp_path: Path, width: int, inside_words: bool) -> None:
    broken = textwrap.wrap(KERNEL, width)
    if inside_words:
        broken = [KERNEL[at : at + width] for at in range(0, len(KERNEL), width)]
    victim = judged(tmp_path, "\n".join(broken)).to_json()["verdict"]["victim"]
    assert victim["pid"] == 4242 and victim["anon_rss_bytes"] == 28000000 * 1024
    assert victim["total_vm_bytes"] == 30000000 * 1024 and victim["file_rss_bytes"] == 1234 * 1024


@pytest.mark.parametrize("text", [CUDA, CUDA.replace(" GiB", "\xa0GiB"), "\n".join(textwrap.wrap(CUDA, 80))])
def test_a_broken_sentence_keeps_its_figures(tmp_path: Path, text: str) -> None:
    gpu = judged(tmp_path, text).to_json()["verdict"]["gpu"]
    assert gpu["requested_bytes"] == 2 << 30 and gpu["allocated_bytes"] == 20 << 30
    assert gpu["reserved_unallocated_bytes"] == 1 << 30


@pytest.mark.parametrize(
    ("line", "text", "level"),
    [
        ("2024-05-01T10:00:00Z [worker-3] memory allocation failed", "memory allocation failed", ""),
        ("[2024-05-01 10:00:00,123: ERROR/MainProcess] Task failed", "Task failed", "ERROR"),
        ("[2024-05-01 10:00:00 +0000] [1] [CRITICAL] WORKER TIMEOUT (pid:4242)", "WORKER TIMEOUT (pid:4242)", "CRITICAL"),
        ("24/05/01 10:00:00 WARN TaskMemoryManager: Failed", "Failed", "WARNING"),
        ("[E:onnxruntime:Default, cuda_call.cc:118 CudaCall] CUDA failure 2", "CUDA failure 2", "ERROR"),
        ("ERROR RuntimeError: x", "ERROR RuntimeError: x", ""),
    ],
)  # fmt: skip
def test_prefixes_of_engines(line: str, text: str, level: str) -> None:
    cleaned = clean(line)
    assert (cleaned.text, cleaned.level) == (text, level)

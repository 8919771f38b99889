"""The training-log parser: the project's own corpus, the sentences' numbers, chains, and hostile input."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oomproof.diagnosis.judge import judge_texts
from oomproof.evidence.texts.cuda_sentence import gpu_numbers
from oomproof.evidence.texts.finding import Finding
from oomproof.evidence.texts.line_cleaner import clean
from oomproof.evidence.texts.progress import ProgressTracker
from oomproof.evidence.texts.root_failure import root
from oomproof.evidence.texts.text_case import read_texts
from oomproof.evidence.texts.training_parser import TrainingParser

CORPUS = Path(__file__).parents[2] / "corpus"
SHARED = Path(os.environ.get("OOMPROOF_SHARED_CORPUS", Path(__file__).parents[4] / "shared" / "corpus"))
GIB, MIB = 1 << 30, 1 << 20


def parse(text: str) -> tuple[list[Finding], TrainingParser]:
    parser = TrainingParser("-")
    for number, line in enumerate(text.split("\n"), 1):
        parser.feed(number, line)
    return parser.finish(), parser


def cause_of(text: str) -> str:
    found = root(parse(text)[0])
    return found.cause if found else "not-a-crash"


def requested(finding: Finding | None) -> int | None:
    if finding is None:
        return None
    if finding.gpu is not None and finding.gpu.requested is not None:
        return finding.gpu.requested
    return finding.job.requested


def truth(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    return [row for row in map(json.loads, path.read_text().splitlines()) if row["file"].startswith("logs/")]


def read(path: Path) -> str:
    return path.read_bytes().decode("utf-8", "replace")


OWN = truth(CORPUS / "logs" / "truth.jsonl")


def test_the_corpus_is_large_and_holds_decoys() -> None:
    assert len(OWN) >= 70
    assert sum(row["kind"] == "not-a-crash" for row in OWN) >= 15
    assert {row["file"][5:] for row in OWN} == {p.name for p in (CORPUS / "logs").glob("*.txt")}


@pytest.mark.parametrize("name", ["Floating point", "Floating-point"])
def test_a_crash_has_another_name_since_python_3_14(name: str) -> None:
    finding = root(parse(f"step 1\nFatal Python error: {name} exception\n")[0])
    assert finding is not None and (finding.cause, finding.job.signal) == ("other-error", 8)


@pytest.mark.parametrize("row", OWN, ids=lambda row: row["file"][5:-4])
def test_own_corpus(row: dict[str, Any]) -> None:
    if row.get("reader") == "guards" or row["kind"] == "silent-end":  # only the whole reading knows them
        verdict = judge_texts(read_texts([str(CORPUS / row["file"])]))
        assert verdict.cause == row["kind"]
        return
    findings, _ = parse(read(CORPUS / row["file"]))
    found = root(findings)
    assert (found.cause if found else "not-a-crash") in (row["kind"], *row.get("also", ()))
    if row["requested_bytes"] is not None:
        assert requested(found) == row["requested_bytes"]
    if row["gpu_total_bytes"] is not None:
        assert found and found.gpu and found.gpu.total == row["gpu_total_bytes"]
    if row["phase"] != "unknown" and found:
        assert found.job.phase == row["phase"]
    assert all(each.job.role in ("root", "consequence", "noise") for each in findings)
    assert sum(each.job.role == "root" for each in findings) <= 1
    assert [each.line for each in findings] == sorted(each.line for each in findings)


WORDINGS = [json.loads(line) for line in (CORPUS / "logs" / "wordings.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("row", WORDINGS, ids=lambda row: f"{row['kind']}-{row['text'][-30:]!r}")
def test_wordings(row: dict[str, str]) -> None:
    """Short texts, one wording each, written after what each library and launcher prints."""
    assert cause_of(row["text"]) == row["kind"]


@pytest.mark.skipif(not (SHARED / "truth.jsonl").exists(), reason=f"no published texts at {SHARED}")
def test_published_texts() -> None:
    rows = truth(SHARED / "truth.jsonl")
    wrong = [
        row["file"]
        for row in rows
        if cause_of(read(SHARED / row["file"])) not in (row["kind"], *row.get("also", ()))
    ]
    assert len(wrong) <= 0.05 * len(rows), wrong


# -- the CUDA sentence --------------------------------------------------------------------------------


def test_all_numbers_of_the_present_wording() -> None:
    numbers = gpu_numbers(
        "CUDA out of memory. Tried to allocate 1.27 GiB. GPU 3 has a total capacity of 47.53 GiB of which 844.06 MiB "
        "is free. Process 71 has 26.06 MiB memory in use. Process 72 has 2.00 GiB memory in use. Including non-PyTorch "
        "memory, this process has 44.68 GiB memory in use. Of the allocated memory 41.21 GiB is allocated by PyTorch, "
        "and 2.15 GiB is reserved by PyTorch but unallocated."
    )
    assert numbers is not None
    assert numbers.index == 3
    assert numbers.requested == round(1.27 * GIB)
    assert numbers.total == round(47.53 * GIB)
    assert numbers.free == round(844.06 * MIB)
    assert numbers.own == round(44.68 * GIB)
    assert numbers.neighbours == round(26.06 * MIB) + 2 * GIB
    assert numbers.allocated == round(41.21 * GIB)
    assert numbers.reserved_unallocated == round(2.15 * GIB)


def test_a_lone_process_may_be_ourselves() -> None:
    numbers = gpu_numbers(
        "Tried to allocate 90.00 MiB. GPU 0 has a total capacty of 23.65 GiB of which 73.81 MiB is free. Process 15 has "
        "23.57 GiB memory in use. Of the allocated memory 21.89 GiB is allocated by PyTorch, and 1.02 GiB is reserved "
        "by PyTorch but unallocated."
    )
    assert numbers is not None
    assert numbers.own == round(23.57 * GIB)
    assert numbers.neighbours is None


def test_the_c_plus_plus_warning_counts_in_bytes() -> None:
    numbers = gpu_numbers(
        "memory allocation failed with OOM on device 3 while trying to allocate 67108864 bytes (free: 20316160, total: 23745396736)."
    )
    assert numbers is not None
    assert (numbers.index, numbers.requested, numbers.free, numbers.total) == (
        3,
        67108864,
        20316160,
        23745396736,
    )


# -- lines --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "text", "tag", "level"),
    [
        ("[rank3]: ValueError: x", "ValueError: x", "3", ""),
        ("(RayTrainWorker pid=12, ip=10.0.0.1) boom", "boom", "RayTrainWorker pid=12, ip=10.0.0.1", ""),
        ("\x1b[0;31mOSError\x1b[0m: no", "OSError: no", "", ""),
        ("2026-01-02 03:04:05,678 - job - WARNING - low", "low", "", "WARNING"),
        ("[2026-01-02 03:04:05,678] [ERROR] [launch.py:3:f] gone", "gone", "", "ERROR"),
        ('      "\\u001b[0;31mMemoryError\\u001b[0m: \\n",', "MemoryError:", "", ""),
        ("a &lt;b&gt; &amp; c", "a <b> & c", "", ""),
        ("2026-01-02 03:04:05,678 - ERROR - KeyError: 'x'", "KeyError: 'x'", "", "ERROR"),
        ("2026-01-02 03:04:05,678 - INFO - [rank1]: ValueError: x", "ValueError: x", "1", "INFO"),
        ("ERROR:root:ValueError: x", "ValueError: x", "", "ERROR"),
        ("    2026-01-02 03:04:05,678 - job - WARNING - low", "low", "", "WARNING"),
        ("Fri Jan  2 03:04:05 2026[1,7]<stderr>:boom", "boom", "7", ""),
        ("2026-01-02T03:04:05.678Z stderr F boom", "boom", "stderr", ""),
        ("<ipython-input-5-1234> in <module>", "<ipython-input-5-1234> in <module>", "", ""),
    ],
)
def test_a_line_is_stripped_to_what_was_meant(raw: str, text: str, tag: str, level: str) -> None:
    line = clean(raw)
    assert (line.text, line.tag, line.level) == (text, tag, level)


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        ("已杀死", "killed-unknown"),
        ("./run.sh: 行 5: 1234 已杀死   python a.py", "killed-unknown"),
        ("[1]+  Getötet                 python a.py", "killed-unknown"),
        ("段错误（核心已转储）", "segfault"),
        ("训练已终止", "not-a-crash"),
    ],
)
def test_a_shell_of_another_language(said: str, cause: str) -> None:
    assert cause_of(said) == cause


def test_figures_may_stand_in_a_neighbouring_line() -> None:
    text = "E cuda_dnn.cc:439] Could not create cudnn handle: CUDNN_STATUS_INTERNAL_ERROR\nE cuda_dnn.cc:443] Memory usage: 100 bytes free, 8000 bytes total.\n"
    found = root(parse(text)[0])
    assert found is not None
    assert found.gpu is not None
    assert (found.gpu.free, found.gpu.total) == (100, 8000)


def test_a_table_of_figures_below_the_sentence() -> None:
    numbers = gpu_numbers(
        "Allocation on device 0 would exceed allowed memory. (out of memory) Currently allocated     : 6.00 GiB "
        "Requested               : 1.50 GiB Device limit            : 7.80 GiB"
    )
    assert numbers is not None
    assert (numbers.requested, numbers.total) == (round(1.5 * GIB), round(7.8 * GIB))
    assert numbers.allocated == 6 * GIB


def test_the_table_escaped_into_one_line() -> None:
    numbers = gpu_numbers(
        r"Allocation on device 0 would exceed allowed memory. (out of memory)\nCurrently allocated     : 6.00 GiB\n"
        r"Requested               : 1.50 GiB\nDevice limit            : 7.80 GiB\nFree (according to CUDA): 40.00 MiB\n"
    )
    assert numbers is not None
    assert (numbers.requested, numbers.total) == (round(1.5 * GIB), round(7.8 * GIB))
    assert (numbers.allocated, numbers.free) == (6 * GIB, 40 * MIB)


def test_a_message_whose_indented_lines_begin_like_an_error() -> None:
    text = (
        "RuntimeError: Error in void* pool::gpu::Resources::take(const pool::gpu::Request&)\n"
        "              at /work/pool/gpu/Resources.cpp:452:\n"
        "              Error: 'err == cudaSuccess' failed: Resources: alloc fail type FlatData\n"
        "              dev 0 space Device stream 0x7f size 4096 bytes (cudaMalloc error out of memory [2])\n"
    )
    found = root(parse(text)[0])
    assert found is not None and (found.cause, requested(found)) == ("cuda-oom", 4096)


def test_a_quota_told_without_the_exceptions_name_before_it() -> None:
    assert (
        cause_of(
            "  OSError\n\n  [Errno 122] Disk quota exceeded: '/data/out'\n\n  at os.py:223 in makedirs\n"
        )
        == "disk-full"
    )


def test_a_box_of_rich_that_is_cut_before_its_exception() -> None:
    box = "│   1161 │   │   # data, if successful          │\n│ ❱ 1162 │   │   data = self._get()             │\n"
    assert cause_of(f"epoch 1\n{box}│   1163 │   │   return data                    │\n") == "other-error"
    assert (
        cause_of(f"epoch 1\n{box}╰──────────────────────────────────╯\nValueError: no\nepoch 2\n")
        == "other-error"
    )
    assert cause_of("epoch 1\n│ loss │ 0.25 │\n│ lr   │ 0.10 │\n") == "not-a-crash"


def test_a_traceback_that_was_copied_into_one_line() -> None:
    line = 'Images (649, 256) Traceback (most recent call last):   File "train.py", line 31, in <module>     images = images/255.0 '
    assert cause_of(f"{line}MemoryError\n") == "python-memory-error"
    assert cause_of(f"{line}ValueError: no such shape\n") == "other-error"
    assert cause_of(f"INFO:root:{line}MemoryError\nINFO retrying with less\nall done\n") == "not-a-crash"


def test_a_debuggers_stack_tells_of_memory_only_where_it_threw() -> None:
    corrupted = "#4  0x1 in malloc () from /lib/libc.so.6\n#5  0x2 in operator new(unsigned long) () from /usr/lib/libstdc++.so.6\n"
    assert cause_of(f"Program terminated with signal SIGABRT, Aborted.\n{corrupted}") == "abort"
    threw = "#4  0x1 in std::__throw_bad_alloc() () from /usr/lib/libstdc++.so.6\n"
    assert cause_of(f"step 1\n{threw}") == "bad-alloc"


def test_a_line_of_blanks_is_read_at_once() -> None:
    began = time.process_time()
    assert cause_of(f"ValueError: bad{' ' * 100_000}y\n") == "other-error"
    assert time.process_time() - began < 5


def test_what_a_java_exception_was_caused_by_is_the_cause() -> None:
    text = (
        '00:02 DEBUG: [Info] Loading\nException in thread "main" java.lang.reflect.InvocationTargetException\n'
        "\tat java.lang.reflect.Method.invoke(Method.java:498)\n"
    )
    assert cause_of(text) == "other-error"
    assert (
        cause_of(f"{text}Caused by: java.lang.OutOfMemoryError: Java heap space\n\tat a.B.c(B.java:1)\n")
        == "heap-limit"
    )


@pytest.mark.parametrize(
    "before",
    [
        "(VllmWorkerProcess pid=35734) ERROR 11-06 17:51:07 multiproc_worker_utils.py:229] ",
        "ERROR 11-06 17:51:07 engine.py:158] ",
        "10月 19 22:21:15 gpu ollama[60399]: ",
        "oct 08 12:15:07 desktop-pc server[8633]: ",
    ],
)
def test_what_stands_before_a_line(before: str) -> None:
    assert (
        clean(f"{before}torch.OutOfMemoryError: CUDA out of memory.").text
        == "torch.OutOfMemoryError: CUDA out of memory."
    )
    assert clean(f'{before}  File "a.py", line 3, in f').text == '  File "a.py", line 3, in f'
    assert clean("Epoch 13 10:36:01 train loss: nan").text == "Epoch 13 10:36:01 train loss: nan", (
        "no journal's stamp"
    )


def test_what_nobody_killed_is_no_kill(tmp_path: Path) -> None:
    file = tmp_path / "app.log"
    file.write_text("Stop Application ...\nkillall: recorder: no process killed\nstorage ready\n")
    assert judge_texts(read_texts([str(file)])).cause in ("not-a-crash", "silent-end")


def test_an_exception_without_a_blank_behind_its_colon() -> None:
    assert cause_of("ValueError:Network outputs is NAN! Stop Training\n") == "nan"
    assert cause_of("MeanError:0.25 StdError:0.1\n") == "not-a-crash"
    assert cause_of("ParseError:Skipped file a.xml\nprocessed 30 files\n") == "not-a-crash"


def test_a_loss_that_is_no_number_ended_a_training() -> None:
    found = root(parse("Loss is nan, stopping training\n")[0])
    assert found is not None and (found.cause, found.job.phase) == ("nan", "train")
    found = root(
        parse(
            'Traceback (most recent call last):\n  File "a.py", line 3, in f\n    g(x)\nValueError: Input X contains NaN.\n'
        )[0]
    )
    assert found is not None and (found.cause, found.job.phase) == ("nan", "unknown")


WARNING = "2026-01-02 03:04:05.678901: W tensorflow/core/common_runtime/bfc_allocator.cc:290] Allocator (GPU_0_bfc) ran out of memory trying to allocate 2.26GiB with freed_by_count=0. The caller indicates that this is not a failure, but may mean that there could be performance gains if more memory were available."
SENTENCE = "RuntimeError: CUDA out of memory. Tried to allocate 174.00 MiB (GPU 0; 15.00 GiB total capacity; 13.21 GiB already allocated; 51.38 MiB free)"
LAUNCHER = "E0210 14:23:38.250077 2345 torch/distributed/elastic/multiprocessing/api.py:833] failed (exitcode: -9) local_rank: 2 (pid: 4242) of binary: /usr/bin/python3.11"


@pytest.mark.parametrize("width", range(72, 130, 3))
def test_a_screens_edge_changes_nothing(width: int) -> None:
    def broken(text: str) -> str:
        return "\n".join(
            line[at : at + width] for line in text.split("\n") for at in range(0, len(line), width)
        )

    assert cause_of(broken(f"step 1\n{WARNING}\nstep 2\n{WARNING}\n")) == "not-a-crash"
    filler = "x" * 2 * width
    full = root(parse(broken(f"{filler}\n{TRACEBACK}{SENTENCE}\n"))[0])
    assert full is not None
    assert full.gpu is not None
    assert (full.cause, full.gpu.requested, full.gpu.total) == ("cuda-oom", 174 << 20, 15 * GIB)
    found = root(parse(broken(f"{filler}\n{LAUNCHER}\n"))[0])
    assert found is not None
    assert (found.cause, found.pids) == ("killed-unknown", (4242,))


def test_a_line_with_a_level_of_its_own_goes_on_from_nobody() -> None:
    """Two lines of one width look like a screen's edge."""
    api = "torch.distributed.elastic.multiprocessing.api"
    text = "".join(
        f"WARNING:{api}:Unable to shutdown process {pid} via 15, forcefully exitting via 9\n"
        for pid in (27, 29)
    )
    text += f"ERROR:{api}:failed (exitcode: -11) local_rank: 1 (pid: 28) of binary: python3\n"
    (found,) = [each for each in parse(text)[0] if each.cause == "segfault"]
    assert found.pids == (28,)


def test_a_docstring_shows_an_example() -> None:
    program = "import json\n\ndef read(path):\n    return json.load(path)\n\nclass Reader:\n    def f(self):\n        return 1\n"
    example = "    Traceback (most recent call last):\n        ...\n    ValueError: no such format\n"
    assert cause_of(program + example) == "not-a-crash"
    assert cause_of(example) == "other-error"


# -- chains -------------------------------------------------------------------------------------------

TRACEBACK = 'Traceback (most recent call last):\n  File "train.py", line 3, in train\n    step()\n'
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 23.64 GiB of which 9.50 MiB is free."


def test_the_first_of_a_chain_is_the_root() -> None:
    text = f"{TRACEBACK}{OOM}\n\nDuring handling of the above exception, another exception occurred:\n\n{TRACEBACK}NameError: name 'x' is not defined\n"
    findings, _ = parse(text)
    assert [(each.cause, each.job.role) for each in findings] == [
        ("cuda-oom", "root"),
        ("other-error", "consequence"),
    ]


def test_an_empty_queue_is_not_the_cause_of_a_killed_worker() -> None:
    text = f"{TRACEBACK}_queue.Empty\n\nThe above exception was the direct cause of the following exception:\n\n{TRACEBACK}RuntimeError: DataLoader worker (pid(s) 77, 78) exited unexpectedly\n"
    found = root(parse(text)[0])
    assert found is not None
    assert (found.cause, found.pids) == ("dataloader-killed", (77, 78))


def test_a_peer_that_was_killed_explains_the_timeouts() -> None:
    text = (
        "[rank0]:[E1 ProcessGroupNCCL.cpp:616] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1)\n"
        "E1 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: -9) local_rank: 1 (pid: 4242) of binary: python\n"
    )
    found = root(parse(text)[0])
    assert found is not None
    assert (found.cause, found.pids) == ("killed-unknown", (4242,))


def test_slurm_explains_a_killed_worker() -> None:
    text = (
        "RuntimeError: DataLoader worker (pid 9) is killed by signal: Killed. \n"
        "slurmstepd: error: Detected 1 oom_kill event in StepId=1.batch. Some of the step tasks have been OOM Killed.\n"
    )
    assert cause_of(text) == "slurm-oom"


def test_a_title_and_the_sentence_below_it_are_one_failure() -> None:
    sentence = "MemoryError: Unable to allocate 7.45 GiB for an array with shape (1000, 1000000) and data type float64"
    for title in (
        "MemoryError",
        "numpy.core._exceptions.MemoryError",
        "numpy.core._exceptions._ArrayMemoryError",
    ):
        found = root(parse(f"# {title}\n\n{sentence}\n")[0])
        assert found is not None
        assert (found.cause, found.job.requested) == ("numpy-memory-error", 8_000_000_000)


def test_xlas_words_are_not_tensorflows() -> None:
    words = "RuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 4096 bytes."
    assert cause_of(words) == "jax-oom"
    assert cause_of(f"W tensorflow/core/x.cc:1] an allocation failed\n{words}") == "tf-oom"


def test_an_earlier_trial_that_failed_is_not_this_death() -> None:
    text = (
        "step 1 loss 2\nstep 2 loss 2\n"
        + TRACEBACK
        + OOM
        + "\n"
        + "".join(f"step {n} loss 1\n" for n in range(90))
        + "Killed\n"
    )
    findings, parser = parse(text)
    assert [(each.cause, each.job.role) for each in findings] == [
        ("cuda-oom", "noise"),
        ("killed-unknown", "root"),
    ]
    assert parser.progress.step == 89


def test_an_error_that_was_survived_is_noise() -> None:
    text = (
        "step 1 loss 2\n"
        + TRACEBACK
        + OOM
        + "\nskipping this batch\n"
        + "".join(f"step {n} loss 1\n" for n in range(2, 9))
    )
    findings, _ = parse(text)
    assert root(findings) is None
    assert findings[0].job.role == "noise"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hello\nworld\n",
        "We saw CUDA out of memory errors on smaller cards, so we use accumulation.",
        "def f():\n    raise RuntimeError('CUDA out of memory')",
        "[1704.1] Out of memory: Killed process 77 (python3) total-vm:1kB, anon-rss:1kB",
        "The job was killed in the lab yesterday",
        "finished with exit code 0",
    ],
)
def test_talk_is_no_death(text: str) -> None:
    assert cause_of(text) == "not-a-crash"


# -- hostile input --------------------------------------------------------------------------------------

SAMPLES = [read(path) for path in sorted((CORPUS / "logs").glob("*.txt"))]


@settings(max_examples=120)
@given(st.integers(0, 10**9))
def test_any_cut_and_any_mixture_is_survived(seed: int) -> None:
    """No exception, the invariants of roles hold, and the findings' texts stay short."""
    dice = random.Random(seed)
    texts = [dice.choice(SAMPLES) for _ in range(dice.randint(1, 3))]
    cut = [text[dice.randint(0, len(text)) :][: dice.randint(0, len(text) + 1)] for text in texts]
    queues = [text.split("\n") for text in cut]
    lines: list[str] = []
    while queues:
        queue = dice.choice(queues)
        lines.append(queue.pop(0))
        if not queue:
            queues.remove(queue)
    findings, _ = parse("\n".join(lines))
    assert sum(each.job.role == "root" for each in findings) <= 1
    assert all(len(each.text) <= 600 for each in findings)


@settings(max_examples=150)
@given(st.lists(st.text(max_size=300), max_size=30))
def test_garbage_is_survived(lines: list[str]) -> None:
    parse("\n".join(lines))


@settings(max_examples=100)
@given(
    st.lists(
        st.sampled_from(
            [
                "Traceback (most recent call last):",
                'File "',
                "rror: ",
                "Killed ",
                "exitcode: -",
                "(pid ",
                "CUDA out of memory. Tried to allocate ",
                "9" * 30,
                " GiB",
                "nan",
                "%|",
                "/",
                "[",
                "]",
                "(",
                ")",
                " ",
                "\\n",
                '"',
                "\r",
                "loss",
                "step ",
                "Epoch ",
                "shape[",
                "with shape (",
                ",",
                " and data type ",
                "float64",
                "-9",
                "SIG",
                "KILL",
                "signal ",
                "\x1b[",
                "\0",
                "[rank",
                "]: ",
                "0x",
                "ValueError",
                ":",
            ]
        ),
        max_size=60,
    )
)
def test_the_parsers_own_words_in_any_order_are_survived(words: list[str]) -> None:
    parse("".join(words) + "\n" + "".join(reversed(words)))


# beginnings of sentences that are known: what follows must not be tried again and again
ENDLESS = [
    "9",  # the sizes of a sentence about memory meet them below
    "rror ",
    "a",
    "Killed ",
    '\\n"',
    "[",
    "(pid=",
    " ",
    "1/",
    "=> ",
    "%|",
    "━ ",
    'File "',
    "exit code ",
    "loss nan ",
    "a.",
    "step ",
    "Epoch ",
    "Error: ",
    "^C",
    'Traceback (most recent call last): File "/a.py", line 3, in f ',
    "`ValueError: x` ",
    "' in x ",
    "failed to allocate ",
    "GPU out of memory ",
    "/a/b.cu",
    "| a | b ",
    "--opt  x ",
    "Could not allocate tensor with ",
    "thread: [1,0,0] Assertion `",
    "return code = -",
    "DataLoader worker (pid ",
    "NCCL WARN ",
    "== cudaSuccess ",
    "./run.sh: 行 5: 12 已杀死 ",
    'Exception in thread "',
    "Memory usage: 1 bytes free, ",
    "**a",
    "signal (1",
]


@pytest.mark.parametrize(
    "unit",
    [
        # every third each time, all by hand
        pytest.param(unit, marks=[pytest.mark.long] if number % 3 else [])
        for number, unit in enumerate(ENDLESS)
    ],
)
def test_one_endless_line_takes_linear_time(unit: str) -> None:
    started = time.process_time()
    parse(unit * (500_000 // len(unit)))
    assert time.process_time() - started < 10  # under 1; hours, were it quadratic


def test_a_size_of_a_thousand_digits() -> None:
    started = time.process_time()
    assert gpu_numbers("CUDA out of memory. " + "9" * 20_000) is None
    assert time.process_time() - started < 5  # under 0.1; it was cubic


def test_many_lines_take_seconds_and_little_memory() -> None:
    parser = TrainingParser("-")
    started = time.process_time()
    for number in range(200_000):
        parser.feed(number + 1, f"2026-05-01 12:00:01,123 - epoch 3 step {number} loss 0.2312 lr 3.2e-05")
    parser.feed(200_001, "Killed")
    findings = parser.finish()
    assert time.process_time() - started < 60  # under 2
    assert [each.cause for each in findings] == ["killed-unknown"]
    assert parser.progress.step == 199_999


def test_memory_is_bounded() -> None:
    def peak(count: int) -> int:
        parser = TrainingParser("-")
        tracemalloc.start()
        try:
            for number in range(count):
                words = f"RuntimeError: CUDA out of memory. Tried to allocate {number}.00 MiB"
                parser.feed(number + 1, f"[rank{number}]: {words}" + "x" * 200)
            parser.finish()
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    assert peak(1_600) < peak(400) + MIB // 2  # four times the text


# -- whole files --------------------------------------------------------------------------------------

SPOILERS: list[Callable[[bytes, random.Random], bytes]] = [
    lambda data, dice: data.replace(b"\n", b"\r"),
    lambda data, dice: data.replace(b"\n", b"\r\n"),
    lambda data, dice: data.replace(b" ", b"\0 ", dice.randint(1, 200)),
    lambda data, dice: data.decode("utf-8", "replace").encode("latin-1", "replace"),
    lambda data, dice: data[: dice.randint(1, len(data))] + "\N{FULL BLOCK}".encode()[:2] + data,
    lambda data, dice: data.replace(b"\n", b"\x1b[0m\n"),
    lambda data, dice: b"".join(
        b"[rank%d]: " % dice.randint(0, 3) + line + b"\n" for line in data.split(b"\n")
    ),
    lambda data, dice: b"\n".join(dice.sample(lines := data.split(b"\n"), len(lines))),
    lambda data, dice: data.replace(b"\n", b" "),
    lambda data, dice: data[dice.randint(0, len(data) - 1) :],
]


@settings(max_examples=60)
@given(seed=st.integers(0, 10**9))
def test_a_spoilt_file_is_judged_all_the_same(tmp_path: Path, seed: int) -> None:
    """Carriage returns, NULs, Latin-1, half characters, ranks, shuffled, flattened: a verdict whose shares add up."""
    dice = random.Random(seed)
    data = "\n".join(dice.choice(SAMPLES) for _ in range(dice.randint(1, 3))).encode()
    for spoil in dice.sample(SPOILERS, dice.randint(1, 3)):
        data = spoil(data, dice) or b"x"
    path = tmp_path / "spoilt.log"
    path.write_bytes(data)
    verdict = judge_texts(read_texts([str(path)]))
    assert sum(each.probability for each in verdict.causes) == pytest.approx(1.0, abs=1e-9)
    first = verdict.causes[0]
    if verdict.cause != "silent-end":  # what is ranked there is what may lie behind it
        assert (first.cause, first.probability) == (verdict.cause, verdict.probability)
    assert first.probability == max(each.probability for each in verdict.causes)


HARD = {
    "one line of 10 MB": b"a" * 10_000_000,
    "a million carriage returns": b"\r" * 1_000_000 + b"\nKilled\n",
    "a million redrawn bars": b"\r 10%|#         | 100/1000 [00:10<01:30,  9.9it/s]" * 200_000
    + b"\nKilled\n",
    "NULs between": b"\0" * 5_000_000 + b"\nKilled\n",
    "a key held down": b"^C" * 500_000 + b"\n",
}


@pytest.mark.parametrize("name", HARD)
def test_hard_files_take_seconds_and_little_memory(tmp_path: Path, name: str) -> None:
    path = tmp_path / "hard.log"
    path.write_bytes(HARD[name])
    code = (
        "import resource, sys\n"
        "from oomproof.diagnosis.judge import judge_texts\n"
        "from oomproof.evidence.texts.text_case import read_texts\n"
        "before = resource.getrusage(resource.RUSAGE_SELF)\n"
        "cause = judge_texts(read_texts([sys.argv[1]])).cause\n"
        "after = resource.getrusage(resource.RUSAGE_SELF)\n"
        "print(cause, after.ru_utime - before.ru_utime, after.ru_maxrss - before.ru_maxrss)\n"
    )
    said = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    cause, seconds, kib = said.stdout.split()
    assert cause in ("killed-unknown", "not-a-crash", "interrupted")
    assert (cause == "killed-unknown") == HARD[name].endswith(b"Killed\n")
    assert float(seconds) < 60
    assert int(kib) < 100 * 1024


@pytest.mark.parametrize(
    ("lines", "step"),
    [
        (["Loading weights: 100%|██████████| 28/28 [00:01<00:00, 20.1it/s]"], None),
        (["Loading checkpoint shards:  33%|███▎      | 1/3 [00:02<00:04,  2.1s/it]"], None),
        (["Map:  45%|████▌     | 4500/10000 [00:03<00:04, 1200.00 examples/s]"], None),
        (["Downloading data files: 100%|██████████| 2/2 [00:03<00:00]", "Epoch 1"], None),
        (["Loading weights: 100%|██████████| 28/28 [00:01<00:00]", "  1%|  | 2/188 [00:01<00:20, 9.0it/s]"], 2),
        (["  3%|▎ | 173/188 [00:59<01:00]", "Loading best weights: 100%|██████████| 28/28 [00:01<00:00]"], 173),
    ],
)  # fmt: skip
def test_a_bar_that_loads_is_no_step_of_the_training(lines: list[str], step: int | None) -> None:
    """ "The last progress was step 28 of 28" was the bar of loading weights."""
    tracker = ProgressTracker()
    for number, line in enumerate(lines, 1):
        tracker.look(number, line)
    assert tracker.last.training_step == step

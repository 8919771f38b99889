"""What people tell of a death in their own words, and what is only talk about one."""

from __future__ import annotations

import pytest

from oomproof.diagnosis.judge import judge_texts
from oomproof.evidence.texts.post_deaths import NAMES, ToldName
from oomproof.evidence.texts.post_phases import WHEN, ToldPhase
from oomproof.evidence.texts.text_case import read_texts


@pytest.fixture
def verdict(tmp_path):
    def judge(text: str) -> tuple[str, str]:
        path = tmp_path / "post.txt"
        path.write_text(text)
        said = judge_texts(read_texts([str(path)])).to_json()["verdict"]
        return said["cause"], said["phase"]

    return judge


@pytest.mark.parametrize("name", NAMES, ids=lambda name: f"{name.cause}: {name.example[:30]}")
def test_a_sentence_is_a_report(name: ToldName, verdict) -> None:
    assert verdict(f"# About your code\n\n{name.example}\nAny suggestions?\n")[0] == name.cause


@pytest.mark.parametrize("when", WHEN, ids=lambda when: when.phase)
def test_a_sentence_tells_when(when: ToldPhase, verdict) -> None:
    text = f"# A problem\n\n{when.example}:\n\nRuntimeError: CUDA error: out of memory\n"
    assert verdict(text) == ("cuda-oom", when.phase)


def test_a_title_says_what_a_cut_traceback_does_not(verdict) -> None:
    text = (
        "# [Bug] NPU out of memory when tp=2\n\n"
        'Traceback (most recent call last):\n  File "train.py", line 3, in main\n    fit()\n'
        '  File "train.py", line 9, in validate\n    loss = net(batch)\n'
    )
    assert verdict(text) == ("cuda-oom", "eval")


def test_a_part_of_the_training_wins_over_the_training(verdict) -> None:
    text = "# CUDA out of memory\n\nI train on my GPU. When training comes to the second validation I get the error.\n"
    assert verdict(text) == ("cuda-oom", "eval")


def test_two_parts_are_no_answer(verdict) -> None:
    text = (
        "# A problem\n\nWhen saving the model I get an error, and when loading the checkpoint I get it too:\n"
        "RuntimeError: CUDA error: out of memory\n"
    )
    assert verdict(text) == ("cuda-oom", "unknown")


def test_a_programs_own_words_come_first(verdict) -> None:
    text = "# CUDA out of memory?\n\nI get this on my GPU:\nTraceback (most recent call last):\n"
    text += "  File \"train.py\", line 3, in main\n    x()\nKeyError: 'labels'\n"
    assert verdict(text)[0] == "other-error"


@pytest.mark.parametrize(
    "text",
    [
        "# How can I reduce GPU memory usage?\n\nThe model works well, but my GPU is nearly full. Can I avoid OOM?\n",
        "# Troubleshooting\n\nIf you get CUDA out of memory errors, reduce the batch size.\n\nWe hope this helps.\n",
        "# feat: recover from GPU OOM\n\nWe now catch CUDA out of memory and halve the batch, so I added a test.\n",
        "# Notes\n\nWe saw CUDA out of memory errors on smaller cards, so we use accumulation.\n",
        "# FAQ item missing: GPU out of memory\n\nI think we are missing a good item for it.\n",
        "# Reply\n\nTry a smaller image: on my GPU that would run out of GPU memory as well.\n",
        "# Report\n\nThe job was killed in the lab yesterday. Today I ran it again and it finished.\n",
        "# Fixed\n\nI no longer get CUDA out of memory with the last commit, thanks!\n",
        "# Indicate the size when an allocation gives a MemoryError\n\nI have seen many ask why it gives a MemoryError.\n",
        "# Detect OOMKilled pods\n\nOur alert should fire when a pod was OOM killed, and I think we can read its state.\n",
        "# Out of memory, explained\n\nIn this article: the kernel killed the process, exit code 137. Common causes follow.\n",
        "# [feature request] retry on OOM\n\nIt would be nice: my job got CUDA out of memory and could have gone on.\n",
        "# Bump the memory limit of the notebook\n\nIf people leave many open, my kernel will crash under heavy work.\n",
        "# Notes\n\nThis error means that the kernel process was killed, I think.\n",
        "# Growing memory\n\nI found a workaround for me: kill the kernel after each run.\n",
        "# Free RAM\n\nThere is no space left for doing anything else in my RAM.\n",
        "# Auto-restart containers that crash\n\nWhen my container dies (e.g., OOM), the session was killed; restart it instead.\n",
        "# Running out of GPU memory\n\nReduce `--batch-size`.\n\n# A segfault\n\nReinstall the driver.\n",
    ],
)
def test_talk_about_a_death_is_none(text: str, verdict) -> None:
    assert verdict(text)[0] == "not-a-crash"


@pytest.mark.parametrize(
    ("title", "sentence", "phase"),
    [
        ("CUDA out of memory for large image inference", "It occurs on my card.", "eval"),
        ("CUDA out of memory", "I just run the test code, but get the error.", "eval"),
        ("CUDA out of memory", "I want to test one image. But I meet the error on my GPU.", "eval"),
        ("CUDA out of memory", "Training works fine, but when I use it to predict I get this.", "eval"),
        ("CUDA out of memory", "I see the error while partitioning the states, before training can begin.", "load"),
        ("CUDA out of memory", "My cross validation fails when training the second fold.", "train"),
        ("CUDA out of memory", "The error happens on the line model.generate(prompt), I think.", "generate"),
        ("CUDA out of memory", "I get the error at inference, in the generate script.", "generate"),
        ("CUDA out of memory", "I had a problem when I trained it.", "train"),
        ("CUDA out of memory", "Process_data.py gives me an error.", "load"),
        ("CUDA out of memory", "When I call model.fit(x, y) I get it.", "train"),
        ("CUDA out of memory", "@owner when i train your model i get this:", "train"),
        ("CUDA error loading the second model: out of memory", "I use one card.", "load"),
        ("CUDA out of memory", "I run out of memory while creating the TokenDataset.", "load"),
        ("CUDA out of memory", "I see it when half of them are evaluated, on my card.", "eval"),
        ("CUDA out of memory", "When I run train.py I get an error.", "unknown"),  # which also loads and evaluates
        ("CUDA out of memory", "I get an error with the training set of another project.", "unknown"),
        ("训练时CUDA out of memory", "我用的是一张卡", "train"),
    ],
)  # fmt: skip
def test_when_in_other_words(title: str, sentence: str, phase: str, verdict) -> None:
    assert verdict(f"# {title}\n\n{sentence}\nThanks!\n") == ("cuda-oom", phase)


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("# loss训练时候变成nan\n\n减小学习率也不行，请问怎么办\n", "nan"),
        ("# Nan loss occured in the second epoch\n\nTry a smaller rate.\n", "nan"),
        ("# The run shows memoryError, how to solve?\n\nI use 8G of memory.\n", "python-memory-error"),
        ("# CPU OOM with offload\n\nI see CPU OOM errors on my machine with two GPUs.\n", "python-memory-error"),
        ("# CUDA outofmemory\n\nI get it when I test one image.\n", "cuda-oom"),
        ("# It is killed\n\nMy job gets killed, and then: `RuntimeError: CUDA error: out of memory` on my card.\n", "cuda-oom"),
        ("# Kernel Restarting\n\nI get \"Kernel Restarting\" when I run the second cell.\n", "killed-unknown"),
        ("# Fitting kills the Jupyter kernel\n\nUsing version 1.6 on a machine with 8 GPUs.\n", "killed-unknown"),
        ("# the process is killed\n\nthe corpus is 4G\ni guess that the memory is full.\n", "killed-unknown"),
        ("# 启动微调后被 killed\n\n没有日志，有人知道是什么原因吗\n", "killed-unknown"),
        ("# A problem\n\nI tried to save the model, and it complains \"disk quota exceeded\".\n", "disk-full"),
        ("# The OOM killer seems to be killing things despite having more than enough free RAM on my box:\n\nAny ideas?\n", "oom-kill-global"),
        ("# Loading it crashes Kernel\n\nReading the file quickly fills the memory of my PC and crashes the kernel.\n", "killed-unknown"),
        ("# Too many trials\n\nIf I try more than ten, the kernel kills all processes.\n", "oom-kill-global"),
        ("# At 83m points\n\nI tried a large one, and the process is just killed without any message.\n", "killed-unknown"),
        ("# Why does the quantization prompt KILLED at the end?\n\nI use one card.\n", "killed-unknown"),
        ("# The same file again\n\nIf I write it, then try to load it, I end up with a segfault.\n", "segfault"),
        ("# The same parameters again\n\nThe problem was that I didn't have enough memory in the GPU, so it stopped.\n", "cuda-oom"),
        ("# Memory error raised while using read_h5ad\n\nanndata 0.9.1\n", "python-memory-error"),
        ("# By mistake\n\nAfter 5 epochs I entered \"Ctrl C\" and training stopped.\n", "interrupted"),
        ("# Strange end\n\nI see `KeyError: 'a'` in it, and I do not know why. It is no IndexError: 'b'.\n", "other-error"),
    ],
)  # fmt: skip
def test_told_in_other_words(text: str, cause: str, verdict) -> None:
    assert verdict(text)[0] == cause


def test_a_title_above_frames_without_ends(verdict) -> None:
    text = (
        "# CUDA error: out of memory with offload\n\n```\n"
        "File /env/site-packages/deepspeed/runtime/engine.py:1184, in Engine._configure_optimizer(self, client)\n"
        "   1183 if wrapper == ZERO:\n-> 1184     self.optimizer = self._configure(basic)\n"
    )
    assert verdict(text) == ("cuda-oom", "load")


def test_rows_of_the_task_table_are_the_kernels(verdict) -> None:
    rows = "".join(
        f"Dec 13 06:35:08 h kernel: [104.857394] [{pid}]   113 {pid}    73676      715      95       3        0             0 postgres\n"
        for pid in (28240, 28241, 28242)
    )
    assert verdict(f"# The kernel ends my job\n\n{rows}")[0] == "oom-kill-global"


def test_a_long_log_is_not_read_for_sentences(verdict) -> None:
    text = "# GPU out of memory\n\nI get it on my GPU.\n" + "saved one more line\n" * 400
    assert verdict(text)[0] == "not-a-crash"


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("# Long audio\n\nI keep getting an error message in the last phase saying out of memory.\n", "cuda-oom"),
        ("# Long audio\n\nAfter an hour I get an OOM, all 32 GB of RAM are full.\n", "python-memory-error"),
        ("# Slow, then OOM when the second video is decoded\n\nfull model, 81 frames\n", "cuda-oom"),
        # a sentence that names a death comes first, wherever it stands
        ("# Getting out of memory in the notebook\n\nIt shows kernel restarting, I think.\n", "killed-unknown"),
        # what is changed, or asked for, did not happen
        ("# Show the reason when an actor gets OOM\n\nI think we should have it throw the error.\n", "not-a-crash"),
        ("# [core] oom: prefer killing tasks that can be retried\n\nWe get OOM errors today. This PR changes that.\n", "not-a-crash"),
        # the machine's own log is there, and tells of no death
        ("# It did nothing\n\nI just ran out of memory, and no process was ended.\n"
         "mars 27 18:46:05 pc earlyoom[1460]: mem avail: 56 of 15881 MiB ( 0.35%), swap free: 2555 of 4095 MiB (62.38%)\n", "not-a-crash"),
    ],
)  # fmt: skip
def test_an_out_of_memory_that_nothing_else_explains(text: str, cause: str, verdict) -> None:
    assert verdict(text)[0] == cause


RAYLET = "(raylet) node_manager.cc:3280: 1 Workers (tasks / actors) killed due to memory pressure (OOM), 0 Workers crashed\n"


@pytest.mark.parametrize(
    ("before", "cause"),
    [("You might see something like:", "not-a-crash"), ("An example output of the new code:", "not-a-crash"), ("This is what it printed:", "ray-oom")],
)  # fmt: skip
def test_a_block_that_is_called_an_example_is_one(before: str, cause: str, verdict) -> None:
    assert verdict(f"# Killing policy\n\n{before}\n```\n{RAYLET}```\n")[0] == cause


def test_the_kernels_account_of_its_memory(verdict) -> None:
    stamp = "Apr  9 03:45:37 log001 kernel: "
    told = ("lowmem_reserve[]: 0 0 0 0", "11099 total pagecache pages", "Swap cache stats: add 9, delete 8, find 4/6",
            "Free swap  = 0kB", "Total swap = 4194300kB", "4194190 pages RAM")  # fmt: skip
    lines = "".join(f"{stamp}{line}\n" for line in told)
    assert verdict(f"# High memory consumption\n\n{lines}")[0] == "oom-kill-global"
    asked = f"{stamp}sysrq: SysRq : Show Memory\n"
    assert verdict(f"# High memory consumption\n\n{asked}{lines}")[0] == "not-a-crash"


def test_a_title_stands_above_the_log_that_it_is_about(verdict) -> None:
    log = "".join(f"2024-06-27 02:42:28: Epoch {epoch} loss 0.5\n" for epoch in range(9))
    title = "# RuntimeError: some background workers are no longer alive"
    assert verdict(f"{title}\n\n{log}Training done.\n")[0] == "killed-unknown"


def test_what_a_person_tells_outdoes_a_scripts_name(verdict) -> None:
    text = (
        "# Large data set\n\nAt stage 10, loading the features will run out of memory.\nTraceback (most recent call last):\n"
        '  File "asr_train.py", line 23, in <module>\n    main()\nException: process 1 terminated with signal SIGKILL\n'
    )
    assert verdict(text) == ("killed-unknown", "load")


def test_a_list_of_possible_reasons_is_no_reason(verdict) -> None:
    text = (
        "RuntimeError: Simulation crashed.\nThis could be because of several reasons. The most common are:\n"
        " - Your clients hit an out-of-memory (OOM) error and could not recover from it.\n"
    )
    assert verdict(text)[0] == "other-error"


def test_a_run_that_early_stopping_ended_is_not_silent(verdict) -> None:
    log = "".join(
        f"Epoch {epoch}/100\n43/43 [======] - 2691s 63s/step - loss: 50.9\n" for epoch in (76, 77, 78)
    )
    assert verdict(f"{log}Epoch 00078: early stopping\n")[0] in ("not-a-crash", "finished")

"""`oomproof why`: texts of any kind and mix in, one verdict out; bad input gets one clear line."""

from __future__ import annotations

import gzip
import json
import lzma
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from helpers_report import make_run

from oomproof.causes import cause_of
from oomproof.cli.why import last_death
from oomproof.diagnosis import conclusion
from oomproof.diagnosis.judge import judge_texts
from oomproof.evidence.texts.text_case import read_texts
from oomproof.recording import run_folders

KERNEL = (
    "[ 4812.101] python3 invoked oom-killer: gfp_mask=0x140cca(GFP_HIGHUSER_MOVABLE|__GFP_COMP), order=0, oom_score_adj=0\n"
    "[ 4812.102] oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,"
    "task_memcg=/user.slice,task=python3,pid=4242,uid=1000\n"
    "[ 4812.103] Out of memory: Killed process 4242 (python3) total-vm:40960000kB, anon-rss:20480000kB, "
    "file-rss:1024kB, shmem-rss:4096kB, UID:1000 pgtables:41000kB oom_score_adj:0\n"
)
LOADER = (
    "epoch 3:  40%|####      | 472/1180 [03:11<04:47,  2.46it/s]\n"
    "Traceback (most recent call last):\n"
    '  File "train.py", line 88, in <module>\n'
    "    for batch in loader:\n"
    "RuntimeError: DataLoader worker (pid 4242) is killed by signal: Killed. \n"
)
CUDA = (
    "Traceback (most recent call last):\n"
    '  File "train.py", line 12, in main\n'
    "    loss.backward()\n"
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.65 GiB of "
    "which 1.00 GiB is free. Process 777 has 10.00 GiB memory in use. Including non-PyTorch memory, this process has "
    "12.65 GiB memory in use. Of the allocated memory 11.00 GiB is allocated by PyTorch, and 1.00 GiB is reserved by "
    "PyTorch but unallocated.\n"
)


def why(*texts: tuple[str, str], folder: Path) -> dict[str, Any]:
    paths = []
    for name, text in texts:
        (folder / name).write_text(text)
        paths.append(str(folder / name))
    return judge_texts(read_texts(paths)).to_json()


def test_kernel_log(tmp_path: Path) -> None:
    said = why(("kern.log", KERNEL), folder=tmp_path)
    assert (said["verdict"]["cause"], said["verdict"]["certainty"]) == ("oom-kill-global", "proven")
    assert said["verdict"]["victim"] == {
        "pid": 4242, "name": "python3", "total_vm_bytes": 40960000 << 10, "anon_rss_bytes": 20480000 << 10,
        "file_rss_bytes": 1 << 20, "shmem_rss_bytes": 4 << 20,
    }  # fmt: skip
    assert "39.1 GiB" not in json.dumps(said["verdict"]["headline"]), "total-vm is never called memory used"


def test_worker_joined_with_the_kernels_pid(tmp_path: Path) -> None:
    """Two texts, one story: the loader's complaint is the kernel's kill."""
    alone = why(("train.log", LOADER), folder=tmp_path)
    assert alone["verdict"]["cause"] == "dataloader-killed"
    both = why(("train.log", LOADER), ("kern.log", KERNEL), folder=tmp_path)
    assert (both["verdict"]["cause"], both["verdict"]["certainty"]) == ("oom-kill-global", "proven")
    assert both["verdict"]["step"] == 472


def test_cuda_numbers_and_neighbour_first(tmp_path: Path) -> None:
    said = why(("train.log", CUDA), folder=tmp_path)
    assert said["verdict"]["cause"] == "cuda-oom"
    gpu = said["verdict"]["gpu"]
    assert gpu["requested_bytes"] == 2 << 30 and gpu["free_bytes"] == 1 << 30
    assert "process 777 on the card held 10.0 GiB" in said["verdict"]["next"]
    assert said["remedies"][0]["saves_bytes"] == 10 << 30


def test_probabilities_add_up(tmp_path: Path) -> None:
    for text in (KERNEL, LOADER, CUDA, "Killed\n", "all good\n"):
        said = why(("x.log", text), folder=tmp_path)
        assert abs(sum(cause["probability"] for cause in said["causes"]) - 1) < 1e-6


def test_killed_alone_is_not_called_oom(tmp_path: Path) -> None:
    said = why(("x.log", "step 1\nstep 2\nKilled\n"), folder=tmp_path)
    assert said["verdict"]["cause"] == "killed-unknown"
    assert said["verdict"]["certainty"] != "proven"


def run(*words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "oomproof.cli.main", "why", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, **options)


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    return {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")}


def test_from_standard_input_and_packed(tmp_path: Path, home: dict[str, str]) -> None:
    assert "python3 (pid 4242)" in run("-", input=KERNEL, env=home).stdout
    (tmp_path / "k.gz").write_bytes(gzip.compress(KERNEL.encode()))
    (tmp_path / "k.xz").write_bytes(lzma.compress(KERNEL.encode()))
    for name in ("k.gz", "k.xz"):
        assert (
            json.loads(run("--json", str(tmp_path / name), env=home).stdout)["verdict"]["cause"]
            == "oom-kill-global"
        )


def test_a_post_without_a_log(tmp_path: Path, home: dict[str, str]) -> None:
    told = "# My training dies\n\nIt gets killed while it saves. What can I do?\n"
    (tmp_path / "post.txt").write_text(told)
    done = run(str(tmp_path / "post.txt"), env=home)
    assert (done.returncode, done.stdout) == (2, "")
    assert "no log found" in done.stderr and "paste what the job printed" in done.stderr
    (tmp_path / "post.txt").write_text(told + "\n```\nRuntimeError: CUDA error: out of memory\n```\n")
    assert "GPU" in run(str(tmp_path / "post.txt"), env=home).stdout


def test_nothing_died(tmp_path: Path, home: dict[str, str]) -> None:
    (tmp_path / "ok.log").write_text("epoch 1 loss 0.3\nepoch 2 loss 0.2\nsaved model\n")
    done = run(str(tmp_path / "ok.log"), env=home)
    assert done.returncode == 0
    assert "no crash found here" in done.stdout


def test_nul_bytes_latin1_and_carriage_returns(tmp_path: Path) -> None:
    text = b"\x00\x00caf\xe9 10%|#  |\r 20%|## |\r" + CUDA.encode() + b"\x00\n"
    (tmp_path / "x.log").write_bytes(text)
    assert judge_texts(read_texts([str(tmp_path / "x.log")])).cause == "cuda-oom"


def test_an_existing_file_wins_over_a_run(tmp_path: Path, home: dict[str, str]) -> None:
    subprocess.run(
        [sys.executable, "-m", "oomproof.cli.main", "run", "--name", "train", "--", "true"],
        env=home,
        capture_output=True,
    )
    assert "finished" in run("train", env=home, cwd=tmp_path).stdout
    (tmp_path / "train").write_text(KERNEL)
    assert "killed python3" in run("train", env=home, cwd=tmp_path).stdout


def test_a_run_wins_over_a_folder_a_program_and_its_own_script(home: dict[str, str], tmp_path: Path) -> None:
    """A folder `train` beside the script, `hog` the program itself: neither is a log."""
    (tmp_path / "job.py").write_text("raise SystemExit(3)\n")
    (tmp_path / "train").mkdir()
    for _ in range(2):
        subprocess.run(
            [
                sys.executable,
                "-m",
                "oomproof.cli.main",
                "run",
                "--name",
                "train",
                "--",
                sys.executable,
                "job.py",
            ],
            env=home,
            cwd=tmp_path,
            capture_output=True,
        )
    assert "exited with code 3" in run("train", env=home, cwd=tmp_path).stdout
    assert "exited with code 3" in run("job.py", env=home, cwd=tmp_path).stdout
    both = run("--all", "job.py", env=home, cwd=tmp_path).stdout
    assert both.startswith("2 deaths: other error\n") and both.endswith("\nnext     oomproof why train\n")
    (tmp_path / "job.py").rename(tmp_path / "other.py")
    shutil.copy("/bin/true", tmp_path / "train2")
    assert "is a program" in run("train2", env=home, cwd=tmp_path).stderr, "no run is called so"


def test_a_large_kernel_log_is_read_at_greps_speed(tmp_path: Path) -> None:
    """33 MiB of chatter with one kill in the middle: found, and the chatter is not read line by line."""
    path = tmp_path / "kern.log"
    chatter = b"".join(
        b"[%10d.000000] usb 1-1: new high-speed device number %d\n" % (n, n) for n in range(20_000)
    )
    with path.open("wb") as file:
        for _ in range(14):
            file.write(chatter)
        file.write(KERNEL.encode())
        for _ in range(14):
            file.write(chatter)
    assert path.stat().st_size > 32 << 20
    verdict = judge_texts(read_texts([str(path)]))
    assert (verdict.cause, verdict.victim.pid if verdict.victim else None) == ("oom-kill-global", 4242)


# --- documents ----------------------------------------------------------------------------------------------


def said(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "XDG_STATE_HOME": str(folder / "state"), "COLUMNS": "60"}
    command = [sys.executable, "-m", "oomproof.cli.main", "why", *words]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment)


def test_a_document_on_standard_output_stands_there_alone(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text(CUDA)
    report = said(tmp_path, "--md", "-", "train.log")
    assert report.stdout.startswith("# ") and "verdict  " not in report.stdout and report.stderr == ""
    page = said(tmp_path, "--html", "-", "--no-log", "train.log")
    assert page.stdout.startswith("<!DOCTYPE html>") and page.stdout.rstrip().endswith("</html>")
    assert "loss.backward()" not in page.stdout and not (tmp_path / "-").exists()


def test_the_analysis_of_many_deaths_is_a_document_too(tmp_path: Path) -> None:
    for name, asked in (("a.log", "2.00 GiB"), ("b.log", "3.00 GiB")):
        (tmp_path / name).write_text(CUDA.replace("2.00 GiB", asked))
    report = said(tmp_path, "--all", "--md", "all.md", "--html", "all.html", "a.log", "b.log")
    assert report.returncode == 0 and "2 deaths" in report.stdout and "wrote all.md" in report.stderr
    markdown, page = (tmp_path / "all.md").read_text(), (tmp_path / "all.html").read_text()
    assert (
        markdown.startswith("# 2 deaths: GPU memory full (CUDA)\n")
        and markdown.count("Tried to allocate") >= 2
        and "| CAUSE |" in markdown
    )
    assert "<h1>2 deaths" in page and "<th>CAUSE</th>" in page and "…" not in page
    again = said(tmp_path, "--all", "--md", "all.md", "a.log", "b.log")
    assert again.returncode == 2 and "exists already" in again.stderr


def test_what_was_killed_on_the_machine_is_a_document_too(tmp_path: Path) -> None:
    report = said(tmp_path, "--system", "--since", "1m", "--md", "-")
    assert report.returncode == 0 and report.stdout.startswith("# ") and " kill" in report.stdout


def test_a_fifo_is_read_once(tmp_path: Path) -> None:
    """Opened once more for its last lines, it would wait for a second writer for ever."""
    os.mkfifo(tmp_path / "fifo")
    writer = threading.Thread(target=lambda: (tmp_path / "fifo").write_text(CUDA), daemon=True)
    writer.start()
    report = said(tmp_path, "fifo")
    assert "out of GPU memory" in report.stdout
    writer.join()


def test_which_run_is_explained_is_said_where_nobody_named_it(home: dict[str, str], tmp_path: Path) -> None:
    for name, program in (("leak", "false"), ("loader", "false"), ("good", "true")):
        subprocess.run(
            [sys.executable, "-m", "oomproof.cli.main", "run", "--name", name, "--", program],
            env=home,
            capture_output=True,
        )
    assert run(env=home, cwd=tmp_path).stdout.startswith("run      loader (")
    assert run("leak", env=home, cwd=tmp_path).stdout.startswith("verdict")
    both = run("leak", "loader", env=home, cwd=tmp_path)
    assert both.returncode == 2 and "oomproof why --all leak loader" in both.stderr
    assert run("--all", "leak", "loader", env=home, cwd=tmp_path).returncode == 0
    assert "no such file" in run("a.log", "b.log", env=home, cwd=tmp_path).stderr


def test_what_its_user_stopped_is_not_the_last_death(monkeypatch: pytest.MonkeyPatch) -> None:
    """`oomproof why` after `oomproof stop` of another run told of the stop, and `runs --failed` of the death."""
    causes = {
        "stopped": "stopped-by-user",
        "good": "finished",
        "hung-up": "interrupted",
        "dead": "oom-kill-memcg",
    }
    runs = [SimpleNamespace(id=name) for name in causes]
    monkeypatch.setattr(run_folders, "list_runs", lambda: runs)
    monkeypatch.setattr(
        conclusion,
        "conclusion_of",
        lambda run: SimpleNamespace(verdict=SimpleNamespace(kind=cause_of(causes[run.id]))),
    )
    for expected in ("hung-up", "dead"):
        found = last_death()
        assert found is not None and found.id == expected
        del runs[: runs.index(found) + 1]
    assert last_death() is None


@pytest.mark.parametrize(("given", "told"), [(CUDA.encode(), True), (b"", False), (None, False)])
def test_a_pipe_that_is_not_read_is_told(given: bytes | None, told: bool, folders_of_their_own: Path) -> None:
    """`dmesg | oomproof why` explained the last run without a word about dmesg."""
    make_run(folders_of_their_own / "state", seconds=60)
    input_is = {"input": given} if given is not None else {"stdin": subprocess.DEVNULL}
    words = [sys.executable, "-m", "oomproof", "why", "--short"]
    done = subprocess.run(words, capture_output=True, timeout=60, **input_is)  # type: ignore[call-overload]
    assert done.returncode == 0 and b"verdict" in done.stdout
    assert (b"standard input was not read; to have it explained: oomproof why -" in done.stderr) is told

"""Started where nearly nothing is left: few descriptors, few processes, no runtime folder. The job is never left alone."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from conftest import Lab, until

PYTHON = sys.executable
ENDS = "import time; time.sleep(0.5); print('done', flush=True); raise SystemExit(5)"


def shell(lab: Lab, before: str, *words: str) -> subprocess.CompletedProcess[str]:
    command = f"{before}; exec {shlex.join(lab.command('run', '--name', 'scarce', *words))}"
    return subprocess.run(
        ["bash", "-c", command], env=lab.environment, capture_output=True, text=True, timeout=60
    )


@pytest.mark.parametrize("files", [20, 24, 28, 32])
def test_few_descriptors(lab: Lab, files: int) -> None:
    done = shell(lab, f"ulimit -n {files}", "--", PYTHON, "-c", ENDS)
    assert done.returncode == 5, done.stderr
    assert done.stdout == "done\n"
    assert lab.read(lab.folder_of("scarce") / "1" / "exit.json")["code"] == 5
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("files", [9, 13, 17, 21, 25, 29, 33])
def test_few_descriptors_on_a_terminal(lab: Lab, files: int) -> None:
    """The job does not start, and the hint says why; or it is guarded to its end."""
    done = subprocess.run(
        ["script", "-qefc", f"ulimit -n {files}; exec {shlex.join([*lab.command('run', '--name', 'scarce'), '--', PYTHON, '-c', ENDS])}", "/dev/null"],
        env=lab.environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    if done.returncode == 125:
        assert "hint: ulimit -n 1024" in done.stdout and "done" not in done.stdout
        assert not lab.folder_of("scarce") or not (lab.folder_of("scarce") / "1" / "started.json").exists()
    else:
        assert (done.returncode, "done" in done.stdout) == (5, True), done.stdout
    assert files < 21 or done.returncode == 5, done.stdout


def test_the_jobs_own_limit_of_open_files_stays(lab: Lab) -> None:
    """Ours is raised where it may be, the job's is not."""
    done = shell(lab, "ulimit -Sn 20", "--", "sh", "-c", "ulimit -Sn")
    assert (done.returncode, done.stdout) == (0, "20\n")


@pytest.fixture
def few_processes() -> Iterator[Callable[[int], str]]:
    """A command that puts the shell into a cgroup with so many processes and threads at most."""
    from oomproof.machine import cgroups

    own = cgroups.own_directory("pids")
    folder = Path(own or "/nonexistent") / f"test-{os.getpid()}"

    def make(count: int) -> str:
        try:
            folder.mkdir()
            (folder / "pids.max").write_text(str(count))
        except OSError:
            pytest.skip("no pids cgroup can be made here")
        return f"echo $$ > {folder}/cgroup.procs"

    yield make
    if folder.exists():
        until(lambda: not (folder / "cgroup.procs").read_text(), "the cgroup to empty")
        folder.rmdir()


@pytest.mark.parametrize("count", [3, 5, 8, 11])
def test_few_threads(lab: Lab, few_processes: Callable[[int], str], count: int) -> None:
    done = shell(lab, few_processes(count), "--", PYTHON, "-c", ENDS)
    assert done.returncode == 5, done.stderr
    assert done.stdout == "done\n"
    assert "Traceback" not in done.stderr


def test_no_process_left_for_the_job(lab: Lab, few_processes: Callable[[int], str]) -> None:
    done = shell(lab, few_processes(2), "--", "true")
    assert done.returncode == 125
    assert "could not be started" in done.stderr
    assert lab.folder_of("scarce") is None, "nothing was run"


def test_a_guard_without_a_thread_still_acts(lab: Lab, few_processes: Callable[[int], str]) -> None:
    """No cgroup's limit helps here: it is the guard's step between the job's output that ends it."""
    done = shell(
        lab, few_processes(3), "--limit", "200M", "--grace", "2", "--", *lab.job("grow.py", 25, 1000)
    )
    assert "the guard has no thread of its own" in done.stderr
    # which of them depends on how soon a busy machine lets it look: 25 MiB/s cross the last 4.5 % in 0.4 s
    acted = ("asked the job to save and stop", "sent SIGTERM", "killed all processes of the job")
    assert any(words in done.stderr for words in acted), done.stderr
    # in the tenth of a second after SIGTERM the kernel may come first, which the verdict then says
    assert "stopped by oomproof's guard" in done.stderr or "the guard had sent" in done.stderr, done.stderr
    assert done.returncode != 125


def test_the_runtime_folder_is_no_folder(lab: Lab, tmp_path: Path) -> None:
    shutil.rmtree(lab.environment["XDG_RUNTIME_DIR"])
    runtime = Path(lab.environment["XDG_RUNTIME_DIR"])
    runtime.mkdir(mode=0o700)
    (runtime / "oomproof").touch()  # nothing can be made below it
    done = lab.run("run", "--name", "scarce", "--", PYTHON, "-c", ENDS)
    assert (done.returncode, done.stdout) == (5, "done\n"), done.stderr


PAGE = os.sysconf("SC_PAGE_SIZE")


@contextmanager
def nearly_full(folder: Path, pages: int) -> Iterator[Path]:
    """A disk of its own that has so many pages left; ``filler`` takes the others."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={64 * PAGE}", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("cannot mount a small disk here (needs root)")
    try:
        (folder / "oomproof").mkdir(0o700)
        (folder / "filler").write_bytes(bytes((64 - pages) * PAGE))
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_disk_that_is_nearly_full_at_the_start_loses_no_status(lab: Lab, tmp_path: Path) -> None:
    """Whichever of its files takes the last page: nobody sees a detached job end but its keeper."""
    with ExitStack() as stack:
        labs = []
        for pages in range(1, 9):
            disk = stack.enter_context(nearly_full(tmp_path / f"disk-{pages}", pages))
            small = Lab(disk, {**lab.environment, "XDG_STATE_HOME": str(disk)})
            begun = small.run("run", "--detach", "--name", "scarce", "--", PYTHON, "-c", ENDS)
            if begun.returncode == 125 and "hint: free some space" in begun.stderr:
                continue  # not even run.json: nothing was started
            assert begun.returncode == 0, begun.stderr
            labs.append(small)
        for small in labs:
            waited = small.run("wait", "scarce")
            assert waited.returncode == 5, (small.state, waited.stderr)
            (row,) = json.loads(small.run("runs", "--json").stdout)["runs"]
            assert (row["state"], row["code"]) == ("ended", 5), small.state
            assert json.loads(small.run("why", "--json").stdout)["verdict"]["cause"] == "other-error"
        spare = tmp_path / "runtime" / "oomproof" / "spare"
        assert list(spare.rglob("exit.json")), "none of the disks was too full for it: the test shows nothing"
        # once there is space again, the next run, of whichever state folder, puts them where they belong
        for small in labs:
            (small.state / "filler").unlink()
        assert lab.run("run", "--", "true").returncode == 0
        assert not list(spare.rglob("*"))
        for small in labs:
            folder = small.folder_of("scarce")
            assert folder is not None and small.read(folder / "1" / "exit.json")["code"] == 5
            assert small.read(folder / "1" / "started.json")["job"]["pid"]


def test_where_no_disk_takes_anything_the_status_still_comes_back(lab: Lab, tmp_path: Path) -> None:
    """run.json takes the last page; neither the start nor the end can be written, there or elsewhere."""
    with nearly_full(tmp_path / "disk", 1) as disk:
        (disk / "run").mkdir(0o700)
        lab.environment |= {"XDG_STATE_HOME": str(disk), "XDG_RUNTIME_DIR": str(disk / "run")}
        no_memory = 'mount -t tmpfs -o ro none /dev/shm && exec "$@"'
        lab.prefix = ["unshare", "-m", "--propagation", "private", "sh", "-c", no_memory, "sh"]
        done = lab.run("run", "--", PYTHON, "-c", ENDS)
    assert (done.returncode, done.stdout) == (5, "done\n"), done.stderr
    assert "the job exited with code 5; nothing of it could be recorded" in done.stderr
    assert "Traceback" not in done.stderr and "verdict  " not in done.stderr

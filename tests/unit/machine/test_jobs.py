from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from fake_machine import FakeMachine

from oomproof.leaf.command_lines import python_target
from oomproof.machine import daemons, jobs, memory, twins

MIB = 1 << 20


def heaviest(machine: FakeMachine, **totals: int) -> tuple[jobs.Job, ...]:
    return jobs.heaviest(jobs.scan(machine.proc), proc=machine.proc, **totals)


def test_a_training_run_with_its_workers_is_one_job_and_the_next_command_another(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path)
    machine.process(1, "systemd", 0)
    machine.process(100, "bash", 1)
    machine.process(200, "python", 100, argv=("python", "train.py"), anon=400)
    machine.process(201, "pt_data_worker", 200, anon=20)
    machine.process(202, "pt_data_worker", 200, anon=10)
    machine.process(300, "python", 100, argv=("python", "serve.py"), anon=300)
    train, serve = heaviest(machine)
    assert (train.pid, train.pids, train.command) == (200, (200, 201, 202), ("python", "train.py"))
    assert (serve.pid, serve.use, serve.exact) == (300, 300 * MIB, True)


def test_ranks_in_their_own_sessions_stay_with_torchrun(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path)
    machine.process(100, "zsh", 1)
    machine.process(200, "torchrun", 100, argv=("torchrun", "train.py"), anon=30)
    for rank in (201, 202):
        machine.process(rank, "python", 200, anon=500, session=rank)
    (job,) = heaviest(machine)
    assert job.pids == (200, 201, 202)


def test_in_a_container_the_job_may_be_pid_1(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path)
    machine.process(1, "python", 0, argv=("python", "train.py"), anon=400, session=1)
    machine.process(9, "python", 1, anon=100, session=1)
    machine.process(50, "python", 1, argv=("python", "other.py"), anon=90, session=50)
    first, second = heaviest(machine)
    assert first.pids == (1, 9) and second.pids == (50,)


def test_sums_inside_a_limit_are_the_cgroups(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path)
    machine.meminfo(AnonPages=8 << 20, Shmem=1 << 20)
    folder = tmp_path / "cgroup"
    folder.mkdir()
    assert jobs.totals(machine.proc, str(folder)) == jobs.totals(machine.proc) == (8 << 30, 1 << 30)
    (folder / "memory.current").write_text(f"{600 * MIB}\n")
    (folder / "memory.stat").write_text(f"anon {500 * MIB}\nfile 0\nshmem {30 * MIB}\n")
    assert jobs.totals(machine.proc, str(folder)) == (500 * MIB, 30 * MIB)


def test_who_is_outside_a_limit_takes_nothing_of_it(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path)
    machine.process(200, "python", 1, argv=("python", "train.py"), anon=400)
    machine.process(300, "python", 1, argv=("python", "outside.py"), anon=900)
    folder = tmp_path / "cgroup"
    (folder / "below").mkdir(parents=True)
    (folder / "cgroup.procs").write_text("")
    (folder / "below" / "cgroup.procs").write_text("200\n")
    assert set(jobs.scan(machine.proc, str(folder))) == {200}
    assert set(jobs.scan(machine.proc, str(tmp_path / "gone"))) == set()


def test_runs_of_ours_are_managed_and_each_a_job_of_its_own(tmp_path: Path) -> None:
    """A sweep that starts two runs, and a job beside them."""
    machine = FakeMachine(tmp_path)
    machine.process(100, "python", 1, argv=("python", "sweep.py"), anon=30)
    for pid in (200, 300):
        machine.process(pid, "oomproof", 100, argv=("python", "/bin/oomproof", "run"), anon=20)
        machine.process(pid + 1, "python", pid, argv=("python", "oomproof/runner/keeper.py"), anon=5)
        machine.process(pid + 2, "python", pid + 1, argv=("python", "train.py"), anon=pid)
    machine.process(500, "python", 1, argv=("python", "train.py"), anon=50)
    found = heaviest(machine)
    assert [(job.pids, job.managed) for job in found] == [
        ((300, 301, 302), True),
        ((200, 201, 202), True),
        ((500,), False),
        ((100,), False),
    ]


def test_without_walks_sharing_is_estimated(tmp_path: Path) -> None:
    """A walk over page tables holds up who is walked: the guard never asks for one."""
    machine = FakeMachine(tmp_path)
    machine.process(200, "python", 1, anon=1000, pss=(250, 0))
    machine.process(201, "python", 200, anon=1000, pss=(250, 0))
    (job,) = heaviest(machine, anon_total=1100 * MIB, walk=0)
    assert (job.use, job.exact) == (1100 * MIB, False)


def test_processes_of_one_service_are_one_job_but_not_those_of_a_login(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path)
    for pid in (10, 11):
        machine.process(pid, "ollama", 1, anon=100, cgroup="0::/system.slice/ollama.service\n")
    for pid in (20, 21):
        machine.process(pid, "python", 1, anon=50, cgroup="0::/user.slice/session-2.scope\n")
    assert [job.pids for job in heaviest(machine)] == [(10, 11), (20,), (21,)]


def test_shared_pages_count_once_where_the_kernel_tells(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path)
    machine.process(200, "python", 1, anon=1000, pss=(250, 0))
    for worker in (201, 202, 203):
        machine.process(worker, "python", 200, anon=1000, pss=(250, 0))
    (job,) = heaviest(machine)
    assert (job.use, job.exact) == (1000 * MIB, True)


def test_shared_pages_are_estimated_from_the_kernels_sum_where_it_does_not(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path)
    machine.process(200, "python", 1, anon=1000)
    for worker in (201, 202, 203):
        machine.process(worker, "python", 200, anon=1000)
    machine.process(300, "firefox", 1, anon=500)
    train, firefox = heaviest(machine, anon_total=1700 * MIB)
    assert not train.exact and firefox.exact
    assert abs(train.use - 1200 * MIB) < MIB and firefox.use == 500 * MIB


def test_too_much_to_walk_is_not_walked(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path)
    machine.process(200, "python", 1, anon=12 << 10, pss=(1, 0))
    machine.process(201, "python", 200, anon=12 << 10, pss=(1, 0))
    (job,) = heaviest(machine, anon_total=12 << 30)
    assert not job.exact and job.use == 12 << 30


def test_a_job_in_swap_is_still_a_job(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path)
    machine.process(200, "python", 1, anon=1, swap=3000)
    (job,) = heaviest(machine)
    assert job.swap == 3000 * MIB


def test_the_vanished_and_the_strange_are_left_out(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path)
    (tmp_path / "proc/77").mkdir()  # gone between listing and reading
    machine.write("proc/78/status", "Name:\tkthread\nPPid:\t2\n")
    machine.write("proc/79/status", "Name:\tzombie\nState:\tZ (zombie)\nPPid:\t1\n")
    machine.process(80, "a", 81, anon=100)  # a loop of parents, from a pid used anew
    machine.process(81, "b", 80, anon=100)
    assert set(jobs.scan(machine.proc)) == {80, 81}
    assert sum(len(job.pids) for job in heaviest(machine)) == 2


def test_three_thousand_processes_are_quick(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path)
    for pid in range(2, 3002):
        machine.process(
            pid, "python", 1 if pid % 10 == 0 else pid - pid % 10 or 1, argv=("python", f"{pid}.py"), anon=40
        )
    began = time.process_time()
    found = heaviest(machine, anon_total=100 << 30)
    assert time.process_time() - began < 5.0  # about 0.1 s; a slow and busy machine takes more
    assert len(found) > 250


def test_daemons(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path)
    machine.process(612, "systemd-oomd")
    machine.process(700, "earlyoom")
    machine.process(701, "python")
    found = daemons.among((process.name, process.pid) for process in jobs.scan(machine.proc).values())
    assert {daemon.name for daemon in found} == {"systemd-oomd", "earlyoom"}


# --- twins


def test_the_same_script_twice_is_found(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path)
    for pid in (200, 300):
        machine.process(
            pid, "python", 1, argv=("/usr/bin/python3", "/srv/daemon.py", "--port", "1"), anon=500
        )
    (found,) = twins.among(heaviest(machine), machine.proc)
    assert {job.pid for job in found.jobs} == {200, 300}


def test_two_copies_left_behind_by_one_launcher_are_twins_too(tmp_path: Path) -> None:
    """Seen on the H200 machine: both orphaned, in one process group; they are two jobs all the same."""
    machine = FakeMachine(tmp_path)
    machine.process(1, "systemd", 0)
    for pid in (410, 411):
        machine.process(pid, "python3", 1, argv=("python3", "/tmp/hold.py"), anon=500, session=300)
    (found,) = twins.among(heaviest(machine), machine.proc)
    assert [job.pids for job in found.jobs] == [(410,), (411,)]


def test_runs_of_ours_are_named_by_what_they_run(tmp_path: Path) -> None:
    """Two guarded runs have the same keeper and may have the same front; that makes them no twins."""
    machine = FakeMachine(tmp_path)
    machine.process(1, "systemd", 0)
    keeper = ("python", "-I", "-S", "/opt/oomproof/runner/keeper.py", "9")
    for pid, name in ((400, "a.py"), (500, "b.py")):
        machine.process(pid, "python", 1, argv=keeper, anon=10)
        machine.process(pid + 1, "python", pid, argv=("python", f"/srv/{name}"), anon=400)
        machine.process(pid + 2, "python", pid + 1, argv=("python", f"/srv/{name}"), anon=5)
    found = heaviest(machine)
    assert [job.command for job in found] == [("python", "/srv/a.py"), ("python", "/srv/b.py")]
    assert twins.among(found, machine.proc) == ()


def test_what_is_no_twin(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path)
    python = ("python", "/srv/train.py")
    machine.process(200, "python", 1, argv=python, anon=500)
    machine.process(201, "python", 200, argv=python, anon=500)  # a loader worker, or a rank
    machine.process(300, "python", 1, argv=(*python, "--seed", "2"), anon=500)  # other arguments
    machine.process(400, "python", 1, argv=("python", "/opt/lsp.py"), anon=50)  # two small language servers
    machine.process(401, "python", 1, argv=("python", "/opt/lsp.py"), anon=50)
    machine.process(500, "python", 1, argv=("python", "-c", "x"), anon=500)
    machine.process(501, "python", 1, argv=("python", "-c", "x"), anon=500)
    machine.process(
        600, "python", 1, argv=("python", "/srv/a.py"), anon=500, environ="CUDA_VISIBLE_DEVICES=0 A=1"
    )
    machine.process(
        601, "python", 1, argv=("python", "/srv/a.py"), anon=500, environ="CUDA_VISIBLE_DEVICES=1 A=1"
    )
    assert twins.among(heaviest(machine), machine.proc) == ()


def test_a_relative_script_is_the_same_only_in_the_same_folder(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path)
    for pid, folder in ((200, "/a"), (300, "/b"), (400, "/a")):
        machine.process(pid, "python", 1, argv=("python", "train.py"), anon=500)
        os.symlink(folder, f"{machine.proc}/{pid}/cwd")
    (found,) = twins.among(heaviest(machine), machine.proc)
    assert {job.pid for job in found.jobs} == {200, 400}


def test_script_of_a_command_line() -> None:
    assert python_target(("python3.11", "-u", "-X", "dev", "train.py", "-v")) == ("train.py", ("-v",))
    assert python_target(("python", "-m", "torch.distributed.run", "a.py")) == (
        "-m torch.distributed.run",
        ("a.py",),
    )
    assert python_target(("python", "-c", "pass")) is None
    assert python_target(("bash", "run.sh")) is None
    assert python_target(("python",)) is None
    assert python_target(()) is None


# --- real processes


FORK = """
import mmap, os, sys
pages = mmap.mmap(-1, 128 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
pages.madvise(mmap.MADV_NOHUGEPAGE)
for at in range(0, 128 << 20, mmap.PAGESIZE):
    pages[at] = 1
for _ in range(3):
    if os.fork() == 0:
        sum(pages[at] for at in range(0, 128 << 20, mmap.PAGESIZE))
        os.write(1, b"ready\\n"); sys.stdin.read(); os._exit(0)
os.write(1, b"ready\\n"); sys.stdin.read()
"""


def test_real_forked_workers_are_counted_once() -> None:
    command = [sys.executable, "-c", FORK]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdin and process.stdout
    try:
        for _ in range(4):
            process.stdout.readline()
        seen = jobs.scan()
        tree = {pid: one for pid, one in seen.items() if pid == process.pid or one.parent == process.pid}
        assert len(tree) == 4 and sum(one.own for one in tree.values()) > 4 * 128 * MIB  # sums of RSS lie
        ours = (os.getpid(), os.getppid())  # else the job would be this test run with all that it holds
        small = {pid: one for pid, one in seen.items() if one.own < 64 * MIB and pid not in ours}
        for readable in (tree, {**small, **tree}):
            (job,) = [
                one
                for one in jobs.heaviest(readable, anon_total=memory.read().anon)
                if process.pid in one.pids
            ]
            assert 128 * MIB <= job.use < 200 * MIB
    finally:
        process.stdin.close()
        process.wait(timeout=120)
        process.stdout.close()

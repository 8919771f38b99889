"""Real deaths on this kernel, real wait statuses, counters and log lines; each inside a small cgroup."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from oomproof.diagnosis.judge import judge
from oomproof.diagnosis.verdict import Verdict
from oomproof.evidence.case_collector import collect
from oomproof.recording.attempt import Attempt

MIB = 1 << 20
LIMIT = 100 * MIB
HOG = "b = []\nwhile True: b.append(bytearray(b'x') * (4 << 20))"
BUS = (
    "import mmap\nf = open('map', 'w+b'); f.truncate(8192)\n"
    "m = mmap.mmap(f.fileno(), 8192); f.truncate(0)\nm[5000]"
)


def boottime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Job:
    """What keeper and front would do, in a few lines: start, wait, write the files of the contract."""

    def __init__(self, folder: Path, cgroup: Path | None) -> None:
        self.dir, self.cgroup = folder / "runs/real/1", cgroup
        self.dir.mkdir(parents=True)

    def counters(self) -> dict[str, int | None]:
        found: dict[str, int | None] = {"vmstat_oom_kill": None}
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                found["vmstat_oom_kill"] = int(line.split()[1])
        if self.cgroup is not None:
            control = dict(
                line.split() for line in (self.cgroup / "memory.oom_control").read_text().splitlines()
            )
            found["memcg_oom_kill"] = int(control["oom_kill"])
            found["memcg_failcnt"] = int((self.cgroup / "memory.failcnt").read_text())
        return found

    def run(self, *argv: str) -> Verdict:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        before = self.counters()

        def enter() -> None:
            if self.cgroup is not None:
                (self.cgroup / "cgroup.procs").write_text(str(os.getpid()))

        with (self.dir / "output.log").open("wb") as output:
            begin = boottime()
            job = subprocess.Popen(argv, preexec_fn=enter, stdout=output, stderr=output, cwd=self.dir)
            code = job.wait()
        started = {
            "boot_id": boot,
            "boottime": begin,
            "wall": time.time(),
            "job": {"pid": job.pid},
            "backend": {
                "name": "cgroup-v1",
                "limit": LIMIT,
                "remove": [str(self.cgroup)] if self.cgroup else [],
            },
            "counters": before,
        }
        ended = {
            "boottime": boottime(),
            "wall": time.time(),
            "code": code if code >= 0 else None,
            "signal": -code if code < 0 else None,
            "counters": self.counters(),
        }
        (self.dir / "started.json").write_text(json.dumps(started))
        (self.dir / "exit.json").write_text(json.dumps(ended))
        return judge(collect(Attempt(self.dir)))


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path, None)


@pytest.fixture
def limited(tmp_path: Path) -> Iterator[Job]:
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    own = next((line.split(":", 2)[2] for line in lines if line.split(":")[1] == "memory"), None)
    if own is None:
        pytest.skip("no memory controller of cgroup v1 here")
    cgroup = Path(f"/sys/fs/cgroup/memory{own}/oomproof-verdict-{os.getpid()}")
    try:
        cgroup.mkdir()
    except OSError as error:
        pytest.skip(f"may not make a cgroup: {error}")
    try:
        (cgroup / "memory.limit_in_bytes").write_text(str(LIMIT))
        yield Job(tmp_path, cgroup)
    finally:
        cgroup.rmdir()


def readable() -> bool:
    try:
        os.close(os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK))
    except OSError:
        return False
    return True


def test_oom_kill(limited: Job) -> None:
    verdict = limited.run(sys.executable, "-c", HOG)
    assert verdict.cause == "oom-kill-memcg", verdict.headline
    if readable():
        assert verdict.certainty == "proven" and verdict.victim is not None
        assert "the job's own limit of 100 MiB was full" in verdict.headline
        assert 80 * MIB < (verdict.victim.anon_rss_bytes or 0) <= LIMIT


def test_oom_kill_under_a_shell(limited: Job) -> None:
    verdict = limited.run("sh", "-c", f'{sys.executable} -c "$0"; exit $?', HOG)
    assert verdict.cause == "oom-kill-memcg", verdict.headline
    assert "a shell gives for SIGKILL" in verdict.why


def test_sigkill_in_a_cgroup_with_room(limited: Job) -> None:
    verdict = limited.run(sys.executable, "-c", "import os; os.kill(os.getpid(), 9)")
    assert verdict.cause == "killed-unknown", verdict.headline
    assert not any(each.cause.startswith("oom") for each in verdict.causes)


def test_segfault(job: Job) -> None:
    verdict = job.run(sys.executable, "-c", "import ctypes; ctypes.string_at(0)")
    assert (verdict.cause, verdict.certainty) == ("segfault", "proven")
    if any(each.id.startswith("kernel.fault") for each in verdict.evidence):
        assert "libc" in verdict.headline and "null pointer" in verdict.why


def test_abort(job: Job) -> None:
    verdict = job.run(sys.executable, "-c", "import os; os.abort()")
    assert (verdict.cause, verdict.certainty) == ("abort", "proven")


def test_bus_error(job: Job) -> None:
    verdict = job.run(sys.executable, "-c", BUS)
    assert verdict.cause == "bus-error", verdict.headline


def test_numpyless_memory_error(job: Job) -> None:
    verdict = job.run(sys.executable, "-c", "bytearray(1 << 60)")
    assert (verdict.cause, verdict.certainty) == ("python-memory-error", "proven")


def test_clean_end(job: Job) -> None:
    assert job.run(sys.executable, "-c", "print('ok')").cause == "finished"

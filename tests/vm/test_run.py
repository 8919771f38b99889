"""`oomproof run` on a real machine: user scopes, logouts, real kills by the kernel, a pulled plug.

Emulation is slow and uneven: these stories tell who lived, never how many seconds it took.
"""

from __future__ import annotations

import json
import re
import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from lab import Handle, Machine, Session

pytestmark = pytest.mark.vm

IN_GUEST = "/opt/oomproof/jobs"
GROW, BURST = f"python3 {IN_GUEST}/grow.py", f"python3 {IN_GUEST}/burst.py"
USER_MANAGER = "/user.slice/user-1000.slice/user@1000.service/"
MANAGER_STOPS_AFTER = 10  # seconds from the last logout (logind's UserStopDelaySec)


@dataclass(frozen=True)
class Run:
    """One run in the guest, seen from outside: only what its folder and /proc tell."""

    machine: Machine
    name: str
    attempt: str
    handle: Handle | None = None

    @property
    def id(self) -> str:
        return Path(self.attempt).parent.name

    def read(self, file: str) -> dict[str, Any]:
        return dict(json.loads(self.machine.get(f"{self.attempt}/{file}")))

    def printed(self, text: str) -> None:
        self.machine.wait_until(f"grep -qs {shlex.quote(text)} {self.attempt}/output.log")

    def pid(self, who: str) -> int:
        self.machine.wait_until(f"test -s {self.attempt}/started.json")
        return int(self.read("started.json")[who]["pid"])

    def backend(self) -> dict[str, Any]:
        self.pid("job")
        return dict(self.read("started.json")["backend"])

    def lives(self, who: str = "job") -> bool:
        return self.machine.run(f"grep -q '^State:.[^ZX]' /proc/{self.pid(who)}/status", check=False).rc == 0

    def cgroup(self, who: str) -> str:
        return self.machine.run(f"cat /proc/{self.pid(who)}/cgroup").out.strip().removeprefix("0::")

    def ended(self) -> dict[str, Any]:
        """Its exit record, once it is there. Waits in one small process: a starved machine is slow to fork."""
        self.machine.run(f"tail --pid={self.pid('job')} -f /dev/null", timeout=240)
        self.machine.wait_until(f"test -s {self.attempt}/exit.json")
        return self.read("exit.json")

    def status(self) -> int:
        """What the shell saw."""
        assert self.handle is not None
        return self.machine.wait(self.handle, timeout=240).rc

    def words(self) -> str:
        assert self.handle is not None
        return self.machine.output(self.handle)

    def judged(self) -> dict[str, Any]:
        self.machine.wait_until(f"test -s {self.attempt}/verdict.json")
        return self.read("verdict.json")

    def verdict(self) -> tuple[str, str]:
        verdict = self.judged()["verdict"]
        return verdict["cause"], verdict["certainty"]

    @contextmanager
    def guard_asleep(self) -> Iterator[None]:
        """So that the kernel is the only one who can act."""
        guard = self.pid("guard")
        self.machine.run(f"kill -STOP {guard}")
        try:
            yield
        finally:
            self.machine.run(f"kill -CONT {guard}")


@dataclass(frozen=True)
class User:
    """ada in her login session, or root as a service would start things (session None)."""

    machine: Machine
    session: Session | None = None
    state: str = ""

    @property
    def _runs(self) -> str:
        home = "/home/ada" if self.session else "/root"
        return f"{self.state or home + '/.local/state'}/oomproof/runs"

    def _typed(self, words: str) -> str:
        return f"XDG_STATE_HOME={self.state} oomproof {words}" if self.state else f"oomproof {words}"

    def oomproof(self, words: str, check: bool = True) -> str:
        asked = self.session or self.machine
        return asked.run(self._typed(words), check=check).out

    def run(self, name: str, words: str) -> Run:
        """`oomproof run --name NAME …`, in the background of the shell, or detached when the words say so."""
        typed = self._typed(f"run --name {name} {words}")
        if "--detach" in words:
            output = (self.session or self.machine).run(typed).out
            found = self.find(name)
            assert found.id in output
            return found
        handle = (self.session or self.machine).start(typed)
        return self.find(name, handle)

    def find(self, name: str, handle: Handle | None = None) -> Run:
        command = f'grep -ls \'"name": "{name}"\' {self._runs}/*/run.json'
        path = self.machine.wait_until(command).out.splitlines()[-1]
        return Run(self.machine, name, f"{Path(path).parent}/1", handle)

    def stop(self, run: Run) -> None:
        self.oomproof(f"stop {run.name}")
        assert run.ended()["code"] == 0

    def logged_out(self, how: str = "exit") -> None:
        assert self.session is not None
        self.machine.logout(self.session, how)


@pytest.fixture
def root(guest: Machine) -> User:
    return User(guest)


@pytest.fixture
def ada(guest: Machine) -> Iterator[User]:
    yield User(guest, guest.login("ada"))
    guest.run("loginctl disable-linger ada; loginctl terminate-user ada", check=False)
    guest.wait_until("! pgrep -u ada")
    guest.run("rm -rf /home/ada/.local/state/oomproof")


@contextmanager
def no_thrashing(guest: Machine) -> Iterator[None]:
    """The kernel kills when it cannot keep what was used in the last second, instead of reading every program anew for a minute."""
    folder = "/sys/kernel/mm/lru_gen"
    before = guest.run(f"cat {folder}/enabled").out.strip()
    guest.run(f"echo y >{folder}/enabled; echo 1000 >{folder}/min_ttl_ms")
    try:
        yield
    finally:
        guest.run(f"echo 0 >{folder}/min_ttl_ms; echo {before} >{folder}/enabled")


@contextmanager
def room(guest: Machine, mib: int) -> Iterator[None]:
    """Leaves the machine that much memory. The rest is set aside as huge pages: nobody can be killed for those."""
    guest.run("echo 1 >/proc/sys/vm/compact_memory")
    available = int(guest.run("awk '/^MemAvailable:/ {print $2}' /proc/meminfo").out) >> 10
    wanted = (available - mib) // 2
    try:
        got = guest.run(f"echo {wanted} >/proc/sys/vm/nr_hugepages; cat /proc/sys/vm/nr_hugepages").out
        assert wanted - int(got) < 20, f"{got} of {wanted} huge pages: memory is in pieces"
        yield
    finally:
        guest.run("echo 0 >/proc/sys/vm/nr_hugepages")


def oom_kills(guest: Machine) -> int:
    return int(guest.run("awk '/^oom_kill / {print $2}' /proc/vmstat").out)


def nothing_is_left(guest: Machine) -> None:
    guest.wait_until('test -z "$(find /sys/fs/cgroup -name "oomproof-*")"')


def kernel_kills(user: User, run: Run, go: str) -> None:
    """The job takes too much while the guard sleeps."""
    run.printed("waiting")
    with run.guard_asleep():
        user.machine.run(f"touch {go}")
        assert run.ended()["signal"] == 9
    assert run.status() == 137
    user.machine.run(f"rm {go}")


# -- limits ------------------------------------------------------------------------------------------------


def test_user_scope_limit(guest: Machine, ada: User) -> None:
    """An ordinary user's job beyond its limit dies alone, and her own counters prove it."""
    bystander = ada.run("bystander", f"-- {GROW} 100 20")
    hog = ada.run("hog", f"--limit 100M -- {BURST} /tmp/go 400")
    assert hog.backend()["name"] == "systemd user scope"
    assert hog.cgroup("job").startswith(USER_MANAGER) and hog.cgroup("job").endswith(".scope/job")
    assert hog.cgroup("keeper") == hog.cgroup("job").removesuffix("job") + "keeper"
    bystander.printed("ready")
    kernel_kills(ada, hog, "/tmp/go")
    assert hog.verdict() == ("oom-kill-memcg", "proven")
    judged = hog.judged()
    assert "the job's own limit of 100 MiB" in judged["verdict"]["headline"]
    assert not [item for item in judged["evidence"] if item["source"] == "kernel log"]
    assert any("kernel log" in gap["source"] and gap["how_to_grant"] for gap in judged["missing"])
    assert bystander.lives() and bystander.lives("guard")
    ada.stop(bystander)
    assert bystander.status() == 0
    nothing_is_left(guest)


def test_leak_is_asked_and_saves(guest: Machine, ada: User) -> None:
    leak = ada.run("leak", f"--limit 200M --grace 4 -- {GROW} 20 1000 /tmp/saved")
    assert leak.status() == 75
    assert 90 < int(guest.run("cat /tmp/saved").out) < 200, "asked while there was room, but not at the start"
    assert leak.verdict() == ("stopped-by-guard", "likely")
    assert leak.read("exit.json")["counters"]["memcg_oom_kill"] == 0
    assert "asked the job to save and stop" in leak.words()
    nothing_is_left(guest)


def test_root_scope_limit(guest: Machine, root: User) -> None:
    hog = root.run("root-hog", f"--limit 100M -- {BURST} /tmp/go 400")
    assert hog.backend()["name"] == "systemd scope"
    assert hog.cgroup("job").startswith("/system.slice/oomproof-")
    kernel_kills(root, hog, "/tmp/go")
    assert hog.verdict() == ("oom-kill-memcg", "proven")
    assert hog.judged()["verdict"]["victim"]["anon_rss_bytes"] > 50 << 20, "the kernel log names it"
    nothing_is_left(guest)


@pytest.mark.long
def test_swap_counts_as_use(guest: Machine, ada: User) -> None:
    guest.swapon()
    try:
        job = ada.run("swapped", f"--limit 300M -- {GROW} 200 120")
        job.printed("ready")
        guest.run(f"echo 80M >{job.backend()['memory']}/memory.reclaim")
        enough = f'test "$(XDG_STATE_HOME=/home/ada/.local/state oomproof runs export {job.name} --csv'
        guest.wait_until(enough + ' | tail -n 1 | cut -d, -f5)" -gt 60000000')
        header, *_, last = (line.split(",") for line in ada.oomproof("runs export swapped --csv").split())
        row = dict(zip(header, last, strict=True))
        assert int(row["anon"]) < 80 << 20
        assert int(row["anon"]) + int(row["swap"]) > 110 << 20
        assert int(row["limit_headroom"]) < 190 << 20, "what was swapped out still counts against the limit"
        assert "swapped" in ada.oomproof("runs show swapped")
        ada.stop(job)
    finally:
        guest.swapoff()


# -- the whole machine short of memory ---------------------------------------------------------------------


@pytest.mark.long
def test_without_a_limit_the_newest_run_goes_and_the_machine_lives(guest: Machine, ada: User) -> None:
    before = oom_kills(guest)
    bystander = ada.run("older", f"-- {GROW} 100 40")
    bystander.printed("ready")
    with room(guest, 350):
        leak = ada.run("newest", f"--grace 5 --pause-max 0 -- {GROW} 30 900")  # pauses: test_freeze.py
        assert leak.status() in (143, 137)
    assert leak.verdict() == ("stopped-by-guard", "proven")
    assert oom_kills(guest) == before
    assert bystander.lives()
    ada.stop(bystander)
    assert bystander.status() == 0


def test_machine_wide_oom_is_proven_by_the_kernel_log(guest: Machine, root: User) -> None:
    with room(guest, 200), no_thrashing(guest):
        job = root.run("global", f"--watch-only -- {BURST} /tmp/go 600")
        assert job.backend()["name"] == "oomproof"
        kernel_kills(root, job, "/tmp/go")
    assert job.verdict() == ("oom-kill-global", "proven")
    assert "whole machine" in job.judged()["verdict"]["headline"]


@pytest.mark.long
def test_machine_wide_oom_is_not_claimed_proven_without_the_kernel_log(guest: Machine, ada: User) -> None:
    """Her job's own counters say that it was killed and that its limit did not fail; the rest is inference."""
    with room(guest, 200):
        job = ada.run("global", f"--floor 40M --margin 40M -- {BURST} /tmp/go 600")
        assert job.backend()["name"] == "systemd user scope"
        kernel_kills(ada, job, "/tmp/go")
    assert job.verdict() == ("oom-kill-global", "likely")
    nothing_is_left(guest)


# -- logouts -----------------------------------------------------------------------------------------------


@pytest.mark.long
def test_detached_with_linger_outlives_the_logout(guest: Machine, ada: User) -> None:
    guest.run("loginctl enable-linger ada")
    job = ada.run("lingering", f"--detach --limit 200M -- {GROW} 100 20")
    assert job.backend()["name"] == "systemd user scope" and not job.backend()["note"]
    inside = job.cgroup("job").removesuffix("job") + "keeper"
    assert (job.cgroup("keeper"), job.cgroup("guard")) == (inside, inside), "nothing stays in the session"
    assert ada.session is not None
    ada.logged_out()
    guest.wait_until(f"! loginctl show-session {ada.session.id}")
    time.sleep(MANAGER_STOPS_AFTER + 2)
    assert job.lives() and job.lives("keeper") and job.lives("guard")
    back = User(guest, guest.login("ada"))
    assert "running" in back.oomproof("runs")
    back.stop(job)
    assert job.verdict() == ("stopped-by-user", "proven")
    nothing_is_left(guest)


@pytest.mark.long
def test_logout_without_linger(guest: Machine, ada: User) -> None:
    """A user scope could die with the manager: not for a detached job, and never silently."""
    assert ada.session is not None
    said = ada.session.run(f"oomproof run --name detached --detach -- {GROW} 100 20").out
    assert "oomproof, not the kernel" in said and "loginctl enable-linger ada" in said and "logout" in said
    detached = ada.find("detached")
    foreground = ada.run("foreground", f"-- {GROW} 100 20")
    assert foreground.backend()["name"] == "systemd user scope"
    foreground.printed("ready")
    assert "your last logout may end it" in foreground.words()
    assert "loginctl enable-linger ada" in foreground.words()
    ada.logged_out("hangup")
    time.sleep(MANAGER_STOPS_AFTER + 2)
    # the guards keep the session "closing" here (KillUserProcesses=no), and that keeps the manager
    for job in (detached, foreground):
        assert job.lives() and job.lives("guard"), job.name
    guest.run("oomproof stop detached", user="ada")
    assert detached.ended()["code"] == 0
    guest.run(f"kill -9 {foreground.pid('guard')}")  # the last of the session: now the manager stops
    assert foreground.ended()["signal"] == 15
    assert "logout" in guest.run("oomproof runs show foreground", user="ada").out
    guest.run("oomproof why foreground", user="ada")  # nobody was there to judge at its end
    assert foreground.verdict() == ("stopped-by-user", "likely")


# -- the plug: last, for it ends what others left running ----------------------------------------------------------------------------------------------


def samples(user: User, name: str) -> list[list[str]]:
    return [line.split(",") for line in user.oomproof(f"runs export {name} --csv").split()[1:]]


def recorded(user: User, run: Run) -> None:
    """With a few samples on disk."""
    run.printed("ready")
    deadline = time.monotonic() + 120
    while len(samples(user, run.name)) < 4:
        assert time.monotonic() < deadline, f"{run.name} has no samples"


def clock(wall: float) -> str:
    return time.strftime("%H:%M:%S", time.gmtime(wall))


def test_power_cut_and_shutdown_are_told_apart(guest: Machine) -> None:
    ada = User(guest, guest.login("ada"), "/state/ada")
    recorded(ada, ada.run("cut", f"-- {GROW} 100 40"))
    guest.power_off_hard()

    guest.boot()
    ada = User(guest, guest.login("ada"), "/state/ada")
    booted = float(guest.run("awk '/^btime/ {print $2}' /proc/stat").out)
    rows = samples(ada, "cut")
    assert len(rows) >= 4 and int(rows[-1][1]) > 20 << 20
    span = f"between {clock(float(rows[-1][0]))} (last sample) and {clock(booted)} UTC (next boot)"
    shown = ada.oomproof("runs show cut")
    assert f"the machine went down {span}, without a shutdown" in shown
    assert "was available, no swap, the job held" in shown
    ada.oomproof("why cut")  # nobody was there to judge at its end
    assert ada.find("cut").verdict() == ("machine-down", "proven")

    guest.run("loginctl enable-linger ada")
    recorded(ada, ada.run("off", f"--detach -- {GROW} 100 40"))
    guest.shutdown()

    guest.boot()
    ada = User(guest, guest.login("ada"), "/state/ada")
    listed = ada.oomproof("runs")
    assert re.search(r"^off .*  machine shut down  ", listed, re.MULTILINE)
    assert re.search(r"^cut .*  machine went down  ", listed, re.MULTILINE)
    ada.oomproof("why off")
    assert ada.find("off").verdict() == ("machine-down", "proven")
    assert "shut down or restarted in order while the job ran" in ada.oomproof("runs show off")

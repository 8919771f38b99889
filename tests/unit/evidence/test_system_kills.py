"""What was killed on this machine: every source joined, one kill told once, ours told from unmanaged processes'."""

from __future__ import annotations

import json
import stat
import time
from datetime import datetime
from pathlib import Path

import pytest
from helpers_case import MACHINE_KILL, OWN_KILL
from hypothesis import given
from hypothesis import strategies as st

from oomproof.diagnosis.outage_verdict import SystemHistory
from oomproof.errors import OomproofError
from oomproof.evidence.system_kills import SystemKills, system_kills
from oomproof.evidence.time_expressions import parse_since
from oomproof.machine.kill_counters import cgroup_kills, machine_kills
from oomproof.recording.run_folders import Run
from oomproof.recording.writer import Writer
from oomproof.reports.system_kill_table import system_text

MIB = 1 << 20
UPTIME = 40 * 86400.0


class Place:
    """A machine of plain files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.now, self.boottime = time.time(), UPTIME
        self.proc, self.kmsg = folder / "proc", folder / "kmsg"
        (self.proc / "self/ns").mkdir(parents=True)
        (self.proc / "self/ns/pid").symlink_to("pid:[4026531836]")
        (self.proc / "vmstat").write_text("nr_free_pages 5\noom_kill 3\n")
        self.journalctl = "/nonexistent/journalctl"
        self.logs: list[str] = []
        self.runs: list[Run] = []
        self.records: list[str] = []

    def kill(self, lines: list[str], ago: float, pid: int, cgroup: str = "/x") -> None:
        at = int((self.boottime - ago) * 1e6)
        for line in lines:
            number = len(self.records) + 1
            self.records.append(f"6,{number},{at + number},-;{line.format(pid=pid, cgroup=cgroup)}")

    def journal(self, *entries: dict[str, object]) -> None:
        script = self.folder / "journalctl"
        body = "\n".join(json.dumps(each) for each in entries)
        (self.folder / "entries").write_text(body + "\n")
        script.write_text(f"#!/bin/sh\ncat {self.folder}/entries\n")
        script.chmod(script.stat().st_mode | stat.S_IXUSR)
        self.journalctl = str(script)

    def run(
        self, name: str, pid: int, ago: float, lasted: float | None = None, cgroup: str = "/oomproof-r"
    ) -> Path:
        attempt = self.folder / "runs" / f"id-{name}" / "1"
        attempt.mkdir(parents=True)
        start = self.now - ago
        (attempt.parent / "run.json").write_text(
            json.dumps({"name": name, "argv": ["python"], "created": start})
        )
        started = {
            "wall": start,
            "boottime": self.boottime - ago,
            "job": {"pid": pid, "start": 1},
            "backend": {"remove": [f"/sys/fs/cgroup/memory{cgroup}"]},
        }
        (attempt / "started.json").write_text(json.dumps(started))
        if lasted is not None:
            (attempt / "exit.json").write_text(json.dumps({"signal": 9, "wall": start + lasted}))
        self.runs.append(Run(attempt.parent))
        return attempt

    def look(self, since: float = 7200.0) -> SystemKills:
        self.kmsg.write_text("\n".join(self.records) + "\n")
        return system_kills(
            self.now - since,
            proc=str(self.proc),
            kmsg=str(self.kmsg),
            journalctl=self.journalctl,
            logs=self.logs,
            runs=self.runs,
            now=self.now,
        )


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    # up for weeks and never suspended, whatever the machine is that runs this test
    monkeypatch.setattr("oomproof.evidence.system_kills.boottime", lambda: UPTIME)
    monkeypatch.setattr("oomproof.machine.kernel_log.suspended_seconds", lambda: 0.0)
    return Place(tmp_path)


def test_kernel_kills_newest_last_with_what_they_held(place: Place) -> None:
    place.kill(MACHINE_KILL, 100, 4067)
    place.kill(OWN_KILL, 50, 4100, "/jobs/a")
    found = place.look()
    assert [(kill.pid, kill.cause, kill.certainty) for kill in found.kills] == [
        (4067, "oom-kill-global", "proven"),
        (4100, "oom-kill-memcg", "proven"),
    ]
    assert found.kills[0].held == 9234320 * 1024, "its own memory, not its address space"
    assert found.kills[0].wall == pytest.approx(place.now - 100, abs=1)
    assert found.kills[1].limit == 8388608 * 1024
    text = system_text(SystemHistory(found))
    assert "kernel: machine full" in text and "kernel: cgroup limit 8.0 GiB" in text
    assert "the kernel counted 3 OOM kills since boot; its log still names 2 of them" in text
    assert text.index("(4067)") < text.index("(4100)")


def test_who_held_what_at_the_last_kill(place: Place) -> None:
    """From the kernel's own account: jobs, not processes; what was asked for, what was there, what came back."""
    rows = [(200, 1000, 1048576, 26214), *((300 + n, 1000, 393216, 104857) for n in range(16))]
    place.kill(
        [
            "python invoked oom-killer: gfp_mask=0x140dca(GFP_HIGHUSER_MOVABLE), order=0, oom_score_adj=0",
            "active_anon:2340000 inactive_anon:5100000 isolated_anon:0",
            " free:54272 free_pcp:311 free_cma:0",
            "Free swap  = 0kB",
            "Total swap = 8388604kB",
            "8023254 pages RAM",
            "158934 pages reserved",
            "[  pid  ]   uid  tgid total_vm      rss pgtables_bytes swapents oom_score_adj name",
            "[   1502]  1000  1502   900000    79360   900000        0             0 gnome-shell",
            *(
                f"[{pid:7}] {uid:5} {pid:5} {rss * 3} {rss:8} 900000 {swap:8} 0 python"
                for pid, uid, rss, swap in rows
            ),
            "Out of memory: Killed process 303 (python) total-vm:4718592kB, anon-rss:1572864kB, file-rss:0kB, "
            "shmem-rss:0kB, UID:1000 pgtables:3024kB oom_score_adj:0",
        ],
        100,
        303,
    )
    found = place.look()
    (kill,) = found.kills
    told = kill.to_json()
    assert told["jobs"][0]["victim"] is True and len(told["jobs"][0]["pids"]) == 17
    assert told["machine"]["swap_free_bytes"] == 0 and told["asked_by"] == "python"
    text = system_text(SystemHistory(found))
    assert "Who held what when python (303) was killed" in text
    narrow = system_text(SystemHistory(found), width=60).splitlines()
    title = next(line for line in narrow if line.startswith("Who held what"))
    assert len(title) <= 60 and narrow[narrow.index(title) + 1].startswith("  ")
    job = next(line for line in text.splitlines() if "pid 303 of it killed" in line)
    assert job.split()[:3] == ["python", "17", "1000"] and "28.0 GiB" in job
    assert "212 MiB of 30.0 GiB RAM was free, 0 B of 8.0 GiB swap" in text
    assert "python asked for 4 KiB more" in text and "the kill gave 1.5 GiB back" in text


def test_since_leaves_older_kills_out_but_counts_them(place: Place) -> None:
    place.kill(MACHINE_KILL, 3000, 4067)
    found = place.look(since=60)
    assert found.kills == () and found.logged == 1
    assert "no kill for memory since" in system_text(SystemHistory(found))


def test_ours_by_pid_and_time(place: Place) -> None:
    place.run("ours", 4067, ago=300, lasted=200.2)
    place.run("later", 4067, ago=50)
    place.kill(MACHINE_KILL, 100, 4067)
    (kill,) = place.look().kills
    assert (kill.run, kill.run_name) == ("id-ours", "ours")
    assert "oomproof why id-ours" in system_text(SystemHistory(place.look()))


def test_the_same_pid_before_the_run_is_a_stranger(place: Place) -> None:
    place.run("ours", 4067, ago=30)
    place.kill(MACHINE_KILL, 100, 4067)
    assert place.look().kills[0].run is None


def test_a_worker_by_the_recordings_process_table_and_by_its_cgroup(place: Place) -> None:
    attempt = place.run("ours", 4000, ago=300, cgroup="/oomproof-abc")
    writer = Writer(attempt / "recording.sqlite", {})
    writer.put("process", (place.boottime - 105, 4067, 9, "worker", "pt_data_worker", MIB, 0, 0, 0, None))
    writer.close()
    place.kill(MACHINE_KILL, 100, 4067)
    place.kill(OWN_KILL, 50, 4999, "/oomproof-abc")
    assert [kill.run_name for kill in place.look().kills] == ["ours", "ours"]


def test_a_kill_that_the_log_has_forgotten_stands_in_the_runs_verdict(place: Place) -> None:
    """The ring held one hour of a busy machine: `runs` showed the kill and `why --system` did not."""
    attempt = place.run("ours", 4000, ago=300, lasted=200)
    victim = {"pid": 4067, "name": "python", "anon_rss_bytes": 200 * MIB, "shmem_rss_bytes": MIB}
    kill = {"time": place.now - 100, "cause": "oom-kill-memcg", "victim": victim}
    damaged = [5, {"time": "x"}, {"time": place.now - 90, "cause": "other-error", "victim": {}}]
    (attempt / "verdict.json").write_text(json.dumps({"kills": [kill, *damaged]}))
    (found,) = place.look().kills
    assert (found.run_name, found.pid, found.held) == ("ours", 4067, 201 * MIB)
    assert place.look(since=50).kills == ()
    place.run("other", 1, ago=300)
    (attempt / "verdict.json").write_text(json.dumps({"kills": "none"}))
    assert place.look().kills == ()


def test_a_kill_that_log_and_verdict_tell_is_one(place: Place) -> None:
    attempt = place.run("ours", 4067, ago=300, lasted=200)
    place.kill(MACHINE_KILL, 100, 4067)
    (seen,) = place.look().kills
    victim = {"pid": 4067, "name": seen.name, "anon_rss_bytes": seen.held, "shmem_rss_bytes": 0}
    kill = {"time": seen.wall, "cause": seen.cause, "victim": victim}
    (attempt / "verdict.json").write_text(json.dumps({"kills": [kill]}))
    assert place.look().kills == (seen,)


def test_what_our_guard_ended_is_listed_once(place: Place) -> None:
    attempt = place.run("guarded", 4067, ago=300, lasted=200)
    lines = [
        {"by": "guard", "action": "term", "boottime": 1.0, "wall": place.now - 101, "why": "the floor"},
        {"by": "guard", "action": "kill", "boottime": 2.0, "wall": place.now - 100, "why": "no answer"},
        {"by": "user", "action": "kill", "boottime": 3.0, "wall": place.now - 99, "why": "stop"},
    ]
    (attempt / "actions.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n{cut")
    (kill,) = place.look().kills
    assert (kill.cause, kill.run_name, kill.pid) == ("stopped-by-guard", "guarded", 4067)
    place.kill(MACHINE_KILL, 100, 4067)
    assert [each.cause for each in place.look().kills] == ["oom-kill-global"], "the kernel was quicker"


def test_the_journal_adds_guards_and_repeats_nothing(place: Place) -> None:
    at = place.now - 100
    place.kill(MACHINE_KILL, 100, 4067)
    said = 'sending SIGTERM to process 555 uid 1000 "chrome": oom_score 900, VmRSS 812 MiB, cmdline "chrome"'
    place.journal(
        {
            "__REALTIME_TIMESTAMP": str(int(at * 1e6)),
            "_TRANSPORT": "kernel",
            "MESSAGE": MACHINE_KILL[1].format(pid=4067, cgroup="/x"),
        },
        {
            "__REALTIME_TIMESTAMP": str(int((at + 50) * 1e6)),
            "SYSLOG_IDENTIFIER": "earlyoom",
            "_PID": "12",
            "MESSAGE": said,
        },
    )
    found = place.look()
    assert [(kill.pid, kill.cause) for kill in found.kills] == [(4067, "oom-kill-global"), (555, "earlyoom")]
    assert found.kills[1].held == 812 * MIB
    assert found.kills[1].wall == pytest.approx(at + 50, abs=1)
    assert "journal" in found.sources and not found.missing


def test_syslog_where_there_is_no_journal(place: Place) -> None:
    at = datetime.fromtimestamp(place.now - 600)
    log = place.folder / "syslog"
    log.write_text(f"{at:%b %d %H:%M:%S} box kernel: [ 99.5] {MACHINE_KILL[1].format(pid=77, cgroup='/')}\n")
    place.logs = [str(log), "/nonexistent"]
    (kill,) = place.look().kills
    assert kill.pid == 77 and kill.wall == pytest.approx(place.now - 600, abs=2)


def test_nothing_readable_is_said_with_the_cure(place: Place) -> None:
    found = system_kills(
        place.now - 60,
        proc=str(place.folder / "noproc"),
        kmsg="/nonexistent/kmsg",
        journalctl="/nonexistent/journalctl",
        logs=[],
        runs=[],
    )
    assert {gap.source for gap in found.missing} >= {"kernel log", "journal", "/proc/vmstat"}
    text = system_text(SystemHistory(found))
    assert "cannot be told: no log could be read" in text and "usermod -aG adm,systemd-journal" in text
    assert json.loads(json.dumps(found.to_json()))["schema"] == 1


def test_a_journal_that_hangs_is_left(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    from oomproof.evidence import kill_owners

    script = place.folder / "slow"
    script.write_text("#!/bin/sh\nexec sleep 60\n")
    script.chmod(0o700)
    began = time.monotonic()
    gap = kill_owners.feed_journal(0.0, lambda *_: None, command=str(script), deadline=0.3)
    assert gap is not None and "cut short" in gap.reason
    assert time.monotonic() - began < 30, "of the 60 it would take"


def test_a_journal_of_only_ones_own_lines_proves_nothing(place: Place) -> None:
    """Seen in the lab: an ordinary user gets a few lines, status 0, and a hint on stderr."""
    place.journal({"MESSAGE": "hello", "SYSLOG_IDENTIFIER": "systemd", "__REALTIME_TIMESTAMP": "1"})
    hint = "Hint: You are currently not seeing messages from other users and the system."
    with open(place.journalctl, "a") as script:
        script.write(f"echo '{hint}' >&2\n")
    found = system_kills(
        place.now - 60,
        proc=str(place.proc),
        kmsg="/nonexistent",
        journalctl=place.journalctl,
        logs=[],
        runs=[],
    )
    assert "journal" not in found.sources
    assert "cannot be told" in system_text(SystemHistory(found)) and "its log would name them" in system_text(
        SystemHistory(found)
    )


def test_a_container_cannot_match_pids(place: Place) -> None:
    (place.proc / "self/ns/pid").unlink()
    (place.proc / "self/ns/pid").symlink_to("pid:[4026532999]")
    place.run("ours", 4067, ago=300)
    place.kill(MACHINE_KILL, 100, 4067)
    found = place.look()
    assert found.kills[0].run is None
    assert any("--pid=host" in gap.how_to_grant for gap in found.missing)


def test_damaged_run_folders_are_no_error(place: Place) -> None:
    attempt = place.run("bad", 4067, ago=300)
    (attempt / "started.json").write_text('{"wall": ')
    (attempt / "recording.sqlite").write_bytes(b"x" * 999)
    (attempt / "actions.jsonl").write_bytes(b"\xff\0{}\n[]\n")
    place.kill(MACHINE_KILL, 100, 4067)
    assert place.look().kills[0].run is None


# counters


def test_counters_of_the_machine_and_of_cgroups(tmp_path: Path) -> None:
    proc, v1, v2 = tmp_path / "proc", tmp_path / "v1", tmp_path / "v2"
    for folder in (proc / "self", v1 / "jobs/a", v2 / "user/b"):
        folder.mkdir(parents=True)
    (proc / "self/mountinfo").write_text(
        f"30 1 0:1 / {v1} rw - cgroup cgroup rw,memory\n31 1 0:2 / {v2} rw - cgroup2 cgroup2 rw\n"
    )
    (v1 / "jobs/a/memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")
    (v2 / "user/memory.events").write_text("low 0\noom 1\noom_kill 5\n")
    (v2 / "user/memory.events.local").write_text("low 0\noom 0\noom_kill 0\n")
    (v2 / "user/b/memory.events.local").write_text("low 0\noom 1\noom_kill 5\n")
    assert [(each.path, each.kills, each.version) for each in cgroup_kills(str(proc))] == [
        ("/user/b", 5, 2),
        ("/jobs/a", 2, 1),
    ]
    (proc / "vmstat").write_text("a 1\noom_kill 47\n")
    assert machine_kills(str(proc)) == 47
    assert machine_kills(str(tmp_path)) is None


# since when

NOW = datetime(2026, 11, 15, 9, 30).timestamp()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2 hours ago", datetime(2026, 11, 15, 7, 30)),
        ("30m", datetime(2026, 11, 15, 9, 0)),
        ("1h 30min", datetime(2026, 11, 15, 8, 0)),
        ("-2h", datetime(2026, 11, 15, 7, 30)),
        ("an hour ago", datetime(2026, 11, 15, 8, 30)),
        ("3 days", datetime(2026, 11, 12, 9, 30)),
        ("yesterday", datetime(2026, 11, 14)),
        ("yesterday 18:00", datetime(2026, 11, 14, 18)),
        ("today", datetime(2026, 11, 15)),
        ("08:00", datetime(2026, 11, 15, 8)),
        ("23:00", datetime(2026, 11, 14, 23)),
        ("2026-11-15 08:00", datetime(2026, 11, 15, 8)),
        ("2026-11-15", datetime(2026, 11, 15)),
        ("2026-11-15T08:00:30", datetime(2026, 11, 15, 8, 0, 30)),
        ("now", datetime(2026, 11, 15, 9, 30)),
    ],
)
def test_since(text: str, expected: datetime) -> None:
    assert parse_since(text, NOW) == expected.timestamp()


@pytest.mark.parametrize(
    "text", ["", "soon", "2 fortnights", "25:99", "99999-01-01", "ago", "5", "2 hours later"]
)
def test_since_that_cannot_be_read_says_how_to_write_it(text: str) -> None:
    with pytest.raises(OomproofError) as error:
        parse_since(text, NOW)
    assert "2 hours ago" in error.value.hint


@given(st.text(max_size=40))
def test_any_since_is_a_time_or_a_clear_error(text: str) -> None:
    try:
        assert isinstance(parse_since(text, NOW), float)
    except OomproofError:
        pass

"""Builds attempt folders as the contract of docs/files.md describes them, each part optional."""

from __future__ import annotations

import json
import sqlite3
import struct
from pathlib import Path
from typing import Any

from oomproof.diagnosis.judge import judge
from oomproof.diagnosis.verdict import Verdict
from oomproof.evidence.case_collector import collect
from oomproof.evidence.case_file import CaseFile
from oomproof.recording.attempt import Attempt as RunAttempt
from oomproof.records import replace

MIB, GIB = 1 << 20, 1 << 30
BOOT, OTHER_BOOT = "11111111-2222-3333-4444-555555555555", "99999999-2222-3333-4444-555555555555"
WALL = 1_700_000_000.0  # wall clock at boottime 0
START, END = 1000.0, 1100.0
LEADER = 4067
CGROUP = "/user.slice/oomproof-r1"

SCHEMA = """
CREATE TABLE meta(key TEXT PRIMARY KEY, value TEXT);
CREATE TABLE host(t REAL, mem_total INT, mem_available INT, mem_free INT, swap_total INT, swap_free INT,
                  psi_some_us INT, psi_full_us INT);
CREATE TABLE job(t REAL, anon INT, shmem INT, file INT, swap INT, kernel INT, headroom INT, processes INT,
                 shm_total INT, shm_free INT);
CREATE TABLE process(t REAL, pid INT, start INT, role TEXT, name TEXT, anon INT, shmem INT, file INT,
                     swap INT, pss INT);
CREATE TABLE gpu(t REAL, idx INT, used INT, total INT, job_used INT);
CREATE TABLE phase(t REAL, name TEXT, step INT);
CREATE TABLE event(t REAL, kind TEXT, text TEXT, data TEXT);
"""

OWN_KILL = [
    "memory: usage 8388608kB, limit 8388608kB, failcnt 57",
    "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg={cgroup},"
    "task_memcg={cgroup},task=python3,pid={pid},uid=0",
    "Memory cgroup out of memory: Killed process {pid} (python3) total-vm:99999999kB, anon-rss:8123456kB, "
    "file-rss:6640kB, shmem-rss:0kB, UID:0 pgtables:304kB oom_score_adj:0",
]
MACHINE_KILL = [
    "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,"
    "task_memcg={cgroup},task=python3,pid={pid},uid=0",
    "Out of memory: Killed process {pid} (python3) total-vm:30290680kB, anon-rss:9234320kB, file-rss:4kB, "
    "shmem-rss:0kB, UID:504 pgtables:59264kB oom_score_adj:0",
]


def kernel(lines: list[str], *, at: float = END - 0.05, pid: int = LEADER, cgroup: str = CGROUP) -> list[str]:
    """Records of /dev/kmsg. The first one stands before the start: the ring reaches back far enough."""
    filled = [line.format(pid=pid, cgroup=cgroup) for line in lines]
    return [f"6,{n},{int(at * 1e6) + n},-;{line}" for n, line in enumerate(filled, 1)]


class Attempt:
    """A run that ended well, unless told otherwise."""

    def __init__(self, folder: Path) -> None:
        self.root = folder
        self.dir = folder / "runs" / "r1" / "1"
        self.dir.mkdir(parents=True)
        self.proc = folder / "proc"
        (self.proc / "sys/kernel/random").mkdir(parents=True)
        (self.proc / "self/ns").mkdir(parents=True)
        self.boot(BOOT)
        self.namespace("pid:[4026531836]")
        self.kmsg = folder / "kmsg"
        self.wtmp = folder / "wtmp"
        self.run: dict[str, Any] = {
            "schema": 1,
            "id": "r1",
            "argv": ["python", "train.py"],
            "boot_id": BOOT,
            "created": WALL + START - 1,
            "settings": {"limit": 8 * GIB, "floor": GIB, "margin": 4 * GIB, "grace": 30},
        }
        self.started: dict[str, Any] = {
            "boot_id": BOOT,
            "boottime": START,
            "wall": WALL + START,
            "keeper": {"pid": 400, "start": 5},
            "job": {"pid": LEADER, "start": 6},
            "backend": {"name": "cgroup-v2", "limit": 8 * GIB, "remove": ["/sys/fs/cgroup" + CGROUP]},
            "counters": self.counters(),
        }
        self.exit: dict[str, Any] = {}
        self.ended(code=0)
        self.samples: list[dict[str, Any]] = []
        self.sample()
        self.processes = [(LEADER, "main", "python3"), (4100, "worker", "pt_data_worker")]
        self.no_phase = False  # no agent told of one
        self.output = b"epoch 1\n"
        self.actions: list[dict[str, Any]] = []
        self.keeper_events: list[dict[str, Any]] = []
        self.kernel_lines: list[str] | None = kernel([])

    @staticmethod
    def counters(**moved: int | None) -> dict[str, int | None]:
        base: dict[str, int | None] = {
            "memcg_oom_kill": 0,
            "memcg_oom": 0,
            "memcg_failcnt": None,
            "vmstat_oom_kill": 7,
            "memcg_peak": None,
            "oomd_kill": None,
        }
        return {**base, **moved}

    def ended(self, code: int | None = None, signal: int | None = None, **counters: int | None) -> None:
        self.exit = {
            "boottime": END,
            "wall": WALL + END,
            "code": code,
            "signal": signal,
            "core": False,
            "leftovers": [],
            "counters": self.counters(**counters),
            "shm": {"total": 16 * GIB, "free": 16 * GIB},
        }

    def sample(self, available: int = 20 * GIB, used: int = 4 * GIB, shm_free: int = 16 * GIB) -> None:
        for t in (END - 3.0, END - 2.0, END - 1.0):
            self.samples.append(
                {
                    "t": t,
                    "available": available,
                    "used": used,
                    "headroom": 8 * GIB - used,
                    "shm_free": shm_free,
                }
            )

    def act(
        self,
        action: str,
        by: str = "guard",
        before: float = 2.0,
        why: str = "full in 3 s",
        scope: str = "machine",
        others_growth: bool = False,
    ) -> None:
        at = END - before
        line = {"boottime": at, "wall": WALL + at, "by": by, "action": action, "why": why, "facts": {}}
        self.actions.append(
            line | ({"scope": scope, "others_growth": others_growth} if by == "guard" else {})
        )

    def boot(self, boot_id: str) -> None:
        (self.proc / "sys/kernel/random/boot_id").write_text(boot_id + "\n")

    def namespace(self, name: str) -> None:
        link = self.proc / "self/ns/pid"
        link.unlink(missing_ok=True)
        link.symlink_to(name)

    def keeper_lives(self) -> None:
        (self.proc / "400").mkdir()
        (self.proc / "400/stat").write_text("400 (python3) S " + " ".join(["0"] * 18) + " 5 0 0")

    def write_wtmp(self, *records: tuple[int, str, float]) -> None:
        pack = struct.Struct("=hxxi32s4s32s256shhiIi16s20s").pack
        self.wtmp.write_bytes(
            b"".join(
                pack(kind, 0, b"~", b"~~", user.encode(), b"6.1", 0, 0, 0, int(when), 0, b"", b"")
                for kind, user, when in records
            )
        )

    def _recording(self) -> None:
        path = self.dir / "recording.sqlite"
        path.unlink(missing_ok=True)
        db = sqlite3.connect(path)
        db.executescript(SCHEMA)
        db.executemany("INSERT INTO meta VALUES(?,?)", [("boot_id", BOOT), ("wall_offset", str(WALL))])
        for each in self.samples:
            db.execute(
                "INSERT INTO host VALUES(?,?,?,?,0,0,0,0)",
                (each["t"], 32 * GIB, each["available"], each["available"]),
            )
            db.execute(
                "INSERT INTO job VALUES(?,?,0,0,0,0,?,2,?,?)",
                (each["t"], each["used"], each["headroom"], 16 * GIB, each["shm_free"]),
            )
            for pid, role, name in self.processes:
                db.execute("INSERT INTO process VALUES(?,?,6,?,?,1,0,0,0,1)", (each["t"], pid, role, name))
        if not self.no_phase:
            db.execute("INSERT INTO phase VALUES(?,?,?)", (START + 1, "train", 117))
        db.commit()
        db.close()

    def case(self) -> CaseFile:
        (self.dir.parent / "run.json").write_text(json.dumps(self.run))
        (self.dir / "started.json").write_text(json.dumps(self.started))
        if self.exit:
            (self.dir / "exit.json").write_text(json.dumps(self.exit))
        (self.dir / "output.log").write_bytes(self.output)
        for name, lines in (("actions.jsonl", self.actions), ("keeper.jsonl", self.keeper_events)):
            (self.dir / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
        self._recording()
        if self.kernel_lines is not None:
            self.kmsg.write_text(
                "".join(f"{line}\n" for line in ["6,0,1,-;Linux version 6.18", *self.kernel_lines])
            )
        return self.collect()

    def collect(self) -> CaseFile:
        return collect(
            RunAttempt(self.dir),
            proc=str(self.proc),
            kmsg=str(self.kmsg),
            journalctl=str(self.root / "no-journalctl"),
            wtmp=str(self.wtmp),
            suspended=0.0,
        )

    def verdict(self) -> Verdict:
        return judge(self.case())


def changed(case: CaseFile, **facts: Any) -> CaseFile:
    """The case with other facts, each in the record that has it."""
    for name, value in facts.items():
        if name in CaseFile.__dataclass_fields__:
            case = replace(case, **{name: value})
            continue
        parts = ("exit", "limits", "samples", "kernel", "agent", "program")
        (part,) = (part for part in parts if name in getattr(case, part).__dataclass_fields__)
        case = replace(case, **{part: replace(getattr(case, part), **{name: value})})
    return case

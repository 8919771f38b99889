"""A run folder as a long training that died would leave it: an hour, workers, phases, a GPU, events."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

from oomproof.diagnosis.verdict import Change, Command, Gpu, Kill, RankedCause, Remedy, Verdict, Victim, steps
from oomproof.evidence.case_file import Evidence, Missing
from oomproof.machine import processes
from oomproof.recording.run_folders import Run
from oomproof.recording.sqlite_files import TABLES

MIB, GIB = 1 << 20, 1 << 30
END, WALL = 90_000.0, 1_790_000_000.0  # boottime of the end; wall clock at boottime 0
HOSTILE = "<script>window.hacked=1</script><img src=x onerror=window.hacked=2>"


def make_run(
    state: Path,
    run_id: str = "20260921-221500-abc",
    *,
    seconds: int = 3600,
    name: str | None = "nightly",
    argv: list[str] | None = None,
    gpu: bool = True,
    phases: bool = True,
    texts: str = "",
    created: float = WALL + END - 3600,
    **info: Any,
) -> Run:
    """``texts`` is put into every free text of the recording: process and phase names, events."""
    folder = state / "oomproof" / "runs" / run_id
    attempt = folder / "1"
    attempt.mkdir(parents=True)
    words = argv or ["python", "train.py", "--batch", "64", "--workers", "16"]
    run = {
        "schema": 1, "id": run_id, "name": name, "argv": words, "cwd": "/home/ada/nlp", "created": created, "host": "box",
        "boot_id": processes.boot_id(), "version": "0.1.0", "settings": {"limit": 30 * GIB, "margin": 5 * GIB, "floor": GIB},
        "env": {"CUDA_VISIBLE_DEVICES": "0"},
        "code": {"script": "/home/ada/nlp/train.py", "script_sha256": "ab" * 32, "git_commit": "c0ffee" * 6 + "c0ff", "git_dirty": True},
        **info,
    }  # fmt: skip
    started = {
        "boot_id": run["boot_id"],
        "boottime": END - seconds,
        "wall": WALL + END - seconds,
        "job": {"pid": 4067, "start": 6},
        "backend": {"name": "systemd scope", "limit": 30 * GIB},
    }
    ended = {
        "boottime": END,
        "wall": WALL + END,
        "status": 9,
        "code": None,
        "signal": 9,
        "core": False,
        "leftovers": [],
    }
    for path, value in ((folder / "run.json", run), (attempt / "started.json", started), (attempt / "exit.json", ended)):  # fmt: skip
        path.write_text(json.dumps(value))
    (attempt / "output.log").write_text("epoch 1\nstep 117 loss 2.31\n" + texts + "\n")
    (attempt / "actions.jsonl").write_text(
        json.dumps({"action": "warn", "why": "full soon", "by": "guard"}) + "\n"
    )
    (attempt / "keeper.jsonl").write_text("")
    _record(attempt / "recording.sqlite", seconds, gpu, phases, texts)
    (attempt / "verdict.json").write_text(json.dumps(verdict(run_id).to_json()))
    return Run(folder)


def _record(path: Path, seconds: int, gpu: bool, phases: bool, texts: str) -> None:
    db = sqlite3.connect(path)
    db.executescript("PRAGMA journal_mode=WAL;" + TABLES)
    meta = {
        "schema": "1",
        "boot_id": processes.boot_id(),
        "wall_offset": repr(WALL),
        "note": texts or "none",
    }
    db.executemany("INSERT INTO meta VALUES(?,?)", meta.items())
    for second in range(seconds + 1):
        t, done = END - seconds + second, second / seconds
        wave = (second % 120) / 120
        anon = int((8 + 18 * done + 1.5 * wave) * GIB)
        shmem, swap = int((1 + done) * GIB), int(max(0.0, done - 0.8) * 8 * GIB)
        db.execute(
            "INSERT INTO host VALUES(?,?,?,?,?,?,0,0)", (t, 32 * GIB, 31 * GIB - anon, GIB, 4 * GIB, 0)
        )
        db.execute(
            "INSERT INTO job VALUES(?,?,?,?,?,?,?,17,?,?)",
            (t, anon, shmem, GIB // 2, swap, 0, None, GIB, GIB),
        )
        if gpu:
            held = (18 if wave < 0.7 else 21) * GIB
            db.execute("INSERT INTO gpu VALUES(?,0,?,?,?)", (t, held + 2 * GIB, 24 * GIB, held))
        if second % 20 == 0:
            main = int(anon * 0.4)
            db.execute(
                "INSERT INTO process VALUES(?,4067,6,'main',?,?,?,?,?,?)",
                (t, texts or "python3", main, shmem, GIB, swap, main),
            )
            for worker in range(16):
                part = int(anon * 0.6 / 16)
                db.execute(
                    "INSERT INTO process VALUES(?,?,7,'worker','pt_data_worker',?,?,0,0,?)",
                    (t, 4100 + worker, part, shmem, part),
                )
    if phases:
        for number, start in enumerate(range(0, seconds, 120)):
            name = "load" if not number else "eval" if number % 5 == 0 else "train"
            db.execute(
                "INSERT INTO phase (t, name, step) VALUES(?,?,?)",
                (END - seconds + start, name + texts, number * 50 or None),
            )
    events = [(-420, "warn", "grows by 5 MiB/s, full in about 9 min"), (-61, "request", "asked to save and stop"),
              (-55, "alert", "the job's swap grew by 1.1 GiB"), (-0.5, "kill", "no answer within 60 s")]  # fmt: skip
    for before, kind, text in events:
        if -before < seconds:
            db.execute("INSERT INTO event VALUES(?,?,?,?)", (END + before, kind, text + texts, json.dumps({"text": texts})))  # fmt: skip
    db.commit()
    db.close()


def verdict(run: str | None = None, texts: str = "") -> Verdict:
    victim = Victim(4067, "python3" + texts, 99 * GIB, 27 * GIB, 4096, GIB)
    return Verdict(
        run, 1 if run else None, "oom-kill-memcg", "proven", 0.93,
        "out of memory: the kernel killed the job, holding 28.0 GiB; the job's own limit of 30.0 GiB was full" + texts,
        "the kernel's log names the process; it was ended by SIGKILL" + texts,
        steps("halve --workers, or give it a higher limit: ", Command("oomproof run --limit 36G -- python train.py" + texts)),
        phase="train", step=1450, victim=victim,
        gpu=Gpu(0, 24 * GIB, GIB, 2 * GIB, 18 * GIB, 3 * GIB),
        causes=(RankedCause("oom-kill-memcg", 0.93, ("kernel.1",), "dmesg | grep oom-kill" + texts),
                RankedCause("killed-unknown", 0.07, (), "ask who ran kill -9" + texts)),
        evidence=(Evidence("kernel.1", "kernel log" + texts, WALL + END, "Memory cgroup out of memory: Killed process 4067 (python3)" + texts,
                           "the kernel killed this process for its cgroup's limit" + texts),
                  Evidence("text.2", "train.log:88", None, "step 1450/9000 | loss 2.31" + texts, "the last progress")),
        kills=(Kill(51_000.5, "oom-kill-memcg", victim), Kill(WALL + END, "oom-kill-memcg", victim)),
        missing=(Missing("journal", "not in the group adm" + texts, "sudo usermod -aG adm $USER" + texts),),
        remedies=(Remedy("4 loader workers instead of 16" + texts, "measured", 12 * GIB, "python train.py --workers 4" + texts,
                         Change("argument", "--workers", None, "16", "4")),
                  Remedy("halve the batch, double the accumulation", "rule")),
    )  # fmt: skip

"""By hand on a machine with an NVIDIA GPU: `oomproof rehearse` beside real runs of the same unmodified scripts.

    PYTHONPATH=src python tests/gpu/rehearse.py RESULTS.json [--seconds 140]

Needs torch, transformers, lightning, pynvml, psutil. All at once: each script is rehearsed and, beside that, run for real in a folder
of its own; what the rehearsal measured is compared with the real run's peak as the driver counted it. One line per check.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

GIB = 1 << 30
HERE = Path(__file__).parent
JOB = str(HERE / "jobs" / "rehearse_job.py")
OURS = [sys.executable, "-m", "oomproof.cli.main"]
FOLDER = Path(tempfile.mkdtemp(prefix="oomproof-rehearse-gpu-"))
SOURCE = str(HERE.parents[1] / "src")  # the jobs have folders of their own
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": SOURCE + os.pathsep + os.environ.get("PYTHONPATH", ""),
    "XDG_STATE_HOME": str(FOLDER / "state"),
    "PYTHONUNBUFFERED": "1",
    "PYTHONWARNINGS": "ignore",
}
LENGTHS = {"nano": 61, "trainer": 160, "lightning": 64}
BEGUN = time.monotonic()
options = argparse.Namespace()
results: dict[str, Any] = {"checks": {}, "facts": {}}


def left() -> float:
    return max(3.0, options.seconds - (time.monotonic() - BEGUN))


def save() -> None:
    results["seconds"] = round(time.monotonic() - BEGUN, 1)
    Path(options.results).write_text(json.dumps(results, indent=1, default=str))


def check(name: str, good: bool, detail: object = "", facts: object = None) -> bool:
    print(f"{'ok  ' if good else 'FAIL'} {name}: {str(detail)[:900]}", flush=True)
    results["checks"][name] = {"ok": bool(good), "detail": str(detail)[:3000]}
    if not good and facts is not None:
        print("     " + str(facts)[:2500].replace("\n", "\n     "), flush=True)
        results["checks"][name]["facts"] = str(facts)[:20000]
    save()
    return good


def digest(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


class Drill:
    """One rehearsal, in a folder of its own; again with --allow-writes where this machine keeps no writes private, which is said."""

    def __init__(
        self,
        folder: Path,
        command: list[str],
        environment: dict[str, str] | None = None,
        time_limit: str = "60s",
    ) -> None:
        self.folder, self.command, self.allow, self.time_limit = folder, command, False, time_limit
        self.environment = {**ENVIRONMENT, **(environment or {})}
        self.before = digest(folder)
        self.process = self._start()

    def _start(self) -> subprocess.Popen[str]:
        self.began = time.monotonic()
        flags = ["--json", "--time-limit", self.time_limit, *(["--allow-writes"] if self.allow else [])]
        return subprocess.Popen(
            [*OURS, "rehearse", *flags, "--", *self.command],
            env=self.environment,
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def result(self) -> dict[str, Any]:
        try:
            out, errors = self.process.communicate(timeout=left())
        except subprocess.TimeoutExpired:
            self.process.kill()
            out, errors = self.process.communicate()
            return {"refused": "killed by this script: out of time", "errors": errors[-1500:]}
        try:
            value: dict[str, Any] = json.loads(out)
        except ValueError:
            return {"refused": "no JSON", "errors": errors[-1500:], "out": out[-500:]}
        if "--allow-writes" in str(value.get("refused")) and not self.allow:
            results["facts"]["private files"] = value["refused"]
            self.allow, self.process = True, self._start()
            return self.result()
        value["took"], value["errors"] = round(time.monotonic() - self.began, 1), errors[-1500:]
        return value


class Real:
    """The same command as it is, in another folder; what it prints lies beside that."""

    def __init__(
        self, name: str, folder: Path, command: list[str], environment: dict[str, str] | None = None
    ) -> None:
        self.name, self.log = name, folder.parent / f"{name}.log"
        flags = ["--name", name, "--allow-twin", "--no-wait", "-q"]
        with self.log.open("w") as output:
            self.process = subprocess.Popen(
                [*OURS, "run", *flags, "--", *command],
                env={**ENVIRONMENT, **(environment or {})},
                cwd=folder,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def peaks(self, seconds: float | None = None) -> tuple[int, int, int]:
        """(status, bytes on the card, bytes of RAM); ended after so many seconds, if it has not by itself."""
        try:
            status = self.process.wait(left() if seconds is None else max(0.1, seconds))
        except subprocess.TimeoutExpired:
            self.process.terminate()
            status = self.process.wait(40)
        recording = self._recording()
        if recording is None:
            return status, 0, 0
        with sqlite3.connect(recording) as connection:
            card = connection.execute("SELECT max(job_used) FROM gpu").fetchone()[0] or 0
            ram = connection.execute("SELECT max(coalesce(anon,0)+coalesce(shmem,0)) FROM job").fetchone()[0]
        return status, card, ram or 0

    def growth(self) -> list[tuple[float, int]]:
        """Seconds since the first look, and bytes on the card, whenever it had become more."""
        recording, rises = self._recording(), []
        if recording is not None:
            with sqlite3.connect(recording) as connection:
                looks = connection.execute("SELECT t, coalesce(job_used, 0) FROM gpu ORDER BY t").fetchall()
            most = 0
            for at, used in looks:
                if used > most:
                    most = used
                    rises.append((round(at - looks[0][0], 1), used))
        return rises

    def _recording(self) -> Path | None:
        for path in FOLDER.glob("state/oomproof/runs/*/run.json"):
            if json.loads(path.read_text())["name"] == self.name:
                return path.parent / "1" / "recording.sqlite"
        return None


def job(what: str, *words: str) -> list[str]:
    return [sys.executable, JOB, what, *words, "--device", options.device]


def drill(what: str, *words: str) -> Drill:
    folder = FOLDER / f"drill-{what}"
    folder.mkdir()
    (folder / "precious.txt").write_text("mine")
    if what == "nano":
        (folder / "train.bin").write_bytes(b"\1\0" * (1 << 19))
    return Drill(folder, job(what, *words))


def real(what: str) -> Real:
    folder = FOLDER / f"real-{what}"
    folder.mkdir()
    return Real(what, folder, job(what, "--length", str(LENGTHS[what])))


def check_files(what: str, rehearsed: Drill) -> None:
    after = digest(rehearsed.folder)
    check(
        f"{what}: not a file has changed",
        rehearsed.allow or after == rehearsed.before,
        sorted(set(after.items()) ^ set(rehearsed.before.items()))[:5]
        or ("--allow-writes" if rehearsed.allow else "same"),
    )


def compare(what: str, rehearsed: Drill, ran: Real) -> None:
    value = rehearsed.result()
    status, card, ram = ran.peaks()
    phases = {phase["phase"]: phase for phase in value.get("phases", []) if phase["reached"]}
    gpu = (value.get("gpu") or {}).get("peak_bytes") or 0
    wanted = {
        "nano": {"train", "eval", "save"},
        "trainer": {"train", "eval", "generate", "save"},
        "lightning": {"train", "eval", "save"},
    }[what]
    sizes = {
        name: (round((phase["gpu_bytes"] or 0) / GIB, 2), round((phase["host_bytes"] or 0) / GIB, 2))
        for name, phase in phases.items()
    }
    text = f"{gpu / GIB:.2f} GiB rehearsed in {value.get('seconds')} s, {card / GIB:.2f} GiB in the real run; host {((value.get('host') or {}).get('peak_bytes') or 0) / GIB:.2f} and {ram / GIB:.2f}; {sizes}"
    results["facts"][what] = {"rehearsal": value, "real": {"status": status, "card": card, "ram": ram}}
    check(
        f"{what}: within 3 % of the real run's peak on the card",
        status == 0 and bool(card) and abs(gpu / max(1, card) - 1) < 0.03,
        text,
        value,
    )
    check(
        f"{what}: every phase within two minutes",
        wanted <= set(phases) and (value.get("seconds") or 999) < 120 and value.get("status") == 0,
        (sorted(phases), value.get("took"), value.get("seconds")),
        value,
    )
    check_files(what, rehearsed)
    shapes = [batch["shapes"] for batch in value.get("batches", []) if batch["training"]]
    if what == "trainer":
        check("trainer: the longest text is in the batch", bool(shapes) and "1536]" in str(shapes[0]), shapes)
    if what == "lightning":
        check(
            "lightning: the largest image is in the batch",
            bool(shapes) and "512, 512]" in str(shapes[0]),
            shapes,
        )


LOOK = """
import ctypes, glob, os
try:
    driver = ctypes.CDLL("libcuda.so.1")
    print("cuInit", driver.cuInit(0))
except OSError as error:
    print("libcuda", error)
print(sorted(glob.glob("/dev/nvidia*"))[:6], os.path.exists("/proc/driver/nvidia/version"))
print([line.split()[4] for line in open("/proc/self/mountinfo") if "nvidia" in line or "cuda" in line][:12])
"""


def look_at_driver() -> None:
    """With private files and without: what of the driver is there."""
    from oomproof.sizing import private_files  # by PYTHONPATH

    for name, words in (
        ("plain", []),
        ("private", [sys.executable, "-I", "-S", "-B", private_files.__file__, str(FOLDER)]),
    ):
        done = subprocess.run(
            [*words, sys.executable, "-c", LOOK], capture_output=True, text=True, timeout=30
        )
        results["facts"][f"driver, {name}"] = (done.returncode, done.stdout, done.stderr[-300:])
        print(f"     driver, {name}: {results['facts'][f'driver, {name}']}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("results")
    parser.add_argument("--seconds", type=float, default=140)
    parser.add_argument(
        "--only", default="", help="nano, trainer, lightning: one of them, and none of the rest"
    )
    parser.add_argument("--device", default="cuda")  # cpu: to try this script, not oomproof
    parser.parse_args(namespace=options)
    sys.path.insert(0, SOURCE)
    look_at_driver()
    chosen = [what for what in LENGTHS if options.only in ("", what)]
    drills = {what: drill(what, "--length", str(LENGTHS[what])) for what in chosen}
    reals = {what: real(what) for what in chosen}
    if options.only:
        compare(options.only, drills[options.only], reals[options.only])
        return 0
    keeps, narrow = drill("keeps", "--length", "4000"), drill("narrow")
    for what in LENGTHS:
        try:
            compare(what, drills[what], reals[what])
        except Exception as error:
            check(f"{what}: an error of this script", False, f"{type(error).__name__}: {error}")
    value = keeps.result()
    eval_phase: dict[str, Any] = next(
        (phase for phase in value.get("phases", []) if phase["phase"] == "eval"), {}
    )
    good = value.get("status") == 69 and (eval_phase.get("kept_bytes") or 0) > 100 * GIB
    check(
        "keeps: refused beforehand, for its second evaluation",
        good,
        (value.get("status"), eval_phase, value.get("notes")),
        value,
    )
    value = narrow.result()
    oom = value.get("out_of_memory") or {}
    check(
        "narrow: out of memory in its evaluation is told with the phase",
        value.get("status") in (69, 75) and oom.get("phase") == "eval",
        (value.get("status"), oom),
        value,
    )
    return summed_up()


def summed_up() -> int:
    failed = [name for name, entry in results["checks"].items() if not entry["ok"]]
    save()
    print(
        "FAILED: " + "; ".join(failed) if failed else f"all {len(results['checks'])} checks passed",
        f"in {results['seconds']} s",
        flush=True,
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

"""A machine that went down is told from the recordings of all runs alive then. I0 is replayed with its numbers."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from oomproof.cli.main import main
from oomproof.diagnosis.outage_verdict import SystemHistory, judge_outage
from oomproof.evidence.outage_finder import HostPoint, OutageFacts, RunFacts, find_outages, outage_of
from oomproof.evidence.system_kills import SystemKills
from oomproof.recording.run_folders import find
from oomproof.recording.writer import Writer
from oomproof.reports.system_kill_table import outage_text, system_text

GIB, MIB = 1 << 30, 1 << 20
OLD_BOOT, NEW_BOOT = "11111111-2222-3333-4444-555555555555", "99999999-2222-3333-4444-555555555555"
WALL = 1_763_000_000.0  # wall clock at boottime 0 of the old boot
TRAIN, LOADER = ["python", "train.py"], ["python", "load_model.py", "--model", "big"]
_UTMP = struct.Struct("=hxxi32s4s32s256shhiIi16s20s")


def wtmp_record(kind: int, user: bytes, wall: float) -> bytes:
    return _UTMP.pack(kind, 0, b"~", b"~~", user, b"", 0, 0, 0, int(wall), 0, b"", b"")


class Machine:
    """State folder, /proc and wtmp of a machine that has booted anew."""

    def __init__(self, folder: Path) -> None:
        self.runs = folder / "state" / "oomproof" / "runs"
        self.proc, self.wtmp = folder / "proc", folder / "wtmp"
        (self.proc / "sys/kernel/random").mkdir(parents=True)
        (self.proc / "sys/kernel/random/boot_id").write_text(NEW_BOOT + "\n")
        (self.proc / "stat").write_text(f"cpu 1 2 3\nbtime {int(WALL + 2200)}\n")
        (self.proc / "meminfo").write_text("MemTotal: 32505856 kB\nMemAvailable: 29360128 kB\n")
        self.wtmp.write_bytes(wtmp_record(2, b"reboot", WALL + 2200))

    def run(
        self,
        name: str,
        argv: list[str],
        start: float,
        use: list[tuple[float, int]],
        host: list[tuple[float, int, int, int]] = [],  # noqa: B006
        boot: str = OLD_BOOT,
        code: int | None = None,
        limit: int | None = None,
    ) -> Path:
        """``use``: (boottime, bytes); ``host``: (boottime, available, swap free, stalled microseconds)."""
        attempt = self.runs / f"20251113-{name}" / "1"
        attempt.mkdir(parents=True)
        info = {
            "schema": 1,
            "id": f"20251113-{name}",
            "name": name,
            "argv": argv,
            "boot_id": boot,
            "created": WALL + start,
            "settings": {"limit": limit},
            "flags": {"name": name},
        }
        (attempt.parent / "run.json").write_text(json.dumps(info))
        started = {"boot_id": boot, "boottime": start, "wall": WALL + start, "job": {"pid": 77, "start": 1}}
        (attempt / "started.json").write_text(json.dumps(started))
        if code is not None:
            (attempt / "exit.json").write_text(json.dumps({"code": code, "wall": WALL + use[-1][0]}))
        writer = Writer(attempt / "recording.sqlite", {"boot_id": boot, "wall_offset": repr(WALL)})
        for t, held in use:
            writer.put("job", (t, held, 0, 0, 0, 0, None, 1, None, None))
        for t, available, swap_free, stalled in host:
            writer.put("host", (t, 31 * GIB, available, available, 4 * GIB, swap_free, stalled, stalled))
        writer.close()
        return attempt

    def outages(self) -> list[OutageFacts]:
        return find_outages(proc=str(self.proc), wtmp=str(self.wtmp), journalctl="/nonexistent/journalctl")


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return Machine(tmp_path)


def freeze(machine: Machine, history: bool = True) -> None:
    """I0: 31 GB desktop, training at 19 GB, swap full, 11 GB available; then a loader that wants 20 GB."""
    if history:
        machine.run("loader-before", LOADER, 100, [(101.0, 2 * GIB), (130.0, 20 * GIB)], code=0)
    start, end = 2000, 2040
    host = [(float(t), 11 * GIB, 0, 0) for t in range(1900, start)]
    grown = [(float(t), int((t - start) * 10.8 / (end - start) * GIB)) for t in range(start, end + 1)]
    host += [(t, 11 * GIB - held, 0, int((t - start) * 0.6e6)) for t, held in grown]
    machine.run("training", TRAIN, 1000, [(float(t), 19 * GIB) for t in range(1900, end + 1)], host)
    machine.run("loader", LOADER, start, grown)


def test_the_freeze_is_told_with_its_arithmetic(machine: Machine) -> None:
    freeze(machine)
    (facts,) = machine.outages()
    outage = judge_outage(facts)
    assert (outage.kind, outage.certainty) == ("memory", "likely")
    assert outage.shortfall == 9 * GIB
    assert outage.needed is not None and outage.there is not None
    assert abs((outage.needed - outage.there) - 9 * GIB) < MIB, "the sum is the same at the end"
    text = outage_text(outage)
    assert "11.0 GiB available + 0 B of 4.0 GiB swap free = 11.0 GiB there" in text
    assert "it needed 20.0 GiB (the peak of 1 other run of the same command)" in text
    assert "20.0 GiB − 11.0 GiB = short by 9.0 GiB" in text
    again = "oomproof run --name loader --need 20G -- python load_model.py --model big"
    assert f"first training, then loader with what it needs, so that it waits its turn: {again}" in " ".join(
        text.split()
    )
    within = outage_text(outage, beside_verdict=True)
    assert within.startswith("Needed and available") and "Could not be read" not in within
    assert "swap       4.0 GiB → 4.0 GiB used of 4.0 GiB" in text
    assert "pressure   all tasks were stalled 40% of the time" in text
    assert "3 min later" in text, "before and after the reboot"
    assert "205 MiB before, 28.0 GiB now" in text
    names = [share.run.name for share in outage.shares]
    assert names == ["training", "loader"], "the ended run is history, not a suspect"
    assert outage.newest is not None and outage.newest.run.name == "loader"
    assert outage.newest.rate == pytest.approx(10.8 * GIB / 40, rel=0.01)
    assert outage.shares[0].rate == 0


def test_the_story_fits_its_terminal_and_comes_first_where_the_machine_is_asked_about(
    machine: Machine,
) -> None:
    freeze(machine)
    outage = judge_outage(machine.outages()[0])
    for within in (False, True):
        text = outage_text(outage, width=80, beside_verdict=within)
        long = [line.strip() for line in text.split("\n") if len(line) > 80]
        again = ["oomproof run --name loader --need 20G -- python load_model.py --model big"]
        assert long == ([] if within else again), "to copy"
        assert text.count("\nnext     ") == (not within), "what to do, once: the verdict has it"
    report = SystemKills(0.0, sources=("kernel log",))
    assert system_text(SystemHistory(report, (outage,))).startswith(
        "the machine went down under a run once, after 20"
    )
    assert system_text(SystemHistory(report)).startswith("no kill for memory")


def test_a_run_of_it_is_answered_with_what_all_of_them_need(
    machine: Machine, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Above, `why` said to start the loader as before, which fills the machine again, and below, to wait for its turn."""
    freeze(machine)
    again = "oomproof run --name loader --need 20G -- python load_model.py --model big"
    for name in ("training", "loader"):
        page = tmp_path / f"{name}.html"
        assert main(["why", "--html", str(page), name]) == 0
        shown = capsys.readouterr().out
        assert shown.count("\nnext     ") == 1 and shown.count("oomproof run --name") == 1 and again in shown
        assert "no sample" not in shown and "its start" not in shown
        listed = page.read_text().partition("What to do")[2].partition("</section>")[0]
        assert "Copy</button>" in listed and "load_model.py" in listed
        assert main(["why", "--json", name]) == 0
        assert again in json.loads(capsys.readouterr().out)["verdict"]["next"]


def test_the_timeline_is_in_order_and_names_both(machine: Machine) -> None:
    freeze(machine)
    (facts,) = machine.outages()
    times = [at for at, _ in facts.timeline]
    assert times == sorted(times)
    words = [text for _, text in facts.timeline]
    assert words.index("training started") < words.index("loader started")
    assert words[-1] == "the machine booted again"
    assert any("swap was already full (4.0 GiB)" in text for text in words)
    assert any("less than 5%" in text for text in words)


def test_an_unknown_need_is_not_invented(machine: Machine) -> None:
    freeze(machine, history=False)
    (facts,) = machine.outages()
    outage = judge_outage(facts)
    assert outage.shortfall is None and outage.needed is None
    assert outage.kind == "memory"
    assert (
        "no run's need is known; at the last seconds' growth what was there would have lasted"
        in outage_text(outage)
    )


def test_a_run_that_died_is_only_a_lower_bound(machine: Machine) -> None:
    freeze(machine, history=False)
    machine.run("loader-died", LOADER, 100, [(101.0, 2 * GIB), (130.0, 15 * GIB)], code=1)
    outage = judge_outage(machine.outages()[0])
    assert "it needed 15.0 GiB (at least: 1 other run of the same command came so far)" in outage_text(outage)
    assert "short by at least 4.0 GiB" in outage_text(outage)


def test_a_plug_pulled_while_memory_fills_is_left_open(machine: Machine) -> None:
    """Seen in the lab: a quarter left, gone within seconds; nobody can tell a freeze from a power cut then."""
    use = [(float(t), int(max(0, t - 2030) * GIB)) for t in range(1990, 2041)]
    host = [(t, 18 * GIB - held, 0, 0) for t, held in use]
    machine.run("fast", TRAIN, 1000, use, host)
    outage = judge_outage(machine.outages()[0])
    assert (outage.kind, outage.certainty) == ("filling", "possible")
    assert "would have lasted 8.0 s" in outage_text(outage)


def test_a_run_that_stood_still_was_not_asking(machine: Machine) -> None:
    use = [(float(t), min(10, t - 2000) * GIB) for t in range(2000, 2041)]
    machine.run("still", TRAIN, 2000, use, [(t, 20 * GIB, 0, 0) for t, _ in use])
    (share,) = judge_outage(machine.outages()[0]).shares
    assert share.growth == 10 * GIB and share.rate == 0


def test_an_action_is_told_once(machine: Machine) -> None:
    freeze(machine)
    attempt = machine.runs / "20251113-training" / "1"
    warned = {"boottime": 2030.0, "action": "warn", "by": "guard", "why": "1 GiB left"}
    (attempt / "actions.jsonl").write_text(json.dumps(warned) + "\n")
    writer = Writer(attempt / "recording.sqlite", {})
    writer.event(2030.1, "warn", "1 GiB left")
    writer.event(2031.0, "note", "something else")
    writer.close()
    words = [text for _, text in machine.outages()[0].timeline]
    assert sum("1 GiB left" in text for text in words) == 1
    assert any("something else" in text for text in words)


def test_a_limit_is_not_a_need(machine: Machine) -> None:
    """What a run may take is told as that, and makes no shortfall."""
    host = [(float(t), GIB, 0, 0) for t in range(1990, 2041)]
    machine.run("capped", TRAIN, 1000, [(float(t), 5 * GIB) for t in range(1990, 2041)], host, limit=24 * GIB)
    outage = judge_outage(machine.outages()[0])
    assert outage.shortfall is None and outage.needed is None
    assert (outage.kind, outage.certainty) == ("memory", "possible")
    assert "allowed 24.0 GiB by its --limit: up to 19.0 GiB more, with 1.0 GiB there" in outage_text(outage)


@pytest.mark.parametrize(("at", "kind"), [(2039.0, "shutdown"), (1100.0, "memory")])
def test_a_keeper_that_was_told_to_end_means_shutdown_only_at_the_end(
    machine: Machine, at: float, kind: str
) -> None:
    freeze(machine)
    (machine.runs / "20251113-training" / "1" / "keeper.jsonl").write_text(
        json.dumps({"event": "sigterm", "boottime": at}) + "\n"
    )
    assert judge_outage(machine.outages()[0]).kind == kind


def test_a_plain_shutdown_is_not_a_death_of_memory(machine: Machine) -> None:
    freeze(machine)
    machine.wtmp.write_bytes(
        wtmp_record(1, b"shutdown", WALL + 2045) + wtmp_record(2, b"reboot", WALL + 2200)
    )
    (facts,) = machine.outages()
    outage = judge_outage(facts)
    assert (outage.kind, outage.certainty) == ("shutdown", "proven")
    assert "not for lack of memory" in outage_text(outage)


def test_a_power_cut_with_room_is_not_called_memory(machine: Machine) -> None:
    host = [(float(t), 20 * GIB, 4 * GIB, 0) for t in range(1900, 2041)]
    machine.run("calm", TRAIN, 1000, [(float(t), 5 * GIB) for t in range(1900, 2041)], host)
    (facts,) = machine.outages()
    outage = judge_outage(facts)
    assert outage.kind == "not-memory"
    assert "not for memory" in outage_text(outage)


def test_the_loader_that_nobody_managed_is_named(machine: Machine) -> None:
    """A training that held still; what filled the machine was started by hand."""
    times = [float(t) for t in range(1980, 2041)]
    host = [(t, int((11 - (t - 1980) * 0.18) * GIB), 0, 0) for t in times]
    attempt = machine.run("training", TRAIN, 1000, [(t, 19 * GIB) for t in times], host)
    writer = Writer(attempt / "recording.sqlite", {"boot_id": OLD_BOOT, "wall_offset": repr(WALL)})
    for t in times[::5]:
        writer.put("other_job", (t, 812, 190000, 1000, "python load.py", 0, int((t - 1979) * 0.18 * GIB), 0))
        writer.put("other_job", (t, 900, 1000, 1000, "firefox", 0, 2 * GIB, 0))
        writer.put("other_job", (t, 901, 1000, 1000, "python tune.py", 1, 3 * GIB, 0))
    writer.close()
    (facts,) = machine.outages()
    outage = judge_outage(facts)
    assert outage.kind in ("memory", "filling")
    assert outage.culprit is not None and outage.culprit.pid == 812
    text = outage_text(outage)
    assert "python load.py (pid 812" in text and "held 11.0 GiB" in text and "MiB/s" in text
    assert "firefox (pid 900" in text and "tune.py" not in text.partition("Timeline")[0], (
        "a run of ours is above"
    )
    following = next(line for line in text.splitlines() if line.startswith("next"))
    assert "start python load.py with oomproof run as well" in following and "training" in following
    told = outage.to_json()["unmanaged"]
    assert [(job["pid"], job["is_culprit"]) for job in told] == [(812, True), (900, False)]


def test_runs_of_this_boot_or_long_gone_are_no_part_of_it(machine: Machine) -> None:
    freeze(machine)
    machine.run("vanished", TRAIN, 500, [(600.0, GIB)], [(600.0, 20 * GIB, 0, 0)])
    machine.run("now", TRAIN, 2300, [(2301.0, GIB)], boot=NEW_BOOT)
    (facts,) = machine.outages()
    assert {each.name for each in facts.runs} == {"training", "loader"}
    assert facts.runs[0].started_again == WALL + 2300, "the same command ran again after the boot"


def test_the_outage_of_one_run_names_its_neighbours(machine: Machine) -> None:
    freeze(machine)
    options = {"proc": str(machine.proc), "wtmp": str(machine.wtmp), "journalctl": "/nonexistent/journalctl"}
    facts = outage_of(find("training"), **options)
    assert facts is not None and len(facts.runs) == 2
    assert outage_of(find("loader-before"), **options) is None


def test_a_kernel_kill_just_before_is_told_apart() -> None:
    host = tuple(HostPoint(WALL + t, 31 * GIB, GIB, 0, 0) for t in range(60))
    run = RunFacts("r", "train", "python train.py", WALL, 5 * GIB, ((WALL + 59, 5 * GIB),))
    facts = OutageFacts("b", WALL + 59, (run,), host, kernel_kills=((WALL + 30, "the kernel killed python"),))
    outage = judge_outage(facts)
    assert (outage.kind, outage.certainty) == ("after-kernel-kill", "proven")
    assert "the kernel killed python" in outage_text(outage)


@pytest.mark.parametrize("damage", ["recording", "started", "run", "nothing"])
def test_damaged_folders_are_told_as_far_as_they_go(machine: Machine, damage: str) -> None:
    attempt = machine.run("cut", TRAIN, 1000, [(2000.0, GIB)], [(2000.0, GIB, 0, 0)])
    if damage == "recording":
        (attempt / "recording.sqlite").write_bytes(b"\0" * 4096)
    elif damage == "started":
        (attempt / "started.json").write_text('{"boot_id": 7, "wall": "x"')
    elif damage == "run":
        (attempt.parent / "run.json").write_text('{"boot_id": "' + OLD_BOOT + '"}')
    for facts in machine.outages():
        text = outage_text(judge_outage(facts))
        json.dumps(judge_outage(facts).to_json())
        assert "verdict" in text


def test_no_runs_no_outage(machine: Machine) -> None:
    assert machine.outages() == []

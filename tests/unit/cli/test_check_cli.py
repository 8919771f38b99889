from __future__ import annotations

import json
import os
import pty
import resource
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from fake_machine import FakeMachine, freeze_machine

from oomproof.cli import check as verb
from oomproof.cli.main import main
from oomproof.errors import OomproofError
from oomproof.ledger import machine_facts as facts_module
from oomproof.ledger.job_history import JobHistory
from oomproof.ledger.machine_facts import Facts, gather, rows
from oomproof.ledger.risks import first_size
from oomproof.machine.cgroup_limits import Level, Limits
from oomproof.machine.disk_space import DiskSpace
from oomproof.machine.gpu import Gpu, GpuProcess, Gpus
from oomproof.machine.host_identity import HostEnvironment
from oomproof.machine.kernel_settings import Overcommit
from oomproof.machine.swap import Swap, Zram
from oomproof.remedies.system_plan import swap_wanted
from oomproof.reports import check_screen as report

GIB, MIB = 1 << 30, 1 << 20
SENTENCE = "needs 20.0 GiB; 11.2 GiB available, swap full, margin 5.0 GiB: short by 13.8 GiB"


def look(machine: FakeMachine) -> Facts:
    return gather(machine.proc, machine.sys, machine.dev, str(machine.folder))


@pytest.fixture
def freeze(tmp_path: Path) -> Facts:
    return look(freeze_machine(tmp_path))


def text_of(check: report.Check, width: int = 110) -> str:
    return "\n".join("".join(text for text, _ in line) for line in report.screen(check, width))


def slugs(check: report.Check) -> list[str]:
    return [risk.slug for risk in check.risks]


# --- the freeze incident's machine, through the command line


def ask(facts: Facts, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(verb, "gather", lambda: facts)
    return main(["check", *arguments])


def test_the_freeze_machine_answers_with_the_arithmetic(
    freeze: Facts, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ask(freeze, monkeypatch, "--need", "20G") == 75
    shown = capsys.readouterr().out
    assert SENTENCE in shown
    assert "python train.py --epochs 40 --batch-size 64  (pid 4242 +4)" in shown
    assert shown.rstrip().endswith("oomproof check --need 20G")
    assert "\x1b" not in shown


def test_fits_and_never_on_the_freeze_machine(
    freeze: Facts, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ask(freeze, monkeypatch, "--need", "6G") == 0
    assert "fits, 205 MiB to spare" in capsys.readouterr().out
    assert ask(freeze, monkeypatch, "--need", "31G") == 69
    shown = capsys.readouterr().out
    assert shown.startswith("Never: needs 31.0 GiB"), "the answer stands first"
    assert shown.lower().count("never") == 1
    assert shown.rstrip().endswith("oomproof check --need 30G")
    assert ask(freeze, monkeypatch) == 0


def test_json_of_the_freeze_machine(
    freeze: Facts, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ask(freeze, monkeypatch, "--need", "20G", "--json") == 75
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == 1
    assert found["answers"] == [
        {
            "status": "not-now",
            "need_bytes": 20 * GIB,
            "short_by_bytes": found["answers"][0]["short_by_bytes"],
            "sentence": SENTENCE,
        }
    ]
    assert sum(row["bytes"] for row in found["rows"]) == 31 * GIB
    assert [risk["risk"] for risk in found["risks"]] == ["swap-full"]
    assert found["oom_daemons"] == [{"name": "systemd-oomd", "pid": 612}]


def test_the_workers_pages_are_counted_once(freeze: Facts) -> None:
    train = freeze.jobs[0]
    assert len(train.pids) == 5 and not train.exact
    assert 15 * GIB < train.use < 17 * GIB  # the sum of RSS would say 73 GiB


# --- GPUs


def with_card(facts: Facts) -> Facts:
    card = Gpu(0, "NVIDIA GeForce RTX 4090", 24 * GIB, 21 * GIB, 3 * GIB, (GpuProcess(4242, 20 * GIB),))
    return replace(facts, gpus=Gpus((card,)))


def test_gpu_need_and_who_is_there(
    freeze: Facts, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ask(with_card(freeze), monkeypatch, "--need", "4G", "--gpu-need", "12G:0") == 75
    shown = capsys.readouterr().out
    assert "21.0 GiB used of 24.0 GiB, 3.0 GiB free" in shown
    assert "20.0 GiB  python train.py" in shown
    assert "needs 12.0 GiB on GPU 0; 3.0 GiB free of 24.0 GiB: short by 9.0 GiB" in shown
    assert ask(freeze, monkeypatch, "--need", "4G", "--gpu-need", "1G") == 69


def test_on_unified_memory_the_gpus_need_is_ram(freeze: Facts) -> None:
    facts = replace(freeze, gpus=Gpus((Gpu(0, "NVIDIA GB10", None, None, None),)))
    check = verb.examine(facts, 4 * GIB, (16 * GIB, None))
    assert [answer.sentence for answer in check.answers] == [SENTENCE]


def test_bad_gpu_need() -> None:
    assert verb.parse_gpu_need("12G") == (12 * GIB, None)
    with pytest.raises(OomproofError, match="GPU need"):
        verb.parse_gpu_need("12G:a")
    assert main(["check", "--need", "lots"]) == 2


def test_a_silent_driver_is_a_risk_not_a_crash(freeze: Facts) -> None:
    check = verb.examine(replace(freeze, gpus=Gpus(problem="the GPU driver did not answer within 3 s")))
    assert "gpu-silent" in slugs(check)
    assert "did not answer" in text_of(check)


# --- risks: each fires when it should, and the calm machine has none


def calm(facts: Facts) -> Facts:
    return replace(
        facts,
        swaps=(Swap("/swap.img", 8 * GIB, 0, -2),),
        shm=DiskSpace(16 * GIB, 16 * GIB),
        place=HostEnvironment(container=False, wsl=False, root_filesystem="ext4"),
    )


def test_a_calm_machine_has_no_risks(freeze: Facts) -> None:
    assert slugs(verb.examine(calm(freeze))) == []


def test_risks_one_by_one(freeze: Facts) -> None:
    base = calm(freeze)

    def only(**change: object) -> tuple[str, str]:
        (risk,) = verb.examine(replace(base, **change)).risks  # type: ignore[arg-type]
        return risk.slug, risk.command

    poor = Swap("/dev/zram0", 8 * GIB, 2 * GIB, 100, Zram(2 * GIB, 2 * GIB, 2 * GIB))
    good = Swap("/dev/zram0", 8 * GIB, 2 * GIB, 100, Zram(2 * GIB, GIB // 2, GIB // 2))
    assert only(swaps=(*base.swaps, poor)) == ("zram", "sudo swapoff /dev/zram0")
    assert slugs(verb.examine(replace(base, swaps=(*base.swaps, good)))) == []
    assert only(overcommit=Overcommit(1, 0, 0)) == ("overcommit", "sudo sysctl vm.overcommit_memory=0")
    assert only(overcommit=Overcommit(2, 4 * GIB, 3 * GIB))[0] == "overcommit"
    assert only(daemons=()) == ("no-oom-daemon", "oomproof run -- python train.py")
    assert only(swaps=())[0] == "no-swap"
    assert only(shm=DiskSpace(64 * MIB, 64 * MIB)) == ("shm", "sudo mount -o remount,size=15G /dev/shm")
    assert only(shm=DiskSpace(16 * GIB, 64 * MIB)) == ("shm", "ls -lhS /dev/shm | head")
    docker = HostEnvironment(container=True, wsl=False, root_filesystem="overlay")
    assert only(shm=DiskSpace(64 * MIB, 64 * MIB), place=docker)[1].startswith("docker run --shm-size=")
    short = replace(base.memory, available=GIB)
    assert only(memory=short, swaps=(Swap("/swap.img", 8 * GIB, 7 * GIB, -2),)) == (
        "below-margin",
        "kill -TERM 4242",
    )


def test_swap_is_made_as_the_file_system_wants_it(freeze: Facts) -> None:
    base = replace(calm(freeze), swaps=())
    for place, word in (
        (HostEnvironment(False, False, "ext4"), "fallocate -l 4G /swapfile "),
        (HostEnvironment(False, False, "btrfs"), "btrfs filesystem mkswapfile --size 4G /swapfile "),
        (HostEnvironment(False, True, "ext4"), "wsl.exe --shutdown"),
    ):
        (risk,) = verb.examine(replace(base, place=place)).risks
        assert word in risk.command + " "
        assert place.wsl or "oomproof system tells how much" in risk.remedy
    ram = base.memory.total
    assert swap_wanted(ram, 0, JobHistory())[0] == first_size(ram) == 4 * GIB, (
        "check and system tell the same"
    )


def test_zram_is_not_switched_off_where_its_pages_would_not_fit(freeze: Facts) -> None:
    poor = Swap("/dev/zram0", 16 * GIB, 12 * GIB, 100, Zram(12 * GIB, 11 * GIB, 11 * GIB))
    tight = replace(calm(freeze), memory=replace(freeze.memory, available=5 * GIB + 1))
    risks = verb.examine(replace(tight, swaps=(*tight.swaps, poor))).risks
    assert [risk.slug for risk in risks] == ["zram"] and "swapon -p 200 /swapfile" in risks[0].command


def test_memory_high_without_swap(freeze: Facts) -> None:
    limits = Limits((Level("/sys/fs/cgroup/a", "memory.high", 20 * GIB, GIB),))
    check = verb.examine(replace(calm(freeze), swaps=(), limits=limits))
    assert slugs(check) == ["memory-high", "no-swap"]
    assert "memory limit here" in text_of(check)


def test_in_a_container_the_limit_is_the_machine(tmp_path: Path) -> None:
    """700 MiB of a machine of 31 GiB: nothing of what is outside is shown, saved or in the way."""
    machine = freeze_machine(tmp_path)
    machine.process(7000, "python", 3000, argv=("python", "inside.py"), anon=300)
    folder = "sys/fs/cgroup/user.slice/user-1000.slice/session-2.scope"
    machine.write(f"{folder}/memory.max", f"{700 * MIB}\n")
    machine.write(f"{folder}/memory.current", f"{400 * MIB}\n")
    machine.write(
        f"{folder}/memory.stat", f"anon {330 * MIB}\nactive_file {40 * MIB}\ninactive_file 0\nshmem 0\n"
    )
    machine.write(f"{folder}/cgroup.procs", "7000\n")
    check = verb.examine(look(machine), 420 * MIB)
    text = text_of(check)
    assert "340 MiB available of 700 MiB (the limit here; the machine has 31.0 GiB)" in text
    assert "inside.py" in text and "train.py" not in text.partition("Next")[0] and "firefox" not in text
    assert sum(row.size for row in check.rows) == 700 * MIB
    assert "  total  " in text and "31.0 GiB" not in text.partition("Where the RAM is")[2]
    assert [job["pid"] for job in report.to_json(check)["jobs"]] == [7000]
    assert check.next_step[0] == "when pid 7000 (300 MiB) is done, ask again:"


def test_twins_are_named(tmp_path: Path) -> None:
    machine = freeze_machine(tmp_path)
    for pid in (7000, 7001):
        machine.process(pid, "python", 3000, argv=("python", "/srv/daemon.py"), anon=300)
    (risk,) = [risk for risk in verb.examine(look(machine)).risks if risk.slug == "twins"]
    assert risk.command == "kill -TERM 7001" and "7000 and 7001" in risk.why


# --- the screen


@pytest.mark.parametrize("width", [80, 120])
def test_the_screen_keeps_its_width_but_for_commands(freeze: Facts, width: int) -> None:
    check = verb.examine(with_card(freeze), 20 * GIB, (12 * GIB, 0), " --need 20G")
    commands = {risk.command for risk in check.risks}
    for line in text_of(check, width).splitlines():
        assert len(line) <= width or line.strip() in commands
    assert (
        "\n".join("".join(t for t, _ in line) for line in report.screen(check, width, bars=True)).count("█")
        > 10
    )


def test_names_of_strangers_cannot_paint_the_terminal_and_secrets_stay(tmp_path: Path) -> None:
    machine = freeze_machine(tmp_path)
    argv = ("python", "evil\x1b[31m.py", "--api-key", "hunter2hunter2")
    machine.process(9000, "python", 3000, argv=argv, anon=20_000)
    check = verb.examine(look(machine))
    shown = text_of(check) + json.dumps(report.to_json(check))
    assert "\x1b" not in text_of(check) and "hunter2" not in shown


def test_wsl_and_zram_are_explained(freeze: Facts) -> None:
    zram = Swap("/dev/zram0", 8 * GIB, 3 * GIB, 100, Zram(3 * GIB, GIB, GIB))
    place = HostEnvironment(container=False, wsl=True, root_filesystem="ext4")
    shown = text_of(verb.examine(replace(freeze, swaps=(*freeze.swaps, zram), place=place)))
    assert "holds 3.0 GiB in 1.0 GiB of RAM, saves 2.0 GiB; not counted as memory" in shown
    assert "what Windows itself uses is not seen" in shown


def test_rows_say_so_when_they_count_twice(freeze: Facts) -> None:
    moved = replace(freeze.memory, free=20 * GIB)
    found = rows(moved, freeze.unowned, freeze.jobs)
    assert found[-1].size < 0 and "counted twice" in found[-1].name
    assert sum(row.size for row in found) == moved.total


# --- this machine


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-P", "-m", "oomproof.cli.main", "check", *arguments]


def test_the_real_machine_adds_up() -> None:
    done = subprocess.run(command("--json"), capture_output=True, text=True, timeout=240, check=True)
    found = json.loads(done.stdout)
    total = found["memory"]["total_bytes"]
    assert sum(row["bytes"] for row in found["rows"]) == total
    rest = found["rows"][-1]["bytes"]
    assert -0.02 * total < rest < 0.25 * total
    assert done.stderr == ""


def test_the_real_machine_is_quick() -> None:
    """By its own CPU time: other tests run beside this one."""

    def spent() -> float:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    def once() -> float:
        before = spent()
        subprocess.run(command(), stdout=subprocess.DEVNULL, timeout=240, check=True)
        return spent() - before

    assert min(once() for _ in range(3)) < 0.5


def on_a_terminal(environment: dict[str, str]) -> str:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        command(),
        stdout=theirs,
        stdin=theirs,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm-256color", **environment},
    )
    os.close(theirs)
    shown = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # the terminal's other end has closed
            break
        if not part:
            break
        shown += part
    os.close(ours)
    assert process.wait(timeout=120) == 0
    return shown.decode()


def test_colours_on_a_terminal_and_none_with_no_color() -> None:
    assert "\x1b[" in on_a_terminal({"NO_COLOR": ""})
    plain = on_a_terminal({"NO_COLOR": "1"})
    assert "\x1b[" not in plain and "safe to start now" in plain


def test_into_a_pipe_in_an_ascii_locale() -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command(), capture_output=True, env=environment, timeout=240, check=True)
    assert b"\x1b" not in done.stdout and b"Budget" in done.stdout
    margin = next(line for line in done.stdout.split(b"\n") if line.startswith(b"  margin"))
    assert b" -  " in margin and b"?" not in margin, "a minus, as everywhere else"


def test_nothing_but_the_standard_library_is_needed_to_look() -> None:
    """psutil is for macOS; NVML is asked only where a driver is."""
    code = (
        "import sys; sys.modules.update(psutil=None, rich=None, pynvml=None)\n"
        "from oomproof.cli.main import VERBS, main, module_of\n"
        "for verb in VERBS: module_of(verb)\n"
        "sys.exit(main(['check']))"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0 and "safe to start now" in done.stdout


def test_gather_survives_an_empty_machine(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path)
    machine.meminfo(MemTotal=1 << 20, MemFree=1 << 19, MemAvailable=1 << 19)
    facts = look(machine)
    check = verb.examine(facts, GIB)
    assert facts.pressure is None and facts.jobs == () and check.answers[0].status == "never"
    assert text_of(check) and facts_module.budget_of(facts).total == GIB


def test_sixty_columns(freeze: Facts) -> None:
    """Only commands, which are copied, stay whole."""
    check = verb.examine(freeze, 20 * GIB)
    lines = [line for line in text_of(check, 60).splitlines() if not line.startswith("      ")]
    assert max(map(len, lines)) <= 60, max(lines, key=len)

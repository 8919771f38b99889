"""Who acts first, an OOM daemon or oomproof: from the daemons' own settings, in their own files."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_machine import FakeMachine

from oomproof.machine import daemons
from oomproof.machine.daemons import Daemon, Threshold
from oomproof.remedies.system_advice import acts_below, is_first, lines, where
from oomproof.units import GIB, MIB, parse_size

RAM, SWAP, FLOOR = 31 * GIB, 4 * GIB, 31 * GIB * 4 // 100
EARLY = Threshold(Daemon("earlyoom", 7), 10, None, 10, settings_file="/etc/default/earlyoom")


def test_where_a_daemon_acts() -> None:
    oomd = Threshold(
        Daemon("systemd-oomd", 9), swap_percent=10, pressure=("user@.service above 50% for 20s",)
    )
    assert where(oomd, RAM) == (
        "systemd-oomd acts at pressure of user@.service above 50% for 20s, or RAM and swap 90 % used"
    )
    assert where(EARLY, 30 * GIB) == "earlyoom acts below 3.0 GiB available and 10 % of swap"


def test_one_that_is_first_is_told_with_the_setting_that_changes_it() -> None:
    first, hint = lines([EARLY], FLOOR, RAM, SWAP)
    assert first == (
        "earlyoom (pid 7) acts first: below 3.1 GiB available and 10 % of swap it kills a job; "
        "oomproof pauses at 1.2 GiB of RAM and disk swap"
    )
    assert '--floor 3.6G; or in /etc/default/earlyoom: EARLYOOM_ARGS="-m 3 -s 3"; then: sudo' in hint


@pytest.mark.parametrize("swap", [0, SWAP, RAM, 2 * RAM])
@pytest.mark.parametrize("name", ["earlyoom", "nohang"])
def test_both_settings_that_are_offered_do_what_is_said(name: str, swap: int) -> None:
    threshold = Threshold(Daemon(name, 7), 10, None, 10, settings_file="/etc/x")
    assert is_first(threshold, FLOOR, RAM, swap)
    hint = lines([threshold], FLOOR, RAM, swap)[1]
    ours = parse_size(hint.partition("--floor ")[2].partition(";")[0])
    assert not is_first(threshold, ours, RAM, swap) and ours < acts_below(threshold, RAM, swap) + GIB // 4
    percent = int(hint.partition("-m " if name == "earlyoom" else "min_mem = ")[2].split()[0])
    assert not is_first(Threshold(Daemon(name, 7), percent, None, percent), FLOOR, RAM, swap)


def test_a_floor_below_any_setting_of_theirs_leaves_only_ours_to_change() -> None:
    assert (
        lines([EARLY], 60 * MIB, RAM, 0)[1] == "  hint: to pause before it kills: oomproof guard --floor 3.2G"
    )


def test_one_that_comes_after_and_one_that_nothing_is_known_of() -> None:
    late = Threshold(Daemon("earlyoom", 7), 10, 512 * MIB, 10)
    assert lines([late], FLOOR, RAM, 0) == [
        "oomproof acts before earlyoom (pid 7), which kills a job below 512 MiB available and 10 % of swap"
    ]
    assert lines([Threshold(Daemon("bustd", 8))], FLOOR, RAM, 0) == [
        "bustd (pid 8) runs too; where it acts is not known, so it may be first"
    ]
    assert lines([], FLOOR, RAM, 0) == []
    (inside,) = lines([EARLY], 60 * MIB, RAM, 0, limited=True)
    assert "of the whole machine; it does not know of the limit here" in inside and "first" not in inside


def oomd_machine(folder: Path, **files: str) -> FakeMachine:
    machine = FakeMachine(folder)
    machine.process(1, "systemd")
    machine.process(612, "systemd-oomd", argv=("/lib/systemd/systemd-oomd",))
    machine.write("proc/612/comm", "systemd-oomd\n")
    machine.write("proc/1/comm", "systemd\n")
    for path, text in files.items():
        machine.write(path, text)
    return machine


def oomd_lines(machine: FakeMachine, swap: int) -> list[str]:
    thresholds = daemons.thresholds(daemons.running(machine.proc), machine.proc, str(machine.folder))
    return lines(thresholds, FLOOR, RAM, swap)


def test_oomd_as_fedora_sets_it_up(tmp_path: Path) -> None:
    """Pressure on the user's sessions, and swap for everything."""
    files = {
        "usr/lib/systemd/system/user@.service.d/10-oomd-user-service-defaults.conf": "[Service]\n"
        "ManagedOOMMemoryPressure=kill\nManagedOOMMemoryPressureLimit=50%\n",
        "usr/lib/systemd/oomd.conf.d/10-oomd-defaults.conf": "[OOM]\nDefaultMemoryPressureDurationSec=20s\n",
    }
    (only,) = oomd_lines(oomd_machine(tmp_path / "a", **files), SWAP)
    assert only == (
        "oomproof acts before systemd-oomd (pid 612) as a rule: that one goes by pressure of user@.service above 50% for 20s"
    )
    files["usr/lib/systemd/system/-.slice.d/10-oomd-root-slice-defaults.conf"] = (
        "[Slice]\nManagedOOMSwap=kill\n"
    )
    machine = oomd_machine(tmp_path / "b", **files)
    first, hint = oomd_lines(machine, SWAP)
    assert "systemd-oomd (pid 612) acts first: at pressure of user@.service" in first
    assert "or RAM and swap 90 % used it kills a job" in first
    assert "--floor 3.6G; or in /etc/systemd/oomd.conf: SwapUsedLimit=97%; then: sudo systemctl" in hint
    machine.write("etc/systemd/oomd.conf", "[OOM]\nSwapUsedLimit=97%\n")
    assert oomd_lines(machine, SWAP)[0].startswith("oomproof acts before systemd-oomd"), "as was offered"
    assert "as a rule" in oomd_lines(machine, 0)[0], "without swap its rule for swap never holds"


def test_no_proc_no_daemons(tmp_path: Path) -> None:
    assert daemons.running(str(tmp_path / "nowhere")) == ()

"""Applied and undone over folders that look like a machine: also killed at every point in between, refused, full, read-only."""

from __future__ import annotations

import json
import os
import signal
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from fake_machine import FakeMachine

from oomproof.errors import OomproofError
from oomproof.remedies import system_apply, system_manifest
from oomproof.remedies.system_apply import Undone, apply, undo
from oomproof.remedies.system_facts import (
    DELEGATION_FILE,
    SWAP_FILE,
    SWAP_UNIT,
    SYSCTL_FILE,
    Change,
    Delegate,
    Step,
    SwapFile,
    Sysctl,
)
from oomproof.remedies.system_manifest import PATH, UNIT_FILE, Manifest

MIB = 1 << 20


class Machine(FakeMachine):
    """A root folder, and the three programs that would change the kernel's swap."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.root = str(folder)
        self.ran: list[str] = []
        self.meminfo(MemTotal=8 << 20, MemAvailable=4 << 20)
        self.swaps()
        self.write("proc/sys/vm/swappiness", "0\n")
        self.write("proc/sys/kernel/sysrq", "176\n")
        self.write("etc/sysctl.d/README", "theirs\n")
        self.write("etc/systemd/system/other.service", "theirs\n")
        (folder / "var/lib").mkdir(parents=True)

    def run(self, argv: Sequence[str]) -> None:
        self.ran.append(" ".join(argv))
        if argv[:2] == ("systemctl", "start"):
            self.in_use(0)
        elif argv[0] == "swapoff" or argv[:2] == ("systemctl", "stop"):
            self.swaps()

    def in_use(self, kib: int) -> None:
        self.swaps(f"{SWAP_FILE}    file\t\t{1024}\t\t{kib}\t\t-2")

    def tree(self) -> dict[str, str]:
        """Every name with its kind, mode and content."""
        listed = {}
        for path in sorted(self.folder.rglob("*")):
            status = path.lstat()
            content = os.readlink(path) if path.is_symlink() else path.read_text() if path.is_file() else ""
            listed[str(path.relative_to(self.folder))] = f"{stat.filemode(status.st_mode)} {content}"
        return listed

    def apply(self, *steps: Step) -> Manifest:
        return apply(changes(*steps or ALL), self.root, self.proc, self.run)

    def undo(self) -> Undone:
        manifest = system_manifest.load(self.root)
        assert manifest is not None
        return undo(manifest, self.proc, self.run)

    def at(self, path: str) -> Path:
        return self.folder / path.lstrip("/")


NAMES: dict[type, Callable[[Step], str]] = {
    Sysctl: lambda step: getattr(step, "key", ""), SwapFile: lambda _: "swap", Delegate: lambda _: "delegation",
}  # fmt: skip
ALL: tuple[Step, ...] = (Sysctl("vm.swappiness", 60), Sysctl("kernel.sysrq", 240), Delegate(), SwapFile(MIB))


def changes(*steps: Step) -> list[Change]:
    return [Change(NAMES[type(step)](step), "title", "why", "does", "does not", (), step) for step in steps]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setattr(system_apply, "_refuse_full_disk", lambda size, folder: None)  # has a test of its own
    return Machine(tmp_path / "machine")


def test_applied_and_undone_leaves_it_as_it_was(machine: Machine) -> None:
    before = machine.tree()
    machine.apply()
    assert machine.at(SYSCTL_FILE).read_text().splitlines()[1:] == [
        "vm.swappiness = 60",
        "kernel.sysrq = 240",
    ]
    assert Path(machine.proc, "sys/kernel/sysrq").read_text() == "240\n"
    assert "Delegate=pids memory cpu" in machine.at(DELEGATION_FILE).read_text()
    swap_file = machine.at(SWAP_FILE).stat()
    assert (swap_file.st_size, stat.S_IMODE(swap_file.st_mode)) == (MIB, 0o600)
    assert swap_file.st_blocks * 512 >= MIB, "no holes: the kernel would refuse it"
    assert machine.at(UNIT_FILE).exists() and f"systemctl start {SWAP_UNIT}" in machine.ran
    assert stat.S_IMODE(machine.at(PATH).stat().st_mode) == 0o600
    undone = machine.undo()
    assert not undone.refused and f"swap {SWAP_FILE} is off" in undone.done
    assert machine.tree() == before


def test_killed_at_any_point_it_can_be_undone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A child is really killed before and after each of its system calls that change something."""
    monkeypatch.setattr(system_apply, "_refuse_full_disk", lambda size, folder: None)
    killed = 0
    for point in range(200):
        machine = Machine(tmp_path / str(point))
        before = machine.tree()
        child = os.fork()
        if child == 0:
            _die_at(point)
            machine.apply()
            os._exit(0)
        status = os.waitpid(child, 0)[1]
        if os.WIFEXITED(status):
            break
        assert os.WTERMSIG(status) == signal.SIGKILL
        killed += 1
        manifest = system_manifest.load(machine.root)
        if manifest is not None:
            assert not undo(manifest, machine.proc, machine.run).refused
        assert _without_ours(machine.tree()) == _without_ours(before), f"killed at {point}"
    assert killed > 40


def _die_at(point: int) -> None:
    """Counts what changes the disk; at that number the process is gone."""
    seen = 0

    def counted(call: Callable[..., object]) -> Callable[..., object]:
        def wrapper(*args: object, **named: object) -> object:
            nonlocal seen
            seen += 1
            if seen == point + 1:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*args, **named)

        return wrapper

    for name in (
        "open",
        "link",
        "symlink",
        "mkdir",
        "replace",
        "unlink",
        "posix_fallocate",
        "fsync",
        "write",
    ):
        setattr(os, name, counted(getattr(os, name)))


def _without_ours(tree: dict[str, str]) -> dict[str, str]:
    """Before its first record there is at most the manifest's own folder, with a file that was not renamed yet."""
    return {name: text for name, text in tree.items() if not name.startswith("var/lib/oomproof")}


# --- refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [SYSCTL_FILE, DELEGATION_FILE, SWAP_FILE, UNIT_FILE])
def test_a_file_that_is_not_ours_is_never_replaced(machine: Machine, path: str) -> None:
    machine.write(path.lstrip("/"), "theirs\n")
    before = machine.tree()
    with pytest.raises(OomproofError, match="did not write it"):
        machine.apply()
    assert machine.tree() == before and not machine.ran


def test_a_link_in_the_way_is_not_followed(machine: Machine, tmp_path: Path) -> None:
    machine.at(SYSCTL_FILE).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OomproofError, match="did not write it"):
        machine.apply()
    assert not (tmp_path / "elsewhere").exists()


def test_applied_twice_is_refused(machine: Machine) -> None:
    machine.apply(Sysctl("vm.swappiness", 60))
    with pytest.raises(OomproofError, match="in place already"):
        machine.apply(Delegate())


def test_what_fails_takes_back_what_was_done(machine: Machine) -> None:
    before = machine.tree()

    def failing(argv: Sequence[str]) -> None:
        machine.run(argv)
        if argv[0] == "mkswap":
            raise OomproofError("mkswap failed: no such device")

    with pytest.raises(OomproofError, match=r"no such device; nothing was changed"):
        apply(changes(*ALL), machine.root, machine.proc, failing)
    assert machine.tree() == before


def test_a_swap_that_does_not_come_up_is_taken_back(machine: Machine) -> None:
    before = machine.tree()
    with pytest.raises(OomproofError, match="is not in use"):
        apply(changes(SwapFile(MIB)), machine.root, machine.proc, lambda argv: None)
    assert machine.tree() == before


def test_ctrl_c_takes_back_what_was_done(machine: Machine) -> None:
    before = machine.tree()

    def interrupted(argv: Sequence[str]) -> None:
        if argv[0] == "mkswap":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        apply(changes(*ALL), machine.root, machine.proc, interrupted)
    assert machine.tree() == before


def test_a_full_disk(small_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real file system of 1 MiB."""
    machine = Machine(small_disk / "machine")
    before = machine.tree()
    with pytest.raises(OomproofError, match="less than 10 % of the disk free"):
        machine.apply()
    assert machine.tree() == before
    monkeypatch.setattr(system_apply, "_refuse_full_disk", lambda size, folder: None)
    with pytest.raises(OomproofError, match="No space left on device; nothing was changed") as refused:
        machine.apply()
    assert refused.value.hint == "free some space, then try again"
    assert machine.tree() == before


@pytest.mark.skipif(os.geteuid() != 0, reason="a mount is for root")
def test_a_read_only_system(machine: Machine) -> None:
    before = machine.tree()
    os.system(
        f"mount --bind {machine.folder}/etc {machine.folder}/etc && mount -o remount,ro,bind {machine.folder}/etc"
    )
    try:
        with pytest.raises(OomproofError, match="Read-only file system; nothing was changed"):
            machine.apply()
    finally:
        os.system(f"umount {machine.folder}/etc")
    assert machine.tree() == before


# --- undoing what others touched ----------------------------------------------------------------------------


def test_what_was_changed_since_is_left_and_named(machine: Machine) -> None:
    before = machine.tree()
    machine.apply()
    machine.at(SYSCTL_FILE).write_text("vm.swappiness = 7\n")
    undone = machine.undo()
    assert len(undone.refused) == 1 and SYSCTL_FILE in undone.refused[0]
    assert Path(machine.proc, "sys/kernel/sysrq").read_text() == "240\n", "its values stay with it"
    assert not machine.at(SWAP_FILE).exists() and not machine.at(DELEGATION_FILE).exists(), (
        "the rest is undone"
    )
    machine.at(SYSCTL_FILE).unlink()
    assert not machine.undo().refused
    assert machine.tree() == before


def test_a_value_somebody_set_since_stays(machine: Machine) -> None:
    machine.apply(Sysctl("vm.swappiness", 60))
    machine.write("proc/sys/vm/swappiness", "30\n")
    undone = machine.undo()
    assert not undone.refused and any("left as it is" in sentence for sentence in undone.done)
    assert Path(machine.proc, "sys/vm/swappiness").read_text() == "30\n"


def test_another_swap_file_of_that_name_stays(machine: Machine) -> None:
    machine.apply(SwapFile(MIB))
    machine.swaps()
    os.rename(machine.at(SWAP_FILE), machine.at("/kept"))
    machine.at(SWAP_FILE).write_bytes(bytes(MIB))
    assert "was changed since" in machine.undo().refused[0]
    assert machine.at(SWAP_FILE).exists() and machine.at(UNIT_FILE).exists()


def test_swap_goes_only_when_ram_takes_back_what_is_in_it(machine: Machine) -> None:
    machine.apply(SwapFile(MIB))
    machine.in_use(3600 << 10)  # 3.5 GiB; 4 GiB are available, the floor is 0.5 GiB
    undone = machine.undo()
    assert "holds 3.5 GiB" in undone.refused[0] and "RAM can take back only 3.5 GiB" in undone.refused[0]
    assert f"systemctl stop {SWAP_UNIT}" not in machine.ran and machine.at(SWAP_FILE).exists()
    machine.in_use(3000 << 10)
    assert not machine.undo().refused and not machine.at(SWAP_FILE).exists()


def test_removed_by_hand_is_undone_already(machine: Machine) -> None:
    before = machine.tree()
    machine.apply()
    for path in (SYSCTL_FILE, DELEGATION_FILE, UNIT_FILE):
        machine.at(path).unlink()
    assert not machine.undo().refused
    assert machine.tree() == before


# --- the manifest is what root obeys ------------------------------------------------------------------------


@pytest.fixture
def applied(machine: Machine) -> Iterator[Machine]:
    machine.apply(Sysctl("vm.swappiness", 60))
    yield machine


@pytest.mark.parametrize(
    "record",
    [
        {"kind": "file", "path": "/etc/passwd", "sha256": "", "change": "x"},
        {"kind": "file", "path": "/etc/sysctl.d/../passwd", "sha256": "", "change": "x"},
        {"kind": "folder", "path": "/home", "change": "x"},
        {"kind": "swap", "path": "/home/ada/data", "size": 1, "change": "x"},
        {"kind": "sysctl", "key": "kernel.modprobe", "before": 0, "after": 1, "change": "x"},
        {"kind": "sysctl", "key": "vm.swappiness", "before": "60; reboot", "after": 1, "change": "x"},
        {"kind": "run", "command": "reboot", "change": "x"},
        {"kind": "file", "path": SYSCTL_FILE, "change": "x"},
        "reboot",
    ],
)
def test_a_record_we_never_write_is_refused(applied: Machine, record: object) -> None:
    path = applied.at(PATH)
    value = json.loads(path.read_text())
    value["records"].append(record)
    path.write_text(json.dumps(value))
    with pytest.raises(OomproofError, match="damaged, or of another version"):
        system_manifest.load(applied.root)


@pytest.mark.parametrize(
    "text", ["[]", "{", '{"schema": 2, "made": 0, "made_folder": true, "records": []}', "[" * 9000]
)
def test_a_damaged_manifest_is_refused(applied: Machine, text: str) -> None:
    applied.at(PATH).write_text(text)
    with pytest.raises(OomproofError, match="damaged"):
        system_manifest.load(applied.root)


def test_killed_before_the_first_record_nothing_is_left(machine: Machine) -> None:
    before = machine.tree()
    machine.write(PATH.lstrip("/"), "")
    assert machine.undo() == Undone()
    machine.at(PATH).parent.rmdir()
    assert machine.tree() == before


def test_a_manifest_others_may_write_is_refused(applied: Machine) -> None:
    applied.at(PATH).chmod(0o664)
    with pytest.raises(OomproofError, match="another user may write it"):
        system_manifest.load(applied.root)
    applied.at(PATH).chmod(0o600)
    os.rename(applied.at(PATH), applied.at("/real.json"))
    applied.at(PATH).symlink_to(applied.at("/real.json"))
    with pytest.raises(OomproofError):
        system_manifest.load(applied.root)

"""One change of a system setting: what it does and does not, the commands for a person, the steps for `--apply`."""

from __future__ import annotations

from oomproof.records import dataclass

SYSCTL_FILE = "/etc/sysctl.d/99-zz-oomproof.conf"  # after 99-sysctl.conf, which is /etc/sysctl.conf
BY_HAND_SYSCTL_FILE = "/etc/sysctl.d/99-zz-local.conf"
SWAP_FILE = "/swapfile_oomproof"  # no dash in it: systemd's name for it is then its own
SWAP_UNIT = "swapfile_oomproof.swap"
UNIT_FOLDER = "/etc/systemd/system"
DELEGATION_FILE = f"{UNIT_FOLDER}/user@.service.d/50-oomproof.conf"
HEAD = "# Written by `oomproof system --apply`; `oomproof system --undo` takes it away.\n"
DELEGATION_TEXT = f"{HEAD}[Service]\nDelegate=pids memory cpu\n"


@dataclass(frozen=True, slots=True)
class Sysctl:
    key: str
    value: int


@dataclass(frozen=True, slots=True)
class SwapFile:
    size: int
    priority: int | None = None

    @property
    def unit_text(self) -> str:
        priority = f"Priority={self.priority}\n" if self.priority is not None else ""
        return (
            f"{HEAD}[Unit]\nDescription=Swap file of oomproof\n\n"
            # taking swap away reads all of it back: no time is too long for that
            f"[Swap]\nWhat={SWAP_FILE}\n{priority}TimeoutSec=infinity\n\n[Install]\nWantedBy=swap.target\n"
        )


@dataclass(frozen=True, slots=True)
class Delegate:
    """The memory controller for every user's own manager."""


Step = Sysctl | SwapFile | Delegate


@dataclass(frozen=True, slots=True)
class Change:
    name: str  # swap, sysrq…: what --only calls it
    title: str
    why: str
    does: str
    does_not: str
    commands: tuple[str, ...]
    step: Step | None = None  # None: by hand


@dataclass(frozen=True, slots=True)
class Fine:
    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Plan:
    changes: tuple[Change, ...] = ()
    fine: tuple[Fine, ...] = ()
    notes: tuple[str, ...] = ()  # what else the user should know, a sentence each
    blocked: str = ""  # why nothing can be applied here

    @property
    def to_apply(self) -> tuple[Change, ...]:
        return () if self.blocked else tuple(change for change in self.changes if change.step is not None)


def sysctl_command(*settings: Sysctl) -> str:
    lines = "\\n".join(f"{setting.key}={setting.value}" for setting in settings)
    return f"printf '{lines}\\n' | sudo tee -a {BY_HAND_SYSCTL_FILE} && sudo sysctl -p {BY_HAND_SYSCTL_FILE}"

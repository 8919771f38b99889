"""systemd's words: units ended by the kernel's OOM killer, systemd-oomd old and new, signals of main processes."""

from __future__ import annotations

import re

from oomproof.evidence.texts.finding import Finding, GuardFacts, Sizes
from oomproof.evidence.texts.guard_reader import GuardReader
from oomproof.evidence.texts.line_prefixes import Stamped

_CONTAINER = re.compile(r"^(?:docker|cri-containerd|crio|libpod|podman|kubepods|slurmstepd|run-)")


class SystemdOomd(GuardReader):
    anchors = ("due to memory pressure for", "due to memory used", "systemd-oomd killed ", "attempting to kill ", "Killed /",
               "cgroups for killing, top")  # fmt: skip

    _KILLED = re.compile(
        r"(?:Killed|Marked) (?P<cgroup>\S{1,1024}) (?:for killing )?due to memory "
        r"(?P<why>pressure for (?P<watched>\S+) being (?P<share>[\d.]+)%|used \(\d+\) / total \(\d+\) and swap used)"
    )
    _CUT = re.compile(r"^Killed (?P<cgroup>/\S{1,1024})")  # the reason is cut off
    _ATTEMPT = re.compile(r"oomd attempting to kill (?P<pid>\d{1,10}) with KILL")
    _UNIT = re.compile(
        r"(?:(?P<unit>\S{1,512}): |^\W*|[`'\"])systemd-oomd killed (?P<count>\d+) process(?:\(es\)|es)? in this unit"
    )

    def __init__(self, source: str) -> None:
        super().__init__(source)
        self._pids: list[int] = []  # told before the cgroup they belong to
        self._tried: tuple[int, Stamped] | None = None  # where the last of them was told
        # where it lists whom it may kill: it does so as it kills
        self._chose: tuple[int, Stamped] | None = None

    def feed(self, number: int, stamp: Stamped) -> None:
        message = stamp.message
        if "cgroups for killing, top candidates" in message:
            self._chose = (number, stamp)
        elif match := self._ATTEMPT.search(message):
            self._pids = [*self._pids[-255:], int(match["pid"])]
            self._tried = (number, stamp)
        elif match := self._KILLED.search(message):
            cgroup = match["cgroup"]
            pressure = match["why"].startswith("pressure")
            why = f"memory pressure of {match['share']} %" if pressure else "memory and swap were nearly full"
            said = f"systemd-oomd killed {_unit(cgroup)}: {why}"
            self._killed(number, stamp, said, 1.0, cgroup)
        elif (stamp.tag or "").startswith("systemd-oomd") and (match := self._CUT.search(message)):
            said = f"systemd-oomd killed {_unit(match['cgroup'])}; the line is cut before it says why"
            self._killed(number, stamp, said, 0.9, match["cgroup"])
        elif (match := self._UNIT.search(message)) and int(match["count"]):
            unit, count = match["unit"], match["count"]
            last, named = self.last("systemd-oomd"), unit or "this unit"
            if last is not None and _same_unit(last.guard.unit or "", named) and number - last.line < 100:
                return
            said = f"systemd-oomd killed {count} processes of {named} for lack of memory"
            self.add("systemd-oomd", number, stamp, said, 1.0, facts=GuardFacts(unit=unit))

    def _killed(self, number: int, stamp: Stamped, said: str, strength: float, cgroup: str) -> None:
        facts = GuardFacts(unit=_unit(cgroup))
        self.add("systemd-oomd", number, stamp, said, strength, self._victim(), cgroup, facts=facts)

    def _victim(self) -> Sizes | None:
        pids, self._pids = self._pids, []
        return Sizes(pids[-1]) if pids else None

    def finish(self) -> list[Finding]:
        """Signals it sent without saying for which cgroup: the text ends there, or the cgroup was gone by then."""
        if self._tried is not None and self._pids:
            number, stamp = self._tried
            said = f"systemd-oomd sent SIGKILL to pid {self._pids[-1]}; no line says for which cgroup"
            self.add("systemd-oomd", number, stamp, said, 0.9, self._victim())
        if self._chose is not None and not self.found:
            said = "systemd-oomd chose whom to kill; the text ends before it says whom"
            self.add("systemd-oomd", *self._chose, said, 0.75)
        return self.found


def _unit(cgroup: str) -> str:
    return cgroup.rstrip("/").rsplit("/", 1)[-1]


def _same_unit(unit: str, other: str) -> bool:
    """A name may have been shortened by its author with an ellipsis."""
    short = unit.lstrip("….")
    return bool(short) and (other.endswith(short) or unit.endswith(other))


class SystemdUnits(GuardReader):
    """Which kernel kill it was, systemd does not say: the kernel's own lines outrank these."""

    anchors = ("killed by the OOM killer", "kernel OOM killer killed", "oom-kill", "Main process exited, code=",
               "Failed with result", "Control process exited, code=", "dumped core", "terminated abnormally", "Signal: ", "PID: ", "on client request")  # fmt: skip

    _OOM = re.compile(
        r"(?:(?P<unit>\S{1,512}): )?(?:A process of this unit has been killed by the OOM killer"
        r"|The kernel OOM killer killed some processes in this unit|Failed with result 'oom-kill')"
    )
    _RESULT = re.compile(
        r"(?P<unit>\S{1,512}): Failed with result '(?P<result>signal|core-dump|timeout|watchdog)'"
    )
    _STATUS = re.compile(r"\(Result: oom-kill\)|\bResult=oom-kill\b")
    _EXITED = re.compile(
        r"(?P<unit>\S{1,512}): (?:Main|Control) process exited, code=(?P<code>killed|dumped), "
        r"status=(?P<number>\d{1,2})(?:/(?P<name>\w+))?"
    )

    _CORE = re.compile(
        r"Process (?P<pid>\d{1,10}) \((?P<name>.{1,64}?)\) of user \d+ (?:dumped core|terminated abnormally)"
        r"(?: with signal (?P<number>\d+)/)?"
    )
    _ASKED = re.compile(
        r"(?P<unit>\S{1,512}): Sent signal SIG(?P<signal>\w+) to (?:main|control) process (?P<pid>\d{1,10}) "
        r"\((?P<name>.{1,64}?)\) on client request"
    )
    _CORE_SIGNAL = re.compile(r"^Signal: (?P<number>\d{1,2}) \([A-Z]+\)$")
    _CORE_PID = re.compile(r"^PID: (?P<pid>\d{1,10}) \((?P<name>.{1,64})\)$")

    def __init__(self, source: str) -> None:
        super().__init__(source)
        self._core: tuple[int, int, str] | None = None  # line, pid, name of `coredumpctl info`

    def feed(self, number: int, stamp: Stamped) -> None:
        message = stamp.message
        if match := self._CORE.search(message):
            self._dumped(number, stamp, int(match["number"] or 0), int(match["pid"]), match["name"])
        elif match := self._CORE_PID.search(message):
            self._core = (number, int(match["pid"]), match["name"])
        elif match := self._CORE_SIGNAL.search(message):
            if self._core is not None and number - self._core[0] < 20:
                self._dumped(number, stamp, int(match["number"]), self._core[1], self._core[2])
        elif match := self._OOM.search(message):
            self._killed(number, stamp, match["unit"])
        elif match := self._ASKED.search(message):
            self._asked(number, stamp, match)
        elif self._STATUS.search(message):
            self._killed(number, stamp, None)
        elif match := self._EXITED.search(message):
            self._exited(number, stamp, match)
        elif match := self._RESULT.search(message):
            self._failed(number, stamp, match["unit"], match["result"])

    def _killed(self, number: int, stamp: Stamped, unit: str | None) -> None:
        for old in reversed(self.found[-8:]):
            same_time = stamp.time is not None and old.time == stamp.time  # a unit and the units above it
            if old.guard.by == "systemd-oom" and (
                (old.guard.unit == unit and number - old.line < 50) or same_time
            ):
                return
        # "status=9/KILL" of the same unit was this kill
        last = self.last("killed-unknown")
        if last is not None and last.guard.unit == unit and number - last.line < 50:
            self.found.pop()
        inside = unit is not None and _CONTAINER.match(unit) is not None
        cause = "oom-kill-memcg" if inside else "oom-kill-global"
        said = (
            f"systemd says that the kernel's OOM killer killed in {unit or 'this unit'}, not for which limit"
        )
        self.add(cause, number, stamp, said, 0.7, facts=GuardFacts("systemd-oom", unit))

    def _asked(self, number: int, stamp: Stamped, match: re.Match[str]) -> None:
        """`systemctl kill`: somebody's request, not a shortage of memory."""
        signal, name, pid = match["signal"], match["name"], int(match["pid"])
        cause = {"KILL": "killed-unknown", "TERM": "interrupted", "INT": "interrupted"}.get(signal)
        if cause is not None:
            said = f"somebody had systemd send SIG{signal} to {name} (pid {pid}) of {match['unit']}"
            facts = GuardFacts("systemd", match["unit"], "asked")
            self.add(cause, number, stamp, said, 0.8, Sizes(pid, name), facts=facts)

    def _dumped(self, number: int, stamp: Stamped, signal: int, pid: int, name: str) -> None:
        cause = {11: "segfault", 7: "bus-error", 6: "abort"}.get(signal, "other-error")
        what = f"signal {signal}" if signal else "a signal it does not name"
        said = f"systemd-coredump says that {name} (pid {pid}) died of {what}"
        strength = 0.75 if signal else 0.5
        self.add(cause, number, stamp, said, strength, Sizes(pid, name), facts=GuardFacts("systemd"))

    def _failed(self, number: int, stamp: Stamped, unit: str, result: str) -> None:
        """The last line of a unit's end; alone where the lines above it are cut off."""
        if any(old.guard.unit == unit and number - old.line < 50 for old in self.found[-4:]):
            return
        cause, what = {
            "signal": ("killed-unknown", "ended by a signal that this line does not name"),
            "core-dump": ("abort", "ended by a crash that this line does not name"),
        }.get(result, ("interrupted", f"stopped by systemd ({result})"))
        said = f"systemd says that {unit} was {what}"
        self.add(cause, number, stamp, said, 0.5, facts=GuardFacts("systemd", unit))

    def _exited(self, number: int, stamp: Stamped, match: re.Match[str]) -> None:
        unit, signal = match["unit"], int(match["number"])
        for old in self.found[-4:]:
            if old.guard.unit == unit and number - old.line < 50:
                return  # the consequence of what is already told
        cause, what = {
            9: ("killed-unknown", "SIGKILL, and does not say who sent it"),
            11: ("segfault", "a segmentation fault"),
            7: ("bus-error", "a bus error"),
            6: ("abort", "its own abort()"),
        }.get(signal, ("other-error", f"signal {signal}"))
        if signal in (2, 15):
            cause, what = "interrupted", f"signal {signal}: somebody asked it to stop"
        said = f"systemd says that the main process of {unit} ended by {what}"
        self.add(cause, number, stamp, said, 0.55, facts=GuardFacts("systemd", unit))

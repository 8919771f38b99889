"""earlyoom and nohang: daemons that tell of one kill in several lines."""

from __future__ import annotations

import re

from oomproof.evidence.texts.finding import GuardFacts, Sizes
from oomproof.evidence.texts.guard_reader import GuardReader
from oomproof.evidence.texts.line_prefixes import Stamped
from oomproof.records import replace

MIB = 1 << 20


class Earlyoom(GuardReader):
    anchors = (
        "sending SIG", "escalating to SIGKILL", "dryrun", "kill failed: ", "illing process", "ow memory! ", "ow Memory! ", "ut of memory! avail",
    )  # fmt: skip

    # 1.7: … "x": badness 1, VmRSS 2 MiB; newer: … "x": oom_score 1, oom_score_adj 0, VmRSS 2 MiB, cmdline "…"
    _SENDING = re.compile(
        r"sending (?P<signal>SIG\w+) to process (?:(?P<pid>\d{1,10})|[^\w$]{1,5}?)(?: uid \d+)?"
        r' (?:"(?P<name>.{0,64}?)"|\((?P<name_first>[^()$]{1,64})\):)'
        r"(?:: (?:badness|oom_score) .{0,60}?(?:VmRSS (?P<rss>\d+) MiB|$))?"
    )
    _OLD = re.compile(r"Killing process:? (?P<pid>\d{1,10}) (?P<name>\S{1,64})$")
    _OLD_SIGNAL = re.compile(
        r"""illing process (?:(?P<pid>\d{1,10}) "(?P<name>.{0,64}?)"|'(?P<name_first>.{0,64}?)') with signal (?P<number>\d{1,2})"""
        r"""(?:, pid: (?P<pid_last>\d{1,10}))?.{0,40}badness"""
    )
    _OLD_BADNESS = re.compile(
        r"Killing process (?P<pid>\d{1,10}) \((?P<name>[^()\n]{1,64})\) with badness \d"
    )
    _OLD_NAMED = re.compile(r"Killing process: (?P<name>.{1,64}?), pid: (?P<pid>\d{1,10}), badness")

    # who does not end in time was sent it all the same
    _NOT_SENT = re.compile(r"dryrun|kill failed: (?!Timer expired)")

    def __init__(self, source: str) -> None:
        super().__init__(source)
        self._warned = -1000

    def feed(self, number: int, stamp: Stamped) -> None:
        message = stamp.message
        if "ow memory! at" in message.lower() or "ut of memory! avail" in message:
            self._warned = number
        ours = number - self._warned < 20 or (stamp.tag or "").startswith("earlyoom")
        match = (
            self._SENDING.search(message)
            or self._OLD_SIGNAL.search(message)
            or self._OLD_BADNESS.search(message)
        )
        if match is None and ours:
            match = self._OLD.search(message) or self._OLD_NAMED.search(message)
        if match is not None:
            self._sent(number, stamp, match, ours)
        elif last := self.last("earlyoom"):
            if "escalating to SIGKILL" in message:
                self.amend(guard=replace(last.guard, signal="SIGTERM, then SIGKILL"))
            elif ours and self._NOT_SENT.search(message) and number - last.line < 5:
                self.found.pop()  # nothing was sent

    def _sent(self, number: int, stamp: Stamped, match: re.Match[str], ours: bool) -> None:
        groups = match.groupdict()
        told = groups["pid"] or groups.get("pid_last")
        pid = int(told) if told else None  # whoever copied the line may have left it out
        name = groups["name"] or groups.get("name_first")
        signal = groups.get("signal") or ("SIGTERM" if groups.get("number") == "15" else "SIGKILL")
        last = self.last("earlyoom")
        if last is not None and pid is not None and last.pids == (pid,) and number - last.line < 200:
            self.amend(guard=replace(last.guard, signal=f"{last.guard.signal}, then {signal}"))
            return
        facts = GuardFacts(signal=signal, held=int(groups["rss"]) * MIB if groups.get("rss") else None)
        who = f"{name} (pid {pid})" if pid is not None else f"{name}"
        said = f"earlyoom sent {signal} to {who} because memory ran low"
        self.add("earlyoom", number, stamp, said, 1.0 if ours else 0.9, Sizes(pid, name), facts=facts)


class Nohang(GuardReader):
    anchors = ("to the victim", "Victim status", "PID: ", "[ OK ] Sending SIG", "Selected process died before",
               "corrective action", "Vm, MiB:", "Cannot send a signal", "he victim", "Send SIG", "Run the command", "Name:", "Pid:", "name:", "PID:")  # fmt: skip

    _STATUS = re.compile(r"^PID:\s+(?P<pid>\d{1,10}), [Nn]ame: (?P<name>.{1,64}?), ")
    _CACHED = re.compile(r"New victim is cached victim (?P<pid>\d{1,10}) \((?P<name>.{1,64})\)")
    _HIGHEST = re.compile(r"^PID: (?P<pid>\d{1,10}), [Nn]ame: (?P<name>.{1,64}?), badness:")
    _OLDER = re.compile(r"^(?P<key>Name|Pid|PID|name):\s+(?P<value>\S.{0,63})$")
    _RSS = re.compile(r"Vm, MiB:\s+Size: [\d.]+, RSS: (?P<rss>[\d.]+)")
    _ACTION = re.compile(r"Send(?:ing)? (?P<signal>SIG\w+) to the victim")
    _COMMAND = re.compile(r"^Run(?:ning)? the command: (?P<command>.{1,200})$")  # in place of a signal
    _STATISTIC = re.compile(
        r"^(?:\[ OK \] )?Send(?:ing)? (?P<signal>SIG\w+) to (?P<name>.{1,64}): (?P<count>\d+)$"
    )

    def __init__(self, source: str) -> None:
        super().__init__(source)
        self._pid: int | None = None
        self._name: str | None = None
        self._rss: int | None = None
        self._stated = -1000

    def feed(self, number: int, stamp: Stamped) -> None:
        message = stamp.message
        if "Victim status" in message or "corrective action" in message:
            self._stated = number
        match = self._STATUS.search(message) or self._HIGHEST.search(message) or self._CACHED.search(message)
        if match is not None:
            self._pid, self._name = int(match["pid"]), match["name"]
        elif match := self._RSS.search(message):
            self._rss = int(float(match["rss"]) * MIB)
        elif (match := self._OLDER.search(message)) and number - self._stated < 10:
            if match["key"].lower() == "name":
                self._name = match["value"]
            elif match["value"].isdecimal():
                self._pid = int(match["value"])
        elif match := self._ACTION.search(message):
            self._acted(number, stamp, f"sent {match['signal']} to", match["signal"])
        elif match := self._COMMAND.search(message):
            self._acted(number, stamp, f"ran «{match['command']}» against", match["command"])
        elif match := self._STATISTIC.search(message):
            self._statistic(number, stamp, match)
        elif (
            (last := self.last("nohang"))
            and number - last.line < 10
            and ("died before corrective" in message or "Cannot send a signal" in message)
        ):
            self.found.pop()  # nothing was sent

    def _acted(self, number: int, stamp: Stamped, did: str, signal: str) -> None:
        who = f"{self._name or 'a process'}{f' (pid {self._pid})' if self._pid is not None else ''}"
        facts, victim = GuardFacts(signal=signal, held=self._rss), Sizes(self._pid, self._name)
        self.add("nohang", number, stamp, f"nohang {did} {who}: memory ran low", 1.0, victim, facts=facts)
        self._pid = self._name = self._rss = None

    def _statistic(self, number: int, stamp: Stamped, match: re.Match[str]) -> None:
        """nohang's summary after each action; alone it still tells of a kill, without a pid."""
        last = self.last("nohang")
        if last is None:
            said = f"nohang sent {match['signal']} to {match['name']}: memory ran low"
            self.add("nohang", number, stamp, said, 0.9, Sizes(None, match["name"]))
        elif last.victim is not None and last.victim.name is None:
            self.amend(victim=Sizes(last.victim.pid, match["name"]))

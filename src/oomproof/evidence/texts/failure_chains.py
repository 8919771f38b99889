"""A log's failures in chains: a chain ends where the run went on, and has one root, its consequences, and noise."""

from __future__ import annotations

import re
from collections.abc import Sequence

from oomproof.causes import cause_of
from oomproof.evidence.texts import phases
from oomproof.evidence.texts.failures import Hit
from oomproof.evidence.texts.finding import Finding, GpuNumbers
from oomproof.evidence.texts.log_tail import LogTail
from oomproof.evidence.texts.root_failure import first_failure
from oomproof.evidence.texts.tracebacks import Raised
from oomproof.records import replace

# Ordinary lines behind a weak sign that make it no death; fewer behind a shell's complaint about one command of a
# script: if it was the job itself, little comes after it
_WEAK_LINES = 60
_SCRIPT_LINES = 8
_SURE = 0.7
_BUFFER_LINES = 400  # of a log that a program, dying, still had in its buffer of 8 KiB
_KEPT = 200  # findings of one chain kept from its start; as many from its end
_FIRST_EXIT = re.compile(r"exitcode\s*: (-?\d+)")
_SUBPROCESS = re.compile(r"Killing subprocess (\d{1,10})$")
# MPICH and Intel MPI name the rank in the line above the one that says how it ended
_RANK = re.compile(r"\bPID (\d{1,9}) RUNNING AT ")


_USAGE = re.compile(r"^(?:\S{0,200}/)?(?P<script>[\w.-]{1,100}\.py): error: ")
_MUCH = 12 << 10  # characters: one and a half of the buffers that a process may leave behind
_HEAD = 400  # characters of a line
# Python's warnings, and its logging as it is set up without a word
_TO_STDERR = re.compile(
    r"\S{1,300}\.py:\d{1,6}: \w{0,40}Warning: |(?:INFO|WARNING|ERROR|CRITICAL):[\w.]{1,80}:\S"
)
_AT_EXIT = re.compile(
    r"resource_tracker|ResourceWarning|(?i:clean(?:ing|ed)?[ -]?up|shut(?:ting)? ?down|exit|terminat|destroy)"
)
_FROM_ANOTHER = 3  # different lines
_IN_LOADER = "in DataLoader worker process"  # whose loop it was that asked for a batch, a person tells


class FailureChains:
    """``add`` failures in the order of the text, ``close`` at its end."""

    def __init__(self, source: str, tail: LogTail) -> None:
        self._source = source
        self._tail = tail
        self._chains: list[list[Finding]] = [[]]
        self.ordinary = 0  # lines that tell of no failure
        self.ordinary_then = 0  # where the last exception stood
        self._written = 0  # characters of such lines since the last failure
        self._restarted_at = 0  # ``ordinary`` where another run began
        self._advances = 0
        self._finishes = 0
        self._handled = False
        self._first_exit = False  # inside torchrun's "Root Cause" section
        self._wrapped_phase = ""
        self._subprocesses: set[int] = set()  # that a launcher says it ends
        self._rank: int | None = None  # that MPI says is about to be told of
        self._restarted = False  # another run began below the last failure
        self.began = 0  # … at this line
        self._last_hit: tuple[str, str] | None = None
        self._repeats = 0

    @property
    def last(self) -> list[Finding]:
        return self._chains[-1]

    @property
    def current(self) -> list[Finding]:
        """Those of the run that ended last."""
        return [] if self._restarted else self.last

    @property
    def findings(self) -> list[Finding]:
        return [finding for chain in self._chains for finding in chain]

    def went_by(self, lines: int, characters: int) -> None:
        """Lines that tell of no failure."""
        self.ordinary += lines
        self._written += characters

    def notice(self, line: str) -> None:
        """What a launcher tells before it says how a process ended."""
        if (ends := _SUBPROCESS.search(line)) and len(self._subprocesses) < 64:
            self._subprocesses.add(int(ends[1]))
        if rank := _RANK.search(line):
            self._rank = int(rank[1])
        if "Root Cause" in line:
            self._first_exit = True

    def add(self, number: int, text: str, hit: Hit, tag: str = "", raised: Raised | None = None) -> None:
        key = (hit.cause, hit.says)
        if raised is None and key == self._last_hit:
            # a thousand threads' assertions are a few findings, of which the last tells where they end
            self._repeats += 1
        else:
            self._last_hit, self._repeats = key, 0
        again = self._repeats > 3 and raised is None
        if again and self.last and (self.last[-1].cause, self.last[-1].says) == key:
            self.last.pop()
        elif again:
            return
        elif raised is None:
            self.mark(tag)
        elif self._of_another_script(hit, raised):
            self.run_began(number)
            self.close(last=False)
            self._restarted = False
        if hit.kind != "talk":
            self._written = 0
        heard = "summary" if hit.kind == "summary" else "line"
        if raised is not None:
            heard = "exception" if raised.loose else "traceback"
        facts = replace(
            hit.facts,
            kind=hit.kind,
            phase=self._phase(hit, raised),
            ordinary=self.ordinary_then if raised else self.ordinary,
            signs=self._tail.signs.seen,
            heard=hit.facts.heard or heard,
            rank=tag,
            # a launcher logs a rank's end and then ends itself
            ended=raised is not None and raised.ended and (not raised.logged or hit.kind == "wrapper"),
            thread=raised is not None and raised.thread,
        )
        if raised is not None:
            facts = replace(
                facts, exception=raised.type, message=raised.message[:400], chained=raised.chained
            )
        elif self._first_exit and (code := _FIRST_EXIT.search(text)):
            facts = replace(facts, first_exit=int(code[1]))
            self._first_exit = False
        pids = hit.pids or self._told_before(hit, text)
        if len(self.last) >= 2 * _KEPT:
            del self.last[_KEPT]  # the first ones hold the root, the last ones the end
        self.last.append(
            Finding(hit.cause, self._source, number, text[:600], hit.says, hit.strength, gpu=hit.gpu, pids=pids, job=facts)
        )  # fmt: skip

    def _of_another_script(self, hit: Hit, raised: Raised) -> bool:
        """A script whose arguments are wrong ends at once: what another one raises below is not of its death."""
        refused = {usage["script"] for finding in self.last if (usage := _USAGE.match(finding.text))}
        if not refused or hit.kind != "failure" or not raised.frames:
            return False
        only = all(_USAGE.match(finding.text) for finding in self.last)
        return only and raised.frames[0][0].rpartition("/")[2] not in refused

    def _phase(self, hit: Hit, raised: Raised | None) -> str:
        phase = phases.of_frames(raised.frames) if raised else "unknown"
        if hit.cause == "nan" and phase == "eval" and raised and phases.trains(raised.frames):
            phase = "train"  # found when it was scored, made before
        if hit.kind == "wrapper":
            self._wrapped_phase = phase if phase != "unknown" else ""
        elif self._wrapped_phase and phase in ("unknown", "load"):
            phase, self._wrapped_phase = self._wrapped_phase, ""
        return phase

    def _told_before(self, hit: Hit, text: str) -> tuple[int, ...]:
        """MPI names the rank, then its end. deepspeed names the processes it ends and the code that one ended
        with: of one, it is that one's."""
        if hit.kind == "summary" and self._rank is not None:
            rank, self._rank = self._rank, None
            return (rank,)
        alone = hit.kind == "summary" and "return code" in text and len(self._subprocesses) == 1
        return tuple(self._subprocesses) if alone else ()

    def just_failed(self) -> bool:
        return bool(self.last) and self.ordinary - self.last[-1].job.ordinary <= 5

    def forget(self, number: int) -> None:
        """The first piece of a line said less, or something else, than the whole."""
        heard = ("line", "summary")
        first = (
            i for i, finding in enumerate(self.last) if finding.line == number and finding.job.heard in heard
        )
        if (index := next(first, None)) is not None:
            del self.last[index]
            self._last_hit, self._repeats = ("", ""), 0

    def take_back(self, number: int) -> None:
        """The program says that it caught the error above and skipped the batch."""
        chain = self.last
        while chain and number - chain[-1].line <= 3 and chain[-1].cause.endswith("-oom"):
            if chain[-1].job.heard != "line":
                break
            chain.pop()
            self._last_hit, self._repeats = ("", ""), 0

    def mark(self, tag: str = "") -> None:
        """A failure stands here. Where the run had gone on since the last one, a new chain begins."""
        signs = self._tail.signs
        went_on = signs.advances - self._advances >= 2
        if went_on and self._gone(self.last) and not signs.anew:
            went_on = self._survived(self.last)  # else a buffer's rest, and then what follows from the death
        if self.last and (self._restarted or went_on):
            self.close(last=False)
        self._restarted = False
        signs.mark(tag)
        self._advances = signs.advances
        self._finishes = signs.finishes
        self._handled = False

    def handled(self) -> None:
        """The program says that it continues in spite of what it has just printed."""
        self._handled = True

    def serves_on(self) -> None:
        """A server or a pool of workers takes its next task: what one task raised did not end it."""
        if self.last and all(cause_of(finding.cause).generic for finding in self.last):
            self._tail.signs.advances += 2
            self._handled = True

    def run_began(self, number: int) -> None:
        """The log continues with another run. Without a failure of its own it does not take back what is told above."""
        self._restarted, self.began, self._restarted_at = True, number, self.ordinary
        self._last_hit, self._repeats = None, 0

    def overtaken(self) -> None:
        """Whether the log went on for so long below its last failure that another run or another part of the program did.
        A buffer that is emptied late holds less, and what a launcher says of a death is shorter."""
        told = [finding for finding in self.last if finding.job.kind != "talk"]
        if not told or not all(_survivable(finding) or finding.cause == "interrupted" for finding in told):
            return
        inside = all(_survivable(finding) for finding in told)
        began_anew = self._restarted and self.ordinary - self._restarted_at > _WEAK_LINES
        if (inside and (began_anew or self._written > _MUCH)) or self._another_wrote(told[-1]):
            self.began = max(self.began, told[-1].line)
            self._restarted = True
            self.close(last=False)

    def _another_wrote(self, failed: Finding) -> bool:
        """Whether another process wrote what stands below: what goes to stderr waits in no buffer, so a process whose
        exception nobody caught cannot have written it."""
        if not failed.job.ended or failed.job.rank:
            return False
        below = (line[:_HEAD] for number, line in self._tail.recent if number > failed.line)
        said = {line for line in below if _TO_STDERR.match(line) and not _AT_EXIT.search(line)}
        return len(said) >= _FROM_ANOTHER

    def close(self, last: bool) -> None:
        """Give each finding of the chain its role. A chain that the run survived is noise altogether."""
        chain = sorted(self.last, key=lambda finding: finding.line)
        went_on = self._tail.signs.advances - self._advances >= 2 or (self._restarted and not last)
        if went_on and last and self._gone(chain) and not self._survived(chain):
            went_on = False  # what was still in a buffer, another stream, a run that began below
        chosen = None if went_on else first_failure(chain)
        told = [finding for finding in chain if finding.job.kind != "talk"]
        if last and told and all(finding.job.thread for finding in told) and self._came_to_its_end():
            chosen = None
        if chosen is not None and last and self._faded(chain[chosen], told[-1]):
            chosen = None
        self._chains[-1] = [self._with_role(chain, index, chosen) for index in range(len(chain))]
        if not last:
            # what came before the run went on is told, but it is not the death: keep it short
            self._chains[-1] = self._chains[-1][:20]
            if len(self._chains) > 20:
                del self._chains[1]
            self._chains.append([])

    def _gone(self, chain: Sequence[Finding]) -> bool:
        """Whether the process is seen to have ended. One that a signal ended left nothing in a buffer."""
        if any(finding.job.ended for finding in chain):
            return True
        told = [finding for finding in chain if finding.job.kind == "summary" and finding.strength >= _SURE]
        return self._tail.signs.anew and any(cause_of(finding.cause).by_signal for finding in told)

    def _survived(self, chain: Sequence[Finding]) -> bool:
        """Whether an exception that nobody was seen to catch was caught all the same."""
        signs = self._tail.signs
        if self._handled or signs.finishes > self._finishes or signs.complete:
            return True
        return self.ordinary - chain[-1].job.ordinary > _BUFFER_LINES and not signs.anew

    def _came_to_its_end(self) -> bool:
        signs = self._tail.signs
        return signs.complete or signs.finishes > 0

    def _faded(self, finding: Finding, latest: Finding) -> bool:
        """A weak sign far above the end of a log that went on without another word; ``latest`` is the last of its chain."""
        lines = _SCRIPT_LINES if finding.job.goes_on else _WEAK_LINES
        weak = finding.strength < 0.45 or finding.job.heard == "quoted"
        return weak and self.ordinary - latest.job.ordinary > lines

    def _with_role(self, chain: Sequence[Finding], index: int, chosen: int | None) -> Finding:
        finding = chain[index]
        if chosen is None or finding.job.kind == "talk":
            return replace(finding, job=replace(finding.job, role="noise"))
        if index != chosen:
            return replace(finding, job=replace(finding.job, role="consequence"))
        sizes = (other.job.requested for other in chain if other.cause == finding.cause)
        requested = finding.job.requested or next((size for size in sizes if size is not None), None)
        job = replace(
            finding.job, role="root", phase=self._phase_of_root(finding, chain), requested=requested
        )
        return replace(finding, gpu=_with_neighbours(finding, chain), job=job)

    def _phase_of_root(self, finding: Finding, chain: Sequence[Finding]) -> str:
        phase = finding.job.phase
        if phase == "unknown":
            # a kernel's assertion has no frames, the exception that follows from it has
            told = (other.job.phase for other in chain if other.job.kind in ("failure", "wrapper"))
            phase = next((known for known in told if known != "unknown"), "unknown")
        same = [finding, *(other for other in chain if other.cause == finding.cause)]
        for other in same if phase == "unknown" else ():
            if (phase := self._tail.phase_around(other)) != "unknown":
                break
        weak = all(finding.job.heard == "cut" for finding in chain)
        if (phase == "unknown" or (phase == "train" and weak) or _IN_LOADER in finding.text) and (
            self._tail.script_phase != "unknown"
        ):
            phase = self._tail.script_phase
        if (
            phase == "train"
            and weak
            and (above := self._tail.loop_above(finding.line)) in ("eval", "save", "generate")
        ):
            phase = above  # a heading says more than the name of a script
        if phase in ("unknown", "load") and finding.cause == "nan" and not finding.job.exception:
            phase = "train"  # a loss that is no number, and no function that refused one
        return phase


def _survivable(finding: Finding) -> bool:
    """A failure of one part, after which another part or another run may go on: no death of a process from outside."""
    cause = cause_of(finding.cause)
    fatal = (
        cause.memory or cause.by_signal or cause.kill or cause.gpu or cause.from_outside or cause.lost_process
    )
    return not fatal and finding.job.signal is None


def _with_neighbours(finding: Finding, chain: Sequence[Finding]) -> GpuNumbers | None:
    """The sentence that names the figures may be another line of the same failure: "out of memory", then
    "requested N bytes", then "N bytes free, M bytes total"."""
    told = [
        other_finding.gpu
        for other_finding in chain
        if other_finding.cause == finding.cause and other_finding.gpu is not None
    ]
    gpu = finding.gpu
    if gpu is None or gpu.requested is None:
        gpu = next((numbers for numbers in told if numbers.requested is not None), gpu)
    if gpu is None or gpu.total is None:
        card = next((numbers for numbers in told if numbers.total is not None), None)
        if card is not None:
            gpu = replace(gpu, total=card.total, free=card.free) if gpu is not None else card
    return gpu

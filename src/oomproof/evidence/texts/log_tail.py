"""The last lines of a training log and its signs of progress: which phase it was in at a line."""

from __future__ import annotations

import re
from collections import deque
from functools import lru_cache

from oomproof.evidence.texts import phases
from oomproof.evidence.texts import progress as signs
from oomproof.evidence.texts.finding import Finding, Progress
from oomproof.evidence.texts.line_cleaner import clean
from oomproof.evidence.texts.step_blocks import counter_at_end, shape_of, stops_inside
from oomproof.records import dataclass, field, replace

SYSTEM = re.compile(r"^(?:<\d+>)?\[ *\d+\.\d+\]|\bkernel: |^\w{3} [ \d]\d \d\d:\d\d:\d\d \S+ \S+\[\d+\]: ")
_SYSLOG = re.compile(r"\w{3} [ \d]\d \d\d:\d\d:\d\d \S{1,80} \S{1,80}: ")
_HEAD = 2000  # characters of a line that may announce a phase
_AFTER_THE_SIGN = 3  # lines: a loss, a warning, an empty bar
_SAME_AGAIN = 60  # lines: what a loop prints between its signs, a table or a sample
_STILL_THE_LOG = re.compile(r"\d[.:]\d|[=:]\s?-?\d|^[\[{(]|\b(?:warn|WARN|INFO|DEBUG)")
_STEPS_TO_THE_END = 3  # signs of progress: one or two may be what a dying run still had to say
_CODE = 2  # lines: the code, and the marks below it
_STACK = 60  # lines of a stack beside a fatal line


@lru_cache(maxsize=1024)
def _announced(raw: str) -> str:
    """The phase that a line announces. Kept: the same lines stand above each of many failures."""
    text = clean(raw).text
    heading = phases.of_heading(text)
    return heading if heading and signs.read_sign(text) is None else ""  # progress has spoken for itself


@dataclass(slots=True)
class LogTail:
    recent: deque[tuple[int, str]] = field(default_factory=lambda: deque(maxlen=200))
    signs: signs.ProgressTracker = field(default_factory=signs.ProgressTracker)
    script_phase: str = "unknown"

    @property
    def whole(self) -> bool:
        """Whether ``recent`` is all of the text."""
        return bool(self.recent) and self.recent[0][0] <= 1

    @property
    def end(self) -> int:
        """The number of the last line."""
        return self.recent[-1][0] if self.recent else 0

    @property
    def last_written(self) -> int:
        """The number of the last line that says anything."""
        return next((number for number, line in reversed(self.recent) if line.strip()), 0)

    def phase_around(self, finding: Finding) -> str:
        """Where a traceback's frames say nothing: kernels' names, the stack below, the lines above, the error itself."""
        below = [line for number, line in self.recent if number > finding.line][:_STACK]
        above = [line for number, line in self.recent if number < finding.line][-_STACK:]
        for code in reversed(above[-_CODE:]):  # the end of a traceback whose frames are cut off
            if phase := phases.of_call(code.partition("#")[0]):
                return phase
        for stack in (below, above):  # "Aborted (core dumped)" stands below its own
            if (phase := phases.of_stack(clean(line[:600]).text for line in stack)) != "unknown":
                return phase
        if (phase := self.loop_above(finding.line)) != "unknown":
            return phase
        return "load" if finding.cause == "import-error" else "unknown"

    def loop_above(self, number: int) -> str:
        """The last loop or heading above a line."""
        heading_line, heading = self._heading(number)
        last = self.signs.last
        if last.phase != "unknown" and last.line >= heading_line:
            return last.phase
        if last.phase == "unknown" and last.line <= number:
            if heading in ("save", "eval") and 0 < self.signs.bar_began < heading_line < last.line:
                return "train"  # a loop that saves and evaluates on its way
            if heading_line < self.signs.epoch_of_bare_bar():
                return "train"
        return heading or last.phase

    def _heading(self, until: int) -> tuple[int, str]:
        for number, raw in reversed(self.recent):
            if number > until:
                continue
            if SYSTEM.search(raw[:200]) or _SYSLOG.match(raw):
                continue
            if heading := _announced(raw[:_HEAD]):
                return number, heading
        return 0, ""

    def progress(self, root: Finding | None) -> Progress:
        """The last sign of progress, in the phase of the death where that is known."""
        at_end = self._stops_with(self.signs.last.line) and not signs.is_finish(self.signs.last.text)
        last = replace(self.signs.last, at_end=at_end)
        if at_end and last.line == self.last_written:
            last = replace(last, cut_off=stops_inside(line for _, line in self.recent))
        if at_end and last.epochs is not None and self._finished_above(last.line):
            last = replace(last, epochs=None)  # stopped early, and then tested
        if root is not None and root.job.phase != "unknown":
            return replace(last, phase=root.job.phase)
        phase = self.loop_above(self.end)
        counter = counter_at_end(self.recent) if root is None and not at_end else None
        if counter is not None and counter.line >= last.line and self._stops_with(counter.line):
            count = (counter.step, counter.total)
            last = replace(last, step=counter.step, total=counter.total, bar=count, stride=1, at_end=True)
            return replace(last, line=counter.line, text=counter.text[:300], phase=phase)
        line = last.line or (self.end if phase != "unknown" else 0)
        return replace(last, phase=phase, line=line, trained=self.signs.trained)

    def finished_after(self, number: int) -> bool:
        """Below that line a run continues step by step, and says at last that it has finished."""
        steps = 0
        for at, raw in self.recent:
            text = clean(raw[-_HEAD:]).text if at > number else ""
            if text and signs.is_finish(text) and not signs.is_clock(text):
                if steps >= _STEPS_TO_THE_END:
                    return True
            elif text and any(mark in text for mark in signs.ANCHORS):
                steps += signs.read_sign(text) is not None
        return False

    def _finished_above(self, sign: int) -> bool:
        """Whether the run said that it had finished, and told no epoch after that."""
        for number, raw in reversed(self.recent):
            text = clean(raw[:_HEAD]).text if number < sign else ""
            if text and signs.is_finish(text) and not signs.is_clock(text):
                return True
            read = signs.read_sign(text) if "poch" in text else None
            if read is not None and read.epoch is not None:
                return False
        return False

    def _stops_with(self, sign: int) -> bool:
        """Hardly anything stands below the last sign, and nothing that ends a run."""
        below = [line.strip() for number, line in self.recent if number > sign and line.strip()]
        if sign <= 0 or len(below) > _SAME_AGAIN or any(map(signs.is_finish, below)):
            return False
        # a question below an excerpt is not its end
        if len(below) <= _AFTER_THE_SIGN and all(_STILL_THE_LOG.search(line) for line in below):
            return True
        # what stands below the last sign also stood between those before it
        above = {shape_of(line) for number, line in self.recent if number < sign}
        return all(shape_of(line) in above for line in below)

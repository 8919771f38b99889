"""An exception's message while its lines still come in, and what it means once it is whole."""

from __future__ import annotations

import re

from oomproof.evidence.texts.failures import FailureText, Hit, recognise
from oomproof.evidence.texts.line_cleaner import Line
from oomproof.evidence.texts.tracebacks import CHAINS, HEADER, Raised
from oomproof.evidence.texts.wrapped_lines import figures_told
from oomproof.records import dataclass, replace

_LINES = 8
_LONGEST = 2400
_KEPT = 3000
_ENDS = (".", ":", "!", "?")
_OTHERS = ("wandb:", "slurmstepd", "srun:", "terminate called", "Aborted")
_NEXT_POST = re.compile(r".{1,60} · [\w ]{2,20} · \d{4}-\d\d-\d\d|\[turn \d+ by ")  # of a thread
_WRAPPER = re.compile(
    r"Caught (?P<inner>\w+) in (?:DataLoader worker|replica|pin memory|module)|ChildFailedError|ProcessRaisedException|TorchScript interpreter"
    r"|^SystemExit|RemoteTraceback|^subprocess\.CalledProcessError: .{0,2500}non-zero exit status 1\b|^subprocess\.CalledProcessError: Command '(?!.{0,2900}(?:exit status|died with))|RayTaskError\((?P<ray>\w+)\)|^TrainingFailedError"
)
_ECHO_TYPES = (
    "ConnectionResetError", "BrokenPipeError", "EOFError", "ConnectionRefusedError", "ConnectionAbortedError", "Empty", "BrokenProcessPool",
    "CondaError",  # a batch script continues with whatever Python it finds
)  # fmt: skip
_ECHO_WORDS = ("handle is closed", "Bad file descriptor")  # of workers whose parent has gone
_BENIGN = ("StopIteration", "TrialPruned", "GeneratorExit", "SystemExit")
_DEAD = re.compile(r"\bpid[:=] ?(\d{2,9})\b")  # Ray names the dead actor in the lines below its exception


@dataclass(frozen=True, slots=True)
class Message:
    """``text`` is all of it so far, ``last`` the last of its lines, ``taken`` how many came behind the first."""

    number: int
    raised: Raised
    tag: str
    text: str
    last: Line
    taken: int = 0
    lines: tuple[str, ...] = ()  # those behind the first

    def may_go_on(self, line: Line, stripped: str) -> bool:
        if line.tag != self.tag:
            return True  # somebody else's line between
        stop = (
            HEADER in stripped
            or stripped.startswith((*CHAINS, *_OTHERS))
            or line.level != ""
            or "%|" in stripped
            or _NEXT_POST.match(stripped) is not None
        )
        return not stop and self.taken < _LINES and len(self.text) < _LONGEST

    def with_line(self, line: Line, stripped: str, edge: int) -> Message:
        raised = self.raised
        if self.ends_at(edge) and not self.text.endswith(_ENDS):
            rest = f"{' ' * self.last.blank}{line.text}"
            joined = f"{self.text}{rest}"
            if self.text == raised.text:  # nothing but the exception's own line so far
                raised = replace(raised, message=f"{raised.message}{rest}"[:_KEPT])
        else:
            joined = f"{self.text} {stripped}" if stripped else self.text
        lines = (*self.lines, stripped)
        return replace(self, raised=raised, text=joined[:_KEPT], last=line, taken=self.taken + 1, lines=lines)

    def ends_at(self, edge: int) -> bool:
        """Whether its last line was broken at the screen's edge, perhaps inside a word."""
        return 0 < edge == self.last.width

    def meaning(self, library: str) -> Hit | None:
        """None for what is no failure. ``library`` is the one the log has spoken of."""
        raised, name = self.raised, self.raised.type.rpartition(".")[2]
        if "/jax" in raised.files:
            library = "jax"
        elif "tensorflow/" in raised.files:
            library = "tensorflow"
        said = FailureText(raised.text, raised.type, "", raised.files, library)
        if name == "CalledProcessError" and "status" not in raised.text and "died with" not in raised.text:
            said = replace(said, text=self.text)  # a long command: what became of it stands on a later line
        hit = self._recognised(said)
        if hit is None:
            if name in _BENIGN:
                return None
            says = f"{name}: {raised.message}"[:200] if raised.message else name
            hit = Hit("other-error", says, 0.7 if raised.loose else 0.85)
        if hit.cause == "killed-unknown" and not hit.pids and (dead := _DEAD.search(self.text)):
            hit = replace(hit, pids=(int(dead[1]),))
        if raised.survived and name == "KeyboardInterrupt":
            return replace(hit, strength=0.5)  # a finalizer swallowed it, and yet somebody pressed Ctrl-C
        if raised.survived:
            return replace(hit, kind="talk", strength=0.1)
        echo = name in _ECHO_TYPES or raised.message.endswith(_ECHO_WORDS)
        return replace(hit, facts=replace(hit.facts, echo=True)) if echo else hit

    def _recognised(self, said: FailureText) -> Hit | None:
        wrapper = _WRAPPER.search(said.text)
        hit = _wrapped(wrapper, said) if wrapper else recognise(said)
        # rich wraps the sentence, MPS breaks it
        if hit is None or hit.cause.endswith(("-oom", "-memory-error")):
            fuller = self._fullest(said)
            if fuller is not None and (
                fuller.kind == "failure" if hit is None else fuller.cause == hit.cause
            ):
                return fuller
        return hit

    def _fullest(self, said: FailureText) -> Hit | None:
        """A terminal breaks inside words, a mail program between them: the reading with the most figures is right."""
        fullest = recognise(replace(said, text=self.text))
        if fullest is None or fullest.kind != "failure" or not self.lines:
            return fullest
        for glue in (" ", ""):
            whole = glue.join((said.text, *self.lines))[:_KEPT]
            other = recognise(replace(said, text=whole)) if whole != self.text else None
            if other is not None and other.cause == fullest.cause and _told(other) > _told(fullest):
                fullest = other
        return fullest


def _told(hit: Hit) -> int:
    return figures_told(hit) + (hit.facts.requested is not None)


def _wrapped(wrapper: re.Match[str], said: FailureText) -> Hit:
    inner = wrapper["inner"] or wrapper["ray"] or ""
    hit = recognise(FailureText(inner, inner, "", said.files, said.library)) if inner else None
    cause = hit.cause if hit else "other-error"
    return Hit(cause, f"repeats an error of another process ({inner or 'see there'})", 0.4, "wrapper")

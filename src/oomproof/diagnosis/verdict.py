"""A verdict and its parts, as they stand in schema 1 of the design."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args, get_origin, get_type_hints

from oomproof.causes import CAUSES, Cause, cause_of
from oomproof.evidence.case_file import Evidence, Growth, GrowthPlace, KernelKill, Missing
from oomproof.records import dataclass, replace


class Weight(float):
    """A rule's odds for one of its claims, or a share of belief. The scale, by the claims that mark it:

    1000 and more  a direct witness: it outweighs any number of guesses together
     800 to 950    a record of the action, or a mark that only one program leaves
     300 to 700    the kernel's, the program's or its killer's own word for it
     100 to 150    the only reading left, with nothing against it
      15 to 70     one of several readings of the same facts
       1           so that there is always a verdict
    """

    reason: str

    def __new__(cls, odds: float, reason: str) -> Weight:
        weight = super().__new__(cls, odds)
        weight.reason = reason
        return weight


# How far one finding in a text of unknown origin is to be believed, by how the text tells it. Shares, not odds:
# what is left goes to the other causes. Set from published texts that nothing was tuned on (docs/accuracy.md).
TRUST: dict[str, Weight] = {
    "text.system.sure": Weight(0.985, "the kernel's or a guard's own line, with its victim"),
    "text.system.named": Weight(0.95, "a guard's or an engine's own line that names its action"),
    "text.system.likely": Weight(0.85, "an engine's line that allows another reading"),
    "text.system.weak": Weight(0.65, "a number or a word of an engine, no more"),
    "text.traceback": Weight(0.97, "the exception that ends a whole traceback, of a kind that says what it was"),
    "text.traceback.weak": Weight(0.85, "the same, in words that several causes share"),
    "text.exception": Weight(0.95, "an exception's line without its traceback"),
    "text.exception.weak": Weight(0.8, "the same, in words that several causes share"),
    "text.unnamed": Weight(0.88, "an exception whose words name no cause we know: it may name one all the same"),
    "text.line": Weight(0.93, "a library's own line, worded as it prints it when it fails"),
    "text.line.weak": Weight(0.75, "a line that a library also prints where it continues, or that prose also has"),
    "text.summary": Weight(0.93, "a launcher's or a shell's word on how a process ended"),
    "text.summary.weak": Weight(0.7, "an exit code without more"),
    "text.wrapper": Weight(0.8, "only the repetition of an error that stands elsewhere"),
    "text.quoted": Weight(0.75, "an exception inside a sentence: quoted, perhaps from another run"),
    "text.cut": Weight(0.65, "a traceback whose exception is cut off: whatever it was, it raised"),
    "text.end": Weight(0.6, "one of the last lines complains in words nobody taught us"),
    "text.loss": Weight(0.8, "the last loss that was printed is not a number, and no line says that this ended it"),
    "text.nothing.finished": Weight(0.95, "no word of a death, and the run says that it finished"),
    "text.nothing": Weight(0.85, "no word of a death"),
    "text.nothing.alarmed": Weight(0.6, "no known word of a death, but the text speaks of trouble"),
    "text.silent": Weight(0.85, "a training log that stops before its own end, and nobody writes it any more"),
    "text.open": Weight(0.97, "a process has the log open for writing"),
    "text.lively": Weight(0.6, "the log changed minutes ago: a running job, or a fresh copy"),
    "text.nothing.endless": Weight(0.6, "it counts steps without an end: whether there were more nobody can say"),
    "text.joined": Weight(0.6, "a second witness of the same death takes away this share of the doubt"),
    "text.rivals": Weight(0.9, "another failure of its own stands in the same text"),
    "text.sigkill-was-memory": Weight(0.6, "a SIGKILL whose sender nothing names: the odds that the kernel sent it, "
                                      "against all others"),
}  # fmt: skip


def trust(name: str) -> float:
    return TRUST[name]


SCHEMA = 1
Certainty = Literal["proven", "likely", "possible"]
Basis = Literal["measured", "predicted", "rule"]

# evidence that a process of the job died of memory on the way
_LOST = ("counter.memcg_oom_kill", "agent.program-lost")

PHASES = ("load", "train", "eval", "generate", "save", "unknown")


@dataclass(frozen=True, slots=True)
class Victim:
    """``total_vm_bytes`` is address space: kept because the kernel says it, never shown as memory used."""

    pid: int | None  # None: the text names the process and not its number
    name: str | None
    total_vm_bytes: int | None = None
    anon_rss_bytes: int | None = None
    file_rss_bytes: int | None = None
    shmem_rss_bytes: int | None = None

    @property
    def who(self) -> str:
        if self.name is None and self.pid is not None:
            return f"pid {self.pid}"
        return f"{self.name or '?'}{f' (pid {self.pid})' if self.pid is not None else ''}"

    @property
    def held(self) -> int:
        return (self.anon_rss_bytes or 0) + (self.shmem_rss_bytes or 0)

    @classmethod
    def of(cls, kill: KernelKill) -> Victim:
        return cls(kill.pid, kill.name, kill.total_vm, kill.anon_rss, kill.file_rss, kill.shmem_rss)


@dataclass(frozen=True, slots=True)
class Gpu:
    index: int | None
    total_bytes: int | None = None
    free_bytes: int | None = None
    requested_bytes: int | None = None
    allocated_bytes: int | None = None
    reserved_unallocated_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Culprit:
    """The job beside it whose growth filled the machine, as last seen before the end."""

    pid: int
    name: str
    user: str | None
    held_bytes: int
    swap_bytes: int
    grew_bytes: int
    seconds: float
    bytes_per_second: float
    managed: bool = False  # started by oomproof
    run: str | None = None  # ... in that run

    @property
    def called(self) -> str:
        if not self.managed:
            return self.name
        return f"{self.name} of run {self.run}" if self.run else "another run of oomproof"


@dataclass(frozen=True, slots=True)
class Change:
    kind: Literal["argument", "config", "env", "system", "code"]
    key: str
    file: str | None = None
    before: str | None = None
    after: str | None = None

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "file": self.file, "key": self.key, "from": self.before, "to": self.after}


@dataclass(frozen=True, slots=True)
class Remedy:
    """One concrete change. ``basis`` says how we know; a rule of thumb never claims bytes."""

    title: str
    basis: Basis = "rule"
    saves_bytes: int | None = None
    command: str | None = None
    change: Change | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "title": self.title,
            "saves_bytes": self.saves_bytes,
            "basis": self.basis,
            "command": self.command,
            "change": self.change.to_json() if self.change else None,
        }


class Command(str):
    """A line to type: it is shown in one piece and alone on its line."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Step:
    """Something to do next: words, and the command behind them. Steps stand one behind another as one sentence."""

    text: str
    command: str | None = None
    change: Change | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "text": self.text,
            "command": self.command,
            "change": self.change.to_json() if self.change else None,
        }


Steps = tuple[Step, ...]


def steps(*parts: str | Steps) -> Steps:
    """Words, commands and finished steps in the order in which they are read."""
    made, words = [], ""
    for part in parts:
        if isinstance(part, Command):
            made.append(Step(words, str(part)))
            words = ""
        elif isinstance(part, str):
            words += part
        else:
            for step in part:
                made.append(replace(step, text=words + step.text))
                words = ""
    return (*made, Step(words)) if words else tuple(made)


def sentence(following: str | Steps) -> str:
    """The steps as `next` of a verdict has them: texts and commands one behind another."""
    if isinstance(following, str):
        return following
    return "".join(step.text + (step.command or "") for step in following)


@dataclass(frozen=True, slots=True)
class RankedCause:
    cause: str
    probability: float
    evidence: tuple[str, ...]
    test: str


@dataclass(frozen=True, slots=True)
class WeightedCause:
    """One rule's claim. Weights are relative odds; only the judge turns them into probabilities."""

    cause: str
    weight: float
    certainty: Certainty
    headline: str
    why: str
    next: str | Steps  # words, or steps with the commands in them
    evidence: tuple[str, ...] = ()
    test: str = ""  # what would confirm it or rule it out
    victim: Victim | None = None
    gpu: Gpu | None = None
    remedies: tuple[Remedy, ...] = ()
    phase: str = ""  # where the cause was seen, if that is not where the job ended: an error leaves its phase as it travels
    step: int | None = None
    culprit: Culprit | None = None
    readings: tuple[
        RankedCause, ...
    ] = ()  # what may lie behind a cause that only says how it looked; in all 1

    def __post_init__(self) -> None:
        if self.cause not in CAUSES:
            raise ValueError(f"no such cause: {self.cause}")


@dataclass(frozen=True, slots=True)
class Kill:
    time: float | None
    cause: str
    victim: Victim


@dataclass(frozen=True, slots=True)
class Verdict:
    run: str | None
    attempt: int | None
    cause: str
    certainty: Certainty
    probability: float
    headline: str
    why: str
    next_steps: Steps
    phase: str = "unknown"
    step: int | None = None
    victim: Victim | None = None
    gpu: Gpu | None = None
    causes: tuple[RankedCause, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    kills: tuple[Kill, ...] = ()
    missing: tuple[Missing, ...] = ()
    remedies: tuple[Remedy, ...] = ()
    growth: Growth | None = None  # of a death for memory
    culprit: Culprit | None = None

    @property
    def next(self) -> str:
        return sentence(self.next_steps)

    @property
    def kind(self) -> Cause:
        """What the table of causes says of this one."""
        return cause_of(self.cause)

    @property
    def all_well(self) -> bool:
        """It finished, and none of its processes died of memory on the way: by the kernel's log, the job's own counter, or what
        its programs told."""
        counted = any(item.startswith(_LOST) for cause in self.causes[:1] for item in cause.evidence)
        return self.cause == "finished" and self.victim is None and not self.kills and not counted

    def knows_more_than(self, other: Verdict) -> bool:
        """All evidence of the other one, and a source less that could not be read."""
        mine, others = ({item.id for item in verdict.evidence} for verdict in (self, other))
        closed, closed_then = ({gap.source for gap in verdict.missing} for verdict in (self, other))
        return mine >= others and closed < closed_then

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "run": self.run,
            "attempt": self.attempt,
            "verdict": {
                "cause": self.cause,
                "certainty": self.certainty,
                "probability": self.probability,
                "headline": self.headline,
                "why": self.why,
                "next": self.next,
                "next_steps": [step.to_json() for step in self.next_steps],
                "phase": self.phase,
                "step": self.step,
                "victim": plain(self.victim),
                "gpu": plain(self.gpu),
            },
            "causes": [plain(cause) for cause in self.causes],
            "evidence": [plain(item) for item in self.evidence],
            "kills": [
                {"time": kill.time, "cause": kill.cause, "victim": plain(kill.victim)} for kill in self.kills
            ],
            "missing": [plain(source) for source in self.missing],
            "remedies": [remedy.to_json() for remedy in self.remedies],
            "growth": plain(self.growth),
            "culprit": plain(self.culprit),
        }


def plain(record: Any) -> dict[str, Any] | None:
    """A record as JSON sees it; a list in it may be of records."""
    if record is None:
        return None
    fields = ((name, getattr(record, name)) for name in record.__dataclass_fields__)
    return {
        name: [_plain_item(item) for item in value] if isinstance(value, tuple) else value
        for name, value in fields
    }


def _plain_item(item: Any) -> Any:
    return plain(item) if hasattr(item, "__dataclass_fields__") else item


def from_json(value: Mapping[str, Any]) -> Verdict:
    """A verdict as ``verdict.json`` holds it. Raises KeyError, TypeError or ValueError for anything else."""
    head = value["verdict"]
    verdict = Verdict(
        run=value["run"],
        attempt=value["attempt"],
        **{key: head[key] for key in ("cause", "certainty", "probability", "headline", "why")},
        # before 0.15 only the sentence was written
        next_steps=_steps(head),
        phase=head["phase"],
        step=head["step"],
        victim=Victim(**head["victim"]) if head["victim"] else None,
        gpu=Gpu(**head["gpu"]) if head["gpu"] else None,
        causes=tuple(
            RankedCause(cause["cause"], cause["probability"], tuple(cause["evidence"]), cause["test"])
            for cause in value["causes"]
        ),
        evidence=tuple(Evidence(**item) for item in value["evidence"]),
        kills=tuple(Kill(kill["time"], kill["cause"], Victim(**kill["victim"])) for kill in value["kills"]),
        missing=tuple(Missing(**source) for source in value["missing"]),
        remedies=tuple(_remedy(remedy) for remedy in value["remedies"]),
        growth=_growth(value["growth"]) if value["growth"] else None,
        culprit=Culprit(**value["culprit"]) if value["culprit"] else None,
    )
    _check(verdict)
    return verdict


def _check(record: Any) -> None:
    """Raises TypeError where a field holds another type than it says, as a damaged file has it."""
    hints = get_type_hints(type(record))
    for name in record.__dataclass_fields__:
        if not _fits(getattr(record, name), hints[name]):
            raise TypeError(f"{type(record).__name__}.{name} is damaged")


def _fits(value: Any, hint: Any) -> bool:
    if get_origin(hint) is Literal:
        return value in get_args(hint)
    if get_origin(hint) is tuple:
        return isinstance(value, tuple) and all(_fits(element, get_args(hint)[0]) for element in value)
    if get_args(hint):
        return any(_fits(value, option) for option in get_args(hint))
    if hint is float:
        return isinstance(value, int | float) and abs(value) < 1e12  # seconds and shares; also no NaN
    if hasattr(value, "__dataclass_fields__"):
        _check(value)
    return isinstance(value, hint) and (hint is bool or not isinstance(value, bool))


def _growth(value: Mapping[str, Any]) -> Growth:
    return Growth(**{**value, "where": tuple(GrowthPlace(**place) for place in value.get("where", ()))})


def _remedy(value: Mapping[str, Any]) -> Remedy:
    change = _change(value["change"])
    return Remedy(value["title"], value["basis"], value["saves_bytes"], value["command"], change)


def _steps(head: Mapping[str, Any]) -> Steps:
    if "next_steps" not in head:  # an older version wrote only the sentence
        return (Step(head["next"]),)
    return tuple(Step(step["text"], step["command"], _change(step["change"])) for step in head["next_steps"])


def _change(value: Mapping[str, Any] | None) -> Change | None:
    return Change(value["kind"], value["key"], value["file"], value["from"], value["to"]) if value else None

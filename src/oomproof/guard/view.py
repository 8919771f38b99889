"""What the guard decides on: the machine with the jobs in it, what was asked for, what was already done. Plain values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypedDict

from oomproof.leaf.action_kinds import NOT_ITS_GROWTH, NOTHING, ActionKind, ActionReason
from oomproof.records import dataclass, field
from oomproof.units import MIB

STALLED = 0.30  # share of time with every task stalled: swap is thrashing, its free space no longer counts
# Six hours: longer than an evening's training, shorter than a night. Who comes back finds an answer, not a job that
# is still paused. Sooner where something in the job counts the seconds (guard/pause_timeouts.py).
PAUSE_MAX = 6 * 3600.0


@dataclass(frozen=True, slots=True)
class Settings:
    margin: int
    floor: int
    grace: float
    limit: int | None = None  # the job's own limit, when the user set one
    limit_floor: int = 0
    watch_only: bool = False
    protected: bool = False  # never paused; ended for the machine's sake only after every other run
    pause_max: float = PAUSE_MAX  # seconds a pause may last; 0: never pause
    need: int | None = None  # what the job will hold at most, where that is known
    # the same, but never from runs that were ended early: more than this is new
    usual_peak: int | None = None
    pause_unmanaged: bool = True  # a job that was not started by us may be paused before ours is touched
    # An hour: nobody asked us to look after that job, so it does not wait for as long as one that was given to us.
    unmanaged_pause_max: float = 3600.0
    may_end_unmanaged: bool = False  # and ended, where a pause does not help


@dataclass(frozen=True, slots=True)
class JobView:
    """One job at one moment. Rates are bytes per second. Of another guard's job only the first six and the last two are known."""

    name: str  # sorts by age
    use: int
    rate: float = 0.0  # over the last third of a second
    paused: str = ""  # by whom it is paused: guard, hand
    protected: bool = False
    reserved: bool = False  # its need was known when it was let in
    sustained: float = 0.0
    swap: int = 0
    can_push: bool = False  # its cgroup lets us push it out to swap
    pause_limit: float | None = None  # seconds: something in the paused job counts them
    limit_headroom: int | None = None
    peak_headroom: int | None = None
    limit_rate: float | None = None
    lasting: float = 0.0
    time_to_full: float | None = None
    still: bool = False  # it has not grown for 15 seconds
    calm: bool = False  # it has held the same for a minute, and what comes and goes between two looks is counted by its cgroup
    uid: int | None = None  # whose it is; None: the guard's own user's
    pending: int = 0  # of what is reserved for it, bytes that it has yet to take; of others only


JobKey = tuple[int, int]  # pid and start of its first process: names a job for ever


@dataclass(frozen=True, slots=True)
class UnmanagedView:
    """A job that was not started by us: the one that fills the machine, or one that is paused."""

    key: JobKey
    name: str
    use: int
    rate: float = 0.0  # bytes per second, over the last looks
    swap: int = 0
    tie: str = ""  # why it must not be paused
    paused: str = ""  # by whom: guard (this one), other (another guard)
    waited: bool = False  # was paused by another guard, and runs again: it will end, and free what it holds
    uid: int | None = None  # whose it is, where the guard is one for all users


@dataclass(frozen=True, slots=True)
class View:
    """The machine at one moment, with the jobs of this guard and those of others, of which it only knows."""

    t: float
    available: int
    swap_free: int  # on disk only: zram's free space is no memory
    stall: float  # share of the last two seconds in which all tasks waited for memory
    shrink: float  # bytes per second that the machine's headroom loses, over the last third of a second
    drain: float  # the same over five seconds
    jobs: tuple[JobView, ...]
    others: tuple[JobView, ...] = ()  # read only where it matters: see `is_near`
    others_idle: bool = False  # none of the others that run has used any CPU for a long while
    idle_users: frozenset[int] = frozenset()  # the same of each user's, of a guard for all
    unmanaged: tuple[UnmanagedView, ...] = ()  # where it matters, as `others`
    searching: bool = False  # who fills the machine is not known yet, and is about to be


@dataclass(frozen=True, slots=True)
class PolicyInput:
    """One job's moment, with its turn among the others: what its detectors go by. Rates are bytes per second."""

    t: float
    available: int
    swap_free: int  # on disk only: zram's free space is no memory
    stall: float  # share of the last two seconds in which all tasks waited for memory
    use: int
    rate: float  # the job's, over the last third of a second
    sustained: float  # the job's, lasting over 2, 5 and 15 s
    shrink: float  # how fast the machine's headroom shrinks, over the last third of a second
    drain: float = 0.0  # the same over five seconds; asked only near the margin
    limit_headroom: int | None = None
    peak_headroom: int | None = None  # the least ``limit_headroom`` of the last seconds
    limit_rate: float | None = None  # ``rate``, but only what is above all the job held before
    lasting: float = 0.0  # growth that outlasted loading and the first steps, in peaks and lows alike
    time_to_full: float | None = None
    my_turn: bool = True  # newest unprotected run of ours whose end would help; decision 8
    pause_turn: bool = False  # the run of ours whose pause would help
    resume_turn: bool = True  # no older run of ours waits to resume
    running: int = 0  # other live runs of ours that are not paused
    waiting: int = 0  # other live runs of ours that their guards paused
    # jobs that were not started by us are or were paused, or grow and can be: they may free memory
    unmanaged_wait: bool = False
    pending: int = 0  # what the others that run have yet to take of what is reserved for them
    runs_rate: float = 0.0  # bytes per second that those take
    known_rate: float = 0.0  # of that, of those whose need is known and not reached
    searching: bool = False  # who fills the machine is not a run, not known yet, and is about to be
    pauses: int = 0  # how often it was paused so far
    unmanaged_runs: bool = False  # one of those was resumed, and has its turn
    unmanaged_lives: bool = False  # one of those is not paused: it may end and free what it holds
    others_idle: bool = False  # none of those running has used any CPU for a long while
    paused: str = ""  # by whom this job is paused: guard, hand
    swap: int = 0  # the job's own, of ``use``
    can_push: bool = False  # a paused job can be pushed out to disk swap


@dataclass(frozen=True, slots=True)
class ActionHistory:
    """What was already done to a job in this shortage."""

    warned_at: float | None = None
    asked_at: float | None = None
    asked_for: str = ""  # the scope of that request: limit or machine
    term_at: float | None = None
    killed_at: float | None = None
    paused_at: float | None = None  # by us; None when it runs or somebody else paused it
    paused_until: float = 0.0
    resume_headroom: int = 0  # it resumes when this much RAM is available (and what was pushed out since)
    paused_swap: int = 0  # what it had in swap when it was paused
    paused_left: int | None = None  # what the machine had left at the first look after the pause had settled
    for_ours: bool = False  # paused so that another run of ours can finish
    # itself the growth, and paused since jobs that were not started by us may end soon
    for_unmanaged: bool = False
    headroom_since: float | None = None  # since when the headroom to resume has been there
    pauses: int = 0  # how often it was paused
    running: int = 0  # runs that were not paused at the last look, while this job is
    # since when, while it is paused, nobody runs who could free memory for it
    alone_since: float | None = None
    gave_up: bool = False  # pausing did not help in this shortage: no more of it
    paused_elsewhere: float | None = None  # since when another guard has it paused


@dataclass(frozen=True, slots=True)
class JobState:
    """What the policy remembers of one job from look to look."""

    done: ActionHistory = ActionHistory()
    calm_since: float | None = None  # since when nothing calls for action
    unasked_since: float | None = None  # since when nothing calls for the request made for the limit's sake
    waiting: int = 0  # other jobs, runs or not, that were paused at the last look near the margin
    running: int = 0  # other jobs that ran then
    others_changed_at: float = float("-inf")  # when one more of them ran or was paused


class Figures(TypedDict, total=False):
    """The figures behind a reason, in bytes, bytes per second and seconds; without those that play no part in it."""

    held: int  # by the job
    limit: int
    margin: int
    available: int
    swap_free: int
    rate: float
    full_in: float
    waited: float  # since the job was paused
    unanswered: float  # since SIGTERM was sent
    runs: int  # other runs that continue
    culprit: int  # pid of the unmanaged job that grew most
    signal: str  # its name


@dataclass(frozen=True, slots=True)
class Action:
    """What is done to a job and why; `guard.action_text` has the words for it."""

    kind: ActionKind
    reason: ActionReason = ""
    figures: Figures = field(default_factory=Figures)
    scope: Literal["", "limit", "machine"] = ""
    gave_up: bool = False  # a resume, or an end, because no pause helps: the ladder continues
    job: str = ""  # its name in the view
    unmanaged: UnmanagedView | None = None  # the job that is meant, where it was not started by us
    facts: PolicyInput | None = None  # what it was decided on

    @property
    def others_growth(self) -> bool:
        """Whether it is not this job that fills the machine."""
        return self.reason in NOT_ITS_GROWTH


NONE = Action(NOTHING)


def is_near(settings: Settings, available: int, swap_free: int) -> bool:
    """Whether the other jobs matter for this one."""
    return available + swap_free <= settings.margin or available <= settings.floor


def runs_explain(shrink: float, runs: Sequence[JobView]) -> bool:
    """Whether most of what the machine loses is taken by runs: then it is not looked for among the others."""
    return sum(max(0.0, run.rate) for run in runs if not run.paused) >= shrink / 2


def headroom(settings: Settings, machine: View | PolicyInput) -> int:
    """What the machine can still give: swap counts until the machine does nothing but swap."""
    thrashing = machine.stall > STALLED and machine.available <= settings.floor
    return machine.available if thrashing else machine.available + machine.swap_free


def ours(facts: PolicyInput) -> bool:
    """Whether most of the growth is this job's."""
    return facts.rate >= facts.shrink / 2 if facts.shrink > 0 else facts.sustained > 0


def grows(facts: PolicyInput) -> bool:
    """Whether this job has a part in it worth stopping."""
    return facts.rate >= max(MIB, facts.shrink / 4)


def shortage(facts: PolicyInput) -> Figures:
    """The figures of a machine that is short, and of the job."""
    return {"available": facts.available, "swap_free": facts.swap_free, "held": facts.use}

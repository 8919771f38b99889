"""Every setting of `oomproof run`, said once: a field of ``RunSettings`` is a flag of `run`, perhaps of `adopt`, a key of
oomproof.toml, a variable OOMPROOF_NAME, and a value of run.json, from which a later guard has it again.

A new setting is one field here, and the code that acts on it.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oomproof.alerts import receivers
from oomproof.errors import USAGE, OomproofError
from oomproof.guard.view import PAUSE_MAX
from oomproof.recording.secrets import mask_argv, mask_text
from oomproof.records import dataclass, field, replace
from oomproof.settings import PERSONAL, Resolved, resolve
from oomproof.units import GIB, MIB, format_size, parse_duration, parse_gpu_need, parse_size

if TYPE_CHECKING:
    import argparse

GRACE = 30.0  # seconds
CENSUS_LEAST = 10.0  # seconds: a look takes up to 0.3 s of the job's own time
GPU_TURN = 120.0  # seconds: moving 13.6 GiB out and back took ten on an H200
SIZE_FIRST = -1  # --need auto
SMALLEST_SPILL = 256 * MIB  # one layer's activations
SMALLEST_OWN = 512 * MIB  # beside it: PyTorch with CUDA started holds 300 MiB (measured, 2.11)
SMALLEST_LIMIT = 16 * MIB  # Python 3.11 takes about 9 MiB of its own to start, 14 with the usual imports
RELEASE = ("warn", "auto", "always", "never")
# the headings of --help
MEMORY, QUEUE, RETRY, GPU, ALERTS, OUTPUT = "memory", "queue", "retry", "GPU", "alerts", "output"
_MOST_RETRIES = 100


@dataclass(frozen=True, slots=True)
class Flag:
    """How a setting is given, checked and kept."""

    parse: Callable[[Any], Any]  # of a word, or of what a settings file says; raises OomproofError
    metavar: str  # empty: a switch
    help: str  # empty: no flag of the command line
    adopt: str  # the help of `adopt`; empty: not there
    kept: bool  # in run.json
    load: Callable[[Any], Any]  # of what run.json says; raises ValueError or TypeError for what is damaged
    group: str  # under which heading of --help
    many: bool = False  # may be given several times


FLAGS: dict[str, Flag] = {}  # in the order of --help


def truth(value: Any) -> bool:
    return str(value).lower() in ("1", "true", "yes", "on")


def size(value: Any) -> int:
    return parse_size(str(value))


def limit(value: Any) -> int:
    bytes_given = size(value)
    if bytes_given < SMALLEST_LIMIT:
        raise OomproofError(
            f"--limit {value} is {format_size(bytes_given)}: Python cannot even start in that",
            f"give at least {format_size(SMALLEST_LIMIT)}; --limit 2G is 2 GiB",
            USAGE,
        )
    return bytes_given


def _something(size_given: int) -> int:
    if not size_given:
        raise OomproofError("a need of 0 reserves nothing", "leave it out, or give a size", USAGE)
    return size_given


def need(value: Any) -> int:
    return SIZE_FIRST if str(value).lower() == "auto" else _something(size(value))


def gpu_need(value: Any) -> tuple[int, int | None]:
    size_given, card = parse_gpu_need(str(value))
    return _something(size_given), card


def seconds(flag: str) -> Callable[[Any], float]:
    def parse(value: Any) -> float:
        try:
            number = float(value)
        except ValueError:
            number = -1.0
        if not 0 <= number < 1e7:
            raise OomproofError(f"{flag} {value} is not a time", f"give seconds, such as {flag} 60", USAGE)
        return number

    return parse


def priority(value: Any) -> int:
    try:
        number = int(str(value))
    except ValueError:
        number = 1000
    if not -100 <= number <= 100:
        raise OomproofError(
            f"{str(value)!r} is not a priority", "give a whole number from -100 to 100", USAGE
        )
    return number


def exit_code(value: Any) -> int:
    if not (str(value).isdigit() and 0 <= int(value) <= 255):
        raise OomproofError(
            f"--oom-exit-code {value} is not an exit status", "give a number from 0 to 255", USAGE
        )
    return int(value)


def retries(value: Any) -> int:
    if not (str(value).isdecimal() and int(value) <= _MOST_RETRIES):
        raise OomproofError(
            f"--retry {value} is not a number of retries", "give a whole number, such as 3", USAGE
        )
    return int(value)


def words(value: Any) -> list[str]:
    """Of a flag that may be given several times, a list in a settings file, or a variable, as a shell reads it."""
    if isinstance(value, list):
        return [str(word) for word in value]
    try:
        return shlex.split(str(value))
    except ValueError as error:
        raise OomproofError(f"cannot read {value!r}: {error}", "close the quote", USAGE) from error


def names(value: Any) -> list[str]:
    listed = [str(word) for word in value] if isinstance(value, list) else str(value).split(",")
    return [word.strip() for word in listed if word.strip()]


def clock_time(value: Any, now: float | None = None) -> float:
    """Wall seconds of ``22:00`` (the next one) or ``2030-01-31T06:00``."""
    text = str(value)
    now = time.time() if now is None else now
    match = re.fullmatch(r"(\d{1,2}):(\d{2})", text.strip())
    if match and int(match[1]) < 24 and int(match[2]) < 60:
        today = time.localtime(now)
        for day in (0, 1):  # mktime knows when a day has 23 hours
            wanted = (*today[:2], today[2] + day, int(match[1]), int(match[2]), 0, 0, 0, -1)
            if (moment := time.mktime(wanted)) >= now:
                return moment
    with contextlib.suppress(ValueError):
        from datetime import datetime

        return datetime.fromisoformat(text.strip()).timestamp()
    raise OomproofError(f"cannot read {text!r} as a time of day", "write 22:00 or 2030-01-31T06:00", USAGE)


def signal_number(value: Any) -> int:
    name = str(value).upper().removeprefix("SIG")
    number = int(name) if name.isdigit() else getattr(signal, f"SIG{name}", None)
    if not isinstance(number, int) or not 0 < number < 65 or number in (signal.SIGKILL, signal.SIGSTOP):
        raise OomproofError(
            f"--stop-signal {value}: no signal a job can answer", "name one: --stop-signal USR1", USAGE
        )
    return int(number)


def release(value: Any) -> str:
    policy = str(value).lower()
    if policy not in RELEASE:
        raise OomproofError(f"--release {value} is not known", f"give one of {', '.join(RELEASE)}", USAGE)
    return policy


def census_time(value: Any) -> float:
    duration = parse_duration(str(value))
    if duration < CENSUS_LEAST:
        raise OomproofError(
            f"--census {value} is too often", f"give at least {CENSUS_LEAST:g}s; now: oomproof inspect", USAGE
        )
    return duration


def gpu_limits(value: Any) -> list[list[int | None]]:
    """[[bytes, GPU or None for all], …] of ``14G`` or ``14G:0,20G:1``; a list of such in a settings file."""
    words = [str(word) for word in value] if isinstance(value, list) else str(value).split(",")
    limits: list[list[int | None]] = []
    for word in words:
        text, colon, index = word.strip().partition(":")
        held = parse_size(text)
        if (colon and not index.isdigit()) or held < GIB:
            raise OomproofError(
                f"--gpu-limit {word}: give at least 1G, and the GPU as a number",
                "--gpu-limit 14G for every GPU, --gpu-limit 14G:0 for the first (CUDA itself takes about 0.75 GiB)",
                USAGE,
            )
        limits.append([held, int(index) if colon else None])
    return limits


def spill(value: Any) -> int:
    bytes_given = size(value)
    if bytes_given < SMALLEST_SPILL:
        raise OomproofError(
            f"--spill {value} is {format_size(bytes_given)}: no batch fits into that",
            f"give at least {format_size(SMALLEST_SPILL)}; --spill 8G is 8 GiB",
            USAGE,
        )
    return bytes_given


def path(value: Any) -> Path | None:
    return Path(value).absolute() if value else None


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(value)
    return value


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(value)
    return value


def _list(value: Any) -> list[Any]:
    return list(value)


def flag(
    parse: Callable[[Any], Any],
    metavar: str,
    help: str,
    *,
    default: Any = None,
    adopt: str = "",
    load: Callable[[Any], Any] | None = None,
    group: str = MEMORY,
    many: bool = False,
) -> Any:
    """``load``: it stands in run.json, and is read from there by this."""
    made = field(default_factory=list) if default == [] else field(default=default)
    declared = Flag(parse, metavar, help, adopt, load is not None, load or _whole, group, many)
    _DECLARED.append((made, declared))
    return made


_DECLARED: list[tuple[Any, Flag]] = []
_STOP_FILE = "a file the job already watches: created to ask it to save and stop"
_ALERT = "tell when the job holds more than this"
_ALERT_GPU = "tell when the job holds more than this of GPU memory"
_ON_ALERT = "run this line of shell at every alert; what it is about: OOMPROOF_ALERT_*, and JSON on its standard input"
_ON_END = "run this line of shell when the job has ended, however it ended"
_DESKTOP = "show alerts on the desktop, and the end of a long run"
_WEBHOOK = "send alerts there, and the end: Slack, Discord, ntfy, or JSON to any other ([slack:|discord:|ntfy:|json:]URL)"
_MAIL = "mail alerts there by sendmail, and the end"
_STOP_SIGNAL = "a signal on which the job saves and stops, such as USR1"


# fmt: off
@dataclass
class RunSettings:
    """What the user asked for, checked; None where the machine or the history decides."""

    limit: int | None = flag(
        limit, "SIZE", "the job may hold this much, such as 20G (default: all but the machine's floor)", load=_whole
    )
    need: int | None = flag(
        need, "SIZE",
        "start when this much is free and not reserved by another run (default: what this command held before; "
        "auto: also size it first)",
        adopt="what it will need in all, such as 19G: reserved for it", group=QUEUE,
    )
    gpu_need: tuple[int, int | None] = flag(
        gpu_need, "SIZE[:GPU]", "the same for GPU memory (12G: the card with the most free memory, 12G:1: GPU 1)",
        default=(None, None), group=QUEUE,
    )
    priority: int = flag(priority, "N", "turn in the queue: higher first (default 0)", default=0, group=QUEUE)
    no_wait: bool = flag(truth, "", "when memory is short: exit with 75 instead of waiting", default=False, group=QUEUE)
    wait_max: float | None = flag(
        lambda value: parse_duration(str(value)), "TIME", "wait at most this long, such as 2h, then exit with 75",
        group=QUEUE,
    )
    not_before: float | None = flag(
        clock_time, "CLOCK", "start no sooner than this, such as 22:00 or 2030-01-31T06:00", group=QUEUE,
    )
    allow_twin: bool = flag(
        truth, "", "start although the same job runs already (same output folder, or same arguments on the same GPU)",
        default=False, group=QUEUE,
    )
    retry: int = flag(
        retries, "N",
        "when it ran out of memory, and only then: run it again, up to N times, with smaller settings and the same effective batch",
        default=0, load=_whole, group=RETRY,
    )
    knob: list[str] = flag(
        words, "NAME=VALUES",
        "with --retry: what may change, batch=64..4 or seq_len=2048,1024, as {NAME} or by an argument's name; may be repeated",
        default=[], group=RETRY, many=True,
    )
    order: list[str] = flag(
        names, "NAME,NAME",
        "with --retry: which changes first (default: by what was full; workers, batch, recomputing, precision, length)",
        default=[], group=RETRY,
    )
    resume_arg: str | None = flag(
        str, "ARGUMENTS",
        'with --retry: how the command resumes, such as "--resume_from_checkpoint {checkpoint}" (default: recognised)',
        group=RETRY,
    )
    name: str | None = flag(str, "NAME", "a name to call this run by", adopt="a name to call this run by", group=OUTPUT)
    margin: int | None = flag(
        size, "SIZE", "warn when less than this is available (default 5G, at most a quarter of RAM)", load=_whole
    )
    floor: int | None = flag(
        size, "SIZE",
        "act when less than this is available (default 4 %% of RAM, at least 512M, at most the margin)", load=_whole,
    )
    grace: float = flag(
        seconds("--grace"), "SECONDS",
        "time to save between asking and ending (default 30); also what left-behind processes get",
        default=GRACE, adopt="time to save between asking and ending (default 30)", load=float,
    )
    alert_above: int | None = flag(size, "SIZE", _ALERT, adopt=_ALERT, load=_whole, group=ALERTS)
    alert_gpu_above: int | None = flag(
        size, "SIZE", _ALERT_GPU, adopt=_ALERT_GPU, load=_whole, group=ALERTS,
    )
    # not in run.json: what a receiver is called by is often its key
    on_alert: str | None = flag(receivers.command_line, "CMD", _ON_ALERT, adopt=_ON_ALERT, group=ALERTS)
    on_end: str | None = flag(receivers.command_line, "CMD", _ON_END, adopt=_ON_END, group=ALERTS)
    alert_desktop: bool = flag(truth, "", _DESKTOP, adopt=_DESKTOP, default=False, group=ALERTS)
    alert_webhook: list[str] = flag(
        receivers.webhooks, "URL", _WEBHOOK, adopt=_WEBHOOK, default=[], group=ALERTS,
    )
    alert_mail: list[str] = flag(receivers.addresses, "ADDRESS", _MAIL, adopt=_MAIL, default=[], group=ALERTS)
    stop_file: Path | None = flag(
        path, "PATH", _STOP_FILE, adopt="a file the job watches: created to ask it to save and stop", load=Path
    )
    stop_signal: int | None = flag(signal_number, "SIG", _STOP_SIGNAL, adopt=_STOP_SIGNAL, load=_whole)
    watch_only: bool = flag(
        truth, "", "record and warn, never limit or end the job", default=False,
        adopt="record and warn, never ask or end", load=_boolean,
    )
    no_agent: bool = flag(
        truth, "", "look at the job from outside only: no phases, no steps, no Python stacks", default=False,
        load=_boolean, group=OUTPUT,
    )
    census: float | None = flag(
        census_time, "TIME", "write down every TIME, such as 10m, what the job's variables hold (see oomproof inspect)",
        load=float, group=OUTPUT,
    )
    gpu_limit: list[list[int | None]] = flag(
        gpu_limits, "SIZE[:GPU]",
        "each process of the job may hold this much of a GPU, such as 14G or 14G:0,20G:1 (PyTorch)",
        default=[], load=_list, group=GPU,
    )
    spill: int | None = flag(
        spill, "SIZE",
        "pin this much host memory, such as 8G: what does not fit the card goes there, slowly, instead of ending the job "
        "(PyTorch 2.11 or newer)",
        load=_whole, group=GPU,
    )
    release: str = flag(
        release, "WHEN",
        "give unused GPU memory back after eval or generate: warn, auto, always or never (default warn)",
        default="warn", load=str, group=GPU,
    )
    trace_alloc: bool = flag(
        truth, "", "record the line of code behind each live GPU tensor (PyTorch; costs about 2 us an allocation)",
        default=False, load=_boolean, group=GPU,
    )
    protect: bool = flag(
        truth, "", "never pause this run, and end it for the machine's sake only after all others", default=False,
        load=_boolean,
    )
    pause_max: float = flag(
        seconds("--pause-max"), "SECONDS",
        "a pause for lack of memory lasts at most this long (default 21600, six hours; 0: never pause)",
        default=PAUSE_MAX, load=float,
    )
    leave_unmanaged: bool = flag(
        truth, "", "never pause a job of yours that was not started by oomproof, however fast it fills the machine",
        default=False, adopt="never pause a job that was not started by oomproof", load=_boolean,
    )
    gpu_share: bool = flag(
        truth, "",
        "take turns on the GPU with other such runs when they do not fit together (driver 570 or newer)",
        default=False, load=_boolean, group=GPU,
    )
    gpu_turn: float = flag(
        seconds("--gpu-turn"), "SECONDS", "with --gpu-share: how long a turn lasts while another waits (default 120)",
        default=GPU_TURN, load=float, group=GPU,
    )
    oom_exit_code: int | None = flag(
        exit_code, "N", "exit with N when the job ran out of memory, for engines that act on codes", load=_whole,
        group=OUTPUT,
    )
    ledger: str | None = flag(lambda value: str(value) or None, "FOLDER", "", group=QUEUE)
    # fmt: on

    def agent_settings(self, margin: int) -> dict[str, Any]:
        """What the agent inside the job is told. ``margin``: what of the host's memory is not its to pin."""
        told = {"release": self.release, "gpu_limit": self.gpu_limit, "trace_alloc": self.trace_alloc}
        return {**told, "spill": self.spill, "margin": margin, "limit": self.limit} if self.spill else told

    def alert_settings(self) -> receivers.AlertSettings:
        """Who is told."""
        return receivers.AlertSettings(
            self.on_alert, self.on_end, self.alert_desktop, self.alert_webhook, self.alert_mail
        )


for _made, _flag in _DECLARED:
    FLAGS[_made.name] = _flag


def add_flags(parser: argparse.ArgumentParser, adopt: bool = False) -> dict[str, argparse._ArgumentGroup]:
    """Under their headings, which are returned: a verb has flags of its own to add."""
    groups = {title: parser.add_argument_group(title) for title in (MEMORY, QUEUE, RETRY, GPU, ALERTS, OUTPUT)}
    for name, known in FLAGS.items():
        text = known.adopt if adopt else known.help
        if not text:
            continue
        _add(groups[known.group], name, text)
    return groups


def _add(group: argparse._ArgumentGroup, name: str, text: str) -> None:
    word = f"--{name.replace('_', '-')}"
    known = FLAGS[name]
    if known.many:
        group.add_argument(word, action="append", metavar=known.metavar, help=text)
    elif known.metavar:
        group.add_argument(word, metavar=known.metavar, help=text)
    else:
        group.add_argument(word, action="store_true", default=None, help=text)


def settle(given: Resolved) -> RunSettings:
    """The values, checked; an error names the flag, or the file and its line."""
    values = {}
    for name, known in FLAGS.items():
        value = given.get(name)
        if value is None:
            continue
        try:
            values[name] = known.parse(value)
        except OomproofError as error:
            if error.message.startswith("--"):
                raise
            raise OomproofError(f"{given.origin(name)}: {error.message}", error.hint, error.status) from error
    settings = RunSettings(**values)
    if settings.gpu_limit and settings.no_agent:
        raise OomproofError(
            "--gpu-limit is enforced by the agent inside the job, and --no-agent leaves it out",
            "leave out one of the two",
            USAGE,
        )
    if settings.spill and not given.is_flag("spill") and not _has_space(settings):
        settings.spill = None  # a settings file speaks for many commands
    if settings.spill:
        _check_spill(settings)
    _refuse_needless(given, settings)
    return settings


def _has_space(settings: RunSettings) -> bool:
    return settings.limit is None or (settings.spill or 0) + SMALLEST_OWN <= settings.limit


def _check_spill(settings: RunSettings) -> None:
    assert settings.spill is not None
    if settings.no_agent:
        raise OomproofError(
            "--spill is done by the agent inside the job, and --no-agent leaves it out",
            "leave out one of the two",
            USAGE,
        )
    if not _has_space(settings):
        left = max(0, (settings.limit or 0) - settings.spill)
        raise OomproofError(
            f"--spill {format_size(settings.spill)} of --limit {format_size(settings.limit)} leaves {format_size(left)} for "
            "the job itself: PyTorch alone takes more",
            "raise --limit, or give a smaller --spill",
            USAGE,
        )


# What one flag makes of another; told when both were typed, for a settings file speaks for many commands.
_NEEDLESS = (
    ("no_wait", "wait_max", "with --no-wait nothing waits"),
    ("protect", "pause_max", "with --protect the run is never paused"),
    ("watch_only", "pause_max", "with --watch-only the run is never paused"),
    ("watch_only", "leave_unmanaged", "with --watch-only nothing is paused"),
    ("no_agent", "release", "GPU memory is given back by the agent inside the job, and --no-agent leaves it out"),
    ("no_agent", "census", "variables are looked at by the agent inside the job, and --no-agent leaves it out"),
    ("no_agent", "trace_alloc", "allocations are recorded by the agent inside the job, and --no-agent leaves it out"),
)


def _refuse_needless(given: Resolved, settings: RunSettings) -> None:
    for first, second, why in _NEEDLESS:
        if given.is_flag(first) and given.is_flag(second):
            word = second.replace("_", "-")
            raise OomproofError(f"--{word} does nothing here: {why}", "leave out one of the two", USAGE)
    if given.is_flag("gpu_turn") and not settings.gpu_share:
        raise OomproofError("--gpu-turn does nothing without --gpu-share", "add --gpu-share", USAGE)
    for name in ("knob", "order", "resume_arg"):
        if given.is_flag(name) and not settings.retry:
            word = name.replace("_", "-")
            raise OomproofError(f"--{word} does nothing without --retry", "add --retry 3", USAGE)
    if given.is_flag("margin") and given.is_flag("floor") and (settings.floor or 0) > (settings.margin or 0):
        raise OomproofError(
            "--floor is above --margin: there would be no warning before acting", "give a smaller --floor", USAGE
        )


def of_run(flags: Mapping[str, Any]) -> RunSettings:
    return settle(resolve(dict(flags), set(FLAGS)))


def typed(flags: Mapping[str, Any]) -> dict[str, str]:
    """run.json's ``flags``: what stood on the command line, as it stood there; a switch has no value."""
    given = {name: flags.get(name) for name, known in FLAGS.items() if known.help}
    return {
        name: _as_stood(name, value)
        for name, value in given.items()
        if value is not None and not (name in PERSONAL and may_be_secret(name, str(value)))
    }


def _as_stood(name: str, value: Any) -> str:
    if FLAGS[name].many:
        return "\n".join(value)
    return str(value) if FLAGS[name].metavar else ""


def may_be_secret(name: str, value: str) -> bool:
    """Then it is not written down. A webhook's address always is one: who knows it may write there."""
    if name == "alert_webhook":
        return True
    try:
        words = shlex.split(value)
    except ValueError:  # a quote without its other half
        words = value.split()
    return mask_text(value) != value or mask_argv(words) != words


def as_typed(flags: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """(--flag, its value) of run.json's ``flags``: the name first, then in the order of --help."""
    known = [name for name in ("name", *(name for name in FLAGS if name != "name")) if name in flags]
    return tuple(
        (f"--{name.replace('_', '-')}", shlex.quote(value) if FLAGS[name].metavar and value else "")
        for name in known
        for value in (flags[name].split("\n") if FLAGS[name].many else [flags[name]])
    )


def of_adopt(flags: Mapping[str, Any]) -> RunSettings:
    """What a project's files say about a start is not said about a process that somebody else has started."""
    given = resolve(dict(flags), set(FLAGS))
    for name, known in FLAGS.items():
        if name in ("name", "need") or not (known.adopt or name in ("margin", "floor", "ledger")):
            given[name] = flags.get(name)
    return settle(given)


def of_watch(kept: Mapping[str, Any], flags: Mapping[str, Any]) -> RunSettings:
    """The settings a run has; who is told of it is not in run.json, and comes from flags, variables and the user's file."""
    told = _personal(flags)
    return replace(from_json(kept), **{name: getattr(told, name) for name in PERSONAL})


def receivers_of(flags: Mapping[str, Any]) -> receivers.AlertSettings:
    """Who is told, for a verb that has only those flags (``add_receiver_flags``)."""
    return _personal(flags).alert_settings()


def _personal(flags: Mapping[str, Any]) -> RunSettings:
    given = resolve(dict(flags), set(FLAGS))
    for name in FLAGS:
        if name not in PERSONAL:
            given[name] = None
    return settle(given)


def add_receiver_flags(parser: argparse.ArgumentParser, ends: bool = True) -> None:
    """Those that say who is told, for verbs without the others. ``ends``: of a job, which can end."""
    group = parser.add_argument_group(ALERTS)
    for name in FLAGS:
        if name in PERSONAL and (ends or name != "on_end"):
            _add(group, name, FLAGS[name].help)


def to_json(chosen: RunSettings, margin: int, floor: int) -> dict[str, Any]:
    """run.json's ``settings``: what was asked for, with the margin and floor that became of it."""
    values = {name: getattr(chosen, name) for name, known in FLAGS.items() if known.kept}
    plain = {name: os.fspath(value) if isinstance(value, Path) else value for name, value in values.items()}
    return {**plain, "margin": margin, "floor": floor, "agent": not chosen.no_agent}


def from_json(kept: Mapping[str, Any]) -> RunSettings:
    """The settings a run has; a damaged value counts as not given."""
    if "no_agent" not in kept:
        kept = {**kept, "no_agent": not kept.get("agent")}
    values = {}
    for name, known in FLAGS.items():
        if known.kept and kept.get(name) is not None:
            with contextlib.suppress(TypeError, ValueError):
                values[name] = known.load(kept[name])
    return RunSettings(**values)

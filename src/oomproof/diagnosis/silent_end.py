"""A training log that stops before its own end: no word says why. What may lie behind it, by what else is known."""

from __future__ import annotations

import sys
import time

from oomproof.causes import CAUSES
from oomproof.diagnosis.cause_texts import general_advice
from oomproof.diagnosis.verdict import RankedCause, Steps, Weight, WeightedCause, steps, trust
from oomproof.evidence.case_file import Evidence, KernelFault, KernelKill
from oomproof.evidence.log_file import LogFile, log_file
from oomproof.evidence.texts.finding import Progress
from oomproof.evidence.texts.text_case import TextCase
from oomproof.records import replace
from oomproof.units import format_duration, format_size

_LIVELY = 300.0  # seconds: a loop of long steps, an evaluation, a checkpoint
_REBOOT = 1800.0  # a frozen machine is switched off within half an hour of its last line

_KERNEL = Weight(
    45, "the commonest end without a word; `Killed` is the shell's word and goes to the terminal"
)
_SIGNAL = Weight(20, "a closed terminal, a logout, a notebook's or a scheduler's end")
_CRASH = Weight(15, "native code crashed: Python prints nothing without its fault handler")
_MACHINE = Weight(8, "the machine froze, rebooted or lost power")
_CUT = Weight(12, "it ran on: its output is buffered, or the log was copied or cut")

_TOLD = Weight(30, "this machine's kernel says so of a program of that kind, around the log's last line")
_OTHERS = Weight(3, "the kernel killed another program then: memory was short")
_NOT_TOLD = Weight(0.1, "a log that tells such ends is there, and tells of none around then")
_NEVER = Weight(0.02, "the kernel counts every kill, and has counted none since the machine booted")
_SAME_BOOT = Weight(0.05, "the machine has not booted since, if it ran here")
_BOOTED = Weight(12, "the machine was booted soon after the log's last line")
_APPLE = Weight(0.6, "macOS swaps and compresses for long before it kills")
_EARLY = Weight(0.6, "within two minutes few people close a terminal, and few machines go down")
_PYTHON = ("python", "pt_main", "pt_data", "torchrun", "ray::", "accelerate", "jupyter")


def silent_end(case: TextCase) -> list[WeightedCause]:
    """Claims for a text without a death whose last line is progress; empty where it is not cut short."""
    progress, file = case.progress, case.log_file
    if not progress.unfinished:
        return []
    if file is not None and is_running(case):
        return _running(progress, file)
    died = trust("text.silent")
    ids = tuple(item.id for item in evidence_of_silence(case))
    readings, seen = _readings(case, ids)
    cause = CAUSES["silent-end"]
    why = (
        f"{_name(progress)} stops with {_quote(progress)}: no traceback, no «Killed», no word of an end; "
        f"{_where(progress)}{''.join(f'; {fact}' for fact in seen)}"
    )
    claim = WeightedCause(
        cause.slug,
        died,
        "likely",
        f"died without a word {_position(progress)}",
        why,
        steps(f"first: {readings[0].test}; ", general_advice(cause)),
        evidence=ids,
        test=cause.test,
        phase=progress.phase,
        step=progress.training_step,
        readings=tuple(readings),
    )
    return [claim, _alive(1 - died, progress, "no crash found here", why, general_advice(cause))]


def evidence_of_silence(case: TextCase) -> tuple[Evidence, ...]:
    """The last sign of progress, and what this machine's kernel said around then."""
    progress, file = case.progress, case.log_file
    if not progress.unfinished:
        return ()
    last = f"{progress.source}:{progress.line}" if progress.source else f"line {progress.line}"
    kernel: tuple[KernelKill | KernelFault, ...] = (*file.kills, *file.faults) if file is not None else ()
    return (
        Evidence("text.end", last, None, _quote(progress), "the log stops here, before the end of its own count"),
        *(
            Evidence(f"text.kernel.{number}", "this machine's kernel log", _wall(file, event.time), event.text,
                     f"of {event.name} (pid {event.pid}), around the log's last line")
            for number, event in enumerate(kernel, 1)
        ),
    )  # fmt: skip


def _wall(file: LogFile | None, since_boot: float) -> float | None:
    return file.booted + since_boot if file is not None and file.booted is not None else None


def with_log_file(case: TextCase) -> TextCase:
    """The same with what this machine knows of the log, where the text alone leaves it open how it ended."""
    told = any(
        finding.cause != "not-a-crash" and finding.job.kind != "talk"
        for finding in (*case.system, *case.training)
    )
    if told or case.progress.unfinished is False:
        return case
    return replace(case, log_file=log_file(case.progress.source))


def is_running(case: TextCase) -> bool:
    file = case.log_file
    return file is not None and (file.writer is not None or file.age < _LIVELY)


def _running(progress: Progress, file: LogFile) -> list[WeightedCause]:
    """Somebody still writes the log, or did so minutes ago."""
    share = trust("text.open" if file.writer is not None else "text.lively")
    ago = f"last written {format_duration(file.age)} ago"
    if file.writer is not None:
        stuck = " and stuck?" if file.age >= _LIVELY else ""
        headline = f"still running{stuck}: {file.writer_name or '?'} (pid {file.writer}) has {_name(progress)} open for writing"
        following = f"wait, or look where it is: py-spy dump --pid {file.writer}"
    else:
        headline = f"still running? {_name(progress)} was {ago}"
        following = "ask again in a few minutes; if the file was only copied just now, the job may be dead: see where it ran"
    why = f"no line tells of an end, {ago}; {_where(progress)}"
    best = _alive(share, progress, headline, why, following)
    dead = WeightedCause("silent-end", 1 - share, "possible", "perhaps dead", why, following)
    return [best, dead]


def _alive(
    share: float, progress: Progress, headline: str, why: str, following: str | Steps
) -> WeightedCause:
    test = "is a process of it still there (ps), and does the file still grow?"
    return WeightedCause(
        "not-a-crash", share, "likely", headline, why, following, test=test, phase=progress.phase,
        step=progress.training_step,
    )  # fmt: skip


def _readings(case: TextCase, ids: tuple[str, ...]) -> tuple[list[RankedCause], list[str]]:
    """What may have ended it, with the facts that decided; together certain."""
    file, progress = case.log_file, case.progress
    kernel, outside, crash, machine, cut = map(float, (_KERNEL, _SIGNAL, _CRASH, _MACHINE, _CUT))
    seen = []
    killed_by = "oom-kill-global"
    if _on_apple(case):
        killed_by, kernel = "jetsam", kernel * _APPLE
    if progress.uptime is not None and progress.uptime < 120:
        outside, machine = outside * _EARLY, machine * _EARLY
    if case.system_logs:
        kernel, crash = kernel * _NOT_TOLD, crash * _NOT_TOLD
        of = " of this job" if case.others else ""
        seen.append(f"{' and '.join(case.system_logs)} has no kill and no crash{of}")
    if file is not None and file.booted is not None:
        if file.changed < file.booted:
            if file.booted - file.changed < _REBOOT:
                machine *= _BOOTED
                seen.append(f"this machine booted {format_duration(file.booted - file.changed)} later")
        else:
            machine *= _SAME_BOOT
            factor, fact = _by_kernel(file)
            kernel *= factor
            seen += [fact] if fact else []
            if faults := [fault for fault in file.faults if _python(fault.name)]:
                crash *= _TOLD
                seen.append(f"this machine's kernel then saw: {faults[-1].says or faults[-1].text}")
            elif file.log_readable:
                crash *= _NOT_TOLD
    when = f" --since '{_clock(file.changed - 60)}'" if file is not None else ""
    tests = (
        (killed_by, kernel, f"journalctl -k{when} | grep -i 'killed process'"
         if killed_by != "jetsam" else CAUSES["jetsam"].test),
        ("interrupted", outside, "was its terminal closed, its session or its time over: last; sacct under Slurm; the notebook's log"),
        ("segfault", crash, f"journalctl -k{when} | grep -i segfault; coredumpctl list"),
        ("not-a-crash", cut, "is a process of it still there (ps), is the log whole on the machine that wrote it?"),
        ("machine-down", machine, "last -x reboot shutdown | head"),
    )  # fmt: skip
    total = sum(weight for _, weight, _ in tests)
    ranked = sorted(tests, key=lambda test: -test[1])
    shares = [round(weight / total, 4) for _, weight, _ in ranked]
    shares[0] = round(1 - sum(shares[1:]), 4)
    return [
        RankedCause(cause, share, ids, test) for (cause, _, test), share in zip(ranked, shares, strict=True)
    ], seen


def _by_kernel(file: LogFile) -> tuple[float, str]:
    """How this machine's kernel changes the odds of a kill, in this boot."""
    if own := [kill for kill in file.kills if _python(kill.name)]:
        kill = own[-1]
        held = f", which held {format_size(kill.anon_rss)}" if kill.anon_rss else ""
        return _TOLD, f"this machine's kernel killed {kill.name} (pid {kill.pid}){held}, around then"
    if file.kills:
        return _OTHERS, f"this machine's kernel killed {file.kills[-1].name} around then"
    if file.counted == 0:
        return _NEVER, "this machine's kernel has killed nothing for memory since it booted"
    if file.log_readable:
        return _NOT_TOLD, "this machine's kernel log has no kill around then"
    return 1.0, ""


def _on_apple(case: TextCase) -> bool:
    device = case.log_file.device if case.log_file is not None else None
    return sys.platform == "darwin" or (device or "").startswith("mps")


def _python(name: str) -> bool:
    return name.startswith(_PYTHON)


def _name(progress: Progress) -> str:
    return progress.source if progress.source not in ("", "-") else "the text"


def _position(progress: Progress) -> str:
    """ "at step 472 of 1122 in epoch 1 of 30, 59 s into it"."""
    words = f"at step {progress.bar[0]} of {progress.bar[1]}" if progress.bar else ""
    if progress.epoch is not None:
        of = f" of {progress.epochs}" if progress.epochs else ""
        words += f"{' in' if words else 'in'} epoch {progress.epoch:g}{of}"
    return words


def _where(progress: Progress) -> str:
    bar, facts = progress.bar, []
    if bar is not None and bar[0] < bar[1]:
        left = bar[1] - bar[0]
        whole = progress.epoch is not None and float(progress.epoch).is_integer()
        end = "the epoch's end" if whole else "the end of its count"
        facts.append(f"not at {end}: {left} steps were left")
    elif bar is not None and progress.epochs is not None:
        facts.append("at an epoch's end, where a training evaluates and saves")
    elif bar is None:
        facts.append("where in the epoch it was, the log does not say")
    if progress.uptime is not None:
        facts.append(f"its last bar had run {format_duration(progress.uptime)}")
    return "; ".join(facts)


def _quote(progress: Progress, width: int = 120) -> str:
    line = " ".join(progress.text.split())
    return f"«{line if len(line) <= width else '…' + line[-width:]}»"


def _clock(wall: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(wall))

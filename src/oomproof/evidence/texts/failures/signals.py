"""Deaths by signal, as shells, launchers and faulthandler tell them: what no single sentence settles."""

from __future__ import annotations

import re

from oomproof.evidence.texts.failures import crash_sentences as deaths
from oomproof.evidence.texts.failures import shell_languages
from oomproof.evidence.texts.failures.crash_sentences import EXITS, MEANS, NAMES, WORDS, by_signal, pids_in
from oomproof.evidence.texts.failures.recogniser import FailureText, Hit
from oomproof.evidence.texts.failures.rules import CodeRule, Match
from oomproof.records import replace

# A shell's own words: alone on a line, after "line N: PID", "[1]+", "zsh:"
_SHELL = re.compile(
    r"^(?:make\S*: \*\*\* .{1,200}\] |(?:\S+: )?(?:line \d+: +)?(?P<pid>\d{2,9}) |\[\d+\]\s*[-+]?\s+(?:(?P<job>\d+) )?|(?:zsh|bash|sh|fish|-bash|/bin/\w+): (?:\d+: )?(?:line \d+: +(?P<three>\d+) )?)?"
    r"(?P<word>[Kk]illed|Segmentation fault|segmentation fault|[Bb]us error|Aborted|Abort trap: 6|[Aa]bort|[Tt]erminated|Illegal instruction|Floating point exception)"
    r"(?:: \d{1,2})?(?: ?\(core dumped\))?(?P<rest>\s.{0,3500}|)$"
)
# … and inside a quotation: 'StdErr: "/var/spool/job/script: line 28:  8156 Killed      python3 main.py'
_SHELL_QUOTED = re.compile(
    r": line \d+: +(?P<pid>\d{1,9}) (?P<word>Killed|Segmentation fault|Bus error|Aborted|Terminated)(?: ?\(core dumped\))?(?P<rest>\s.{0,3500}|)$"
)
_COMMAND = re.compile(
    r"\s+(?:\(core dumped\)\s+)?(?:\( )?(?:[A-Z_]\w*=\S* )*(?:[^\s/]*/)*(?P<name>[\w.+-]{1,64})(?=\s|$)"
)
_FATAL = re.compile(
    r"Fatal Python error: (?P<what>[A-Z][\w -]+)|Windows fatal exception: (?P<windows>access violation|stack overflow)|Segfault encountered|0xC0000005|Caught signal (?P<number>\d+)"
)
# bold or code, as web pages quote a line: **Killed**, `Segmentation fault (core dumped)`
_EMPHASIS = re.compile(r"^(?P<mark>\*{1,3}|_{2,3}|`{1,3})(?P<body>[^*_`\n]{3,300})(?P=mark)[.!]?$")
_CLOSING_TAG = re.compile(r"</[a-z]{1,10}>$")
# "exit code 137 means …": what a number stands for, not that it was seen
_EXPLAINED = re.compile(
    r"[)`'\"*]{0,3}\s(?:\([^()]{1,40}\) )?(?:means|indicates|denotes|signifies|stands for|is (?:returned|used|reserved)|if|when|usually)\b"
)
# Windows gives its own numbers: access violation, heap corruption, stack overrun and overflow, Ctrl-C
_WINDOWS = re.compile(r"(?:[Cc]ode|[Ss]tatus)[ :='\"]*(?P<code>32212\d{5}|-10737\d{5})\b")
_NTSTATUS = {0xC0000005: 11, 0xC0000374: 6, 0xC0000409: 6, 0xC00000FD: 11, 0xC000013A: 2, 0xC0000017: 0}
# a crash of native code that the text only names: a title, or a crash report of macOS
_NAMED = re.compile(r"\b(?P<name>SIG(?:SEGV|ABRT|BUS))\b")
_DUMPED = re.compile(r"(?P<word>[Ss]egmentation fault|[Bb]us error|[Aa]borted) ?\(core dump")  # in a sentence
_CLOSING = re.compile(
    r"closing signal|Killing subprocess|[Ss]ending (?:signal|SIG)|unblock|(?<!Task )handler|Terminating process|timeout --signal|forwarding"
)
_KERNEL = re.compile(r"Killed process \d+|segfault at |total-vm|oom_reaper|oom-kill:")


def _fatal(said: FailureText) -> Hit | None:
    match = _FATAL.search(said.text)
    if match is None:
        return None
    what = (match["what"] or "").strip()
    number = int(match["number"] or WORDS.get(what.lower(), 11 if not what else 6))
    if what and what.lower() not in WORDS:
        return Hit("abort", f"the interpreter gave up: {what}", 0.8)
    return by_signal(number, 0.93, "failure", pids_in(said.text))


def _check_failed(said: FailureText) -> Hit | None:
    return deaths.ABORTED.hit if said.level == "FATAL" and said.text.startswith("Check failed: ") else None


def _shell(said: FailureText) -> Hit | None:
    if said.raised:
        return None
    told = _SHELL.match(said.text)
    if told is not None and _is_shell(told):
        pid = told["pid"] or told["three"] or told["job"]
    elif told := _SHELL_QUOTED.search(said.text):
        pid = told["pid"]
    else:
        return None
    hit = by_signal(WORDS[told["word"].lower().split(":")[0]], 0.85, pids=(int(pid),) if pid else ())
    command = _COMMAND.match(told["rest"]) if pid else None  # a shell prints the command that died
    return replace(hit, facts=replace(hit.facts, victim_name=command["name"])) if command else hit


def _is_shell(match: Match) -> bool:
    """ "Terminated early" is prose; "Killed    python train.py" is a shell."""
    rest = match["rest"]
    return (
        not rest.strip()
        or match.start("word") > 0
        or rest.startswith(("  ", "\t"))
        or bool(re.match(r" (?:python|srun|torchrun|\./|bash|accelerate)", rest))
    )


def _windows(said: FailureText) -> Hit | None:
    match = _WINDOWS.search(said.text)
    if match is None:
        return None
    return by_signal(_NTSTATUS.get(int(match["code"]) & 0xFFFFFFFF, 6), 0.85, pids=pids_in(said.text))


def _exited(said: FailureText, match: Match) -> Hit | None:
    """None for an exit that tells of no death."""
    groups, pids, level = match.groupdict(), pids_in(said.text), said.level
    if name := groups.get("name"):
        number = NAMES.get(name, 0)
        weak = level in ("INFO", "DEBUG")
        return (
            by_signal(number, 0.5 if weak else 0.85, "talk" if weak else "summary", pids) if number else None
        )
    if groups.get("number"):
        number = int(groups["number"])
        # 10 and 12 are others elsewhere; a job's own signals are asked for
        if number not in MEANS or "SIGUSR" in said.text or (said.quiet and number not in (9, 11)):
            return None
        return by_signal(number, 0.45 if said.quiet else 0.85, pids=pids)
    if groups.get("word"):
        return by_signal(WORDS[groups["word"].lower()], 0.8, pids=pids)
    code = int(groups["code"])
    # a program's own -1 is no hang-up, but where Python's launchers say so
    number = (
        -code if code < 0 and (code < -1 or "SIGHUP" in said.text) else code - 128 if 128 < code < 160 else 0
    )
    if number in MEANS:
        return by_signal(number, 0.85, pids=pids)
    if code == 0 or level in ("INFO", "DEBUG"):
        return None
    return Hit("other-error", f"a process ended with exit code {code}", 0.25, "summary", pids=pids)


def _only_named(said: FailureText) -> Hit | None:
    if said.raised or said.quiet:
        return None
    pids = pids_in(said.text)
    if named := _NAMED.search(said.text):
        return by_signal(NAMES[named["name"]], 0.35, pids=pids)
    if dumped := _DUMPED.search(said.text):
        hit = by_signal(WORDS[dumped["word"].lower()], 0.5, pids=pids)
        return replace(hit, facts=replace(hit.facts, heard="quoted"))
    return None


_BEFORE_EXITS = (
    deaths.CONTAINER.read,
    _fatal,
    deaths.ABORTED.read,
    _check_failed,
    deaths.VANISHED.read,
    deaths.MAY_BE.read,
    _shell,
    _windows,
    deaths.NANNY.read,
)


def _recognise(said: FailureText) -> Hit | None:
    text = _unquoted(said.text.strip())
    if _KERNEL.search(text) or (_CLOSING.search(text) and not said.raised):
        return None
    said = replace(said, text=text)
    for read in _BEFORE_EXITS:
        if (hit := read(said)) is not None:
            return hit
    matches = [match for row in EXITS if (match := row.search(text))]
    if matches:
        first = min(matches, key=lambda match: match.start())
        if _EXPLAINED.match(text, first.end()):
            return None
        if (hit := _exited(said, first)) is not None:
            return hit
    return deaths.MPI.read(said) or _only_named(said) or deaths.CRASHED.read(said)


def _unquoted(text: str) -> str:
    text = _CLOSING_TAG.sub("", text)
    emphasis = _EMPHASIS.match(text)
    text = emphasis["body"].strip() if emphasis else text
    return shell_languages.in_english(text.rstrip("."))


_RULES = (
    deaths.CONTAINER,
    deaths.ABORTED,
    deaths.VANISHED,
    deaths.MAY_BE,
    deaths.NANNY,
    deaths.MPI,
    deaths.CRASHED,
)
_ANCHORS = (
    "illed", "SIG", "egmentation fault", "egfault", "us error", "bort", "Fatal Python error", "erminated", "fatal exception", "llegal instruction",
    "0xC0000005", "ode 32212", "tatus 32212", "ode -1073", "tatus -1073", "Floating point exception", "Check failed", *shell_languages.PLAIN, *shell_languages.FOREIGN,
)  # fmt: skip
SIGNALS = (CodeRule(_ANCHORS, _recognise, _RULES, EXITS),)

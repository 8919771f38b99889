"""Deaths by signal, as shells, launchers and faulthandler tell them."""

from __future__ import annotations

import re

from oomproof.evidence.texts.failures import shell_languages
from oomproof.evidence.texts.failures.hit import Hit, Kind, Said

ANCHORS = ("illed", "SIG", "ignal", "exitcode", "xit code", "xit status", "return code", "egmentation fault", "egfault", "us error",
           "bort", "Fatal Python error", "Terminated", "terminated", "terminate called", "uncaught", "fatal exception", "corrupt", "invalid pointer", "Illegal instruction",
           "kernel died", "Kernel died", "EXIT CODE", "xit Code", "xitCode", "non-zero code", "process to finish", "YARN", "ontainer killed","ernel crashed", "have died", "abruptly", "access violation", "exited with code", "smashing", "exit_code", "0xC0000005",
           "KILLED", "memory budget", " Crashed", "status 32212", "status -1073", "code 32212", "code -1073", "exited with status", "make: ***", "make[", "died unexpectedly", "all available RAM", "invalid size", "malloc.c", "OMP: Error", "KilledWorker", "process_executor", "TerminatedWorker", "is unavailable", "WorkerCrashed", "Check failed", "MPI_ABORT",
           "erminated normally", "exited with non-zero status", "non-zero status of", "Normal termination (", "over memory limit", "emory limit exceeded",
           "more memory than is available", *shell_languages.PLAIN, *shell_languages.FOREIGN)  # fmt: skip

_MEANS = {
    9: ("killed-unknown", "killed (SIGKILL); the text does not say by whom"),
    11: ("segfault", "crashed in native code (SIGSEGV)"),
    7: ("bus-error", "died of a bus error (SIGBUS)"),
    10: ("bus-error", "died of a bus error (SIGBUS on macOS)"),
    6: ("abort", "aborted itself (SIGABRT)"),
    15: ("interrupted", "told to end (SIGTERM)"),
    2: ("interrupted", "interrupted (SIGINT)"),
    1: ("interrupted", "lost its terminal (SIGHUP)"),
    4: ("other-error", "met an instruction that the CPU does not know (SIGILL)"),
    8: ("other-error", "divided by zero in native code (SIGFPE)"),
}
_NAMES = {"SIGKILL": 9, "SIGSEGV": 11, "SIGBUS": 7, "SIGABRT": 6, "SIGIOT": 6, "SIGTERM": 15, "SIGINT": 2, "SIGHUP": 1,
          "SIGILL": 4, "SIGFPE": 8}  # fmt: skip
_WORDS = {"killed": 9, "segmentation fault": 11, "bus error": 7, "aborted": 6, "abort": 6, "abort trap": 6, "terminated": 15,
          "illegal instruction": 4, "floating point exception": 8, "hangup": 1, "interrupt": 2}  # fmt: skip

# Launchers: torchrun, accelerate, deepspeed, torch.multiprocessing, mpirun, srun, joblib, PyCharm, docker
_EXIT = re.compile(
    r"(?P<torchrun>exitcode\s{0,4}: *)(?P<a>-?\d{1,3})\b|return code ?(?:=|of|:)? ?(?P<b>-?\d{1,3})\b|^=? *EXIT CODE: (?P<r>\d{1,3})\b|(?:non-zero code: |W&B process to finish\.\.\. \(failed )(?P<s>\d{1,3})\b|[Ee]xit(?:ed|s)?(?: with)?(?: a)?(?: non-zero)? "
    r"(?:exit )?(?:[Cc]ode|[Ss]tatus)[ :='\"]*(?P<c>-?\d{1,3})\b|non-zero status of (?P<v>\d{1,3})\b|exited with status (?P<o>\d{1,3})\b|^make\S*: \*\*\* .{1,200}\] Error (?P<p>\d{1,3})|died with <Signals\.(?P<d>SIG[A-Z]+)|exit_?[Cc]ode[\"']?[:=] ?(?P<e>-?\d{1,3})\b"
    r"|(?:terminated (?:with|by)|(?<![\w-])[Ss]ignal(?!\(7\)):?|on signal|by signal|BY SIGNAL|got signal:?|received signal|exited due to|due to signal|with signal)[ :(\"']+"
    r"(?:(?P<f>SIG[A-Z]{2,4})\b|(?P<g>\d{1,2})\b)|was sent (?P<q>SIG[A-Z]{2,4})\b|(?P<h>SIG(?:KILL|SEGV|BUS|ABRT))\((?P<i>-\d{1,2})\)"
    r"|Signal:? (?P<j>[A-Z][a-z]+(?: [a-z]+)?) \((?P<k>\d{1,2})\)|(?:task|tasks) [\d,-]+: (?P<l>Killed|Segmentation fault|Bus error|Aborted|Terminated)"
    r"|\*\*\* (?P<m>SIG[A-Z]+) (?:\(|received at)|received by PID \d+|\(interrupted by signal (?P<n>\d{1,2})|\bsignal: (?P<u>killed|segmentation fault|aborted|bus error)"
)
# … nor who sent the signal ("from PID 0"); Open MPI and UCX: "[node12:04242] Signal: Aborted (6)"
_PID = re.compile(
    r"\(?pid[:= ]+([1-9]\d{0,8})|(?<!from )PID:? ([1-9]\d{0,8})|[Pp]rocess (\d{3,9})\b"
    r"|^\[[\w.-]{1,64}:(\d{2,9})\s*(?::\d+:\d+)?\]\s+(?:\*\*\*|Signal|Caught signal)"
)
# A shell's own words: alone on a line, after "line N: PID", "[1]+", "zsh:"
_SHELL = re.compile(
    r"^(?:make\S*: \*\*\* .{1,200}\] |(?:\S+: )?(?:line \d+: +)?(?P<pid>\d{2,9}) |\[\d+\]\s*[-+]?\s+(?:(?P<job>\d+) )?|(?:zsh|bash|sh|fish|-bash|/bin/\w+): (?:\d+: )?(?:line \d+: +(?P<three>\d+) )?)?"
    r"(?P<word>[Kk]illed|Segmentation fault|segmentation fault|[Bb]us error|Aborted|Abort trap: 6|[Aa]bort|[Tt]erminated|Illegal instruction|Floating point exception)"
    r"(?:: \d{1,2})?(?: ?\(core dumped\))?(?P<rest>\s.{0,3500}|)$"
)
# … and inside a quotation: 'StdErr: "/var/spool/job/script: line 28:  8156 Killed      python3 main.py'
_SHELL_QUOTED = re.compile(
    r": line \d+: +(?P<pid>\d{2,9}) (?P<word>Killed|Segmentation fault|Bus error|Aborted|Terminated)(?: ?\(core dumped\))?(?P<rest>\s.{0,3500}|)$"
)
_COMMAND = re.compile(
    r"\s+(?:\(core dumped\)\s+)?(?:\( )?(?:[A-Z_]\w*=\S* )*(?:[^\s/]*/)*(?P<name>[\w.+-]{1,64})(?=\s|$)"
)
_FATAL = re.compile(
    r"Fatal Python error: (?P<what>[A-Z][\w ]+)|Windows fatal exception: (?P<windows>access violation|stack overflow)|Segfault encountered|0xC0000005|Caught signal (?P<number>\d+)"
)
_ABORTS = re.compile(
    r"terminate called|malloc\.c:\d+: \w+: Assertion|free\(\): |double free or corruption|malloc(?:_consolidate)?\(\): |corrupted (?:size|double)|munmap_chunk\(\)|stack smashing"
    r"|terminating (?:due to|with) (?:an )?uncaught (?:foreign )?exception|OMP: Error #15|^F\d{4} .{0,120}Check failed|\bF (?:[\w./-]{1,160}:\d+\] )Check failed: |Check failure stack trace: |pure virtual method called|malloc: \*\*\* error"
)
_GONE = re.compile(
    r"[Kk]ernel (?:appears to have )?(?:died|crashed)|worker died unexpectedly|subprocesses? has abruptly died|terminated abruptly|crashed after using all available RAM"
    r"|killed by SIGKILL by OOM killer|worker process managed by the executor was unexpectedly terminated|Actor ?(?:died|Died) unexpectedly|The actor (?:is dead|died)|The actor \w{1,64} is unavailable|WorkerCrashedError|A worker died or was killed while executing"
    r"|KilledWorker|process_executor\.Termin|TerminatedWorkerError$|used all available RAM|was OOM[- ]killed|DeadKernelError|tried to allocate more memory than is available\. It has restarted|Killed signal terminated program"
)
# mpirun's and a scheduler's last words, where no signal was at work
_MPI = re.compile(
    r"detected that one or more processes exited with non-zero status|^Primary job +terminated normally, but \d+ process"
    r"|^MPI_ABORT was invoked on rank \d+|Normal termination \(return value [1-9]\d{0,2}\)"  # the last is HTCondor's
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
_CRASHED = re.compile(r"^Thread \d{1,4} Crashed")
_NANNY = re.compile(r"Worker process \d+ was killed by unknown signal|exceeded \d{1,3}% memory budget")
_CLOSING = re.compile(
    r"closing signal|Killing subprocess|[Ss]ending (?:signal|SIG)|unblock|handler|Terminating process|timeout --signal|forwarding"
)
_KERNEL = re.compile(r"Killed process \d+|segfault at |total-vm|oom_reaper|oom-kill:")
# as a field, a column or a state; prose that only speaks of it ("if the pod was OOMKilled") is no death
_OOMKILLED = re.compile(
    r"""[Rr]eason["']?\s*[:=]\s*["']?OOM ?Killed\b|OOMKilled["']?\s*[:=]\s*["']?[Tt]rue\b|\d/\d\s+OOMKilled\s|[Tt]erminated \(OOMKilled|OutOfMemoryError: Container killed due to memory|Container killed by YARN for exceeding (?:\S+ )?memory|\bOOMKilled\s*$"""
    # HTCondor, Vertex AI, Hugging Face Spaces
    r"|Job has gone over (?:\w+ )?memory limit of \d|ran out-of-memory and exited with a non-zero status|^Memory limit exceeded \(\d"
)


def by_signal(number: int, strength: float = 0.8, kind: Kind = "summary", pids: tuple[int, ...] = ()) -> Hit:
    cause, says = _MEANS.get(number, ("other-error", f"died of signal {number}"))
    return Hit(cause, says, strength, kind, pids=pids, details={"signal": str(number)})


def recognise(said: Said) -> Hit | None:
    text = _unquoted(said.text.strip())
    if _KERNEL.search(text) or (_CLOSING.search(text) and not said.raised):
        return None
    pids = tuple(int(group) for match in _PID.finditer(text[:900]) for group in match.groups() if group)[:8]
    if _OOMKILLED.search(text) and not said.quiet and not re.search(r"OOMKilled\W+[Ff]alse", text):
        return Hit(
            "oom-kill-memcg", "the container was killed at its memory limit", 0.85, "summary", pids=pids
        )
    if fatal := _FATAL.search(text):
        return _fatal(fatal, pids)
    if _ABORTS.search(text) or (said.level == "FATAL" and text.startswith("Check failed: ")):
        return Hit("abort", "native code ended the process (abort)", 0.75, details={"signal": "6"})
    if _GONE.search(text) and not (said.quiet and not said.raised):
        known = re.search(r"\{?(SIG[A-Z]+)\(-\d+\)", text)
        if known and known[1] in _NAMES:
            return by_signal(_NAMES[known[1]], 0.85, pids=pids)
        return Hit("killed-unknown", "a worker process vanished; nothing says who ended it", 0.5, pids=pids)
    if not said.raised and (shell := _SHELL.match(text)) and _is_shell(shell):
        number = _WORDS[shell["word"].lower().split(":")[0]]
        pid = shell["pid"] or shell["three"] or shell["job"]
        hit = by_signal(number, 0.85, pids=(int(pid),) if pid else ())
        if pid and (command := _COMMAND.match(shell["rest"])):  # a shell prints the command that died
            hit.details["victim_name"] = command["name"]
        return hit
    if not said.raised and (quoted := _SHELL_QUOTED.search(text)):
        hit = by_signal(_WORDS[quoted["word"].lower()], 0.85, pids=(int(quoted["pid"]),))
        if command := _COMMAND.match(quoted["rest"]):
            hit.details["victim_name"] = command["name"]
        return hit
    if windows := _WINDOWS.search(text):
        return by_signal(_NTSTATUS.get(int(windows["code"]) & 0xFFFFFFFF, 6), 0.85, pids=pids)
    if _NANNY.search(text):
        return Hit(
            "killed-unknown", "dask ended a worker that used too much memory", 0.45, "summary", pids=pids
        )
    exit_ = _EXIT.search(text)
    if exit_ and _EXPLAINED.match(text, exit_.end()):
        return None
    if exit_ and (told := _exited(exit_, text, pids, said)) is not None:
        return told
    if _MPI.search(text):
        return Hit("other-error", "a rank ended with an error of its own", 0.4, "summary", pids=pids)
    if not said.raised and not said.quiet and (named := _NAMED.search(text)):
        return by_signal(_NAMES[named["name"]], 0.35, pids=pids)
    if not said.raised and not said.quiet and (dumped := _DUMPED.search(text)):
        told = by_signal(_WORDS[dumped["word"].lower()], 0.5, pids=pids)
        told.details["heard"] = "quoted"
        return told
    if not said.raised and _CRASHED.match(text):
        return Hit("abort", "native code crashed", 0.35, "summary")
    return None


def _unquoted(text: str) -> str:
    text = _CLOSING_TAG.sub("", text)
    emphasis = _EMPHASIS.match(text)
    text = emphasis["body"].strip() if emphasis else text
    return shell_languages.in_english(text.rstrip("."))


def _is_shell(match: re.Match[str]) -> bool:
    """ "Terminated early" is prose; "Killed    python train.py" is a shell."""
    rest = match["rest"]
    prefixed = match.start("word") > 0
    return (
        not rest.strip()
        or prefixed
        or rest.startswith(("  ", "\t"))
        or bool(re.match(r" (?:python|srun|torchrun|\./|bash|accelerate)", rest))
    )


def _fatal(match: re.Match[str], pids: tuple[int, ...]) -> Hit:
    what = (match["what"] or "").strip()
    number = _WORDS.get(what.lower(), 11 if not what else 6)
    if match["number"]:
        number = int(match["number"])
    hit = by_signal(number, 0.93, "failure", pids)
    return (
        hit if what.lower() in _WORDS or not what else Hit("abort", f"the interpreter gave up: {what}", 0.8)
    )


def _exited(match: re.Match[str], text: str, pids: tuple[int, ...], said: Said) -> Hit | None:
    name = match["d"] or match["f"] or match["h"] or match["m"] or match["q"]
    if name:
        number = _NAMES.get(name, 0)
        if not number:
            return None
        weak = said.level in ("INFO", "DEBUG")
        return by_signal(number, 0.5 if weak else 0.85, "talk" if weak else "summary", pids=pids)
    if number_text := match["g"] or match["k"] or match["n"]:
        number = int(number_text)
        if number not in _MEANS or (said.quiet and number not in (9, 11)):
            return None
        return by_signal(number, 0.45 if said.quiet else 0.85, pids=pids)
    if match["u"]:
        return by_signal(_WORDS[match["u"]], 0.8, pids=pids)
    if match["l"]:
        return by_signal(_WORDS[match["l"].lower()], 0.8, pids=pids)
    code_text = next((match[group] for group in "abceopsv" if match[group]), None)
    if match["r"]:  # MPICH prints the signal's number there
        return by_signal(int(match["r"]), 0.85, pids=pids) if int(match["r"]) in _MEANS else None
    if code_text is None:
        return None
    code = int(code_text)
    number = -code if code < 0 else code - 128 if 128 < code < 160 else 0
    if number in _MEANS:
        return by_signal(number, 0.85, pids=pids)
    if code == 0 or said.level in ("INFO", "DEBUG"):
        return None
    return Hit(
        "other-error",
        f"a process ended with exit code {code}",
        0.25,
        "summary",
        pids=pids,
        details={"exit": str(code)},
    )

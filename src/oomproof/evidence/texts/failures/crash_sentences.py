"""Deaths of processes, as shells, launchers, runtimes and faulthandler print them: a signal, an exit code, or a sentence of their own."""

from __future__ import annotations

import re

from oomproof.evidence.texts.failures.rules import CodeRule, FailureText, Hit, Match, Row, Rule
from oomproof.evidence.texts.finding import JobFacts, Kind
from oomproof.records import replace

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
_NUMBERS = {
    "SIGKILL": 9, "SIGSEGV": 11, "SIGBUS": 7, "SIGABRT": 6, "SIGIOT": 6, "SIGTERM": 15, "SIGINT": 2, "SIGHUP": 1, "SIGILL": 4, "SIGFPE": 8,
    "killed": 9, "segmentation fault": 11, "bus error": 7, "access to an undefined portion of a memory object": 7,
    "aborted": 6, "abort": 6, "abort trap": 6, "process abort signal": 6,
    "terminated": 15, "termination signal": 15, "illegal instruction": 4,
    "floating point exception": 8, "floating-point exception": 8, "erroneous arithmetic operation": 8,
}  # fmt: skip
# "from PID 0" names no process; Open MPI and UCX print "[node12:04242] Signal: Aborted (6)"
_PID = re.compile(
    r"\(?pid[:= ]+([1-9]\d{0,8})|(?<!from )PID:? ([1-9]\d{0,8})|[Pp]rocess (\d{3,9})\b"
    r"|^\[[\w.-]{1,64}:(\d{2,9})\s*(?::\d+:\d+)?\]\s+(?:\*\*\*|Signal|Caught signal)"
)


def _by_signal(number: int, strength: float = 0.8, kind: Kind = "summary", pids: tuple[int, ...] = ()) -> Hit:
    cause, says = _MEANS.get(number, ("other-error", f"died of signal {number}"))
    return Hit(cause, says, strength, kind, pids=pids, facts=JobFacts(signal=number))


def _pids(text: str) -> tuple[int, ...]:
    return tuple(int(group) for match in _PID.finditer(text[:900]) for group in match.groups() if group)[:8]


def _report(said: FailureText, match: Match, hit: Hit) -> Hit | None:
    groups = match.groupdict()
    word = groups.get("word") or ""
    number = _NUMBERS.get(word) or _NUMBERS.get(word.lower()) or int(groups.get("number") or 0)
    return _by_signal(number, 0.93, "failure", hit.pids) if number else None


CRASH_REPORTS = (
    Rule("segfault", "crashed in native code (SIGSEGV)", 0.93,
        Row("is detected by the operating system", "FatalError: `Segmentation fault` is detected by the operating system.",  # Paddle
            r"^(?:\w{0,20}Error: )?(?:`|A serious error \()(?P<word>[A-Z][\w ]{3,60})[`)] is detected by the operating system"),
        Row(" at pc=0x", "#  SIGSEGV (0xb) at pc=0x00007f0012, pid=4242, tid=4243",  # Java
            r"^#?\s*(?P<word>SIG[A-Z]{2,4}) \(0x[0-9a-f]+\) at pc=0x[0-9a-f]+, pid=(?P<pid>\d{1,9})", {"pids": (4242,)}),
        Row("[signal SIG", "[signal SIGSEGV: segmentation violation code=0x1]", r"^\[signal (?P<word>SIG[A-Z]{2,4}): "),  # Go
        refine=_report),
)  # fmt: skip

# As a field, a column or a state; prose that only speaks of it ("if the pod was OOMKilled") is no death
_OOM_KILLED = (
    r"""[Rr]eason["']?\s*[:=]\s*["']?OOM ?Killed\b|OOMKilled["']?\s*[:=]\s*["']?[Tt]rue\b|\d/\d\s+OOMKilled\s|[Tt]erminated \(OOMKilled"""
    r"|OOMKilled\s*$|\bOOMKilled \(exit code \d"
)
_CONTAINER = Rule(
    "oom-kill-memcg", "the container was killed at its memory limit", 0.85,
    Row("OOM", '"Reason": "OOMKilled"', _OOM_KILLED),
    Row("Container killed due to memory"), Row("Container killed by YARN for exceeding"),
    Row("gone over memory limit of"),  # HTCondor
    Row("ran out-of-memory and exited with a non-zero status"),  # Vertex AI
    Row("Memory limit exceeded (", "Memory limit exceeded (16Gi)", r"^Memory limit exceeded \(\d"),  # Hugging Face Spaces
    kind="summary", loud=True, pids=_pids,
    unless=r"OOMKilled\W+[Ff]alse|\b(?:prevent|avoid|fix|stop|address|handle|because of|if|when)\b[\w ]{0,30}OOM ?Killed",
)  # fmt: skip
_ABORTED = Rule(
    "abort", "native code ended the process (abort)", 0.75,
    Row("terminate called"), Row("double free or corruption"), Row("corrupted size"), Row("corrupted double"), Row("Fatal glibc error"),
    Row("malloc.c:", "python: malloc.c:2394: sysmalloc: Assertion `x' failed.", r"malloc\.c:\d+: \w+: Assertion"),
    Row("(): ", "free(): invalid pointer", r"\b(?:free|(?<!Error in )malloc|realloc|munmap_chunk|malloc_consolidate|tcache\w*)\(\): ",
        other="<jemalloc>: Error in malloc(): out of memory"),
    Row("stack smashing detected"), Row("buffer overflow detected"), Row("pure virtual method called"),
    Row("Attempt to free invalid pointer"), Row("allocate too many memory regions"), Row("malloc: *** error"),  # tcmalloc, OpenBLAS, macOS
    Row("AddressSanitizer: ", "==4242==ERROR: AddressSanitizer: heap-buffer-overflow on address 0x6020", "AddressSanitizer: (?!SEGV)"),
    Row("uncaught ", "libc++abi: terminating due to uncaught exception of type x", "terminating (?:due to|with) (?:an )?uncaught"),
    Row("OMP: Error #15"),
    Row("Check fail", "F tensorflow/core/framework/tensor.cc:12] Check failed: ptr",
        r"^F\d{4} .{0,120}Check failed|\bF [\w./-]{1,160}:\d+\] Check failed: |Check failure stack trace:"
        r"|\.(?:cc|cu|cpp|h|cuh):\d+: Check failed: "),
    facts=JobFacts(signal=6),
)  # fmt: skip


def _named_signal(said: FailureText, match: Match, hit: Hit) -> Hit:
    """joblib adds how the worker ended: "The exit codes of the workers are {SIGKILL(-9)}"."""
    known = re.search(r"\{?(SIG[A-Z]+)\(-\d+\)", said.text)
    return _by_signal(_NUMBERS[known[1]], 0.85, pids=hit.pids) if known and known[1] in _NUMBERS else hit


_VANISHED = Rule(
    "killed-unknown", "a worker process vanished; nothing says who ended it", 0.5,
    Row("ernel ", "The kernel appears to have died. It will restart automatically.",
        r"[Kk]ernel (?:for \S{1,120} )?(?:appears to have )?(?:died|crashed)"),
    Row("died unexpectedly", "Worker proc VllmWorker-2 died unexpectedly, shutting down executor.",
        r"(?i:worker|process|proc|actor|child|engine)\b[^.!?\n]{0,40}\bdied unexpectedly"),
    Row("no longer alive", "One or more background workers are no longer alive.",
        r"\b(?:[Ww]orkers?|[Pp]rocess(?:es)?)\b[^.!?\n]{0,20} no longer alive"),
    Row("orkers died"), Row("node down: Not properly terminated"),  # pytest-xdist
    Row("has abruptly died"), Row("terminated abruptly"), Row("killed by SIGKILL by OOM killer"), Row("DeadKernelError"),
    Row("after using all available RAM", "crashed after using all available RAM", r"\bcrash\w* after using all available RAM"),  # Colab
    Row("tried to allocate more memory than is available. It has restarted"),  # Kaggle
    Row("managed by the executor was unexpectedly terminated"), Row("KilledWorker"),
    Row("TerminatedWorkerError", "TerminatedWorkerError: x {SIGKILL(-9)}", "TerminatedWorkerError(?:$|: )", {"signal": 9}),  # joblib
    Row("The actor ", "The actor is dead because its worker process has died. (pid=4242)",
        r"The actor (?:is dead|died|\w{1,64} is unavailable)"),
    Row("A worker died or was killed while executing"),  # Ray
    Row("Lost executor ", "ERROR YarnClusterScheduler: Lost executor 4 on node17: remote Rpc client disassociated",
        r"\bLost executor \d+ on \S+: \S"),  # Spark
    Row("was OOM", "The worker was OOM-killed", r"(?:[Ww]orker|[Pp]rocess)\b.{0,30}\bwas OOM[- ]killed",
        other="My run was OOM-killed yesterday"),
    Row("Killed signal terminated program"), Row("execute command: Killed"), Row("compiler error: Killed"),
    loud=True, pids=_pids, refine=_named_signal,
)  # fmt: skip
_NANNY = Rule(
    "killed-unknown", "a worker of Ray or dask was killed, and its parent does not know by whom", 0.45,
    Row("Termination is unexpected"),
    Row("was killed by unknown signal", "Worker process 4242 was killed by unknown signal", gives={"pids": (4242,)}),
    kind="summary", pids=_pids,
)  # fmt: skip
# last words of launchers, where no signal was at work
_MPI = Rule(
    "other-error", "a rank ended with an error of its own", 0.4,
    Row("processes exited with non-zero status, thus"), Row("Primary job  terminated normally, but"), Row("MPI_ABORT was invoked on rank"),
    Row("Normal termination (return value ", "Normal termination (return value 1)", r"Normal termination \(return value [1-9]"),  # HTCondor
    kind="summary", pids=_pids,
)  # fmt: skip
_CRASHED = Rule(
    "abort", "native code crashed", 0.35, Row(" Crashed", "Thread 0 Crashed:: Dispatch queue", r"^Thread \d{1,4} Crashed"),  # macOS
    kind="summary", only="printed",
)  # fmt: skip

# Launchers: torchrun, accelerate, deepspeed, torch.multiprocessing, mpirun, srun, joblib, docker. A row gives an exit code, or a
# signal by its number, its name or a shell's word for it.
_BY = r"[ :(\"']+(?:(?P<name>SIG[A-Z]{2,4})\b|-?(?P<number>\d{1,2})\b)"
_CODE = r"(?P<code>-?\d{1,3})\b"
_KILL = {"signal": 9}
_EXITS = (
    Row("eturn ", "['python', 'train.py'] exits with return code = -9", rf"[Rr]eturn [Cc]ode ?(?:=|of|:)? ?{_CODE}", _KILL),
    Row("EXIT CODE: ", "=   EXIT CODE: 9", r"^=? *EXIT CODE: (?P<number>\d{1,3})\b", _KILL),
    Row("non-zero ", "the process ended with non-zero code: 137", rf"non-zero (?:code:|status of) {_CODE}", _KILL),
    Row("W&B process to finish", "wandb: Waiting for W&B process to finish... (failed 137).", rf"to finish\.\.\. \(failed {_CODE}", _KILL),
    Row("xit", "Process finished with exit code 137 (interrupted by signal 9: SIGKILL)",
        r"[Ee]xit(?:ed|s)?(?: with)?(?: a)?(?: non-zero)?[ _]?(?:exit )?(?:[Cc]ode|[Ss]tatus(?: code)?)(?: is)?[ :=('\"]*"
        rf"{_CODE}(?!/\d)", _KILL),
    Row("errno 1", "npm ERR! errno 137", r"^npm (?:ERR!|error) errno (?P<code>1[345]\d)\b", _KILL),
    Row("make", "make: *** [Makefile:3: train] Error 137", rf"^make\S*: \*\*\* .{{1,200}}\] Error {_CODE}", _KILL),
    Row("died with <Signals.", "CalledProcessError: Command 'x' died with <Signals.SIGKILL: 9>.",
        r"died with <Signals\.(?P<name>SIG[A-Z]+)", _KILL),
    Row("terminated ", "worker 3 terminated by SIGKILL", rf"terminated (?:with|by){_BY}", _KILL),
    Row("ignal", "traceback : Signal 9 (SIGKILL) received by PID 4242", rf"(?<![\w-])[Ss]ignal(?!\(7\)):?{_BY}", {"signal": 9,
        "pids": (4242,)}),
    Row("BY SIGNAL", "BAD TERMINATION: KILLED BY SIGNAL: 9 (Killed)", rf"BY SIGNAL{_BY}", _KILL),
    Row("was sent SIG", "Worker (pid:4242) was sent SIGKILL!", r"was sent (?P<name>SIG[A-Z]{2,4})\b", {"signal": 9, "pids": (4242,)}),
    Row("SIG", "The exit codes of the workers are {SIGSEGV(-11)}", r"(?P<name>SIG(?:KILL|SEGV|BUS|ABRT))\(-\d{1,2}\)", {"signal": 11}),
    Row("ignal", "[node12:04242] Signal: Aborted (6)", r"[Ss]ignal:? \(?[A-Z][a-z]+(?: [a-z]+)? \((?P<number>\d{1,2})\)", {"signal": 6,
        "pids": (4242,)}),
    Row("task", "srun: error: node17: task 0: Killed", r"tasks? [\d,-]+: (?P<word>Killed|Segmentation fault|Bus error|Aborted|Terminated)",
        _KILL),
    Row("*** SIG", "*** SIGSEGV (@0x0) received by PID 4242 (TID 0x7f) from PID 0; stack trace: ***",
        r"\*\*\* (?P<name>SIG[A-Z]+) (?:\(|received at)",
        {"signal": 11, "pids": (4242,)}),
    Row("signal: ", "exit: signal: killed", r"\bsignal: (?P<word>killed|segmentation fault|aborted|bus error)", _KILL),
)  # fmt: skip

# glibc's words of five languages, as bash prints them
_ENGLISH = {
    "已杀死": "Killed", "段错误": "Segmentation fault", "总线错误": "Bus error", "已放弃": "Aborted",
    "強制終了": "Killed", "セグメンテーション違反です": "Segmentation fault",
    "죽었음": "Killed", "세그멘테이션 오류": "Segmentation fault",
    "Getötet": "Killed", "Speicherzugriffsfehler": "Segmentation fault",
    "Processus arrêté": "Killed", "Tué": "Killed", "Erreur de segmentation": "Segmentation fault",
}  # fmt: skip
TRANSLATED = tuple(_ENGLISH)
_FOREIGN = re.compile(
    r"^(?:\S{1,200} ?[:：] ?)?(?:(?:行|第|줄|Zeile|ligne) ?\d{1,6}(?: ?行)? ?[:：]\s+)?(?P<job>\[\d+\]\s*[-+]?\s+)?(?P<pid>\d{2,9} )?"
    rf"(?P<word>{'|'.join(_ENGLISH)})(?P<dump> ?[(（][^()（）]{{2,40}}[)）])?(?P<rest>\s.{{0,3500}}|)$"
)
# A shell's own words: alone on a line, after "line N: PID", "[1]+", "zsh:"
_WORD = (
    "(?P<word>[Kk]illed|[Ss]egmentation fault|[Bb]us error|Abort trap: 6|[Aa]bort(?:ed)?|[Tt]erminated|Illegal instruction"
    "|Floating point exception)"
)
_REST = r"(?:: \d{1,2})?(?: ?\(core dumped\))?(?P<rest>\s.{0,3500}|)$"
_SHELL = re.compile(
    r"^(?:make\S*: \*\*\* .{1,200}\] |(?:\S+: )?(?:line \d+: +)?(?P<pid>\d{2,9}) |\[\d+\]\s*[-+]?\s+(?:(?P<job>\d+) )?"
    rf"|(?:zsh|bash|sh|fish|-bash|/bin/\w+): (?:\d+: )?(?:line \d+: +(?P<three>\d+) )?)?{_WORD}{_REST}"
)
_QUOTED = re.compile(rf": line \d+: +(?P<pid>\d{{1,9}}) {_WORD}{_REST}")
_COMMAND = re.compile(
    r"\s+(?:\(core dumped\)\s+)?(?:\( )?(?:[A-Z_]\w*=\S* )*(?:[^\s/]*/)*(?P<name>[\w.+-]{1,64})(?=\s|$)"
)
_PYTHON = re.compile(
    r"Fatal Python error: (?P<what>[A-Z][\w -]+)|Windows fatal exception: (?:access violation|stack overflow)|Segfault encountered"
    r"|Caught signal (?P<number>\d+)"
)
# as chats and issues mark it: **Killed**, `Segmentation fault (core dumped)`
_MARKED = re.compile(r"^(?P<mark>\*{1,3}|`{1,3})(?P<body>\w[^*`\n]{2,300})(?P=mark)$")
# "exit code 137 means …": what a number stands for, not that it was seen
_EXPLAINED = re.compile(
    r"[)`'\"*]{0,3}\s(?:\([^()]{1,40}\) )?(?:means|indicates|denotes|stands for|is (?:returned|used|reserved)|if|when|usually)\b"
)
# Windows has its own numbers: access violation, heap corruption, stack overrun and overflow, Ctrl-C
_WINDOWS = re.compile(r"(?:[Cc]ode|[Ss]tatus)[ :='\"]*(?P<code>32212\d{5}|-10737\d{5})\b")
_NTSTATUS = {0xC0000005: 11, 0xC00000FD: 11, 0xC000013A: 2}
_NAMED = re.compile(r"\b(?P<name>SIG(?:SEGV|ABRT|BUS))\b")  # a crash that the text only names
_DUMPED = re.compile(r"(?P<word>[Ss]egmentation fault|[Bb]us error|[Aa]borted) ?\(core dump")  # in a sentence
_CLOSING = re.compile(
    r"closing signal|Killing subprocess|[Ss]ending (?:signal|SIG)|unblock|(?<!Task )handler|Terminating process|timeout --signal|forwarding"
)
_KERNEL = re.compile(r"Killed process \d+|segfault at |total-vm|oom_reaper|oom-kill:")


def _in_english(text: str) -> str:
    """The line as an English shell prints it."""
    said = _FOREIGN.match(text) if not text.isascii() or "Speicher" in text or "Erreur" in text else None
    if said is None:
        return text
    dump = " (core dumped)" if said["dump"] else ""
    return f"{said['job'] or ''}{said['pid'] or ''}{_ENGLISH[said['word']]}{dump}{said['rest']}"


def _fatal(said: FailureText) -> Hit | None:
    match = _PYTHON.search(said.text)
    if match is None:
        return None
    what = (match["what"] or "").strip()
    if what and what.lower() not in _NUMBERS:
        return Hit("abort", f"the interpreter gave up: {what}", 0.8)
    number = int(match["number"] or _NUMBERS.get(what.lower(), 11))
    return _by_signal(number, 0.93, "failure", _pids(said.text))


def _shell(said: FailureText) -> Hit | None:
    if said.raised:
        return None
    if said.level == "FATAL" and said.text.startswith("Check failed: "):
        return _ABORTED.hit
    told = _SHELL.match(said.text)
    if told is not None and _is_shell(told):
        pid = told["pid"] or told["three"] or told["job"]
    elif told := _QUOTED.search(said.text):
        pid = told["pid"]
    else:
        return None
    hit = _by_signal(_NUMBERS[told["word"].lower().split(":")[0]], 0.85, pids=(int(pid),) if pid else ())
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
    return _by_signal(_NTSTATUS.get(int(match["code"]) & 0xFFFFFFFF, 6), 0.85, pids=_pids(said.text))


def _exited(said: FailureText, match: Match) -> Hit | None:
    """None for an exit that is no death."""
    groups, pids, level = match.groupdict(), _pids(said.text), said.level
    if name := groups.get("name"):
        number = _NUMBERS.get(name, 0)
        weak = level in ("INFO", "DEBUG")
        return (
            _by_signal(number, 0.5 if weak else 0.85, "talk" if weak else "summary", pids) if number else None
        )
    if groups.get("number"):
        number = int(groups["number"])
        # 10 and 12 are others elsewhere; a job's own signals are asked for
        if number not in _MEANS or "SIGUSR" in said.text or (said.quiet and number not in (9, 11)):
            return None
        return _by_signal(number, 0.45 if said.quiet else 0.85, pids=pids)
    if groups.get("word"):
        return _by_signal(_NUMBERS[groups["word"].lower()], 0.8, pids=pids)
    code = int(groups["code"])
    # a program's own -1 is no hang-up, unless one of Python's launchers says so
    number = (
        -code if code < 0 and (code < -1 or "SIGHUP" in said.text) else code - 128 if 128 < code < 160 else 0
    )
    if number in _MEANS:
        return _by_signal(number, 0.85, pids=pids)
    if code == 0 or level in ("INFO", "DEBUG"):
        return None
    return Hit("other-error", f"a process ended with exit code {code}", 0.25, "summary", pids=pids)


def _only_named(said: FailureText) -> Hit | None:
    if said.raised or said.quiet:
        return None
    pids = _pids(said.text)
    if named := _NAMED.search(said.text):
        return _by_signal(_NUMBERS[named["name"]], 0.35, pids=pids)
    if dumped := _DUMPED.search(said.text):
        hit = _by_signal(_NUMBERS[dumped["word"].lower()], 0.5, pids=pids)
        return replace(hit, facts=replace(hit.facts, heard="quoted"))
    return None


_BEFORE_EXITS = (
    _CONTAINER.read,
    _fatal,
    _ABORTED.read,
    _VANISHED.read,
    _shell,
    _windows,
    _NANNY.read,
)


def _recognise(said: FailureText) -> Hit | None:
    text = said.text.strip()
    marked = _MARKED.match(text)
    text = _in_english((marked["body"] if marked else text).rstrip("."))
    if _KERNEL.search(text) or (_CLOSING.search(text) and not said.raised):
        return None
    said = replace(said, text=text)
    for read in _BEFORE_EXITS:
        if (hit := read(said)) is not None:
            return hit
    matches = [match for row in _EXITS if (match := row.search(text))]
    if matches:
        first = min(matches, key=lambda match: match.start())
        if _EXPLAINED.match(text, first.end()):
            return None
        if (hit := _exited(said, first)) is not None:
            return hit
    return _MPI.read(said) or _only_named(said) or _CRASHED.read(said)


_ANCHORS = (
    "illed", "SIG", "egmentation fault", "egfault", "us error", "bort", "Fatal Python error", "erminated",
    "fatal exception", "llegal instruction",
    "ode 32212", "tatus 32212", "ode -1073", "tatus -1073", "Floating point exception", "Check failed", *TRANSLATED,
)  # fmt: skip
SIGNALS = (CodeRule(_ANCHORS, _recognise, (_CONTAINER, _ABORTED, _VANISHED, _NANNY, _MPI, _CRASHED), _EXITS),)

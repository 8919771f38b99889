"""Deaths of processes, as runtimes, engines, launchers and libraries tell them in a sentence of their own."""

from __future__ import annotations

import re

from oomproof.evidence.texts.failures.recogniser import FailureText, Hit, Kind
from oomproof.evidence.texts.failures.rules import Match, Row, Rule
from oomproof.evidence.texts.finding import JobFacts

MEANS = {
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
NAMES = {"SIGKILL": 9, "SIGSEGV": 11, "SIGBUS": 7, "SIGABRT": 6, "SIGIOT": 6, "SIGTERM": 15, "SIGINT": 2, "SIGHUP": 1,
          "SIGILL": 4, "SIGFPE": 8}  # fmt: skip
WORDS = {"killed": 9, "segmentation fault": 11, "bus error": 7, "aborted": 6, "abort": 6, "abort trap": 6, "terminated": 15,
          "illegal instruction": 4, "floating point exception": 8, "floating-point exception": 8, "hangup": 1, "interrupt": 2}  # fmt: skip

# … nor who sent the signal ("from PID 0"); Open MPI and UCX: "[node12:04242] Signal: Aborted (6)"
_PID = re.compile(
    r"\(?pid[:= ]+([1-9]\d{0,8})|(?<!from )PID:? ([1-9]\d{0,8})|[Pp]rocess (\d{3,9})\b"
    r"|^\[[\w.-]{1,64}:(\d{2,9})\s*(?::\d+:\d+)?\]\s+(?:\*\*\*|Signal|Caught signal)"
)


def by_signal(number: int, strength: float = 0.8, kind: Kind = "summary", pids: tuple[int, ...] = ()) -> Hit:
    cause, says = MEANS.get(number, ("other-error", f"died of signal {number}"))
    return Hit(cause, says, strength, kind, pids=pids, facts=JobFacts(signal=number))


def pids_in(text: str) -> tuple[int, ...]:
    return tuple(int(group) for match in _PID.finditer(text[:900]) for group in match.groups() if group)[:8]


# What a runtime prints when a signal ends it
_REPORTED = {
    "segmentation fault": 11, "segfault": 11, "sigsegv": 11, "exception_access_violation": 11,
    "access to an undefined portion of a memory object": 7, "bus error": 7, "sigbus": 7, "process abort signal": 6, "sigabrt": 6,
    "erroneous arithmetic operation": 8, "sigfpe": 8, "illegal instruction": 4, "illegal operation": 4, "sigill": 4,
    "termination signal": 15,
}  # fmt: skip


def _report(said: FailureText, match: Match, hit: Hit) -> Hit | None:
    groups = match.groupdict()
    number = _REPORTED.get((groups.get("word") or "").lower()) or int(groups.get("number") or 0)
    return by_signal(number, 0.93, "failure", hit.pids) if number else None


CRASH_REPORTS = (
    Rule("segfault", "crashed in native code (SIGSEGV)", 0.93,
         # Paddle; 1.8 said "A serious error (…)"
         Row("is detected by the operating system", "FatalError: `Segmentation fault` is detected by the operating system.",
             r"^(?:\w{0,20}Error: )?(?:`|A serious error \()(?P<word>[A-Z][\w ]{3,60})[`)] is detected by the operating system"),
         Row("*** caught ", " *** caught segfault ***", r"^\s*\*\*\* caught (?P<word>segfault|bus error|illegal operation) \*\*\*"),  # R
         # Julia, since 1.9 with its pid
         Row("signal (", "signal (11): Segmentation fault", r"^signal \((?P<number>\d{1,2})(?:\.\d+)?\)(?: \(-?\d+\))?: [A-Z]"),
         Row("] signal ", "[4242] signal 11 (1): Segmentation fault", r"^\[(?P<pid>\d{2,9})\] signal \(?(?P<number>\d{1,2})(?:\.\d+)?\)?(?: \(-?\d+\))?: [A-Z]", {"pids": (4242,)}),
         Row(" at pc=0x", "#  SIGSEGV (0xb) at pc=0x00007f0012, pid=4242, tid=4243",  # Java
             r"^#?\s*(?P<word>SIG[A-Z]{2,4}|EXCEPTION_ACCESS_VIOLATION) \(0x[0-9a-f]+\) at pc=0x[0-9a-f]+, pid=(?P<pid>\d{1,9})", {"pids": (4242,)}),
         Row("[signal SIG", "[signal SIGSEGV: segmentation violation code=0x1 addr=0x0 pc=0x0]", r"^\[signal (?P<word>SIG[A-Z]{2,4}): [a-z ]+ code="),  # Go
         refine=_report),
)  # fmt: skip

CONTAINER = Rule(
    # as a field, a column or a state; prose that only speaks of it ("if the pod was OOMKilled") is no death
    "oom-kill-memcg", "the container was killed at its memory limit", 0.85,
    Row("OOM", '"Reason": "OOMKilled"', r"""[Rr]eason["']?\s*[:=]\s*["']?OOM ?Killed\b|OOMKilled["']?\s*[:=]\s*["']?[Tt]rue\b|\d/\d\s+OOMKilled\s|[Tt]erminated \(OOMKilled|\bOOMKilled\s*$|\bOOMKilled \(exit code \d"""),
    Row("OutOfMemoryError: Container killed due to memory", "OutOfMemoryError: Container killed due to memory usage"),
    Row("Container killed by YARN", "ExecutorLostFailure: Container killed by YARN for exceeding memory limits.", r"Container killed by YARN for exceeding (?:\S+ )?memory"),
    Row("memory limit of ", "Job has gone over memory limit of 4096 megabytes. Peak usage: 4200 megabytes.", r"Job has gone over (?:\w+ )?memory limit of \d"),  # HTCondor
    Row("ran out-of-memory and exited with a non-zero status", "The replica workerpool0-0 ran out-of-memory and exited with a non-zero status of 9(SIGKILL)."),  # Vertex AI
    Row("emory limit exceeded (", "Memory limit exceeded (16Gi)", r"^Memory limit exceeded \(\d"),  # Hugging Face Spaces
    kind="summary", loud=True, unless=r"OOMKilled\W+[Ff]alse|\b(?:prevent|avoid|fix|stop|address|handle|because of|if|when)\b[\w ]{0,30}OOM ?Killed", pids=pids_in,
)  # fmt: skip
ABORTED = Rule(
    "abort", "native code ended the process (abort)", 0.75,
    Row("terminate called", "terminate called after throwing an instance of 'c10::Error'"),
    Row("malloc.c:", "python: malloc.c:2394: sysmalloc: Assertion `x' failed.", r"malloc\.c:\d+: \w+: Assertion"),
    Row("free(): ", "free(): invalid pointer"),
    Row("double free or corruption", "double free or corruption (!prev)"),
    Row("malloc(): ", "malloc(): invalid size (unsorted)", other="<jemalloc>: Error in malloc(): out of memory", pattern=r"(?<!Error in )malloc\(\): "),
    Row("realloc(): ", "realloc(): invalid pointer", r"\brealloc\(\): invalid "),
    Row("tcache_thread_shutdown(): ", "tcache_thread_shutdown(): unaligned tcache chunk detected"),
    Row("*** buffer overflow detected ***", "*** buffer overflow detected ***: terminated"),
    Row("Fatal glibc error: ", "Fatal glibc error: malloc assertion failure in sysmalloc: (old_top == initial_top (av))"),
    Row("allocate too many memory regions", "OpenBLAS : Program is Terminated. Because you tried to allocate too many memory regions."),
    Row("Attempt to free invalid pointer", "src/tcmalloc.cc:332] Attempt to free invalid pointer 0x55d1"),
    Row("Internal Error (", "#  Internal Error (g1ConcurrentMark.cpp:1234), pid=4242, tid=4243", r"^#\s+Internal Error \(\S{1,120}\), pid=(?P<pid>\d+)"),  # Java
    Row("has overflowed its stack", "thread 'main' has overflowed its stack", r"^thread '[^'\n]{1,80}'(?: \(\d+\))? has overflowed its stack"),
    Row("ERROR: AddressSanitizer: ", "==4242==ERROR: AddressSanitizer: heap-buffer-overflow on address 0x6020", r"ERROR: AddressSanitizer: (?!SEGV)[\w-]+"),
    Row("malloc_consolidate(): ", "malloc_consolidate(): unaligned fastbin chunk detected"),
    Row("malloc: *** error", "python(4242,0x1) malloc: *** error for object 0x1: pointer being freed was not allocated"),
    Row("corrupted ", "corrupted size vs. prev_size", r"corrupted (?:size|double)"),
    Row("munmap_chunk()", "munmap_chunk(): invalid pointer"),
    Row("stack smashing", "*** stack smashing detected ***: terminated"),
    Row("uncaught ", "libc++abi: terminating due to uncaught exception of type std::runtime_error: x", r"terminating (?:due to|with) (?:an )?uncaught (?:foreign )?exception"),
    Row("OMP: Error #15", "OMP: Error #15: Initializing libiomp5.dylib, but found libomp.dylib already initialized."),
    Row("Check fail", "F tensorflow/core/framework/tensor.cc:12] Check failed: ptr", r"^F\d{4} .{0,120}Check failed|\bF (?:[\w./-]{1,160}:\d+\] )Check failed: |Check failure stack trace:"),
    Row("Check fail", "[07:25:16] /build/src/gpu_hist.cu:582: Check failed: fmat.SingleColBlock() must have one block", r"\.(?:cc|cu|cpp|h|cuh):\d+: Check failed: "),
    Row("pure virtual method called", "pure virtual method called, Aborted"),
    facts=JobFacts(signal=6),
)  # fmt: skip


def _named_signal(said: FailureText, match: Match, hit: Hit) -> Hit:
    """joblib adds how the worker ended: "The exit codes of the workers are {SIGKILL(-9)}"."""
    known = re.search(r"\{?(SIG[A-Z]+)\(-\d+\)", said.text)
    return by_signal(NAMES[known[1]], 0.85, pids=hit.pids) if known and known[1] in NAMES else hit


VANISHED = Rule(
    "killed-unknown", "a worker process vanished; nothing says who ended it", 0.5,
    Row("ernel ", "The kernel appears to have died. It will restart automatically.", r"[Kk]ernel (?:for \S{1,120} )?(?:appears to have )?(?:died|crashed)"),
    Row("died unexpectedly", "Worker proc VllmWorker-2 died unexpectedly, shutting down executor.", r"(?i:worker|process|proc|actor|child|engine)\b[^.!?\n]{0,40}\bdied unexpectedly|Actor ?died unexpectedly"),
    Row("orkers died", "RuntimeError: Background workers died. Look for the error message further up!", r"\b[Ww]orkers died\b"),
    Row("no longer alive", "One or more background workers are no longer alive.", r"\b(?:[Ww]orkers?|[Pp]rocess(?:es)?)\b[^.!?\n]{0,20} no longer alive"),
    Row("node down: Not properly terminated", "[gw0] node down: Not properly terminated"),
    Row("has been killed by \"OOM Killer\"", 'The job has been killed by "OOM Killer", please check your job\'s memory usage.'),
    Row("Died unexpectedly", "ActorDied unexpectedly: RayActorError", r"Actor ?Died unexpectedly"),
    Row("abruptly", "One of the subprocesses has abruptly died during map operation.", r"subprocesses? has abruptly died|terminated abruptly"),
    Row("used all available RAM", "Your notebook tried to use more: it used all available RAM and crashed"),
    Row("using all available RAM", "Your session crashed after using all available RAM.", r"crashed after using all available RAM"),
    Row("killed by SIGKILL by OOM killer", "worker was killed by SIGKILL by OOM killer"),
    Row("unexpectedly terminated", "A worker process managed by the executor was unexpectedly terminated. {SIGKILL(-9)}",
        r"worker process managed by the executor was unexpectedly terminated", {"signal": 9}),
    Row("The actor ", "The actor is dead because its worker process has died. (pid=4242)", r"The actor (?:is dead|died)|The actor \w{1,64} is unavailable"),
    Row("WorkerCrashedError", "ray.exceptions.WorkerCrashedError: The worker died unexpectedly while executing this task."),
    Row("A worker died or was killed while executing", "(raylet) A worker died or was killed while executing a task by an unexpected system error."),
    Row("KilledWorker", "distributed.scheduler.KilledWorker: Attempted to run task on 4 different workers"),
    Row("process_executor.Termin", "joblib.externals.loky.process_executor.TerminatedWorkerError: x"),
    Row("TerminatedWorkerError", "TerminatedWorkerError", r"TerminatedWorkerError$"),
    Row("Lost executor ", "15/10/26 16:13:40 ERROR YarnClusterScheduler: Lost executor 4 on node17: remote Rpc client disassociated", r"\bLost executor \d+ on \S+: \S"),  # Spark
    Row("was OOM", "The worker was OOM-killed", r"(?<!\ba pod )(?<!\ba job )(?<!\ba container )(?<!\ba process )was OOM[- ]killed(?! (?:yesterday|before|earlier|last|once|until|when I))",
        other="My run was OOM-killed yesterday, today it went through"),
    Row("DeadKernelError", "nbclient.exceptions.DeadKernelError: Kernel died"),
    Row("tried to allocate more memory than is available. It has restarted", "Your notebook tried to allocate more memory than is available. It has restarted."),
    Row("Killed signal terminated program", "g++: fatal error: Killed signal terminated program cc1plus"),
    Row("unable to execute command: Killed", "clang: error: unable to execute command: Killed"),
    loud=True, pids=pids_in, refine=_named_signal,
)  # fmt: skip
# a raylet's or a worker's end, with a list of what it may have been
MAY_BE = Rule(
    "killed-unknown", "a process of Ray ended, and nothing says who ended it", 0.5,
    Row("Termination is unexpected", "WARNING worker.py:1851 -- Raylet is terminated: ip=10.0.0.1, id=abc. Termination is unexpected. Possible reasons include: (1) SIGKILL by the user or system OOM killer",
        r"Raylet is terminated\b[^\n]{0,200}Termination is unexpected"),
    kind="summary", pids=pids_in,
)  # fmt: skip
NANNY = Rule(
    "killed-unknown", "a worker of dask was killed, and its nanny does not know by whom", 0.45,
    Row("was killed by unknown signal", "distributed.nanny - INFO - Worker process 4242 was killed by unknown signal", r"Worker process \d+ was killed by unknown signal", {"pids": (4242,)}),
    kind="summary", pids=pids_in,
)  # fmt: skip
# mpirun's and a scheduler's last words, where no signal was at work
MPI = Rule(
    "other-error", "a rank ended with an error of its own", 0.4,
    Row("exited with non-zero status", "mpirun detected that one or more processes exited with non-zero status, thus causing the job to be terminated.",
        r"detected that one or more processes exited with non-zero status"),
    Row("terminated normally, but ", "Primary job  terminated normally, but 1 process returned a non-zero exit", r"^Primary job +terminated normally, but \d+ process"),
    Row("MPI_ABORT was invoked on rank ", "MPI_ABORT was invoked on rank 0 in communicator MPI_COMM_WORLD", r"^MPI_ABORT was invoked on rank \d+"),
    Row("Normal termination (return value ", "Normal termination (return value 1)", r"Normal termination \(return value [1-9]\d{0,2}\)"),  # HTCondor
    kind="summary", pids=pids_in,
)  # fmt: skip
CRASHED = Rule("abort", "native code crashed", 0.35, Row(" Crashed", "Thread 0 Crashed:: Dispatch queue: com.apple.main-thread", r"^Thread \d{1,4} Crashed"),
                kind="summary", only="printed")  # fmt: skip

# Launchers: torchrun, accelerate, deepspeed, torch.multiprocessing, mpirun, srun, joblib, PyCharm, docker. A row gives an exit
# code, or a signal by its number, its name or a shell's word for it.
_BY = r"[ :(\"']+(?:(?P<name>SIG[A-Z]{2,4})\b|-?(?P<number>\d{1,2})\b)"
EXITS = (
    Row("exitcode", "  exitcode  : -9 (pid: 4242)", r"exitcode\s{0,4}: *(?P<code>-?\d{1,3})\b", {"signal": 9, "pids": (4242,)}),
    Row("return code", "['python', 'train.py'] exits with return code = -9", r"return code ?(?:=|of|:)? ?(?P<code>-?\d{1,3})\b", {"signal": 9}),
    Row("Return Code", "Step 3 Exits with Return Code = -6", r"Return Code ?(?:=|of|:)? ?(?P<code>-?\d{1,3})\b", {"signal": 6}),
    Row("EXIT CODE: ", "=   EXIT CODE: 9", r"^=? *EXIT CODE: (?P<number>\d{1,3})\b", {"signal": 9}),
    Row("non-zero code: ", "the process ended with non-zero code: 137", r"non-zero code: (?P<code>\d{1,3})\b", {"signal": 9}),
    Row("W&B process to finish", "wandb: Waiting for W&B process to finish... (failed 137).", r"W&B process to finish\.\.\. \(failed (?P<code>\d{1,3})\b", {"signal": 9}),
    Row("xit", "Process finished with exit code 137 (interrupted by signal 9: SIGKILL)",
        r"[Ee]xit(?:ed|s)?(?: with)?(?: a)?(?: non-zero)? (?:exit )?(?:[Cc]ode|[Ss]tatus(?: code)?)[ :='\"]*(?P<code>-?\d{1,3})\b(?!/\d)", {"signal": 9}),
    Row("died through signal ", "job 4242 died through signal KILL (9)", r"died through signal [A-Z]{2,6} ?\(?=? ?(?P<number>\d{1,2})\b", {"signal": 9}),
    Row("died due to signal ", "nvcc error   : 'cicc' died due to signal 9 (Kill signal)", r"died due to signal (?P<number>\d{1,2})\b", {"signal": 9}),
    Row("exit_status", "exit_status  137", r"^exit_status\s+(?P<code>\d{1,3})\s*$", {"signal": 9}),
    Row("error exit status (", "Process `ALIGN (1)` terminated with an error exit status (137)", r"terminated with an error exit status \((?P<code>\d{1,3})\)", {"signal": 9}),
    Row("exit code (", "[train-n0-0] terminated with exit code (137). Reason [Error].", r"terminated with exit code \((?P<code>\d{1,3})\)", {"signal": 9}),
    Row("ExitCode ", "ExitCode -9", r"^ExitCode (?P<code>-?\d{1,3})\b", {"signal": 9}),
    Row("ProcessSignaled(", "ERROR: failed process: Process(`python train.py`, ProcessSignaled(9)) [0]", r"\bProcessSignaled\((?P<number>\d{1,2})\)", {"signal": 9}),
    Row("Exit code is ", "Container killed on request. Exit code is 137", r"Exit code is (?P<code>\d{1,3})\b", {"signal": 9}),
    Row("errno 1", "npm ERR! errno 137", r"^npm (?:ERR!|error) errno (?P<code>1[345]\d)\b", {"signal": 9}),
    Row("OS return value: ", "== Error ==  system call finished abnormally, OS return value: -9", r"OS return value: (?P<code>-?\d{1,3})\b", {"signal": 9}),
    Row("in Docker Container: ", "command terminated with non-zero exit code: Error executing in Docker Container: 137",
        r"Error executing in Docker Container: (?P<code>\d{1,3})\b", {"signal": 9}),
    Row("non-zero status of ", "The replica exited with a non-zero status of 139.", r"non-zero status of (?P<code>\d{1,3})\b", {"signal": 11}),
    Row("make", "make: *** [Makefile:3: train] Error 137", r"^make\S*: \*\*\* .{1,200}\] Error (?P<code>\d{1,3})", {"signal": 9}),
    Row("died with <Signals.", "subprocess.CalledProcessError: Command '['python', 'train.py']' died with <Signals.SIGKILL: 9>.", r"died with <Signals\.(?P<name>SIG[A-Z]+)", {"signal": 9}),
    Row("exit", '{"exit_code": 137}', r"exit_?[Cc]ode[\"']?[:=] ?(?P<code>-?\d{1,3})\b", {"signal": 9}),
    Row("terminated ", "worker 3 terminated by SIGKILL", rf"terminated (?:with|by){_BY}", {"signal": 9}),
    Row("ignal", "traceback : Signal 9 (SIGKILL) received by PID 4242", rf"(?<![\w-])[Ss]ignal(?!\(7\)):?{_BY}", {"signal": 9, "pids": (4242,)}),
    Row("BY SIGNAL", "BAD TERMINATION: KILLED BY SIGNAL: 9 (Killed)", rf"BY SIGNAL{_BY}", {"signal": 9}),
    Row("exited due to", "the worker exited due to SIGKILL", rf"exited due to{_BY}", {"signal": 9}),
    Row("was sent SIG", "Worker (pid:4242) was sent SIGKILL!", r"was sent (?P<name>SIG[A-Z]{2,4})\b", {"signal": 9, "pids": (4242,)}),
    Row("SIG", "The exit codes of the workers are {SIGSEGV(-11)}", r"(?P<name>SIG(?:KILL|SEGV|BUS|ABRT))\(-\d{1,2}\)", {"signal": 11}),
    Row("Signal", "[node12:04242] Signal: Aborted (6)", r"Signal:? [A-Z][a-z]+(?: [a-z]+)? \((?P<number>\d{1,2})\)", {"signal": 6, "pids": (4242,)}),
    Row("task", "srun: error: node17: task 0: Killed", r"tasks? [\d,-]+: (?P<word>Killed|Segmentation fault|Bus error|Aborted|Terminated)", {"signal": 9}),
    Row("*** SIG", "*** SIGSEGV (@0x0) received by PID 4242 (TID 0x7f) from PID 0; stack trace: ***", r"\*\*\* (?P<name>SIG[A-Z]+) (?:\(|received at)", {"signal": 11, "pids": (4242,)}),
    Row("(interrupted by signal ", "Process ended (interrupted by signal 9: SIGKILL)", r"\(interrupted by signal (?P<number>\d{1,2})", {"signal": 9}),
    Row("signal: ", "exit: signal: killed", r"\bsignal: (?P<word>killed|segmentation fault|aborted|bus error)", {"signal": 9}),
)  # fmt: skip

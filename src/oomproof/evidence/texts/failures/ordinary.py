"""The everyday ends: full disks, missing modules, failed assertions, interrupts."""

from __future__ import annotations

import re

from oomproof.evidence.texts.failures.hit import Hit, Said, is_message

ANCHORS = ("No space left", "Errno 28", "Errno 122", "enough disk space", "nd 0 written", "nstance interruption", "command not found", "Error executing job", "panic(cpu", "Kernel panic", "ExecuteUserScript", "srun: error", "sbatch: error", "salloc: error", "qsub: error", "ould not load library", "annot find module", "Error in call to", "t open file", "failed assertion", "quota exceeded", "StorageFull", "ENOSPC", "WinError 112", "disk is full", "file write failed",
           "unexpected pos", "basic_ios", "PytorchStreamWriter", "ImportError", "ModuleNotFound", "undefined symbol", "cannot open shared object", "DLL load failed", "Assertion",
           "nterrupt", "death signal", "Aborted!", "SIGTERM", "^C", "AssertionError", "Failed to import", "TERM", "not enough space on the disk", "Ctrl", "SIGINT",
           "errno = 28", "SignalException", "Exception in thread", "No module named", "finding module spec", ": error: ")  # fmt: skip

_DISK = re.compile(
    r"No space left on device|\[Errno 28\]|\[Errno 122\]|[Dd]isk quota exceeded|StorageFull|\bENOSPC\b|WinError 112|database or disk is full"
    r"|[Nn]ot enough (?:free )?(?:space on the disk|disk space)|errno = 28"
)
_DISK_TORCH = re.compile(
    r"inline_container\.cc:\d+\].{0,40}(?:unexpected pos|file write failed)|PytorchStreamWriter failed writing|^OSError: \d+ requested and \d+ written|^RuntimeError: basic_ios::clear"
)
_IMPORT = re.compile(
    r"^(?:\w+\.)*(?:ImportError|ModuleNotFoundError)\b|undefined symbol: |^OSError: .{0,120}cannot open shared object file|DLL load failed"
    r"|^RuntimeError: Failed to import |error while loading shared libraries"
)
_MODULE = re.compile(
    r"^(?:\S+: )?No module named ['\"]?[\w.]+|^\S+: Error while finding module specification for "
)
_ASSERT = re.compile(r"^(?:\w+\.)*AssertionError\b")
_C_ASSERT = re.compile(r"\w: .{0,160}: Assertion [`'\"].{0,200}['`\"] failed|\.mm:\d+: failed assertion [`']")
_INTERRUPT = re.compile(
    r"^(?:\w+\.)*(?:RuntimeError: )?KeyboardInterrupt\b|SignalException: .{0,60}got signal: ?(?:15|2|1)\b|^\W*\^C\s*$|^Aborted!$"
)
_INTERRUPT_SAID = re.compile(
    r"[Dd]etected KeyboardInterrupt|[Rr]eceived (?:signal )?(?:SIGTERM|SIGINT)|(?:SIGTERM|SIGINT) (?:was )?(?:received|caught)|[Kk]eyboard ?[Ii]nterrupt(?:ion)?\b.{0,40}(?:detected|main thread|stopp|exit|caught)"
    r"|[Rr]eceived (?:Signals\.SIG(?:INT|TERM|HUP)|1|2|15) death signal|Ctrl[-+ ]+C (?:detected|pressed)|[Cc]aught (?:SIGTERM|SIGINT|KeyboardInterrupt)|[Ii]nterrupted by user|[Rr]eceived signal (?:15|2)\b|[Ii]nstance interruption notice|[Uu]ser requested (?:interrupt|stop)|Interrupted by user"
    r"|[Uu]ser interrupted\b|[Ii]nterrupted\b.{0,40}\bCtrl[-+ ]{1,3}C\b|\bCtrl[-+ ]{1,3}C\b[)!.,;: -]{0,4}(?:[Ee]xiting|[Ss]topping|[Ss]hutting down)"
)
_ARGUMENTS = re.compile(
    r"^[\w./-]{1,200}: error: (?:unrecognized arguments|the following arguments|argument |invalid choice)"
)
_COMMAND = re.compile(
    r"^(?:[\w./-]{1,80}: ){1,3}(?:line \d+: )?(?:\S{1,80}: )?command not found$|^\S*python\S*: can't open file "
)
_SCHEDULER = re.compile(r"^(?:srun|sbatch|salloc|qsub): error: (?!.{0,80}\btasks? \d)")
_LIBRARY = re.compile(r"^Could not load library lib\S+|^Error: [Cc]annot find module ")
_PANIC = re.compile(r"^panic\(cpu \d+ caller 0x|^Kernel panic - not syncing")
_SCRIPT = re.compile(r"\bExecuteUserScriptError:")  # SageMaker's word for whatever happened in it
_HYDRA = re.compile(r"^Error executing job with overrides: |^Error in call to target '")
_JVM = re.compile(r'^Exception in thread "[^"]{1,80}" (?:\w+\.){1,12}\w+')
_LAUNCHER = re.compile(r"[Ss]ending|closing signal|Bypassing")


def recognise(said: Said) -> Hit | None:
    text = said.text
    if (full := _DISK.search(text)) and not said.quiet:
        if (
            not said.raised
            and not is_message(full, said, strict=True)
            and "Error" not in text[: full.start()]
        ):
            return Hit("disk-full", "the text speaks of a full disk", 0.2, "talk")
        return Hit("disk-full", "the disk (or the quota on it) is full", 0.93 if said.raised else 0.6)
    if said.raised and _DISK_TORCH.search(text):
        return Hit("disk-full", "torch.save could not write the file: most often a full disk", 0.6)
    if _IMPORT.search(text) and (said.raised or "error" in text[:60] or "undefined symbol" in text):
        return Hit("import-error", "a module or library could not be loaded", 0.93 if said.raised else 0.5)
    if _ASSERT.search(text):
        return Hit("assert", "an assertion failed", 0.9)
    if _C_ASSERT.search(text) and "thread: [" not in text and "malloc.c" not in text:
        return Hit("assert", "an assertion in native code failed", 0.85)
    if _INTERRUPT.search(text):
        return Hit("interrupted", "interrupted from outside (Ctrl-C or a signal)", 0.95)
    if _INTERRUPT_SAID.search(text) and not _LAUNCHER.search(text):
        return Hit("interrupted", "interrupted from outside (Ctrl-C or a signal)", 0.8)
    if _ARGUMENTS.search(text):
        return Hit("other-error", "the command line was refused", 0.8)
    if not said.raised and _LIBRARY.search(text):
        return Hit("import-error", "a library could not be loaded", 0.7)
    if not said.raised and _SCHEDULER.search(text):
        return Hit("other-error", "the scheduler refused or ended the step", 0.4, "summary")
    if not said.raised and _PANIC.search(text):
        return Hit("other-error", "the kernel of the machine itself gave up (panic)", 0.8)
    if _SCRIPT.search(text):
        return Hit("other-error", "the user's script failed", 0.4, "wrapper")
    if not said.raised and _HYDRA.search(text):
        return Hit("other-error", "the job ended with an error", 0.5, "wrapper")
    if not said.raised and _JVM.search(text):
        return Hit("other-error", "a thread of the Java machine ended with an exception", 0.5)
    if not said.raised and _COMMAND.search(text):
        # a script without `set -e` goes on behind it, and may die of something else
        goes_on = {"goes_on": "yes"}
        return Hit("other-error", "the command could not be started", 0.4, "summary", details=goes_on)
    if _MODULE.search(text) and said.level not in ("WARNING", "INFO", "DEBUG"):
        return Hit("import-error", "a module is missing", 0.5)
    return None

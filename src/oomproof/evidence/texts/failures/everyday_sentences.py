"""The everyday ends: losses that are no number, full disks, missing modules, failed assertions, interrupts, refused commands."""

from __future__ import annotations

import re

from oomproof.evidence.texts.failures.rules import FailureText, Hit, Match, Row, Rule, is_message
from oomproof.evidence.texts.finding import JobFacts
from oomproof.records import replace

# "ImportError: No module named 'infer'": these types do not speak of numbers
_NOT_ABOUT_NUMBERS = ("ImportError", "ModuleNotFoundError", "KeyError", "FileNotFoundError", "AttributeError", "NameError", "TypeError",
                      "JSONDecodeError")  # fmt: skip
_STOPS = r".{0,60}(?:stop|abort|exit|quit|terminat"
# a loss as trainers print it: "loss: nan", "'loss': nan", "loss=nan", "train_loss nan"
LOSS = re.compile(
    r"\b(?:\w*_)?[Ll]oss(?![_ ]?scal)(?:[_/]\w+)?['\"]?\s*[:= ]\s*(?:tensor\()?(?P<value>-?(?:nan|NaN|inf|\d[\d.e+-]*))"
)

NOT_A_NUMBER = (
    Rule("nan", "a value that must be finite became NaN or infinite", 0.85,
        Row("nan", "ValueError: Input contains nan", r"\bnans?\b"),
        Row("N", "ValueError: Input X contains NaN.", r"\bN(?:aN|an|AN)s?\b"),
        Row("inf", "ValueError: cannot convert float inf to integer", r"\binfinit|\binf\b"),
        Row("finite", "RuntimeError: the loss is not finite", r"\b(?:not |non-)finite"),
        Row("oss scale", "FloatingPointError: Minimum loss scale reached (0.0001).", "[Mm]inimum loss scale|at minimum"),
        Row("exploding"), Row("nvalid loss"),
        only="raised", fits=lambda said, match: said.raised.rpartition(".")[2] not in _NOT_ABOUT_NUMBERS),
    Rule("nan", "training stopped itself: the loss is no longer a number", 0.85,
        *(Row(word, f"Loss is {word}, stopping training", rf"[Ll]oss (?:is|was|became|=) ?{word}\b(?:{_STOPS})|:|$)")
           for word in ("nan", "NaN", "NAN", "inf")),
        *(Row(word, f"{word} loss detected, aborting", rf"\b{word} (?:or [Ii]nf )?(?:\w+ )?(?:detected|encountered|found){_STOPS})")
           for word in ("nan", "NaN")),
        Row("nvalid loss, terminating"),
        Row("is not finite", "Monitored metric val_loss = nan is not finite.", r"metric \S+ = -?(?:nan|inf) is not finite"),  # Lightning
        Row("loss scale already at minimum"),  # DeepSpeed
        only="printed"),
)  # fmt: skip


def _disk(said: FailureText, match: Match, hit: Hit) -> Hit:
    before = said.text[: match.start()]
    if (
        said.raised
        or is_message(match, said, strict=True)
        or "Error" in before
        or before.lstrip().startswith("[Errno ")
    ):
        return hit
    return replace(hit, says="the text speaks of a full disk", strength=0.2, kind="talk")


def _refused(said: FailureText, match: Match) -> bool:
    told = "error" in said.text[:60] or "not found (required by" in said.text
    return bool(said.raised) or told or ("undefined symbol" in said.text and not said.quiet)


_OUTSIDE = "interrupted from outside (Ctrl-C or a signal)"
_BY_USER = (
    r"(?:[Dd]etected|[Cc]aught) KeyboardInterrupt|[Kk]eyboard ?[Ii]nterrupt(?:ion)?\b.{0,40}(?:detected|main thread|stopp|exit|caught)"
    r"|[Ii]nterrupted by user|[Uu]ser interrupted\b|[Ii]nstance interruption notice|[Uu]ser requested interrupt"
    r"|[Ii]nterrupted\b.{0,40}\bCtrl"
)
EVERYDAY = (
    Rule("disk-full", "the disk (or the quota on it) is full", 0.93,
        Row("No space left on device"), Row("[Errno 28]"), Row("[Errno 122]"), Row("isk quota exceeded", pattern="[Dd]isk quota exceeded",
            example="tar: x: Cannot write: Disk quota exceeded"),
        Row("ENOSPC"), Row("StorageFull"), Row("WinError 112"), Row("errno = 28"),  # node, Rust, Windows, HDF5
        Row("database or disk is full"),
        Row("ot enough ", "RuntimeError: Not enough free disk space", "[Nn]ot enough (?:free )?disk space"),
        printed=0.6, loud=True, refine=_disk),
    Rule("disk-full", "torch.save could not write the file: most often a full disk", 0.6,
        Row("inline_container.cc:", "RuntimeError: [enforce fail at inline_container.cc:471] . unexpected pos 576 vs 470",
            r"inline_container\.cc:\d+\].{0,40}(?:unexpected pos|file write failed)"),
        Row("PytorchStreamWriter failed writing"), Row("basic_ios::clear"),
        Row(" written", "OSError: 4096 requested and 0 written", r"^OSError: \d+ requested and \d+ written"),
        only="raised"),
    Rule("import-error", "a module or library could not be loaded", 0.93,
        Row("Error", "ModuleNotFoundError: No module named 'flash_attn'", r"^(?:\w+\.)*(?:ImportError|ModuleNotFoundError)\b"),
        Row("undefined symbol: ", "/opt/env/libx.so: undefined symbol: cublasLt"), Row("' not found (required by"),
        Row("cannot open shared object", "OSError: libcudart.so.11.0: cannot open shared object file", "^OSError: .{0,120}cannot open"),
        Row("Failed to import ", "RuntimeError: Failed to import transformers.models", "^RuntimeError: Failed to import "),
        Row("error while loading shared libraries"),
        printed=0.5, fits=_refused),
    Rule("assert", "an assertion failed", 0.9,
        Row("AssertionError", "AssertionError: shapes differ", r"^(?:\w+\.)*AssertionError\b")),
    Rule("assert", "an assertion in native code failed", 0.85,
        Row("ssertion ", "python: ../src/foo.cpp:12: void f(): Assertion `x > 0' failed.",
            r"\w: .{0,160}: Assertion [`'\"].{0,200}['`\"] failed|\.mm:\d+: failed assertion [`']|^Assertion failed: .{1,200}, line \d"),
        Row("GGML_ASSERT"),  # llama.cpp
        unless=r"thread: \[|malloc\.c"),
    Rule("interrupted", _OUTSIDE, 0.95,
        Row("KeyboardInterrupt", "KeyboardInterrupt", r"^(?:\w+\.)*(?:RuntimeError: )?KeyboardInterrupt\b"),
        Row("SignalException", "torch.distributed.elastic.multiprocessing.api.SignalException: Process 4242 got signal: 15",
            r"SignalException(?:$|: .{0,60}got signal: ?(?:15|2|1)\b)"),
        Row("^C", "^C", r"^\W*\^C\s*$"),
        Row("Aborted!", "Aborted!", r"^Aborted!$")),  # click
    Rule("interrupted", _OUTSIDE, 0.8,
        Row("nterrupt", "Detected KeyboardInterrupt, attempting graceful shutdown...", _BY_USER),
        Row("SIG", "Received SIGTERM: stopping",
            r"(?:[Rr]eceived (?:signal )?|[Cc]aught )SIG(?:TERM|INT)|SIG(?:TERM|INT) (?:was )?(?:received|caught)"),
        Row(" death signal", "Received 15 death signal, shutting down workers",
            r"[Rr]eceived (?:Signals\.SIG(?:INT|TERM|HUP)|1|2|15) death signal"),
        Row("Ctrl", "Ctrl-C pressed, exiting", r"Ctrl[-+ ]{1,3}C\b\W{0,5}(?:detected|pressed|[Ee]xiting|[Ss]topping|[Ss]hutting)"),
        Row("eceived signal ", "Received signal 15, saving", r"[Rr]eceived signal (?:15|2)\b"),
        unless=r"[Ss]ending|closing signal|Bypassing|from PID 1 \(systemd\)"),  # the journal of a booting machine
    Rule("other-error", "the command line was refused", 0.8,
        Row(": error: ", "train.py: error: unrecognized arguments: --batchsize 8",
            r"^[\w./-]{1,200}: error: (?:unrecognized arguments|the following arguments|argument |invalid choice)")),
    Rule("import-error", "a library could not be loaded", 0.7,
        Row("Could not load library lib", pattern="^Could not load library lib"), Row("MKL FATAL ERROR: Cannot load"),
        Row("annot find module ", "Error: Cannot find module 'x'", "^Error: [Cc]annot find module "),  # node
        only="printed"),
    Rule("other-error", "Slurm could not start the program", 0.6,
        Row("execve(): ", "slurmstepd: error: execve(): /tmp/slurm_script: No such file or directory", r"\berror: .{0,50}execve\(\): "),
        kind="summary"),
    Rule("other-error", "the scheduler refused or ended the step", 0.4,
        Row(": error: ", "sbatch: error: Batch job submission failed: Invalid partition name specified",
            r"^(?:srun|sbatch|salloc|qsub): error: (?!.{0,80}\btasks? \d)"),
        kind="summary", only="printed"),
    Rule("machine-down", "the kernel of the machine itself gave up (panic)", 0.8,
        Row("panic", "panic(cpu 0 caller 0xffffff80): x", r"^panic\(cpu \d+ caller 0x|^Kernel panic - not syncing"), only="printed"),
    Rule("other-error", "the user's script failed", 0.4,  # SageMaker, for any failure in it
        Row("ExecuteUserScriptError:"), kind="wrapper", unless=r"ExitCode -\d"),
    Rule("other-error", "the system has no more threads or processes to give", 0.6,
        Row("Resource temporarily unavailable", "bash: fork: retry: Resource temporarily unavailable",
            r"(?:Thread creation failed|pthread_create failed for thread \d+ of \d+|: fork(?:: retry)?): Resource"),
        Row("OMP: Error #", "OMP: Error #34: System unable to allocate necessary resources", r"^OMP: Error #(?!15\b)\d"),
        only="printed"),
    Rule("other-error", "the job ended with an error", 0.5,  # Hydra
        Row("Error executing job with overrides"), Row("Error in call to target '"), kind="wrapper", only="printed"),
    Rule("other-error", "a thread of the Java machine ended with {what}", 0.5,  # "Caused by:" stands below
        Row("Exception in thread ", 'Exception in thread "main" java.lang.NullPointerException',
            r'^Exception in thread "[^"]{1,80}" (?P<what>(?:\w+\.){1,12}\w+)'),
        only="printed", kind="wrapper"),
    # a script without `set -e` goes on behind it
    Rule("other-error", "the command could not be started", 0.4,
        Row("command not found", "run.sh: line 3: torchrun: command not found",
            r"^(?:[\w./-]{1,80}: ){1,3}(?:line \d+: )?(?:\S{1,80}: )?command not found$"),
        kind="summary", only="printed", facts=JobFacts(goes_on=True)),
    Rule("other-error", "an environment module could not be loaded", 0.4,
        Row("Lmod has detected the following error:"), kind="wrapper", only="printed", facts=JobFacts(goes_on=True)),
    Rule("other-error", "the script could not read {file}, which ends a shell", 0.4,
        Row(": Can't open ", "slurm_script: 8: .: Can't open /home/me/settings",
            r"^\S{1,200}: \d{1,6}: (?:\.: )?Can't open (?P<file>\S.{0,300})$"),
        kind="summary", only="printed"),
    Rule("other-error", "python could not open {file}", 0.4,
        Row("can't open file ", "python: can't open file 'train.py': [Errno 2] No such file",
            r"^\S*python\S*: can't open file (?P<file>.{1,300}?)(?:: \[Errno|$)"),
        kind="summary", only="printed", facts=JobFacts(goes_on=True)),
    Rule("import-error", "a module is missing", 0.5,
        Row("No module named ", "/usr/bin/python3: No module named torch", r"^(?:\S+: )?No module named ['\"]?\w"),
        Row("Error while finding module specification for"),
        fits=lambda said, match: said.level not in ("WARNING", "INFO", "DEBUG")),
)  # fmt: skip

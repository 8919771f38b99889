"""The everyday ends: losses that are no number, full disks, missing modules, failed assertions, interrupts."""

from __future__ import annotations

import re

from oomproof.evidence.texts.failures.recogniser import FailureText, Hit, is_message
from oomproof.evidence.texts.failures.rules import Row, Rule
from oomproof.evidence.texts.finding import JobFacts
from oomproof.records import replace

# ImportError: No module named 'infer' and the like: these types do not speak of numbers
_NOT_ABOUT_NUMBERS = ("ImportError", "ModuleNotFoundError", "KeyError", "FileNotFoundError", "AttributeError", "NameError", "TypeError",
                      "JSONDecodeError")  # fmt: skip
_STOPS = "(?:stop|abort|exit|quit|terminat"
_LOSS_IS = rf"[Ll]oss (?:is|was|became|=) ?(?:nan|NaN|NAN|inf|infinite)\b.{{0,40}}{_STOPS}|$)"
# a loss as trainers print it: "loss: nan", "'loss': nan", "loss=nan", "train_loss nan"
LOSS = re.compile(
    r"\b(?:\w*_)?[Ll]oss(?![_ ]?scal)(?:[_/]\w+)?['\"]?\s*[:= ]\s*(?:tensor\()?(?P<value>-?(?:nan|NaN|inf|\d[\d.e+-]*))"
)

NOT_A_NUMBER = (
    Rule("nan", "a value that must be finite became NaN or infinite", 0.85,
         Row("nan", "ValueError: Input contains nan", r"\bnans?\b"),
         Row("NaN", "ValueError: Input X contains NaN.", r"\bNaNs?\b"),
         Row("Nan", "RuntimeError: Function 'MulBackward0' returned Nan values", r"\bNans?\b"),
         Row("NAN", "RuntimeError: loss is NAN", r"\bNAN\b"),
         Row("inf", "ValueError: cannot convert float inf to integer", r"\binfinit|\binf\b"),
         Row("not finite", "RuntimeError: the loss is not finite"),
         Row("non-finite", "ValueError: non-finite gradient"),
         Row("loss scale", "FloatingPointError: Minimum loss scale reached (0.0001).", r"[Mm]inimum loss scale|loss scale already at minimum"),
         Row("exploding", "RuntimeError: gradients are exploding"),
         Row("nvalid loss", "RuntimeError: Invalid loss"),
         only="raised", fits=lambda said, match: said.raised.rpartition(".")[2] not in _NOT_ABOUT_NUMBERS),
    Rule("nan", "training stopped itself: the loss is no longer a number", 0.85,
         Row("nan", "Loss is nan, stopping training", _LOSS_IS),
         Row("NaN", "Loss became NaN, stopping training", _LOSS_IS),
         Row("oss is NAN", "Loss is NAN: batch 233", _LOSS_IS),
         Row("oss is inf", "Loss is inf, stopping training: exit", _LOSS_IS),
         Row("nvalid loss, terminating", "Invalid loss, terminating training", r"[Ii]nvalid loss, terminating"),
         Row("is not finite", "Monitored metric val_loss = nan is not finite. Previous best value was 0.3. Signaling Trainer to stop.", r"metric \S+ = (?:nan|inf|-inf) is not finite"),
         Row("loss scale already at minimum", "Current loss scale already at minimum - cannot decrease scale anymore. Exiting run."),
         Row("NaN ", "NaN loss detected, aborting", rf"NaN (?:loss|gradients?|values?) (?:detected|encountered|found).{{0,60}}{_STOPS})"),
         Row("nan", "nan or inf detected, terminating", rf"(?:nan or [Ii]nf|inf or nan) (?:loss )?(?:detected|found|encountered).{{0,60}}{_STOPS})"),
         Row("NaN", "Inf or NaN found, aborting", rf"(?:NaN or [Ii]nf|[Ii]nf or NaN) (?:loss )?(?:detected|found|encountered).{{0,60}}{_STOPS})"),
         Row("nan", "stopping: the loss is nan", r"(?:stopp|terminat|abort)\w*.{0,60}\b[Ll]oss (?:is|became) nan"),
         Row("NaN", "terminating: the loss became NaN", r"(?:stopp|terminat|abort)\w*.{0,60}\b[Ll]oss (?:is|became) NaN"),
         only="printed"),
)  # fmt: skip


def _disk(said: FailureText, match: re.Match[str], hit: Hit) -> Hit:
    before = said.text[: match.start()]
    if (
        said.raised
        or is_message(match, said, strict=True)
        or "Error" in before
        or before.lstrip().startswith("[Errno ")
    ):
        return hit
    return replace(hit, says="the text speaks of a full disk", strength=0.2, kind="talk")


_OUTSIDE = "interrupted from outside (Ctrl-C or a signal)"

EVERYDAY = (
    Rule("disk-full", "the disk (or the quota on it) is full", 0.93,
         Row("No space left on device", "OSError: [Errno 28] No space left on device: 'checkpoint.pt'"),
         Row("[Errno 28]", "OSError: [Errno 28] Auf dem Gerät ist kein Speicherplatz mehr verfügbar"),
         Row("[Errno 122]", "OSError: [Errno 122] Disk quota exceeded"),
         Row("isk quota exceeded", "tar: x: Cannot write: Disk quota exceeded", r"[Dd]isk quota exceeded"),
         Row("StorageFull", 'SafetensorError: Error while serializing: IoError(Os { code: 28, kind: StorageFull, message: "full" })'),
         Row("ENOSPC", "Error: ENOSPC: System limit for number of file watchers reached", r"\bENOSPC\b"),
         Row("WinError 112", "OSError: [WinError 112] There is not enough space on the disk"),
         Row("database or disk is full", "sqlite3.OperationalError: database or disk is full"),
         Row("ot enough ", "RuntimeError: Not enough free disk space", r"[Nn]ot enough (?:free )?(?:space on the disk|disk space)"),
         Row("errno = 28", "OSError: Can't write data (file write failed: errno = 28, error message = 'x')"),
         printed=0.6, loud=True, refine=_disk),
    Rule("disk-full", "torch.save could not write the file: most often a full disk", 0.6,
         Row("inline_container.cc:", "RuntimeError: [enforce fail at inline_container.cc:471] . PytorchStreamWriter failed writing file data/3: file write failed",
             r"inline_container\.cc:\d+\].{0,40}(?:unexpected pos|file write failed)"),
         Row("PytorchStreamWriter failed writing", "RuntimeError: PytorchStreamWriter failed writing file data/3"),
         Row(" written", "OSError: 4096 requested and 0 written", r"^OSError: \d+ requested and \d+ written"),
         Row("basic_ios::clear", "RuntimeError: basic_ios::clear: iostream error", r"^RuntimeError: basic_ios::clear"),
         only="raised"),
    Rule("import-error", "a module or library could not be loaded", 0.93,
         Row("Error", "ModuleNotFoundError: No module named 'flash_attn'", r"^(?:\w+\.)*(?:ImportError|ModuleNotFoundError)\b"),
         Row("undefined symbol: ", "python: symbol lookup error: libx.so: undefined symbol: cublasLt"),
         Row(".so: undefined symbol: ", "/opt/env/lib/lltm_cpp.cpython-36m-x86_64-linux-gnu.so: undefined symbol: THPVariableClass"),
         Row("undefined symbol: ", "undefined symbol: cublasLtGetStatusString", r"^undefined symbol: \w"),
         Row("' not found (required by ", "/lib/libstdc++.so.6: version `GLIBCXX_3.4.29' not found (required by libx.so)", r"version [`'][A-Z]\w{2,40}_[\d.]{1,12}' not found \(required by "),
         Row("cannot open shared object", "OSError: libcudart.so.11.0: cannot open shared object file: No such file or directory", r"^OSError: .{0,120}cannot open shared object file"),
         Row("DLL load failed", "ImportError: DLL load failed while importing _C"),
         Row("Failed to import ", "RuntimeError: Failed to import transformers.models", r"^RuntimeError: Failed to import "),
         Row("error while loading shared libraries", "python3: error while loading shared libraries: libx.so"),
         printed=0.5, fits=lambda said, match: bool(said.raised) or "error" in said.text[:60] or ("undefined symbol" in said.text and not said.quiet) or "not found (required by" in said.text),
    Rule("assert", "an assertion failed", 0.9,
         Row("AssertionError", "AssertionError: shapes differ", r"^(?:\w+\.)*AssertionError\b")),
    Rule("assert", "an assertion in native code failed", 0.85,
         Row("Assertion ", "python: ../src/foo.cpp:12: void f(): Assertion `x > 0' failed.", r"\w: .{0,160}: Assertion [`'\"].{0,200}['`\"] failed|^/\S{1,300}:\d+: Assertion '.{1,200}' failed"),
         Row("GGML_ASSERT", "GGML_ASSERT: ggml.c:4321: ctx->mem_buffer != NULL", r"^(?:GGML_ASSERT: \S{1,200}:\d+: |\S{1,200}:\d+: GGML_ASSERT\()"),
         Row("Assertion failed: ", "Assertion failed: (x > 0), function f, file a.c, line 3.", r"^Assertion failed: .{1,200}, file \S{1,200}, line \d+"),
         Row("failed assertion ", "/src/mps.mm:12: failed assertion `buffer is not large enough'", r"\.mm:\d+: failed assertion [`']"),
         unless=r"thread: \[|malloc\.c"),
    Rule("interrupted", _OUTSIDE, 0.95,
         Row("InterruptException:", "ERROR: InterruptException:", r"^(?:ERROR: )?(?:LoadError: )?InterruptException:"),  # Julia
         Row("KeyboardInterrupt", "KeyboardInterrupt", r"^(?:\w+\.)*(?:RuntimeError: )?KeyboardInterrupt\b"),
         Row("SignalException: ", "torch.distributed.elastic.multiprocessing.api.SignalException: Process 4242 got signal: 15", r"SignalException: .{0,60}got signal: ?(?:15|2|1)\b"),
         Row("api.SignalException", "torch.distributed.elastic.multiprocessing.api.SignalException", r"^torch\.distributed\.elastic\.multiprocessing\.api\.SignalException$"),
         Row("^C", "^C", r"^\W*\^C\s*$"),
         Row("Aborted!", "Aborted!", r"^Aborted!$")),
    Rule("interrupted", _OUTSIDE, 0.8,
         Row("nterrupt", "Detected KeyboardInterrupt, attempting graceful shutdown...",
             r"[Dd]etected KeyboardInterrupt|[Kk]eyboard ?[Ii]nterrupt(?:ion)?\b.{0,40}(?:detected|main thread|stopp|exit|caught)|[Cc]aught KeyboardInterrupt|[Ii]nterrupted by user|[Uu]ser interrupted\b"
             r"|[Ii]nstance interruption notice|[Uu]ser requested interrupt|[Ii]nterrupted\b.{0,40}\bCtrl[-+ ]{1,3}C\b"),
         Row("SIG", "Received SIGTERM: stopping", r"[Rr]eceived (?:signal )?(?:SIGTERM|SIGINT)|(?:SIGTERM|SIGINT) (?:was )?(?:received|caught)|[Cc]aught (?:SIGTERM|SIGINT)"),
         Row(" death signal", "Received 15 death signal, shutting down workers", r"[Rr]eceived (?:Signals\.SIG(?:INT|TERM|HUP)|1|2|15) death signal"),
         Row("Ctrl", "Ctrl-C pressed, exiting", r"Ctrl[-+ ]+C (?:detected|pressed)|\bCtrl[-+ ]{1,3}C\b[)!.,;: -]{0,4}(?:[Ee]xiting|[Ss]topping|[Ss]hutting down)"),
         Row("eceived signal ", "Received signal 15, saving", r"[Rr]eceived signal (?:15|2)\b"),
         Row("ser requested stop", "User requested stop; exit", r"[Uu]ser requested stop"),
         unless=r"[Ss]ending|closing signal|Bypassing|from PID 1 \(systemd\)"),  # the journal, when a machine has booted
    Rule("other-error", "the command line was refused", 0.8,
         Row(": error: ", "train.py: error: unrecognized arguments: --batchsize 8",
             r"^[\w./-]{1,200}: error: (?:unrecognized arguments|the following arguments|argument |invalid choice)")),
    Rule("import-error", "a library could not be loaded", 0.7,
         Row("MKL FATAL ERROR: Cannot load ", "Intel MKL FATAL ERROR: Cannot load libmkl_avx2.so or libmkl_def.so."),
         Row("Could not load library lib", "Could not load library libcudnn_cnn_infer.so.8", r"^Could not load library lib\S+"),
         Row("annot find module ", "Error: Cannot find module 'x'", r"^Error: [Cc]annot find module "),
         only="printed"),
    Rule("other-error", "the scheduler refused or ended the step", 0.4,
         Row(": error: ", "sbatch: error: Batch job submission failed: Invalid partition name specified", r"^(?:srun|sbatch|salloc|qsub): error: (?!.{0,80}\btasks? \d)"),
         kind="summary", only="printed"),
    Rule("machine-down", "the kernel of the machine itself gave up (panic)", 0.8,
         Row("panic", "panic(cpu 0 caller 0xffffff80): x", r"^panic\(cpu \d+ caller 0x|^Kernel panic - not syncing"),
         only="printed"),
    # SageMaker's word for whatever happened in it
    Rule("other-error", "the user's script failed", 0.4, Row("ExecuteUserScriptError:", "ERROR Reporting training FAILURE ExecuteUserScriptError:", r"\bExecuteUserScriptError:"), kind="wrapper", unless=r"ExitCode -\d"),
    Rule("other-error", "the system has no more threads or processes to give", 0.6,
         Row("Resource temporarily unavailable", "bash: fork: retry: Resource temporarily unavailable",
             r"(?:Thread creation failed|pthread_create failed for thread \d+ of \d+|: fork: retry|: fork): Resource temporarily unavailable"),
         only="printed"),
    Rule("other-error", "the database's server ended the connection", 0.5,
         Row("server closed the connection unexpectedly", "server closed the connection unexpectedly"), only="printed", loud=True),
    Rule("other-error", "the job ended with an error", 0.5,
         Row("Error executing job with overrides: ", "Error executing job with overrides: ['lr=1']", r"^Error executing job with overrides: "),
         Row("Error in call to target '", "Error in call to target 'x.Model':", r"^Error in call to target '"),
         kind="wrapper", only="printed"),
    Rule("other-error", "a thread of the Java machine ended with {what}", 0.5,
         Row("Exception in thread ", 'Exception in thread "main" java.lang.NullPointerException', r'^Exception in thread "[^"]{1,80}" (?P<what>(?:\w+\.){1,12}\w+)'),
         only="printed", kind="wrapper"),  # what it was "Caused by:" stands below
    Rule("other-error", "a call in R failed", 0.3,
         Row("Error in ", "Error in irlba(A = t(x = object), nv = npcs, ...) : ", r"^Error in [\w.:$]{1,60}\([^\n]{0,300}\)? ?:(?: |$)"),
         kind="wrapper", only="printed"),
    Rule("other-error", "the X server could not go on", 0.6,
         Row("Fatal server error:", "Fatal server error:", r"^(?:\(EE\) ?)?Fatal server error:"), only="printed"),
    Rule("abort", "the Fortran program was ended by an abort", 0.6,
         Row("forrtl: ", "forrtl: error (76): Abort trap signal", r"^forrtl: error \(76\): "), only="printed"),
    Rule("other-error", "the Fortran program ended with an error", 0.6,
         Row("forrtl: severe (", "forrtl: severe (24): end-of-file during read, unit 10, file input.dat", r"^forrtl: severe \(\d{1,4}\): (?!SIG|insufficient virtual memory)"),
         Row("Fortran runtime error: ", "Fortran runtime error: End of file", r"^Fortran runtime error: (?!.{0,80}(?:allocat|[Oo]ut of memory))"),
         only="printed"),
    Rule("other-error", "the program stopped with a fatal error", 0.5,
         Row("Fatal error:", "Fatal error:", r"^Fatal error:$"),  # GROMACS: what it is stands below
         Row("----- Begin Fatal Exception ", "----- Begin Fatal Exception 01-May-2024 20:49:15 CEST-----", r"^-{3,} Begin Fatal Exception "),  # CMS
         Row("THCudaCheck FAIL ", "THCudaCheck FAIL file=/tmp/cutorch", r"^THCudaCheck FAIL file=\S*$"),  # cut off
         Row("&&&& FAILED TensorRT", "&&&& FAILED TensorRT.trtexec [TensorRT v8001] # ./trtexec --onnx=model.onnx", r"&&&& FAILED TensorRT"),
         Row("An error occurred in MPI_", "[node17:4242] *** An error occurred in MPI_Send", r"^(?:\[[\w.-]{1,80}:\d{1,8}\] )?\*\*\* An error occurred in MPI_\w"),
         only="printed"),
    Rule("other-error", "a call in MATLAB failed", 0.4,
         Row("Error using ", "Error using load", r"^Error using [\w./>]{1,120}(?: \(line \d{1,6}\))?$"),
         Row(" (line ", "Error in main (line 3)", r"^Error in [\w./>]{1,120} \(line \d{1,6}\)$"),
         only="printed"),
    Rule("other-error", "the OpenMP library could not go on", 0.65,
         Row("OMP: Error #", "OMP: Error #34: System unable to allocate necessary resources for OMP thread:", r"^OMP: Error #(?!15:)\d{1,4}: "), only="printed"),
    Rule("other-error", "a task of Julia ended with an exception", 0.5,
         Row("Unhandled Task ERROR: ", "Unhandled Task ERROR: StackOverflowError:", r"^Unhandled Task ERROR: \w"), only="printed"),
    # a script without `set -e` goes on behind it, and may die of something else
    Rule("other-error", "the command could not be started", 0.4,
         Row("command not found", "run.sh: line 3: torchrun: command not found", r"^(?:[\w./-]{1,80}: ){1,3}(?:line \d+: )?(?:\S{1,80}: )?command not found$"),
         kind="summary", only="printed", facts=JobFacts(goes_on=True)),
    Rule("other-error", "an environment module could not be loaded", 0.4,
         Row("Lmod has detected the following error:", 'Lmod has detected the following error: The following module(s) are unknown: "cuda/11.0"'),
         Row("Unable to locate a modulefile for ", "ModuleCmd_Load.c(213):ERROR:105: Unable to locate a modulefile for 'python/3.8'", r"ERROR:\d{1,4}: Unable to locate a modulefile for "),
         kind="wrapper", only="printed", facts=JobFacts(goes_on=True)),
    Rule("other-error", "the script could not read {file}, which ends a shell", 0.4,
         Row(": Can't open ", "/var/spool/job42/slurm_script: 8: .: Can't open /home/me/settings", r"^\S{1,200}: \d{1,6}: (?:\.: )?[Cc]an(?:'t|not) open (?P<file>\S.{0,300})$"),
         kind="summary", only="printed"),
    Rule("other-error", "python could not open {file}", 0.4,
         Row("can't open file ", "python: can't open file 'train.py': [Errno 2] No such file or directory",
             r"^\S*python\S*: can't open file (?P<file>.{1,300}?)(?:: \[Errno|$)"),
         kind="summary", only="printed", facts=JobFacts(goes_on=True)),
    Rule("import-error", "a module is missing", 0.5,
         Row("No module named ", "/usr/bin/python3: No module named torch", r"^(?:\S+: )?No module named ['\"]?[\w.]+"),
         Row("Error while finding module specification for ", "python: Error while finding module specification for 'train.main'",
             r"^\S+: Error while finding module specification for "),
         fits=lambda said, match: said.level not in ("WARNING", "INFO", "DEBUG")),
)  # fmt: skip

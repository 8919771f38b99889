"""What a training log says about its job's death. Lines in, findings out; streaming, in bounded memory."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from oomproof.evidence.texts import phase_frames, phases
from oomproof.evidence.texts import progress as signs
from oomproof.evidence.texts.cleaning import FLATTENED, Line, after_bar, clean, pieces, unquoted
from oomproof.evidence.texts.failures import Hit, Said, recognise
from oomproof.evidence.texts.failures.not_a_number import LOSS
from oomproof.evidence.texts.failures.shell_languages import FOREIGN, PLAIN
from oomproof.evidence.texts.finding import Finding, GpuNumbers, Progress
from oomproof.evidence.texts.messages import Message
from oomproof.evidence.texts.root import first_failure
from oomproof.evidence.texts.sources import Surroundings
from oomproof.evidence.texts.torn_lines import Edge, Torn, go_on, mend, torn
from oomproof.evidence.texts.tracebacks import CHAINS, HEADER, Raised, Writer

# A block of lines without any of these is only read for its progress. Few and short on purpose: each
# costs one pass over the block (measured: 27 substrings in a line of 115 characters take 3.6 µs, one
# alternation of them 12 µs).
GATE = (
    "rror", "xception", "illed", "SIG", "ignal", "emory", "raceback", 'File "', "ault", "nterrupt", "bort", "nan", "NaN",
    "CANCEL", "ailed", "NCCL", "OOM", "bad_alloc", "space left", "erminat", "exit", "died", "crash", "No module", "Ctrl", "^C", "code = ", "Killing sub", "is lost", "fallen off", "_STATUS_", "non-zero", "TERMINATION", "Exit", "EXIT", "corrupt", "not found", "open file", "llegal instr", "panic", "sconnected", "Assert", "Crashed", "reempt", "ould not load", "annot find", "ABORT", "RUNNING AT ", *PLAIN,
)  # fmt: skip
_GATE_BEYOND_ASCII = (*GATE, *FOREIGN)
# Worth a look only where something has failed already
_AFTER_A_FAILURE = (
    "kipping batch",
    "kipping the batch",
    "kipping this batch",
    "Root Cause",
    "FAILED",
    "raining ",
    "fit`",
    "train_runtime",
    "ompleted",
    "inished",
)

_BLOCK = 128
_BLOCK_CHARACTERS = 1 << 16
_TAGS = 256
# Ordinary lines behind a weak sign that make it no death; fewer behind a shell's complaint about one command of a
# script: if it was the job itself, little comes after it
_WEAK_LINES = 60
_SCRIPT_LINES = 8
_KEPT = 200  # findings of one chain kept from its start; as many from its end
_NOT_ORDINARY = re.compile(r"^(?:wandb:|\s|$|frame #|\[E|#\d|=+$|-+$|slurmstepd|srun)")
_FAILED_SCRIPT = re.compile(
    r"^(?P<script>[\w./-]+\.py) FAILED|of binary: |(?P<cmd>[\w./-]+\.py)['\"]?[ ,\]].{0,2000}(?:exits with|returned non-zero|died with)"
)
_SUBPROCESS = re.compile(r"Killing subprocess (\d{1,10})$")
# MPICH and Intel MPI name the rank in the line above the one that says how it ended
_RANK = re.compile(r"\bPID (\d{1,9}) RUNNING AT ")
_TROUBLE = re.compile(
    r"(?i)\b(?:crash(?:e[sd]|ing)?|died|killed|abort(?:ed|s|ing)?|panic(?:ked)?|fatal|failed|fails|failure|segfault\w*|exit (?:code|status)|exception|stuck)\b|\b\w*[Ee]rror\b(?! ?[=:]? ?[\d.]+)"
)
_CLOSED = re.compile(r"closing signal SIG(?:TERM|INT|HUP)")
_LAST_WORDS = 6  # lines that say something, from the end
_COMPLAINT = re.compile(
    r"^(?:\w[\w./-]{0,40}: )?(?:fatal|FATAL|[Pp]anic|Error|ERROR|error)(?: ?ERROR| error)?:\s*\S|panicked at|\bcore dumped\)|^Uncaught exception|^uncaught exception"
    r"|^\W{0,4}Unhandled exception|^Abort(?:ed|ing)\b|pthread_create failed|build stopped"
)
_SYSTEM = re.compile(r"^(?:<\d+>)?\[ *\d+\.\d+\]|\bkernel: |^\w{3} [ \d]\d \d\d:\d\d:\d\d \S+ \S+\[\d+\]: ")
_NATIVE = "C++ Traceback (most recent call last)"
_CUT_HEADER = re.compile(r"Traceback(?: \([a-z ]{0,20})?$")
_FIRST_EXIT = re.compile(r"exitcode\s*: (-?\d+)")
_SYSLOG = re.compile(r"\w{3} [ \d]\d \d\d:\d\d:\d\d \S{1,80} \S{1,80}: ")
_HEAD = 2000  # characters of a line that may announce a phase
_STACK = 60  # lines of a stack beside a fatal line

_NO_DIGITS = str.maketrans("", "", "0123456789")
_HANDLED = re.compile(r"(?i)\bskipping (?:the |this )?batch\b|attempting to recover from OOM")
_NUMBERS_MATTER = re.compile(
    r"exit|code|[Ss]ignal|SIG|nan|NaN|raining|inished|ompleted|Root|jax|tensorflow|keras|FAILED|xception|raceback"
)


def _marked(line: str) -> bool:
    return any(mark in line for mark in signs.ANCHORS)


def _with_neighbours(finding: Finding, chain: Sequence[Finding]) -> GpuNumbers | None:
    """The sentence that names the figures may be another line of the same failure: "out of memory", then
    "requested N bytes", then "N bytes free, M bytes total"."""
    told = [each.gpu for each in chain if each.cause == finding.cause and each.gpu is not None]
    gpu = finding.gpu
    if gpu is None or gpu.requested is None:
        gpu = next((each for each in told if each.requested is not None), gpu)
    if gpu is None or gpu.total is None:
        card = next((each for each in told if each.total is not None), None)
        if card is not None:
            gpu = replace(gpu, total=card.total, free=card.free) if gpu is not None else card
    return gpu


class TrainingParser:
    """``feed`` every line, then ``finish``; ``progress`` and ``end`` are set by then."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.progress = Progress()
        self.end = ""
        self._block: list[tuple[int, str]] = []
        self._size = 0
        self._writers: dict[str, Writer] = {}
        self._pending: Message | None = None  # an exception whose message may go on
        self._signs = signs.ProgressTracker()
        self._recent: deque[tuple[int, str]] = deque(maxlen=200)
        self._chains: list[list[Finding]] = [[]]
        self._advances = 0
        self._library = ""
        self._ordinary = 0
        self._ordinary_then = 0  # where the pending error stood
        self._first_exit = False  # inside torchrun's "Root Cause" section
        self._wrapped_phase = ""
        self._script_phase = "unknown"
        self._around = Surroundings()
        self._nan = False  # the last loss that was printed is no number
        self._torn: Torn | None = None  # a line that may go on in the next
        self._edge = Edge()
        self._subprocesses: set[int] = set()  # that a launcher says it ends
        self._rank: int | None = None  # that MPI says is about to be told of
        self._last_hit: tuple[str, str] | None = None
        self._repeats = 0
        self._dull: set[str] = set()  # lines, less their digits, that say nothing in spite of their words

    # -- in -------------------------------------------------------------------------------------------

    def feed(self, number: int, line: str) -> None:
        self._block.append((number, line))
        self._size += len(line)
        if len(self._block) >= _BLOCK or self._size >= _BLOCK_CHARACTERS:
            self._flush()

    def finish(self) -> list[Finding]:
        self._flush()
        self._settle()
        self._cut_tracebacks()
        self._loss_at_the_end()
        self._last_words()
        self._trouble()
        self._close_chain(last=True)
        self.progress = self._last_progress()
        return [finding for chain in self._chains for finding in chain]

    # -- blocks ---------------------------------------------------------------------------------------

    def _flush(self) -> None:
        block, self._block, self._size = self._block, [], 0
        if not block:
            return
        for _, line in reversed(block):
            if line.strip():
                self.end = line.strip()[-600:]
                break
        text = "\n".join([line for _, line in block])
        self._edge.look([len(line) for _, line in block])
        gate = GATE if text.isascii() else _GATE_BEYOND_ASCII
        present = [anchor for anchor in gate if anchor in text]
        if present or self._chains[-1]:
            present += [anchor for anchor in _AFTER_A_FAILURE if anchor in text]
        self._recent.extend(block[-200:])
        busy = (
            bool(present)
            or self._pending is not None
            or self._torn is not None
            or any(each.open for each in self._writers.values())
        )
        if not busy:
            self._ordinary += len(block)
            self._quick_progress(block, text)
            return
        marks = [anchor for anchor in signs.ANCHORS if anchor in text]
        for number, line in block:
            if (
                len(line) > 2000
                or "\r" in line
                or "^C" in line
                or (len(line) > 300 and "        " in line)
                or (len(line) > FLATTENED and HEADER in line)
            ):
                for piece in pieces(line):
                    self._line(number, piece, present, marks)
            else:
                self._line(number, line, present, marks)

    def _quick_progress(self, block: Sequence[tuple[int, str]], text: str) -> None:
        """Nothing failed here: the last signs of the block stand for all of them."""
        found: list[tuple[int, str]] = []
        for count, (number, line) in enumerate(reversed(block)):
            if len(found) == 3 or (count == 16 and not found and not _marked(text)):
                break
            if _marked(line):
                tail = line if len(line) < 2000 else line[-2000:]
                part = tail.rpartition("\r")[2]
                found.append((number, part if _marked(part) else tail))
        for number, line in reversed(found):
            self._signs.look(number, clean(line).text)

    # -- lines ----------------------------------------------------------------------------------------

    def _line(self, number: int, raw: str, present: Sequence[str], marks: Sequence[str]) -> None:
        if self._torn is not None and self._mend(number, raw):
            return
        suspicious = False
        for anchor in present:
            if anchor in raw:
                suspicious = True
                break
        quiet = self._pending is None and not (self._writers and self._in_traceback())
        shape = raw[:400].translate(_NO_DIGITS) if suspicious and quiet else ""
        if shape and shape in self._dull:
            suspicious = False
        if suspicious or not quiet:
            line = clean(after_bar(raw))
            if suspicious and not self._in_traceback() and self._around.mentions(number, unquoted(raw)):
                self._ordinary += 1
                self._around.look(number, unquoted(raw))
            elif not self._error(number, line, suspicious):
                if not _NOT_ORDINARY.match(line.text):
                    self._ordinary += 1
                if shape and self._pending is None and not _NUMBERS_MATTER.search(raw[:400]):
                    # "CPU Virtual Memory: used = 400.1 GB" comes a thousand times, with other numbers
                    self._dull.add(shape)
                    if len(self._dull) > 2000:
                        self._dull.clear()
        else:
            self._ordinary += 1
            self._around.look(number, unquoted(raw))
        for mark in marks:
            if mark in raw:
                self._signs.look(number, clean(raw).text)
                break

    def _in_traceback(self) -> bool:
        return any(each.open for each in self._writers.values())

    def _error(self, number: int, line: Line, suspicious: bool) -> bool:
        text = line.text
        stripped = text.strip()
        writer = self._writers.get(line.tag)
        if writer is None:
            if len(self._writers) >= _TAGS:
                self._writers.clear()
            writer = self._writers[line.tag] = Writer()
        if self._pending is not None and not self._pending.may_go_on(line, stripped):
            if _NATIVE in text and not self._pending.raised.message:
                self._lead_in(self._pending)
            self._settle()
        if suspicious:
            self._notice(text, stripped)
        before = writer.open
        raised = writer.take(number, text)
        if raised is not None and not raised.loose and self._is_example(number, text, raised):
            return True
        if raised is not None:
            self._settle()
            self._mark()  # now: what follows the error counts, not what follows its last line
            self._pending = Message(number, raised, line.tag, raised.text, line)
            self._ordinary_then = self._ordinary
            return True
        edge, pending = self._edge.width, self._pending
        if pending is not None and (line.tag == pending.tag or (not line.tag and pending.ends_at(edge))):
            self._pending = pending.with_line(line, stripped, edge)
        inside = writer.open > 0 and before > 0
        if (
            not suspicious
            or HEADER in text
            or stripped.startswith(CHAINS)
            or (inside and stripped.startswith("File "))
        ):
            return inside
        if inside and text[:1] in (" ", "\t", "│", "❱", "|") and not stripped.startswith(("what()", "[")):
            return True  # source code between frames: what it mentions did not happen
        handled = not inside and _HANDLED.search(stripped) is not None
        if handled:
            self._take_back(number)
        hit = self._meaning(stripped, line.level)
        self._torn = self._torn or torn(number, line, hit, self._edge.width)
        if hit is None and not inside and line.level in ("", "ERROR", "FATAL", "CRITICAL"):
            hit = self._quoted(writer, stripped)
        if hit is None:
            return inside or handled
        if handled:
            hit = replace(hit, kind="talk", strength=0.1)
        self._add(number, stripped, hit, line.tag, None)
        return True

    def _mend(self, number: int, raw: str) -> bool:
        """Whether the line is the rest of the one before, and so has been read with it."""
        assert self._torn is not None
        before, self._torn = self._torn, None
        found = mend(before, number, clean(raw), self._edge.width, self._meaning)
        if isinstance(found, Torn):
            self._torn = found
        elif found is not None:
            text, hit = found
            if before.hit is not None:
                self._forget(before.number)
            self._add(before.number, text, hit, before.line.tag, None)
            self._torn = go_on(before, text, hit)
            return True
        return False

    def _is_example(self, number: int, text: str, raised: Raised) -> bool:
        """A docstring shows what a wrong call raises: indented, inside a program, with dots for the frames."""
        return text[:4] == "    " and not raised.frames and self._around.program(number)

    def _meaning(self, text: str, level: str) -> Hit | None:
        return recognise(Said(text, "", level, "", self._library))

    def _forget(self, number: int) -> None:
        """The first piece of a line said less, or something else, than the whole."""
        chain = self._chains[-1]
        heard = ("line", "summary")
        first = (i for i, each in enumerate(chain) if each.line == number and each.details["heard"] in heard)
        if (index := next(first, None)) is not None:
            del chain[index]
            self._last_hit, self._repeats = ("", ""), 0

    def _take_back(self, number: int) -> None:
        """The program tells that it caught what the lines above complain of, and goes on without the batch."""
        chain = self._chains[-1]
        while chain and number - chain[-1].line <= 3 and chain[-1].cause.endswith("-oom"):
            if chain[-1].details.get("heard") != "line":
                break
            chain.pop()
            self._last_hit, self._repeats = ("", ""), 0

    def _quoted(self, writer: Writer, stripped: str) -> Hit | None:
        raised = writer.quoted(stripped)
        if raised is None:
            return None
        hit = recognise(Said(raised.text, raised.type, "", "", self._library))
        if hit is None:
            hit = Hit("other-error", f"{raised.type}: {raised.message}"[:200], 0.5)
        if hit.kind != "failure":
            return None
        return replace(hit, strength=min(hit.strength, 0.5), details=hit.details | {"heard": "quoted"})

    def _notice(self, text: str, stripped: str) -> None:
        """Small facts on the way: the library at work, the script's name, a finish or a retry, NaN losses."""
        if not self._library or "jax" in text:
            if (
                "jax" in text
                or "XlaRuntime" in text
                or "external/xla/" in text
                or "external/org_tensorflow" in text
            ):
                self._library = "jax"
            elif "tensorflow" in text or "keras" in text:
                self._library = "tensorflow"
        if script := _FAILED_SCRIPT.search(stripped):
            name = script["script"] or script["cmd"]
            if name:
                self._script_phase = phases.of_script(name)
        if signs.is_finish(stripped) and not (signs.is_clock(stripped) and self._just_failed()):
            self._signs.advances += 2  # as good as two steps further
        if (ends := _SUBPROCESS.search(stripped)) and len(self._subprocesses) < 64:
            self._subprocesses.add(int(ends[1]))
        if rank := _RANK.search(stripped):
            self._rank = int(rank[1])
        if "Root Cause" in text:
            self._first_exit = True
        if ("nan" in text or "NaN" in text) and not text.startswith("wandb:") and (loss := LOSS.search(text)):
            value = loss["value"].lower()
            self._nan = "nan" in value or "inf" in value

    def _just_failed(self) -> bool:
        chain = self._chains[-1]
        if self._pending is not None:
            return True
        return bool(chain) and self._ordinary - int(chain[-1].details.get("ordinary", "0")) <= 5

    def _lead_in(self, message: Message) -> None:
        """Paddle raises "SystemError:" or "MemoryError:" with native frames for a message: what failed stands below them."""
        self._pending = None
        hit = Hit("other-error", "see the error below it", 0.4, "wrapper")
        self._add(message.number, message.raised.text, hit, message.tag, message.raised)

    def _settle(self) -> None:
        """The pending exception's message is complete: say what it means."""
        message, self._pending = self._pending, None
        hit = message.meaning(self._library) if message is not None else None
        if message is not None and hit is not None:
            text = message.text if hit.gpu else message.raised.text
            self._add(message.number, text, hit, message.tag, message.raised)

    # -- findings ---------------------------------------------------------------------------------------

    def _add(self, number: int, text: str, hit: Hit, tag: str, raised: Raised | None) -> None:
        key = (hit.cause, hit.says)
        if raised is None and key == self._last_hit:
            self._repeats += 1  # a thousand threads' assertions are one finding
            if self._repeats > 3:
                return
        else:
            self._last_hit, self._repeats = key, 0
        if raised is None:
            self._mark()
        phase = phase_frames.of_frames(raised.frames) if raised else "unknown"
        if hit.cause == "nan" and phase == "eval" and raised and phase_frames.trains(raised.frames):
            phase = "train"  # found when it was scored, made before
        if hit.kind == "wrapper":
            self._wrapped_phase = phase
        elif self._wrapped_phase and phase in ("unknown", "load"):
            phase, self._wrapped_phase = self._wrapped_phase, ""
        ordinary = self._ordinary_then if raised else self._ordinary
        heard = "summary" if hit.kind == "summary" else "line"
        if raised is not None:
            heard = "exception" if raised.loose else "traceback"
        details = {
            "kind": hit.kind,
            "phase": phase,
            "ordinary": str(ordinary),
            "signs": str(self._signs.seen),
            "heard": heard,
        } | hit.details
        if tag:
            details["rank"] = tag
        if raised is not None:
            details |= {
                "exception": raised.type,
                "message": raised.message[:400],
                "chained": "yes" if raised.chained else "no",
            }
            if raised.where:
                details["where"] = raised.where
        elif self._first_exit and (code := _FIRST_EXIT.search(text)):
            details["first_exit"] = code[1]
            self._first_exit = False
        finding = Finding(
            hit.cause,
            self.source,
            number,
            text[:600],
            hit.says,
            hit.strength,
            gpu=hit.gpu,
            pids=hit.pids or self._told_before(hit, text),
            details=details,
        )
        chain = self._chains[-1]
        if len(chain) >= 2 * _KEPT:
            del chain[_KEPT]  # the first ones hold the root, the last ones the end
        chain.append(finding)

    def _told_before(self, hit: Hit, text: str) -> tuple[int, ...]:
        """MPI names the rank, then its end. deepspeed names the processes it ends and the code that one ended
        with: of one, it is that one's."""
        if hit.kind == "summary" and self._rank is not None:
            rank, self._rank = self._rank, None
            return (rank,)
        alone = hit.kind == "summary" and "return code" in text and len(self._subprocesses) == 1
        return tuple(self._subprocesses) if alone else ()

    def _mark(self) -> None:
        """A failure stands here. Where the run had gone on since the last one, a new chain begins."""
        if self._chains[-1] and self._signs.advances - self._advances >= 2:
            self._close_chain(last=False)
        self._signs.mark()
        self._advances = self._signs.advances

    def _close_chain(self, last: bool) -> None:
        """Give each finding of the chain its role. A chain that the run survived is noise altogether."""
        chain = sorted(self._chains[-1], key=lambda finding: finding.line)
        went_on = self._signs.advances - self._advances >= 2
        chosen = None if went_on else first_failure(chain)
        if chosen is not None and last and self._faded(chain[chosen]):
            chosen = None
        self._chains[-1] = [self._with_role(chain, index, chosen) for index in range(len(chain))]
        if not last:
            # what came before the run went on is told, but it is not the death: keep it short
            self._chains[-1] = self._chains[-1][:20]
            if len(self._chains) > 20:
                del self._chains[1]
            self._chains.append([])

    def _faded(self, finding: Finding) -> bool:
        """A weak sign far above the end of a log that went on without another word."""
        lines = _SCRIPT_LINES if finding.details.get("goes_on") else _WEAK_LINES
        return finding.strength < 0.45 and self._ordinary - int(finding.details.get("ordinary", "0")) > lines

    def _with_role(self, chain: Sequence[Finding], index: int, chosen: int | None) -> Finding:
        finding = chain[index]
        if chosen is None or finding.details.get("kind") == "talk":
            role = "noise"
        else:
            role = "root" if index == chosen else "consequence"
        phase = finding.details.get("phase", "unknown")
        if role == "root" and phase == "unknown":
            # a kernel's assertion has no frames, the exception that follows from it has
            told = (each.details["phase"] for each in chain if each.details["kind"] in ("failure", "wrapper"))
            phase = next((each for each in told if each != "unknown"), "") or self._phase_around(finding)
        gpu = _with_neighbours(finding, chain) if role == "root" else finding.gpu
        return replace(finding, gpu=gpu, details=finding.details | {"role": role, "phase": phase})

    # -- the end ----------------------------------------------------------------------------------------

    def _cut_tracebacks(self) -> None:
        if _CUT_HEADER.match(clean(self.end).text):  # the paste ends inside the very first line of it
            hit = Hit(
                "other-error", "a traceback that is cut before its exception", 0.25, details={"heard": "cut"}
            )
            self._add(self._recent[-1][0] if self._recent else 1, self.end, hit, "", None)
        for tag, writer in self._writers.items():
            if self._signs.last.line > writer.begun and not writer.frames:
                continue
            at_the_end = writer.headed and self._recent and self._recent[-1][0] - writer.begun <= 8
            if writer.cut and writer.idle < 20 and (writer.frames or at_the_end):
                frames = tuple(writer.frames)
                raised = Raised(writer.named, "", frames, writer.where, False, writer.survived, False)
                hit = self._cut(writer.named)
                if self._signs.last.line <= writer.begun:
                    self._mark()  # what the run did before it does not mean that it went on after it
                self._add(writer.begun, HEADER, hit, tag, raised)

    def _cut(self, named: str) -> Hit:
        """Of a traceback whose end is missing, IPython's first line still names the exception."""
        hit = recognise(Said(named, named, "", "", self._library)) if named else None
        if hit is not None and hit.kind == "failure":
            return replace(hit, strength=min(hit.strength, 0.6), details=hit.details | {"heard": "cut"})
        says = (
            f"{named}, whose message is cut off" if named else "a traceback that is cut before its exception"
        )
        return Hit("other-error", says, 0.25, details={"heard": "cut"})

    def _loss_at_the_end(self) -> None:
        """No exception, but the last loss that was printed is no number."""
        if not self._nan:
            return
        for number, line in reversed(self._recent):
            losses = LOSS.findall(line[-2000:]) if not line.startswith("wandb:") else []
            if losses:
                if any(each.lower().lstrip("-") in ("nan", "inf") for each in losses):
                    hit = Hit("nan", "the loss is no number any more", 0.6, details={"heard": "loss"})
                    if not any(
                        each.details.get("kind") in ("failure", "summary") for each in self._chains[-1]
                    ):
                        self._add(number, line.strip(), hit, "", None)
                return

    def _last_words(self) -> None:
        """Nothing known stands here, but one of the last lines is a program's complaint in words of its own."""
        if any(each.details.get("kind") != "talk" for each in self._chains[-1]):
            return
        seen = 0
        for number, raw in reversed(self._recent):
            line = clean(raw)
            text = line.text.strip()
            if not text or _NOT_ORDINARY.match(text):
                continue
            seen += 1
            if seen > _LAST_WORDS or signs.is_finish(text):
                return
            if _SYSTEM.search(unquoted(raw).lstrip()[:200]):
                return  # the kernel's and the journal's lines have readers of their own
            if seen == 1 and _CLOSED.search(text):
                hit = Hit(
                    "interrupted", "the launcher told its workers to end", 0.35, details={"heard": "end"}
                )
                self._add(number, text, hit, line.tag, None)
                return
            loud = line.level in ("FATAL", "CRITICAL") or (line.level == "ERROR" and seen <= 3)
            if (loud or _COMPLAINT.search(text)) and not self._around.mentions(number, raw):
                hit = Hit("other-error", text[:200], 0.35, details={"heard": "end"})
                self._add(number, text, hit, line.tag, None)
                return

    def _trouble(self) -> None:
        """No word of a death that we know, yet the text speaks of one: "no crash" is then said with less trust."""
        if self._chains[-1]:
            return
        for number, raw in reversed(self._recent):
            if _TROUBLE.search(raw[:400]) and (line := clean(raw)).level not in ("INFO", "DEBUG", "WARNING"):
                self._add(
                    number,
                    line.text.strip(),
                    Hit("other-error", "the text speaks of trouble", 0.1, "talk"),
                    line.tag,
                    None,
                )
                return

    def _phase_around(self, finding: Finding) -> str:
        """Where a traceback's frames say nothing: kernels' names, the stack below, the lines above, the error itself."""
        if phases.OF_GRADIENTS.search(finding.text):
            return "train"
        below = [line for number, line in self._recent if number > finding.line][:_STACK]
        above = [line for number, line in self._recent if number < finding.line][-_STACK:]
        for stack in (below, above):  # "Aborted (core dumped)" stands below its own
            if (phase := phase_frames.of_stack(clean(line[:600]).text for line in stack)) != "unknown":
                return phase
        if (phase := self._loop_above(finding.line)) != "unknown":
            return phase
        if finding.cause == "import-error" or phases.of_error(finding.text) != "unknown":
            return "load"
        return self._script_phase

    def _loop_above(self, number: int) -> str:
        """The last loop or heading above a line."""
        heading_line, heading = self._heading(number)
        last = self._signs.last
        if last.phase != "unknown" and last.line >= heading_line:
            return last.phase
        return heading or last.phase

    def _heading(self, until: int) -> tuple[int, str]:
        for number, raw in reversed(self._recent):
            if number > until or _SYSTEM.search(raw[:200]) or _SYSLOG.match(raw):
                continue  # the kernel's and the daemons' lines tell nothing of a loop
            text = clean(raw[:_HEAD]).text
            # signs of progress have spoken for themselves
            if (heading := phases.of_heading(text)) and signs.read_sign(text) is None:
                return number, heading
        return 0, ""

    def _last_progress(self) -> Progress:
        last = self._signs.last
        roots = (each for each in self._chains[-1] if each.details.get("role") == "root")
        told = next((each.details["phase"] for each in roots), "unknown")
        if told != "unknown":
            return replace(last, phase=told)
        end = self._recent[-1][0] if self._recent else 0
        phase = self._loop_above(end)
        return replace(
            last,
            phase=phase,
            line=last.line or (end if phase != "unknown" else 0),
            trained=self._signs.trained,
        )

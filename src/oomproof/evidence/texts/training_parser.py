"""What a training log says about its job's death. Lines in, findings out; streaming, in bounded memory."""

from __future__ import annotations

import re
from collections.abc import Sequence

from oomproof.evidence.run_settings import last_date
from oomproof.evidence.texts import log_end, phases
from oomproof.evidence.texts import progress as signs
from oomproof.evidence.texts.exception_messages import Message
from oomproof.evidence.texts.failure_chains import FailureChains
from oomproof.evidence.texts.failures import FailureText, Hit, recognise
from oomproof.evidence.texts.failures.everyday_sentences import LOSS
from oomproof.evidence.texts.finding import Finding, Progress
from oomproof.evidence.texts.line_cleaner import FLATTENED, Line, after_bar, clean, pieces, unquoted
from oomproof.evidence.texts.line_gate import AFTER_A_FAILURE, GATE, GATE_BEYOND_ASCII
from oomproof.evidence.texts.log_tail import LogTail
from oomproof.evidence.texts.quoted_source import Surroundings
from oomproof.evidence.texts.root_failure import root
from oomproof.evidence.texts.run_restarts import RestartWatch
from oomproof.evidence.texts.tracebacks import CHAINS, HEADER, Raised, Writer
from oomproof.evidence.texts.wrapped_lines import Edge, WrappedLine, go_on, join_wrapped, wrapped_line
from oomproof.records import replace

PASSED_OVER = 500  # lines without a word of a failure, between two of a long text
_USUAL = 60  # characters of one
_BLOCK = 128
_BLOCK_CHARACTERS = 1 << 16
_TAGS = 256
_DATA = 10_000  # characters of a line that no person wrote
_DATA_HEAD = 64  # characters of it that tell whose it is
_INFORMS = re.compile(r"\b(?:INFO|DEBUG)\b")
_FAILED_SCRIPT = re.compile(
    r"^(?P<script>[\w./-]+\.py) FAILED|of binary: |(?P<cmd>[\w./-]+\.py)['\"]?[ ,\]].{0,2000}(?:exits with|returned non-zero|died with)"
)
_NATIVE = "C++ Traceback (most recent call last)"
_NO_DIGITS = str.maketrans("", "", "0123456789")
_HANDLED = re.compile(r"(?i)\bskipping (?:the |this )?batch\b|attempting to recover from OOM")
_LOGGED = ("ERROR", "CRITICAL", "FATAL")
_ANSWER = 4  # lines below an exception in which its handler speaks
_GOES_ON = re.compile(
    r"(?i)\b(?:skip\w*|retry\w*|(?:re-?)?trying|continu\w*|recover\w*|fall(?:ing|s)? ?back|ignor\w*|resum\w*|reduc\w*|halv\w*)\b"
)
# Celery's worker, an access log: the next task, another answer
_SERVES = re.compile(
    r"^celery@\S{1,120} ready\.$|^Task \S{1,200}\[[\w-]{8,40}\] (?:received|succeeded in \d)|\"(?:GET|POST|PUT) \S{1,400} HTTP/[\d.]{1,4}\" [23]\d\d\b"
)
_SIGNS = 6  # of progress, the last of a block: a loop may tell of two counters in turns, and three of one show its pace
_NUMBERS_MATTER = re.compile(
    r"exit|code|[Ss]ignal|SIG|nan|NaN|raining|inished|ompleted|Root|jax|tensorflow|keras|FAILED|xception|raceback"
)


def _marked(line: str) -> bool:
    return any(mark in line for mark in signs.ANCHORS)


def _characters(line: str) -> int:
    """Of a line that stands for itself: what is indented belongs to a stack or a table above it, and wandb sums up after a death."""
    return 0 if log_end.NOT_ORDINARY.match(line) else len(line)


def _is_data(line: str) -> bool:
    """What a program was given, logged as information: it is full of other people's words."""
    plain = len(line) > _DATA and "\r" not in line and HEADER not in line
    return plain and _INFORMS.search(line[:_DATA_HEAD]) is not None


class TrainingParser:
    """``feed`` every line, then ``finish``; ``progress`` and ``end`` are set by then."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.progress = Progress()
        self.end = ""
        self.is_post = False
        self._number = 0
        self._block: list[tuple[int, str]] = []
        self._size = 0
        self._writers: dict[str, Writer] = {}
        self._pending: Message | None = None  # an exception whose message may go on
        self._tail = LogTail()
        self._chains = FailureChains(source, self._tail)
        self._library = ""
        self._around = Surroundings()
        self._nan = False  # the last loss that was printed is no number
        self._wrapped: WrappedLine | None = None  # a line that may go on in the next
        self._edge = Edge()
        self._restarts = RestartWatch()
        self._above = ""  # the line before
        self._data_at = 0  # the last line that is only data
        self._raised_at = -1000  # where the last exception stands
        self._dull: set[str] = set()  # lines, less their digits, that say nothing in spite of their words

    # -- in -------------------------------------------------------------------------------------------

    def feed(self, number: int, line: str) -> None:
        if number == self._data_at:
            return  # an endless line comes in parts
        if number - self._number > PASSED_OVER and self._number:
            self._flush()
            self._chains.went_by(
                number - self._number, _USUAL * (number - self._number) if self._chains.last else 0
            )
        self._number = number
        if _is_data(line):
            self._data_at, line = number, line[:_DATA_HEAD]
        self._block.append((number, line))
        self._size += len(line)
        if len(self._block) >= _BLOCK or self._size >= _BLOCK_CHARACTERS:
            self._flush()

    def finish(self) -> list[Finding]:
        self._flush()
        self._settle()
        chains, tail = self._chains, self._tail
        log_end.cut_tracebacks(chains, tail, self._writers, self.end, self._library)
        if self._nan:
            log_end.loss_at_the_end(chains, tail)
        if not tail.whole:
            chains.overtaken()
        log_end.last_words(chains, tail, self._around)
        log_end.trouble(chains, tail)
        self.is_post = all(finding.job.kind == "talk" for finding in chains.findings) and log_end.is_post(
            tail
        )
        chains.close(last=True)
        self.progress = tail.progress(root(chains.last))
        return chains.findings

    def last_date(self) -> float | None:
        """Of the last lines; of a long one its end, where a progress bar's latest stands."""
        dates = (last_date(line[-2000:]) for _, line in reversed(self._tail.recent))
        return next((date for date in dates if date is not None), None)

    @property
    def opened(self) -> int:
        """The line that opened the last of several runs; 0 where there is one."""
        return self._restarts.opened

    @property
    def openings(self) -> tuple[str, ...]:
        """What stands in the lines that may open another run."""
        return self._restarts.keys

    def finished_after(self, number: int) -> bool:
        return self._tail.finished_after(number)

    # -- blocks ---------------------------------------------------------------------------------------

    def _flush(self) -> None:
        block, self._block, self._size = self._block, [], 0
        if not block:
            return
        for _, line in reversed(block):
            if line.strip():
                self.end = line.strip()[-600:]
                break
        self._restarts.begin(block)
        text = "\n".join([line for _, line in block])
        reopens = self._restarts.may_open(text)
        self._edge.look([len(line) for _, line in block])
        gate = GATE if text.isascii() else GATE_BEYOND_ASCII
        present = [anchor for anchor in gate if anchor in text]
        if present or self._chains.last:
            present += [anchor for anchor in AFTER_A_FAILURE if anchor in text]
        self._tail.recent.extend(block[-200:])
        busy = bool(present) or self._pending is not None or self._wrapped is not None or self._in_traceback()
        if not busy:
            if reopens:
                self._look_for_restarts(block)
            below = sum(_characters(line) for _, line in block) if self._chains.last else 0
            self._chains.went_by(len(block), below)
            self._quick_progress(block, text)
            self._above = block[-1][1]
            return
        marks = [anchor for anchor in signs.ANCHORS if anchor in text]
        for number, line in block:
            if reopens:
                self._look_for_restarts([(number, line)])
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

    def _look_for_restarts(self, block: Sequence[tuple[int, str]]) -> None:
        failed = bool(self._chains.last) or self._pending is not None
        for number, line in block:
            if self._restarts.opens(number, line, failed):
                self._settle()
                self._chains.run_began(number)

    def _quick_progress(self, block: Sequence[tuple[int, str]], text: str) -> None:
        """Nothing failed here: the last signs of the block stand for all of them."""
        last: list[tuple[int, str]] = []
        for count, (number, line) in enumerate(reversed(block)):
            if len(last) == _SIGNS or (count == 16 and not last and not _marked(text)):
                break
            if _marked(line):
                tail = line if len(line) < 2000 else line[-2000:]
                part = tail.rpartition("\r")[2]
                last.append((number, part if _marked(part) else tail))
        if "poch" in text and not any("poch" in line for _, line in last):
            last += self._epoch_above(block)
        for number, line in reversed(last):
            cleaned = clean(line)
            self._tail.signs.look(number, cleaned.text, cleaned.tag)

    @staticmethod
    def _epoch_above(block: Sequence[tuple[int, str]]) -> list[tuple[int, str]]:
        """The newest line that tells the epoch, which bars below it do not repeat."""
        for number, line in reversed(block):
            if "poch" in line and len(line) < 2000:
                sign = signs.read_sign(clean(line).text)
                if sign is not None and sign.epoch is not None:
                    return [(number, line)]
        return []

    # -- lines ----------------------------------------------------------------------------------------

    def _line(self, number: int, raw: str, present: Sequence[str], marks: Sequence[str]) -> None:
        if self._wrapped is not None and self._join_wrapped(number, raw):
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
                self._chains.went_by(1, _characters(raw))
                self._around.look(number, unquoted(raw))
            elif not self._error(number, line, suspicious):
                if not log_end.NOT_ORDINARY.match(line.text):
                    self._chains.went_by(1, _characters(raw))
                if shape and self._pending is None and not _NUMBERS_MATTER.search(raw[:400]):
                    # "CPU Virtual Memory: used = 400.1 GB" comes a thousand times, with other numbers
                    self._dull.add(shape)
                    if len(self._dull) > 2000:
                        self._dull.clear()
        else:
            self._chains.went_by(1, _characters(raw))
            self._around.look(number, unquoted(raw))
        if number - self._raised_at <= _ANSWER and number > self._raised_at and _GOES_ON.search(raw[:400]):
            self._chains.handled()
        self._above = raw
        for mark in marks:
            if mark in raw:
                line = clean(raw)
                self._tail.signs.look(number, line.text, line.tag)
                break

    def _in_traceback(self) -> bool:
        return any(writer.open for writer in self._writers.values())

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
        if suspicious and _SERVES.search(stripped):
            self._settle()
            self._chains.serves_on()
        if suspicious:
            self._notice(text, stripped)
        if HEADER in text and not writer.open:
            writer.logged = line.level in _LOGGED or clean(self._above).level in _LOGGED
        before = writer.open
        raised = writer.take(number, text)
        if raised is not None and not raised.loose and self._is_example(number, text, raised):
            return True
        if raised is not None and raised.loose and HEADER in text and line.level in ("INFO", "DEBUG"):
            return True  # caught, and logged in one line
        # perhaps a line of the message of the exception above
        below = text[:1] in (" ", "\t") and self._pending is not None
        if raised is not None and raised.type == "Error" and below:
            raised = None
        if raised is not None:
            self._settle()
            self._raised_at = number
            self._chains.mark(line.tag)  # now: what follows the error counts, not what follows its last line
            self._pending = Message(number, raised, line.tag, raised.text, line)
            self._chains.ordinary_then = self._chains.ordinary
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
            self._chains.take_back(number)
        hit = self._meaning(stripped, line.level)
        if not below:
            self._wrapped = self._wrapped or wrapped_line(number, line, hit, self._edge.width)
        if hit is None and not inside and line.level in ("", "ERROR", "FATAL", "CRITICAL"):
            hit = self._quoted(writer, stripped)
        if hit is None:
            return inside or handled
        if handled:
            hit = replace(hit, kind="talk", strength=0.1)
        self._chains.add(number, stripped, hit, line.tag)
        return True

    def _join_wrapped(self, number: int, raw: str) -> bool:
        """Whether the line is the rest of the one before, and so has been read with it."""
        assert self._wrapped is not None
        before, self._wrapped = self._wrapped, None
        joined = join_wrapped(before, number, clean(raw), self._edge.width, self._meaning)
        if isinstance(joined, WrappedLine):
            self._wrapped = joined
        elif joined is not None:
            text, hit = joined
            if before.hit is not None:
                self._chains.forget(before.number)
            self._chains.add(before.number, text, hit, before.line.tag)
            self._wrapped = go_on(before, text, hit)
            return True
        return False

    def _is_example(self, number: int, text: str, raised: Raised) -> bool:
        """A docstring shows what a wrong call raises: indented, inside a program, with dots for the frames."""
        return text[:4] == "    " and not raised.frames and self._around.program(number)

    def _meaning(self, text: str, level: str) -> Hit | None:
        return recognise(FailureText(text, "", level, "", self._library))

    def _quoted(self, writer: Writer, stripped: str) -> Hit | None:
        raised = writer.quoted(stripped)
        if raised is None:
            return None
        hit = recognise(FailureText(raised.text, raised.type, "", "", self._library))
        if hit is None:
            hit = Hit("other-error", f"{raised.type}: {raised.message}"[:200], 0.5)
        if hit.kind != "failure":
            return None
        return replace(hit, strength=min(hit.strength, 0.5), facts=replace(hit.facts, heard="quoted"))

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
                self._tail.script_phase = phases.of_script(name)
        if signs.is_finish(stripped) and not (
            signs.is_clock(stripped) and (self._pending is not None or self._chains.just_failed())
        ):
            self._tail.signs.advances += 2  # as good as two steps further
            self._tail.signs.finishes += 1
        self._chains.notice(stripped)
        if ("nan" in text or "NaN" in text) and not text.startswith("wandb:") and (loss := LOSS.search(text)):
            value = loss["value"].lower()
            self._nan = "nan" in value or "inf" in value

    def _lead_in(self, message: Message) -> None:
        """Paddle raises "SystemError:" or "MemoryError:" with native frames for a message: what failed stands below them."""
        self._pending = None
        hit = Hit("other-error", "see the error below it", 0.4, "wrapper")
        self._chains.add(message.number, message.raised.text, hit, message.tag, message.raised)

    def _settle(self) -> None:
        """The pending exception's message is complete: say what it means."""
        message, self._pending = self._pending, None
        hit = message.meaning(self._library) if message is not None else None
        if message is None or hit is None:
            return
        text = message.text if hit.gpu else message.raised.text
        self._chains.add(message.number, text, hit, message.tag, message.raised)

"""What the end of a training log tells where no line before it did: cut tracebacks, a loss that is no number, a complaint."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import islice

from oomproof.evidence.texts import progress as signs
from oomproof.evidence.texts.failure_chains import FailureChains
from oomproof.evidence.texts.failures import FailureText, Hit, recognise
from oomproof.evidence.texts.failures.everyday_sentences import LOSS
from oomproof.evidence.texts.finding import JobFacts
from oomproof.evidence.texts.line_cleaner import clean, unquoted
from oomproof.evidence.texts.log_tail import SYSTEM, LogTail
from oomproof.evidence.texts.quoted_source import Surroundings
from oomproof.evidence.texts.tracebacks import HEADER, Raised, Writer
from oomproof.records import replace

NOT_ORDINARY = re.compile(r"^(?:wandb:|\s|$|frame #|\[E(?!rrno )|#\d|=+$|-+$|slurmstepd|srun)")
_TROUBLE = re.compile(
    r"(?i)\b(?:crash(?:e[sd]|ing)?|died|killed|abort(?:ed|s|ing)?|panic(?:ked)?|fatal|failed|fails|failure|segfault\w*|exit (?:code|status)|exception|stuck)\b|\b\w*[Ee]rror\b(?! ?[=:]? ?[\d.]+)"
)
_WORD = re.compile(r"[^\W\d_]{3}")
_CLOSED = re.compile(
    r"closing sig(?:nal SIG(?:TERM|INT|HUP)|(?:n(?:a(?:l(?: S(?:I(?:G\w{0,3})?)?)?)?)?)? ?$)"
)
_LAST_MESSAGE = 6  # lines that say something, from the end
_CALM = 2  # lines of information below it, none of which speaks of an end
_ENDS = re.compile(r"(?i)\b(?:exit|quit|stop|abort|shut|clean|terminat|clos|end|kill|interrupt)")
_COMPLAINT = re.compile(
    r"^(?:\w[\w./-]{0,40}: )?(?:fatal|FATAL|[Pp]anic|Error|ERROR|error)(?: ?ERROR| error)?:\s*\S|panicked at|\bcore dumped\)|^Uncaught exception|^uncaught exception"
    r"|^\W{0,4}Unhandled exception|^Abort(?:ed|ing)\b|pthread_create failed|build stopped|^(?:[a-z_]\w{0,40}\.){1,6}[A-Z]\w{0,60}(?:Error|Exception):$"
)
_NO_SUCH = re.compile(
    r"^(?!rm: |mkdir: |rmdir: )[\w./-]{1,200}: \S.{0,300}: (?:No such file or directory|not found|Permission denied|Is a directory|Not a directory|Exec format error|Argument list too long)$"
    r"|^\[Errno \d{1,3}\] [A-Z]"
)
_SAYS_FAILED = re.compile(r"^(?:[A-Za-z_][\w./-]*[ :]+){1,5}failed[.!]?$")
_CUT_HEADER = re.compile(r"Traceback(?: \([a-z ]{0,20})?$")
_RAISES = re.compile(
    r"^raise (?:\w+\.){0,6}(?P<type>[A-Z]\w{2,60}(?:Error|Exception))\((?:[fr]?['\"](?P<message>[^'\"\n]{8,160}))?"
)
_FAILED_LINE = re.compile(r"❱ +\d+ ")
_SPOKEN = re.compile(r"\b(?:I|I'm|I've|[Mm]y|[Ww]e|[Pp]lease|[Tt]hanks)\b|\w\?\s*$")
_PRINTED = re.compile(
    r"\d\d:\d\d|\d%|^[^\w\s]?\s*\[|^\s+\S|\w=\S|^\w+Error\b|\b(?:INFO|WARNING|ERROR)\b|^[$>]"
)
_BOX = 12  # lines: rich shows seven lines of source around each
_NO_DIGITS = str.maketrans("", "", "0123456789")
_MANY = 5  # complaints that differ in their numbers alone
_CUT = JobFacts(heard="cut")


def cut_tracebacks(
    chains: FailureChains, tail: LogTail, writers: Mapping[str, Writer], end: str, library: str
) -> None:
    if _CUT_HEADER.match(clean(end).text):  # the paste ends inside the very first line of it
        chains.add(tail.end or 1, end, _cut("", library))
    box = [line.strip() for _, line in islice(reversed(tail.recent), _BOX)]
    if box and box[0].startswith("│") and any(_FAILED_LINE.search(line) for line in box):
        chains.add(tail.end, end, _cut("", library))
    for tag, writer in writers.items():
        if tail.signs.last.line > writer.begun and not writer.frames:
            continue
        at_the_end = writer.headed and tail.recent and tail.end - writer.begun <= 8
        if writer.cut and writer.idle < 20 and (writer.frames or at_the_end):
            frames = tuple(writer.frames)
            raised = Raised(writer.named, "", frames, writer.where, False, writer.survived, False)
            if tail.signs.last.line <= writer.begun:
                chains.mark()  # what the run did before it does not mean that it went on after it
            spoken = "tensorflow" if "tensorflow/" in raised.files else library
            code = frames[-1][2] if frames else ""
            chains.add(writer.begun, HEADER, _cut(writer.named, spoken, code), tag, raised)


def _cut(named: str, library: str, code: str = "") -> Hit:
    """Of a traceback whose end is missing, IPython's first line still names the exception, or its last line of code raises it."""
    message = named
    if not named and (written := _RAISES.match(code)):
        named = written["type"]
        message = f"{named}: {written['message']}" if written["message"] else named
    hit = recognise(FailureText(message, named, "", "", library)) if named else None
    if hit is not None and hit.kind == "failure":
        return replace(hit, strength=min(hit.strength, 0.6), facts=replace(hit.facts, heard="cut"))
    says = f"{named}, whose message is cut off" if named else "a traceback that is cut before its exception"
    return Hit("other-error", says, 0.25, facts=_CUT)


def loss_at_the_end(chains: FailureChains, tail: LogTail) -> None:
    """No exception, but the last loss that was printed is no number."""
    for number, line in reversed(tail.recent):
        if number <= chains.began:
            return
        losses = LOSS.findall(line[-2000:]) if not line.startswith("wandb:") else []
        if not losses:
            continue
        infinite = any(loss.lower().lstrip("-") in ("nan", "inf") for loss in losses)
        if infinite and not any(finding.job.kind in ("failure", "summary") for finding in chains.current):
            hit = Hit("nan", "the loss is no longer a number", 0.6, facts=JobFacts(heard="loss"))
            chains.add(number, line.strip(), hit)
        return


def last_words(chains: FailureChains, tail: LogTail, around: Surroundings) -> None:
    """Nothing known stands here, but one of the last lines is a program's complaint in words of its own."""
    if any(finding.job.kind != "talk" for finding in chains.current):
        return
    seen, calm = 0, 0
    for number, raw in reversed(tail.recent):
        if number <= chains.began:
            return
        line = clean(raw)
        text = line.text.strip()
        if not text or NOT_ORDINARY.match(text):
            continue
        seen += 1
        calm += line.level in ("INFO", "DEBUG") and _ENDS.search(text) is None
        if seen > _LAST_MESSAGE or signs.is_finish(text):
            return
        if SYSTEM.search(unquoted(raw).lstrip()[:200]):
            return  # the kernel's and the journal's lines have readers of their own
        if seen == 1 and _CLOSED.search(text):
            hit = Hit(
                "interrupted", "the launcher told its workers to end", 0.35, facts=JobFacts(heard="end")
            )
            chains.add(number, text, hit, line.tag)
            return
        loud = line.level in ("FATAL", "CRITICAL") or (line.level == "ERROR" and seen <= 3)
        loud = loud and _WORD.search(text) is not None  # a table's figures complain of nothing
        loud = loud and calm < _CALM  # whoever logged it went on
        last = seen == 1 and line.level in ("", "ERROR") and not (tail.signs.complete or tail.signs.finishes)
        last = last and bool(_NO_SUCH.match(text) or _SAYS_FAILED.match(text))
        heard = loud or last or _COMPLAINT.search(text)
        if heard and _of_many(text, tail):
            return  # each item that it could not use, one by one
        if heard and not around.mentions(number, raw):
            hit = Hit("other-error", text[:200], 0.35, facts=JobFacts(heard="end"))
            chains.add(number, text, hit, line.tag)
            return


def _of_many(text: str, tail: LogTail) -> bool:
    """Whether the same was said of others before, each with its own number."""
    shape = text.translate(_NO_DIGITS)
    words = [word for word in shape.split() if len(word) > 3]
    alike = (clean(raw).text.strip() for _, raw in tail.recent if words and words[-1] in raw)
    return len({said for said in alike if said.translate(_NO_DIGITS) == shape}) >= _MANY


def is_post(tail: LogTail) -> bool:
    """Whether a person wrote the whole text, and none of its lines is a program's."""
    lines = [line[:400] for _, line in tail.recent] if tail.whole and tail.signs.last.step is None else []
    return any(map(_SPOKEN.search, lines)) and not any(map(_PRINTED.search, lines))


def trouble(chains: FailureChains, tail: LogTail) -> None:
    """No word of a death that we know, yet the text speaks of one: "no crash" is then said with less trust."""
    if chains.last:
        return
    for number, raw in reversed(tail.recent):
        if _TROUBLE.search(raw[:400]) and (line := clean(raw)).level not in ("INFO", "DEBUG", "WARNING"):
            hit = Hit("other-error", "the text speaks of trouble", 0.1, "talk")
            chains.add(number, line.text.strip(), hit, line.tag)
            return

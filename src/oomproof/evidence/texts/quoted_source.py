"""Lines of a program's source, of a diff or of a table that only mention an error: what they quote did not happen here."""

from __future__ import annotations

import re

# Code by its own syntax, whatever stands around it
_CODE = re.compile(
    r"^(?:el)?if\b.{0,400}:$|['\"`] (?:not )?in \w[\w.()\[\]]*(?:\b|$)(?: (?:and|or)\b|:|\)|$)"
    r"|^(?:assert|return|print|raise|throw|logger|logging|log|self|console|echo|writeln!|println!|panic!|expect|printf|fprintf|cout|sys)\b ?[(.!\"'<]"
    r"|^-?signal\.SIG|^SIG[A-Z]{2,4}(?:: ?\w{1,20})? ?= ?[-\w]|^_?\w+ = (?:\w+\.)+\w+$|^with \w.{0,200}:$|^\w+\(.{0,300}\);$|^# ?include\b"
    r"|^(?:# )?:raises? \w|^(?:CHECK|DCHECK|LOG|ASSERT|EXPECT|TORCH_CHECK|PADDLE_ENFORCE)\w*\(|^[fbru]{1,2}[\"']|^//|^/\*|^--?[a-z][\w-]{1,40}(?:[ =][\w<\[{]\S{0,40})? {2,}\w|^\* |^(?:const|let|var|static|public|private|fn|func|def|class|import|from) \w"
    r"|^(?!(?i:error|fatal|panic))\w{1,40}: \S{0,40}\([\"']|[\"']\)?\)[;,]$|^(?:return|throw|throw new|raise|await|yield) [\w.:]{1,60}\([fbru]?[\"'`]|^(?:[\w./-]{1,120}:\d+:\s*)?(?!(?:\w+\.)*\w*(?:Error|Exception)\()[\w.:]{2,60}[.:]\w{2,40}\([fbru]?[\"'`].{0,2000}[\"'`]\)$|^-? ?(?:pattern|regexp?|match(?:es)?|expr|contains|description|summary|help|title|example|grep): ?[\"'/|]|^[+-](?: {4,}|\t)\S|^raise \w+|^except \w|^\w+ \+?= [\"'(\[f]"
)
# A request, a rule or a question, not a report: "when a job fails (exit code 137), the scheduler should …"
_RULE = re.compile(
    r"\b(?:[Ii]f|[Ww]hen(?:ever)?) (?:an?|the|your?|any|it)\b.{0,200}\b(?:should|would|could|must|may|might)\b"
    r"|\b[Ii]n case (?:of )?(?:an? |the |any )?(?:process|job|worker|run|task|pod|container|program|training|script)(?:e?s)?\b"
    r"|\b(?:[Ll]ook(?:ing)? for an? |[Aa]lways check |[Cc]heck (?:dmesg|docker|kubectl|journalctl|(?:the |your |kernel )?logs?)\b[\w ]{0,30} (?:for (?!the dead worker)|whether |if ))"
    r"|\b[Ii]t(?: would|['’]d) be (?:very |really )?(?:nice|great|good|helpful|useful|better|handy)\b"
    r"|^(?:Does|Do|Should|Would|Will) (?:this|the|that|it|we|these)\b.{0,300}\?$"
)
# A list of changes, a commit's subject, a question and its answer
_CHANGE = re.compile(
    r"^(?:[-*+•] |\d+\. )(?:\[[\w ./#-]{1,40}\] )?(?:[Ff]ix(?:e[sd])?|[Aa]dd(?:ed|s)?|[Rr]emoved?|[Hh]andled?|[Aa]void|[Pp]revent|[Ii]mproved?|[Ss]upport)\b"
    r"|^(?:fix|feat|chore|docs|refactor|test)(?:\([\w./-]{1,40}\))?!?: |^(?:Q|A|问|答)\d{0,3} ?[:.：] "
)
# A row of a Markdown table: prose in columns
_ROW = re.compile(r"^\|?.{1,2000} \| .{0,2000}\|$")
# Signs that the lines around are a program or a script, so that a comment or a string in it is one, too
_AROUND = re.compile(
    r"^\s*(?:def \w+\(|class \w+[(:]|import [\w.]+(?: as \w+)?$|from [\w.]+ import \w|(?:el)?if .{1,200}:$|else:$|for \w.{0,120} in .{1,200}:?$"
    r"|while .{1,100}:$|try:$|except\b.{0,80}:$|with .{1,120}:$|return\b|export [A-Z_]+=|set -[a-z]+$|#!/|let (?:mut )?\w+|const \w+|fn \w+\("
    r"|\.unwrap\(\)|[a-z_]\w*(?:\.\w+)* = [a-z_]\w*[.(\[]|[a-z_][\w.]*\(.{0,200}\);?$)"
)
_COMMENT = re.compile(r"^\s*#(?!!| ?\d+%)\s*\S")
# A docstring's list of what may be raised: "    ValueError: If the mapping is empty."
_RAISES = re.compile(r"^\s+(?:\w+\.){0,6}\w{2,60}(?:Error|Exception): (?:If|When|Always|Raised|On|For)\b")
_LITERAL = re.compile(r"^\s*\(?[\"'].{0,2000}(?<!\\n)[\"']\)?,?(?:\s{1,20}#.{0,200})?$")
_NEAR = 30  # lines


class Surroundings:
    """Whether the lines just read were a program's. Counts lines outside tracebacks only."""

    __slots__ = ("_diff", "_last", "_seen")

    def __init__(self) -> None:
        self._last = -1000
        self._seen = 0
        self._diff = False  # between ```diff and ```

    def look(self, number: int, line: str) -> None:
        if line.startswith("```"):
            self._diff = line.startswith("```diff")
        if _AROUND.match(line[:400]) or _CODE.search(line.strip()[:400]):
            self._seen = self._seen + 1 if number - self._last <= _NEAR else 1
            self._last = number

    def program(self, number: int) -> bool:
        return self._seen >= 2 and number - self._last <= _NEAR

    def mentions(self, number: int, line: str) -> bool:
        return (self._diff and line[:1] in "+-@ ") or only_mentions(line, self.program(number))


def only_mentions(line: str, in_program: bool = False) -> bool:
    """``line`` as it stands in the text, outside a traceback."""
    stripped = line.strip()[:2500]
    if _CODE.search(stripped) or _ROW.match(stripped) or _RULE.search(stripped) or _CHANGE.match(stripped):
        return True
    return in_program and bool(_COMMENT.match(line) or _LITERAL.match(line) or _RAISES.match(line))


_INTRODUCES = re.compile(
    r"(?i)\b(?:might|may|would|could|will|can) (?:now )?(?:see|look|get|print|show|be)\b[^.!?\n]{0,60}:$|\bexample (?:\w+ )?(?:output|logs?|errors?|messages?)\b[^.!?\n]{0,80}:$|^example (?:new )?(?:output|logs?|errors?|messages?)\b[^.!?\n]{0,80}:?$|\bfor example:$"
)


class Examples:
    """Fenced blocks or quotations below a sentence that says they are examples, or that are a diff: what they show did not happen."""

    __slots__ = ("_fenced", "_next")

    def __init__(self) -> None:
        self._next = False
        self._fenced = False

    def inside(self, line: str) -> bool:
        if line.startswith("```"):
            example = self._next or line.startswith("```diff")
            self._fenced, self._next = example and not self._fenced, False
            return False
        if self._fenced:
            return True
        if self._next and line.startswith(">"):
            return True
        if line.strip():
            self._next = _INTRODUCES.search(line[-400:]) is not None
        return False

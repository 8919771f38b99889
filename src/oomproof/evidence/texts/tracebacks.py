"""Python tracebacks out of a stream of lines: plain, IPython's, rich's; cut at either end; one per writer."""

from __future__ import annotations

import builtins
import re
from collections import deque

from oomproof.records import dataclass, field

HEADER = "Traceback (most recent call last)"
CHAINS = (
    "During handling of the above exception, another exception occurred",
    "The above exception was the direct cause of the following exception",
)
# Tracebacks that Python prints and then goes on: finalizers, logging's own trouble
SURVIVED = (
    "Exception ignored in",
    "--- Logging error ---",
    "Exception ignored on calling",
    "Error in atexit",
)

_FRAME = re.compile(
    r'^\W{0,40}File "(?P<file>[^"\n]{1,400})", line (?P<line>\d+)(?!\d)(?! in )(?:, in (?P<function>.{1,120}))?'
)
_IPYTHON = re.compile(
    r"^(?:File )?(?P<file>(?:~|/|[A-Z]:\\|<ipython|\.{1,2}/|Cell |[\w.-]+/)[^\s:]{0,300})(?::(?P<line>\d+))?(?:,)? in (?P<function><module>(?=\W|$)|[\w<>.]+(?=\())"
)
# a notebook's frame as it is copied: [/usr/lib/python3/site-packages/x.py](https://localhost:8080/#) in f(x)
_LINKED = re.compile(r"\[(?P<file>[/<][^\]\n]{1,300})\]\(https?://[^)\n]{1,200}\)(?= in )")
_CELL = re.compile(
    r"^(?:Cell )?(?:In|Input In) ?\[\d+\](?:, (?:in )?line \d+|, in)?|^<ipython-input-[\w-]+> in "
)
# IPython's first line names the exception: "InvalidArgumentError      Traceback (most recent call last)"
_HEADED = re.compile(rf"^(?P<type>[A-Za-z_][\w.]{{2,120}})\s{{2,}}{re.escape(HEADER)}")
_EMPHASIS = re.compile(r"^(?P<mark>\*{1,3}|_{2}|`{1,3})(?P<body>[A-Za-z].{2,600}?)(?P=mark)")
_BOLD = re.compile(r"\*\*(?P<words>[^*\n]{1,200})\*\*")
_RICH = re.compile(r"^│? ?(?P<file>/[^\s:]{1,300}):(?P<line>\d+) in (?P<function>[\w<>]+)")
_ARROW = re.compile(r"^-{2,}> ?\d+ (?P<code>.*)")
_NAME = (
    r"(?:[A-Za-z_]\w*\.){0,12}_?[A-Za-z]\w{0,80}?(?:Error|Exception|Interrupt|Exit|Timeout|Empty|Iteration|Expired|Failure|Failed|Abort|"
    r"Pruned|NotFound|BadZipFile|Unavailable|Exceeded|Refused|Denied|Lost|Died|Stop|Killed|ExceptionGroup|KilledWorker|Panic)"
)
_EXCEPTION = re.compile(
    rf"^(?P<type>{_NAME}|(?:Base)?Exception)(?P<inner>\(\w+\))?(?::(?P<message>(?:\s.*)?)|\s*)$"
)
_DOTTED = re.compile(
    r"^(?P<type>(?:[a-z_]\w*\.){1,12}(?:[A-Z]\w{0,80}|error|timeout|gaierror|herror))(?P<inner>)(?:: (?P<message>.*)|:?\s*)$"
)
_LOOSE = re.compile(
    rf"^(?:E\s{{2,8}})?(?P<type>{_NAME})(?P<inner>\(\w+\))?:(?: {{1,4}}(?=\S)|(?=[A-Z][a-z]+ ))(?P<message>.+)$|^(?P<bare>KeyboardInterrupt|MemoryError|AssertionError)$"
)
# as hydra and loggers print one: ValueError("no such folder")
_REPR = re.compile(
    rf"^(?:Exception: +['\"]?)?(?P<type>{_NAME})\((?P<mark>['\"])(?P<message>.{{3,2000}})(?P=mark),?\)$"
)
_BUILT_IN = frozenset(name for name in vars(builtins) if name.endswith("Error"))
# A whole traceback that was copied into one line: File "a.py", line 3, in f     g(x) MemoryError
_FLAT = re.compile(rf'\bFile "[^"\n]{{1,400}}", line \d+\b.*\s(?P<type>(?:{_NAME}))(?:: (?P<message>\S.*))?$')
_FLAT_LONGEST = 1500
# In prose: "I get the error, `KeyError: 'x'` when …", "training stops with ValueError: …"
_QUOTED = re.compile(
    rf"(?:(?P<quote>[`'\"*“‘]{{1,3}})|^FAILED \S{{1,200}} - |(?:[Ee]rrors?|ERROR|errors? (?:is|was)|message|[Ff]ollowing|g[oe]ts?|getting|with|says?|raise[ds]?|throws?|saw|see|encounter\w*|me[et]+|报错|错误|exception)[\s:,：]{{1,3}})"
    rf"(?P<type>{_NAME}): (?P<message>\S.{{2,600}})"
)
_PATIENCE = 300  # lines that others may write between a traceback's frames


@dataclass(frozen=True, slots=True)
class Raised:
    type: str
    message: str
    frames: tuple[tuple[str, str, str], ...]  # file, function, code; outermost first
    where: str  # file:line of the innermost frame
    chained: bool  # another exception stands above it in the same chain
    survived: bool  # printed by a finalizer or by logging: no death
    loose: bool  # an exception's line without its traceback
    ended: bool = False  # from the script's own first frame on: nobody caught it …
    logged: bool = False  # … but who logged it

    @property
    def thread(self) -> bool:
        """Whether a thread's own first frame is the outermost: such an exception ends the thread, not the process."""
        return (
            bool(self.frames)
            and self.frames[0][1].startswith("_bootstrap")
            and "threading" in self.frames[0][0]
        )

    @property
    def text(self) -> str:
        return f"{self.type}: {self.message}" if self.message else self.type

    @property
    def files(self) -> str:
        return "\n".join(f"{file} {function}" for file, function, _ in self.frames)


@dataclass(slots=True)
class Writer:
    """The traceback that one rank or process is in the middle of."""

    frames: deque[tuple[str, str, str]] = field(default_factory=lambda: deque(maxlen=80))
    where: str = ""
    open: int = 0  # tracebacks begun and not yet ended by their exception: two ranks may share a stream
    headed: bool = False  # its first line was seen, not only frames
    indent: int = 0  # of its first line
    logged: bool = False  # somebody caught it and logged it
    named: str = ""  # the exception's type, where the first line says it
    begun: int = 0  # line of the header or of the first frame
    chained: bool = False
    survived: bool = False
    waiting_for_code: bool = False
    idle: int = 0

    def take(self, number: int, text: str) -> Raised | None:
        """One line of this writer. Returns the exception that ends a traceback, or stands alone."""
        stripped = text.strip()
        if stripped.startswith("[") and (linked := _LINKED.match(stripped)):
            stripped = linked["file"] + stripped[linked.end() :]
        if HEADER in text and (flat := _FLAT.search(text.partition(HEADER)[2][-_FLAT_LONGEST:])):
            return self._raise(flat["type"], flat["message"] or "", loose=True)
        if HEADER in text:
            self._begin(number)
            self.headed = True
            self.indent = len(text) - len(text.lstrip())
            head = _HEADED.match(stripped)
            self.named = head["type"] if head else ""
            return None
        if stripped.startswith(CHAINS):
            self.chained = True
            return None
        if stripped.startswith(SURVIVED):
            self.survived = True
            return None
        if self._frame(number, stripped):
            return None
        if self.open:
            return self._inside(text, stripped)
        if written := _REPR.match(stripped):
            return self._raise(written["type"], written["message"], loose=True)
        match = _LOOSE.match(stripped)
        if (
            match
            and match["type"]
            and f"{match['type']}:{match['message']}" == stripped
            and match["type"] not in _BUILT_IN
        ):
            match = None  # "ParseError:Skipped": a program's own label
        if match and not (match["type"] or "").endswith("Warning"):
            name = (match["type"] or match["bare"]) + (match["inner"] or "")
            return self._raise(name, match["message"] or "", loose=True)
        if stripped:
            self.survived = False
        return None

    def quoted(self, stripped: str) -> Raised | None:
        """An exception that a sentence quotes: weaker than one that stands for itself."""
        match = _QUOTED.search(stripped)
        if (
            match is None
            or match["type"].endswith("Warning")
            or (not match["quote"] and stripped.startswith("["))
        ):
            return None
        message = match["message"]
        if (match["quote"] or "")[:1] in ("`", "“"):  # what follows the closing mark is the sentence's own
            message = re.split(r"[`”]", message, maxsplit=1)[0]
        return Raised(match["type"], message.rstrip("`'\"*”’"), (), "", False, False, True)

    @property
    def cut(self) -> bool:
        """A traceback whose exception never came."""
        return self.open > 0

    def _begin(self, number: int) -> None:
        if not self.open:
            self.frames.clear()
            self.begun = number
        self.open = min(self.open + 1, 8)
        self.idle = 0
        self.waiting_for_code = False

    def _frame(self, number: int, stripped: str) -> bool:
        if not self.open and "❱" in stripped:  # rich's box, cut above
            self._begin(number)
            self.headed = True
        match = _FRAME.match(stripped) or (
            _IPYTHON.match(stripped) or _RICH.match(stripped) if self.open else None
        )
        if match is None:
            return bool(self.open and _CELL.match(stripped))
        if not self.open:  # the log was cut above: a frame is enough to know that this is a traceback
            self._begin(number)
        self.frames.append((match["file"], (match["function"] or "").strip(), ""))
        self.where = f"{match['file']}:{match['line'] or '?'}"
        self.waiting_for_code = True
        self.idle = 0
        return True

    def _inside(self, text: str, stripped: str) -> Raised | None:
        if arrow := _ARROW.match(stripped):
            self._code(arrow["code"])
            self.waiting_for_code = False
            return None
        if stripped[:1] in "*_`" and (bold := _EMPHASIS.match(stripped)):  # as web pages quote it
            text = stripped = bold["body"] + stripped[bold.end() :]
        outside = len(text) - len(text.lstrip()) <= self.indent  # … of the frames and their code
        match = _EXCEPTION.match(stripped) or (_DOTTED.match(stripped) if outside else None)
        # a type that no pattern knows, but the first line named: "error: OpenCV(4.5.5) …"
        if match is None and self.named and stripped.startswith(f"{self.named}: "):
            return self._raise(self.named, stripped[len(self.named) + 1 :].strip(), loose=False)
        if match and not match["type"].endswith("Warning"):
            return self._raise(
                match["type"] + (match["inner"] or ""), (match["message"] or "").strip(), loose=False
            )
        if self.waiting_for_code:
            self._code(stripped)
            self.waiting_for_code = False
        self.idle += 1
        if self.idle > _PATIENCE:
            self.open = 0
            self.frames.clear()
        return None

    def _code(self, code: str) -> None:
        if self.frames:
            file, function, _ = self.frames[-1]
            self.frames[-1] = (file, function, code[:200])

    def _raise(self, name: str, message: str, loose: bool) -> Raised:
        if "**" in message:
            message = _BOLD.sub(r"\g<words>", message)
        outermost = self.frames[0] if self.frames else ("<", "", "")
        ended = self.headed and not (loose or self.survived)
        ended = ended and outermost[1] == "<module>" and not outermost[0].startswith(("<", "~", "Cell"))
        raised = Raised(
            name, message[:3000], tuple(self.frames), self.where, self.chained, self.survived, loose, ended, self.logged
        )  # fmt: skip
        self.chained = self.survived = self.waiting_for_code = False
        self.open = max(0, self.open - 1)
        self.headed = self.headed and self.open > 0
        self.named = ""
        if not self.open:
            self.frames = deque(maxlen=80)
            self.where = ""
        self.idle = 0
        return raised

"""One line of any log as its author meant it: colours, rank tags, timestamps and notebook quoting taken off."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator

from oomproof.records import dataclass

PIECE = 4000  # characters looked at in one go: bounds every regular expression behind it

_ANSI = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]{0,200}(?:\x07|\x1b\\)|[@-Z\\-_])|\\u001b\[[0-9;]*m"
)
_BARE_COLOUR = re.compile(r"\[[0-9;]{1,11}m")  # an escape byte lost on the way, as on web pages
# Whose line it is: torchrun, srun -l, Ray, mpirun, docker compose
_TAG = re.compile(
    r"\[(?:rank|default)?(\d{1,5})\]:\s?|(\d{1,4}): (?=\S| \*{3})|(std(?:err|out))(?: [FP] |: )|\(((?:[\w.]+ )?pid=\d+(?:, ip=[\d.]+)?)\) ?"
    r"|\((raylet)[^)]{0,60}\) ?|\[(?:\d+,)?(\d+)\]<std(?:err|out)>: ?|(?!(?:TRACE|DEBUG|INFO|SUCCESS|WARNING|WARN|ERROR|CRITICAL|FATAL)\b)([\w.-]{1,40}) +\| "
)
_LEVEL = (
    r"(?P<{0}>DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|FATAL|Debug|Info|Warning|Error|[EWIF](?=\d{{4}} |\]| ))"
)
_STAMP = re.compile(
    r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d+)? (?:[A-Z][\w ]{0,16}|[+-]\d{4})\] ?|\d\d/\d\d/\d\d \d\d:\d\d:\d\d "
    r"|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:?\d\d) [\w.-]{1,80} [\w./-]{1,80}\[\d+\]: "
    r"|\[?\d{4}[-/]\d\d[-/]\d\d[T ,_]?\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?\]?(?: ?-|:| \|)? ?"
    r"|\d{1,2}-\d{1,2}-\d{4} \d\d:\d\d:\d\d: ?|\[\d\d:\d\d:\d\d(?:[.,]\d+)?\] ?|\d\d:\d\d:\d\d(?:[.,]\d+)? ?(?:\| )?"
    r"|\d\d/\d\d/\d{4} \d\d:\d\d:\d\d(?: ?-)? ?|\[\d{4}-\d\d-\d\d, \d\d:\d\d:\d\d \w{2,5}\] (?:\{[^{}\n]{1,60}\} )?|##\[(?:error|warning|debug|notice)\]"
    r"|\[\d\d/\d\d \d\d:\d\d:\d\d[^\]]{0,60}\]:? ?"
    r"|(?:[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d) \S+ [\w./-]+(?:\[\d+\])?: "
    r"|(?:[^\W\d_]{2,12}\.?|\d{1,2}月) {1,2}\d{1,2} \d\d:\d\d:\d\d \S{1,255} (?:[\w./-]{1,80}\[\d{1,10}\]|kernel|audit): "  # a journal in another language
    r"|[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d (?:[A-Z]{3,4} )?\d{4}[: ]? ?"
)
# "ERROR:root:", "[ERROR] [launch.py:325:f] ", "- name - ERROR - ", "| WARNING | mod:f:10 - "
_LOGGED = re.compile(
    r"(?:\[?(?:[\w.]{1,60} ?[-|] )?"
    + _LEVEL.format("a")
    + r"\s*(?:\]|[:|-](?!:))\s*(?:(?![\w.]{0,80}(?:Error|Exception|Interrupt|Exit):)[\w.<>]{1,60}:(?!:))?(?:\[(?!rank\d|\d{1,5}\]:|[^\]\n]{0,40}\d ?/ ?\d)[^\]]{1,80}\] ?|[\w.:]{1,80} - )*)"
)
# "ERROR 06-30 13:53:19 [core.py:515] ", "ERROR 11-06 17:51:07 utils.py:229] " (vLLM before 0.8), "ERROR [12/20 18:16:20 d2.engine.train_loop]: ", "INFO [train.py:983] ",
# "E1223 05:18:02.971000 3304089 torch/distributed/api.py:882] "
_LOGGED_AT = re.compile(
    _LEVEL.format("a")
    + r"(?:\s+(?:\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d+)? )?\[[\w./ :-]{1,80}\]:? ?|\s+\d\d-\d\d \d\d:\d\d:\d\d [\w./-]{1,80}:\d{1,6}\] ?|\s+(?=\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[\d.]{0,10}Z )|\s+(?:[a-z][a-z\d_-]{2,40}: ){1,3}(?=[A-Za-z_.]{3,60}(?:Error|Exception|Interrupt)\b)|\d{4} \d\d:\d\d:\d\d\.\d+\s+\d+ [\w./-]{1,120}:\d+\] ?)"
)
# Celery: "[2024-05-01 10:00:00,123: ERROR/MainProcess] "; log4j, behind its stamp: "WARN TaskMemoryManager: "; onnxruntime
_LOGGED_IN = re.compile(
    rf"\[\d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d+)?: {_LEVEL.format('a')}/[\w.-]{{1,60}}\] ?"
    rf"|{_LEVEL.format('b')}\s+(?![\w.$]{{0,80}}(?:Error|Exception|Interrupt|Exit):)[A-Z][\w$]{{3,60}}: (?=\S)"
    r"|\[(?P<c>[EWIF]):onnxruntime:[^\]\n]{0,120}\] ?"
)
# … whose line it is, behind a stamp: "2024-05-01T10:00:00Z [worker-3] "
_STAMPED_TAG = re.compile(
    r"\[(?!(?:TRT|LightGBM|CUDA)\])([A-Za-z][\w.:/@#-]{0,40}|\d{1,7}(?=\] \[))\] (?=\S)"
)
# "2024-05-01 10:00:00,123 ERROR main: "
_STAMPED_ERROR = re.compile(
    r"(?P<level>ERROR|CRITICAL|FATAL)\s{1,8}(?![\w.]{0,80}(?:Error|Exception|Interrupt|Exit):)[A-Za-z_][\w.-]{0,60}: (?=\S)"
)
_DATED = re.compile(rf"{_STAMP.pattern}|[EWIF]\d{{4}} \d\d:\d\d:\d\d\.|\[rank\d{{1,5}}\]: ")
_CELL = re.compile(
    r'\s{0,80}(?:"(?![Rr]eason|[Ss]tate)\w{1,20}": ?)?\[?\s{0,20}"(?P<body>.*?)(?:\\n)?"\s*,?\]?\s*$'
)
_RULES = re.compile(
    r"^(?:> )+|^#{1,4} (?=\S)|^ {0,3}[│|] (?=\S|  | \*)|^<(?!ipython|frozen|string|stdin|module)[a-zA-Z/][^>]{0,40}>"
)
# "[177/train/578 (pid 28936)] [09c561ee] Traceback …": whatever an engine puts before a traceback's lines
_BRACKETS = re.compile(
    r"(?:\[[^\[\]]{1,80}\]:? ?){1,4}(?=Traceback \(| {0,4}File \"| {4}|(?:[a-z_]\w*\.)*[A-Z]\w*(?:Error|Exception)(?:: |$)"
    r"|KeyboardInterrupt$| ?\*\*\* caught|(?:Killed|Segmentation fault|Bus error|Aborted)(?: \(core dumped\))?$|\w+Error +Traceback \()"
)
_NOT_LEVELS = {"Error", "Warning", "Info", "Debug"}
_WARNED = re.compile(r"\S{1,300}\.py:\d{1,7}: \w{0,60}Warning: ")  # as Python's warnings print themselves


@dataclass(frozen=True, slots=True)
class Line:
    text: str  # without tag, stamp and level; leading blanks kept
    tag: str = ""  # rank or process that wrote it, "" where nothing says
    level: str = ""  # WARNING, ERROR …, "" where nothing says
    width: int = 0  # characters of the whole line, as it stood on the screen
    blank: bool = False  # whether the last of them is a blank


# Lines that lost their feeds: a terminal's padding before a log's head, a traceback behind the echo of Ctrl-C
_GLUED_LINES = re.compile(
    r"(?<! ) {8,}(?=(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)[: ]|Traceback \(|File \")|(?<=\^C)(?=[A-Z\[\d^])"
)


# A whole traceback on one line: a form's field or a chat that eats line feeds
_FLATTENED = re.compile(
    r"(?<=\S) +(?=Traceback \(most recent call last\))|(?<=\S) +(?=File [\"/<]\S{1,300}\s?,? line \d)"
    r"|(?<=[\w)\]}'\"]) +(?=(?:[a-z_]\w*\.){0,8}[A-Z]\w{2,40}(?:Error|Exception): )"
)
FLATTENED = 200  # characters; a traceback's own lines are shorter, or hold only its head


_HELD = re.compile(r"(?:\^C){2,}")


def pieces(line: str) -> Iterator[str]:
    """What one raw line shows: a bar's redraws apart, a notebook stored on one line apart, nothing endless."""
    if "\r" in line or "\\n" in line:
        parts = re.split(r"\r|(?<!\\)\\n(?=[\"A-Z' \[\\])" if len(line) > 2000 else r"\r", line)
    else:
        parts = [line]
    if "^C^C" in line:  # a key held down
        parts = [_HELD.sub("^C", part) for part in parts]
    if "^C" in line or "        " in line:
        parts = [piece for part in parts for piece in _GLUED_LINES.split(part)]
    if len(line) > FLATTENED and "Traceback (most recent call last)" in line:
        parts = [piece for part in parts for piece in _FLATTENED.split(part)]
    for part in parts:
        if len(part) <= PIECE:
            if part:
                yield part
            continue
        for start in range(0, len(part), PIECE):
            yield part[start : start + PIECE]


_BAR = re.compile(r"\d%\|[^|\n]{0,400}\|[^\[\n]{0,60}\[[^\]\n]{0,300}\]")
_GLUED = re.compile(
    r"[^A-Za-z\s](?P<word>(?:Killed|Terminated|Segmentation fault|Aborted|Bus error)(?: ?\(core dumped\))?)\s*$"
)


def after_bar(raw: str) -> str:
    """A bar ends without a line feed: what the shell or Python says next stands on the same line."""
    if "%|" in raw:
        end = 0
        for bar in _BAR.finditer(raw):
            end = bar.end()
        if end and raw[end:].strip():
            return raw[end:]
    glued = _GLUED.search(raw[-80:])
    return glued["word"] if glued else raw


_MAIL = re.compile(r"^(?:> ?){1,8}")


def unquoted(raw: str) -> str:
    """Without the marks of a mail or an issue that quotes it; indentation kept."""
    return _MAIL.sub("", raw, count=1) if raw[:1] == ">" else raw


def clean(raw: str) -> Line:
    text = raw.replace("\0", "")
    if "\x1b" in text or "\\u001b" in text:
        text = _ANSI.sub("", text)
    if "m" in text and "[" in text:
        text = _BARE_COLOUR.sub("", text)
    if '"' in text and (cell := _CELL.match(text)):
        body = cell["body"]
        if not text.lstrip().startswith('"""'):
            text = body.replace('\\"', '"').replace("\\\\", "\\").replace("\\t", "\t")
    if "&" in text and ";" in text:
        text = html.unescape(text)
    text = text.rstrip()
    if text.endswith("`") and text.count("`") % 2:
        text = text.rstrip("`")  # the end of a block of code, or a stray mark of one
    tag = level = ""
    stamped = False
    text = _RULES.sub("", text, count=1)
    if text[:1] in (" ", "\t") and _DATED.match(indented := text.lstrip()):
        text = indented  # a page shows the whole log as a block of code
    # "[rank0]:", then a stamp, then a level, in any order; whoever forwards it adds its own
    for _ in range(5):
        if (match := _TAG.match(text)) and (group := next((g for g in match.groups() if g), "")):
            tag = tag or group
            text = text[match.end() :]
        elif match := _LOGGED_IN.match(text):
            level = level or match["a"] or match["b"] or match["c"]
            text = text[match.end() :]
        elif (match := _STAMP.match(text)) and match.end():
            stamped = True
            text = text[match.end() :]
        elif (match := _LOGGED.match(text) or _LOGGED_AT.match(text)) and match["a"] not in _NOT_LEVELS:
            level = level or match["a"]
            text = text[match.end() :]
        elif stamped and not level and (match := _STAMPED_ERROR.match(text)):
            level = match["level"]
            text = text[match.end() :]
        elif stamped and (match := _STAMPED_TAG.match(text)):
            text = text[match.end() :]
        else:
            break
    if text.startswith("[") and (match := _BRACKETS.match(text)):
        text = text[match.end() :]
    if not level and "Warning: " in text and _WARNED.match(text):
        level = "WARNING"
    return Line(text, tag, _LEVELS.get(level, level), len(raw), raw.endswith(" "))


_LEVELS = {"E": "ERROR", "W": "WARNING", "I": "INFO", "F": "FATAL", "WARN": "WARNING"}

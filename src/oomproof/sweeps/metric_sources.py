"""The metric of a trial: from the file named by OOMPROOF_METRIC_FILE, or from what the script printed; the last one counts.

A source is a row of ``_PRINTED``: a name for people and a pattern around the metric's name. Pure but for ``read_file``."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from pathlib import Path

from oomproof.recording.state_files import read_small
from oomproof.records import dataclass

VARIABLE = "OOMPROOF_METRIC_FILE"
LOGGED = ".wandb"  # behind that file's name: what the script logged with wandb, as agent/wandb_metrics.py writes it
_NUMBER = r"[-+]?(?:(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|nan|inf(?:inity)?)"
_DECIMAL = r"[-+]?\d+\.\d+(?:[eE][-+]?\d+)?"
_VALUE = rf"(?:tensor\(|np\.float\d+\()?['\"]?({_NUMBER})(?![\w.]*\w)"
# NAME stands for the metric's name in any spelling of it. In the order in which they are told, not looked for: the last one
# that was printed counts, whatever its form.
_PRINTED = (
    ("a dictionary or JSON that it printed", rf"['\"]NAME['\"]\s*:\s*{_VALUE}"),
    ("a line NAME=value that it printed", rf"(?<![\w./'\"-])NAME\s*[=:]\s*{_VALUE}"),
    ("a table that it printed", rf"[│┃|]\s*NAME\s*[│┃|]\s*{_VALUE}"),
    ("a table that it printed", rf"(?m)^\s*NAME\s{{2,80}}{_VALUE}\s*$"),
    ("the summary that wandb printed", rf"(?m)^wandb:\s+NAME\s+{_VALUE}\s*$"),
    # nanoGPT's "val loss 4.1951"; a whole number behind a name may count anything
    ("a line NAME value that it printed", rf"(?<![\w./'\"-])(?<![A-Za-z] )NAME[ \t]({_DECIMAL})(?![\w.]*\w)"),
)
# what looks like a metric: for whoever gave a name that never came
_ANY = re.compile(
    rf"['\"](?P<quoted>[A-Za-z_][\w./-]{{0,40}})['\"]\s*:\s*['\"]?{_NUMBER}|(?<![\w./'\"-])(?P<plain>[A-Za-z_][\w./-]{{0,40}})\s*=\s*{_NUMBER}(?![\w.])",
    re.IGNORECASE,
)
_LIKE_METRIC = re.compile(
    r"loss|acc|err|f1|score|auc|bleu|rouge|perplexity|ppl|metric|precision|recall|iou|map|reward|mse|mae|r2|wer",
    re.IGNORECASE,
)
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_MOST_FILE = 4 << 20


@dataclass(frozen=True, slots=True)
class Metric:
    value: float  # may be no number
    source: str  # in words


def read_logged(path: Path, name: str) -> Metric | None:
    """What was logged with wandb, to every digit; the summary that wandb prints has five, and none without wandb.finish()."""
    told = read_file(path.with_name(path.name + LOGGED), name)
    return Metric(told.value, "wandb.log") if told is not None else None


def read_file(path: Path, name: str) -> Metric | None:
    """JSON lines, ``name=value`` lines, or one bare number; by oomproof.report_metric or by the script itself."""
    try:
        text = read_small(path, _MOST_FILE).decode("utf-8", "replace")
    except OSError:
        return None
    source = f"the file {VARIABLE} names"
    bare = re.fullmatch(rf"\s*({_NUMBER})\s*", text, re.IGNORECASE)
    if bare:
        return Metric(float(bare[1]), source)
    for line in reversed(text.splitlines()):
        try:
            told = json.loads(line)
        except (ValueError, RecursionError):
            told = None
        if isinstance(told, dict):
            for key, value in told.items():
                if (
                    _plain(key) == _plain(name)
                    and isinstance(value, int | float)
                    and not isinstance(value, bool)
                ):
                    return Metric(
                        float(value),
                        "oomproof.report_metric" if told.get("by") == "report_metric" else source,
                    )
        elif (metric := in_text(line, name)) is not None:
            return Metric(metric.value, source)
    return None


def in_text(text: str, name: str) -> Metric | None:
    """The last one that stands there."""
    text = _COLOURS.sub("", text.replace("\0", "")).replace("\r", "\n")
    spelling = _spelling(name)
    last: tuple[int, str, str] | None = None
    for source, pattern in _PRINTED:
        for match in re.finditer(pattern.replace("NAME", spelling), text, re.IGNORECASE):
            if last is None or match.start(1) > last[0]:
                last = match.start(1), match[1], source.replace("NAME", name)
    if last is None:
        return None
    return Metric(float(last[1]), last[2])


def _spelling(name: str) -> str:
    """``eval/loss`` is printed as eval_loss or eval loss: a slash, a dot, an underscore and a space are the same."""
    return "".join("[/._ ]" if letter in "/._ " else re.escape(letter) for letter in name)


def _plain(name: object) -> str:
    return re.sub(r"[/. ]", "_", str(name)).lower()


def names_in(text: str, most: int = 6) -> list[str]:
    """What else might have been meant, the likeliest first."""
    counted: dict[str, int] = {}
    for match in _ANY.finditer(_COLOURS.sub("", text)):
        name = match["quoted"] or match["plain"]
        counted[name] = counted.get(name, 0) + 1
    likely = [name for name in counted if _LIKE_METRIC.search(name)]
    return (likely or list(counted))[:most]


def stored_metric(metric: Metric | None) -> float | str | None:
    """What is no finite number is its text: JSON has none for it."""
    if metric is None:
        return None
    return metric.value if math.isfinite(metric.value) else str(metric.value)


def first_of(metrics: Iterable[Metric | None]) -> Metric | None:
    return next((metric for metric in metrics if metric is not None), None)


def shown_metric(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if math.isfinite(value) else str(value)

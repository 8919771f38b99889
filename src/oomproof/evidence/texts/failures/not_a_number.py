"""Losses and values that are no longer numbers."""

from __future__ import annotations

import re

from oomproof.evidence.texts.failures.hit import Hit, Said

ANCHORS = (
    "nan",
    "NaN",
    "NAN",
    "inf",
    "Inf",
    "loss scale",
    "not finite",
    "nvalid loss",
    "non-finite",
    "exploding",
)

_RAISED = re.compile(
    r"\b[Nn]a[Nn]s?\b|\bNAN\b|\binfinit|not finite|non-finite|\binf\b|[Mm]inimum loss scale|loss scale already at minimum|exploding|nvalid loss"
)
_SAID = re.compile(
    r"[Ll]oss (?:is|was|became|=) ?(?:nan|NaN|inf|infinite)\b.{0,40}(?:stop|abort|exit|quit|terminat|$)|[Ii]nvalid loss, terminating"
    r"|metric \S+ = (?:nan|inf|-inf) is not finite|loss scale already at minimum|NaN (?:loss|gradients?|values?) (?:detected|encountered|found).{0,60}(?:stop|abort|exit|terminat)"
    r"|(?:[Nn]a[Nn]|inf) or (?:[Ii]nf|[Nn]a[Nn]) (?:loss )?(?:detected|found|encountered).{0,60}(?:stop|abort|exit|terminat)"
    r"|(?:stopp|terminat|abort)\w*.{0,60}\b[Ll]oss (?:is|became) (?:nan|NaN|inf)"
)
# ImportError: No module named 'infer' and the like never get here: the types below do not speak of numbers
_NOT_ABOUT_NUMBERS = ("ImportError", "ModuleNotFoundError", "KeyError", "FileNotFoundError", "AttributeError", "NameError", "TypeError",
                      "JSONDecodeError")  # fmt: skip
# a loss as trainers print it: "loss: nan", "'loss': nan", "loss=nan", "train_loss nan"
LOSS = re.compile(
    r"\b(?:\w*_)?[Ll]oss(?![_ ]?scal)(?:[_/]\w+)?['\"]?\s*[:= ]\s*(?:tensor\()?(?P<value>-?(?:nan|NaN|inf|\d[\d.e+-]*))"
)


def recognise(said: Said) -> Hit | None:
    text = said.text
    if said.raised:
        name = said.raised.rpartition(".")[2]
        if name not in _NOT_ABOUT_NUMBERS and _RAISED.search(text):
            return Hit("nan", "a value that must be finite became NaN or infinite", 0.85)
    elif _SAID.search(text):
        return Hit("nan", "training stopped itself: the loss is no number any more", 0.85)
    return None

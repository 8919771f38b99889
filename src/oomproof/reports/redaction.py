"""Takes secrets out of what leaves this machine, and remembers what was taken out of where, never the values."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping
from operator import is_not
from typing import Any, TypeVar

from oomproof.recording.secrets import MASK, SECRET_KEYS, SECRET_WORDS, hide_shapes, is_folder, mask_argv
from oomproof.records import replace

Record = TypeVar("Record")

_KEY_END = re.compile(r"-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
_KEY_LINE = re.compile(r"[A-Za-z0-9+/=]{16,}")

# A secret by its name: `NAME=value`, `NAME: value`, `"NAME": "value"`, `--name value`, `name => value`.
# Nothing stands before the telling word: what precedes it in the name is read backwards, so that no text is slow.
_NAMED = re.compile(
    rf"""(?x)
    (?: (?i: passw(?:or)?d | passphrase
            | (?:{SECRET_KEYS})[-_ ]?keys?
            | connection[-_]?string | credentials?
            | (?<![a-z0-9]) (?:{SECRET_WORDS}) )
        | (?<=[a-z]) (?:Token|Secret|Key|Password) )
    (?i: [-_](?:id|value|hash|salt|base64|b64|[0-9]{{1,2}}) )? (?![A-Za-z0-9_-])
    ["']? (?P<glue> [ \t]{{0,8}}(?:=>|:=|[:=])\s{{0,40}} | [ \t]{{1,8}} )
    (?: (?P<open>\\?["']) (?P<quoted> (?: \\. | (?!(?P=open)) [^\\\n] ){{0,4000}}? ) (?P=open) | (?P<bare>[^\s"',;}})\]]+) )
    """
)
_NAME_BEFORE = re.compile(r"[\w.-]{0,60}\Z")
# A model's special tokens and plain settings are not secrets: `pad_token: <pad>`, `token: false`, `eos_token='</s>'`.
_HARMLESS = re.compile(
    r"(?i)<.*>|\[[A-Z_]+\]|true|false|none|null|nan|yes|no|not|is|was|and|or|for|in|of|to|the|a|•••|\*+|-|\.{3}|…|\d{1,7}"
)
_SPECIAL = re.compile(
    r"(?i)(?:^|[_.-])(?:pad|eos|bos|unk|sep|cls|mask|image|video|audio|special|stop|decoder_start|num|max|min|per)[_-]token"
)
# W&B, Kaggle, Comet: only where the line speaks of a key
_HEX_KEY = re.compile(r"\b[0-9a-f]{32}(?:[0-9a-f]{8})?\b")
_HEX_WORDS = re.compile(r"(?i)wandb|kaggle|comet|api.?key|neptune|login")
# wider than what is left out of a recording: a bundle goes to other people, and a word hidden too many costs less
_SECRET_NAME = re.compile(
    rf"(?i:passw|passphrase|(?:^|[-_.])(?:{SECRET_WORDS})(?:[-_.]|$)|(?:{SECRET_KEYS})[-_.]?key)"
    r"|(?<=[a-z])(?:Token|Secret)(?![a-z])"  # authToken, clientSecret; not maxTokens
)
_HOME = re.compile(r"(?<![\w/])(/home/|/Users/|/mnt/[a-z]/Users/|[A-Za-z]:\\Users\\)([^/\\\s:'\"<>]+)")
_SHORT = 200  # characters of a text that is worth remembering
_PLAIN = frozenset((int, float, bool, type(None)))
_LONG_ENOUGH = 8  # a shorter value may be an ordinary word


class Redactor:
    """One per report. ``found`` counts by place and kind; the values are kept in memory only, to find them elsewhere."""

    def __init__(self, environment: Mapping[str, str] | None = None, *, hide_user: bool = False) -> None:
        self.found: Counter[tuple[str, str]] = Counter()
        self._values: set[str] = set()
        # nothing was found in these: names of phases come by the thousand
        self._harmless: set[str] = set()
        self._hide_user = hide_user
        for name, value in (os.environ if environment is None else environment).items():
            # the shell's folder is one wherever it lies: this environment is no connection string
            if _SECRET_NAME.search(name) and not (name in ("PWD", "OLDPWD") and value.startswith("/")):
                self._learn(value)

    def text(self, text: str, where: str) -> str:
        """``text`` without secrets; what was taken out is counted under ``where``."""
        if text in self._harmless:
            return text
        before, text = text, self.shapes(text, where)
        text = _NAMED.sub(lambda match: self._named(match, where), text)
        if _HEX_WORDS.search(text):
            text = "".join(self._hex(line, where) for line in text.splitlines(keepends=True))
        text = self.known(text, where)
        if text == before and len(text) <= _SHORT:
            self._harmless.add(text)
        return text

    def shapes(self, text: str, where: str) -> str:
        """Only what is secret by its shape: for text with a syntax of its own, such as HTML."""
        text = hide_shapes(text, lambda value, kind: self._taken(value, kind, where))
        if "PRIVATE KEY" in text:
            text = self._key_ends(text, where)
        if self._hide_user:
            text = _HOME.sub(
                lambda match: match[1] + self._count("USER", "name in a home folder", where), text
            )
        return text

    def _key_ends(self, text: str, where: str) -> str:
        """The rest of a key whose beginning was cut off: the lines of letters before its end."""
        while (end := _KEY_END.search(text)) is not None:
            begin = end.start()
            while True:
                line = text.rfind("\n", 0, max(0, begin - 1)) + 1
                if line >= begin or not _KEY_LINE.fullmatch(text[line:begin].strip()):
                    break
                begin = line
            text = (
                text[:begin] + self._taken(text[begin : end.end()], "private key", where) + text[end.end() :]
            )
        return text

    def known(self, text: str, where: str) -> str:
        """Values seen as secrets before, here or in the environment, wherever they stand bare."""
        for value in sorted(self._values, key=len, reverse=True):
            if value in text:
                self.found[where, "secret known by its name elsewhere"] += text.count(value)
                text = text.replace(value, MASK)
        return text

    def value(self, value: Any, where: str) -> Any:
        """Strings anywhere inside plain JSON; a value under a secret's name goes whole."""
        if isinstance(value, str):
            return self.text(value, where)
        if isinstance(value, list):
            if value and all(isinstance(element, str) for element in value):
                return [self.text(word, where) for word in self._argv(value, where)]
            return [self.value(element, where) for element in value]
        if isinstance(value, dict):
            return {
                self.text(str(key), where): self._field(str(key), element, where)
                for key, element in value.items()
            }
        return value

    def record(self, record: Record, where: str) -> Record:
        """A record of ours with every text in it masked, however deep: a field added later is masked as well."""
        masked: Record = self._masked(record, where)
        return masked

    def _masked(self, value: Any, where: str) -> Any:
        if isinstance(value, str):
            return self.text(value, where)
        if isinstance(value, tuple | list):
            if _PLAIN.issuperset(map(type, value)):
                return value
            masked = [self._masked(element, where) for element in value]
            return type(value)(masked) if any(map(is_not, masked, value)) else value
        if isinstance(value, dict):
            return {key: self._masked(element, where) for key, element in value.items()}
        if not hasattr(value, "__dataclass_fields__"):
            return value
        changed = {}
        for name in value.__dataclass_fields__:
            before = getattr(value, name)
            if type(before) in _PLAIN:
                continue
            if (after := self._masked(before, where)) is not before:
                changed[name] = after
        return replace(value, **changed) if changed else value

    def listing(self) -> list[str]:
        """What was redacted, and where; sorted, without the values."""
        return [f"{where}: {count} × {kind}" for (where, kind), count in sorted(self.found.items())]

    def _field(self, key: str, value: Any, where: str) -> Any:
        secret = _SECRET_NAME.search(key)
        if secret and isinstance(value, list):
            return [self._field(key, element, where) for element in value]
        if secret and isinstance(value, str) and value not in ("", MASK):
            if _HARMLESS.fullmatch(value) or _SPECIAL.search(key) or is_folder(key, value):
                return self.text(value, where)
            return self._taken(value, f"value of {key}", where)
        return self.value(value, where)

    def _argv(self, words: list[str], where: str) -> list[str]:
        masked = mask_argv(words)
        for before, after in zip(words, masked, strict=True):
            if before != after and before != MASK:
                self.found[where, "secret argument"] += 1
                if after == MASK:
                    self._learn(before)
                elif after.endswith(f"={MASK}"):
                    self._learn(before.partition("=")[2])
        return masked

    def _named(self, match: re.Match[str], where: str) -> str:
        value = match["quoted"] if match["quoted"] is not None else match["bare"]
        if not value or MASK in value or _HARMLESS.fullmatch(value):
            return match[0]
        start = match.start()
        before = _NAME_BEFORE.search(match.string[max(0, start - 60) : start])
        name = (before[0] if before else "") + re.split(r"[\s:=\"']", match[0], maxsplit=1)[0]
        if _SPECIAL.search(name) or is_folder(name.lstrip("-"), value):
            return match[0]
        # `--token VALUE` and `password VALUE` are told from prose by what follows: prose has no digits in that place
        told = bool(match["glue"].strip()) or name.startswith("-")
        if not told and (len(value) < 12 or not any(letter.isdigit() for letter in value)):
            return match[0]
        if value.lower() in ("bearer", "basic", "token"):  # what stands behind it is masked by its own shape
            return match[0]
        at = (match.start("quoted") if match["quoted"] is not None else match.start("bare")) - start
        return (
            match[0][:at] + self._taken(value, f"value of {name.lstrip('-')}", where) + (match["open"] or "")
        )

    def _hex(self, line: str, where: str) -> str:
        if not _HEX_WORDS.search(line):
            return line
        return _HEX_KEY.sub(lambda match: self._taken(match[0], "key of hex digits", where), line)

    def _taken(self, value: str, kind: str, where: str) -> str:
        self._learn(value)
        return self._count(MASK, kind, where)

    def _count(self, put: str, kind: str, where: str) -> str:
        self.found[where, kind] += 1
        return put

    def _learn(self, value: str) -> None:
        """Kept to be found bare elsewhere, when it can be nothing but a secret."""
        mixed = any(letter.isdigit() for letter in value) and any(letter.isalpha() for letter in value)
        if len(value) >= _LONG_ENOUGH and mixed and MASK not in value and not re.search(r"\s", value):
            self._values.add(value)
            self._harmless.clear()

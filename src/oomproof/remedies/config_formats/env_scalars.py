"""Values in .env files: NAME=value, a line each."""

from __future__ import annotations

import re

from oomproof.remedies.config_formats.scalars import Scalar, Wanted, name_of

_LINE = re.compile(
    r"^[ \t]*(?:export[ \t]+)?(?P<name>[A-Za-z_]\w*)[ \t]*=[ \t]*(?P<raw>\"[^\"\n]*\"|'[^'\n]*'|[^\s#'\"]*)[ \t]*(?:#.*)?\r?$",
    re.M,
)


def env_scalars(text: str, wanted: Wanted) -> list[Scalar]:
    scalars = []
    for match in _LINE.finditer(text):
        if wanted(name_of((match["name"],))):
            raw = match["raw"]
            quote = raw[0] if raw[:1] in ("'", '"') else ""
            value = raw[1:-1] if quote else raw
            problem = "it is made of other variables" if "$" in value else ""
            start, end = match.span("raw")
            line = text.count("\n", 0, start) + 1
            scalars.append(Scalar((match["name"],), value, start, end, line, quote, problem))
    return scalars

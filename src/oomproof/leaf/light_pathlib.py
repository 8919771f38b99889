"""Imports ``pathlib`` without ``urllib.parse`` and ``ipaddress``, which it loads before Python 3.13 for one method, ``as_uri``.

They are 0.5 MiB of a guard at rest and 4 ms of each start. The method works all the same: it loads them when it is called."""

from __future__ import annotations

import sys
from types import ModuleType

_PARSER = "urllib.parse"


def _quote_from_bytes(*words: bytes, **options: str) -> str:
    from urllib.parse import quote_from_bytes

    return quote_from_bytes(*words, **options)  # type: ignore[arg-type]


if "pathlib" not in sys.modules and _PARSER not in sys.modules and sys.version_info < (3, 13):
    stand_in = ModuleType(_PARSER)
    stand_in.quote_from_bytes = _quote_from_bytes  # type: ignore[attr-defined]
    sys.modules[_PARSER] = stand_in
    try:
        import pathlib  # noqa: F401
    finally:
        del sys.modules[_PARSER]

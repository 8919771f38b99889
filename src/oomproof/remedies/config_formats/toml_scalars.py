"""Values in TOML, by tomlkit, which keeps all that it does not change; where a value stands is where a mark put in its place comes out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from oomproof.errors import USAGE, OomproofError
from oomproof.remedies.config_formats.scalars import Scalar, Unreadable, Wanted, line_of, name_of

_MARK = 918273645546372819  # no setting has that value


def toml_scalars(text: str, wanted: Wanted) -> list[Scalar]:
    try:
        import tomlkit
        from tomlkit.exceptions import TOMLKitError
    except ImportError:
        raise OomproofError(
            "TOML files need tomlkit, which is not installed", "pip install 'oomproof[fix]'", USAGE
        ) from None
    try:
        paths = [path for path in _paths(tomlkit.parse(text).unwrap(), ()) if wanted(name_of(path))]
        return [_placed(tomlkit, text, path) for path in paths]
    except (TOMLKitError, ValueError, RecursionError) as error:
        raise Unreadable(str(error)) from error


def _paths(value: Any, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    if isinstance(value, dict):
        for key, child in value.items():
            yield from _paths(child, (*path, str(key)))
    elif isinstance(value, list):
        for number, child in enumerate(value):
            yield from _paths(child, (*path, str(number)))
    elif isinstance(value, str | int | float):
        yield path


def _placed(tomlkit: Any, text: str, path: tuple[str, ...]) -> Scalar:
    document = tomlkit.parse(text)
    holder: Any = document
    for key in path[:-1]:
        holder = holder[int(key)] if isinstance(holder, list) else holder[key]
    last: Any = int(path[-1]) if isinstance(holder, list) else path[-1]
    plain = holder[last]
    value = str(plain.unwrap() if hasattr(plain, "unwrap") else plain)
    holder[last] = _MARK
    marked = tomlkit.dumps(document)
    start = marked.find(str(_MARK))
    end = len(text) - (len(marked) - start - len(str(_MARK)))
    raw = text[start:end]
    quote = raw[0] if raw[:1] in ("'", '"') and raw[:1] * 3 != raw[:3] else ""
    value = value.lower() if raw.lower() in ("true", "false") else value
    exact = text.startswith(marked[:start]) and raw == f"{quote}{value}{quote}"
    problem = "" if exact else "its place cannot be told exactly"
    return Scalar(path, value, start, end, line_of(text, start), quote, problem)

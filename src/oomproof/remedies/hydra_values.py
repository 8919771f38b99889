"""Which value of which file Hydra really took: command line over experiment over config group over default. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from oomproof.records import dataclass
from oomproof.remedies.config_formats.scalars import Scalar, Unreadable
from oomproof.remedies.config_formats.yaml_scalars import (
    ALIASES_TOO_LARGE,
    aliases_expand_too_far,
    yaml_scalars,
)
from oomproof.remedies.hydra_defaults import Choices, Config, Layer, NotFollowed, header_of, layers

_OVERRIDE = re.compile(r"(?P<sign>\+\+|\+|~)?(?P<key>[A-Za-z_/][\w./@-]*)(?:=(?P<value>.*))?", re.DOTALL)
_OWN = "hydra"  # what is Hydra's, and no setting of the training
_TRAINERS = re.compile(r"(?:lightning|pytorch_lightning)(?:\.\w+)*\.Trainer")
Path = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Applied:
    """A value and the file it came from, by its path below Hydra's folder, without the ending. ``doubt``: what may have changed it."""

    layer: str
    scalar: Scalar
    doubt: str = ""


@dataclass(frozen=True, slots=True)
class Word:
    """``data.batch_size=64``, ``+experiment=one``, ``~logger`` on a command line."""

    sign: str
    key: str
    value: str | None


def override_words(words: Sequence[str]) -> list[Word]:
    found = []
    for word in words:
        match = None if word.startswith("-") else _OVERRIDE.fullmatch(word)
        if match and (match["value"] is not None or match["sign"] == "~"):
            found.append(Word(match["sign"] or "", match["key"], match["value"]))
    return found


def applied_values(
    text_of: Callable[[str], str | None],
    is_group: Callable[[str], bool],
    primary: str,
    words: Sequence[Word],
) -> Mapping[Path, Applied]:
    """By its keys in the whole configuration. ``text_of``: a config's text by its path, None where there is no such file.
    Raises NotFollowed."""
    groups = [word for word in words if is_group(word.key.partition("@")[0])]
    merged = layers(_reader(text_of), primary, _choices(groups))
    values: dict[Path, Applied] = {}
    for layer in merged:
        _merge(values, layer, text_of(layer.path))
    for word in words:
        if word not in groups:
            _remove(values, tuple(word.key.split(".")))
    return {path: value for path, value in values.items() if path[0] != _OWN}


def trainers(values: Mapping[Path, Applied]) -> list[Path]:
    """Where a Trainer of Lightning is described: what it is not given there has its default."""
    return [
        path[:-1]
        for path, value in values.items()
        if path[-1] == "_target_" and _TRAINERS.fullmatch(value.scalar.value)
    ]


def _choices(words: Sequence[Word]) -> Choices:
    return Choices(
        {word.key: _option(word.value) for word in words if not word.sign},
        tuple((word.key, _option(word.value)) for word in words if word.sign == "+"),
        frozenset(word.key for word in words if word.sign == "~"),
    )


def _option(value: str | None) -> Any:
    if value is None or value in ("null", ""):
        return None
    if value.startswith("["):
        return [part.strip().strip("'\"") for part in value.strip("[]").split(",") if part.strip()]
    if "," in value:
        raise NotFollowed(f"it ran once for each of {value}")
    return value.strip("'\"").removesuffix(".yaml")


def _reader(text_of: Callable[[str], str | None]) -> Callable[[str], Config | None]:
    def read(path: str) -> Config | None:
        text = text_of(path)
        return Config(header_of(text), _defaults(path, text)) if text is not None else None

    return read


def _defaults(path: str, text: str) -> tuple[Any, ...]:
    try:
        from ruamel.yaml import YAML
        from ruamel.yaml.error import YAMLError
    except ImportError:
        raise NotFollowed("they need ruamel.yaml: pip install 'oomproof[fix]'") from None
    try:
        document = YAML(typ="safe", pure=True).compose(text)
        if document is not None and aliases_expand_too_far(document):
            raise NotFollowed(f"{path}.yaml cannot be read: {ALIASES_TOO_LARGE}")
        loaded = YAML(typ="safe", pure=True).load(text)
    except (YAMLError, ValueError, RecursionError) as error:
        raise NotFollowed(f"{path}.yaml cannot be read: {str(error).splitlines()[0]}") from error
    defaults = loaded.get("defaults") if isinstance(loaded, dict) else None
    if defaults is None:
        return ()
    if not isinstance(defaults, list):
        raise NotFollowed(f"the defaults of {path}.yaml are no list")
    return tuple(defaults)


def _merge(values: dict[Path, Applied], layer: Layer, text: str | None) -> None:
    if not layer.known or text is None:
        if layer.path.split("/")[0] != _OWN:
            doubt = f"{layer.path}, which is no file of Hydra's folder, may set it too"
            for path, value in list(values.items()):
                if path[: len(layer.package)] == layer.package:
                    values[path] = Applied(value.layer, value.scalar, doubt)
        return
    try:
        scalars = yaml_scalars(text, lambda _: True)
    except Unreadable as error:
        raise NotFollowed(f"{layer.path}.yaml cannot be read: {error}") from error
    for scalar in scalars:
        if scalar.path[0] == "defaults":
            continue
        path = (*layer.package, *scalar.path)
        _remove(values, path)
        for length in range(1, len(path)):  # a single value that became several
            values.pop(path[:length], None)
        values[path] = Applied(layer.path, scalar)


def _remove(values: dict[Path, Applied], path: Path) -> None:
    for known in [known for known in values if known[: len(path)] == path]:
        del values[known]

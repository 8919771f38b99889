"""In which order Hydra merges its files: the defaults lists of a primary config and of those it names, as Hydra 1.1 and later read them. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from oomproof.records import dataclass, field, replace

Read = Callable[[str], "Config | None"]

_HEADER = re.compile(r"#\s*@package\s+(\S+)")
_REFERENCE = re.compile(r"\$\{([\w/@.]+)\}")
_GLOBAL = "_global_"
_DEEPEST = 20  # configs that name each other


class NotFollowed(Exception):
    """Something that Hydra may understand and we do not; the message says what."""


@dataclass(frozen=True, slots=True)
class Config:
    """One file: what its first comment says of its package, and its defaults list as YAML has it."""

    header: str | None = None
    defaults: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Layer:
    """``path``: of the file below Hydra's folder, without its ending; ``package``: under which keys its values stand. ``known``: False for
    one that is no file there: a config that is made in code, or of a plugin."""

    path: str
    package: tuple[str, ...]
    known: bool = True


@dataclass(frozen=True, slots=True)
class _Entry:
    """One element of a defaults list. ``group``: None where it names a config itself, in ``value``."""

    value: Any
    group: str | None = None
    package: str | None = None
    override: bool = False
    optional: bool = False

    @property
    def is_self(self) -> bool:
        return self.group is None and self.value == "_self_"

    def base(self, parent: str) -> str:
        """The folder of its config."""
        name = self.group if self.group is not None else str(self.value).rpartition("/")[0]
        absolute = str(self.group if self.group is not None else self.value).startswith("/")
        return "/".join(part for part in ("" if absolute else parent, name.strip("/")) if part)

    def relative(self) -> str:
        return (self.group if self.group is not None else str(self.value).rpartition("/")[0]).strip("/")

    def path(self, parent: str) -> str:
        name = str(self.value).rpartition("/")[2] if self.group is None else str(self.value)
        return "/".join(part for part in (self.base(parent), name.removesuffix(".yaml")) if part)

    def placed(self, parent: str, parent_package: str, header: str | None = None) -> str:
        """The package its values stand in, dotted."""
        package = self.package
        if package == "_here_":
            package = ""
        if package is not None and "_group_" in package:
            package = f"{_GLOBAL}.{package.replace('_group_', self.base(parent).replace('/', '.'))}"
        if package is None and header is not None:
            header = header.replace("_group_", self.base(parent).replace("/", "."))
            package = header if header.split(".")[0] == _GLOBAL else f"{_GLOBAL}.{header}"
        if package is None:
            package = self.relative().replace("/", ".")
        whole = ".".join(part for part in (parent_package, package) if part)
        return whole.rpartition(_GLOBAL)[2].lstrip(".") if _GLOBAL in whole else whole

    def key(self, parent: str, parent_package: str) -> str:
        """What an override calls it: ``data``, or ``data@train`` where its package is another."""
        group = self.base(parent)
        final = self.placed(parent, parent_package)
        return group if final == group.replace("/", ".") else f"{group}@{final or _GLOBAL}"


@dataclass(frozen=True, slots=True)
class Choices:
    """What the command line says of config groups: ``data=mnist``, ``+experiment=one``, ``~logger``."""

    chosen: Mapping[str, Any] = field(default_factory=dict)
    added: tuple[tuple[str, Any], ...] = ()
    deleted: frozenset[str] = frozenset()


def layers(read: Read, primary: str, choices: Choices) -> list[Layer]:
    """From the first that is merged to the last, whose values win. Raises NotFollowed."""
    walk = _Walk(read, choices)
    root = _Entry(f"/{primary}")
    return walk.expand(root, "", "", depth=0)


class _Walk:
    def __init__(self, read: Read, choices: Choices) -> None:
        self._read, self._choices = read, choices
        # the command line's come first, then the outermost
        self._chosen: dict[str, Any] = dict(choices.chosen)
        self._known: dict[str, Any] = {}

    def expand(self, entry: _Entry, parent: str, parent_package: str, depth: int) -> list[Layer]:
        if depth > _DEEPEST:
            raise NotFollowed("its defaults lists name each other")
        if entry.group is not None:
            key = entry.key(parent, parent_package)
            if key in self._choices.deleted:
                return []
            self._known.setdefault(key, entry.value)
        if entry.value is None:
            return []
        path = entry.path(parent)
        if path.endswith("???"):
            raise NotFollowed(f"{path} has to be given")
        config = self._read(path)
        if config is None:
            package = entry.placed(parent, parent_package)
            return [] if entry.optional else [Layer(path, tuple(filter(None, package.split("."))), False)]
        package = entry.placed(parent, parent_package, config.header)
        own = Layer(path, tuple(filter(None, package.split("."))))
        entries = [_parsed(item) for item in config.defaults]
        if any(not known.override for known in entries) and not any(known.is_self for known in entries):
            entries.append(_Entry("_self_"))
        if depth == 0:
            if not any(known.is_self for known in entries):
                entries.append(_Entry("_self_"))
            entries += [_with_package(group, value) for group, value in self._choices.added]
        base = entry.base(parent)
        for known in entries:
            if known.override:
                self._chosen.setdefault(known.key(base, package), known.value)
        rest = [known for known in entries if not known.override]
        return self._children(own, rest, base, package, depth) if rest else [own]

    def _children(
        self, own: Layer, entries: Sequence[_Entry], base: str, package: str, depth: int
    ) -> list[Layer]:
        """The last is read first: its overrides hold for those before it. One that refers to others is read when they are known."""
        parts: list[list[Layer]] = [[] for _ in entries]
        later = []
        for at in range(len(entries) - 1, -1, -1):
            known = entries[at]
            if known.is_self:
                parts[at] = [own]
                continue
            if known.group is not None and (key := known.key(base, package)) in self._chosen:
                known = replace(known, value=self._chosen[key])
            if isinstance(known.value, str) and "${" in known.value:
                later.append((at, known))
            else:
                parts[at] = self._options(known, base, package, depth)
        for at, known in later:
            value = _REFERENCE.sub(lambda match: str(self._known.get(match[1], match[0])), str(known.value))
            if "${" in value:
                raise NotFollowed(f"its defaults list refers to {known.value}")
            parts[at] = self._options(replace(known, value=value), base, package, depth)
        return [layer for part in parts for layer in part]

    def _options(self, entry: _Entry, base: str, package: str, depth: int) -> list[Layer]:
        if not isinstance(entry.value, list):
            return self.expand(entry, base, package, depth + 1)
        found = []
        for option in entry.value:
            single = replace(entry, value=f"{entry.group}/{option}", group=None)
            found += self.expand(single, base, package, depth + 1)
        return found


def header_of(text: str) -> str | None:
    """Of the comments a file begins with."""
    for line in text.splitlines():
        if line.strip() and not line.lstrip().startswith("#"):
            return None
        if match := _HEADER.search(line):
            return match[1]
    return None


def _parsed(item: Any) -> _Entry:
    """``_self_``, ``default``, ``data: mnist``, ``override /data@train: [a, b]``, ``optional local: default``."""
    if isinstance(item, str):
        words = item.split()
        path, _, package = words[-1].partition("@")
        return _Entry(path, package=package or None, optional="optional" in words[:-1])
    if not isinstance(item, dict):
        raise NotFollowed(f"its defaults list has {item!r}")
    pairs = [(str(key), value) for key, value in item.items()]
    optional = [value for key, value in pairs if key == "optional" and isinstance(value, bool)]  # as in 1.0
    pairs = [(key, value) for key, value in pairs if key != "optional" or not isinstance(value, bool)]
    if len(pairs) != 1:
        raise NotFollowed(f"its defaults list has {item!r}")
    key, value = pairs[0]
    words = key.split()
    entry = _with_package(words[-1], value)
    return replace(
        entry, override="override" in words[:-1], optional="optional" in words[:-1] or any(optional)
    )


def _with_package(key: str, value: Any) -> _Entry:
    group, _, package = key.partition("@")
    if ":" in package or not (value is None or isinstance(value, str | list)):
        raise NotFollowed(f"its defaults list has {key}: {value!r}")
    return _Entry(value, group, package or None)

"""Values in YAML, by the places that ruamel.yaml's parser gives them. Anchors, merges and blocks are told, not changed."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

from oomproof.errors import USAGE, OomproofError
from oomproof.remedies.config_formats.scalars import Scalar, Unreadable, Wanted, line_of, name_of

_MERGE = "<<"
_MOST_EXPANDED = 1 << 20  # characters and values; 384 bytes can stand for a billion
ALIASES_TOO_LARGE = "its aliases stand for too much, over a million characters"


def yaml_scalars(text: str, wanted: Wanted) -> list[Scalar]:
    try:
        from ruamel.yaml import YAML
        from ruamel.yaml.error import MarkedYAMLError, YAMLError
    except ImportError:
        raise OomproofError(
            "YAML files need ruamel.yaml, which is not installed", "pip install 'oomproof[fix]'", USAGE
        ) from None
    try:
        documents = [document for document in YAML(typ="rt").compose_all(text) if document is not None]
    except MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark is not None else "?"
        raise Unreadable(f"line {line}: {error.problem or error.context}") from error
    except (YAMLError, RecursionError) as error:
        raise Unreadable(str(error).splitlines()[0]) from error
    return [scalar for document in documents for scalar in _Walk(text, wanted).below(document, ())]


def aliases_expand_too_far(document: Any) -> bool:
    """Whether a node of PyYAML or ruamel.yaml is larger by ``_MOST_EXPANDED`` where each alias is written out. To be asked
    before the node is made into values: a merge key copies what its aliases stand for."""
    sizes: dict[int, int] = {}
    written = 0

    def expanded(node: Any) -> int:
        nonlocal written
        if (known := sizes.get(id(node))) is not None:
            return known
        own = 1 + (len(node.value) if node.id == "scalar" else 0)
        written += own
        sizes[id(node)] = own  # until its parts are known: a list may hold itself
        if node.id != "scalar":
            parts = chain.from_iterable(node.value) if node.id == "mapping" else node.value
            sizes[id(node)] += sum(map(expanded, parts))
        return sizes[id(node)]

    return expanded(document) - written > _MOST_EXPANDED


class _Walk:
    def __init__(self, text: str, wanted: Wanted) -> None:
        self._text, self._wanted = text, wanted
        self._seen: set[int] = set()

    def below(self, node: Any, path: tuple[str, ...], shared: str = "") -> Iterator[Scalar]:
        """``shared``: why nothing below may be changed."""
        anchor = getattr(node, "anchor", None)
        shared = shared or (f"it is under the anchor &{anchor}, which others use too" if anchor else "")
        if node.id == "scalar":
            if path and self._wanted(name_of(path)):
                yield self._scalar(node, path, shared)
            return
        if id(node) in self._seen:  # an alias: it was met at its anchor
            return
        self._seen.add(id(node))
        if node.id == "sequence":
            for number, child in enumerate(node.value):
                yield from self.below(child, (*path, str(number)), shared)
            return
        for key, child in node.value:
            if key.id == "scalar" and key.value != _MERGE:
                yield from self.below(child, (*path, str(key.value)), shared)

    def _scalar(self, node: Any, path: tuple[str, ...], problem: str) -> Scalar:
        start, end, style = node.start_mark.index, node.end_mark.index, node.style or ""
        raw, quote = self._text[start:end], style if style in ("'", '"') else ""
        if not problem and style in ("|", ">"):
            problem = "it is a block of text"
        if not problem and raw != f"{quote}{node.value}{quote}":
            problem = "it has a tag, an anchor or an escape"
        return Scalar(path, str(node.value), start, end, line_of(self._text, start), quote, problem)

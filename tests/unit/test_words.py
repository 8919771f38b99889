"""Names in src/ and what it prints are plain, and a name leads to one file: the word list of CONTRIBUTING.md, kept by a test."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SOURCE = HERE.parents[1] / "src" / "oomproof"


def forbidden() -> dict[str, dict[str, str]]:
    """kind of name → word → what to say instead."""
    words: dict[str, dict[str, str]] = defaultdict(dict)
    for line in (HERE / "forbidden_words.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            listed, _, instead = line.partition("  ")
            kind, *names = listed.split()
            names = [" ".join(names)] if kind == "printed" else names
            words[kind] |= dict.fromkeys(names, instead.strip())
    return words


FORBIDDEN = forbidden()


def words_of(name: str) -> list[str]:
    return re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name).lower().strip("_").split("_")


def names_in(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr


def loop_variables(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.For | ast.comprehension):
            for name in ast.walk(node.target):
                if isinstance(name, ast.Name):
                    yield name.lineno, name.id


def wrong_names(source: str) -> list[str]:
    tree = ast.parse(source)
    wrong = [
        f"line {line}: {name}: say {FORBIDDEN['name'][word]}"
        for line, name in names_in(tree)
        for word in words_of(name)
        if word in FORBIDDEN["name"]
    ]
    wrong += [
        f"line {line}: {name}: say {FORBIDDEN['loop'][name]}"
        for line, name in loop_variables(tree)
        if name in FORBIDDEN["loop"]
    ]
    return wrong


FILES = sorted(SOURCE.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_names_are_plain(path: Path) -> None:
    assert not wrong_names(path.read_text(encoding="utf-8"))


def wrong_texts(source: str) -> list[str]:
    """Of the texts in it that have words: all but docstrings, keys and patterns."""
    tree = ast.parse(source)
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    return [
        f"line {node.lineno}: {node.value!r}: say {instead}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings
        for phrase, instead in FORBIDDEN["printed"].items()
        if " " in node.value and re.search(rf"(?<![\w-]){re.escape(phrase)}(?![\w-])", node.value)
    ]


# The sentences of other programs, which are not ours to word.
PRINTING = [path for path in FILES if "texts" not in path.parts]


@pytest.mark.parametrize("path", PRINTING, ids=lambda path: str(path.relative_to(SOURCE)))
def test_what_is_printed_is_plain(path: Path) -> None:
    assert not wrong_texts(path.read_text(encoding="utf-8"))


def wrong_module(stem: str) -> list[str]:
    in_part = FORBIDDEN["module"] | FORBIDDEN["name"]
    wrong = [f"{stem}: say {in_part[word]}" for word in words_of(stem) if word in in_part]
    return wrong + ([f"{stem}: say {FORBIDDEN['stem'][stem]}"] if stem in FORBIDDEN["stem"] else [])


def test_module_names_are_plain() -> None:
    assert not [wrong for path in FILES for wrong in wrong_module(path.stem)]


def test_module_names_are_unique() -> None:
    paths = defaultdict(list)
    for path in FILES:
        if (
            path.parent.name != "verbs"
        ):  # a verb's module has the verb's name: `oomproof data` beside oomproof.data
            paths[path.stem].append(str(path.relative_to(SOURCE)))
    assert not {stem: where for stem, where in paths.items() if len(where) > 1 and not stem.startswith("__")}


def test_the_check_finds_what_it_forbids() -> None:
    """The negative: such a name, and such a loop, would be found."""
    assert wrong_names("def _write_errand(): ...\n") == ["line 1: _write_errand: say background task"]
    assert wrong_names("for each in runs: pass\n") == ["line 1: each: say the noun: sample, kill, run"]
    assert not wrong_names("headroom = [run.use for run in runs]\n")
    assert wrong_texts("print('big stands still')\n") == ["line 1: 'big stands still': say pause, paused"]
    assert not wrong_texts("def f():\n    'It stands still.'\n    return 'frozen'\n"), (
        "no docstrings, no keys"
    )
    assert wrong_module("facts") and wrong_module("text_words") and not wrong_module("guard_facts")

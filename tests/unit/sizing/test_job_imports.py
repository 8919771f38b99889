"""What runs in the job's own Python imports nothing of ours: that Python has no oomproof."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import oomproof.sizing

FOLDERS = ("virtual_gpu", "rehearsal", "card_measuring")
FILES = [
    path
    for folder in FOLDERS
    for path in sorted(Path(oomproof.sizing.__file__).parent.joinpath(folder).glob("*.py"))
]


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_it_stands_alone(path: Path) -> None:
    tree = ast.walk(ast.parse(path.read_text()))
    names = [name for node in tree for name in _imported(node)]
    assert not [name for name in names if name.partition(".")[0] == "oomproof"]


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []

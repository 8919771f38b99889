"""Rows are tokenized a batch at a time, and a changed file is not answered with what was made of the old one."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from oomproof.errors import OomproofError
from oomproof.sizing.data import tokenize, tokenized


class Tokenizer:
    """As those of transformers are called; notes the sizes of its batches."""

    def __init__(self) -> None:
        self.batches: list[int] = []

    def __call__(self, texts: list[str], **options: Any) -> dict[str, Any]:
        self.batches.append(len(texts))
        longest = options.get("max_length", 99)
        return {"input_ids": [[len(word) for word in text.split()][:longest] for text in texts]}


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """datasets, as far as it is used here: what from_generator was called with."""
    calls: list[dict[str, Any]] = []

    def from_generator(generator: Any, gen_kwargs: dict[str, Any], cache_dir: str | None) -> list[Any]:
        calls.append(gen_kwargs["arguments"] | {"cache_dir": cache_dir})
        return list(generator(**gen_kwargs))

    library = ModuleType("datasets")
    library.Dataset = SimpleNamespace(from_generator=from_generator)  # type: ignore[attr-defined]
    monkeypatch.setattr(tokenized, "_datasets", lambda: library)
    return calls


def test_rows_of_several_files(tmp_path: Path, stand_in: list[dict[str, Any]]) -> None:
    for name in ("a", "b"):
        rows = [json.dumps({"text": f"{name} of {row}", "label": row, "more": 1}) for row in range(5)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(rows) + "\n\n")
    tokenizer = Tokenizer()
    files = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    made = tokenize(files, tokenizer, keep=["label"], batch_size=4, max_length=2)
    assert len(made) == 10 and made[6] == {"input_ids": [1, 2], "label": 1}
    assert tokenizer.batches == [4, 4, 2]


def test_lines_of_text(tmp_path: Path, stand_in: list[dict[str, Any]]) -> None:
    (tmp_path / "a.txt").write_text("one two\n\nthree\n")
    made = tokenize(str(tmp_path / "a.txt"), Tokenizer(), cache_dir=tmp_path / "cache")
    assert made == [{"input_ids": [3, 3]}, {"input_ids": [5]}] and stand_in[0]["cache_dir"] == str(
        tmp_path / "cache"
    )


def test_a_changed_file_is_another_one(tmp_path: Path, stand_in: list[dict[str, Any]]) -> None:
    """datasets looks only at the arguments to tell whether it has the answer already."""
    path = tmp_path / "a.txt"
    for text in ("one", "three"):
        path.write_text(text)
        tokenize(path, Tokenizer())
    assert stand_in[0]["seen"] != stand_in[1]["seen"]


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b'{"text": "a"}\n{"text"\n', "line 2 is not JSON"),
        (b'{"words": "a"}\n', "line 1 has no 'text'"),
        (b'{"text": "caf\xe9"}\n', "is not UTF-8"),
        (b"", "is empty"),
    ],
)
def test_bad_rows_are_named(tmp_path: Path, stand_in: list[dict[str, Any]], data: bytes, says: str) -> None:
    (tmp_path / "a.jsonl").write_bytes(data)
    with pytest.raises(OomproofError, match=says):
        tokenize(tmp_path / "a.jsonl", Tokenizer())


def test_usage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OomproofError, match="needs a file"):
        tokenize([], Tokenizer())
    with pytest.raises(OomproofError, match="no such file"):
        tokenize(tmp_path / "gone.jsonl", Tokenizer())
    (tmp_path / "a.txt").write_text("one")
    monkeypatch.setitem(__import__("sys").modules, "datasets", None)
    with pytest.raises(OomproofError, match="needs datasets, which is not installed"):
        tokenize(tmp_path / "a.txt", Tokenizer())


def test_with_datasets_itself(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"text": "a bc " * row, "label": row}) + "\n" for row in range(50)))
    made = tokenize(path, Tokenizer(), keep=["label"], cache_dir=tmp_path / "cache")
    assert len(made) == 50 and made[2] == {"input_ids": [1, 2, 1, 2], "label": 2}
    assert made.cache_files, "mapped from disk"
    again = tokenize(path, Tokenizer(), keep=["label"], cache_dir=tmp_path / "cache")
    path.write_text('{"text": "x", "label": 7}\n')
    changed = tokenize(path, Tokenizer(), keep=["label"], cache_dir=tmp_path / "cache")
    assert again.cache_files == made.cache_files and changed["label"][:] == [7]
    path.write_text("{")
    with pytest.raises(OomproofError, match="line 1 is not JSON"):
        tokenize(path, Tokenizer(), cache_dir=tmp_path / "cache")

"""Tokenizes text into an Arrow file on disk, a batch of rows at a time: memory does not grow with the data."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import import_module
from itertools import islice
from typing import Any

from oomproof.errors import NOT_FOUND, USAGE, OomproofError
from oomproof.sizing.data.source_file import BadFile, open_source

Path = str | os.PathLike[str]


def tokenize(
    source: Path | Sequence[Path],
    tokenizer: Callable[..., Any],
    *,
    column: str = "text",
    keep: Sequence[str] = (),
    batch_size: int = 1000,
    cache_dir: Path | None = None,
    **options: Any,
) -> Any:
    """A ``datasets.Dataset`` that is mapped from disk, of JSON Lines (``column`` has the text) or of text, a row a line.

    ``keep``: other columns to keep, a label for example. ``options`` go to the tokenizer (``truncation=True``). A call with
    the same files, tokenizer and options finds the result of the first; a file that was changed is read again."""
    paths = [os.fspath(path) for path in ([source] if isinstance(source, str | os.PathLike) else source)]
    if not paths or batch_size < 1:
        raise OomproofError("tokenize() needs a file, and a batch_size of 1 or more", "give it both", USAGE)
    for path in paths:
        with open_source(path):
            pass  # now, not from within a library's own error
    arguments = {
        "paths": paths,
        "seen": [(os.stat(path).st_size, os.stat(path).st_mtime_ns) for path in paths],  # a changed file is another one
        "tokenizer": tokenizer, "column": column, "keep": list(keep), "batch_size": batch_size, "options": options,
    }  # fmt: skip
    library = _datasets()
    folder = None if cache_dir is None else os.fspath(cache_dir)
    try:
        return library.Dataset.from_generator(_tokens, gen_kwargs={"arguments": arguments}, cache_dir=folder)
    except Exception as error:
        if isinstance(error.__cause__, OomproofError):  # what is wrong with a row, wrapped by the library
            raise error.__cause__ from None
        raise


def _tokens(arguments: dict[str, Any]) -> Iterator[dict[str, Any]]:
    rows = (row for path in arguments["paths"] for row in _rows(path, arguments["column"], arguments["keep"]))
    while batch := list(islice(rows, arguments["batch_size"])):
        encoded = arguments["tokenizer"]([text for text, _ in batch], **arguments["options"])
        for number, (_, kept) in enumerate(batch):
            yield {name: values[number] for name, values in encoded.items()} | kept


def _rows(path: str, column: str, keep: Iterable[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """(text, columns to keep); blank lines are no rows."""
    lines = path.lower().endswith((".jsonl", ".ndjson"))
    with open(path, encoding="utf-8-sig") as file:
        for number, line in enumerate(_decoded(file, path), 1):
            if not line.strip():
                continue
            if not lines:
                yield line.rstrip("\n"), {}
                continue
            try:
                row = json.loads(line)
                yield row[column], {name: row[name] for name in keep}
            except ValueError:
                raise BadFile(path, f"line {number:,} is not JSON", "check that line") from None
            except (KeyError, TypeError) as error:
                raise BadFile(
                    path, f"line {number:,} has no {error}", "name its columns: column=, keep="
                ) from None


def _decoded(lines: Iterable[str], path: str) -> Iterator[str]:
    try:
        yield from lines
    except UnicodeDecodeError as error:
        raise BadFile(path, f"is not UTF-8 ({error.reason})", "iconv makes it UTF-8") from None


def _datasets() -> Any:
    try:
        return import_module("datasets")
    except ImportError:
        raise OomproofError(
            "tokenize() needs datasets, which is not installed", "pip install datasets", NOT_FOUND
        ) from None

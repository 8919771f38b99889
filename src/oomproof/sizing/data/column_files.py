"""What loading Parquet, Arrow and Feather costs, from their footers; pyarrow reads those."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, BinaryIO

from oomproof.errors import NOT_FOUND, OomproofError
from oomproof.sizing.data.load_cost import EXACT, SAMPLED, LoadCost, Part, call, plural
from oomproof.sizing.data.source_file import CUT, BadFile, file_size
from oomproof.sizing.data.text_sample import objects_per_row, text_is_arrow
from oomproof.units import format_size

_SAMPLE_ROWS = 4096
# Measured by bench/data.py, as upper bounds. Parquet: pandas copies numbers into its own blocks, buffers of decoded text
# double as they grow, each value of a list has levels beside it, and the file's own bytes are read ahead. Arrow's pool
# rounds each buffer up.
_NUMBERS_DECODED, _TEXT_DECODED, _LISTS_DECODED, _POOL_SHARE = 2.5, 4, 6, 1.25
# Bytes of an entry in the table by which equal texts become one object; of an array that stands for a list in a row.
_LOOKED_UP, _ARRAY_OBJECT = 64, 128
_LARGE_GROUP = 256 << 20
_POOL = "the peak is an upper bound, and Arrow's allocator may keep most of it for a while"


def arrow_library(name: str, path: str) -> Any:
    """pyarrow, or one of its modules."""
    try:
        return import_module(name)
    except ImportError:
        raise OomproofError(
            f"{path}: reading its footer needs pyarrow, which is not installed",
            "pip install pyarrow",
            NOT_FOUND,
        ) from None


def parquet_cost(file: BinaryIO, path: str) -> LoadCost:
    opened = open_parquet(path)
    footer, schema = opened.metadata, opened.schema_arrow
    with arrow_errors(path):
        sample = _sample_rows(opened)
    per_row = _sampled_widths(sample, schema)
    columns = tuple(
        Part(field.name, str(field.type), (footer.num_rows,), int(per_row[field.name] * footer.num_rows))
        for field in schema
    )
    table = sum(column.bytes or 0 for column in columns)
    decoded = sum(
        _decoded_share(field.type) * (column.bytes or 0)
        for column, field in zip(columns, schema, strict=True)
    )
    exact = all(_width(field.type) for field in schema)
    objects = int(_python_objects(sample) * footer.num_rows)
    groups = footer.num_row_groups
    largest = max((footer.row_group(number).total_byte_size for number in range(groups)), default=0)
    notes = [_POOL]
    if largest > _LARGE_GROUP:
        notes.append(f"its largest row group takes {format_size(largest)}, in parts too")
    return LoadCost(
        "Parquet",
        "parquet",
        f"{footer.num_rows:,} rows of {plural(len(schema.names), 'column')} in {plural(groups, 'row group')}",
        file_size(file),
        call("pd.read_parquet", path),
        int(decoded) + file_size(file) + objects,
        table,
        EXACT if exact else SAMPLED,
        columns,
        notes=tuple(notes),
        cheaper=(
            call("pd.read_parquet", path, "columns=[…]") + ": only the columns you need",
            f"for batch in {call('pq.ParquetFile', path)}.iter_batches(10_000): a part at a time",
        ),
    )


def open_parquet(path: str) -> Any:
    """Read through a small buffer, not a whole column of a row group at once."""
    reader = arrow_library("pyarrow.parquet", path).ParquetFile
    with arrow_errors(path):
        return reader(path, buffer_size=1 << 20)


@contextmanager
def arrow_errors(path: str) -> Iterator[None]:
    """What Arrow finds wrong with a file is one line. An OSError with a number is the system's, of another file."""
    arrow = arrow_library("pyarrow", path)
    try:
        yield
    except (arrow.ArrowException, OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        reason = str(error).partition("\n")[0][:120] or type(error).__name__
        raise BadFile(path, f"cannot be read ({reason}): {CUT}") from None


def _width(kind: Any) -> float | None:
    """Bytes of one value; None where they differ."""
    try:
        return float(kind.bit_width) / 8
    except ValueError:
        return None


def _is_text(kind: Any) -> bool:
    return str(kind) in ("string", "large_string", "string_view", "binary", "large_binary")


def _decoded_share(kind: Any) -> float:
    if _width(kind):
        return _NUMBERS_DECODED
    return _TEXT_DECODED if _is_text(kind) else _LISTS_DECODED


def _sample_rows(opened: Any) -> Any:
    """The first rows of the columns whose values differ in length; None where there are none."""
    unknown = [field.name for field in opened.schema_arrow if _width(field.type) is None]
    if not unknown or not opened.metadata.num_rows:
        return None
    return next(opened.iter_batches(_SAMPLE_ROWS, row_groups=[0], columns=unknown))


def _sampled_widths(sample: Any, schema: Any) -> dict[str, float]:
    """Bytes a row takes in each column: of numbers by their type, of text by the first rows."""
    widths = {field.name: _width(field.type) or 0.0 for field in schema}
    if sample is not None:
        widths |= {name: sample.column(name).nbytes / max(1, sample.num_rows) for name in sample.schema.names}
    return {name: width + 1 / 8 for name, width in widths.items()}


def _python_objects(sample: Any) -> float:
    """Bytes a row takes as Python objects, where pandas makes such of text and lists, and while it looks for equal ones."""
    total = 0.0
    for field in sample.schema if sample is not None else ():
        text = _is_text(field.type)
        if text and ("binary" in str(field.type) or not text_is_arrow()):
            values = sample.column(field.name).slice(0, _SAMPLE_ROWS).to_pylist()
            total += objects_per_row(values) + _LOOKED_UP * len(set(values)) / max(1, len(values))
        elif not text:
            total += _ARRAY_OBJECT
    return total


def arrow_cost(file: BinaryIO, path: str) -> LoadCost:
    """Arrow IPC, as a file (Feather) or as a stream (what HF datasets writes)."""
    arrow = arrow_library("pyarrow", path)
    ipc = arrow_library("pyarrow.ipc", path)
    stream = file.read(6) != b"ARROW1"
    with arrow_errors(path):
        opened = (ipc.open_stream if stream else ipc.open_file)(arrow.memory_map(path))
        rows, kept, compressed, objects = (_stream_rows if stream else _file_rows)(opened, arrow)
        numbers = sum(_width(field.type) or 0 for field in opened.schema)
        copies = 0 if stream else rows * (objects + numbers)  # a stream stays an Arrow table
    return LoadCost(
        f"Arrow {'stream' if stream else 'file (Feather)'}",
        "arrow" if stream else "feather",
        f"{rows:,} rows of {plural(len(opened.schema.names), 'column')}",
        file_size(file),
        f"pa.ipc.open_stream({call('pa.OSFile', path)}).read_all()"
        if stream
        else call("pd.read_feather", path),
        int(_POOL_SHARE * (kept + copies)),
        kept,
        SAMPLED if compressed else EXACT,
        tuple(_arrow_part(field, rows) for field in opened.schema),
        notes=(_POOL, "compressed: mapping it saves nothing, it is unpacked into memory")
        if compressed
        else (_POOL,),
        cheaper=(
            f"pa.ipc.open_{'stream' if stream else 'file'}({call('pa.memory_map', path)}): mapped, a batch at a time",
        ),
    )


def _arrow_part(field: Any, rows: int) -> Part:
    width = _width(field.type)
    return Part(field.name, str(field.type), (rows,), None if width is None else int(width * rows))


def _stream_rows(opened: Any, arrow: Any) -> tuple[int, int, bool, float]:
    """(rows, bytes, whether compressed, 0). Of what is not compressed only the batches' headers are read."""
    rows, size, compressed = 0, 0, False
    for batch in opened:
        rows, size = rows + batch.num_rows, size + batch.nbytes
        compressed |= _unpacked(batch, arrow)
    return rows, size, compressed, 0.0


def _file_rows(opened: Any, arrow: Any) -> tuple[int, int, bool, float]:
    """(rows, bytes, whether compressed, bytes of a row as Python objects). Batches are of one size, but for the last."""
    count = opened.num_record_batches
    if not count:
        return 0, 0, False, 0.0
    first, last = opened.get_batch(0), opened.get_batch(count - 1)
    rows = first.num_rows * (count - 1) + last.num_rows
    sample = first.slice(0, _SAMPLE_ROWS)
    objects = _python_objects(sample.select([f.name for f in sample.schema if _width(f.type) is None]))
    return rows, first.nbytes * (count - 1) + last.nbytes, _unpacked(first, arrow), objects


def _unpacked(batch: Any, arrow: Any) -> bool:
    """Whether it lies in memory: what is not compressed is only mapped."""
    return bool(arrow.total_allocated_bytes() > batch.nbytes // 2)

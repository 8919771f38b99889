"""What `oomproof data inspect` predicts from headers against what loading the file takes, for each format and several shapes.

Aim: within 10 %, or above what was measured. Uses whatever of numpy, pandas, pyarrow, torch, safetensors and gguf is
installed; the results of another version of pandas stand beside those of this one."""

from __future__ import annotations

import argparse
import csv
import json
import os
import pickle
import random
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

from lab import MIB, RESULTS, read_json, save, table

from oomproof.records import asdict
from oomproof.sizing.data import load_child
from oomproof.sizing.data.file_formats import load_cost
from oomproof.sizing.data.load_proof import measure, prove

LIMIT = 1536 * MIB
WORDS = [
    "memory",
    "job",
    "batch",
    "loss",
    "step",
    "epoch",
    "tensor",
    "train",
    "learning",
    "rate",
    "limit",
    "gradient",
]
Case = tuple[str, str, Callable[[Path], Any]]  # format, shape, what writes it


def sentence(numbers: random.Random, words: int) -> str:
    return " ".join(numbers.choices(WORDS, k=words)) + f" {numbers.randrange(10**9)}"


def write_csv(
    path: Path, rows: int, separator: str, *columns: Callable[[random.Random, int], object]
) -> None:
    numbers = random.Random(1)
    with path.open("w", newline="") as file:
        writer = csv.writer(file, delimiter=separator)
        writer.writerow([f"c{number}" for number in range(len(columns))])
        writer.writerows([column(numbers, row) for column in columns] for row in range(rows))


def write_jsonl(path: Path, rows: int, row: Callable[[random.Random, int], object]) -> None:
    numbers = random.Random(1)
    with path.open("w") as file:
        for number in range(rows):
            file.write(json.dumps(row(numbers, number)) + "\n")


def real(numbers: random.Random, row: int) -> float:
    return numbers.random()


def whole(numbers: random.Random, row: int) -> int:
    return row * 7


def word(numbers: random.Random, row: int) -> str:
    return numbers.choice(WORDS)


def text(numbers: random.Random, row: int) -> str:
    return sentence(numbers, 8)


def text_cases() -> Iterator[Case]:
    yield "CSV", "8 columns of floats", lambda path: write_csv(path, 1_000_000, ",", *[real] * 8)
    yield "CSV", "ints and floats", lambda path: write_csv(path, 2_000_000, ",", whole, whole, real, real)
    yield "CSV", "distinct texts", lambda path: write_csv(path, 1_200_000, ",", whole, text)
    yield "CSV", "repeated words", lambda path: write_csv(path, 3_000_000, ",", whole, word, word)
    yield (
        "CSV",
        "half of the values missing",
        lambda path: write_csv(
            path,
            2_000_000,
            ",",
            lambda numbers, row: row if row % 2 else "",
            lambda numbers, row: text(numbers, row) if row % 2 else "",
        ),
    )
    yield "TSV", "mixed", lambda path: write_csv(path, 1_000_000, "\t", whole, real, word, text)
    yield (
        "JSON Lines",
        "a text and a label",
        lambda path: write_jsonl(
            path, 250_000, lambda numbers, row: {"id": row, "text": text(numbers, row), "label": row % 3}
        ),
    )
    yield (
        "JSON Lines",
        "chat messages",
        lambda path: write_jsonl(
            path,
            80_000,
            lambda numbers, row: {
                "messages": [
                    {"role": role, "content": sentence(numbers, 20)} for role in ("user", "assistant")
                ]
            },
        ),
    )
    yield (
        "JSON Lines",
        "lists of token ids",
        lambda path: write_jsonl(
            path, 12_000, lambda numbers, row: {"input_ids": [numbers.randrange(50_000) for _ in range(256)]}
        ),
    )


def held_out_text_cases() -> Iterator[Case]:
    """Shapes that were made after the factors in src/ had been chosen."""
    small = lambda numbers, row: numbers.randrange(100)  # noqa: E731
    date = lambda numbers, row: f"20{row % 30:02d}-{row % 12 + 1:02d}-{row % 28 + 1:02d}"  # noqa: E731
    code = lambda numbers, row: f"{WORDS[row % 7]}-{numbers.randrange(10**6)}"  # noqa: E731
    yield "CSV", "20 columns of small ints", lambda path: write_csv(path, 500_000, ",", *[small] * 20)
    yield (
        "CSV",
        "texts of 200 words",
        lambda path: write_csv(path, 70_000, ",", whole, lambda numbers, row: sentence(numbers, 200)),
    )
    yield "CSV", "dates and codes", lambda path: write_csv(path, 1_000_000, ",", date, code, code, small)
    yield (
        "JSON Lines",
        "nested, with true and null",
        lambda path: write_jsonl(
            path,
            150_000,
            lambda numbers, row: {
                "id": str(row),
                "ok": True,
                "none": None,
                "meta": {"lang": "en", "score": real(numbers, row)},
            },
        ),
    )


def array_cases() -> Iterator[Case]:
    numpy = import_module("numpy")
    numbers = numpy.random.default_rng(1)

    def big() -> Any:
        return numbers.random((500_000, 64), dtype="float32")

    yield "npy", "float32, C order", lambda path: numpy.save(path, big())
    yield (
        "npy",
        "int64, Fortran order",
        lambda path: numpy.save(path, numpy.asfortranarray(numpy.ones((1000, 16_000), "int64"))),
    )
    yield (
        "npy",
        "fields",
        lambda path: numpy.save(path, numpy.zeros(3_000_000, [("a", "i4"), ("b", "f4", (8,)), ("c", "S5")])),
    )
    yield "npz", "not compressed", lambda path: numpy.savez(path, x=big(), y=numpy.arange(500_000))
    yield (
        "npz",
        "compressed, zeros",
        lambda path: numpy.savez_compressed(path, x=numpy.zeros((4000, 4000)), y=numpy.arange(500_000)),
    )
    yield (
        "npz",
        "compressed, 200 arrays",
        lambda path: numpy.savez_compressed(
            path, **{f"a{number}": numbers.integers(0, 9, (100_000,), dtype="int64") for number in range(200)}
        ),
    )


def pickle_cases() -> Iterator[Case]:
    numpy = import_module("numpy")

    def write(value: Callable[[], object]) -> Callable[[Path], None]:
        def dump(path: Path) -> None:
            with path.open("wb") as file:
                pickle.dump(value(), file, protocol=5)

        return dump

    numbers = random.Random(1)
    yield (
        "pickle",
        "a list of dicts",
        write(
            lambda: [
                {"id": row, "text": text(numbers, row), "score": numbers.random()} for row in range(200_000)
            ]
        ),
    )
    yield (
        "pickle",
        "a dict of arrays",
        write(lambda: {name: numpy.random.default_rng(1).random(4_000_000) for name in "abcd"}),
    )
    yield (
        "pickle",
        "lists of ints",
        write(lambda: [[numbers.randrange(50_000) for _ in range(256)] for _ in range(12_000)]),
    )


def column_cases() -> Iterator[Case]:
    pandas = import_module("pandas")
    numpy = import_module("numpy")
    numbers = random.Random(1)

    def reals() -> Any:
        numbers = numpy.random.default_rng(1)
        return pandas.DataFrame({f"c{number}": numbers.random(2_000_000) for number in range(8)})

    def texts() -> Any:
        return pandas.DataFrame(
            {"id": range(800_000), "text": [text(numbers, row) for row in range(800_000)]}
        )

    def words() -> Any:
        return pandas.DataFrame({"id": range(3_000_000), "word": numbers.choices(WORDS, k=3_000_000)})

    yield "Parquet", "8 columns of floats", lambda path: reals().to_parquet(path)
    yield "Parquet", "distinct texts", lambda path: texts().to_parquet(path)
    yield "Parquet", "repeated words", lambda path: words().to_parquet(path)
    yield (
        "Parquet",
        "mixed, zstd, small row groups",
        lambda path: texts().to_parquet(path, compression="zstd", row_group_size=50_000),
    )
    yield "Feather", "8 columns of floats, lz4", lambda path: reals().to_feather(path)
    yield (
        "Feather",
        "distinct texts, not compressed",
        lambda path: texts().to_feather(path, compression="uncompressed"),
    )

    def stream(path: Path) -> None:
        arrow = import_module("pyarrow")
        made = arrow.Table.from_pandas(texts())
        with import_module("pyarrow.ipc").new_stream(str(path), made.schema) as writer:
            writer.write_table(made, max_chunksize=1000)

    yield "Arrow stream", "distinct texts, as HF datasets writes it", stream


def held_out_column_cases() -> Iterator[Case]:
    pandas, numpy = import_module("pandas"), import_module("numpy")
    numbers = random.Random(2)

    def embeddings() -> Any:
        rows = numpy.random.default_rng(2).random((150_000, 64), dtype="float32")
        return pandas.DataFrame({"id": range(150_000), "vector": list(rows)})

    def ints() -> Any:
        return pandas.DataFrame(
            numpy.random.default_rng(2).integers(0, 1000, (1_500_000, 20), "int32")
        ).rename(columns=str)

    def long_texts() -> Any:
        return pandas.DataFrame({"text": [sentence(numbers, 200) for _ in range(70_000)]})

    def tags() -> Any:
        return pandas.DataFrame(
            {"tags": [[word(numbers, row), word(numbers, row)] for row in range(500_000)]}
        )

    def token_ids() -> Any:
        return pandas.DataFrame({"ids": [list(range(row % 200)) for row in range(60_000)]})

    def some_missing() -> Any:
        return pandas.DataFrame(
            {"text": [sentence(numbers, 30) if row % 3 else None for row in range(400_000)]}
        )

    yield "Parquet", "lists of 64 floats", lambda path: embeddings().to_parquet(path)
    yield "Parquet", "20 columns of int32", lambda path: ints().to_parquet(path)
    yield "Parquet", "texts of 200 words", lambda path: long_texts().to_parquet(path)
    yield "Parquet", "lists of two words", lambda path: tags().to_parquet(path)
    yield "Parquet", "lists of 0 to 199 ints", lambda path: token_ids().to_parquet(path)
    yield "Parquet", "texts of 30 words, a third missing", lambda path: some_missing().to_parquet(path)
    yield "Feather", "20 columns of int32, lz4", lambda path: ints().to_feather(path)
    yield "Feather", "texts of 200 words, lz4", lambda path: long_texts().to_feather(path)


def tensor_cases() -> Iterator[Case]:
    torch = import_module("torch")
    save_file = import_module("safetensors.torch").save_file

    def few(kind: Any) -> Any:
        return {f"w{number}": torch.randn(4096, 2048).to(kind) for number in range(4)}

    def many() -> Any:
        return {f"w{number}": torch.randn(64, 256) for number in range(2000)}

    yield "torch.save", "4 tensors, float32", lambda path: torch.save(few(torch.float32), path)
    yield "torch.save", "2,000 small tensors", lambda path: torch.save(many(), path)
    yield "safetensors", "4 tensors, float32", lambda path: save_file(few(torch.float32), path)
    yield "safetensors", "4 tensors, bfloat16", lambda path: save_file(few(torch.bfloat16), path)


def gguf_cases() -> Iterator[Case]:
    gguf, numpy = import_module("gguf"), import_module("numpy")

    def write(kind: str) -> Callable[[Path], None]:
        def dump(path: Path) -> None:
            writer = gguf.GGUFWriter(str(path), "llama")
            writer.add_array("tokenizer.ggml.tokens", [f"token{number}" for number in range(5000)])
            for number in range(4):
                weights = numpy.random.default_rng(number).random((4096, 2048), dtype="float32")
                quantized = gguf.GGMLQuantizationType[kind]
                writer.add_tensor(f"w{number}", gguf.quants.quantize(weights, quantized), raw_dtype=quantized)
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_tensors_to_file()
            writer.close()

        return dump

    yield "GGUF", "4 tensors, F16", write("F16")
    yield "GGUF", "4 tensors, Q8_0", write("Q8_0")


SUFFIXES = {
    "CSV": "csv", "TSV": "tsv", "JSON Lines": "jsonl", "npy": "npy", "npz": "npz", "pickle": "pkl", "Parquet": "parquet",
    "Feather": "feather", "Arrow stream": "arrow", "torch.save": "pt", "safetensors": "safetensors", "GGUF": "gguf",
}  # fmt: skip


def unpickle(path: str) -> Iterator[Any]:
    """Only here, where we wrote the file ourselves: `inspect --prove` loads no pickles."""
    import_module("numpy")
    yield
    with open(path, "rb") as file:
        yield pickle.load(file)


def measured(loader: str, path: Path) -> dict[str, float]:
    if loader:
        return asdict(prove(loader, str(path), LIMIT))
    return asdict(measure([sys.executable, __file__, "--unpickle", str(path)], str(path), LIMIT))


def version(name: str) -> str:
    try:
        return f"{name} {metadata.version(name)}"
    except metadata.PackageNotFoundError:
        return f"no {name}"


def rows_of(folder: Path, wanted: str) -> Iterator[dict[str, Any]]:
    for cases in (
        array_cases, text_cases, column_cases, pickle_cases, tensor_cases, gguf_cases, held_out_text_cases, held_out_column_cases,
    ):  # fmt: skip
        try:
            listed = list(cases())
        except ImportError as error:
            print(f"left out: {cases.__name__}: {error}", flush=True)
            continue
        for form, shape, write in listed:
            if wanted not in f"{form}, {shape}":
                continue
            path = folder / f"file.{SUFFIXES[form]}"
            # in a process of its own: what writing leaves behind is none of this one's business
            pid = os.fork()
            if pid == 0:
                try:
                    write(path)
                    os._exit(0)
                except ImportError as error:
                    print(f"left out: {form}, {shape}: {error}", flush=True)
                    os._exit(3)
                finally:
                    os._exit(1)
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            if status == 3:
                continue
            assert status == 0, (form, shape)
            cost = load_cost(str(path))
            row = {
                "format": form,
                "shape": shape,
                "disk": cost.disk,
                "basis": cost.basis,
                "mapped": cost.mapped,
            }
            row |= {
                "predicted": {"peak": cost.peak, "kept": cost.kept},
                "measured": measured(cost.loader, path),
            }
            path.unlink()
            print(*cells(row), sep="  ", flush=True)
            yield row


def cells(row: dict[str, Any]) -> list[str]:
    told, seen = row["predicted"], row["measured"]
    peak, kept = (seen["mapped"], seen["mapped"]) if row["mapped"] else (seen["peak"], seen["kept"])
    sizes, ratio = (row["disk"], told["peak"], peak, told["kept"], kept), told["peak"] / peak
    return [row["format"], row["shape"], *(f"{size / MIB:.0f}" for size in sizes), f"{ratio:.2f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--only", default="", metavar="FORMAT", help="only this one; the other results stay as they are"
    )
    parser.add_argument("--unpickle", metavar="FILE", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.unpickle:
        load_child.LOADERS["pickle"] = unpickle
        print(json.dumps(load_child.main("pickle", arguments.unpickle)))
        return
    with tempfile.TemporaryDirectory(prefix="oomproof-bench-") as folder:
        rows = list(rows_of(Path(folder), arguments.only))
    header = ["format", "shape", "MiB on disk", "peak, predicted", "measured", "kept, predicted", "measured"]
    table("Predicted and measured, in MiB", [*header, "predicted peak / measured"], list(map(cells, rows)))
    libraries = ", ".join(map(version, ("numpy", "pandas", "pyarrow", "torch", "safetensors", "gguf")))
    stored = read_json(RESULTS / "data.json").get("rows", {})
    if arguments.only:
        again = {(row["format"], row["shape"]): row for row in rows}
        earlier = {(row["format"], row["shape"]): row for row in stored.get(libraries, [])}
        rows = list({**earlier, **again}.values())
    save("data", {"rows": {**stored, libraries: rows}})


if __name__ == "__main__":
    main()

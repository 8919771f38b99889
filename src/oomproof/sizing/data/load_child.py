"""Loads one file as people usually do and tells what that took. A program of its own, for any Python: it imports nothing of ours.

    python load_child.py LOADER FILE

Standard output has two lines of JSON: what it held before, and after. Loading a pickle is not among the loaders: it would run the file's code.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from typing import Any


def npy(path: str) -> Iterator[Any]:
    import numpy

    numpy.empty(1)
    yield
    yield numpy.load(path, allow_pickle=False)


def npz(path: str) -> Iterator[Any]:
    import io

    import numpy

    small = io.BytesIO()
    numpy.savez_compressed(small, x=numpy.zeros(1))
    small.seek(0)
    numpy.load(small)["x"]
    yield
    with numpy.load(path, allow_pickle=False) as archive:
        yield {name: archive[name] for name in archive.files if name + ".npy" in archive.zip.namelist()}


def csv(path: str) -> Iterator[Any]:
    import io

    import pandas

    pandas.read_csv(io.StringIO("a,b,c\n1,2.5,x\n2,3.5,y\n"))
    with open(path, encoding="utf-8-sig") as file:
        heading = file.readline(1 << 20)
    separator = "\t" if path.lower().endswith((".tsv", ".tab")) else max(",;\t|", key=heading.count)
    yield
    yield pandas.read_csv(path, sep=separator)


def jsonl(path: str) -> Iterator[Any]:
    yield
    with open(path, encoding="utf-8") as file:
        yield [json.loads(line) for line in file if line.strip()]


def parquet(path: str) -> Iterator[Any]:
    import io

    import pandas

    small = io.BytesIO()
    pandas.DataFrame({"a": [1, 2], "b": ["x", "y"]}).to_parquet(small, engine="pyarrow")
    small.seek(0)
    pandas.read_parquet(small, engine="pyarrow")
    yield
    yield pandas.read_parquet(path, engine="pyarrow")


def feather(path: str) -> Iterator[Any]:
    import io

    import pandas

    small = io.BytesIO()
    pandas.DataFrame({"a": [1, 2], "b": ["x", "y"]}).to_feather(small)
    small.seek(0)
    pandas.read_feather(small)
    yield
    yield pandas.read_feather(path)


def arrow(path: str) -> Iterator[Any]:
    import pyarrow
    import pyarrow.ipc

    yield
    yield pyarrow.ipc.open_stream(pyarrow.OSFile(path)).read_all()


def torch(path: str) -> Iterator[Any]:
    import torch

    torch.empty(1)
    yield
    yield torch.load(path, map_location="cpu", weights_only=True)


def safetensors(path: str) -> Iterator[Any]:
    from safetensors.torch import load_file
    from torch import uint8

    yield
    tensors = load_file(path)
    for tensor in tensors.values():  # mapped: what is not touched takes nothing
        tensor.reshape(-1).view(uint8)[::4096].sum()
    yield tensors


def gguf(path: str) -> Iterator[Any]:
    from gguf import GGUFReader

    yield
    reader = GGUFReader(path)
    for tensor in reader.tensors:
        tensor.data.reshape(-1).view("uint8")[::4096].sum()
    yield reader


LOADERS = {
    loader.__name__: loader
    for loader in (npy, npz, csv, jsonl, parquet, feather, arrow, torch, safetensors, gguf)
}


def memory() -> dict[str, int]:
    """Bytes resident: anonymous, of files, in all and at most."""
    names = {"RssAnon": "anon", "RssFile": "file", "VmRSS": "all", "VmHWM": "peak"}
    with open("/proc/self/status") as file:
        fields = dict(line.split(":", 1) for line in file)
    return {name: int(fields[field].split()[0]) * 1024 for field, name in names.items()}


def forget_peak() -> None:
    try:
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
    except OSError:  # the peak of the imports stands: seldom above that of a large file
        pass


def main(loader: str, path: str) -> dict[str, Any]:
    import gc

    steps = LOADERS[loader](path)
    next(steps)
    gc.collect()
    forget_peak()
    before = memory()
    print(json.dumps({"before": before}), flush=True)
    begun = time.perf_counter()
    loaded = next(steps)
    seconds = time.perf_counter() - begun
    after = memory()
    del loaded
    return {"before": before, "after": after, "seconds": seconds}


if __name__ == "__main__":
    try:
        answer = main(*sys.argv[1:3])
    except ImportError as error:
        answer = {"missing": error.name or str(error)}
    except MemoryError:
        answer = {"problem": "MemoryError"}
    except Exception as error:  # whatever the library says of this file
        first = str(error).partition("\n")[0][:200]
        answer = {"problem": f"{type(error).__name__}: {first}"}
    print(json.dumps(answer))

"""Arrays, tensors and tables of the libraries a job has loaded: bytes in memory, mapped from a file, on the GPU.

Only figures are asked that the libraries keep anyway: no operation is run, nothing is loaded, no GPU is waited for."""

from __future__ import annotations

import sys

from .census_kinds import ARROW, DATASET, NUMPY, PANDAS, TENSOR, Kind, Kinds
from .frame_variables import attributes, is_ours

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_MAPPED_LEAST = 1 << 20  # bytes: below, nobody asks whether it is mapped
_CHUNKS = 24  # of an Arrow column whose buffers are looked at
_OBJECTS = 256  # elements of an array of Python objects
# names of mappings that are RAM
_IN_MEMORY = ("/dev/shm/", "/memfd:", "/dev/zero", "/SYSV", "/anon_hugepage", "[")


class Extent:
    """How much a value takes, and where its data begins: two that begin at one address are views of it."""

    def __init__(
        self, what: str, ram: int = 0, mapped: int = 0, gpu: int = 0, rows: int = 0, address: int = 0
    ) -> None:
        self.what, self.ram, self.mapped, self.gpu = what, ram, mapped, gpu
        self.rows, self.address = rows, address
        self.shown: int | None = None  # of a view: the bytes it looks at


class Tables:
    def __init__(self, kinds: Kinds, leaf_size: Any) -> None:
        """``leaf_size(values)``: bytes of Python objects, for arrays of them."""
        self._kinds, self._leaf_size = kinds, leaf_size
        self._mappings: list[tuple[int, int]] | None = None
        self.counted = {0}  # addresses of data

    def inside(self, value: Any, kind: Kind, is_sample: bool) -> tuple[int, int, int]:
        """Bytes in memory, mapped and on the GPU of one that hangs on something else. Of a view among many only what it
        shows, for the others show the rest; else all of it, once."""
        extent = self.extent(value, kind)
        if is_sample and extent.shown is not None:
            return min(extent.ram, extent.shown), extent.mapped, min(extent.gpu, extent.shown)
        if not is_sample:
            if extent.address in self.counted:
                return 0, 0, 0
            self.counted.add(extent.address)
        return extent.ram, extent.mapped, extent.gpu

    def extent(self, value: Any, kind: Kind) -> Extent:
        try:
            read = _READERS.get(kind.role)
            if read is not None:
                return read(self, value, kind)
        except Exception as error:  # of another version, half made, freed
            if not is_ours(error):
                raise
        return Extent(kind.name)

    def _numpy(self, value: Any, kind: Kind) -> Extent:
        numpy = sys.modules["numpy"]
        fields = numpy.ndarray.__dict__  # a subclass of the user's may have code behind these names

        def get(array: Any, name: str) -> Any:
            return fields[name].__get__(array)

        shape, dtype, size = get(value, "shape"), get(value, "dtype"), int(get(value, "nbytes"))
        owner, base = value, get(value, "base")
        while type(base) is numpy.ndarray:
            owner, base = base, get(base, "base")
        rows = int(shape[0]) if shape else 0
        what = f"array {_shape(shape)} {dtype.str.lstrip('<|=') if dtype.names is None else 'records'}"
        address = int(get(value, "__array_interface__")["data"][0])
        whole = int(get(owner, "nbytes"))  # a view keeps all of what it looks at alive
        made = Extent(what, rows=rows, address=int(get(owner, "__array_interface__")["data"][0]))
        if self._is_mapped(address, size):
            made.mapped = size
            return made
        made.ram = whole + 112
        made.shown = size + 112 if owner is not value else None
        if dtype.hasobject and dtype.names is None and type(value) is numpy.ndarray:
            made.what = f"array {_shape(shape)} of objects"
            made.ram += self._objects(value, size // 8)
        return made

    def _objects(self, value: Any, count: int) -> int:
        # else it would be a copy
        flat = value.reshape(-1) if value.ndim != 1 and value.flags.c_contiguous else value
        if flat.ndim != 1:
            return 0
        step = max(1, count // _OBJECTS)
        elements = [flat[at] for at in range(step // 2, count, step)]
        return int(self._leaf_size(elements) * count / max(1, len(elements)))

    def _tensor(self, value: Any, kind: Kind) -> Extent:
        torch = sys.modules["torch"]
        modes = getattr(torch._C, "_len_torch_dispatch_stack", None)
        # a graph is being made, or code of somebody's stands behind each call
        if modes is not None and modes():
            return Extent(kind.name)
        with torch._C.DisableTorchFunction():  # a subclass of the user's has code behind each name
            get = torch.Tensor
            shape = tuple(int(side) for side in get.size(value))
            device = str(get.device.__get__(value))
            dtype = str(get.dtype.__get__(value)).replace("torch.", "")
            storage = get.untyped_storage(value)
            address, size = int(storage.data_ptr()), int(storage.nbytes())
            shown = int(get.numel(value)) * int(get.element_size(value))
            gradient = get.grad.__get__(value) if get.is_leaf.__get__(value) else None
            more = int(get.untyped_storage(gradient).nbytes()) if gradient is not None else 0
        rows = shape[0] if shape else 0
        what = f"{kind.name} {_shape(shape)} {dtype}"
        if device.startswith("cpu"):
            if self._is_mapped(address, size):
                return Extent(what, mapped=size, rows=rows, address=address)
            made = Extent(what, ram=size + more + 200, rows=rows, address=address)
            made.shown = shown + more + 200 if shown < size else None
            return made
        # a meta tensor holds nothing
        on_card = size + more if device.startswith(("cuda", "mps", "xpu")) else 0
        made = Extent(f"{what} on {device}", ram=200, gpu=on_card, address=address)
        made.shown = shown + more if shown < size else None
        return made

    def _arrow(self, value: Any, kind: Kind) -> Extent:
        rows, size = int(kind.base.__len__(value)), int(value.get_total_buffer_size())
        share = self._mapped_share(value)
        columns = f" × {value.num_columns} columns" if hasattr(kind.base, "num_columns") else ""
        what = f"Arrow {kind.base.__name__} of {rows:,} rows{columns}"
        mapped = int(size * share)
        return Extent(what, ram=size - mapped, mapped=mapped, rows=rows, address=_first_buffer(value))

    def _mapped_share(self, value: Any) -> float:
        mapped = whole = 0
        for buffer in _buffers(value):
            whole += buffer.size
            if self._is_mapped(buffer.address, buffer.size, least=1):
                mapped += buffer.size
        return mapped / whole if whole else 0.0

    def _dataset(self, value: Any, kind: Kind) -> Extent:
        table = arrow_table(value)
        made = self._arrow(table, self._kinds.of(table)) if table is not None else Extent("")
        made.what = f"datasets.{kind.name} of {made.rows:,} rows"
        return made

    def _pandas(self, value: Any, kind: Kind) -> Extent:
        made = Extent(kind.name)
        for part in pandas_parts(value):
            inner = self.extent(part, self._kinds.of(part))
            made.ram, made.mapped = made.ram + inner.ram, made.mapped + inner.mapped
            made.address = made.address or inner.address
        made.rows = int(kind.base.__len__(value)) if made.ram or made.mapped else 0
        made.what = f"{kind.name} of {made.rows:,} rows"
        return made

    def _is_mapped(self, address: int, size: int, least: int = _MAPPED_LEAST) -> bool:
        """Whether it lies in a file that is mapped: its pages are page cache, which the kernel takes back."""
        if size < least or not address:
            return False
        if self._mappings is None:
            self._mappings = _file_mappings()
        return any(begin <= address < end for begin, end in self._mappings)


_READERS = {
    NUMPY: Tables._numpy,
    TENSOR: Tables._tensor,
    ARROW: Tables._arrow,
    PANDAS: Tables._pandas,
    DATASET: Tables._dataset,
}


def arrow_table(dataset: Any) -> Any:
    """What a dataset of HF holds; None where it has none, or picks rows of it in another order."""
    parts = attributes(dataset, type(dataset))
    table = parts.get("_data") if type(parts) is dict else None
    inner = attributes(table, type(table)) if table is not None else None
    return inner.get("table") if type(inner) is dict else None


def pandas_parts(value: Any) -> list[Any]:
    """Arrays behind a DataFrame, Series or Index: NumPy's and Arrow's. Classes of the user's own are not asked."""
    held = attributes(value, type(value))
    if type(held) is not dict:
        return []
    manager = held.get("_mgr")
    arrays = [block.values for block in manager.blocks] if manager is not None else [held.get("_data")]
    parts = []
    for array in arrays:
        if type(array).__module__.startswith("pandas."):
            names = [name for name in ("_pa_array", "_ndarray", "_data") if hasattr(array, name)]
            parts += [getattr(array, name) for name in names[:1]]
        else:
            parts.append(array)
    return parts


def _buffers(value: Any) -> list[Any]:
    columns = (
        [value.column(at) for at in range(min(8, value.num_columns))]
        if hasattr(value, "num_columns")
        else [value]
    )
    found = []
    for column in columns:
        chunks = column.num_chunks if hasattr(column, "num_chunks") else 0
        step = max(1, chunks // _CHUNKS)
        arrays = [column.chunk(at) for at in range(0, chunks, step)] if chunks else [column]
        found += [
            buffer for array in arrays if hasattr(array, "buffers") for buffer in array.buffers() if buffer
        ]
    return found


def _first_buffer(value: Any) -> int:
    return next((int(buffer.address) for buffer in _buffers(value)), 0)


def _shape(shape: Any) -> str:
    return "[" + ", ".join(str(int(side)) for side in tuple(shape)[:6]) + "]"


def _file_mappings() -> list[tuple[int, int]]:
    """Ranges of addresses that files back; /dev/shm and the like are memory."""
    ranges = []
    try:
        with open("/proc/self/maps", "rb") as file:
            for line in file:
                parts = line.split(None, 5)
                if len(parts) < 6 or parts[5].decode("utf-8", "replace").startswith(_IN_MEMORY):
                    continue
                begin, _, end = parts[0].partition(b"-")
                ranges.append((int(begin, 16), int(end, 16)))
    except (OSError, ValueError):
        pass
    return ranges

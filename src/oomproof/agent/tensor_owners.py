"""Who holds the tensors that are alive: modules, gradients, optimizers, caches, and the variables that keep lists of them.

Run when memory has run out, inside the failing call: it allocates nothing on the device, looks at sizes and names, never
at values, and stops at its deadline with what it has found."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Iterable, Iterator
from operator import is_
from types import FrameType, FunctionType, ModuleType
from typing import Any

from .allocator_segments import is_library

_CACHE_NAMES = ("past_key_values", "past_key_value", "past", "kv_cache", "cache_params")
_CONTAINERS = (list, tuple, dict, set, frozenset)
_LEAVES = (str, bytes, int, float, ModuleType, type, FunctionType)
_LONG = 20_000  # elements of one container that are looked at
_DEEP = 4  # containers within containers
_OPTIMIZED = 1  # inspect.CO_OPTIMIZED: a function's own fast variables
_MOST_OF_IT = 0.995
_OBJECTS = 2  # of those levels, how many may be plain objects: their attributes lead everywhere
_LEFT_OVER = 48  # tensors nobody has claimed whose holders are searched for: one more pass over the heap


class _Tally:
    """Storages by owner. The first claim on a storage holds: views share one."""

    def __init__(self, torch: Any, device_type: str, index: int | None, deadline: float) -> None:
        self.torch, self.device_type, self.index, self.deadline = torch, device_type, index, deadline
        self.owners: dict[tuple[str, str], dict[str, Any]] = {}
        self.claimed: dict[int, int] = {}
        self.held = 0  # bytes claimed so far
        self.alive = 0  # bytes of all tensors found on the heap
        self.late = False
        self._ticks = 0

    def key(self, tensor: Any) -> tuple[int, int] | None:
        """(address, bytes) of its storage, if it lies on the device asked about."""
        try:
            device = tensor.device
            if device.type != self.device_type or (self.index is not None and device.index != self.index):
                return None
            storage = tensor.untyped_storage()
            address, size = int(storage.data_ptr()), int(storage.nbytes())
            return (address, size) if address and size else None
        except Exception:  # fake, sparse, freed
            return None

    def claim(self, tensor: Any, kind: str, owner: str, name: str = "") -> None:
        key = self.key(tensor)
        if key is None or key[0] in self.claimed:
            return
        address, size = key
        self.claimed[address] = size
        self.held += size
        entry = self.owners.setdefault((kind, owner), {"bytes": 0, "count": 0, "largest": 0, "example": ""})
        entry["bytes"] += size
        entry["count"] += 1
        if size > entry["largest"]:
            entry["largest"], entry["example"] = size, _describe(tensor, name)

    @property
    def enough(self) -> bool:
        """The rest is small change, and the search for it the dearest part."""
        return self.held >= self.alive * _MOST_OF_IT

    def out_of_time(self) -> bool:
        self._ticks += 1
        if not self.late and self._ticks & 255 == 0 and time.monotonic() > self.deadline:
            self.late = True
        return self.late


def tensor_owners(
    torch: Any,
    device_type: str = "cuda",
    index: int | None = None,
    seconds: float = 2.0,
    top: int = 16,
    error: BaseException | None = None,
) -> dict[str, Any]:
    """{"owners": [{kind, owner, bytes, count, example}…], "seen": bytes, "complete": bool, "seconds": s}."""
    begun = time.monotonic()
    tally = _Tally(torch, device_type, index, begun + seconds)
    kinds = _Kinds(torch)
    tensors, modules, optimizers, caches = _sort_heap(kinds, tally)
    tally.alive = sum({key[0]: key[1] for key in map(tally.key, tensors) if key is not None}.values())
    _of_modules(modules, tally)
    _of_optimizers(optimizers, kinds, tally)
    for cache in caches:
        _of_cache(cache, kinds, tally)
    _of_frames(kinds, tally, error)
    _of_globals(kinds, tally)
    rest = []
    for tensor in tensors:
        identity = tally.key(tensor)
        if identity is not None and identity[0] not in tally.claimed:
            rest.append((identity[1], tensor))
    rest.sort(key=lambda candidate: -candidate[0])
    if rest and not tally.late:
        ours = {id(rest), id(tensors), *map(id, rest)}
        _of_referrers([tensor for _, tensor in rest[:_LEFT_OVER]], ours, kinds, tally)
    for _, tensor in rest:
        graph = getattr(tensor, "grad_fn", None) is not None
        tally.claim(
            tensor,
            "activation" if graph else "unnamed",
            "tensors of a running graph" if graph else "tensors that no variable names",
        )
    tensor = cache = None  # nothing of the job's may outlive this search
    owners = [
        {"kind": kind, "owner": owner[:160], **{name: entry[name] for name in ("bytes", "count", "example")}}
        for (kind, owner), entry in tally.owners.items()
    ]
    owners.sort(key=lambda holder: -holder["bytes"])
    del tensors, modules, optimizers, caches, rest
    return {
        "owners": owners[:top],
        "seen": sum(tally.claimed.values()),
        "tensors": len(tally.claimed),
        "complete": not tally.late,
        "seconds": round(time.monotonic() - begun, 3),
    }


class _Kinds:
    """What a type is to us, remembered by type: the heap has millions of objects of few types."""

    def __init__(self, torch: Any) -> None:
        self.tensor = torch.Tensor
        self.module = torch.nn.Module
        self.optimizer = torch.optim.Optimizer
        self._known: dict[type, str] = {}

    def of(self, value: Any) -> str:
        kind = type(value)  # never isinstance: a lazy proxy would load what it stands for
        name = self._known.get(kind)
        if name is None:
            name = self._known[kind] = self._judge(kind)
        return name

    def _judge(self, kind: type) -> str:
        try:
            if issubclass(kind, self.tensor):
                return "tensor"
            if issubclass(kind, self.module):
                return "module"
            if issubclass(kind, self.optimizer):
                return "optimizer"
            home = str(getattr(kind, "__module__", ""))
            if home.startswith("transformers.") and (
                home.endswith("cache_utils") or kind.__name__.endswith("Cache")
            ):
                return "cache"
        except Exception:  # a class with code of its own behind isinstance or its name
            pass
        return ""


def _sort_heap(kinds: _Kinds, tally: _Tally) -> tuple[list[Any], list[Any], list[Any], list[Any]]:
    objects: dict[str, list[Any]] = {"tensor": [], "module": [], "optimizer": [], "cache": []}
    for item in gc.get_objects():
        kind = kinds.of(item)
        if kind:
            objects[kind].append(item)
        if tally.out_of_time():
            break
    return objects["tensor"], objects["module"], objects["optimizer"], objects["cache"]


def _of_modules(modules: list[Any], tally: _Tally) -> None:
    inner = set()
    for module in modules:
        for child in (module.__dict__.get("_modules") or {}).values():
            inner.add(id(child))
    for root in modules:
        if id(root) not in inner:
            _walk_module(root, type(root).__name__, "", tally, 0, set())


def _walk_module(module: Any, root: str, path: str, tally: _Tally, depth: int, seen: Any) -> None:
    if depth > 64 or id(module) in seen or tally.out_of_time():
        return
    seen.add(id(module))
    parts = module.__dict__
    for name, parameter in (parts.get("_parameters") or {}).items():
        if parameter is None:
            continue
        tally.claim(parameter, "parameter", "parameters of " + root, path + name)
        gradient = getattr(parameter, "grad", None) if getattr(parameter, "is_leaf", False) else None
        if gradient is not None:
            tally.claim(gradient, "gradient", "gradients of " + root, path + name)
    for name, buffer in (parts.get("_buffers") or {}).items():
        if buffer is not None:
            tally.claim(buffer, "buffer", "buffers of " + root, path + name)
    for name, child in (parts.get("_modules") or {}).items():
        if child is not None:
            _walk_module(child, root, f"{path}{name}.", tally, depth + 1, seen)


def _of_optimizers(optimizers: list[Any], kinds: _Kinds, tally: _Tally) -> None:
    for optimizer in optimizers:
        owner = "optimizer state of " + type(optimizer).__name__
        try:
            states = list(optimizer.__dict__.get("state", {}).values())
        except RuntimeError:  # changed under us by another thread
            continue
        for state in states:
            if isinstance(state, dict):
                for name, value in list(state.items()):
                    if kinds.of(value) == "tensor":
                        tally.claim(value, "optimizer", owner, str(name))
            if tally.out_of_time():
                return


def _of_cache(cache: Any, kinds: _Kinds, tally: _Tally) -> None:
    owner = "KV cache"
    for name, value in list(getattr(cache, "__dict__", {}).items()):
        for element in value[:_LONG] if isinstance(value, (list, tuple)) else (value,):
            if kinds.of(element) == "tensor":
                tally.claim(element, "kv-cache", owner, f"{type(cache).__name__}.{name}")


def _of_frames(kinds: _Kinds, tally: _Tally, error: BaseException | None) -> None:
    """Local variables of every thread, and of the functions an error came through; the user's functions before the
    libraries', so that the name is the user's."""
    frames = [*_of_error(error), *_frames()]
    frames.sort(key=lambda frame: is_library(frame.f_code.co_filename))  # stable: the innermost still first
    while frames:
        _of_frame(frames.pop(0), kinds, tally)
        if tally.late or tally.enough:
            break
    frames.clear()


def _of_frame(frame: FrameType, kinds: _Kinds, tally: _Tally) -> None:
    code = frame.f_code
    if "/oomproof/agent/" in code.co_filename:
        return
    location = f"{code.co_name} ({code.co_filename.rpartition('/')[2]}:{frame.f_lineno})"
    names = frame.f_locals
    try:
        _of_names(names, location, kinds, tally)
    finally:
        # before 3.13 a function's f_locals is a copy that the frame keeps: left as it is, it would hold the job's
        # tensors alive after the job has dropped them. A module's is the module itself.
        if sys.version_info < (3, 13) and code.co_flags & _OPTIMIZED:
            names.clear()


def _of_error(error: BaseException | None) -> list[FrameType]:
    frames = []
    traceback = error.__traceback__ if error is not None else None
    while traceback is not None:
        frames.append(traceback.tb_frame)
        traceback = traceback.tb_next
    return frames[::-1]


def _frames() -> list[FrameType]:
    """Of this thread from the caller outwards, then of the others. Never our own: a frame that holds itself in a
    variable lives on, and with it all that its callers hold."""
    from _thread import get_ident

    frames: list[FrameType] = []
    own = get_ident()
    others = [start for thread, start in sys._current_frames().items() if thread != own]
    for start in [sys._getframe(1), *others]:
        frame: FrameType | None = start
        while frame is not None:
            if "/oomproof/agent/" not in frame.f_code.co_filename:
                frames.append(frame)
            frame = frame.f_back
    others.clear()
    del start
    return frames


def _of_globals(kinds: _Kinds, tally: _Tally) -> None:
    """What a notebook or a script keeps at its top level."""
    main = sys.modules.get("__main__")
    if main is not None and not tally.enough:
        _of_names(vars(main), "the main module", kinds, tally)


def _of_names(names: Any, location: str, kinds: _Kinds, tally: _Tally) -> None:
    try:
        pairs = list(names.items())
    except RuntimeError:
        return
    for name, value in pairs:
        kind = kinds.of(value)
        if kind == "tensor":
            running = getattr(value, "grad_fn", None) is not None
            tally.claim(value, "activation" if running else "tensor", f"{name} in {location}", name)
        elif not kind and not _is(value, _LEAVES):
            held = "kv-cache" if name in _CACHE_NAMES else _word(value)
            for tensor, path in _tensors_in(value, name, kinds, tally, _DEEP, _OBJECTS, set()):
                tally.claim(tensor, held, f"{_word(value)} {name} in {location}", path)
        if tally.out_of_time():
            return


def _word(value: Any) -> str:
    kind = type(value)
    return kind.__name__ if kind in _CONTAINERS else "dict" if _is(value, (dict,)) else "object"


def _tensors_in(
    value: Any, path: str, kinds: _Kinds, tally: _Tally, depth: int, objects: int, seen: Any
) -> Iterator[tuple[Any, str]]:
    if depth < 0 or id(value) in seen or tally.late:
        return
    seen.add(id(value))
    if not _is(value, _CONTAINERS) and type(value).__name__ != "deque":
        objects -= 1
        if objects < 0:
            return
    for name, part in _parts(value):
        kind = kinds.of(part)
        if kind == "tensor":
            yield part, path + name
        elif kind == "" and not _is(part, _LEAVES):
            yield from _tensors_in(part, path + name, kinds, tally, depth - 1, objects, seen)
        if tally.out_of_time():
            return


def _is(value: Any, kinds: tuple[type, ...]) -> bool:
    """isinstance() would ask the object for its __class__: a lazy proxy then loads what it stands for."""
    return issubclass(type(value), kinds)


def _parts(value: Any) -> Iterable[tuple[str, Any]]:
    """Elements or attributes, with how to write them. A long list of plain numbers is left after a glance."""
    try:
        if _is(value, (dict,)):
            return [(_key(key), element) for key, element in list(value.items())[:_LONG]]
        if _is(value, (list, tuple)):
            if len(value) > 64 and all(_is(element, (int, float, str, bytes)) for element in value[:16]):
                return ()
            return [(f"[{number}]", element) for number, element in enumerate(value[:_LONG])]
        if _is(value, (set, frozenset)):
            return [("{…}", element) for element in list(value)[:_LONG]]
        if type(value).__name__ == "deque":
            return [(f"[{number}]", element) for number, element in enumerate(list(value)[:_LONG])]
        plain: Any = type(value).__getattribute__
        # no code of the object's own is run
        if plain is object.__getattribute__ and type(value).__dictoffset__:
            return [("." + str(name), element) for name, element in list(value.__dict__.items())[:256]]
    except Exception:  # changed under us by another thread, or a container with code of its own
        pass
    return ()


def _key(key: Any) -> str:
    return f"[{key[:24]!r}]" if _is(key, (str,)) else f"[{key}]" if _is(key, (int,)) else "[…]"


def _of_referrers(tensors: list[Any], ours: set[int], kinds: _Kinds, tally: _Tally) -> None:
    """One pass over the heap for the containers that hold what nobody has named."""
    wanted = {id(tensor) for tensor in tensors}
    for holder in gc.get_referrers(*tensors):
        if holder is tensors or id(holder) in ours or tally.out_of_time():
            continue
        if type(holder) is tuple and len(holder) == len(tensors) and all(map(is_, holder, tensors)):
            continue  # our own arguments: since Python 3.13 they are among them
        if isinstance(holder, dict):
            for name, element in list(holder.items())[:_LONG]:
                if id(element) in wanted:
                    tally.claim(
                        element,
                        "dict",
                        "entry {} of a dict".format(name if isinstance(name, str) else "…"),
                        str(name),
                    )
        elif isinstance(holder, (list, tuple)):
            word = f"a {type(holder).__name__} of {len(holder)} items"
            for element in holder[:_LONG]:
                if id(element) in wanted:
                    tally.claim(element, type(holder).__name__, word)
        elif not isinstance(holder, FrameType) and not kinds.of(holder):
            word = f"attributes of {type(holder).__name__}"
            for name, part in _parts(holder):
                if id(part) in wanted:
                    tally.claim(part, "object", word, name)


def _describe(tensor: Any, name: str) -> str:
    try:
        kind = str(tensor.dtype).replace("torch.", "")
        text = "{} [{}]".format(kind, ", ".join(str(side) for side in tensor.shape))
    except Exception:  # a tensor subclass that refuses to be described
        text = ""
    return f"{name[:100]} {text}".strip()

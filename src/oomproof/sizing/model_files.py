"""Which files a model consists of: a folder, a file, a name in the Hugging Face cache or in Ollama's store."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from oomproof.errors import USAGE, OomproofError
from oomproof.records import dataclass
from oomproof.sizing.data.source_file import BadFile, open_source
from oomproof.sizing.json_source import read_object, whole_number

_MODEL_NAME = re.compile(r"[\w.-]+(?:/[\w.-]+)?")
_OLLAMA_NAME = re.compile(r"([\w.-]+(?:/[\w.-]+){0,3})(?::([\w.-]+))?")
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
_LAYER = "application/vnd.ollama.image."
_LONGEST_MANIFEST = 1 << 20


def hugging_face_snapshot(name: str) -> str | None:
    """The folder of ``org/model`` in the cache; the revision that ``main`` names, else the newest."""
    if not _MODEL_NAME.fullmatch(name) or ".." in name:
        return None
    home = os.environ.get("HF_HOME") or os.path.join(_cache(), "huggingface")
    hub = os.environ.get("HF_HUB_CACHE") or os.path.join(home, "hub")
    folder = os.path.join(hub, "models--" + name.replace("/", "--"))
    try:
        with open(os.path.join(folder, "refs", "main"), encoding="ascii") as file:
            revision = file.read(100).strip()
        chosen = os.path.join(folder, "snapshots", revision)
        if re.fullmatch(r"[0-9a-f]{7,64}", revision) and os.path.isdir(chosen):
            return chosen
    except (OSError, ValueError):
        pass
    try:
        snapshots = [entry for entry in os.scandir(os.path.join(folder, "snapshots")) if entry.is_dir()]
    except OSError:
        return None
    newest = max(snapshots, key=lambda entry: entry.stat().st_mtime, default=None)
    return newest.path if newest is not None else None


def _cache() -> str:
    return os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")


def _ollama_stores() -> Iterator[str]:
    if chosen := os.environ.get("OLLAMA_MODELS"):
        yield chosen
    yield os.path.join(os.path.expanduser("~"), ".ollama", "models")
    yield "/usr/share/ollama/.ollama/models"  # where the service's user has its home
    yield "/var/lib/ollama/models"


def ollama_manifest(name: str) -> str | None:
    """The manifest of ``llama3.2``, ``llama3.2:3b``, ``user/model:tag`` or ``hf.co/org/model:tag``."""
    match = _OLLAMA_NAME.fullmatch(name)
    if match is None or ".." in name:
        return None
    words, tag = match[1].split("/"), match[2] or "latest"
    if len(words) < 3:
        words = ["registry.ollama.ai", *(["library"] if len(words) == 1 else []), *words]
    for store in _ollama_stores():
        path = os.path.join(store, "manifests", *words, tag)
        if os.path.isfile(path):
            return path
    return None


def is_ollama_manifest(path: str) -> bool:
    """By its content: a manifest has no ending."""
    try:
        if os.path.splitext(path)[1] in (".json", ".jsonl") or os.path.getsize(path) > _LONGEST_MANIFEST:
            return False
        with open(path, "rb") as file:
            text = file.read(_LONGEST_MANIFEST)
    except OSError:
        return False
    return text.lstrip()[:1] == b"{" and _LAYER.encode() in text


@dataclass(frozen=True, slots=True)
class OllamaModel:
    files: tuple[str, ...]
    adapters: tuple[str, ...]
    context: int | None


def read_manifest(path: str) -> OllamaModel:
    """The blobs it names; raises ``BadFile`` where one is missing."""
    layers = read_object(path).get("layers")
    files: dict[str, list[str]] = {"model": [], "adapter": [], "projector": [], "params": []}
    for layer in layers if isinstance(layers, list) else []:
        kind = str(layer.get("mediaType", "")) if isinstance(layer, dict) else ""
        what = kind.removeprefix(_LAYER)
        if kind.startswith(_LAYER) and what in files:
            files[what].append(_blob(path, str(layer.get("digest", ""))))
    context = None
    for blob in files["params"]:
        try:
            context = whole_number(read_object(blob), "num_ctx") or context
        except OomproofError:
            pass  # its own settings are not needed to size it
    return OllamaModel(tuple(files["model"] + files["projector"]), tuple(files["adapter"]), context)


def _blob(manifest: str, digest: str) -> str:
    match = _DIGEST.fullmatch(digest)
    store = os.path.abspath(manifest).rpartition("/manifests/")[0]
    if match is None or not store:
        raise BadFile(manifest, "names a blob that cannot be found", "pull the model again: ollama pull")
    blob = os.path.join(store, "blobs", f"sha256-{match[1]}")
    if not os.path.isfile(blob):
        raise BadFile(
            manifest,
            f"its blob {os.path.basename(blob)[:19]}… is missing",
            "pull the model again: ollama pull",
        )
    return blob


_DOWNLOAD = "download or copy the folder again"
_TORCH = (".bin", ".pt", ".pth", ".ckpt")
MODEL_ENDINGS = (".safetensors", ".gguf", *_TORCH)
# files of a trainer that are no weights
_NOT_WEIGHTS = re.compile(
    r"(?:training_args|optimizer|scheduler|scaler|rng_state\w*|random_states_\d+)\.(?:bin|pt|pth|pkl)"
)
_SPLIT = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.(gguf|safetensors|bin)")


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """``files`` hold weights, all of one kind. ``adapters`` come on top of them."""

    name: str  # as the user called it
    files: tuple[str, ...]
    config: Mapping[str, Any] | None = None
    adapters: tuple[str, ...] = ()
    context: int | None = None  # Ollama's own setting
    notes: tuple[str, ...] = ()


def model_files(name: str) -> ModelFiles | None:
    """None: a data file. Raises ``OomproofError``."""
    if os.path.isdir(name):
        return _folder(name, name)
    if os.path.exists(name):
        return _file(name)
    if (folder := hugging_face_snapshot(name)) is not None:
        return _folder(folder, name)
    if (manifest := ollama_manifest(name)) is not None:
        return _ollama(manifest, name)
    hint = "check the path"
    if not name.startswith((".", "/")) and not name.lower().endswith(MODEL_ENDINGS):
        hint = "a model's name is looked up in the Hugging Face cache and in Ollama's store: download it first, or give a path"
    raise OomproofError(f"{name}: there is no such file or folder", hint, USAGE)


def _file(path: str) -> ModelFiles | None:
    if is_ollama_manifest(path):
        return _ollama(path, path)
    with open_source(path) as file:
        is_gguf = file.read(4) == b"GGUF"
    if not is_gguf and not path.lower().endswith(MODEL_ENDINGS):
        return None
    files = _whole_split(path) if is_gguf else (path,)
    folder = os.path.dirname(path)
    config = os.path.join(folder, "config.json")
    # of a whole model's only file, or of one among others: the config tells its layers all the same
    return ModelFiles(path, files, read_object(config) if os.path.isfile(config) and not is_gguf else None)


def _whole_split(path: str) -> tuple[str, ...]:
    """All files of a GGUF that was split, whichever of them is named."""
    match = _SPLIT.fullmatch(os.path.basename(path))
    if match is None or match[4] != "gguf":
        return (path,)
    folder, count = os.path.dirname(path), int(match[3])
    names = [f"{match[1]}-{number:05d}-of-{match[3]}.gguf" for number in range(1, min(count, 10_000) + 1)]
    return _there(folder, names, "the parts of this GGUF")


def _there(folder: str, names: Sequence[str], what: str) -> tuple[str, ...]:
    missing = [name for name in names if not os.path.isfile(os.path.join(folder, name))]
    if missing:
        which = missing[0] if len(missing) == 1 else f"{missing[0]} and {len(missing) - 1} more"
        raise BadFile(folder or ".", f"{which} of {what} is missing", _DOWNLOAD)
    return tuple(os.path.join(folder, name) for name in names)


def _folder(folder: str, name: str) -> ModelFiles:
    """As transformers chooses among them: safetensors before torch's own, an index before single files."""
    there = _names(folder)
    if "model_index.json" in there:
        return _pipeline(folder, name)
    config = read_object(os.path.join(folder, "config.json")) if "config.json" in there else None
    adapters = tuple(
        os.path.join(folder, adapter)
        for adapter in ("adapter_model.safetensors", "adapter_model.bin")
        if adapter in there
    )[:1]
    files = _weights_of(folder, there - {"adapter_model.safetensors", "adapter_model.bin"})
    if adapters and not files:
        return _adapter(folder, name, adapters)
    if not files:
        raise OomproofError(*_no_model(folder, name, there), USAGE)
    notes = []
    kinds = {os.path.splitext(path)[1].lower() for path in files}
    beside = [other for other in _single_files(there) if os.path.splitext(other)[1].lower() not in kinds]
    if beside:
        notes.append(f"{beside[0]} beside them holds the same model in another format and is not counted")
    return ModelFiles(name, files, config, adapters, notes=tuple(notes))


def _names(folder: str) -> set[str]:
    try:
        with os.scandir(folder) as entries:
            return {entry.name for entry in entries if not entry.is_dir()}
    except OSError as error:
        raise BadFile(folder, f"cannot be read: {error.strerror}", "check its permissions") from None


def _weights_of(folder: str, there: set[str]) -> tuple[str, ...]:
    for index in ("model.safetensors.index.json", "pytorch_model.bin.index.json"):
        if index in there:
            return _shards(folder, index)
    for single in ("model.safetensors", "pytorch_model.bin"):
        if single in there:
            return (os.path.join(folder, single),)
    indexes = sorted(name for name in there if name.endswith((".safetensors.index.json", ".bin.index.json")))
    if indexes:
        return _shards(folder, indexes[0])
    names = _single_files(there)
    for ending in (".safetensors", ".gguf", *_TORCH):
        chosen = [name for name in names if name.lower().endswith(ending)]
        if chosen:
            _complete(folder, chosen)
            return tuple(os.path.join(folder, name) for name in chosen)
    return ()


def _single_files(there: set[str]) -> list[str]:
    return sorted(
        name
        for name in there
        if name.lower().endswith(MODEL_ENDINGS)
        and not _NOT_WEIGHTS.fullmatch(name)
        and not name.startswith(".")
    )


def _complete(folder: str, names: Sequence[str]) -> None:
    """model-00001-of-00003: the others, where no index names them."""
    for name in names:
        if match := _SPLIT.fullmatch(name):
            count = min(int(match[3]), 10_000)
            wanted = [f"{match[1]}-{number:05d}-of-{match[3]}.{match[4]}" for number in range(1, count + 1)]
            _there(folder, wanted, f"{count} parts")


def _shards(folder: str, index: str) -> tuple[str, ...]:
    path = os.path.join(folder, index)
    listed = read_object(path).get("weight_map")
    values = list(listed.values()) if isinstance(listed, dict) else []
    if not values or not all(isinstance(name, str) and _is_inside(name) for name in values):
        raise BadFile(path, "does not name the files of the model", _DOWNLOAD)
    names = sorted(set(values))
    return _there(folder, names, f"the {len(names)} shards that {index} names")


def _is_inside(name: str) -> bool:
    return bool(name) and not os.path.isabs(name) and ".." not in name.split("/") and "\0" not in name


def _adapter(folder: str, name: str, adapters: tuple[str, ...]) -> ModelFiles:
    """An adapter alone: with the model it was made for, where that is on this machine."""
    path = os.path.join(folder, "adapter_config.json")
    base = read_object(path).get("base_model_name_or_path") if os.path.isfile(path) else None
    if isinstance(base, str) and base:
        local = base if os.path.isdir(base) else hugging_face_snapshot(base)
        if local is not None and os.path.realpath(local) != os.path.realpath(folder):
            model = _folder(local, base)
            if model.files not in ((), adapters):
                note = f"an adapter of {base}, which is counted with it"
                return ModelFiles(name, model.files, model.config, adapters, notes=(*model.notes, note))
    note = f"an adapter alone: the model it was made for ({base or 'unknown'}) is not on this machine and comes on top"
    return ModelFiles(name, adapters, None, notes=(note,))


def _pipeline(folder: str, name: str) -> ModelFiles:
    """A pipeline of diffusers: all its models."""
    parts = [
        part
        for part, value in read_object(os.path.join(folder, "model_index.json")).items()
        if isinstance(value, list) and _is_inside(part) and os.path.isdir(os.path.join(folder, part))
    ]
    files: list[str] = []
    for part in parts:
        there = _names(os.path.join(folder, part))
        chosen = "diffusion_pytorch_model.safetensors", "model.safetensors"
        single = next((wanted for wanted in chosen if wanted in there), None)
        files += (
            [os.path.join(folder, part, single)] if single else _weights_of(os.path.join(folder, part), there)
        )
    if not files:
        raise OomproofError(f"{name}: its model_index.json names no model that is there", _DOWNLOAD, USAGE)
    return ModelFiles(
        name, tuple(files), None, notes=(f"a pipeline of {len(parts)} parts, all loaded at once",)
    )


def _no_model(folder: str, name: str, there: set[str]) -> tuple[str, str]:
    data = sorted(
        file
        for file in there
        if file.lower().endswith((".npz", ".npy", ".csv", ".jsonl", ".parquet", ".arrow"))
    )
    if data:
        named = f"{os.path.join(folder, data[0])}"
        return f"{name}: no model in this folder, but data", f"name the files: oomproof size {named}"
    if "config.json" in there:
        return f"{name}: a config.json without weights", _DOWNLOAD
    if not there:
        return f"{name}: no files in this folder", "name the folder that holds config.json and the weights"
    wanted = "config.json with *.safetensors, pytorch_model.bin or *.gguf"
    return f"{name}: no model in this folder ({len(there):,} files)", f"a model's folder holds {wanted}"


def _ollama(manifest: str, name: str) -> ModelFiles:
    model = read_manifest(manifest)
    if not model.files:
        raise BadFile(manifest, "names no model", "pull it again: ollama pull")
    return ModelFiles(name, model.files, None, model.adapters, model.context)

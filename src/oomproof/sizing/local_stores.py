"""Models that other programs keep on this machine: the Hugging Face cache and Ollama's store, found by the model's name."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from oomproof.errors import OomproofError
from oomproof.records import dataclass
from oomproof.sizing.data.source_file import BadFile
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

"""Which files a model has, wherever it is kept; what is wrong with them is one line and a hint."""

from __future__ import annotations

import json
import math
import os
import struct
from pathlib import Path
from typing import Any

import pytest
from helpers_data import npz, torch_zip
from helpers_models import SMALL_CONFIG, llama_gguf, llama_shapes, model_folder, sparse_safetensors

from oomproof.cli.main import main
from oomproof.sizing.model_files import ModelFiles, model_files
from oomproof.sizing.model_sizing import ModelSizing, size_model


def files_of(path: Path | str) -> ModelFiles:
    model = model_files(str(path))
    assert model is not None
    return model


def sized(path: Path | str) -> ModelSizing:
    return size_model(files_of(path))


def parameters(shapes: dict[str, tuple[int, ...]]) -> int:
    return sum(math.prod(shape) for shape in shapes.values())


def test_a_folder_with_one_file_and_with_shards(tmp_path: Path) -> None:
    single, parts = model_folder(tmp_path / "one"), model_folder(tmp_path / "three", shards=3)
    assert len(files_of(parts).files) == 3
    for folder in (single, parts):
        model = sized(folder)
        assert model.weights.parameters == parameters(llama_shapes()) and model.title == "LlamaForCausalLM"
        assert model.weights.by_type == {"bf16": 2 * parameters(llama_shapes())}


def test_safetensors_come_before_torchs_own_files(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "m")
    torch_zip(folder / "pytorch_model.bin", 1000)
    torch_zip(folder / "optimizer.pt", 5000)
    model = files_of(folder)
    assert [os.path.basename(path) for path in model.files] == [
        "model.safetensors"
    ] and "pytorch_model.bin" in model.notes[0]
    (folder / "model.safetensors").unlink()
    assert [os.path.basename(path) for path in files_of(folder).files] == ["pytorch_model.bin"]


def test_an_adapter_counts_with_its_model(tmp_path: Path) -> None:
    base, adapter = model_folder(tmp_path / "base"), tmp_path / "lora"
    adapter.mkdir()
    sparse_safetensors(
        adapter / "adapter_model.safetensors", {"a.lora_A.weight": (8, 64), "a.lora_B.weight": (64, 8)}, "F32"
    )
    (adapter / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(base), "r": 8}))
    model = sized(adapter)
    assert model.adapter == 4096 and model.weights.parameters == parameters(llama_shapes())
    assert model.stored.gpu.parts["adapter"] == 4096
    (adapter / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "nobody/has-this"}))
    assert "is not on this machine" in sized(adapter).notes[0]


def test_a_diffusion_pipeline_is_the_sum_of_its_models(tmp_path: Path) -> None:
    for part, name in (
        ("unet", "diffusion_pytorch_model.safetensors"),
        ("vae", "model.safetensors"),
        ("unused", "model.safetensors"),
    ):
        (tmp_path / part).mkdir()
        sparse_safetensors(tmp_path / part / name, {"w": (10, 10)})
    (tmp_path / "model_index.json").write_text(
        json.dumps({"_class_name": "X", "unet": ["diffusers", "U"], "vae": ["diffusers", "V"]})
    )
    assert sized(tmp_path).weights.bytes == 400


def test_experts_are_joined_while_they_are_loaded(tmp_path: Path) -> None:
    """Measured: a Mixtral of 357 MiB, 192 of them experts, took 200 more than other models."""
    experts = {
        f"model.layers.0.block_sparse_moe.experts.{number}.w1.weight": (128, 64) for number in range(4)
    }
    usual = sized(model_folder(tmp_path / "m", {**llama_shapes(), **experts})).loadings[0]
    assert usual.own == 4 * 128 * 64 * 2 and usual.mapped == usual.own + 2 * parameters(llama_shapes())


def test_by_its_name_in_the_hugging_face_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.delenv("HF_HOME", raising=False)
    revision, folder = "0123456789abcdef", tmp_path / "models--org--small"
    model_folder(folder / "snapshots" / revision)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(revision)
    assert sized("org/small").weights.parameters == parameters(llama_shapes())
    (folder / "refs" / "main").write_text("../../../etc")
    assert sized("org/small").name == "org/small", "the newest snapshot"


def ollama_store(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OLLAMA_MODELS", str(folder))
    blobs = folder / "blobs"
    blobs.mkdir(parents=True)
    model, params = "a" * 64, "b" * 64
    llama_gguf(blobs / f"sha256-{model}")
    (blobs / f"sha256-{params}").write_text(json.dumps({"num_ctx": 8192}))
    manifest = folder / "manifests/registry.ollama.ai/library/small/latest"
    manifest.parent.mkdir(parents=True)
    kinds = (("model", model), ("params", params), ("license", "c" * 64))
    layers = [
        {"mediaType": f"application/vnd.ollama.image.{kind}", "digest": f"sha256:{digest}"}
        for kind, digest in kinds
    ]
    manifest.write_text(json.dumps({"schemaVersion": 2, "layers": layers}))
    return manifest


def test_a_model_of_ollama(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its name, by its manifest, by its blob; its own context counts."""
    manifest = ollama_store(tmp_path / "store", monkeypatch)
    for name in ("small", "small:latest", str(manifest)):
        model = sized(name)
        assert model.weights.kind == "GGUF" and model.wanted.context == 8192
    blob = tmp_path / "store/blobs" / f"sha256-{'a' * 64}"
    assert sized(blob).weights.parameters == sized("small").weights.parameters
    blob.unlink()
    assert main(["size", "small"]) == 2


def test_a_split_gguf_is_read_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in (1, 2):
        llama_gguf(tmp_path / f"m-{number:05d}-of-00002.gguf")
    assert len(files_of(tmp_path / "m-00002-of-00002.gguf").files) == 2
    (tmp_path / "m-00001-of-00002.gguf").unlink()
    assert main(["size", str(tmp_path / "m-00002-of-00002.gguf")]) == 2
    assert "m-00001-of-00002.gguf of the parts of this GGUF is missing" in capsys.readouterr().err


def test_a_checkpoint_with_optimizer_state(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    layer = torch.nn.Linear(64, 64)
    optimizer = torch.optim.AdamW(layer.parameters())
    layer(torch.ones(1, 64)).sum().backward()
    optimizer.step()
    torch.save(
        {"model": layer.state_dict(), "optimizer": optimizer.state_dict(), "step": 3}, tmp_path / "c.pt"
    )
    torch.save(layer.bfloat16().state_dict(), tmp_path / "m.pt")
    whole, alone = sized(tmp_path / "c.pt"), sized(tmp_path / "m.pt")
    assert whole.weights.parameters == alone.weights.parameters == 64 * 65
    assert (whole.weights.bytes, whole.weights.optimizer) == (64 * 65 * 4, 64 * 65 * 8)
    assert alone.weights.by_type == {"bf16": 64 * 65 * 2} and "optimizer state" in whole.notes[0]


def answer(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Of a question that cannot be answered: one line, a hint, status 2."""
    status = main(["size", *words])
    told = capsys.readouterr()
    assert status == 2 and not told.out, (status, told)
    lines = told.err.splitlines()
    assert len(lines) == 2 and lines[0].startswith("oomproof: ") and lines[1].startswith("  hint: "), told.err
    return lines[0]


def test_folders_that_are_no_models(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    assert "no files in this folder" in answer(capsys, str(tmp_path / "empty"))
    data = tmp_path / "data"
    data.mkdir()
    npz(data / "train.npz", {})
    assert "no model in this folder, but data" in answer(capsys, str(data))
    config = tmp_path / "config"
    config.mkdir()
    (config / "config.json").write_text(json.dumps(SMALL_CONFIG))
    assert "a config.json without weights" in answer(capsys, str(config))
    many = tmp_path / "many"
    many.mkdir()
    for number in range(10_000):
        (many / f"{number}.jpg").touch()
    assert "no model in this folder (10,000 files)" in answer(capsys, str(many))
    assert "there is no such file or folder" in answer(capsys, str(tmp_path / "gone"))
    assert "there is no such file or folder" in answer(capsys, "nobody/has-this")


def test_a_shard_is_missing_or_of_another_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = model_folder(tmp_path / "m", shards=3)
    middle = folder / "model-00002-of-00003.safetensors"
    middle.unlink()
    assert "model-00002-of-00003.safetensors of the 3 shards" in answer(capsys, str(folder))
    (folder / "model.safetensors.index.json").unlink()
    assert "model-00002-of-00003.safetensors of 3 parts is missing" in answer(capsys, str(folder))
    folder = model_folder(tmp_path / "other", shards=3)
    sparse_safetensors(folder / "model-00002-of-00003.safetensors", {"w": (3, 3)})
    assert "are in none of its shards" in answer(capsys, str(folder))


HOSTILE: dict[str, Any] = {
    "empty.safetensors": b"",
    "short.safetensors": b"\x10\0\0",
    "long.safetensors": (1 << 63).to_bytes(8, "little") + b"{}",
    "cut.safetensors": (1000).to_bytes(8, "little") + b'{"w": {"dty',
    "deep.safetensors": (200_000).to_bytes(8, "little") + b"[" * 200_000,
    "negative.safetensors": b'{"w":{"dtype":"F32","shape":[-1,4],"data_offsets":[0,4]}}',
    "overlap.safetensors": json.dumps(
        {str(n): {"dtype": "U8", "shape": [64], "data_offsets": [0, 64]} for n in range(40)}
    ).encode(),
    "shape.safetensors": b'{"w":{"dtype":"F32","shape":[1099511627776,1099511627776],"data_offsets":[0,4]}}',
    "name.safetensors": json.dumps(
        {".1" * 40_000: {"dtype": "U8", "shape": [64], "data_offsets": [0, 64]}}
    ).encode(),
    "none.safetensors": b"{}",
    "version.gguf": b"GGUF" + (99).to_bytes(4, "little") + bytes(16),
    "claims.gguf": b"GGUF\x03\0\0\0" + b"\xff" * 16,
    "name.gguf": b"GGUF\x03\0\0\0" + struct.pack("<QQQ", 0, 1, 70_000) + bytes(80_000),
    "nested.gguf": b"GGUF\x03\0\0\0"
    + struct.pack("<QQQsI", 0, 1, 1, b"k", 9)
    + struct.pack("<IQ", 9, 1) * 5000,
    "empty.gguf": b"",
    "text.gguf": b"no model at all",
    "page.bin": b"<html>404 not found</html>",
    "cut.pt": b"PK\x03\x04 and nothing",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_headers(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = HOSTILE[name]
    if data[:1] == b"{":
        data = len(data).to_bytes(8, "little") + data + bytes(64)
    (tmp_path / name).write_bytes(data)
    answer(capsys, str(tmp_path / name))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[1]",
        "{",
        "[" * 100_000,
        '{"weight_map": {"w": "../../etc/passwd"}}',
        '{"weight_map": {"w": 3}}',
        '{"weight_map": []}',
        '{"weight_map": {"w": {}}}',
    ],
)
def test_a_hostile_index(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = model_folder(tmp_path / "m", shards=2)
    (folder / "model.safetensors.index.json").write_text(text)
    answer(capsys, str(folder))


def test_a_zip_with_a_name_that_is_no_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = npz(tmp_path / "m.pt", {"é/data.pkl": b""})
    path.write_bytes(path.read_bytes().replace("é".encode(), b"\xff\xfe"))
    assert "the zip is damaged" in answer(capsys, str(path))


def test_a_hostile_config(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What it claims is bounded; what it does not say is said."""
    folder = model_folder(tmp_path / "m")
    for config in (
        {"num_hidden_layers": 10**18},
        {"architectures": 3, "num_hidden_layers": [], "hidden_size": {}},
        {"layer_types": "x" * 99},
    ):
        (folder / "config.json").write_text(json.dumps({**SMALL_CONFIG, **config}))
        assert main(["size", str(folder)]) == 0, capsys.readouterr().err
    capsys.readouterr()
    (folder / "config.json").write_text("[" * 100_000)
    answer(capsys, str(folder))

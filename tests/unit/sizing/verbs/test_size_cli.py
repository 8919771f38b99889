"""`oomproof size`: what it prints and returns for models and data files."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers_data import npy
from helpers_models import LLAMA_8B, LLAMA_8B_CONFIG, llama_gguf, model_folder

from oomproof.cli.main import main
from oomproof.units import GIB, MIB


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(model_folder(tmp_path_factory.mktemp("models") / "llama-8b", LLAMA_8B, LLAMA_8B_CONFIG, 4))


def told(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["size", *words]) == 0, capsys.readouterr().err
    return " ".join(capsys.readouterr().out.split())


def as_json(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main(["size", "--json", *words]) == 0, capsys.readouterr().err
    return dict(json.loads(capsys.readouterr().out))


def test_a_model_on_another_machine(llama: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = told(capsys, llama, "--gpu", "12G", "--ram", "16G")
    assert "8.0 billion parameters, bf16, 15.0 GiB in 4 files (safetensors)" in text
    assert "KV cache 512 MiB in fp16: context of 4,096 tokens, batch 1 (128 KiB a token)" in text
    assert "on a 12.0 GiB card (with nothing else on it): short by 4.7 GiB; as int8 it would fit" in text
    assert "does not fit in 16.0 GiB of RAM" in text
    assert "oomproof check --together llama-8b=" in text, "beside another job"


def test_what_fits_here_is_started_with_its_need(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = told(capsys, str(model_folder(tmp_path / "small")))
    assert "fits in this machine's RAM" in text and "oomproof run --need" in text


def test_a_card_alone(llama: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = told(capsys, llama, "--gpu", "24G")
    assert (
        "fits on a 24.0 GiB card" in text and "Next: on that machine ask: oomproof check --gpu-need" in text
    )


def test_json(llama: str, capsys: pytest.CaptureFixture[str]) -> None:
    value = as_json(capsys, llama, "--gpu", "12G", "--batch", "2", "--context", "1000", "--kv-type", "q8_0")
    assert value["schema"] == 1 and value["refused"] is None and value["peak"] == ""
    for place in ("gpu", "host"):
        estimate = value[place]
        assert estimate["low_bytes"] <= estimate["expected_bytes"] <= estimate["high_bytes"]
        assert sum(estimate["parts"].values()) == estimate["expected_bytes"]
    assert {phase["phase"] for phase in value["phases"]} == {"load", "generate"}
    (model,) = value["models"]
    assert model["parameters"] == 8_030_261_248 and model["weights_bytes"] == 2 * model["parameters"]
    assert model["kv_cache_bytes"] == 2000 * (128 << 10) * 34 // 64
    assert [judged["status"] for judged in value["verdicts"]] == ["never"]


def test_types_of_the_cache_follow_the_model(llama: str, capsys: pytest.CaptureFixture[str]) -> None:
    variants = {variant["type"]: variant for variant in as_json(capsys, llama)["models"][0]["variants"]}
    assert variants["fp32"]["gpu"]["parts"]["KV cache"] == 2 * variants["bf16"]["gpu"]["parts"]["KV cache"]


def test_data_files_and_models_together(
    llama: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x.npy").write_bytes(npy((1000, 250)))
    value = as_json(capsys, llama, str(tmp_path / "x.npy"))
    alone = as_json(capsys, llama)
    assert value["host"]["expected_bytes"] == alone["host"]["expected_bytes"] + 1_000_000
    assert value["gpu"]["expected_bytes"] == alone["gpu"]["expected_bytes"], "data files are loaded into RAM"
    text = told(capsys, str(tmp_path / "x.npy"), "--ram", "32G")
    assert "in RAM 977 KiB at the peak" in text and "fits in 32.0 GiB of RAM" in text
    assert "check --need 301M" in text, "the process that loads it takes memory too"
    assert as_json(capsys, str(tmp_path / "x.npy"))["host"]["parts"]["process"] > 100 * MIB


def test_a_gguf(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = told(capsys, str(llama_gguf(tmp_path / "m.gguf")), "--gpu", "24G", "--context", "8192")
    assert (
        "(GGUF)" in text and "q4_k, as stored" in text and "KV cache 64 MiB in fp16: context of 8,192" in text
    )
    assert "llama.cpp, which maps it" in text and "training" not in text


def test_a_lone_file_without_a_config(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = model_folder(tmp_path / "m")
    (folder / "config.json").unlink()
    text = told(capsys, str(folder / "model.safetensors"), "--gpu", "1G")
    assert "no config.json beside it" in text and "load_file" in text


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["x", "--context", "0"],
        ["x", "--batch", "many"],
        ["x", "--gpu", "large"],
        ["x", "--kv-type", "q9"],
    ],
)
def test_questions_that_cannot_be_read(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["size", *words]) == 2 and "hint: " in capsys.readouterr().err


def test_the_need_that_is_offered_covers_the_estimate(llama: str, capsys: pytest.CaptureFixture[str]) -> None:
    from oomproof.sizing.screens.size_report import typed
    from oomproof.units import parse_size

    for size in (1, 5 * MIB + 1, 3 * GIB + 7, 16 * GIB + 3, 2000 * GIB + 1):
        assert size <= parse_size(typed(size)) < size * 1.03 + MIB


@pytest.mark.parametrize("verb", ["size", "fit", "rehearse", "calibrate", "data"])
def test_a_verb_is_imported_alone(verb: str) -> None:
    """Whichever of its modules comes first: a circle among them is seen only in a Python that has none of them."""
    subprocess.run([sys.executable, "-c", f"import oomproof.sizing.verbs.{verb}"], check=True, timeout=60)

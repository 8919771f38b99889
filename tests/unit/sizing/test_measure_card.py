"""The program that measures on a card, from its start to its last line, with the CPU in the card's place."""

from __future__ import annotations

import json
import types
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the extra [ml] is not installed")

from torch.overrides import TorchFunctionMode  # noqa: E402

from oomproof.sizing.calibrated_card import from_json, signature_key  # noqa: E402
from oomproof.sizing.calibration import tensor  # noqa: E402
from oomproof.sizing.card_measuring import measure_card, measured_operations  # noqa: E402

GIB = 1 << 30
UUID = "1234-abcd"


class CpuForCuda(TorchFunctionMode):  # type: ignore[misc]
    def __torch_function__(self, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if kwargs.get("device") is not None:
            kwargs["device"] = "cpu"
        if func is torch.Tensor.to:
            args = [args[0], *(torch.device("cpu") if _is_cuda(value) else value for value in args[1:])]
        return func(*args, **kwargs)


def _is_cuda(value: Any) -> bool:
    return isinstance(value, (str, torch.device)) and str(value) == "cuda"


@pytest.fixture
def a_card(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures of a driver; the operations themselves are computed."""
    mark = {"action": "free_completed", "addr": 1, "size": measured_operations._MARK}
    taken = [
        mark,
        {"action": "alloc", "addr": 9, "size": 700},
        {"action": "free_completed", "addr": 9, "size": 700},
    ]
    answers: dict[str, Any] = {
        "init": None, "synchronize": None, "reset_peak_memory_stats": None, "empty_cache": None, "memory_allocated": 0,
        "max_memory_allocated": 700, "memory_reserved": 0, "mem_get_info": (100 * GIB, 140 * GIB), "current_device": 0,
        "set_per_process_memory_fraction": None, "get_device_capability": (9, 0),
        "get_device_properties": types.SimpleNamespace(name="NVIDIA H200", major=9, minor=0, uuid=UUID),
    }  # fmt: skip
    for name, answer in answers.items():
        monkeypatch.setattr(torch.cuda, name, lambda *given, _answer=answer, **named: _answer)
    monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", lambda *given, **named: None)
    monkeypatch.setattr(torch.cuda.memory, "_snapshot", lambda *given: {"device_traces": [taken]})
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    used = iter(range(615 << 20, 2 << 30, 100 << 20))
    monkeypatch.setattr(measure_card.CardUsage, "used", lambda self: {UUID: next(used)})


def measure(folder: Path, **job: Any) -> list[dict[str, Any]]:
    (folder / "job").write_text(json.dumps({"seconds": 60, "signatures": [], **job}))
    with CpuForCuda():
        measure_card.main(str(folder / "job"), str(folder / "results"))
    return [json.loads(line) for line in (folder / "results").read_text().splitlines()]


def product(rows: int) -> dict[str, Any]:
    args = [tensor("float32", (rows, 8)), tensor("float32", (8, 4))]
    return {"op": "aten.mm.default", "args": args, "kwargs": {}, "flags": {"tf32": True}}


def test_constants_and_operations(a_card: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured_operations, "DEVICE", "cpu")
    too_large = product(1 << 34)
    odd = {
        "op": "aten.mm.default",
        "args": [tensor("float32", (3, 3)), tensor("float32", (4, 4))],
        "kwargs": {},
        "flags": {},
    }
    lines = measure(tmp_path, constants=True, signatures=[product(16), too_large, odd, product(32)])
    card = next(line["card"] for line in lines if "card" in line)
    assert card["name"] == "NVIDIA H200" and card["torch"] == torch.__version__ and card["total"] == 140 * GIB
    constants = next(line for line in lines if "constants" in line)
    assert constants["others"] == 615 << 20
    assert [constants["constants"][name] >> 20 for name in ("context", "with_matrices", "with_attention", "with_convolutions")] == [
        100, 200, 300, 400,
    ]  # fmt: skip
    done = {line["done"]: line for line in lines if "done" in line}
    assert done[0]["measured"] == done[3]["measured"] | {"results": 16 * 4 * 4}
    assert done[0]["measured"]["extra"] == 700 and done[0]["measured"]["later"] == [700, -1]
    assert "operands take" in done[1]["large"] and "RuntimeError" in done[2]["error"]
    assert lines[-1] == {"end": True}
    found = {"schema": 1, "card": card, "constants": constants["constants"], "signatures": {signature_key(product(16)): done[0]["measured"]}}  # fmt: skip
    read = from_json(found)
    assert read is not None and len(read.signatures) == 1 and read.context is not None


def test_time_runs_out(a_card: None, tmp_path: Path) -> None:
    lines = measure(tmp_path, signatures=[product(16)], seconds=-1)
    assert {"late": 0} in lines and not any("done" in line for line in lines)


def test_a_card_that_others_hold(a_card: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def busy() -> None:
        raise RuntimeError("CUDA error: all CUDA-capable devices are busy or unavailable\nmore")

    monkeypatch.setattr(torch.cuda, "init", busy)
    (line,) = measure(tmp_path)
    assert line["failed"] == "busy" and "\n" not in line["why"]


def test_a_driver_that_is_not_there() -> None:
    assert isinstance(measure_card.CardUsage().used(), dict)
    assert measure_card.short("GPU-AB-12") == measure_card.short("ab-12")

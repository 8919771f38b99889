"""Sizes timm models without a GPU and compares with peaks measured on an A100 (the public set of GPUMemNet).

    python bench/sizing/timm_peaks.py tuning 60 > rows.jsonl
    python bench/sizing/timm_peaks.py reporting 60 80 > rows.jsonl       sixty behind the first eighty
    python bench/sizing/timm_peaks.py reporting 60 80 --list             their names, batches and measured peaks alone

Needs timm beside torch. Each model is trained for three steps of SGD with momentum in float32 on the virtual GPU, in a process
of its own. A row has the measured peak, ours, the live peak and the raw peak of fake tensors on the CPU (no allocator, no
context), in MiB; the last line is the summary: median and 90th percentile of the relative errors.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "src"))
sys.path.insert(0, str(Path(__file__).parent))

import timm_split

MIB = 1 << 20


def train(name: str, batch: int) -> None:
    import timm
    import torch

    torch.backends.cudnn.benchmark = True  # as timm's own script does
    model = timm.create_model(name, pretrained=False).cuda().train()
    size = timm.data.resolve_data_config({}, model=model)["input_size"]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, nesterov=True, weight_decay=2e-5)
    loss = torch.nn.CrossEntropyLoss(label_smoothing=0.1)
    for _ in range(3):
        images = torch.empty(batch, *size, device="cuda", dtype=torch.uint8).float()
        target = torch.empty(batch, device="cuda", dtype=torch.int64)
        output = model(images)
        output = output[0] if isinstance(output, (tuple, list)) else output
        loss(output, target).backward()
        optimizer.step()
        optimizer.zero_grad()


def measure(folder: str, name: str, batch: int) -> dict[str, object]:
    from oomproof.sizing import virtual_run
    from oomproof.sizing.card_constants import Card, Constant
    from oomproof.sizing.virtual_gpu import virtual_start
    from oomproof.sizing.virtual_gpu.child_results import VirtualResult

    before = set(os.listdir(folder))
    started = time.monotonic()
    child = os.fork()
    if child == 0:
        own = virtual_start._own
        own["redirect"].active, own["pid"] = True, os.getpid()
        status = 1
        try:
            train(name, batch)
            virtual_start._write(folder, virtual_start._result("done"))
            status = 0
        except BaseException as error:
            print(f"{name}: {type(error).__name__}: {str(error)[:300]}", file=sys.stderr)
        os._exit(status)
    os.waitpid(child, 0)
    made = [entry for entry in set(os.listdir(folder)) - before if entry.endswith(".json")]
    if not made:
        return {"failed": True}
    path = os.path.join(folder, made[0])
    result = VirtualResult.from_json(json.loads(Path(path).read_text()))
    run = virtual_run.load(path.removesuffix(".json"), result)
    # the least that 45 models of the table took beyond the simulated allocator
    card = Card(Constant(1500 << 20, 1680 << 20, 1800 << 20))
    gpu, _ = virtual_run.gpu_estimate(run, card=card)
    replay = virtual_run.replay(run)

    for entry in set(os.listdir(folder)) - before:
        os.unlink(os.path.join(folder, entry))
    return {
        "expected": gpu.expected // MIB, "low": gpu.low // MIB, "high": gpu.high // MIB, "live": replay.allocated // MIB,
        "reserved": replay.reserved // MIB, "raw": run.result.peak["gpu"] // MIB, "parts": {key: value // MIB for key, value in gpu.parts.items()},
        "seconds": round(time.monotonic() - started, 1),
    }  # fmt: skip


def summary(rows: list[dict[str, object]]) -> dict[str, object]:
    told: dict[str, object] = {"models": len(rows)}
    for name in ("expected", "reserved", "live", "raw"):
        errors = sorted(abs(row[name] - row["measured"]) / row["measured"] for row in rows)  # type: ignore[operator]
        told[name] = {
            "median": round(statistics.median(errors), 4),
            "p90": round(errors[int(len(errors) * 0.9)], 4),
            "p95": round(errors[int(len(errors) * 0.95)], 4),
        }
    told["above high"] = sum(row["measured"] > row["high"] for row in rows)  # type: ignore[operator]
    told["below low"] = sum(row["measured"] < row["low"] for row in rows)  # type: ignore[operator]
    return told


def main() -> None:
    given = [argument for argument in sys.argv[1:] if argument != "--list"]
    half, count, first = given[0], int(given[1]), int(given[2]) if len(given) > 2 else 0
    if "--list" in sys.argv:
        for model, batch, measured in timm_split.sample(half, count, first):
            print(f"{model} {batch} {measured}")
        return
    import torch

    for name in ("nms", "qnms"):  # torchvision built for a card does not load its own here
        torch.library.define(
            f"torchvision::{name}", "(Tensor dets, Tensor scores, float threshold) -> Tensor"
        )
    import timm  # noqa: F401

    from oomproof.sizing.virtual_gpu import virtual_start

    folder = tempfile.mkdtemp()
    os.environ[virtual_start.LIMIT] = "1000000"
    virtual_start._own["error"] = ""
    virtual_start._install(folder)
    own = virtual_start._own
    own["flow"].finish = lambda reason: None
    own["flow"].check = lambda: None
    rows = []
    for model, batch, measured in timm_split.sample(half, count, first):
        row = {"model": model, "batch": batch, "measured": measured, **measure(folder, model, batch)}
        print(json.dumps(row), flush=True)
        if "failed" not in row:
            rows.append(row)
    print(json.dumps({"half": half, **summary(rows)}))
    os._exit(0)


if __name__ == "__main__":
    main()

"""GPT-2 small against what an H200 took: sequence 512, AdamW, three steps, PyTorch 2.11 there. Needs transformers; no GPU.

    python bench/sizing/gpt2_h200.py > rows.jsonl

Each row: batch, precision, allocated, reserved and device memory in MiB, measured and ours.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "src"))

from oomproof.sizing import script_sizing, virtual_run

MIB = 1 << 20
MEASURED = {  # batch → max_memory_allocated, max_memory_reserved, device memory used
    "float32": {1: (2450, 2874, 3625), 2: (3206, 3356, 4107), 4: (4892, 5194, 5945), 8: (8288, 8972, 9723),
                16: (15046, 15774, 16525), 32: (28614, 30938, 31689), 64: (55713, 61270, 62021)},
    "bfloat16": {1: (2455, 2842, 3611), 2: (3176, 3386, 4155), 4: (4564, 5030, 5801), 8: (7363, 7740, 8511),
                 16: (12979, 14598, 15369), 32: (24220, 25130, 25901), 64: (46706, 49344, 50115)},
}  # fmt: skip
SCRIPT = """
import sys, torch
from transformers import GPT2Config, GPT2LMHeadModel
batch, low = int(sys.argv[1]), sys.argv[2] == "bfloat16"
model = GPT2LMHeadModel(GPT2Config()).cuda().train()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for _ in range(3):
    ids = torch.randint(0, 50257, (batch, 512), device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16, enabled=low):
        loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
"""


def main() -> None:
    errors = []
    for precision, rows in MEASURED.items():
        for batch, measured in rows.items():
            with tempfile.TemporaryDirectory() as folder:
                command = [sys.executable, "-W", "ignore", "-c", SCRIPT, str(batch), precision]
                script_sizing._run(command, folder, 120.0, None, True)
                run = virtual_run.read(folder)
            assert run is not None, "no answer"
            replay, (gpu, _) = virtual_run.replay(run), virtual_run.gpu_estimate(run)
            ours = (replay.allocated // MIB, replay.reserved // MIB, gpu.expected // MIB)
            errors.append(abs(ours[2] - measured[2]) / measured[2])
            row = {"batch": batch, "precision": precision, "measured": measured, "ours": ours, "low": gpu.low // MIB,
                   "high": gpu.high // MIB, "error": round((ours[2] - measured[2]) / measured[2], 4)}  # fmt: skip
            print(json.dumps(row), flush=True)
    print(json.dumps({"median": round(statistics.median(errors), 4), "worst": round(max(errors), 4)}))


if __name__ == "__main__":
    main()

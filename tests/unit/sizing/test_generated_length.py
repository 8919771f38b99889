"""A generation that is cut short hands back as many tokens as it would have made."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from helpers_sizing import on_virtual_gpu

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")

from oomproof.sizing.virtual_gpu.training_flow import as_long  # noqa: E402

SCRIPT = """
import torch, transformers
config = transformers.GPT2Config(n_layer=1, n_embd=32, n_head=2, vocab_size=100, bos_token_id=0, eos_token_id=1, pad_token_id=0)
model = transformers.GPT2LMHeadModel(config).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    with torch.no_grad():
        ids = model.generate(torch.ones(2, 8, dtype=torch.long).cuda(), max_new_tokens=50, min_new_tokens=50, do_sample=True)
    print("made", *ids.shape, flush=True)
    model(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_a_script_trains_on_all_that_it_would_have_generated(tmp_path: Path) -> None:
    _, printed = on_virtual_gpu(SCRIPT, tmp_path)
    assert printed.splitlines()[0] == "made 2 58"


def test_what_is_no_row_of_tokens_stays_as_it_is() -> None:
    assert as_long(torch.ones(2, 3), 4).shape == (2, 7)
    assert as_long(torch.ones(3), 4).shape == (3,)
    assert as_long(SimpleNamespace(sequences=torch.ones(2, 3)), 4).sequences.shape == (2, 7)

"""The largest batch of a loader is what a size is about, in whichever step it would come."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import pytest
from helpers_sizing import on_virtual_gpu

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from oomproof.sizing.virtual_gpu.child_results import Epoch  # noqa: E402
from oomproof.sizing.virtual_gpu.largest_batches import _BatchPickler, larger_batch  # noqa: E402
from oomproof.sizing.virtual_gpu.step_limits import WHOLE_EPOCH  # noqa: E402

SCRIPT = """
import torch
from torch.utils.data import DataLoader, Dataset

class Texts(Dataset):
    def __init__(self, longest):
        self.lengths = [20 + index % 30 for index in range(48)]
        self.lengths[33] = longest
    def __len__(self):
        return len(self.lengths)
    def __getitem__(self, index):
        return torch.full((self.lengths[index],), index % 100)

def padded(samples):
    return torch.nn.utils.rnn.pad_sequence(samples, batch_first=True)

seen = []
model = torch.nn.Sequential(torch.nn.Embedding(100, 64), torch.nn.Linear(64, 64)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
order = torch.Generator().manual_seed(0)  # the longest is in the ninth batch
training = DataLoader(Texts(900), 4, shuffle=True, generator=order, collate_fn=padded, num_workers=2)
evaluation = DataLoader(Texts(700), 8, collate_fn=padded)
for epoch in range(3):
    for batch in training:
        print("train", *batch.shape, flush=True)
        model(batch.cuda()).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    with torch.no_grad():
        for batch in evaluation:
            print("eval", *batch.shape, flush=True)
            model(batch.cuda())
"""


def test_an_epoch_of_many_shapes_is_followed_and_the_largest_comes_last_and_first_in_an_evaluation(
    tmp_path: Path,
) -> None:
    run, printed = on_virtual_gpu(SCRIPT, tmp_path, seconds=600.0)  # the time does not matter
    lines = printed.splitlines()
    trained = [line for line in lines if line.startswith("train")]
    assert trained[11] == "train 4 900" and run.result.steps >= 12
    assert run.result.many_shapes == Epoch(12, 12, "seeded")
    assert next(line for line in lines if line.startswith("eval")) == "eval 8 700"
    notes = " ".join(run.result.notes)
    assert "the largest batch counts: int64 [4, 900]" in notes and "int64 [8, 700]" in notes


def test_where_three_steps_are_enough_it_comes_in_the_third(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(WHOLE_EPOCH, "")
    run, printed = on_virtual_gpu(SCRIPT, tmp_path)
    trained = [line for line in printed.splitlines() if line.startswith("train")]
    assert trained[2] == "train 4 900" and "train 4 900" not in trained[:2]
    assert not run.result.many_shapes


def test_batches_of_one_shape_are_followed_for_three_steps(tmp_path: Path) -> None:
    alike = SCRIPT.replace("20 + index % 30", "20").replace("= longest", "= 20")
    run, printed = on_virtual_gpu(alike, tmp_path)
    first = printed.split("eval")[0]
    assert first.count("train 4 20") <= 4 and not run.result.many_shapes


class _Loader:
    """What is asked of an iterator of DataLoader."""

    def __init__(self, samples: list[Any], batch: int) -> None:
        from torch.utils.data import DataLoader

        iterator = iter(DataLoader(samples, batch, shuffle=True, collate_fn=list))  # type: ignore[arg-type]
        self.__dict__.update(iterator.__dict__)


def test_samples_of_one_size_are_looked_at_briefly() -> None:
    loader = _Loader([torch.zeros(5) for _ in range(10_000)], 4)
    found, batch = larger_batch(loader, 60.0)
    assert batch is None and found.looked < 200


def test_the_largest_samples_may_meet() -> None:
    loader = _Loader([torch.zeros(index) for index in range(1, 300)], 4)
    _, batch = larger_batch(loader, 60.0)
    assert [len(sample) for sample in batch] == [299, 298, 297, 296]


def test_a_loader_without_numbers_has_none() -> None:
    class Stream(torch.utils.data.IterableDataset[Any]):
        def __iter__(self) -> Any:
            return iter([torch.zeros(1)])

    iterator = iter(torch.utils.data.DataLoader(Stream()))
    assert larger_batch(iterator, 1.0)[1] is None


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(6).reshape(2, 3), torch.tensor(1.5, dtype=torch.bfloat16), torch.empty(0, 4),
        torch.ones(3, 4).t(), torch.tensor([True, False]),
    ],
)  # fmt: skip
def test_a_batch_passes_through_a_pipe(tensor: Any) -> None:
    file = io.BytesIO()
    _BatchPickler(file).dump({"x": [tensor], "name": "a"})
    back = pickle.loads(file.getvalue())
    assert back["name"] == "a"
    assert torch.equal(back["x"][0], tensor) and back["x"][0].dtype == tensor.dtype

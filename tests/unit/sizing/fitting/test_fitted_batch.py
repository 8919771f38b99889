"""The batch a training is given: its arithmetic, its state in a checkpoint, and gradients that stay the same when it is split."""

from __future__ import annotations

import json
from typing import Any

import pytest

from oomproof.errors import OomproofError
from oomproof.sizing.fitting.fitted_batch import Asked, Batch, remembered, samples_of

torch = pytest.importorskip("torch", reason="the extra [ml] is not installed")


def test_the_effective_batch_is_kept() -> None:
    asked = Asked(effective=512, world=2)
    asked.check()
    assert asked.sizes() == [1, 2, 4, 8, 16, 32, 64, 128, 256]
    batch = asked.batch(32)
    assert (batch.size, batch.accum, batch.world, batch.effective) == (32, 8, 2, 512)
    assert str(batch) == "batch 32 × 8 passes × 2 devices = 512"
    assert Asked(most=100).sizes() is None and Asked().batch(25).effective == 25
    assert Asked(effective=512, most=20).sizes() == [1, 2, 4, 8, 16]


def test_an_effective_batch_that_splits_badly_says_so() -> None:
    batch = Asked(effective=514).batch(2, most=25)
    assert batch.accum == 257 and "an effective batch of 525 would take 25" in batch.notes[0]
    assert Asked(effective=512).batch(16, most=19).notes == ()


@pytest.mark.parametrize(
    "asked",
    [Asked(effective=0), Asked(effective=-4), Asked(effective=True), Asked(most=0), Asked(effective=2.5)],
)  # type: ignore[arg-type]
def test_what_is_no_batch(asked: Asked) -> None:
    with pytest.raises(OomproofError, match="is no batch"):
        asked.check()


def test_devices_that_cannot_share_it() -> None:
    with pytest.raises(OomproofError, match="512 cannot be shared by 3 devices evenly") as raised:
        Asked(effective=512, world=3).check()
    assert "513" in raised.value.hint


def test_a_probe_makes_two_passes_where_more_are_meant() -> None:
    assert Asked(effective=512).probe(8).accum == 2 and Asked(effective=512).probe(512).accum == 1
    assert Asked().probe(8).accum == 1 and Asked().probe(8).probing


# -- the state ---------------------------------------------------------------------------------------------


def test_the_state_is_plain_numbers() -> None:
    state = Asked(effective=512).batch(16, need=3 << 30, capacity=4 << 30).state_dict()
    assert json.loads(json.dumps(state)) == {
        "size": 16, "effective": 512, "world": 1, "need": 3 << 30, "capacity": 4 << 30,
    }  # fmt: skip
    assert remembered(state, Asked(effective=512), 4 << 30) == (16, "")


def test_a_state_that_no_longer_holds_says_why() -> None:
    state = {"size": 16, "effective": 512, "world": 1, "need": 3 << 30}
    assert remembered(state, Asked(effective=512), 2 << 30) == (
        None, "the checkpoint's batch of 16 needs 3.0 GiB, and there are 2.0 GiB here",
    )  # fmt: skip
    assert remembered(state, Asked(effective=510), None) == (
        None,
        "the checkpoint's batch of 16 does not divide 510",
    )
    assert remembered(state, Asked(most=8), None)[0] is None
    size, note = remembered(state, Asked(effective=1024), None)
    assert size == 16 and "changes from 512 to 1024" in note


def test_on_fewer_devices_the_same_effective_batch_takes_more_passes() -> None:
    state = Asked(effective=512, world=4).batch(16).state_dict()
    assert remembered(state, Asked(effective=512, world=1), None) == (16, "")
    assert Asked(effective=512, world=1).batch(16).accum == 32


@pytest.mark.parametrize("state", [{}, {"size": 0}, {"size": "16"}, {"size": True}, [16], None])
def test_what_is_no_state(state: Any) -> None:
    with pytest.raises(OomproofError, match="no state of a fitted batch"):
        remembered(state, Asked(), None)


def test_a_settled_batch_takes_no_other_state() -> None:
    batch = Batch(16)
    batch.load_state_dict({"size": 16})
    with pytest.raises(OomproofError, match="this batch is of 16, the checkpoint's of 8"):
        batch.load_state_dict({"size": 8})


# -- gradients ---------------------------------------------------------------------------------------------

PADDING = -100


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(50, 32)
        self.norm = torch.nn.LayerNorm(32)
        self.out = torch.nn.Linear(32, 50)

    def forward(self, tokens: Any) -> Any:
        return self.out(self.norm(self.table(tokens)))


def mean_loss(model: Any, piece: tuple[Any, Any]) -> Any:
    """Of the labels that count, as transformers and torch have it."""
    tokens, labels = piece
    return torch.nn.functional.cross_entropy(
        model(tokens).flatten(0, 1), labels.flatten(), ignore_index=PADDING
    )


def samples(count: int, unequal: bool) -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, 50, (count, 24), generator=generator)
    labels = torch.randint(0, 50, (count, 24), generator=generator)
    if unequal:
        lengths = torch.randint(1, 25, (count, 1), generator=generator)
        labels[torch.arange(24) >= lengths] = PADDING
    return tokens, labels


def updated(pieces: list[tuple[tuple[Any, Any], float]]) -> list[Any]:
    """The weights after one step of AdamW over these pieces."""
    torch.manual_seed(0)
    model = Model().double()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for piece, share in pieces:
        (mean_loss(model, piece) * share).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
    return [parameter.detach() for parameter in model.parameters()]


def loader(data: tuple[Any, Any], size: int) -> Any:
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*data), batch_size=size)


def counted(piece: tuple[Any, Any]) -> Any:
    return (piece[1] != PADDING).sum()


def assert_equal(first: list[Any], second: list[Any]) -> None:
    for before, after in zip(first, second, strict=True):
        torch.testing.assert_close(before, after, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("size", [1, 4, 16])
@pytest.mark.parametrize("unequal", [False, True])
def test_a_step_in_pieces_is_the_step_in_one(size: int, unequal: bool) -> None:
    """Token means over unequal lengths too, with gradient clipping: the same weights to rounding."""
    data = samples(32, unequal)
    whole = updated([(data, 1.0)])
    batch = Asked(effective=32).batch(size)
    (group,) = batch.groups(loader(data, size), count=counted)
    assert len(group) == batch.accum and sum(share for _, share in group) == pytest.approx(1)
    assert_equal(whole, updated(group))


def test_scale_is_right_where_pieces_count_alike_and_only_there() -> None:
    batch = Asked(effective=32).batch(8)
    for unequal in (False, True):
        data = samples(32, unequal)
        whole = updated([(data, 1.0)])
        pieces = [(piece, float(batch.scale(torch.tensor(1.0)))) for piece in loader(data, 8)]
        if unequal:
            with pytest.raises(AssertionError):
                assert_equal(whole, updated(pieces))
        else:
            assert_equal(whole, updated(pieces))


def test_the_last_step_of_an_epoch_is_smaller() -> None:
    data = samples(50, unequal=False)
    groups = list(Asked(effective=32).batch(8).groups(loader(data, 8)))
    assert [len(group) for group in groups] == [4, 3], "8 + 8 + 2 samples in the last"
    rest = tuple(tensor[32:] for tensor in data)
    assert_equal(updated([(rest, 1.0)]), updated(groups[1]))  # type: ignore[list-item]


def test_nothing_to_count_in_a_whole_step() -> None:
    data = samples(8, unequal=False)
    data[1][:] = PADDING
    (group,) = Asked(effective=8).batch(4).groups(loader(data, 4), count=counted)
    assert [share for _, share in group] == [0.0, 0.0]


def test_samples_of_what_loaders_yield() -> None:
    rows = torch.zeros(3, 2)
    for piece in (
        rows,
        (rows, rows),
        [rows],
        {"input_ids": rows},
        ["a", "b", "c"],
        {"text": ["a", "b", "c"]},
    ):
        assert samples_of(piece) == 3
    with pytest.raises(OomproofError, match="cannot count the samples of a object"):
        samples_of(object())

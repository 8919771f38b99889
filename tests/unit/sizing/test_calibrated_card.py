"""A calibrated card's file: what makes it another card's, what is damaged is not there, and what is joined."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from oomproof.errors import OomproofError
from oomproof.sizing import calibrated_card
from oomproof.sizing.calibrated_card import CalibratedCard, signature_key
from oomproof.sizing.calibration import common_operations
from oomproof.sizing.card_constants import ANY_CARD

MIB = 1 << 20
FACTS = {"name": "NVIDIA H200", "capability": "9.0", "driver": "570.1", "torch": "2.11.0+cu128", "cuda": "12.8", "cudnn": "91002", "total": 140 << 30}  # fmt: skip
CONSTANTS = {"context": 470 * MIB, "with_matrices": 750 * MIB, "with_convolutions": 768 * MIB}


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def a_card(**changed: Any) -> CalibratedCard:
    return CalibratedCard({**FACTS, **changed}, dict(CONSTANTS))


def test_it_comes_back_as_it_was_kept() -> None:
    first, second = common_operations()[:2]
    card = a_card()
    card.signatures[signature_key(first)] = {"extra": 5, "later": [5, -1], "first": [7, -1, 0]}
    card.skipped[signature_key(second)] = "too large"
    path = calibrated_card.store(card)
    read = calibrated_card.read(path)
    assert read is not None and read.as_json() == card.as_json()
    assert calibrated_card.find("NVIDIA H200", "570.1", "2.11.0+cu128") is not None
    assert calibrated_card.find("NVIDIA H200", "570.2", "2.11.0+cu128") is None
    assert read.missing([first, second]) == [] and read.missing(common_operations()[2:3])


@pytest.mark.parametrize("name", ["name", "capability", "driver", "torch", "cudnn"])
def test_another_card_driver_or_torch_has_a_file_of_its_own(name: str) -> None:
    assert calibrated_card.store(a_card()) != calibrated_card.store(a_card(**{name: "another"}))
    assert len(calibrated_card.kept()) == 2


def test_what_was_measured_later_is_joined() -> None:
    first, second = (signature_key(signature) for signature in common_operations()[:2])
    before, after = a_card(), a_card()
    before.signatures[first], before.skipped[second] = {"extra": 1, "later": [1, -1]}, "too large"
    after.signatures[second], after.constants = {"extra": 2, "later": [2, -1]}, {}
    calibrated_card.store(before)
    read = calibrated_card.read(calibrated_card.store(after))
    assert read is not None
    assert read.signatures.keys() == {first, second} and read.constants == CONSTANTS and not read.skipped


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"schema": 2, "card": {}}', '{"schema": 1, "card": 3}', "\0\0"]
)
def test_a_damaged_file_is_not_there(text: str) -> None:
    path = calibrated_card.store(a_card())
    path.write_text(text)
    assert calibrated_card.read(path) is None and calibrated_card.kept() == {}
    calibrated_card.store(a_card())
    assert len(calibrated_card.kept()) == 1


@pytest.mark.parametrize(
    "later", [[5], [-1], [5, -1, -1], [5, -2], ["5", -1], [True, -1], [1 << 60, -1], None]
)
def test_a_measurement_that_cannot_be_is_left_out(later: Any) -> None:
    value = a_card().as_json()
    value["signatures"] = {"bad": {"extra": 5, "later": later}, "good": {"extra": 5, "later": [5, -1]}}
    value["constants"]["context"] = -3
    read = calibrated_card.from_json(json.loads(json.dumps(value)))
    assert read is not None and list(read.signatures) == ["good"] and "context" not in read.constants


def test_the_context_is_narrow_where_it_was_measured() -> None:
    context = a_card().card(ANY_CARD).context
    assert context.usual == 768 * MIB and context.high - context.low < 100 * MIB
    assert CalibratedCard(FACTS).card(ANY_CARD).context is ANY_CARD.context


def test_a_card_is_named_by_file_or_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calibrated_card.store(a_card())
    calibrated_card.write(tmp_path / "elsewhere.json", a_card(name="NVIDIA A100"))
    assert calibrated_card.named(str(tmp_path / "elsewhere.json")).name == "NVIDIA A100"
    assert calibrated_card.named("h200").name == calibrated_card.named("NVIDIA H200").name == "NVIDIA H200"
    monkeypatch.chdir(tmp_path)
    Path("broken.json").write_text("{")
    for word, why in (
        ("missing.json", "no such file"),
        ("broken.json", "damaged"),
        ("b200", "calibrated here: NVIDIA H200"),
    ):
        with pytest.raises(OomproofError) as raised:
            calibrated_card.named(word)
        assert why in str(raised.value) and raised.value.status == 2

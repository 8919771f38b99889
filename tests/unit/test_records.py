"""Our dataclasses behave as the standard library's do."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from pathlib import Path

import pytest

from oomproof import records


def made(module, **options):
    """The same class by either module."""

    @module.dataclass(**options)
    class Sample:
        """What it is."""

        name: str
        size: int = 3
        parts: list[int] = module.field(default_factory=list)
        event: str | None = module.field(default="none")

        def twice(self) -> int:
            return self.size * 2

    return Sample


BOTH = pytest.mark.parametrize("module", [records, dataclasses])
OPTIONS = pytest.mark.parametrize(
    "options", [{}, {"frozen": True}, {"slots": True}, {"frozen": True, "slots": True}]
)


@BOTH
@OPTIONS
def test_a_record_as_the_standard_library_makes_it(module, options):
    kind = made(module, **options)
    one = kind("a", parts=[1])
    assert (one.name, one.size, one.parts, one.event, one.twice()) == ("a", 3, [1], "none", 6)
    assert one == kind("a", 3, [1], "none") and one != kind("b", 3, [1]) and one != ("a", 3, [1], "none")
    assert repr(one).endswith("Sample(name='a', size=3, parts=[1], event='none')")
    assert kind("x").parts is not kind("x").parts
    assert kind.__name__ == "Sample" and kind.__doc__ == "What it is." and kind.__match_args__[0] == "name"
    assert module.asdict(one) == {"name": "a", "size": 3, "parts": [1], "event": "none"}
    assert module.replace(one, size=9).size == 9 and dataclasses.replace(one, size=9).size == 9
    assert [field.name for field in module.fields(kind)] == ["name", "size", "parts", "event"]
    assert [field.type for field in module.fields(one)][:2] == ["str", "int"]
    assert copy.copy(one) == one and copy.deepcopy(one) == one
    with pytest.raises(TypeError):
        kind()
    with pytest.raises(TypeError):
        kind("a", nothing=1)
    assert hasattr(one, "__dict__") is not bool(options.get("slots"))
    if options.get("frozen"):
        with pytest.raises(dataclasses.FrozenInstanceError):
            one.size = 4
        with pytest.raises(dataclasses.FrozenInstanceError):
            del one.size
        assert hash(module.replace(one, parts=())) == hash(module.replace(one, parts=()))
    else:
        one.size = 4
        assert one.size == 4
        with pytest.raises(TypeError):
            hash(one)


@BOTH
def test_what_follows_the_values(module):
    @module.dataclass(frozen=True, slots=True)
    class Checked:
        size: int

        def __post_init__(self) -> None:
            if self.size < 0:
                raise ValueError(self.size)

    assert Checked(1).size == 1
    with pytest.raises(ValueError, match="-1"):
        Checked(-1)


def test_records_in_records_become_plain_values():
    @records.dataclass
    class Inner:
        size: int

    @records.dataclass
    class Outer:
        parts: tuple[Inner, ...]
        named: dict[str, Inner]

    assert records.asdict(Outer((Inner(1), Inner(2)), {"a": Inner(3)})) == {
        "parts": ({"size": 1}, {"size": 2}),
        "named": {"a": {"size": 3}},
    }


def test_one_of_ours_can_be_pickled():
    from oomproof.machine.memory import Memory

    memory = Memory(*range(len(Memory.__match_args__)))
    assert pickle.loads(pickle.dumps(memory)) == memory


@pytest.mark.parametrize(
    "folder", ["machine", "recording", "ledger", "guard", "runner", "evidence", "diagnosis", "reports", "cli"]
)
def test_what_every_start_imports_makes_none_of_the_standard_library(folder):
    for path in (Path(records.__file__).parent / folder).rglob("*.py"):
        assert "from dataclasses import" not in path.read_text(), path

"""The census: names, sizes and copies are right; nothing of the job's runs, is held, or is told as a value."""

from __future__ import annotations

import ast
import gc
import importlib.util
import json
import random
import signal
import sys
import threading
import time
import tracemalloc
import types
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from oomproof.agent import census, census_walk

NUMBERS = random.Random(7)
WORDS = ["".join(NUMBERS.choices("abcdefghij", k=6)) for _ in range(2000)]
GLOBAL_ROWS: list[str] = []


@pytest.fixture(autouse=True)
def _only_this_module(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests of this process have variables too."""
    is_library = census._is_library
    monkeypatch.setattr(census, "_is_library", lambda file: file != __file__ or is_library(file))


def look(seconds: float = 30.0) -> dict[str, Any]:
    """Without its bounds in time, where they are not what is tested: a busy machine is slow."""
    return census.look(seconds=seconds, waiting=60.0)


def text(words: int = 12) -> str:
    return " ".join(NUMBERS.choices(WORDS, k=words))


def thing(told: dict[str, Any], name: str) -> dict[str, Any]:
    return next(row for row in told["things"] if row["name"] == name)


def copies(told: dict[str, Any]) -> list[list[list[str]]]:
    return [
        [[told["things"][at]["name"] for at in holder] for holder in group["holders"]]
        for group in told["copies"]
    ]


def ours(told: dict[str, Any], *names: str) -> list[list[list[str]]]:
    """Groups of copies that have one of these: pytest's own frames hold what they hold."""
    return [group for group in copies(told) if any(name in holder for holder in group for name in names)]


class Node:
    def __init__(self, number: int) -> None:
        self.number, self.label, self.score = number * 1000, f"node number {number}", number * 0.5


class Slotted:
    __slots__ = ("label", "rows")

    def __init__(self) -> None:
        self.label, self.rows = "x", [text() for _ in range(2000)]


# --- sizes --------------------------------------------------------------------------------------------------------


def _dicts() -> Any:
    return [
        {"id": number * 1000, "text": text(), "label": NUMBERS.choice(("pos", "neg"))}
        for number in range(4_000)
    ]


def _nodes() -> Any:
    return [Node(number) for number in range(4_000)]


def _nested() -> Any:
    return [[text(5) for _ in range(NUMBERS.randrange(5, 60))] for _ in range(1000)]


def _index() -> Any:
    return {f"key {number}": {number * 7, number * 11} for number in range(4_000)}


def _tuples() -> Any:
    return deque((number * 1000, f"text {number}") for number in range(4_000))


def _categories() -> Any:
    known = [f"category number {number}" for number in range(2000)]
    return [{"category": NUMBERS.choice(known), "value": NUMBERS.random()} for _ in range(4_000)]


@pytest.mark.parametrize("make", [_dicts, _nodes, _nested, _index, _tuples, _categories])
def test_estimated_sizes_are_close_to_what_was_allocated(make: Callable[[], Any]) -> None:
    """tracemalloc counts each allocation, without the allocator's rounding; bench/census.py goes by the process's memory."""
    told, real = _measured(make)
    assert thing(told, "rows")["ram"] == pytest.approx(real, rel=0.2)


def _measured(make: Callable[[], Any]) -> tuple[dict[str, Any], int]:
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        rows = make()
        real = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    told = look()
    del rows
    return told, real


def _two_lists() -> tuple[dict[str, Any], dict[str, Any]]:
    rows = _dicts()
    alone = look()
    again = rows[:]
    both = look()
    del again
    return alone, both


def test_what_two_lists_share_counts_once_and_is_no_copy() -> None:
    alone, both = _two_lists()
    together = thing(both, "rows")["ram"] + thing(both, "again")["ram"]
    assert together == pytest.approx(thing(alone, "rows")["ram"], rel=0.1)
    assert not ours(both, "rows", "again")


def _long_list() -> dict[str, Any]:
    rows = [None] * 10_000_000
    told = look()
    del rows
    return told


def test_ten_million_elements_take_no_longer() -> None:
    begun = time.thread_time()
    told = _long_list()
    assert thing(told, "rows")["ram"] == pytest.approx(80_000_000, rel=0.01)
    assert time.thread_time() - begun < 2.0 and told["seconds"] < 0.5


# --- names ---------------------------------------------------------------------------------------------------------


def _generate() -> Iterator[int]:
    waiting_rows = [text() for _ in range(3000)]
    yield len(waiting_rows)
    waiting_rows.clear()


class Loader:
    def __init__(self) -> None:
        self.cache = {number * 7919: text() for number in range(3000)}


def _named() -> dict[str, Any]:
    loader, slotted, generator = Loader(), Slotted(), _generate()
    next(generator)
    data = {"train": [text() for _ in range(3000)], "other key": 1}
    splits = {"train": [text() for _ in range(2500)], "val": [text() for _ in range(2500)]}
    told = look()
    del loader, slotted, data, splits
    return told


def test_locals_globals_attributes_slots_generators_and_entries_have_names() -> None:
    GLOBAL_ROWS.extend(text() for _ in range(3000))
    try:
        told = _named()
    finally:
        GLOBAL_ROWS.clear()
    rows = {row["name"]: (row["scope"], row["function"], row["what"]) for row in told["things"]}
    assert rows["loader.cache"] == ("attribute", "_named", "dict of 3,000 str")
    assert rows["slotted.rows"][0] == "attribute"
    assert rows["waiting_rows"] == ("local", "_generate", "list of 3,000 str")
    assert rows["splits['train']"][2] == "list of 2,500 str"
    assert rows["GLOBAL_ROWS"] == ("global", "", "list of 3,000 str")
    assert Path(thing(told, "loader.cache")["file"]) == Path(__file__)
    assert not any("other key" in name for name in rows), "a key that is no word of the program's is data"


def _in_a_thread(ready: threading.Event, leave: threading.Event) -> None:
    of_a_thread = [text() for _ in range(3000)]
    ready.set()
    leave.wait(60)
    of_a_thread.clear()


def test_variables_of_other_threads() -> None:
    ready, leave = threading.Event(), threading.Event()
    thread = threading.Thread(target=_in_a_thread, args=(ready, leave))
    thread.start()
    try:
        assert ready.wait(60)
        assert thing(look(), "of_a_thread")["function"] == "_in_a_thread"
    finally:
        leave.set()
        thread.join()


def test_no_value_is_told() -> None:
    told = json.dumps(_named())
    assert not any(word in told for word in WORDS), "texts of the rows"
    assert "7919" not in told and "15838" not in told, "keys"


# --- copies --------------------------------------------------------------------------------------------------------


def _same_data() -> dict[str, Any]:
    examples = [{"id": number, "text": text()} for number in range(3000)]
    prompts = [f"### Question: {example['text']} ### Answer:" for example in examples]
    objects = [types.SimpleNamespace(text=example["text"] + "!", label=1) for example in examples]
    shared = [example["text"] for example in examples]
    unrelated = [text() for _ in range(3000)]
    told = look()
    del prompts, objects, shared, unrelated
    return told


def test_the_same_rows_in_several_forms_are_copies() -> None:
    groups = ours(_same_data(), "examples")
    assert len(groups) == 1
    holders = sorted(sorted(holder) for holder in groups[0])
    assert holders == [["examples", "shared"], ["objects"], ["prompts"]], "what shares its texts is one copy"


def _unrelated() -> dict[str, Any]:
    labels, predictions = ([NUMBERS.randrange(2) for _ in range(5000)] for _ in range(2))
    ids, numbers = list(range(100_000, 105_000)), list(range(100_000, 105_000))
    names, titles = ([text(3) for _ in range(5000)] for _ in range(2))
    constant, systems = (
        ["you are a helpful assistant"] * 5000,
        [f"you are a helpful assistant {text(2)}" for _ in range(5000)],
    )
    answers, verdicts = (
        ["correct answer" if NUMBERS.random() < 0.5 else "another answer" for _ in range(5000)]
        for _ in range(2)
    )
    points, others = ([[NUMBERS.random() for _ in range(6)] for _ in range(5000)] for _ in range(2))
    padded, zeros = ([[0, 0, 0, 0, 0, 0] for _ in range(5000)] for _ in range(2))
    told = look()
    del (
        labels,
        predictions,
        ids,
        numbers,
        names,
        titles,
        constant,
        systems,
        answers,
        verdicts,
        points,
        others,
        padded,
        zeros,
    )
    return told


def test_a_form_that_is_a_piece_ahead_is_a_copy_all_the_same() -> None:
    rows = [{"id": number, "text": text()} for number in range(4250)]
    prompts = [f"### {row['text']}" for row in rows[:4000]]
    assert {frozenset(holder[0] for holder in group) for group in copies(look())} == {
        frozenset(("rows", "prompts"))
    }
    assert rows and prompts


def test_columns_of_the_same_length_are_no_copies() -> None:
    told = _unrelated()
    names = "labels predictions ids numbers names titles constant systems answers verdicts points others padded zeros"
    assert len({row["name"] for row in told["things"]} & set(names.split())) >= 8, "they were seen"
    assert not ours(told, *names.split())


def _arrow_numpy_torch(pyarrow: Any, numpy: Any, torch: Any, tmp_path: Path) -> dict[str, Any]:
    texts = [text() for _ in range(3000)]
    table = pyarrow.table({"text": texts})
    array = numpy.random.default_rng(1).random((20_000, 8))
    tensor = torch.tensor(array, dtype=torch.float32)
    view, alias = array[:5000], torch.from_numpy(array)
    numpy.save(tmp_path / "rows.npy", array)
    mapped = numpy.load(tmp_path / "rows.npy", mmap_mode="r")
    model = torch.nn.Linear(512, 512)
    told = look()
    del texts, table, tensor, view, alias, mapped, model
    return told


def test_arrays_tensors_and_tables(tmp_path: Path) -> None:
    pyarrow, numpy, torch = (pytest.importorskip(name) for name in ("pyarrow", "numpy", "torch"))
    told = _arrow_numpy_torch(pyarrow, numpy, torch, tmp_path)
    assert ours(told, "texts") == [[["texts"], ["table"]]]
    assert sorted(map(sorted, ours(told, "tensor")[0])) in (
        [["alias", "array"], ["tensor"]],
        [["array"], ["tensor"]],
    )
    size = 20_000 * 8 * 8
    assert thing(told, "array")["ram"] == pytest.approx(size, rel=0.01)
    assert thing(told, "tensor")["ram"] == pytest.approx(size / 2, rel=0.01)
    assert (thing(told, "mapped")["mapped"], thing(told, "mapped")["ram"]) == (size, 0), "page cache, not RAM"
    assert thing(told, "model")["ram"] == pytest.approx(512 * 512 * 4, rel=0.1)
    views = [row for row in told["things"] if row["name"] in ("view", "alias")]
    assert not sum(row["ram"] for row in views), "a view takes nothing"


def _one_storage(torch: Any) -> tuple[dict[str, Any], Any]:
    model = torch.nn.Linear(512, 512)
    weight = model.weight.detach()
    rows = [model.weight.detach()[number] for number in range(512)]
    told = look()
    del rows
    return told, weight


def test_a_storage_counts_once_whoever_shows_it() -> None:
    told, _ = _one_storage(pytest.importorskip("torch"))
    size = 512 * 512 * 4
    total = sum(row["ram"] for row in told["things"] if row["name"] in ("model", "weight"))
    assert total == pytest.approx(size, rel=0.1)


# --- what it must not do -------------------------------------------------------------------------------------------

ASKED: list[str] = []


class Meta(type):
    def __hash__(cls) -> int:
        ASKED.append("hash of a class")
        return 1

    def __eq__(cls, other: object) -> bool:
        ASKED.append("== of a class")
        return False

    def __instancecheck__(cls, instance: object) -> bool:
        ASKED.append("isinstance")
        return False


def _asked(name: str) -> Any:
    def method(self: Any, *_: Any) -> Any:
        ASKED.append(name)
        raise RuntimeError(name)

    return method


HOSTILE = "__len__ __iter__ __getitem__ __eq__ __hash__ __getattr__ __sizeof__ __bool__ __repr__ __str__ __contains__ keys values"
Hostile = Meta("Hostile", (), {name: _asked(name) for name in HOSTILE.split()})
Lying = Meta(
    "Lying", (), {"__class__": property(_asked("__class__")), "__dict__": property(_asked("__dict__"))}
)
HostileList = type(
    "HostileList", (list,), {name: _asked(name) for name in HOSTILE.split() if name != "__getattr__"}
)
HostileDict = type(
    "HostileDict", (dict,), {name: _asked(name) for name in HOSTILE.split() if name != "__getattr__"}
)


def _hostile() -> dict[str, Any]:
    single, many, lying = Hostile(), [Hostile() for _ in range(2000)], [Lying() for _ in range(1500)]
    rows, table = (
        HostileList(text() for _ in range(2000)),
        HostileDict((number, text()) for number in range(2000)),
    )
    holder = {"single": single, "rows": [rows], 3: Lying()}
    ASKED.clear()
    told = look()
    del many, lying, table, holder
    return told


def test_no_code_of_the_jobs_runs() -> None:
    told = _hostile()
    assert ASKED == []
    assert thing(told, "rows")["length"] == 2000 and thing(told, "table")["length"] == 2000


def _subclass(numpy: Any) -> dict[str, Any]:
    names = ("__array_finalize__", "__getitem__", "__len__", "__array_interface__", "nbytes", "shape", "base")
    members = {
        name: _asked(name) if name.startswith("__") and "interface" not in name else property(_asked(name))
        for name in names
    }
    made = numpy.zeros((5000, 40)).view(numpy.ndarray)
    kind = type("Hostile", (numpy.ndarray,), {"__array_finalize__": lambda self, other: None})
    odd = made.view(kind)
    for name, member in members.items():
        setattr(kind, name, member)
    ASKED.clear()
    told = look()
    del odd
    return told


def test_no_code_of_a_subclass_of_an_array_runs() -> None:
    told = _subclass(pytest.importorskip("numpy"))
    assert ASKED == [] and thing(told, "made")["ram"] == pytest.approx(5000 * 40 * 8, rel=0.01)


def _state_dict() -> dict[str, Any]:
    weights = {f"layer{number}": [text() for _ in range(300)] for number in range(30)}
    few = {"train": [text() for _ in range(1000)], "val": [text() for _ in range(1000)]}
    told = look()
    del weights, few
    return told


def test_many_entries_are_told_as_one() -> None:
    told = _state_dict()
    names = {row["name"] for row in told["things"]}
    assert "weights" in names and not any(name.startswith("weights[") for name in names)
    assert {"few['train']", "few['val']"} <= names
    assert thing(told, "weights")["ram"] == pytest.approx(
        4.5 * thing(told, "few['train']")["ram"] * 2, rel=0.2
    )


def _growing_lists() -> dict[str, Any]:
    outs = [[text() for _ in range(1500)] for _ in range(3)]
    by_step = {step: [text() for _ in range(1500)] for step in (0, 50)}
    nested = [[[text() for _ in range(1500)] for _ in range(2)] for _ in range(2)]
    pair = ([text() for _ in range(1500)], [text() for _ in range(1500)])
    told = look()
    del outs, by_step, nested, pair
    return told


def test_a_list_that_grows_is_named_and_not_its_elements() -> None:
    """`outs[0]` has a new neighbour with each step; what grows, and what to keep less in, is `outs`."""
    told = _growing_lists()
    names = {row["name"] for row in told["things"]}
    assert {"outs", "by_step", "nested", "pair[0]", "pair[1]"} <= names
    assert not [name for name in names if name.startswith(("outs[", "by_step[", "nested["))]
    one = thing(told, "pair[0]")["ram"]
    for name, rows in (("outs", 3), ("by_step", 2), ("nested", 4)):
        assert thing(told, name)["ram"] == pytest.approx(rows * one, rel=0.1), name


class _Output:
    def __init__(self) -> None:
        self.rows = [text() for _ in range(1500)]


def _growing_outputs() -> dict[str, Any]:
    outs = [{"rows": [text() for _ in range(1500)], "loss": 1.0} for _ in range(3)]
    pairs = [(1, {"rows": [text() for _ in range(1500)]}) for _ in range(2)]
    objects = [_Output() for _ in range(9)]
    split = [{"train": [text() for _ in range(1500)], "val": [text() for _ in range(1500)]}]
    towers = [_Output(), _Output()]
    told = look()
    del outs, pairs, objects, split, towers
    return told


def test_a_list_of_outputs_that_grows_is_named_and_not_what_is_in_them() -> None:
    """`outs.append({"logits": logits})`; of one element, or of a few objects, the inner names tell more."""
    told = _growing_outputs()
    names = {row["name"] for row in told["things"]}
    assert {"outs", "pairs", "objects", "split[0]['train']", "towers[0].rows", "towers[1].rows"} <= names
    assert not [name for name in names if name.startswith(("outs[", "pairs[", "objects["))]
    one = thing(told, "split[0]['train']")["ram"]
    for name, rows in (("outs", 3), ("pairs", 2), ("objects", 9)):
        assert thing(told, name)["ram"] == pytest.approx(rows * one, rel=0.1), name
    assert (thing(told, "outs")["what"], thing(told, "outs")["length"]) == ("list of 3 dict", 3)


def _cyclic() -> dict[str, Any]:
    rows: list[Any] = [{"text": text()} for _ in range(2000)]
    rows.append(rows)
    for row in rows[:-1]:
        row["all"] = rows
        row["self"] = row
    node = types.SimpleNamespace()
    node.node = node
    chain: list[Any] = []
    for _ in range(100_000):
        chain = [chain]
    told = look()
    del node
    rows.clear()
    while chain:
        chain = chain[0]
    return told


def test_cycles_and_depth_end() -> None:
    told = _cyclic()
    assert thing(told, "rows")["length"] == 2001


def _kept() -> tuple[Any, Any]:
    held, rows = Node(1), [Node(number) for number in range(2000)]
    alive = weakref.ref(held), weakref.ref(rows[1000])
    look()
    del held
    rows.clear()
    return alive


def test_nothing_is_kept_alive() -> None:
    assert [reference() for reference in _kept()] == [None, None]


def test_what_has_no_time_says_so() -> None:
    told = look(seconds=0.0)
    assert told["complete"] is False and "things" in told


def test_a_dict_that_another_thread_changes() -> None:
    changing: dict[int, str] = {}
    leave = threading.Event()

    def change() -> None:
        number = 0
        while not leave.is_set():
            changing[number] = "x" * 40
            changing.pop(number - 3000, None)
            number += 1

    thread = threading.Thread(target=change)
    thread.start()
    try:
        for _ in range(20):
            assert "things" in look()
    finally:
        leave.set()
        thread.join()


class FakeAgent:
    phase_now, step, rank = "", None, None

    def __init__(self, folder: Path) -> None:
        self.folder, self.reports, self.failures = str(folder), [], []

    def report(self, kind: str, **fields: Any) -> None:
        self.reports.append((kind, fields))

    def failed(self, where: str, error: BaseException) -> None:
        self.failures.append(error)


def test_files_are_few_and_whole(tmp_path: Path) -> None:
    agent = FakeAgent(tmp_path)
    for number in range(12):
        census.take(agent, str(number), "a test")  # type: ignore[arg-type]
    files = sorted(tmp_path.iterdir())
    assert len(files) == 9 and not agent.failures, "the first and the newest eight"
    told = [json.loads(path.read_text()) for path in files]
    assert {"0", "11"} <= {value["request"] for value in told}
    assert agent.reports[-1][0] == "census" and gc.isenabled()


class TookTooLong(Exception):
    pass


def test_an_exception_of_the_jobs_own_signal_handler_passes(tmp_path: Path) -> None:
    """A timeout that comes in the middle of a census is the job's: swallowed, the job would wait for ever."""

    def stop(*_: Any) -> None:
        raise TookTooLong

    agent = FakeAgent(tmp_path)
    rows = _nodes()
    before = signal.signal(signal.SIGALRM, stop)
    try:
        for _ in range(3):
            with pytest.raises(TookTooLong):
                signal.setitimer(signal.ITIMER_REAL, 0.02)
                for _ in range(2000):
                    census.take(agent, "", "")  # type: ignore[arg-type]
            assert gc.isenabled()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert not agent.failures and sys.getrefcount(rows[0]) < 6


def test_what_a_library_keeps_of_the_users_has_a_name() -> None:
    source = "def evaluation_loop(look):\n    all_preds, internal = [bytes(1 << 20) for _ in range(9)], bytearray(1 << 20)\n    return look(), internal"
    names: dict[str, Any] = {}
    exec(compile(source, "/venv/lib/python3/site-packages/transformers/trainer.py", "exec"), names)
    told, _ = names["evaluation_loop"](look)
    assert [thing["name"] for thing in told["things"] if thing["function"] == "evaluation_loop"] == [
        "all_preds"
    ]


def test_the_trainer_still_keeps_them_under_these_names() -> None:
    """Read, not imported: that takes seconds."""
    found = importlib.util.find_spec("transformers")
    if found is None or not found.submodule_search_locations:
        pytest.skip("the extra [ml] is not installed")
    for (function, file), names in census_walk._KEEPING.items():
        tree = ast.parse((Path(found.submodule_search_locations[0]).parent / file).read_text())
        (loop,) = [
            node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == function
        ]
        stored = {
            node.id
            for node in ast.walk(loop)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        }
        assert set(names) <= stored


def test_a_model_and_its_optimizer_are_marked_as_no_data() -> None:
    torch = pytest.importorskip("torch")
    net = torch.nn.Linear(300, 300)
    opt = torch.optim.Adam(net.parameters())
    net(torch.ones(2, 300)).sum().backward()
    opt.step()
    outs = [torch.ones(300, 300)]
    users = type("Net", (torch.nn.Linear,), {"__module__": __name__})
    models = [users(300, 300) for _ in range(3)]
    told = look()
    parts = {row["name"]: row["part"] for row in told["things"]}
    del net, opt, outs, models
    assert parts["net"] == parts["models"] == "model" and parts["outs"] == ""
    assert all(part == "optimizer" for name, part in parts.items() if name.startswith("opt"))
    assert any(name.startswith("opt") for name in parts)

"""The allocator's watch inside the job, the release policy, the GPU limit: over figures, and over real CPU tensors."""

from __future__ import annotations

import json
import os
import pickle
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from helpers_gpu import GIB, MIB, Card, FakeAgent, segment

from oomproof.agent import (
    allocator,
    allocator_segments,
    cache_release,
    cuda_memory,
    gpu_limit,
    nvml,
    tensor_owners,
)
from oomproof.agent.cache_release import SinceRelease, decide
from oomproof.agent.cuda_memory import CudaMemory
from oomproof.agent.generation import Watched, wrapped
from oomproof.leaf.attempt_names import RELEASE_REQUEST
from oomproof.leaf.command_lines import short_name
from oomproof.recording.attempt import Attempt


def available(**changed: Any) -> CudaMemory:
    base = CudaMemory(0, 24 * GIB, 2 * GIB, 4 * GIB, 4 * GIB, 18 * GIB, 1 * GIB, 0, 0, "native")
    return base._replace(**changed)


# --- figures ----------------------------------------------------------------------------------------------------


def test_what_is_within_reach() -> None:
    one = available()
    assert (
        one.unused == 14 * GIB
        and one.returnable == 13 * GIB
        and one.within_reach == 15 * GIB
        and one.outside == 4 * GIB
    )
    assert available(expandable=True).returnable == 14 * GIB  # pages are given back one by one
    assert (
        available(allowed=19 * GIB).within_reach == 14 * GIB
    )  # one more by the limit, and what can be given back


def test_a_snapshot_in_numbers() -> None:
    found = allocator_segments.summarize(
        [
            segment(20 * MIB, (8 * MIB, True), (4 * MIB, False), (8 * MIB, True)),
            segment(64 * MIB, (64 * MIB, False)),
            segment(32 * MIB, (2 * MIB, False), (30 * MIB, True)),
            {
                **segment(16 * MIB, (16 * MIB, False)),
                "segment_pool_id": (0, 5),
            },  # of a CUDA graph: free for it alone
            segment(999 * MIB, (999 * MIB, False), device=1),
        ],
        0,
    )
    assert found["reserved"] == 132 * MIB and found["active"] == 46 * MIB
    assert (
        found["wholly_free"] == 64 * MIB
        and found["split_free"] == 6 * MIB
        and found["largest_free"] == 64 * MIB
    )
    assert found["private_free"] == 16 * MIB
    assert sum(row["used_bytes"] + row["free_bytes"] for row in found["classes"]) == found["reserved"]


def test_lines_are_the_users() -> None:
    frames = [
        {"filename": "/x/site-packages/torch/nn/modules/linear.py", "line": 5, "name": "forward"},
        {"filename": "/home/ada/train.py", "line": 31, "name": "evaluate"},
    ]
    one = segment(20 * MIB, (8 * MIB, True), (8 * MIB, True), (4 * MIB, False))
    for block in one["blocks"]:
        block["frames"] = frames
    assert allocator_segments.lines_of([one], 0) == [
        {"line": "evaluate (train.py:31)", "bytes": 16 * MIB, "count": 2}
    ]


# --- samples ----------------------------------------------------------------------------------------------------


@pytest.fixture
def card() -> Card:
    one = Card()
    one.allocated, one.reserved, one.free = 4 * GIB, 6 * GIB, 17 * GIB
    return one


@pytest.fixture
def agent(tmp_path: Path) -> FakeAgent:
    return FakeAgent(tmp_path)


def test_samples_come_at_edges_and_are_few(card: Card, agent: FakeAgent, tmp_path: Path) -> None:
    allocator.install(card.torch(), agent)
    for _ in range(100):
        with agent.phase("eval"):
            card.reserved += 200 * MIB
            card.free -= 200 * MIB
    told = agent.of("allocator")
    assert 1 <= len(told) <= 5  # a purse for edges that come together, then one a second
    assert told[0]["edge"] == "train>eval" and told[0]["largest_free"] == 0 and told[0]["backend"] == "native"
    newest = json.loads((tmp_path / "4067-allocator.json").read_text())
    assert newest["unused"] == newest["reserved"] - 4 * GIB


# of a snapshot, as PyTorch 2.9 lays them out
SETTINGS = {"PYTORCH_CUDA_ALLOC_CONF": "", "max_split_size": -1, "garbage_collection_threshold": 0.0,
            "expandable_segments": False, "pinned_num_register_threads": 1, "release_lock_on_cudamalloc": False}  # fmt: skip
ON = "expandable_segments:True"


@pytest.mark.parametrize(
    ("version", "environment", "applied", "off"),
    [
        ("2.9.1+cu128", {"PYTORCH_ALLOC_CONF": ON}, SETTINGS, "PYTORCH_ALLOC_CONF"),
        ("2.9.1+cu128", {"PYTORCH_ALLOC_CONF": f"max_split_size_mb:512, {ON}"}, None, "PYTORCH_ALLOC_CONF"),
        ("2.9.1+cu128", {"PYTORCH_CUDA_ALLOC_CONF": ON}, {**SETTINGS, "expandable_segments": True}, ""),
        ("2.9.1+cu128", {"PYTORCH_CUDA_ALLOC_CONF": ON}, None, ""),
        ("2.9.1+cu128", {"PYTORCH_CUDA_ALLOC_CONF": ON, "PYTORCH_ALLOC_CONF": ON}, None, ""),
        ("2.9.1+cu128", {"PYTORCH_ALLOC_CONF": "max_split_size_mb:512"}, SETTINGS, ""),
        ("2.11.0+cu128", {"PYTORCH_ALLOC_CONF": ON}, {**SETTINGS, "expandable_segments": True}, ""),
        ("2.11.0+cu128", {"PYTORCH_ALLOC_CONF": ON}, None, ""),
        ("2.11.0+cu128", {"PYTORCH_ALLOC_CONF": ON}, SETTINGS, "PYTORCH_ALLOC_CONF"),  # not to be had there
        ("2.9.1+cu128", {}, SETTINGS, ""),
    ],
)
def test_a_setting_that_is_off_is_told_once_and_not_believed(
    card: Card, agent: FakeAgent, monkeypatch: pytest.MonkeyPatch, version: str, environment: dict[str, str],
    applied: dict[str, Any] | None, off: str,
) -> None:  # fmt: skip
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    card.version, card.settings = version, applied
    allocator.install(card.torch(), agent)
    for _ in range(3):
        with agent.phase("eval"):
            pass
    said = [text for text in agent.told if "it is off" in text]
    assert len(said) == bool(off)
    if off:
        assert f"you set {off}={ON}, and it is off" in said[0]
        assert ("reads PYTORCH_CUDA_ALLOC_CONF for CUDA" in said[0]) == version.startswith("2.9")
    card.queued[0]()
    card.observers[0](0, 2 * GIB, card.total, card.free)
    (account,) = agent.of("cuda-oom")
    assert account["ignored"] == (f"{off}={ON}" if off else "")
    assert account["expandable"] == (bool(environment) and not off and ON in "".join(environment.values()))


def test_cuda_is_never_started_by_us(card: Card, agent: FakeAgent) -> None:
    card.started = False
    allocator.install(card.torch(), agent)
    with agent.phase("eval"):
        pass
    assert agent.reports == [] and card.observers == []  # queued until the job itself starts CUDA
    assert len(card.queued) == 1


def test_a_build_without_cuda_is_left_alone(agent: FakeAgent) -> None:
    torch = pytest.importorskip("torch")
    allocator.install(torch, agent)
    with agent.phase("eval"):
        pass
    with agent.around_inference():
        assert not torch.is_grad_enabled()
    assert agent.reports == [] and torch.is_grad_enabled()


def test_steady_figures_are_told_once(card: Card, agent: FakeAgent) -> None:
    allocator.install(card.torch(), agent)
    for _ in range(3):
        with agent.phase("eval"):
            pass
    assert len(agent.of("allocator")) == 1


def test_a_rise_at_every_visit_is_a_suspected_leak(card: Card, agent: FakeAgent) -> None:
    watch = allocator.Watch(card.torch(), agent)
    for _ in range(14):
        card.allocated += 200 * MIB
        card.reserved = max(card.reserved, card.allocated)
        watch._samples._left = 4.0
        watch.sample("eval>train")
    (leak,) = agent.of("gpu-leak")
    assert leak["grown"] >= 2 * GIB and len(card.traced) == 1  # lines from now on
    steady = FakeAgent(agent.folder)
    watch = allocator.Watch(card.torch(), steady)
    for number in range(40):
        card.allocated = 4 * GIB + (number % 3) * GIB
        watch._samples._left = 4.0
        watch.sample("eval>train")
    assert steady.of("gpu-leak") == []


# --- out of memory ----------------------------------------------------------------------------------------------


def real_torch_with(card: Card) -> Any:
    """PyTorch's tensors, the card's figures."""
    torch = pytest.importorskip("torch")
    figures = card.torch()
    return SimpleNamespace(
        cuda=figures.cuda,
        _C=figures._C,
        __version__="2.11.0",
        Tensor=torch.Tensor,
        nn=torch.nn,
        optim=torch.optim,
    )


def test_the_observer_writes_before_the_error_travels(card: Card, agent: FakeAgent, tmp_path: Path) -> None:
    card.segments = [segment(20 * MIB, (8 * MIB, True), (12 * MIB, False))]
    watch = allocator.Watch(real_torch_with(card), agent)
    watch.started()
    (observer,) = card.observers
    observer(0, 3 * GIB, 24 * GIB, 17 * GIB)
    (told,) = agent.of("cuda-oom")
    assert told["requested"] == 3 * GIB and told["phase"] == "train" and told["step"] == 7
    assert told["pieces"]["largest_free"] == 12 * MIB and "asked for 3.0 GiB" in told["text"]
    assert told["stack"][0].startswith("test_the_observer_writes")
    kept = json.loads((tmp_path / "4067-cuda-oom-1.json").read_text())
    assert kept["reserved"] == 6 * GIB and kept["pid"] > 0
    assert (tmp_path / "4067-cuda-oom-1.json").stat().st_mode & 0o777 == 0o600
    snapshot = pickle.loads((tmp_path / "4067-cuda-oom-1.pickle").read_bytes())
    assert snapshot["segments"][0]["total_size"] == 20 * MIB
    assert card.traced  # a job that survives this one shall know the lines next time


def test_a_job_that_catches_the_error_is_not_slowed_down(card: Card, agent: FakeAgent) -> None:
    watch = allocator.Watch(real_torch_with(card), agent)
    for _ in range(100):
        watch.out_of_memory(0, GIB, 24 * GIB, 0)
    assert len(agent.of("cuda-oom")) == 3
    assert [each["number"] for each in agent.of("cuda-oom-again")] == [4, 8, 16, 32, 64]


def test_whatever_breaks_in_the_observer_stays_there(card: Card, agent: FakeAgent) -> None:
    torch = real_torch_with(card)
    torch.cuda.memory._snapshot = lambda: 1 / 0
    torch.cuda.mem_get_info = lambda device: 1 / 0
    watch = allocator.Watch(torch, agent)
    watch.out_of_memory(0, GIB, 24 * GIB, 0)
    watch.agent = None
    watch.out_of_memory(0, GIB, 24 * GIB, 0)


def test_a_large_snapshot_is_cut(tmp_path: Path) -> None:
    parts = [segment((1 + number) * MIB, *([(4096, True)] * 50)) for number in range(200)]
    path = str(tmp_path / "cut.pickle")
    allocator.keep({"segments": parts, "device_traces": [[{"action": "alloc"}] * 1000]}, path, most=100_000)
    kept = pickle.loads(Path(path).read_bytes())
    assert Path(path).stat().st_size <= 100_000 and kept["device_traces"] == [[]]
    assert kept["segments"][0]["total_size"] == 200 * MIB  # the largest stay


# --- who holds tensors -------------------------------------------------------------------------------------------


def owner_of(found: dict[str, Any], words: str) -> dict[str, Any]:
    return next(each for each in found["owners"] if words in each["owner"])


def test_owners_of_real_tensors() -> None:
    torch = pytest.importorskip("torch")
    from oomproof.agent.tensor_owners import tensor_owners

    model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU())
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(8, 256)).sum().backward()
    optimizer.step()

    class Bank:
        pass

    bank = Bank()
    bank.vectors = torch.zeros(500, 1000)  # type: ignore[attr-defined]

    def evaluate() -> dict[str, Any]:
        predictions = [{"logits": torch.zeros(100, 1000), "labels": (torch.zeros(50),)} for _ in range(6)]
        view = predictions[0]["logits"][:10]  # shares its storage: counted once
        found = tensor_owners(torch, "cpu", seconds=60.0)
        assert view is not None
        return found

    found = evaluate()
    held = owner_of(found, "list predictions in evaluate (test_agent_allocator.py:")
    assert held["kind"] == "list" and held["bytes"] == 6 * (400_000 + 200)
    assert "predictions[0]['logits'] float32 [100, 1000]" in held["example"]
    weights = 256 * 256 * 4 + 256 * 4
    assert owner_of(found, "parameters of Sequential")["bytes"] == weights
    assert owner_of(found, "gradients of Sequential")["bytes"] == weights
    assert owner_of(found, "optimizer state of AdamW")["bytes"] >= 2 * weights
    assert owner_of(found, "object bank")["bytes"] == 2_000_000
    assert found["complete"]


def test_what_no_variable_names_is_found_by_its_container() -> None:
    torch = pytest.importorskip("torch")
    from oomproof.agent.tensor_owners import tensor_owners

    class Slots:  # neither a frame nor a plain object's attributes lead there
        __slots__ = ("hidden",)

    def keeper() -> Any:
        kept = Slots()
        kept.hidden = [torch.zeros(300, 1000) for _ in range(3)]
        return lambda: kept.hidden

    keep = keeper()
    found = tensor_owners(torch, "cpu", seconds=60.0)
    assert owner_of(found, "a list of 3 items")["bytes"] == 3 * 1_200_000
    assert not any(
        "of 2 items" in each["owner"] for each in found["owners"]
    )  # the search's own lists are nobody's
    assert len(keep()) == 3


def test_the_search_ends_at_its_deadline() -> None:
    torch = pytest.importorskip("torch")
    from oomproof.agent.tensor_owners import tensor_owners

    junk = [[number] for number in range(400_000)]
    found = tensor_owners(torch, "cpu", seconds=0.0)
    assert not found["complete"] and len(junk) == 400_000


def test_a_cpu_failure_is_told_with_the_frames_it_came_through(
    agent: FakeAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    # the search stops after two seconds with what it has: not here, however busy the machine is
    monkeypatch.setattr(tensor_owners, "time", SimpleNamespace(monotonic=lambda: 0.0))

    def build() -> None:
        rows = [torch.zeros(1000, 100) for _ in range(7)]
        raise RuntimeError(
            "[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory", len(rows)
        )

    try:
        build()
    except RuntimeError as error:
        caught = error
    allocator.memory_owners_report(agent, caught)
    (told,) = agent.of("tensors")
    assert told["device_type"] == "cpu" and owner_of(told, "list rows in build")["bytes"] == 7 * 400_000
    allocator.memory_owners_report(agent, ValueError("no memory error"))
    assert len(agent.of("tensors")) == 1


# --- release ----------------------------------------------------------------------------------------------------

LONG_AGO = SinceRelease(steps=50, seconds=600.0, retries=0)


@pytest.mark.parametrize(
    ("policy", "facts", "since", "what"),
    [
        ("never", available(), LONG_AGO, ""),
        ("warn", available(), LONG_AGO, "warn"),
        ("warn", available(reserved=9 * GIB // 2, splits=0), LONG_AGO, ""),  # not much
        ("always", available(), SinceRelease(1, 0.1, 0), "release"),
        ("auto", available(free=14 * GIB, total=36 * GIB), LONG_AGO, ""),  # nobody is short
        ("auto", available(), LONG_AGO, "release"),  # a neighbour is there, and we sit on more than is left
        (
            "auto",
            available(total=20 * GIB + 512 * MIB),
            LONG_AGO,
            "",
        ),  # alone: only our own context is outside
        (
            "auto",
            available(free=512 * MIB),
            LONG_AGO,
            "release",
        ),  # a neighbour is there, and gets nothing more
        (
            "auto",
            available(free=512 * MIB, reserved=23 * GIB),
            LONG_AGO,
            "",
        ),  # alone on the card: only our own context
        ("auto", available(free=512 * MIB), SinceRelease(1, 600.0, 0), ""),  # generates every step
        ("auto", available(free=512 * MIB), SinceRelease(50, 3.0, 0), ""),  # has just given back
        (
            "auto",
            available(total=21 * GIB, splits=3 * GIB),
            SinceRelease(50, 600.0, 2),
            "release",
        ),  # splits made the driver refuse
        ("auto", available(total=21 * GIB, splits=3 * GIB), LONG_AGO, ""),
        (
            "auto",
            available(free=512 * MIB),
            SinceRelease(None, 600.0, 0),
            "release",
        ),  # no steps are counted at all
    ],
)
def test_the_release_policy(policy: str, facts: CudaMemory, since: SinceRelease, what: str) -> None:
    assert decide(policy, facts, since) == what


def test_warned_once_with_figures(card: Card) -> None:
    agent = FakeAgent(release="warn")
    card.allocated, card.reserved, card.free = GIB // 2, 18 * GIB, 4 * GIB
    agent.on_phase(cache_release.Releaser(card.torch(), agent).phase_changed)
    for _ in range(3):
        with agent.phase("eval"), agent.phase("generate"):
            pass
    assert (
        len(agent.told) == 1
        and "512 MiB" in agent.told[0]
        and "17.5 GiB more stays reserved" in agent.told[0]
    )
    assert card.emptied == 0


def test_always_gives_back_when_the_outermost_phase_ends(card: Card) -> None:
    agent = FakeAgent(release="always")
    card.allocated, card.reserved, card.free = GIB // 2, 18 * GIB, 4 * GIB
    agent.on_phase(cache_release.Releaser(card.torch(), agent).phase_changed)
    with agent.phase("eval"):
        for _ in range(5):
            with agent.phase("generate"):
                pass
        assert card.emptied == 0  # not between the calls of one evaluation
    assert card.emptied == 1
    (told,) = agent.of("release")
    assert told["did"] == "released" and told["freed"] == 18 * GIB - GIB // 2


def test_a_guard_asks_for_what_is_unused_and_each_request_is_answered_once(
    card: Card, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [100.0]
    monkeypatch.setattr(cache_release.time, "monotonic", lambda: clock[0])
    attempt = Attempt(tmp_path)
    attempt.agent_folder.mkdir()
    request = attempt.agent_folder / RELEASE_REQUEST
    request.touch()
    os.utime(request, (1, 1))  # of a time before this process: answered by those it was meant for
    agents = [FakeAgent(attempt.agent_folder, release=policy) for policy in ("warn", "never")]
    releasers = [cache_release.Releaser(card.torch(), agent) for agent in agents]
    emptied = []
    for seconds, asked in ((2.0, False), (0.5, True), (1.0, False), (2.0, False), (2.0, True)):
        clock[0] += seconds
        card.allocated, card.reserved, card.free = GIB, 18 * GIB, 4 * GIB
        if asked:
            attempt.ask_to_release()
        for releaser, agent in zip(releasers, agents, strict=True):
            releaser.stepped(agent, 8)
        emptied.append(card.emptied)
    assert emptied == [0, 0, 1, 1, 2], "at the next look, once; never where the user forbade it"
    assert agents[0].of("release")[0]["text"] == "gave 17.0 GiB of GPU 0 back after a request of the guard"


def test_inference_by_hand_gives_back_whatever_the_policy(card: Card) -> None:
    torch = pytest.importorskip("torch")
    agent = FakeAgent(release="warn")
    figures = card.torch()
    figures.no_grad = torch.no_grad
    card.allocated, card.reserved, card.free = GIB, 18 * GIB, 4 * GIB
    releaser = cache_release.Releaser(figures, agent)
    with releaser.inference():
        assert not torch.is_grad_enabled()
    assert torch.is_grad_enabled() and card.emptied == 1
    never = cache_release.Releaser(figures, FakeAgent(release="never"))
    card.reserved = 18 * GIB
    with never.inference():
        pass
    assert card.emptied == 1


# --- generate ---------------------------------------------------------------------------------------------------


def generating(card: Card, agent: FakeAgent, free: int) -> Any:
    card.free, card.allocated, card.reserved = free, GIB, GIB
    torch = card.torch()
    torch.is_autocast_enabled = lambda: False
    torch.empty = lambda *_, **__: SimpleNamespace(element_size=lambda: 2)
    config = SimpleNamespace(model_type="llama", num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8,
                             hidden_size=4096, vocab_size=32000, is_encoder_decoder=False)  # fmt: skip
    calls: list[Any] = []

    class Model:
        def generate(self, inputs: Any = None, **kwargs: Any) -> str:
            """Its own words."""
            calls.append((inputs, kwargs, agent.phase_now, list(agent.told)))
            return "generated"

    model = Model()
    model.config, model.generation_config = config, None  # type: ignore[attr-defined]
    model.device, model.dtype = SimpleNamespace(type="cuda", index=0), "bf16"  # type: ignore[attr-defined]
    Model.generate = wrapped(Model.generate, Watched(torch, agent))  # type: ignore[method-assign]
    return model, calls


def test_the_warning_comes_before_the_call(card: Card, agent: FakeAgent) -> None:
    model, calls = generating(card, agent, free=8 * GIB)
    inputs = SimpleNamespace(shape=(64, 128))
    assert model.generate(inputs, max_new_tokens=2048) == "generated"
    assert calls[0][2] == "generate" and len(calls[0][3]) == 1  # told when the call began
    (text,) = agent.told
    assert (
        "will not fit on GPU 0" in text
        and "17.0 GiB" in text
        and "8.0 GiB is free or can be given back" in text
    )
    batch, new = (
        int(each) for each in re.search(r"a batch of (\d+), or max_new_tokens=(\d+)", text).groups()
    )  # type: ignore[union-attr]
    agent.told.clear()
    again, _ = generating(card, agent, free=8 * GIB)
    again.generate(SimpleNamespace(shape=(batch, 128)), max_new_tokens=2048)
    again.generate(inputs, max_new_tokens=new)
    assert agent.told == []
    again.generate(SimpleNamespace(shape=(batch + 1, 128)), max_new_tokens=2048)
    assert len(agent.told) == 1


def test_the_same_warning_is_not_said_again(card: Card, agent: FakeAgent) -> None:
    model, calls = generating(card, agent, free=4 * GIB)
    for _ in range(20):
        model.generate(SimpleNamespace(shape=(64, 128)), max_new_tokens=2048)
    assert len(agent.told) == 1 and len(calls) == 20


def test_signature_words_and_errors_stay(card: Card, agent: FakeAgent) -> None:
    import inspect

    model, _ = generating(card, agent, free=20 * GIB)
    assert list(inspect.signature(type(model).generate).parameters) == ["self", "inputs", "kwargs"]
    assert type(model).generate.__doc__ == "Its own words."
    model.config = None  # whatever we cannot read, the call goes through
    assert model.generate(SimpleNamespace(shape=(2, 3))) == "generated"

    def broken(self: Any) -> None:
        raise KeyError("theirs")

    outer = wrapped(broken, Watched(card.torch(), agent))
    with pytest.raises(KeyError, match="theirs"):
        outer(model)
    with pytest.raises(KeyError, match="theirs"):  # and the next call is watched again
        outer(model)


def test_a_compiled_function_sees_no_new_graph_breaks() -> None:
    torch = pytest.importorskip("torch")
    agent = FakeAgent()

    class Model:
        def generate(self, values: Any) -> Any:
            return values * 2 + 1

    plain = torch._dynamo.explain(lambda model, values: model.generate(values))(Model(), torch.ones(3))
    Model.generate = wrapped(Model.generate, Watched(torch, agent))  # type: ignore[method-assign]
    torch._dynamo.reset()
    ours = torch._dynamo.explain(lambda model, values: model.generate(values))(Model(), torch.ones(3))
    assert (
        (ours.graph_count, ours.graph_break_count) == (plain.graph_count, plain.graph_break_count) == (1, 0)
    )


def test_a_real_model_generates_the_same_under_watch(agent: FakeAgent) -> None:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    from oomproof.agent import generation

    transformers.logging.set_verbosity_error()
    utils = __import__("transformers.generation.utils", fromlist=["GenerationMixin"])
    original = utils.GenerationMixin.generate
    config = transformers.GPT2Config(
        n_layer=2, n_head=2, n_embd=32, vocab_size=64, eos_token_id=None, pad_token_id=0
    )
    model = transformers.GPT2LMHeadModel(config).eval()
    inputs = torch.randint(1, 60, (2, 5))
    try:
        before = model.generate(inputs, max_new_tokens=8, do_sample=False)
        generation.install(utils, agent)
        generation.install(utils, agent)  # twice is once
        after = model.generate(inputs, max_new_tokens=8, do_sample=False)
        assert torch.equal(before, after)
        assert utils.GenerationMixin.generate.__wrapped__ is original
        (told,) = agent.of("generate")
        assert told["tokens"] == 12 and told["cache"] == 2 * 2 * 32 * 12 * 2 * 4
    finally:
        utils.GenerationMixin.generate = original


# --- limit ------------------------------------------------------------------------------------------------------


def test_the_fraction_leaves_room_for_the_context() -> None:
    assert gpu_limit.fraction_of(14 * GIB, 768 * MIB, 24 * GIB) == pytest.approx((14 - 0.75) / 24)
    assert gpu_limit.fraction_of(100 * GIB, 768 * MIB, 24 * GIB) == 1.0
    assert 0 < gpu_limit.fraction_of(1, 768 * MIB, 24 * GIB) < 0.01


@pytest.mark.parametrize(
    ("visible", "rank", "limits", "cards"),
    [
        (1, None, {None: GIB}, [0]),
        (8, 3, {None: GIB}, [3]),  # a rank starts no context on another's card
        (8, 3, {2: GIB}, []),
        (8, None, {None: GIB}, []),  # its first use decides
        (2, 5, {None: GIB}, []),
    ],
)
def test_only_cards_the_process_uses_are_touched(
    visible: int, rank: Any, limits: Any, cards: list[int]
) -> None:
    assert gpu_limit.cards_at_start(visible, rank, limits) == cards


def test_the_limit_is_set_when_the_job_starts_cuda(card: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    monkeypatch.setattr(cuda_memory, "FRACTIONS", {})
    agent = FakeAgent(gpu_limit=[[14 * GIB, None]])
    gpu_limit.install(card.torch(), agent)
    assert card.fractions == {}
    card.queued[0]()
    assert card.fractions[0] == pytest.approx((14 - 0.75) / 24)
    assert agent.of("gpu-limit")[0]["limit"] == 14 * GIB
    now = cuda_memory.read(card.torch(), 0)
    assert now is not None and now.allowed == pytest.approx(13.25 * GIB, rel=1e-6)


def test_without_a_limit_nothing_is_hooked(card: Card) -> None:
    gpu_limit.install(card.torch(), FakeAgent(gpu_limit=None))
    assert card.queued == []


# --- neighbours --------------------------------------------------------------------------------------------------


def test_own_process_is_found_among_those_on_the_card() -> None:
    found = [(100, 9 * GIB), (200, 5 * GIB), (300, None)]
    assert nvml.split_own(found, [200], 4 * GIB) == (5 * GIB, [(100, 9 * GIB), (300, None)])
    # in a container the driver's pids are another namespace's: the smallest that can hold what we reserved
    assert nvml.split_own(found, [7], 4 * GIB) == (5 * GIB, [(100, 9 * GIB), (300, None)])
    assert nvml.split_own(found, [7], 20 * GIB) == (None, found)
    assert nvml.split_own([], [7], GIB) == (None, [])


def test_a_neighbours_arguments_stay_private() -> None:
    assert (
        short_name(["/usr/bin/python3", "-u", "/home/a/train.py", "--token", "hf_secret"])
        == "python3 train.py"
    )
    assert short_name(["python", "-m", "vllm.entrypoints", "--key", "x"]) == "python -m vllm.entrypoints"
    assert short_name(["python", "-c", "secret()"]) == "python"
    assert short_name([]) == ""


def test_without_a_driver_nobody_is_named() -> None:
    assert nvml.processes(SimpleNamespace(cuda=SimpleNamespace()), 0) == []


def test_a_trend_has_fifty_looks_and_a_week_a_few_hundred(
    card: Card, agent: FakeAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing moves by a fiftieth of the card: told every two seconds at first, ever more rarely later."""
    clock = [1000.0]
    monkeypatch.setattr(allocator.time, "monotonic", lambda: clock[0])
    watch = allocator.Watch(card.torch(), agent)
    told = []
    for seconds in (*range(120), *range(120, 7 * 86400, 60)):
        clock[0] = 1000.0 + seconds
        card.allocated += 4096
        watch.sample("step")
        told.append(len(agent.of("allocator")))
    assert 50 <= told[119] <= 62 and told[-1] < 500
    assert agent.of("allocator")[-1]["peak"] >= agent.of("allocator")[-1]["allocated"]

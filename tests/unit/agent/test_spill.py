"""Host memory lent to a card: taken only while the host has enough, told from the job's own, priced, given back."""

from __future__ import annotations

import ctypes
import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from helpers_gpu import GIB, MIB, Card, FakeAgent

from oomproof.agent import cuda_memory, gpu_limit, spill, spill_conditions, spill_pool
from oomproof.agent.spill_conditions import host_headroom
from oomproof.agent.spill_pool import (
    PIECE,
    NotPinned,
    PinnedMemory,
    Spilled,
    StepTimes,
    always_text,
    fitting_share,
    small_part,
    text_of,
)
from oomproof.leaf.allocator_memory import from_stats

# --- memory -----------------------------------------------------------------------------------------------------


def anonymous() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))


class Driver:
    """libcuda as far as pinning asks it."""

    def __init__(self, code: int = 0) -> None:
        self.pinned: dict[int, int] = {}

        def register(address: int, size: int, flags: int) -> int:
            if not code:
                self.pinned[address] = size
            return code

        self.cuMemHostRegister_v2 = register
        self.cuMemHostUnregister = lambda address: self.pinned.pop(address) and 0


def taken(size: int = 64 * MIB, watched: int = 48 * MIB) -> PinnedMemory:
    memory = PinnedMemory(size, watched)
    memory.take(lambda: None)
    return memory


def put(memory: PinnedMemory, at: int) -> None:
    """As the card would."""
    import ctypes

    ctypes.memset(memory.address + at, 7, 64)


def test_it_is_the_jobs_own_memory_and_given_back_whole() -> None:
    before = anonymous()
    memory, driver = taken(), Driver()
    assert anonymous() - before >= 63 * MIB, "what the test itself gives back meanwhile is small"
    memory.pin(driver)
    assert driver.pinned == {memory.address: 64 * MIB} and memory.address % PIECE == 0
    memory.give_back(driver)
    assert not driver.pinned and anonymous() - before < 16 * MIB


def test_it_is_given_back_by_a_process_that_locks_its_memory() -> None:
    before, memory = anonymous(), taken()
    if ctypes.CDLL(None, use_errno=True).mlock(ctypes.c_void_p(memory.address), ctypes.c_size_t(64 * MIB)):
        pytest.skip("memory cannot be locked here")
    memory.give_back()
    assert anonymous() - before < 16 * MIB


def test_it_is_not_taken_where_the_host_has_less() -> None:
    before, left = anonymous(), iter([GIB, 40 * MIB, 20 * MIB, 20 * MIB])
    memory = PinnedMemory(128 * MIB, 128 * MIB)
    with pytest.raises(NotPinned, match=r"0\.1 GiB more is needed, 0\.0 GiB is left"):
        memory.take(lambda: next(left))
    assert anonymous() - before < 16 * MIB  # what was taken until then is back


def test_a_driver_that_refuses_leaves_nothing_behind() -> None:
    before, memory = anonymous(), taken()
    with pytest.raises(NotPinned, match="error 2"):
        memory.pin(Driver(code=2))
    assert anonymous() - before < 16 * MIB


def test_what_the_card_wrote_is_told_without_writing() -> None:
    memory = taken()
    assert not memory.is_changed() and memory.written() == 0
    put(memory, 0)
    put(memory, 20 * MIB)
    put(memory, 60 * MIB)  # small tensors: not watched
    assert memory.is_changed() and memory.written() == 22 * MIB
    assert not memory.is_changed() and memory.written() == 0


def test_a_forked_child_does_not_get_it() -> None:
    memory = taken(256 * MIB, 256 * MIB)
    assert memory.size == 256 * MIB
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        changed = memory.is_changed() or memory.written()  # would be a segmentation fault
        os.write(writer, f"{anonymous()} {int(bool(changed))}".encode())
        os._exit(0)
    _, status = os.waitpid(child, 0)
    held, changed = (int(word) for word in os.read(reader, 100).split())
    assert status == 0 and not changed and anonymous() - held >= 256 * MIB


def test_what_the_host_can_give_is_the_least_of_all(tmp_path: Path) -> None:
    proc, top = tmp_path / "proc", tmp_path / "sys/fs/cgroup"
    inner = top / "user.slice/job"
    for folder in (proc / "self", inner):
        folder.mkdir(parents=True)
    (proc / "meminfo").write_text("MemTotal: 33554432 kB\nMemAvailable:   20971520 kB\n")
    (proc / "self/cgroup").write_text("0::/user.slice/job\n")
    assert host_headroom(5 * GIB, str(proc), str(tmp_path / "sys")) == 15 * GIB
    (inner / "memory.max").write_text(f"{10 * GIB}\n")
    (inner / "memory.current").write_text(f"{6 * GIB}\n")
    (inner / "memory.stat").write_text(f"anon {3 * GIB}\ninactive_file {2 * GIB}\n")
    assert (
        host_headroom(5 * GIB, str(proc), str(tmp_path / "sys")) == 5 * GIB
    )  # a tenth of the limit stays free
    (top / "user.slice/memory.max").write_text("max\n")
    (top / "user.slice/memory.current").write_text("5\n")
    assert host_headroom(5 * GIB, str(proc), str(tmp_path / "sys")) == 5 * GIB
    (proc / "self/cgroup").write_text("7:memory:/job\n0::/\n")
    old = top / "memory/job"
    old.mkdir(parents=True)
    (old / "memory.limit_in_bytes").write_text(f"{4 * GIB}\n")
    (old / "memory.usage_in_bytes").write_text(f"{3 * GIB}\n")
    (old / "memory.stat").write_text(f"cache 9\ntotal_inactive_file {1 * GIB}\n")
    assert host_headroom(0, str(proc), str(tmp_path / "sys")) == 2 * GIB
    assert host_headroom(0, str(tmp_path / "nothing"), str(tmp_path / "nothing")) is None


# --- figures ----------------------------------------------------------------------------------------------------


def stats(allocated: int, reserved: int, splits: int = 0, peak: int = 0) -> dict[str, Any]:
    def both(now: int, most: int) -> dict[str, Any]:
        return {"all": {"current": now, "peak": max(now, most)}}

    return {
        "allocated_bytes": both(allocated, peak),
        "active_bytes": both(allocated, 0),
        "reserved_bytes": both(reserved, 0),
        "inactive_split_bytes": both(splits, 0),
    }


def test_the_cards_books_are_without_what_lies_in_host_memory() -> None:
    # as an H200 told them, with a pool of 8 GiB in use for 1 GiB: 9 GiB of the card, 139.8 in all, held by others but for that
    total = 24 * GIB
    memory = from_stats(
        0, stats(9 * GIB, 16 * GIB, 8 * GIB, 12 * GIB), GIB, total, "native", False, 0.75, 8 * GIB, GIB
    )
    assert (memory.allocated, memory.reserved, memory.spill, memory.spilled) == (
        8 * GIB,
        8 * GIB,
        8 * GIB,
        GIB,
    )
    assert memory.splits == GIB and memory.returnable == 0 and memory.outside == 15 * GIB
    assert memory.allowed == 10 * GIB and memory.peak == 8 * GIB  # never more than it had of the card
    plain = from_stats(0, stats(9 * GIB, 16 * GIB), GIB, total, "native", False)
    assert (plain.allocated, plain.reserved, plain.spill) == (9 * GIB, 16 * GIB, 0)


def test_a_gpu_limit_is_for_the_card(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(cuda_memory.SPILLS, 0, cuda_memory.Pool(4 * GIB, lambda: 0))
    card, agent = Card(24 * GIB), FakeAgent(tmp_path, gpu_limit=[[14 * GIB, None]])
    gpu_limit.install(card.torch(), agent)
    card.queued[0]()
    assert card.fractions[0] == pytest.approx((18 * GIB - 768 * MIB) / (24 * GIB))
    assert "may reserve 13.2 GiB" in agent.of("gpu-limit")[0]["text"]
    cuda_memory.FRACTIONS.clear()


def test_beside_a_limit_both_must_fit_into_the_card() -> None:
    assert spill_conditions.largest_beside(1.0, 24 * GIB) == 24 * GIB
    assert spill_conditions.largest_beside(0.75, 24 * GIB) == 6 * GIB - MIB


@pytest.mark.parametrize(
    ("capacity", "fixed", "needed", "share"),
    [
        (10 * GIB, 2 * GIB, 12 * GIB, 0.95 * 0.8),
        (10 * GIB, 2 * GIB, 10 * GIB, None),  # it fitted
        (10 * GIB, 11 * GIB, 12 * GIB, None),  # the model alone does not fit
    ],
)
def test_the_batch_that_fits(capacity: int, fixed: int, needed: int, share: float | None) -> None:
    assert fitting_share(capacity, fixed, needed) == (share if share is None else pytest.approx(share))


def test_a_spill_is_told_with_its_price() -> None:
    spilled = Spilled("train", 812, int(2.4 * GIB), 1.04, 0.14, 32, 0.76)
    assert text_of(spilled) == (
        "step 812 spilled 2.4 GiB into host memory, 900 ms slower (1.0 s instead of 140 ms); a batch of 24 always fits "
        "(this one: 32)"
    )
    unknown = spilled._replace(batch=None, usual=None, seconds=None)
    assert (
        text_of(unknown) == "step 812 spilled 2.4 GiB into host memory; 76% of this batch would have fitted"
    )
    gaps = spilled._replace(is_gaps=True)
    assert "would have fitted the card, but not its free pieces" in text_of(gaps)
    assert text_of(gaps).endswith("avoids that, or a batch of 24 (this one: 32)")
    assert text_of(spilled._replace(phase="generate", left=GIB)).startswith(
        "step 812 (generate) spilled 2.4 GiB"
    )
    assert "a batch of 24 always fits" in always_text(spilled) and "900 ms slower each" in always_text(
        spilled
    )


def test_usual_steps_are_those_without_a_spill() -> None:
    times = StepTimes()
    assert times.usual is None
    for seconds in (0.1, 0.1, 0.12, 0.1):
        times.add(seconds, False)
    times.add(9.0, True)
    assert times.usual == 0.1 and not times.always_spills
    for _ in range(20):
        times.add(9.0, True)
    assert times.always_spills and times.usual == 0.1


# --- in the job -------------------------------------------------------------------------------------------------


class Pool:
    """A pool whose memory is real, without a PyTorch that could use it."""

    def __init__(self) -> None:
        self.memory, self.size, self.lives, self.withdrawn = taken(), 64 * MIB, 0, False

    def live(self) -> int:
        return self.lives

    def withdraw(self, driver: Any) -> bool:
        self.withdrawn = True
        return True


class InJob:
    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.card, self.agent, self.pool = Card(24 * GIB), FakeAgent(tmp_path, spill=GIB, margin=0), Pool()
        self.card.allocated, self.card.reserved, self.card.free = 6 * GIB, 16 * GIB, 0
        torch = self.card.torch()
        torch.cuda.synchronize = lambda device: None
        self.spill = spill.Spill(torch, self.agent, GIB)
        self.spill.pool = self.pool  # type: ignore[assignment]
        self.clock, self.step = 100.0, 0
        monkeypatch.setattr(spill.time, "perf_counter", lambda: self.clock)

    def steps(self, count: int, seconds: float = 0.1, spilled: int = 0) -> None:
        for _ in range(count):
            self.clock += seconds
            self.step += 1
            if spilled:
                import ctypes

                for at in range(0, spilled, PIECE):
                    ctypes.memset(self.pool.memory.address + at, self.step % 250 + 1, 64)
            self.spill.stepped(self.agent, self.step)


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> InJob:
    return InJob(tmp_path, monkeypatch)


def test_one_step_that_spills_is_recorded_told_and_ends_with_its_step(job: InJob, tmp_path: Path) -> None:
    job.spill.took_batch({"input_ids": SimpleNamespace(shape=(32, 512))})
    job.steps(10)
    assert not job.agent.reports and not job.agent.told and not job.card.emptied
    job.steps(1, seconds=1.1, spilled=24 * MIB)
    (told,) = job.agent.of("spill")
    assert (told["did"], told["step"], told["bytes"], told["batch"]) == ("spilled", 11, 24 * MIB, 32)
    assert told["slower"] == pytest.approx(1.0)
    assert job.card.emptied == 1  # or the next steps are served from there, though the card has enough
    assert "step 11 spilled 24 MiB into host memory, 1.0 s slower" in job.agent.told[0]
    job.steps(30)
    assert len(job.agent.told) == 1 and job.card.emptied == 1
    sums = json.loads((tmp_path / "4067-spill.json").read_text())
    assert sums["count"] == 1 and sums["largest"] == 24 * MIB and sums["step"] == 11


def test_a_job_that_always_spills_is_told_once_with_the_figure(job: InJob) -> None:
    job.card.reserved = 8 * GIB
    job.spill.took_batch([SimpleNamespace(shape=(12, 3)), 5])
    job.steps(60, seconds=1.0, spilled=32 * MIB)
    assert len(job.agent.told) == 2  # the first, and that it is no exception
    assert "most steps spill" in job.agent.told[1] and "a batch of 11 always fits" in job.agent.told[1]
    assert len(job.agent.of("spill")) == 60


def test_the_figures_are_those_of_what_was_alive_at_once(job: InJob, monkeypatch: pytest.MonkeyPatch) -> None:
    """As an H200 had them: 9.4 GiB for the job, 13.4 alive at once, 2.0 between two steps."""
    job.card.allocated, job.card.reserved, job.card.free = 2 * GIB, int(9.4 * GIB), 0
    job.spill.took_batch(SimpleNamespace(shape=(15, 512)))
    job.steps(5)
    monkeypatch.setattr(job.spill, "_most_alive", lambda: int(13.4 * GIB))
    job.steps(1, 2.6, spilled=24 * MIB)
    assert job.agent.of("spill")[0]["fitting"] == 9 and not job.agent.of("spill")[0]["is_gaps"]
    monkeypatch.setattr(job.spill, "_most_alive", lambda: 9 * GIB)  # all of it would have fitted
    job.steps(1, 2.6, spilled=24 * MIB)
    assert job.agent.of("spill")[1]["is_gaps"]


def test_a_phase_that_spills_is_told_as_such(job: InJob) -> None:
    job.steps(5)
    job.agent.phase_callbacks.append(job.spill.phase_changed)
    for seconds in (0.5, 0.5, 0.5, 0.5, 3.0):
        with job.agent.phase("generate"):
            job.clock += seconds
            if seconds > 1:
                put(job.pool.memory, 0)
    (told,) = job.agent.of("spill")
    assert told["phase"] == "generate" and told["slower"] == pytest.approx(2.5)
    job.steps(1)  # a step with a phase in it has no time of its own
    job.steps(4)
    assert len(job.agent.of("spill")) == 1


def test_a_host_that_is_short_gets_unused_memory_back(job: InJob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spill, "host_headroom", lambda margin: -1)
    monkeypatch.setattr(spill.ctypes, "CDLL", lambda name: None)
    job.steps(1, spilled=8 * MIB)
    assert not job.pool.withdrawn  # it is in use just now
    job.steps(2, seconds=2.0)
    assert job.pool.withdrawn and job.spill.pool is None
    assert "host memory is short" in job.agent.told[-1]
    job.steps(3)


def test_never_in_a_forked_child(job: InJob) -> None:
    child = os.fork()
    if child == 0:
        job.steps(3)  # to look at the memory would be a segmentation fault
        job.spill.phase_changed(job.agent, "eval", "train")
        os._exit(0 if not job.agent.reports else 1)
    assert os.waitpid(child, 0)[1] == 0


def torch_like(**changed: Any) -> Any:
    class MemPool:
        def __init__(
            self, allocator: Any = None, use_on_oom: bool = False, no_split: bool = False
        ) -> None: ...

    torch = Card().torch()
    torch.cuda.MemPool = MemPool
    torch._C._cuda_customAllocator = lambda alloc, free: None
    torch.version = SimpleNamespace(hip=None)
    for name, value in changed.items():
        setattr(torch, name, value)
    return torch


def without(torch: Any, name: str) -> Any:
    delattr(torch._C, name)
    return torch


@pytest.mark.parametrize(
    ("torch", "environment", "why"),
    [
        (torch_like(), {}, ""),
        (torch_like(), {"WORLD_SIZE": "1"}, ""),
        (torch_like(__version__="2.12.0a0+git1"), {}, ""),
        (torch_like(), {"WORLD_SIZE": "2"}, "2 ranks"),
        (torch_like(__version__="2.10.1"), {}, "PyTorch 2.10.1 cannot do it; 2.11 or newer can"),
        (without(torch_like(), "_cuda_getDeviceCount"), {}, "without CUDA"),
        (torch_like(version=SimpleNamespace(hip="6.2")), {}, "without CUDA"),
    ],
)
def test_what_cannot_spill_is_refused_by_name(torch: Any, environment: dict[str, str], why: str) -> None:
    assert (
        (why in spill_conditions.refusal(torch, environment))
        if why
        else (spill_conditions.refusal(torch, environment) == "")
    )


def test_another_allocator_is_refused() -> None:
    torch = torch_like()
    torch.cuda.get_allocator_backend = lambda: "cudaMallocAsync"
    assert "the allocator is cudaMallocAsync" in spill_conditions.refusal(torch, {})
    torch.cuda.MemPool = object
    assert "cannot do it" in spill_conditions.refusal(torch, {})


def test_a_refusal_is_told_and_written_down(tmp_path: Path) -> None:
    agent = FakeAgent(tmp_path, spill=GIB)
    spill.install(torch_like(__version__="2.9.0"), agent)
    assert agent.told == ["--spill does nothing here: PyTorch 2.9.0 cannot do it; 2.11 or newer can"]
    assert "2.11 or newer" in json.loads((tmp_path / "4067-spill.json").read_text())["refused"]
    quiet = FakeAgent(tmp_path)
    spill.install(torch_like(__version__="2.9.0"), quiet)  # nobody asked
    assert not quiet.told and not quiet.reports


def test_one_process_of_the_job_has_it(tmp_path: Path) -> None:
    first = spill.Spill(torch_like(), FakeAgent(tmp_path), GIB)
    second = spill.Spill(torch_like(), FakeAgent(tmp_path), GIB)
    assert first._claim() and not second._claim()
    (tmp_path / "spill.pid").write_text("999999999 1")  # its process has ended
    assert second._claim()
    (tmp_path / "spill.pid").write_text("no pid")
    assert first._claim()  # damaged: nobody's
    (tmp_path / "spill.pid").write_text("")  # another is just writing it
    assert not second._claim()
    assert small_part(8 * GIB) == 128 * MIB and small_part(GIB) == 16 * MIB
    assert spill_pool.gib(3 * GIB // 2) == "1.5 GiB"


def test_a_batch_of_any_shape() -> None:
    tensor = SimpleNamespace(shape=(16, 4))
    assert spill_conditions.samples_in(tensor) == 16
    assert spill_conditions.samples_in({"a": "text", "b": [tensor]}) == 16
    assert spill_conditions.samples_in(("label", tensor)) == 16
    assert spill_conditions.samples_in("text") is None and spill_conditions.samples_in([[[[tensor]]]]) is None
    assert spill_conditions.samples_in(SimpleNamespace(shape=())) is None

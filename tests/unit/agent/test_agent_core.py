"""The agent's own parts, in this process: phases, requests that several ranks answer together, sizes of variables."""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from oomproof.agent import agent_core, exceptions
from oomproof.agent.agent_core import Agent, in_phase
from oomproof.agent.trainers import job_requests


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Agent:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "OOMPROOF_AGENT_SOCKET"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OOMPROOF_AGENT_SETTINGS", '{"release": "warn"}')
    monkeypatch.setenv("OOMPROOF_STOP_FILE", str(tmp_path / "stop"))
    monkeypatch.setenv("OOMPROOF_SAVE_FILE", str(tmp_path / "save"))
    return Agent(str(tmp_path))


def test_phases_nest_and_leave_in_any_order(agent: Agent) -> None:
    seen: list[tuple[str, str]] = []
    agent.on_phase(lambda _, before, after: seen.append((before, after)))
    agent.set_base("train")
    outer, inner = agent.phase("eval"), agent.phase("generate")
    outer.__enter__()
    inner.__enter__()
    agent.set_base("eval")  # evaluating switched the model over
    outer.__exit__()
    assert agent.phase_now == "generate"
    inner.__exit__()
    assert agent.phase_now == "train", "the loop around it still trains"
    assert seen == [("", "train"), ("train", "eval"), ("eval", "generate"), ("generate", "train")]
    assert in_phase(agent, "save", lambda: agent.phase_now)() == "save"


def test_a_phase_tells_what_it_reached_on_the_gpu_itself(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From PyTorch's own peak, which is the script's: read, never set back."""
    card = {"current": 1, "peak": 1}
    cuda = SimpleNamespace(
        is_initialized=lambda: True,
        device_count=lambda: 1,
        memory_stats_as_nested_dict=lambda index: {"allocated_bytes": {"all": dict(card)}},
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    told: list[dict[str, Any]] = []
    agent.report = lambda kind, **fields: told.append(fields)  # type: ignore[method-assign]
    agent.set_base("load")
    agent.set_base("train")
    card.update(current=2, peak=3)  # a step, between two of its peaks
    with agent.phase("generate"):
        card.update(current=23, peak=24)
    with agent.phase("save"):  # what a dying exception keeps alive is neither's own
        pass
    card.update(current=2, peak=2)  # the script counts its peak anew
    with agent.phase("eval"):
        card.update(peak=5)
    seen = [(fields["name"], fields["gpu"], fields["left"], fields["reached"]) for fields in told]
    assert seen == [
        ("load", 1, "", 1),
        ("train", 1, "load", None),
        ("generate", 2, "train", 3),
        ("train", 23, "generate", 24),
        ("save", 23, "train", 3),
        ("train", 23, "save", None),
        ("eval", 2, "train", 3),
        ("train", 2, "eval", 5),
    ]


def test_steps_stand_in_the_record_at_once(agent: Agent, tmp_path: Path) -> None:
    from oomproof.recording import position_record

    steps: list[int] = []
    agent.on_step(lambda _, step: steps.append(step))
    agent.set_base("train")
    for step in (1, 2, 3):
        agent.stepped(step)
    (found,) = position_record.read_all(tmp_path)
    assert (found.step, found.phase) == (3, "train") and steps == [1, 2, 3]
    assert found.place.endswith("in test_steps_stand_in_the_record_at_once")
    assert (tmp_path / f"{found.pid}-now.txt").stat().st_mode & 0o077 == 0


def test_a_call_that_loads_is_told_from_what_is_before_the_first_step(agent: Agent, tmp_path: Path) -> None:
    from oomproof.recording import position_record

    def stands() -> tuple[str, bool, str]:
        (found,) = position_record.read_all(tmp_path)
        return found.phase, found.loading, found.place

    agent.set_base("load")
    assert stands() == ("load", False, "")
    with agent.phase("load"):
        with agent.phase("load"):  # from_pretrained() calls load_file()
            assert stands() == ("load", True, "")
        assert stands() == ("load", True, "")
    assert stands() == ("load", False, "")
    with pytest.raises(MemoryError), agent.phase("load"):
        raise MemoryError
    assert stands() == ("load", True, ""), "it died in there"
    agent.set_base("train")
    agent.stepped(1)
    with agent.phase("load"):  # a best checkpoint, taken back in the middle
        phase, _, place = stands()
    assert phase == "load" and "test_a_call_that_loads" in place


def test_a_hook_that_fails_is_silent(agent: Agent) -> None:
    told: list[str] = []
    agent.report = lambda kind, **fields: told.append(f"{kind} {fields.get('where')}")  # type: ignore[method-assign]
    agent.on_step(lambda *_: 1 / 0)
    agent.stepped(1)
    agent.stepped(2)
    assert told == ["agent-failed step"], "once"
    agent.install("trainers.phases_lightning", sys)  # not one of its modules
    assert told == ["agent-failed step", "agent-failed trainers.phases_lightning"]


def test_nobody_reading_costs_nothing_and_is_counted(agent: Agent) -> None:
    agent._socket_path = "/nowhere/at/all"
    for _ in range(100):
        agent.report("anything", size=1)
    assert agent.dropped == 36 and len(agent._outbox) == 64
    agent.report("huge", text="x" * 100_000)
    assert len(agent._outbox[-1]) < 32 * 1024


def test_last_words_that_nobody_read_are_left_in_a_file(agent: Agent, tmp_path: Path) -> None:
    """A job may be over before the run's socket is there; why it ended must not be lost with it."""
    agent._socket_path = str(tmp_path / "nobody")
    agent.report("phase", name="train")
    agent.report("exception", type="RuntimeError")
    agent.close()
    (left,) = Path(agent.folder).glob("*-unsent.jsonl")
    (words,) = left.read_text().splitlines()
    assert json.loads(words)["fields"] == {"type": "RuntimeError"}


def test_many_threads_tell_each_datagram_once(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two that sent at the same time sent one datagram twice and lost the next."""
    told, threads, seen = 50, 8, list[tuple[int, int]]()

    def sendto(data: bytes, path: str) -> None:
        time.sleep(0)  # as the real one, which lets other threads run
        seen.append(tuple(json.loads(data)["fields"]["n"]))

    def tell(who: int) -> None:
        start.wait()
        for number in range(told):
            agent.report("x", n=(who, number))

    # another thread has its turn between the question whether to send and the sending
    clock = SimpleNamespace(monotonic=lambda: (time.sleep(0), time.monotonic())[1])
    monkeypatch.setattr(agent_core, "time", clock)
    monkeypatch.setattr(agent_core, "_WAITING", told * threads)  # none is given up
    agent._socket_path, agent._socket = "front", SimpleNamespace(sendto=sendto)
    start = threading.Barrier(threads)
    workers = [threading.Thread(target=tell, args=(who,)) for who in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert sorted(seen) == [(who, number) for who in range(threads) for number in range(told)]
    assert not agent.dropped and not agent._outbox, "nothing waits for the next report either"


def test_place_made_in_a_full_outbox_takes_none_that_is_being_sent(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread reports while a datagram goes out: that one left its place already, and no other is given up."""
    monkeypatch.setattr(agent_core, "_WAITING", 3)
    sent: list[bytes] = []

    def sendto(data: bytes, path: str) -> None:
        sent.append(data[:1])
        if len(sent) == 1:
            agent.report("d")

    agent._outbox.extend([b"a", b"b", b"c"])
    agent._socket_path, agent._socket = "front", SimpleNamespace(sendto=sendto)
    agent._flush()
    assert sent == [b"a", b"b", b"c", b"{"] and not agent.dropped


def test_a_fork_in_the_middle_of_sending_leaves_a_child_that_can_tell(agent: Agent, tmp_path: Path) -> None:
    sent: list[bytes] = []
    agent._socket_path = "front"
    agent._sending.acquire()  # a thread of the parent's, which the child does not have
    agent.report("lost")
    assert agent._outbox, "nobody waits for it"
    agent.forked()
    agent._socket = SimpleNamespace(sendto=lambda data, path: sent.append(data))
    agent.report("told")
    assert len(sent) == 1 and b"told" in sent[0]


def test_settings_that_are_no_json_are_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for text in ("{", "[1]", ""):
        monkeypatch.setenv("OOMPROOF_AGENT_SETTINGS", text)
        assert Agent(str(tmp_path)).settings == {}


def test_one_process_answers_while_it_is_asked(
    agent: Agent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_requests, "_LOOK", 0.0)
    request = job_requests.Request(agent, "save")
    assert not request.due(1)
    (tmp_path / "save").touch()
    assert request.due(2)
    request.done()
    assert not (tmp_path / "save").exists() and not request.due(3)
    (tmp_path / "save").touch()
    assert request.due(4)
    (tmp_path / "save").unlink()  # the guard takes it back
    assert not request.due(5)


class Ranks:
    """Two ranks of one job; each step of theirs waits for the other, so neither is more than one step ahead."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        monkeypatch.setattr(job_requests, "world_size", lambda: 2)
        self.requests = []
        for rank in (0, 1):
            agent = Agent(str(folder))
            agent._rank = rank
            self.requests.append(job_requests.Request(agent, name))

    def step(self, count: int, first: int) -> list[bool]:
        answers: dict[int, bool] = {}
        for rank in (first, 1 - first):
            answers[rank] = self.requests[rank].due(count)
        return [answers[0], answers[1]]


@pytest.mark.parametrize("first", [0, 1])
def test_two_ranks_answer_in_the_same_step_once(
    first: int, agent: Agent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks = Ranks(tmp_path, monkeypatch, "save")
    assert ranks.step(1, first) == [False, False]
    answered = []
    for round_ in (0, 1):
        (tmp_path / "save").touch()
        for count in range(10 * round_ + 2, 10 * round_ + 12):
            answers = ranks.step(count, first)
            assert answers[0] == answers[1], "or one would save while the other trains, and both would hang"
            if answers[0]:
                answered.append(count)
                for rank in (1 - first, first):
                    ranks.requests[rank].done()
    assert len(answered) == 2, answered


def test_a_request_that_is_acted_on_is_marked_as_taken(agent: Agent, tmp_path: Path) -> None:
    request = job_requests.Request(agent, "stop")
    assert not request.due(1) and not (tmp_path / "stop.taken").exists()
    request._looked = 0.0
    (tmp_path / "stop").touch()
    assert request.due(2) and (tmp_path / "stop.taken").exists()


def test_jobs_over_several_machines_are_not_stopped_by_a_file(
    agent: Agent, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "16")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    monkeypatch.setattr(job_requests._Loop, "request", None)
    (tmp_path / "stop").touch()
    assert job_requests.stop_requested(agent) is False


def test_sizes_not_values() -> None:
    assert exceptions.size_of("x" * 5000)[0] > 5000
    size, what = exceptions.size_of([b"y" * 1000] * 100)
    assert size > 100_000 and what == "list of 100"
    assert exceptions.size_of({"a": "z" * 3000})[0] > 3000

    class Hostile:
        def __len__(self) -> int:
            raise RuntimeError

        def __getattr__(self, name: str) -> Any:
            raise RuntimeError

    assert exceptions.size_of(Hostile()) == (0, "Hostile")


def test_an_error_is_told_without_its_values(agent: Agent) -> None:
    told: dict[str, Any] = {}
    agent.report = lambda kind, **fields: told.update(fields)  # type: ignore[method-assign]

    def inner(password: str) -> None:
        raise ValueError(password)

    try:
        inner("hunter2" * 1000)
    except ValueError as error:
        exceptions.describe(agent, error, error.__traceback__)
    assert told["type"] == "builtins.ValueError" and "hunter2" not in repr(told)
    last = told["frames"][-1]
    assert last["name"] == "inner" and last["locals"][0][0] == "password" and last["locals"][0][1] > 7000

"""Accounts of a full card as the agent writes them, and a PyTorch that is only its figures."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

MIB, GIB = 1 << 20, 1 << 30


def account(**changed: Any) -> dict[str, Any]:
    """24 GiB of a card: a 2 GiB model with its optimizer trains; the evaluation asks for 1.5 GiB too much."""
    value: dict[str, Any] = {
        "pid": 4067, "wall": 1_700_001_100.0, "device": 0, "requested": 1536 * MIB, "number": 1,
        "total": 24 * GIB, "free": 512 * MIB, "allocated": 20 * GIB, "active": 20 * GIB, "reserved": 21 * GIB,
        "splits": 1 * GIB, "retries": 1, "ooms": 1, "backend": "native", "expandable": False, "allowed": None,
        "outside": 2560 * MIB, "outside_first": 2400 * MIB, "own": 21 * GIB + 768 * MIB, "context": 768 * MIB, "others": 1792 * MIB,
        "phase": "eval", "step": 50, "stack": ["evaluate (train.py:31)", "main (train.py:60)"], "torch": "2.11.0+cu128",
        "pieces": {"largest_free": 300 * MIB, "split_free": 1 * GIB, "wholly_free": 0, "segments": 90},
        "owners": [
            {"kind": "parameter", "owner": "parameters of GPT2LMHeadModel", "bytes": 2 * GIB, "count": 149, "example": "wte.weight float32 [50257, 768]"},
            {"kind": "optimizer", "owner": "optimizer state of AdamW", "bytes": 4 * GIB, "count": 298, "example": "exp_avg float32 [768]"},
        ],
        "unseen": 0, "neighbours": [],
    }  # fmt: skip
    return {**value, **changed}


def owners(*extra: tuple[str, str, int]) -> list[dict[str, Any]]:
    return [
        *account()["owners"],
        *(
            {"kind": kind, "owner": owner, "bytes": size, "count": 9, "example": "float32 [16, 512, 50257]"}
            for kind, owner, size in extra
        ),
    ]


class FakeAgent:
    """The contract of agent/agent_core.py: what was reported and told is kept."""

    rank: int | None = None

    def __init__(self, folder: Any = None, **settings: Any) -> None:
        self.settings = settings
        self.folder = folder if folder is not None else "/nowhere"
        self.reports: list[tuple[str, dict[str, Any]]] = []
        self.told: list[str] = []
        self.phase_now, self.step = "train", 7
        self.around_inference: Any = None
        self.phase_callbacks: list[Any] = []
        self.step_callbacks: list[Any] = []

    def report(self, kind: str, **fields: Any) -> None:
        self.reports.append((kind, fields))

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [fields for name, fields in self.reports if name == kind]

    def file(self, name: str) -> str:
        path = self.folder / f"4067-{name}"
        path.touch(0o600)
        return str(path)

    def tell(self, text: str) -> None:
        self.told.append(text)

    def on_phase(self, callback: Any) -> None:
        self.phase_callbacks.append(callback)

    def on_step(self, callback: Any) -> None:
        self.step_callbacks.append(callback)

    def phase(self, name: str) -> Any:
        return _Phase(self, name)


class _Phase:
    def __init__(self, agent: FakeAgent, name: str) -> None:
        self.agent, self.name = agent, name

    def __enter__(self) -> None:
        self.before, self.agent.phase_now = self.agent.phase_now, self.name
        self._told(self.before)

    def __exit__(self, *_: object) -> None:
        self.agent.phase_now = self.before
        self._told(self.name)

    def _told(self, before: str) -> None:
        for callback in self.agent.phase_callbacks:
            callback(self.agent, before, self.agent.phase_now)


class Card:
    """torch.cuda as far as the agent asks it, over figures a test sets."""

    def __init__(self, total: int = 24 * GIB) -> None:
        self.total, self.free = total, total - GIB
        self.allocated = self.reserved = self.splits = self.retries = self.ooms = 0
        self.started = True
        self.emptied = 0
        self.queued: list[Any] = []
        self.observers: list[Any] = []
        self.fractions: dict[int, float] = {}
        self.segments: list[dict[str, Any]] = []
        self.traced: list[Any] = []
        self.initialized_by_us = 0
        self.version = "2.11.0"
        self.settings: dict[str, Any] | None = None  # as the snapshot tells them

    def torch(self) -> Any:
        memory = SimpleNamespace(
            _record_memory_history=lambda *words, **more: self.traced.append((words, more)),
            _snapshot=lambda: {
                "segments": self.segments,
                "device_traces": [[]],
                **({"allocator_settings": self.settings} if self.settings is not None else {}),
            },
        )
        cuda = SimpleNamespace(
            is_initialized=lambda: self.started,
            memory_stats_as_nested_dict=lambda device: self._stats(),
            mem_get_info=lambda device: (self.free, self.total),
            get_allocator_backend=lambda: "native",
            device_count=lambda: 1,
            current_device=lambda: 0,
            get_device_properties=lambda device: SimpleNamespace(total_memory=self.total),
            memory_snapshot=lambda: self.segments,
            memory_reserved=lambda device: self.reserved,
            set_per_process_memory_fraction=lambda share, device: self.fractions.__setitem__(device, share),
            set_device=lambda device: None,
            empty_cache=self._empty,
            _lazy_call=self.queued.append,
            memory=memory,
        )
        inner = SimpleNamespace(
            _cuda_getDeviceCount=lambda: 1, _cuda_attach_out_of_memory_observer=self.observers.append
        )
        return SimpleNamespace(cuda=cuda, _C=inner, __version__=self.version)

    def _empty(self) -> None:
        self.emptied += 1
        given = self.reserved - self.allocated - self.splits
        self.reserved -= given
        self.free += given

    def _stats(self) -> dict[str, Any]:
        def all_of(value: int) -> dict[str, Any]:
            return {"all": {"current": value}}

        return {
            "allocated_bytes": all_of(self.allocated), "active_bytes": all_of(self.allocated), "active": all_of(100),
            "reserved_bytes": all_of(self.reserved), "inactive_split_bytes": all_of(self.splits), "inactive_split": all_of(10),
            "num_alloc_retries": self.retries, "num_ooms": self.ooms,
        }  # fmt: skip


def segment(total: int, *blocks: tuple[int, bool], device: int = 0) -> dict[str, Any]:
    return {
        "device": device, "total_size": total, "segment_pool_id": (0, 0), "stream": 0,
        "blocks": [{"size": size, "requested_size": size, "state": "active_allocated" if used else "inactive", "frames": []}
                   for size, used in blocks],
    }  # fmt: skip


class NVMLError(Exception):
    pass


class FakeNvml(SimpleNamespace):
    """As much of pynvml as we call."""

    NVMLError = NVMLError

    def __init__(self, *cards: dict[str, Any]) -> None:
        super().__init__(cards=cards)

    def nvmlDeviceGetCount(self) -> int:
        return len(self.cards)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> dict[str, Any]:
        if self.cards[index].get("lost"):
            raise NVMLError("GPU is lost")
        return self.cards[index]  # type: ignore[no-any-return]

    def nvmlDeviceGetName(self, handle: dict[str, Any]) -> bytes:
        return b"NVIDIA GeForce RTX 4090"

    def nvmlDeviceGetMemoryInfo(self, handle: dict[str, Any]) -> SimpleNamespace:
        if "memory" not in handle:
            raise NVMLError("Not Supported")
        total, free = handle["memory"]
        return SimpleNamespace(total=total, free=free, used=total - free)

    def nvmlDeviceGetComputeRunningProcesses(self, handle: dict[str, Any]) -> list[SimpleNamespace]:
        return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in handle.get("compute", [])]

    def nvmlDeviceGetPersistenceMode(self, handle: dict[str, Any]) -> int:
        if "persistence" not in handle:
            raise NVMLError("Not Supported")
        return int(handle["persistence"])

    def nvmlDeviceGetGraphicsRunningProcesses(self, handle: dict[str, Any]) -> list[SimpleNamespace]:
        if handle.get("wsl"):
            raise NVMLError("Not Supported")
        return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in handle.get("graphics", [])]

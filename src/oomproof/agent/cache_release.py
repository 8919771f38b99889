"""Whether to give unused GPU memory back after evaluating or generating. Pure, but for the last step.

``empty_cache()`` frees no tensor, and the allocator returns wholly free segments by itself before it raises: unused
memory hurts *neighbours* on the card, and a next step whose way is blocked by split segments. Giving it back costs a
wait for the card and new requests to the driver, so a loop that generates every step must not do it."""

from __future__ import annotations

import os
import time
from typing import Any, NamedTuple

from ..leaf.allocator_memory import CudaMemory
from ..leaf.attempt_names import RELEASE_REQUEST
from . import cuda_memory
from .agent_core import note_failure

GIB = 1 << 30
POLICIES = ("warn", "auto", "always", "never")
QUIET = ("eval", "generate")  # what is released after
_MUCH = 0.02  # of the card, and at least this many bytes:
_MUCH_BYTES = GIB
_SHORT = 0.05  # of the card free: whoever else is there gets nothing more
_NEIGHBOUR = 3 * GIB // 2  # outside our allocator; our own context and libraries take 0.75 GiB (measured)
_APART = 10.0  # seconds between two releases
_LOOK = 1.0  # seconds between two looks for a request


class SinceRelease(NamedTuple):
    """What has happened since the last visit and the last release."""

    steps: int | None  # optimizer steps since the last time this was asked; None: no steps are counted
    seconds: float  # since the last release
    retries: int  # allocator retries since the last time this was asked


def decide(policy: str, memory: CudaMemory, since: SinceRelease) -> str:
    """ "release", "warn" or "" with nothing to do."""
    much = memory.returnable >= max(_MUCH_BYTES, int(memory.total * _MUCH))
    if policy == "never" or not much:
        return ""
    if policy == "always":
        return "release"
    if policy != "auto":
        return "warn"
    if since.seconds < _APART or (since.steps is not None and since.steps <= 1):
        return ""  # it would be asked for again at once
    # short: hardly anything is left, or we sit idle on more than all that is left
    neighbour_short = memory.outside >= _NEIGHBOUR and memory.free < max(
        memory.total * _SHORT, memory.returnable
    )
    blocked = since.retries > 0 and memory.splits >= memory.total * _SHORT
    return "release" if neighbour_short or blocked else ""


class Releaser:
    """Looks when an evaluation or a generation ends."""

    def __init__(self, torch: Any, agent: Any) -> None:
        self.torch, self.agent = torch, agent
        policy = str(agent.settings.get("release") or "warn")
        self.policy = policy if policy in POLICIES else "warn"
        self._released = -1e9
        self._step: int | None = None
        self._retries = 0
        self._warned = False
        self._told_release = False
        self._looked = time.monotonic()
        self._answered = self._asked()  # of a time before this process: meant for those that were there

    def stepped(self, agent: Any, step: int) -> None:
        """At the end of a step: whether a guard asked for what is unused. Each process of the job answers a request once."""
        now = time.monotonic()
        if now - self._looked < _LOOK:
            return
        self._looked = now
        asked = self._asked()
        if asked == self._answered or not self.torch.cuda.is_initialized():
            return
        if not cuda_memory.capturing(self.torch):
            self._answered = asked
            self.look("a request of the guard", by_hand=True)

    def _asked(self) -> int:
        """Which request stands there, by its file's time; 0: none."""
        try:
            return os.stat(os.path.join(self.agent.folder, RELEASE_REQUEST)).st_mtime_ns
        except OSError:
            return 0

    def phase_changed(self, agent: Any, before: str, now: str) -> None:
        if before in QUIET and now not in QUIET:
            self.look(before)

    def look(self, after: str, by_hand: bool = False) -> None:
        try:
            torch, agent = self.torch, self.agent
            if self.policy == "never" or not torch.cuda.is_initialized():
                return
            for device in cuda_memory.devices(torch):
                memory = cuda_memory.read(torch, device)
                if memory is None:
                    continue
                since = SinceRelease(
                    None if self._step is None or agent.step is None else agent.step - self._step,
                    time.monotonic() - self._released,
                    memory.retries - self._retries,
                )
                self._retries = memory.retries
                what = decide("always" if by_hand else self.policy, memory, since)
                if what == "release":
                    self._release(memory, after)
                elif what == "warn" and not self._warned:
                    self._warned = True
                    agent.report(
                        "release",
                        did="warned",
                        device=device,
                        after=after,
                        unused=memory.unused,
                        returnable=memory.returnable,
                    )
                    agent.tell(warning(memory, after))
            self._step = agent.step
        except Exception as error:
            note_failure(self.agent, "release", error)

    def _release(self, memory: CudaMemory, after: str) -> None:
        begun = time.monotonic()
        self.torch.cuda.empty_cache()
        self._released = time.monotonic()
        left = cuda_memory.read(self.torch, memory.device)
        freed = memory.reserved - (left.reserved if left is not None else memory.reserved)
        first, self._told_release = not self._told_release, True
        text = f"gave {size(freed)} of GPU {memory.device} back after {after}" if first else ""
        self.agent.report(
            "release", text=text, did="released", device=memory.device, after=after, freed=freed, policy=self.policy,
            seconds=round(self._released - begun, 4), step=self.agent.step,
        )  # fmt: skip

    def inference(self) -> Any:
        return _Inference(self)


class _Inference:
    """`with oomproof.inference():` no graph is kept inside, and what is unused afterwards goes back."""

    def __init__(self, releaser: Releaser) -> None:
        self._releaser = releaser
        self._no_grad = releaser.torch.no_grad()

    def __enter__(self) -> Any:
        self._no_grad.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._no_grad.__exit__(*error)
        self._releaser.look("inference", by_hand=True)


def warning(memory: CudaMemory, after: str) -> str:
    return (
        f"after {after}: {size(memory.allocated)} of GPU {memory.device} is in use by tensors, {size(memory.unused)} more stays reserved and unused. This process will use it again; "
        "other processes on the card cannot have it. To give it back: --release always, or torch.cuda.empty_cache()"
    )


def size(number: float) -> str:
    for unit, scale in (("GiB", GIB), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if number >= scale:
            return f"{number / scale:.1f} {unit}" if unit == "GiB" else f"{number / scale:.0f} {unit}"
    return f"{int(number)} bytes"

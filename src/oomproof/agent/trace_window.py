"""A bounded window in which a tracer looks at who allocates what stays: begun and read between two steps, when the run has
told that memory leaks and asks for it by a file. In a job that makes none, a second counts as a step.

Each tracer is blind somewhere, so the kind of memory that grows picks it: tracemalloc for Python's objects, memray, where the
job's environment has it, for native code. What the C library merely keeps is given back, which proves that it is no leak."""

from __future__ import annotations

import os
import time
from collections import deque

from ..leaf.attempt_names import TRACE_REQUEST
from ..leaf.heap_kinds import ARROW, COUNTERS, MAPPED, NATIVE, RETAINED, most_of, split
from .tracers import MemrayTracer, PythonTracer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .agent_core import Agent

_LOOK = 2.0  # seconds between two looks for it
_OLD = 60.0  # seconds after which the headroom in it means nothing
# of the counters before their growth tells a kind; at each end, of which the median counts
_LOOKS, _EDGE = 3, 3
_SETTLE = 3  # steps that are not compared: caches of the first ones under the tracer
_STEPS, _SHORTEST, _LONGEST = 30, 10.0, 60.0  # a window: so many steps and seconds, or the longest
_SLOW_STEPS, _EVER = 8, 300.0  # ... or so many steps of a job whose steps are slow
_GROWN = 0.5  # of what so many steps made it grow by before: then the window has seen it
_LATE = 30.0  # seconds after that, a window that no step ends is ended by a thread
_UNSETTLED = 120.0  # ... and one that the first steps do not come to
_GLANCE = 5.0
_DEEP = 12  # frames, when the line that allocates is a library's
_WINDOWS = 6  # in the life of a process
_UNSEEN = {
    RETAINED: "the C library keeps what was freed: nobody allocates it",
    ARROW: "no tracer sees Arrow's pool",
}
_RETAINED = 64 << 20  # bytes that the C library must keep before it is asked to give them back


class Witness:
    """Of one process. Only called between two steps, but for its own thread."""

    def __init__(
        self, agent: Agent, is_library: Callable[[str], bool], held: Callable[[], int | None]
    ) -> None:
        import _thread

        self._agent, self._is_library, self._held = agent, is_library, held
        self._lock = _thread.allocate_lock()
        self._first: list[dict[str, Any]] = []
        self._last: deque[dict[str, Any]] = deque(maxlen=_EDGE)
        self._next_look = 0.0
        self._window: _Window | None = None
        self._left = _WINDOWS
        self._trimmed = False

    def note(self, counters: dict[str, Any]) -> None:
        """One look at the allocators' counters."""
        if len(self._first) < _EDGE:
            self._first.append(counters)
        self._last.append(counters)
        kind, by_kind = self._kind()
        if kind == RETAINED and by_kind[RETAINED] >= _RETAINED and not self._trimmed:
            self._trim()

    def stepped(self, now: float, step: int) -> None:
        window = self._window
        if window is not None:
            if window.is_over(now, step):
                self._finish(window, now, step)
        elif now >= self._next_look:
            self._next_look = now + _LOOK
            if self._left and len(self._last) >= _LOOKS:
                headroom = self._requested(now)
                if headroom is not None:
                    self._choose(headroom, now, step)

    def forked(self) -> None:
        """In a forked child, which does not go on with the parent's window."""
        if self._window is not None:
            self._window.tracer.drop_in_child()

    def close(self) -> None:
        """At the interpreter's end."""
        window = self._window
        if window is not None and self._claim(window):
            window.tracer.stop()

    # --- which witness ------------------------------------------------------------------------------------------

    def _requested(self, now: float) -> int | None:
        path = os.path.join(self._agent.folder, TRACE_REQUEST)
        try:
            with open(path, "rb") as file:
                data = file.read(4096)
            os.unlink(path)  # who removes it has it: of several processes, one
        except OSError:
            return None
        import json

        try:
            request = json.loads(data)
            headroom, asked = int(request["headroom"]), float(request["t"])
        except (ValueError, KeyError, TypeError):
            return None
        return headroom if abs(now - asked) <= _OLD else None

    def _kind(self) -> tuple[str, dict[str, int]]:
        if len(self._last) < _LOOKS:
            return "", {}
        grown = {name: _median(self._last, name) for name in COUNTERS}
        for name, before in ((name, _median(self._first, name)) for name in COUNTERS):
            after = grown[name]
            grown[name] = after - before if after is not None and before is not None else None
        by_kind = split(grown)
        return (most_of(by_kind, grown["anon"] or 0), by_kind) if by_kind else ("", {})

    def _rate(self) -> float:
        """Bytes a step that it grew by so far; 0 where that is not known."""
        bytes_before, bytes_after, before, after = (
            _median(looks, name) for name in ("anon", "step") for looks in (self._first, self._last)
        )
        if bytes_before is None or bytes_after is None or before is None or after is None or after <= before:
            return 0.0
        return max(0.0, (bytes_after - bytes_before) / (after - before))

    def _choose(self, headroom: int, now: float, step: int) -> None:
        kind, by_kind = self._kind()
        if kind in _UNSEEN:
            self._agent.report("trace", memory=kind, step=self._agent.step, problem=_UNSEEN[kind])
            return
        native = by_kind.get(NATIVE, 0) + by_kind.get(MAPPED, 0)
        is_native = kind in (NATIVE, MAPPED) or (not kind and 2 * native > sum(by_kind.values()))
        tracers = [PythonTracer(1, self._is_library)]
        if is_native:
            path = os.path.join(self._agent.folder, f"{os.getpid()}-{self._left}.memray")
            tracers.insert(0, MemrayTracer(path))  # type: ignore[arg-type]
        problems = []
        for tracer in tracers:
            problem = tracer.problem(headroom)
            if not problem and self._begin(tracer, kind, now, step, headroom):
                return
            problems.append(problem or "it could not be started")
        self._agent.report("trace", memory=kind, step=self._agent.step, problem="; ".join(problems))

    def _begin(self, tracer: Any, kind: str, now: float, step: int, headroom: int) -> bool:
        import _thread

        self._left -= 1
        try:
            tracer.start()
            self._window = _Window(tracer, kind, now, step, self._held, self._rate(), headroom)
            _thread.start_new_thread(self._end_late, (self._window,))
            return True
        except Exception as error:  # half installed, no thread, no space
            self._window = None
            tracer.stop()
            self._agent.failed("trace_window." + tracer.name, error)
            return False

    # --- its end --------------------------------------------------------------------------------------------------

    def _claim(self, window: _Window) -> bool:
        """Whether it is the caller's to end: the step and the thread may both want to."""
        with self._lock:
            mine = self._window is window
            if mine:
                self._window = None
        if mine:
            window.over.release()
        return mine

    def _finish(self, window: _Window, now: float, step: int) -> None:
        if not self._claim(window):
            return
        held = self._held()
        try:
            told = window.tracer.finish()
        except Exception as error:
            window.tracer.stop()
            self._agent.failed("trace_window." + window.tracer.name, error)
            return
        grown = held - window.held if held is not None and window.held is not None else None
        deeper, headroom = PythonTracer(_DEEP, self._is_library), window.headroom - (grown or 0)
        deep = bool(told.pop("in_libraries", False)) and window.tracer.frames == 1 and self._left > 0
        deep = deep and not deeper.problem(headroom)
        self._agent.report(
            "trace", witness=window.tracer.name, memory=window.kind,
            steps=0 if self._agent.step is None else step - window.first_step, seconds=now - window.begun,
            step=self._agent.step, grown=grown, expected=window.rate, more=deep, **told,
        )  # fmt: skip
        if deep:
            self._begin(deeper, window.kind, now, step, headroom)

    def _end_late(self, window: _Window) -> None:
        """A thread of its own: the loop may have ended, or hang, and nobody else may be there to end the window."""
        while not window.over.acquire(True, _GLANCE):
            if time.monotonic() < window.deadline:
                continue
            if self._claim(window):
                try:
                    window.tracer.stop()
                    self._agent.report("trace", memory=window.kind, problem="no step ended the window")
                except Exception as error:
                    self._agent.failed("trace_window.late", error)
            return

    def _trim(self) -> None:
        """Once: what comes back was used by nobody."""
        from .heap_counters import counters, give_back

        self._trimmed = True
        before, free = self._held(), self._last[-1].get("malloc_free")
        begun = time.perf_counter()
        if not give_back():
            return
        seconds, after = time.perf_counter() - begun, self._held()
        if before is not None and after is not None:
            kept = counters().get("malloc_free")
            self._agent.report("trim", given=before - after, free=free, kept=kept, seconds=seconds)


class _Window:
    def __init__(
        self,
        tracer: Any,
        kind: str,
        now: float,
        step: int,
        held: Callable[[], int | None],
        rate: float,
        headroom: int,
    ) -> None:
        import _thread

        self.tracer, self.kind, self.rate, self.headroom = tracer, kind, rate, headroom
        self.begun, self.first_step = now, step
        self.deadline = time.monotonic() + _UNSETTLED
        self.held = held()
        self.over = _thread.allocate_lock()
        self.over.acquire()
        self._settled, self._longest, self._held = False, _LONGEST, held

    def is_over(self, now: float, step: int) -> bool:
        if not self._settled:
            if step - self.first_step < _SETTLE:
                return bool(self.tracer.is_full())
            self._settled = True
            seconds = (now - self.begun) / (step - self.first_step)
            self._longest = min(_EVER, max(_LONGEST, _SLOW_STEPS * seconds))
            self.deadline = time.monotonic() + self._longest + _LATE
            if self.tracer.settle():
                self.begun, self.first_step, self.held = now, step, self._held()
            return False
        seconds, steps = now - self.begun, step - self.first_step
        enough = steps >= _STEPS and seconds >= _SHORTEST and self._has_grown(steps)
        return enough or seconds >= self._longest or bool(self.tracer.is_full())

    def _has_grown(self, steps: int) -> bool:
        """What leaks in an evaluation does not leak in the steps between two."""
        held = self._held()
        return held is None or self.held is None or held - self.held >= _GROWN * self.rate * steps


def _median(looks: Any, name: str) -> int | None:
    values = sorted(value for value in (look.get(name) for look in looks) if isinstance(value, int))
    return values[len(values) // 2] if values else None

"""The agent of one process: its phase and step, what it tells the run, and the files it leaves beside the recording."""

from __future__ import annotations

import os
import sys
import time
from _thread import allocate_lock
from collections import deque

from ..leaf.attempt_names import NOW, UNSENT
from ..leaf.proc_files import boottime
from .agent_start import touch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_LARGEST = 32 * 1024  # bytes of one datagram
_WAITING = 64  # datagrams kept for a front that is slow; the kernel itself holds only ten
_LAST_WORDS = (b'{"kind":"exception"', b'{"kind":"saved"')  # left in a file where nobody read them
# changes of phase told a second, and at once: a loop that generates in every step has many
_RATE, _BURST = 20.0, 40.0
_RECORD = 160  # bytes of the line that outlives a kill; behind it, the place in the code
_LOCATION = 240
_LOADING, _NOT_LOADING = b"loading\n", b"-------\n"  # behind both: whether a call that loads is open
_LOOK = 0.1  # seconds between two looks of a step at more than its number
# Seconds between two looks at the allocators' counters, as a share of the training so far (a run of a week then tells four
# hundred), and as a multiple of what one costs: glibc walks its free blocks, which takes 40 ms in a heap full of holes.
_HEAP, _HEAP_SHARE, _HEAP_COST = 10.0, 0.02, 500.0
_HEAP_FAILURES = 3  # then never again
_LATELY = 1.0  # seconds, and three steps: so long after a step the next one is waited for
_DEEP = 40  # frames between the optimizer and the loop that calls it


_HERE = os.path.dirname(os.path.abspath(__file__))
_STANDARD = os.path.dirname(os.__file__)


class RateLimit:
    """So many a second, and a burst at once."""

    def __init__(self, rate: float, burst: float) -> None:
        self._rate, self._burst, self._left = rate, burst, burst
        self.filled = 0.0

    def allows(self, now: float) -> bool:
        self._left = min(self._burst, self._left + (now - self.filled) * self._rate)
        self.filled = now
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True


class Agent:
    """Nothing in here raises, blocks or prints."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.settings: dict[str, Any] = _settings()
        # a hook may set it: called by oomproof.inference(), gives a context manager
        self.around_inference: Callable[[], Any] | None = None
        self.dropped = 0
        self.steps_told = False  # a trainer tells its own steps: those of the optimizer are not counted
        self._socket_path = os.environ.get("OOMPROOF_AGENT_SOCKET") or ""
        self._retry_at = 0.0
        self._left = ""  # the phase before the one that is told next
        self._changes = RateLimit(_RATE, _BURST)
        self._looked_at = 0.0
        self._heap_failures = 0
        self._loading = False
        self._libraries: dict[Any, bool] = {}
        self._rank: int | None = None
        self._installed: set[tuple[str, str]] = set()
        self._failed: set[str] = set()
        self.on_batch: list[Callable[[Any], Any]] = []  # called with what a DataLoader gives
        self._on_phase: list[Callable[..., Any]] = []
        self._on_step: list[Callable[..., Any]] = []
        self._begin()

    def _begin(self) -> None:
        """What is this process's own: at the start, and in a forked child."""
        self.step: int | None = None
        self._socket: Any = None
        self._outbox: deque[bytes] = deque()
        self._sending = allocate_lock()  # one thread at a time, and nobody waits for it
        self._base = ""
        self._stack: list[_Phase] = []
        self._told: tuple[str, int | None] = ("", None)  # the phase the run knows of
        self._level: tuple[int, int] | None = None  # on the GPU when the phase was entered
        self._reached: dict[str, int] = {}  # on the GPU, by each phase itself
        self._told_files: set[tuple[str, str]] = set()
        self._now_fd: int | None = None
        self._heap_since, self._next_heap = 0.0, 0.0
        self._containers: Any = None
        self._witness: Any = None  # who looks closer when memory leaks, from the first look at the heap on
        self._stepped_at, self._step_seconds = 0.0, 0.0
        self._census_due = False  # asked for in the middle of a step
        self._in_census = False
        self._location: tuple[Any, int] | None = None  # the code and line that made the last step

    # --- what other modules of ours use -----------------------------------------------------------------------

    def report(self, kind: str, **fields: Any) -> None:
        """A datagram to the run. When nobody reads, it waits for the next; when too many wait, the oldest goes."""
        try:
            import json

            value: dict[str, Any] = {
                "kind": kind,
                "pid": os.getpid(),
                "t": boottime(),
                "rank": self.rank,
                "fields": fields,
            }
            data = json.dumps(value, default=str, separators=(",", ":")).encode("utf-8", "replace")
            if len(data) > _LARGEST:
                value["fields"] = {"too_long": len(data), "names": sorted(fields)[:20]}
                data = json.dumps(value).encode()
            if len(self._outbox) >= _WAITING:
                self._outbox.popleft()
                self.dropped += 1
            self._outbox.append(data)
            self._flush()
        except Exception:  # counted, and told with the next one that gets through
            self.dropped += 1

    def file(self, name: str) -> str:
        """The path of a file of this process in the attempt's folder, made for its owner only."""
        path = os.path.join(self.folder, f"{os.getpid()}-{name}")
        try:
            touch(path)
        except OSError:
            pass
        return path

    def phase(self, name: str) -> _Phase:
        return _Phase(self, str(name))

    @property
    def phase_now(self) -> str:
        return self._stack[-1].name if self._stack else self._base

    def on_phase(self, callback: Callable[..., Any]) -> None:
        """callback(agent, before, now), after a change."""
        self._on_phase.append(callback)

    def on_step(self, callback: Callable[..., Any]) -> None:
        """callback(agent, step), after a step of the optimizer."""
        self._on_step.append(callback)

    def tell(self, text: str) -> None:
        self.report("tell", text=str(text)[:2000])

    def failed(self, where: str, error: BaseException) -> None:
        """A failure of ours, once for each place: recorded, never shown to the job."""
        if where not in self._failed:
            self._failed.add(where)
            self.report("agent-failed", where=where, error=type(error).__name__, text=str(error)[:500])

    def install(self, name: str, module: Any) -> None:
        """One of our modules onto one of the job's, once."""
        key = (name, module.__name__)
        if key in self._installed:
            return
        self._installed.add(key)
        try:
            import importlib

            importlib.import_module(__name__.rpartition(".")[0] + "." + name).install(module, self)
        except Exception as error:
            self.failed(name, error)

    # --- phases and steps -------------------------------------------------------------------------------------

    @property
    def rank(self) -> int | None:
        """None for a job of one process."""
        if self._rank is None:
            rank = os.environ.get("RANK", "")
            if rank.isdigit():
                self._rank = int(rank)
            else:
                try:
                    group = process_group()
                    if group is not None:
                        self._rank = group.get_rank()
                except Exception:  # it is being torn down
                    pass
        return self._rank

    @property
    def base(self) -> str:
        return self._base

    @property
    def narrowed(self) -> bool:
        """Whether a phase is open inside the base."""
        return bool(self._stack)

    def set_base(self, name: str) -> None:
        """What the job does when no narrower phase is open."""
        if name != self._base:
            before = self.phase_now
            self._base = name
            self._changed(before)

    def stepped(self, step: int) -> None:
        """After a step of the optimizer: some microseconds, whatever happens here."""
        try:
            if self.step is None and self._heap_since:
                self._forget_heap()
            self.step = step
            now = boottime()
            self._step_seconds, self._stepped_at = (now - self._stepped_at if self._stepped_at else 0.0), now
            self._write_now(now)
            if now - self._looked_at >= _LOOK:  # what is cold in the cache costs more than what is long
                self._looked_at = now
                self._write_location()
                if self._told[0] != self.phase_now and self._changes.allows(now):
                    self._tell_phase()
                elif self._outbox:
                    self._flush()
                if now >= self._next_heap:
                    self._tell_heap(now)
                if self._witness is not None:
                    self._witness.stepped(now, step)
            for callback in self._on_step:
                callback(self, step)
        except Exception as error:
            self.failed("step", error)
        if self._census_due:  # outside: a signal of the job's that comes meanwhile may raise
            self._take_census()

    def census_asked(self) -> None:
        """From a signal handler: now, or at the end of the step that runs."""
        since = boottime() - self._stepped_at
        if self._stepped_at and since < _LATELY + 3 * self._step_seconds:
            self._census_due = True
        else:
            self._take_census()

    def put_off_census(self) -> None:
        """To the end of the next step, if there is one."""
        self._census_due = True

    def _take_census(self) -> None:
        """Once for each request. Whoever asks repeats its signal: what comes in the middle of a census waits for that."""
        if self._in_census:
            return
        self._in_census, self._census_due = True, False
        try:
            try:
                from .census import answer
                from .frame_variables import is_ours
            except (ImportError, OSError, MemoryError, RecursionError) as error:
                self.failed("census", error)
                return
            try:
                if self.step is None:
                    self._look_without_steps()
            except Exception as error:
                if not is_ours(error):
                    raise
                self.failed("look", error)
            answer(self)
        finally:
            self._in_census = False

    def _look_without_steps(self) -> None:
        """The run asks for it when memory reaches new highs: of a job that makes no steps, seconds are counted in their place."""
        now = boottime()
        if now >= self._next_heap:
            if not self._heap_since:
                try:  # the C library's counters are asked through it, and nothing else may have loaded it
                    import ctypes  # noqa: F401
                except ImportError:  # a Python that was built without libffi
                    pass
                self._heap_since = now
            self._tell_heap(now)
        if self._witness is not None:
            self._witness.stepped(now, int(now))

    def _forget_heap(self) -> None:
        """A training begins: what was loaded and prepared before is no growth of it."""
        if self._witness is not None:
            self._witness.close()
        self._witness = self._containers = None
        self._heap_since = self._next_heap = 0.0

    def plan(self, steps: int, epoch_steps: int) -> None:
        """What a trainer is about to do: all its steps, and those of an epoch; 0 where it does not know."""
        if steps > 0 and not self.rank:
            self.report("plan", steps=steps, epoch_steps=epoch_steps)

    def _changed(self, before: str) -> None:
        try:
            if self.phase_now == before:
                return
            now = boottime()
            self._write_now(now)
            self._note_reached(before)
            if self._changes.allows(now):  # else the step, or the record, tells it later
                self._tell_phase()
            for callback in self._on_phase:
                callback(self, before, self.phase_now)
        except Exception as error:
            self.failed("phase", error)

    def _tell_phase(self) -> None:
        self._told = (self.phase_now, self.step)
        held = self._level[0] if self._level is not None else None
        left, self._left = self._left, ""
        self.report("phase", name=self.phase_now, step=self.step, anon=_anonymous(), gpu=held,
                    left=left, reached=self._reached.get(left))  # fmt: skip

    def _tell_heap(self, now: float) -> None:
        """Between two steps: what is alive then is what the training keeps."""
        if not self._heap_since:  # the first steps make what stays
            self._heap_since, self._next_heap = now, now + _HEAP
            return
        self._next_heap = now + _HEAP
        if self.rank or self._heap_failures >= _HEAP_FAILURES:
            return
        begun, worked = time.perf_counter(), time.thread_time()
        self._heap_failures += 1
        from .growing_containers import GrowingContainers
        from .heap_counters import counters

        if self._containers is None:
            from .trace_window import Witness

            self._containers = GrowingContainers(_is_library)
            self._witness = Witness(self, _is_library, _anonymous)
        growing = self._containers.look(sys._getframe(2))
        held = {"anon": _anonymous(), **counters()}
        self.report("heap", step=self.step, containers=growing, **held)
        self._witness.note({**held, "step": int(now) if self.step is None else self.step})
        self._heap_failures -= 1
        # a crowded machine makes it long; a heap in swap as well, and that is what must not be walked often
        cost = max(time.thread_time() - worked, (time.perf_counter() - begun) / 4)
        self._next_heap = now + max(_HEAP, _HEAP_SHARE * (now - self._heap_since), _HEAP_COST * cost)

    def _note_reached(self, name: str) -> None:
        """What the phase that ends here held on the GPU at most: PyTorch's own peak where this phase raised it, or the
        script set it back in it. That counter is the script's: it is only read. What was there before is not its own."""
        entered, self._level, self._left = self._level, _on_gpu(), name
        if self._level is None:
            return
        held, peak = self._level
        own = peak if entered is None or peak != entered[1] else held
        if entered is None or own > entered[0]:
            self._reached[name] = max(own, self._reached.get(name, 0))

    def _write_now(self, now: float) -> None:
        """Where the job stands, in the page cache: there after SIGKILL. A write cannot hurt; a mapped page on a
        full disk can."""
        if self._now_fd is None:
            from .agent_start import open_high

            self._now_fd = open_high(self.file(NOW))
        step = -1 if self.step is None else self.step
        rank = -1 if self._rank is None else self._rank
        text = f"1 {now:.3f} {step} {rank} {self.phase_now or 'unknown'}".ljust(_RECORD - 1)
        self._write_at(0, text.encode("ascii", "replace")[: _RECORD - 1] + b"\n")

    def _write_at(self, place: int, data: bytes) -> None:
        if self._now_fd is not None and self._now_fd >= 0:
            try:
                os.pwrite(self._now_fd, data, place)
            except OSError:  # closed by the job's own housekeeping: never write to that number again
                self._now_fd = -1

    def _write_loading(self) -> None:
        """Before the first step all is "load"; that it is inside a call of from_pretrained() or torch.load() says that no batch was made yet."""
        open_now = any(phase.name == "load" for phase in self._stack)
        if self.step is not None or open_now == self._loading:
            return
        self._loading = open_now
        try:
            if self._now_fd is None:
                self._write_now(boottime())
            self._write_at(_RECORD + _LOCATION, _LOADING if open_now else _NOT_LOADING)
        except Exception as error:
            self.failed("loading", error)

    def _write_location(self) -> None:
        """The line of the user's own code that made the step; written when it is another than before."""
        frame: Any = sys._getframe(2)
        known = self._libraries
        for _ in range(_DEEP):
            if frame is None:
                return
            code = frame.f_code
            library = known.get(code)
            if library is None:
                library = known[code] = _is_library(code.co_filename)
            if not library:
                break
            frame = frame.f_back
        else:
            return
        if self._location == (code, frame.f_lineno):
            return
        self._location = (code, frame.f_lineno)
        text = f"{code.co_filename}:{frame.f_lineno} in {code.co_name}"
        data = text.encode("utf-8", "replace")[-_LOCATION + 1 :].ljust(_LOCATION - 1) + b"\n"
        self._write_at(_RECORD, data)

    # --- the process ------------------------------------------------------------------------------------------

    def forked(self) -> None:
        """In a forked child: nothing of the parent's is ours, and a loader's worker is no training."""
        witness = self._witness
        self._begin()
        if witness is not None:
            witness.forked()

    def close(self) -> None:
        """At the interpreter's end: what still waits gets a tenth of a second."""
        if self._witness is not None:
            self._witness.close()
        if self.phase_now and self._told != (self.phase_now, self.step):
            self._note_reached(self.phase_now)
            self._tell_phase()
        for _ in range(10):
            self._flush()
            if not self._outbox:
                return
            time.sleep(0.01)
        words = [data for data in self._outbox if data.startswith(_LAST_WORDS)]
        if words:  # the front is not there yet, too busy, or was killed
            self.leave_note(UNSENT, b"\n".join(words).decode("utf-8", "replace"))

    def _flush(self) -> None:
        """What waits, unless another thread is at it: that one looks again when it is done."""
        while self._outbox and self._socket_path and time.monotonic() >= self._retry_at:
            sending = self._sending
            if not sending.acquire(False):
                return
            try:
                self._send_waiting()
            finally:
                sending.release()

    def _send_waiting(self) -> None:
        data = b""
        try:
            if self._socket is None:
                import _socket

                self._socket = _socket.socket(_socket.AF_UNIX, _socket.SOCK_DGRAM)
                self._socket.setblocking(False)
            while self._outbox:
                data = self._outbox.popleft()  # out first: whoever makes place in a full outbox takes another
                self._socket.sendto(data, self._socket_path)
                data = b""
        except IndexError:  # it was the one that made place
            pass
        except OSError as error:
            if data:
                self._outbox.appendleft(data)
            # the front is busy, or there is none: it was killed, and `oomproof watch` may come
            self._retry_at = time.monotonic() + (0.005 if isinstance(error, BlockingIOError) else 1.0)

    def leave_note(self, name: str, text: str) -> None:
        """A small file beside the others, written once for each text."""
        if (name, text) in self._told_files:
            return
        self._told_files.add((name, text))
        try:
            write_file(self.file(name), text.encode("utf-8", "replace"))
        except OSError:
            pass


def _settings() -> dict[str, Any]:
    text = os.environ.get("OOMPROOF_AGENT_SETTINGS")
    if not text:
        return {}
    import json

    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


class _Phase:
    """`with agent.phase("eval"):`, or a decorator. Leaves in any order: a checkpoint may be saved by a thread."""

    def __init__(self, agent: Agent, name: str) -> None:
        self.agent = agent
        self.name = name[:60]
        self._base = ""

    def __enter__(self) -> _Phase:
        agent = self.agent
        before = agent.phase_now
        self._base = agent._base
        agent._stack.append(self)
        agent._changed(before)
        if self.name == "load":
            agent._write_loading()
        return self

    def __exit__(self, kind: Any = None, *_: Any) -> None:
        agent = self.agent
        before = agent.phase_now
        try:
            agent._stack.remove(self)
        except ValueError:
            return
        if self._base == "train":  # evaluating switched the model over; the loop around it still trains
            agent._base = "train"
        agent._changed(before)
        # what ran out of memory in here is still on its way out
        if self.name == "load" and not (kind and issubclass(kind, (MemoryError, RuntimeError))):
            agent._write_loading()

    def __call__(self, function: Any) -> Any:
        return in_phase(self.agent, self.name, function)


def in_phase(agent: Agent, name: str, function: Any) -> Any:
    """The function, each call a phase."""
    import functools

    @functools.wraps(function)
    def inner(*args: Any, **kwargs: Any) -> Any:
        with _Phase(agent, name):
            return function(*args, **kwargs)

    return inner


def write_file(path: str, data: bytes) -> None:
    """A file of its owner's only. Raises OSError."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        os.write(fd, data)
    finally:
        os.close(fd)


def note_failure(agent: Agent, what: str, error: BaseException) -> None:
    """Something of the allocator's that could not be told, for the recording only."""
    agent.report("allocator-note", text=f"{what}: {type(error).__name__}: {str(error)[:200]}")


def process_group() -> Any:
    """torch.distributed where this process is in a group, else None."""
    distributed = sys.modules.get("torch.distributed")
    up = distributed is not None and distributed.is_available() and distributed.is_initialized()
    return distributed if up else None


def compiling_of(torch: Any) -> Callable[[], bool]:
    """Tells whether a graph is being compiled: then nothing of ours may be seen."""
    ask: Callable[[], bool] | None = getattr(getattr(torch, "compiler", None), "is_compiling", None)
    return ask or (lambda: False)


def _is_library(path: str) -> bool:
    return (
        "site-packages" in path or "dist-packages" in path or path.startswith((_HERE, "<frozen", _STANDARD))
    )


def _anonymous() -> int | None:
    """Bytes of this process that no file backs, from its own statm."""
    try:
        with open("/proc/self/statm", "rb", buffering=0) as file:
            words = file.read().split()
        return (int(words[1]) - int(words[2])) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None


def _on_gpu() -> tuple[int, int] | None:
    """Bytes allocated on this process's cards, now and at most; None where CUDA was never started."""
    torch = sys.modules.get("torch")
    try:
        if torch is None or not torch.cuda.is_initialized():
            return None
        cards = [torch.cuda.memory_stats_as_nested_dict(index) for index in range(torch.cuda.device_count())]
        totals = [card["allocated_bytes"]["all"] for card in cards]
        return sum(int(total["current"]) for total in totals), sum(int(total["peak"]) for total in totals)
    except Exception:  # the driver may be failing just now
        return None

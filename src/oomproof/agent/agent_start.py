"""What is done at the start of every Python of a job: a file for its last words, two import finders, nothing else.

Everything dearer waits until a module we know is imported, or the script asks for us.
"""

from __future__ import annotations

import faulthandler
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing itself takes longer to import than all of this
    from typing import Any

    from .agent_core import Agent


HOOKS: dict[str, list[str]] = {
    "torch": ["trainers.phases_torch", "allocator", "gpu_limit", "spill"],
    "torch.utils.data.dataloader": ["trainers.phases_torch"],
    "torch._dynamo.utils": ["trainers.phases_torch"],
    "safetensors.torch": ["trainers.phases_torch"],
    "transformers.modeling_utils": ["trainers.phases_torch"],
    "transformers.generation.utils": ["generation"],
    "transformers.trainer": ["trainers.phases_transformers"],
    "lightning.pytorch.trainer.trainer": ["trainers.phases_lightning"],
    "pytorch_lightning.trainer.trainer": ["trainers.phases_lightning"],
    "accelerate.accelerator": ["trainers.phases_torch"],
    "wandb.sdk.wandb_run": ["wandb_metrics"],
}


_FLAGS = os.O_WRONLY | os.O_CREAT | getattr(os, "O_CLOEXEC", 0)
# Far from the numbers a program counts on: one that closes all descriptors and opens its own must never find its
# file under a number we still write to.
_HIGH = (1000, 240)

_FRAMES_LEFT = 200  # below the limit of recursion, for a look of ours
_IMPORTING = "<frozen importlib._bootstrap>"
_CENSUS = 12  # behind SIGRTMIN: asks what is alive, or for the stack; 11 asks faulthandler for that
_STACK = 100  # frames, as many as faulthandler writes

_folder = ""
_fault_fd = -1
_fault_id: tuple[int, int] | None = None  # of the file behind it
_answers_census = False  # as long as the handler of that signal is ours
_agent: Agent | None = None
_agent_failed = False


def begin(folder: str) -> None:
    global _folder
    _folder = folder
    sys.meta_path.insert(0, _Hooked())
    sys.meta_path.append(_PublicFinder())
    _open_fault_file()
    _listen_for_census()
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_after_fork)
    import atexit

    atexit.register(_at_exit)
    for name in (*HOOKS, "threading"):
        if name in sys.modules:  # brought in before us, by a .pth file
            installed(sys.modules[name])


def agent() -> Agent | None:
    """The one of this process, made when it is first asked for; None where it cannot be."""
    global _agent, _agent_failed
    if _agent is None and not _agent_failed:
        try:
            from .agent_core import Agent

            _agent = Agent(_folder)
        except Exception:  # the job runs on without an agent
            _agent_failed = True
    return _agent


def open_high(path: str, flags: int = 0) -> int:
    """A descriptor of the file with a high number, closed on exec, 0600; -1 where there is none."""
    fd = os.open(path, _FLAGS | flags, 0o600)
    try:
        for number in _HIGH:
            target = _high_copy(fd, number)
            if target >= 0:
                return target
        return -1
    finally:
        os.close(fd)


def _high_copy(fd: int, number: int) -> int:
    if "threading" in sys.modules:  # between a look and a dup2 another thread may take the number
        import fcntl

        try:
            return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, number)
        except OSError:  # above the limit of open files
            return -1
    for target in range(number, number + 8):
        try:
            os.fstat(target)
        except OSError:  # free
            try:
                return os.dup2(fd, target, inheritable=False)
            except OSError:  # above the limit of open files
                return -1
    return -1


def _fault_path() -> str:
    return os.path.join(_folder, f"{os.getpid()}-fault.txt")


def _open_fault_file() -> None:
    """A fatal signal writes the Python stack there. What the script enables itself, later, replaces ours."""
    global _fault_fd, _fault_id
    try:
        if faulthandler.is_enabled():  # -X faulthandler, PYTHONFAULTHANDLER: the user's choice
            touch(_fault_path())  # the sign that we are here
            return
        _fault_fd = open_high(_fault_path(), os.O_APPEND)
        if _fault_fd < 0:
            return
        _fault_id = _identity(_fault_fd)
        # Only the stack of the thread that fails: the others run on, reading theirs is a segmentation fault at times, and the
        # job would end by another signal than its own (an abort of native code: 1 in 40 beside busy threads).
        faulthandler.enable(file=_fault_fd, all_threads=False)
        _listen_for_requests()
    except Exception:  # a full disk, no rights: the job then dies as silently as it would have
        pass


def _identity(fd: int) -> tuple[int, int] | None:
    """None: it is closed."""
    try:
        status = os.fstat(fd)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def touch(path: str) -> None:
    """An empty file of its owner's only, where there is none yet. Raises OSError."""
    os.close(os.open(path, _FLAGS, 0o600))


def request_signal() -> int:
    """The signal that asks for the stacks; 0 where there is none. Real-time: nobody's by convention."""
    import _signal  # type: ignore[import-not-found]

    first = getattr(_signal, "SIGRTMIN", 0)
    return first + 11 if first else 0


def _listen_for_requests() -> None:
    import _signal

    number = request_signal()
    if number and hasattr(faulthandler, "register") and _signal.getsignal(number) == _signal.SIG_DFL:
        # Only of the thread that is asked: the others run on meanwhile, and reading their frames ends the process at times.
        faulthandler.register(number, file=_fault_fd, all_threads=False, chain=False)


class _CensusAsked:
    """Handles the signal that asks for a census. Python alone holds it: when the job sets a handler of its own there, ours
    goes, and with it the mark without which nobody sends that signal."""

    def __call__(self, number: int, frame: Any) -> None:
        if _wrote_stack(frame):
            return
        while frame is not None:
            if frame.f_code.co_filename == _IMPORTING:
                # An import of ours in the middle of the job's would break one of the two; it is asked again.
                if _agent is not None and _agent.step is not None:
                    _agent.put_off_census()  # a script that trains while it is imported
                return
            frame = frame.f_back
        del frame  # or it would hold itself
        try:
            sys._getframe(max(0, sys.getrecursionlimit() - _FRAMES_LEFT))
            return  # too deep in calls to add ours: it is asked again
        except ValueError:
            pass
        try:
            from .frame_variables import is_ours
        except (ImportError, MemoryError, OSError):
            return
        try:
            current = agent()
            if current is not None:
                current.census_asked()
        except Exception as error:  # what a handler of the job's raised meanwhile is the job's
            if not is_ours(error):
                raise

    def __del__(self) -> None:
        global _answers_census
        try:
            _answers_census = False
            os.unlink(census_mark())
        except Exception:  # at the interpreter's end modules are gone already
            pass


def _wrote_stack(frame: Any) -> bool:
    """Whether it is the stack that was asked for: here, between two bytecodes, nothing moves. As faulthandler writes it."""
    try:
        os.unlink(f"{_folder}/{os.getpid()}-stack.ask")
        if _fault_id is None or _identity(_fault_fd) != _fault_id:
            return True  # the job has closed it: the number may be its own now
        text = "Current thread 0x0 (most recent call first):\n"
        for _ in range(_STACK):
            if frame is not None:
                code = frame.f_code
                text += f'  File "{code.co_filename}", line {frame.f_lineno} in {code.co_name}\n'
                frame = frame.f_back
        os.write(_fault_fd, text.encode("utf-8", "replace"))
        return True
    except OSError:  # nobody asks; a full disk
        return False


def census_mark() -> str:
    return os.path.join(_folder, f"{os.getpid()}-census.on")


def _listen_for_census() -> None:
    """Only where nobody has a handler. System calls are resumed: native code that waits must not see it."""
    global _answers_census
    try:
        import _signal

        first = getattr(_signal, "SIGRTMIN", 0)
        if not getattr(sys, "_is_gil_enabled", lambda: True)():
            return  # other threads would change what is being counted
        if first and _signal.getsignal(first + _CENSUS) == _signal.SIG_DFL:
            _signal.signal(first + _CENSUS, _CensusAsked())
            _signal.siginterrupt(first + _CENSUS, False)
            _answers_census = True
            touch(census_mark())
    except Exception:  # not in the main thread, a full disk: nobody will ask
        pass


def _stop_listening() -> None:
    """At the end: the interpreter gives signals back to the kernel, which would end the process by a late one."""
    import _signal

    if _answers_census:
        _signal.signal(_signal.SIGRTMIN + _CENSUS, _signal.SIG_IGN)  # the mark goes with our handler
    number = request_signal()
    if _fault_fd >= 0 and number and _signal.getsignal(number) == _signal.SIG_DFL:
        _signal.pthread_sigmask(_signal.SIG_BLOCK, (number,))  # faulthandler sets the default itself, later


def _after_fork() -> None:
    """In a forked child: its own file under the same number, so that whoever enabled faulthandler stays served. Not where
    the job has closed ours and the number is its own now."""
    global _fault_fd, _fault_id
    if _answers_census:
        try:
            touch(census_mark())
        except OSError:
            pass
    if _fault_fd >= 0 and _identity(_fault_fd) not in (None, _fault_id):
        _fault_fd = -1
    if _fault_fd >= 0:
        try:
            fd = os.open(_fault_path(), _FLAGS | os.O_APPEND, 0o600)
            os.dup2(fd, _fault_fd, inheritable=False)
            os.close(fd)
            _fault_id = _identity(_fault_fd)
        except OSError:
            pass
    if _agent is not None:
        _agent.forked()


def _at_exit() -> None:
    """The interpreter keeps the exception that ends it; nobody's excepthook needs replacing for that."""
    try:
        _stop_listening()  # first: nothing that fails below may leave it out
    except Exception:  # not in the main thread
        pass
    try:
        error = getattr(sys, "last_value", None)
        if isinstance(error, (KeyboardInterrupt, SystemExit)) or hasattr(sys, "ps1"):
            error = None  # wished for; or typed at a prompt, where it ends nothing
        if error is not None:
            current = agent()
            if current is not None:
                from .exceptions import describe

                describe(current, error, sys.last_traceback)
        if _agent is not None:
            _agent.close()
    except Exception:  # at the interpreter's end modules are gone already
        pass


def installed(module: Any) -> None:
    """Lets our modules look at one of the job's that has just been imported."""
    if module.__name__ == "threading":
        _watch_threads(module)
        return
    current = agent()
    if current is not None:
        for name in HOOKS.get(module.__name__, ()):
            current.install(name, module)


def _watch_threads(threading: Any) -> None:
    """A thread's uncaught exception does not end the process, but often tells why it hangs afterwards."""
    before = getattr(threading, "excepthook", None)
    if before is None:
        return

    def excepthook(args: Any, /) -> Any:
        try:
            current = agent()
            if current is not None and args.exc_value is not None and args.exc_type is not SystemExit:
                from .exceptions import describe

                name = args.thread.name if args.thread is not None else "?"
                describe(current, args.exc_value, args.exc_traceback, name)
        except Exception:  # the user's own hook comes next, whatever ours met
            pass
        return before(args)

    threading.excepthook = excepthook


class _Hooked:
    """First in line: for the few names we know, the real spec with a loader that calls us afterwards."""

    def __init__(self) -> None:
        self._busy: set[str] = set()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if (name not in HOOKS and name != "threading") or name in self._busy:
            return None
        self._busy.add(name)
        try:
            for finder in sys.meta_path:
                find = getattr(finder, "find_spec", None)
                spec = find(name, path, target) if find is not None and finder is not self else None
                if spec is not None:
                    if hasattr(spec.loader, "exec_module"):
                        spec.loader = _Loader(spec.loader)
                    return spec
        finally:
            self._busy.discard(name)
        return None

    def invalidate_caches(self) -> None:
        pass


class _Loader:
    """The real loader; once the module has run, it stands in the module as if we had not been there."""

    def __init__(self, real: Any) -> None:
        self._real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def create_module(self, spec: Any) -> Any:
        return self._real.create_module(spec)

    def exec_module(self, module: Any) -> None:
        for owner, name in ((module, "__loader__"), (module.__spec__, "loader")):
            try:
                setattr(owner, name, self._real)
            except Exception:  # a module that lets nobody set its attributes
                pass
        self._real.exec_module(module)
        try:
            installed(module)
        except Exception:  # the user's import has worked: a hook that failed must not spoil it
            pass


# Python leaves its own frames of an import out of a traceback, and those between them: ours are such.
for _function in (_Hooked.find_spec, _Loader.exec_module):
    _function.__code__ = _function.__code__.replace(co_filename="<frozen importlib._bootstrap_external>")


class _PublicFinder:
    """Last in line: a small `oomproof` for scripts whose environment has none."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != "oomproof":
            return None
        import _frozen_importlib_external as files

        return files.spec_from_file_location(
            name, os.path.join(os.path.dirname(os.path.abspath(__file__)), "script_api.py")
        )

    def invalidate_caches(self) -> None:
        pass

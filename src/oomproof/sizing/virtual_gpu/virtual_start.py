"""Puts the virtual GPU into a Python that has just imported torch, and writes down what was seen when it ends."""

from __future__ import annotations

import atexit
import importlib
import os
import re
import sys
import threading
import time
import warnings
from typing import TYPE_CHECKING, Any

from . import ranks
from .step_limits import COMPILED, MAIN, PATIENCE, STEPS
from .storage_log import resident

if TYPE_CHECKING:
    from .child_results import VirtualResult

LIMIT = "OOMPROOF_SIZE_SECONDS"
TOTAL = "OOMPROOF_SIZE_GPU"
_own: dict[str, Any] = {}


def begin(folder: str) -> None:
    """Called by sitecustomize: nothing happens until torch is imported."""
    if ranks.is_another():
        ranks.wait_for_the_first(folder)
    if ranks.is_launcher(getattr(sys, "orig_argv", [])[1:]):
        return
    afterwards = {
        "torch": lambda module: install(folder),
        "transformers.trainer_callback": lambda module: _flow_module().evaluate_soon(module, _own["flow"]),
        "transformers.modeling_utils": lambda module: _quantized_layers().install(
            module, _flow_module().tell
        ),
        "bitsandbytes.functional": lambda module: _quantized_layers().install_paged(
            module, _flow_module().tell
        ),
        "transformers.masking_utils": lambda module: _flow_module().one_text(module, _own["mode"]),
        "transformers.models.whisper.generation_whisper": lambda module: _flow_module().one_segment(module),
        "transformers.generation.utils": lambda module: _flow_module().end_generation(module, _own["flow"]),
        # asked whether a mask is needed: a fake tensor's values would count as unknown
        "transformers.utils.import_utils": lambda module: setattr(
            module, "is_fake_tensor", lambda tensor: False
        ),
        "torch.utils.cpp_extension": _refuse_cuda_extensions,
        "torch.distributed.fsdp": lambda module: _refuse(
            "FSDP", module, "FullyShardedDataParallel", "fully_shard"
        ),
        "deepspeed": lambda module: _refuse("DeepSpeed", module, "initialize"),
        "torchmetrics.metric": lambda module: _check_no_values(module.Metric),
        "safetensors.torch": lambda module: setattr(module, "save_file", _own["flow"].saves.save),
    }
    _own["error"] = ""

    def told(kind: Any, error: Any, trace: Any) -> bool:
        _own["error"] = f"{kind.__name__}: {error}"
        _own["refused"] = _not_followed(kind, error, trace) if "flow" in _own else ""
        return not _own["refused"]

    follow_script(folder, afterwards, told)


def _quantized_layers() -> Any:
    from . import quantized_layers

    return quantized_layers


def follow_script(folder: str, afterwards: dict[str, Any], told: Any) -> None:
    """``afterwards``: called right after that module was imported. ``told``: with the error that ends the script; whether it is to
    be shown."""
    _touch(folder, "started")  # a Python of the command has read our PYTHONPATH
    if any("multiprocessing" in argument for argument in getattr(sys, "orig_argv", [])):
        fetching = "torch.utils.data._utils.fetch"
        sys.meta_path.insert(0, _Finder({fetching: lambda module: _worker_peaks().install(module)}))
        return  # a loader's worker that was spawned
    sys.meta_path.insert(0, _Finder(afterwards))
    hook = sys.excepthook

    def excepthook(kind: Any, error: Any, trace: Any) -> None:
        if told(kind, error, trace):
            hook(kind, error, trace)

    sys.excepthook = excepthook


def _worker_peaks() -> Any:
    from . import worker_peaks

    return worker_peaks


def _touch(folder: str, name: str) -> None:
    with open(os.path.join(folder, name), "w"):
        pass


def tell_main(folder: str) -> None:
    """Which process is the script's own, for who looks from outside: a worker that was forked has all of its pages, and more."""
    path = os.path.join(folder, MAIN)
    with open(f"{path}-{os.getpid()}", "w") as file:
        file.write(str(os.getpid()))
    os.replace(file.name, path)


# torch's own words for what fake tensors cannot do
_FAKE_ERRORS = (
    "UnsupportedOperatorException", "DynamicOutputShapeException", "DataDependentOutputException", "UnsupportedFakeTensorException",
)  # fmt: skip


# and for a driver or a kernel that is not there
_NO_CARD = (
    "data_ptr", "not compiled with CUDA", "not linked with support for cuda", "Cannot access accelerator device",
    "_cuda_", "libcuda", "FakeTensor", "_share_fd_", "'torch._C' has no attribute",
)  # fmt: skip


# words of extensions, Triton's among them, that were given tensors of a card that is not there
_WANTS_CARD = re.compile(
    r"must (be|reside|live)\b.{0,40}\b(cuda|gpu)\b|\bis_cuda\b|not compiled with gpu|not implemented on (the )?cpu|active drivers", re.I
)  # fmt: skip


def _not_followed(kind: Any, error: BaseException, trace: Any) -> str:
    """A sentence where the virtual GPU failed, not the script."""
    if kind.__name__ == "Refused":
        return str(error)
    here = os.path.dirname(os.path.abspath(__file__))
    last, line = "", ""
    while trace is not None:
        last = trace.tb_frame.f_code.co_filename
        if "site-packages" not in last and not last.startswith(here):
            line = f"{os.path.basename(last)}:{trace.tb_lineno}"
        trace = trace.tb_next
    first = (str(error).strip().splitlines() or [""])[0]
    if issubclass(kind, (RuntimeError, AssertionError)) and _WANTS_CARD.search(first):
        return f"{line} gives tensors to compiled code that wants a real GPU ({kind.__name__}: {first[:160]}); run it there with: oomproof run"
    ours = (
        kind.__name__ in _FAKE_ERRORS or last.startswith(here) or any(text in str(error) for text in _NO_CARD)
    )
    if not ours:
        return ""
    if "SparseTensorImpl" in str(error):
        return f"{line} makes sparse gradients, such as those of nn.Embedding(sparse=True), which cannot be followed without a GPU; run it there with: oomproof run"
    return f"{line} cannot be followed without a GPU ({kind.__name__}: {first[:160]}); run it there with: oomproof run"


class _Finder:
    """Wraps the loader of a module so that we come right after it."""

    def __init__(self, afterwards: dict[str, Any]) -> None:
        self.afterwards = afterwards

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name not in self.afterwards:
            return None
        spec = next((spec for spec in self._others(name, path, target) if spec is not None), None)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module: Any) -> None:  # not all who look for a module load it
            execute(module)
            spec.loader.exec_module = execute
            if (afterwards := self.afterwards.pop(name, None)) is not None:
                afterwards(module)

        spec.loader.exec_module = exec_module
        return spec

    def _others(self, name: str, path: Any, target: Any) -> Any:
        for finder in sys.meta_path:
            if finder is not self and hasattr(finder, "find_spec"):
                yield finder.find_spec(name, path, target)


def _flow_module() -> Any:
    from . import training_flow

    return training_flow


def _refuse(name: str, module: Any, *parts: str) -> None:
    from . import one_rank

    one_rank.refuse(name, *parts)(module)


def _refuse_cuda_extensions(module: Any) -> None:
    """torch.utils.cpp_extension: what is built of CUDA sources. C++ alone may be for the host."""
    build = module._jit_compile

    def built(name: str, sources: Any, *args: Any, **kwargs: Any) -> Any:
        from .cuda_queries import Refused

        files = [sources] if isinstance(sources, str) else list(sources)
        if kwargs.get("with_cuda") or any(str(file).endswith((".cu", ".cuh")) for file in files):
            raise Refused(
                f"{name} is a CUDA extension that the script builds, and cannot be followed without a GPU; leave it out for sizing, or run it there with: oomproof run"
            )
        return build(name, sources, *args, **kwargs)

    module._jit_compile = built


def _check_no_values(metric: Any) -> None:
    """torchmetrics counts the distinct labels of each batch, and refuses more than there are classes."""
    metric.validate_args = property(lambda self: False, lambda self, value: None)


def install(folder: str) -> None:
    before = resident()
    try:
        importlib.import_module("torch._dynamo")
        _own["compiler"] = max(0, resident() - before)
        before = resident()
        _install(folder)
    except Exception as error:  # a torch with other insides
        from .child_results import VirtualResult

        why = f"this torch cannot be sized without a GPU ({type(error).__name__}: {error})"
        _write(folder, VirtualResult(refused=why))
        raise
    _own["overhead"] = max(0, resident() - before)


def _overhead(flow: Any, own: dict[str, Any]) -> int:
    """What the virtual GPU took of the process. The compiler's modules, which we need, torch loads with the first optimizer."""
    elements = own["mode"].known.most_bytes if "mode" in own else 0
    return int(own.get("overhead", 0) + elements + (0 if flow.optimizers.known else own.get("compiler", 0)))


def _install(folder: str) -> None:
    import torch

    from . import (
        compiled_functions,
        cuda_redirect,
        loader_flow,
        one_rank,
        training_flow,
    )
    from .checkpoints import LoadedCheckpoints
    from .storage_log import StorageLog
    from .virtual_mode import VirtualMode

    log = StorageLog()
    limit = float(os.environ.get(LIMIT, "60"))
    mode = VirtualMode(log, limit)
    redirect = cuda_redirect.Redirect(mode)
    flow = training_flow.Flow(mode, lambda reason: _finish(folder, reason), limit)
    tell_main(folder)

    def began() -> None:
        tell_main(folder)  # a launcher imports torch as well
        flow.memory.begin()
        _touch(folder, "training")

    flow.began = began
    loaders = loader_flow.LoaderFlow(flow)
    _own["library"] = library = torch.library.Library("aten", "IMPL")
    total = os.environ.get(TOTAL)
    compiled_functions.prepare()
    change_torch(redirect, library, int(total) if total else 80 << 30)
    torch.distributions.Distribution.set_default_validate_args(False)  # of values that nobody has
    compiled_functions.install(mode, redirect, flow, lambda: _touch(folder, COMPILED))
    LoadedCheckpoints(redirect).install()
    flow.install()
    loaders.install()
    one_rank.run_spawned_here()
    _own.update(log=log, mode=mode, flow=flow, loaders=loaders, pid=os.getpid(), redirect=redirect)
    redirect.__enter__()
    cuda_redirect.follow_threads(redirect)
    os.register_at_fork(after_in_child=_in_fork)
    atexit.register(_at_exit, folder)
    threading.Thread(target=_alarm, args=(folder, limit), daemon=True).start()


def change_torch(redirect: Any, library: Any, total: int) -> None:
    """What torch shows, asks and computes, as with a card of ``total`` bytes; 0: without one."""
    from . import (
        cuda_autocast,
        cuda_kernels,
        cuda_queries,
        cuda_redirect,
        operation_workspaces,
        recurrent_layers,
        sparse_matrices,
        virtual_modules,
    )

    mode = redirect.mode
    cuda_redirect.show_devices(redirect)
    cuda_redirect.show_bodies()
    cuda_redirect.follow_device_context(redirect)
    cuda_redirect.install(redirect)
    sparse_matrices.install(redirect)
    cuda_queries.install(mode.log, total)
    virtual_modules.install(mode, redirect)
    with warnings.catch_warnings():  # that kernels are replaced is what we want
        warnings.simplefilter("ignore")
        cuda_kernels.install(mode, library)
        recurrent_layers.install(mode, library)
        cuda_autocast.CudaAutocast(mode).install(library)
    operation_workspaces.install(mode)


def _in_fork() -> None:
    _own["redirect"].active = False
    _own["mode"].one_at_a_time = threading.Lock()  # another thread may have held it
    _own["pid"] = 0


def _alarm(folder: str, limit: float) -> None:
    """For a script that never comes to a place where we look."""
    from .storage_log import user_line

    started, main = time.monotonic(), threading.main_thread().ident or 0
    while True:
        reads = _own["mode"].scalars
        time.sleep(1.0)
        patience = 1 if _own["flow"].steps >= STEPS else PATIENCE
        if time.monotonic() - started > patience * limit + 1:
            if _own["mode"].scalars > reads:
                _own["reads_at"] = user_line(_own["flow"].skip, sys._current_frames().get(main))
            try:
                _finish(folder, "time limit")
            except RuntimeError:  # what is written down changed meanwhile: the script runs on beside us
                continue


def _at_exit(folder: str) -> None:
    if _own["pid"] == os.getpid():
        _write(
            folder,
            _result("refused" if _own.get("refused") else "failed" if _own["error"] else "script ended"),
        )


def _finish(folder: str, reason: str) -> None:
    """Ends this process here and now: handlers of the script would only undo what nobody made."""
    if _own["pid"] != os.getpid():
        return
    _write(folder, _result(reason))
    end_here()


def end_here() -> None:
    """The script's own end is not waited for, nor are its handlers."""
    import multiprocessing

    for child in multiprocessing.active_children():
        child.terminate()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            pass
    os._exit(0)


def _result(reason: str, own: dict[str, Any] = _own) -> VirtualResult:
    import torch

    from . import large_buffers, one_rank
    from .child_results import BatchFacts, VirtualResult
    from .loader_flow import with_own
    from .training_flow import _notes

    log, mode, flow, loaders = own["log"], own["mode"], own["flow"], own["loaders"]
    overhead, facts = _overhead(flow, own), mode.batch_facts
    flow.memory.note()
    return VirtualResult(
        reason=reason,
        refused=own.get("refused") or "",
        steps=flow.steps,
        trains=bool(flow.optimizers.known),
        phases=flow.phases,
        marks=list(log.marks),
        host_marks=list(log.host_marks),
        step_ends=flow.step_ends,
        peak=dict(log.peak),
        peak_place=log.peak_place,
        kinds=dict(log.kinds),
        sums=dict(log.sums),
        possible=dict(log.possible),
        signed=dict(log.signed),
        signatures=mode.signatures.as_json(),
        scalars=mode.scalars,
        reads_at=own.get("reads_at", ""),
        widened=mode.widened,
        unfamiliar=mode.unfamiliar,
        convolutions=mode.convolutions,
        matrices=mode.matrices,
        solvers=sorted(mode.solvers),
        recurrent=flow.recurrent,
        benchmark=bool(torch.backends.cudnn.benchmark),
        frozen=list(flow.frozen.values()),
        allocator=_allocator_settings(log),
        generates=flow.generates,
        generations=flow.generations,
        kept=flow.kept,
        saved=flow.saves.largest,
        many_shapes=loaders.many.followed_epoch(),
        batch_facts=BatchFacts(facts.norms, sorted(facts.rows), sorted(facts.squares)),
        loaders=with_own(loaders.most),
        unfed=loaders.unfed_workers(),
        shared_beside=loaders.shared_beside,
        held_before=flow.memory.before,
        held_since=flow.memory.since,
        overhead=overhead,
        ranks=one_rank.known["ranks"],
        launcher=max(0, one_rank.known["launcher"] - overhead),
        buffers=large_buffers.named(flow.skip) if own is _own else {},
        torch=torch.__version__,
        notes=list(_notes),
    )


def _allocator_settings(log: Any) -> list[str]:
    """Of the script's own environment: many set it in their first line."""
    names = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
    return [*(os.environ[name] for name in names if os.environ.get(name)), *log.allocator_settings]


_writing = threading.Lock()  # the script and the alarm may come to their end at once


def _write(folder: str, result: VirtualResult) -> None:
    from . import child_results

    path = os.path.join(folder, str(os.getpid()))
    log = _own.get("log")
    with _writing:
        if log is not None:
            for where, events in log.events.items():
                with open(f"{path}.{where}", "wb") as file:
                    file.write(events.tobytes())
            with open(path + ".births", "wb") as file:
                file.write(log.births.tobytes())
        child_results.write(folder, result)

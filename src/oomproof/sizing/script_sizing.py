"""Runs an unmodified script on a virtual GPU, in a child whose writes nobody sees, and says what it would need."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from oomproof.errors import NOT_FOUND, OomproofError
from oomproof.leaf.process_signals import signal_all
from oomproof.ledger import budget
from oomproof.machine import memory, processes
from oomproof.records import dataclass, replace
from oomproof.runner import limit_backends
from oomproof.sizing import measured_workspaces, private_files, virtual_run
from oomproof.sizing.calibrated_card import CalibratedCard
from oomproof.sizing.card_constants import ANY_CARD, Card
from oomproof.sizing.estimate import Estimate, Phase, Sizing
from oomproof.sizing.host_figures import (
    OTHERS,
    PINNED,
    PROCESS,
    QUEUE,
    SAVED,
    WORKERS,
    HostFigures,
    loaders_of,
)
from oomproof.sizing.loader_memory import loader_memory
from oomproof.sizing.virtual_gpu.step_limits import PATIENCE, STEPS
from oomproof.units import MIB, format_size

_CODE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "virtual_gpu")
_LOOK = 0.1  # seconds between looks at the child
_GRACE = (
    60.0  # seconds beyond those that the child has for its steps: imports, and the answer's own arithmetic
)
# chosen on the first five CPU trainings of bench/sizing/host.py: oneDNN's and MKL's own memory, and what malloc keeps of what is freed
_ON_CPU, _BESIDE = 60 * MIB, 0.35
_SHOWN = 15  # lines of a script's own error
CardOf = Callable[[Mapping[str, Any]], CalibratedCard | None]
# the words of Python's resolver and sockets, and of the Hugging Face hub
_NO_NETWORK = (
    "name resolution", "Name or service not known", "Network is unreachable", "No address associated", "getaddrinfo failed",
    "offline mode is enabled", "OfflineModeIsEnabled", "LocalEntryNotFoundError", "couldn't connect to 'https://huggingface.co'",
)  # fmt: skip
_NOT_STARTED = (
    "no Python of this command reads the PYTHONPATH it was given; start it without -I and -E, and set "
    "PYTHONPATH before oomproof, not in the command"
)


@dataclass
class Watched:
    """What the child and its children held on the host at most, in bytes."""

    status: int = 0
    earlier: int = 0  # the main process's, before the model's first pass
    earlier_workers: int = 0
    is_training: bool = False
    peak: int = 0
    main: int = 0
    workers: int = 0
    largest: int = 0  # of the other processes
    shared: int = 0
    over_limit: bool = False
    has_network: bool = False
    timed_out: bool = False
    limit: int = 0


@dataclass(frozen=True, slots=True)
class SizedScript:
    """``status``: of a script that failed by itself, else 0. ``seen``: the log of its allocations; ``run``: the same as the card would
    see them; None where it was refused. ``held_back``: what became of its files."""

    sizing: Sizing
    status: int = 0
    run: virtual_run.VirtualRun | None = None
    card: Card = ANY_CARD
    host: HostFigures | None = None
    seen: virtual_run.VirtualRun | None = None
    held_back: tuple[str, ...] = ()


def size_command(
    argv: Sequence[str],
    *,
    time_limit: float,
    gpu_total: int | None,
    allow_writes: bool,
    tell: Callable[[str], None],
    card_of: CardOf = lambda result: None,
) -> SizedScript:
    """``gpu_total``: 0 for a machine without a card, None where its size does not matter. ``card_of``: from what the virtual GPU
    wrote down to the calibrated card for it, if there is one."""
    if shutil.which(argv[0]) is None:
        raise OomproofError(f"{argv[0]}: command not found", "", NOT_FOUND)
    folder = tempfile.mkdtemp(prefix="oomproof-size-")
    try:
        watched = _run(list(argv), folder, time_limit, gpu_total, allow_writes)
        return _answer(argv, folder, watched, gpu_total, tell, card_of)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _run(
    argv: list[str], folder: str, time_limit: float, gpu_total: int | None, allow_writes: bool
) -> Watched:
    command = argv
    if not allow_writes:
        command = [sys.executable, "-I", "-S", "-B", private_files.__file__, folder, *argv]
    ram = memory.read()
    limit = max(1 << 30, ram.available - budget.default_floor(ram.total))
    output = os.path.join(folder, "output")
    with _limited(limit) as join, open(output, "wb") as file:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, start_new_session=True,
            env=_environment(folder, time_limit, gpu_total), preexec_fn=lambda: _enter(join),
        )  # fmt: skip
        try:
            return _watch(child, limit, time_limit, folder, is_wrapped=not allow_writes)
        finally:
            _end(child)


def _environment(folder: str, time_limit: float, gpu_total: int | None) -> dict[str, str]:
    """With a folder on PYTHONPATH that starts the virtual GPU in every Python of the command."""
    site = os.path.join(folder, "site")
    os.makedirs(site, exist_ok=True)
    shutil.copy(os.path.join(_CODE, "virtual_site.py"), os.path.join(site, "sitecustomize.py"))
    path = os.environ.get("PYTHONPATH", "")
    return {
        **os.environ,
        "PYTHONPATH": site + (os.pathsep + path if path else ""),
        "OOMPROOF_SIZE": folder,
        "OOMPROOF_SIZE_CODE": _CODE,
        "OOMPROOF_SIZE_SECONDS": str(time_limit),
        "OOMPROOF_SIZE_GPU": "" if gpu_total is None else str(gpu_total),
        "WANDB_MODE": "offline", "WANDB_SILENT": "true", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false",
        "CUDA_VISIBLE_DEVICES": "", "PYTORCH_JIT": "0", "TORCHDYNAMO_DISABLE": "1", "PYTHONDONTWRITEBYTECODE": "1",
    }  # fmt: skip


def _enter(join: Sequence[str]) -> None:
    for processes_file in join:
        with contextlib.suppress(OSError), open(processes_file, "w") as file:
            file.write("0")
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")


@contextlib.contextmanager
def _limited(limit: int) -> Iterator[list[str]]:
    """A cgroup in which the kernel enforces it, where we may make one; the looks at the child do so besides."""
    name = f"size-{os.getpid()}"
    backend = limit_backends.make_v2(name, limit)[0] or limit_backends.make_v1(name, limit)[0]
    try:
        yield backend.join if backend is not None else []
    finally:
        for directory in backend.remove if backend is not None else ():
            with contextlib.suppress(OSError):
                os.rmdir(directory)


def _watch(
    child: subprocess.Popen[bytes], limit: int, time_limit: float, folder: str, is_wrapped: bool
) -> Watched:
    """``is_wrapped``: the command is the child's child. One in which nothing of ours started runs as ever, to no purpose."""
    looks = 0
    watched, started = Watched(limit=limit, has_network=not is_wrapped), time.monotonic()
    while True:
        try:
            watched.status = child.wait(_LOOK)
            return watched
        except subprocess.TimeoutExpired:
            pass
        for pid in processes.children(child.pid) if is_wrapped else (child.pid,):
            if _look(pid, watched):
                looks += 1
                _tell_looks(folder, looks)
        if watched.peak > limit:
            watched.over_limit = True
            return watched
        if not watched.is_training and os.path.exists(os.path.join(folder, "training")):
            watched.is_training = True
            watched.earlier, watched.earlier_workers = watched.main, watched.workers
            watched.peak = watched.main = watched.workers = 0
        patience = PATIENCE * time_limit if _is_started(folder) else 0
        if time.monotonic() > started + patience + _GRACE:
            watched.timed_out = True
            return watched


def _is_started(folder: str) -> bool:
    return os.path.exists(os.path.join(folder, "started"))


def _tell_looks(folder: str, looks: int) -> None:
    """To the child, which waits for them when it holds most."""
    with contextlib.suppress(OSError), open(os.path.join(folder, "looks"), "w") as file:
        file.write(str(looks))


def _look(pid: int, watched: Watched) -> bool:
    """Anonymous memory of the tree, pages that are shared counted once, and the /dev/shm of its own. False where processes came or
    went meanwhile: whose pages are whose is not known."""
    pids = (pid, *processes.descendants(pid))
    members = [member for member in map(processes.memory, pids) if member is not None]
    own = {member.pid: member.anon for member in members}
    for member in members if len(pids) > 1 else ():
        if (shared := processes.overlap(member.pid)) is None:
            return False
        own[member.pid] = max(0, member.anon - shared.anon)
    if not own or pids != (pid, *processes.descendants(pid)):
        return False
    main = max(members, key=lambda member: member.anon)
    with contextlib.suppress(OSError):
        facts = os.statvfs(f"/proc/{main.pid}/root/dev/shm")
        watched.shared = max(watched.shared, (facts.f_blocks - facts.f_bfree) * facts.f_frsize)
    total = sum(own.values())
    if total > watched.peak:
        watched.peak, watched.main = total, min(main.anon, total)
        watched.workers = total - watched.main
    watched.largest = max(watched.largest, *(size for member, size in own.items() if member != main.pid), 0)
    return True


def _end(child: subprocess.Popen[bytes]) -> None:
    """With everybody below it: launchers give their ranks a session of their own."""
    while child.poll() is None:
        signal_all((child.pid, *processes.descendants(child.pid)), signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(1.0)


def _answer(
    argv: Sequence[str],
    folder: str,
    watched: Watched,
    gpu_total: int | None,
    tell: Callable[[str], None],
    card_of: CardOf,
) -> SizedScript:
    if watched.status == private_files.CANNOT and os.path.exists(os.path.join(folder, "cannot")):
        with open(os.path.join(folder, "cannot")) as file:
            why = file.read()
        return _refused(
            f"the script's writes cannot be kept private here ({why}); with --allow-writes it runs as it is",
            passing=True,
        )
    if watched.over_limit:
        return _refused(
            f"the script held {format_size(watched.peak)} on the host before its third step, more than is available now; end something large first",
            passing=True,
        )
    run = virtual_run.read(folder)
    failed = watched.status != 0 and (run is None or run.result.get("steps", 0) < STEPS)
    if run is not None and run.result.get("refused"):
        return _refused(str(run.result["refused"]))
    if watched.timed_out and not _is_started(folder):
        return _refused(_NOT_STARTED)
    if watched.timed_out and run is None:
        return _refused(
            "the script made no step in time; give it longer with --time-limit, or size it with a smaller model"
        )
    if failed and watched.status in (-signal.SIGKILL, 128 + signal.SIGKILL):
        return _refused(
            f"the script was killed, most likely at the limit of {format_size(watched.limit)} on the host, before its third step; end something large first"
        )
    if failed:
        cause = "the command failed by itself"
        if _show_error(folder, tell) and not watched.has_network:
            cause = "the command failed for want of the network, which is off while sizing (run it once before, so that its data is here, or give --allow-writes)"
        return _refused(f"{cause}, with status {watched.status}; its error is above", status=watched.status)
    if run is None and not _is_started(folder):
        return _refused(_NOT_STARTED)
    if run is None:
        return _refused("the script never imported torch; size its files instead: oomproof size FILE")
    if run.result.get("reason") == "time limit" and not run.result["steps"] and not run.result["phases"]:
        return _refused(
            "the script called no model and made no step in time; give it longer with --time-limit, or size its files: oomproof size FILE"
        )
    if not run.events and not run.result["peak"]["host"]:
        return _refused(
            "the script put nothing on a GPU and made no model; size its files instead: oomproof size FILE"
        )
    seen = SizedScript(
        Sizing(None, None, (), ""),
        seen=run,
        host=host_figures(run, watched),
        held_back=tuple(_held_back(folder)),
    )
    return with_card(seen, card_of(run.result), gpu_total)


def with_card(sized: SizedScript, calibrated: CalibratedCard | None, gpu_total: int | None) -> SizedScript:
    """The same virtual run with what that card really took for its operations."""
    assert sized.seen is not None and sized.host is not None
    run, card = sized.seen, ANY_CARD
    if calibrated is not None:
        run, card = measured_workspaces.applied(run, calibrated), calibrated.card(ANY_CARD)
    gpu: Estimate | None = None
    tight = virtual_run.tight(run, gpu_total, card) if gpu_total else ""
    phases: tuple[Phase, ...] = ()
    if run.events:
        gpu, phases = virtual_run.gpu_estimate(run, virtual_run.asked_expandable(), card)
    else:
        phases = virtual_run.host_phases(run, sized.host.estimate().expected)
    sizing = Sizing(
        gpu, sized.host.estimate(), phases, _basis(run, calibrated),
        notes=tuple(note for note in (*_notes(run), *sized.held_back, tight) if note), peak=str(run.result.get("peak_place", "")),
    )  # fmt: skip
    return replace(sized, sizing=sizing, run=run, card=card)


def _basis(run: virtual_run.VirtualRun, calibrated: CalibratedCard | None) -> str:
    if not run.events:
        return "script run for its first steps; it uses no GPU"
    basis = "script run on a virtual GPU"
    if calibrated is None:
        return basis
    of = run.result["measured"] + run.result["unmeasured"]
    return f"{basis}; {calibrated.name} calibrated, {run.result['measured']} of its {of} operations measured there"


def host_figures(run: virtual_run.VirtualRun, watched: Watched) -> HostFigures:
    """Measured, less what the virtual GPU itself took, plus what had no bytes here."""
    result, on_card = run.result, bool(run.events)
    loaders = loaders_of(result, on_card)
    held = [loader_memory(loader) for loader in loaders]
    seen = sum(loader_memory(replace(loader, pinned=0)).queue for loader in loaders)
    copied = sum(loader["workers"] * loader["copied"] for loader in result["loaders"])
    workers = max(watched.workers, watched.earlier_workers)
    for loader in result["loaders"]:
        if not loader["settled"]:
            workers = max(workers, loader["workers"] * watched.largest)
    process = max(0, watched.main - result["overhead"])
    buffers = {name: size for name, size in result["buffers"].items() if size}
    if sum(buffers.values()) > process:  # pages that were never touched, or of a file
        buffers = {}
    parts = {
        PROCESS: process - sum(buffers.values()),
        **buffers,
        WORKERS if seen else OTHERS: workers + copied,
        QUEUE: sum(memory.queue for memory in held),
        "shared memory": watched.shared - seen if watched.shared > seen + MIB else 0,
        **(
            {"model on the host": result["peak"]["host"]} if on_card else _on_cpu(virtual_run.host_parts(run))
        ),
        PINNED: sum(memory.pinned for memory in held),
        SAVED: result["saved"],
    }
    # what it held before it trained, where that is more than all the rest
    parts[PROCESS] += max(0, watched.earlier - result["overhead"] - sum(parts.values()))
    count = sum(loader.workers for loader in loaders)
    return HostFigures(parts, loaders, (workers + copied) // count if count else 0, on_card)


def _on_cpu(parts: dict[str, int]) -> dict[str, int]:
    """With what malloc and oneDNN hold beside the tensors of a model that trains on the CPU."""
    if not parts.get("gradients") and not parts.get("activations"):
        return parts
    moving = parts.get("activations", 0) + parts.get("temporary", 0)
    return {**parts, "malloc and oneDNN": min(_ON_CPU, sum(parts.values())) + int(_BESIDE * moving)}


def _notes(run: virtual_run.VirtualRun) -> Iterator[str]:
    result = run.result
    yield from result["notes"]
    if result["steps"] < STEPS:
        yield f"only {result['steps']} optimizer steps were reached: {result['reason']}"
    yield from virtual_run.widening_notes(result, on_card=bool(run.events))
    for name, size in result["buffers"].items():
        if not size:
            yield f"a native index: {name}; it is part of the process"


def _held_back(folder: str) -> Iterator[str]:
    path = os.path.join(folder, "written.json")
    if not os.path.exists(path):
        yield "the script's files were written and its network was on, as --allow-writes says"
    with contextlib.suppress(OSError, ValueError), open(path) as file:
        written = json.load(file)
        if written["count"]:
            yield f"held back: {written['count']} files ({format_size(written['bytes'])}), such as {written['names'][0]}"


def _show_error(folder: str, tell: Callable[[str], None]) -> bool:
    """The end of what the command printed; whether it speaks of a network that is not there."""
    lines: list[str] = []
    with contextlib.suppress(OSError), open(os.path.join(folder, "output"), errors="replace") as file:
        lines = file.read().splitlines()[-_SHOWN:]
    for line in lines:
        tell(line)
    return any(word in line for line in lines for word in _NO_NETWORK)


def _refused(why: str, passing: bool = False, status: int = 0) -> SizedScript:
    sizing = Sizing(None, None, (), "script run on a virtual GPU", refused=why, passing=passing)
    return SizedScript(sizing, status)

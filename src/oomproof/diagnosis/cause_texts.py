"""A text's cause in the words of the table, filled with its own figures, and the remedies in the order a good engineer tries."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence

from oomproof.causes import CAUSES, RAISE_LIMIT, RUN, Cause
from oomproof.diagnosis.advice import (
    BOTH_NAMES,
    HALF_THE_BATCH,
    HALVE_THE_BATCH,
    IN_PLACE_OF_THE_BATCH,
    NO_WORKERS,
    ONE_DATA_COPY,
    READ_ON,
)
from oomproof.diagnosis.smaller_command import find_argument, with_value, workers_that_fit
from oomproof.diagnosis.verdict import Change, Command, Remedy, Step, Steps, steps
from oomproof.evidence.texts.finding import Finding, GpuNumbers, TaskJob
from oomproof.evidence.texts.kill_history import SAME_KILL
from oomproof.leaf.allocator_memory import OLD_NAME
from oomproof.ledger.budget import default_margin
from oomproof.records import replace
from oomproof.units import GIB, MIB, format_size

PROCESSES = "processes"  # of a job whose workers are no loader's, as far as anybody sees


def job_of(finding: Finding) -> TaskJob | None:
    """The job of the victim, by the report's task table."""
    return finding.kernel.job_of(finding.victim.pid) if finding.victim is not None else None


def whole_job(finding: Finding, kills: Iterable[Finding]) -> Finding:
    """With the table of the first report of the same shortage: the kernel takes workers one by one, and the last table
    shows only who was left."""
    pid, at = finding.victim.pid if finding.victim else None, finding.seconds
    for kill in kills:
        before = kill.seconds is not None and at is not None and 0 <= at - kill.seconds <= SAME_KILL
        first, last = kill.kernel.job_of(pid), job_of(finding)
        if before and first is not None and (last is None or len(first.pids) > len(last.pids)):
            return replace(finding, kernel=replace(finding.kernel, jobs=kill.kernel.jobs))
    return finding


def job_text(finding: Finding) -> str:
    """ "one of 17 processes of one job that held 28 GiB"; empty where the table shows no more than the victim."""
    job = job_of(finding)
    if job is None or len(job.pids) < 2:
        return ""
    swap = f" and {format_size(job.swap)} of swap" if job.swap else ""
    return f"one of {len(job.pids)} processes of one job that held {format_size(job.ram)}{swap}"


def machine_text(finding: Finding) -> str:
    machine = finding.kernel.machine
    words = []
    if machine.ram is not None and machine.free is not None:
        words.append(f"{format_size(machine.free)} of {format_size(machine.ram)} RAM was free")
    if machine.swap_total:
        words.append(f"{format_size(machine.swap_free)} of {format_size(machine.swap_total)} swap free")
    elif machine.swap_total == 0:
        words.append("there is no swap")
    return ", ".join(words)


def beside(finding: Finding) -> list[Remedy]:
    """Who else was large when the machine ran out; the victim's own job is not somebody else."""
    if finding.cause != "oom-kill-global" or finding.victim is None:
        return []
    mine = job_of(finding)
    large = [job for job in finding.kernel.jobs if job.held >= GIB and job is not mine]
    others = [f"{_called(job)} {format_size(job.held)}" for job in large[:3]]
    if not others:
        return []
    title = f"end or move what else was large then: {', '.join(others)}"
    return [Remedy(title, "measured", sum(job.held for job in large[:3]))]


def _called(job: TaskJob) -> str:
    count = f"{len(job.pids)} processes, the first " if len(job.pids) > 1 else ""
    return f"{job.name or '?'} ({count}pid {job.pids[0]})"


def fewer_workers(finding: Finding, argv: Sequence[str] = ()) -> Remedy | None:
    """As many workers as fit beside what others held, by what each of them held. ``argv``: the command, where a text
    tells it: the number in it is the number asked for, whatever the table still shows."""
    job, available, told = job_of(finding), *_available(finding)
    if job is None or available is None or not job.workers:
        return None
    argument = find_argument(argv)
    now = argument.value if argument is not None else job.workers
    rest = job.held - job.workers * job.each
    fits = workers_that_fit(now, job.each, rest, available)
    if fits is None:
        return None
    # nothing but its name tells a loader's worker from another process: a log of the training may stand beside the table
    loader = argument is not None or job.loader or bool(argv)
    if not loader:
        return _fewer_processes(len(job.pids), fits + len(job.pids) - job.workers, job.each, told)
    key = argument.name if argument is not None else "num_workers"
    before, after = (
        (argument.typed(now), argument.typed(fits))
        if argument
        else (f"num_workers={now}", f"num_workers={fits}")
    )
    each = f"each held {format_size(job.each)}, the rest of the job {format_size(rest)}; {told}"
    return Remedy(
        f"fewer workers: {before} → {after}; {each}",
        "measured",
        (now - fits) * job.each,
        command=f"oomproof run -- {shlex.join(with_value(argv, argument, fits))}" if argument else None,
        change=Change("argument" if argument else "code", key, before=str(now), after=str(fits)),
    )


def _fewer_processes(now: int, fits: int, each: int, told: str) -> Remedy:
    """Of processes that nobody knows: how many of them fit at once."""
    fits = max(1, fits)
    return Remedy(
        f"fewer processes at once ({now} → {fits}); each held {format_size(each)}; {told}",
        "measured",
        (now - fits) * each,
        change=Change("code", PROCESSES, before=str(now), after=str(fits)),
    )


def _available(finding: Finding) -> tuple[int | None, str]:
    """What the job may take, and the sum behind it. Swap is left out: what lives there makes every step slow."""
    mine, whole = job_of(finding), finding.limit or finding.kernel.machine.ram
    if whole is None or mine is None:
        return None, ""
    others = sum(job.ram for job in finding.kernel.jobs if job is not mine)
    margin = default_margin(whole)
    available = max(0, whole - others - margin)
    return available, (
        f"{format_size(whole)} {'limit' if finding.limit else 'RAM'} − {format_size(others)} of others"
        f" − {format_size(margin)} margin = {format_size(available)}"
    )


def next_command(remedy: Remedy, argv: Sequence[str]) -> Steps:
    """A command that differs from the one that died."""
    change = remedy.change
    assert change is not None
    if remedy.command is not None:
        return (Step("", remedy.command, change),)
    if change.key == PROCESSES:
        text = f"fewer processes at once ({change.before} → {change.after}), each under watch: "
        return (Step(text, RUN, change),)
    again = f"oomproof run -- {shlex.join(argv)}" if argv else RUN
    return (Step(f"set {change.key} to {change.after} (it was {change.before}), then: ", again, change),)


_KILLED = re.compile(r"(?i)kill|\b137\b|杀")
_EXITED = re.compile(r"exited unexpectedly with exit code (?!137\b)(\d+)")
_RAISED = ("traceback", "exception", "cut")
_NODE = "node's own heap limit: NODE_OPTIONS=--max-old-space-size=8192 CMD (MiB)"
_JAVA = "Java's own heap limit: -Xmx8g, or spark.driver.memory and spark.executor.memory"
_RUNTIME = "raise the program's own memory limit, in its settings"


def _heap_next(finding: Finding) -> str:
    if finding.says.startswith("node's"):
        return _NODE
    return _JAVA if "Java" in finding.says or "JVM" in finding.text else _RUNTIME


def _by_itself(finding: Finding) -> re.Match[str] | None:
    """A DataLoader worker that ended with a status of its own: nobody killed it."""
    return _EXITED.search(finding.text) if CAUSES[finding.cause].slug == "dataloader-killed" else None


def _worker_end(finding: Finding) -> str:
    if exited := _by_itself(finding):
        return f"a DataLoader worker ended by an error of its own, with exit code {exited[1]}"
    if "killed by signal" in finding.text:
        return "a DataLoader worker was killed"
    return "a DataLoader worker died; the text does not say why"


def test_of(finding: Finding) -> str:
    return "the same with num_workers=0" if _by_itself(finding) else CAUSES[finding.cause].test


def victim_text(finding: Finding) -> str:
    victim = finding.victim
    if finding.guard.unit and (victim is None or victim.name is None):
        pid = f" (pid {victim.pid})" if victim is not None and victim.pid is not None else ""
        return f"{finding.guard.unit}{pid}"  # systemd-oomd's victim is a cgroup
    if victim is None or (victim.name is None and victim.pid is None):
        return "a process"
    name = victim.name or "a process"
    pid = f" (pid {victim.pid})" if victim.pid is not None else ""
    if together := job_text(finding):
        return f"{name}{pid}, {together}"
    held = (victim.anon_rss or 0) + (victim.shmem_rss or 0)
    return f"{name}{pid}" + (f", which held {format_size(held)}" if held else "")


def general_advice(cause: Cause, values: Mapping[str, str] | None = None) -> Steps:
    """What the table says to do next, with these values in it."""
    before, run, after = cause.next.partition("{run}")
    before, after = (part.format_map(values or {}) for part in (before, after))
    return steps(before, Command(RUN) if run else "", after)


def fill(finding: Finding, argv: Sequence[str] = (), phase: str = "unknown") -> tuple[str, Steps]:
    """(headline, next) with this finding's own names and figures, and the command that died where a text tells it."""
    cause = CAUSES[finding.cause]
    smaller = IN_PLACE_OF_THE_BATCH.get(phase, HALVE_THE_BATCH) if cause.gpu else HALVE_THE_BATCH
    victim, on_card = victim_text(finding), gpu_next(finding.gpu)
    limit = (
        f" ({finding.cgroup}" + (f", {format_size(finding.limit)}" if finding.limit else "") + ")"
        if finding.cgroup
        else ""
    )
    if not limit and finding.limit:
        limit = f" ({format_size(finding.limit)})"
    job, kernel = finding.job, finding.kernel
    message = job.exception or job.message or finding.says
    if job.exception and job.message:
        message = f"{job.exception}: {job.message}"
    values = {
        "victim": victim,
        "victim_of": "" if victim == "a process" else f": {victim}",
        "cgroup": limit,
        "gpu": gpu_text(finding.gpu),
        "gpu_next": on_card or smaller.title,
        "halve": "halve the batch" if smaller is HALVE_THE_BATCH else smaller.title,
        "pids": f" (pid {', '.join(map(str, finding.pids))})" if finding.pids else "",
        "heap_next": _heap_next(finding),
        "worker_end": _worker_end(finding),
        "fault": f" in {kernel.library}" if kernel.library else "",
        "request": f": {job.message}" if job.message else "",
        "message": _short(message),
        "message_in": f" ({_short(job.message)})" if job.message else "",
        "xid": f" {kernel.xid}" if kernel.xid is not None else "",
    }
    headline, advice = cause.headline.format_map(values), general_advice(cause, values)
    if cause.slug == "cuda-oom" and not on_card:
        advice = (Step(smaller.title, change=smaller.change),)
    if cause.slug == "other-error" and not (job.exception or job.message or job.heard in _RAISED):
        headline, advice = (
            finding.says,
            steps(READ_ON),
        )  # a sentence of ours already, and there is no traceback
    if _by_itself(finding):
        text = "to see its own error: the same command with num_workers=0"
        advice = (Step(text, change=NO_WORKERS.change),)
    if (fewer := fewer_workers(finding, argv)) is not None:
        advice = steps(next_command(fewer, argv), f"; or {RAISE_LIMIT}" if finding.limit else "")
    return headline, advice


def _short(text: str, width: int = 160) -> str:
    text = " ".join(text.split())
    return text if len(text) <= width else text[: width - 1] + "…"


def gpu_text(gpu: GpuNumbers | None) -> str:
    if gpu is None or (gpu.requested is None and gpu.free is None):
        return ""
    parts = []
    if gpu.requested is not None:
        parts.append(f"asked for {format_size(gpu.requested)}")
    if gpu.free is not None:
        total = f" of {format_size(gpu.total)}" if gpu.total is not None else ""
        parts.append(f"{format_size(gpu.free)}{total} was free")
    if gpu.neighbours:
        parts.append(f"{_others(gpu)} held {format_size(gpu.neighbours)}")
    return ": " + ", ".join(parts)


def _others(gpu: GpuNumbers) -> str:
    """ "process 1234 on the card", as the text names them."""
    pids = ", ".join(map(str, gpu.neighbour_pids[:3]))
    more = "" if len(gpu.neighbour_pids) < 4 else f" and {len(gpu.neighbour_pids) - 3} more"
    kind = "process" if len(gpu.neighbour_pids) == 1 else "processes"
    return f"{kind} {pids}{more} on the card" if pids else "others on the card"


def too_large(gpu: GpuNumbers) -> bool:
    """One request that the empty card could not have met either."""
    return gpu.requested is not None and gpu.total is not None and gpu.requested > gpu.total


def fragmented(gpu: GpuNumbers) -> bool:
    """Enough was reserved and unused for the request, in pieces: splitting, not size, was the trouble."""
    unused, asked = gpu.reserved_unallocated, gpu.requested
    return unused is not None and asked is not None and unused >= max(asked, 256 * MIB)


def gpu_next(gpu: GpuNumbers | None) -> str:
    """What the figures of the card call for; empty: a smaller batch."""
    if gpu is not None and gpu.neighbours and gpu.requested and gpu.neighbours >= gpu.requested:
        if gpu.neighbour_pids:
            pids = ",".join(map(str, gpu.neighbour_pids))
            return f"{_others(gpu)} held {format_size(gpu.neighbours)}: see what that is (ps -fp {pids}), wait for it or take another card"
        return "another process holds the card: nvidia-smi shows which; wait for it or take another card"
    if gpu is not None and too_large(gpu):
        return (
            f"a smaller input: one tensor of {format_size(gpu.requested)} does not fit on a card of {format_size(gpu.total)}; "
            "resize, crop or tile the image, shorten the sequence. Half the batch helps only if the batch is more than one"
        )
    if gpu is not None and fragmented(gpu):
        return f"{OLD_NAME}=expandable_segments:True ({BOTH_NAMES}), then the batch"
    return ""


REMEDIES = {
    "larger-shm": Remedy(
        "a larger /dev/shm: docker run --shm-size=8g, or on the machine itself",
        command="sudo mount -o remount,size=8G /dev/shm",
        change=Change("system", "/dev/shm", after="8G"),
    ),
    "jax-preallocate": Remedy(
        "let JAX take memory as it needs it: a neighbour then finds free memory",
        change=Change("env", "XLA_PYTHON_CLIENT_PREALLOCATE", after="false"),
    ),
    "tensorflow-growth": Remedy(
        "let TensorFlow take memory as it needs it: a neighbour then finds free memory",
        change=Change("env", "TF_FORCE_GPU_ALLOW_GROWTH", after="true"),
    ),
    "no-workers": NO_WORKERS,
    "fewer-workers": Remedy(
        "fewer DataLoader workers: each holds its own batches and, in time, a copy of the data set's Python objects",
        change=Change("code", "num_workers"),
    ),
    "one-data-copy": ONE_DATA_COPY,
    "half-the-batch": HALF_THE_BATCH,
}


def remedies(finding: Finding, argv: Sequence[str] = (), phase: str = "unknown") -> tuple[Remedy, ...]:
    """Twin or neighbour first, then fragmentation; then what helps against the cause in general."""
    general = tuple(REMEDIES[name] for name in CAUSES[finding.cause].remedies)
    if CAUSES[finding.cause].gpu and (instead := IN_PLACE_OF_THE_BATCH.get(phase)) is not None:
        general = tuple(instead if remedy is HALF_THE_BATCH else remedy for remedy in general)
    fewer = fewer_workers(finding, argv)
    if fewer is not None:
        general = (fewer, *(remedy for remedy in general if remedy is not REMEDIES["fewer-workers"]))
    elif _by_itself(finding) or (
        CAUSES[finding.cause].killed_by == "kernel" and not _has_loader(finding, argv)
    ):
        general = tuple(remedy for remedy in general if remedy is not REMEDIES["fewer-workers"])
    return (*beside(finding), *_on_the_card(finding), *general)


def _has_loader(finding: Finding, argv: Sequence[str]) -> bool:
    """The kernel's log shows processes of all kinds: advice on workers is for a job that had some."""
    job, victim = job_of(finding), finding.victim
    named = victim is not None and (victim.name or "").startswith("pt_data_worker")
    return named or find_argument(argv) is not None or (job is not None and bool(job.workers))


def _on_the_card(finding: Finding) -> list[Remedy]:
    gpu = finding.gpu
    if finding.cause != "cuda-oom" or gpu is None:
        return []
    advice = []
    if gpu.neighbours:
        pids = ",".join(map(str, gpu.neighbour_pids))
        title = f"end or move {_others(gpu) if pids else 'the other process on the card'}"
        look = f"ps -fp {pids}" if pids else "nvidia-smi"
        advice.append(Remedy(title, "measured", gpu.neighbours, command=look))
    if too_large(gpu):
        title = "a smaller input: resize, crop or tile the image, shorten the sequence; one tensor is larger than the card"
        advice.append(Remedy(title, "measured", change=Change("code", "input size")))
    if fragmented(gpu):
        change = Change("env", OLD_NAME, after="expandable_segments:True")  # which every version reads
        title = f"let segments grow in place of splitting ({BOTH_NAMES})"
        advice.append(Remedy(title, "measured", gpu.reserved_unallocated, change=change))
    return advice

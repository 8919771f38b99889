"""What really ran out when CUDA said "out of memory": a neighbour's share, a live cache, a kept list, split segments, or all of it.

The allocator gives wholly free segments back by itself before it raises. So what is reserved and unused at that moment
lies between tensors that live (split segments), and ``empty_cache()`` would have changed nothing for this process.
"""

from __future__ import annotations

import shlex
from typing import Literal

from oomproof.diagnosis.advice import BOTH_NAMES, SMALLER_WEIGHTS, as_flag, command, half_the_batch
from oomproof.diagnosis.verdict import Change, Command, Gpu, Remedy, Steps, WeightedCause, steps
from oomproof.evidence.case_file import CaseFile
from oomproof.evidence.gpu_oom import GpuOom, OnTheCard, Owner, neighbour_text
from oomproof.leaf.allocator_memory import OLD_NAME, off_text, settings_name
from oomproof.records import dataclass, replace
from oomproof.units import GIB, format_size

Kind = Literal["limit", "neighbour", "cache", "held", "graph", "split", "too-large"]

_HOLDERS = ("list", "dict", "tuple", "set", "frozenset", "object", "deque")
_SHARE = 0.10  # of what is allocated: a list smaller than this is not what filled the card
_GRAPH = 0.30  # the same for tensors kept for a backward pass that an evaluation never makes
_NOISE = 0.02  # of the card, at least a GiB: contexts and libraries grow by this much in the first steps
_PRINTED = 0.02  # the sentence has two decimals: 1.27 GiB
_MANY_STEPS = 50  # after which one that does not fit is an exception, not the rule
_SPLIT = 0.5  # of the largest cache or list: with less than that in gaps, the gaps are not the story


@dataclass(frozen=True, slots=True)
class Shortage:
    kind: Kind
    headline: str  # what ran out, in one phrase
    why: str  # the figures under it
    next: Steps
    remedies: tuple[Remedy, ...]


def gpu_of(oom: GpuOom) -> Gpu:
    return Gpu(oom.device, oom.total, oom.free, oom.requested, oom.allocated, oom.unused)


def with_account(claim: WeightedCause, oom: GpuOom, case: CaseFile) -> WeightedCause:
    """What the job's output says of a CUDA out of memory, in the words of the account behind it."""
    cause = shortage(oom, case)
    where = f" in {oom.phase}" if oom.phase else ""
    where += f", step {oom.step}" if oom.phase and oom.step is not None else ""
    return replace(
        claim,
        headline=f"out of GPU memory (CUDA){where}: {cause.headline}",
        why=f"{claim.why}; {cause.why}",
        next=cause.next,
        gpu=gpu_of(oom),
        remedies=cause.remedies,
        phase=oom.phase,
        step=oom.step,
    )


def same_failure(oom: GpuOom, said: Gpu | None) -> bool:
    """Whether the account is of the error that ended the job: a job may have caught an earlier one and gone on."""
    if said is None or said.requested_bytes is None or oom.requested is None:
        return True
    return abs(oom.requested - said.requested_bytes) <= max(oom.requested, said.requested_bytes) * _PRINTED


def shortage(oom: GpuOom, case: CaseFile) -> Shortage:
    """Told apart by the figures of the moment. Remedies: the true cause's first, then neighbours, what is alive, gaps,
    and the batch after them: it costs the most and is blamed most often. Last what makes it bearable, and changes nothing."""
    kind = kind_of(oom)
    parts: dict[Kind, tuple[Remedy, ...]] = {
        "limit": _raise_limit(oom, case) if kind == "limit" else (),
        "neighbour": _neighbour(oom, case) if kind == "neighbour" else (),
        "cache": _cache(oom) if oom.held("kv-cache") >= oom.missing else (),
        "held": _held(oom),
        "graph": _graph(oom) if kind == "graph" else (),
        "split": _split(oom, case) if _gaps(oom) or kind == "split" else (),
    }
    remedies = list(parts.get(kind, ()))
    for part in parts.values():
        remedies += [piece for piece in part if piece not in remedies]
    loading = oom.phase == "load" and oom.step is None
    remedies += [SMALLER_WEIGHTS if loading else half_the_batch(case), *_spill(oom, case)]
    return Shortage(kind, _headline(kind, oom), _why(kind, oom), _next(remedies[0], case), tuple(remedies))


def kind_of(oom: GpuOom) -> Kind:
    requested = oom.requested or 0
    if oom.allowed is not None and oom.reserved + requested > oom.allowed and oom.free >= requested:
        return "limit"
    if crowding(oom) is not None:
        return "neighbour"
    cache = oom.held("kv-cache")
    list_or_dict = largest_holder(oom)
    alive = max(cache, list_or_dict.bytes if list_or_dict else 0)
    if _gaps(oom) and oom.unused >= alive * _SPLIT:
        return "split"
    if cache >= alive and _matters(cache, oom):
        return "cache"
    if list_or_dict is not None and _matters(list_or_dict.bytes, oom):
        return "held"
    graph = oom.unseen + oom.held("activation")
    if oom.phase in ("eval", "generate") and graph >= max(oom.missing, int(oom.allocated * _GRAPH)):
        return "graph"
    return "too-large"


def crowding(oom: GpuOom) -> tuple[str, int] | None:
    """(why a neighbour is to blame, bytes it could give) or None. One that was there all along, and uses what it has,
    is part of how large the card is for this job."""
    twins = [
        neighbour
        for neighbour in oom.neighbours
        if neighbour.twin and (neighbour.used is None or neighbour.used >= oom.missing)
    ]
    if twins:
        return "twin", max(twin.used or 0 for twin in twins)
    idle = sum(neighbour.unused or 0 for neighbour in oom.neighbours)
    if idle >= oom.missing:
        return "idle", idle
    if oom.outside_first is not None:
        grown = oom.outside - oom.outside_first
        if grown >= max(oom.missing, GIB, int(oom.total * _NOISE)):
            return "grown", grown
    return None


def largest_holder(oom: GpuOom) -> Owner | None:
    return max(
        (owner for owner in oom.owners if owner.kind in _HOLDERS), key=lambda owner: owner.bytes, default=None
    )


def _matters(size: int, oom: GpuOom) -> bool:
    return size >= oom.missing and size >= oom.allocated * _SHARE


def _gaps(oom: GpuOom) -> bool:
    """The bytes were there, but not in one piece."""
    requested = oom.requested
    if requested is None or oom.largest_free is None or oom.expandable or oom.backend != "native":
        return False
    return oom.largest_free < requested <= oom.unused


# --- words ------------------------------------------------------------------------------------------------------


def _headline(kind: Kind, oom: GpuOom) -> str:
    if kind == "limit":
        return f"the job's own GPU limit was full: it might reserve {format_size(oom.allowed)}, the card had {format_size(oom.free)} free"
    if kind == "neighbour":
        return _neighbour_headline(oom)
    if kind == "cache":
        return f"a live KV cache held {format_size(oom.held('kv-cache'))}"
    if kind == "held":
        holder = largest_holder(oom)
        assert holder is not None
        return f"the {holder.owner} kept {format_size(holder.bytes)} of results on the card"
    if kind == "graph":
        held = oom.unseen + oom.held("activation")
        return f"{format_size(held)} was kept for a backward pass that an evaluation never makes"
    if kind == "split":
        return (
            f"split segments: {format_size(oom.unused)} was reserved and unused, but its largest piece was "
            f"{format_size(oom.largest_free)}"
        )
    if oom.spill:
        return f"the card and the {format_size(oom.spill)} of --spill were both full: its tensors held {format_size(oom.allocated + oom.spilled)}"
    return f"the job is too large for what the card had left: its tensors held {format_size(oom.allocated)}"


def _neighbour_headline(oom: GpuOom) -> str:
    crowd = crowding(oom)
    assert crowd is not None
    why, size = crowd
    if why == "twin":
        twin = max(
            (neighbour for neighbour in oom.neighbours if neighbour.twin),
            key=lambda neighbour: neighbour.used or 0,
        )
        held = f" and held {format_size(twin.used)}" if twin.used is not None else ""
        return f"the same job ran twice on this card: pid {twin.pid} was its twin{held}"
    if why == "idle":
        idle = _idlest(oom)
        return f"a neighbour on the card kept {format_size(idle.unused)} reserved that it did not use: pid {idle.pid}"
    who = oom.neighbours[0] if oom.neighbours else None
    name = f": pid {who.pid} held {format_size(who.used)}" if who is not None and who.used is not None else ""
    return f"neighbours on the card took {format_size(size)} more since this job began{name}"


def _idlest(oom: GpuOom) -> OnTheCard:
    return max(oom.neighbours, key=lambda neighbour: neighbour.unused or 0)


def _why(kind: Kind, oom: GpuOom) -> str:
    asked = (
        f"it asked for {format_size(oom.requested)} with {format_size(oom.reach)} left to it"
        if oom.requested
        else ""
    )
    told = [asked, f"its tensors held {format_size(oom.allocated)} of {format_size(oom.reserved)} reserved"]
    top = [owner for owner in oom.owners if owner.bytes >= max(1, oom.allocated // 20)][:3]
    if top:
        told.append("alive are " + ", ".join(f"{owner.owner} {format_size(owner.bytes)}" for owner in top))
    if kind == "neighbour":
        told += [neighbour_text(neighbour) for neighbour in oom.neighbours[:3]]
    elif kind == "split":
        told.append("the allocator had already given back every segment that was wholly free")
    elif oom.neighbours or (oom.others or 0) > GIB:
        others = (
            oom.others if oom.others is not None else sum(neighbour.used or 0 for neighbour in oom.neighbours)
        )
        told.append(f"others on the card hold {format_size(others)}, as they did before")
    if oom.spill:
        told.append(
            f"what did not fit was in host memory already: {format_size(oom.spilled)} of the {format_size(oom.spill)} that "
            "--spill had pinned"
        )
    if oom.ignored:
        told.append(off_text(oom.ignored, oom.torch))
    if oom.retries:
        times = "once" if oom.retries == 1 else f"{oom.retries} times"
        told.append(f"the driver had refused {times} before")
    return "; ".join(sentence for sentence in told if sentence)


def _next(first: Remedy, case: CaseFile) -> Steps:
    if first.command:
        return steps(f"{first.title}: ", Command(first.command))
    return steps(f"{first.title}; then ", command(case))


# --- remedies ---------------------------------------------------------------------------------------------------


def _raise_limit(oom: GpuOom, case: CaseFile) -> tuple[Remedy, ...]:
    assert oom.allowed is not None
    context = oom.context or 0
    higher = oom.reserved + (oom.requested or 0) * 2 + max(context, GIB)
    flag = f"--gpu-limit {as_flag(higher)}"
    return (
        Remedy(
            "a higher GPU limit, for which the card had free memory",
            command=command(case, flag),
            change=Change("argument", "--gpu-limit", after=as_flag(higher)),
        ),
    )


def _neighbour(oom: GpuOom, case: CaseFile) -> tuple[Remedy, ...]:
    crowd = crowding(oom)
    if crowd is None:
        return ()
    why, size = crowd
    if why == "twin":
        twin = max(
            (neighbour for neighbour in oom.neighbours if neighbour.twin),
            key=lambda neighbour: neighbour.used or 0,
        )
        stop = f"oomproof stop {twin.run}" if twin.run else f"kill {twin.pid}"
        return (
            Remedy("run it once, not twice: end the twin first", "measured", twin.used, stop),
            *((_release_it(twin),) if twin.unused else ()),
        )
    if why == "idle":
        return (_release_it(_idlest(oom)),)
    who = oom.neighbours[0] if oom.neighbours else None
    known = f" (pid {who.pid}, {who.name})" if who is not None and who.name else ""
    limited = f"oomproof run --gpu-limit {as_flag(max(GIB, (who.used if who else None) or size) - oom.missing)} -- ITS COMMAND"
    return (
        Remedy(
            f"start the neighbour{known} later, or keep it inside a limit of its own",
            "measured",
            size,
            limited,
        ),
        *((_release_it(who),) if who is not None and who.unused else ()),
    )


def _release_it(who: OnTheCard) -> Remedy:
    """Always, not auto: a neighbour that does no step meanwhile has nobody in it who would see that another is short."""
    its = shlex.quote(who.run) if who.run else "its command"
    return Remedy(
        f"let the neighbour (pid {who.pid}, run {its}) give unused memory back after it has generated",
        "measured",
        who.unused,
        "oomproof run --release always -- ITS COMMAND",
        Change("argument", "--release", before="warn", after="always"),
    )


def _cache(oom: GpuOom) -> tuple[Remedy, ...]:
    held, call = oom.held("kv-cache"), oom.generating
    remedies = []
    if call is not None and 0 < call.fitting_new_tokens < call.new_tokens:
        saves = call.cache - call.cache * (call.tokens - call.new_tokens + call.fitting_new_tokens) // max(
            1, call.tokens
        )
        remedies.append(
            Remedy(
                f"fewer new tokens: max_new_tokens {call.new_tokens} to {call.fitting_new_tokens}", "predicted", saves,
                change=Change("argument", "max_new_tokens", before=str(call.new_tokens), after=str(call.fitting_new_tokens)),
            )
        )  # fmt: skip
    if call is not None and 0 < call.fitting_batch < call.batch:
        saves = call.cache - call.cache * call.fitting_batch // max(1, call.batch)
        remedies.append(
            Remedy(
                f"generate for fewer at a time: {call.batch} to {call.fitting_batch}, in more calls", "predicted", saves,
                change=Change("argument", "eval_batch_size", before=str(call.batch), after=str(call.fitting_batch)),
            )
        )  # fmt: skip
    if not remedies:
        remedies.append(
            Remedy(
                "let the cache go when the generation is done, or generate for fewer sequences at a time", "measured", held,
                change=Change("code", "past_key_values", after="None"),
            )
        )  # fmt: skip
    remedies.append(
        Remedy(
            'keep the cache in the host\'s memory: generate(..., cache_implementation="offloaded"), slower',
            change=Change("code", "cache_implementation", after="offloaded"),
        )
    )
    return tuple(remedies)


def _held(oom: GpuOom) -> tuple[Remedy, ...]:
    holder = largest_holder(oom)
    if holder is None or not _matters(holder.bytes, oom):
        return ()
    title = f"move results to the host as they come (.cpu() before they go into the {holder.owner.split(' in ')[0]})"
    if "trainer" in holder.owner.lower() or "evaluation_loop" in holder.owner:
        title += "; with the Hugging Face Trainer: eval_accumulation_steps=1"
    return (Remedy(title, "measured", holder.bytes, change=Change("code", ".cpu()")),)


def _graph(oom: GpuOom) -> tuple[Remedy, ...]:
    held = oom.unseen + oom.held("activation")
    return (
        Remedy("evaluate inside `with torch.no_grad():`, so that nothing is kept for backward", "measured", held,
               change=Change("code", "torch.no_grad()")),
    )  # fmt: skip


def _spill(oom: GpuOom, case: CaseFile) -> tuple[Remedy, ...]:
    """Of a batch that did not fit after many that did: slow once is better than ended. How much the rest of its step would have
    asked for nobody knows; of the models it was tried on, up to half of what was allocated."""
    many = oom.step is not None and oom.step >= _MANY_STEPS and oom.number == 1
    if oom.torch and settings_name(oom.torch) == OLD_NAME:
        return ()  # a PyTorch that cannot
    if not oom.spill and not (many and oom.phase in ("train", "eval", "generate")):
        return ()
    if len(oom.neighbours) and any(neighbour.twin for neighbour in oom.neighbours):
        return ()
    wanted = oom.spill + max(oom.missing, oom.requested or 0) + (oom.allocated + oom.spilled) // 2
    flag = f"--spill {as_flag(wanted)}"
    what = (
        "a larger spill"
        if oom.spill
        else f"let the one batch in {oom.step} that does not fit run slowly, in host memory"
    )
    return (
        Remedy(f"{what} (pinned RAM: it must be free)", command=command(case, flag), change=Change("argument", "--spill", after=as_flag(wanted))),
    )  # fmt: skip


def _split(oom: GpuOom, case: CaseFile) -> tuple[Remedy, ...]:
    name = settings_name(oom.torch)
    return (
        Remedy(
            f"let segments grow instead of splitting: {format_size(oom.unused)} was reserved but unused ({BOTH_NAMES})",
            "measured",
            oom.unused,
            command(case, env=f"{name}=expandable_segments:True"),
            Change("env", name, after="expandable_segments:True"),
        ),
    )

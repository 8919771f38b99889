"""Programs with a limit of their own: a heap limit (node, Java) or a limit of address space (ulimit -v). Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from oomproof.diagnosis.advice import command, command_line
from oomproof.diagnosis.verdict import Change, Command, Remedy, WeightedCause, steps
from oomproof.evidence.case_file import CaseFile
from oomproof.records import dataclass, replace
from oomproof.units import GIB, MIB, format_size


def with_limit(claim: WeightedCause, case: CaseFile) -> WeightedCause:
    """The same where no such limit stood, or one that the machine's own memory is below."""
    limit, host = case.limits.address_space, case.samples.host
    if limit is None or (host is not None and limit >= host.total + host.swap_total):
        return claim
    free = (
        f", while {format_size(host.available)} of the machine's RAM was available"
        if host is not None
        else ""
    )
    advice = steps(
        "start it from a shell without that limit (ulimit -v says unlimited there): ", command(case)
    )
    lift = Remedy(
        "no limit of address space: it counts what is only mapped too, such as libraries and CUDA; --limit counts what is held",
        change=Change("system", "ulimit -v", before=f"{limit >> 10}", after="unlimited"),
    )
    return replace(
        claim,
        why=f"{claim.why}; its address space was limited to {format_size(limit)} (ulimit -v){free}",
        next=advice,
        test="the same without ulimit -v",
        evidence=(*claim.evidence, *case.evidence_from("ulimit")),
        remedies=(lift, *claim.remedies),
    )


_TIMES = 4  # the old one, or what there is
_SHARE = 0.75  # of the limit, or of RAM: a runtime holds more than its heap
_UNITS = {"": 1, "k": 1 << 10, "m": MIB, "g": GIB, "t": GIB << 10}
# also within the words of `sh -c`
_NODE = re.compile(r"(?<!\S)(--max[-_]old[-_]space[-_]size)=(\d+)(?!\S)")
_JAVA = re.compile(r"(?<!\S)(-Xmx)(\d+)([kKmMgGtT]?)(?!\S)")
_DEFAULT = 2 * GIB  # of node, about; Java takes a quarter of RAM


@dataclass(frozen=True, slots=True)
class _Heap:
    program: str  # node's, Java's
    name: str  # of the flag, as typed
    size: int | None = None
    at: int | None = None  # the word of the command line that holds it; None: it was not given there
    begin: int = 0  # ... and where in it
    end: int = 0

    def typed(self, size: int) -> str:
        """``--max-old-space-size=600``, ``-Xmx800m``."""
        number = size // MIB
        return f"{self.name}={number}" if self.program == "node" else f"{self.name}{number}m"


def with_larger_heap(claim: WeightedCause, case: CaseFile) -> WeightedCause:
    """The advice of a text as one for this run; of another runtime than these two, the text's own."""
    heap = _heap(case.argv, claim.headline)
    if heap is None:
        return replace(claim, remedies=())
    ceiling = case.limits.settings.limit or (
        case.samples.host.total if case.samples.host is not None else None
    )
    most = int(ceiling * _SHARE) if ceiling else None
    old = heap.size or (
        _DEFAULT if heap.program == "node" else (case.samples.host.total // 4 if case.samples.host else 0)
    )
    new = min(_TIMES * old, most) if most is not None else _TIMES * old
    if (heap.size is not None and heap.size >= new) or not new:
        whole = f"its heap may already take {format_size(old)}"
        limit = f" of the run's limit of {format_size(ceiling)}" if case.limits.settings.limit else ""
        return replace(claim, next=f"{whole}{limit}: raise both, or hold less at a time", remedies=())
    before = heap.typed(heap.size) if heap.size is not None else None
    after = heap.typed(new)
    if heap.at is not None:
        word = case.argv[heap.at]
        argv = (
            *case.argv[: heap.at],
            word[: heap.begin] + after + word[heap.end :],
            *case.argv[heap.at + 1 :],
        )
        line, text = command_line(case, argv=argv), command(case, argv=argv)
        change = Change("argument", heap.name, before=before, after=after)
        said = f"{before} → {after}"
    else:
        variable = "NODE_OPTIONS" if heap.program == "node" else "JAVA_TOOL_OPTIONS"
        line = command_line(case)
        line = Command(f"{variable}={after} {line}") if line else None
        text = line or f"{variable}={after} in front of the same command"
        change = Change("env", variable, after=after)
        said = f"{variable}={after}"
    why = (
        f"{claim.why}; its heap was limited to {format_size(heap.size)} by {before}" if before else claim.why
    )
    larger = Remedy(f"a larger heap of its own: {said}", command=line, change=change)
    return replace(
        claim,
        why=why,
        next=steps("a larger heap, the machine itself was not short: ", text),
        remedies=(larger,),
    )


def _heap(argv: Sequence[str], headline: str) -> _Heap | None:
    program, pattern, name = (
        ("node", _NODE, "--max-old-space-size")
        if "node's" in headline
        else ("java", _JAVA, "-Xmx")
        if "Java" in headline and "spark" not in " ".join(argv[:1]).lower()
        else ("", None, "")
    )
    if pattern is None:
        return None
    for at, word in reversed(list(enumerate(argv))):
        if match := pattern.search(word):
            unit = _UNITS[match[3].lower()] if program == "java" else MIB
            return _Heap(program, match[1], int(match[2]) * unit, at, *match.span())
    return _Heap(program, name)

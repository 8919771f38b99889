"""An allocation that a process was refused under a `ulimit`: the limit is what to change, not the size of the data. Pure."""

from __future__ import annotations

from oomproof.diagnosis.advice import command
from oomproof.diagnosis.verdict import Change, Remedy, WeightedCause
from oomproof.evidence.case_file import CaseFile
from oomproof.records import replace
from oomproof.units import format_size


def with_limit(claim: WeightedCause, case: CaseFile) -> WeightedCause:
    """The same where no such limit stood, or one that the machine's own memory is below."""
    limit, host = case.address_space, case.host
    if limit is None or (host is not None and limit >= host.total + host.swap_total):
        return claim
    free = (
        f", while {format_size(host.available)} of the machine's RAM was available"
        if host is not None
        else ""
    )
    advice = f"start it from a shell without that limit (ulimit -v says unlimited there): {command(case)}"
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

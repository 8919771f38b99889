"""Common beliefs about memory, corrected where they come up: one sentence each, with the figure of this death."""

from __future__ import annotations

from oomproof.causes import cause_of
from oomproof.diagnosis.verdict import WeightedCause
from oomproof.evidence.case_file import CaseFile, Evidence
from oomproof.units import format_size

_MUCH_MORE = 2  # times what was held: below, nobody takes one for the other


def corrections(case: CaseFile, best: WeightedCause) -> tuple[Evidence, ...]:
    cause, gpu, victim = cause_of(best.cause), best.gpu, best.victim
    words = case.texts.beliefs if case.texts is not None else case.script_beliefs
    held = victim.anon_rss_bytes + (victim.shmem_rss_bytes or 0) if victim and victim.anon_rss_bytes else None
    said: list[tuple[str, str]] = []
    if victim and victim.total_vm_bytes and held and victim.total_vm_bytes >= _MUCH_MORE * held:
        size = format_size(victim.total_vm_bytes)
        said.append(
            ("total-vm", f"{size} of total-vm is address space, not use: it held {format_size(held)}")
        )
    if "overcommit" in words:
        until = f", here at {format_size(held)}" if held else ""
        said.append(
            ("vm.overcommit_memory=1",
             f"it protects nothing: no request is refused any more, and the kernel kills once the pages are used{until}")
        )  # fmt: skip
    if "zram" in words:
        said.append(
            (
                "zram",
                "it is not extra memory: what is swapped to it stays in RAM, at about a third of its size",
            )
        )
    if "empty_cache" in words and cause.gpu:
        spare = gpu.reserved_unallocated_bytes if gpu else None
        most = (
            f"at most {format_size(spare)} here" if spare is not None else "only what is reserved and unused"
        )
        said.append(("empty_cache()", f"it frees no tensor: it gives back {most}"))
    if "gc.collect" in words and cause.memory:
        alive = gpu.allocated_bytes if gpu else None
        here = f"; the {format_size(alive)} allocated here were in use" if alive else ""
        said.append(("gc.collect()", f"it frees only what nobody refers to any more{here}"))
    if "writer_batch_size" in words and cause.memory:
        said.append(
            ("writer_batch_size", "it bounds the rows that wait to be written (1000), not the copies that the script holds")
        )  # fmt: skip
    where = "the text" if case.texts is not None else "the script or the kernel's log"
    return tuple(
        Evidence(f"belief.{number}", where, None, belief, sentence)
        for number, (belief, sentence) in enumerate(said, 1)
    )

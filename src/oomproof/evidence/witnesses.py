"""What the witnesses inside the job found while its memory grew: the lines that allocated it, what malloc_trim gave back."""

from __future__ import annotations

from typing import Any

from oomproof.evidence.case_file import GrowthPlace
from oomproof.recording.series import Series
from oomproof.recording.traced_lines import Trace, trace_of, trace_text


def newest_trace(series: Series, begin: float) -> Trace | None:
    """Of the last window that blames a line; a deeper one comes after a shallow one."""
    traces = (trace_of(told) for t, told in series.told_numbers("agent:trace") if t >= begin)
    blaming = [trace for trace in traces if trace is not None and trace.blamed]
    return blaming[-1] if blaming else None


def not_a_leak(series: Series) -> str:
    """What malloc_trim proved, in words; empty where it was not needed, or gave nothing back."""
    told = series.events("agent:trim", last=1)
    return told[0].text if told else ""


def grown_mappings(series: Series) -> str:
    """What became more, as it was told last; empty where nothing did."""
    told = series.events("mappings", last=1)
    return told[0].text if told else ""


def traced_growth(trace: Trace | None, proof: str, started: float) -> dict[str, Any]:
    """The fields of a Growth that come from witnesses. ``started``: when the run began, in seconds since 1970."""
    if trace is None:
        return {"not_a_leak": proof}
    text = trace_text(trace, started)
    return {"made_at": f"{text} ({trace.witness})", "where": places(trace), "not_a_leak": proof}


def places(trace: Trace) -> tuple[GrowthPlace, ...]:
    return tuple(
        GrowthPlace(line.file, line.line, line.function, line.native, line.bytes, trace.witness)
        for line in trace.lines
    )

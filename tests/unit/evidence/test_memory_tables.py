"""Tables that people already have: columns and units guessed or named, and what cannot be read said in a line."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oomproof.errors import USAGE, OomproofError
from oomproof.evidence.memory_tables import MemoryTable, Wanted, read_memory_table
from oomproof.units import GIB, KIB, MIB


def read(folder: Path, text: str, wanted: Wanted | None = None) -> MemoryTable:
    path = folder / "table"
    path.write_text(text)
    return read_memory_table(str(path), wanted or Wanted())


@pytest.mark.parametrize(
    ("text", "first", "last", "is_wall"),
    [
        ("# Elapsed time   CPU (%)     Real (MB)   Virtual (MB)\n"
         "       0.000        0.000        5.250       12.000\n       1.000       99.000      100.500      212.000\n",
         (0.0, 5.25 * MIB), (1.0, 100.5 * MIB), False),
        ("CMDLINE python train.py\nMEM 1.500000 1790000000.5\nMEM 2.500000 1790000001.5\n",
         (1790000000.5, 1.5 * MIB), (1790000001.5, 2.5 * MIB), True),
        ('"Relative Time (Process)","x - system/cpu","x - system/proc.memory.rssMB"\n"0","5","7"\n"15","5","8.5"\n',
         (0.0, 7 * MIB), (15.0, 8.5 * MIB), False),
        ("_timestamp,_step,system.memory_percent,rss_gb\n1790000000,1,33,2\n1790000060,2,34,3\n",
         (1790000000.0, 2 * GIB), (1790000060.0, 3 * GIB), True),
        ("1790000000 1024\n1790000005 2048\n", (1790000000.0, MIB), (1790000005.0, 2 * MIB), True),
        ("2026-09-21 10:00:00+00:00;3.5\n2026-09-21 10:00:30+00:00;4.5\n",
         (1789984800.0, 3.5 * KIB), (1789984830.0, 4.5 * KIB), True),
        ("2026-09-21T10:00:00Z 1024\n2026-09-21T10:00:30Z 2048\n", (1789984800.0, MIB), (1789984830.0, 2 * MIB), True),
        ("23:59:50 1024\n00:00:10 2048\n", (86390.0, MIB), (86410.0, 2 * MIB), False),
        ("time\tused_bytes\ttotal_bytes\n0\t5\t100\n1\t6\t100\n", (0.0, 5.0), (1.0, 6.0), False),
        ("timestamp_ms,memory\n1790000000000,5\n1790000001000,6\n", (1.79e9, 5.0), (1790000001.0, 6.0), True),
        ("time,rss\n1,10\nnonsense\n2,\x0011\n\n3,\n", (1.0, 10 * KIB), (2.0, 11 * KIB), False),
        ("CMDLINE x\nMEM 10.0 1790000000\nCHLD 77 3.0 1790000000\nMEM 11.0 1790000001\n",
         (1790000000.0, 10 * MIB), (1790000001.0, 11 * MIB), True),
        ("time;mem_mb\n5,0;4002,5\n6,0;4003,5\n", (5.0, 4002.5 * MIB), (6.0, 4003.5 * MIB), False),
        ("time,rss\n1,4294967296\n2,4294967297\n", (1.0, 4294967296.0), (2.0, 4294967297.0), False),
        ("77 1790000000 1024\n77 1790000005 2048\n", (1790000000.0, MIB), (1790000005.0, 2 * MIB), True),
        ("t_ns,mem\n1790000000000000000,5\n1790000001000000000,6\n", (1.79e9, 5.0), (1790000001.0, 6.0), True),
        ("\ufeffTime (s),Memory (MiB)\r\n0,1\r\n5,2\r\n", (0.0, MIB), (5.0, 2 * MIB), False),
    ],
    ids=["psrecord", "memory_profiler", "wandb", "wandb api", "ps", "dates and ;", "iso", "over midnight", "tabs", "ms",
         "bad rows", "children of memory_profiler", "decimal commas", "psutil", "a pid first", "nanoseconds",
         "byte order mark"],
)  # fmt: skip
def test_guessed(
    tmp_path: Path, text: str, first: tuple[float, float], last: tuple[float, float], is_wall: bool
) -> None:
    table = read(tmp_path, text)
    assert (table.samples[0], table.samples[-1], table.is_wall) == (first, last, is_wall)


def test_named(tmp_path: Path) -> None:
    text = "a,b,c\n5,1,7\n6,2,8\n"
    assert read(tmp_path, text, Wanted("b", "c", MIB)).samples == [(1.0, 7.0 * MIB), (2.0, 8.0 * MIB)]
    assert read(tmp_path, text, Wanted("2", "3", 1)).samples == [(1.0, 7.0), (2.0, 8.0)]
    assert read(tmp_path, "100\n200\n300\n", Wanted(every=10.0)).samples[-1] == (20.0, 300 * KIB)


def test_what_was_taken_for_what_is_told(tmp_path: Path) -> None:
    table = read(tmp_path, "time,rss,vsz\n1,10,99\nx\n2,11,99\n")
    assert table.told == "time from column time, memory from column rss in KiB (as ps counts; else: --unit)"
    assert table.skipped == 1


@pytest.mark.parametrize(
    ("text", "wanted", "said"),
    [
        ("", Wanted(), "is empty"),
        ("hello\nworld\n", Wanted(), "no rows with a time"),
        ("5\n6\n7\n", Wanted(), "no rows with a time"),
        ("time,cpu_percent\n1,2\n2,3\n", Wanted(), "no rows with a time"),
        ("time,rss\n1,2\n2,3\n", Wanted(column="pss"), "has no column pss"),
        ("1 2\n2 3\n", Wanted(time="9"), "has no column 9"),
        ("time,rss\n1,inf\n2,nan\n", Wanted(), "no rows with a time"),
        ("time,mem_gb\n1,1e308\n2,1e308\n", Wanted(), "no rows with a time"),
        ("time,mem_usage_pct\n1,47\n2,48\n", Wanted(), "no rows with a time"),
    ],
)
def test_what_cannot_be_read(tmp_path: Path, text: str, wanted: Wanted, said: str) -> None:
    with pytest.raises(OomproofError, match=said) as raised:
        read(tmp_path, text, wanted)
    assert raised.value.status == USAGE


def test_no_file_and_a_folder(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(OomproofError, match="cannot be read"):
            read_memory_table(str(path), Wanted())


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.one_of(
        st.binary(max_size=400),
        st.text(alphabet="0123456789.,;:\t\n -Tetimrs#\"'", max_size=300).map(str.encode),
    )
)
def test_any_bytes(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "any"
    path.write_bytes(content)
    try:
        table = read_memory_table(str(path), Wanted())
    except OomproofError:
        return
    assert all(b[0] >= a[0] for a, b in zip(table.samples, table.samples[1:], strict=False))

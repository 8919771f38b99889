"""Tables that people already have: columns and units guessed or named, and what cannot be read said in a line."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oomproof.errors import USAGE, OomproofError
from oomproof.evidence.memory_tables import MemoryTable, Wanted, read_memory_table, size
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
        ('"Relative Time (Process)","x - system/cpu","x - system/proc.memory.rssMB"\n"0","5","7"\n"15","5","8.5"\n',
         (0.0, 7 * MIB), (15.0, 8.5 * MIB), False),
        ("_timestamp,_step,system.memory_percent,rss_gb\n1790000000,1,33,2\n1790000060,2,34,3\n",
         (1790000000.0, 2 * GIB), (1790000060.0, 3 * GIB), True),
        ("1790000000 1024\n1790000005 2048\n", (1790000000.0, MIB), (1790000005.0, 2 * MIB), True),
        ("2026-09-21T10:00:00Z 1024\n2026-09-21T10:00:30Z 2048\n", (1789984800.0, MIB), (1789984830.0, 2 * MIB), True),
        ("23:59:50 1024\n00:00:10 2048\n", (86390.0, MIB), (86410.0, 2 * MIB), False),
        ("time\tused_bytes\ttotal_bytes\n0\t5\t100\n1\t6\t100\n", (0.0, 5.0), (1.0, 6.0), False),
        ("timestamp_ms,memory\n1790000000000,5\n1790000001000,6\n", (1.79e9, 5.0), (1790000001.0, 6.0), True),
        ("time,rss\n1,10\nnonsense\n2,\x0011\n\n3,\n", (1.0, 10 * KIB), (2.0, 11 * KIB), False),
        ("time,rss\n1,4294967296\n2,4294967297\n", (1.0, 4294967296.0), (2.0, 4294967297.0), False),
        (",time,rss_mb\n0,5,1\n1,6,2\n2,7,3\n", (5.0, MIB), (7.0, 3 * MIB), False),
        ("\ufeffTime (s),Memory (MiB)\r\n0,1\r\n5,2\r\n", (0.0, MIB), (5.0, 2 * MIB), False),
        ("timestamp, index, memory.used [MiB], memory.total [MiB]\n"
         "2026/11/16 10:00:00.500, 0, 100 MiB, 81559 MiB\n2026/11/16 10:00:00.500, 1, 3 MiB, 81559 MiB\n"
         "2026/11/16 10:00:05.500, 0, 200 MiB, 81559 MiB\n2026/11/16 10:00:05.500, 1, 3 MiB, 81559 MiB\n",
         (1794823200.5, 100 * MIB), (1794823205.5, 200 * MIB), True),
        ('"Time","train-0","redis"\n"2026-11-16T10:00:00Z","4.00 GiB","12 MiB"\n"2026-11-16T10:00:15Z","4.50 GiB","12 MiB"\n',
         (1794823200.0, 4 * GIB), (1794823215.0, 4.5 * GIB), True),
        ("Series;Time;Value\ntrain;2026-11-16T10:00:00Z;1024\nredis;2026-11-16T10:00:00Z;5\n"
         "train;2026-11-16T10:00:30Z;2048\nredis;2026-11-16T10:00:30Z;5\n",
         (1794823200.0, 1024.0), (1794823230.0, 2048.0), True),
        ("Linux 6.1.0 (host) \t11/16/2026 \t_x86_64_\t(2 CPU)\n\n16:00:01    kbmemfree kbavail kbmemused  %memused\n"
         "16:10:01       212980    301800     801800     79.01\n16:20:01       212980    301800     901800     89.01\n",
         (58201.0, 801800 * KIB), (58801.0, 901800 * KIB), False),
        ("Mon Nov 16 10:34:09 UTC 2026\n1024\nMon Nov 16 10:34:14 UTC 2026\n2048\n",
         (1794825249.0, MIB), (1794825254.0, 2 * MIB), True),
        ("Mon 16 Nov 2026 10:34:09 AM UTC\n1024\nMon 16 Nov 2026 10:34:14 AM UTC\n2048\n",
         (1794825249.0, MIB), (1794825254.0, 2 * MIB), True),
    ],
    ids=["psrecord", "wandb", "wandb api", "ps", "iso", "over midnight", "tabs", "ms", "bad rows", "psutil", "pandas",
         "byte order mark", "nvidia-smi", "Grafana", "Grafana rows", "sar", "date and ps by turns", "date of en_US"],
)  # fmt: skip
def test_guessed(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    text: str,
    first: tuple[float, float],
    last: tuple[float, float],
    is_wall: bool,
) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    table = read(tmp_path, text)
    assert (table.samples[0], table.samples[-1], table.is_wall) == (first, last, is_wall)


def printed(*command: str) -> str:
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not there")
    environment = {**os.environ, "LC_ALL": "C"}
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=True).stdout


def rss(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * KIB for line in lines if "VmRSS" in line)


@pytest.mark.parametrize("form", ["", "-Is", "+%s", "+%F %T"])
def test_the_real_ps(tmp_path: Path, form: str) -> None:
    text = ""
    for second in range(3):
        text += printed("date", "-d", f"@{1790000000 + 5 * second}", *([form] if form else []))
        text += printed("ps", "aux")
    table = read(tmp_path, text, Wanted(column=str(os.getpid())))
    assert [at for at, _ in table.samples] == [1790000000.0, 1790000005.0, 1790000010.0] and table.is_wall
    assert table.samples[-1][1] == pytest.approx(rss(os.getpid()), rel=0.2)
    assert (
        f"dates between the rows, memory from column RSS in KiB (as ps counts; else: --unit), of {os.getpid()}"
        in table.told
    )


def test_ps_without_a_date_needs_to_know_how_far_apart(tmp_path: Path) -> None:
    """As in the second incident: its header came with every look, and %MEM was taken for the memory."""
    command = ("ps", "-p", str(os.getpid()), "-o", "pid,vsz,rss,%mem,command")
    text = "".join(printed(*command) for _ in range(2))
    with pytest.raises(OomproofError, match="says nothing of the time") as raised:
        read(tmp_path, text)
    assert "--every 5s" in raised.value.hint
    table = read(tmp_path, text, Wanted(every=5.0))
    assert [at for at, _ in table.samples] == [0.0, 5.0]
    assert table.samples[0][1] == pytest.approx(rss(os.getpid()), rel=0.2)
    assert read(tmp_path, text, Wanted(every=5.0, column="3")).samples == table.samples
    with pytest.raises(OomproofError, match="has no nobody"):
        read(tmp_path, text, Wanted(every=5.0, column="nobody"))


def test_a_command_of_two_words_is_no_label(tmp_path: Path) -> None:
    look = "PID RSS %MEM COMMAND\n42 {} 3.2 python train.py\n"
    table = read(tmp_path, look.format(1024) + look.format(2048), Wanted(every=5.0))
    assert table.samples == [(0.0, MIB), (5.0, 2 * MIB)]


@pytest.mark.parametrize("unit", ["-b", "-k", "-h"])
def test_the_real_free(tmp_path: Path, unit: str) -> None:
    table = read(tmp_path, "".join(printed("free", unit) for _ in range(3)), Wanted(every=2.0))
    words = Path("/proc/meminfo").read_text().replace(":", " ").split()
    used = (int(words[words.index("MemTotal") + 1]) - int(words[words.index("MemAvailable") + 1])) * KIB
    assert table.samples[0][1] == pytest.approx(used, rel=0.4, abs=GIB), "others come and go"
    assert [at for at, _ in table.samples] == [0.0, 2.0, 4.0]


def test_the_real_vmstat(tmp_path: Path) -> None:
    table = read(tmp_path, printed("vmstat", "-t", "1", "3"))
    assert table.is_wall and len(table.samples) == 3
    assert "memory from column free, column buff, column cache in KiB" in table.told
    assert min(value for _, value in table.samples) == 0.0


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
        ("5\n6\n7\n", Wanted(), "says nothing of the time"),
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


def test_a_row_that_was_cut(tmp_path: Path) -> None:
    text = "time,rss\r\n" + "".join(f"{1790000000 + 5 * count},{4 << 20}\r\n" for count in range(10))
    for cut in (text, text + "17900", text + "1790000060,41"):
        table = read(tmp_path, cut)
        assert len(table.samples) == 10 and {value for _, value in table.samples} == {4 * GIB}


def test_many_rows_take_seconds(tmp_path: Path) -> None:
    path = tmp_path / "long"
    with open(path, "w") as file:
        file.write("time,rss\n")
        file.writelines(f"{1790000000 + count},{4_000_000 + count}\n" for count in range(200_000))
    began = time.process_time()
    assert len(read_memory_table(str(path), Wanted()).samples) == 200_000
    assert time.process_time() - began < 20, "a hang only: it takes less than one"


@pytest.mark.parametrize(
    ("cell", "bytes_"),
    [("4.0GiB", 4 * GIB), ("512MB", 512e6), ("512 MiB", 512 * MIB), ("12Mi", 12 * MIB), ("31G", 31 * GIB), ("0B", 0.0),
     ("1.5kB", 1500.0), ("17 bytes", 17.0), ("5", 5.0), ("GiB", None), ("5 apples", None), ("-5", None)],
)  # fmt: skip
def test_sizes(cell: str, bytes_: float | None) -> None:
    assert size(cell) == bytes_

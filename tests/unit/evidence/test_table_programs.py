"""What ps, free, vmstat, docker stats and nvidia-smi print in a loop, with and without a date; the first three are the real ones."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from oomproof.errors import OomproofError
from oomproof.evidence.memory_tables import MemoryTable, Wanted, read_memory_table
from oomproof.evidence.table_cells import moment, number, size
from oomproof.units import GIB, KIB, MIB


def read(folder: Path, text: str | bytes, wanted: Wanted | None = None) -> MemoryTable:
    path = folder / "table"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return read_memory_table(str(path), wanted or Wanted())


def printed(*command: str) -> str:
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not there")
    environment = {**os.environ, "LC_ALL": "C"}
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=True).stdout


def rss(pid: int) -> int:
    return next(
        int(line.split()[1]) * KIB
        for line in Path(f"/proc/{pid}/status").read_text().splitlines()
        if "VmRSS" in line
    )


@pytest.mark.parametrize("header", [True, False], ids=["with its header", "grep cut the header off"])
@pytest.mark.parametrize("form", ["", "-Is", "+%s", "+%F %T"])
def test_the_real_ps(tmp_path: Path, header: bool, form: str) -> None:
    text = ""
    for second in range(3):
        rows = printed("ps", "aux").splitlines()
        mine = [row for row in rows if row.split()[1] == str(os.getpid())]
        told = printed("date", "-d", f"@{1790000000 + 5 * second}", *([form] if form else []))
        text += told + "\n".join([*(rows[:1] if header else []), *mine]) + "\n"
    table = read(tmp_path, text)
    assert [at for at, _ in table.samples] == [1790000000.0, 1790000005.0, 1790000010.0] and table.is_wall
    assert table.samples[-1][1] == pytest.approx(rss(os.getpid()), rel=0.2)
    assert table.told.startswith(f"ps aux, the dates between them; RSS of pid {os.getpid()} (")


def test_ps_without_a_date_needs_to_know_how_far_apart(tmp_path: Path) -> None:
    text = "".join(printed("ps", "aux") for _ in range(2))
    with pytest.raises(OomproofError, match="is of ps aux, and says nothing of the time") as raised:
        read(tmp_path, text)
    assert "--every 5s" in raised.value.hint
    table = read(tmp_path, text, Wanted(every=5.0, column=str(os.getpid())))
    assert [at for at, _ in table.samples] == [0.0, 5.0] and table.samples[0][1] == pytest.approx(
        rss(os.getpid()), rel=0.2
    )
    with pytest.raises(OomproofError, match="has no nobody"):
        read(tmp_path, text, Wanted(every=5.0, column="nobody"))


@pytest.mark.parametrize("unit", ["-b", "-k", "-m", "-h"])
def test_the_real_free(tmp_path: Path, unit: str) -> None:
    table = read(tmp_path, "".join(printed("free", unit) for _ in range(3)), Wanted(every=2.0))
    words = Path("/proc/meminfo").read_text().replace(":", " ").split()
    used = (int(words[words.index("MemTotal") + 1]) - int(words[words.index("MemAvailable") + 1])) * KIB
    assert table.samples[0][1] == pytest.approx(used, rel=0.4, abs=GIB), "others come and go"
    assert "free, looks 2 s apart; total without available of the machine's RAM" in table.told


def test_the_real_vmstat(tmp_path: Path) -> None:
    table = read(tmp_path, printed("vmstat", "-t", "1", "3"))
    assert table.is_wall and len(table.samples) == 3 and "what free, buffers and cache lost" in table.told
    assert min(value for _, value in table.samples) == 0.0


DOCKER = """Mon Nov 16 10:34:0{second} UTC 2026
CONTAINER ID   NAME      CPU %     MEM USAGE / LIMIT     MEM %     NET I/O           BLOCK I/O         PIDS
b95a83497c91   train     99.50%    1.{second}GiB / 31.2GiB     4.82%     1.45kB / 648B     147kB / 0B        9
67b2525d8ad1   redis     0.28%     5.629MiB / 1.952GiB   0.28%     916B / 0B         4.11MB / 0B       2
"""


def test_docker_stats(tmp_path: Path) -> None:
    table = read(tmp_path, "".join(DOCKER.format(second=second) for second in range(5)))
    assert len(table.samples) == 5 and table.samples[-1] == (1794825244.0, pytest.approx(1.4 * GIB))
    assert (
        "docker stats, the dates between them; MEM USAGE of container train, the largest of 2" in table.told
    )
    assert read(
        tmp_path, "".join(DOCKER.format(second=second) for second in range(5)), Wanted(column="redis")
    ).samples[0][1] == (pytest.approx(5.629 * MIB))


def test_docker_stats_as_it_draws(tmp_path: Path) -> None:
    """Without --no-stream: the screen is cleared before each look, and nothing tells the time."""
    looks = "".join(
        "\x1b[2J\x1b[H" + "\n".join(DOCKER.format(second=second).splitlines()[1:]) + "\x1b[K\n"
        for second in range(4)
    )
    table = read(tmp_path, looks, Wanted(every=1.0))
    assert [at for at, _ in table.samples] == [0.0, 1.0, 2.0, 3.0] and table.samples[1][1] == pytest.approx(
        1.1 * GIB
    )


SMI = """Mon Nov 16 10:34:0{second} 2026
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 580.65.06              Driver Version: 580.65.06      CUDA Version: 13.0     |
|   0  NVIDIA H200                    On  |   00000000:18:00.0 Off |                    0 |
| N/A   32C    P0             76W /  700W |    {first}MiB / 143771MiB |      0%      Default |
|   1  NVIDIA H200                    On  |   00000000:2A:00.0 Off |                    0 |
| N/A   33C    P0             75W /  700W |    {other}MiB / 143771MiB |      0%      Default |
"""


def test_nvidia_smi(tmp_path: Path) -> None:
    text = "".join(SMI.format(second=second, first=10, other=5000 + second) for second in range(4))
    table = read(tmp_path, text)
    assert len(table.samples) == 4 and table.samples[-1][1] == 5003 * MIB and "GPU 1" in table.told


@pytest.mark.parametrize(
    ("text", "first", "last"),
    [
        ("timestamp, index, memory.used [MiB], memory.total [MiB]\n"
         "2026/11/16 10:00:00.500, 0, 100 MiB, 81559 MiB\n2026/11/16 10:00:00.500, 1, 3 MiB, 81559 MiB\n"
         "2026/11/16 10:00:05.500, 0, 200 MiB, 81559 MiB\n2026/11/16 10:00:05.500, 1, 3 MiB, 81559 MiB\n",
         100 * MIB, 200 * MIB),
        ("timestamp, memory.used [MiB]\n2026/11/16 10:00:00.500, 100\n2026/11/16 10:00:05.500, 200\n", 100 * MIB, 200 * MIB),
        ('"Time","train-0","redis"\n"2026-11-16 10:00:00","4.00 GiB","12 MiB"\n"2026-11-16 10:00:15","4.50 GiB","12 MiB"\n',
         4 * GIB, 4.5 * GIB),
        ('"Time","{__name__=""container_memory_rss"", pod=""a""}","{pod=""b""}"\n1704067200000,1024,5\n1704067215000,2048,5\n',
         1024.0, 2048.0),
        ('Series;Time;Value\ntrain;2026-11-16T10:00:00+01:00;1024\nredis;2026-11-16T10:00:00+01:00;5\n'
         'train;2026-11-16T10:00:30+01:00;2048\nredis;2026-11-16T10:00:30+01:00;5\n', 1024.0, 2048.0),
        ("time,mem\n1,512MB\n2,4.0GiB\n", 512e6, 4 * GIB),
        ('time,rss_kb\n1,"1,234"\n2,"2,345"\n', 1234 * KIB, 2345 * KIB),
        ("time;mem_mb\n1;1,234\n2;2,345\n", 1.234 * MIB, 2.345 * MIB),
        ("Linux 6.1.0 (host) \t11/16/2026 \t_x86_64_\t(2 CPU)\n\n16:00:01    kbmemfree kbavail kbmemused  %memused kbbuffers\n"
         "16:10:01       212980    301800     801800     79.01         0\n16:20:01       212980    301800     901800     89.01         0\n"
         "Average:       212980    301800     851800     84.01         0\n", 801800 * KIB, 901800 * KIB),
        ("04:00:01 PM kbmemfree kbmemused  %memused\n04:10:01 PM   212980    801800     79.01\n04:20:01 PM   212980    901800     89.01\n",
         801800 * KIB, 901800 * KIB),
        ("Mon Nov 16 10:34:09 CET 2026\n1024\nMon Nov 16 10:34:14 CET 2026\n2048\n", MIB, 2 * MIB),
        ("Mon 16 Nov 2026 10:34:09 AM UTC\n1024\nMon 16 Nov 2026 10:34:14 AM UTC\n2048\n", MIB, 2 * MIB),
    ],
    ids=["nvidia-smi csv", "nvidia-smi nounits", "Grafana", "Grafana raw", "Grafana rows", "units in cells", "thousands",
         "decimal commas", "sar", "sar, twelve hours", "date and ps by turns", "date of en_US"],
)  # fmt: skip
def test_documented_forms(tmp_path: Path, text: str, first: float, last: float) -> None:
    table = read(tmp_path, text)
    assert [value for _, value in table.samples] == [pytest.approx(first), pytest.approx(last)]


def test_utf16_and_a_row_that_was_cut(tmp_path: Path) -> None:
    rows = "".join(f"{1790000000 + 5 * count},{4 << 20}\r\n" for count in range(10))
    text = "time,rss\r\n" + rows
    for cut in (text, text + "17900", text + "1790000060,41"):
        table = read(tmp_path, cut.encode("utf-16"))
        assert len(table.samples) == 10 and {value for _, value in table.samples} == {4 * GIB}


def test_zones_are_told_apart(tmp_path: Path) -> None:
    text = "time,rss\n2026-10-25T02:50:00+02:00,1000\n2026-10-25T02:10:00+01:00,2000\n2026-10-25T01:20:00Z,3000\n"
    assert [value for _, value in read(tmp_path, text).samples] == [1000 * KIB, 2000 * KIB, 3000 * KIB]


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
     ("1.5kB", 1500.0), ("17 bytes", 17.0), ("1,234.5 MiB", 1234.5 * MIB), ("5", 5.0), ("GiB", None), ("5 apples", None), ("-5", None)],
)  # fmt: skip
def test_sizes(cell: str, bytes_: float | None) -> None:
    assert size(cell) == bytes_


def test_numbers_and_moments() -> None:
    assert (number("1,234", ""), number("1,234"), number("12,34", ""), number("1,234,567", "")) == (
        1234,
        1.234,
        12.34,
        1234567,
    )
    assert moment("2026/11/16 10:00:00.500") == moment("2026-11-16T10:00:00.500")
    assert moment("Mon Nov 16 10:34:09 UTC 2026") == 1794825249.0
    assert moment("no time at all") is None

"""How well a running job's own pages compress: a few MiB of them, read where they lie, never another user's.

Only pages that are in RAM are read (``pagemap`` tells): looking must not fetch a page from swap nor make a new one.
"""

from __future__ import annotations

import os
import random
import re
import time
import zlib

from oomproof.leaf.proc_files import read_bytes
from oomproof.records import dataclass

PAGE = 4096
MOST_PAGES = 1024  # 4 MiB: the share of 1024 pages is known to within 3 %
_SECONDS = 1.0  # a busy machine must not be made busier
_WHOLE = 3264  # bytes; zsmalloc keeps what compresses to more than this as a whole page
_PRESENT = 1 << 63
_ANONYMOUS = re.compile(
    rb"^([0-9a-f]+)-([0-9a-f]+) rw.[ps] \S+ \S+ 0 *(\[heap\]|\[anon[^\n]*|)$", re.MULTILINE
)


@dataclass(frozen=True, slots=True)
class PageSample:
    pid: int
    pages: int
    compressed: int  # bytes they would take in zram

    @property
    def share(self) -> float:
        """1.0: nothing is saved."""
        return self.compressed / (self.pages * PAGE)


def sample(pid: int, uid: int, proc: str = "/proc", most: int = MOST_PAGES) -> tuple[PageSample | None, str]:
    """(sample, why there is none). ``uid``: whose processes may be read."""
    try:
        if os.stat(f"{proc}/{pid}").st_uid != uid:
            return None, "another user's process"
        maps = read_bytes(f"{proc}/{pid}/maps") or b""
        with (
            open(f"{proc}/{pid}/mem", "rb", buffering=0) as memory,
            open(f"{proc}/{pid}/pagemap", "rb", buffering=0) as pagemap,
        ):
            pages, compressed = _measure(memory.fileno(), pagemap.fileno(), maps, most)
    except OSError as error:
        return None, error.strerror or "not readable"
    return (PageSample(pid, pages, compressed), "") if pages else (None, "none of its pages could be read")


def _measure(memory: int, pagemap: int, maps: bytes, most: int) -> tuple[int, int]:
    """Evenly over all of its anonymous memory; (pages, their size when compressed)."""
    regions = [range(int(a, 16) // PAGE, int(b, 16) // PAGE) for a, b, _ in _ANONYMOUS.findall(maps)]
    step = max(1, sum(map(len, regions)) // (2 * most))  # half of what is mapped may never have been touched
    numbers: list[int] = []
    skip = 0
    for region in regions:
        numbers += region[skip::step]
        skip = (skip - len(region)) % step
    # in any order: one that is cut short must not know the heap's beginning only
    random.Random(0).shuffle(numbers)
    pages = compressed = 0
    deadline = time.monotonic() + _SECONDS
    for number in numbers:
        if pages == most or time.monotonic() > deadline:
            break
        page = _page(memory, pagemap, number)
        if page is not None:
            pages += 1
            compressed += cost(page)
    return pages, compressed


def _page(memory: int, pagemap: int, number: int) -> bytes | None:
    try:
        entry = int.from_bytes(os.pread(pagemap, 8, number * 8), "little")
        page = os.pread(memory, PAGE, number * PAGE) if entry & _PRESENT else b""
    except (OSError, OverflowError):  # unmapped meanwhile; [vvar] and its kind
        return None
    return page if len(page) == PAGE else None


def cost(page: bytes) -> int:
    """Bytes it takes in zram: nothing when it is one word repeated, all of it when it hardly compresses.

    Without entropy coding zlib is nearest to zram's lzo: of what half compresses it still says a tenth too little
    (bench/system.py)."""
    if page == page[:8] * (len(page) // 8):
        return 0
    packer = zlib.compressobj(1, zlib.DEFLATED, -15, 9, zlib.Z_FIXED)
    size = len(packer.compress(page) + packer.flush())
    return len(page) if size > _WHOLE else size

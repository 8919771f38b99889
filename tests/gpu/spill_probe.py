"""By hand on a machine with an NVIDIA GPU: what PyTorch and the kernel really do with memory that spills from the card into RAM.

    python tests/gpu/spill_probe.py [--only pin,pool] [--seconds 230] [--out FACTS.jsonl]

Needs the standard library and torch (transformers for the sections that train). Each section is a process of its own, so that one
that dies costs no other. Prints one JSON object a line; {"section": …, "fact": …, …}. A section whose line `done` stands in --out
already is left out. Sections: pin, pool, expand, exit, fork, train, beside, graphs, compiled, pair, cost.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import inspect
import json
import mmap
import os
import random
import resource
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

GIB, MIB = 1 << 30, 1 << 20
PIECE = 2 * MIB  # PyTorch's small segments, and a huge page
SECONDS = {"pin": 60, "pool": 45, "expand": 35, "exit": 40, "fork": 30, "train": 60, "beside": 40, "graphs": 40,
           "compiled": 110, "pair": 60, "cost": 40}  # fmt: skip
LEFT = 10.0  # GiB that the ballast leaves of the card
DONTFORK, HUGEPAGE, POPULATE_WRITE = 10, 14, 23
section = "main"


def fact(name: str, **values: Any) -> None:
    print(json.dumps({"section": section, "fact": name, **values}, default=str), flush=True)


# --- the host's books -------------------------------------------------------------------------------------------


def numbers(path: str, wanted: tuple[str, ...], scale: int = 1024) -> dict[str, int]:
    try:
        rows = [line.replace(":", " ").split() for line in Path(path).read_text().splitlines()]
    except OSError:
        return {}
    return {row[0]: int(row[1]) * scale for row in rows if len(row) > 1 and row[0] in wanted}


def cgroup() -> dict[str, int]:
    """The smallest group whose files can be read, v2 or v1."""
    places = []
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, kinds, path = line.split(":", 2)
        if kinds == "":
            places += [f"/sys/fs/cgroup{path}", f"/sys/fs/cgroup/unified{path}", "/sys/fs/cgroup"]
        elif "memory" in kinds.split(","):
            places += [f"/sys/fs/cgroup/memory{path}", "/sys/fs/cgroup/memory"]
    names = ("anon", "file", "shmem", "unevictable", "rss", "rss_huge", "cache", "mapped_file", "kernel")
    for place in places:
        stat = numbers(f"{place}/memory.stat", names, 1)
        for name in ("memory.current", "memory.usage_in_bytes"):
            path = Path(place) / name
            if path.exists():
                return {"usage": int(path.read_text()), **stat}
    return {}


def books() -> dict[str, int]:
    own = numbers("/proc/self/status", ("VmRSS", "RssAnon", "RssFile", "RssShmem", "VmLck", "VmPin"))
    own.update(
        numbers("/proc/self/smaps_rollup", ("Pss", "Anonymous", "AnonHugePages", "Locked", "Shared_Dirty"))
    )
    machine = numbers(
        "/proc/meminfo", ("MemFree", "MemAvailable", "Mlocked", "Unevictable", "Shmem", "AnonPages")
    )
    return {**own, **machine, **{f"cgroup_{name}": value for name, value in cgroup().items()}}


def moved(before: dict[str, int], after: dict[str, int], least: int = 64 * MIB) -> dict[str, str]:
    return {
        name: f"{(after[name] - before.get(name, 0)) / GIB:+.2f}G"
        for name in after
        if abs(after[name] - before.get(name, 0)) >= least
    }


# --- the spill ------------------------------------------------------------------------------------------------


class Region:
    """Anonymous memory of ours, filled in first, then pinned as one piece."""

    def __init__(self, size: int, huge: bool = True, shared: bool = False) -> None:
        self.size = size
        kind = mmap.MAP_SHARED if shared else mmap.MAP_PRIVATE
        self.map = mmap.mmap(-1, size + PIECE, flags=kind | mmap.MAP_ANONYMOUS)
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self.map))  # never unmapped by a forked child
        first = ctypes.addressof(ctypes.c_char.from_buffer(self.map))
        self.address = -(-first // PIECE) * PIECE
        self.offset = self.address - first
        self.map.madvise(DONTFORK)
        if huge and not shared:
            self.map.madvise(HUGEPAGE)
        self.words = memoryview(self.map).cast("Q")
        self.step = PIECE // 8
        self.first_word = self.offset // 8
        self.seen: list[int] = []
        self.seconds: dict[str, float] = {}

    def fill(self) -> None:
        begun = time.monotonic()
        at, chunk = self.offset // 4096 * 4096, 256 * MIB
        end = self.offset + self.size
        while at < end:
            length = min(chunk, end - at)
            try:
                self.map.madvise(POPULATE_WRITE, at, length)
            except OSError:  # before Linux 5.14
                for place in range(at, at + length, 4096):
                    self.map[place] = 0
            at += length
        self.seconds["populate"] = round(time.monotonic() - begun, 3)
        for index in self.positions():
            self.words[index] = random.getrandbits(63) | 1

    def positions(self) -> range:
        return range(self.first_word, self.first_word + self.size // 8, self.step)

    def look(self) -> list[int]:
        return self.words[self.first_word : self.first_word + self.size // 8 : self.step].tolist()

    def written(self) -> int:
        """Bytes up to the last place that was written since the last look."""
        now = self.look()
        if not self.seen:
            self.seen = now
        last = max(
            (index for index, pair in enumerate(zip(self.seen, now)) if pair[0] != pair[1]), default=-1
        )
        self.seen = now
        return (last + 1) * PIECE

    def pin(self, torch: Any) -> int:
        begun = time.monotonic()
        code = int(torch.cuda.cudart().cudaHostRegister(self.address, self.size, 3))
        self.seconds["register"] = round(time.monotonic() - begun, 3)
        return code

    def holds(self, pointer: int) -> bool:
        return self.address <= pointer < self.address + self.size


def relaxed() -> int:
    """This thread's calls are allowed while another captures a graph, and do not spoil it."""
    mode = ctypes.c_int(2)
    return int(ctypes.CDLL("libcuda.so.1").cuThreadExchangeStreamCaptureMode(ctypes.byref(mode)))


class Spill:
    def __init__(
        self, torch: Any, size: int, small: int = 64 * MIB, device: int = 0, huge: bool = True
    ) -> None:
        begun = time.monotonic()
        self.torch, self.device = torch, device
        torch.cuda.set_device(device)
        relaxed()
        self.region = Region(size + small, huge)
        self.region.fill()
        self.code = self.region.pin(torch)
        if self.code:
            raise RuntimeError(f"cudaHostRegister: {self.code}")
        self.given = 0
        kind = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)

        def give(length: int, on: int, stream: Any) -> int | None:
            if self.given + length > self.region.size:
                return None
            place = self.region.address + self.given
            self.given += length
            return place

        self.callback = kind(give)
        nothing = ctypes.cast(
            ctypes.CDLL(None).getpid, ctypes.c_void_p
        ).value  # takes no notice of what it is given
        allocator = torch._C._cuda_customAllocator(ctypes.cast(self.callback, ctypes.c_void_p).value, nothing)
        self.pool = torch.cuda.MemPool(allocator, use_on_oom=True)
        for kept in (self.callback, allocator, self.pool):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))
        with torch.cuda.use_mem_pool(self.pool, device):
            held = [
                torch.empty(MIB, dtype=torch.uint8, device=f"cuda:{device}")
                for _ in range(2 * small // PIECE)
            ]
            held.append(torch.empty(size, dtype=torch.uint8, device=f"cuda:{device}"))
            self.inside = all(self.region.holds(tensor.data_ptr()) for tensor in held)
        del held
        self.ready = round(time.monotonic() - begun, 3)
        self.region.written()

    def segments(self) -> list[dict[str, Any]]:
        torch = self.torch
        try:
            return list(torch._C._cuda_memorySnapshot((*self.pool.id, False))["segments"])
        except TypeError:
            return list(torch._C._cuda_memorySnapshot(self.pool.id)["segments"])

    def live(self) -> int:
        return sum(int(segment["allocated_size"]) for segment in self.segments())


def stats(torch: Any) -> dict[str, Any]:
    nested = torch.cuda.memory_stats_as_nested_dict()
    free, total = torch.cuda.mem_get_info()
    return {
        "allocated": round(nested["allocated_bytes"]["all"]["current"] / GIB, 3),
        "reserved": round(nested["reserved_bytes"]["all"]["current"] / GIB, 3),
        "splits": round(nested["inactive_split_bytes"]["all"]["current"] / GIB, 3),
        "retries": nested["num_alloc_retries"],
        "ooms": nested["num_ooms"],
        "free": round(free / GIB, 3),
    }


def microseconds(function: Any, times: int = 200) -> float:
    function()
    begun = time.perf_counter()
    for _ in range(times):
        function()
    return round((time.perf_counter() - begun) / times * 1e6, 1)


def guarded(name: str, function: Any) -> None:
    try:
        function()
    except BaseException as error:
        fact("failed", what=name, error=f"{type(error).__name__}: {str(error)[:600]}")


# --- sections ---------------------------------------------------------------------------------------------------


def pin() -> None:
    import torch

    torch.zeros(1, device="cuda")
    uname = os.uname()
    fact(
        "machine", torch=torch.__version__, cuda=torch.version.cuda, card=torch.cuda.get_device_name(), kernel=uname.release,
        arch=uname.machine, python=sys.version.split()[0], uid=os.getuid(),
        ram=round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / GIB, 1),
        total=round(torch.cuda.mem_get_info()[1] / GIB, 2), thp=Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text().strip(),
        cgroup=Path("/proc/self/cgroup").read_text().strip().splitlines()[:20], books={k: round(v / GIB, 2) for k, v in books().items()},
        memlock=resource.getrlimit(resource.RLIMIT_MEMLOCK), signature=str(inspect.signature(torch.cuda.MemPool.__init__)),
        cudart=[name for name in dir(torch.cuda.cudart()) if name.startswith("cuda")], snapshot=str(inspect.signature(torch.cuda.memory_snapshot)),
    )  # fmt: skip
    driver = ctypes.CDLL("libcuda.so.1")
    value = ctypes.c_int(-1)
    driver.cuDeviceGetAttribute(ctypes.byref(value), 91, 0)
    fact("same pointer for registered memory", attribute=value.value, relaxed=relaxed())
    size = 4 * GIB
    for name, huge, shared in (
        ("private, huge pages", True, False),
        ("private", False, False),
        ("shared", False, True),
    ):

        def try_region(name: str = name, huge: bool = huge, shared: bool = shared) -> None:
            before = books()
            region = Region(size, huge, shared)
            region.fill()
            filled = books()
            code = region.pin(torch)
            after = books()
            out = ctypes.c_void_p()
            code2 = driver.cuMemHostGetDevicePointer_v2(ctypes.byref(out), ctypes.c_void_p(region.address), 0)
            fact(name, code=code, seconds=region.seconds, filled=moved(before, filled), pinned=moved(filled, after),
                 device_pointer=(code2, out.value == region.address))  # fmt: skip
            begun = time.monotonic()
            undone = int(torch.cuda.cudart().cudaHostUnregister(region.address))
            region.words.release()
            region.map.madvise(9 if shared else 4)  # REMOVE, DONTNEED
            fact(
                f"{name}: undone",
                code=undone,
                seconds=round(time.monotonic() - begun, 3),
                left=moved(before, books()),
            )

        guarded(name, try_region)

    def host_alloc() -> None:
        before, begun = books(), time.monotonic()
        out = ctypes.c_void_p()
        code = driver.cuMemHostAlloc(ctypes.byref(out), ctypes.c_size_t(size), ctypes.c_uint(3))
        seconds, after = round(time.monotonic() - begun, 3), books()
        driver.cuMemFreeHost(out)
        fact(
            "cudaHostAlloc",
            code=code,
            seconds=seconds,
            pinned=moved(before, after),
            left=moved(before, books()),
        )

    guarded("cudaHostAlloc", host_alloc)

    def refused() -> None:
        tail = mmap.mmap(-1, 64 * MIB)
        address = ctypes.addressof(ctypes.c_char.from_buffer(tail))
        code = int(torch.cuda.cudart().cudaHostRegister(address, 8 * GIB, 3))
        still = float(torch.ones(1000, device="cuda").sum().item())
        fact("more than is mapped", code=code, still_works=still == 1000)
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, 65536))
        region = Region(256 * MIB)
        region.fill()
        fact("ulimit -l 64, as root", code=region.pin(torch))

    guarded("refused", refused)
    child = os.fork() if os.getuid() == 0 else -1
    if child == 0:  # a new program, as nobody, under the usual limit
        os.setgid(65534)
        os.setuid(65534)
        os.environ.update(HOME="/tmp", CUDA_CACHE_PATH="/tmp/nobody-cuda")
        os.execv(sys.executable, [sys.executable, __file__, "--section", "nobody"])
    if child > 0:
        os.waitpid(child, 0)


def nobody() -> None:
    import torch

    torch.zeros(1, device="cuda")
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, 65536))
    region = Region(512 * MIB)
    region.fill()
    fact("ulimit -l 64, as nobody", uid=os.getuid(), code=region.pin(torch))


def fill_card(torch: Any, leave: int = 0) -> list[Any]:
    """Tensors that take the card to the last piece."""
    held = []
    for size in (GIB, 256 * MIB, 32 * MIB, 12 * MIB):
        while torch.cuda.mem_get_info()[0] > leave + size + 8 * MIB and len(held) < 300:
            held.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
    return held


def pool(expandable: bool = False) -> None:
    import torch

    x = torch.zeros(1, device="cuda")
    before = stats(torch)
    bag = Spill(torch, 4 * GIB)
    fact("ready", seconds=bag.ready, stages=bag.region.seconds, inside=bag.inside, given=bag.given, before=before, after=stats(torch),
         live=bag.live(), segments=len(bag.segments()), use_count=bag.pool.use_count())  # fmt: skip

    def order() -> None:
        """Does the pool come before or after giving free segments back?"""
        torch.cuda.empty_cache()
        free = torch.cuda.mem_get_info()[0]
        first = torch.empty(3 * GIB, dtype=torch.uint8, device="cuda")
        second = torch.empty(free - 3 * GIB - 3 * GIB // 2, dtype=torch.uint8, device="cuda")
        del first  # free, cached, and too small for the next
        third = torch.empty(7 * GIB // 2, dtype=torch.uint8, device="cuda")
        spilled = bag.region.holds(third.data_ptr())
        fact("order", pool_before_release=spilled, free=round(free / GIB, 2), stats=stats(torch))
        del second, third
        torch.cuda.empty_cache()
        fact("empty_cache leaves the pool", segments=len(bag.segments()), live=bag.live(), stats=stats(torch))

    guarded("order", order)

    def spilled() -> None:
        held = fill_card(torch)
        a = torch.randn(8192, 8192, device="cuda")
        b = torch.randn(8192, 8192, device="cuda")
        inside = [bag.region.holds(t.data_ptr()) for t in (a, b)]
        state, live, wrote = stats(torch), bag.live(), bag.region.written()
        small = [torch.ones(MIB // 4, device="cuda") for _ in range(60)]
        small_inside = sum(bag.region.holds(t.data_ptr()) for t in small)
        right = all(float(t.sum().item()) == MIB / 4 for t in small)
        torch.cuda.synchronize()
        begun = time.monotonic()
        c = a @ b
        torch.cuda.synchronize()
        seconds = time.monotonic() - begun
        answer = c.double().sum().item()
        c_inside = bag.region.holds(c.data_ptr())
        begun = time.monotonic()
        a.add_(1.0)
        torch.cuda.synchronize()
        add = time.monotonic() - begun
        del held
        torch.cuda.empty_cache()
        a2, b2 = (a - 1.0).clone(), b.clone()
        same = bool(torch.allclose(a2 @ b2, c, rtol=1e-3, atol=1e-2))
        fact("a full card", inside=inside, result_inside=c_inside, right=same, sum=answer, live=round(live / GIB, 3), written=round(wrote / GIB, 3),
             stats=state, small_inside=small_inside, small_right=right, matmul_s=round(seconds, 4),
             add_gib_s=round(2 * a.nbytes / add / GIB, 1))  # fmt: skip
        del a, b, c, a2, b2, small
        torch.cuda.empty_cache()
        fact("afterwards", live=bag.live(), stats=stats(torch))

    guarded("spilled", spilled)

    def costs() -> None:
        held = [torch.zeros(16, device="cuda") for _ in range(5000)]
        fact("cost in microseconds, 5000 tensors", snapshot=microseconds(bag.segments), method=microseconds(bag.pool.snapshot, 20),
             nested=microseconds(torch.cuda.memory_stats_as_nested_dict), look=microseconds(bag.region.look),
             word=microseconds(lambda: bag.region.words[bag.region.first_word]),
             few=microseconds(lambda: bag.region.words[bag.region.first_word : bag.region.first_word + 64 * bag.region.step : bag.region.step].tolist()),
             allocated=microseconds(torch.cuda.memory_allocated), sync=microseconds(torch.cuda.synchronize))  # fmt: skip
        del held

    guarded("costs", costs)

    def streams() -> None:
        held = fill_card(torch)
        side = torch.cuda.Stream()
        try:
            with torch.cuda.stream(side):
                y = torch.empty(512 * MIB, dtype=torch.uint8, device="cuda")
            fact("another stream", inside=bag.region.holds(y.data_ptr()))
        except torch.cuda.OutOfMemoryError as error:
            fact("another stream", oom=str(error)[:120])

        def in_thread() -> None:
            y = torch.empty(512 * MIB, dtype=torch.uint8, device="cuda")
            fact("another thread", inside=bag.region.holds(y.data_ptr()))

        thread = threading.Thread(target=in_thread)
        thread.start()
        thread.join()
        try:
            more = [torch.empty(1536 * MIB, dtype=torch.uint8, device="cuda") for _ in range(9)]
            fact("never exhausted?", count=len(more))
        except torch.cuda.OutOfMemoryError as error:
            fact("exhausted", text=str(error), stats=stats(torch), live=bag.live())
        del held
        torch.cuda.empty_cache()

    guarded("streams", streams)

    def fraction() -> None:
        torch.cuda.empty_cache()
        total = torch.cuda.mem_get_info()[1]
        reserved = torch.cuda.memory_reserved()
        out = {}
        for name, allowed in (("2G", 2 * GIB), ("2G + the pool", 2 * GIB + bag.given)):
            torch.cuda.set_per_process_memory_fraction(allowed / total)
            got, spilled_count, held = 0, 0, []
            try:
                while len(held) < 30:
                    held.append(torch.empty(256 * MIB, dtype=torch.uint8, device="cuda"))
                    got += not bag.region.holds(held[-1].data_ptr())
                    spilled_count += bag.region.holds(held[-1].data_ptr())
            except torch.cuda.OutOfMemoryError:
                pass
            out[name] = {"on_card": got / 4, "in_host": spilled_count / 4}
            del held
            torch.cuda.empty_cache()
        torch.cuda.set_per_process_memory_fraction(1.0)
        fact(
            "fraction",
            reserved_at_first=round(reserved / GIB, 3),
            **out,
            read=torch.cuda.get_per_process_memory_fraction(),
        )

    guarded("fraction", fraction)

    def capture_settings() -> None:
        shown = torch.cuda.memory._snapshot().get("allocator_settings")
        fact("settings", shown=shown)

    guarded("settings", capture_settings)
    del x


def expand() -> None:
    pool(expandable=True)


def exit_() -> None:
    """The interpreter ends while tensors lie in the pool, in four ways."""
    code = """
import sys, os
sys.argv = ["spill_probe.py", "--section", "none"]
sys.path.insert(0, {folder!r})
import spill_probe, torch
torch.zeros(1, device="cuda")
bag = spill_probe.Spill(torch, 1 << 30)
torch.cuda.set_per_process_memory_fraction(1e-3)  # all that is asked for from now on lies in the pool
kept = torch.ones(100 << 20, device="cuda")
assert bag.region.holds(kept.data_ptr())
how = {how!r}
class Cycle: pass
cycle = Cycle(); cycle.me = cycle; cycle.tensor = torch.ones(10 << 20, device="cuda")
if how == "sys.exit": sys.exit(3)
if how == "exception": raise ValueError("x")
if how == "os._exit": os._exit(4)
if how == "oom": torch.empty(40 << 30, dtype=torch.uint8, device="cuda")
"""
    ways = ("end", "sys.exit", "exception", "os._exit", "oom")
    children = [
        subprocess.Popen(
            [sys.executable, "-c", code.format(folder=str(Path(__file__).parent), how=how)],
            stderr=subprocess.PIPE,
            text=True,
        )
        for how in ways
    ]
    for how, child in zip(ways, children):
        _, errors = child.communicate(timeout=35)
        fact(how, status=child.returncode, said=errors.strip().splitlines()[-1:])


def fork() -> None:
    import torch
    from torch.utils.data import DataLoader

    torch.zeros(1, device="cuda")
    bag = Spill(torch, 4 * GIB)
    before = books()
    begun = time.monotonic()
    pid = os.fork()
    if pid == 0:
        own = books()
        fact(
            "in the child",
            fork_s=round(time.monotonic() - begun, 4),
            rss={k: round(own.get(k, 0) / GIB, 3) for k in ("VmRSS", "RssAnon", "RssShmem")},
        )
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    fact("fork", status=status, moved=moved(before, books()))
    data = [torch.randn(1000) for _ in range(64)]
    total = 0.0
    for batch in DataLoader(data, batch_size=8, num_workers=2, pin_memory=True):
        total += float(batch.cuda().sum().item())
    fact("loader", sum=round(total, 3), live=bag.live())


def gpt2(torch: Any, layers: int = 12) -> Any:
    os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(n_layer=layers, attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0)).cuda()


def steps_of(torch: Any, model: Any, batches: list[int], bag: Spill | None, tokens: int = 512, autocast: bool = False,
             after: str = "", pinning: Any = None, each: Any = None) -> list[dict[str, Any]]:  # fmt: skip
    """One row a step. ``after``: what is done after a step that spilled."""
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    generator = torch.Generator().manual_seed(1)
    rows = []
    for number, batch in enumerate(batches):
        ids = torch.randint(0, 50257, (batch, tokens), generator=generator).cuda()
        begun = time.monotonic()
        with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
            loss = model(input_ids=ids, labels=ids).loss
        live = bag.live() if bag else 0
        loss.backward()
        middle = bag.live() if bag else 0
        optimizer.step()
        optimizer.zero_grad()
        value = loss.item()
        torch.cuda.synchronize()
        seconds = time.monotonic() - begun
        row = {"batch": batch, "s": round(seconds, 4), "loss": round(value, 6), **stats(torch)}
        if bag:
            row.update(live_forward=round(live / GIB, 3), live_backward=round(middle / GIB, 3), live_end=round(bag.live() / GIB, 3),
                       written=round(bag.region.written() / GIB, 3))  # fmt: skip
            if after == "empty" and max(live, middle) > 0:
                begun = time.monotonic()
                del loss
                torch.cuda.empty_cache()
                row["emptied_s"] = round(time.monotonic() - begun, 4)
        rows.append(row)
        if pinning is not None and number == pinning[0]:
            pinning[1].start()
        if each is not None:
            each(number)
    return rows


def train() -> None:
    import torch

    torch.zeros(1, device="cuda")
    batches = [4, 4, 4, 4, 12, 4, 4, 4, 4, 4]
    bag = Spill(torch, 8 * GIB)
    for after in ("", "empty"):
        model = gpt2(torch)
        guarded(
            f"train {after}",
            lambda after=after, model=model: fact(
                f"gpt2 fp32, then {after or 'nothing'}",
                rows=steps_of(torch, model, batches, bag, after=after),
            ),
        )
        del model
        gc.collect()
        torch.cuda.empty_cache()
        fact("between", live=bag.live(), stats=stats(torch))

    def always() -> None:
        model = gpt2(torch)
        fact("gpt2 fp32, always", rows=steps_of(torch, model, [12] * 4, bag))

    guarded("always", always)


def beside() -> None:
    """Pinning in a thread while the training runs; then training with the pool in place and unused."""
    import torch

    torch.zeros(1, device="cuda")
    model = gpt2(torch, 6)
    made: dict[str, Any] = {}

    def work() -> None:
        try:
            made["bag"] = Spill(torch, 8 * GIB)
        except BaseException as error:
            made["error"] = f"{type(error).__name__}: {error}"

    thread = threading.Thread(target=work)
    times: list[tuple[float, bool]] = []
    last = [time.monotonic()]

    def each(number: int) -> None:
        times.append((time.monotonic() - last[0], thread.is_alive()))
        last[0] = time.monotonic()

    steps_of(torch, model, [2] * 160, None, pinning=(30, thread), each=each)
    thread.join()
    apart = [seconds for seconds, alive in times[5:] if not alive]
    during = [seconds for seconds, alive in times if alive]
    bag = made.get("bag")
    fact("pinning beside training", error=made.get("error"), ready=bag.ready if bag else None, stages=bag.region.seconds if bag else None,
         steps=len(during), median_ms=round(statistics.median(during) * 1000, 2) if during else None, worst_ms=round(max(during, default=0) * 1000, 1),
         median_apart_ms=round(statistics.median(apart) * 1000, 2), worst_apart_ms=round(max(apart) * 1000, 1))  # fmt: skip


def cost() -> None:
    """Steps of a small model, by turns with a pool that may be used and without."""
    import torch

    torch.zeros(1, device="cuda")
    torch.manual_seed(0)
    model = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(12)]).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)

    def train(count: int) -> float:
        begun = time.monotonic()
        for _ in range(count):
            model(torch.randn(64, 512, device="cuda")).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        torch.cuda.synchronize()
        return (time.monotonic() - begun) / count * 1e6

    train(300)
    before = [train(300) for _ in range(8)]
    bag = Spill(torch, 4 * GIB)
    after = [train(300) for _ in range(8)]
    fact("microseconds a step", without=round(statistics.median(before), 1), with_pool=round(statistics.median(after), 1),
         spread=[round(min(before + after), 1), round(max(before + after), 1)], live=bag.live())  # fmt: skip


def graphs() -> None:
    import torch

    x = torch.zeros(1, device="cuda")
    made: dict[str, Any] = {}

    def work() -> None:
        made["begun"] = time.monotonic()
        try:
            made["bag"] = Spill(torch, 6 * GIB)
        except BaseException as error:
            made["error"] = f"{type(error).__name__}: {error}"
        made["ended"] = time.monotonic()

    model = torch.nn.Sequential(
        torch.nn.Linear(1024, 1024), torch.nn.GELU(), torch.nn.Linear(1024, 1024)
    ).cuda()
    static = torch.randn(256, 1024, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side), torch.no_grad():
        for _ in range(3):
            model(static)
    torch.cuda.current_stream().wait_stream(side)
    thread = threading.Thread(target=work)
    thread.start()
    captured, wrong, errors = 0, 0, []
    while thread.is_alive() or captured == 0:
        try:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph), torch.no_grad():
                out = model(static)
                if captured == 0:
                    time.sleep(1.0)  # a capture that lasts while the other thread pins
            graph.replay()
            torch.cuda.synchronize()
            with torch.no_grad():
                wrong += not torch.allclose(out, model(static), atol=1e-4)
            captured += 1
        except RuntimeError as error:
            errors.append(str(error)[:200])
            if len(errors) > 5:
                break
    thread.join()
    bag = made.get("bag")
    fact("captures while pinning", captured=captured, wrong=wrong, errors=errors[:3], pin_error=made.get("error"),
         seconds=round(made["ended"] - made["begun"], 2))  # fmt: skip
    if bag is None:
        bag = Spill(torch, 6 * GIB)

    def full_capture() -> None:
        held = fill_card(torch, 512 * MIB)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph), torch.no_grad():
                y = torch.empty(GIB, dtype=torch.uint8, device="cuda")
                y.add_(1)
            fact("a capture on a full card", inside=bag.region.holds(y.data_ptr()))
        except Exception as error:
            fact("a capture on a full card", error=f"{type(error).__name__}: {str(error)[:160]}")
        del held
        torch.cuda.empty_cache()
        fact("alive after it", sum=float(torch.ones(1000, device="cuda").sum().item()))

    guarded("full capture", full_capture)

    def replay_spilled() -> None:
        """A graph captured before, replayed while its neighbours spill."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph), torch.no_grad():
            out = model(static)
        held = fill_card(torch)
        spilled = torch.ones(GIB // 4, device="cuda")
        graph.replay()
        torch.cuda.synchronize()
        with torch.no_grad():
            right = bool(torch.allclose(out, model(static), atol=1e-4))
        fact(
            "replay beside a spill",
            right=right,
            inside=bag.region.holds(spilled.data_ptr()),
            sum_right=float(spilled[:1000].sum().item()) == 1000,
        )
        del held

    guarded("replay", replay_spilled)
    del x


def compiled() -> None:
    """Why later steps of a compiled model are slower, and what ends it. A cap in place of the ballast: compiled once, run three times."""
    import torch

    torch.zeros(1, device="cuda")
    total = torch.cuda.mem_get_info()[1]
    model = torch.compile(gpt2(torch, 4))
    peak = {}

    def note(number: int) -> None:
        if number == 4:
            peak["usual"] = torch.cuda.max_memory_allocated()

    rows = steps_of(torch, model, [8] * 5 + [32] + [8] * 6, None, autocast=True, each=note)
    fact("compiled, empty card", rows=[{"batch": row["batch"], "s": row["s"], "loss": row["loss"]} for row in rows], usual=round(peak["usual"] / GIB, 2),
         peak=round(torch.cuda.max_memory_allocated() / GIB, 2))  # fmt: skip
    bag = Spill(torch, 14 * GIB)
    for after in ("", "empty"):
        model.zero_grad()
        gc.collect()
        torch.cuda.empty_cache()
        cap = peak["usual"] + GIB
        torch.cuda.set_per_process_memory_fraction(min(1.0, (cap + bag.given) / total))
        guarded(
            f"compiled {after}",
            lambda after=after: fact(
                f"compiled, cap, then {after or 'nothing'}",
                cap=round(cap / GIB, 2),
                rows=steps_of(torch, model, [8] * 4 + [32] + [8] * 8, bag, autocast=True, after=after),
            ),
        )
        torch.cuda.set_per_process_memory_fraction(1.0)


def half() -> None:
    """One of a pair."""
    import torch

    torch.zeros(1, device="cuda")
    bag = Spill(torch, 6 * GIB)
    model = gpt2(torch, 6)
    rows = steps_of(torch, model, [2, 2, 2, 10, 2, 2, 10, 2], bag, after="empty")
    fact(
        "half",
        pid=os.getpid(),
        ready=bag.ready,
        rows=[{k: row[k] for k in ("batch", "s", "loss", "live_forward", "written", "ooms")} for row in rows],
    )


def pair() -> None:
    both = [
        subprocess.Popen(
            [sys.executable, __file__, "--section", "half"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    for child in both:
        out, errors = child.communicate(timeout=55)
        print(out, end="", flush=True)
        fact("ended", status=child.returncode, said=errors.strip().splitlines()[-1:])


def ballast(left: float) -> None:
    import torch

    torch.zeros(1, device="cuda")
    free = torch.cuda.mem_get_info()[0]
    held = [torch.empty(max(0, free - int(left * GIB)), dtype=torch.uint8, device="cuda")]
    fact("ballast", left=round(torch.cuda.mem_get_info()[0] / GIB, 2), held=round(held[0].nbytes / GIB, 2))
    sys.stdin.read()


CHILDREN = {"pin": pin, "nobody": nobody, "pool": pool, "expand": expand, "exit": exit_, "fork": fork, "train": train, "beside": beside,
            "graphs": graphs, "compiled": compiled, "pair": pair, "half": half, "cost": cost}  # fmt: skip
ORDER = ("pin", "beside", "compiled", "exit", "fork", "pool", "train", "expand", "graphs", "pair", "cost")
WITHOUT_BALLAST = ("pin", "cost", "beside", "compiled", "exit", "fork")


def main() -> int:
    global section
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="")
    parser.add_argument("--seconds", type=float, default=230)
    parser.add_argument("--out", default="")
    parser.add_argument("--section", default="")
    parser.add_argument("--left", type=float, default=LEFT)
    options = parser.parse_args()
    if options.section:
        section = options.section
        if section == "ballast":
            ballast(options.left)
        else:
            CHILDREN[section]()
        return 0
    begun = time.monotonic()
    done = set()
    if options.out and Path(options.out).exists():
        rows = [
            json.loads(line) for line in Path(options.out).read_text().splitlines() if line.startswith("{")
        ]
        done = {row["section"] for row in rows if row["fact"] == "done" and row.get("status") == 0}
    names = [name for name in (options.only.split(",") if options.only else ORDER) if name not in done]
    weight: Any = None

    def say(text: str) -> None:
        print(text, end="", flush=True)
        if options.out:
            with open(options.out, "a") as file:
                file.write(text)

    def run(name: str) -> None:
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        if name == "expand":
            environment["PYTORCH_ALLOC_CONF"] = environment["PYTORCH_CUDA_ALLOC_CONF"] = (
                "expandable_segments:True"
            )
        limit = max(5.0, min(SECONDS.get(name, 60), options.seconds - (time.monotonic() - begun)))
        started = time.monotonic()
        child = subprocess.Popen(
            [sys.executable, __file__, "--section", name],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            out, errors = child.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            child.kill()
            out, errors = child.communicate()
        say(out)
        say(json.dumps({"section": name, "fact": "done", "status": child.returncode, "seconds": round(time.monotonic() - started, 1),
                        "said": errors.strip().splitlines()[-3:] if child.returncode else []}) + "\n")  # fmt: skip

    try:
        for name in names:
            if options.seconds - (time.monotonic() - begun) < 8:
                say(json.dumps({"section": name, "fact": "no time left"}) + "\n")
                continue
            if name not in WITHOUT_BALLAST and weight is None:
                weight = subprocess.Popen([sys.executable, __file__, "--section", "ballast", "--left", str(options.left)],
                                          stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)  # fmt: skip
                say(weight.stdout.readline())
            run(name)
    finally:
        if weight is not None:
            weight.stdin.close()
            weight.wait(20)
    say(
        json.dumps({"section": "main", "fact": "whole", "seconds": round(time.monotonic() - begun, 1)}) + "\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())

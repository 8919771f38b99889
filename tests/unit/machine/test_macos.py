"""Recorded text only: nobody has run this on a Mac."""

from __future__ import annotations

from oomproof.ledger.machine_facts import rows
from oomproof.machine import macos
from oomproof.machine.memory import Unowned

VM_STAT = """\
Mach Virtual Memory Statistics: (page size of 16384 bytes)
Pages free:                               12873.
Pages active:                            357245.
Pages inactive:                          352719.
Pages speculative:                         3514.
Pages throttled:                              0.
Pages wired down:                        143817.
Pages purgeable:                           4231.
"Translation faults":                1283713452.
Pages copy-on-write:                   53114117.
File-backed pages:                       231877.
Anonymous pages:                         481601.
Pages stored in compressor:              361932.
Pages occupied by compressor:            129104.
Swapins:                                 143290.
"""
GIB = 1 << 30


def test_vm_stat() -> None:
    pages = macos.parse_vm_stat(VM_STAT)
    assert pages["Pages free"] == 12873 * 16384
    assert pages["Pages occupied by compressor"] == 129104 * 16384
    assert macos.parse_vm_stat("") == {}


def test_swapusage_and_pressure() -> None:
    swap = macos.parse_swapusage(
        "vm.swapusage: total = 2048.00M  used = 1124.25M  free = 923.75M  (encrypted)\n"
    )
    assert swap and swap.total == 2 * GIB and swap.used == int(1124.25 * (1 << 20)) and swap.zram is None
    assert macos.parse_swapusage("") is None
    text = "The system has 17179869184 (1048576 pages with a page size of 16384).\n"
    text += "System-wide memory free percentage: 41%\n"
    assert macos.parse_free_percentage(text) == 41
    assert macos.parse_free_percentage("") is None


def test_the_memory_adds_up() -> None:
    pages = macos.parse_vm_stat(VM_STAT)
    memory = macos.memory_of(16 * GIB, pages, None, None)
    assert memory.available == (12873 + 3514 + 352719) * 16384
    assert macos.memory_of(16 * GIB, pages, None, 41).available == 16 * GIB * 41 // 100
    pool = Unowned(pages["Pages occupied by compressor"], 0, 0, 0, 0)
    found = rows(memory, pool, ())
    assert sum(row.size for row in found) == 16 * GIB
    assert 0 <= found[-1].size < 2 * GIB


def test_the_gpu_of_apple_silicon_is_unified() -> None:
    assert macos.gpus("arm64").gpus[0].unified
    assert macos.gpus("x86_64").gpus == ()

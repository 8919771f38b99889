from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from fake_machine import FakeMachine
from helpers_gpu import FakeNvml

from oomproof.machine import gpu, nvidia
from oomproof.runner.gpu_feed import EveryCard

GIB = 1 << 30


def test_memory_and_users_of_a_card() -> None:
    nvml = FakeNvml(
        {"memory": (24 * GIB, 3 * GIB), "compute": [(42, 20 * GIB)], "graphics": [(42, 20 * GIB), (7, None)]}
    )
    (card,) = gpu.query_nvml(nvml, wsl=False).gpus
    assert (card.name, card.total, card.used, card.free) == (
        "NVIDIA GeForce RTX 4090",
        24 * GIB,
        21 * GIB,
        3 * GIB,
    )
    assert card.processes == (gpu.GpuProcess(7, None), gpu.GpuProcess(42, 20 * GIB))
    assert card.note is None and not card.unified


def test_what_is_hidden_is_named() -> None:
    wsl = gpu.query_nvml(FakeNvml({"memory": (24 * GIB, 3 * GIB), "wsl": True}), wsl=True).gpus[0]
    assert wsl.note and "WSL2" in wsl.note
    container = gpu.query_nvml(FakeNvml({"memory": (24 * GIB, 3 * GIB)}), wsl=False).gpus[0]
    assert container.note and "container" in container.note


def test_unified_memory_is_named_and_has_no_size() -> None:
    card = gpu.query_nvml(FakeNvml({}), wsl=False).gpus[0]
    assert card.unified and card.total is None and card.note and "unified" in card.note


def test_a_lost_card_does_not_hide_the_others() -> None:
    lost, good = gpu.query_nvml(FakeNvml({"lost": True}, {"memory": (8 * GIB, 8 * GIB)}), wsl=False).gpus
    assert lost.total == 0 and lost.note == "GPU is lost" and good.free == 8 * GIB


def test_json_there_and_back() -> None:
    gpus = gpu.query_nvml(FakeNvml({"memory": (24 * GIB, 3 * GIB), "compute": [(42, None)]}, {}), wsl=False)
    assert gpu.from_json(gpu.to_json(gpus)) == gpus
    assert gpu.from_json(b"").problem and gpu.from_json(b"{}").problem and gpu.from_json(b"[1]").problem


def test_a_driver_that_hangs_costs_the_deadline_and_no_more() -> None:
    # the worst kind: it ignores being asked, as a process inside a driver call does
    stubborn = [sys.executable, "-c", "import signal,time; signal.signal(15, signal.SIG_IGN); time.sleep(60)"]
    began = time.monotonic()
    found = gpu.Query(stubborn).answer(0.3)
    assert time.monotonic() - began < 30, "of the 60 it would take"
    assert found.gpus == () and found.problem and "did not answer" in found.problem


def test_a_helper_that_dies_or_cannot_start_is_told_in_words() -> None:
    assert gpu.Query(["false"]).answer(5).problem
    assert gpu.Query(["/no/such/helper"]).answer(5).problem


def test_driver_present(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path)
    assert not nvidia.driver_present(machine.proc, machine.dev)
    machine.write("dev/dxg", "")
    assert nvidia.driver_present(machine.proc, machine.dev)


def helper(*arguments: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-P", "-m", "oomproof.machine.gpu", *arguments]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def test_the_helper_answers_once_in_one_line() -> None:
    out, _ = helper("--once").communicate(timeout=120)
    assert out.count(b"\n") == 1
    gpu.from_json(out)


def test_the_helper_wants_to_be_told_how() -> None:
    process = helper()
    assert b"usage" in process.communicate(timeout=120)[1] and process.returncode == 2


FAKE_NVML_LOOP = """
import sys
from oomproof.machine import gpu, nvidia
sys.modules["pynvml"] = type(sys)("pynvml")
sys.modules["pynvml"].nvmlInit = lambda: None
gpu._reading = lambda nvml, wsl: gpu.Gpus()
sys.exit(gpu.main(["--every", "0.05"]))
"""


def test_the_helper_ticks_until_its_reader_goes() -> None:
    for close in ("stdin", "stdout"):
        process = subprocess.Popen(
            [sys.executable, "-c", FAKE_NVML_LOOP],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert process.stdout and process.stdin and process.stderr
        assert [process.stdout.readline()[:1] for _ in range(3)] == [b"{"] * 3
        getattr(process, close).close()
        assert process.wait(timeout=120) == 0
        assert process.stderr.read() == b""
        for stream in (process.stdin, process.stdout, process.stderr):
            stream.close()


def test_the_helper_ends_when_its_parent_is_killed() -> None:
    parent = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import subprocess, sys\n"
            f"child = subprocess.Popen([sys.executable, '-c', {FAKE_NVML_LOOP!r}], stdin=-1, stdout=-1)\n"
            "child.stdout.readline(); print(child.pid, flush=True); child.wait()",
        ],
        stdout=subprocess.PIPE,
    )
    assert parent.stdout
    child = os.pidfd_open(int(parent.stdout.readline()))
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    import select

    assert select.select([child], [], [], 30)[0], "the helper outlived its reader"
    os.close(child)


def test_amd_from_sysfs(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path)
    device = "sys/class/drm/card1/device"
    machine.write(f"{device}/mem_info_vram_total", f"{16 * GIB}\n")
    machine.write(f"{device}/mem_info_vram_used", f"{4 * GIB}\n")
    machine.write(f"{device}/product_name", "Radeon RX 7800 XT\n")
    machine.write(f"{device}/drm/renderD128/uevent", "")
    kfd = "sys/class/kfd/kfd"
    machine.write(f"{kfd}/topology/nodes/0/properties", "cpu_cores_count 16\ndrm_render_minor 0\n")
    machine.write(f"{kfd}/topology/nodes/1/properties", "simd_count 120\ndrm_render_minor 128\n")
    machine.write(f"{kfd}/topology/nodes/1/gpu_id", "51234\n")
    machine.write(f"{kfd}/proc/4242/vram_51234", f"{3 * GIB}\n")
    (card,) = gpu.read_amd(machine.sys, first_index=1)
    assert (card.index, card.name, card.total, card.used) == (1, "Radeon RX 7800 XT", 16 * GIB, 4 * GIB)
    assert card.processes == (gpu.GpuProcess(4242, 3 * GIB),)
    assert gpu.read_amd(str(tmp_path / "nothing")) == ()


def test_persistence_mode() -> None:
    cards = [
        {"memory": (24 << 30, 24 << 30), **mode} for mode in ({"persistence": 1}, {"persistence": 0}, {})
    ]
    told = gpu.query_nvml(FakeNvml(*cards), wsl=False)
    assert [card.persistence for card in told.gpus] == [True, False, None]
    assert gpu.from_json(gpu.to_json(told)) == told


def test_the_cards_of_every_vendor_in_one_answer(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path)
    for card, total in (("card0", 16 * GIB), ("card1", 24 * GIB)):
        machine.write(f"sys/class/drm/{card}/device/mem_info_vram_total", f"{total}\n")
        machine.write(f"sys/class/drm/{card}/device/mem_info_vram_used", f"{4 * GIB}\n")
    alone = gpu.read(1.0, gpu.start_query(machine.proc, machine.dev), machine.sys)
    assert [(card.index, card.free) for card in alone.gpus] == [(0, 12 * GIB), (1, 20 * GIB)]
    answer = gpu.to_json(gpu.query_nvml(FakeNvml({"memory": (24 * GIB, 3 * GIB)}), wsl=False))
    query = gpu.Query([sys.executable, "-c", f"print({answer!r})"])
    both = gpu.read(30.0, query, machine.sys)
    assert [(card.index, card.total) for card in both.gpus] == [(0, 24 * GIB), (1, 16 * GIB), (2, 24 * GIB)]
    silent = gpu.read(1.0, gpu.Query(["false"]), machine.sys)
    assert len(silent.gpus) == 2 and silent.problem, "what one vendor does not tell hides no other"


def test_a_run_sees_amd_cards(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path)
    assert not nvidia.any_driver_present(machine.proc, machine.dev)
    machine.write("dev/kfd", "")
    assert nvidia.any_driver_present(machine.proc, machine.dev)
    machine.write("sys/class/drm/card0/device/mem_info_vram_total", f"{16 * GIB}\n")
    machine.write("sys/class/drm/card0/device/mem_info_vram_used", f"{4 * GIB}\n")
    cards = EveryCard(machine.sys)
    assert [card.free for card in cards.latest()][-1:] == [12 * GIB]
    cards.close()

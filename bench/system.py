"""What each remedy of `oomproof system` brings, in the lab's virtual machine: 1 GB of RAM, Debian 12, Linux 6.1.

Parts: swap, load (a job larger than RAM), zram, overcommit, sysrq (pressed on the machine's keyboard), delegation, swappiness.
The swap file lies on a disk that the host caches: its speed is no real disk's, who lives and who dies is.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import socket
import time
from collections.abc import Iterator
from typing import Any

from lab import RESULTS, read_json, save, table
from virtual_lab import IN_GUEST as JOBS
from virtual_lab import ROOT, virtual

MIB = 1 << 20
SWAP_ON = "oomproof system --only swap --need {need} --apply --yes"
UNDO = "oomproof system --undo"

# Holds MIB of a file's pages, then waits: what compresses and what does not.
HOLD = """
import sys, time
data = open(sys.argv[1], "rb").read()
held = [bytearray(data) for _ in range(int(sys.argv[2]) * (1 << 20) // len(data))]
print("ready", flush=True)
time.sleep(3600)
"""
# Grows by 10 MiB until somebody ends it; the last line says how far it came.
EAT = """
held = []
while True:
    held.append(bytearray(b"x" * (10 << 20)))
    print(len(held) * 10, flush=True)
"""
SAMPLE = """
import sys; from oomproof.machine import page_sample
pages, problem = page_sample.sample(int(sys.argv[1]), 0)
print(pages.share if pages else problem)
"""


class Keyboard(virtual.Machine):
    """The machine with QEMU's own control socket, to press keys."""

    def _command(self, wire: int) -> list[str]:
        self.keys = str(self._work / "keys")
        return [*super()._command(wire), "-qmp", f"unix:{self.keys},server=on,wait=off"]

    def press(self, *keys: str) -> None:
        with socket.socket(socket.AF_UNIX) as wire:
            wire.connect(self.keys)
            lines = wire.makefile("rw")
            lines.readline()
            for command in (
                {"execute": "qmp_capabilities"},
                {
                    "execute": "send-key",
                    "arguments": {"keys": [{"type": "qcode", "data": key} for key in keys]},
                },
            ):
                lines.write(json.dumps(command) + "\n")
                lines.flush()
                answer = json.loads(lines.readline())
                assert "return" in answer, answer


def ended(machine: virtual.Machine, handle: virtual.Handle, timeout: float = 240) -> str:
    try:
        done = machine.wait(handle, timeout)
    except virtual.LabError:
        return "did not end"
    if done.rc == 0 and "intact" in done.out:
        return "finished, every byte intact"
    return "killed" if done.rc == 137 else f"exit code {done.rc}: {done.out.strip()[-60:]}"


def ready(machine: virtual.Machine, handle: virtual.Handle) -> None:
    machine.wait_until(f"grep -qs ready {handle.output}", timeout=240)


def kernel_kills(machine: virtual.Machine) -> int:
    return int(machine.run("awk '/^oom_kill / {print $2}' /proc/vmstat").out)


# --- swap -----------------------------------------------------------------------------------------------------------


def swap(machine: Keyboard) -> dict[str, Any]:
    """A training of 480 MB, then a second job of 480 MB, by hand and without any guard."""
    rounds = {}
    for label, before in (("no swap", "true"), ("swap file", SWAP_ON.format(need="480M+480M"))):
        machine.run(before)
        size = int(machine.run("awk 'NR > 1 {n += $3} END {print n + 0}' /proc/swaps").out) // 1024
        kills = kernel_kills(machine)
        training = machine.start(f"python3 {JOBS}/train_loop.py 480 /tmp/enough")
        ready(machine, training)
        begun = time.monotonic()
        second = ended(machine, machine.start(f"python3 {JOBS}/train_loop.py 480 0"))
        seconds = time.monotonic() - begun
        machine.run("touch /tmp/enough")
        first = ended(machine, training)
        machine.run("rm /tmp/enough")
        rounds[label] = {
            "swap_mib": size,
            "training": first,
            "second": second,
            "seconds": round(seconds, 1),
            "kernel_kills": kernel_kills(machine) - kills,
        }
    machine.run(UNDO)
    rows = [[label, *(str(value) for value in row.values())] for label, row in rounds.items()]
    table(
        "Two jobs of 480 MB",
        ["", "swap, MiB", "training", "second job", "seconds of the second", "kernel kills"],
        rows,
    )
    return rounds


def load(machine: Keyboard) -> dict[str, Any]:
    """Seconds a pass over all pages, of a job that fits and of one that does not."""
    machine.run(SWAP_ON.format(need="1100M"))
    rounds = {}
    for size in (480, 1050):
        done = machine.run(f"python3 {JOBS}/train_loop.py {size} 40", timeout=400, check=False)
        steps = len(re.findall("^step", done.out, re.MULTILINE))
        rounds[str(size)] = {
            "steps_in_40_s": steps,
            "mib_per_second": round(size * steps / 40, 1),
            "rc": done.rc,
        }
    machine.run(UNDO)
    rows = [[size, *(str(value) for value in row.values())] for size, row in rounds.items()]
    table("A job that touches all its pages", ["MiB", "passes in 40 s", "MiB a second", "exit code"], rows)
    return rounds


# --- zram -----------------------------------------------------------------------------------------------------------


def fills() -> dict[str, bytes]:
    """4 MiB each of what jobs hold."""
    import numpy

    random = numpy.random.default_rng(7)
    weights = random.standard_normal(MIB).astype("float32")
    half = weights[: MIB // 2]
    text = (ROOT / "docs").glob("*.md")
    words = b"".join(path.read_bytes() for path in sorted(text))
    return {
        "float32 weights (normal)": weights.tobytes(),
        "bfloat16 weights (normal)": (random.standard_normal(2 * MIB).astype("float32").view("uint32") >> 16)
        .astype("uint16")
        .tobytes(),
        "float32 activations after ReLU": numpy.maximum(weights, 0).tobytes(),
        "int64 token ids below 50,257": random.integers(0, 50257, MIB // 2).astype("int64").tobytes(),
        "uint8 images (noise)": random.integers(0, 256, 4 * MIB, dtype="uint8").tobytes(),
        "text": (words * (4 * MIB // len(words) + 1))[: 4 * MIB],
        "float32, half zeros": numpy.concatenate([half, numpy.zeros(MIB // 2, "float32")]).tobytes(),
    }


def zram(machine: Keyboard) -> dict[str, Any]:
    """200 MiB of each pushed into zram: what the sample said, and what it really took."""
    rounds = {}
    machine.put(HOLD.encode(), "/tmp/hold.py")
    machine.put(SAMPLE.encode(), "/tmp/sample.py")
    for name, data in fills().items():
        machine.put(data, "/tmp/fill")
        machine.zram(256)
        group = "/sys/fs/cgroup/zram-bench"
        machine.run(f"mkdir {group}")
        job = machine.start(f"echo $$ >{group}/cgroup.procs; exec python3 /tmp/hold.py /tmp/fill 200")
        ready(machine, job)
        sample = f"PYTHONPATH=/opt/oomproof/src python3 /tmp/sample.py $(cat {group}/cgroup.procs)"
        predicted = float(machine.run(sample).out)
        machine.run(f"echo 190M >{group}/memory.reclaim", check=False, timeout=300)
        stored, compressed, taken = map(int, machine.run("cat /sys/block/zram0/mm_stat").out.split()[:3])
        rounds[name] = {
            "predicted": round(predicted, 3),
            "real": round(taken / max(1, stored), 3),
            "stored_mib": stored // MIB,
            "in_ram_mib": taken // MIB,
            "compressed_mib": compressed // MIB,
        }
        machine.run(f"echo 0 >{group}/cgroup.freeze; echo 1 >{group}/cgroup.kill")
        machine.wait_until(f"rmdir {group}", timeout=30)
        machine.swapoff()
    rows = [
        [
            name,
            f"{row['predicted']:.0%}",
            f"{row['real']:.0%}",
            str(row["stored_mib"]),
            str(row["in_ram_mib"]),
        ]
        for name, row in rounds.items()
    ]
    table("zram", ["200 MiB of", "sampled", "really", "stored, MiB", "RAM it took, MiB"], rows)
    return rounds


# --- kernel settings ------------------------------------------------------------------------------------------------


def overcommit(machine: Keyboard) -> dict[str, Any]:
    """One absurd request, and one job that grows until it ends, at each value."""
    rounds = {}
    machine.put(EAT.encode(), "/tmp/eat.py")
    for mode in (0, 1, 2):
        machine.run(f"sysctl -qw vm.overcommit_memory={mode}")
        ask = machine.run(
            "python3 -c 'import mmap; mmap.mmap(-1, 64 << 30); print(\"granted\")'", check=False
        )
        kills = kernel_kills(machine)
        grown = machine.run("python3 /tmp/eat.py", check=False, timeout=400)
        reached = re.findall(r"^(\d+)$", grown.out, re.MULTILINE)
        rounds[str(mode)] = {
            "asked_64_gib": "granted" if "granted" in ask.out else "refused at once",
            "grew_to_mib": int(reached[-1]) if reached else 0,
            "ended_by": "kernel kill" if kernel_kills(machine) > kills else f"MemoryError, rc {grown.rc}",
        }
    machine.run("sysctl -qw vm.overcommit_memory=0")
    rows = [[mode, *(str(value) for value in row.values())] for mode, row in rounds.items()]
    table(
        "vm.overcommit_memory",
        ["value", "64 GiB asked for at once", "a growing job reached, MiB", "and was ended by"],
        rows,
    )
    return rounds


@contextlib.contextmanager
def hog(machine: Keyboard, mib: int) -> Iterator[virtual.Handle]:
    job = machine.start(f"exec python3 {JOBS}/grow.py 400 {mib}")
    ready(machine, job)
    yield job
    machine.kill(job)


def sysrq(machine: Keyboard) -> dict[str, Any]:
    """Alt+SysRq+f on the keyboard, with a process of 400 MiB: does it end, and how soon?"""
    rounds = {}
    before = int(machine.run("sysctl -n kernel.sysrq").out)
    for value in (176, 438, 176 | 64):
        machine.run(f"sysctl -qw kernel.sysrq={value}")
        with hog(machine, 400) as job:
            begun = time.monotonic()
            machine.press("alt", "sysrq", "f")
            gone = machine.run(f"timeout 10 tail --pid={job.pid} -f /dev/null", check=False).rc == 0
            rounds[str(value)] = {
                "ended": gone,
                "seconds": round(time.monotonic() - begun, 2) if gone else None,
            }
            rounds[str(value)]["log"] = machine.run(
                "dmesg | grep -i sysrq | tail -n 1", check=False
            ).out.strip()
    machine.run(f"sysctl -qw kernel.sysrq={before}")
    rows = [[value, *(str(item) for item in row.values())] for value, row in rounds.items()]
    table("Alt+SysRq+f", ["kernel.sysrq", "the process ended", "after, s", "kernel log"], rows)
    return rounds


def swappiness(machine: Keyboard) -> dict[str, Any]:
    """A paused job of 200 MiB is pushed out to a swap file: how much RAM comes back?"""
    rounds = {}
    machine.run(SWAP_ON.format(need="1100M"))
    for value in (0, 1, 60):
        machine.run(f"sysctl -qw vm.swappiness={value}")
        group = "/sys/fs/cgroup/push-bench"
        machine.run(f"mkdir {group}")
        job = machine.start(
            f"echo $$ >{group}/cgroup.procs; exec python3 {JOBS}/train_loop.py 200 /tmp/enough"
        )
        ready(machine, job)
        machine.run(f"echo 1 >{group}/cgroup.freeze")
        anon = "awk '/^anon / {print $2}' " + f"{group}/memory.stat"
        before = int(machine.run(anon).out)
        machine.run(f"echo 180M >{group}/memory.reclaim", check=False, timeout=300)
        rounds[str(value)] = {"ram_freed_mib": (before - int(machine.run(anon).out)) // MIB}
        machine.run(f"echo 0 >{group}/cgroup.freeze; echo 1 >{group}/cgroup.kill")
        machine.wait_until(f"rmdir {group}", timeout=30)
    machine.run("sysctl -qw vm.swappiness=60")
    machine.run(UNDO)
    rows = [[value, str(row["ram_freed_mib"])] for value, row in rounds.items()]
    table("Pushing a paused job of 200 MiB out", ["vm.swappiness", "RAM freed, MiB"], rows)
    return rounds


def delegation(machine: Keyboard) -> dict[str, Any]:
    """Who enforces ada's limit, without and with the memory controller in her manager."""
    limit = f"oomproof run --limit 100M -- python3 {JOBS}/grow.py 400 300 2>&1"

    def look() -> dict[str, str]:
        session = machine.login("ada")
        first = session.run("oomproof run -v --limit 100M -- true 2>&1", check=False).out
        session.run(limit, check=False, timeout=240)
        told = session.run("oomproof why --json", check=False).out
        machine.logout(session)
        machine.wait_until("! systemctl is-active -q user@1000.service", timeout=90)
        backend = re.search(r"enforced by ([^;\n]*)", first)
        cause = re.search(r'"cause": "([^"]*)"', told)
        return {"enforced by": backend[1] if backend else first[-200:], "over it": cause[1] if cause else "?"}

    # as on systems that neither count memory by default nor delegate it
    drop_in = "/etc/systemd/system/user@.service.d/10-test.conf"
    accounting = "/etc/systemd/system.conf.d/10-test.conf"
    machine.put(b"[Service]\nDelegate=\nDelegate=pids\n", drop_in)
    machine.put(b"[Manager]\nDefaultMemoryAccounting=no\n", accounting)
    machine.run("systemctl daemon-reexec")
    before = look()
    session = machine.login("ada")  # so that her manager can be looked at
    applied = machine.run("SUDO_UID=1000 oomproof system --only delegation --apply --yes").out
    machine.logout(session)
    machine.wait_until("! systemctl is-active -q user@1000.service", timeout=90)
    after = look()
    machine.run(f"{UNDO}; rm {drop_in} {accounting}; systemctl daemon-reexec")
    rounds = {"Delegate=pids": before, "after --apply": after}
    rows = [[label, *row.values()] for label, row in rounds.items()]
    table("ada's limit of 100 MiB", ["", "enforced by", "a job that grows past it"], rows)
    return {**rounds, "said": applied.strip().splitlines()[-2:]}


PARTS = {part.__name__: part for part in (swap, load, zram, overcommit, sysrq, swappiness, delegation)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS], default=[])
    wanted = parser.parse_args().parts or list(PARTS)
    virtual.ensure_image()
    results = {key: value for key, value in read_json(RESULTS / "system.json").items() if key in PARTS}
    with Keyboard(memory_mib=1024) as machine:
        machine.put(ROOT / "tests" / "incidents" / "jobs", JOBS)
        for name in wanted:
            try:
                results[name] = PARTS[name](machine)
            except virtual.LabError as error:  # the others are worth having
                print(f"{name} failed: {error}", flush=True)
                continue
            save("system", results)


if __name__ == "__main__":
    main()

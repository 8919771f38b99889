"""What does not like to be paused: collectives, connections, trackers that count the seconds meanwhile."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from oomproof.printable import one_line
from oomproof.records import dataclass

# PyTorch's NCCL watchdog ends the job when one collective takes 10 minutes of wall time (the default of
# init_process_group), and a pause counts. Eight leave two for the collective itself and for waking up.
NCCL_PAUSE = 480.0
# A run that sends wandb no heartbeat for about five minutes is shown as crashed there until the next one comes.
# Nothing is lost: told, not acted on.

_LAUNCHERS = ("torchrun", "torch.distributed", "accelerate", "deepspeed", "mpirun", "horovodrun")
_ESTABLISHED = "01"
_MAPS_BYTES = 4 << 20  # a PyTorch process has 300 KiB of maps


@dataclass(frozen=True, slots=True)
class Timeout:
    text: str
    seconds: float | None = None  # resume before this; None: only worth a word


def may_have_ranks(argv: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Several processes that wait for each other: a launcher of such, or the variables it sets.

    libnccl alone says nothing: every PyTorch with CUDA maps it, and many people set NCCL_DEBUG for good.
    """
    if environment.get("WORLD_SIZE", "") not in ("", "1"):
        return True
    return any(launcher in word for word in argv[:8] for launcher in _LAUNCHERS)


def look(
    pids: Sequence[int], argv: Sequence[str], environment: Mapping[str, str], proc: str = "/proc"
) -> list[Timeout]:
    """Off the guard's thread: reads what the processes map and which sockets they hold."""
    timeouts = []
    names = {_name(pid, proc) for pid in pids}
    if may_have_ranks(argv, environment) and any(_maps_nccl(pid, proc) for pid in pids):
        timeouts.append(
            Timeout("NCCL gives a collective 10 minutes; a pause longer than 8 may end the job", NCCL_PAUSE)
        )
    if any(name.startswith("wandb") for name in names):
        timeouts.append(Timeout("wandb may show the run as crashed until it is resumed; nothing is lost"))
    peers = _peers(pids, proc)
    if peers:
        some = ", ".join(sorted(peers)[:3])
        timeouts.append(
            Timeout(f"it has {len(peers)} open connections to other machines ({some}), which may time out")
        )
    return timeouts


def _name(pid: int, proc: str) -> str:
    return one_line(_read(f"{proc}/{pid}/comm", 64).decode("utf-8", "replace").strip())


def _maps_nccl(pid: int, proc: str) -> bool:
    return b"libnccl" in _read(f"{proc}/{pid}/maps", _MAPS_BYTES)


def _peers(pids: Sequence[int], proc: str) -> set[str]:
    """host:port of the far ends of established TCP connections that do not stay on this machine."""
    mine: set[str] = set()
    for pid in pids:
        try:
            names = os.listdir(f"{proc}/{pid}/fd")
        except OSError:
            continue
        for name in names:
            try:
                target = os.readlink(f"{proc}/{pid}/fd/{name}")
            except OSError:
                continue
            if target.startswith("socket:["):
                mine.add(target[8:-1])
    if not mine or not pids:
        return set()
    peers = set()
    for table in ("tcp", "tcp6"):
        for line in (
            _read(f"{proc}/{pids[0]}/net/{table}", 1 << 20).decode("ascii", "replace").splitlines()[1:]
        ):
            words = line.split()
            if len(words) > 9 and words[3] == _ESTABLISHED and words[9] in mine:
                peer = _address(words[2])
                if peer and not peer.startswith(("127.", "[::1]")):
                    peers.add(peer)
    return peers


def _address(text: str) -> str:
    """``0100007F:1F90`` → 127.0.0.1:8080; the kernel writes each group of four bytes in host order (little endian)."""
    host, _, port = text.partition(":")
    try:
        raw = bytes.fromhex(host)
        number = int(port, 16)
    except ValueError:
        return ""
    words = [raw[at : at + 4][::-1] for at in range(0, len(raw), 4)]
    if len(words) == 1:
        return f"{'.'.join(str(byte) for byte in words[0])}:{number}"
    whole = b"".join(words)
    if whole[:12] == b"\0" * 10 + b"\xff\xff":
        return f"{'.'.join(str(byte) for byte in whole[12:])}:{number}"
    if whole == b"\0" * 15 + b"\1":
        return f"[::1]:{number}"
    return f"[{whole.hex(':', 2)}]:{number}"


def _read(path: str, size: int) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        text = b""
        while len(text) < size and (part := os.read(fd, 65536)):
            text += part
        return text
    except OSError:
        return b""
    finally:
        os.close(fd)

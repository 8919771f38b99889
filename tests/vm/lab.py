"""Boots the lab's virtual machine and runs commands in it: the harness behind the tests in this folder.

Also a tool by hand: `python tests/vm/lab.py shell` gives a console, `... run [--user ada] CMD` one command.
Standard library only. See README.md for the traps.
"""

from __future__ import annotations

import argparse
import atexit
import base64
import contextlib
import ctypes
import io
import json
import os
import py_compile
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
LAB = ROOT / ".lab"

# Emulation makes everything 10 to 20 times slower, and the host may be busy with other tests.
BOOT_SECONDS = 240.0
COMMAND_SECONDS = 180.0
ANSWER_SECONDS = 180.0  # a starved machine answers late; who lived is what is asserted

APPEND = (
    "root=/dev/vda rw console=ttyS0 loglevel=4 panic=1 psi=1 mitigations=off nokaslr nowatchdog "
    "no_timer_check audit=0 apparmor=0 selinux=0 tsc=reliable random.trust_cpu=on systemd.show_status=0"
)


# An old one: emulated, what newer ones add (AVX in every memcpy, five levels of page tables) is work. 35 s of CPU for a boot and
# four runs, 45 with "max" (measured).
CPU = "Nehalem"


class LabUnavailable(Exception):
    """The lab cannot be had on this machine; the text says why. Tests skip on it."""


class LabError(AssertionError):
    """Something in the lab did not happen in time or failed; the text holds the tail of the console."""


@dataclass(frozen=True)
class Result:
    rc: int
    out: str  # stdout and stderr together, at most the last MiB


@dataclass(frozen=True)
class Handle:
    """A command in the background. `pid` is the guest's (of `su` for an ordinary user; 0 in a session)."""

    job: int
    pid: int
    output: str  # the file in the guest that takes stdout and stderr
    cmd: str


@dataclass(frozen=True)
class Session:
    """A login session on a pseudo-terminal of the guest; made by `Machine.login`."""

    machine: Machine
    number: int
    user: str
    id: str  # logind's name for it
    transcript: str

    def run(self, cmd: str, timeout: float = COMMAND_SECONDS, check: bool = True) -> Result:
        """Types `cmd` into the session's shell, in the foreground."""
        return self.machine._finish(self._start(cmd, background=False), timeout, check)

    def start(self, cmd: str) -> Handle:
        """Types `cmd &`. After a logout the handle may never end: look at the guest's processes instead."""
        return self._start(cmd, background=True)

    def type(self, text: str) -> None:
        """Types raw text (end it with a newline); what comes back is on `screen()`."""
        self.machine._ask("session_type", session=self.number, text=text)

    def screen(self) -> str:
        """Everything the terminal has shown so far."""
        return self.machine.get(self.transcript).decode(errors="replace")

    def alive(self) -> bool:
        return bool(self.machine._ask("session_alive", session=self.number))

    def _start(self, cmd: str, background: bool) -> Handle:
        answer = self.machine._ask("session_start", session=self.number, cmd=cmd, background=background)
        return Handle(answer["job"], answer["pid"], answer["output"], cmd)


def ensure_image() -> None:
    """Builds the image when it is stale; LabUnavailable when that is not possible here."""
    build = subprocess.run([str(HERE / "build_image.sh")], capture_output=True, text=True, timeout=1500)
    if build.returncode in (3, 4):
        raise LabUnavailable(build.stderr.strip() or "the image cannot be built here")
    if build.returncode != 0:
        raise LabError(f"build_image.sh failed with {build.returncode}:\n{build.stdout}{build.stderr}")
    if shutil.which("qemu-system-x86_64") is None:
        raise LabUnavailable("qemu-system-x86_64 is not installed (make lab installs it)")


@dataclass
class Machine:
    """A virtual machine; a context manager that boots on entry and pulls the plug on exit.

    state_drive: a file that survives `power_off_hard` and is mounted on /state (made when it does not exist).
    swap_mib: a throw-away disk used as swap (priority -2 as on any machine), off when swap_on is False.
    swap_rate: MiB a second that disk gives or takes; 0: as fast as the host's memory.
    zram_mib: a zram device of that size used as swap, priority 100.
    share: name -> folder, unpacked to /opt/oomproof/NAME at every boot; the project's src/ when not given.
    """

    memory_mib: int = 1024
    state_drive: Path | None = None
    cpus: int = 2
    extra_append: str = ""
    swap_mib: int = 0
    swap_rate: int = 0
    zram_mib: int = 0
    swap_on: bool = True
    share: Mapping[str, Path] | None = None
    console_on_terminal: bool = False
    boot_seconds: float = field(default=0.0, init=False)
    console_log: Path = field(default=Path(), init=False)

    def __enter__(self) -> Machine:
        self._work = Path(tempfile.mkdtemp(prefix="oomproof-lab-"))
        self.console_log = self._work / "console.log"
        self._qemu: subprocess.Popen[bytes] | None = None
        try:
            self.boot()
        except BaseException:
            self._discard()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        self._discard()

    # -- power ---------------------------------------------------------------------------------------------

    def boot(self) -> None:
        """Switches the machine on (again, after `power_off_hard` or `shutdown`) and waits until it is up."""
        if self._qemu is not None:
            raise LabError("the machine is running already")
        started = time.monotonic()
        ours, theirs = socket.socketpair()
        self._wire = _Wire(ours)
        with theirs:
            self._qemu = _spawn(
                self._command(theirs.fileno()), theirs.fileno(), foreground=self.console_on_terminal
            )
        self._wire.start()
        try:
            self._wire.hello.wait_or_raise(BOOT_SECONDS)
            self._set_up()
        except BaseException as e:
            tail = self.console_tail()
            self.power_off_hard()
            if isinstance(e, TimeoutError | ConnectionError):
                raise LabError(f"the machine did not come up: {e}\n{tail}") from e
            raise
        self.boot_seconds = time.monotonic() - started

    def power_off_hard(self) -> None:
        """Pulls the plug: what the guest has not yet written to its disks is lost."""
        qemu, self._qemu = self._qemu, None
        if qemu is not None:
            qemu.kill()
            qemu.wait()
            _running.discard(qemu)
            self._wire.close()

    def shutdown(self, timeout: float = BOOT_SECONDS) -> None:
        """An orderly power-off."""
        if self._qemu is None:
            return
        with contextlib.suppress(LabError):  # the answer races with the agent's own end
            self.start("systemctl poweroff")
        try:
            self._qemu.wait(timeout)
        except subprocess.TimeoutExpired:
            tail = self.console_tail()
            self.power_off_hard()
            raise LabError(f"no orderly power-off within {timeout:.0f} s\n{tail}") from None
        self.power_off_hard()

    @property
    def running(self) -> bool:
        return self._qemu is not None and self._qemu.poll() is None

    # -- commands ------------------------------------------------------------------------------------------

    def run(
        self, cmd: str, user: str = "root", timeout: float = COMMAND_SECONDS, check: bool = True
    ) -> Result:
        """Runs `sh -c cmd` and waits. Any user but root gets a PAM login session for just this command."""
        return self._finish(self.start(cmd, user), timeout, check)

    def start(self, cmd: str, user: str = "root") -> Handle:
        """The same in the background."""
        answer = self._ask("start", cmd=cmd, user=user)
        return Handle(answer["job"], answer["pid"], answer["output"], cmd)

    def wait(self, handle: Handle, timeout: float = COMMAND_SECONDS) -> Result:
        """Waits for a command started with `start`; LabError when it takes longer (it is left running)."""
        try:
            done = self._wire.done(handle.job, timeout)
        except (TimeoutError, ConnectionError) as e:
            raise LabError(f"{handle.cmd!r}: {e}\n{self.console_tail()}") from None
        return Result(done["rc"], done["out"])

    def output(self, handle: Handle) -> str:
        """What a background command has printed so far."""
        return self.get(handle.output).decode(errors="replace")

    def kill(self, handle: Handle) -> None:
        """SIGKILL to the command and everything in its cgroup or session."""
        self._ask("kill", job=handle.job)

    def wait_until(
        self, cmd: str, user: str = "root", timeout: float = COMMAND_SECONDS, every: float = 0.3
    ) -> Result:
        """Repeats `cmd` until it succeeds."""
        deadline = time.monotonic() + timeout
        while True:
            result = self.run(cmd, user, timeout=timeout, check=False)
            if result.rc == 0:
                return result
            if time.monotonic() > deadline:
                raise LabError(
                    f"never came true within {timeout:.0f} s: {cmd!r}: {result}\n{self.console_tail()}"
                )
            time.sleep(every)

    def dmesg(self) -> str:
        return self.run("dmesg").out

    # -- sessions ------------------------------------------------------------------------------------------

    def login(self, user: str = "ada") -> Session:
        """Logs in on a pseudo-terminal (`login -f`, the `login` PAM service, an interactive shell)."""
        answer = self._ask("login", user=user)
        new = Session(self, answer["session"], user, "", answer["transcript"])
        deadline = time.monotonic() + COMMAND_SECONDS
        while not new.screen().endswith(("$ ", "# ")):  # typing before the prompt may be flushed by login
            if time.monotonic() > deadline or not new.alive():
                raise LabError(
                    f"no prompt after the login of {user}: {new.screen()!r}\n{self.console_tail()}"
                )
            time.sleep(0.2)
        name = new.run("echo $XDG_SESSION_ID").out.strip()
        return Session(self, new.number, user, name, new.transcript)

    def logout(self, session: Session, how: str = "exit", timeout: float = COMMAND_SECONDS) -> None:
        """Ends a session: `exit` (typed), `hangup` (the window is closed), `terminate` (loginctl)."""
        if how == "exit":
            session.type("exit\nexit\n")  # the second for bash's "There are stopped jobs"
        elif how == "hangup":
            self._ask("session_hangup", session=session.number)
        elif how == "terminate":
            self.run(f"loginctl terminate-session {shlex.quote(session.id)}")
        else:
            raise ValueError(how)
        deadline = time.monotonic() + timeout
        while session.alive():
            if time.monotonic() > deadline:
                raise LabError(
                    f"session {session.id} of {session.user} did not end\n{session.screen()[-2000:]}"
                )
            time.sleep(0.2)

    # -- files ---------------------------------------------------------------------------------------------

    def put(self, source: Path | bytes, target: str, mode: int = 0o644) -> None:
        """Copies a file, bytes, or the content of a folder into the guest, as root's, at `target`."""
        if isinstance(source, Path) and source.is_dir():
            packed = "/var/lib/lab/put.tar"
            self._push(_tar_of({"": source}), packed)
            folder = shlex.quote(target)
            self.run(f"mkdir -p {folder} && tar -xf {packed} -C {folder}; rc=$?; rm {packed}; exit $rc")
            return
        self.run(f"mkdir -p {shlex.quote(os.path.dirname(target) or '/')}")
        self._push(source if isinstance(source, bytes) else source.read_bytes(), target)
        self.run(f"chmod {mode:o} {shlex.quote(target)}")

    def get(self, path: str) -> bytes:
        """Reads a whole file of the guest."""
        content = b""
        while part := base64.b64decode(self._ask("read", path=path, offset=len(content), length=1 << 19)):
            content += part
        return content

    # -- swap ----------------------------------------------------------------------------------------------

    def swapon(self) -> None:
        """Turns the swap disk on (the machine must have been given one)."""
        self.run(f'd={_drive("labswap")}; test -n "$d" && swapon $d')

    def swapoff(self) -> None:
        """Turns every swap off and takes zram devices away."""
        self.run(
            "for d in $(awk 'NR > 1 {print $1}' /proc/swaps); do swapoff $d || exit 1; done; "
            "for d in /sys/block/zram*; do "
            "test ! -e $d || echo ${d##*zram} >/sys/class/zram-control/hot_remove; done"
        )

    def zram(self, mib: int) -> None:
        """Adds a zram device as swap."""
        self.run(
            "modprobe zram num_devices=0; n=$(cat /sys/class/zram-control/hot_add) && "
            f"echo {mib}M >/sys/block/zram$n/disksize && mkswap -q /dev/zram$n >/dev/null && "
            "swapon -p 100 /dev/zram$n"
        )

    # -- inside --------------------------------------------------------------------------------------------

    def console_tail(self, lines: int = 30) -> str:
        try:
            text = self.console_log.read_text(errors="replace")
        except OSError:
            return "(no console log)"
        return f"--- the console's last {lines} lines ---\n" + "\n".join(text.splitlines()[-lines:])

    def _command(self, wire: int) -> list[str]:
        drives = [f"file={LAB / 'root.img'},format=raw,if=none,id=d0,snapshot=on,cache=unsafe"]
        serials = ["labroot"]

        def drive(path: Path, serial: str, options: str) -> None:
            drives.append(f"file={path},format=raw,if=none,id=d{len(drives)},{options}")
            serials.append(serial)

        packed = self._work / "share.tar"
        packed.write_bytes(_tar_of(self.share if self.share is not None else {"src": ROOT / "src"}))
        drive(packed, "labshare", "readonly=on")
        if self.state_drive is not None:
            if not self.state_drive.exists():
                _make_drive(self.state_drive)
            drive(self.state_drive, "labstate", "cache=writeback")
        if self.swap_mib:
            swap = self._work / "swap.img"
            with swap.open("wb") as f:
                f.truncate(self.swap_mib << 20)
            slow = f",throttling.bps-total={self.swap_rate << 20}" if self.swap_rate else ""
            drive(swap, "labswap", "cache=unsafe" + slow)

        args = [
            "qemu-system-x86_64",
            "-nodefaults",
            "-no-reboot",
            "-machine",
            "pc,usb=off",
            "-accel",
            "tcg,thread=multi",
        ]
        args += [
            "-cpu",
            CPU,
            "-m",
            f"{self.memory_mib}M",
            "-smp",
            str(self.cpus),
            "-nic",
            "none",
            "-display",
            "none",
        ]
        args += ["-kernel", str(LAB / "vmlinuz"), "-initrd", str(LAB / "initrd")]
        args += ["-append", f"{APPEND} {self.extra_append}".strip()]
        for number, (options, serial) in enumerate(zip(drives, serials, strict=True)):
            args += ["-drive", options, "-device", f"virtio-blk-pci,drive=d{number},serial={serial}"]
        args += ["-chardev", f"socket,id=wire,fd={wire}", "-device", "virtio-serial-pci"]
        args += ["-device", "virtserialport,chardev=wire,name=lab"]
        if self.console_on_terminal:
            return [*args, "-serial", "mon:stdio"]
        args += [
            "-chardev",
            f"file,id=console,path={self.console_log},append=on",
            "-serial",
            "chardev:console",
        ]
        return args

    def _set_up(self) -> None:
        """What every boot needs before a test may use the machine."""
        self.run(f"tar -xf {_drive('labshare')} -C /opt/oomproof", timeout=BOOT_SECONDS)
        if sys.implementation.cache_tag != "cpython-311":
            self.run("python3 -m compileall -q /opt/oomproof", timeout=BOOT_SECONDS, check=False)
        if self.state_drive is not None:
            self.run(f"mount {_drive('labstate')} /state && chmod 1777 /state")
        if self.swap_mib:
            self.run(f"mkswap -q {_drive('labswap')} >/dev/null")
            if self.swap_on:
                self.swapon()
        if self.zram_mib:
            self.zram(self.zram_mib)
        state = self.run("systemctl is-system-running --wait", timeout=BOOT_SECONDS, check=False).out.strip()
        if state not in ("running", "degraded"):
            raise LabError(f"systemd came up {state!r}\n{self.console_tail()}")

    def _push(self, data: bytes, path: str) -> None:
        for offset in range(0, max(1, len(data)), 1 << 17):
            chunk = base64.b64encode(data[offset : offset + (1 << 17)]).decode()
            self._ask("write", path=path, data=chunk, append=offset > 0)

    def _ask(self, op: str, **args: Any) -> Any:
        if self._qemu is None:
            raise LabError(f"{op}: the machine is off")
        try:
            return self._wire.ask(op, args, ANSWER_SECONDS)
        except (TimeoutError, ConnectionError) as e:
            raise LabError(f"{op} {args.get('cmd', '')!r}: {e}\n{self.console_tail()}") from None

    def _finish(self, handle: Handle, timeout: float, check: bool) -> Result:
        try:
            result = self.wait(handle, timeout)
        except LabError as e:
            so_far = ""
            with contextlib.suppress(LabError):
                so_far = self.output(handle)[-4000:]
                self.kill(handle)
            raise LabError(f"{e}\n--- its output so far ---\n{so_far}") from None
        if check and result.rc != 0:
            raise LabError(f"{handle.cmd!r} ended with {result.rc}:\n{result.out[-4000:]}")
        return result

    def _discard(self) -> None:
        self.power_off_hard()
        kept = os.environ.get("LAB_KEEP_LOGS")  # CI keeps the consoles
        if kept and self.console_log.exists():
            Path(kept).mkdir(parents=True, exist_ok=True)
            shutil.copy(self.console_log, Path(kept) / f"{self._work.name}.console.log")
        shutil.rmtree(self._work, ignore_errors=True)


class _Event:
    """A threading.Event that also ends when the wire is cut."""

    def __init__(self) -> None:
        self.event = threading.Event()
        self.cut = False

    def wait_or_raise(self, timeout: float) -> None:
        if not self.event.wait(timeout):
            raise TimeoutError(f"nothing within {timeout:.0f} s")
        if self.cut:
            raise ConnectionError("the machine is gone (qemu ended)")


class _Wire:
    """JSON lines over the virtio port: numbered questions and answers, and news of finished commands."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.hello = _Event()
        self._changed = threading.Condition()
        self._answers: dict[int, dict[str, Any]] = {}
        self._done: dict[int, dict[str, Any]] = {}
        self._counter = 0
        self._cut = False

    def start(self) -> None:
        threading.Thread(target=self._read, name="lab-wire", daemon=True).start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)
        self.sock.close()

    def ask(self, op: str, args: dict[str, Any], timeout: float) -> Any:
        with self._changed:
            self._counter += 1
            number = self._counter
        try:
            self.sock.sendall(json.dumps({"id": number, "op": op, "args": args}).encode() + b"\n")
        except OSError as e:
            raise ConnectionError(f"the machine is gone: {e}") from None
        answer = self._take(self._answers, number, timeout)
        if "error" in answer:
            raise LabError(f"the agent failed at {op}:\n{answer['error']}")
        return answer["ok"]

    def done(self, job: int, timeout: float) -> dict[str, Any]:
        return self._take(self._done, job, timeout)

    def _take(self, box: dict[int, dict[str, Any]], key: int, timeout: float) -> dict[str, Any]:
        with self._changed:
            if not self._changed.wait_for(lambda: key in box or self._cut, timeout):
                raise TimeoutError(f"nothing within {timeout:.0f} s")
            if key not in box:
                raise ConnectionError("the machine is gone (qemu ended)")
            return box[key] if box is self._done else box.pop(key)

    def _read(self) -> None:
        with contextlib.suppress(OSError, ValueError):  # ValueError: closed while we read
            for line in self.sock.makefile("rb"):
                message = json.loads(line)
                with self._changed:
                    if "hello" in message:
                        self.hello.event.set()
                    elif "done" in message:
                        self._done[message["done"]] = message
                    elif "id" in message:
                        self._answers[message["id"]] = message
                    self._changed.notify_all()
        with self._changed:
            self._cut = True
            self._changed.notify_all()
        if not self.hello.event.is_set():
            self.hello.cut = True
            self.hello.event.set()


# -- processes: no qemu outlives us ------------------------------------------------------------------------

_running: set[subprocess.Popen[bytes]] = set()
_libc = ctypes.CDLL(None)


def _die_with_parent() -> None:
    pr_set_pdeathsig = 1
    _libc.prctl(pr_set_pdeathsig, signal.SIGKILL)


def _spawn(args: list[str], wire: int, foreground: bool) -> subprocess.Popen[bytes]:
    qemu = subprocess.Popen(
        args,
        stdin=None if foreground else subprocess.DEVNULL,
        pass_fds=[wire],
        start_new_session=not foreground,  # a Ctrl-C at pytest must reach us, not qemu
        preexec_fn=_die_with_parent,
    )
    _running.add(qemu)
    return qemu


@atexit.register
def _end_all() -> None:
    for qemu in list(_running):
        qemu.kill()


# -- drives ------------------------------------------------------------------------------------------------


def _drive(serial: str) -> str:
    """Shell text that names the guest's disk of that serial number (letters depend on what was asked for)."""
    return f"$(grep -lsx {serial} /sys/block/vd*/serial | cut -d/ -f4 | sed s,^,/dev/,)"


def _make_drive(path: Path, mib: int = 512) -> None:
    with path.open("wb") as f:
        f.truncate(mib << 20)
    mke2fs = shutil.which("mke2fs", path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin") or "mke2fs"
    subprocess.run([mke2fs, "-q", "-t", "ext4", "-m", "0", str(path)], check=True, capture_output=True)


def _tar_of(folders: Mapping[str, Path]) -> bytes:
    """The folders' files as root's, with bytecode beside the sources: ada could not write it in the guest."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, folder in folders.items():
            for path in _files(folder):
                inside = str(Path(name) / path.relative_to(folder))
                data = path.read_bytes()
                _add(tar, inside, data, 0o755 if os.access(path, os.X_OK) else 0o644)
                if path.suffix == ".py" and sys.implementation.cache_tag == "cpython-311":
                    cached = Path(inside).parent / "__pycache__" / f"{path.stem}.cpython-311.pyc"
                    with contextlib.suppress(py_compile.PyCompileError):
                        _add(tar, str(cached), _bytecode(path, f"/opt/oomproof/{inside}"), 0o644)
    return packed.getvalue()


def _files(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".pyc":
            yield path


def _add(tar: tarfile.TarFile, name: str, data: bytes, mode: int) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode, info.mtime = len(data), mode, int(time.time())
    tar.addfile(info, io.BytesIO(data))


def _bytecode(source: Path, shown_as: str) -> bytes:
    with tempfile.NamedTemporaryFile(suffix=".pyc") as compiled:
        mode = py_compile.PycInvalidationMode.UNCHECKED_HASH  # the guest's file times do not matter
        py_compile.compile(str(source), compiled.name, shown_as, doraise=True, invalidation_mode=mode)
        return Path(compiled.name).read_bytes()


# -- by hand -----------------------------------------------------------------------------------------------


def main() -> int:
    parser = argparse.ArgumentParser(
        description="The oomproof lab: a small Debian 12 machine under emulation."
    )
    parser.add_argument("--memory", type=int, default=1024, metavar="MIB")
    parser.add_argument("--swap", type=int, default=0, metavar="MIB", help="a disk for swap")
    parser.add_argument("--zram", type=int, default=0, metavar="MIB")
    parser.add_argument("--state", type=Path, metavar="FILE", help="a drive that survives, mounted on /state")
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser(
        "shell", help="boot and stay on the console (root or ada, no password; Ctrl-A X ends it)"
    )
    run = verbs.add_parser("run", help="boot, run one command, print its output")
    run.add_argument("--user", default="root")
    run.add_argument("--timeout", type=float, default=COMMAND_SECONDS)
    run.add_argument("cmd")
    args = parser.parse_args()
    try:
        ensure_image()
    except LabUnavailable as e:
        print(f"lab: {e}", file=sys.stderr)
        return 3
    shell = args.verb == "shell"
    with Machine(
        memory_mib=args.memory,
        state_drive=args.state,
        swap_mib=args.swap,
        zram_mib=args.zram,
        console_on_terminal=shell,
    ) as m:
        print(f"lab: up in {m.boot_seconds:.0f} s", file=sys.stderr)
        if shell:
            assert m._qemu is not None
            return m._qemu.wait()
        try:
            result = m.run(args.cmd, args.user, args.timeout, check=False)
        except LabError as e:
            print(f"lab: {e}", file=sys.stderr)
            return 1
        sys.stdout.write(result.out)
        return result.rc


if __name__ == "__main__":
    sys.exit(main())

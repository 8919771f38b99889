"""Runs a command whose writes, renames and deletes nobody else ever sees, without a network. A program of its own: it imports
nothing of ours.

    python private_files.py RESULTS COMMAND…

In namespaces of its own (mounts, processes, network, System V memory; a user namespace, where we are not root) the command gets
another root folder: each file system of the machine has an overlay in memory there, RESULTS alone is the real folder. What takes
no overlay can only be read, as the kernel's own files (/sys, /proc/sys); /dev has no disks. When the command has ended, all that
it started is ended too, and RESULTS/written.json lists what it wrote. Where any of this cannot be had, it is not run.

Where parts of /proc are masked (containers), the kernel grants an ordinary user no /proc of another process namespace. The
command then sees the machine's processes and cannot write to their files; from Linux 6.12 on they get no signal from it.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import re
import shutil
import signal
import socket
import stat
import struct
import sys
from collections.abc import Callable

CANNOT = 77  # the exit status where no namespace or overlay could be had; RESULTS/cannot says why
_NEWNS, _NEWIPC, _NEWUSER, _NEWPID, _NEWNET = 0x00020000, 0x08000000, 0x10000000, 0x20000000, 0x40000000
_BIND, _MOVE, _REC, _PRIVATE, _RDONLY, _REMOUNT = 4096, 8192, 16384, 1 << 18, 1, 32
_NOSUID, _NODEV, _NOEXEC, _DETACH = 2, 4, 8, 2
# what a mount may not lose in a user namespace: its flags, by their names in mountinfo
_KEPT_FLAGS = {
    "nosuid": _NOSUID, "nodev": _NODEV, "noexec": _NOEXEC, "noatime": 1024, "nodiratime": 2048, "relatime": 1 << 21,
}  # fmt: skip
_SYSTEM = ("/proc", "/sys", "/dev")
_SETTINGS = (
    "sys",
    "sysrq-trigger",
    "irq",
    "bus",
    "fs",
)  # of the machine, in /proc, where root could change them
_DEVICES = frozenset(["null", "zero", "full", "random", "urandom", "tty", "dri", "kfd", "dxg", "accel"])
_CARDS = ("nvidia", "nvhost", "nvmap", "nvgpu")  # how the names of NVIDIA's devices begin
# Capabilities by which root could leave the view: files by their handle, raw devices, other processes, mounts, the clock
_POWERS = {
    "dac_read_search": 2, "sys_module": 16, "sys_rawio": 17, "sys_chroot": 18, "sys_ptrace": 19, "sys_admin": 21,
    "sys_boot": 22, "sys_time": 25, "mknod": 27, "syslog": 34, "bpf": 39, "checkpoint_restore": 40,
}  # fmt: skip
_DEATH_SIGNAL, _SUBREAPER, _DROP_POWER, _NO_NEW_PRIVILEGES = 1, 36, 24, 38  # of prctl
# system calls, the same numbers on every architecture
_MOUNT_SETATTR, _LANDLOCK_CREATE, _LANDLOCK_RESTRICT = 442, 444, 446
_HERE, _RECURSIVE, _READ_ONLY = -100, 0x8000, 1
_ABI_WITH_SIGNALS, _ASK_ABI, _SCOPE_SIGNALS = 6, 1, 2
_MOST_ENTRIES = 1000  # of a folder that is covered entry by entry
# file systems that hold nobody's files
_NOT_FILES = frozenset((
    "proc", "sysfs", "devtmpfs", "devpts", "cgroup", "cgroup2", "securityfs", "debugfs", "tracefs",
    "pstore", "bpf", "mqueue", "hugetlbfs", "configfs", "fusectl", "autofs", "binfmt_misc", "efivarfs",
    "rpc_pipefs", "nsfs", "selinuxfs", "ramfs", "squashfs", "iso9660", "erofs",
))  # fmt: skip
_libc = ctypes.CDLL(None, use_errno=True)


class Cannot(Exception):
    pass


def _call(what: str, result: int) -> None:
    if result != 0:
        raise Cannot(f"{what}: {os.strerror(ctypes.get_errno())}")


def _mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    _call(
        f"mount {target}",
        _libc.mount(os.fsencode(source), os.fsencode(target), kind.encode(), flags, options.encode() or None),
    )


def _unshare() -> bool:
    """Leaves all namespaces; this process's children live in the new process namespace. False where they get none."""
    user, group = os.getuid(), os.getgid()
    flags = _NEWNS | _NEWNET | _NEWIPC
    if user == 0 and _in_child(_try_own_proc) == 0 and _libc.unshare(flags | _NEWPID) == 0:
        return True
    _call("unshare", _libc.unshare(_NEWUSER | flags))
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{user} {user} 1"),
        ("gid_map", f"{group} {group} 1"),
    ):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
    if _in_child(_try_own_proc) != 0:
        return False
    _call("unshare", _libc.unshare(_NEWPID))
    return True


def _in_child(action: Callable[[], None]) -> int:
    child = os.fork()
    if child == 0:
        try:
            action()
        except BaseException:
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1]


def _try_own_proc() -> None:
    """As the kernel refuses it where parts of /proc are masked."""
    _call("unshare", _libc.unshare(_NEWNS | _NEWPID))
    if _in_child(lambda: _mount("proc", "/proc", "proc", 0)) != 0:
        raise Cannot


def _loopback() -> None:
    """Up: programs talk to themselves by it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle:
        import fcntl

        try:
            # SIOCSIFFLAGS, up and running
            fcntl.ioctl(handle, 0x8914, struct.pack("16sh", b"lo", 0x1 | 0x40))
        except OSError:
            pass


def mount_points(mountinfo: str) -> dict[str, bool]:
    """Mount points outside the kernel's own folders, outermost first, with whether files can be written there."""
    points = {"/": True}
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        point, options = left.split()[4:6]
        point = _unescaped(point)
        if not any(_is_below(point, system) for system in _SYSTEM):
            points[point] = right.split()[0] not in _NOT_FILES and "ro" not in options.split(",")
    return {point: points[point] for point in sorted(points, key=lambda path: (path.count("/"), path))}


def _unescaped(point: str) -> str:
    """As the kernel writes blanks and the like: \\040."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), point)


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _make_read_only(folder: str) -> None:
    """With all that is mounted below it."""
    attributes = struct.pack("QQQQ", _READ_ONLY, 0, 0, 0)
    arguments = (_HERE, os.fsencode(folder), _RECURSIVE, attributes, len(attributes))
    if _libc.syscall(_MOUNT_SETATTR, *arguments) == 0:
        return
    # before Linux 5.12 one by one
    real = os.path.realpath(folder)
    with open("/proc/self/mountinfo") as file:
        mounts = [line.split()[4:6] for line in file]
    for point, options in mounts:
        if _is_below(_unescaped(point), real):
            kept = sum(flag for name, flag in _KEPT_FLAGS.items() if name in options.split(","))
            _mount("", _unescaped(point), "", _BIND | _REMOUNT | _RDONLY | kept)


class View:
    """The command's root folder while it is built. ``scratch`` holds the layers that are written to."""

    def __init__(self, scratch: str, points: dict[str, bool]) -> None:
        self.scratch, self.root, self.points = scratch, scratch + "/root", points
        self.covered: dict[str, str] = {}  # the layer that is written to → the folder that it covers
        self.layers = itertools.count()
        os.makedirs(self.root)

    def build(self) -> None:
        for point, is_writable in self.points.items():
            if os.path.lexists(self.root + point):  # else it lies where nobody of ours may look
                self._cover(point, is_writable)

    def _cover(self, path: str, is_writable: bool = True) -> None:
        try:
            handle = os.open(path, os.O_PATH | os.O_NOFOLLOW)
        except OSError:  # not ours to enter, or gone by now
            return
        try:
            source, info = f"/proc/self/fd/{handle}", os.stat(handle)
            if is_writable and stat.S_ISDIR(info.st_mode) and self._hold_off(path, source, info):
                return
            if not (
                stat.S_ISSOCK(info.st_mode) or stat.S_ISFIFO(info.st_mode)
            ):  # they lead to processes outside
                self._only_read(path, source)
        finally:
            os.close(handle)

    def _hold_off(self, path: str, source: str, info: os.stat_result) -> bool:
        try:
            self._overlay(path, source, info)
            return True
        except Cannot:  # in a user namespace none is allowed over other mounts
            has_mounts = any(point != path and _is_below(point, path) for point in self.points)
            return has_mounts and self._cover_entries(path, info)

    def _overlay(self, path: str, lower: str, info: os.stat_result) -> None:
        layer = f"{self.scratch}/{next(self.layers)}"
        upper, work = layer + "/upper", layer + "/work"
        os.makedirs(upper)
        os.makedirs(work)
        _like(upper, info)
        layers = f"lowerdir={lower},upperdir={upper},workdir={work}"
        try:
            _mount("overlay", self.root + path, "overlay", _NODEV, layers)
        except Cannot:
            _mount("overlay", self.root + path, "overlay", _NODEV, layers + ",userxattr")
        self.covered[upper] = path

    def _cover_entries(self, folder: str, info: os.stat_result) -> bool:
        """An overlay over a copy of the folder in which each entry is covered by itself. False where they are too many."""
        try:
            with os.scandir(folder) as found:
                entries = list(found)
        except OSError:  # not ours to enter
            return False
        if len(entries) > _MOST_ENTRIES:
            return False
        frame = f"{self.scratch}/{next(self.layers)}"
        os.makedirs(frame)
        for entry in entries:
            name = f"{frame}/{entry.name}"
            if entry.is_symlink():
                os.symlink(os.readlink(entry.path), name)
            elif entry.is_dir():
                os.mkdir(name)
            else:
                os.close(os.open(name, os.O_CREAT | os.O_WRONLY, 0))
        _like(frame, info)
        try:
            self._overlay(folder, frame, info)
        except Cannot:  # before Linux 5.11 no ordinary user may have one
            self._only_read(folder, frame)
        for entry in entries:
            is_covered_later = entry.path in self.points or entry.path in _SYSTEM
            if not entry.is_symlink() and not is_covered_later:
                self._cover(entry.path)
        return True

    def _only_read(self, path: str, source: str) -> None:
        """Where that cannot be had, what lies there is hidden."""
        target = self.root + path
        try:
            _mount(source, target, "", _BIND | _REC)
        except Cannot:
            if path == "/":
                raise
            return
        try:
            _make_read_only(target)
        except Cannot:
            _call(f"hide {path}", _libc.umount2(os.fsencode(target), _DETACH))


def _like(folder: str, info: os.stat_result) -> None:
    try:
        os.chown(folder, info.st_uid, info.st_gid)
    except OSError:  # an owner that this namespace does not have
        pass
    os.chmod(folder, info.st_mode & 0o7777)


def _add_system(root: str, has_own_processes: bool) -> None:
    _mount("/sys", root + "/sys", "", _BIND | _REC)
    _make_read_only(root + "/sys")
    if has_own_processes:
        _mount("proc", root + "/proc", "proc", _NOSUID | _NODEV | _NOEXEC)
        for name in _SETTINGS:
            path = f"{root}/proc/{name}"
            if os.path.exists(path):
                _mount(path, path, "", _BIND | _REC)
                _make_read_only(path)
    else:
        _mount("/proc", root + "/proc", "", _BIND | _REC)
        _make_read_only(root + "/proc")
    _add_devices(root + "/dev")


def _add_devices(folder: str) -> None:
    """Those of programs and of GPUs, terminals of its own, and a /dev/shm of its own."""
    _mount("tmpfs", folder, "tmpfs", _NOSUID | _NOEXEC, "mode=755,size=1m")
    for name in os.listdir("/dev"):
        source, target = "/dev/" + name, f"{folder}/{name}"
        if (name in _DEVICES or name.startswith(_CARDS)) and not os.path.islink(source):
            if os.path.isdir(source):
                os.mkdir(target)
            else:
                os.close(os.open(target, os.O_CREAT | os.O_WRONLY))
            _mount(source, target, "", _BIND | _REC)
    for name, to in (("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")):
        os.symlink(f"/proc/self/fd{to}", f"{folder}/{name}")
    os.symlink("pts/ptmx", folder + "/ptmx")
    os.mkdir(folder + "/pts")
    os.mkdir(folder + "/shm")
    try:
        _mount("devpts", folder + "/pts", "devpts", _NOSUID | _NOEXEC, "newinstance,ptmxmode=0666,mode=620")
    except Cannot:  # few scripts open a terminal
        pass
    try:
        facts = os.statvfs("/dev/shm")
        size = f"size={facts.f_blocks * facts.f_frsize},"
    except OSError:
        size = ""
    _mount("tmpfs", folder + "/shm", "tmpfs", _NOSUID | _NODEV, size + "mode=1777")


def _change_root(root: str) -> None:
    os.chdir(root)
    if _libc.pivot_root(b".", b".") == 0:
        _call("leave /", _libc.umount2(b".", _DETACH))
    else:  # the root of an initramfs, or of a chroot
        _mount(".", "/", "", _MOVE)
        os.chroot(".")
    os.chdir("/")


def enter(results: str, has_own_processes: bool) -> dict[str, str]:
    """Into the view; returns the layers that are written to from now on, and the folders that they cover."""
    directory = os.getcwd()
    _loopback()
    _mount("", "/", "", _REC | _PRIVATE)
    with open("/proc/self/mountinfo") as file:
        points = mount_points(file.read())
    scratch = os.path.join(results, "scratch")
    os.makedirs(scratch, exist_ok=True)
    _mount("tmpfs", scratch, "tmpfs", 0, "mode=700")
    inner = os.open(scratch, os.O_PATH | os.O_DIRECTORY)
    view = View(
        f"/proc/self/fd/{inner}", {point: points[point] for point in points if not _is_below(point, results)}
    )
    view.build()
    _mount(results, view.root + results, "", _BIND)
    _add_system(view.root, has_own_processes)
    _change_root(view.root)
    os.chdir(directory)
    return view.covered


def give_up_powers() -> None:
    """From the next program on, root has none of those with which it could leave the view."""
    for number in _POWERS.values():
        _libc.prctl(_DROP_POWER, number, 0, 0, 0)


def keep_signals_inside() -> bool:
    """From here on this process and those it starts reach no others with a signal. False where the kernel has no such thing."""
    if _libc.syscall(_LANDLOCK_CREATE, None, 0, _ASK_ABI) < _ABI_WITH_SIGNALS:
        return False
    rules = struct.pack("QQQ", 0, 0, _SCOPE_SIGNALS)
    handle = _libc.syscall(_LANDLOCK_CREATE, rules, len(rules), 0)
    if handle < 0:
        return False
    done = (
        _libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0) == 0 and _libc.syscall(_LANDLOCK_RESTRICT, handle, 0) == 0
    )
    os.close(handle)
    return bool(done)


def written(covered: dict[str, str], most: int = 8) -> dict[str, object]:
    """Files written, changed or deleted, but Python's own bytecode."""
    count = size = 0
    names: list[str] = []
    for top, covers in covered.items():
        for folder, _, files in os.walk(top):
            for name in files:
                path = os.path.join(folder, name)
                if "__pycache__" in path:
                    continue
                try:
                    info = os.lstat(path)
                except OSError:
                    continue
                if stat.S_ISSOCK(info.st_mode):  # of the script's own processes
                    continue
                count += 1
                size += info.st_size
                if len(names) < most:
                    names.append(os.path.join(covers, os.path.relpath(path, top)))
    return {"count": count, "bytes": size, "names": names}


def main(arguments: list[str]) -> int:
    results, command = os.path.realpath(arguments[0]), arguments[1:]
    try:
        has_own_processes = _unshare()
    except (Cannot, OSError) as error:
        return _cannot(results, error)
    _libc.prctl(_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)  # it ends with who started it, however that ends
    first = os.fork()
    if first == 0:
        os._exit(_run(results, command, has_own_processes))
    return _exit_code(_ended(first))


def _cannot(results: str, error: Exception) -> int:
    _write_anew(os.path.join(results, "cannot"), str(error))
    return CANNOT


def _run(results: str, command: list[str], has_own_processes: bool) -> int:
    """The first process of the namespace: when it ends, so do all others there."""
    _libc.prctl(_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
    _libc.prctl(_SUBREAPER, 1, 0, 0, 0)
    try:
        covered = enter(results, has_own_processes)
    except (Cannot, OSError) as error:
        return _cannot(results, error)
    child = os.fork()
    if child == 0:
        _libc.prctl(_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
        give_up_powers()
        keep_signals_inside()
        try:
            os.execvp(command[0], command)
        except OSError as error:
            print(f"{command[0]}: {error.strerror}", file=sys.stderr, flush=True)
            os._exit(127)
    status = _ended(child)
    _end_the_rest(has_own_processes)
    _write_anew(os.path.join(results, "written.json"), json.dumps(written(covered)))
    return _exit_code(status)


def _ended(child: int) -> int:
    """Its wait status. Orphans become this process's children, and end unseen."""
    signal.signal(signal.SIGTERM, lambda *given: os.kill(child, signal.SIGTERM))
    while True:
        pid, status = os.wait()
        if pid == child:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            return status


def _exit_code(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _end_the_rest(has_own_processes: bool) -> None:
    """Daemons too: orphans have become children of this process."""
    while True:
        try:
            if has_own_processes:
                os.kill(-1, signal.SIGKILL)
            else:
                with open("/proc/thread-self/children") as file:
                    for pid in file.read().split():
                        os.kill(int(pid), signal.SIGKILL)
            os.wait()
        except OSError:  # no more of them
            return


def _write_anew(path: str, text: str) -> None:
    """Whatever the command put there."""
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.remove(path)
    with open(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as file:
        file.write(text)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

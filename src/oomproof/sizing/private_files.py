"""Runs a command whose writes, renames and deletes nobody else ever sees, without a network. A program of its own: it imports
nothing of ours.

    python private_files.py RESULTS COMMAND…

In a mount namespace of its own (and a user namespace, where we are not root) each file system of the machine gets an overlay in
memory; RESULTS alone is the real folder. The kernel's own files (/sys, /proc/sys) can only be read, and from Linux 6.12 on no
process outside gets a signal. When the command has ended, RESULTS/written.json lists what it wrote.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import stat
import struct
import sys

CANNOT = 77  # the exit status where no namespace or overlay could be had; RESULTS/cannot says why
_NEWNS, _NEWUSER, _NEWNET = 0x00020000, 0x10000000, 0x40000000
_BIND, _REC, _PRIVATE, _RDONLY, _REMOUNT = 4096, 16384, 1 << 18, 1, 32
_SYSTEM = ("/proc", "/sys", "/dev")
_SETTINGS = ("/sys", "/proc/sys")  # of the machine, where root could change them
# system calls, the same numbers on every architecture
_MOUNT_SETATTR, _LANDLOCK_CREATE, _LANDLOCK_RESTRICT = 442, 444, 446
_HERE, _RECURSIVE, _READ_ONLY = -100, 0x8000, 1
_ABI_WITH_SIGNALS, _ASK_ABI, _SCOPE_SIGNALS, _NO_NEW_PRIVILEGES = 6, 1, 2, 38
# file systems that hold nobody's files
_NOT_FILES = frozenset(
    [
        "proc",
        "sysfs",
        "devtmpfs",
        "devpts",
        "cgroup",
        "cgroup2",
        "securityfs",
        "debugfs",
        "tracefs",
        "pstore",
        "bpf",
        "mqueue",
        "hugetlbfs",
        "configfs",
        "fusectl",
        "autofs",
        "binfmt_misc",
        "efivarfs",
        "rpc_pipefs",
        "nsfs",
        "selinuxfs",
        "ramfs",
        "squashfs",
        "iso9660",
        "erofs",
    ]
)
_libc = ctypes.CDLL(None, use_errno=True)


class Cannot(Exception):
    pass


def _call(what: str, result: int) -> None:
    if result != 0:
        raise Cannot(f"{what}: {os.strerror(ctypes.get_errno())}")


def _mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    _call(
        f"mount {target}",
        _libc.mount(source.encode(), target.encode(), kind.encode(), flags, options.encode() or None),
    )


def _unshare() -> None:
    user, group = os.getuid(), os.getgid()
    if user == 0 and _libc.unshare(_NEWNS | _NEWNET) == 0:
        return
    _call("unshare", _libc.unshare(_NEWUSER | _NEWNS | _NEWNET))
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{user} {user} 1"),
        ("gid_map", f"{group} {group} 1"),
    ):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def _loopback() -> None:
    """Up: programs talk to themselves by it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle:
        import fcntl

        try:
            # SIOCSIFFLAGS, up and running
            fcntl.ioctl(handle, 0x8914, struct.pack("16sh", b"lo", 0x1 | 0x40))
        except OSError:
            pass


def folders_to_cover(mountinfo: str) -> list[str]:
    """Mount points of writable file systems that hold files, outermost first; for "/" the folders in it."""
    covered = []
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        fields = left.split()
        point, options, kind = fields[4], fields[5].split(","), right.split()[0]
        point = point.replace("\\040", " ")
        inside_system = any(point == system or point.startswith(system + "/") for system in _SYSTEM)
        if kind in _NOT_FILES or "ro" in options or inside_system or not os.path.isdir(point):
            continue
        if point == "/":
            tops = (entry for entry in os.scandir("/") if entry.is_dir(follow_symlinks=False))
            covered += [
                entry.path
                for entry in tops
                if entry.path not in _SYSTEM and os.path.ismount(entry.path) is False
            ]
        else:
            covered.append(point)
    return sorted(set(covered), key=lambda path: (path.count("/"), path))


def hidden_by(mountinfo: str, covered: list[str]) -> list[str]:
    """Mount points below those folders that are not covered themselves: single files (a container's GPU driver comes so), and
    file systems that are read only. An overlay shows what lies under a mount, not the mount."""
    points = []
    for line in mountinfo.splitlines():
        point = line.split()[4].replace("\\040", " ")
        if point not in covered and any(point.startswith(folder + "/") for folder in covered):
            points.append(point)
    return sorted(set(points), key=lambda path: (path.count("/"), path))


def _put_back(handles: list[tuple[str, int]]) -> None:
    """Over the overlays, and never to be written to."""
    for point, handle in handles:
        try:
            _mount(f"/proc/self/fd/{handle}", point, "", _BIND | _REC)
            _mount("", point, "", _BIND | _REMOUNT | _RDONLY)
        except Cannot:  # one that the command may do without
            pass
        os.close(handle)


def _opened(points: list[str]) -> list[tuple[str, int]]:
    handles = []
    for point in points:
        try:
            handles.append((point, os.open(point, os.O_PATH)))
        except OSError:  # below a folder that is not ours to enter
            continue
    return handles


def _cover(folders: list[str], scratch: str) -> None:
    """An overlay over each. The ones inside others were opened before those hide them."""
    handles = [(folder, os.open(folder, os.O_PATH | os.O_DIRECTORY)) for folder in folders]
    for number, (folder, handle) in enumerate(handles):
        lower = f"/proc/self/fd/{handle}"
        upper, work = f"{scratch}/{number}/upper", f"{scratch}/{number}/work"
        os.makedirs(upper)
        os.makedirs(work)
        info = os.stat(handle)
        try:
            os.chown(upper, info.st_uid, info.st_gid)
        except OSError:
            pass
        os.chmod(upper, info.st_mode & 0o7777)
        layers = f"lowerdir={lower},upperdir={upper},workdir={work}"
        for options in (layers, layers + ",userxattr"):
            try:
                _mount("overlay", folder, "overlay", 0, options)
                break
            except Cannot as error:
                problem = error
        else:  # such a file system takes no overlay: nothing may be written there
            try:
                _mount(folder, folder, "", _BIND | _REC)
                _mount("", folder, "", _BIND | _REMOUNT | _RDONLY)
            except Cannot:
                raise problem from None
    for _, handle in handles:
        os.close(handle)


def enter(results: str) -> tuple[str, list[str]]:
    """Into the namespaces; returns the folder with what is written from now on, and the folders that it covers."""
    directory = os.getcwd()
    _unshare()
    _loopback()
    _mount("", "/", "", _REC | _PRIVATE)
    own = os.open(results, os.O_PATH | os.O_DIRECTORY)
    scratch = os.path.join(results, "scratch")
    os.makedirs(scratch, exist_ok=True)
    _mount("tmpfs", scratch, "tmpfs", 0, "mode=700")
    inner = os.open(scratch, os.O_PATH | os.O_DIRECTORY)
    with open("/proc/self/mountinfo") as file:
        mountinfo = file.read()
    folders = [folder for folder in folders_to_cover(mountinfo) if not folder.startswith(results)]
    hidden = _opened([point for point in hidden_by(mountinfo, folders) if not point.startswith(results)])
    _cover(folders, f"/proc/self/fd/{inner}")
    _put_back(hidden)
    _mount(f"/proc/self/fd/{own}", results, "", _BIND | _REC)
    _own_shared_memory()
    _settings_read_only()
    os.chdir(directory)
    return f"/proc/{os.getpid()}/fd/{inner}", folders


def _own_shared_memory() -> None:
    """A /dev/shm of its own: what is in it is the command's."""
    try:
        facts = os.statvfs("/dev/shm")
        _mount("tmpfs", "/dev/shm", "tmpfs", 0, f"size={facts.f_blocks * facts.f_frsize},mode=1777")
    except (OSError, Cannot):
        pass


def _settings_read_only() -> None:
    """With what is mounted below them. Where the kernel cannot (before 5.12), they stay as they are."""
    attributes = struct.pack("QQQQ", _READ_ONLY, 0, 0, 0)
    for folder in _SETTINGS:
        try:
            _mount(folder, folder, "", _BIND | _REC)
        except Cannot:
            continue
        _libc.syscall(_MOUNT_SETATTR, _HERE, folder.encode(), _RECURSIVE, attributes, len(attributes))


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


def written(scratch: str, covered: list[str], most: int = 8) -> dict[str, object]:
    """Files written, changed or deleted, but Python's own bytecode."""
    count = size = 0
    names: list[str] = []
    for number, covers in enumerate(covered):
        top = os.path.join(scratch, str(number), "upper")
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
    results, command = arguments[0], arguments[1:]
    try:
        scratch, covered = enter(results)
    except (Cannot, OSError) as error:
        with open(os.path.join(results, "cannot"), "w") as file:
            file.write(str(error))
        return CANNOT
    child = os.fork()
    if child == 0:
        keep_signals_inside()
        try:
            os.execvp(command[0], command)
        except OSError as error:
            print(f"{command[0]}: {error.strerror}", file=sys.stderr)
            os._exit(127)
    signal.signal(signal.SIGTERM, lambda *given: os.kill(child, signal.SIGTERM))
    _, status = os.waitpid(child, 0)
    with open(os.path.join(results, "written.json"), "w") as file:
        json.dump(written(scratch, covered), file)
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Takes TOTAL MiB at RATE MiB/s as something whose pause others would feel, then waits: grows_as.py KIND RATE TOTAL.

editor: reads single keys at its terminal. database: listens on a port. fuse: serves a mount (in a user namespace of its own:
`unshare --user --map-root-user --mount`). plain: none of these, for what its surroundings make of it (a container).
"""

import ctypes
import os
import socket
import struct
import sys
import tempfile
import time

kind, rate, total = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])


def serve_a_mount() -> int:
    """A file system with an empty root; answers what the kernel asks at the mount, and no more."""
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0".encode()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"empty", tempfile.mkdtemp().encode(), b"fuse", 0, options) != 0:
        raise OSError(ctypes.get_errno(), "mount")
    _, _, unique = struct.unpack_from("=IIQ", os.read(device, 1 << 17))
    answer = struct.pack("=IIIIHHIIHHI28x", 7, 31, 0, 0, 12, 9, 4096, 1, 1, 0, 0)
    os.write(device, struct.pack("=IiQ", 16 + len(answer), 0, unique) + answer)
    return device


if kind == "editor":
    import tty

    tty.setcbreak(0)
elif kind == "database":
    server = socket.create_server(("127.0.0.1", 0))
elif kind == "fuse":
    mount = serve_a_mount()
print("growing", flush=True)
held = []
for _ in range(total):
    held.append(bytearray(b"x" * (1 << 20)))
    time.sleep(1 / rate)
time.sleep(3600)

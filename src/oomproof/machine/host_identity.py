"""Which machine this is: homes on the network serve several."""

from __future__ import annotations

import os

from oomproof.leaf.small_files import sha256_hex


def host_name() -> str:
    return os.uname().nodename


def machine_id(path: str = "/etc/machine-id") -> str:
    """A fingerprint of the installation's id, which itself is not to be told around; empty where there is none."""
    try:
        with open(path, "rb") as file:
            text = file.read(64).strip()
    except OSError:
        return ""
    return sha256_hex(b"oomproof:" + text)[:16] if text else ""

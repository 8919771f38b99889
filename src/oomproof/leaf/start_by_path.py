"""Starts a module of ours as a process of its own, without site-packages: ``python -I -S start_by_path.py FILE ...``.

FILE is a module below the package's folder with a ``main(arguments)``. It is imported, not run as a script: Python then
takes its compiled form (running keeper.py itself took 0.02 s to compile at every start). Only the package's folder is
made known, under the package's own name; nothing beside it can be imported but the standard library.
"""

from __future__ import annotations

import os
import sys


def command(file: str) -> list[str]:
    """What starts the module in ``file``, to which its arguments are added; bytecode goes where ours does."""
    options = ["-B"] if sys.dont_write_bytecode else []
    if sys.pycache_prefix:
        options += ["-X", f"pycache_prefix={sys.pycache_prefix}"]
    return [sys.executable, "-I", "-S", *options, os.path.abspath(__file__), os.path.abspath(file)]


def main() -> int:
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    del sys.argv[0]
    package = sys.modules["oomproof"] = type(sys)("oomproof")
    package.__path__ = [root]
    path = os.path.relpath(os.path.abspath(sys.argv[0]), root)
    name = ".".join(["oomproof", *path[: -len(".py")].split(os.sep)])
    __import__(name)
    return int(sys.modules[name].main(sys.argv[1:]) or 0)


if __name__ == "__main__":
    sys.exit(main())

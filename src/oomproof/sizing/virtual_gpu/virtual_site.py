"""Becomes a sitecustomize: starts the virtual GPU in a script's Python, then runs the one that would have run without us.

`size_command` copies it to a folder that holds nothing else, and puts that first on PYTHONPATH.
"""

from __future__ import annotations

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


def _start(folder: str, code: str) -> None:
    import importlib
    from importlib.machinery import ModuleSpec
    from importlib.util import module_from_spec

    spec = ModuleSpec("_oomproof_virtual_gpu", None, is_package=True)
    spec.submodule_search_locations = [code]
    sys.modules["_oomproof_virtual_gpu"] = module_from_spec(spec)
    importlib.import_module("_oomproof_virtual_gpu.virtual_start").begin(folder)


def _run_next_sitecustomize() -> None:
    """As if we were not there: under its own name and file, errors and all."""
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or os.curdir) != _HERE]
    spec = PathFinder.find_spec("sitecustomize")
    if spec is None or spec.loader is None:
        return
    module = module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


if __name__ == "sitecustomize":
    if os.environ.get("OOMPROOF_SIZE") and sys.version_info >= (3, 9):
        _start(os.environ["OOMPROOF_SIZE"], os.environ["OOMPROOF_SIZE_CODE"])
    _run_next_sitecustomize()

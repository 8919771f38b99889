"""Becomes a sitecustomize: starts the virtual GPU, or a rehearsal, in a script's Python, then runs the one that would have run
without us.

`size_command` and `rehearse` copy it to a folder that holds nothing else, and put that first on PYTHONPATH.
"""

from __future__ import annotations

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


def _start(folder: str, code: str) -> None:
    import importlib
    from importlib.machinery import ModuleSpec
    from importlib.util import module_from_spec

    spec = ModuleSpec("_oomproof_sizing", None, is_package=True)
    spec.submodule_search_locations = [os.path.dirname(code)]
    sys.modules["_oomproof_sizing"] = module_from_spec(spec)
    start = os.environ.get("OOMPROOF_SIZE_START", "virtual_start")
    importlib.import_module(f"_oomproof_sizing.{os.path.basename(code)}.{start}").begin(folder)


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

"""Starts the virtual GPU in a script's Python, then runs the sitecustomize that would have run without us."""

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


def _start():
    folder = os.environ.get("OOMPROOF_SIZE")
    if not folder or sys.version_info < (3, 9):
        return
    import _frozen_importlib as machinery

    own = os.path.dirname(_HERE)
    spec = machinery.ModuleSpec("_oomproof_virtual_gpu", None, is_package=True)
    spec.submodule_search_locations = [own]
    sys.modules["_oomproof_virtual_gpu"] = machinery.module_from_spec(spec)
    from _oomproof_virtual_gpu import virtual_start

    virtual_start.begin(folder)


def _run_next_sitecustomize():
    """As if we were not there: under its own name and file, errors and all."""
    import _frozen_importlib as machinery
    import _frozen_importlib_external as files

    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or os.curdir) != _HERE]
    spec = files.PathFinder.find_spec("sitecustomize")
    if spec is None or spec.loader is None:
        return
    module = machinery.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


_start()
_run_next_sitecustomize()

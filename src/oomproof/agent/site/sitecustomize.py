# -*- coding: utf-8 -*-
"""Starts oomproof's agent in a job's Python, then runs the sitecustomize that would have run without us.

`oomproof run` puts this folder, which holds nothing else, first on PYTHONPATH. Whatever Python the job starts reads
this file, so it must load on all of them, 2.7 too; the agent itself needs 3.8.
"""

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


def _start_agent():
    if not os.environ.get("OOMPROOF_AGENT") or sys.version_info < (3, 8):
        return
    if "_oomproof" in sys.modules:  # another oomproof further up the path was first
        return
    import _frozen_importlib as machinery  # loaded in every Python 3: importlib itself is not

    agent = os.path.dirname(_HERE)
    for name, folder in (("_oomproof", os.path.dirname(agent)), ("_oomproof.agent", agent)):
        spec = machinery.ModuleSpec(name, None, is_package=True)
        spec.submodule_search_locations = [folder]
        sys.modules[name] = machinery.module_from_spec(spec)
    from _oomproof.agent import agent_start

    agent_start.begin(os.environ["OOMPROOF_AGENT"])


def _run_next_sitecustomize():
    """As if we were not there: under its own name and file, errors and all."""
    # the working folder may be gone
    sys.path[:] = [entry for entry in sys.path if os.path.normpath(entry) != _HERE]
    if sys.version_info[0] < 3:
        import imp

        try:
            module_file = imp.find_module("sitecustomize", sys.path)
        except ImportError:
            return
        ours = sys.modules.pop("sitecustomize")  # loading into it would mix the two
        module = imp.load_module("sitecustomize", *module_file)
        module._kept = ours  # Python 2 empties a module that nobody holds
        return
    import _frozen_importlib as machinery
    import _frozen_importlib_external as files

    spec = files.PathFinder.find_spec("sitecustomize")
    if spec is None or spec.loader is None:
        return
    module = machinery.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop("sitecustomize", None)
        raise


try:
    _start_agent()
except Exception:  # the job matters, not its observer
    pass
_run_next_sitecustomize()

"""The lab's virtual machine for benchmarks: `tests/vm/lab.py`, whose name is that of our own `lab.py`."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
JOBS, IN_GUEST = ROOT / "tests" / "incidents" / "jobs", "/opt/oomproof/jobs"


def _loaded() -> Any:
    spec = importlib.util.spec_from_file_location("virtual_machine", ROOT / "tests" / "vm" / "lab.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look there for their own module
    spec.loader.exec_module(module)
    return module


virtual = _loaded()

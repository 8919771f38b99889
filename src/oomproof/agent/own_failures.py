"""Whether an exception is a failure of ours. A signal handler of the job's may raise while we look: that one is the job's."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_LIBRARIES = ("torch/", "numpy/", "pandas/", "pyarrow/", "datasets/")  # that a look may ask
_FILES = (
    os.path.join(_PACKAGE, "agent"), os.path.join(_PACKAGE, "leaf"), os.path.join(os.path.dirname(os.__file__), "json"),
    "<frozen", "<__array", *_LIBRARIES,
)  # fmt: skip
_INSTALLED = tuple("-packages/" + name for name in _LIBRARIES)


def is_ours(error: BaseException) -> bool:
    """False when it came through a function of somebody else's, whom only a signal can have called."""
    traceback: Any = error.__traceback__
    while traceback is not None:
        file = traceback.tb_frame.f_code.co_filename
        if not file.startswith(_FILES) and not any(name in file for name in _INSTALLED):
            return False
        traceback = traceback.tb_next
    return True

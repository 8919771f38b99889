"""Whether a script may use torch, told from its imports: what surely does not is not run to find out."""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Iterator

from oomproof.recording.state_files import read_small

# Libraries that neither are torch nor bring it along.
_WITHOUT = {
    "numpy", "scipy", "pandas", "sklearn", "matplotlib", "seaborn", "polars", "pyarrow", "dask", "h5py", "joblib",
    "xgboost", "lightgbm", "catboost", "statsmodels", "tensorflow", "jax", "PIL", "cv2", "requests", "tqdm", "yaml",
    "psutil", "rich", "click", "typer", "oomproof",
}  # fmt: skip
_MOST = 200  # files of the user's own
_LONGEST = 1 << 20


def may_use_torch(script: str) -> bool:
    """True in doubt: an unknown library, an import by name, a file that cannot be read."""
    top = os.path.dirname(script)
    left, seen = [script], {script}
    while left:
        path = left.pop()
        if not path.endswith(".py") or len(seen) > _MOST:
            return True
        try:
            names = list(_imported(ast.parse(read_small(path, _LONGEST))))
        except (OSError, ValueError, SyntaxError, RecursionError):
            return True
        for name in names:
            own = _own_file(top, name)
            if own is not None and own not in seen:
                seen.add(own)
                left.append(own)
            elif own is None and name not in sys.stdlib_module_names and name not in _WITHOUT:
                return True
    return False


def _imported(tree: ast.AST) -> Iterator[str]:
    """First parts of the names of modules; "" for what only running it tells."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield "" if alias.name.startswith(("importlib", "runpy")) else alias.name.partition(".")[0]
        elif isinstance(node, ast.ImportFrom):
            beside = node.level or (node.module or "").startswith(("importlib", "runpy"))
            yield "" if beside else (node.module or "").partition(".")[0]
        elif isinstance(node, ast.Name) and node.id in ("__import__", "exec", "eval"):
            yield ""


def _own_file(top: str, name: str) -> str | None:
    """Of a module beside the script. A package's files are many: counted as unknown."""
    path = os.path.join(top, f"{name}.py")
    return path if name and os.path.isfile(path) else None

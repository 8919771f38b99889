"""The need of `oomproof run --need auto`: measured where the same command ran to its end, else sized, now or before.

It never keeps a job from starting: what goes wrong here is one line, and the run starts as without --need.
"""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from oomproof.errors import OomproofError
from oomproof.leaf.command_lines import command_key, script_of, short_name
from oomproof.ledger import peak_history
from oomproof.ledger.ledger_entries import AT_LEAST, Need, Peak, from_history
from oomproof.ledger.ledger_store import Busy, open_ledger
from oomproof.machine import gpu as cards
from oomproof.recording.secrets import mask_argv
from oomproof.recording.state_files import read_small
from oomproof.records import dataclass, replace
from oomproof.runner import code_identity
from oomproof.runner.waiting_run import Cancelled
from oomproof.sizing import card_lookup, script_sizing, sizing_cache
from oomproof.sizing.estimate import Estimate, Sizing
from oomproof.sizing.virtual_gpu.step_limits import PATIENCE
from oomproof.units import format_size

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


SECONDS = 60.0  # in which the script must have come to its steps
# parts of a sizing, as it names them
_LIVE = ("weights", "gradients", "optimizer state", "activations", "temporary")
_FOR_THE_CARD = ("model on the host", "CUDA libraries", "pinned memory")
BASIS = "sized on a virtual GPU"
# of MKL and of autograd's threads, at most, of a training that takes a few hundred MiB
_CPU_BUFFERS = 128 << 20
_CARD_SECONDS = 5.0  # for the driver's answer


@dataclass(frozen=True, slots=True)
class AutoNeed:
    """``need``: to reserve, None where a measured peak or nothing is to be reserved. ``predicted``: for run.json."""

    need: Need | None = None
    predicted: dict[str, Any] | None = None


def find(
    argv: Sequence[str],
    folder: str,
    ledger_folder: str | None,
    say: Callable[[str], None],
    begins: Callable[[str], None],
) -> AutoNeed:
    """``begins``: told before the script is run, which takes a while. Raises nothing but Cancelled."""
    try:
        return _find(argv, folder, ledger_folder, say, begins)
    except Cancelled:
        raise
    except OomproofError as error:
        say(f"not sized: {error.message}; starts as without --need")
    except Exception as error:
        say(f"not sized ({type(error).__name__}: {error}); starts as without --need")
    return AutoNeed()


def _find(
    argv: Sequence[str],
    folder: str,
    ledger_folder: str | None,
    say: Callable[[str], None],
    begins: Callable[[str], None],
) -> AutoNeed:
    if sizing_cache.python_of(argv[0]) is None:
        say(f"not sized: {argv[0]} is no Python program (--need auto); give --need SIZE")
        return AutoNeed()
    total = _card_size()
    name = sizing_cache.key(argv, folder, os.environ, total)
    kept = sizing_cache.load(name) if name is not None else {}
    measured = _measured(argv, folder, ledger_folder)
    if measured is not None and not measured.basis.startswith(AT_LEAST):
        say(f"needs {measured.sentence}; measured, which counts before a sizing (--need auto)")
        return AutoNeed(None, _predicted(*_estimates(kept, total)))
    before = " (sized before)" if kept else ""
    if not kept:
        kept = _sized(argv, folder, total, begins)
        if name is not None and not kept.pop("passing", False):
            sizing_cache.store(name, kept)
    return _told(kept, measured, total, before, say)


def _told(
    kept: Mapping[str, Any], measured: Need | None, total: int | None, before: str, say: Callable[[str], None]
) -> AutoNeed:
    host, gpu = _estimates(kept, total)
    if host is None:
        say(f"not sized: {kept.get('refused')}{before}; starts as without --need")
        return AutoNeed()
    where, highest = "", format_size(host.high)
    if gpu is not None:
        where, highest = (
            f" and {format_size(gpu.expected)} on the card",
            f"{highest} and {format_size(gpu.high)}",
        )
    elif kept.get("gpu"):
        where = ", as there is no card here"
    say(f"needs about {format_size(host.expected)} of RAM{where} (up to {highest}){before}")
    need = Need(host.low, host.expected, BASIS, _of_card(gpu, total))
    if measured is not None and measured.high > need.high:
        say(f"reserves {measured.sentence}")
        need = replace(measured, gpu=need.gpu)
    return AutoNeed(need, _predicted(host, gpu))


def _estimates(kept: Mapping[str, Any], total: int | None) -> tuple[Estimate | None, Estimate | None]:
    host, gpu = Estimate.from_json(kept.get("host")), Estimate.from_json(kept.get("gpu"))
    if host is None or gpu is None or total is not None:
        return host, gpu
    # Without a card a script that can do without one takes RAM instead, and no copy of the model for the card.
    added = sum(gpu.parts.get(name, 0) for name in _LIVE)
    saved = sum(host.parts.get(name, 0) for name in _FOR_THE_CARD)
    expected = host.expected + added - saved
    return Estimate(expected - added // 4, expected, expected + expected // 4 + _CPU_BUFFERS, {}), None


def _of_card(gpu: Estimate | None, total: int | None) -> int | None:
    """The high figure: RAM that runs short is guarded, an allocation on a card just fails. But no more than there can be."""
    if gpu is None or total is None:
        return None
    return gpu.high if gpu.high <= total else gpu.expected


def _sized(
    argv: Sequence[str], folder: str, total: int | None, begins: Callable[[str], None]
) -> dict[str, Any]:
    """As it is kept; ``passing``: not to be."""
    script = script_of(argv, folder)
    if script is not None and not may_use_torch(script):
        return {"refused": f"{os.path.basename(script)} imports nothing that uses torch"}
    begins(f"sizing {short_name(argv)} on a virtual GPU first (--need auto; at most {SECONDS:.0f} s) …")
    error: list[str] = []
    sized = script_sizing.size_command(
        argv,
        time_limit=SECONDS / PATIENCE,
        gpu_total=total,
        allow_writes=False,
        tell=error.append,
        card_of=card_lookup.kept,
    )
    sizing, status = sized.sizing, sized.status
    if sizing.host is not None:
        return _kept(sizing)
    if status:
        last = f" ({error[-1].strip()})" if error and error[-1].strip() else ""
        return {"refused": f"it failed there with status {status}{last}", "passing": True}
    return {"refused": sizing.refused or "no reason was given", "passing": sizing.passing}


def _kept(sizing: Sizing) -> dict[str, Any]:
    assert sizing.host is not None
    return {
        "host": sizing.host.as_json(),
        "gpu": sizing.gpu.as_json() if sizing.gpu is not None else None,
        "notes": list(sizing.notes),
        "peak": sizing.peak,
    }


def _predicted(host: Estimate | None, gpu: Estimate | None) -> dict[str, Any] | None:
    figures = {
        name: {"low": estimate.low, "expected": estimate.expected, "high": estimate.high}
        for name, estimate in (("host", host), ("gpu", gpu))
        if estimate is not None
    }
    return figures or None


def _card_size() -> int | None:
    """Of the smallest card, where there is one with memory of its own."""
    here = cards.read(_CARD_SECONDS, cards.start_query()).gpus
    return min((card.total for card in here if card.total), default=None)


def _measured(argv: Sequence[str], folder: str, ledger_folder: str | None) -> Need | None:
    """Of earlier runs of the same command with the same script."""
    try:
        ledger = open_ledger(ledger_folder)
    except (OSError, OomproofError, Busy):
        return None
    try:
        peaks = peak_history.peaks_of(ledger, command_key(mask_argv(argv), folder))
    except (OSError, OomproofError, Busy):
        return None
    finally:
        ledger.close()
    now = code_identity.hash_file(script_of(argv, folder))
    return from_history([peak for peak in peaks if _same_script(peak, now)])


def _same_script(peak: Peak, now: str | None) -> bool:
    """A run whose folder is gone counts: nothing says that the script has changed."""
    code = peak_history.run_of(peak).info.get("code") or {}
    then = code.get("script_sha256")
    return now is None or then is None or then == now

"""Keeps machine-learning jobs from dying of memory; when one dies anyway, says why, with proof.

A training script may use `phase`, `inference`, `report_metric`, `stop_requested` and `watch`; outside `oomproof run` they do nothing. A
notebook may ask `size(step, model, optimizer, batch)`; `fit_batch` finds the largest batch that fits, for a training function or a step.
"""

__version__ = "0.1.0"

_PUBLIC = ("inference", "phase", "report_metric", "stop_requested", "watch")
_LATER = {"size": "oomproof.reports.notebook_size", "fit_batch": "oomproof.fitting.batch_api"}


def __getattr__(name: str) -> object:
    """Imported when asked for: `import oomproof` itself stays cheap."""
    if name in _PUBLIC:
        from oomproof.agent import script_api

        return getattr(script_api, name)
    if name in _LATER:
        # by its name: parts below import this package for its version
        from importlib import import_module

        return getattr(import_module(_LATER[name]), name)
    raise AttributeError(f"module 'oomproof' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *_PUBLIC, *_LATER]

"""Keeps machine-learning jobs from dying of memory; when one dies anyway, says why, with proof.

A training script may use `phase`, `inference`, `report_metric`, `stop_requested` and `watch`; outside `oomproof run` they do nothing. A
notebook may ask `size(step, model, optimizer, batch)`; `fit_batch` finds the largest batch that fits, for a training function or a step;
`fit_trainer` and `FitBatch` do so for a Trainer and for Lightning.
"""

__version__ = "0.1.0"

_PUBLIC = ("inference", "phase", "report_metric", "stop_requested", "watch")
_SIZING = {
    "size": "screens.notebook_size",
    "fit_batch": "fitting.batch_api",
    "fit_trainer": "integrations.transformers",
    "FitBatch": "integrations.lightning",
}


def __getattr__(name: str) -> object:
    """Imported when asked for: `import oomproof` itself stays cheap."""
    if name in _PUBLIC:
        from oomproof.agent import script_api

        return getattr(script_api, name)
    if name in _SIZING:
        from oomproof.islands import island_part  # late: the parts below import this package for its version

        return getattr(island_part("sizing", _SIZING[name]), name)
    raise AttributeError(f"module 'oomproof' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *_PUBLIC, *_SIZING]

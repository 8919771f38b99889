"""Asks Hydra which configs it merges for a command line. Runs in the Python of that command and prints one line of JSON.

``python hydra_composer.py SCRIPT FOLDER NAME CONFIG_DIR WORD ...``: the arguments of ``@hydra.main`` and the words behind the
script. It imports nothing of the script and nothing of ours, and Hydra writes no file. For Python 3.8 and Hydra 1.1 or newer.
"""

from __future__ import annotations

import json
import os
import re
import resource
import sys
import warnings
from collections.abc import Iterator
from typing import Any

_LARGEST_STORE = 100  # configs that are made in code
_MEMORY = 1 << 30  # bytes; aliases in a YAML of some hundred bytes may stand for billions of values


def main(arguments: list[str]) -> None:
    script, folder, name, config_dir, *words = arguments
    sys.path[0] = os.path.dirname(script)  # as the script has it: plugins of Hydra may lie there
    warnings.simplefilter("ignore")
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    limit = _MEMORY if hard == resource.RLIM_INFINITY else min(_MEMORY, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
    try:
        answer = _composed(folder, name, config_dir, words)
    except ModuleNotFoundError as error:
        answer = {"problem": f"{sys.executable} has no {error.name}"}
    except Exception as error:
        answer = {"problem": (str(error).strip() or type(error).__name__).splitlines()[0]}
    print(json.dumps(answer))


def _composed(folder: str, name: str, config_dir: str, words: list[str]) -> dict[str, Any]:
    """``layers``: (path below Hydra's folder, package) in the order of merging; ``leaves``: the path of every value that is left;
    ``typed``: keys that the command line sets."""
    from hydra import initialize_config_dir
    from hydra._internal.utils import get_args_parser
    from hydra.core.global_hydra import GlobalHydra
    from hydra.types import RunMode
    from omegaconf import OmegaConf

    arguments, _ = get_args_parser().parse_known_args(words)
    if arguments.multirun:
        return {"problem": "it ran several jobs (--multirun)"}
    initialize_config_dir(folder)
    loader = GlobalHydra.instance().config_loader()
    if config_dir:
        sources = loader.get_search_path()
        sources.get_path().insert(-1, type(sources.get_path()[-1])("command-line", f"file://{config_dir}"))
        loader.repository.initialize_sources(sources)
    defaults = _defaults(loader, name, arguments.overrides, RunMode.RUN)
    typed = [override for override in defaults.config_overrides if not override.is_hydra_override()]
    # A value of a config that is made in code could not be set here, where that config is empty.
    lines = {override.input_line for override in typed}
    groups = [word for word in arguments.overrides if word not in lines]
    config = loader.load_configuration(name, groups, RunMode.RUN)
    return {
        "layers": [
            (re.sub(r"\.ya?ml$", "", default.config_path), default.package or "")
            for default in defaults.defaults
            if default.config_path
        ],
        "leaves": list(_leaves(OmegaConf.to_container(config, resolve=False), ())),
        "typed": [override.key_or_group for override in typed],
    }


def _defaults(loader: Any, name: str, overrides: list[str], mode: Any) -> Any:
    """Configs that are no files, for they are made in the script's code, count as empty."""
    from hydra.core.config_store import ConfigStore
    from hydra.errors import MissingConfigException

    for _ in range(_LARGEST_STORE):
        try:
            return loader.compute_defaults_list(name, overrides, mode)
        except MissingConfigException as error:
            if not error.missing_cfg_file:
                raise
            group, _, config = error.missing_cfg_file.rpartition("/")
            ConfigStore.instance().store(config, {}, group=group or None)
    raise RuntimeError(f"more than {_LARGEST_STORE} of its configs are no files")


def _leaves(value: Any, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    items = (
        enumerate(value) if isinstance(value, list) else value.items() if isinstance(value, dict) else None
    )
    if items is None:
        yield path
        return
    for key, item in items:
        yield from _leaves(item, (*path, str(key)))


if __name__ == "__main__":
    main(sys.argv[1:])

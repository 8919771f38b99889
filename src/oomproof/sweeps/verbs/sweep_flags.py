"""The flags of `oomproof sweep` as an order: search space, command and settings, checked before anything is made."""

from __future__ import annotations

import argparse
import os
import secrets
from pathlib import Path
from typing import Any

from oomproof.cli.command_parser import count
from oomproof.errors import USAGE, OomproofError
from oomproof.leaf.command_lines import python_target, short_name
from oomproof.plans.knobs import parse_knob
from oomproof.recording.secrets import mask_argv
from oomproof.records import dataclass
from oomproof.runner import run_flags
from oomproof.sweeps.search_space import METHODS, SearchSpace, checked_space, default_method, parse_param
from oomproof.sweeps.sweep_folder import SweepOrder, check_name, new_name
from oomproof.sweeps.trial_plans import check_words, command_of, knobs_of, plans_of
from oomproof.sweeps.wandb_sweep import SweepFile, read_sweep_file

_RUN_CHECKS = {
    "limit": run_flags.limit,
    "need": run_flags.need,
    "gpu_need": run_flags.gpu_need,
    "gpu_limit": run_flags.gpu_limits,
    "grace": run_flags.seconds("--grace"),
}
NEW = ("param", "metric", "goal", "method", "name", "knob", "effective", "seed")
CHANGEABLE = ("trials", "parallel", "try_all", *_RUN_CHECKS)
_MOST_PARALLEL = 64


def add_flags(parser: argparse.ArgumentParser) -> None:
    new = parser.add_argument_group("a new sweep")
    new.add_argument(
        "--param",
        action="append",
        default=[],
        metavar="NAME=VALUES",
        help="what is varied: 16,32,64 or 2..8 or 1e-5..1e-3:log; {NAME} in the command is replaced (\\, is a comma)",
    )
    new.add_argument(
        "--metric", metavar="NAME", help="what a trial reports and the search improves, such as loss"
    )
    new.add_argument(
        "--goal", choices=("minimize", "maximize"), metavar="GOAL", help="minimize (default) or maximize"
    )
    new.add_argument(
        "--method",
        choices=METHODS,
        metavar="METHOD",
        help="grid, random or bayes (default: grid for lists of values, else bayes with a metric, random without)",
    )
    new.add_argument("--name", metavar="NAME", help="a name to call the sweep by")
    new.add_argument(
        "--knob",
        action="append",
        default=[],
        metavar="NAME=VALUES",
        help="what may become smaller when a trial does not fit, the preferred value first: workers=8..0",
    )
    new.add_argument(
        "--effective",
        type=count("samples"),
        metavar="N",
        help="the batch of one optimizer step: {accum} follows {batch}",
    )
    new.add_argument(
        "--seed", type=count("a seed"), metavar="N", help="of the search (default: another one each time)"
    )
    both = parser.add_argument_group("a new or resumed sweep")
    both.add_argument(
        "--trials", type=count("trials"), metavar="N", help="how many (default: every point of a grid)"
    )
    both.add_argument(
        "--parallel",
        type=count("trials"),
        metavar="N",
        help="at most so many at once, as far as memory allows (default 1)",
    )
    both.add_argument(
        "--try-all",
        action="store_true",
        default=None,
        help="skip nothing and make nothing smaller for what other trials held",
    )
    for name in _RUN_CHECKS:
        known = run_flags.FLAGS[name]
        both.add_argument(
            f"--{name.replace('_', '-')}", metavar=known.metavar, help=f"of each trial: {_FLAG_HELP[name]}"
        )


_FLAG_HELP = {
    "limit": "it may hold this much, such as 20G",
    "need": "it starts when this much is free (default: what trials of its size held; auto: also size it first)",
    "gpu_need": "the same for GPU memory",
    "gpu_limit": "it may hold this much of a GPU",
    "grace": "time to save between asking and ending (default 30)",
}


@dataclass(frozen=True, slots=True)
class NewSweep:
    name: str
    order: SweepOrder
    notes: tuple[str, ...]
    secret: bool  # the command holds one, and is stored masked
    first: list[str]  # the command of some trial, to check that it can be started


def changed_settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """What was typed of those that `resume` may change, checked."""
    settings: dict[str, Any] = {}
    for name in CHANGEABLE:
        if (value := getattr(arguments, name)) is None:
            continue
        if name in _RUN_CHECKS:
            _RUN_CHECKS[name](value)
        settings[name] = value
    if settings.get("parallel") == 0 or int(settings.get("parallel") or 1) > _MOST_PARALLEL:
        raise OomproofError(f"--parallel {settings['parallel']}", f"give 1 to {_MOST_PARALLEL}", USAGE)
    if settings.get("trials") == 0:
        raise OomproofError("--trials 0 runs nothing", "give at least 1", USAGE)
    return settings


def new_sweep(arguments: argparse.Namespace, file: str | None, command: list[str]) -> NewSweep:
    """Raises OomproofError; nothing was made then."""
    told = read_sweep_file(Path(file)) if file is not None else SweepFile(())
    settings = changed_settings(arguments)
    trials = settings.pop("trials", None) or told.trials
    metric = arguments.metric or told.metric
    typed = tuple(parse_param(text) for text in arguments.param)
    names = {parameter.name for parameter in typed}
    parameters = (*(parameter for parameter in told.parameters if parameter.name not in names), *typed)
    method = arguments.method or told.method or default_method(parameters, metric, trials)
    goal = arguments.goal or told.goal or "minimize"
    space = checked_space(SearchSpace(parameters, method, metric, goal, told.target, trials))
    words = tuple(command or told.words)
    if not words:
        example = "oomproof sweep --param lr=1e-4,1e-3 -- python train.py --lr {lr}"
        raise OomproofError(
            "no command to run", example if file is None else f"add program: to {file}, or -- CMD", USAGE
        )
    _check_script(words)
    by_config = file is not None
    declared = [parse_knob(text) for text in arguments.knob]
    knobs = knobs_of(words, parameters, declared, arguments.effective)
    check_words(words, parameters, knobs.names, by_config=by_config and not command)
    seed = arguments.seed if arguments.seed is not None else secrets.randbelow(1 << 31)
    cwd = os.getcwd()
    order = SweepOrder(words, cwd, space, knobs, settings, by_config, seed)
    name = check_name(arguments.name) if arguments.name else new_name(told.name or _named(words))
    return NewSweep(name, order, told.notes, mask_argv(words) != list(words), _example(order))


def _check_script(words: tuple[str, ...]) -> None:
    """A script that is not there would make every trial fail. Raises OomproofError."""
    script = (python_target(words) or ("",))[0]
    if script.endswith(".py") and not set("{$") & set(script) and not os.path.exists(script):
        raise OomproofError(
            f"{script}: no such file", f"trials run where the sweep is started: {os.getcwd()}", USAGE
        )


def _example(order: SweepOrder) -> list[str]:
    point = {
        parameter.name: parameter.values[0]
        if parameter.kind == "values"
        else parameter.clean(parameter.low or 0.5)
        for parameter in order.space.parameters
    }
    values, further = next(plans_of(point, order.knobs))
    return command_of(
        order.words, order.space.parameters, values, {"trial": "1", "sweep": "", **further}, os.devnull
    )


def _named(words: tuple[str, ...]) -> str:
    """``train`` of python train.py."""
    return Path(short_name([word for word in words if not word.startswith("${")]).split()[-1]).stem

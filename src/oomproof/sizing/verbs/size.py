"""How much a model, a data file or a command will need, before it runs.

Of files: weights in each type, the key/value cache, what loading takes, told from headers; nothing is executed. Of a command: it
runs unchanged on a virtual GPU for a few steps, its own files are safe. Then whether it fits here or on another machine.

  oomproof size -- python train.py --batch-size 32    a training: weights, gradients, optimizer, activations, host RAM
  oomproof size ./llama-3.1-8b                        a model's folder: config.json and its weights
  oomproof size model.gguf --context 32768            with the cache of a long context
  oomproof size llama3.2:3b                           a model of Ollama, or of the Hugging Face cache, by its name
  oomproof size ./llama-3.1-8b --gpu 24G --ram 32G    would it fit on another machine?
  oomproof size ./model train.npz --json              models and data files, together
  oomproof size --card h200.json -- python train.py   for a card that was calibrated elsewhere
  oomproof size --compare RUN                         what `run --need auto` predicted, and what it took
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Callable, Sequence
from typing import Any

from oomproof.cli.command_parser import count, refuse
from oomproof.errors import NOT_FOUND, OUR_FAILURE, USAGE, OomproofError
from oomproof.ledger.budget import default_margin
from oomproof.printable import show_line, tell, terminal_columns
from oomproof.sizing import calibrated_card, card_lookup, sizing_cache
from oomproof.sizing.calibrated_card import CalibratedCard
from oomproof.sizing.card_constants import LOADING_PROCESS
from oomproof.sizing.data.file_formats import load_cost
from oomproof.sizing.data.load_cost import LoadCost
from oomproof.sizing.estimate import Estimate, Phase, Sizing
from oomproof.sizing.fit_verdict import Fit, Place, card_here, card_of, fit, ram_here, ram_of
from oomproof.sizing.kv_sizes import ELEMENT, Wanted
from oomproof.sizing.model_files import model_files
from oomproof.sizing.model_sizing import ModelSizing, size_model
from oomproof.sizing.screens import size_report as report
from oomproof.sizing.virtual_gpu.child_results import VirtualResult
from oomproof.units import format_duration, parse_duration, parse_size

Sized = tuple[str, ModelSizing | LoadCost]


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    parser.usage = "oomproof size [options] MODEL ... | -- CMD ..."
    parser.set_defaults(command=[])  # what stands behind --
    parser.add_argument(
        "targets",
        nargs="*",
        metavar="MODEL",
        help="a model's folder, .safetensors, .gguf, .pt, a model's name, or data files (.npz, .csv, .parquet ...)",
    )
    parser.add_argument(
        "--context", type=count("tokens"), metavar="N", help="tokens in the key/value cache (default: 4096)"
    )
    parser.add_argument(
        "--batch", type=count("sequences"), default=1, metavar="B", help="sequences at once (default: 1)"
    )
    parser.add_argument(
        "--beams", type=count("beams"), default=1, metavar="K", help="of a beam search (default: 1)"
    )
    parser.add_argument(
        "--kv-type",
        choices=list(ELEMENT),
        metavar="TYPE",
        help=f"of the cache: {', '.join(ELEMENT)} (default: the model's)",
    )
    parser.add_argument("--gpu", metavar="SIZE", help="would it fit on a card of this size? (24G is 24 GiB)")
    parser.add_argument("--ram", metavar="SIZE", help="... in a machine with this much RAM?")
    parser.add_argument(
        "--card",
        metavar="CARD",
        help="of a command: for this calibrated card, by its file or name (default: this machine's; none: no measurements)",
    )
    parser.add_argument(
        "--time-limit", metavar="TIME", help="of a command: how long it may run (default: 60s)"
    )
    parser.add_argument(
        "--allow-writes",
        action="store_true",
        help="of a command: let it write to disk where its writes cannot be kept in memory",
    )
    parser.add_argument(
        "--compare", metavar="RUN", help="what `run --need auto` predicted of this run, beside what it took"
    )
    parser.add_argument("--json", action="store_true", help="print schema 1 JSON instead of the tables")


def run(args: argparse.Namespace) -> int:
    if args.compare is not None:
        return _compare(args)
    if args.command:
        return _command(args)
    refuse(
        args,
        ("time_limit", "allow_writes", "card"),
        "is for a command",
        "oomproof size --time-limit 60s -- python train.py",
    )
    if not args.targets:
        raise OomproofError(
            "nothing to size", "oomproof size MODEL_FOLDER, or oomproof size -- python train.py", USAGE
        )
    for name in ("context", "batch", "beams"):
        if getattr(args, name) == 0:
            raise OomproofError(f"--{name} 0 is nothing", "give 1 or more", USAGE)
    wanted = Wanted(0, args.batch, args.beams, args.kv_type or "")
    places_asked = [parse_size(size) if size else None for size in (args.gpu, args.ram)]
    sized = [(name, _sized(name, wanted, args.context)) for name in args.targets]
    places = _places(*places_asked)
    fits = _fits(sized, places)
    if args.json:
        print(json.dumps(_json(sized, fits), indent=1))
    else:
        print("\n".join(_text(sized, places, fits, terminal_columns(100))))
    return 0


def _command(args: argparse.Namespace) -> int:
    if args.targets:
        raise OomproofError("a command and files at once", "size each by itself: oomproof size -- CMD", USAGE)
    hint = "it is what the command itself does"
    refuse(args, ("context", "kv_type"), "is for a model's files", hint)
    for name in ("batch", "beams"):
        if getattr(args, name) != 1:
            raise OomproofError(f"--{name} is for a model's files", hint, USAGE)
    return _size_command(args)


def _compare(args: argparse.Namespace) -> int:
    from oomproof.recording.run_folders import find
    from oomproof.sizing.screens import size_report

    if words := args.targets or args.command:
        raise OomproofError(f"{words[0]} is not sized beside --compare RUN", "give one of the two", USAGE)
    refuse(
        args,
        ("context", "kv_type", "gpu", "ram", "card", "time_limit", "allow_writes"),
        "does nothing beside --compare",
        "leave it out",
    )
    compared = find(args.compare)
    rows = size_report.compare(compared)
    if args.json:
        print(json.dumps(size_report.as_json(compared, rows), indent=1))
    else:
        print("\n".join(size_report.lines(compared, rows, terminal_columns(100))))
    return 0


def _sized(name: str, wanted: Wanted, context: int | None) -> ModelSizing | LoadCost:
    """What cannot be read is a question that cannot be answered: status 2."""
    try:
        model = model_files(name)
        return size_model(model, wanted, context) if model is not None else load_cost(name)
    except OomproofError as error:
        status = USAGE if error.status in (OUR_FAILURE, NOT_FOUND) else error.status
        raise OomproofError(error.message, error.hint, status) from error


def _places(gpu: int | None, ram: int | None) -> list[Place]:
    """Of another machine where one is described; else this one's RAM and each of its cards."""
    if gpu is not None or ram is not None:
        places = [ram_of(ram, default_margin(ram))] if ram is not None else []
        return [*places, card_of(gpu)] if gpu is not None else places
    return places_here()


def places_here() -> list[Place]:
    from oomproof.cli.check import less_reserved, look_at_ledger
    from oomproof.ledger.machine_facts import budget_of, gather

    facts = gather()
    snapshot, _ = look_at_ledger(facts)
    budget = budget_of(facts, reserved=snapshot.budget.reserved if snapshot else 0)
    cards = [card for card in less_reserved(facts.gpus, snapshot).gpus if not card.unified and card.total]
    return [ram_here(budget), *(card_here(card) for card in cards)]


def _fits(sized: list[Sized], places: list[Place]) -> list[Fit]:
    """Of all that is named, at once. Data files are loaded into RAM only."""
    total = _together(sized)
    model = sized[0][1] if len(sized) == 1 else None
    fits = []
    for place in places:
        estimate = total.host if place.kind == "ram" else total.gpu
        if estimate is not None:
            others = report.smaller(model, place) if isinstance(model, ModelSizing) else []
            fits.append(fit(place, estimate, others))
    return fits


def _together(sized: list[Sized]) -> Sizing:
    if len(sized) == 1 and isinstance(sized[0][1], ModelSizing):
        return sized[0][1].sizing
    gpus = [(name, value.stored.gpu) for name, value in sized if isinstance(value, ModelSizing)]
    hosts = [
        (name, value.stored.host if isinstance(value, ModelSizing) else _of_file(value))
        for name, value in sized
    ]
    if not gpus:  # a model has a process in its estimate
        hosts.append(("process", _PROCESS))
    host = _sum(hosts)
    phases = (Phase("load", None, host.expected, True),)
    return Sizing(_sum(gpus) if gpus else None, host, phases, "the headers of the files; nothing was loaded")


_PROCESS = Estimate(LOADING_PROCESS.low, LOADING_PROCESS.usual, LOADING_PROCESS.high, {})


def _of_file(cost: LoadCost) -> Estimate:
    kept, peak = cost.kept or cost.disk, cost.peak or cost.kept or cost.disk
    return Estimate(kept, peak, peak, {})


def _sum(estimates: list[tuple[str, Estimate]]) -> Estimate:
    values = [estimate for _, estimate in estimates]
    parts = {name: estimate.expected for name, estimate in estimates}
    return Estimate(
        sum(value.low for value in values),
        sum(value.expected for value in values),
        sum(value.high for value in values),
        parts,
    )


def _text(sized: list[Sized], places: list[Place], fits: list[Fit], width: int) -> list[str]:
    lines: list[str] = []
    for name, value in sized:
        if isinstance(value, ModelSizing):
            lines += report.model_block(value, places, width)
        else:
            lines += report.file_block(name, value, width)
        lines.append("")
    total = _together(sized)
    if len(sized) > 1:
        lines += [*report.sizing_lines(total, width)[:-1], ""]
    lines += [*report.verdict_lines(fits, width), ""]
    return [*lines, *report.next_lines(sized[0][0], total.host, total.gpu, fits)]


def _json(sized: list[Sized], fits: list[Fit]) -> dict[str, Any]:
    return {
        **_together(sized).as_json(),
        "models": [value.as_json() for _, value in sized if isinstance(value, ModelSizing)],
        "files": [{"path": name, **value.as_json()} for name, value in sized if isinstance(value, LoadCost)],
        "verdicts": [judged.as_json() for judged in fits],
    }


# Of a command: its table, the verdict and what to type next.

DEFAULT_TIME = "60s"


def _size_command(args: argparse.Namespace) -> int:
    """The status: 0 when it was sized, the script's own when it failed by itself, 2 when it was refused."""
    from oomproof.sizing.script_sizing import size_command

    command = args.command
    gpu, ram = (parse_size(size) if size else None for size in (args.gpu, args.ram))
    seconds = parse_duration(args.time_limit or DEFAULT_TIME)
    calibrated = calibrated_card.named(args.card) if args.card not in (None, "none") else None
    if calibrated is not None and gpu is None:
        gpu = calibrated.total
    places = _places(gpu, ram)
    card = max((place.ever for place in places if place.kind == "gpu"), default=None)
    if sys.stderr.isatty():
        tell(f"running the command on a virtual GPU, for {format_duration(seconds)} or so…")
    sized = size_command(
        command,
        time_limit=seconds,
        gpu_total=gpu or card,
        allow_writes=args.allow_writes,
        tell=show_line,
        card_of=_card_of(args.card, calibrated, command[0]),
        card_torch=str(calibrated.facts.get("torch") or "") if calibrated is not None else "",
    )
    sizing, status = sized.sizing, sized.status
    fits = fits_of(sizing, places)
    if args.json:
        print(
            json.dumps(
                {
                    **sizing.as_json(),
                    "models": [],
                    "files": [],
                    "verdicts": [judged.as_json() for judged in fits],
                },
                indent=1,
            )
        )
    elif status == 0:
        print("\n".join(lines_of(sizing, fits, command, terminal_columns(100))))
    elif sizing.refused:
        tell(sizing.refused)
    return status or (USAGE if sizing.refused else 0)


def _card_of(
    asked: str | None, calibrated: CalibratedCard | None, program: str
) -> Callable[[VirtualResult], CalibratedCard | None]:
    if asked is not None:
        return lambda result: calibrated
    return card_lookup.measured(sizing_cache.python_of(program), tell)


def fits_of(sizing: Sizing, places: Sequence[Place]) -> list[Fit]:
    judged = [(place, sizing.host if place.kind == "ram" else sizing.gpu) for place in places]
    return [fit(place, estimate) for place, estimate in judged if estimate is not None]


def lines_of(sizing: Sizing, fits: Sequence[Fit], command: Sequence[str], width: int) -> list[str]:
    lines = report.sizing_lines(sizing, width)
    if sizing.refused:
        return lines
    no_card = sizing.gpu is not None and not any(judged.place.kind == "gpu" for judged in fits)
    lines += ["", *report.verdict_lines(fits, width)]
    if no_card:
        lines += ["", "No card to compare with; of one with 24 GiB: oomproof size --gpu 24G -- CMD"]
    return [*lines, "", *_next_lines(sizing, fits, command, no_card)]


def _next_lines(sizing: Sizing, fits: Sequence[Fit], command: Sequence[str], elsewhere: bool) -> list[str]:
    if any(judged.status == "never" for judged in fits):
        return ["Next: make it smaller (batch, length, bf16, gradient checkpointing), and ask again"]
    need = f"--need {report.typed(sizing.host.high)} " if sizing.host else ""
    need += f"--gpu-need {report.typed(sizing.gpu.high)} " if sizing.gpu else ""
    when = "start it with its need:"
    if any(judged.status == "not-now" for judged in fits):
        when = "it waits for memory:"
    elif elsewhere:
        when = "on the machine with the card, start it with its need:"
    return [f"Next: {when}", f"  oomproof run {need}-- {shlex.join(command)}"]

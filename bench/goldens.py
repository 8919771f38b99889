"""What a user or a program reads from a checkout, kept as one file, so that two checkouts can be compared.

    goldens.py take OUT [--checkout DIR] [--texts FOLDER]...     `why` and `why --json` of every text, `--help` of every verb
    goldens.py diff BEFORE AFTER [--facts]                       what differs; --facts: causes, certainty, figures only

The texts are those of tests/corpus of *this* checkout, so that both sides read the same ones. Guard decisions and simulated
mixes have goldens of their own (tests/unit/guard/decisions.json, bench/replay_simulated.py).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent.parent
_FACTS = ("cause", "certainty", "phase", "step", "victim", "gpu")

# Runs inside the checkout that is looked at; one process for all texts, since start-up would be most of the time.
_DRIVER = """
import contextlib, io, json, sys
from oomproof.cli import main as cli

def call(*words):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status = cli.main(list(words))
        except SystemExit as stop:
            status = stop.code
        except Exception as error:
            status = f"{type(error).__name__}: {error}"
    return {"status": status, "out": out.getvalue(), "err": err.getvalue()}

for line in sys.stdin:
    words = json.loads(line)
    print(json.dumps({"words": words, **call(*words)}), flush=True)
"""


def verbs(checkout: Path) -> list[str]:
    code = "from oomproof.cli.main import VERBS; print(*VERBS)"
    return subprocess.run(
        [sys.executable, "-c", code], env=_environment(checkout), capture_output=True, text=True, check=True
    ).stdout.split()


def _environment(checkout: Path, folder: str = "/nonexistent") -> dict[str, str]:
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("OOMPROOF_", "COLUMNS"))
    }
    return {
        **kept,
        "PYTHONPATH": str(checkout / "src"),
        "PYTHONHASHSEED": "0",
        "XDG_STATE_HOME": folder,
        "XDG_RUNTIME_DIR": folder,
        "XDG_CONFIG_HOME": folder,
        "TZ": "UTC",
        "NO_COLOR": "1",
    }


def take(out: Path, checkout: Path, folders: list[Path]) -> None:
    texts = sorted(
        path for folder in folders for path in folder.rglob("*") if path.is_file() and path.suffix != ".jsonl"
    )
    calls: list[list[str]] = [["--help"], *([verb, "--help"] for verb in verbs(checkout))]
    for text in texts:
        calls += [["why", "--json", str(text)], ["why", str(text)]]
    with tempfile.TemporaryDirectory() as folder, out.open("w") as file:
        subprocess.run(
            [sys.executable, "-c", _DRIVER],
            input="".join(json.dumps(call) + "\n" for call in calls),
            env=_environment(checkout, folder),
            stdout=file,
            text=True,
            check=True,
            cwd=folder,
        )
    print(f"{len(calls)} calls in {out}")


def read(path: Path) -> dict[str, dict[str, Any]]:
    """The calls by their words; texts by the last two parts of their path."""
    calls = {}
    for line in path.read_text().splitlines():
        call = json.loads(line)
        words = ["/".join(Path(word).parts[-2:]) if word.startswith("/") else word for word in call["words"]]
        calls[" ".join(words)] = call
    return calls


def facts(call: dict[str, Any]) -> Any:
    """Cause, certainty, phase, step and figures of a verdict; of all else only the exit status."""
    try:
        verdict = json.loads(call["out"])
    except ValueError:
        return call["status"]
    if not isinstance(verdict, dict) or "verdict" not in verdict:
        return call["status"]
    kills = [(kill["cause"], kill["victim"]) for kill in verdict.get("kills", [])]
    return {name: verdict["verdict"].get(name) for name in _FACTS} | {"kills": kills}


def diff(before: Path, after: Path, only_facts: bool) -> int:
    old, new = read(before), read(after)
    changed = 0
    for name in [*old, *(name for name in new if name not in old)]:
        if name not in old or name not in new:
            print(f"only {'before' if name in old else 'after'}: {name}")
        else:
            sides = [facts(old[name]), facts(new[name])] if only_facts else [old[name], new[name]]
            if only_facts and isinstance(sides[0], dict) and isinstance(sides[1], dict):
                keys = [key for key in sides[0] if sides[0][key] != sides[1].get(key)]
                if keys:
                    print(
                        name,
                        *(f"{key}: {sides[0][key]} -> {sides[1].get(key)}" for key in keys),
                        sep="\n    ",
                    )
                    changed += 1
            elif not only_facts:
                keys = [key for key in ("status", "out", "err") if sides[0][key] != sides[1][key]]
                if keys:
                    print(name, ", ".join(keys))
                    changed += 1
            elif sides[0] != sides[1]:
                print(f"{name}\n    {sides[0]} -> {sides[1]}")
                changed += 1
    print(f"{changed} of {len(old)} differ")
    return changed > 0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    forms = parser.add_subparsers(dest="form", required=True)
    taking = forms.add_parser("take")
    taking.add_argument("out", type=Path)
    taking.add_argument("--checkout", type=Path, default=HERE)
    taking.add_argument("--texts", type=Path, action="append", default=[])
    comparing = forms.add_parser("diff")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    comparing.add_argument("--facts", action="store_true")
    arguments = parser.parse_args()
    if arguments.form == "diff":
        return diff(arguments.before, arguments.after, arguments.facts)
    folders = [HERE / "tests/corpus/kernel", HERE / "tests/corpus/logs", *arguments.texts]
    take(arguments.out, arguments.checkout.resolve(), [folder.resolve() for folder in folders])
    return 0


if __name__ == "__main__":
    sys.exit(main())

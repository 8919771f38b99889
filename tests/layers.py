"""Checks who imports whom: writes the contracts for import-linter from one list of rooms, and runs it.

layers.py [FOLDER]     FOLDER: where the contracts are written (default: build)
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent / "src/oomproof"

# The rooms of the core from top to bottom: a lower one never imports a higher one.
ROOMS = (
    "cli", "live", "reports", "remedies", "plans", "diagnosis", "evidence", "runner", "guard", "ledger", "alerts", "trend",
    "recording", "settings", "causes", "own_command", "units", "islands", "errors", "printable", "machine",
    "records", "leaf",
)  # fmt: skip
APART = ("agent",)  # inside the job; nothing of ours imports it
ISLANDS = (
    "sizing",
    "sweeps",
)  # the core reaches them by oomproof.islands only, and they do not know each other
FACADES = ("data",)  # what a user's script imports; it reaches its island by oomproof.islands

# The face of the core: what an island may import.
FACE = (
    "causes", "errors", "islands", "leaf", "machine", "own_command", "printable", "records", "units",
    "alerts.receivers",
    "cli.check", "cli.command_knobs", "cli.command_parser", "cli.run_command",
    "diagnosis.conclusion", "diagnosis.smaller_command", "diagnosis.verdict",
    "evidence.case_collector", "evidence.job_output", "evidence.log_file", "evidence.planned_end",
    "evidence.texts.phases", "evidence.texts.progress", "evidence.texts.training_parser",
    "ledger.budget", "ledger.ledger_entries", "ledger.ledger_store", "ledger.machine_facts",
    "ledger.peak_history",
    "plans.death_facts", "plans.knobs", "plans.plan", "plans.smaller_plans",
    "recording.attempt", "recording.json_shapes", "recording.phase_spans", "recording.run_folders",
    "recording.run_peak", "recording.run_summary", "recording.secrets", "recording.spill_record", "recording.sqlite_files",
    "recording.stack_dumps", "recording.state_files",
    "remedies.config_formats", "remedies.fix_files",
    "reports.markdown_parts", "reports.run_tables", "reports.table_text",
    "runner.attempt_files", "runner.code_identity", "runner.limit_backends", "runner.run_flags", "runner.waiting_run",
)  # fmt: skip

# The keeper outlives the rest: it and its own files import nothing else of ours but the leaf.
KEEPER = tuple(
    f"runner.{name}"
    for name in ("keeper", "keeper_frames", "output_log", "followed_file", "attempt_files", "job_start")
)


def modules(room: str) -> list[str]:
    """The room itself where it is one file, else all its modules."""
    if not (SOURCE / room).is_dir():
        return [room]
    paths = sorted((SOURCE / room).rglob("*.py"))
    names = [".".join(path.relative_to(SOURCE).with_suffix("").parts) for path in paths]
    return [name for name in names if not name.endswith("__init__")]


def _is_in_face(name: str) -> bool:
    return any(name == part or name.startswith(part + ".") for part in FACE)


def contracts() -> list[dict[str, object]]:
    core = [room for room in ROOMS if room != "leaf"]
    everything = [*ROOMS, *APART, *ISLANDS, *FACADES]
    behind_the_face = [name for room in ROOMS for name in modules(room) if not _is_in_face(name)]
    beside_keeper = [name for name in modules("runner") if name not in KEEPER]

    def forbidden(
        name: str, source: list[str], targets: list[str], direct_only: bool = False
    ) -> dict[str, object]:
        return {
            "name": name,
            "type": "forbidden",
            "source_modules": [f"oomproof.{module}" for module in source],
            "forbidden_modules": [f"oomproof.{module}" for module in targets],
            "allow_indirect_imports": direct_only,
        }

    return [
        {
            "name": "Facts flow one way: lower rooms never import higher ones",
            "type": "layers",
            "layers": [
                " | ".join(f"oomproof.{name}" for name in ISLANDS),
                *(f"oomproof.{room}" for room in ROOMS),
            ],
        },
        forbidden("The core imports no island", [*ROOMS, *APART, *FACADES], list(ISLANDS)),
        forbidden(
            "An island imports only the face of the core", list(ISLANDS), behind_the_face, direct_only=True
        ),
        forbidden(
            "machine imports nothing of ours but leaf and records",
            ["machine"],
            [room for room in core if room not in ("machine", "records")],
        ),
        forbidden(
            "The agent runs inside the job: of ours it imports only the leaf", ["agent"], [*core, *ISLANDS]
        ),
        forbidden(
            "The keeper outlives the rest: of ours it imports its own files and the leaf",
            list(KEEPER),
            [*(room for room in [*core, *APART, *ISLANDS] if room != "runner"), *beside_keeper],
        ),
        forbidden(
            "The agent is imported by no room: the runner names its folder",
            [room for room in everything if room not in APART],
            list(APART),
            direct_only=True,  # `import oomproof` offers what a training script may call, late
        ),
    ]


def _toml(contract: dict[str, object]) -> str:
    return "\n".join(
        [
            "[[tool.importlinter.contracts]]",
            *(f"{key} = {json.dumps(value)}" for key, value in contract.items()),
        ]
    )


def main() -> int:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "build")
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "importlinter.toml"
    parts = ['[tool.importlinter]\nroot_package = "oomproof"', *map(_toml, contracts())]
    config.write_text("\n\n".join(parts) + "\n")
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-logo", "--config", str(config)]
    return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())

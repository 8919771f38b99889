"""Draws verdict.svg from a real run of the demo's job:  python docs/assets/draw_verdict.py

The text is what oomproof prints, word for word; only the prompt and what is typed are made bold, and the
header of `runs show` (paths, dates) is left out.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.text import Text

HERE = Path(__file__).parent
WIDTH = 100
TYPED = "oomproof run --limit 256M --grace 4 --name demo -- python leaking_training.py"


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(HERE.parents[1] / "src/oomproof/cli/demo_job.py", f"{folder}/leaking_training.py")
        environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "XDG_STATE_HOME": f"{folder}/state",
            "COLUMNS": "88",
        }

        def said(command: str) -> list[str]:
            done = subprocess.run(
                command.split(), cwd=folder, env=environment, text=True,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            )  # fmt: skip
            return done.stdout.splitlines()

        lines = said(TYPED)
        shown = said("oomproof runs show demo")
    chart = next(at for at, line in enumerate(shown) if "memory of the job" in line)
    happened = next(at for at, line in enumerate(shown) if "what happened" in line)
    console = Console(record=True, width=WIDTH, file=StringIO(), force_terminal=True, legacy_windows=False)
    prompt(console, TYPED)
    for line in lines:
        console.print(Text(line), overflow="fold")
    console.print()
    prompt(console, "oomproof runs show demo")
    console.print(Text("..."), Text(""), sep="\n")
    for line in shown[chart : happened - 1]:
        console.print(Text(line), overflow="fold")
    svg = console.export_svg(title="oomproof", font_aspect_ratio=0.61)
    # Nothing may load from the network: no web font, only what the reader's machine has.
    svg = re.sub(r"@font-face\s*\{.*?\}", "", svg, flags=re.DOTALL)
    svg = svg.replace("Fira Code", "DejaVu Sans Mono, Menlo, Consolas")
    (HERE / "verdict.svg").write_text("\n".join(line.rstrip() for line in svg.splitlines()) + "\n")


def prompt(console: Console, typed: str) -> None:
    console.print(Text.assemble(("$ ", "bold green"), (typed, "bold")))


if __name__ == "__main__":
    main()

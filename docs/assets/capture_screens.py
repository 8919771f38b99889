"""Captures what a newcomer sees, in a real terminal (tmux):  python docs/assets/capture_screens.py SRC OUT

SRC is the `src` folder of the oomproof to be shown, OUT the text file; screens-before.txt and screens-after.txt were made so.
"""

import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

LEAK = "import time\nkeep = []\nwhile True:\n    keep.append(bytearray(2 << 20)); time.sleep(0.02)\n"
SLOW = "import time\nfor step in range(4):\n    print('step', step, flush=True); time.sleep(1.5)\n"
_OTHERS = "  unmanaged: "  # what else ran on the machine of the capture is left out
SCREENS = {
    "start and success": ["oomproof run --name first -- python slow.py"],
    "a pipe": ["oomproof run --name piped -- python slow.py | cat"],
    "death": ["oomproof run --limit 150M --grace 1 --name leak -- python leak.py"],
    "queue": [
        "oomproof run --detach --need 12G --name big -- sleep 60",
        "oomproof run --need 18G --no-wait --name second -- python slow.py",
        "oomproof stop big",
    ],
    "pause": [
        "oomproof run --detach --name long -- sleep 60",
        "oomproof pause long",
        "oomproof runs",
        "oomproof resume long",
        "oomproof stop long",
    ],
}


def main(source: str, out: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        for name, text in (("leak.py", LEAK), ("slow.py", SLOW)):
            (home / name).write_text(text)
        run = f"PYTHONPATH={Path(source).absolute()} exec {sys.executable} -m oomproof.cli.main"
        for name, line in (("oomproof", f'{run} "$@"'), ("python", f'exec {sys.executable} "$@"')):
            (home / name).write_text(f"#!/bin/sh\n{line}\n")
            (home / name).chmod(0o755)
        parts = [
            f"== {title} ==\n{capture(home, f'screens-{number}', commands)}"
            for number, (title, commands) in enumerate(SCREENS.items())
        ]
    Path(out).write_text("\n\n".join(parts) + "\n")


def capture(home: Path, server: str, commands: list[str]) -> str:
    """The screen after those commands, as the terminal shows it. A server that is just ending takes no new session."""
    lines = ["clear", *(f"printf '$ %s\\n' {shlex.quote(command)}\n{command}" for command in commands)]
    script = home / "session.sh"
    script.write_text("\n".join([*lines, f"tmux -L {server} wait-for -S done", "sleep 600"]) + "\n")
    environment = {
        **os.environ,
        "PATH": f"{home}:{os.environ['PATH']}",
        "XDG_STATE_HOME": f"{home}/state",
        "XDG_RUNTIME_DIR": str(home),
    }
    tmux = ["tmux", "-L", server]
    begin = [*tmux, "-f", "/dev/null", "new-session", "-d", "-x", "100", "-y", "60", f"sh {script}"]
    subprocess.run(begin, check=True, cwd=home, env=environment)
    try:
        subprocess.run([*tmux, "wait-for", "done"], check=True, timeout=180)
        shown = subprocess.run([*tmux, "capture-pane", "-p"], check=True, capture_output=True, text=True)
    finally:
        subprocess.run([*tmux, "kill-server"], check=False)
    return "\n".join(line for line in shown.stdout.rstrip().splitlines() if _OTHERS not in line)


if __name__ == "__main__":
    main(*sys.argv[1:])

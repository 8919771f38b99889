"""How we start ourselves: as a user would, a command of its own."""

import sys

OWN_COMMAND = (
    sys.executable,
    "-P",
    "-m",
    "oomproof.cli.main",
)  # -P: a script's folder must not be taken for ours

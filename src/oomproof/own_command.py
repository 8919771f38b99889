"""How we start ourselves: as a user would, a command of its own."""

import sys

# -P: a script's folder must not be taken for ours
OWN_COMMAND = (sys.executable, "-P", "-m", "oomproof.cli.main")

"""``python -m oomproof``: the same as the command ``oomproof``."""

import sys

from oomproof.cli.main import main

if __name__ == "__main__":
    sys.exit(main())

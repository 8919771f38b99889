"""The command line: one module per verb."""

from oomproof.leaf import light_pathlib  # noqa: F401 - before anybody imports pathlib

"""Data files: what loading one costs, and how to read it for less. Scripts import ``oomproof.data``."""

from oomproof.sizing.data.mapped_npz import MappedNpz, open_npz
from oomproof.sizing.data.tokenized import tokenize

__all__ = ["MappedNpz", "open_npz", "tokenize"]

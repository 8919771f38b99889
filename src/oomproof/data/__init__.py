"""For data that is larger than memory: what a script may use.

from oomproof.data import open_npz

arrays = open_npz("train.npz")     # nothing is loaded
batch = arrays["x"][:32]           # only these rows are read
"""

from oomproof.data.mapped_npz import MappedNpz, open_npz

__all__ = ["MappedNpz", "open_npz"]

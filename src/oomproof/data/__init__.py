"""For data that is larger than memory: what a script may use.

from oomproof.data import open_npz, tokenize

arrays = open_npz("train.npz")     # nothing is loaded
batch = arrays["x"][:32]           # only these rows are read
tokens = tokenize("train.jsonl", tokenizer, truncation=True)    # on disk, mapped
"""

from oomproof.data.mapped_npz import MappedNpz, open_npz
from oomproof.data.tokenized import tokenize

__all__ = ["MappedNpz", "open_npz", "tokenize"]

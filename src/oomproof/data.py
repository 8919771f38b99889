"""For data that is larger than memory: what a script may use.

from oomproof.data import open_npz, tokenize

arrays = open_npz("train.npz")     # nothing is loaded
batch = arrays["x"][:32]           # only these rows are read
tokens = tokenize("train.jsonl", tokenizer, truncation=True)    # on disk, mapped
"""

from oomproof.islands import island_part

_DATA = island_part("sizing", "data")
MappedNpz, open_npz, tokenize = _DATA.MappedNpz, _DATA.open_npz, _DATA.tokenize

__all__ = ["MappedNpz", "open_npz", "tokenize"]

"""Whether a script's own source names who makes its batches: only then does "none was asked for yet" say that it was still loading.

A loop that cuts its batches from an array itself has no such moment: it may die of its first batch before any pass through a model.
"""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterable, Sequence

from oomproof.evidence.job_program import inline_code
from oomproof.leaf.command_lines import shell_words

# PyTorch's own and fastai's; whatever is called a trainer; graphs that are loaded in pieces. Not karpathy's DataLoaderLite, an array and an index.
_LOADER = re.compile(
    r"\bDataLoaders?\b|\b\w*Trainer\b|\bLightning(?:CLI|Module|DataModule)\b|\b(?:Neighbor|Cluster|GraphSAINT\w*)Loader\b"
)


def names_a_loader(sources: Iterable[str]) -> bool:
    """``sources``: of the script and of the modules beside it that it imports."""
    return any(_LOADER.search(text) for text in sources)


# What Dataset.map works on and writes at once is no batch of a training, and BatchNorm is a layer.
_BATCH = re.compile(r"(?<!writer_)batch(?!ed\b|_?norm)", re.I)
# an option's name, that of `batch_size=64` too
_OPTION = re.compile(r"(?:^|\s)(-{1,2}[A-Za-z][\w.-]*|[+~]{0,2}[A-Za-z][\w.]*(?==))")
# What trains, or runs a model, in batches that are held at once. `Dataset.map(batch_size=…)` and `to_batches()` read a file in pieces.
_FRAMEWORK = re.compile(
    r"^[ \t]*(?:import|from)[ \t]+(?:torch|tensorflow|keras|jax|flax|mxnet|paddle|transformers|diffusers|lightning|pytorch_lightning|fastai"
    r"|sentence_transformers|mlx|tinygrad|chainer|theano|accelerate|timm|ultralytics)\b",
    re.M,
)
_NO_CODE = (tokenize.COMMENT, tokenize.STRING)
_POOL = re.compile(r"\b(Pool|ProcessPoolExecutor)\(\s*(?:(?:processes|max_workers)\s*=\s*)?(\d{1,5}\b)?")


def argument_names_a_batch(argv: Sequence[str]) -> bool:
    """By an option's name, also in a line of shell; what is given to it (`--name nightly-batch`, a folder) says nothing."""
    code = inline_code(argv)
    words = [word for word in shell_words(argv) or argv[1:] if word != code]
    return any(_BATCH.search(name) for word in words for name in _OPTION.findall(word))


def names_a_batch(sources: Sequence[str]) -> bool:
    """By a name in the code, not in its comments and texts, of a script that uses a framework."""
    return any(map(_FRAMEWORK.search, sources)) and any(map(_has_batch_name, sources))


def _has_batch_name(source: str) -> bool:
    if not _BATCH.search(source):
        return False
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    except (tokenize.TokenError, SyntaxError):  # of another version of Python
        return True
    return any(token.type not in _NO_CODE and _BATCH.search(token.string) for token in tokens)


def process_pool(sources: Iterable[str]) -> tuple[str, int]:
    """What starts processes there, and how many as written: ``("Pool", 8)``; 0 for no number."""
    found = next((match for text in sources if (match := _POOL.search(text))), None)
    return (found[1], int(found[2] or 0)) if found is not None else ("", 0)

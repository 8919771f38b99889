"""Whether a script's own source names who makes its batches: only then does "none was asked for yet" say that it was still loading.

A loop that cuts its batches from an array itself has no such moment: it may die of its first batch before any pass through a model.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import tokenize
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from oomproof.evidence.case_file import CaseFile, Program
from oomproof.leaf.command_lines import is_python, python_target, shell_words, without_wrappers

_IMPORT = re.compile(
    r"^[ \t]*(?:from[ \t]+(\.*[\w.]*)[ \t]+import[ \t]+\(?([\w, \t]*)|import[ \t]+([\w., \t]+))", re.MULTILINE
)
_LARGEST = 1 << 20  # bytes of one file
_MOST = 200  # files


def script_sources(script: str, folders: tuple[str, ...] = ()) -> Iterator[str]:
    """The script's own first. ``folders``: where modules are looked for as well."""
    roots = dict.fromkeys((os.path.dirname(script), *folders))
    waiting, seen = [script], {script}
    while waiting:
        path = waiting.pop(0)
        text = _read(path)
        yield text
        for name in _imported(text):
            for module in _files_of(name, path, tuple(roots)):
                if module not in seen and len(seen) < _MOST:
                    seen.add(module)
                    waiting.append(module)


def _read(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace") if os.path.getsize(path) <= _LARGEST else ""
    except OSError:
        return ""


def _imported(text: str) -> Iterator[str]:
    """Names as written: ``a.b`` and, of ``from a import b``, ``a.b`` too, which may be a module."""
    for match in _IMPORT.finditer(text):
        if match[3] is not None:
            for part in match[3].split(","):
                yield (part.split() or [""])[0]
            continue
        yield match[1]
        joint = "" if match[1].endswith(".") else "."
        for part in match[2].split(","):
            if words := part.split():
                yield f"{match[1]}{joint}{words[0]}"


def _files_of(name: str, importer: str, roots: tuple[str, ...]) -> Iterator[str]:
    level = len(name) - len(name.lstrip("."))
    where: tuple[str, ...] = roots
    if level:
        folder = os.path.dirname(importer)
        for _ in range(level - 1):
            folder = os.path.dirname(folder)
        where = (folder,)
    parts = [part for part in name.split(".") if part]
    for root in where if parts else ():
        path = os.path.join(root, *parts)
        for file in (f"{path}.py", os.path.join(path, "__init__.py")):
            if os.path.isfile(file):
                yield file


# what runs Python, or a script of anything: whose words are not its own program's
_STARTS_OTHERS = re.compile(r"(?:i?python|pypy)[\d.]*$|.*sh$|(?:mpi|s|u|conda|docker|podman|apptainer)\w*$")
_SCRIPT = re.compile(r"\.(?:py|sh|ipynb)$|(?:^|/)(?:python|torchrun|accelerate)[\d.]*$")
_COMM = 15  # characters of a name that the kernel keeps
_ELF = b"\x7fELF"


def is_native(argv: Sequence[str], folder: str, names: Iterable[str]) -> bool:
    """A compiled program that ran nothing but itself; ``names``: of the processes that were seen. False where that is not sure."""
    words = without_wrappers(argv)
    program = os.path.basename(words[0]) if words else ""
    if not program or _STARTS_OTHERS.match(program) or any(map(_SCRIPT.search, words)):
        return False
    if any(name != program[:_COMM] for name in names):
        return False
    path = os.path.join(folder, words[0]) if "/" in words[0] else shutil.which(words[0])
    try:
        with open(path or "", "rb") as file:
            return file.read(4) == _ELF
    except OSError:
        return False


def inline_code(argv: Sequence[str]) -> str | None:
    """What ``python -c`` was given, also within ``sh -c``; None for anything else."""
    words = list(without_wrappers(shell_words(argv) or argv))
    if "-c" not in words or python_target([*words[: words.index("-c")], "-c"]) is not None:
        return None
    if python_target([*words[:1], "x"]) is None:
        return None
    at = words.index("-c")
    return words[at + 1] if at + 1 < len(words) else None


def interpreter(word: str, folder: str, search: str | None = None) -> str | None:
    """The Python of a program: itself, or the one in the first line of the script it is (torchrun, accelerate). ``search``: a PATH."""
    program = os.path.join(folder, word) if os.sep in word else shutil.which(word, path=search)
    if program is None or not os.access(program, os.X_OK) or not os.path.isfile(program):
        return None
    if is_python(program):
        return program
    try:
        with open(program, "rb") as file:
            first = file.readline(512).decode("utf-8", "replace").strip()
    except OSError:
        return None
    words = first[2:].split() if first.startswith("#!") else []
    if len(words) > 1 and os.path.basename(words[0]) == "env":
        words = [shutil.which(words[1], path=search) or ""]
    return words[0] if words and is_python(words[0]) else None


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


def program_of(case: CaseFile, script: str, is_read: bool, cwd: str) -> Program:
    """What its source tells of batches, loaders and pools. ``is_read``: whether there is a script, and it can be read."""

    sampled = any(seen.name.startswith("pt_data_worker") for seen in case.samples.processes.values())
    began = case.agent.phase not in ("load", "unknown") or case.agent.step is not None
    code = inline_code(case.argv)
    if not is_read and code is None:
        # a program of another kind, of which only its arguments could name a batch
        names = (seen.name for seen in case.samples.processes.values())
        native = not script and is_native(case.argv, cwd, names)
        python = case.agent.seen or sampled or began or _is_python(case)
        foreign = (native or not python) and not argument_names_a_batch(case.argv)
        loader = True if sampled else False if foreign else None
        return Program(loader=loader, no_batches=foreign, native=native)
    sources = list(script_sources(script, (cwd,))) if is_read else [code or ""]
    if sampled or names_a_loader(sources):
        return Program(loader=True)
    unseen = not (argument_names_a_batch(case.argv) or names_a_batch(sources))
    if began:
        return Program(loader=False, no_batches=unseen)
    pool, size = process_pool(sources)
    return Program(
        loader=False, own_batches=case.agent.phase == "load", no_batches=unseen, pool=pool, pool_size=size
    )


def _is_python(case: CaseFile) -> bool:
    names = [seen.name for seen in case.samples.processes.values()]
    return any(os.path.basename(word).startswith("python") for word in (*names, *case.argv))

"""How heavy the source is: tokens, modules, imports, long functions. Run it on two checkouts and compare.

    weight.py [CHECKOUT]... [--modules]     default: this checkout; with two, both stand side by side

Tokens are those of Python's tokenizer without comments, line ends and indentation. Modules found by their folder
(verbs, rules) and packages do not count as modules with one importer.
"""

from __future__ import annotations

import argparse
import ast
import os
import statistics
import subprocess
import sys
import tempfile
import time
import tokenize
from collections import Counter, defaultdict
from pathlib import Path

_LAYOUT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}
_FOUND_BY_FOLDER = ("cli", "rules", "recognisers", "trainers")
_PAGE_ASSETS = (".js", ".css", ".html")
_TWO_LINES = (
    "Traceback (most recent call last):\n"
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.69 GiB "
    "of which 1.31 GiB is free.\n"
)


def tokens(path: Path) -> int:
    with path.open("rb") as file:
        return sum(token.type not in _LAYOUT for token in tokenize.tokenize(file.readline))


def imported(path: Path, name: str, package: bool, known: set[str]) -> set[str]:
    """The modules of ours that a file imports, within functions too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            parts = name.split(".")
            base = parts[: len(parts) - node.level + package] if node.level else []
            source = ".".join([*base, *([node.module] if node.module else [])])
            found |= {source, *(f"{source}.{alias.name}" for alias in node.names)}
    return found & known - {name}


def long_functions(path: Path) -> int:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = (node for node in ast.walk(ast.parse(path.read_bytes())) if isinstance(node, kinds))
    return sum((node.end_lineno or 0) - node.lineno >= 60 for node in nodes)


def loaded_by_why(checkout: Path) -> int:
    """How many of our modules explain a log of two lines."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "train.log")
        log.write_text(_TWO_LINES)
        code = (
            "import sys; from oomproof.cli.main import main\n"
            f"try: main(['why', {str(log)!r}])\n"
            "except SystemExit: pass\n"
            "print(sum(n.startswith('oomproof') for n in sys.modules), file=sys.stderr)"
        )
        environment = {**os.environ, "PYTHONPATH": str(checkout / "src"), "XDG_STATE_HOME": folder}
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
            cwd=folder,
        )
    return int(done.stderr.split()[-1])


def seconds_of_a_run(checkout: Path, repeats: int = 9) -> float:
    """The median of `oomproof run -- true`, bytecode and page cache warm."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {
            **os.environ,
            "PYTHONPATH": str(checkout / "src"),
            "XDG_STATE_HOME": folder,
            "PYTHONPYCACHEPREFIX": folder + "/bytecode",
        }
        command = [sys.executable, "-m", "oomproof", "run", "-q", "--", "true"]
        taken = []
        for _ in range(repeats + 1):
            begun = time.perf_counter()
            subprocess.run(command, env=environment, check=True, cwd=folder)
            taken.append(time.perf_counter() - begun)
    return statistics.median(taken[1:])


def weigh(checkout: Path, list_modules: bool = False) -> dict[str, float]:
    source = checkout / "src" / "oomproof"
    paths = sorted(source.rglob("*.py"))
    names = {path: ".".join(path.relative_to(checkout / "src").with_suffix("").parts) for path in paths}
    names = {path: name.removesuffix(".__init__") for path, name in names.items()}
    known = set(names.values())
    importers: dict[str, set[str]] = defaultdict(set)
    for path, name in names.items():
        for target in imported(path, name, path.name == "__init__.py", known):
            importers[target].add(name)
    single = [
        name
        for path, name in names.items()
        if path.name != "__init__.py"
        and path.parent.name not in _FOUND_BY_FOLDER
        and len(importers[name]) == 1
    ]
    if list_modules:
        for name in single:
            print(f"{name:60} only in {next(iter(importers[name]))}")
    files = [path for path in source.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    return {
        "tokens": sum(tokens(path) for path in paths),
        "bytes without JS, CSS, HTML": sum(f.stat().st_size for f in files if f.suffix not in _PAGE_ASSETS),
        "lines": sum(len(path.read_bytes().splitlines()) for path in paths),
        "functions over 60 lines": sum(long_functions(path) for path in paths),
        "lines over 120 characters": sum(
            len(line) > 120 for path in paths for line in path.read_text().splitlines()
        ),
        "modules": len(paths),
        "modules with one importer": len(single),
        "modules loaded by why of two lines": loaded_by_why(checkout),
        "start of run -- true, s": round(seconds_of_a_run(checkout), 3),
    }


def rooms(checkout: Path) -> Counter[str]:
    source = checkout / "src" / "oomproof"
    sizes: Counter[str] = Counter()
    for path in source.rglob("*.py"):
        inside = path.relative_to(source).parts
        sizes[inside[0] if len(inside) > 1 else "(top)"] += tokens(path)
    return sizes


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkouts", nargs="*", type=Path, default=[Path(__file__).resolve().parent.parent])
    parser.add_argument("--modules", action="store_true", help="list the modules that have one importer")
    parser.add_argument("--rooms", action="store_true", help="list the tokens of each room")
    arguments = parser.parse_args()
    weights = [weigh(checkout.resolve(), arguments.modules) for checkout in arguments.checkouts]
    for measure in weights[0]:
        print(f"{measure:40}" + "".join(f"{weight[measure]:>14,}" for weight in weights))
    if arguments.rooms:
        for checkout in arguments.checkouts:
            print()
            for room, size in rooms(checkout.resolve()).most_common():
                print(f"{room:40}{size:>14,}")


if __name__ == "__main__":
    main()

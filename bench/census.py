"""What a census takes of the job's time and memory, and how close its estimates are: one process for each kind of data.

The real size is by how much the process's anonymous memory grew when the data was made; of Arrow's tables what Arrow counts.
`--pythons` also asks other Pythons."""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

HERE = Path(__file__).parent
PACKAGE = HERE.parent / "src" / "oomproof"
MIB = 1 << 20
RUNS = 5


class Node:
    def __init__(self, number: int) -> None:
        self.number, self.name, self.score = number * 1000, f"node-{number}", number * 0.5


def _words() -> Callable[[int], str]:
    numbers = random.Random(1)
    words = ["".join(numbers.choices("abcdefghij", k=6)) for _ in range(5000)]
    return lambda count: " ".join(numbers.choices(words, k=count))


def dicts() -> Any:
    text = _words()
    return [
        {"id": number * 1000, "text": text(20), "label": "pos" if number % 3 else "neg"}
        for number in range(300_000)
    ]


def objects() -> Any:
    return [Node(number) for number in range(1_000_000)]


def nested() -> Any:
    numbers = random.Random(1)
    return [[numbers.random() for _ in range(numbers.randrange(5, 200))] for _ in range(40_000)]


def index() -> Any:
    return {f"key {number}": {number * 7, number * 11} for number in range(400_000)}


def numpy_array() -> Any:
    return import_module("numpy").ones((1 << 20, 128))


def torch_tensors() -> Any:
    torch = import_module("torch")
    return {f"layer{number}": torch.ones(4 << 20) for number in range(64)}


def _table() -> Any:
    text, arrow = _words(), import_module("pyarrow")
    return arrow.concat_tables(
        arrow.table({"text": [text(20) for _ in range(10_000)], "score": [float(at) for at in range(10_000)]})
        for _ in range(30)
    )


def data_frame() -> Any:
    return _table().to_pandas()


def arrow_table() -> Any:
    datasets = import_module("datasets")
    return datasets.Dataset(datasets.table.InMemoryTable(_table()))


def three_copies() -> Any:
    examples, arrow = dicts(), import_module("pyarrow")
    prompts = [f"### {example['text']} ###" for example in examples]
    pieces = [arrow.table({"text": prompts[at : at + 10_000]}) for at in range(0, len(prompts), 10_000)]
    return {"examples": examples, "prompts": prompts, "table": arrow.concat_tables(pieces)}


KINDS: dict[str, tuple[str, Callable[[], Any], tuple[str, ...]]] = {
    "dicts": ("300,000 dicts with a text of 20 words", dicts, ()),
    "objects": ("1,000,000 objects of a class with 3 attributes", objects, ()),
    "nested": ("40,000 lists of 5 to 200 floats", nested, ()),
    "index": ("a dict of 400,000 sets", index, ()),
    "copies": ("300,000 dicts, texts and an Arrow table of the same rows", three_copies, ("pyarrow",)),
    "numpy": ("a NumPy array of 1 GiB", numpy_array, ("numpy",)),
    "torch": ("64 tensors, 1 GiB in all", torch_tensors, ("torch",)),
    "pandas": ("a DataFrame of 300,000 texts and numbers", data_frame, ("pandas",)),
    "datasets": ("an HF dataset of 300,000 texts, in memory", arrow_table, ("datasets",)),
}


def anonymous() -> int:
    words = Path("/proc/self/statm").read_text().split()
    return (int(words[1]) - int(words[2])) * 4096


def in_arrow() -> int:
    """Bytes that Arrow itself counts: its allocator keeps more of the process's memory than its tables need."""
    arrow = sys.modules.get("pyarrow")
    return int(arrow.default_memory_pool().bytes_allocated()) if arrow is not None else 0


def highest() -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


def child(kind: str) -> None:
    """In a process of its own, as the agent is loaded there."""
    for name, folder in (("_oomproof", PACKAGE), ("_oomproof.agent", PACKAGE / "agent")):
        module = ModuleType(name)
        module.__path__ = [str(folder)]
        sys.modules[name] = module
    from _oomproof.agent.census import look  # type: ignore[import-not-found]

    _, make, needs = KINDS[kind]
    for name in needs:
        import_module(name)
    before, pool = anonymous(), in_arrow()
    data = make()
    import_module("ctypes").CDLL(None).malloc_trim(0)  # what was only borrowed while it was made
    process, arrow = anonymous() - before, in_arrow() - pool
    real = process
    if kind == "copies":  # the other two are Python's own
        before = anonymous()
        again = (
            [{**row, "text": row["text"] + "."} for row in data["examples"]],
            [text + "." for text in data["prompts"]],
        )
        real = anonymous() - before + arrow
        del again
    elif arrow:
        real = arrow + (data["score"].to_numpy().nbytes if kind == "pandas" else 0)
    look()  # what it imports
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark begins anew
    low = highest()
    looks = [look() for _ in range(RUNS)]
    seconds = sorted(told["seconds"] for told in looks)
    print(
        json.dumps(
            {
                "real": real,
                "process": process,
                "estimated": sum(
                    thing["ram"] for thing in looks[0]["things"] if thing["name"].startswith("data")
                ),
                "cpu_seconds": seconds[len(seconds) // 2],
                "own_bytes": max(0, highest() - low),
                "complete": all(told["complete"] for told in looks),
                "copies": max((len(group["holders"]) for group in looks[0]["copies"]), default=1),
                "rows": len(data),
            }
        )
    )


def measure(python: str, kind: str) -> dict[str, Any]:
    done = subprocess.run([python, __file__, "--child", kind], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    return dict(json.loads(done.stdout))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--pythons", nargs="*", default=[], metavar="PYTHON")
    arguments = parser.parse_args()
    if arguments.child:
        child(arguments.child)
        return
    from lab import save, table

    results: dict[str, Any] = {}
    rows = []
    for python in [sys.executable, *arguments.pythons]:
        asked = subprocess.run(
            [python, "-c", "import platform; print(platform.python_version())"], capture_output=True
        )
        version = asked.stdout.decode().strip()
        for kind, (words, _, needs) in KINDS.items():
            if needs and python != sys.executable:
                continue
            told = results[f"{version} {kind}"] = {"data": words, **measure(python, kind)}
            rows.append(
                [
                    version,
                    words,
                    f"{told['real'] / MIB:.0f}",
                    f"{told['estimated'] / MIB:.0f}",
                    f"{told['estimated'] / told['real'] - 1:+.1%}",
                    f"{told['cpu_seconds'] * 1000:.0f}",
                    f"{told['own_bytes'] / MIB:.1f}",
                ]
            )
    table("A census", ["Python", "data", "real MiB", "estimated", "error", "ms of CPU", "own MiB"], rows)
    save("census", results)


if __name__ == "__main__":
    main()

"""Whether `oomproof trend` names what kind of memory leaks, and where: real PyTorch loops, each with another leak, and four without.

leak_kinds.py [--seconds 150] [KIND …]. Two at a time, each under a limit of 4 GiB; those that only a tracer can name under one
that they come near to, because it is then that the tracer is asked.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from lab import HERE, OOMPROOF, RESULTS, Lab, lab, read_json, save, table

LEAK, NO_LEAK = "grows", "no leak"  # growing, or slowing down: on a crowded machine steps come at any pace
EXPECTED = {  # what it does, what kind of memory, what it is kept in, and the line that made it where a tracer was asked
    "losses": (LEAK, "native", "losses", None),
    "arrays": (LEAK, "native", "arrays", None),
    "hook": (LEAK, "native", "Recorder.activations", None),
    "cache": (LEAK, "native", "CACHE", None),
    "logits": (LEAK, "native", "outputs", None),  # 5 MiB an evaluation: the kernel counts a process to 2 MiB
    "objects": (LEAK, "python", "rows", None),
    "arrow": (LEAK, "arrow", "tables", None),
    "mapped": (LEAK, "mapped", "blocks", None),
    "library": (LEAK, "python", None, 'return f"row {number} of step {step}, described in some words"'),
    "extension": (LEAK, "native", None, "library.tokenize(1 << 20)"),
    "copied": (LEAK, "workers", None, None),
    "none": (NO_LEAK, None, None, None),
    "page-cache": (NO_LEAK, None, None, None),
    "warm-up": (NO_LEAK, None, None, None),
    "retained": (NO_LEAK, None, None, None),
}
LIMITS = {"library": "850M", "extension": "1000M"}


Said = tuple[str, str | None, str | None, str | None]


def answer(place: Lab, kind: str, seconds: float) -> tuple[Said, dict[str, object]]:
    job = [sys.executable, str(HERE / "programs" / "leak_kinds.py"), kind, str(seconds)]
    command = [OOMPROOF, "run", "-q", "--name", kind, "--limit", LIMITS.get(kind, "4G"), "--", *job]
    # one that comes near to its limit may be asked to stop before its time is over
    subprocess.run(command, env=place.environment, check=kind not in LIMITS, stdout=subprocess.DEVNULL)
    told = subprocess.run(
        [OOMPROOF, "trend", kind, "--json"], env=place.environment, check=True, capture_output=True, text=True
    )
    found = json.loads(told.stdout)
    heap = found["heap"] or {}
    if found["kind"] not in ("growing", "slowing"):  # flat, or too short to call it growing
        return (NO_LEAK, None, None, None), found
    made_at = None
    for where in found["where"]:
        source = Path(where["file"])
        if source.name == "leak_kinds.py":
            made_at = made_at or source.read_text().splitlines()[where["line"] - 1].strip()
        where["file"] = source.name
    for container in heap.get("containers", ()):
        container["file"] = Path(container["file"]).name
    if heap.get("kind") == "retained" and found["not_a_leak"]:
        return (NO_LEAK, None, None, None), found
    names = [container["name"] for container in heap.get("containers", ())]
    memory = "workers" if found["workers"] else heap.get("kind")
    return (LEAK, memory, next(iter(names), None), made_at), found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kind", nargs="*", default=list(EXPECTED))
    parser.add_argument("--seconds", type=float, default=150.0)
    arguments = parser.parse_args()
    if "extension" in arguments.kind and importlib.util.find_spec("memray") is None:
        print("extension: skipped, memray is not installed here")
        arguments.kind.remove("extension")
    if "arrow" in arguments.kind and importlib.util.find_spec("pyarrow") is None:
        print("arrow: skipped, pyarrow is not installed here")
        arguments.kind.remove("arrow")
    rows, results, right = [], {}, 0
    with lab() as place, ThreadPoolExecutor(2) as pool:
        waiting = {kind: pool.submit(answer, place, kind, arguments.seconds) for kind in arguments.kind}
        for kind, result in waiting.items():
            said, found = result.result()
            is_right = said == EXPECTED[kind]
            right += is_right
            results[kind] = {
                name: found[name]
                for name in (
                    "kind",
                    "bytes_per_second",
                    "heap",
                    "phase",
                    "bytes_per_step",
                    "where",
                    "mappings",
                    "not_a_leak",
                    "workers",
                )
            }
            told = [" · ".join(str(part) for part in parts if part) for parts in (EXPECTED[kind], said)]
            rows.append((kind, *told, "right" if is_right else "WRONG"))
    table("What leaks, and where it is kept", ("program", "is", "said", ""), rows)
    print(f"\n{right} of {len(rows)} right")
    known = read_json(RESULTS / "leak-kinds.json").get("programs", {})  # of each program, its last run
    save("leak-kinds", {"seconds": arguments.seconds, "programs": {**known, **results}})
    return int(right < len(rows))


if __name__ == "__main__":
    sys.exit(main())

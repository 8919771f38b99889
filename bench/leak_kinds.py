"""Whether `oomproof trend` names what kind of memory leaks: real PyTorch loops, each with another leak, and one without.

leak_kinds.py [--seconds 150] [KIND …]. Two at a time, each under a limit of 4 GiB.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from lab import HERE, OOMPROOF, Lab, lab, save, table

EXPECTED = {  # what it does, what kind of memory, and what it is kept in
    "losses": ("growing", "native", "losses"),
    "arrays": ("growing", "native", "arrays"),
    "hook": ("growing", "native", "Recorder.activations"),
    "cache": ("growing", "native", "CACHE"),
    "logits": ("growing", "native", "outputs"),  # 5 MiB an evaluation: the kernel counts a process to 2 MiB
    "objects": ("growing", "python", "rows"),
    "arrow": ("growing", "arrow", "tables"),
    "mapped": ("growing", "mapped", "blocks"),
    "none": ("flat", None, None),
}


def answer(
    place: Lab, kind: str, seconds: float
) -> tuple[tuple[str, str | None, str | None], dict[str, object]]:
    job = [sys.executable, str(HERE / "programs" / "leak_kinds.py"), kind, str(seconds)]
    command = [OOMPROOF, "run", "-q", "--name", kind, "--limit", "4G", "--", *job]
    subprocess.run(command, env=place.environment, check=True, stdout=subprocess.DEVNULL)
    told = subprocess.run(
        [OOMPROOF, "trend", kind, "--json"], env=place.environment, check=True, capture_output=True, text=True
    )
    found = json.loads(told.stdout)
    heap = found["heap"] or {}
    for container in heap.get("containers", ()):
        container["file"] = Path(container["file"]).name
    kept_in = next((container["name"] for container in heap.get("containers", ())), None)
    return (found["kind"], heap.get("kind"), kept_in), found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kind", nargs="*", default=list(EXPECTED))
    parser.add_argument("--seconds", type=float, default=150.0)
    arguments = parser.parse_args()
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
                name: found[name] for name in ("kind", "bytes_per_second", "heap", "phase", "bytes_per_step")
            }
            told = [" · ".join(str(part) for part in parts if part) for parts in (EXPECTED[kind], said)]
            rows.append((kind, *told, "right" if is_right else "WRONG"))
    table("What leaks, and where it is kept", ("program", "is", "said", ""), rows)
    print(f"\n{right} of {len(rows)} right")
    if set(arguments.kind) == set(EXPECTED):
        save("leak-kinds", {"seconds": arguments.seconds, "programs": results})
    return int(right < len(rows))


if __name__ == "__main__":
    sys.exit(main())

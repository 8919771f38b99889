"""Accuracy and calibration of `oomproof why` over labelled texts.

    python bench/diagnosis.py                       the project's own corpus
    python bench/diagnosis.py --corpus DIR          another one: DIR/truth.jsonl names the files and their truth

A truth line has `file`, `kind` (a cause slug), and where the text says them `victim_pid`, `victim_name`, `total_vm_kb`,
`anon_rss_kb`, `file_rss_kb`, `shmem_rss_kb`, `requested_bytes`, `gpu_total_bytes`, `gpu_free_bytes`, `gpu_allocated_bytes`,
`gpu_reserved_unallocated_bytes`, `phase`; `also` lists other fair kinds, `phase_also` other fair phases. A phase is right if it is
the one that a reader can tell from the text; where the label says "unknown", none can be told, and only "unknown" is right.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from oomproof.causes import cause_of
from oomproof.diagnosis.judge import judge_texts
from oomproof.evidence.texts.text_case import read_texts

HERE = Path(__file__).resolve().parent.parent
SIZES = ("total_vm", "anon_rss", "file_rss", "shmem_rss")
GPU = ("total_bytes", "free_bytes", "allocated_bytes", "reserved_unallocated_bytes")


def truths(folder: Path) -> list[tuple[Path, dict[str, Any]]]:
    found = []
    for path in sorted(folder.rglob("truth.jsonl")):
        for line in path.read_text().splitlines():
            if line.strip():
                truth = json.loads(line)
                beside = path.parent / truth["file"]
                found.append((beside if beside.exists() else path.parent.parent / truth["file"], truth))
    return found


def figures(truth: dict[str, Any], said: dict[str, Any]) -> list[tuple[str, bool]]:
    """(field, right) for every figure the truth knows."""
    victim, gpu = said["verdict"]["victim"] or {}, said["verdict"]["gpu"] or {}
    checks = [(name, truth.get(f"victim_{name}"), victim.get(name)) for name in ("pid", "name")]
    checks += [
        (
            name,
            None if truth.get(f"{name}_kb") is None else truth[f"{name}_kb"] * 1024,
            victim.get(f"{name}_bytes"),
        )
        for name in SIZES
    ]
    checks += [
        (name, truth.get(key), gpu.get(name))
        for name, key in (("requested_bytes", "requested_bytes"), *((name, f"gpu_{name}") for name in GPU))
    ]
    found = []
    for name, right, ours in checks:
        if right is None:
            continue
        # sizes printed with two decimals of a GiB cannot be told apart more finely than that
        near = (
            isinstance(right, int)
            and isinstance(ours, int)
            and name.endswith("_bytes")
            and abs(right - ours) <= 0.005 * (1 << 30)
        )
        found.append((name, right == ours or (near and "vm" not in name and "rss" not in name)))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--corpus", type=Path, default=HERE / "tests" / "corpus")
    parser.add_argument("--quiet", action="store_true", help="only the totals")
    arguments = parser.parse_args()
    cases = truths(arguments.corpus)
    if not cases:
        print(f"no truth.jsonl below {arguments.corpus}", file=sys.stderr)
        return 1
    right = exact = known = false_oom = decoys = 0
    phases: Counter[str] = Counter()
    untold: Counter[str] = Counter()  # deaths whose text shows no phase
    by_kind: Counter[str] = Counter()
    wrong_kind: Counter[str] = Counter()
    bins: dict[int, list[bool]] = {}
    for path, truth in cases:
        said = judge_texts(read_texts([str(path)])).to_json()
        cause = said["verdict"]["cause"]
        good = cause == truth["kind"] or cause in (truth.get("also") or [])
        right += good
        by_kind[truth["kind"]] += 1
        wrong_kind[truth["kind"]] += not good
        bins.setdefault(min(9, int(said["verdict"]["probability"] * 10)), []).append(good)
        fields = figures(truth, said)
        known, exact = known + len(fields), exact + sum(ok for _, ok in fields)
        phase, told = said["verdict"]["phase"], truth.get("phase")
        fair = told in (None, phase) or phase in (truth.get("phase_also") or [])
        if told == "unknown":
            untold["right" if fair else "wrong"] += 1
        elif told:
            phases["right" if fair else "unknown" if phase == "unknown" else "wrong"] += 1
        if not cause_of(truth["kind"]).memory:
            decoys += 1
            if cause_of(cause).memory and not good:
                false_oom += 1
        bad = [name for name, ok in fields if not ok]
        if not fair and told != "unknown":
            bad.append(f"phase {told} → {phase}")
        if not arguments.quiet and (not good or bad):
            note = f"  wrong: {', '.join(bad)}" if bad else ""
            print(f"{path.parent.name}/{path.name}: {truth['kind']} → {cause}{note}")
    print(f"\nfirst cause right        {right}/{len(cases)}  {right / len(cases):.1%}")
    print(f"figures exact            {exact}/{known}  {exact / max(1, known):.1%}")
    others = f"{phases['wrong']} wrong, {phases['unknown']} unknown"
    print(f"phase right where told   {phases['right']}/{sum(phases.values())}  {others}")
    print(f"no phase where none told {untold['right']}/{sum(untold.values())}")
    print(f"OOM claimed on others    {false_oom}/{decoys}")
    print("calibration (said → right)")
    for share, outcomes in sorted(bins.items()):
        print(
            f"  {share * 10:3d}–{share * 10 + 10:3d} %   {sum(outcomes) / len(outcomes):6.1%}  of {len(outcomes)}"
        )
    missed = {kind: f"{count}/{by_kind[kind]}" for kind, count in wrong_kind.items() if count}
    if missed:
        print("missed by kind:", ", ".join(f"{kind} {share}" for kind, share in sorted(missed.items())))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Our reading of kernel OOM reports beside OOMAnalyser's, on the same texts.

    python bench/oomanalyser.py CHECKOUT                      the project's own kernel texts
    python bench/oomanalyser.py CHECKOUT --corpus DIR …       others: DIR/truth.jsonl names the files and their truth

CHECKOUT is a folder with OOMAnalyser.py (github.com/CarstenGrohmann/OOMAnalyser, MIT). It is a page for the browser whose
logic is plain Python; nothing of it is in this project. It reads one whole report of a kernel's OOM killer, so only texts
that tell of such a kill count, and those with a whole report are counted apart.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import io
import re
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

from diagnosis import HERE, SIZES, truths

from oomproof.diagnosis.judge import judge_texts
from oomproof.evidence.texts.text_case import read_texts

FIELDS = ("pid", "name", *SIZES)
VERSION = re.compile(r"ainted\b.{0,60}?\s(\d+)\.(\d+)\.")
KINDS = {"CGROUP_AUTOMATIC": "oom-kill-memcg"}


def load(checkout: Path) -> ModuleType:
    path = checkout / "OOMAnalyser.py" if checkout.is_dir() else checkout
    spec = importlib.util.spec_from_file_location("OOMAnalyser", path)
    if spec is None or spec.loader is None:
        raise SystemExit(f"{path} cannot be loaded; give the folder of a checkout of OOMAnalyser")
    module = importlib.util.module_from_spec(spec)
    with contextlib.redirect_stdout(io.StringIO()):
        spec.loader.exec_module(module)
    return module


def theirs(module: ModuleType, text: str) -> dict[str, Any]:
    """What its analysis has found when it ends, or when it fails on the way."""
    analyser = None
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(Exception):
        analyser = module.OOMAnalyser(module.OOMEntity(text))
        analyser.analyse()  # a missing value stops it; what it had found before counts
    result = analyser.oom_result if analyser else None
    if result is None or result.error_msg:
        return {}  # the page shows the error in place of an answer
    found = result.details
    said: dict[str, Any] = {"kind": KINDS.get(str(result.oom_type), "oom-kill-global")}
    for name in FIELDS:
        key = f"killed_proc_{name}" if name in ("pid", "name") else f"killed_proc_{name}_kb"
        value = found.get(key)
        said[name] = value if name == "name" or value is None else int(value)
    if said["total_vm"] is None:
        said["shmem_rss"] = None  # a default of the page, not a reading
    return said


def ours(path: Path) -> dict[str, Any]:
    verdict = judge_texts(read_texts([str(path)]))
    victim = verdict.victim
    said: dict[str, Any] = {"kind": verdict.cause}
    said["pid"], said["name"] = (victim.pid, victim.name) if victim else (None, None)
    for name in SIZES:
        size = getattr(victim, f"{name}_bytes") if victim else None
        said[name] = None if size is None else size // 1024
    return said


def main() -> int:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("checkout", type=Path)
    options.add_argument("--corpus", type=Path, action="append")
    options.add_argument("--misses", action="store_true", help="name each text it gave no answer to")
    chosen = options.parse_args()
    module = load(chosen.checkout)
    cases = [each for folder in chosen.corpus or [HERE / "tests" / "corpus"] for each in truths(folder)]
    totals: dict[str, Counter[str]] = {"all": Counter(), "whole": Counter(), "known": Counter()}
    for path, truth in cases:
        if not truth["kind"].startswith("oom-kill") or truth.get("victim_pid") is None:
            continue
        text = path.read_text(errors="replace")
        whole = "invoked oom-killer" in text and "total_vm" in text and "illed process" in text
        answers = {"ours": ours(path), "theirs": theirs(module, text)}
        if chosen.misses and not answers["theirs"]:
            print(f"no answer: {path.name}")
        version = VERSION.search(text)
        known = version is not None and (int(version[1]), int(version[2])) >= (3, 10)
        for group in ("all", *(("whole",) if whole else ()), *(("known",) if whole and known else ())):
            count = totals[group]
            count["texts"] += 1
            for who, said in answers.items():
                count[f"{who} answered"] += said.get("pid") is not None
                count[f"{who} kind"] += said.get("kind") in (truth["kind"], *(truth.get("also") or ()))
                for name in FIELDS:
                    key = f"victim_{name}" if name in ("pid", "name") else f"{name}_kb"
                    if truth.get(key) is not None:
                        count["figures"] += who == "ours"
                        count[f"{who} figures"] += said.get(name) == truth[key]
    for group, name in (
        ("known", "texts with a whole report of Linux 3.10 or newer, which it is made for"),
        ("whole", "texts with a whole report"),
        ("all", "all texts of a kernel's kill that name the victim"),
    ):
        count = totals[group]
        print(f"{name}: {count['texts']}, {count['figures']} figures")
        for who, label in (("ours", "oomproof"), ("theirs", "OOMAnalyser")):
            print(
                f"  {label:12} names a victim {count[f'{who} answered']:4}   which limit right {count[f'{who} kind']:4}"
                f"   figures exact {count[f'{who} figures']:4}"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())

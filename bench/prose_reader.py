"""Trains the learned reader of prose (`oomproof why` of posts) and shows by set whether it carries over.

    python bench/prose_reader.py check FOLDER… --verdicts FILE    leave one set out: rules alone, rules and reader
    python bench/prose_reader.py train FOLDER…                    writes src/oomproof/evidence/texts/prose_weights.json

A FOLDER is one set: the texts and their labels as `truth.jsonl` (bench/fresh_texts has the labels; the texts are other people's).
`FOLDER=NAME` puts it into another set's group. `--verdicts` has what the rules said of each text before they were mended for it,
one line each with `set`, `file`, `said`, `system` and `figures` (see `first_verdicts.jsonl`): what they say of texts that they were mended
for shows nothing. Needs scikit-learn, which the product never does.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from diagnosis import HERE, truths

from oomproof.causes import cause_of
from oomproof.diagnosis.prose_answer import Claim, second_opinion
from oomproof.evidence.texts import prose_reader
from oomproof.evidence.texts.manual_pages import explains
from oomproof.evidence.texts.post_deaths import NAMES
from oomproof.evidence.texts.post_heads import is_change, split_head
from oomproof.evidence.texts.prose_parts import Lines, parts_of
from oomproof.evidence.texts.prose_reader import Instance, Model, ProseReading, ToldCause, read_prose

WEIGHTS = Path(prose_reader.__file__).with_name("prose_weights.json")
GOOD = {"not-a-crash", "finished"}
SEEN = 3  # texts that a word must stand in
KEPT = {"report": 2500, "told": 2500}  # features
STRENGTH = {"report": 10.0, "told": 1.0}  # scikit-learn's C
SCALE = {"report": (0.35, 1.0), "told": (0.5, 1.5)}  # of what is counted, of words
RARE = {"report": 4.0, "told": 0.0}  # a word counts by the logarithm of its rareness over this; 0: all alike
OWN = 3.0  # weight of the project's own sentences
BOTH = 0.35  # weight of a text whose label allows a death and none
LINES = 200  # more are a log


class Post(NamedTuple):
    group: str
    folder: str
    file: str
    fair: set[str]
    kind: str
    report: Instance
    told: list[tuple[ToldCause, Instance]]
    lines: Lines

    @property
    def both(self) -> bool:
        return bool(self.fair & GOOD) and bool(self.fair - GOOD)


def posts(folders: Iterable[str]) -> list[Post]:
    found = []
    for name in folders:
        folder, _, group = name.partition("=")
        for path, truth in truths(Path(folder)):
            text = path.read_text(errors="replace")
            _, lines = split_head(list(enumerate(text.splitlines(), 1)))
            if len(lines) <= LINES and "__" not in truth["file"]:
                seen = ProseReading(
                    lines, parts_of(lines)
                )  # articles teach what no report is, and are not judged
                fair = {truth["kind"], *truth.get("also", ())}
                found.append(
                    Post(
                        group or Path(folder).name,
                        Path(folder).name,
                        truth["file"],
                        fair,
                        truth["kind"],
                        seen.report_instance,
                        seen.told_instances,
                        lines,
                    )
                )
    return found


def own_sentences() -> list[Post]:
    """The sentences of tests/unit/evidence/test_post_texts.py with what they mean: what is known must stay known."""
    path = HERE / "tests" / "unit" / "evidence" / "test_post_texts.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    tests = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tests)
    texts = [(f"# About your code\n\n{name.example}\nAny suggestions?\n", name.cause) for name in NAMES]
    texts += [(text, "not-a-crash") for text in tests.test_talk_about_a_death_is_none.pytestmark[0].args[1]]
    for test in (tests.test_told_in_other_words, tests.test_an_out_of_memory_that_nothing_else_explains):
        texts += test.pytestmark[0].args[1]
    for before, cause in tests.test_a_block_that_is_called_an_example_is_one.pytestmark[0].args[1]:
        block = "" if cause == "not-a-crash" else f"```\n{tests.RAYLET}```\n"  # examples are left out before
        texts.append((f"# Killing policy\n\n{before}\n{block}", cause))
    found = []
    for number, (text, cause) in enumerate(texts):
        lines = list(enumerate(text.splitlines(), 1))
        if (seen := read_prose(lines)) is not None:
            found.append(
                Post(
                    "own",
                    "own",
                    str(number),
                    {cause},
                    cause,
                    seen.report_instance,
                    seen.told_instances,
                    lines,
                )
            )
    return found


def weight(text: Post) -> float:
    return BOTH if text.both else OWN if text.folder == "own" else 1.0


def examples(name: str, texts: list[Post]) -> list[tuple[Instance, bool, float]]:
    if name == "report":
        return [(text.report, text.kind not in GOOD, weight(text)) for text in texts]
    return [
        (instance, candidate.cause in text.fair, weight(text))
        for text in texts
        for candidate, instance in text.told
    ]


def fit(name: str, texts: list[Post]) -> Model:
    from sklearn.feature_extraction import DictVectorizer
    from sklearn.linear_model import LogisticRegression

    rows = examples(name, texts)
    seen = Counter(feature for row, _, _ in rows for feature in (*row.counted, *row.words))
    keep = {feature for feature, count in seen.items() if count >= SEEN}
    counted, worded = SCALE[name]
    rare = {
        word: math.log(len(rows) / count) / RARE[name] if RARE[name] else 1.0 for word, count in seen.items()
    }

    def values(row: Instance) -> dict[str, float]:
        words = [word for word in row.words if word in keep]
        numbers = {feature: value * counted for feature, value in row.counted.items() if feature in keep}
        return numbers | {word: worded * rare[word] / math.sqrt(len(words)) for word in words}

    def regression() -> dict[str, float]:
        vectorizer = DictVectorizer()
        matrix = vectorizer.fit_transform([values(row) for row, _, _ in rows])
        fitted = LogisticRegression(C=STRENGTH[name], max_iter=3000).fit(
            matrix, [label for _, label, _ in rows], sample_weight=[weight for _, _, weight in rows]
        )
        names = vectorizer.get_feature_names_out()
        return dict(zip(names, map(float, fitted.coef_[0]), strict=True)) | {"": float(fitted.intercept_[0])}

    first = regression()
    bias = first.pop("")
    keep = set(
        sorted(first, key=lambda feature: -abs(first[feature]) * math.sqrt(seen[feature]))[: KEPT[name]]
    )
    weights = regression()
    bias = weights.pop("")
    numbers = {feature for row, _, _ in rows for feature in row.counted}
    scaled = {
        feature: weight * (counted if feature in numbers else worded * rare[feature])
        for feature, weight in weights.items()
    }
    return Model(round(bias, 2), {feature: round(weight, 2) for feature, weight in sorted(scaled.items())})


class Reading(NamedTuple):
    reports: float
    told: list[ToldCause]


def reading(models: dict[str, Model], text: Post) -> Reading:
    told = [told._replace(probability=models["told"].probability(instance)) for told, instance in text.told]
    told.sort(key=lambda cause: -cause.probability)
    return Reading(models["report"].probability(text.report), told)


def check(texts: list[Post], verdicts: Path, listed: bool) -> None:
    said = {}
    for line in verdicts.read_text().splitlines():
        row = json.loads(line)
        said[row["set"], row["file"]] = row
    totals: dict[str, Counter[str]] = defaultdict(Counter)
    for group in sorted({text.group for text in texts}):
        others = [text for text in texts if text.group != group]
        models = {name: fit(name, others) for name in KEPT}
        for text in texts:
            row = said.get((text.folder, text.file))
            if text.group != group or row is None or read_prose(text.lines) is None:
                continue
            cause = row["said"]
            seen = reading(models, text)
            claim = Claim(cause, row["system"], row["figures"])
            opinion = None if explains(text.lines) else second_opinion(claim, seen)
            if opinion is not None and opinion.cause not in GOOD and is_change((), text.lines):
                opinion = None
            new = opinion.cause if opinion is not None else cause
            for total in (totals[group], totals["all"]):
                total["texts"] += 1
                memory = cause_of(text.kind).memory
                total["others"] += not memory
                for name, answer in (("old", cause), ("new", new)):
                    right = answer in text.fair
                    total[f"{name} right"] += right
                    total[f"{name} false"] += not memory and cause_of(answer).memory and not right
                if listed and new != cause and total is totals["all"]:
                    mark = "mended" if new in text.fair else "broken" if cause in text.fair else "still wrong"
                    print(f"{mark}: {group} {text.file}: {text.kind}: {cause} → {new} ({seen.reports:.2f})")
                total["mended"] += cause not in text.fair and new in text.fair
                total["broken"] += cause in text.fair and new not in text.fair
    print(
        "set       texts   right: rules → with the reader   mended, broken   false memory deaths: rules → reader"
    )
    for group, total in totals.items():
        print(
            f"{group:9} {total['texts']:5}   {total['old right']:5} → {total['new right']:5}   {total['mended']:10}, {total['broken']:3}"
            f"   {total['old false']:6} → {total['new false']:3} of {total['others']}"
        )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("check", "train"))
    parser.add_argument("folders", nargs="+")
    parser.add_argument(
        "--verdicts", type=Path, help="what the rules said of each text when they first saw it"
    )
    parser.add_argument("--list", action="store_true", help="name the texts whose verdict changes")
    arguments = parser.parse_args()
    texts = posts(arguments.folders) + own_sentences()
    if arguments.what == "check":
        if arguments.verdicts is None:
            parser.error("check needs --verdicts")
        check(texts, arguments.verdicts, arguments.list)
        return 0
    stored = {
        name: {
            "bias": round(model.bias * 100),
            "weights": {
                feature: round(weight * 100)
                for feature, weight in model.weights.items()
                if round(weight * 100)
            },
        }
        for name, model in ((name, fit(name, texts)) for name in KEPT)
    }
    WEIGHTS.write_text(json.dumps(stored, ensure_ascii=False, separators=(",", ":"), indent=0) + "\n")
    print(f"{len(texts)} texts; {WEIGHTS.stat().st_size >> 10} KiB in {WEIGHTS}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

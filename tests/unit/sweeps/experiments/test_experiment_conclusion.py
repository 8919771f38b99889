"""What is said of the experiments, and how a verdict counts."""

from __future__ import annotations

import pytest

from oomproof.diagnosis.verdict import Culprit, Kill, Verdict, Victim
from oomproof.records import replace
from oomproof.sweeps.experiments.experiment_conclusion import (
    DOES_NOT,
    FOLLOWS,
    UNKNOWN,
    Elimination,
    eliminate,
)
from oomproof.sweeps.experiments.experiment_plan import DIED, FAILED, LIVED, Experiment, Factor, outcome_of

MIB = 1 << 20
BS, ACCUM = Factor("bs", ("32", "8", "4")), Factor("accum", ("16", "1"))
LETTERS = {"D": DIED, "L": LIVED, "F": FAILED}


def told(factors: list[Factor], *ends: str) -> Elimination:
    """``"32 16 D"``, with a peak in MiB behind it if that matters."""
    done = []
    for end in ends:
        words = end.split(" ")
        values, rest = tuple(words[: len(factors)]), words[len(factors) :]
        peak = int(rest[1]) * MIB if len(rest) > 1 else None
        done.append(Experiment(values, LETTERS[rest[0]], "exited with code 2", peak=peak, run="r1"))
    return eliminate(factors, done)


def test_the_sentence_of_the_issue() -> None:
    answer = told([BS, ACCUM], "32 16 D", "8 16 L", "4 16 L", "32 1 D")
    assert (
        answer.sentence
        == "it dies with bs=32 whatever accum is; it lives with bs=8 and less: bs is what it follows"
    )
    assert [finding.answer for finding in answer.findings] == [FOLLOWS, DOES_NOT]
    assert dict(answer.findings[0].outcomes) == {"32": DIED, "8": LIVED, "4": LIVED}
    assert dict(answer.findings[1].outcomes) == {"16": DIED, "1": DIED}


def test_from_a_baseline_that_lived() -> None:
    factors = [Factor("bs", ("4", "16", "32")), Factor("accum", ("1", "16"))]
    answer = told(factors, "4 1 L", "16 1 D", "32 1 D", "4 16 L")
    assert (
        answer.sentence
        == "it dies with bs=16 and more; it lives with bs=4 whatever accum is: bs is what it follows"
    ), "accum was not varied where it dies: nothing is claimed there"


def test_values_that_are_no_numbers_or_not_in_order_are_listed() -> None:
    factors = [Factor("data", ("full", "half", "tiny"))]
    assert "lives with data=half and data=tiny" in told(factors, "full D", "half L", "tiny L").sentence
    assert "lives with bs=32 and bs=4" in told([BS], "32 L", "8 D", "4 L").sentence
    switch = [Factor("fast", ("--fast", "")), Factor("MALLOC", ("unset", "2"), is_env=True)]
    sentence = told(switch, "--fast unset D", " unset L", "--fast 2 D").sentence
    assert "lives with fast=(empty)" in sentence and "whatever MALLOC is" in sentence


def test_either_change_is_enough() -> None:
    answer = told([BS, ACCUM], "32 16 D", "8 16 L", "4 16 L", "32 1 L")
    assert (
        answer.sentence
        == "it dies with bs=32, accum=16, and lives with bs=8, bs=4 or accum=1 instead: it follows bs and accum"
    )
    assert answer.follows == ["bs", "accum"]


def test_only_both_together() -> None:
    answer = told([BS, ACCUM], "32 16 D", "8 16 D", "4 16 D", "32 1 D", "4 1 L")
    assert (
        answer.sentence
        == "it dies with bs=32, accum=16, and lives only with bs=4 and accum=1 together: it follows bs and accum together"
    )
    assert dict(answer.findings[0].outcomes) == {"32": DIED, "4": LIVED}, "seen where it turns"
    assert answer.findings[0].others == "accum=1"


def test_nothing_turns_it() -> None:
    died = told([BS, ACCUM], "32 16 D", "8 16 D", "4 16 D", "32 1 D", "4 1 D")
    assert died.sentence == "it died whatever was changed: the death follows neither bs nor accum"
    assert died.follows == []
    assert told([BS], "32 D", "8 D").sentence.endswith("the death does not follow bs")
    assert "it lived whatever was changed" in told([BS], "32 L", "8 L").sentence


def test_what_failed_otherwise_counts_as_neither() -> None:
    answer = told([BS, ACCUM], "32 16 D", "8 16 F", "4 16 F", "32 1 D")
    assert [finding.answer for finding in answer.findings] == [UNKNOWN, DOES_NOT]
    assert answer.follows == []
    assert answer.notes[0] == "does not count: bs=8, accum=16 (exited with code 2); see: oomproof why r1"
    assert "correct that first" in told([BS], "32 F").sentence


def test_interrupted() -> None:
    assert "nothing is known yet" in eliminate([BS], []).sentence
    assert told([BS], "32 D").sentence == "it died with bs=32, and nothing else could be compared"


def test_a_factor_that_changes_only_the_peak_is_told() -> None:
    answer = told([BS, ACCUM], "32 16 L 300", "8 16 L 298", "4 16 L 301", "32 1 L 200")
    assert answer.findings[0].peak == "same peak"
    assert answer.notes == (
        "accum changes the peak, not the outcome: 300 MiB with accum=16, 200 MiB with accum=1",
    )


def test_peaks_of_deaths_are_not_compared() -> None:
    """They say what the limit was."""
    assert told([BS, ACCUM], "32 16 D 400", "8 16 L 100", "32 1 D 300").notes == ()


def test_how_long_it_lived_is_told() -> None:
    lived = Experiment(("8",), LIVED, "", seconds=600.0, timed_out=True)
    answer = eliminate([BS], [Experiment(("32",), DIED, ""), lived])
    assert answer.notes == ("lived means: for 10 min at least; slow growth would end it later",)


def test_two_kinds_of_death_are_told_apart() -> None:
    full_gpu = Experiment(("32",), DIED, "", cause="cuda-oom")
    full_machine = Experiment(("8",), DIED, "", cause="oom-kill-global")
    assert eliminate([BS], [full_gpu, full_machine]).notes == (
        "not all deaths are alike: of GPU memory with bs=32; of the machine's with bs=8",
    )
    assert eliminate([BS], [full_gpu, replace(full_gpu, values=("8",))]).notes == ()


CULPRIT = Culprit(7, "chrome", None, 1, 0, 1, 1.0, 1.0)
KILL = Kill(None, "oom-kill-memcg", Victim(7, "worker"))


@pytest.mark.parametrize(
    ("cause", "more", "timed_out", "outcome"),
    [
        ("oom-kill-memcg", {}, False, DIED),
        ("stopped-by-guard", {}, False, DIED),
        ("cuda-oom", {}, True, DIED),  # at the last moment
        ("finished", {}, False, LIVED),
        ("finished", {"kills": (KILL,)}, False, DIED),  # it carried on without one of its workers
        ("stopped-by-user", {}, True, LIVED),
        ("stopped-by-user", {}, False, FAILED),  # somebody else's `oomproof stop`
        ("other-error", {}, True, LIVED),  # what SIGTERM made of it
        ("other-error", {}, False, FAILED),
        ("killed-unknown", {}, False, FAILED),
        ("stopped-by-guard", {"culprit": CULPRIT}, False, FAILED),  # the machine was filled by another
    ],
)
def test_how_a_verdict_counts(cause: str, more: dict[str, object], timed_out: bool, outcome: str) -> None:
    verdict = Verdict("r1", 1, cause, "likely", 0.9, "failed so", "", (), **more)  # type: ignore[arg-type]
    assert outcome_of(verdict, timed_out)[0] == outcome

"""The ledger's arithmetic: whatever the order of starts, growths and deaths."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import chain, combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from oomproof.ledger.admission import AdmissionRequest, Card, Claim, card_available, decide, reserved

GIB = 1 << 30


def test_an_empty_machine_lets_in_what_fits() -> None:
    assert decide(10 * GIB, [], [], AdmissionRequest("a", 10 * GIB)).verdict == "start"
    short = decide(10 * GIB, [], [], AdmissionRequest("a", 11 * GIB))
    assert (short.verdict, short.short_by) == ("short", GIB)


def test_what_is_promised_is_not_free_and_what_is_held_is_not_promised_again() -> None:
    running = Claim("train", need=8 * GIB, held=5 * GIB)
    assert running.yet == 3 * GIB
    # 12 GiB of headroom were measured with the 5 held ones already gone
    assert decide(12 * GIB, [running], [], AdmissionRequest("b", 9 * GIB)).verdict == "start"
    assert decide(12 * GIB, [running], [], AdmissionRequest("b", 10 * GIB)).short_by == GIB


def test_without_a_need_or_past_it_growth_is_what_counts() -> None:
    assert Claim("x", need=None, held=GIB, growth=2 * GIB).yet == 2 * GIB
    assert Claim("x", need=GIB, held=3 * GIB, growth=2 * GIB).yet == 2 * GIB
    assert Claim("x", need=4 * GIB, held=3 * GIB, growth=9 * GIB).yet == GIB
    assert reserved([Claim("x", need=2 * GIB)], unmanaged=GIB) == 3 * GIB


def test_strangers_who_grow_are_left_their_room() -> None:
    assert decide(10 * GIB, [], [], AdmissionRequest("a", 8 * GIB), unmanaged=3 * GIB).short_by == GIB


def test_first_come_first_served_and_priority() -> None:
    first, second = (
        AdmissionRequest("first", 6 * GIB, asked=1.0),
        AdmissionRequest("second", 6 * GIB, asked=2.0),
    )
    assert decide(10 * GIB, [], [first, second], first).verdict == "start"
    behind = decide(10 * GIB, [], [first, second], second)
    assert (behind.verdict, behind.behind) == ("behind", ("first",))
    urgent = replace(second, priority=1)
    assert decide(10 * GIB, [], [first, urgent], urgent).verdict == "start"
    assert decide(10 * GIB, [], [first, urgent], first).verdict == "behind"


def test_a_small_job_is_let_past_only_when_that_delays_nobody() -> None:
    running = Claim("train", need=12 * GIB, held=12 * GIB)
    head = AdmissionRequest("head", 10 * GIB, asked=1.0)
    # 4 GiB are left now; when `train` ends 16 are: 6 more than the head needs
    assert (
        decide(4 * GIB, [running], [head], AdmissionRequest("small", 3 * GIB, asked=2.0)).verdict == "start"
    )
    # 9 left after its end for a head of 15: one GiB to spare, and 3 would delay it
    head = AdmissionRequest("head", 15 * GIB, asked=1.0)
    assert decide(4 * GIB, [running], [head], AdmissionRequest("small", 3 * GIB, asked=2.0)).behind == (
        "head",
    )


def test_which_run_ends_first_is_not_known() -> None:
    """The end of either run lets the head in; after the smaller one's there is nothing to spare."""
    running = [Claim("a", need=6 * GIB, held=6 * GIB), Claim("b", need=10 * GIB, held=10 * GIB)]
    head = AdmissionRequest("head", 8 * GIB, asked=1.0)
    assert decide(2 * GIB, running, [head], AdmissionRequest("small", GIB, asked=2.0)).verdict == "behind"


def test_a_head_that_waits_for_strangers_does_not_close_the_door() -> None:
    """No end of ours can let it in: who fits meanwhile is not what keeps it out."""
    head = AdmissionRequest("head", 20 * GIB, asked=1.0)
    assert decide(6 * GIB, [], [head], AdmissionRequest("small", GIB, asked=2.0)).verdict == "start"


def test_cards_have_a_budget_of_their_own() -> None:
    cards = [Card(0, 10 * GIB), Card(1, 16 * GIB)]
    taken = Claim("other", need=GIB, held=GIB, gpu_need=12 * GIB, gpu=1, gpu_held=2 * GIB)
    assert card_available(cards[1], [taken]) == 6 * GIB
    assert decide(9 * GIB, [taken], [], AdmissionRequest("any", GIB, gpu_need=8 * GIB), cards).gpu == 0
    asked = decide(9 * GIB, [taken], [], AdmissionRequest("one", GIB, gpu_need=8 * GIB, gpu=1), cards)
    assert (asked.verdict, asked.gpu_short_by) == ("short", 2 * GIB)
    waits = AdmissionRequest("ahead", GIB, gpu_need=11 * GIB, gpu=0, asked=1.0)
    small = AdmissionRequest("small", GIB, gpu_need=GIB, gpu=0, asked=2.0)
    assert decide(9 * GIB, [], [waits], small, cards).verdict == "behind"
    assert decide(9 * GIB, [], [waits], replace(small, gpu=1), cards).verdict == "start"


def test_a_driver_that_hides_its_processes_counts_a_card_as_one() -> None:
    assert card_available(Card(0, 8 * GIB, hides=8 * GIB), [Claim("a", gpu_need=10 * GIB, gpu=0)]) == 6 * GIB


# --- whatever the order -------------------------------------------------------------------------------------------

SIZES = st.integers(1, 64).map(lambda n: n * (GIB // 8))


@dataclass
class Machine:
    """A machine whose unmanaged processes stay as they are. Nothing here knows the arithmetic under test."""

    budget: int
    clock: float = 0.0
    waiting: list[AdmissionRequest] = field(default_factory=list)
    running: dict[str, Claim] = field(default_factory=dict)
    made: int = 0

    def ask(self, need: int, priority: int) -> None:
        self.clock += 1
        self.made += 1
        self.waiting.append(AdmissionRequest(f"run{self.made}", need, priority=priority, asked=self.clock))

    def poll(self, index: int) -> bool:
        """One of those who wait looks again; True when it was let in."""
        if not self.waiting:
            return False
        request = self.waiting[index % len(self.waiting)]
        headroom = self.budget - sum(claim.held for claim in self.running.values())
        if decide(headroom, list(self.running.values()), self.waiting, request).verdict != "start":
            return False
        self.waiting.remove(request)
        self.running[request.run] = Claim(request.run, request.need)
        return True

    def grow(self, index: int, part: float) -> None:
        if self.running:
            run = sorted(self.running)[index % len(self.running)]
            claim = self.running[run]
            self.running[run] = replace(claim, held=int((claim.need or 0) * part))

    def end(self, index: int) -> None:
        if self.running:
            del self.running[sorted(self.running)[index % len(self.running)]]

    @property
    def admitted(self) -> int:
        return sum(claim.need or 0 for claim in self.running.values())


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), SIZES, st.integers(-2, 2)),
        st.tuples(st.just("poll"), st.integers(0, 50), st.just(0)),
        st.tuples(st.just("grow"), st.integers(0, 50), st.floats(0, 1)),
        st.tuples(st.just("end"), st.integers(0, 50), st.just(0)),
    ),
    max_size=60,
)


@settings(max_examples=300)
@given(budget=st.integers(8, 100).map(lambda n: n * GIB), steps=STEPS)
def test_admitted_needs_never_pass_the_budget(budget: int, steps: list[tuple[str, int, float]]) -> None:
    machine = Machine(budget)
    for what, one, two in steps:
        if what == "ask":
            machine.ask(one, int(two))
        elif what == "poll":
            machine.poll(one)
        elif what == "grow":
            machine.grow(one, two)
        else:
            machine.end(one)
        assert machine.admitted <= budget


@settings(max_examples=300)
@given(budget=st.integers(8, 40).map(lambda n: n * GIB), steps=STEPS, order=st.randoms(use_true_random=False))
def test_nobody_waits_for_ever(budget: int, steps: list[tuple[str, int, float]], order: object) -> None:
    """While runs end and nobody new comes, everybody gets in, in whatever order they look and end."""
    machine = Machine(budget)
    for what, one, two in steps:
        if what == "ask":
            machine.ask(one, int(two))
        elif what == "poll":
            machine.poll(one)
        elif what == "grow":
            machine.grow(one, two)
    rounds = 0
    while machine.waiting:
        rounds += 1
        assert rounds <= machine.made + 1, "somebody waits although everything else has ended"
        for index in order.sample(range(60), 60):  # type: ignore[attr-defined]
            machine.poll(index)
        machine.end(order.randrange(60))  # type: ignore[attr-defined]


@settings(max_examples=400)
@given(
    available=SIZES,
    running=st.lists(SIZES, max_size=6),
    ahead=st.lists(SIZES, min_size=1, max_size=3),
    mine=SIZES,
)
def test_whoever_is_let_past_delays_nobody(
    available: int, running: list[int], ahead: list[int], mine: int
) -> None:
    """Whichever runs end: those ahead who could start without the late-comer can start with it as well."""
    claims = [Claim(f"r{n}", need=size, held=size) for n, size in enumerate(running)]
    queue = [AdmissionRequest(f"w{n}", size, asked=float(n)) for n, size in enumerate(ahead)]
    late = AdmissionRequest("late", mine, asked=99.0)
    if decide(available, claims, queue, late).verdict != "start":
        return
    ends = chain.from_iterable(combinations(running, count) for count in range(len(running) + 1))
    head = ahead[0]
    for given_back in map(sum, ends):
        assert available + given_back < head or available + given_back - mine >= head


@settings(max_examples=200)
@given(available=SIZES, sizes=st.lists(st.integers(0, 1 << 62), max_size=8))
def test_wild_figures_cost_neither_time_nor_memory(available: int, sizes: list[int]) -> None:
    claims = [Claim(f"r{n}", need=size, growth=size) for n, size in enumerate(sizes)]
    decide(
        available,
        claims,
        [AdmissionRequest("w", size) for size in sizes],
        AdmissionRequest("mine", 1, asked=9.0),
    )

"""The ledger's arithmetic: whatever the order of starts, growths and deaths."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import chain, combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from oomproof.ledger.admission import Card, Claim, Wish, card_room, decide, promised

GIB = 1 << 30


def test_an_empty_machine_lets_in_what_fits() -> None:
    assert decide(10 * GIB, [], [], Wish("a", 10 * GIB)).verdict == "start"
    short = decide(10 * GIB, [], [], Wish("a", 11 * GIB))
    assert (short.verdict, short.short_by) == ("short", GIB)


def test_what_is_promised_is_not_free_and_what_is_held_is_not_promised_again() -> None:
    running = Claim("train", need=8 * GIB, held=5 * GIB)
    assert running.yet == 3 * GIB
    # 12 GiB of headroom were measured with the 5 held ones already gone
    assert decide(12 * GIB, [running], [], Wish("b", 9 * GIB)).verdict == "start"
    assert decide(12 * GIB, [running], [], Wish("b", 10 * GIB)).short_by == GIB


def test_without_a_need_or_past_it_growth_is_what_counts() -> None:
    assert Claim("x", need=None, held=GIB, growth=2 * GIB).yet == 2 * GIB
    assert Claim("x", need=GIB, held=3 * GIB, growth=2 * GIB).yet == 2 * GIB
    assert Claim("x", need=4 * GIB, held=3 * GIB, growth=9 * GIB).yet == GIB
    assert promised([Claim("x", need=2 * GIB)], strangers=GIB) == 3 * GIB


def test_strangers_who_grow_are_left_their_room() -> None:
    assert decide(10 * GIB, [], [], Wish("a", 8 * GIB), strangers=3 * GIB).short_by == GIB


def test_first_come_first_served_and_priority() -> None:
    first, second = Wish("first", 6 * GIB, asked=1.0), Wish("second", 6 * GIB, asked=2.0)
    assert decide(10 * GIB, [], [first, second], first).verdict == "start"
    behind = decide(10 * GIB, [], [first, second], second)
    assert (behind.verdict, behind.behind) == ("behind", ("first",))
    urgent = replace(second, priority=1)
    assert decide(10 * GIB, [], [first, urgent], urgent).verdict == "start"
    assert decide(10 * GIB, [], [first, urgent], first).verdict == "behind"


def test_a_small_job_is_let_past_only_when_that_delays_nobody() -> None:
    running = Claim("train", need=12 * GIB, held=12 * GIB)
    head = Wish("head", 10 * GIB, asked=1.0)
    # 4 GiB are left now; when `train` ends 16 are: 6 more than the head needs
    assert decide(4 * GIB, [running], [head], Wish("small", 3 * GIB, asked=2.0)).verdict == "start"
    # 9 left after its end for a head of 15: one GiB to spare, and 3 would delay it
    head = Wish("head", 15 * GIB, asked=1.0)
    assert decide(4 * GIB, [running], [head], Wish("small", 3 * GIB, asked=2.0)).behind == ("head",)


def test_which_run_ends_first_is_not_known() -> None:
    """The end of either run lets the head in; after the smaller one's there is nothing to spare."""
    running = [Claim("a", need=6 * GIB, held=6 * GIB), Claim("b", need=10 * GIB, held=10 * GIB)]
    head = Wish("head", 8 * GIB, asked=1.0)
    assert decide(2 * GIB, running, [head], Wish("small", GIB, asked=2.0)).verdict == "behind"


def test_a_head_that_waits_for_strangers_does_not_close_the_door() -> None:
    """No end of ours can let it in: who fits meanwhile is not what keeps it out."""
    head = Wish("head", 20 * GIB, asked=1.0)
    assert decide(6 * GIB, [], [head], Wish("small", GIB, asked=2.0)).verdict == "start"


def test_cards_have_a_budget_of_their_own() -> None:
    cards = [Card(0, 10 * GIB), Card(1, 16 * GIB)]
    taken = Claim("other", need=GIB, held=GIB, gpu_need=12 * GIB, gpu=1, gpu_held=2 * GIB)
    assert card_room(cards[1], [taken]) == 6 * GIB
    assert decide(9 * GIB, [taken], [], Wish("any", GIB, gpu_need=8 * GIB), cards).gpu == 0
    asked = decide(9 * GIB, [taken], [], Wish("one", GIB, gpu_need=8 * GIB, gpu=1), cards)
    assert (asked.verdict, asked.gpu_short_by) == ("short", 2 * GIB)
    waits = Wish("ahead", GIB, gpu_need=11 * GIB, gpu=0, asked=1.0)
    small = Wish("small", GIB, gpu_need=GIB, gpu=0, asked=2.0)
    assert decide(9 * GIB, [], [waits], small, cards).verdict == "behind"
    assert decide(9 * GIB, [], [waits], replace(small, gpu=1), cards).verdict == "start"


def test_a_driver_that_hides_its_processes_counts_a_card_as_one() -> None:
    assert card_room(Card(0, 8 * GIB, hides=8 * GIB), [Claim("a", gpu_need=10 * GIB, gpu=0)]) == 6 * GIB


# --- whatever the order -------------------------------------------------------------------------------------------

SIZES = st.integers(1, 64).map(lambda n: n * (GIB // 8))


@dataclass
class Machine:
    """A machine whose strangers stay as they are. Nothing here knows the arithmetic under test."""

    budget: int
    clock: float = 0.0
    waiting: list[Wish] = field(default_factory=list)
    running: dict[str, Claim] = field(default_factory=dict)
    made: int = 0

    def ask(self, need: int, priority: int) -> None:
        self.clock += 1
        self.made += 1
        self.waiting.append(Wish(f"run{self.made}", need, priority=priority, asked=self.clock))

    def poll(self, index: int) -> bool:
        """One of those who wait looks again; True when it was let in."""
        if not self.waiting:
            return False
        wish = self.waiting[index % len(self.waiting)]
        headroom = self.budget - sum(claim.held for claim in self.running.values())
        if decide(headroom, list(self.running.values()), self.waiting, wish).verdict != "start":
            return False
        self.waiting.remove(wish)
        self.running[wish.run] = Claim(wish.run, wish.need)
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
    room=SIZES,
    running=st.lists(SIZES, max_size=6),
    ahead=st.lists(SIZES, min_size=1, max_size=3),
    mine=SIZES,
)
def test_whoever_is_let_past_delays_nobody(
    room: int, running: list[int], ahead: list[int], mine: int
) -> None:
    """Whichever runs end: those ahead who could start without the late-comer can start with it as well."""
    claims = [Claim(f"r{n}", need=size, held=size) for n, size in enumerate(running)]
    queue = [Wish(f"w{n}", size, asked=float(n)) for n, size in enumerate(ahead)]
    late = Wish("late", mine, asked=99.0)
    if decide(room, claims, queue, late).verdict != "start":
        return
    ends = chain.from_iterable(combinations(running, count) for count in range(len(running) + 1))
    head = ahead[0]
    for given_back in map(sum, ends):
        assert room + given_back < head or room + given_back - mine >= head


@settings(max_examples=200)
@given(room=SIZES, sizes=st.lists(st.integers(0, 1 << 62), max_size=8))
def test_wild_figures_cost_neither_time_nor_memory(room: int, sizes: list[int]) -> None:
    claims = [Claim(f"r{n}", need=size, growth=size) for n, size in enumerate(sizes)]
    decide(room, claims, [Wish("w", size) for size in sizes], Wish("mine", 1, asked=9.0))

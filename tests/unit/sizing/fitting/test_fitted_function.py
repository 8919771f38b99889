"""`@oomproof.fit_batch`: measured at small batches, called with the largest that fits, started over where memory runs out all the same."""

from __future__ import annotations

import gc
import pickle
import subprocess
import sys
import weakref
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the extra [ml] is not installed")

from helpers_fitting import Training, capacity_for, too_large  # noqa: E402

import oomproof  # noqa: E402
from oomproof.errors import OomproofError  # noqa: E402


def test_the_largest_that_fits_and_keeps_the_effective_batch(capsys: pytest.CaptureFixture[str]) -> None:
    training = Training()
    fitted = oomproof.fit_batch(effective=64, capacity=capacity_for(24))(training)
    fitted()
    assert training.made == [16] and training.calls[-1] == (16, 4, False)
    assert all(probing and accum <= 2 for _, accum, probing in training.calls[:-1])
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("oomproof: batch 16 × 4 passes = 64 ("), lines
    assert all("splits evenly only into 16" in line for line in lines[1:]), lines


def test_without_an_effective_batch_any_size() -> None:
    training = Training()
    oomproof.fit_batch(capacity=capacity_for(20), most=64, quiet=True)(training)()
    assert 14 <= training.made[0] <= 28, training.calls  # the process itself moves by some samples


def test_enough_for_all_of_it_takes_it_in_one_piece() -> None:
    training = Training(holds=0)
    oomproof.fit_batch(effective=32, capacity="100G", quiet=True)(training)()
    assert training.calls[-1] == (32, 1, False)


def test_arguments_and_results_are_the_functions_own() -> None:
    @oomproof.fit_batch(effective=4, capacity="100G", quiet=True)
    def train(batch: Any, name: str, *, lr: float) -> tuple[str, float, int]:
        """Its help."""
        Training(holds=0)(batch)
        return name, lr, batch.size

    assert train("run", lr=0.1) == ("run", 0.1, 4)
    assert train.__name__ == "train" and train.__doc__ == "Its help."


def test_as_a_method() -> None:
    class Trainer:
        name = "mine"

        @oomproof.fit_batch(effective=4, capacity="100G", quiet=True)
        def train(self, batch: Any) -> str:
            Training(holds=0)(batch)
            return self.name

    assert Trainer().train() == "mine"


class WithState:
    @oomproof.fit_batch(most=16, capacity="100G", quiet=True)
    def train(self, batch: Any) -> tuple[int, dict[str, int]]:
        return batch.size, self.train.state_dict()


def test_a_method_knows_its_state() -> None:
    first, second = WithState(), WithState()
    first.train.load_state_dict({"size": 4})
    assert first.train()[0] == 4 and first.train.batch.size == 4
    size, state = second.train()
    assert size == state["size"] == 16


def test_it_is_pickled_as_functions_are() -> None:
    """For processes that are spawned."""
    assert pickle.loads(pickle.dumps(named)) is named


@oomproof.fit_batch(most=16, capacity="100G", quiet=True)
def named(batch: Any) -> None:
    """As a script has it."""


def test_random_numbers_are_those_of_a_training_that_was_not_measured() -> None:
    torch.manual_seed(7)
    once = Training(holds=0)(oomproof.fit_batch.__globals__["Batch"](4))
    torch.manual_seed(7)
    fitted = oomproof.fit_batch(effective=4, capacity="100G", quiet=True)(Training(holds=0))()
    assert fitted == once


# -- memory that runs out all the same ---------------------------------------------------------------------


class Failing(Training):
    """Fails above a size, at a step, as PyTorch does on the CPU; leaves references to what it held."""

    def __init__(self, above: int, at: int = 0, holds: int = 0, steps: int = 4) -> None:
        super().__init__(steps, holds)
        self.above, self.at = above, at
        self.tensors: list[weakref.ref[Any]] = []

    def after(self, step: int, batch: Any) -> None:
        activations = torch.ones(1000)
        self.tensors.append(weakref.ref(activations))
        if step == self.at and batch.size > self.above and not batch.probing:
            too_large()


def test_it_starts_over_with_the_next_smaller_batch(capsys: pytest.CaptureFixture[str]) -> None:
    training = Failing(above=8)
    oomproof.fit_batch(effective=32, capacity="100G")(training)()
    assert training.sizes == [32, 16, 8] and training.made == [8]
    text = capsys.readouterr().err
    assert "Python: out of memory at batch 32: starting over with 16" in text


def test_any_size_shrinks_by_what_the_figures_say() -> None:
    training = Failing(above=17)
    oomproof.fit_batch(most=20, capacity="100G", quiet=True)(training)()
    assert training.sizes[0] == 20 and training.made[-1:] == [training.sizes[-1]]
    assert training.sizes == sorted(training.sizes, reverse=True) and 15 < training.sizes[-1] <= 17


def test_nothing_of_the_failed_attempt_is_alive_when_the_next_begins() -> None:
    """accelerate clears the cache inside the except block, where the traceback holds every tensor."""
    alive: list[int] = []

    class Watching(Failing):
        def __call__(self, batch: Any) -> list[float]:
            alive.append(sum(tensor() is not None for tensor in self.tensors))
            return super().__call__(batch)

    training = Watching(above=8)
    gc.disable()
    try:
        oomproof.fit_batch(effective=32, capacity="100G", quiet=True)(training)()
    finally:
        gc.enable()
    assert training.sizes == [32, 16, 8] and set(alive) == {0}


def test_the_smallest_that_fails_is_an_error_with_what_to_change() -> None:
    with pytest.raises(RuntimeError, match="can't allocate memory") as raised:
        oomproof.fit_batch(effective=2, capacity="100G", quiet=True)(Failing(above=0))()
    (note,) = raised.value.__notes__
    assert "at batch 1, the smallest allowed: gradient checkpointing" in note


def test_after_many_good_steps_it_is_passed_on() -> None:
    """accelerate#1934: two and a half hours of training, thrown away."""
    training = Failing(above=0, at=60, steps=70)
    with pytest.raises(RuntimeError, match="can't allocate memory") as raised:
        oomproof.fit_batch(effective=8, capacity="100G", quiet=True)(training)()
    assert training.sizes == [8]
    (note,) = raised.value.__notes__
    assert "after 61 optimizer steps at batch 8; not started over: 61 steps would be lost" in note
    assert "fit_batch(…, most=4)" in note


def test_how_many_steps_are_many_is_the_users() -> None:
    training = Failing(above=4, at=3, steps=5)
    with pytest.raises(RuntimeError):
        oomproof.fit_batch(effective=8, capacity="100G", quiet=True, settled=2)(training)()
    assert training.sizes == [8]


def test_an_evaluation_is_never_a_reason_to_train_with_less() -> None:
    """transformers#32215: the training batch shrinks for the evaluation's sake."""

    class Evaluating(Training):
        def after(self, step: int, batch: Any) -> None:
            if step == 1 and not batch.probing:
                self.evaluate()

        def evaluate(self) -> None:
            too_large()

    training = Evaluating(holds=0)
    with pytest.raises(RuntimeError, match="can't allocate memory") as raised:
        oomproof.fit_batch(effective=8, capacity="100G", quiet=True)(training)()
    assert training.sizes == [8]
    (note,) = raised.value.__notes__
    assert (
        "in eval after 2 optimizer steps at batch 8; a smaller training batch would not help; the evaluation needs"
        in note
    )


def test_memory_that_ends_while_it_is_measured() -> None:
    class Small(Training):
        def after(self, step: int, batch: Any) -> None:
            if batch.size > 12:
                too_large()

    training = Small(holds=0)
    oomproof.fit_batch(effective=64, capacity="100G", quiet=True)(training)()
    assert training.made == [8] and training.sizes == [8]


def test_another_error_is_the_users() -> None:
    class Wrong(Training):
        def after(self, step: int, batch: Any) -> None:
            raise ValueError("its own mistake")

    training = Wrong(holds=0)
    with pytest.raises(ValueError, match="its own mistake") as raised:
        oomproof.fit_batch(effective=8, capacity="100G", quiet=True)(training)()
    assert len(training.calls) == 1 and "while a batch of 2 was measured" in raised.value.__notes__[0]


def test_a_batch_that_is_taken_for_a_number_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """As accelerate's find_executable_batch_size gives one; an error of the training's own gets no such word."""

    def numbered(batch_size: Any) -> None:
        torch.utils.data.DataLoader(torch.zeros(8, 2), batch_size)

    def doubled(batch_size: Any) -> None:
        torch.zeros(batch_size * 2)

    def with_passes(batch_size: Any, accum: int) -> None:
        raise AssertionError

    def wrong_itself(batch: Any) -> None:
        torch.nn.Linear()  # type: ignore[call-arg]

    def told_of(function: Any) -> bool:
        with pytest.raises((TypeError, ValueError)) as raised:
            oomproof.fit_batch(effective=8, capacity="100G", quiet=True)(function)()
        return any("batch.size" in note for note in raised.value.__notes__)

    assert told_of(numbered) and told_of(doubled) and told_of(with_passes)
    assert not told_of(wrong_itself)


def test_interrupts_pass() -> None:
    class Interrupted(Training):
        def after(self, step: int, batch: Any) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        oomproof.fit_batch(effective=8, capacity="100G", quiet=True)(Interrupted(holds=0))()


# -- functions of other kinds ------------------------------------------------------------------------------


def test_a_function_that_catches_everything() -> None:
    training = Training(holds=0)

    @oomproof.fit_batch(effective=8, capacity="100G", quiet=True)
    def train(batch: Any) -> str:
        try:
            training(batch)
        except BaseException:
            return "caught"
        return "trained"

    assert train() == "trained" and training.made == [8]


def test_a_training_that_ends_before_it_is_measured() -> None:
    training = Training(steps=1, holds=0)
    oomproof.fit_batch(effective=8, capacity="100G", quiet=True)(training)()
    assert training.made[-1] == 8


def test_an_evaluation_without_an_optimizer() -> None:
    """It ends after some passes where it is measured."""
    passes: list[tuple[int, bool]] = []

    @oomproof.fit_batch(most=16, capacity="100G", quiet=True)
    def evaluate(batch: Any) -> int:
        model = torch.nn.Linear(4, 1)
        with torch.no_grad():
            for _ in range(200):
                model(torch.ones(batch.size, 4))
                passes.append((batch.size, batch.probing))
        return int(batch.size)

    assert evaluate() == 16
    assert passes.count((16, False)) == 200 and passes.count((2, True)) < 100


def test_an_evaluation_before_the_first_step_is_not_taken_for_the_training(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It holds less: the batch would be too large, and on the host the kernel ends such a job."""
    trained: list[tuple[int, bool]] = []

    @oomproof.fit_batch(most=16, capacity="100G")
    def train(batch: Any) -> None:
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with torch.no_grad():
            for _ in range(70):
                model(torch.ones(batch.size, 4))
        for _ in range(3):
            model(torch.ones(batch.size, 4)).sum().backward()
            trained.append((batch.size, batch.probing))
            optimizer.step()

    train()
    assert trained.count((2, True)) == 3 and trained.count((16, True)) == 3
    assert capsys.readouterr().err.count("the evaluation before the first optimizer step is run") == 1


def test_two_optimizers_both_have_made_their_steps() -> None:
    counts: list[list[int]] = []

    @oomproof.fit_batch(effective=2, capacity="100G", quiet=True)
    def train(batch: Any) -> None:
        model = torch.nn.Linear(4, 1)
        optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for _ in range(2)]
        made = [0, 0]
        counts.append(made)
        for _ in range(10):
            model(torch.ones(batch.size, 4)).sum().backward()
            for index, optimizer in enumerate(optimizers):
                optimizer.step()
                made[index] += 1

    train()
    assert counts == [[3, 2], [10, 10]]


# -- checkpoints -------------------------------------------------------------------------------------------


def test_the_batch_of_a_checkpoint_is_taken_without_measuring() -> None:
    first = oomproof.fit_batch(effective=64, capacity=capacity_for(24), quiet=True)(Training())
    with pytest.raises(OomproofError, match="no batch is chosen yet"):
        first.state_dict()
    first()
    state = first.state_dict()
    assert state["size"] == 16 and state["effective"] == 64
    training = Training()
    oomproof.fit_batch(effective=64, quiet=True, capacity="100G", resume=state)(training)()
    assert training.calls == [(16, 4, False)]
    later = oomproof.fit_batch(effective=64, quiet=True, capacity="100G")(other := Training())
    later.load_state_dict(state)
    later()
    assert other.calls == [(16, 4, False)]


class Resuming(Training):
    """As most trainings do it: inside the function."""

    def __init__(self, state: dict[str, int]) -> None:
        super().__init__(holds=0)
        self.state = state

    def __call__(self, batch: Any) -> list[float]:
        self.calls.append((batch.size, batch.accum, batch.probing))
        batch.load_state_dict(self.state)
        self.calls.pop()
        return super().__call__(batch)


def test_a_checkpoint_that_is_loaded_inside_the_function() -> None:
    training = Resuming({"size": 4, "effective": 32})
    oomproof.fit_batch(effective=32, capacity="100G", quiet=True)(training)()
    assert training.calls == [(2, 2, True), (4, 8, False)] and training.made == [4]


def test_a_checkpoint_that_no_longer_holds_is_measured_anew(capsys: pytest.CaptureFixture[str]) -> None:
    for state in ({"size": 5, "effective": 30}, {"size": 8, "need": 200 << 30}):
        training = Resuming(state)
        oomproof.fit_batch(effective=32, capacity="100G")(training)()
        assert training.made == [32]
    text = capsys.readouterr().err
    assert "batch of 5 does not divide 32" in text and "needs 200.0 GiB, and there are 100.0 GiB here" in text


def test_a_checkpoints_batch_that_fails_here_becomes_smaller() -> None:
    training = Failing(above=4)
    oomproof.fit_batch(effective=32, capacity="100G", quiet=True, resume={"size": 8})(training)()
    assert training.sizes == [8, 4]


# -- what is asked wrongly ---------------------------------------------------------------------------------


def test_wrong_questions() -> None:
    with pytest.raises(OomproofError, match="effective=0 is no batch"):
        oomproof.fit_batch(effective=0)(Training())()
    with pytest.raises(OomproofError, match="start=0 is no batch"):
        oomproof.fit_batch(start=0)
    with pytest.raises(OomproofError, match="needs make_batch"):
        oomproof.fit_batch(Training(), torch.nn.Linear(1, 1), None)  # type: ignore[call-overload]
    with pytest.raises(OomproofError, match="gpu= is for a step"):
        oomproof.fit_batch(gpu="24G")  # type: ignore[call-overload]
    with pytest.raises(OomproofError, match="decorates a function"):
        oomproof.fit_batch(effective=4)(3)  # type: ignore[arg-type]


def test_importing_oomproof_imports_none_of_it() -> None:
    asked = "import oomproof, sys; print('fit_batch' in dir(oomproof), sorted(n for n in sys.modules if n.startswith(('oomproof.', 'torch'))))"
    ended = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "True []"
    asked = "import oomproof; oomproof.fit_batch(effective=8)(lambda batch: None)()"
    ended = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True)
    assert "torch is not imported, so there is nothing to fit" in ended.stderr

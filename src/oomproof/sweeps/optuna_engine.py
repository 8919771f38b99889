"""Optuna as the source of points: asked for the next one, told how each ended. Its storage follows the sweep's own log.

What did not fit is told as pruned, with a constraint that it violates: the sampler then looks elsewhere, where a failed trial
would have taught it nothing and a bad value would have been a lie about the metric."""

from __future__ import annotations

import contextlib
import json
import math
import os
import random
import time
import warnings
from collections.abc import Callable, Collection, Sequence
from importlib.util import find_spec
from typing import Any, Protocol, TypeVar

from oomproof.errors import USAGE, OomproofError
from oomproof.leaf.small_files import sha256_hex
from oomproof.sweeps.search_space import MOST_POINTS, Parameter, Point, SearchSpace, distance, key_of
from oomproof.sweeps.sweep_folder import Sweep
from oomproof.sweeps.sweep_plan import is_number
from oomproof.sweeps.sweep_trials import OVER, Trial

_PLAIN_AGAIN = 1000  # points in a row that were tried already


class Engine(Protocol):
    """Where the points of a sweep come from."""

    def ask(self, number: int, tried: set[str]) -> Point | None: ...

    def tell(self, trial: Trial) -> None: ...


class PlainEngine:
    def __init__(self, space: SearchSpace, seed: int) -> None:
        self._space, self._seed = space, seed

    def ask(self, number: int, tried: set[str]) -> Point | None:
        """The next point, for our trial of that number; None where every point was tried. ``tried``: keys of all before."""
        if self._space.method == "grid":
            return next((point for point in self._space.grid() if key_of(point) not in tried), None)
        rng = random.Random(f"{self._seed} {number}")  # the same for a trial whatever was killed before it
        for _ in range(_PLAIN_AGAIN):
            point = {parameter.name: drawn(parameter, rng) for parameter in self._space.parameters}
            if key_of(point) not in tried:
                return point
        return None

    def tell(self, trial: Trial) -> None:
        """Nothing is learnt from it."""


def drawn(parameter: Parameter, rng: random.Random) -> Any:
    """A value of it by chance."""
    if parameter.kind == "values":
        return rng.choice(parameter.values)
    if parameter.kind == "normal":
        return parameter.clean(rng.random())
    low, high = parameter.low, parameter.high
    if parameter.kind == "int" and not parameter.log:
        return rng.choice(range(int(low), int(high) + 1, int(parameter.step or 1)))
    sample = math.exp(rng.uniform(math.log(low), math.log(high))) if parameter.log else rng.uniform(low, high)
    return parameter.clean(min(high, max(low, round(sample) if parameter.kind == "int" else sample)))


_MISSING, _INSTALL = "method bayes needs Optuna", "pip install 'oomproof[sweep]'; grid and random do without"
_STUDY = "sweep"
_OVER = "memory_over"  # by which share a trial is larger than what it may hold; what the constraint reads
_NUMBER = "oomproof_trial"
_STARTUP = 10  # random points before the sampler leads, of a long sweep
_AGAIN = 10  # points in a row that were tried already, of a space without end: then it has one
_LEAST_SPACE = 1 << 20  # bytes: with less on the disk, whatever SQLite says means that it is full
T = TypeVar("T")


class NoOptuna(OomproofError):
    pass


def check_installed(space: SearchSpace) -> None:
    """Before anything is made. Raises OomproofError."""
    if space.method == "bayes" and find_spec("optuna") is None:
        raise NoOptuna(_MISSING, _INSTALL, USAGE)


def _import() -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import optuna
    except ImportError as error:
        raise NoOptuna(_MISSING, _INSTALL) from error
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


def engine_of(
    sweep: Sweep, space: SearchSpace, trials: Collection[Trial], seed: int, tell: Callable[[str], None]
) -> Engine:
    """Raises OomproofError where it takes Optuna, and there is none."""
    try:
        return OptunaEngine(sweep, space, trials, seed, tell)
    except NoOptuna:
        if space.method == "bayes":
            raise
        return PlainEngine(space, seed)


class OptunaEngine:
    """For whoever holds the sweep's lock."""

    def __init__(
        self,
        sweep: Sweep,
        space: SearchSpace,
        trials: Collection[Trial],
        seed: int,
        tell: Callable[[str], None],
    ) -> None:
        """Brings the storage up to the log: what ended meanwhile is told, what was never started is given up. ``trials``: those
        of the log, always as it is now."""
        self._optuna = _import()
        self._sweep, self._space, self._seed = sweep, space, seed
        self._tell = tell
        self._numbers: dict[int, int] = {}  # ours → Optuna's, which begins at 0 and counts what was given up
        self._trials = trials
        try:
            self._bring_up()
        except OomproofError:
            raise
        except Exception as error:  # a damaged file raises whatever SQLAlchemy, Alembic or SQLite think of it
            self._make_anew(error)

    def _bring_up(self) -> None:
        self._open()
        self._follow(list(self._trials))

    def _make_anew(self, error: Exception) -> None:
        self._refuse_full_disk(error)
        self._put_aside(error)
        self._bring_up()

    def _on_good_file(self, use: Callable[[], T]) -> T:
        """It may be damaged or removed while the sweep runs: then once more, on a new one."""
        try:
            return use()
        except Exception as error:
            self._make_anew(error)
            return use()

    # --- the storage ------------------------------------------------------------------------------------------

    def _open(self) -> None:
        import sqlalchemy  # Optuna's own

        optuna, space = self._optuna, self._space
        with _quiet():
            url = f"sqlite:///{self._sweep.storage_file}"
            storage = optuna.storages.RDBStorage(url, engine_kwargs={"connect_args": {"timeout": 60}})
            os.chmod(self._sweep.storage_file, 0o600)
            # the sweep's log is what outlives a power cut; ten commits of a trial wait for no disk
            sqlalchemy.event.listen(storage.engine, "connect", _without_sync)
            storage.engine.dispose()
            self._study = optuna.create_study(
                study_name=_STUDY,
                storage=storage,
                direction=space.goal,
                load_if_exists=True,
                sampler=optuna.samplers.RandomSampler(seed=self._seed),
            )
            finished = len(self._study.get_trials(deepcopy=False))
            self._study.sampler = self._sampler(finished)

    def _refuse_full_disk(self, error: Exception) -> None:
        """What ended stands in the log. Raises OomproofError."""
        space = os.statvfs(self._sweep.storage_file.parent)
        if space.f_bavail * space.f_frsize < _LEAST_SPACE:
            raise OomproofError(
                f"no space left for {self._sweep.storage_file}",
                f"free some there, then: oomproof sweep resume {self._sweep.name}",
            ) from error

    def _sampler(self, finished: int) -> Any:
        """Seeded by how far the sweep is: a sampler that begins anew would ask for the same points again."""
        seed = int(sha256_hex(f"{self._seed} {finished}".encode())[:8], 16)
        if self._space.method != "bayes":
            return self._optuna.samplers.RandomSampler(seed=seed)
        wanted = self._space.trials or self._space.points or 4 * _STARTUP
        return self._optuna.samplers.TPESampler(
            seed=seed,
            n_startup_trials=max(3, min(_STARTUP, wanted // 4)),
            constant_liar=True,  # several at once: not all beside the same best one
            constraints_func=_constraint,
        )

    def _put_aside(self, error: Exception) -> None:
        """Nothing is lost: all of it stands in the log."""
        aside = self._sweep.storage_file.with_name(f"optuna.sqlite.damaged-{time.strftime('%Y%m%d-%H%M%S')}")
        with contextlib.suppress(OSError):
            os.replace(self._sweep.storage_file, aside)
        for ending in ("-journal", "-wal", "-shm"):  # SQLite would put them into the new one
            with contextlib.suppress(OSError):
                os.unlink(f"{self._sweep.storage_file}{ending}")
        self._tell(
            f"Optuna's file could not be read ({type(error).__name__}); made again from the sweep's log"
        )

    def _follow(self, trials: Sequence[Trial]) -> None:
        state = self._optuna.trial.TrialState
        ours = {trial.number: trial for trial in trials}
        stored = self._study.get_trials(deepcopy=False)
        self._numbers = {
            number: frozen.number for frozen in stored if (number := frozen.user_attrs.get(_NUMBER)) in ours
        }
        for frozen in stored:
            known = self._numbers.get(frozen.user_attrs.get(_NUMBER)) == frozen.number
            if frozen.state == state.RUNNING and not known:  # killed before it was written down
                self._study.tell(frozen.number, state=state.FAIL)
        while any(frozen.state == state.WAITING for frozen in self._study.get_trials(deepcopy=False)):
            self._study.tell(self._study.ask(), state=state.FAIL)
        for trial in trials:
            if trial.number not in self._numbers:
                self._enqueue(trial.number, trial.values)
            if trial.state in OVER:
                self._write_end(trial)
            elif stored_state(self._study, self._numbers[trial.number]) != state.RUNNING:
                self._enqueue(trial.number, trial.values)  # it is to run again

    # --- points -----------------------------------------------------------------------------------------------

    def ask(self, number: int, tried: set[str]) -> Point | None:
        """The next point, for our trial of that number; None where every point was tried. ``tried``: keys of all before."""
        return self._on_good_file(lambda: self._next(number, tried))

    def _next(self, number: int, tried: set[str]) -> Point | None:
        if self._space.method == "grid":
            following = next((point for point in self._space.grid() if key_of(point) not in tried), None)
            if following is not None:
                self._enqueue(number, following)
            return following
        points = self._space.points
        finite = points is not None and points <= MOST_POINTS
        for _ in range(1 if finite else _AGAIN):
            with _quiet():
                trial = self._study.ask(self._distributions())
                point = self._point_of(trial.params)
                if key_of(point) not in tried:
                    self._note(trial, number)
                    return point
                self._study.tell(trial, state=self._optuna.trial.TrialState.FAIL)
        return self._untried(number, point, tried) if finite else None

    def _untried(self, number: int, near: Point, tried: set[str]) -> Point | None:
        """Of few points a sampler soon wants one again that was tried: its nearest neighbour that was not takes its place."""
        left = [point for point in self._space.grid() if key_of(point) not in tried]
        if not left:
            return None
        point = min(left, key=lambda point: distance(self._space.parameters, near, point))
        self._enqueue(number, point)
        return point

    def _note(self, trial: Any, number: int) -> None:
        trial.set_user_attr(_NUMBER, number)
        self._numbers[number] = int(trial.number)

    def _enqueue(self, number: int, point: Point) -> None:
        with _quiet():
            self._study.enqueue_trial(self._params_of(point))
            self._note(self._study.ask(self._distributions()), number)

    def tell(self, trial: Trial) -> None:
        """How it ended. Of one that Optuna knows as ended already nothing is said."""
        self._on_good_file(lambda: self._write_end(trial))

    def _write_end(self, trial: Trial) -> None:
        state = self._optuna.trial.TrialState
        number = self._numbers[trial.number]
        frozen = self._study.get_trials(deepcopy=False)[number]
        if frozen.state != state.RUNNING:
            return
        asked = self._optuna.trial.Trial(self._study, frozen._trial_id)
        asked.set_user_attr("end", trial.state if not trial.why else f"{trial.state}: {trial.why}"[:500])
        last = trial.last
        if last is not None and last.peak:
            asked.set_user_attr("peak_bytes", last.peak)
        with _quiet():
            if trial.state == "done" and is_number(trial.metric):
                self._study.tell(number, trial.metric)
            elif trial.state in ("out-of-memory", "skipped"):
                asked.set_user_attr(_OVER, float(trial.over or 0.05))
                self._study.tell(number, state=state.PRUNED)
            else:
                self._study.tell(number, state=state.FAIL)

    # --- values -----------------------------------------------------------------------------------------------

    def _distributions(self) -> dict[str, Any]:
        return {parameter.name: self._distribution(parameter) for parameter in self._space.parameters}

    def _distribution(self, parameter: Parameter) -> Any:
        made = self._optuna.distributions
        if parameter.kind == "values":
            return made.CategoricalDistribution(_choices(parameter))
        if parameter.kind == "int":
            step = int(parameter.step or 1)
            high = int(parameter.low) + (int(parameter.high) - int(parameter.low)) // step * step
            return made.IntDistribution(int(parameter.low), high, log=parameter.log, step=step)
        if parameter.kind == "normal":
            return made.FloatDistribution(0.0, 1.0)
        return made.FloatDistribution(parameter.low, parameter.high, log=parameter.log)

    def _point_of(self, params: dict[str, Any]) -> Point:
        point: Point = {}
        for parameter in self._space.parameters:
            raw = params[parameter.name]
            if parameter.kind == "values":
                point[parameter.name] = parameter.values[_choices(parameter).index(raw)]
            else:
                point[parameter.name] = parameter.clean(raw)
        return point

    def _params_of(self, point: Point) -> dict[str, Any]:
        """The sampler's numbers of a point."""
        params: dict[str, Any] = {}
        for parameter in self._space.parameters:
            value = point[parameter.name]
            if parameter.kind == "values":
                params[parameter.name] = _choices(parameter)[parameter.values.index(value)]
            elif parameter.kind == "normal":
                params[parameter.name] = parameter.sample_of(value)
            else:
                params[parameter.name] = min(parameter.high, max(parameter.low, value))
        return params


def _without_sync(connection: Any, _: object) -> None:
    connection.execute("PRAGMA synchronous=OFF")


def stored_state(study: Any, number: int) -> Any:
    return study.get_trials(deepcopy=False)[number].state


def _choices(parameter: Parameter) -> list[Any]:
    """Optuna takes plain values; a list or an object is its text. True and 1 are the same to it, and so are told apart by text."""
    plain = [
        value
        if value is None or isinstance(value, bool | int | float | str)
        else json.dumps(value, default=str)
        for value in parameter.values
    ]
    return plain if len(set(plain)) == len(plain) else [repr(value) for value in parameter.values]


def _constraint(frozen: Any) -> tuple[float]:
    return (float(frozen.user_attrs.get(_OVER, 0.0)),)


class _quiet(warnings.catch_warnings):
    """Optuna warns of what is experimental, deprecated or repeated: nothing that whoever runs a sweep can change."""

    def __enter__(self) -> None:
        super().__enter__()
        warnings.simplefilter("ignore")

"""The loop takes the steps of its schedule, from what they release alone."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
from _plain_engine import PlainEngine, arguments_of, step_of

import numpyro_vips as nv
from numpyro_vips.fitting.fit_loop import FitLoop
from numpyro_vips.fitting.progress import Progress
from numpyro_vips.fitting.reducers.reducer import Reducer
from numpyro_vips.fitting.schedule_options import ScheduleOptions
from numpyro_vips.privacy.secure_random import SecureRandom

pytestmark = pytest.mark.filterwarnings("ignore:insecure_seed")

X = np.random.default_rng(0).normal(size=(50, 2))
FULL = ScheduleOptions(sampling=nv.FullBatch())
UNTIL = ScheduleOptions(sampling=nv.FullBatch(), private=False)


class Kept:
    """A checkpoint in memory."""

    def __init__(self) -> None:
        self.released: list[Any] = []

    def keep(self, released: Any) -> None:
        self.released.append(dict(released))


class Restarted(PlainEngine):
    """It starts from several points, and the second one is the best."""

    def other_starts(self, rng_key: Any) -> list[Any]:
        return [["second"], ["third"]]

    def has_converged(self, state: Any) -> bool:
        return False

    def best(self, states: Sequence[Any], arguments: Any) -> Any:
        (found,) = (state for state in states if state[0] == "second")
        return found


def loop(engine: Any, options: Any = FULL, **others: Any) -> FitLoop:
    graph = SimpleNamespace(arguments=SimpleNamespace(public_num_rows=len(X)))
    prepared: Any = SimpleNamespace(
        arguments=arguments_of(X), engine=engine, parts=(), graph=graph
    )
    return FitLoop(
        prepared=prepared,
        options=options,
        rng_key=jax.random.key(0),
        random=SecureRandom(insecure_seed=0),
        reducer=Reducer(),
        **{
            "resumed": (),
            "keeps_steps": False,
            "checkpoint": None,
            "shows_passes": False,
        }
        | others,
    )


def steps(number: int, **options: Any) -> Progress:
    return Progress(steps=(step_of(nv.FullBatch(), 1.0, **options),) * number)


def test_each_step_of_the_fit_is_yielded_and_those_aside_are_not() -> None:
    pilot = step_of(nv.FullBatch(), 1.0, is_pilot=True)
    progress = Progress(steps=(pilot, *steps(3).steps))
    found = list(loop(PlainEngine()).states([], progress))
    # A bound and an update for each step; the pilot's are in the first.
    assert [len(state) for state, _ in found] == [4, 6, 8]


def test_a_fit_that_goes_on_ends_where_it_would_have() -> None:
    """And the steps that ran before draw no row again."""
    kept: Any = Kept()
    whole = loop(PlainEngine(), keeps_steps=True, checkpoint=kept)
    *_, (ended, _) = whole.states([], steps(4))
    assert len(kept.released) == 4
    engine = PlainEngine()
    again = loop(engine, resumed=kept.released[:3])
    state, progress = again.after_resumed([], steps(4))
    assert engine.chunks == []
    assert state == ended[:6]
    (last,) = again.states(state, progress)
    assert len(engine.chunks) == 1
    # The random numbers are the first ones of this process.
    (first, _), *_ = loop(PlainEngine()).states([], steps(1))
    assert last[0][-1] == first[-1]
    # With all of them released there is nothing left to do.
    done = loop(engine, resumed=kept.released)
    state, progress = done.after_resumed([], steps(4))
    assert state == ended and list(done.states(state, progress)) == []


def test_without_noise_a_fit_ends_when_it_has_converged() -> None:
    found = list(loop(PlainEngine(), UNTIL).states([], steps(10)))
    assert len(found) == 2
    # With noise every step that was paid for runs.
    assert len(list(loop(PlainEngine()).states([], steps(10)))) == 10


def test_an_engine_may_go_its_own_way_only_where_nothing_is_private() -> None:
    class Alone(PlainEngine):
        def until_converged(self, state: Any, arguments: Any) -> Any:
            return iter([["alone", 1], ["alone", 2]])

    found = [state for state, _ in loop(Alone(), UNTIL).states([], steps(3))]
    assert found == [["alone", 1], ["alone", 2]]
    found = [state for state, _ in loop(Alone()).states([], steps(3))]
    assert all(state[0] != "alone" for state in found)


def test_the_best_of_several_starts_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("numpyro_vips.fitting.fit_loop._EXPLORING_STEPS", 2)
    start = ["first"]
    found = [state for state, _ in loop(Restarted(), UNTIL).states(start, steps(5))]
    origins = [state[0] for state in found]
    assert origins == [
        *("first", "first", "second", "second", "third", "third"),
        *("second", "second", "second", "second"),
    ]
    # Two steps of exploring and three more: a bound and an update for each.
    assert len(found[-1]) == 1 + 2 * 5

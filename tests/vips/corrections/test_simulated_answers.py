"""Simulated rows, and what they answer, where the answer has a closed form."""

from typing import Any

import numpy as np
import pytest
from _repeated import BETWEEN, COMPLETE, ROWS, WITHIN, fit, levels, mean_of

from numpyro_vips.vips.corrections.simulated_answers import SimulatedAnswers
from numpyro_vips.vips.steps.released_sums import AskedPlace, Bound, Unclipped
from numpyro_vips.vips.steps.statistic_coordinates import StatisticCoordinates

NAME = "⟨mean⟩"


@pytest.fixture(scope="module")
def state() -> tuple[Any, Any]:
    """The engine, and its state after one release."""
    made = fit()
    sums = made.sums(made.start, 1e15)
    noise = dict.fromkeys(sums, 10.0)
    return made.engine, made.engine.update(made.start, sums, noise, 1.0)


def answers_of(state: tuple[Any, Any], **changes: Any) -> SimulatedAnswers:
    engine, now = state
    now = now._replace(**changes)
    (statistic,) = (s for s in engine.statistics if s.name == NAME)
    return SimulatedAnswers(
        engine.on_rows.simulator,
        StatisticCoordinates([statistic]),
        engine.on_rows,
        engine.on_globals,
        now,
        Unclipped(now.statistics, now.noise_stddev),
    )


def vector(mean: float) -> np.ndarray:
    """The sum that leads to a posterior with this mean."""
    return np.array([mean / mean_of(1.0)])


def all_of(rows: Any) -> np.ndarray:
    return np.concatenate([np.asarray(chunk["y"]) for chunk in rows])


@pytest.mark.parametrize("mean", [-3.0, 2.0])
def test_rows_are_those_of_the_model_where_the_sums_lead(
    mean: float, state: tuple[Any, Any]
) -> None:
    rows = answers_of(state).rows(vector(mean))
    assert rows is not None
    y = all_of(rows)
    assert len(y) >= ROWS
    of_rows = y.mean(1)
    spread = BETWEEN**2 + WITHIN**2 / 2
    assert abs(of_rows.mean() - mean) < 4 * np.sqrt(spread / len(y))
    assert np.var(of_rows) == pytest.approx(spread, rel=4 * np.sqrt(2 / len(y)))


def test_sums_are_those_of_all_rows_at_the_globals_asked_about(
    state: tuple[Any, Any],
) -> None:
    answers = answers_of(state)
    rows = answers.rows(vector(2.0))
    assert rows is not None
    y = all_of(rows)
    for mean in (2.0, -1.0):
        found = answers.sums(vector(mean), rows)
        # As many simulated rows count for as many real ones.
        wanted = ROWS / len(y) * COMPLETE * levels(y, mean).sum()
        assert found is not None
        np.testing.assert_allclose(found, [wanted], rtol=1e-5)


def test_early_sums_are_weighed_as_the_places_of_the_fit(
    state: tuple[Any, Any],
) -> None:
    places = [(0.25, 0.0), (0.75, 1.5)]
    first = state[1].asked[0]
    asked = tuple(
        AskedPlace(
            weight,
            {
                name: np.asarray(mean, np.float32) + 0 * value
                for name, value in first.place.items()
            },
            None,
        )
        for weight, mean in places
    )
    answers = answers_of(state, asked=asked)
    rows = answers.rows(vector(2.0))
    assert rows is not None
    y = all_of(rows)
    wanted = sum(w * levels(y, mean).sum() for w, mean in places)
    wanted *= ROWS / len(y) * COMPLETE
    np.testing.assert_allclose(answers.early_sums(rows), [wanted], rtol=1e-5)


def test_rows_were_clipped_where_they_were_asked_and_are_not_elsewhere(
    state: tuple[Any, Any],
) -> None:
    norm = 2.0
    clipped = Bound({NAME: 1.0}, norm)
    asked = tuple(each._replace(bound=clipped) for each in state[1].asked)
    answers = answers_of(state, asked=asked)
    rows = answers.rows(vector(2.0))
    assert rows is not None
    y = all_of(rows)
    each = COMPLETE * levels(y, 0.0)
    assert np.mean(np.abs(each) > norm) > 0.05
    wanted = ROWS / len(y) * np.clip(each, -norm, norm).sum()
    np.testing.assert_allclose(answers.early_sums(rows), [wanted], rtol=1e-4)
    whole: Any = answers.sums(vector(2.0), rows)
    wanted = ROWS / len(y) * COMPLETE * levels(y, 2.0).sum()
    np.testing.assert_allclose(whole, [wanted], rtol=1e-5)


def test_sums_without_a_posterior_have_no_answer(state: tuple[Any, Any]) -> None:
    answers = answers_of(state)
    assert answers.natural(np.array([np.nan])) is None
    rows = answers.rows(vector(2.0))
    assert rows is not None
    assert answers.sums(np.array([np.nan]), rows) is None


def test_rows_are_the_same_for_one_release_and_others_for_another(
    state: tuple[Any, Any],
) -> None:
    first, again = (answers_of(state).rows(vector(2.0)) for _ in range(2))
    other = {NAME: state[1].statistics[NAME] + 1.0}
    statistics = {**state[1].statistics, **other}
    third = answers_of(state, statistics=statistics).rows(vector(2.0))
    assert first is not None and again is not None and third is not None
    np.testing.assert_array_equal(all_of(first), all_of(again))
    assert np.mean(all_of(first) == all_of(third)) < 0.01

"""Columns that may be zero in all rows."""

from typing import Any

import numpy as np
import pytest
from _logistic_fits import posterior_draws
from _symmetric_noise import noisy_information

import numpyro_vips as nv
from numpyro_vips.vips.m_step.absent_columns import (
    OwnInformation,
    own_information,
    with_absent_columns,
)
from numpyro_vips.vips.m_step.noisy_information import Information
from numpyro_vips.vips.steps.newton_steps import NewtonTarget
from numpyro_vips.vips.units.frames import Frame


def curvature(rng: np.random.Generator, present: np.ndarray) -> np.ndarray:
    """Of coordinates alike, but for those that no row has."""
    root = rng.normal(size=(len(present), 40)) * present[:, None]
    return root @ root.T / 40.0


def own(first: Information | None, last: Information, **options: Any) -> OwnInformation:
    """Of the coordinates themselves, with scores that have next to no noise."""
    size = len(last.matrix)
    return own_information(
        first,
        last,
        np.eye(size),
        prior=np.full(size, 0.01),
        variance=np.full(size, 1e-6),
        **options,
    )


def test_absent_columns_are_told_from_others():
    """Three in ten, beside noise of a quarter of a column's own entry."""
    rng = np.random.default_rng(0)
    chances, most, absent = [], [], []
    for _ in range(100):
        present = rng.random(8) > 0.3
        found = own(None, noisy_information(curvature(rng, present), 0.25, rng))
        chances.append(found.absent)
        most.append(found.precision)
        absent.append(~present)
    found, precision = np.concatenate(chances), np.concatenate(most)
    truth = np.concatenate(absent)
    assert np.mean(found[truth]) > 0.2
    assert np.mean(found[~truth]) < 0.05
    # The prior has .01. Of what is present rows say about 1.
    assert np.median(precision[truth]) < 0.05
    assert 0.3 < np.median(precision[~truth]) < 1.1


def test_columns_that_noise_hides_alike_are_not_taken_for_absent():
    rng = np.random.default_rng(1)
    found = [
        own(None, noisy_information(curvature(rng, np.ones(20)), 0.7, rng)).absent
        for _ in range(20)
    ]
    assert np.mean(found) < 0.05


def test_both_releases_count():
    """The first has more of every entry, and shows what the last one hides."""
    rng = np.random.default_rng(2)
    alone, together = [], []
    for _ in range(50):
        matrix = curvature(rng, np.arange(6) > 0)
        first, last = (
            noisy_information(matrix, 1.0, rng, factor=factor) for factor in (5.0, 1.5)
        )
        alone.append(own(None, last).absent)
        together.append(own(first, last).absent)
    assert np.mean(together, axis=0)[0] > np.mean(alone, axis=0)[0] + 0.1
    assert np.mean(together, axis=0)[1:].max() < 0.05


def test_what_is_not_listed_is_more_probably_absent():
    rng = np.random.default_rng(3)
    last = noisy_information(curvature(rng, np.array([0, 0, 1, 1, 1, 1])), 0.5, rng)
    plain = own(None, last).absent
    unlisted = own(None, last, unlisted=np.arange(6) == 0).absent
    assert 0.0 < plain[0] < unlisted[0] < 1.0


def test_noise_in_scores_takes_of_what_an_entry_allows():
    """As λ²/(λ + V) for a known λ."""
    last = Information(np.diag([50.0, 80.0]), np.full((2, 2), 1e-3))
    found = own_information(
        None,
        last,
        np.eye(2),
        prior=np.ones(2),
        variance=np.array([1e-9, 40.0]),
    )
    np.testing.assert_allclose(found.precision, [50.0, 80.0**2 / 120.0], rtol=1e-3)
    np.testing.assert_allclose(found.absent, 0.0, atol=1e-9)


def test_without_noise_nothing_is_made_of_it():
    last = Information(np.diag([50.0, 0.0]), np.zeros((2, 2)))
    found = own(None, last)
    assert np.all(found.precision == np.inf) and not found.absent.any()


def test_the_coordinates_are_those_of_the_model():
    """Whatever the frame is in which the curvature was released."""
    rng = np.random.default_rng(4)
    matrix = np.diag([400.0, 0.0, 300.0, 500.0, 350.0])
    turn = rng.normal(size=(5, 5))
    frame = Frame.of(np.zeros(5), turn)
    last = noisy_information(turn.T @ matrix @ turn, 5.0, rng)
    target = NewtonTarget(
        mean=np.zeros(5),
        covariance=np.eye(5),
        residual=np.zeros(5),
        noise_stddev=np.ones(5),
        curvature=last.matrix,
        curvature_noise=np.asarray(last.noise_stddev),
        prior_linear=np.zeros(5),
        prior_precision=np.eye(5),
    )
    found = with_absent_columns(target, None, frame, intercept=0, unlisted=None)
    assert found.absent is not None and found.axes is not None
    np.testing.assert_allclose(turn @ found.axes, np.eye(5), atol=1e-9)
    assert found.absent[0] == 0.0
    assert found.absent[1] > 0.3 and found.absent[2:].max() < 0.02
    assert found.most_known is not None
    assert found.most_known[0] == np.inf and found.most_known[2:].min() > 10.0


@pytest.mark.thorough
@pytest.mark.parametrize("is_encoded", [True, False])
def test_of_a_column_of_zeros_the_prior_alone_speaks(is_encoded: bool) -> None:
    """Its intervals were at where noise had led, and a half held the truth."""
    rng = np.random.default_rng(0)
    jobs = rng.choice(["cook", "nurse", "clerk"], 3000)
    encoded = nv.Schema(
        job=nv.Categorical(["cook", "nurse", "clerk"], reference="cook"),
        age=nv.Bounded(0.0, 100.0),
    ).encode({"job": jobs, "age": rng.uniform(0.0, 100.0, 3000)})
    X = encoded if is_encoded else np.asarray(encoded)
    zeros = 2
    assert not np.asarray(X)[:, zeros].any()
    w = np.array([0.8, -0.5, 0.0, 1.0])
    means, stddevs = [], []
    for draws in posterior_draws(X, 0.3, w, rng, fits=6):
        drawn = np.asarray(draws["w"])
        means.append(drawn.mean(0))
        stddevs.append(drawn.std(0))
    errors, widths = np.asarray(means) - w, np.asarray(stddevs)
    assert np.abs(errors[:, zeros]).mean() < 0.25
    assert widths[:, zeros].mean() > 0.9
    others = np.arange(4) != zeros
    assert np.mean(np.abs(errors[:, others] / widths[:, others]) < 1.645) > 0.75
    assert np.sqrt(np.mean(errors[:, others] ** 2)) < 0.35

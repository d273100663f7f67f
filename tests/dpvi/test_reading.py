"""Of which scores a posterior is made that knows of the noise."""

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from numpyro_vips.dpvi import reading
from numpyro_vips.dpvi.iterates import DpviState, Variational
from numpyro_vips.dpvi.posterior.noise_aware import RunningScore
from numpyro_vips.dpvi.posterior.score_likelihood import NoiseAwareNormal
from numpyro_vips.dpvi.posterior.variational_newton import VectorNormal

# An intercept and its slope, each known badly, and their sum well.
COVARIANCE = np.array([[1.0, -0.99], [-0.99, 1.0]])


def score_at(*place: float) -> RunningScore:
    return RunningScore(jnp.zeros(2), jnp.asarray(place), jnp.asarray(1.0))


def normal_of(score: RunningScore, *_: Any) -> NoiseAwareNormal:
    tril = np.linalg.cholesky(COVARIANCE)
    mean = np.asarray(score.place, np.float64)
    return NoiseAwareNormal(VectorNormal(mean, tril), np.ones(2))


# Halves of ten steps: four are on the way, three come before the late ones.
COMPILED: Any = SimpleNamespace(
    program=SimpleNamespace(
        options=SimpleNamespace(num_approaching=4, num_before_late=7)
    ),
    noise_aware=SimpleNamespace(
        normal=normal_of, posterior=lambda _: SimpleNamespace(problems=list)
    ),
)


def state_of(score: RunningScore, late: RunningScore, step: int = 10) -> DpviState:
    information: Any = object()
    guide = {"loc": jnp.zeros(2), "log_scale": jnp.zeros(2)}
    average = Variational(guide=guide, params={})
    return DpviState(
        variational=average,
        average=average,
        optimizer_state=(),
        key=jax.random.key(0),
        step=jnp.asarray(step),
        score=score,
        late=late,
        information=information,
    )


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    ("early", "takes_late"),
    [
        ((0.0, 0.0), False),
        ((2.0, -2.0), False),  # Along what rows say little of.
        ((0.3, 0.3), True),  # Four deviations of their sum, and more.
        ((9.0, -9.0), True),
    ],
)
def test_steps_that_were_too_far_from_the_last_ones_do_not_count(
    early: tuple[float, float], takes_late: bool
) -> None:
    # Three steps there and three here.
    score, late = score_at(*(0.5 * np.array(early))), score_at(0.0, 0.0)
    made = reading._noise_aware(COMPILED, state_of(score, late))
    assert made is not None
    assert made.score is (late if takes_late else score)
    np.testing.assert_array_equal(made.found.normal.loc, made.score.place)


@pytest.mark.usefixtures("x64")
def test_before_the_late_steps_all_that_count_do() -> None:
    score, late = score_at(0.0, 0.0), score_at(9.0, 9.0)
    made = reading._noise_aware(COMPILED, state_of(score, late, step=7))
    assert made is not None and made.score is score

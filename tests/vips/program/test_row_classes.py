"""Rows of one unknown class: the first steps of their fits leave nothing behind."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _engine_fit import EngineFit

from numpyro_vips.vips.program.forgotten_steps import num_waiting
from numpyro_vips.vips.steps.step_sizes import DEFAULT_STEPS

CLASSES = 2


def latent_classes(answers: Any) -> None:
    share = numpyro.sample("share", dist.Dirichlet(jnp.ones(CLASSES)))
    with numpyro.plate("classes", CLASSES):
        yes = numpyro.sample("yes", dist.Beta(jnp.ones(6), 1.0).to_event(1))
    with numpyro.plate("rows", answers.shape[0]):
        member = numpyro.sample(
            "member", dist.Categorical(share), infer={"enumerate": "parallel"}
        )
        numpyro.sample("answers", dist.Bernoulli(yes[member]).to_event(1), obs=answers)


def rates(counts: Any) -> None:
    share = numpyro.sample("share", dist.Dirichlet(jnp.ones(CLASSES)))
    with numpyro.plate("classes", CLASSES):
        rate = numpyro.sample("rate", dist.Gamma(2.0, 0.2))
    with numpyro.plate("rows", counts.shape[0]):
        mixture = dist.MixtureSameFamily(dist.Categorical(share), dist.Poisson(rate))
        numpyro.sample("counts", mixture, obs=counts)


def parted_means(x: Any) -> None:
    share = numpyro.sample("share", dist.Dirichlet(jnp.ones(CLASSES)))
    with numpyro.plate("classes", CLASSES):
        mean = numpyro.sample("mean", dist.Normal(jnp.array([-50.0, 50.0]), 5.0))
    with numpyro.plate("rows", x.shape[0]):
        mixture = dist.MixtureSameFamily(dist.Categorical(share), dist.Normal(mean, 1))
        numpyro.sample("x", mixture, obs=x)


def chains(answers: Any) -> None:
    with numpyro.plate("classes", CLASSES):
        after = numpyro.sample("after", dist.Dirichlet(jnp.ones(CLASSES)))
        yes = numpyro.sample("yes", dist.Beta(1.0, 1.0))
    with numpyro.plate("rows", answers.shape[0]):
        state = 0
        for time in range(3):
            state = numpyro.sample(
                f"state_{time}",
                dist.Categorical(after[state]),
                infer={"enumerate": "parallel"},
            )
            numpyro.sample(
                f"answer_{time}", dist.Bernoulli(yes[state]), obs=answers[:, time]
            )


ANSWERS = np.zeros((10, 6), np.int32)
COUNTS = np.zeros(10, np.int32)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("model", "rows", "expected"),
    [
        (latent_classes, ANSWERS, "member"),
        (rates, COUNTS, "counts:allocation"),
        (parted_means, np.zeros(10, np.float32), None),
        (chains, ANSWERS, None),
    ],
)
def test_only_a_row_of_one_class_that_priors_do_not_tell_has_one(
    model: Callable[[Any], None], rows: np.ndarray, expected: str | None
) -> None:
    program = EngineFit(model, (rows,)).engine.program
    assert program.row_class == expected
    assert program.starts_far == (expected is not None)


@pytest.mark.thorough
def test_the_first_steps_of_a_fit_under_noise_are_forgotten() -> None:
    engine = EngineFit(rates, (COUNTS,)).engine
    number = engine.default_num_steps(is_private=True, until_converged=False)
    assert number > DEFAULT_STEPS
    sizes = engine.step_sizes(number, is_private=True, is_full=True)
    assert sizes[: num_waiting(number)] == (1.0,) * num_waiting(number)
    assert sizes[-1] < 0.5
    notes = " ".join(engine.notes())
    assert "counts:allocation is hardly known" in notes

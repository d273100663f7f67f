"""Shares and scales of mixtures wait until the means have parted."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _engine_fit import EngineFit
from _fits import vi_of

import numpyro_vips as nv
from numpyro_vips.vips.program.forgotten_steps import num_waiting

COMPONENTS = 3


def _means_around(*centres: float) -> Callable[[], Any]:
    """Components with a prior each, of standard deviation 5."""

    def means() -> Any:
        return dist.Normal(
            numpyro.sample("mean", dist.Normal(jnp.array(centres), 5.0)), 1.0
        )

    return means


def _flat_means() -> Any:
    prior = dist.ImproperUniform(dist.constraints.real, (COMPONENTS,), ())
    return dist.Normal(numpyro.sample("mean", prior), 1.0)


def _mixture_of(component: Callable[[], Any]) -> Callable[[Any], None]:
    def model(x: Any) -> None:
        share = numpyro.sample("share", dist.Dirichlet(jnp.ones(COMPONENTS)))
        with numpyro.plate("components", COMPONENTS):
            of_components = component()
        with numpyro.plate("rows", x.shape[0]):
            chosen = dist.Categorical(probs=share)
            mixture = dist.MixtureSameFamily(chosen, of_components)
            numpyro.sample("x", mixture, obs=x)

    return model


def _means_alone() -> Any:
    return dist.Normal(numpyro.sample("mean", dist.Normal(0.0, 5.0)), 1.0)


def _means_and_precisions() -> Any:
    mean = numpyro.sample("mean", dist.Normal(0.0, 5.0))
    return dist.Normal(mean, 1 / jnp.sqrt(numpyro.sample("tau", dist.Gamma(2.0, 2.0))))


def _rates() -> Any:
    return dist.Poisson(numpyro.sample("rate", dist.Gamma(2.0, 1.0)))


def _one_mean(x: Any) -> None:
    tau = numpyro.sample("tau", dist.Gamma(2.0, 2.0))
    mean = numpyro.sample("mean", dist.Normal(0.0, 5.0))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("x", dist.Normal(mean, 1 / jnp.sqrt(tau)), obs=x)


NUMBERS = np.zeros(10, np.float32)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("model", "rows", "expected"),
    [
        (_mixture_of(_means_alone), NUMBERS, {"share"}),
        (_mixture_of(_means_and_precisions), NUMBERS, {"share", "tau"}),
        (_mixture_of(_means_around(0, 1, 2)), NUMBERS, {"share"}),
        (_mixture_of(_means_around(0, 0, 90)), NUMBERS, {"share"}),
        (_mixture_of(_means_around(-90, 0, 90)), NUMBERS, set()),
        (_mixture_of(_flat_means), NUMBERS, {"share"}),
        (_mixture_of(_rates), np.zeros(10, np.int32), set()),
        (_one_mean, NUMBERS, set()),
    ],
    ids=[
        "means",
        "means and precisions",
        "priors that overlap",
        "one prior apart",
        "all priors apart",
        "flat priors",
        "rates",
        "no mixture",
    ],
)
def test_what_waits(
    model: Callable[..., None], rows: np.ndarray, expected: set[str]
) -> None:
    fit = EngineFit(model, (rows,), engine="vips")
    assert fit.engine.program.waiting == expected


SHAPE = np.array([[1.0, 0.3], [0.3, 2.0]])


def test_a_model_that_captures_an_array_is_run_in_one_precision_only() -> None:
    """JAX fails where a captured array meets a program of the other one."""

    def model(x: Any) -> None:
        with numpyro.plate("components", 2):
            mean = numpyro.sample("mean", dist.Normal(0, 3).expand([2]).to_event(1))
            tau = numpyro.sample("tau", dist.Gamma(2.0, 1.0))
        with numpyro.plate("rows", x.shape[0]):
            z = numpyro.sample("z", dist.Categorical(jnp.array([0.3, 0.7])))
            matrix = tau[z][:, None, None] * SHAPE
            normal = dist.MultivariateNormal(mean[z], precision_matrix=matrix)
            numpyro.sample("x", normal, obs=x)

    fit = EngineFit(model, (np.zeros((10, 2), np.float32),), engine="vips")
    assert fit.engine.program.waiting == {"tau"}


@pytest.mark.thorough
def test_steps_that_wait_are_forgotten_and_get_less_of_the_budget() -> None:
    model = _mixture_of(_means_and_precisions)
    steps = [
        step
        for step in EngineFit(model, (NUMBERS,), engine="vips").steps
        if not step.is_aside
    ]
    waiting = num_waiting(len(steps))
    assert 0 < waiting < len(steps)
    assert [step.step_size for step in steps[: waiting + 2]] == [
        *[1.0] * (waiting + 1),
        pytest.approx(2 / 3),
    ]
    shares = np.array([step.noise_multiplier**-2 for step in steps])
    np.testing.assert_allclose(shares[:waiting], 0.2 * shares[-1])
    np.testing.assert_allclose(shares[waiting:], shares[-1])


@pytest.mark.thorough
def test_scales_and_shares_stay_where_they_are_for_so_long() -> None:
    """And minibatches, whose sums are averaged from the first on, hold nothing."""
    model = _mixture_of(_means_and_precisions)
    fit = EngineFit(model, (NUMBERS,), engine="vips")
    engine, blocks = fit.engine, fit.engine.blocks("adaptive")
    rng = np.random.default_rng(0)

    def moments(num_updates: int, sampling_rate: float) -> list[Any]:
        state, found = fit.start, []
        for _ in range(num_updates):
            state = engine.with_bound(
                state, {b.name: 1.0 for b in blocks}, 1.0, sampling_rate
            )
            sums = {b.name: rng.uniform(1.0, 2.0, b.shape) for b in blocks}
            state = engine.update(state, sums, {b.name: 1e-3 for b in blocks}, 1.0)
            found.append(state.moments)
        return found

    waiting = num_waiting(sum(not step.is_aside for step in fit.steps))
    *held, free = moments(waiting + 1, 1.0)
    for name in ("share", "tau"):
        for of in held:
            jax.tree.map(
                np.testing.assert_array_equal, of[name], fit.start.moments[name]
            )
        assert not np.allclose(free[name]["log"], fit.start.moments[name]["log"])
    assert not np.allclose(held[0]["mean"]["x"], fit.start.moments["mean"]["x"])
    (sampled,) = moments(1, 0.1)
    assert not np.allclose(sampled["tau"]["log"], fit.start.moments["tau"]["log"])


CENTRES = np.array([[0, 0], [2, 2], [2, -2], [-2, 2], [-2, -2]], float)


@nv.private(unit="rows")
def five_clusters(x: Any) -> None:
    share = numpyro.sample("share", dist.Dirichlet(jnp.ones(5)))
    with numpyro.plate("components", 5):
        prior: Any = dist.Normal(0.0, 1.0).expand([2]).to_event(1)
        mean = numpyro.sample("mean", prior)
        variance = numpyro.sample("variance", dist.InverseGamma(1.0, 1.0))
    components = dist.Normal(mean, jnp.sqrt(variance)[:, None]).to_event(1)
    with numpyro.plate("rows", x.shape[0]):
        chosen = dist.Categorical(probs=share)
        numpyro.sample("x", dist.MixtureSameFamily(chosen, components), obs=x)


@pytest.mark.thorough
def test_overlapping_clusters_are_found_under_noise() -> None:
    """One broad component, where fits without a wait end, is at -0.19."""
    rng = np.random.default_rng(0)
    rows = CENTRES[rng.integers(0, 5, 6000)]
    rows = (rows + rng.normal(size=rows.shape)).astype(np.float32)
    x, others = rows[:1000], rows[1000:]
    vi = vi_of(
        five_clusters,
        budget=nv.PrivacyBudget(8.0, 1e-2),
        engine="vips",
        epsilon=4.0,
        delta=1e-3,
        insecure_seed=0,
    )

    def density(share: Any, mean: Any, variance: Any) -> float:
        components = dist.Normal(mean, jnp.sqrt(variance)[:, None]).to_event(1)
        mixture = dist.MixtureSameFamily(dist.Categorical(probs=share), components)
        return float(mixture.log_prob(others).mean())

    truth = density(jnp.full(5, 0.2), CENTRES, jnp.ones(5))
    for seed in range(2):
        result: Any = vi.run(jax.random.key(seed), x)
        draws = result.sample_posterior(jax.random.key(9), sample_shape=(500,))
        found = {name: jnp.mean(draws[name], axis=0) for name in draws}
        assert density(**found) > truth - 0.1


@pytest.mark.thorough
def test_components_that_priors_have_apart_stay_there_with_few_rows() -> None:
    """Waiting steps, which forget, had them change places in every second fit."""

    @nv.private(unit="rows")
    def two_groups(y: Any) -> None:
        share = numpyro.sample("share", dist.Beta(5.0, 5.0))
        with numpyro.plate("components", 2):
            mean = numpyro.sample("mean", dist.Normal(jnp.array([20.0, 80.0]), 5.0))
        with numpyro.plate("rows", y.shape[0]):
            z = numpyro.sample("z", dist.Categorical(jnp.stack([1 - share, share])))
            numpyro.sample("y", dist.Normal(mean[z], 8.0), obs=y)

    rng = np.random.default_rng(0)
    centres = np.array([22.0, 76.0])
    y = rng.normal(centres[rng.integers(0, 2, 1000)], 8.0).astype(np.float32)
    vi = vi_of(
        two_groups,
        budget=nv.PrivacyBudget(4.0, 1e-4),
        epsilon=0.5,
        delta=1e-5,
        insecure_seed=0,
    )
    for seed in range(6):
        result: Any = vi.run(jax.random.key(seed), y)
        draws = result.sample_posterior(jax.random.key(9), sample_shape=(200,))
        np.testing.assert_allclose(draws["mean"].mean(0), centres, atol=8.0)

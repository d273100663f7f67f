"""What a refusal says is done word for word, and one pass of that is enough.

The models are those of tutorials, as one would write them who knows NumPyro alone.
"""

import contextlib
import functools
import warnings
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _fits import fit_to, vi_of

import numpyro_vips as nv

RNG = np.random.default_rng(0)
COUNT = 3000
BEFORE = RNG.normal(size=COUNT).astype(np.float32)
TREATED = RNG.integers(0, 2, COUNT).astype(np.float32)
AFTER = 0.5 + 0.4 * TREATED + 0.8 * BEFORE + 0.5 * RNG.normal(size=COUNT)
AFTER = AFTER.astype(np.float32)
GROUPS = RNG.integers(0, 7, COUNT)


def refusal(model: Any, *arguments: Any) -> str:
    with pytest.raises(nv.UnsafeModelError) as caught:
        vi_of(model).explain(*arguments)
    return str(caught.value)


def moments(model: Any, *arguments: Any, **options: Any) -> Any:
    with warnings.catch_warnings(action="ignore"):
        result = fit_to(model, *arguments, insecure_seed=0, **options)
    return result.posterior.moments()


# --- two likelihoods of the same rows, the second of what the first explains ----------


def adjusted(plate: str, centre: Any) -> Any:
    def model(after, treated, before):
        level = numpyro.sample("level", dist.Normal(0.0, 2.0))
        slope = numpyro.sample("slope", dist.Normal(0.0, 3.0))
        spread = numpyro.sample("spread", dist.HalfCauchy(2.0))
        base = numpyro.sample("base", dist.Normal(0.0, 2.0))
        effect = numpyro.sample("effect", dist.Normal(0.0, 3.0))
        rest = numpyro.sample("rest", dist.HalfCauchy(2.0))
        with numpyro.plate(plate, len(treated)):
            numpyro.sample("y", dist.Normal(level + slope * before, spread), obs=after)
        less = numpyro.deterministic("less", after - slope * (before - centre(before)))
        with numpyro.plate("rows", len(treated)):
            numpyro.sample(
                "y_less", dist.Normal(base + effect * treated, rest), obs=less
            )

    return model


@pytest.mark.thorough
def test_a_second_plate_of_the_rows_and_a_mean_over_them():
    rows = AFTER, TREATED, BEFORE
    text = refusal(adjusted("others", jnp.mean), *rows)
    assert "put it under 'rows' in its place" in text
    assert "zero will do if the model has an intercept" in text
    found = moments(adjusted("rows", lambda before: 0.0), *rows)
    assert abs(found["effect"].mean - 0.4) < 4 * found["effect"].stddev + 0.05
    # Where nothing is computed of all rows, nothing is said of it.
    text = refusal(adjusted("others", lambda before: 0.0), *rows)
    assert "public number" not in text


@pytest.mark.thorough
def test_a_mean_over_rows_that_is_taken_off():
    def regression(offset: Any) -> Any:
        def model(x, y):
            level = numpyro.sample("level", dist.Normal(0.0, 2.0))
            slope = numpyro.sample("slope", dist.Normal(0.0, 2.0))
            spread = numpyro.sample("spread", dist.HalfNormal(1.0))
            with numpyro.plate("rows", len(y)):
                mean = level + slope * (x - offset(x))
                numpyro.sample("y", dist.Normal(mean, spread), obs=y)

        return model

    text = refusal(regression(jnp.mean), BEFORE, AFTER)
    assert "act on each other" in text
    assert "For a mean that is subtracted, as in X - X.mean(0), zero will do" in text
    found = moments(regression(lambda x: 0.0), BEFORE, AFTER)
    assert abs(found["slope"].mean - 0.8) < 4 * found["slope"].stddev


# --- one density of all rows ----------------------------------------------------------


def process(x, y):
    spread = numpyro.sample("spread", dist.HalfNormal(2.0))
    length = numpyro.sample("length", dist.HalfNormal(1.0))
    kernel = jnp.exp(-0.5 * ((x[:, None] - x) / length) ** 2)
    covariance = kernel + spread**2 * jnp.eye(len(x))
    numpyro.sample("y", dist.MultivariateNormal(jnp.zeros(len(x)), covariance), obs=y)


def process_beside_a_plate(x, y):
    with numpyro.plate("rows", len(x)):
        pass
    process(x, y)


@pytest.mark.thorough
@pytest.mark.parametrize("model", [process, process_beside_a_plate])
def test_a_gaussian_process_of_all_rows(model: Any):
    wave = np.sin(2 * BEFORE) + 0.3 * RNG.normal(size=COUNT)
    rows = BEFORE, wave.astype(np.float32)
    text = refusal(model, *rows)
    assert "a regression on a fixed number of basis functions" in text
    assert "one observation for each row under the plate" in text

    def basis(x, y):
        w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([6]).to_event(1))
        spread = numpyro.sample("spread", dist.HalfNormal(2.0))
        functions = jnp.sin(jnp.pi * jnp.arange(1, 7) * (x[:, None] + 4.0) / 8.0)
        with numpyro.plate("rows", len(x)):
            numpyro.sample("y", dist.Normal(functions @ w, spread), obs=y)

    found = moments(basis, *rows)
    places = np.linspace(-1.5, 1.5, 7)
    functions = np.sin(np.pi * np.arange(1, 7) * (places[:, None] + 4.0) / 8.0)
    np.testing.assert_allclose(
        functions @ found["w"].mean, np.sin(2 * places), atol=0.35
    )


# --- rows that .to_event() has taken into one density ---------------------------------


def binary(x: Any, y: Any, *, plate: str, is_event: bool) -> None:
    """As where every sample statement has its .to_event()."""
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    likelihood: Any = dist.Bernoulli(logits=w[0] + w[1] * x)
    if is_event:
        likelihood = likelihood.to_event(1)
    with numpyro.plate("rows", len(y)) if plate else contextlib.nullcontext():
        if plate == "around it":
            numpyro.sample("y", likelihood, obs=y)
    if plate != "around it":
        numpyro.sample("y", likelihood, obs=y)


@pytest.mark.parametrize("plate", ["", "beside it", "around it"])
def test_an_event_of_all_rows(plate: str):
    text = refusal(
        functools.partial(binary, plate=plate, is_event=True), BEFORE, TREATED
    )
    assert "Gaussian process" not in text
    assert "Leave it out if a row has one number here" in text
    assert "put the site under the plate" in text
    as_told = functools.partial(binary, plate="around it", is_event=False)
    assert vi_of(as_told).explain(BEFORE, TREATED).engine == "vips"


# --- sizes that are computed from data ------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("size", "code"),
    [
        (lambda group: len(np.unique(group)), "len(np.unique(group))"),
        (lambda group: int(np.max(group)) + 1, "int(np.max(group)) + 1"),
        (lambda group: int(group.max()) + 1, "int(group.max()) + 1"),
    ],
    ids=["unique", "largest", "method"],
)
def test_a_number_of_groups_from_data(size: Any, code: str):
    def by_group(group, y, num_groups=None):
        num_groups = size(group) if num_groups is None else num_groups
        with numpyro.plate("groups", num_groups):
            level = numpyro.sample("level", dist.Normal(0.0, 1.0))
        with numpyro.plate("rows", len(y)):
            numpyro.sample("y", dist.Normal(level[group], 1.0), obs=y)

    text = refusal(by_group, GROUPS, AFTER)
    # The line is shown, and what to pass in its place.
    assert "test_refusals_followed.py" in text and code in text
    assert "pass the number of groups to the model as a Python int" in text
    found = moments(by_group, GROUPS, AFTER, 7)
    assert found["level"].mean.shape == (7,)
    averages = np.bincount(GROUPS, AFTER) / np.bincount(GROUPS)
    np.testing.assert_allclose(found["level"].mean, averages, atol=0.5)


# --- priors that order or truncate, which touch no data -------------------------------


def ordered(y):
    cuts = numpyro.sample(
        "cuts",
        dist.TransformedDistribution(
            dist.Normal(0.0, 2.0).expand([2]).to_event(1),
            dist.transforms.OrderedTransform(),
        ),
    )
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.OrderedLogistic(0.0, cuts), obs=y)


def truncated_prior(y):
    level = numpyro.sample("level", dist.TruncatedNormal(0.0, 2.0, low=0.0))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(level, 1.0), obs=y)


def truncated_rows(y):
    level = numpyro.sample("level", dist.Normal(0.0, 2.0))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.TruncatedNormal(level, 1.0, low=-1.0, high=4.0), obs=y)


def truncated_latents(y):
    level = numpyro.sample("level", dist.Normal(1.0, 1.0))
    with numpyro.plate("rows", len(y)):
        own = numpyro.sample("own", dist.TruncatedNormal(level, 1.0, low=0.0))
        numpyro.sample("y", dist.Normal(own, 0.2), obs=y)


def _between(low: float, high: float) -> np.ndarray:
    drawn = 1.0 + RNG.normal(size=4 * COUNT)
    return drawn[(drawn > low) & (drawn < high)][:COUNT].astype(np.float32)


PRIORS: dict[str, tuple[Any, np.ndarray, str, Any]] = {
    "ordered": (
        ordered,
        np.searchsorted([0.2, 0.7], RNG.random(COUNT)),
        "cuts",
        np.log([0.2 / 0.8, 0.7 / 0.3]),
    ),
    "truncated prior": (truncated_prior, _between(-9.0, 9.0), "level", 1.0),
    "truncated rows": (truncated_rows, _between(-1.0, 4.0), "level", 1.0),
    "truncated latents": (truncated_latents, _between(0.0, 9.0), "level", 1.0),
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", PRIORS)
def test_priors_that_order_or_truncate_run(name: str):
    """By DPVI, which is what the refusal by VIPS says."""
    model, rows, site, truth = PRIORS[name]
    assert vi_of(model).explain(rows).engine == "dpvi"
    found = moments(model, rows)[site]
    np.testing.assert_allclose(found.mean, truth, atol=0.25)


@pytest.mark.thorough
@pytest.mark.parametrize("name", PRIORS)
def test_vips_names_the_site_and_the_engine_that_runs(name: str):
    model, rows, *_ = PRIORS[name]
    with pytest.raises(nv.NotConjugateError, match="Use engine='dpvi' or 'auto'"):
        vi_of(model, engine="vips").explain(rows)

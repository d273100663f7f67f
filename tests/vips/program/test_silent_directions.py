"""Directions of which no row says anything, found in models and kept by their fits."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _fits import vi_of
from _models import uncertified

import numpyro_vips as nv

ROWS = 40
RNG = np.random.default_rng(0)
GROUP, ITEM = RNG.integers(0, 2, ROWS), RNG.integers(0, 6, ROWS)
X = RNG.normal(size=(ROWS, 3)).astype(np.float32)
Y = RNG.integers(0, 2, ROWS)


def normal(name: str, size: int) -> Any:
    return numpyro.sample(name, dist.Normal(0.0, 1.5).expand([size]).to_event(1))


def observe(logits: Any, y: Any) -> None:
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Bernoulli(logits=logits), obs=y)


def crossed(group: Any, item: Any, y: Any) -> None:
    observe(normal("a", 2)[group] + normal("b", 6)[item], y)


def with_mean(group: Any, item: Any, y: Any) -> None:
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    observe(mean + normal("a", 2)[group] + normal("b", 6)[item], y)


def paired(first: Any, second: Any, y: Any) -> None:
    strength = normal("strength", 6)
    observe(strength[first] - strength[second], y)


def columns(group: Any, X: Any, y: Any) -> None:
    """What multiplies a coefficient is a number of the row, and nothing is silent."""
    observe(normal("a", 2)[group] + X @ normal("w", 3), y)


def with_reference(group: Any, item: Any, y: Any) -> None:
    """The first item's effect is zero."""
    effects = jnp.concatenate([jnp.zeros(1), normal("b", 5)])
    observe(normal("a", 2)[group] + effects[item], y)


CASES: dict[Callable[..., None], tuple[tuple[Any, ...], int]] = {
    crossed: ((GROUP, ITEM, Y), 1),
    with_mean: ((GROUP, ITEM, Y), 2),
    paired: ((ITEM, RNG.permutation(ITEM), Y), 1),
    columns: ((GROUP, X, Y), 0),
    with_reference: ((GROUP, ITEM, Y), 0),
}


@pytest.mark.parametrize("model", list(CASES), ids=lambda model: model.__name__)
def test_they_are_those_in_which_the_density_does_not_change(
    model: Callable[..., None],
) -> None:
    rows, number = CASES[model]
    program = uncertified(model, rows)
    found = sum(silent.shape[1] for silent in program.silent.values())
    assert found == number
    for name, silent in program.silent.items():
        np.testing.assert_allclose(
            silent.T @ silent, np.eye(silent.shape[1]), atol=1e-9
        )
        layout = program.structure.posterior_factors[name].layout
        assert layout is not None
        for direction in silent.T:
            latents = {
                latent: np.reshape(direction[layout.span(latent)], shape)
                for latent, shape in layout.shapes.items()
            }
            at_zero = {
                latent: np.zeros_like(value) for latent, value in latents.items()
            }
            first, second = (logits_of(model, rows, at) for at in (latents, at_zero))
            np.testing.assert_allclose(first, second, atol=1e-5)


def logits_of(model: Any, rows: tuple[Any, ...], latents: dict[str, Any]) -> np.ndarray:
    values = {name: jnp.asarray(value, jnp.float32) for name, value in latents.items()}
    fixed = numpyro.handlers.substitute(model, data=values)
    trace = numpyro.handlers.trace(numpyro.handlers.seed(fixed, 0)).get_trace(*rows)
    return np.asarray(trace["y"]["fn"].logits)


@pytest.mark.thorough
@pytest.mark.usefixtures("without_remarks")
def test_noise_says_nothing_of_them() -> None:
    """Where only priors tell effects apart, intervals are as wide as priors make them.

    They were half as wide, and a quarter of them did not hold the truth.
    """
    rng = np.random.default_rng(1)
    group, item = rng.integers(0, 2, 1200), rng.integers(0, 6, 1200)
    a, b = np.array([-0.5, -0.4]), np.array([1.0, 0.9, 0.0, -0.1, -0.6, -2.0])
    y = rng.random(1200) < 1.0 / (1.0 + np.exp(-(a[group] + b[item])))
    inside, widths = [], []
    for seed in range(5):
        vi = vi_of(crossed, insecure_seed=seed)
        result = vi.run(jax.random.key(seed), group, item, y.astype(np.int32))
        draws = result.sample_posterior(jax.random.key(1), (1000,))
        for name, truth in {"a": a, "b": b}.items():
            low, high = np.quantile(np.asarray(draws[name]), [0.05, 0.95], axis=0)
            inside.extend((low <= truth) & (truth <= high))
        widths.append(np.std(np.mean(np.asarray(draws["a"]), axis=1)))
    # Along the direction the prior alone knows: 1.5 / √8 for each effect.
    assert np.mean(widths) == pytest.approx(1.5 / np.sqrt(8.0), rel=0.15)
    assert np.mean(inside) > 0.8


# --- categories that a schema has encoded ---------------------------------------------


def with_intercept(X: Any, y: Any) -> None:
    intercept = numpyro.sample("b", dist.Normal(0.0, 1.0))
    observe(intercept + X @ normal("w", X.shape[1]), y)


def encoded(count: int, seed: int = 0, **options: Any) -> Any:
    rng = np.random.default_rng(seed)
    schema = nv.Schema(
        job=nv.Categorical(["cook", "nurse", "clerk"], **options),
        town=nv.Categorical(["north", "south"], **options),
        age=nv.Bounded(0.0, 100.0),
    )
    table = {
        "job": rng.choice(["cook", "nurse", "clerk"], count),
        "town": rng.choice(["north", "south"], count),
        "age": rng.uniform(0.0, 100.0, count),
    }
    return schema.encode(table)


@pytest.mark.parametrize("engine", ["vips", "dpvi"])
@pytest.mark.parametrize(
    ("options", "number"),
    [({}, 2), ({"handle_unknown": "ignore"}, 0), ({"missing": "indicator"}, 2)],
)
def test_indicators_of_all_categories_add_up_to_one(
    engine: str, options: dict[str, Any], number: int
) -> None:
    """Unless a row may have none of them, as that of a value that is not listed."""
    X = encoded(ROWS, **options)
    fit, _ = vi_of(with_intercept, engine=engine)._prepare_fit((X, Y), {})
    found = silent_of(fit)
    assert found.shape == (1 + X.shape[1], number)
    features = np.c_[np.ones(ROWS), np.asarray(X)]
    np.testing.assert_allclose(features @ found, 0.0, atol=1e-5)
    # Of the same numbers nothing is known.
    plain, _ = vi_of(with_intercept, engine=engine)._prepare_fit((np.array(X), Y), {})
    assert silent_of(plain).shape[1] == 0


@pytest.mark.parametrize(
    ("options", "number"),
    [({}, 2), ({"handle_unknown": "ignore"}, 0), ({"missing": "indicator"}, 4)],
)
def test_unlisted_are_coordinates_of_which_listed_rows_have_nothing(
    options: dict[str, Any], number: int
) -> None:
    """Nothing but the schema says so: a plain array has none."""
    X = encoded(ROWS, **options)
    fit, _ = vi_of(with_intercept, engine="vips")._prepare_fit((X, Y), {})
    found = unlisted_of(fit)
    assert found.sum() == number and not found[0]
    assert not np.asarray(X)[:, found[1:]].any()
    plain, _ = vi_of(with_intercept, engine="vips")._prepare_fit((np.array(X), Y), {})
    assert not unlisted_of(plain).any()


def unlisted_of(fit: Any) -> np.ndarray:
    """Of a fit to one Gaussian block."""
    (found,) = fit.engine.program.unlisted.values()
    return found


def silent_of(fit: Any) -> np.ndarray:
    """Of a fit to one Gaussian block, or by DPVI."""
    if fit.engine.is_one_vector:
        return np.asarray(fit.engine.compiled.noise_aware.silent)
    (found,) = fit.engine.program.silent.values()
    return found


@pytest.mark.thorough
@pytest.mark.usefixtures("without_remarks")
def test_noise_says_nothing_of_them_beside_an_intercept() -> None:
    """A third of the intervals did not hold the truth; in 60 fits it was a seventh."""
    inside = []
    for seed in range(18, 30):
        rng = np.random.default_rng(seed)
        X = encoded(2000, seed)
        truth = rng.normal(size=1 + X.shape[1]) * np.r_[1.0, np.full(X.shape[1], 1.5)]
        logits = truth[0] + np.asarray(X) @ truth[1:]
        y = (rng.random(2000) < 1.0 / (1.0 + np.exp(-logits))).astype(np.int32)
        vi = vi_of(with_intercept, insecure_seed=seed)
        draws = vi.run(jax.random.key(seed), X, y).sample_posterior(
            jax.random.key(1), (1000,)
        )
        of_all = np.c_[np.asarray(draws["b"])[:, None], np.asarray(draws["w"])]
        low, high = np.quantile(of_all, [0.05, 0.95], axis=0)
        # Of the indicators of what is not listed, which no row has, less is known.
        read = np.r_[True, np.asarray(X).any(0)]
        inside.extend(((low <= truth) & (truth <= high))[read])
    assert np.mean(inside) > 0.8

"""Effects that rows know only times their scale are fitted as these products."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _dpvi_engines import engine_for
from _fits import fit_to
from numpyro.handlers import reparam
from numpyro.infer.reparam import LocScaleReparam

import numpyro_vips as nv
from numpyro_vips.dpvi.engine import DpviEngine

GROUPS = 6
NUM_ROWS = 300


def observed(centre: Any, y: Any, width: Any = 1.0) -> None:
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.StudentT(4.0, centre, width), obs=y)


def effects(name: str = "z", scale: Any = 1.0, number: int = GROUPS) -> Any:
    with numpyro.plate(f"groups of {name}", number):
        return numpyro.sample(name, dist.Normal(0.0, scale))


def of_scale(name: str = "t") -> Any:
    return numpyro.sample(name, dist.HalfNormal(2.0))


def mean() -> Any:
    return numpyro.sample("m", dist.Normal(0.0, 5.0))


def products(g: Any, h: Any, x: Any, y: Any) -> None:
    observed(mean() + of_scale() * effects()[g], y)


def centred(g: Any, h: Any, x: Any, y: Any) -> None:
    m, t = mean(), of_scale()
    observed(m + effects(scale=t)[g], y)


def of_two_kinds(g: Any, h: Any, x: Any, y: Any) -> None:
    first = of_scale() * effects()[g]
    # A code of the second kind may be none of the first.
    second = of_scale("u") * effects("w", 3.0, 2 * GROUPS)[h]
    observed(mean() + first + second, y)


def with_slopes(g: Any, h: Any, x: Any, y: Any) -> None:
    """A column of effects for the intercept and one for the slope."""
    t = numpyro.sample("t", dist.HalfNormal(2.0).expand([2]))
    z: Any = numpyro.sample("z", dist.Normal(0.0, 1.0).expand([GROUPS, 2]))
    of_row = (t * z)[g]
    observed(mean() + of_row[..., 0] + of_row[..., 1] * x, y)


def by_reparam(g: Any, h: Any, x: Any, y: Any) -> None:
    with reparam(config={"a": LocScaleReparam(0)}):
        m, t = mean(), of_scale()
        with numpyro.plate("groups", GROUPS):
            a: Any = numpyro.sample("a", dist.Normal(m, t))
    observed(a[g], y)


def more_than_a_scale(g: Any, h: Any, x: Any, y: Any) -> None:
    observed(mean() + (1.0 + of_scale()) * effects()[g], y)


def scale_of_two(g: Any, h: Any, x: Any, y: Any) -> None:
    t = of_scale()
    observed(mean() + t * effects()[g] + t * effects("w")[h], y)


def width_of_rows(g: Any, h: Any, x: Any, y: Any) -> None:
    t = of_scale()
    observed(mean() + t * effects()[g], y, t)


def coefficients(g: Any, h: Any, x: Any, y: Any) -> None:
    """A row knows all of them, as of a ridge regression."""
    z: Any = numpyro.sample("z", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    powers = jnp.stack([x, x**2, x**3], axis=-1)
    observed(mean() + powers @ (of_scale() * z), y)


def coefficients_beside_a_width(g: Any, h: Any, x: Any, y: Any) -> None:
    """The residuals' scale is no factor of coefficients."""
    w: Any = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    observed(mean() + jnp.stack([x, x**2, x**3], axis=-1) @ w, y, of_scale())


def correlated(g: Any, h: Any, x: Any, y: Any) -> None:
    """A level and a slope of each group, as non-centred models write them."""
    t = numpyro.sample("t", dist.HalfNormal(2.0).expand([2]))
    cholesky: Any = numpyro.sample("c", dist.LKJCholesky(2, 1.0))
    with numpyro.plate("groups", GROUPS):
        z: Any = numpyro.sample("z", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    of_row = (z @ (t[:, None] * cholesky).T)[g]
    observed(mean() + of_row[..., 0] + of_row[..., 1] * x, y)


def correlated_in_rows(g: Any, h: Any, x: Any, y: Any) -> None:
    """The same with a row for each kind of effect."""
    t = numpyro.sample("t", dist.HalfNormal(2.0).expand([2]))
    cholesky: Any = numpyro.sample("c", dist.LKJCholesky(2, 1.0))
    z: Any = numpyro.sample("z", dist.Normal(0.0, 1.0).expand([2, GROUPS]))
    of_group = jnp.diag(t) @ cholesky @ z
    observed(mean() + of_group[0, g] + of_group[1, g] * x, y)


def correlated_otherwise(g: Any, h: Any, x: Any, y: Any) -> None:
    """Rows know the correlations beside the effects."""
    t = numpyro.sample("t", dist.HalfNormal(2.0).expand([2]))
    cholesky: Any = numpyro.sample("c", dist.LKJCholesky(2, 1.0))
    z: Any = numpyro.sample("z", dist.Normal(0.0, 1.0).expand([GROUPS, 2]))
    of_row = (z @ (t[:, None] * cholesky).T)[g]
    observed(mean() + of_row[..., 0] + (of_row[..., 1] + cholesky[1, 0]) * x, y)


def rows() -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(0)
    g, h = rng.integers(0, GROUPS, (2, NUM_ROWS)).astype(np.int32)
    x = rng.normal(size=NUM_ROWS).astype(np.float32)
    y = 3.0 + rng.normal(size=GROUPS)[g] + rng.standard_t(4.0, NUM_ROWS)
    return g, h, x, y.astype(np.float32)


def engine_of(fn: Any) -> DpviEngine:
    return engine_for(nv.private(fn, unit="rows"), *rows())


@pytest.mark.thorough_with("by_reparam*", "width_of_rows*")
@pytest.mark.parametrize(
    ("fn", "expected"),
    [
        (products, {"z": "t"}),
        (of_two_kinds, {"z": "t", "w": "u"}),
        (with_slopes, {"z": "t"}),
        (by_reparam, {"a_decentered": "t"}),
        (correlated, {"z": "t"}),
        (correlated_in_rows, {"z": "t"}),
        (correlated_otherwise, {}),
        (centred, {}),
        (more_than_a_scale, {}),
        (scale_of_two, {}),
        (width_of_rows, {}),
        (coefficients, {"z": "t"}),
        (coefficients_beside_a_width, {}),
    ],
)
def test_effects_known_times_their_scale_are_found(
    fn: Any, expected: dict[str, str]
) -> None:
    engine = engine_of(fn)
    assert {s.name: s.over for s in engine.space.sites if s.over} == expected
    # Then nothing is released of the scales, and the mean's direction is found.
    factors = {s.correlated_by for s in engine.space.sites if s.correlated_by}
    assert not {*expected.values(), *factors} & set(engine.compiled.read)
    noise_aware = engine.compiled.noise_aware
    assert noise_aware is not None
    told = [note for note in engine.notes() if "fitted in place of the effects" in note]
    assert len(told) == bool(expected)
    if expected:
        # Columns of features are told apart from the mean.
        silent = 0 if fn is coefficients else len(expected)
        assert noise_aware.silent.shape[1] == silent
        assert not noise_aware.turning


@pytest.mark.parametrize("fn", [products, with_slopes, correlated, correlated_in_rows])
def test_the_prior_is_that_of_the_model_in_the_new_numbers(fn: Any) -> None:
    """Its density times the volume of what the numbers are moved to."""
    engine = engine_of(fn)
    space, program = engine.space, engine.program
    place = jnp.asarray(np.random.default_rng(1).normal(size=space.size), jnp.float32)
    values, log_determinant = space.constrain(place)

    def flat(vector: Any) -> Any:
        found = space.values(space.split(vector))
        # Of a factor of correlations what is below the diagonal is free.
        found |= {"c": found["c"][1, 0]} if "c" in found else {}
        return jnp.concatenate([jnp.ravel(found[s.name]) for s in space.sites])

    jacobian = np.asarray(jax.jacfwd(flat)(place), np.float64)
    assert log_determinant == pytest.approx(np.linalg.slogdet(jacobian)[1], rel=1e-4)
    log_prior = (
        dist.HalfNormal(2.0).log_prob(values["t"]).sum()
        + dist.Normal(0.0, 1.0).log_prob(values["z"]).sum()
        + dist.Normal(0.0, 5.0).log_prob(values["m"])
    )
    if "c" in values:
        log_prior += dist.LKJCholesky(2, 1.0).log_prob(values["c"])
    found = program.public_elbo.log_prior(place, {})
    assert found == pytest.approx(float(log_prior + log_determinant), rel=1e-4)


def fitted(fn: Any) -> nv.PrivateVIResult:
    # With noise that leads the iterates far, rounding grows, and the two fits part.
    return fit_to(fn, *rows(), engine="dpvi", num_steps=20, insecure_seed=7)


@pytest.mark.thorough
def test_a_fit_is_that_of_centred_effects_and_a_file_keeps_it(tmp_path: Path) -> None:
    result, same = fitted(products), fitted(centred)
    key = jax.random.key(1)
    draws = result.sample_posterior(key, (400,))
    of_centred = same.sample_posterior(key, (400,))
    np.testing.assert_allclose(draws["m"], of_centred["m"], rtol=1e-2, atol=1e-2)
    np.testing.assert_allclose(draws["t"], of_centred["t"], rtol=1e-2)
    np.testing.assert_allclose(
        draws["z"] * draws["t"][:, None], of_centred["z"], rtol=1e-2, atol=1e-2
    )
    result.save(tmp_path / "fit.nc")
    again = nv.load(tmp_path / "fit.nc").sample_posterior(key, (400,))
    for name, array in draws.items():
        np.testing.assert_array_equal(again[name], array)

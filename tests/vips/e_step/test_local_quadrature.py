"""One or two latents of a row under logistic likelihoods, against SciPy's integrals."""

import functools
import itertools
import math
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _fits import fit_to, vi_of
from scipy import special

from numpyro_vips.conjugacy.families.logistic_auxiliaries import PolyaGamma, Tangent
from numpyro_vips.handlers import private
from numpyro_vips.model.arguments import bind_arguments
from numpyro_vips.model.graph import build_graph
from numpyro_vips.vips.compile.compiler import interpreted
from numpyro_vips.vips.description import bounds_at
from numpyro_vips.vips.e_step.e_step import local_factors
from numpyro_vips.vips.e_step.evidence_bound import row_bound, row_bound_at
from numpyro_vips.vips.e_step.integrated_latents import integrated_latents
from numpyro_vips.vips.program.expectations import expected, expected_natural_of
from numpyro_vips.vips.program.program import ConjugateProgram

ROWS = 3


def hospitals(n: Any, r: Any) -> None:
    mu = numpyro.sample("mu", dist.Normal(0.0, 10.0))
    tau = numpyro.sample("tau", dist.Gamma(1.0, 1.0))
    with numpyro.plate("rows", r.shape[0]):
        b = numpyro.sample("b", dist.Normal(mu, 1 / jnp.sqrt(tau)))
        numpyro.sample("r", dist.Binomial(n, logits=b), obs=r)


def trials(nc: Any, nt: Any, rc: Any, rt: Any) -> None:
    mu = numpyro.sample("mu", dist.Normal(0.0, 10.0))
    tau = numpyro.sample("tau", dist.Gamma(1.0, 1.0))
    with numpyro.plate("rows", rc.shape[0]):
        base = numpyro.sample("base", dist.Normal(0.0, 3.0))
        effect = numpyro.sample("effect", dist.Normal(mu, 1 / jnp.sqrt(tau)))
        numpyro.sample("rc", dist.Binomial(nc, logits=base), obs=rc)
        numpyro.sample("rt", dist.Binomial(nt, logits=base + effect), obs=rt)


def students(y: Any) -> None:
    slope = numpyro.sample("slope", dist.Normal(0.0, 2.0))
    ease = numpyro.sample("ease", dist.Normal(0.0, 2.0).expand([4]).to_event(1))
    with numpyro.plate("rows", y.shape[0]):
        t = numpyro.sample("t", dist.Normal(0.0, 1.0))
        logits = slope * t[..., None] + ease
        numpyro.sample("y", dist.Bernoulli(logits=logits).to_event(1), obs=y)


def compiled(fn: Callable[..., None], *args: Any, **options: Any) -> ConjugateProgram:
    model = private(fn, unit="rows")
    rows = tuple(np.tile(np.asarray(x), (ROWS, *(1,) * np.ndim(x))) for x in args)
    graph = build_graph(model, bind_arguments(model, rows, {}))
    return interpreted(graph, **options)


def row_of(program: ConjugateProgram, *args: Any) -> dict[str, Any]:
    names = program.graph.arguments.row_shapes()
    return {name: np.asarray(x) for name, x in zip(names, args, strict=True)}


def natural_at(program: ConjugateProgram, **parameters: Any) -> dict[str, Any]:
    """n̄ for given parameters of the globals' factors."""
    moments = {}
    for name, given in parameters.items():
        given = {key: jnp.asarray(value, float) for key, value in given.items()}
        family = program.structure.posterior_factors[name.replace("_", "+")].family
        moments[name.replace("_", "+")] = family.moments_of(given)
    return dict(expected_natural_of(program.structure, moments))


MU, MU_VAR, SHAPE, RATE = -2.0, 0.04, 8.0, 2.0
HYPERS = {
    "mu": {"loc": [MU], "covariance_matrix": [[MU_VAR]]},
    "tau": {"concentration": SHAPE, "rate": RATE},
}


def log_level(z: Any) -> Any:
    """E[log Normal(z | mu, tau)] under the hyperparameters' posterior."""
    tau = SHAPE / RATE
    log_tau = special.digamma(SHAPE) - math.log(RATE)
    square = (z - MU) ** 2 + MU_VAR
    return 0.5 * (log_tau - math.log(2 * math.pi) - tau * square)


def log_binomial(r: float, n: float, logits: Any) -> Any:
    choose = special.gammaln(n + 1) - special.gammaln(r + 1)
    choose -= special.gammaln(n - r + 1)
    return choose + r * logits - n * np.logaddexp(0.0, logits)


def by_sums(log_density: Any, *axes: Any) -> tuple[float, Any, Any]:
    """Log integral, mean and second moments, on a grid that is fine and wide."""
    points = np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, len(axes))
    logs = log_density(*points.T)
    total = special.logsumexp(logs)
    shares = np.exp(logs - total)
    volume = sum(math.log(axis[1] - axis[0]) for axis in axes)
    return total + volume, shares @ points, (shares[:, None] * points).T @ points


@pytest.mark.thorough
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    ("n", "r"), [(0, 0), (1, 1), (5, 5), (148, 0), (148, 18), (10**6, 10**5)]
)
def test_the_moments_and_the_evidence_of_one_latent(n: int, r: int) -> None:
    program = compiled(hospitals, n, r)
    natural = natural_at(program, **HYPERS)
    row = row_of(program, n, r)
    moments, _ = local_factors(program, natural, row, 20)["b"]
    around = special.logit(r / n) if n == 10**6 else -2.0
    wide = 0.05 if n == 10**6 else 8.0
    axis = around + wide * np.linspace(-1.0, 1.0, 20001)
    value, mean, square = by_sums(lambda z: log_level(z) + log_binomial(r, n, z), axis)
    stddev = math.sqrt(square[0, 0] - mean[0] ** 2)
    assert float(moments["x"].item()) == pytest.approx(mean[0], abs=1e-4 * stddev)
    found = math.sqrt(moments["xx"].item() - moments["x"].item() ** 2)
    assert found == pytest.approx(stddev, rel=1e-4)
    assert float(row_bound(program, natural, row, 20)) == pytest.approx(value, abs=1e-5)


@pytest.mark.thorough
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    "counts", [(30, 40, 3, 5), (30, 40, 0, 40), (0, 12, 0, 4), (1, 1, 1, 0)]
)
def test_the_moments_and_the_evidence_of_two_latents(counts: Any) -> None:
    program = compiled(trials, *counts)
    natural = natural_at(program, **HYPERS)
    row = row_of(program, *counts)
    nc, nt, rc, rt = counts
    value, mean, square = by_sums(
        lambda base, effect: (
            -0.5 * (base / 3.0) ** 2
            - math.log(3.0 * math.sqrt(2 * math.pi))
            + log_level(effect)
            + log_binomial(rc, nc, base)
            + log_binomial(rt, nt, base + effect)
        ),
        np.linspace(-18.0, 18.0, 1601),
        np.linspace(-6.5, 2.5, 401),
    )
    moments, _ = local_factors(program, natural, row, 20)["base+effect"]
    stddevs = np.sqrt(np.diagonal(square) - mean**2)
    np.testing.assert_array_less(np.abs(moments["x"][0] - mean) / stddevs, 2e-3)
    found = moments["xx"][0] - np.outer(moments["x"][0], moments["x"][0])
    wanted = square - np.outer(mean, mean)
    scale = np.outer(stddevs, stddevs)
    np.testing.assert_array_less(np.abs(found - wanted) / scale, 5e-3)
    assert float(row_bound(program, natural, row, 20)) == pytest.approx(value, abs=1e-3)


ANSWERS = np.array([1, 0, 1, 1])


def of_students(variance: float) -> dict[str, Any]:
    return {
        "slope_ease": {
            "loc": [1.3, 0.5, -0.3, 0.2, 1.0],
            "covariance_matrix": variance * (np.eye(5) + 0.2),
        }
    }


def log_answers(parameters: Any) -> float:
    """log p(answers | slope, ease)."""
    slope, *ease = parameters
    axis = np.linspace(-9.0, 9.0, 2001)
    logits = slope * axis[:, None] + np.array(ease)
    logs = (ANSWERS * logits - np.logaddexp(0.0, logits)).sum(-1)
    logs += -0.5 * axis**2 - 0.5 * math.log(2 * math.pi)
    return special.logsumexp(logs) + math.log(axis[1] - axis[0])


@pytest.mark.thorough
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("variance", [0.01, 0.3])
def test_globals_in_the_logits_leave_a_bound_that_is_better_than_factors(
    variance: float,
) -> None:
    program = compiled(students, ANSWERS)
    given = of_students(variance)
    natural = natural_at(program, **given)
    row = row_of(program, ANSWERS)
    bound = float(row_bound(program, natural, row, 50))
    apart = local_factors(program, natural, row, 50, by_quadrature=False)
    of_factors = float(row_bound_at(program, natural, row, apart)[0])
    rng = np.random.default_rng(0)
    draws = rng.multivariate_normal(
        given["slope_ease"]["loc"], given["slope_ease"]["covariance_matrix"], 2000
    )
    values = np.array([log_answers(draw) for draw in draws])
    error = values.std() / math.sqrt(len(values))
    assert of_factors < bound <= values.mean() + 3 * error
    # What is lost is what the globals are uncertain by.
    assert bound >= values.mean() - 3 * error - variance


@pytest.mark.thorough
@pytest.mark.usefixtures("x64")
def test_without_uncertain_globals_nothing_is_lost() -> None:
    program = compiled(students, ANSWERS)
    given = of_students(1e-12)
    natural = natural_at(program, **given)
    bound = float(row_bound(program, natural, row_of(program, ANSWERS), 20))
    exact = log_answers(given["slope_ease"]["loc"])
    assert bound == pytest.approx(exact, abs=2e-4)


@pytest.mark.thorough
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("augmentation", ["polya-gamma", "fixed-curvature"])
@pytest.mark.parametrize("fn", [students, hospitals, trials])
def test_statistics_are_the_slopes_of_the_evidence(fn: Any, augmentation: str) -> None:
    """So they go with the joint moments of latents and auxiliary variables."""
    rows = {students: (ANSWERS,), hospitals: (9, 4), trials: (9, 7, 4, 1)}[fn]
    program = compiled(fn, *rows, augmentation=augmentation)
    natural = natural_at(program, **(of_students(0.2) if fn is students else HYPERS))
    row = row_of(program, *rows)
    factors = local_factors(program, natural, row, 20)
    arrays, _ = program.row_constants.zero_if_invalid(row)
    terms = [term.filled(arrays) for term in program.row_terms]
    moments = {name: mine for name, (mine, _) in factors.items()}
    statistics = jax.grad(
        lambda natural: expected(program.structure, terms, natural, moments)
    )(natural)
    bound = jax.jit(lambda natural: row_bound(program, natural, row, 20))
    for statistic in program.structure.statistics:
        name = statistic.name
        for place in np.ndindex(natural[name].shape):
            step = np.zeros(natural[name].shape)
            step[place] = 1e-4
            after, before = (
                bound({**natural, name: natural[name] + sign * step})
                for sign in (1, -1)
            )
            slope = (after - before) / 2e-4
            assert float(slope) == pytest.approx(
                float(statistics[name][place]), abs=2e-3
            ), (name, place)


@pytest.mark.thorough
@pytest.mark.parametrize("mean", [-1e4, -30.0, 0.0, 30.0, 1e6])
@pytest.mark.parametrize("precision", [1e-12, 1e-3, 1.0, 1e8])
def test_moments_are_those_of_a_distribution_whatever_a_row_holds(
    mean: float, precision: float
) -> None:
    program = compiled(hospitals, 5, 5)
    natural = natural_at(
        program,
        mu={"loc": [mean], "covariance_matrix": [[1e-6]]},
        tau={"concentration": 1.0, "rate": 1.0 / precision},
    )
    solve = jax.jit(lambda row: local_factors(program, natural, row, 20))
    counts = [0, 1, 10**4, 10**8, 2**31 - 1]
    for n, part in itertools.product(counts, (0.0, 0.3, 1.0)):
        row = row_of(program, np.int32(n), np.int32(part * n))
        factors = solve(row)
        moments, gaussian = factors["b"]
        parameters = program.structure.posterior_factors["b"].family.parameters(
            gaussian
        )
        assert np.all(np.asarray(parameters["covariance_matrix"]) > 0)
        for arrays in (moments, gaussian, factors["r:polya_gamma"][0]):
            assert all(np.isfinite(array).all() for array in arrays.values())
        omega = np.asarray(factors["r:polya_gamma"][0]["x"])
        assert np.all((omega >= 0.0) & (omega <= 0.25 * (1 + 1e-6)))


@pytest.mark.thorough
def test_a_fit_finds_how_much_rows_differ() -> None:
    """A bound for each row on its own would read the precision twice too large."""
    rng = np.random.default_rng(2)
    n = rng.integers(20, 60, 300)
    r = rng.binomial(n, special.expit(rng.normal(-2.5, 0.4, 300)))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = fit_to(
            hospitals, n, r.astype(np.float32), budget=math.inf, engine="vips"
        )
    texts = [str(warning.message) for warning in caught]
    assert not any("replaced by a bound" in text for text in texts)
    assert result.diagnostics["bounds"] == {}
    # The exact posterior, on a grid of both and with the rows' logits integrated out.
    mus, taus = np.linspace(-2.75, -2.25, 21), np.exp(np.linspace(0.7, 3.7, 31))
    nodes, weights = np.polynomial.hermite_e.hermegauss(61)
    mu, tau = np.meshgrid(mus, taus, indexing="ij")
    logits = mu[..., None] + nodes / np.sqrt(tau)[..., None]
    logs = -0.01 * mu**2 / 2 - tau + np.log(tau)
    for total, successes in zip(n, r, strict=True):
        of_row = successes * logits - total * np.logaddexp(0.0, logits)
        logs += special.logsumexp(of_row, -1, b=weights)
    found = result.posterior.moments()
    # Coordinate ascent ends about the mode, of the precision's logarithm. What rows
    # leave open of their logits then lets the prior count for more.
    for name, axis, values in (("mu", 1, mus), ("tau", 0, np.log(taus))):
        marginal = special.logsumexp(logs, axis)
        shares = np.exp(marginal - special.logsumexp(marginal))
        stddev = math.sqrt(shares @ (values - shares @ values) ** 2)
        near = slice(np.argmax(shares) - 2, np.argmax(shares) + 3)
        square, slope, _ = np.polyfit(values[near], marginal[near], 2)
        mode = -0.5 * slope / square
        here = np.asarray(found[name].mean).item()
        here = math.log(here) if name == "tau" else here
        assert abs(here - mode) < 0.75 * stddev, (name, here, mode, stddev)


# --- which ones ---------------------------------------------------------------------


def with_three(y: Any) -> None:
    tau = numpyro.sample("tau", dist.Gamma(1.0, 1.0))
    loadings = jnp.eye(3) + 0.5
    with numpyro.plate("rows", y.shape[0]):
        spread = 1 / jnp.sqrt(tau)
        t = numpyro.sample("t", dist.Normal(0.0, spread).expand([3]).to_event(1))
        numpyro.sample("y", dist.Bernoulli(logits=t @ loadings).to_event(1), obs=y)


def with_groups(y: Any) -> None:
    tau = numpyro.sample("tau", dist.Gamma(1.0, 1.0))
    shares = jnp.array([0.3, 0.7])
    with numpyro.plate("rows", y.shape[0]):
        g = numpyro.sample("g", dist.Categorical(shares))
        mean = jnp.array([-1.0, 1.0])[g]
        t = numpyro.sample("t", dist.Normal(mean, 1 / jnp.sqrt(tau)))
        numpyro.sample("y", dist.Bernoulli(logits=t), obs=y)


@pytest.mark.thorough
def test_what_is_integrated_and_what_is_said_of_it() -> None:
    for fn, args, integrated, bounds in (
        (hospitals, (5, 2), ["b"], {"r": ()}),
        (trials, (5, 5, 2, 1), ["base+effect"], {"rc": (), "rt": ()}),
        (students, (ANSWERS,), ["t"], {"y": ("Pólya-Gamma",)}),
        (with_three, (np.ones(3, int),), [], {"y": ("Pólya-Gamma",)}),
        (with_groups, (1,), [], {"y": ("Pólya-Gamma",)}),
    ):
        program = compiled(fn, *args)
        found = integrated_latents(program.structure, program.row_terms)
        assert [one.latents.name for one in found] == integrated
        assert {site: bounds_at(program, site) for site in bounds} == bounds
        vi = vi_of(fn, engine="vips")
        rows = (np.tile(np.asarray(x), (9, *(1,) * np.ndim(x))) for x in args)
        text = str(vi.explain(*rows))
        assert ("quadrature [" in text) == bool(integrated)
        assert ("replaced by a bound" in text) == (not integrated)


# --- the families -------------------------------------------------------------------


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("natural", [-1e4, -3.0, -0.02, -1e-6, 0.0])
@pytest.mark.parametrize("family", [PolyaGamma(), Tangent()], ids=lambda f: f.name)
def test_divergence_and_variance(family: Any, natural: float) -> None:
    def normalizer(x: float) -> Any:
        return family.log_normalizer({"x": jnp.asarray(x)})

    at = {"x": jnp.asarray(natural)}
    mean = float(family.moments(at)["x"])
    for change in (-5.0, -0.3, 0.01, 0.3, 5.0):
        after = natural + change
        if family.name == "PolyaGamma" and after > 0:
            continue
        wanted = normalizer(after) - normalizer(natural) - change * mean
        found = family.divergence(at, {"x": jnp.asarray(change)})
        assert float(found) == pytest.approx(
            float(wanted), abs=1e-12 + 1e-14 * natural**2
        )
    if natural < -1e-3 or family.name == "Tangent":
        slope = 1e-4 * max(1.0, abs(natural))
        before, after = (
            family.moments({"x": jnp.asarray(natural + sign * slope)})["x"]
            for sign in (-1, 1)
        )
        wanted = float(after - before) / (2 * slope)
    else:
        wanted = 1.0 / 24.0  # The variance of PG(1, 0).
    assert float(family.variance(at)) == pytest.approx(wanted, rel=1e-4, abs=1e-8)


def test_many_trials_do_not_hide_what_is_lost_in_single_precision() -> None:
    """F itself is rounded by 1e-8, times 1e8 trials; the loss is far more exact."""
    family, psi, step = PolyaGamma(), 0.8, 2e-4
    exact = np.logaddexp(psi / 2, -psi / 2) - np.logaddexp(
        (psi + step) / 2, -(psi + step) / 2
    )
    omega = math.tanh(psi / 2) / (2 * psi)
    change = -0.5 * (2 * psi * step + step**2)
    wanted = 1e8 * (exact - omega * change)
    found = family.divergence(
        {"x": jnp.float32(-0.5 * psi**2)}, {"x": jnp.float32(change)}
    )
    assert 1e8 * float(found) == pytest.approx(wanted, abs=2e-2)


def completed(is_masked: bool, mean: Any, x: Any, seen: Any) -> Any:
    """A covariate that is missing in some rows; in the others its latent is idle."""
    with numpyro.handlers.mask(mask=(~seen if is_masked else True)):
        missing = numpyro.sample("missing", dist.Normal(mean, 1.0))
    with numpyro.handlers.mask(mask=seen):
        numpyro.sample("x", dist.Normal(mean, 1.0), obs=x)
    return jnp.where(seen, x, missing)


def imputed(is_masked: bool, x: Any, seen: Any, y: Any) -> None:
    a, b, mean = (numpyro.sample(n, dist.Normal(0.0, 2.0)) for n in ("a", "b", "mean"))
    with numpyro.plate("rows", len(y)):
        logits = a + b * completed(is_masked, mean, x, seen)
        numpyro.sample("y", dist.Bernoulli(logits=logits), obs=y)


def imputed_of_a_sum(is_masked: bool, x: Any, seen: Any, y: Any) -> None:
    """Under a Normal likelihood, which needs no quadrature."""
    a, mean = (numpyro.sample(n, dist.Normal(0.0, 2.0)) for n in ("a", "mean"))
    with numpyro.plate("rows", len(y)):
        whole = completed(is_masked, mean, x, seen)
        numpyro.sample("y", dist.Normal(a + whole, 1.0), obs=y)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("model", "names"),
    [(imputed, ("a", "b", "mean")), (imputed_of_a_sum, ("a", "mean"))],
)
def test_a_latent_that_is_masked_where_it_is_idle_changes_nothing(
    model: Callable[..., None], names: tuple[str, ...]
) -> None:
    rng = np.random.default_rng(0)
    whole = rng.normal(0.5, 1.0, 300)
    y = (rng.random(300) < 1.0 / (1.0 + np.exp(0.5 - whole))).astype(np.int32)
    seen = rng.random(300) < 0.7
    x = np.where(seen, whole, 0.0).astype(np.float32)

    def moments(is_masked: bool) -> np.ndarray:
        vi = vi_of(functools.partial(model, is_masked), budget=math.inf)
        with warnings.catch_warnings(action="ignore"):
            result = vi.run(jax.random.key(0), x, seen, y)
        found = result.posterior.moments()
        return np.array([found[name].mean for name in names])

    np.testing.assert_allclose(moments(True), moments(False), atol=2e-3)

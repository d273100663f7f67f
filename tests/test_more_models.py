"""More idioms, each with the engine that is right by hand, and what must not be lost.

`CONJUGATE` holds what NumPyro spells in other ways than the textbooks do: loops,
transformed and inflated distributions, covariance matrices, factors. Each program is
compared with NumPyro's log density on rows that reach every branch, which is how the
first group here was found to be compiled to something else.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _cases import Case, Cases, gammas, simplices
from _cases import normals as normals_of_scale
from _models import UNIT
from _rows import (
    Rows,
    answers,
    coins,
    counts,
    events,
    fractions,
    grouped,
    linear,
    numbers,
    points,
    waits,
    words,
)
from numpyro.handlers import mask

import numpyro_vips as nv
from numpyro_vips.vips.certificate import certify
from numpyro_vips.vips.compiler import interpreted

# The priors of scale 2 of most models below.
normals = functools.partial(normals_of_scale, scale=2.0)


def chance(name: str) -> Any:
    return numpyro.sample(name, dist.Beta(1.0, 2.0))


CONJUGATE = Cases()


def observed(name: str, make_rows: Any, density: Callable[..., Any]) -> None:
    """A model whose last argument is observed; `density` makes its distribution."""

    def model(*rows: Any) -> None:
        distribution = density(*rows)
        with numpyro.plate(UNIT, rows[-1].shape[0]):
            numpyro.sample("y", distribution, obs=rows[-1])

    CONJUGATE[name] = Case(model, make_rows)


def factor(name: str, make_rows: Any, function: Callable[..., Any]) -> None:
    def model(*rows: Any) -> None:
        log_factor = function(*rows)
        with numpyro.plate(UNIT, rows[0].shape[0]):
            numpyro.factor("f", log_factor)

    CONJUGATE[name] = Case(model, make_rows)


row_model = CONJUGATE.of


# --- terms that a row switches off --------------------------------------------------


def feature_and_count(rng: np.random.Generator, n: int) -> Rows:
    return rng.normal(size=n), rng.poisson(3.0, n).astype(float)


def with_gaps(rng: np.random.Generator, n: int) -> Rows:
    x = rng.normal(size=n)
    x[::3] = np.nan
    return x, rng.normal(size=n)


def _one_coin(y: Any) -> Any:
    right, same = chance("right"), jnp.eye(4)
    confusion = right * same + (1 - right) * (1 - same) / 3
    return dist.Categorical(confusion[1])


for _name, _rows, _density in (
    (
        "a signal in a window that synthetic rows never leave",
        feature_and_count,
        lambda x, y: dist.Poisson(jnp.where(x < 0.95, gammas("a"), 0.0) + gammas("c")),
    ),
    (
        "one of two signals and a background",
        feature_and_count,
        lambda x, y: dist.Poisson(
            jnp.where(x < 0.95, gammas("a") * jnp.sqrt(0.96 - x), gammas("b"))
            + gammas("c")
        ),
    ),
    ("errors that share what is left", lambda r, n: (r.integers(0, 4, n),), _one_coin),
    (
        "a mean where the feature is missing",
        with_gaps,
        lambda x, y: dist.Normal(
            jnp.where(jnp.isnan(x), normals("m"), normals("b") * x), 0.5
        ),
    ),
):
    observed(_name, _rows, _density)


@row_model(counts)
def one_rate_of_a_one_hot_and_a_background(y: Any) -> None:
    a, c = gammas("a", 3), gammas("c")
    with numpyro.plate(UNIT, y.shape[0]):
        z = numpyro.sample("z", dist.Categorical(jnp.ones(3) / 3))
        rate = (jax.nn.one_hot(z, 3) * a)[:, 1] + c
        numpyro.sample("y", dist.Poisson(rate), obs=y)


@row_model(answers)
def knowledge_tracing(y: Any) -> None:
    known, learn, guess, slip = map(chance, ("known", "learn", "guess", "slip"))
    with numpyro.plate(UNIT, y.shape[0]):
        k = numpyro.sample("k0", dist.Bernoulli(known))
        for t in range(3):
            p = jnp.where(k == 1, 1 - slip, guess)
            numpyro.sample(f"y{t}", dist.Bernoulli(p), obs=y[:, t])
            if t < 2:
                stays = jnp.where(k == 1, 0.95, learn)
                k = numpyro.sample(f"k{t + 1}", dist.Bernoulli(stays))


@row_model(words)
def second_order_chain(y: Any) -> None:
    A, rate = simplices("A", 2, 2, 2), gammas("rate", 2)
    with numpyro.plate(UNIT, y.shape[0]):
        before = last = 0
        for t in range(3):
            z = numpyro.sample(f"z{t}", dist.Categorical(A[before, last]))
            numpyro.sample(f"y{t}", dist.Poisson(rate[z]), obs=y[:, t])
            before, last = last, z


# --- chances that a binary latent switches off ---------------------------------------


def _seen_where_present(chances: Callable[[Any], Any]) -> Callable[..., None]:
    """Whether each row is seen, occasion by occasion, if it is there at all."""

    def model(y: Any) -> None:
        share, p = chance("share"), chances(y)
        with numpyro.plate(UNIT, y.shape[0]):
            z = numpyro.sample("z", dist.Bernoulli(share))
            seen = dist.Bernoulli(p * z[..., None]).expand([y.shape[0], 5])
            numpyro.sample("y", seen.to_event(1), obs=y)

    return model


def _after_the_first_time(y: Any) -> Any:
    before = jnp.concatenate([jnp.zeros_like(y[:, :1]), y[:, :-1]], -1)
    return jnp.where(before > 0, chance("again"), chance("first"))


CONJUGATE["one chance of being seen"] = Case(
    _seen_where_present(lambda y: chance("p")), answers
)
CONJUGATE["a chance on each occasion"] = Case(
    _seen_where_present(
        lambda y: numpyro.sample("p", dist.Beta(1.0, 2.0).expand([5]).to_event(1))
    ),
    answers,
)
CONJUGATE["a chance that changes once seen"] = Case(
    _seen_where_present(_after_the_first_time), answers
)


@row_model(coins)
def seen_if_there_and_if_awake(y: Any) -> None:
    share, p = chance("share"), chance("p")
    with numpyro.plate(UNIT, y.shape[0]):
        there = numpyro.sample("there", dist.Bernoulli(share))
        awake = numpyro.sample("awake", dist.Bernoulli(0.3 * there))
        numpyro.sample("y", dist.Binomial(4, probs=p * there * awake), obs=4 * y)


# --- loops, and masks on several levels ---------------------------------------------


def _summed(X: Any, y: Any) -> Any:
    w = normals("w", 3)

    def add(j: Any, total: Any) -> Any:
        return total + jnp.asarray(X)[:, j] * w[j]

    return dist.Normal(jax.lax.fori_loop(0, 3, add, jnp.zeros(X.shape[0])), 0.5)


def _branch(g: Any, y: Any) -> Any:
    a = normals("a", 2)

    def of_row(i: Any) -> Any:
        return jax.lax.cond(i == 0, lambda: a[0], lambda: -a[1])

    return dist.Normal(jax.vmap(of_row)(g), 0.5)


def _walk(y: Any) -> Any:
    steps = normals("steps", 3)
    path = jax.lax.scan(lambda at, step: (at + step, at + step), 0.0, steps)[1]
    return dist.Normal(path, 0.5).to_event(1)


for _name, _rows, _density in (
    ("fori_loop", linear, _summed),
    ("scan of a walk", points, _walk),
    (
        "polyval",
        feature_and_count,
        lambda x, y: dist.Normal(jnp.polyval(normals("w", 3), x), 0.5),
    ),
    ("branches by data", lambda r, n: (r.integers(0, 2, n), r.normal(size=n)), _branch),
    (
        "mask inside to_event",
        points,
        lambda y: dist.Normal(normals("mu", 3), 0.5).mask(y > 0).to_event(1),
    ),
    (
        "mask of several entries with constants",
        points,
        lambda y: (
            dist.Normal(normals("mu", 3), gammas("t") ** -0.5)
            .mask(jnp.cumsum(y, -1) > 0)
            .to_event(1)
        ),
    ),
):
    observed(_name, _rows, _density)


@row_model(points)
def mask_around_an_event_of_the_same_length(y: Any) -> None:
    mu = normals("mu", 3)
    y = jnp.stack([y, 2 * y, -y], 1)
    with (
        numpyro.plate(UNIT, y.shape[0], dim=-2),
        numpyro.plate("repeats", 3, dim=-1),
        mask(mask=y[:, :, 0] > 0),
    ):
        numpyro.sample("y", dist.Normal(mu, 0.5).to_event(1), obs=y)


# --- covariances --------------------------------------------------------------------

NEIGHBOURS = np.array([[0, 1, 0, 1], [1, 0, 1, 0], [0, 1, 0, 1], [1, 0, 1, 0.0]])


def inverse_wishart(size: int, *batch: int) -> Any:
    prior = dist.InverseWishart(size + 2.0, scale_matrix=jnp.eye(size))
    return numpyro.sample("S", prior.expand(batch).to_event(len(batch)))


def _shared_covariance(y: Any) -> Any:
    S = inverse_wishart(3)
    mu = numpyro.sample("mu", dist.MultivariateNormal(jnp.zeros(3), S / 0.1))
    return dist.MultivariateNormal(mu, S)


def of_vector(*args: Any, **spread: Any) -> Any:
    return dist.MultivariateNormal(*args, **spread)


for _name, _density in {
    "normal inverse Wishart": _shared_covariance,
    "diagonal precision": lambda y: of_vector(
        normals("mu", 3), precision_matrix=jnp.diag(gammas("t", 3))
    ),
    "diagonal covariance": lambda y: of_vector(
        jnp.zeros(3), covariance_matrix=jnp.diag(1 / gammas("t", 3))
    ),
    "diagonal Cholesky factor": lambda y: of_vector(
        jnp.zeros(3), scale_tril=jnp.diag(gammas("t", 3) ** -0.5)
    ),
    "scaled rows of the identity": lambda y: of_vector(
        jnp.ones(3), precision_matrix=gammas("t", 3)[:, None] * jnp.eye(3)
    ),
    "low rank": lambda y: dist.LowRankMultivariateNormal(
        normals("mu", 3), jnp.ones((3, 1)), 0.5 * jnp.ones(3)
    ),
    "multivariate t": lambda y: dist.MultivariateStudentT(
        4.0, normals("mu", 3), 0.7 * jnp.eye(3)
    ),
    "random walk": lambda y: dist.Normal(
        numpyro.sample("w", dist.GaussianRandomWalk(gammas("t") ** -0.5, 3)), 0.5
    ).to_event(1),
}.items():
    observed(_name, points, _density)


@row_model(grouped)
def areas_with_neighbours(x: Any, y: Any, g: Any) -> None:
    prior = dist.CAR(0.3, 0.5, gammas("t"), NEIGHBOURS)
    phi = numpyro.sample("phi", prior)
    with numpyro.plate(UNIT, y.shape[0]):
        numpyro.sample("y", dist.Normal(phi[g], 0.5), obs=y)


@row_model(points)
def gaussian_mixture_with_covariances(y: Any) -> None:
    pi, mu, S = simplices("pi", 2), normals("mu", 2, 3), inverse_wishart(3, 2)
    with numpyro.plate(UNIT, y.shape[0]):
        z = numpyro.sample("z", dist.Categorical(pi))
        numpyro.sample("y", dist.MultivariateNormal(mu[z], S[z]), obs=y)


# --- densities ----------------------------------------------------------------------


def _affine(loc: Any, scale: Any) -> Any:
    shift = dist.transforms.AffineTransform(loc, scale)
    return dist.TransformedDistribution(dist.Normal(0.0, 1.0), shift)


def _exponentiated(y: Any) -> Any:
    normal = dist.Normal(normals("mu"), gammas("t") ** -0.5)
    return dist.TransformedDistribution(normal, dist.transforms.ExpTransform())


def _sticks(y: Any) -> Any:
    v = numpyro.sample("v", dist.Beta(1.0, gammas("alpha")).expand([2]).to_event(1))
    pad = functools.partial(jnp.pad, constant_values=1.0)
    weights = pad(v, (0, 1)) * pad(jnp.cumprod(1 - v), (1, 0))
    components = dist.Normal(normals("mu", 3), 0.5)
    return dist.MixtureSameFamily(dist.Categorical(weights), components)


def _logistic_by_exp(y: Any) -> Any:
    logit = normals("w")
    return dist.Bernoulli(jnp.exp(logit) / (1 + jnp.exp(logit)))


for _name, _rows, _density in (
    ("Geometric", counts, lambda y: dist.Geometric(probs=chance("p"))),
    ("Geometric of logits", counts, lambda y: dist.Geometric(logits=normals("w"))),
    ("Kumaraswamy", fractions, lambda y: dist.Kumaraswamy(2.0, gammas("b"))),
    ("Levy", waits, lambda y: dist.Levy(-0.5, gammas("c"))),
    ("Pareto", waits, lambda y: dist.Pareto(0.001, gammas("a"))),
    ("Weibull", waits, lambda y: dist.Weibull(gammas("rate") ** (-1 / 1.5), 1.5)),
    (
        "Chi2",
        numbers,
        lambda y: dist.Normal(0.0, numpyro.sample("t", dist.Chi2(3.0)) ** -0.5),
    ),
    (
        "shifted and scaled",
        numbers,
        lambda y: _affine(normals("m"), gammas("t") ** -0.5),
    ),
    ("exponentiated", waits, _exponentiated),
    (
        "inflated",
        counts,
        lambda y: dist.ZeroInflatedPoisson(chance("gate"), gammas("rate")),
    ),
    (
        "inflated by name",
        counts,
        lambda y: dist.ZeroInflatedDistribution(
            dist.Binomial(20, chance("p")), gate=0.3
        ),
    ),
    (
        "mixture of different kinds",
        numbers,
        lambda y: dist.MixtureGeneral(
            dist.Categorical(simplices("pi", 2)),
            [dist.Normal(normals("mu"), 0.5), dist.Normal(0.0, gammas("t") ** -0.5)],
        ),
    ),
    (
        "quantiles",
        linear,
        lambda X, y: dist.AsymmetricLaplaceQuantile(X @ normals("w", 3), 0.5, 0.3),
    ),
    (
        "asymmetric noise",
        linear,
        lambda X, y: dist.AsymmetricLaplace(X @ normals("w", 3), 0.5, 2.0),
    ),
    (
        "rate by its logarithm",
        feature_and_count,
        lambda x, y: dist.Poisson(jnp.exp(jnp.log(gammas("rate")) + x)),
    ),
    ("Dirichlet process with a latent concentration", numbers, _sticks),
    (
        "logistic by its exponential",
        lambda r, n: (r.integers(0, 2, n),),
        _logistic_by_exp,
    ),
):
    observed(_name, _rows, _density)


def _of_two(y: Any) -> tuple[Any, Any]:
    return simplices("pi", 2), dist.Normal(normals("mu", 2), 0.5).log_prob(y[:, None])


def _by_einsum(y: Any) -> Any:
    pi, each = _of_two(y)
    return jnp.log(jnp.einsum("nk,k->n", jnp.exp(each), pi))


def _by_matmul(y: Any) -> Any:
    pi, each = _of_two(y)
    return jnp.log(jnp.exp(each) @ pi)


def _survival(t: Any, event: Any) -> Any:
    rate = gammas("rate")
    return jnp.where(event, jnp.log(rate), 0.0) - rate * jnp.maximum(t, 0.0)


for _name, _rows, _function in (
    ("log of an einsum", numbers, _by_einsum),
    ("log of a product", numbers, _by_matmul),
    ("censored waiting times", events, _survival),
):
    factor(_name, _rows, _function)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", CONJUGATE)
def test_model_is_compiled_to_what_it_means(name: str) -> None:
    case = CONJUGATE[name]
    assert case.reasons_against_vips() == {}
    graph = case.graph
    certify(interpreted(graph), seed=3)


# --- what is not --------------------------------------------------------------------


def _waits_with_any_sign(t: Any, event: Any) -> Any:
    return jnp.where(event, jnp.log(rate := gammas("rate")), 0.0) - rate * t


def _student_parts(y: Any) -> Any:
    parts = dist.StudentT(4.0, normals("mu", 2), 0.5)
    return dist.MixtureSameFamily(dist.Categorical(simplices("pi", 2)), parts)


def _sqrt_of_square(y: Any) -> Any:
    return dist.Normal(jnp.exp(0.5 * jnp.log(normals("w") ** 2)), 0.5)


NOT_CONJUGATE: dict[str, tuple[Any, Any, str]] = {
    "Weibull of latent shape": (
        waits,
        lambda y: dist.Weibull(1.0, gammas("k")),
        "'k' of Weibull",
    ),
    "truncated": (
        numbers,
        lambda y: dist.TruncatedNormal(normals("mu"), 1.0, low=-5.0),
        "LeftTruncatedDistribution ('mu')",
    ),
    "parts with auxiliaries": (numbers, _student_parts, "sample which component"),
    "concentrations": (
        numbers,
        lambda y: dist.Normal(
            numpyro.sample("v", dist.Beta(2.0, gammas("alpha"))), 0.5
        ),
        "'alpha' of Beta",
    ),
    "neighbours with a latent correlation": (
        points,
        lambda y: dist.CAR(jnp.zeros(3), chance("rho"), 1.0, 1.0 - np.eye(3)),
        "'rho' of CAR",
    ),
    "magnitude by its logarithm": (numbers, _sqrt_of_square, "'w'"),
    "covariance plus a ridge": (
        points,
        lambda y: dist.MultivariateNormal(
            jnp.zeros(3), inverse_wishart(3) + jnp.eye(3)
        ),
        "the inverse of a sum",
    ),
    "precision in place of a covariance": (
        points,
        lambda y: dist.MultivariateNormal(
            jnp.zeros(3), precision_matrix=inverse_wishart(3)
        ),
        "[inv, logdet, x]",
    ),
}


@pytest.mark.parametrize("name", NOT_CONJUGATE)
def test_other_model_is_refused_with_its_reason(name: str) -> None:
    make_rows, density, reason = NOT_CONJUGATE[name]
    observed(f"not {name}", make_rows, density)
    reasons = CONJUGATE.pop(f"not {name}").reasons_against_vips()
    assert reason in " ".join(reasons.values())


def test_a_factor_needs_its_sign_from_the_program() -> None:
    factor("raw", events, _waits_with_any_sign)
    reasons = CONJUGATE.pop("raw").reasons_against_vips()
    assert "say that a number has a sign" in " ".join(reasons.values())


# --- closed forms -------------------------------------------------------------------


def _weibull(y: np.ndarray) -> dict[str, Any]:
    return {"rate/concentration": 2 + len(y), "rate/rate": 1 + (y**1.5).sum()}


def _levy(y: np.ndarray) -> dict[str, Any]:
    rate = 1 + (0.5 / (y + 0.5)).sum()
    return {"c/concentration": 2 + len(y) / 2, "c/rate": rate}


def _kumaraswamy(y: np.ndarray) -> dict[str, Any]:
    return {"b/concentration": 2 + len(y), "b/rate": 1 - np.log1p(-(y**2)).sum()}


def _known_mean(y: Any) -> Any:
    return dist.MultivariateNormal(jnp.zeros(3), inverse_wishart(3))


def _scatter(y: np.ndarray) -> dict[str, Any]:
    return {"S/concentration": 5 + len(y), "S/scale_matrix": np.eye(3) + y.T @ y}


observed("known mean", points, _known_mean)


def _pulled_mean(y: Any) -> Any:
    mean = normals("mean")
    numpyro.factor("pull", -2.0 * (mean - 1.0) ** 2)
    return dist.Normal(mean, 1.0)


def _pulled(y: np.ndarray) -> dict[str, Any]:
    precision = 1 / 4 + 4 + len(y)
    return {
        "mean/loc": [(4 + y.sum()) / precision],
        "mean/covariance_matrix": [[1 / precision]],
    }


observed("factor of a global", numbers, _pulled_mean)


def flat(name: str, support: Any = dist.constraints.real) -> Any:
    return numpyro.sample(name, dist.ImproperUniform(support, (), ()))


def _flat_mean(y: np.ndarray) -> dict[str, Any]:
    return {"mean/loc": [y.mean()], "mean/covariance_matrix": [[1 / (4 * len(y))]]}


def _flat_scale(y: np.ndarray) -> dict[str, Any]:
    # Those of its square: p(s) = 1 is p(s²) ∝ 1 / s.
    return {"s/concentration": (len(y) - 1) / 2, "s/rate": (y**2).sum() / 2}


def _flat_rate(y: np.ndarray) -> dict[str, Any]:
    return {"r/concentration": 1 + y.sum(), "r/rate": len(y)}


def _flat_variance(y: np.ndarray) -> dict[str, Any]:
    return {"v/concentration": len(y) / 2 - 1, "v/rate": (y**2).sum() / 2}


def _flat_chance(y: np.ndarray) -> dict[str, Any]:
    return {"p/concentration1": 1 + y.sum(), "p/concentration0": 1 + (1 - y).sum()}


POSITIVE = dist.constraints.positive
observed("flat mean", numbers, lambda y: dist.Normal(flat("mean"), 0.5))
observed("flat scale", numbers, lambda y: dist.Normal(0.0, flat("s", POSITIVE)))
observed("flat rate", counts, lambda y: dist.Poisson(flat("r", POSITIVE)))
observed(
    "flat variance",
    numbers,
    lambda y: dist.Normal(0.0, jnp.sqrt(flat("v", POSITIVE))),
)
observed(
    "flat chance",
    coins,
    lambda y: dist.Bernoulli(flat("p", dist.constraints.unit_interval)),
)


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    ("name", "posterior"),
    [
        ("Kumaraswamy", _kumaraswamy),
        ("Levy", _levy),
        ("Weibull", _weibull),
        ("known mean", _scatter),
        ("factor of a global", _pulled),
        ("flat mean", _flat_mean),
        ("flat scale", _flat_scale),
        ("flat rate", _flat_rate),
        ("flat variance", _flat_variance),
        ("flat chance", _flat_chance),
    ],
)
def test_closed_form(name: str, posterior: Callable[..., dict[str, Any]]) -> None:
    case = CONJUGATE[name]
    rows = case.make_rows(np.random.default_rng(0), 50)
    vi = nv.PrivateVI(
        nv.private(case.fn, unit=UNIT),
        budget=nv.PrivacyBudget(math.inf),
        progress_bar=False,
    )
    params = vi.run(jax.random.key(0), *rows).params
    for parameter, value in posterior(*rows).items():
        np.testing.assert_allclose(params[parameter], value, rtol=1e-6)

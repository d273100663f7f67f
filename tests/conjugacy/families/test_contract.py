"""One contract for every exponential family; see `Family`.

A family without an example here fails the first test, and a check that does not apply
to a family says so by name: nothing is passed over in silence.
"""

import functools
import inspect
import itertools
import math
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import numpyro.distributions as dist
import pytest
from jax.flatten_util import ravel_pytree
from numpyro.distributions import constraints
from scipy import integrate, special, stats

from numpyro_vips import polya_gamma
from numpyro_vips.conjugacy import families
from numpyro_vips.conjugacy.families import FAMILIES, OTHERS, positive_matrices
from numpyro_vips.conjugacy.families.dirichlet import Categorical
from numpyro_vips.conjugacy.families.family import Family
from numpyro_vips.conjugacy.families.gaussian import FactorizedNormal
from numpyro_vips.conjugacy.families.joint_categorical import JointCategorical

RNG = np.random.default_rng(0)
Natural = dict[str, Any]


def precision(size: int) -> np.ndarray:
    root = RNG.normal(size=(size, size))
    return root @ root.T + np.eye(size)


def gaussian(size: int) -> Natural:
    halves = [-0.5 * precision(size) for _ in range(2)]
    return {"x": RNG.normal(size=(2, size)), "xx": np.stack(halves)}


# The shape of a latent with two independent factors, and natural parameters of a member
# for each of them.
EXAMPLES: dict[str, tuple[tuple[int, ...], Natural]] = {
    "Gamma": ((2,), {"x": [-0.5, -3.0], "log": [0.7, 4.0]}),
    "InverseGamma": ((2,), {"1/x": [-0.5, -3.0], "log": [-4.5, -7.0]}),
    "Beta": ((2,), {"log": [-0.2, 3.0], "log1m": [1.5, 0.3]}),
    "Dirichlet": ((2, 3), {"log": [[-0.3, 2.0, 0.5], [4.0, 0.1, 1.0]]}),
    "Categorical": ((2,), {"is": [[0.3, -1.0, 2.0], [0.0, 0.0, 1.0]]}),
    "Categorical, jointly": (
        (2,),
        {
            "a": RNG.normal(size=(2, 2)),
            "a,b": RNG.normal(size=(2, 2, 3)),
            "b,c": RNG.normal(size=(2, 3, 2)),
            "d": RNG.normal(size=(2, 2)),
        },
    ),
    "Normal": ((2, 3), gaussian(3)),
    "Normal, factorised": ((2, 3), gaussian(3)),
    "Wishart": (
        (2, 2, 2),
        {"x": np.stack([-precision(2), -precision(2)]), "logdet": [1.5, 3.0]},
    ),
    "InverseWishart": (
        (2, 2, 2),
        {"inv": np.stack([-precision(2), -precision(2)]), "logdet": [-4.5, -6.0]},
    ),
    "PolyaGamma": ((2,), {"x": [-0.5, -8.0]}),
    "Tangent": ((2,), {"x": [-0.7, 3.0]}),
    "GeneralizedInverseGaussian": (
        (2,),
        {"x": [-0.5, -2.0], "1/x": [-1.0, -0.3], "log": [0.4, -2.0]},
    ),
    "RootInverseGamma": ((2,), {"x^-2": [-0.5, -3.0], "log": [-5.0, -8.0]}),
    "RootGeneralizedInverseGaussian": (
        (2,),
        {"x^2": [-0.5, -2.0], "x^-2": [-1.0, -0.3], "log": [-0.4, -2.0]},
    ),
}

JOINT = JointCategorical(
    {"a": 2, "b": 3, "c": 2, "d": 2}, [("a",), ("a", "b"), ("b", "c"), ("d",)]
)
ALL: list[Family] = [*(m.family for m in FAMILIES), *OTHERS, Categorical(3), JOINT]
by_name = functools.partial(pytest.mark.parametrize, ids=lambda f: f.name)
x64 = pytest.mark.usefixtures("x64")
every_family = by_name("family", ALL)


def example(family: Family) -> Natural:
    _, natural = EXAMPLES[family.name]
    return {k: jnp.asarray(v, float) for k, v in natural.items()}


def shape_of(family: Family) -> tuple[int, ...]:
    return EXAMPLES[family.name][0]


def batch_of(family: Family) -> tuple[int, ...]:
    shape = shape_of(family)
    return shape[: len(shape) - family.event_dim]


def shapes(arrays: Any) -> dict[str, tuple[int, ...]]:
    return {name: tuple(np.shape(value)) for name, value in arrays.items()}


def inner(a: Any, b: Any, batch: int = 1) -> np.ndarray:
    """⟨a, b⟩ for each factor."""
    products = [np.asarray(a[s] * b[s]) for s in a]
    return np.sum([p.reshape((*p.shape[:batch], -1)).sum(-1) for p in products], axis=0)


@functools.cache
def compiled(family: Family, name: str) -> Callable[..., Any]:
    """A method of a family, compiled once for all tests."""
    return jax.jit(getattr(family, name))


@functools.cache
def beside_flat_prior(family: Family) -> Callable[[Natural], Natural]:
    return jax.jit(lambda natural: family.beside_flat_prior(natural, shape_of(family)))


def subclasses(family: type[Family]) -> Iterator[type[Family]]:
    for below in family.__subclasses__():
        yield below
        yield from subclasses(below)


def test_every_family_of_the_package_is_here() -> None:
    defined = {
        cls
        for cls in subclasses(Family)
        if cls.__module__.startswith("numpyro_vips.")
        and cls.__name__[0] != "_"
        and not inspect.isabstract(cls)
    }
    assert defined == {type(family) for family in ALL}
    assert len(ALL) == len({family.name for family in ALL}) == 15
    assert set(EXAMPLES) == {family.name for family in ALL}


# --- next to a flat prior -----------------------------------------------------------


@pytest.mark.thorough
@x64
@every_family
def test_a_flat_prior_changes_no_member_and_leaves_one_where_nothing_is_known(
    family: Family,
) -> None:
    natural = example(family)
    found = beside_flat_prior(family)(natural)
    for statistic, value in natural.items():
        np.testing.assert_allclose(found[statistic], value, rtol=1e-9, atol=1e-9)
    nothing = jax.tree.map(jnp.zeros_like, natural)
    moments = compiled(family, "moments")(beside_flat_prior(family)(nothing))
    for value in jax.tree.leaves(moments):
        assert np.isfinite(value).all()


# --- complete, or not made --------------------------------------------------------


@pytest.mark.parametrize("missing", sorted(Family.__abstractmethods__))
def test_an_incomplete_family_cannot_be_made(missing: str) -> None:
    names = Family.__abstractmethods__
    whole = {n: inspect.getattr_static(families.Gamma, n) for n in names}
    type("Whole", (Family,), whole)()
    del whole[missing]
    with pytest.raises(TypeError, match=rf"Partial .*abstract method '?{missing}"):
        type("Partial", (Family,), whole)()


def test_families_of_equal_states_are_equal() -> None:
    assert Categorical(3) == Categorical(3) != Categorical(2)
    assert hash(Categorical(3)) == hash(Categorical(3))
    assert families.Gamma() == families.Gamma() != families.InverseGamma()
    assert FactorizedNormal() != families.Normal()


# --- moments and the log normaliser -----------------------------------------------


@pytest.mark.thorough
@x64
@every_family
def test_shapes(family: Family) -> None:
    natural, shape = example(family), shape_of(family)
    assert tuple(family.statistics) == tuple(natural)
    assert family.moment_shapes(shape) == shapes(natural)
    assert shapes(compiled(family, "moments")(natural)) == shapes(natural)
    assert compiled(family, "log_normalizer")(natural).shape == batch_of(family)
    # More axes of factors in front, as of rows.
    more = {k: jnp.broadcast_to(v, (4, *v.shape)) for k, v in natural.items()}
    assert family.moment_shapes((4, *shape)) == shapes(more)
    assert shapes(compiled(family, "moments")(more)) == shapes(more)
    assert compiled(family, "log_normalizer")(more).shape == (4, *batch_of(family))


@pytest.mark.thorough
@x64
@every_family
def test_moments_are_the_slope_of_the_log_normaliser(family: Family) -> None:
    natural = example(family)

    @jax.jit
    def both(natural: Natural) -> Any:
        slope = jax.grad(lambda n: family.log_normalizer(n).sum())(natural)
        return family.moments(natural), slope

    moments, slope = both(natural)
    normalizer = compiled(family, "log_normalizer")
    for statistic in family.statistics:
        np.testing.assert_allclose(
            moments[statistic], slope[statistic], rtol=1e-7, atol=1e-9
        )
        # By differences, in which a hand-written derivative cannot hide.
        change = np.random.default_rng(0).normal(size=natural[statistic].shape)
        if natural[statistic].ndim >= 3 and family.event_dim:
            change = change + np.swapaxes(change, -1, -2)
        up, down = (
            {**natural, statistic: natural[statistic] + h * change}
            for h in (1e-5, -1e-5)
        )
        slope_along = float(np.sum(normalizer(up)) - np.sum(normalizer(down))) / 2e-5
        expected = float(np.vdot(moments[statistic], change))
        assert slope_along == pytest.approx(expected, rel=1e-5, abs=1e-6)
    # Two independent members: a batch is no more than that.
    alone = compiled(family, "moments")({k: v[1:] for k, v in natural.items()})
    for statistic in family.statistics:
        np.testing.assert_allclose(moments[statistic][1:], alone[statistic])


@pytest.mark.thorough
@x64
@every_family
def test_parameters_and_back(family: Family) -> None:
    natural = example(family)
    parameters = compiled(family, "parameters")(natural)
    back = compiled(family, "from_parameters")(parameters)
    moments = compiled(family, "moments")(natural)
    if isinstance(family, FactorizedNormal):
        # Off the diagonal there is nothing that parameters of the factors could keep.
        back, natural = compiled(family, "moments")(back), moments
    assert set(back) == set(natural)
    for statistic, value in natural.items():
        np.testing.assert_allclose(back[statistic], value, rtol=1e-9, atol=1e-12)
    found = compiled(family, "moments_of")(parameters)
    for statistic, value in moments.items():
        np.testing.assert_allclose(found[statistic], value, rtol=1e-8, atol=1e-10)
    assert parameters == family.of_copies(parameters, None)


@pytest.mark.thorough
@x64
@every_family
def test_natural_parameters_can_be_had_from_moments(family: Family) -> None:
    """By Newton's method on ⟨natural, moments⟩ - log normaliser, which is concave."""
    natural = {k: v[:1] for k, v in example(family).items()}
    target = compiled(family, "moments")(natural)
    flat, unflatten = ravel_pytree(natural)
    wanted, _ = ravel_pytree(target)

    @jax.jit
    def moments(point: Any) -> Any:
        return ravel_pytree(family.moments(unflatten(point)))[0]

    slopes = jax.jit(jax.jacfwd(moments))
    away = np.random.default_rng(0).uniform(size=flat.shape)
    point = flat * (1.0 + 0.02 * away)
    if family.event_dim == 2 or "xx" in natural:
        point = flat * 1.02
    assert np.abs(np.asarray(moments(point) - wanted)).max() > 1e-4
    for _ in range(12):
        # Least squares: symmetric matrices and log probabilities say things twice.
        step = np.linalg.lstsq(slopes(point), wanted - moments(point), rcond=1e-10)[0]
        point = point + step
    np.testing.assert_allclose(moments(point), wanted, rtol=1e-8, atol=1e-10)
    rest = point - flat
    if isinstance(family, Categorical | JointCategorical | FactorizedNormal):
        # Determined up to what the moments do not depend on.
        rest = slopes(flat) @ rest
    np.testing.assert_allclose(rest, 0.0, atol=1e-6)


@pytest.mark.thorough
@every_family
def test_moments_stay_in_their_range(family: Family) -> None:
    """Also at natural parameters that no member has, as rounding may make them."""
    moments = compiled(family, "moments")
    finite = dict.fromkeys(family.statistics, 0)
    for scale, seed in itertools.product((1e-4, 1.0, 1e4, 1e20), range(4)):
        rng = np.random.default_rng(seed)
        like = example(family)
        # Members, larger and smaller ones, and what no member has.
        natural = {
            k: scale * jnp.float32(rng.normal(size=v.shape)) if seed % 2 else scale * v
            for k, v in like.items()
        }
        for statistic, value in moments(natural).items():
            lower, upper = family.moment_range
            value = np.asarray(value)[~np.isnan(value)]
            finite[statistic] += value.size
            assert lower <= value.min(initial=np.inf)
            assert value.max(initial=-np.inf) <= upper * (1 + 1e-6)
    assert min(finite.values()) > 0


# --- against SciPy and numerical integration --------------------------------------

STATISTICS: dict[str, Callable[[Any], Any]] = {
    "x": lambda x: x,
    "1/x": lambda x: 1 / x,
    "x^2": lambda x: x**2,
    "x^-2": lambda x: x**-2.0,
    "log": np.log,
    "log1m": lambda x: np.log1p(-x),
}


def integrated_entropy(natural: Natural, upper: float) -> float:
    """Of the density ∝ exp Σ natural · s(x), its normaliser an integral as well."""

    def exponent(x: float) -> float:
        return sum(float(v) * STATISTICS[s](x) for s, v in natural.items())

    def integral(of: Callable[[float], float]) -> float:
        edges = [0.0, 0.05, 0.3, 1.0, *((3.0, 10.0, np.inf) if upper > 1 else ())]
        pieces = itertools.pairwise(edges)
        return sum(integrate.quad(of, a, b, epsabs=1e-12)[0] for a, b in pieces)

    total = integral(lambda x: np.exp(exponent(x)))
    mean = integral(lambda x: np.exp(exponent(x)) * exponent(x)) / total
    return math.log(total) - mean


def listed_entropy(natural: Natural) -> float:
    """Of the joint states of discrete latents, listed one by one."""
    states = itertools.product(*map(range, JOINT.states.values()))
    energies = []
    for state in states:
        at = dict(zip(JOINT.states, state, strict=True))
        tables = natural.items()
        energies.append(sum(t[tuple(at[n] for n in s.split(","))] for s, t in tables))
    weights = np.exp(energies) / np.exp(energies).sum()
    return float(stats.entropy(weights))


def gaussian_entropy(natural: Natural) -> float:
    covariance = np.linalg.inv(-2.0 * natural["xx"])
    return stats.multivariate_normal(np.zeros(3), covariance).entropy()


def factorized_entropy(natural: Natural) -> float:
    deviations = np.diag(-2.0 * natural["xx"]) ** -0.5
    return float(sum(stats.norm(0.0, deviation).entropy() for deviation in deviations))


def wishart_entropy(natural: Natural) -> float:
    df = 2.0 * natural["logdet"] + 3.0
    return stats.wishart(df, np.linalg.inv(-2.0 * natural["x"])).entropy()


def inverse_wishart_entropy(natural: Natural) -> float:
    """From its inverse's, by the Jacobian |X|^-3; SciPy's own is wrong (1.17)."""
    df, scale = -2.0 * natural["logdet"] - 3.0, np.linalg.inv(-2.0 * natural["inv"])
    log_det = special.psi([df / 2, (df - 1) / 2]).sum() + 2 * math.log(2.0)
    log_det += np.linalg.slogdet(scale)[1]
    return stats.wishart(df, scale).entropy() - 3.0 * log_det


def polya_gamma_entropy(natural: Natural) -> float:
    """From its base measure, PG(1, 0)."""
    tilted = polya_gamma.PolyaGamma(1.0, math.sqrt(-2.0 * natural["x"]))
    x = np.linspace(1e-3, 6.0, 6_001)
    log_density = np.asarray(tilted.log_prob(x))
    base = np.asarray(polya_gamma.PolyaGamma(1.0, 0.0).log_prob(x))
    ratio = np.exp(log_density) * (log_density - base)
    return -float(integrate.trapezoid(ratio, x))


on_the_half_line = functools.partial(integrated_entropy, upper=math.inf)
ENTROPIES: dict[str, Callable[[Natural], float]] = {
    "Gamma": lambda n: stats.gamma(n["log"] + 1, scale=-1 / n["x"]).entropy(),
    "InverseGamma": lambda n: stats.invgamma(-n["log"] - 1, scale=-n["1/x"]).entropy(),
    "Beta": lambda n: stats.beta(n["log"] + 1, n["log1m"] + 1).entropy(),
    "Dirichlet": lambda n: stats.dirichlet(n["log"] + 1).entropy(),
    "Categorical": lambda n: float(stats.entropy(np.exp(n["is"]))),
    "Categorical, jointly": listed_entropy,
    "Normal": gaussian_entropy,
    "Normal, factorised": factorized_entropy,
    "Wishart": wishart_entropy,
    "InverseWishart": inverse_wishart_entropy,
    "PolyaGamma": polya_gamma_entropy,
    "GeneralizedInverseGaussian": on_the_half_line,
    "RootInverseGamma": on_the_half_line,
    "RootGeneralizedInverseGaussian": on_the_half_line,
}
# A point is not a random variable.
NO_ENTROPY = {"Tangent"}


def test_every_entropy_is_compared_with_another_source() -> None:
    assert set(ENTROPIES) | NO_ENTROPY == set(EXAMPLES)


@pytest.mark.thorough
@x64
@by_name("family", [family for family in ALL if family.name not in NO_ENTROPY])
def test_entropy(family: Family) -> None:
    natural = example(family)
    moments = compiled(family, "moments")(natural)
    normalizer = np.asarray(compiled(family, "log_normalizer")(natural))
    found = normalizer - inner(natural, moments)
    for i in range(2):
        one = {k: np.asarray(v[i]) for k, v in natural.items()}
        expected = float(ENTROPIES[family.name](one))
        assert found[i] == pytest.approx(expected, rel=1e-6, abs=1e-6)


@x64
def test_integrals_agree_with_scipy_where_both_are_known() -> None:
    """So that the entropies that are integrals above rest on more than one family."""
    for name, upper in (("Gamma", math.inf), ("InverseGamma", math.inf), ("Beta", 1.0)):
        one = {k: v[1] for k, v in EXAMPLES[name][1].items()}
        expected = ENTROPIES[name](one)
        assert integrated_entropy(one, upper) == pytest.approx(expected, abs=1e-8)


@pytest.mark.thorough
@x64
@every_family
def test_draws_have_the_moments_and_the_density(family: Family) -> None:
    natural = example(family)
    # Draws of the generalised inverse Gaussian are slow.
    count = 2_000 if "Generalized" in family.name else 10_000
    parameters = compiled(family, "parameters")(natural)
    distribution = family.distribution(parameters)
    sample = jax.jit(distribution.sample, static_argnums=1)
    draws = jnp.asarray(sample(jax.random.key(2), (count,)))
    moments = compiled(family, "moments")(natural)
    at = compiled(family, "at")(draws)
    if family.name == "Tangent":
        # A point: where the bound touches.
        np.testing.assert_allclose(draws, np.broadcast_to(natural["x"], draws.shape))
        return
    for statistic, values in at.items():
        values = np.asarray(values)
        error = values.std(0) / math.sqrt(count) + 1e-12
        assert np.abs((values.mean(0) - moments[statistic]) / error).max() < 4.5
    # log q(x) - ⟨natural, s(x)⟩ is minus the log normaliser at all x, but for the base
    # measure of the auxiliary variable.
    few = draws[:6]
    density = np.asarray(jax.jit(distribution.log_prob)(few))
    density = density.reshape((6, 2, -1)).sum(-1)
    if isinstance(family, FactorizedNormal):
        full = family.from_parameters(parameters)
        rest = density - inner(full, family.at(few), 2)
        expected = -families.Normal().log_normalizer(full)
    else:
        rest = density - inner(natural, family.at(few), 2)
        expected = -compiled(family, "log_normalizer")(natural)
    if family.name == "PolyaGamma":
        base = polya_gamma.PolyaGamma(1.0, 0.0)
        rest = rest - np.asarray(base.log_prob(few))
    np.testing.assert_allclose(rest, np.broadcast_to(expected, (6, 2)), atol=1e-6)


@pytest.mark.thorough
@x64
@every_family
def test_statistics_of_a_point(family: Family) -> None:
    """They are what a narrow distribution around the point has for its moments."""
    parameters = compiled(family, "parameters")(example(family))
    draw = family.distribution(parameters).sample(jax.random.key(0))
    found = family.at(jnp.asarray(draw))
    assert shapes(found) == family.moment_shapes(shape_of(family))
    for value in found.values():
        assert np.isfinite(value).all()


# --- where a fit starts -----------------------------------------------------------


@pytest.mark.thorough
@x64
@every_family
def test_a_wider_covariance_is_larger_by_the_factor(family: Family) -> None:
    """Its precision is that much smaller; nothing else is a covariance."""
    before = family.moments(example(family))
    after = family.moments(family.wider(example(family), 5.0))
    precision = {"Wishart": "x", "InverseWishart": "inv"}.get(family.name)
    if precision is not None:
        after[precision] = 5.0 * after[precision]
        del before["logdet"], after["logdet"]
    for statistic, value in before.items():
        np.testing.assert_allclose(after[statistic], value, rtol=1e-9)


def illegal(distribution: dist.Distribution) -> list[str]:
    """Names of parameters that NumPyro does not allow, or that are not finite."""
    if isinstance(distribution, dist.TransformedDistribution):
        return illegal(distribution.base_dist)
    found = []
    for name, constraint in distribution.arg_constraints.items():
        value = distribution.__dict__.get(name)
        if value is None:
            continue
        if constraint is constraints.positive_definite:
            # NumPyro's own check asks for symmetry to the last digit.
            legal = np.linalg.eigvalsh(np.asarray(value, np.float64)).min() > 0
        elif name == "concentration" and distribution.event_dim == 2:
            legal = np.all(value > distribution.event_shape[-1] - 1)
        elif isinstance(distribution, dist.Delta):
            legal = True
        else:
            legal = np.all(constraint(np.asarray(value)))
        if not (legal and np.all(np.isfinite(value))):
            found.append(name)
    return found


@functools.cache
def described(family: Family) -> Callable[[Natural], Any]:
    """Moments, standard parameters and log normaliser, compiled once."""
    return jax.jit(
        lambda n: (family.moments(n), family.parameters(n), family.log_normalizer(n))
    )


@functools.cache
def starts_of(family: Family) -> Callable[[Natural], Any]:
    """Where fits may start, compiled once: natural parameters and then moments."""
    shape = shape_of(family)

    @jax.jit
    def starts(natural: Natural) -> Any:
        neutral = family.neutral(shape)
        near = family.perturb(natural, jax.random.key(0))
        moments = (
            family.neutral_moments(shape),
            family.starting_moments(neutral),
            family.starting_moments(natural),
        )
        return neutral, near, moments

    return starts


def check_member(family: Family, natural: Natural) -> int:
    """Asserts that natural parameters are those of a member; returns what it saw."""
    moments, parameters, normalizer = described(family)(natural)
    arrays = (*natural.values(), *moments.values(), *parameters.values(), normalizer)
    assert all(np.isfinite(array).all() for array in arrays)
    assert illegal(family.distribution(parameters)) == []
    return sum(array.size for array in arrays)


@pytest.mark.thorough
@pytest.mark.parametrize("double", [False, True], ids=["single", "double"])
@every_family
def test_starts_are_members(family: Family, double: bool) -> None:
    shape = shape_of(family)
    with jax.enable_x64(double):
        natural, near, starting = starts_of(family)(example(family))
        assert shapes(natural) == family.moment_shapes(shape)
        assert check_member(family, natural) > 0
        for moments in starting:
            assert shapes(moments) == family.moment_shapes(shape)
            lower, upper = family.moment_range
            for value in moments.values():
                assert np.isfinite(value).all()
                assert lower <= value.min() and value.max() <= upper
        assert shapes(near) == family.moment_shapes(shape)
        assert check_member(family, near) > 0
        moved = any(np.any(near[s] != example(family)[s]) for s in near)
        # Discrete latents are told apart by what they allocate to.
        assert moved != isinstance(family, Categorical | JointCategorical)


# --- projection -------------------------------------------------------------------


def symmetric(family: Family, arrays: Natural) -> Natural:
    matrices = {"xx", "inv"} | ({"x"} if family.event_dim == 2 else set())
    return {
        k: v + np.swapaxes(v, -1, -2) if k in matrices else v for k, v in arrays.items()
    }


SIZES = (1e-6, 1e-2, 1.0, 1e3, 1e8, 1e12)


@pytest.mark.thorough
@pytest.mark.parametrize("size", SIZES)
@every_family
def test_projection_of_noise_is_a_member(family: Family, size: float) -> None:
    """Whatever noise does, reading the accumulator gives finite, legal parameters."""
    prior = family.neutral(shape_of(family))
    rng = np.random.default_rng(4)
    changed = 0
    for _ in range(5):
        drawn = {k: size * rng.normal(size=v.shape) for k, v in prior.items()}
        drawn = symmetric(family, drawn)
        data = {k: jnp.asarray(v, jnp.float32) for k, v in drawn.items()}
        noise = {k: jnp.full(v.shape, size, jnp.float32) for k, v in prior.items()}
        natural = compiled(family, "project")(prior, data, noise)
        assert shapes(natural) == shapes(prior)
        assert check_member(family, natural) > 0
        changed += any(np.any(natural[s] != prior[s] + data[s]) for s in prior)
        # It is legal data now, so that without noise it comes back.
        legal = {s: natural[s] - prior[s] for s in prior}
        zero = {s: jnp.zeros_like(v) for s, v in prior.items()}
        again = compiled(family, "project")(prior, legal, zero)
        for s in prior:
            scale = 1e-5 * (1.0 + np.abs(natural[s]).max())
            np.testing.assert_allclose(again[s], natural[s], atol=scale)
    # Of tables of log probabilities, and of a point, every real number is legal.
    anything = isinstance(family, Categorical | JointCategorical | families.Tangent)
    assert changed == 0 if anything else changed > 0


@pytest.mark.thorough
@pytest.mark.parametrize("size", [1e-8, *SIZES])
@every_family
def test_projection_of_noise_of_any_size_is_a_member(
    family: Family, size: float
) -> None:
    """Noise that hardly shows, on sums of what a few rows could have given."""
    prior, zero = family.neutral(shape_of(family)), no_noise(family)
    rng = np.random.default_rng(5)
    for share in (1e-9, 1e-6, 1e-2, 1e3):
        drawn = {k: rng.normal(size=v.shape) for k, v in prior.items()}
        if family.event_dim:
            # Of one row: a positive semidefinite matrix of rank one.
            row = rng.normal(size=(2, shape_of(family)[-1]))
            drawn = {
                k: -row[..., None] * row[:, None, :] if v.ndim == 3 else v
                for k, v in drawn.items()
            }
        legal = compiled(family, "project")(zero, as_single(drawn), zero)
        noise = {
            k: jnp.full(v.shape, size * share, jnp.float32) for k, v in zero.items()
        }
        noisy = symmetric(
            family, {k: rng.normal(size=v.shape) for k, v in zero.items()}
        )
        data = {k: size * (legal[k] + share * noisy[k]) for k in legal}
        check_member(family, compiled(family, "project")(prior, as_single(data), noise))


def no_noise(family: Family) -> Natural:
    return {k: jnp.zeros_like(v) for k, v in family.neutral(shape_of(family)).items()}


def as_single(arrays: Natural) -> Natural:
    return {k: jnp.asarray(v, jnp.float32) for k, v in arrays.items()}


@pytest.mark.thorough
@x64
@every_family
def test_projection_leaves_noise_free_data_alone(family: Family) -> None:
    """Data are sums of row statistics: differences of two legal members."""
    prior, natural = family.neutral(shape_of(family)), example(family)
    noise = {k: jnp.zeros_like(v) for k, v in natural.items()}
    data = dict(natural)
    for statistic in ("log", "log1m", "logdet"):
        if statistic in data:
            # Counts raise the one concentration that this statistic belongs to.
            down = family.name.startswith(("Inverse", "Root"))
            data[statistic] = (-1.0 if down else 1.0) * jnp.abs(data[statistic])
    if family.name == "GeneralizedInverseGaussian":
        data = natural  # Its order has no sign.
    projected = compiled(family, "project")(prior, data, noise)
    for statistic in family.statistics:
        np.testing.assert_array_equal(
            projected[statistic], prior[statistic] + data[statistic]
        )


# --- checked annotations ----------------------------------------------------------


def test_annotations_are_checked_while_tests_run() -> None:
    matrix, vectors = jnp.eye(3), jnp.ones((3,))
    assert positive_matrices.times(matrix, vectors).shape == (3,)
    with pytest.raises(jaxtyping.TypeCheckError):
        positive_matrices.times(matrix, jnp.ones((2,)))
    with pytest.raises(jaxtyping.TypeCheckError):
        families.Gamma().at(jnp.arange(3))
    with pytest.raises(jaxtyping.TypeCheckError):
        families.Gamma().at(np.ones(3))  # type: ignore[arg-type]


@pytest.mark.thorough
def test_annotations_are_not_checked_in_use() -> None:
    program = (
        "import sys, numpyro_vips.conjugacy.families as f, jax.numpy as jnp;"
        "f.Gamma().at(jnp.arange(1, 3)); assert 'beartype' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)

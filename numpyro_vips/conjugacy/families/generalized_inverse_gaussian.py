"""Posteriors of scales: the generalised inverse Gaussian and roots of such variables.

A variance with a Gamma prior, the mixing variable of a Laplace density and the scales
of shrinkage priors are generalised inverse Gaussian (GIG), with density
∝ x^(p-1) exp(-(a·x + b/x)/2). A standard deviation whose square is GIG or inverse
Gamma has the statistics x², 1/x² and log x instead; those are the "root" families.
"""

import collections
import math
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jaxtyping import Array, Float, Int, PRNGKeyArray
from numpyro.distributions import constraints

from numpyro_vips.conjugacy.families.family import (
    Elementwise,
    Family,
    NewElementwise,
    Requirements,
    Shape,
)
from numpyro_vips.conjugacy.families.gamma import InverseGamma
from numpyro_vips.conjugacy.families.noisy_sums import (
    MOST_RATES,
    RateShape,
    information_kept,
    nonnegative,
    rate_of_noisy_sums,
)
from numpyro_vips.conjugacy.families.transformed import Transformed
from numpyro_vips.jax_tools.host_calls import call_on_host, runs_on_host
from numpyro_vips.jax_tools.separate_rows import treats_rows_alone

# Below this, a and b are taken for this: the density is a Gamma's or inverse Gamma's.
_TINY = 1e-30
# At most so many points of the trapezoidal rule, in single and in double precision.
_SINGLE_POINTS, _DOUBLE_POINTS = 128, 256
# Of a draw. About half of them are accepted whatever the parameters are: the end is for
# arithmetic that fails.
_MOST_PROPOSALS = 1000


def _proper(
    p: Float[Array, "*batch"], a: Float[Array, "*batch"], b: Float[Array, "*batch"]
) -> tuple[Float[Array, "*batch"], ...]:
    """Parameters of a member whose moments are finite, next to those given.

    The one of a and b that the density can do without is made large enough for √(ab),
    and what is computed of it, to be a normal number.
    """
    a, b = jnp.maximum(a, _TINY), jnp.maximum(b, _TINY)
    # Products of a and b themselves may underflow.
    least = 1e-16 * jnp.sqrt(jnp.maximum(jnp.abs(p), 1.0))
    missing = jnp.maximum(least / (jnp.sqrt(a) * jnp.sqrt(b)), 1.0) ** 2
    return p, jnp.where(p < 0, a * missing, a), jnp.where(p < 0, b, b * missing)


def _gig_moments(
    p: Float[Array, "*batch"], a: Float[Array, "*batch"], b: Float[Array, "*batch"]
) -> NewElementwise:
    """E[x], E[1/x], E[log x] and the log normaliser, log 2 (b/a)^(p/2) K_p(√(ab)).

    By the trapezoidal rule for the density of log x, which falls off twice
    exponentially on both sides; for such functions the rule is exact to rounding with
    few points (Trefethen and Weideman, 2014). SciPy's Bessel functions would have to be
    called back from XLA, which waits for Python then, and are slower.
    """
    p, a, b = _proper(*jnp.broadcast_arrays(p, a, b))
    omega, order = jnp.sqrt(a) * jnp.sqrt(b), jnp.abs(p)
    log_scale = 0.5 * (jnp.log(b) - jnp.log(a))
    # For u = log(x √(a/b)), its sign turned round where p is negative, the log density
    # is order·u - omega·cosh u. At a distance x from its mode it is lower by
    # alpha (cosh x - 1) + order (exp x - 1 - x), in which no digits cancel.
    curvature = jnp.hypot(order, omega)
    alpha = omega * (omega / (curvature + order))
    mode = jnp.log((curvature + order) / omega)
    total, up, down, shift = _integrals(order, alpha)
    up, down = jnp.exp(mode) * up / total, jnp.exp(-mode) * down / total
    log = mode + shift / total
    scale, turned = jnp.exp(log_scale), p < 0
    return {
        "x": scale * jnp.where(turned, down, up),
        "1/x": jnp.where(turned, up, down) / scale,
        "log": log_scale + jnp.where(turned, -log, log),
        "log_normalizer": p * log_scale + order * mode - curvature + jnp.log(total),
    }


@jax.custom_batching.custom_vmap
def _integrals(
    order: Float[Array, "*#batch"], alpha: Float[Array, "*batch"]
) -> tuple[Float[Array, "*batch"], ...]:
    """Integrals of 1, exp x, exp(-x) and x times the density, which is 1 at x = 0.

    With as many points as the hardest of them needs.
    """
    needed, most = _points_needed(order, alpha), _most_points(alpha)
    # So that not a number counts as the most.
    points = jnp.max(jnp.where(needed < most, needed, most), initial=2.0)
    return _trapezoidal_rule(order, alpha, points.astype(int))


@_integrals.def_vmap
@treats_rows_alone
def _integrals_of_rows(
    axis_size: int,
    in_batched: Any,
    order: Float[Array, "*#batch"],
    alpha: Float[Array, "*batch"],
) -> tuple[tuple[Float[Array, "*batch"], ...], Any]:
    # How long a step takes may not depend on the rows.
    found = _trapezoidal_rule(order, alpha, _most_points(alpha))
    return found, (any(in_batched),) * len(found)


def _trapezoidal_rule(
    order: Float[Array, "*#batch"],
    alpha: Float[Array, "*batch"],
    points: int | Int[Array, ""],
) -> tuple[Float[Array, "*batch"], ...]:
    left, right = _ends(order, alpha)
    spacing = (left + right) / (jnp.asarray(points, left.dtype) - 1.0)

    # One point after the other: no array has an axis of points.
    def add_point(
        i: Int[Array, ""], sums: tuple[Float[Array, "*batch"], ...]
    ) -> tuple[Float[Array, "*batch"], ...]:
        x = i.astype(spacing.dtype) * spacing - left
        # 1 + growth would have no digits left of a small ratio.
        growth, ratio = jnp.expm1(x), jnp.exp(x)
        drop = 0.5 * alpha * growth**2 / ratio + order * (growth - x)
        weight = jnp.exp(-drop)
        values = (weight, weight * ratio, weight / ratio, weight * x)
        return tuple(map(jnp.add, sums, values))

    zeros = (jnp.zeros_like(alpha),) * 4
    sums = jax.lax.fori_loop(0, points, add_point, zeros)
    return tuple(spacing * value for value in sums)


def _depth(alpha: Float[Array, "..."]) -> float:
    """Logarithm of what may be neglected, with its sign turned round."""
    return 4.0 - math.log(jnp.finfo(alpha.dtype).eps)


def _most_points(alpha: Float[Array, "..."]) -> int:
    single = jnp.finfo(alpha.dtype).bits <= 32
    return _SINGLE_POINTS if single else _DOUBLE_POINTS


def _points_needed(
    order: Float[Array, "*#batch"], alpha: Float[Array, "*batch"]
) -> Float[Array, "*batch"]:
    """How many points make the rule exact to rounding.

    Its error is the density's Fourier transform at 2π / spacing: exp(-π² / spacing)
    for tails that fall off twice exponentially, exp(-2π² / (curvature · spacing²)) for
    a Gaussian.
    """
    depth, (left, right) = _depth(alpha), _ends(order, alpha)
    of_tails = depth / math.pi**2
    of_gaussian = jnp.sqrt(depth * (order + alpha) / 2.0) / math.pi
    return 1.0 + jnp.ceil((left + right) * jnp.hypot(of_tails, of_gaussian))


def _ends(
    order: Float[Array, "*#batch"], alpha: Float[Array, "*batch"]
) -> tuple[Float[Array, "*batch"], Float[Array, "*batch"]]:
    """Distances of the first and the last point from the mode.

    Beyond them the density does not matter, not even for E[exp(±x)]: at both ends
    alpha (cosh x - 1) + order (exp x - 1 - x) is larger by `depth` than |x|. Each end
    is the nearest of several that suffice.
    """
    depth = _depth(alpha)
    # More than any |x| at an end.
    farthest = 200.0

    def quadratic(slope: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
        """The positive x where slope·x²/2 = depth + x."""
        return (1.0 + jnp.sqrt(1.0 + 2.0 * slope * depth)) / slope

    def exponential(
        factor: Float[Array, "*batch"], nearer: Float[Array, "*batch"]
    ) -> Float[Array, "*batch"]:
        """An x below `nearer` where factor (exp(x)/2 - 1) is depth + x or more."""
        enough = depth + jnp.minimum(nearer, farthest)
        return jnp.log(2.0 + 2.0 * enough / factor)

    right = quadratic(order + alpha)
    right = jnp.minimum(right, exponential(order + 0.5 * alpha, right))
    # Where order·x²/(x + 2) = depth + x, as exp(-x) - 1 + x is at least x²/(x + 2).
    excess = jnp.maximum(order - 1.0, 1e-6)
    root = jnp.sqrt((depth + 2.0) ** 2 + 8.0 * depth * excess)
    left = jnp.minimum(quadratic(alpha), (depth + 2.0 + root) / (2.0 * excess))
    left = jnp.minimum(left, exponential(alpha, left))
    return left, right


@runs_on_host
def _draws_on_host(
    seed: Float[np.ndarray, "4"],
    p: Float[np.ndarray, "*batch"],
    a: Float[np.ndarray, "*batch"],
    b: Float[np.ndarray, "*batch"],
    *,
    shape: tuple[int, ...],
) -> Float[np.ndarray, "..."]:
    rng = np.random.default_rng(seed.view(np.uint32))
    a, b = (np.maximum(value, _TINY, dtype=np.float64) for value in (a, b))
    draws = _gig_draws(
        rng,
        np.broadcast_to(p, shape).ravel().astype(np.float64),
        np.broadcast_to(np.sqrt(a * b), shape).ravel(),
    )
    return draws.reshape(shape) * np.sqrt(b / a)


def _gig_draws(
    rng: np.random.Generator,
    p: Float[np.ndarray, " draws"],
    omega: Float[np.ndarray, " draws"],
) -> Float[np.ndarray, " draws"]:
    """One draw each from the densities ∝ x^(p-1) exp(-omega·(x + 1/x)/2).

    Devroye (2014), *Random variate generation for the generalized inverse Gaussian
    distribution*: rejection from a density that is flat in the middle and exponential
    on both sides of the mode of log x, with a rejection constant that is bounded
    whatever the parameters are. All draws of one call are made together, those that
    are rejected again until none is. What is no parameter gives not a number.
    """
    usable = np.isfinite(p) & np.isfinite(omega) & (omega > 0)
    p, omega = np.where(usable, p, 1.0), np.where(usable, omega, 1.0)
    order = np.abs(p)
    # √(omega² + order²) - order without cancellation.
    alpha = omega * (omega / (np.hypot(omega, order) + order))

    def psi(
        x: Float[np.ndarray, " draws"],
        alpha: Float[np.ndarray, " draws"],
        order: Float[np.ndarray, " draws"],
    ) -> Float[np.ndarray, " draws"]:
        """Logarithm of the density of log x at a distance x from its mode."""
        return -alpha * (np.cosh(x) - 1.0) - order * (np.expm1(x) - x)

    def slope(x: Float[np.ndarray, " draws"]) -> Float[np.ndarray, " draws"]:
        return -alpha * np.sinh(x) - order * np.expm1(x)

    with np.errstate(all="ignore"):
        one = np.ones_like(alpha)
        drop = -psi(one, alpha, order)
        wide, narrow = np.log(4.0 / (alpha + 2.0 * order)), np.sqrt(2 / (alpha + order))
        right = np.where(drop > 2.0, narrow, np.where(drop < 0.5, wide, 1.0))
        drop = -psi(-one, alpha, order)
        wide = np.log1p(1.0 / alpha + np.sqrt(1.0 / alpha**2 + 2.0 / alpha))
        wide = np.minimum(1.0 / order, wide)
        narrow = np.sqrt(4.0 / (alpha * math.cosh(1.0) + order))
        left = np.where(drop > 2.0, narrow, np.where(drop < 0.5, wide, 1.0))
    eta, zeta = -psi(right, alpha, order), -slope(right)
    theta, xi = -psi(-left, alpha, order), slope(-left)
    from_right, from_left = right - eta / zeta, left - theta / xi
    middle = from_right + from_left
    total = middle + 1.0 / zeta + 1.0 / xi

    # The mode, if all else fails.
    x = np.zeros_like(alpha)
    todo = np.arange(alpha.size)
    for _ in range(_MOST_PROPOSALS):
        part, height, level = rng.random((3, todo.size))
        part = part * total[todo]
        # A uniform number in (0, 1], whose logarithm is finite.
        tail = np.log1p(-height)
        in_middle = part < middle[todo]
        on_right = ~in_middle & (part < (middle + 1.0 / zeta)[todo])
        proposed = np.where(
            in_middle,
            -from_left[todo] + middle[todo] * height,
            np.where(
                on_right,
                from_right[todo] - tail / zeta[todo],
                -from_left[todo] + tail / xi[todo],
            ),
        )
        envelope = np.where(
            in_middle,
            0.0,
            np.where(
                on_right,
                -eta[todo] - zeta[todo] * (proposed - right[todo]),
                -theta[todo] + xi[todo] * (proposed + left[todo]),
            ),
        )
        density = psi(proposed, alpha[todo], order[todo])
        accepted = np.log1p(-level) + envelope <= density
        x[todo[accepted]] = proposed[accepted]
        todo = todo[~accepted]
        if not todo.size:
            break
    mode = order / omega + np.hypot(1.0, order / omega)
    drawn = mode * np.exp(x)
    drawn = np.where(p < 0, 1.0 / drawn, drawn)
    return np.where(usable, drawn, np.nan)


class GeneralizedInverseGaussian(Family):
    """A positive number with density ∝ x^(p-1) exp(-(a·x + b/x)/2)."""

    name = "GeneralizedInverseGaussian"
    statistics = ("x", "1/x", "log")
    nonnegative = ("x", "1/x")

    def _standard(
        self, natural: Elementwise
    ) -> tuple[Float[Array, "*batch"], Float[Array, "*batch"], Float[Array, "*batch"]]:
        return natural["log"] + 1.0, -2.0 * natural["x"], -2.0 * natural["1/x"]

    def moments(self, natural: Elementwise) -> NewElementwise:
        found = _gig_moments(*self._standard(natural))
        return {s: found[s] for s in self.statistics}

    def log_normalizer(self, natural: Elementwise) -> Float[Array, "*batch"]:
        @jax.custom_jvp
        def normalizer(natural: Elementwise) -> Float[Array, "*batch"]:
            return _gig_moments(*self._standard(natural))["log_normalizer"]

        @normalizer.defjvp
        def _slope(
            primals: tuple[Elementwise], tangents: tuple[Elementwise]
        ) -> tuple[Float[Array, "*batch"], Float[Array, "*batch"]]:
            found = _gig_moments(*self._standard(primals[0]))
            parts = [found[s] * change for s, change in tangents[0].items()]
            return found["log_normalizer"], sum(parts, jnp.zeros_like(parts[0]))

        return normalizer(natural)

    def at(self, value: Float[Array, "*batch"]) -> NewElementwise:
        return {"x": value, "1/x": 1.0 / value, "log": jnp.log(value)}

    def project(
        self, prior: Elementwise, data: Elementwise, noise: Elementwise
    ) -> NewElementwise:
        return {
            "x": prior["x"] - nonnegative(-data["x"], noise["x"]),
            "1/x": prior["1/x"] - nonnegative(-data["1/x"], noise["1/x"]),
            "log": prior["log"] + data["log"],
        }

    def widened(self, data: Elementwise, noise: Elementwise) -> NewElementwise:
        # Of a variance: minus half the number of rows, and of the sum of squares.
        kept = information_kept(
            jnp.abs(data["log"]), noise["log"], -data["1/x"], noise["1/x"]
        )
        return {s: kept * data[s] for s in self.statistics}

    def project_to_widen(self, data: Elementwise, noise: Elementwise) -> NewElementwise:
        """The released share moved to where it is legal, but for the sum of 1/x.

        A sum of the wrong sign is kept: `share_under_noise` reads it together with the
        prior. It is moved, too, where noise is on the sum of x as well, and where there
        are very many latents.
        """
        found = super().project_to_widen(data, noise)
        if data["1/x"].size > MOST_RATES:
            return found
        return {**found, "1/x": jnp.where(noise["x"] > 0, found["1/x"], data["1/x"])}

    def share_under_noise(
        self, prior: Elementwise, data: Elementwise, noise: Elementwise
    ) -> NewElementwise:
        if data["1/x"].size > MOST_RATES:
            return self.widened(data, noise)

        def by_quadrature() -> NewElementwise:
            # Of 1/x, whose powers are those of x with their signs turned round.
            own = RateShape(
                -prior["log"] - 1.0,
                jnp.maximum(-prior["1/x"], 0.0),
                jnp.maximum(-prior["x"], 0.0),
            )
            sums = -data["log"], noise["log"], -data["1/x"], noise["1/x"]
            found = rate_of_noisy_sums(own, *sums)
            assert own.inverse is not None
            assert found.inverse is not None
            share = {
                "x": own.inverse - found.inverse,
                "1/x": own.rate - found.rate,
                "log": own.concentration - found.concentration,
            }
            otherwise = self.widened(data, noise)
            is_read = (noise["x"] == 0) & ((noise["1/x"] > 0) | (noise["log"] > 0))
            return {s: jnp.where(is_read, share[s], otherwise[s]) for s in share}

        is_noisy = jnp.any(noise["1/x"] > 0) | jnp.any(noise["log"] > 0)
        return jax.lax.cond(is_noisy, by_quadrature, lambda: self.widened(data, noise))

    def neutral(self, shape: Shape) -> NewElementwise:
        minus = jnp.full(shape, -1.0)
        return {"x": minus, "1/x": minus, "log": jnp.zeros(shape)}

    def neutral_moments(self, shape: Shape) -> NewElementwise:
        return self.at(jnp.ones(shape))

    def perturb(self, natural: Elementwise, key: PRNGKeyArray) -> NewElementwise:
        factor = jnp.exp(0.1 * jax.random.normal(key, natural["x"].shape))
        return {**natural, "x": natural["x"] * factor}

    def starting_moments(self, natural: Elementwise) -> NewElementwise:
        """With E[1/x] as at the mean of x, where the prior has it infinite.

        Under a shrinkage prior a weight with variance x would start at 0 otherwise, and
        E[1/x] at such weights is large again: a trap, not an optimum.
        """
        found = self.moments(natural)
        return {**found, "1/x": 1.0 / found["x"]}

    def parameters(self, natural: Elementwise) -> NewElementwise:
        p, a, b = self._standard(natural)
        return {"p": p, "a": a, "b": b}

    def from_parameters(self, parameters: Elementwise) -> NewElementwise:
        p, a, b = parameters["p"], parameters["a"], parameters["b"]
        return {"x": -0.5 * a, "1/x": -0.5 * b, "log": p - 1.0}

    def distribution(self, parameters: Elementwise) -> dist.Distribution:
        return _GIG(parameters["p"], parameters["a"], parameters["b"])

    def requirements(self, parameters: Elementwise) -> Requirements:
        p, a, b = (parameters[name] for name in ("p", "a", "b"))
        without = (p >= 0) & (a <= 0) | (p <= 0) & (b <= 0)
        found: Requirements = collections.OrderedDict()
        found["it has no density"] = ~jnp.any(without)
        return collections.OrderedDict({**found, **super().requirements(parameters)})


class _GIG(dist.Distribution):
    """Draws and density of GIG(p, a, b)."""

    arg_constraints: Any = {  # noqa: RUF012
        "p": constraints.real,
        "a": constraints.nonnegative,
        "b": constraints.nonnegative,
    }
    support: Any = constraints.positive

    def __init__(
        self,
        p: Float[Array, "*batch"],
        a: Float[Array, "*batch"],
        b: Float[Array, "*batch"],
    ):
        self.p, self.a, self.b = p, a, b
        super().__init__(jnp.shape(p), validate_args=False)

    def sample(
        self, key: PRNGKeyArray | None, sample_shape: tuple[int, ...] = ()
    ) -> Float[Array, "..."]:
        assert key is not None
        shape = (*sample_shape, *self.batch_shape)
        seed = jax.random.uniform(key, (4,))
        return call_on_host(_draws_on_host, shape, seed, self.p, self.a, self.b)

    def log_prob(self, value: Any, *args: Any, **kwargs: Any) -> Float[Array, "..."]:
        natural = {"x": -self.a / 2.0, "1/x": -self.b / 2.0, "log": self.p - 1.0}
        normalizer = GeneralizedInverseGaussian().log_normalizer(natural)
        return (
            natural["log"] * jnp.log(value)
            + natural["x"] * value
            + natural["1/x"] / value
            - normalizer
        )


class _Root(Transformed):
    """A standard deviation whose square is in another family."""

    _power = 0.5

    def _jacobian(self, natural: Elementwise) -> float:
        """dx² = 2x dx."""
        return 0.5

    def at(self, value: Float[Array, "*batch"]) -> NewElementwise:
        return self._moments(self._of_function.at(value**2))

    def beside_flat_prior(self, natural: Elementwise, shape: Shape) -> NewElementwise:
        square = self._natural_of_function(natural)
        return self._natural(self._of_function.beside_flat_prior(square, shape))

    def requirements(self, parameters: Elementwise) -> Requirements:
        return self._of_function.requirements(parameters)

    def distribution(self, parameters: Elementwise) -> dist.Distribution:
        return dist.TransformedDistribution(
            self._of_function.distribution(parameters),
            dist.transforms.PowerTransform(0.5),
            validate_args=False,
        )


class RootInverseGamma(_Root):
    """A standard deviation whose square is inverse Gamma."""

    name = "RootInverseGamma"
    statistics = ("x^-2", "log")
    nonnegative = ("x^-2",)
    _of_function: ClassVar[Family] = InverseGamma()


class RootGeneralizedInverseGaussian(_Root):
    """A standard deviation whose square is generalised inverse Gaussian."""

    name = "RootGeneralizedInverseGaussian"
    statistics = ("x^2", "x^-2", "log")
    nonnegative = ("x^2", "x^-2")
    of_priors = ("x^2",)
    _of_function: ClassVar[Family] = GeneralizedInverseGaussian()

    def project(
        self, prior: Elementwise, data: Elementwise, noise: Elementwise
    ) -> NewElementwise:
        found = super().project(prior, data, noise)
        return {**found, "log": prior["log"] + jnp.minimum(data["log"], 0.0)}

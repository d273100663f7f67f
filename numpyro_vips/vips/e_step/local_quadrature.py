"""One or two real latents of a row under logistic likelihoods, by quadrature.

Let z be these latents and ψ_j = a_j·z + c_j the logits of the row's observations, in
which c_j may be made of globals. Coordinate ascent would give the auxiliary variables
ω_j of the bounds a factor of their own. That bound is looser the less a row says of z,
and so it draws globals to where z matters less: their scale comes out too small.

Here the factor is q(z) Π_j q(ω_j | z). At every z the auxiliary variables are at their
best, which makes the bound on -log(2 cosh(ψ_j/2)) the one in c_j(z)² = E[ψ_j² | z], and
that is over the globals alone. It is exact where ψ_j has no global in it, and otherwise
as tight as the globals are known. What is left is an integral over z,

    q(z) ∝ exp(⟨η, t(z)⟩ + Σ_j b_j F(η_j(z))),

with η what priors and labels say of z, F the log normaliser of the auxiliary family,
-log cosh(c/2) for Pólya-Gamma, and η_j its natural parameter at z, -c_j(z)²/2. The
derivation is in docs/conjugacy.md.

Its logarithm is concave: F is concave in z, and η comes from a Gaussian. So there is
one mode, and Newton's method finds it. Gauss-Hermite nodes lie about the Gaussian
there, and are then moved to the mean and the covariance that they find (adaptive
quadrature; Naylor and Smith, 1982). All moments are sums over the same nodes, with
weights that are not negative, so they are those of a distribution wherever the nodes
lie.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Self, cast

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from numpyro_vips.conjugacy.algebra.terms import Term
from numpyro_vips.conjugacy.families.family import Elementwise, Moments
from numpyro_vips.conjugacy.families.logistic_auxiliaries import LogitsAuxiliary
from numpyro_vips.conjugacy.structure.posterior_factors import PosteriorFactor
from numpyro_vips.jax_tools.gauss_hermite import grid_of_nodes
from numpyro_vips.vips.e_step.coordinates import (
    Given,
    by_coupling,
    copies_array,
    divided_by_weight,
    idle_quadratic,
)
from numpyro_vips.vips.e_step.integrated_latents import NUM_NODES, Integrated
from numpyro_vips.vips.e_step.small_matrices import (
    Matrix,
    Point,
    dot,
    inverse_root,
    lower_root,
    matrix_of,
    quadratic_form,
    rounding_of,
    solved,
    square_of,
    times,
)
from numpyro_vips.vips.program.expectations import BESIDE, natural_parameters
from numpyro_vips.vips.program.named_arrays import LocalFactor

_NEWTON_STEPS = 10
# Moments of a row's factor also hold its entropy, under this name.
ENTROPY = "entropy"
# Of the nodes' own standard deviation, what the next nodes have at least beside what
# these found, so that nodes too far apart come together by steps; and what a row's
# latents have beside it, which is far above rounding and far below all that matters.
_LEAST_MOVED = 0.2
_LEAST = 1e-3


class _Logits(NamedTuple):
    """Auxiliary factors' natural parameters as quadratic functions of z.

    Attributes:
      family: The auxiliary family.
      copies: b_j.
      constant, linear, quadratic: The functions' coefficients for each element.
    """

    family: LogitsAuxiliary
    copies: Float[Array, " logits"]
    constant: Float[Array, " logits"]
    linear: Float[Array, "dim logits"]
    quadratic: Float[Array, "dim dim logits"]

    def at(self, z: Point) -> Elementwise:
        return {"x": self.constant + quadratic_form(self.linear, self.quadratic, z)}

    def slope(self, z: Point) -> Float[Array, "dim logits"]:
        return jnp.stack(
            [
                linear + 2.0 * sum(x * of for x, of in zip(z, row, strict=True))
                for linear, row in zip(self.linear, self.quadratic, strict=True)
            ]
        )

    def change(self, z: Point, step: Point) -> Elementwise:
        """`at(z + step)` less `at(z)`, without taking two large numbers apart."""
        return {"x": quadratic_form(self.slope(z), self.quadratic, step)}

    def weighed_quadratic(self, weight: Float[Array, " logits"]) -> Matrix:
        """The sum over the logits of a weight times the quadratic coefficients."""
        return matrix_of(
            [[dot(weight, each) for each in row] for row in self.quadratic]
        )


class _Target(NamedTuple):
    """The logarithm of q(z), up to a constant.

    Attributes:
      linear, quadratic: η, which is ⟨linear, z⟩ + zᵀ quadratic z.
      logits: The auxiliary factors.
    """

    linear: Point
    quadratic: Matrix
    logits: tuple[_Logits, ...]

    def slope(self, z: Point) -> Point:
        slope = self.linear + 2.0 * times(self.quadratic, z)
        for one in self.logits:
            weight = one.copies * one.family.moments(one.at(z))["x"]
            slope += jnp.stack([dot(weight, each) for each in one.slope(z)])
        return slope

    def bound(self, z: Point) -> Matrix:
        """The quadratic coefficients of the bound on log q that is tight at z.

        In the bound every logistic factor is replaced by its Gaussian one at z, so it
        is quadratic in the latents: (dim, dim), negative definite where q is proper.
        """
        quadratic = self.quadratic
        for one in self.logits:
            weight = one.copies * one.family.moments(one.at(z))["x"]
            quadratic += one.weighed_quadratic(weight)
        return quadratic

    def change(
        self, z: Point, slope: Point, bound: Matrix, step: Point
    ) -> Float[Array, ""]:
        """How much log q grows from z to z + step.

        It is computed without the difference of two large numbers: the growth of the
        bound at z, and how far the bound then lies below.

        Args:
          z: Where the step begins, (dim,).
          slope, bound: `slope(z)` and `bound(z)`.
          step: The step, (dim,).
        """
        total = quadratic_form(slope, bound, step)
        for one in self.logits:
            lost = one.family.divergence(one.at(z), one.change(z, step))
            total += dot(one.copies, lost)
        return total

    def precision(self, z: Point, bound: Matrix) -> Matrix:
        """Minus the second derivatives, and positive on the diagonal."""
        total = -2.0 * bound
        for one in self.logits:
            slope = one.slope(z)
            weight = one.copies * one.family.variance(one.at(z))
            total -= matrix_of([[dot(weight * a, b) for b in slope] for a in slope])
        least = -2.0 * rounding_of(bound) * bound
        for i in range(len(z)):
            total = total.at[i, i].max(least[i, i])
        return total


def integrate(
    given: Given,
    integrated: Integrated,
    terms: Sequence[Term],
    *,
    observed: bool = False,
) -> dict[str, LocalFactor]:
    """Moments and natural parameters of the factors of a row's integrated latents.

    Args:
      given: What the row is solved for from.
      integrated: Which latents.
      terms: The row's terms.
      observed: Whether the auxiliary moments are for the observed information of the
        globals; see `Family.observed_moments`.

    Returns:
      By factor, moments and natural parameters. The latents' natural parameters are
      those of the Gaussian that has their moments, and an auxiliary variable's are its
      expected ones. Its moments are E[ω], and under the names in `BESIDE` E[ω z] and
      E[ω z zᵀ], with the latents' axes behind its own. Both have an entropy; that of
      the auxiliary variables is given the latents.
    """
    factor, size = integrated.latents, integrated.latents.shape[-1]
    target = _target(given, integrated, terms)
    mode = _mode(target)
    slope, bound = target.slope(mode), target.bound(mode)

    def change_to(step: Point) -> Float[Array, ""]:
        return target.change(mode, slope, bound, step)

    middle = jnp.zeros_like(mode)
    root = inverse_root(target.precision(mode, bound))
    *moves, last = NUM_NODES[size]
    for number in moves:
        nodes = _Nodes.about(middle, root, number)
        middle, covariance = nodes.moments(nodes.shares(nodes.each(change_to)))
        root = lower_root(covariance + _LEAST_MOVED**2 * square_of(root))
    nodes = _Nodes.about(middle, root, last)
    change = nodes.each(change_to)
    shares = nodes.shares(change)
    middle, covariance = nodes.moments(shares)
    covariance += _LEAST**2 * square_of(root)
    parameters = {
        "loc": (mode + middle).reshape(factor.shape),
        "covariance_matrix": covariance.reshape((*factor.shape, size)),
    }
    moments = factor.family.moments_of(parameters)
    # A node of no weight may be infinitely unlikely.
    expected_change = jnp.sum(jnp.where(shares > 0, shares * change, 0.0))
    moments[ENTROPY] = nodes.log_integral(change) - expected_change
    natural = factor.family.from_parameters(parameters)
    found: dict[str, LocalFactor] = {factor.name: (moments, natural)}
    for auxiliary, logits in zip(integrated.auxiliaries, target.logits, strict=True):
        expected = _expected(logits, mode, nodes, shares, observed=observed)
        shape = auxiliary.shape
        moments = {
            "x": expected.alone.reshape(shape),
            BESIDE[1]: expected.with_latents.T.reshape((*shape, *factor.shape)),
            BESIDE[2]: jnp.moveaxis(expected.with_pairs, -1, 0).reshape(
                (*shape, *factor.shape, size)
            ),
            ENTROPY: dot(logits.copies, expected.entropy),
        }
        found[auxiliary.name] = moments, {"x": expected.natural.reshape(shape)}
    return found


class _Expected(NamedTuple):
    """E[ω], E[ω z], E[ω z zᵀ] of auxiliary variables, and for each element of them the
    expectations of the natural parameter and of the entropy given z."""

    alone: Float[Array, " logits"]
    with_latents: Float[Array, "dim logits"]
    with_pairs: Float[Array, "dim dim logits"]
    natural: Float[Array, " logits"]
    entropy: Float[Array, " logits"]


def _expected(
    logits: _Logits,
    mode: Point,
    nodes: "_Nodes",
    shares: Float[Array, " nodes"],
    *,
    observed: bool,
) -> _Expected:
    """Means over the nodes, which are steps from the mode."""
    family, start = logits.family, logits.at(mode)["x"]

    def at_node(step: Point, share: Float[Array, ""]) -> _Expected:
        natural = {"x": start + logits.change(mode, step)["x"]}
        moments = family.moments(natural)
        entropy = family.log_normalizer(natural) - natural["x"] * moments["x"]
        if observed:
            moments = family.observed_moments(moments, natural)
        alone = share * moments["x"]
        with_latents = [alone * x for x in mode + step]
        return _Expected(
            alone=alone,
            with_latents=jnp.stack(with_latents),
            with_pairs=jnp.stack(
                [jnp.stack([one * x for x in mode + step]) for one in with_latents]
            ),
            natural=share * natural["x"],
            entropy=share * entropy,
        )

    return nodes.total(at_node, shares)


class _Nodes(NamedTuple):
    """Nodes about a Gaussian.

    All that is done at each is done at one after the other: on several rows at once,
    that is where the processor's vectors are.

    Attributes:
      steps: Where they lie.
      log_weights: The logarithms of their weights, for ∫ g(z) dz.
    """

    steps: Float[Array, "nodes dim"]
    log_weights: Float[Array, " nodes"]

    @classmethod
    def about(cls, middle: Point, root: Matrix, number: int) -> Self:
        """Nodes and weights of quadrature under a Normal.

        Args:
          middle: Its mean, (dim,).
          root: R of its covariance R Rᵀ, lower triangular, (dim, dim).
          number: How many nodes there are in each dimension, so number**dim in all.
        """
        grid, log_weights = grid_of_nodes(number, len(middle))
        grid, log_weights = grid.astype(root.dtype), log_weights.astype(root.dtype)
        steps = [
            x + sum(r * at for r, at in zip(row, grid.T, strict=True))
            for x, row in zip(middle, root, strict=True)
        ]
        log_volume = sum(jnp.log(root[i, i]) for i in range(len(root)))
        return cls(jnp.stack(steps, -1), jnp.asarray(log_weights + log_volume))

    def each(
        self, function: Callable[[Point], Float[Array, ""]]
    ) -> Float[Array, " nodes"]:
        """A function's value at every node."""
        return jax.lax.map(function, self.steps)

    def total(
        self,
        function: Callable[[Point, Float[Array, ""]], _Expected],
        shares: Float[Array, " nodes"],
    ) -> _Expected:
        """The sum over all nodes of a function of a node and of its share."""

        def add(total: _Expected, node: Any) -> tuple[_Expected, None]:
            return jax.tree.map(jnp.add, total, function(*node)), None

        like = jax.eval_shape(function, self.steps[0], shares[0])
        zero = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), like)
        return jax.lax.scan(add, zero, (self.steps, shares))[0]

    def shares(self, log_density: Float[Array, " nodes"]) -> Float[Array, " nodes"]:
        """Each node's share in the integral of a density."""
        return jax.nn.softmax(log_density + self.log_weights)

    def log_integral(self, log_density: Float[Array, " nodes"]) -> Float[Array, ""]:
        return jax.nn.logsumexp(log_density + self.log_weights)

    def moments(self, shares: Float[Array, " nodes"]) -> tuple[Point, Matrix]:
        """Mean and covariance of the nodes, each with its share: (dim,), (dim, dim)."""
        mean = jnp.stack([jnp.sum(shares * x) for x in self.steps.T])
        away = [x - middle for x, middle in zip(self.steps.T, mean, strict=True)]
        return mean, matrix_of([[jnp.sum(shares * a * b) for b in away] for a in away])


def _target(given: Given, integrated: Integrated, terms: Sequence[Term]) -> _Target:
    """The density that is integrated, from the arguments of `integrate`."""
    factor = integrated.latents
    own = [t for t in terms if any(a.latent in factor.latents for a in t.atoms)]
    alone, _ = by_coupling(given.structure, given.row_terms(own))
    natural = natural_parameters(given.structure, factor, alone, {})
    size = factor.shape[-1]
    quadratic = natural["xx"].reshape(size, size)
    quadratic = 0.5 * (quadratic + quadratic.T)
    logits = tuple(
        _logits(given, factor, auxiliary, terms) for auxiliary in integrated.auxiliaries
    )
    diagonal = jnp.stack(
        [
            quadratic[i, i] + sum(one.quadratic[i, i].sum() for one in logits)
            for i in range(size)
        ]
    )
    quadratic += idle_quadratic(diagonal)[:, None] * jnp.eye(size, dtype=diagonal.dtype)
    return _Target(natural["x"].reshape(size), quadratic, logits)


def _logits(
    given: Given,
    factor: PosteriorFactor,
    auxiliary: PosteriorFactor,
    terms: Sequence[Term],
) -> _Logits:
    """How the natural parameter of one auxiliary factor depends on the latents.

    Args:
      given, terms: See `integrate`.
      factor: The latents' factor.
      auxiliary: The auxiliary factor.
    """
    structure = given.structure
    family = cast(LogitsAuxiliary, auxiliary.family)  # It bounds logits.
    mine = [t for t in terms if any(a.latent in auxiliary.latents for a in t.atoms)]
    mine = given.row_terms(mine)
    copies = copies_array(auxiliary, structure.latents, given.arrays)
    assert copies is not None

    def natural(x: Point, xx: Matrix) -> Float[Array, " logits"]:
        moments: Moments = {
            "x": x.reshape(factor.shape),
            "xx": xx.reshape((*factor.shape, factor.shape[-1])),
        }
        found = natural_parameters(structure, auxiliary, mine, {factor.name: moments})
        return divided_by_weight(found, copies, family)["x"].ravel()

    # It is linear in the latents' moments, so this is all of it.
    size = factor.shape[-1]
    none = jnp.zeros(size), jnp.zeros((size, size))
    linear, quadratic = jax.jacfwd(natural, (0, 1))(*none)
    quadratic = jnp.moveaxis(quadratic, 0, -1)
    return _Logits(
        family=family,
        copies=copies.ravel(),
        constant=natural(*none),
        linear=linear.T,
        quadratic=0.5 * (quadratic + jnp.swapaxes(quadratic, 0, 1)),
    )


def _mode(target: _Target) -> Point:
    """About where log q is largest, by Newton's method.

    A step of Newton's that gains less than the bound at the place before promises is
    not taken, but the one to where that bound is largest: it gains what it promises,
    from wherever it starts.
    """

    def step(_: int, z: Point) -> Point:
        slope, bound = target.slope(z), target.bound(z)
        by_bound = solved(-2.0 * bound, slope)
        promised = 0.5 * sum(slope * by_bound)
        newton = solved(target.precision(z, bound), slope)
        gained = target.change(z, slope, bound, newton)
        return z + jnp.where(gained >= promised, newton, by_bound)

    return jax.lax.fori_loop(0, _NEWTON_STEPS, step, _start(target))


def _start(target: _Target) -> Point:
    """Where the bound is largest with auxiliary variables at a neutral value."""
    linear, quadratic = target.linear, target.quadratic
    for one in target.logits:
        neutral = one.copies * one.family.neutral_moments(one.copies.shape)["x"]
        linear += jnp.stack([dot(neutral, each) for each in one.linear])
        quadratic += one.weighed_quadratic(neutral)
    return solved(-2.0 * quadratic, linear)

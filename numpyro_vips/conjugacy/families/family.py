"""What every exponential family of a posterior knows.

From its natural parameters, one array per statistic, a family has its moments, its log
normaliser and its standard parameters. All of them are functions of arrays with one
entry per independent factor of the posterior.

All that the rest of the package asks of a family is a method or an attribute of
`Family`. A class that leaves one out is refused where the table of families is made,
not in the middle of a fit.
"""

import abc
import collections
import math
from collections.abc import Collection, Mapping
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jaxtyping import Array, Bool, Float, Int, Num, PRNGKeyArray
from numpyro.distributions import constraints

# One array per statistic or parameter, of shapes that depend on the family. "New" is
# what a function returns: a dictionary of its own.
Moments = Mapping[str, Float[Array, "..."]]
NewMoments = dict[str, Float[Array, "..."]]
# The same for families whose arrays all have one entry per factor.
Elementwise = Mapping[str, Float[Array, "*batch"]]
NewElementwise = dict[str, Float[Array, "*batch"]]

# Whether something holds, by the sentence that says that it does not. The order is that
# in which they are looked at; a plain dictionary loses it in a compiled program.
Requirements = collections.OrderedDict[str, Bool[Array, ""]]

Shape = tuple[int, ...]
Range = tuple[float, float]
# The weight of a proper prior that stands for a flat one: a precision of 1e-12, say.
FLAT = 1e-12


class Family(abc.ABC):
    """An exponential family with density ∝ exp Σ_s ⟨natural_s, s(x)⟩.

    A shape, as in `moment_shapes`, is that of a latent: the axes of independent
    factors, then `event_dim` axes that one factor covers. Discrete latents have no axis
    of states.

    Attributes:
      name: As `explain` prints it; unique.
      statistics: Names of the statistics: "x", "1/x", "x²", "log", "log1m", "is"...
      event_dim: Number of trailing axes of a latent that one factor covers.
      augmentation: What `explain` calls an auxiliary variable in this family.
      nonnegative: The statistics of which rows make minus a sum of squares or of other
        nonnegative numbers, which `project` reads as such under noise; see
        `num_below_noise`, by which matrices answer.
      has_pseudo_counts: Natural parameters are the prior's counts plus those of rows,
        so that a perturbed start is one that some rows' statistics could have made.
      is_tangent: Not a random variable, but the point where a bound of fixed curvature
        touches.
      bounds_logits: An auxiliary variable that makes logits Gaussian, a
        `LogitsAuxiliary`: the statistics of the coefficients that it multiplies may be
        taken about their mean.
      moment_range: Between which numbers every entry of a moment lies, up to rounding.
        Sensitivities rest on it, so it holds of what `moments` returns for any natural
        parameters, also for those that no member has: an expected square of large
        numbers may come out negative. What is not a number counts as nothing.
      of_priors: Statistics that priors may bring, and rows may not: what noise leaves
        of them is not read.
      is_gaussian: Several latents of this family may share one block.
      has_covariances: The coordinates of such a block may be correlated, so that the
        family holds whatever coordinates they are given in.
    """

    name: ClassVar[str]
    statistics: tuple[str, ...]
    event_dim: ClassVar[int] = 0
    augmentation: ClassVar[str | None] = None
    nonnegative: ClassVar[tuple[str, ...]] = ()
    has_pseudo_counts: ClassVar[bool] = False
    is_tangent: ClassVar[bool] = False
    bounds_logits: ClassVar[bool] = False
    moment_range: ClassVar[Range] = (-math.inf, math.inf)
    of_priors: ClassVar[tuple[str, ...]] = ()
    is_gaussian: ClassVar[bool] = False
    has_covariances: ClassVar[bool] = False

    @property
    def num_states(self) -> int | None:
        """How many states one discrete latent has: 0, 1, ...

        None of other families, and of several latents jointly.
        """
        return None

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and vars(other) == vars(self)

    def __hash__(self) -> int:
        return hash(self.name)

    # --- the family -------------------------------------------------------------------

    @abc.abstractmethod
    def moments(self, natural: Moments) -> NewMoments:
        """Expectations of the statistics."""

    @abc.abstractmethod
    def log_normalizer(self, natural: Moments) -> Float[Array, "..."]:
        """One value per factor; its gradient is `moments`."""

    def observed_moments(self, moments: Moments, natural: Moments) -> NewMoments:
        """What stands for `moments` in the observed information of the globals.

        Louis (1982): of the information of complete rows, the part is missing that the
        row's latents keep to themselves. What is left is the curvature of the row's log
        likelihood, or of its bound, in the globals. Latents of most families keep
        nothing to themselves, and `moments` are as of known ones.

        Args:
          moments: The expectations of the statistics.
          natural: The natural parameters that they belong to.
        """
        del natural
        return dict(moments)

    @abc.abstractmethod
    def at(self, value: Num[Array, "..."]) -> NewMoments:
        """The statistics of one value, which are the moments of a point there."""

    def moment_shapes(self, shape: Shape) -> dict[str, Shape]:
        """The shape of each moment of a latent of this shape."""
        return dict.fromkeys(self.statistics, shape)

    # --- from statistics to a posterior -----------------------------------------------

    @abc.abstractmethod
    def project(self, prior: Moments, data: Moments, noise: Moments) -> NewMoments:
        """Natural parameters prior + data, with noisy data moved to where it is legal.

        Args:
          prior: The prior's share of the natural parameters.
          data: The share of the released statistics. Without noise it lies in the cone
            of sums of row statistics and comes back unchanged.
          noise: Standard deviations of the noise in `data`, entry by entry.
        """

    def project_to_widen(self, data: Moments, noise: Moments) -> NewMoments:
        """The released share moved to where it is legal, as `widened` takes it.

        As `project` has it, but without room for noise that `widened` makes itself.

        Args:
          data, noise: As in `project`.
        """
        nothing = {s: jnp.zeros_like(value) for s, value in data.items()}
        return self.project(nothing, data, noise)

    def project_either(
        self, data: Moments, noise: Moments, to_widen: Bool[Array, ""]
    ) -> NewMoments:
        """`project_to_widen`, or `project` without a prior, as an array says.

        For compiled programs, in which both are needed.

        Args:
          data: The share of the released statistics.
          noise: Standard deviations of the noise in it, entry by entry.
          to_widen: True for `project_to_widen`.

        Returns:
          Natural parameters, of the shapes of `data`.
        """
        nothing = {s: jnp.zeros_like(value) for s, value in data.items()}
        if type(self).project_to_widen is Family.project_to_widen:
            # What most families do in both cases need not be compiled twice.
            return self.project_to_widen(data, noise)
        return jax.lax.cond(
            to_widen,
            lambda: self.project_to_widen(data, noise),
            lambda: self.project(nothing, data, noise),
        )

    @abc.abstractmethod
    def widened(self, data: Moments, noise: Moments) -> NewMoments:
        """The rows' share of a posterior that knows of the noise in it.

        What is read off noisy sums says less than the same sums without noise. The
        share that comes back says as much: its mean is where it was, and the variance
        that it stands for is that of the rows and of the noise together.

        Args:
          data: The share of the released statistics, as `project_to_widen` has it.
          noise: Standard deviations of the noise in it, entry by entry. Without noise
            the share comes back unchanged.
        """

    def share_under_noise(
        self, prior: Moments, data: Moments, noise: Moments
    ) -> NewMoments:
        """What noisy sums of rows add to a prior, where this depends on the prior.

        Most families return `widened(data, noise)`, which does not.
        Where a sum may be anything down to zero, it is the prior that says how large
        what is divided by it may be.

        Args:
          prior: The prior's share of the natural parameters.
          data: The share of the released statistics, as `project_to_widen` has it.
          noise: Standard deviations of the noise in it, entry by entry.

        Returns:
          Natural parameters to add to `prior`.
        """
        del prior  # What most sums say of a latent is a Gaussian about some value.
        return self.widened(data, noise)

    def num_below_noise(self, data: Moments, noise: Moments) -> Int[Array, ""]:
        """How many of the sums that rows make, and that cannot be negative, are below
        one standard deviation of their noise, so that `project` reads the noise.

        Args:
          data: The share of the released statistics, as it was released.
          noise: Standard deviations of the noise in it, entry by entry.
        """
        below = [
            jnp.sum((noise[s] > 0) & (-data[s] < noise[s])) for s in self.nonnegative
        ]
        return sum(below, jnp.zeros((), int))

    def beside_flat_prior(self, natural: Moments, shape: Shape) -> NewMoments:
        """Natural parameters of a proper member, where the prior may be flat.

        A flat prior is the limit of wide ones. This takes one that is so wide that it
        matters only where the rows say nothing.

        Args:
          natural: What the priors and the rows say; without noise, and where the rows
            determine the posterior, this is what comes back, up to rounding.
          shape: That of the factor's latents.
        """
        neutral = self.neutral(shape)
        return {s: natural[s] + FLAT * value for s, value in neutral.items()}

    # --- where a fit starts -----------------------------------------------------------

    @abc.abstractmethod
    def neutral(self, shape: Shape) -> NewMoments:
        """Natural parameters of some proper member, the same for all models.

        It stands in for an auxiliary variable whose observation does not count.
        """

    def neutral_moments(self, shape: Shape) -> NewMoments:
        """Moments from which an auxiliary variable starts."""
        return self.moments(self.neutral(shape))

    @abc.abstractmethod
    def perturb(self, natural: Moments, key: PRNGKeyArray) -> NewMoments:
        """A random nearby member, to break the symmetry of mixtures at the start."""

    def starting_moments(self, natural: Moments) -> NewMoments:
        """Moments from which a latent of the model starts, from its prior."""
        return self.moments(natural)

    def wider(self, natural: Moments, factor: float) -> NewMoments:
        """Natural parameters of a covariance that is larger by a factor, or of the
        inverse of one; those of other families as they are."""
        del factor
        return dict(natural)

    # --- standard parameters ----------------------------------------------------------

    @abc.abstractmethod
    def parameters(self, natural: Moments) -> NewMoments:
        """Standard parameters, named as NumPyro names them."""

    @abc.abstractmethod
    def from_parameters(self, parameters: Moments) -> NewMoments:
        """Natural parameters, the inverse of `parameters`."""

    @abc.abstractmethod
    def distribution(self, parameters: Moments) -> dist.Distribution:
        """The NumPyro distribution with these standard parameters."""

    def requirements(self, parameters: Moments) -> Requirements:
        """What standard parameters must fulfil for a distribution to have them.

        Returns:
          Whether they do, by what is wrong otherwise. Once one does not hold, those
          after it need not say anything true.
        """
        found: Requirements = collections.OrderedDict()
        for name, value in parameters.items():
            found[f"{name} is not finite"] = jnp.isfinite(value).all()
        # Those of a transformed distribution are of the one beneath it.
        distribution = self.distribution(parameters)
        beneath = getattr(distribution, "base_dist", distribution)
        for name, constraint in beneath.arg_constraints.items():
            # Of a matrix the moments decide, which scale its columns first; bounds that
            # depend on other parameters are for the family to add.
            if (
                name not in parameters
                or constraint is constraints.positive_definite
                or constraints.is_dependent(constraint)
            ):
                continue
            inside = jnp.all(constraint(parameters[name]))
            found[f"{name} lies outside its support"] = inside
        finite = [jnp.isfinite(m).all() for m in self.moments_of(parameters).values()]
        found["its moments are not finite"] = jnp.stack(finite).all()
        return found

    def moments_of(self, parameters: Moments) -> NewMoments:
        """Expectations of the statistics, from standard parameters."""
        return self.moments(self.from_parameters(parameters))

    def probabilities(
        self, latents: Collection[str], moments: Moments
    ) -> tuple[tuple[str, ...], Float[Array, "..."]]:
        """Joint probabilities of the states of some discrete latents of one factor.

        Returns:
          The latents in the order of the table's last axes, and the table.

        Raises:
          TypeError: The family is not one of discrete latents.
        """
        raise TypeError(f"{self.name} has no states.")

    def of_copies(
        self, parameters: Moments, copies: Float[Array, "..."] | None
    ) -> NewMoments:
        """Standard parameters of what depends on so many independent copies.

        In most families all copies are distributed as one of them is.

        Args:
          parameters: Those of one copy.
          copies: How many copies each factor stands for; None for one.
        """
        del copies
        return dict(parameters)

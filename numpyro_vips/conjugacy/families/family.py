"""What every exponential family of a posterior knows.

From its natural parameters, one array per statistic, a family has its moments, its log
normaliser and its standard parameters. All of them are functions of arrays with one
entry per independent factor of the posterior.
"""

import abc
from collections.abc import Mapping
from typing import ClassVar

import jax
import numpyro.distributions as dist

Moments = Mapping[str, jax.Array]


class Family(abc.ABC):
    """An exponential family with density ∝ exp Σ_s ⟨natural_s, s(x)⟩.

    Attributes:
      name: As `explain` prints it.
      statistics: Names of the statistics: "x", "1/x", "x²", "log", "log1m", "is"...
      event_dim: Number of trailing axes of the latent's value that one factor of the
        posterior covers.
      neutral: Natural parameters, where they are not 0, of some proper member. It
        stands in for an auxiliary variable whose observation does not count.
      neutral_moment: Where an auxiliary variable's moments start.
    """

    name: ClassVar[str]
    statistics: ClassVar[tuple[str, ...]]
    event_dim: ClassVar[int] = 0
    neutral: ClassVar[Mapping[str, float]] = {}
    neutral_moment: ClassVar[float] = 1.0

    @staticmethod
    @abc.abstractmethod
    def moments(natural: Moments) -> dict[str, jax.Array]:
        """Expectations of the statistics."""

    @staticmethod
    @abc.abstractmethod
    def log_normalizer(natural: Moments) -> jax.Array:
        """One value per factor; its gradient is `moments`."""

    @staticmethod
    @abc.abstractmethod
    def project(prior: Moments, data: Moments, noise: Moments) -> dict[str, jax.Array]:
        """Natural parameters prior + data, with noisy data moved to where it is legal.

        Args:
          prior: The prior's share of the natural parameters.
          data: The share of the released statistics. Without noise it lies in the cone
            of sums of row statistics and comes back unchanged.
          noise: Standard deviations of the noise in `data`, entry by entry.
        """

    @staticmethod
    @abc.abstractmethod
    def parameters(natural: Moments) -> dict[str, jax.Array]:
        """Standard parameters, named as NumPyro names them."""

    @staticmethod
    @abc.abstractmethod
    def from_parameters(parameters: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        """Natural parameters, the inverse of `parameters`."""

    @classmethod
    def moments_of(cls, parameters: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        """Expectations of the statistics, from standard parameters."""
        return cls.moments(cls.from_parameters(parameters))

    @staticmethod
    @abc.abstractmethod
    def distribution(parameters: Mapping[str, jax.Array]) -> dist.Distribution:
        """The NumPyro distribution with these standard parameters."""

    @staticmethod
    @abc.abstractmethod
    def perturb(natural: Moments, key: jax.Array) -> dict[str, jax.Array]:
        """A random nearby member, to break the symmetry of mixtures at the start."""

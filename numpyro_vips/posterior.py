"""What a posterior of the globals is, whichever engine has made it."""

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol, Self

import jax
import numpy as np

from numpyro_vips.model.row_queries import RowQuery


class MeanAndStddev(NamedTuple):
    """Mean and standard deviation of a site's entries, each in the site's shape."""

    mean: np.ndarray
    stddev: np.ndarray


class Posterior(Protocol):
    """The distribution of the global latents, described by parameters alone."""

    @property
    def params(self) -> Mapping[str, jax.Array]:
        """Everything that `sample` needs, arrays only."""
        ...

    @property
    def specification(self) -> Mapping[str, Any]:
        """What the parameters mean, JSON-able, with the key `"kind"`."""
        ...

    @property
    def site_dims(self) -> Mapping[str, tuple[str, ...]]:
        """For each site the names of its leading axes, those of its plates."""
        ...

    def sample(
        self, rng_key: jax.Array, sample_shape: tuple[int, ...]
    ) -> dict[str, jax.Array]:
        """Independent draws of every global latent."""
        ...

    def moments(self) -> Mapping[str, MeanAndStddev]:
        """Mean and standard deviation of every entry of every global latent."""
        ...

    def problems(self) -> Mapping[str, str]:
        """By site, why it has no posterior: not finite, degenerate, no density."""
        ...

    def weighable(
        self, rng_key: jax.Array, count: int
    ) -> tuple[Mapping[str, jax.Array], jax.Array] | None:
        """Draws of every latent, along a first axis, and their log densities.

        None where nothing is to be learnt from weighing draws by the model's density,
        as of a posterior that was fitted to it.
        """
        ...

    def local_posterior(self, query: RowQuery) -> Mapping[str, Any]:
        """The posterior of the latents of rows that the caller may see."""
        ...

    def elbo(self, query: RowQuery) -> np.ndarray:
        """The bound on the log density of each row that the caller may see."""
        ...

    @classmethod
    def from_specification(
        cls, specification: Mapping[str, Any], params: Mapping[str, jax.Array]
    ) -> Self:
        """The inverse of `specification` and `params`."""
        ...


_posteriors: dict[str, type[Posterior]] = {}


def register_posterior(kind: str, cls: type[Posterior]) -> None:
    """Lets `load` read posteriors whose specification has this `"kind"`.

    Raises:
      ValueError: Another class has been registered for `kind`.
    """
    if _posteriors.setdefault(kind, cls) is not cls:
        raise ValueError(
            f"Posteriors of kind {kind!r} already belong to "
            f"{_posteriors[kind].__name__}."
        )


def registered_posteriors() -> Mapping[str, type[Posterior]]:
    """By kind, the classes that `register_posterior` got."""
    return _posteriors

"""Probabilities, and the discrete latents that have them."""

from collections.abc import Collection, Mapping
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax.scipy.special import gammaln
from jaxtyping import Array, Float, Num, PRNGKeyArray

from numpyro_vips.conjugacy.families.digamma import digamma
from numpyro_vips.conjugacy.families.family import (
    Elementwise,
    Family,
    NewElementwise,
    Range,
    Shape,
)
from numpyro_vips.conjugacy.families.noisy_counts import expected_counts
from numpyro_vips.conjugacy.families.noisy_shares import (
    MOST_SHARES,
    Counts,
    share_of_noisy_counts,
)

# One vector per factor: of concentrations, or of a number for each state.
Vectors = Mapping[str, Float[Array, "*batch states"]]
NewVectors = dict[str, Float[Array, "*batch states"]]


# With more cells than this, many counts are below the noise. One number for all of them
# would discard what the large ones say. But so many are enough to estimate how counts
# are distributed, and each count is read with this distribution as its prior.
_MOST_CELLS = 64


def _information_kept(
    counts: Float[Array, "*batch states"], stddev: Float[Array, "*batch states"]
) -> Float[Array, "*batch"]:
    """How much less noisy counts say of their shares than exact ones, from 0 to 1.

    Shares p of n rows have variances p (1 - p) / n, and noise adds the variance of
    counts / Σ counts, to first order. Multiplied by the number that comes back, the
    counts have both together, in the sum over all cells.
    """
    total = counts.sum(-1, keepdims=True)
    # Half a row in every cell, so that empty cells are not certain to be empty.
    shares = (counts + 0.5) / (total + 0.5 * counts.shape[-1])
    of_rows = (shares * (1.0 - shares)).sum(-1) * total[..., 0]
    squares = stddev**2
    sum_squares = squares.sum(-1, keepdims=True)
    of_noise = squares * (1.0 - 2.0 * shares) + shares**2 * sum_squares
    of_noise = jnp.maximum(of_noise.sum(-1), 0.0)
    is_noisy = of_noise > 0
    both = jnp.where(is_noisy, of_rows + of_noise, 1.0)
    return jnp.where(is_noisy, of_rows / both, 1.0)


class Beta(Family):
    """A probability."""

    name = "Beta"
    statistics = ("log", "log1m")
    has_pseudo_counts = True

    def moments(self, natural: Elementwise) -> NewElementwise:
        a, b = natural["log"] + 1.0, natural["log1m"] + 1.0
        return {
            "log": digamma(a) - digamma(a + b),
            "log1m": digamma(b) - digamma(a + b),
        }

    def log_normalizer(self, natural: Elementwise) -> Float[Array, "*batch"]:
        a, b = natural["log"] + 1.0, natural["log1m"] + 1.0
        return gammaln(a) + gammaln(b) - gammaln(a + b)

    def at(self, value: Float[Array, "*batch"]) -> NewElementwise:
        return {"log": jnp.log(value), "log1m": jnp.log1p(-value)}

    def project(
        self, prior: Elementwise, data: Elementwise, noise: Elementwise
    ) -> NewElementwise:
        return {s: prior[s] + jnp.maximum(data[s], 0.0) for s in ("log", "log1m")}

    def widened(self, data: Elementwise, noise: Elementwise) -> NewElementwise:
        counts = jnp.stack([data["log"], data["log1m"]], -1)
        deviations = jnp.stack([noise["log"], noise["log1m"]], -1)
        kept = _information_kept(counts, deviations)
        return {s: kept * data[s] for s in self.statistics}

    def project_to_widen(self, data: Elementwise, noise: Elementwise) -> NewElementwise:
        """The released counts unchanged: `share_under_noise` reads them together with
        the prior. Of very many it does not, and they are moved as in `project`."""
        if data["log"].size > MOST_SHARES:
            return super().project_to_widen(data, noise)
        return dict(data)

    def share_under_noise(
        self, prior: Elementwise, data: Elementwise, noise: Elementwise
    ) -> NewElementwise:
        if data["log"].size > MOST_SHARES:
            return self.widened(data, noise)

        def counts_of(numbers: Elementwise, more: float = 0.0) -> Counts:
            of, others = jnp.broadcast_arrays(numbers["log"], numbers["log1m"])
            return Counts(of + more, others + more)

        def by_quadrature() -> NewElementwise:
            own, released = counts_of(prior, 1.0), counts_of(data)
            found = share_of_noisy_counts(own, released, counts_of(noise))
            is_noisy = (noise["log"] > 0) | (noise["log1m"] > 0)
            share = {"log": found.of - own.of, "log1m": found.others - own.others}
            return {s: jnp.where(is_noisy, share[s], data[s]) for s in share}

        is_noisy = jnp.any(noise["log"] > 0) | jnp.any(noise["log1m"] > 0)
        return jax.lax.cond(is_noisy, by_quadrature, lambda: dict(data))

    def neutral(self, shape: Shape) -> NewElementwise:
        return {"log": jnp.zeros(shape), "log1m": jnp.zeros(shape)}

    def perturb(self, natural: Elementwise, key: PRNGKeyArray) -> NewElementwise:
        return {
            s: (natural[s] + 1.0) * (1 + 0.2 * jax.random.uniform(k, natural[s].shape))
            - 1.0
            for s, k in zip(("log", "log1m"), jax.random.split(key), strict=True)
        }

    def parameters(self, natural: Elementwise) -> NewElementwise:
        return {
            "concentration1": natural["log"] + 1.0,
            "concentration0": natural["log1m"] + 1.0,
        }

    def from_parameters(self, parameters: Elementwise) -> NewElementwise:
        return {
            "log": parameters["concentration1"] - 1.0,
            "log1m": parameters["concentration0"] - 1.0,
        }

    def distribution(self, parameters: Elementwise) -> dist.Distribution:
        return dist.Beta(parameters["concentration1"], parameters["concentration0"])


class Dirichlet(Family):
    """Probabilities that add up to one, on the last axis."""

    name = "Dirichlet"
    statistics = ("log",)
    event_dim = 1
    has_pseudo_counts = True

    def moments(self, natural: Vectors) -> NewVectors:
        concentration = natural["log"] + 1.0
        total = concentration.sum(-1, keepdims=True)
        return {"log": digamma(concentration) - digamma(total)}

    def log_normalizer(self, natural: Vectors) -> Float[Array, "*batch"]:
        concentration = natural["log"] + 1.0
        return gammaln(concentration).sum(-1) - gammaln(concentration.sum(-1))

    def at(self, value: Float[Array, "*batch states"]) -> NewVectors:
        return {"log": jnp.log(value)}

    def project(self, prior: Vectors, data: Vectors, noise: Vectors) -> NewVectors:
        if data["log"].shape[-1] > _MOST_CELLS:
            counts = expected_counts(data["log"], noise["log"])
        else:
            counts = jnp.maximum(data["log"], 0.0)
        return {"log": prior["log"] + counts}

    def widened(self, data: Vectors, noise: Vectors) -> NewVectors:
        if data["log"].shape[-1] > _MOST_CELLS:
            return dict(data)
        kept = _information_kept(data["log"], noise["log"])
        return {"log": kept[..., None] * data["log"]}

    def neutral(self, shape: Shape) -> NewVectors:
        return {"log": jnp.zeros(shape)}

    def perturb(self, natural: Vectors, key: PRNGKeyArray) -> NewVectors:
        # Hoffman et al. (2010) start topics at Gamma(100, 1/100) draws. Cubes of Normal
        # ones differ by a thousandth (Wilson and Hilferty, 1931), and compile at once.
        normal = jax.random.normal(key, natural["log"].shape)
        noise = (1.0 - 1.0 / 900.0 + normal / 30.0) ** 3
        return {"log": natural["log"] + noise}

    def parameters(self, natural: Vectors) -> NewVectors:
        return {"concentration": natural["log"] + 1.0}

    def from_parameters(self, parameters: Vectors) -> NewVectors:
        return {"log": parameters["concentration"] - 1.0}

    def distribution(self, parameters: Vectors) -> dist.Distribution:
        return dist.Dirichlet(parameters["concentration"])


class Categorical(Family):
    """A discrete latent with finitely many states, one probability for each.

    Args:
      num_states: How many; the states are 0, 1, ...
    """

    name = "Categorical"
    statistics = ("is",)
    augmentation: ClassVar[str | None] = "allocation"
    moment_range: ClassVar[Range] = (0.0, 1.0)

    def __init__(self, num_states: int) -> None:
        self._num_states = num_states

    @property
    def num_states(self) -> int:
        return self._num_states

    def moments(self, natural: Vectors) -> NewVectors:
        return {"is": jax.nn.softmax(natural["is"], axis=-1)}

    def log_normalizer(self, natural: Vectors) -> Float[Array, "*batch"]:
        return jax.nn.logsumexp(natural["is"], axis=-1)

    def at(self, value: Num[Array, "*batch"]) -> NewVectors:
        return {"is": indicator(value, self.num_states)}

    def moment_shapes(self, shape: Shape) -> dict[str, Shape]:
        return {"is": (*shape, self.num_states)}

    def project(self, prior: Vectors, data: Vectors, noise: Vectors) -> NewVectors:
        return {"is": prior["is"] + data["is"]}

    def widened(self, data: Vectors, noise: Vectors) -> NewVectors:
        return {"is": likelihoods_under_noise(data["is"], noise["is"])}

    def neutral(self, shape: Shape) -> NewVectors:
        return {"is": jnp.zeros((*shape, self.num_states))}

    def perturb(self, natural: Vectors, key: PRNGKeyArray) -> NewVectors:
        return dict(natural)

    def parameters(self, natural: Vectors) -> NewVectors:
        return {"logits": natural["is"]}

    def from_parameters(self, parameters: Vectors) -> NewVectors:
        return {"is": parameters["logits"]}

    def distribution(self, parameters: Vectors) -> dist.Distribution:
        return dist.CategoricalLogits(parameters["logits"])

    def probabilities(
        self, latents: Collection[str], moments: Vectors
    ) -> tuple[tuple[str, ...], Float[Array, "*batch states"]]:
        return tuple(latents), moments["is"]


def likelihoods_under_noise(
    logits: Float[Array, "*batch states"], stddev: Float[Array, "*batch states"]
) -> Float[Array, "*batch states"]:
    """Log likelihoods of states, given noisy sums of log densities.

    The log density of all rows in the likeliest state exceeds that in another by
    r ~ Normal(D, 2D) if it is the true one, and by r ~ Normal(-D, 2D) if the other is,
    with some D ≥ 0: exactly so if rows are Normal with known variances, and nearly for
    other states that hardly differ. Noise of variance v makes this Normal(±D, 2D + v).
    The largest density of the released r over all D in the one case, over that in the
    other, has as its logarithm Huber's function of r: r²/(2v) below v, and r - v/2
    above.

    Args:
      logits: Noisy sums over rows of log densities, one for each state.
      stddev: The standard deviation of the noise in each.

    Returns:
      Log likelihoods, of which the largest is zero; without noise as they were.
    """
    best = jnp.argmax(logits, -1, keepdims=True)
    largest = jnp.take_along_axis(logits, best, -1)
    gap = largest - logits
    variance = stddev**2 + jnp.take_along_axis(stddev, best, -1) ** 2
    hidden = gap**2 / (2.0 * jnp.where(variance > 0, variance, 1.0))
    shrunk = jnp.where(gap < variance, hidden, gap - variance / 2.0)
    # About the likeliest: beside what all states share, differences would be rounded.
    return jnp.where(jnp.any(variance > 0, -1, keepdims=True), -shrunk, logits)


def indicator(
    value: Num[Array, "*batch"], num_states: int
) -> Float[Array, "*batch states"]:
    """Which of the states 0, 1, ... each value is, one-hot."""
    states = jnp.arange(num_states, dtype=value.dtype)
    return (value[..., None] == states).astype(float)

"""The Pólya-Gamma distribution (Polson, Scott and Windle, 2013) for NumPyro.

PG(b, c) has the density of PG(b, 0) times cosh(c/2)^b exp(-c²x/2). It is the posterior
of the auxiliary variable of a logistic likelihood with b trials, c² = E[logit²].
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from multipledispatch import dispatch
from numpyro.distributions import constraints
from numpyro.distributions.util import promote_shapes
from polyagamma import polyagamma_pdf, random_polyagamma

from numpyro_vips.jax_tools.host_calls import call_on_host, runs_on_host

# Their type stubs know scalars only.
_draw: Any = random_polyagamma
_density: Any = polyagamma_pdf

# Below this |c| the closed forms lose their digits and their series are exact.
_SMALL = 1e-2
# Above this |c| PG(b, c) is an inverse Gaussian, up to exp(-|c|).
_FAR = 100.0


@runs_on_host
def _draws(
    seed: np.ndarray, b: np.ndarray, c: np.ndarray, *, shape: tuple[int, ...]
) -> np.ndarray:
    rng = np.random.default_rng(seed.view(np.uint32))
    h = np.broadcast_to(b.astype(np.float64), shape).ravel()
    z = np.broadcast_to(c.astype(np.float64), shape).ravel()
    usable = np.isfinite(h) & (h > 0) & np.isfinite(z)
    h, z = np.where(usable, h, 1.0), np.abs(np.where(usable, z, 0.0))
    # At large tilts the library draws no numbers, or its rejection sampler never ends.
    far = z > _FAR
    drawn = _draw(h, np.where(far, 0.0, z), random_state=rng)
    shapes = np.maximum(h[far] ** 2 / 4.0, np.finfo(np.float64).tiny)
    drawn[far] = rng.wald(h[far] / (2.0 * z[far]), shapes)
    return np.where(usable, drawn, np.nan).reshape(shape)


@runs_on_host
def _log_density(
    value: np.ndarray, b: np.ndarray, c: np.ndarray, *, shape: tuple[int, ...]
) -> np.ndarray:
    x, h, z = (
        np.broadcast_to(part.astype(np.float64), shape).ravel()
        for part in (value, b, c)
    )
    return _density(x, h=h, z=z, return_log=True).reshape(shape)


class PolyaGamma(dist.Distribution):
    """The Pólya-Gamma distribution PG(b, c) of Polson, Scott and Windle (2013).

    Given c = the logit, it is the posterior of the auxiliary variable of a logistic
    likelihood with b trials. Its mean is b/(2c)·tanh(c/2), and b/4 at c = 0. As any
    distribution of NumPyro it has `sample`, `log_prob`, `mean` and `variance`.

        >>> variable = PolyaGamma(b=2.0, c=jnp.array([0.0, 1.0]))
        >>> variable.mean
        Array([0.5       , 0.46211717], dtype=float32)
        >>> variable.sample(jax.random.key(0), (5,)).shape
        (5, 2)

    Args:
      b: Shape; positive. The number of trials of a logistic likelihood.
      c: Tilt; any real number. Both broadcast to the batch shape.
      validate_args: As of other distributions of NumPyro.

    Raises:
      ValueError: With `validate_args=True`, a parameter is out of range.
    """

    arg_constraints: Any = {  # noqa: RUF012
        "b": constraints.positive,
        "c": constraints.real,
    }
    support: Any = constraints.positive

    def __init__(
        self, b: Any = 1.0, c: Any = 0.0, *, validate_args: bool | None = None
    ):
        b, c = promote_shapes(b, c)
        self.b: jax.Array = jnp.asarray(b)
        self.c: jax.Array = jnp.asarray(c)
        batch_shape = jax.lax.broadcast_shapes(jnp.shape(b), jnp.shape(c))
        super().__init__(batch_shape=batch_shape, validate_args=validate_args)

    def sample(
        self, key: jax.Array | None, sample_shape: tuple[int, ...] = ()
    ) -> jax.Array:
        """Draws through the polyagamma library, on the host.

        Not a number where b or c is none that the distribution has.
        """
        if key is None:
            raise ValueError("Expected a key of jax.random, got None.")
        shape = (*sample_shape, *self.batch_shape)
        # The key becomes a float, so that all travels to the host in one way.
        seed = jax.random.uniform(key, (4,))
        return call_on_host(_draws, shape, seed, self.b, self.c)

    def log_prob(self, value: Any, *args: Any, **kwargs: Any) -> jax.Array:
        """Log density, on the host; it has no gradient."""
        shape = jax.lax.broadcast_shapes(jnp.shape(value), self.batch_shape)
        return call_on_host(_log_density, shape, value, self.b, self.c)

    @property
    def mean(self) -> jax.Array:
        """b · tanh(c/2) / (2c)."""
        half = jnp.abs(self.c) / 2.0
        small = half < _SMALL
        safe = jnp.where(small, 1.0, half)
        ratio = jnp.where(
            small, 1.0 - half**2 / 3.0 + 2.0 * half**4 / 15.0, jnp.tanh(safe) / safe
        )
        return self.b * ratio / 4.0

    @property
    def variance(self) -> jax.Array:
        """b · (sinh c - c) / (4c³ cosh²(c/2))."""
        c = jnp.abs(self.c)
        small = c < 0.1
        safe = jnp.where(small, 1.0, c)
        # (sinh c - c) / cosh²(c/2) = 2 tanh(c/2) - c sech²(c/2), without overflow.
        sech_squared = 4.0 * jnp.exp(-safe) / (1.0 + jnp.exp(-safe)) ** 2
        exact = (2.0 * jnp.tanh(safe / 2.0) - safe * sech_squared) / (4.0 * safe**3)
        series = 1.0 / 24.0 - c**2 / 120.0 + 17.0 * c**4 / 13440.0
        return self.b * jnp.where(small, series, exact)


@dispatch(PolyaGamma, PolyaGamma)
def kl_divergence(p: PolyaGamma, q: PolyaGamma) -> jax.Array:
    """KL(PG(b, c) ‖ PG(b, c')) for equal b, in closed form."""
    half_p, half_q = jnp.abs(p.c) / 2.0, jnp.abs(q.c) / 2.0

    def log_cosh(x: jax.Array) -> jax.Array:
        return jnp.logaddexp(x, -x) - jnp.log(2.0)

    tilt = 0.5 * (q.c**2 - p.c**2) * p.mean
    divergence = p.b * (log_cosh(half_p) - log_cosh(half_q)) + tilt
    # Distributions with different b have another base measure.
    return jnp.where(p.b == q.b, divergence, jnp.nan)

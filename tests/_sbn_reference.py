"""Variational Bayes for sigmoid belief networks in plain NumPy, from the paper.

Park, Foulds, Chaudhuri and Welling (2020), section 7 and appendices 4 and 5. Written
for the tests, equation by equation, and sharing no code with the package.

Where the paper is incomplete, the update is derived from its model (its equation 70
lacks two signs, and its q(ξ_jk) lacks the rate φ_k). One thing differs on purpose: the
weights into a pixel and its bias share a Gaussian factor, that is, w̃_j = (c_j, w_j)
meets z̃ = (1, z). With z̃ for z, the paper's Σ_j and μ_j hold as they stand.
"""

import dataclasses
import math
from typing import Any

import numpy as np
from scipy import special

Array = np.ndarray


@dataclasses.dataclass
class Globals:
    """Means and second moments of q; the scales exist under the TPBN prior only."""

    b_mean: Array  # (K,)
    b_square: Array  # (K,), ⟨b_k²⟩
    w_mean: Array  # (J, K + 1), of (c_j, w_j)
    w_square: Array  # (J, K + 1, K + 1), ⟨w̃_j w̃_jᵀ⟩
    inverse_zeta: Array | None = None  # (J, K), ⟨1/ζ⟩
    zeta: Array | None = None
    xi: Array | None = None
    phi: Array | None = None  # (K,)
    omega: float = math.nan


@dataclasses.dataclass
class Locals:
    z: Array  # (N, K)
    xi0: Array  # (N, J), ⟨ξ⁽⁰⁾⟩
    xi1: Array  # (K,), ⟨ξ⁽¹⁾⟩
    tilt0: Array  # (N, J), the c of PG(1, c)
    tilt1: Array  # (K,)


def pg_mean(c: Array) -> Array:
    """Mean of PG(1, c): tanh(c/2) / (2c), and 1/4 at 0."""
    safe = np.where(c < 1e-8, 1.0, c)
    return np.where(c < 1e-8, 0.25, np.tanh(safe / 2) / (2 * safe))


def second_moment(z: Array) -> Array:
    """⟨z̃ z̃ᵀ⟩ of z̃ = (1, z) with independent binary z: (N, K + 1, K + 1)."""
    extended = np.concatenate([np.ones((len(z), 1)), z], axis=1)
    result = extended[:, :, None] * extended[:, None, :]
    k = np.arange(extended.shape[1])
    result[:, k, k] = extended  # z² = z.
    return result


def sweep_z(y: Array, q: Globals, z: Array, xi0: Array) -> Array:
    """Equations 69 to 71, one unit after the other."""
    z = z.copy()
    for k in range(z.shape[1]):
        others = z.copy()
        others[:, k] = 0.0
        extended = np.concatenate([np.ones((len(z), 1)), others], axis=1)
        # ⟨w_jk ψ_j∖k⟩ for all rows and pixels: (N, J).
        cross = extended @ q.w_square[:, k + 1, :].T
        own = q.w_square[:, k + 1, k + 1]
        logit = (
            q.b_mean[k]
            + (y - 0.5) @ q.w_mean[:, k + 1]
            - 0.5 * (xi0 * (2.0 * cross + own)).sum(1)
        )
        z[:, k] = special.expit(logit)
    return z


def e_step(y: Array, q: Globals, sweeps: int) -> Locals:
    """Each row from a fresh start: ξ = 1/4 and z = 1/2, then z, then sweeps of ξ, z."""
    num_rows, num_units = len(y), len(q.b_mean)
    xi0 = np.full(y.shape, 0.25)
    z = sweep_z(y, q, np.full((num_rows, num_units), 0.5), xi0)
    tilt0, tilt1 = np.zeros(y.shape), np.sqrt(q.b_square)
    for _ in range(sweeps):
        # Equation 67: c² = ⟨(w_jᵀ z + c_j)²⟩.
        tilt0 = np.sqrt(np.einsum("jkl,nkl->nj", q.w_square, second_moment(z)))
        xi0 = pg_mean(tilt0)
        z = sweep_z(y, q, z, xi0)
    return Locals(z=z, xi0=xi0, xi1=pg_mean(tilt1), tilt0=tilt0, tilt1=tilt1)


def row_bound(y: Array, q: Globals, row: Locals) -> Array:
    """The row's evidence lower bound, equations 77 and 78."""
    extended = np.concatenate([np.ones((len(y), 1)), row.z], axis=1)
    psi = extended @ q.w_mean.T
    psi_square = np.einsum("jkl,nkl->nj", q.w_square, second_moment(row.z))

    def logistic(kappa_psi: Any, square: Any, mean: Any, tilt: Any) -> Any:
        # E log p(y | ψ, ξ) - KL(PG(1, tilt) || PG(1, 0)).
        divergence = np.log(np.cosh(tilt / 2)) - 0.5 * tilt**2 * mean
        return -math.log(2.0) + kappa_psi - 0.5 * mean * square - divergence

    observed = logistic((y - 0.5) * psi, psi_square, row.xi0, row.tilt0).sum(1)
    hidden = logistic((row.z - 0.5) * q.b_mean, q.b_square, row.xi1, row.tilt1).sum(1)
    entropy = (special.entr(row.z) + special.entr(1.0 - row.z)).sum(1)
    return observed + hidden + entropy


def gig_means(a: Array, b: Array) -> tuple[Array, Array]:
    """⟨ζ⟩ and ⟨1/ζ⟩ of GIG(0, a, b), whose density is ∝ ζ⁻¹ exp(-(aζ + b/ζ)/2)."""
    root = np.sqrt(a * b)
    ratio = special.kve(1, root) / special.kve(0, root)
    return np.sqrt(b / a) * ratio, np.sqrt(a / b) * ratio


def m_step(
    y: Array,
    row: Locals,
    q: Globals,
    *,
    bias_variance: float,
    weight_variance: float | None,
    sweeps: int,
) -> Globals:
    """Appendix 5, from the sums of the expected sufficient statistics.

    Args:
      y: The rows.
      row: Their latents.
      q: Where the scales start.
      bias_variance: ν_b = ν_c.
      weight_variance: Of the Gaussian prior; None for the TPBN prior.
      sweeps: How often all factors are updated.
    """
    num_rows, (num_pixels, num_units) = len(y), (y.shape[1], len(q.b_mean))
    pairs = np.einsum("nj,nkl->jkl", row.xi0, second_moment(row.z))
    extended = np.concatenate([np.ones((num_rows, 1)), row.z], axis=1)
    linear = (y - 0.5).T @ extended
    b_variance = 1.0 / (1.0 / bias_variance + num_rows * row.xi1)
    b_mean = b_variance * (row.z - 0.5).sum(0)
    for _ in range(sweeps):
        prior = np.empty((num_pixels, num_units + 1))
        prior[:, 0] = 1.0 / bias_variance
        if weight_variance is None:
            assert q.inverse_zeta is not None
            prior[:, 1:] = q.inverse_zeta
        else:
            prior[:, 1:] = 1.0 / weight_variance
        precision = pairs + np.eye(num_units + 1) * prior[:, None, :]
        covariance = np.linalg.inv(precision)
        mean = np.einsum("jkl,jl->jk", covariance, linear)
        square = covariance + mean[:, :, None] * mean[:, None, :]
        q = dataclasses.replace(
            q,
            b_mean=b_mean,
            b_square=b_variance + b_mean**2,
            w_mean=mean,
            w_square=square,
        )
        if weight_variance is None:
            q = _scales(q)
    return q


def _scales(q: Globals) -> Globals:
    """The TPBN prior: w ~ N(0, ζ), ζ ~ Gam(½, ξ), ξ ~ Gam(½, φ), φ ~ Gam(½, ω)."""
    assert q.xi is not None and q.phi is not None and q.zeta is not None
    num_pixels, num_units = q.xi.shape
    omega = (num_units / 2 + 0.5) / (1.0 + q.phi.sum())
    phi = (num_pixels / 2 + 0.5) / (omega + q.xi.sum(0))
    xi = 1.0 / (phi + q.zeta)
    units = np.arange(1, num_units + 1)
    zeta, inverse = gig_means(2.0 * xi, q.w_square[:, units, units])
    return dataclasses.replace(
        q, omega=omega, phi=phi, xi=xi, zeta=zeta, inverse_zeta=inverse
    )

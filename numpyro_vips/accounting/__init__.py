"""What Gaussian releases cost in privacy, and how much noise a target needs.

    >>> price = epsilon(
    ...     noise_multiplier=2.0, sampling_rate=1.0, num_steps=1, delta=1e-5
    ... )
    >>> round(price, 3)
    1.993

Three accountants price the same events. None of them needs JAX.

* `"pld"` (default): privacy loss distributions. Full-batch Gaussian releases are
  priced exactly; Poisson batches through dp-accounting; batches drawn without
  replacement through their dominating pair, on dp-accounting's distributions. Every
  rounding goes up. Where the grid cannot resolve the answer (`delta` below 1e-10, next
  to no noise, or more than 10⁵ steps on batches) a Rényi bound or the bound without
  amplification takes over.
* `"moments"`: the analytical moments accountant of Wang, Balle and Kasiviswanathan
  (AISTATS 2019), with the papers' conversion to (epsilon, delta).
* `"strong"`: strong composition (Dwork and Roth 2014, theorem 3.20) with
  amplification by subsampling, the papers' baseline.

A noise multiplier is always the noise's standard deviation divided by the L2
sensitivity *in the stated relation*: add or remove one row for `"poisson"`, replace
one row for `"without_replacement"`. `docs/privacy_proofs.md` derives the formulas.
"""

# ruff: noqa: F401
# pyright: reportUnusedImport=false
from numpyro_vips.accounting.calibration import (
    calibrate,
    calibrate_events,
    smallest_factor,
)
from numpyro_vips.accounting.events import (
    RELATIONS,
    SAMPLINGS,
    GaussianEvent,
    Relation,
    Sampling,
    jsonable,
    scale_noise,
)
from numpyro_vips.accounting.gaussian import gaussian_delta
from numpyro_vips.accounting.prices import (
    ACCOUNTANTS,
    Accountant,
    delta_of_events,
    epsilon,
    epsilon_of_events,
    gaussian_dp_mu,
)
from numpyro_vips.accounting.renyi import (
    RENYI_ORDERS,
    renyi_of_events,
    renyi_to_epsilon,
)

# What is imported and not named here is for the rest of the package.
__all__ = [
    "GaussianEvent",
    "calibrate",
    "calibrate_events",
    "delta_of_events",
    "epsilon",
    "epsilon_of_events",
    "gaussian_delta",
    "gaussian_dp_mu",
    "scale_noise",
]

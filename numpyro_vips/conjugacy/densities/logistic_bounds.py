"""Quadratic lower bounds on -log(2 cosh(ψ/2)), which make logistic models conjugate.

Each is one registered function: it takes the logits ψ and the number of trials as forms
and returns the bound as a form with an auxiliary variable. All are tight where the
posterior of ψ is a point. `PrivateVI(augmentation=...)` chooses.

================= ================== ==============================================
name               curvature          the auxiliary variable
================= ================== ==============================================
`polya-gamma`      tanh(c/2)/(2c)     Pólya-Gamma with c² = E[ψ²]
`fixed-curvature`  1/4                the point E[ψ] where the bound touches
================= ================== ==============================================

The first is the tighter one where ψ is large. The second has a curvature that depends
neither on the row's label nor on the globals, so that Σ xxᵀ/4 is all that a regression
ever has to know of second order.
"""

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from numpyro_vips.conjugacy.algebra import elementwise, forms
from numpyro_vips.conjugacy.algebra.forms import Form

if TYPE_CHECKING:
    from numpyro_vips.conjugacy.densities.log_densities import Augment

LogisticBound = Callable[["Augment", Form, Form], Form]
DEFAULT = "polya-gamma"
REGISTRY: dict[str, LogisticBound] = {}

# What was chosen: one bound for all sites, or one for each site that is named.
Choice = str | Mapping[str, str]


def logistic_bound(name: str) -> Callable[[LogisticBound], LogisticBound]:
    """Registers a bound under the name that `augmentation=` has for it."""

    def register(function: LogisticBound) -> LogisticBound:
        REGISTRY[name] = function
        return function

    return register


def chosen(choice: Choice, site: str) -> LogisticBound:
    """The bound for a site."""
    name = choice if isinstance(choice, str) else choice.get(site, DEFAULT)
    return REGISTRY[name]


@logistic_bound("polya-gamma")
def polya_gamma(augment: "Augment", logits: Form, trials: Form) -> Form:
    """Polson, Scott and Windle (2013): PG(1, c) per trial.

    The same bound as that of Jaakkola and Jordan (2000).
    """
    axes = forms.common_axes(logits, trials)
    xi = augment.auxiliary("polya_gamma", axes, family="PolyaGamma", weight=trials)
    squared = elementwise.power(logits, 2)
    return -0.5 * (trials * (xi * squared)) - trials * math.log(2.0)


@logistic_bound("fixed-curvature")
def fixed_curvature(augment: "Augment", logits: Form, trials: Form) -> Form:
    """Böhning and Lindsay (1988), Böhning (1992): the curvature is at most 1/4.

    So f(ψ) = ψ²/8 - log(2 cosh(ψ/2)) is convex, and lies above its tangents:

        -log(2 cosh(ψ/2)) ≥ -ψ²/8 + uψ - f*(u),  with equality at u = f'(ψ).

    In expectation the best tangent is that at E[ψ].
    """
    axes = forms.common_axes(logits, trials)
    u = augment.auxiliary("tangent", axes, family="Tangent", weight=trials)
    squared = elementwise.power(logits, 2)
    return -0.125 * (trials * squared) + trials * (u * logits)

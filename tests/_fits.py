"""How tests fit a model: quietly, to rows of the plate "rows", at ε = 1, δ = 1e-5."""

import math
from collections.abc import Callable
from typing import Any

import jax

import numpyro_vips as nv

UNIT = "rows"


def vi_of(
    model: nv.private | Callable[..., Any],
    *,
    budget: nv.PrivacyBudget | float = 1.0,
    **options: Any,
) -> nv.PrivateVI:
    """What fits a model, without a progress bar.

    Args:
      model: The model; where it is not marked, with the plate "rows" as its unit.
      budget: The ledger, or the ε of a new one: infinite, or with δ = 1e-5.
      **options: Those of `nv.PrivateVI`.
    """
    if not isinstance(model, nv.private):
        model = nv.private(model, unit=UNIT)
    if not isinstance(budget, nv.PrivacyBudget):
        budget = nv.PrivacyBudget(budget, 0.0 if math.isinf(budget) else 1e-5)
    return nv.PrivateVI(model, budget=budget, **{"progress_bar": False, **options})


def fit_to(model: Any, *rows: Any, **options: Any) -> nv.PrivateVIResult:
    """The fit of a model to rows from the key 0; see `vi_of`."""
    return vi_of(model, **options).run(jax.random.key(0), *rows)

"""Models that others published, each written anew from its specification.

Nothing is copied: the functions follow the published formulas, priors and names. Most
rows are simulated from the models themselves with a fixed seed, at the sizes that a
private fit needs.
"""

from foreign_models import (
    choices,
    counts,
    ecology,
    hierarchical,
    linear,
    measurement,
    mixtures,
    psychometrics,
    series,
    survival,
)
from foreign_models._foreign import Arguments, Foreign

GALLERY: tuple[Foreign, ...] = (
    *linear.MODELS,
    *hierarchical.MODELS,
    *counts.MODELS,
    *choices.MODELS,
    *survival.MODELS,
    *mixtures.MODELS,
    *psychometrics.MODELS,
    *ecology.MODELS,
    *series.MODELS,
    *measurement.MODELS,
)

__all__ = ["GALLERY", "Arguments", "Foreign"]

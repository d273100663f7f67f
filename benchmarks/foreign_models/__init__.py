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

_THEMES = (
    linear,
    hierarchical,
    counts,
    choices,
    survival,
    mixtures,
    psychometrics,
    ecology,
    series,
    measurement,
)
GALLERY: tuple[Foreign, ...] = tuple(
    entry
    for theme in _THEMES
    for entry in vars(theme).values()
    if isinstance(entry, Foreign)
)

__all__ = ["GALLERY", "Arguments", "Foreign"]

"""Where the width of a posterior's intervals comes from: the data, or privacy.

    result = vi.run(jax.random.key(0), X, y)
    print(result.uncertainty())

The variance of every global has two parts: what it would be if the same sums had been
released without noise and without clipping, and what these add. Only released numbers
enter.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol, runtime_checkable

import numpy as np

from numpyro_vips.errors import quoted
from numpyro_vips.model.facts.axis_labels import AxisLabels

# Entries of a site that get a row each; of longer ones there is one row for all.
_MOST_ROWS = 12
# Which part of the prior's width is left where rows have said next to nothing. Noise in
# what they say may make it narrower by a little.
_AS_WIDE_AS_PRIOR = 0.95


@dataclasses.dataclass(frozen=True, kw_only=True)
class VarianceParts:
    """The two parts of the variance of each entry of one site, in the site's shape.

    Attributes:
      data: What the rows leave open, as without privacy.
      privacy: What noise and clipping add.
    """

    data: np.ndarray
    privacy: np.ndarray

    @property
    def share_of_width(self) -> np.ndarray:
        """The part of an interval's width that is due to privacy, from 0 to 1.

        Without it the interval would be narrower by this part.
        """
        total = np.asarray(self.data + self.privacy)
        ratio = np.divide(self.data, total, out=np.ones_like(total), where=total > 0)
        return 1.0 - np.sqrt(ratio)


@runtime_checkable
class KnowsItsParts(Protocol):
    """A posterior that can say how much of its variance is due to privacy."""

    def variance_parts(self) -> Mapping[str, VarianceParts]:
        """The parts of the variance, by site.

        Their sum is the variance of `sample`. A site of which they are not known is
        left out.
        """
        ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Uncertainty:
    """The parts of every global's variance; prints as a table.

    Attributes:
      parts: By site.
      means: The means of the posterior, by site.
      axis_labels: By site, for each axis what its entries belong to, such as the
        columns of an encoded table; None where they are numbered.
    """

    parts: Mapping[str, VarianceParts]
    means: Mapping[str, np.ndarray]
    axis_labels: AxisLabels = dataclasses.field(default_factory=dict)

    def __str__(self) -> str:
        header = ("", "mean", "sd", "sd of the data alone", "width due to privacy")
        rows = [header, *self._rows()]
        widths = [max(len(row[i]) for row in rows) for i in range(len(header))]
        lines = []
        for row in rows:
            cells = [row[0].ljust(widths[0])]
            cells += [
                cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True)
            ]
            lines.append("  ".join(cells).rstrip())
        return "\n".join(lines)

    def _rows(self) -> Iterator[tuple[str, ...]]:
        for name, parts in self.parts.items():
            mean = np.asarray(self.means[name])
            total, data = np.sqrt(parts.data + parts.privacy), np.sqrt(parts.data)
            share = parts.share_of_width
            if mean.size > _MOST_ROWS:
                label = f"{name}, median of {mean.size:,}"
                medians = (np.median(each) for each in (mean, total, data))
                yield label, *(f"{m:.3g}" for m in medians), f"{np.median(share):.0%}"
                continue
            labels = self.axis_labels.get(name) or [None] * mean.ndim
            for index in np.ndindex(mean.shape):
                places: list[str] = [
                    str(place) if known is None else str(known[place])
                    for place, known in zip(index, labels, strict=True)
                ]
                label = name + (f"[{', '.join(places)}]" if index else "")
                numbers = (each[index] for each in (mean, total, data))
                yield label, *(f"{n:.3g}" for n in numbers), f"{share[index]:.0%}"


def on_widths_of_prior(widths: Mapping[str, float]) -> Iterable[str]:
    """What follows where the posterior is the prior.

    Of some globals rows may have nothing to say. Where this is so of all, noise hides
    it, and the result looks like one.

    Args:
      widths: By site, the smallest width of its entries over that of the prior.
    """
    if widths and min(widths.values()) > _AS_WIDE_AS_PRIOR:
        yield (
            f"Noise hides what the rows say of {quoted(widths)}: the "
            "posterior is about the prior. What helps: columns scaled to about -1 to 1 "
            "by public constants, if they are not yet; more rows, a larger epsilon or "
            "tighter priors."
        )

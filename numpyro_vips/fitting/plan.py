"""The plan of a fit as people and programs read it: tables, HTML and JSON."""

import dataclasses
import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from numpyro_vips import _html
from numpyro_vips.accounting import jsonable

_WIDTH = 100
_SITE_COLUMNS = "site role shape posterior augmentation"
_STATISTIC_COLUMNS = "statistic shape released bound clipping_norm sensitivity"
_SCHEDULE_COLUMNS = "steps releases sampling rate share clipping_norm"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """How a model would be fitted.

        >>> import numpy as np, numpyro, numpyro.distributions as dist
        >>> import numpyro_vips as nv
        >>> @nv.private(unit="people")
        ... def model(y):
        ...     p = numpyro.sample("p", dist.Beta(1.0, 1.0))
        ...     with numpyro.plate("people", len(y)):
        ...         numpyro.sample("y", dist.Bernoulli(p), obs=y)
        >>> vi = nv.PrivateVI(model, budget=nv.PrivacyBudget(1.0, 1e-6))
        >>> plan = vi.explain(np.zeros(1000, int))
        >>> plan.engine, plan.settings["sampling"]
        ('vips', "FullBatch(relation='add_or_remove')")
        >>> plan.settings["budget"]
        'PrivacyBudget(epsilon=1.0, delta=1e-06)'
        >>> plan.sites[0]["posterior"]
        'Beta [log, log1m]'
        >>> plan.to_dict()["statistics"][0]["bound"]
        'structure'

    Attributes:
      engine: `"vips"` or `"dpvi"`.
      settings: The keywords of `PrivateVI`, as the code that makes their values:
        `engine`, `sampling` (by default every step uses every row,
        `"FullBatch(relation='add_or_remove')"`), `budget` without its file, and what
        else the caller gave, but for what is shown, called or kept on the way. A seed
        is written as `...`, since it would take the noise off again.
      sites: One entry per site: `site`, `role`, `shape`, `posterior` (family and
        statistics), and `augmentation` of an observed one.
      statistics: One entry per block of a row's statistics: `statistic`, `shape`,
        `released` ("public", "once", "refreshed", "adaptive" or "information", which is
        for intervals), `bound` (where its norm comes from:
        "structure", "histogram" or "clipping_norm="), `clipping_norm` and
        `sensitivity`, both None until a histogram has found the norm.
      reasons: By site, why VIPS cannot run the model; empty if it can, or if
        another engine was asked for.
      schedule: One entry per kind of step. `share` is its part of Σ 1/σ² over all
        steps, where σ is a step's noise multiplier over its sampling rate. What the
        last steps report on rows beside their statistics has an entry of its own, with
        the part that it takes of theirs, so that all entries add up to one.
      notes: What else to know, such as where the clipping norms come from.
    """

    engine: str
    settings: Mapping[str, str]
    sites: tuple[Mapping[str, Any], ...]
    statistics: tuple[Mapping[str, Any], ...]
    reasons: Mapping[str, str]
    schedule: tuple[Mapping[str, Any], ...]
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """The plan as JSON-able values; an infinite number becomes `"inf"`."""
        return jsonable(self)

    def __str__(self) -> str:
        lines = [f"Engine: {self.engine}"]
        if self.reasons:
            lines.append("VIPS cannot run it:")
            for site, reason in self.reasons.items():
                lines += _wrapped(f"{site}: {reason}")
        lines += ["Settings:"]
        for name, code in self.settings.items():
            lines += _wrapped(f"{name}={code}")
        for columns, rows in self._tables():
            lines += ["", *_table(columns, rows)]
        for note in self.notes:
            lines += ["", *textwrap.wrap(note, _WIDTH)]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        """The tables for notebooks, as HTML; cells are not cut."""
        parts = [_html.heading(f"Engine: {self.engine}")]
        if self.reasons:
            reasons = [f"{site}: {reason}" for site, reason in self.reasons.items()]
            parts += [_html.paragraph("VIPS cannot run it:"), _html.bullets(reasons)]
        settings = [f"{name}={code}" for name, code in self.settings.items()]
        parts += [_html.paragraph("Settings:"), _html.bullets(settings)]
        for columns, rows in self._tables():
            header, *cells = _cells(columns, rows)
            parts.append(_html.table(header, cells))
        parts += map(_html.paragraph, self.notes)
        return "".join(parts)

    def _tables(self) -> Iterable[tuple[str, Sequence[Mapping[str, Any]]]]:
        """Names of columns, and a mapping for each row."""
        yield _SITE_COLUMNS, self.sites
        if self.statistics:
            yield _STATISTIC_COLUMNS, self.statistics
        yield _SCHEDULE_COLUMNS, self.schedule


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(
        text,
        _WIDTH,
        initial_indent="  ",
        subsequent_indent="    ",
        break_long_words=False,
    )


def _table(columns: str, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """A table of at most 100 columns; cells that are too wide end in an ellipsis."""
    cells = _cells(columns, rows)
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    gap = 2 * (len(widths) - 1)
    while sum(widths) + gap > _WIDTH:
        widths[widths.index(max(widths))] -= 1
    lines = []
    for line in cells:
        cut = [
            text if len(text) <= width else text[: width - 1] + "…"
            for text, width in zip(line, widths, strict=True)
        ]
        padded = [text.ljust(width) for text, width in zip(cut, widths, strict=True)]
        lines.append("  ".join(padded).rstrip())
    lines.insert(1, "  ".join("-" * width for width in widths))
    return lines


def _cells(columns: str, rows: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """The line of headings, then the rows."""
    names = columns.split()
    headings = [name.replace("_", " ") for name in names]
    return [headings, *([_cell(row.get(name)) for name in names] for row in rows)]


def _cell(value: Any) -> str:
    if value is None or value == "":
        return "-"
    if isinstance(value, float):
        return "none" if math.isinf(value) else f"{value:.4g}"
    if isinstance(value, list):
        return "×".join(map(str, value)) or "scalar"
    return str(value)

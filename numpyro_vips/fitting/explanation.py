"""What `explain` says: which engine, site by site, and why.

It describes shapes, programs and options; no data value is read for it.
"""

import dataclasses
import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from numpyro_vips import _html
from numpyro_vips.accounting import jsonable
from numpyro_vips.fitting.bounds.norm_histogram import THRESHOLD
from numpyro_vips.fitting.bounds.prior_norms import rows_in_place
from numpyro_vips.fitting.curvature_noise import HIDDEN
from numpyro_vips.fitting.engine_choice import PreparedFit
from numpyro_vips.fitting.schedule import ScheduleOptions
from numpyro_vips.fitting.step import Step
from numpyro_vips.jax_tools.program_constants import listed
from numpyro_vips.jax_tools.row_sums import DIAGNOSTICS

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
        `sensitivity`, both None until a histogram has said.
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


def explain_plan(prepared: PreparedFit, options: ScheduleOptions) -> Plan:
    """Describes a prepared fit."""
    engine, steps = prepared.engine, prepared.steps
    released = {
        block.name: step
        for step in reversed(steps)
        for block in step.blocks
        if not step.counted
    }
    return Plan(
        engine=engine.name,
        settings={
            "engine": repr(prepared.settings),
            "sampling": repr(options.sampling),
        },
        sites=tuple(_site(prepared, name) for name in prepared.graph.sites),
        statistics=tuple(
            _statistic(prepared, description, released, options)
            for description in engine.describe_statistics()
        ),
        reasons=dict(prepared.reasons),
        schedule=tuple(_schedule(steps)),
        notes=tuple(_notes(prepared, options)),
    )


def with_number_of_rows(
    plan: Plan, prepared: PreparedFit, noise_multiplier: float | None
) -> Plan:
    """The plan, which says so if rows are too few for any clipping norm to be found.

    A histogram shows a norm if its count stands out of the noise. That of all rows in
    one bin is their number, which is public, and so is how large the noise will be.

    Args:
      plan: What `explain_plan` says of the fit; it is the same for every budget.
      prepared: The fit.
      noise_multiplier: That of a single release from all rows on which the fit's whole
        budget is spent; None where it is not known.
    """
    histograms = [step for step in prepared.steps if step.counts_norms]
    if not histograms or noise_multiplier is None:
        return plan
    first = histograms[0]
    spent = sum(step.share for step in prepared.steps)
    priced = first.scaled(noise_multiplier * math.sqrt(spent))
    stddev = priced.mechanism.block_noise_stddev(first.counted[0].name)
    num_rows = prepared.arguments.public_num_rows
    if num_rows > THRESHOLD * stddev:
        return plan
    note = (
        f"{num_rows} rows are too few for this budget: each count of the histogram "
        f"gets noise with a standard deviation of about {stddev:.0f}, which hides all "
        f"of them. So the norms will be those of {rows_in_place(prepared.engine)}, "
        "whatever the rows are, and the fit will warn. More rows or a larger epsilon "
        "would show them; arguments in units in which numbers are about one, with "
        "priors in these units, make synthetic rows like the real ones."
    )
    return dataclasses.replace(plan, notes=(*plan.notes, note))


def _site(prepared: PreparedFit, name: str) -> dict[str, Any]:
    site = prepared.graph.sites[name]
    return {
        "site": name,
        "role": site.role,
        "shape": [n for axis, n in enumerate(site.shape) if axis != site.row_axis],
        "posterior": None,
        "augmentation": None,
        **prepared.engine.describe_site(name),
    }


def _statistic(
    prepared: PreparedFit,
    description: Mapping[str, Any],
    released: Mapping[str, Step],
    options: ScheduleOptions,
) -> dict[str, Any]:
    name = description["statistic"]
    step = released.get(name)
    return {
        **description,
        "bound": None if step is None else _bound(prepared, name, options),
        "clipping_norm": None if step is None else step.clipping_norm,
        "sensitivity": None if step is None else _sensitivity(step, options),
    }


def _bound(prepared: PreparedFit, name: str, options: ScheduleOptions) -> str | None:
    """Where the bound on a statistic comes from."""
    if not options.private:
        return None
    if options.clipping_norm is not None:
        return "clipping_norm="
    fixed = {b for part in prepared.parts if part.is_fixed for b in part.blocks}
    return "structure" if name in fixed else "histogram"


def _sensitivity(step: Step, options: ScheduleOptions) -> float | None:
    if not options.private:
        return math.inf
    if step.clipping_norm is None:
        return None
    return step.mechanism.sensitivity(options.sampling.relation)


def _schedule(steps: Sequence[Step]) -> Iterable[dict[str, Any]]:
    """What `explain` says of the steps, those that are alike together.

    What a step spends on counts of clipped rows beside its release is a line of its
    own, with no clipping norm. Shares are of the whole schedule, and add up to 1.
    """
    shares: dict[Step, list[float]] = {}
    reports: dict[Step, list[float]] = {}
    for step in steps:
        key = dataclasses.replace(step, step_size=1.0, reports=False)
        reported = step.share_of_reports
        shares.setdefault(key, []).append(step.share - reported)
        if step.reports:
            reports.setdefault(key, []).append(reported)
    total = sum(map(sum, (*shares.values(), *reports.values())))
    for step, each in shares.items():
        yield {
            "steps": len(each),
            "releases": step.label,
            "sampling": step.sampling.scheme,
            "rate": step.sampling.rate,
            "share": sum(each) / total if total else None,
            "clipping_norm": step.clipping_norm,
        }
    for step, each in reports.items():
        yield {
            "steps": len(each),
            "releases": " and ".join(DIAGNOSTICS),
            "sampling": step.sampling.scheme,
            "rate": step.sampling.rate,
            "share": sum(each) / total if total else None,
            "clipping_norm": None,
        }


def _on_hidden_curvature(prepared: PreparedFit) -> str:
    """Which engine was taken where noise hides the curvature, and why."""
    hidden = (
        "With so much noise, so many columns and so few rows the curvature, a matrix "
        "that VIPS releases and steps by, is predicted to be hidden: its noise is more "
        f"than {HIDDEN:g} times an average eigenvalue. Few directions get to their "
        "optimum."
    )
    if prepared.avoids_curvature:
        return (
            "VIPS can run this model, and DPVI was taken because it is predicted to be "
            f"more accurate. {hidden} DPVI releases no such matrix. engine='vips' runs "
            "VIPS all the same."
        )
    return f"{hidden} engine='dpvi' releases no such matrix."


def _notes(prepared: PreparedFit, options: ScheduleOptions) -> Iterable[str]:
    """What a person should know of a fit that no table of `explain` says."""
    engine, captured = prepared.engine, prepared.graph.captured
    if prepared.hides_curvature:
        yield _on_hidden_curvature(prepared)
    unknown = [part.name for part in prepared.parts if not part.is_fixed]
    if unknown:
        yield (
            f"The clipping norms of {', '.join(unknown)} are read off a private "
            "histogram of the norms of all rows, in the schedule with its share of the "
            "budget. Where the rows are too few for it, they are those of synthetic "
            "rows of unit size. With clipping_norm=, from public knowledge, there is "
            "no histogram."
        )
    counted = [part.name for part in prepared.parts if part.columns is not None]
    uncounted = sorted(engine.columns.keys() & set(unknown))
    if counted:
        yield (
            f"The columns of {', '.join(counted)} get units from a private histogram "
            "of each column before rows are clipped, so that large ones, such as "
            "incomes, do not hide small ones."
        )
    elif uncounted:
        yield (
            f"{', '.join(uncounted)}: too few rows or too many columns for a private "
            "histogram of each column. Rows are scaled as a whole, or by the priors of "
            "the coefficients. Columns of very unequal size should be scaled "
            "beforehand by public constants."
        )
    if any(step.recentres for step in prepared.steps):
        yield (
            f"{', '.join(sorted(engine.recentred))} are released about means that "
            "earlier releases have found, so that their noise is that of the rows' "
            "spread, not that of their distance from zero; features of a regression "
            "are standardised by what these say of them."
        )
    elif any(step.is_pilot for step in prepared.steps):
        yield (
            "Pilots make features uncorrelated, as far as they stand out of the noise, "
            "and are used for nothing else. Later releases are of features in these "
            "coordinates."
        )
    if not options.private:
        yield "NOT PRIVATE: no noise, no clipping."
    if captured:
        names = ", ".join(listed(sorted(captured)))
        yield f"Treated as public because the model holds them: {names}."
    yield from engine.notes()
    for name, width in prepared.arguments.widths.items():
        yield (
            f"Of a row of {name!r} the {width} largest entries are looked at "
            "(max_nonzeros, a public number)"
            f"{engine.describe_sparse_rows(name)}."
        )

"""What `explain` says: which engine, site by site, and why.

It describes shapes, programs and options; no data value is read for it.
"""

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from numpyro_vips.fitting.advantages.curvature_noise import HIDDEN
from numpyro_vips.fitting.bounds.norm_histogram import THRESHOLD
from numpyro_vips.fitting.bounds.prior_norms import rows_in_place
from numpyro_vips.fitting.plan import Plan
from numpyro_vips.fitting.prepare import PreparedFit
from numpyro_vips.fitting.pricing import warning_of_no_globals
from numpyro_vips.fitting.schedule_options import ScheduleOptions
from numpyro_vips.fitting.step import Step
from numpyro_vips.jax_tools.program_constants import listed
from numpyro_vips.jax_tools.row_sums import DIAGNOSTICS
from numpyro_vips.model.facts.parameter_ranges import warnings_of_ranges


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
        reasons=dict(prepared.choice.reasons),
        schedule=tuple(_schedule(steps)),
        notes=tuple(_notes(prepared, options)),
    )


def notes_on_redrawn_rows(
    steps: Sequence[Step], exposed: Mapping[str, Sequence[str]]
) -> Iterable[str]:
    """What `explain` says of steps that redraw rows, which depend on the budget.

    Args:
      steps: The schedule.
      exposed: See `exposures`.
    """
    number = sum(step.redraws and not step.is_aside for step in steps)
    if not number:
        return
    for site, names in exposed.items():
        made_of = " and ".join(map(repr, names))
        yield (
            f"The rate of {site!r} is proportional to {made_of}, which is taken for an "
            "exposure that was known beforehand. If it is a time that ended when the "
            "event came, rows that the model draws are unlike the data, and the rate "
            "comes out too large: write the likelihood with numpyro.factor, or as a "
            "censored distribution."
        )
    yield (
        f"The last {number} steps clip the difference between the gradient of a "
        "row and that of a row which the model draws in its place, with the same "
        "covariates. So clipping does not bias the result if the model is right."
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
    lines = [(k, k.label, k.clipping_norm, of) for k, of in shares.items()]
    lines += [(k, " and ".join(DIAGNOSTICS), None, of) for k, of in reports.items()]
    total = sum(sum(of) for *_, of in lines)
    for step, releases, clipping_norm, of in lines:
        yield {
            "steps": len(of),
            "releases": releases,
            "sampling": step.sampling.scheme,
            "rate": step.sampling.rate,
            "share": sum(of) / total if total else None,
            "clipping_norm": clipping_norm,
        }


def _on_hidden_curvature(prepared: PreparedFit) -> str:
    """Which engine was taken where noise hides the curvature, and why."""
    hidden = (
        "With so much noise, so many columns and so few rows the curvature, a matrix "
        "that VIPS releases and steps by, is predicted to be hidden: its noise is more "
        f"than {HIDDEN:g} times an average eigenvalue. Few directions get to their "
        "optimum."
    )
    if prepared.choice.advantage == "no curvature":
        return (
            "VIPS can run this model, and DPVI was taken because it is predicted to be "
            f"more accurate. {hidden} DPVI releases no such matrix. engine='vips' runs "
            "VIPS all the same."
        )
    return f"{hidden} engine='dpvi' releases no such matrix."


def _gain(prepared: PreparedFit, options: ScheduleOptions) -> str:
    """What is gained by DPVI where VIPS could run the model."""
    if prepared.choice.advantage == "group effects":
        return (
            "gets a gradient with one number for each effect of a group, where VIPS "
            "releases the products of all indicators of groups and columns, behind "
            "each of which few rows stand"
        )
    if prepared.choice.advantage == "points":
        return (
            "gets gradients about where the globals are, where VIPS releases sums "
            "about zero, in which noise hides what is far from there or collinear"
        )
    if prepared.choice.advantage == "no cusps":
        return (
            "takes a density that is not smooth at its centre, such as Laplace, as it "
            "is, where under VIPS it is a mixture of Normals in which the weight of a "
            "row has no limit"
        )
    local = prepared.graph.latents("local")
    if local and not any(site.is_discrete for site in local):
        return (
            "integrates out the latents of rows, which stand beside globals that VIPS "
            "would find by turns with them"
        )
    summed = "sums over the discrete latents of rows, such as classes, and"
    if options.private:
        return (
            f"{summed} what a row then adds gets less noise than its expected classes"
        )
    return f"{summed} its posterior has the correlations of the globals"


def _notes(prepared: PreparedFit, options: ScheduleOptions) -> Iterable[str]:
    """What a person should know of a fit that no table of `explain` says."""
    # What `run` will warn of is known before the budget pays for a second try.
    if (message := warning_of_no_globals(prepared.graph)) is not None:
        yield message
    yield from warnings_of_ranges(prepared.out_of_range)
    if prepared.choice.hides_curvature:
        yield _on_hidden_curvature(prepared)
    if prepared.choice.advantage not in (None, "no curvature"):
        yield (
            "VIPS can run this model, and DPVI was taken because it is predicted to be "
            f"more accurate: it {_gain(prepared, options)}. engine='vips' runs VIPS "
            "all the same."
        )
    yield from _on_norms(prepared)
    yield from _on_pilots(prepared)
    if not options.private:
        yield "NOT PRIVATE: no noise, no clipping."
    if captured := prepared.graph.captured:
        names = ", ".join(listed(sorted(captured)))
        yield f"Treated as public because the model holds them: {names}."
    yield from prepared.engine.notes()
    for name, width in prepared.arguments.widths.items():
        yield (
            f"Of a row of {name!r} the {width} largest entries are looked at "
            "(max_nonzeros, a public number)"
            f"{prepared.engine.describe_sparse_rows(name)}."
        )


def _on_norms(prepared: PreparedFit) -> Iterable[str]:
    """Which clipping norms and units of columns come from private histograms."""
    unknown = [part.name for part in prepared.parts if not part.is_fixed]
    if unknown:
        yield (
            f"The clipping norms of {', '.join(unknown)} come from private histograms "
            "of the rows' norms, which are in the schedule. Where rows are too few for "
            f"a histogram, they are those of {rows_in_place(prepared.engine)}. With "
            "clipping_norm=, from public knowledge, there is no histogram."
        )
    counted = [part.name for part in prepared.parts if part.columns is not None]
    uncounted = sorted(prepared.engine.columns.keys() & set(unknown))
    if counted:
        yield (
            f"The columns of {', '.join(counted)} are scaled before rows are clipped, "
            "by a private histogram of each column, so that large ones, such as "
            "incomes, do not hide small ones."
        )
    elif uncounted:
        yield (
            f"{', '.join(uncounted)}: too few rows or too many columns for a private "
            "histogram of each column. Rows are scaled as a whole, or by the priors of "
            "the coefficients. Columns of very unequal size should be scaled "
            "beforehand by public constants."
        )


def _on_pilots(prepared: PreparedFit) -> Iterable[str]:
    """What first releases are for."""
    engine, steps = prepared.engine, prepared.steps
    has_pilots = any(step.is_pilot for step in steps)
    if engine.is_one_vector and has_pilots:
        yield (
            "Pilots are cheap releases that find coordinates of the globals in which "
            "rows say about equally much along every direction, as far as noise allows "
            "it. Later releases are clipped in these coordinates."
        )
    elif any(step.recentres for step in steps):
        yield (
            f"{', '.join(sorted(engine.recentred))} are released about means that "
            "earlier releases, the pilots, have found: their noise then depends on the "
            "rows' spread, not on their distance from zero. Features of a regression "
            "are standardised by the pilots."
        )
    elif has_pilots:
        yield (
            "Pilots are cheap releases by which features are made uncorrelated, as far "
            "as noise allows it. Later releases are of these features."
        )

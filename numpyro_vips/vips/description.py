"""What `explain`, diagnostics and warnings say of a conjugate program."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from numpyro_vips.conjugacy.structure.latents import known_family
from numpyro_vips.conjugacy.structure.posterior_factors import (
    PosteriorFactor,
    are_summed_exactly,
)
from numpyro_vips.conjugacy.structure.structure import is_real
from numpyro_vips.errors import quoted
from numpyro_vips.model.log_density import MAX_JOINT_STATES, num_joint_states
from numpyro_vips.privacy.gaussian_mechanism import Block
from numpyro_vips.vips.e_step.integrated_latents import integrated_latents
from numpyro_vips.vips.program.forgotten_steps import WAITING
from numpyro_vips.vips.program.program import ConjugateProgram

# Coordinates of a joint covariance from which on `explain` points it out.
_LARGE_COVARIANCE = 300

# Errors of early steps that are worth a word, in standard deviations of the posterior.
_LEFT = 0.25


def warnings_of(program: ConjugateProgram, found: Mapping[str, Any]) -> Iterator[str]:
    """What the caller should know, given the diagnostics: a sentence each."""
    yield from _on_convergence(found)
    if found["as_good"]:
        sites = quoted(found["as_good"])
        yield (
            f"Another start led to another posterior of {sites} that is about as "
            "good, as where components may trade their labels. So do not read means of "
            "single components: look at what does not depend on their order, such as "
            "predictions, or give the components different priors."
        )
    yield from _on_missing_information(program, found)
    if found["below_noise"]:
        sites = quoted(found["below_noise"])
        yield (
            f"What the rows say of {sites} is below the noise, and its posterior "
            "is about as wide as the noise makes it. What helps: more rows, a larger "
            "epsilon or a smaller clipping_norm."
        )
    if found["undecided"]:
        yield (
            f"No state of {quoted(found['undecided'])} is certain: the likeliest has a "
            f"probability of {min(found['undecided'].values()):.0%}. VIPS takes it as "
            "independent of the other globals, whose means are then averages over its "
            "states, and whose intervals are too narrow. What helps: more rows, a "
            "larger epsilon or fewer states."
        )
    yield from _on_bounds(program)
    if found["converged"] is None or found["moving"]:
        yield from _on_flat_priors(program)


def _on_convergence(found: Mapping[str, Any]) -> Iterator[str]:
    """Whether the globals, or the sums that they are solved for, still moved."""
    if found["moving"]:
        sites = quoted(found["moving"])
        yield (
            f"VIPS has not converged: in the last of {found['num_steps']} steps the "
            f"statistics of {sites} still moved, by more than the noise explains "
            f"(drift up to {max(found['drift'].values()):.3g}). The posterior is "
            "computed from an average over steps, which still contains the first ones, "
            "and intervals do not allow for that. What helps: more steps (num_steps=), "
            "or weights that forget the first ones sooner, "
            "engine=VIPS(step_size=lambda t: min(1.0, 6 / (t + 6)))."
        )
    elif found["converged"] is False:
        left = found["remaining"]
        further = "" if left is None else f", with up to {left:.1g} posterior sds left"
        yield (
            f"VIPS has not converged: in the last of {found['num_steps']} steps "
            f"the globals moved by {found['change']:.1g} of their size{further}. "
            "Pass a larger num_steps=."
        )


def _on_missing_information(
    program: ConjugateProgram, found: Mapping[str, Any]
) -> Iterator[str]:
    """What follows where rows say little of their own latents."""
    left = found["errors_left"]
    if left is not None and left > _LEFT:
        yield (
            f"Rows say little of their own latents: {found['missing_information']:.0%} "
            "of the information about some direction of the globals is missing. The "
            f"first steps leave an error of up to {left:.1g} posterior standard "
            "deviations. Intervals allow for it, but only approximately. What helps: "
            "more steps (num_steps=)."
        )
    is_noisy = found["converged"] is None or bool(found["moving"])
    if left is not None or not is_noisy or found["missing_information"] is None:
        return
    text = (
        "Rows say little of their own latents, and the error that the first steps "
        "have left could not be corrected. Intervals may be too narrow. "
    )
    if not _has_components(program):
        yield text + (
            "What helps: more rows, a larger epsilon or tighter priors of what the "
            "rows' latents depend on."
        )
        return
    text += (
        "Look at what does not depend on the order of components. What helps: "
        "more rows, fewer components or priors that tell them apart."
    )
    if can_be_summed_out(program):
        text += " So does engine='dpvi', which sums over rows' latents."
    yield text


def _has_components(program: ConjugateProgram) -> bool:
    """Whether rows have latents that are discrete."""
    latents = program.structure.latents.values()
    return any(x.role == "local" and x.states is not None for x in latents)


def can_be_summed_out(program: ConjugateProgram) -> bool:
    """Whether all latents of rows are discrete, and DPVI can sum over them.

    That is where their joint states are few, or messages sum over them in one factor.
    """
    count = num_joint_states(program.graph)
    are_few = count is not None and count <= MAX_JOINT_STATES
    of_rows = list(program.structure.posterior_factors_of("local"))
    return (
        _has_components(program)
        and all(site.is_discrete for site in program.graph.latents("local"))
        and (are_few or are_summed_exactly(of_rows))
    )


def _on_bounds(program: ConjugateProgram) -> Iterable[str]:
    """What a bound does to latents of single rows; those of globals are tight."""
    latents = program.structure.latents
    bounded: set[str] = set()
    integrated: set[str] = set()
    for found in integrated_latents(program.structure, program.row_terms):
        integrated |= set(found.latents.latents)
    for term in program.row_terms:
        together = [latents[name] for name in {a.latent for a in term.atoms}]
        local = [known_family(x) for x in together if x.role == "local"]
        if any(family is not None and family.bounds_logits for family in local):
            bounded |= {x.name for x in together if x.family is None}
    own = [x.name for x in latents.values() if x.name in bounded - integrated]
    own = [x for x in own if latents[x].role == "local" and is_real(latents[x])]
    if own:
        yield (
            f"Every row has latents {quoted(own)} of its own, over which "
            "the logistic likelihood is replaced by a bound. It is looser the less a "
            "row says of them: globals that scale them come out too small, "
            "precisions too large, and both too certain. engine='dpvi' integrates "
            "one or two such latents by quadrature."
        )


def _on_flat_priors(program: ConjugateProgram) -> Iterable[str]:
    """What a flat prior does under noise."""
    latents = program.structure.latents
    flat = [name for name, latent in latents.items() if latent.is_flat]
    if flat:
        yield (
            f"The prior of {quoted(flat)} is flat (ImproperUniform). "
            "Where noise hides what the rows say, the posterior is improper, and "
            "what is returned is as wide as numbers allow. Give a proper prior from "
            "public knowledge, such as a wide Normal."
        )


def describe_site(program: ConjugateProgram, name: str) -> dict[str, Any]:
    """The posterior of a latent, the augmentation of an observed site.

    A global that no statistic depends on has the role `"hyper"`.
    """
    structure = program.structure
    site, found = program.graph.sites[name], {}
    if site.is_latent:
        factor = structure.posterior_factors[structure.factor_of[name]]
        found["posterior"] = _describe_factor(program, factor)
        is_asked = any(name in s.latents for s in structure.statistics)
        if factor.role == "global" and not is_asked:
            found["role"] = "hyper"
    methods = list(bounds_at(program, name))
    if name in _sites_of(program, _exact(program)):
        methods.append("quadrature")
    found["augmentation"] = ", ".join(methods) or None
    return found


def bounds_at(program: ConjugateProgram, site: str) -> tuple[str, ...]:
    """The auxiliary variables that make a site's log density a bound.

    Those of logits that are made of the row's integrated latents alone do not.
    """
    structure, exact = program.structure, _exact(program)
    families = [
        known_family(latent)
        for latent in structure.latents.values()
        if latent.family is not None
        and latent.name.startswith(f"{site}:")
        and latent.name not in exact
    ]
    names = [f.augmentation or f.name for f in families if f is not None]
    return tuple(dict.fromkeys(names))


def _exact(program: ConjugateProgram) -> set[str]:
    """The auxiliary variables of integrated latents beside which no global stands."""
    structure = program.structure
    found = {
        name
        for integrated in integrated_latents(structure, program.row_terms)
        for factor in integrated.auxiliaries
        for name in factor.latents
    }
    for term in program.row_terms:
        names = {atom.latent for atom in term.atoms}
        if any(structure.latents[name].role == "global" for name in names):
            found -= names
    return found


def _sites_of(program: ConjugateProgram, auxiliaries: Iterable[str]) -> set[str]:
    """The sites that some auxiliary variables belong to."""
    return {
        site
        for site in program.graph.sites
        for name in auxiliaries
        if name.startswith(f"{site}:")
    }


def _describe_factor(program: ConjugateProgram, factor: PosteriorFactor) -> str:
    """The family, and the statistics that are used of it."""
    structure = program.structure
    used = sorted({s for latent in factor.latents for s in structure.used[latent]})
    family = factor.family.name
    integrated = integrated_latents(structure, program.row_terms)
    if any(factor.name == found.latents.name for found in integrated):
        return f"by quadrature [{', '.join(used)}]"
    if factor.layout is not None and factor.layout.size > 1:
        family = f"Normal block of {factor.layout.size}"
        if len(factor.latents) > 1:
            family += f" ({', '.join(factor.latents)})"
    return f"{family} [{', '.join(used)}]"


def describe_statistics(
    program: ConjugateProgram, for_intervals: Sequence[Block]
) -> list[dict[str, Any]]:
    """Name, shape and release label of each of a row's statistics.

    Args:
      program: The compiled model.
      for_intervals: What else is released, of the kind `"information"`.
    """
    statistics = [
        {"statistic": s.name, "shape": list(s.block_shape), "released": s.release}
        for s in program.structure.statistics
    ]
    return statistics + [
        {"statistic": b.name, "shape": list(b.shape), "released": "information"}
        for b in for_intervals
    ]


def note_on_forgetting(program: ConjugateProgram) -> str:
    """Why the first steps leave nothing in the average, and what waits for it."""
    if program.waiting:
        names = ", ".join(sorted(program.waiting))
        return (
            f"Under noise, with full batches, {names} stay where they start for the "
            f"first {WAITING:.0%} of the steps, in which the components part. These "
            "steps leave nothing in the average, and get less of the budget."
        )
    if program.row_class is not None:
        reason = f"In the first steps a row's {program.row_class} is hardly known."
    else:
        names = ", ".join(sorted(program.dividing))
        reason = (
            f"{names} divide the rows' variance between them, and their scales take "
            "many steps."
        )
    return (
        f"{reason} Under noise, with full batches, the first {WAITING:.0%} of the "
        "steps leave nothing in the average, and get less of the budget."
    )


def notes_on(program: ConjugateProgram, squares: Mapping[str, str]) -> Iterable[str]:
    """What else to know.

    Args:
      program: The compiled model.
      squares: See `columns_with_squares`.
    """
    yield from _on_flat_priors(program)
    yield from _on_bounds(program)
    if can_be_summed_out(program):
        yield (
            "VIPS releases expected statistics of the rows' own latents. engine='dpvi' "
            "sums over these latents, and needs less noise: with a thousand rows at "
            "epsilon 1 its errors were a quarter to nine tenths as large."
        )
    if squares:
        yield (
            f"{', '.join(squares)} and "
            f"{', '.join(dict.fromkeys(squares.values()))} are clipped, and their "
            "norms counted, in units of columns. These come from the coefficients' "
            "priors or from histograms of columns, and later from what was released of "
            f"{', '.join(dict.fromkeys(squares.values()))}."
        )
    factors = program.structure.posterior_factors.values()
    largest = max((f.layout.size for f in factors if f.layout), default=0)
    if largest > _LARGE_COVARIANCE:
        yield (
            f"The joint covariance has {largest} coordinates, so about "
            f"{largest**2 // 2:,} noisy numbers: fewer features, chosen by "
            "public knowledge, cost less noise. engine='dpvi' releases no such matrix, "
            "and takes less time."
        )


def describe_sparse_rows(program: ConjugateProgram, name: str) -> str:
    """How an argument whose rows store few entries is worked on."""
    if name in program.dense:
        reason = program.dense[name]
        return f". The row is made dense again: {reason}"
    if program.densified.get(name):
        reasons = ", ".join(program.densified[name])
        return f", and all the work is done on them but for {reasons}"
    return ", and all the work is done on them"

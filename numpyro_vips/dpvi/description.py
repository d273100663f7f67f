"""What `explain` and warnings say of a model that DPVI runs."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from numpyro_vips.dpvi.posterior.clear_information import SEEN
from numpyro_vips.dpvi.program import DpviProgram
from numpyro_vips.errors import quoted
from numpyro_vips.jax_tools.program_constants import listed
from numpyro_vips.privacy.gaussian_mechanism import Block


def describe_site(program: DpviProgram, name: str) -> dict[str, Any]:
    """What a row of `Plan.sites` says beside the site's name and shape."""
    is_latent = program.graph.sites[name].is_latent
    return {"posterior": _posterior_of(program, name)} if is_latent else {}


def _posterior_of(program: DpviProgram, name: str) -> str:
    user_guide, solved = program.user_guide, program.locals_of_rows
    if program.guide is None:
        assert user_guide is not None
        is_drawn = name in (*user_guide.globals, *user_guide.locals)
        return "the given guide" if is_drawn else "summed out"
    if solved is not None and name in solved.solved:
        if solved.sums_by_messages:
            return "summed out, by messages"
        return {
            "exact": "conjugate, solved per row",
            "quadrature": "quadrature, per row",
            "integral": "quadrature, per row",
            "bound": "a bound, solved per row",
        }[solved.method]
    if program.graph.sites[name].row_axis is not None:
        return "summed out"
    family = program.guide.family.replace("_field", "-field").replace("_rank", "-rank")
    return f"Normal (unconstrained, {family})"


def describe_statistics(
    blocks_of: Mapping[str, Iterable[Block]],
) -> list[dict[str, Any]]:
    """Name, shape and kind of release of what a row adds to.

    Args:
      blocks_of: The blocks of each kind of release.
    """
    return [
        {"statistic": block.name, "shape": list(block.shape), "released": kind}
        for kind, blocks in blocks_of.items()
        for block in blocks
    ]


def notes(program: DpviProgram, captured: Iterable[str]) -> Iterable[str]:
    """What else to know.

    Args:
      program: The model's.
      captured: Names of the arrays that the guide holds.
    """
    solved = program.locals_of_rows
    if solved is not None and solved.method == "integral":
        names = quoted(solved.solved)
        yield (
            f"{names}, which every row has its own of, is integrated out by "
            "Gauss-Hermite quadrature about where the row's density of it lies. "
            "Of a density with several modes far apart a part may be missed."
        )
    if solved is not None and solved.method == "bound":
        names = quoted(solved.solved)
        yield (
            f"Of {names}, which every row has its own of, the log density is "
            "replaced by a bound. It is looser the less a row says of them, and "
            "makes them matter less: globals that scale them come out too small."
        )
    late = late_names(program)
    if late and program.options.num_waiting:
        yield (
            f"{quoted(late)} stay at the prior's centre in the first "
            f"{program.options.num_waiting} steps, in which components that could "
            "change places go apart. This costs nothing. Under noise there is a single "
            "start, from which two components may end on the same rows, and no number "
            "shows it: priors that tell components apart help."
        )
    products = []
    for site in program.space.sites:
        factors = [repr(x) for x in (site.over, site.correlated_by) if x is not None]
        if factors:
            products.append(f"{site.name!r} times {' and '.join(factors)}")
    if products:
        yield (
            f"{', '.join(products)} is fitted in place of the effects, since rows know "
            "no more. It is the same model, and draws are those of its sites."
        )
    if program.options.takes_newton_steps:
        yield "Newton steps until fresh draws leave the posterior where it is."
    if names := listed(sorted(captured)):
        yield f"Treated as public because the guide holds them: {', '.join(names)}."


def on_compared(names: Sequence[str]) -> Iterable[str]:
    """What follows for globals without a gradient; see `compared_globals`."""
    if names:
        they = quoted(names)
        yield (
            f"DPVI follows gradients, and the log density of a row has none in {they}, "
            "which the model only compares with something, or rounds. So it keeps its "
            "prior, and the other globals are fitted as if it were at the prior's "
            "centre. Use a smooth function in place of the comparison, such as "
            "jax.nn.sigmoid((t - switch) / width) for t > switch."
        )


def on_turning(pairs: Sequence[tuple[str, str]]) -> Iterable[str]:
    """What follows where rows say nothing of a direction that is never the same.

    Args:
      pairs: See `SilentDirections.turning`.
    """
    for one, other in pairs:
        yield (
            f"A change of {one!r} can be made up for by one of {other!r}, and how much "
            "depends on other globals, as in mean + scale * z[group]. Noise leads such "
            "a fit astray: intervals of these globals may not hold the truth. Write "
            "the effects themselves, a ~ Normal(0, scale) and mean + a[group], in "
            "place of z ~ Normal(0, 1) times something else: the fit then keeps this "
            "noise out."
        )


# How many times as wide noise makes an interval before it is worth a warning: scores
# are read as linear over all of it, and other globals are off where they are not.
# Chosen by hand.
_MOST_WIDENED = 15.0


def on_hidden(width_ratio: Mapping[str, float]) -> Iterable[str]:
    """What follows where noise hides nearly all that rows say of some globals.

    Args:
      width_ratio: By site, how many times as wide noise makes its intervals at most.
    """
    hidden = [name for name, ratio in width_ratio.items() if ratio > _MOST_WIDENED]
    if hidden:
        yield (
            f"Noise makes the intervals of {quoted(hidden)} up to "
            f"{max(width_ratio.values()):.0f} times as wide as the rows alone would. "
            "Over such a width the approximation behind the posterior may not hold: "
            "other globals, scales above all, may be off by more than their intervals "
            "say. What helps: more rows, a larger epsilon or tighter priors."
        )


def on_unclear(clarity: Mapping[str, float]) -> Iterable[str]:
    """What follows where rows are not seen to say anything of a scale or a shape.

    Args:
      clarity: By site that is not real, how far the information about it stands out of
        its noise; see `clear_information.py`.
    """
    unclear = {name: value for name, value in clarity.items() if not value >= SEEN}
    if unclear:
        least = max(0.0, min(unclear.values()))
        yield (
            f"Noise hides how much the rows say of {quoted(unclear)}: the released "
            f"information is {least:.2g} standard deviations of its noise, and clear "
            f"from {SEEN:.0f} on. What rows say of a scale, a shape or a share depends "
            "on where it is, and the fit may have stayed where they say little. It, "
            "and others that go with it, may be off by more than their intervals say. "
            "What helps: a prior near its size, or a fixed value; more rows or a "
            "larger epsilon; fewer globals."
        )


def late_names(program: DpviProgram) -> list[str]:
    """Names of the globals that wait in the first steps, in the guide's order."""
    parts = program.space.split(program.is_late)
    return [name for name, part in parts.items() if part.any()]

"""What to tell the caller of rows that were clipped, or could not be counted.

Everything said is public: shares that were released with noise, norms, and what the
model alone says of its statistics. Names of arguments and sites are, values are not.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from numpyro_vips.fitting.bounds.prior_norms import rows_in_place
from numpyro_vips.fitting.prepare import PreparedFit
from numpyro_vips.fitting.progress import Progress
from numpyro_vips.fitting.schedule_options import ScheduleOptions
from numpyro_vips.fitting.step import Step
from numpyro_vips.jax_tools.row_sums import CLIPPED_ROWS, ZERO_ROWS
from numpyro_vips.model.facts.row_weights import weights_of_rows
from numpyro_vips.privacy.releases import ClippingEffect, Pull
from numpyro_vips.privacy.statement import NoisyShare

# A share of rows above this is worth a warning, if it stands out of its noise by so
# many standard deviations.
_WORTH_A_WARNING = 0.05
_STANDING_OUT = 3.0
# A share above that which the model expects is, by these standard deviations, if it is
# larger by more than this.
_WORTH_A_LOOK = 0.005
# Gradients add up to zero near the optimum, so clipping some of them does less harm
# than to sums of counts, and the histogram of norms makes use of that.
_WORTH_A_WARNING_OF_GRADIENTS = 0.25
# Clipped differences to redrawn rows do so at any norm, if the model is right.
_WORTH_A_WARNING_OF_DIFFERENCES = 0.5
# Of rows with weights of their own a few may have much of all weight, so that a smaller
# share is worth a warning, and a hint of it is enough: one standard deviation.
_WORTH_A_WARNING_OF_WEIGHTS = 0.02
# By how much a larger norm is larger that the caller may try.
_LARGER = 2.0
# More names than these make no sentence.
_MOST_NAMES = 6


def warnings_on_rows(
    prepared: PreparedFit,
    options: ScheduleOptions,
    state: Any,
    progress: Progress,
    of_engine: Mapping[str, Any],
) -> list[str]:
    """What the caller should know before using the posterior: a sentence or some each.

    Args:
      prepared: What is fitted.
      options: The caller's choices, which decide about what helps.
      state: The engine's state.
      progress: What was reported of the rows.
      of_engine: The engine's diagnostics, in which a fit without noise may have the
        share of rows that counted as zero.
    """
    shares = progress.shares
    if ZERO_ROWS in of_engine:
        shares[ZERO_ROWS] = NoisyShare(**of_engine[ZERO_ROWS])
    found = []
    if CLIPPED_ROWS in shares:
        clipped = shares[CLIPPED_ROWS]
        weights = weights_of_rows(prepared.graph)
        if weights and _hints_at_heavy_rows(clipped):
            found.append(_on_weights(weights, clipped))
        found += _on_clipped(prepared, options, state, progress, clipped)
    limit = _WORTH_A_WARNING if options.private else 0.0
    if ZERO_ROWS in shares and _is_notable(shares[ZERO_ROWS], limit):
        found.append(_on_zeros(prepared, shares[ZERO_ROWS]))
    if progress.unseen:
        found.append(_on_unseen(prepared, progress))
    return found


def _on_clipped(
    prepared: PreparedFit,
    options: ScheduleOptions,
    state: Any,
    progress: Progress,
    clipped: NoisyShare,
) -> Iterator[str]:
    """What clipping does, where more rows were than is harmless or to be expected.

    Args:
      prepared, options, state, progress: See `warnings_on_rows`.
      clipped: The share of rows that were.
    """
    reporting = [step for step in progress.steps if step.reports]
    limit = _WORTH_A_WARNING
    if progress.balanced:
        limit = _WORTH_A_WARNING_OF_GRADIENTS
    if any(step.redraws for step in reporting):
        limit = _WORTH_A_WARNING_OF_DIFFERENCES
    if not _is_notable(clipped, min(limit, _WORTH_A_LOOK)):
        return
    step = reporting[-1]
    effect = prepared.engine.clipping_effect(state, [b.name for b in step.blocks])
    expected, unexpected = effect.expected, ""
    if expected is not None and _is_notable(clipped, expected + _WORTH_A_LOOK):
        unexpected = (
            f", where the model expects {100 * expected:.1f} %. So some rows are "
            "larger than it says, and what is cut off them is lost"
        )
    if unexpected or _is_notable(clipped, limit):
        yield (
            f"{clipped} of the rows were clipped in the last steps"
            f"{unexpected}: {_what_was_cut(prepared, step, effect)} "
            f"{_consequence(step, effect)} "
            f"{_remedies(prepared, options, progress, step, effect)}"
        )


def _on_zeros(prepared: PreparedFit, zeros: NoisyShare) -> str:
    """What to look at where so many rows counted as zero."""
    sites = prepared.graph.sites.values()
    observed = [repr(site.name) for site in sites if site.role == "observed"]
    return (
        f"{zeros} of the rows counted as zero: they hold a number "
        "that is not finite, an observation outside its support, or an index out "
        "of range. The posterior is that of the other rows. Check how the values of "
        f"{_listed(_arguments(prepared))} were made, and the support of "
        f"{_listed(observed)}. Declare missing values by numpyro.handlers.mask."
    )


def _on_unseen(prepared: PreparedFit, progress: Progress) -> str:
    """What norms are that no histogram has shown."""
    known = {p.name: p.reference for p in prepared.parts} | dict(progress.norms)
    norms = [f"{known[name]:.3g} for {name}" for name in progress.unseen]
    return (
        f"Too few rows for this budget to find a clipping norm of "
        f"{_listed(progress.unseen)}: no bin of the private histogram stood "
        "out of its noise. So the norm is that of "
        f"{rows_in_place(prepared.engine)} ({_listed(norms)}), which may be far "
        "from the rows' own: rows may be clipped, or get needless noise. What "
        "helps, the best first: more rows or a larger epsilon; "
        f"{_listed(_arguments(prepared))} in units in which numbers are about one, "
        "and priors in these units."
    )


def _is_notable(share: NoisyShare, limit: float) -> bool:
    return share.share - _STANDING_OUT * share.stddev > limit


def _hints_at_heavy_rows(share: NoisyShare) -> bool:
    return share.share - share.stddev > _WORTH_A_WARNING_OF_WEIGHTS


def _on_weights(weights: Mapping[str, Iterable[str]], share: NoisyShare) -> str:
    """What clipping makes of rows with weights."""
    sites = _listed([repr(name) for name in weights])
    names = sorted(set(itertools.chain.from_iterable(weights.values())))
    made_of = _listed([repr(name) for name in names])
    return (
        f"Rows have weights of their own: {made_of}, by numpyro.handlers.scale around "
        f"{sites}. {share} of the rows were clipped, the "
        "heavy ones first, and so count with less than their weight. If the response "
        "depends on the weight, the posterior is biased towards light rows, and "
        "intervals do not allow for it. What helps, the best first: weights with a "
        f"limit that you choose without looking, as numpy.minimum({names[0]}, 3); "
        "more rows or a larger epsilon; strata in the model in place of weights."
    )


def _what_was_cut(prepared: PreparedFit, step: Step, effect: ClippingEffect) -> str:
    assert step.clipping_norm is not None
    if prepared.engine.is_one_vector:
        sites = _listed([repr(name) for name in effect.pulls])
        longer = f"their gradients in {sites} were longer than {step.clipping_norm:.3g}"
        if step.redraws:
            return (
                f"{longer}, as compared with those of rows that the model draws, and "
                "were shortened to that."
            )
        return f"{longer}, and were shortened to that."
    names = [block.name for block in step.blocks]
    if len(names) == 1:
        norm = step.clipping_norm / step.blocks[0].scale
        return (
            f"what they add to the sum {names[0]} was longer than {norm:.3g}, and was "
            "shortened to that."
        )
    return (
        f"what they add to the sums {_listed(names)} was longer than the norm of these "
        "together, and was shortened to that."
    )


_CONSEQUENCES: Mapping[Pull, str] = {
    "too small": "{sites} {come} out too small",
    "too large": "{sites} {come} out too large",
    "towards zero": "{sites} {be} drawn towards zero",
    "towards the other rows": "{sites} {be} drawn towards the rows that were not "
    "clipped",
}


def _consequence(step: Step, effect: ClippingEffect) -> str:
    """What follows for which global, the directions that are known first."""
    texts = []
    for pull, text in _CONSEQUENCES.items():
        sites = [repr(name) for name, mine in effect.pulls.items() if mine == pull]
        if sites:
            one = len(sites) == 1
            verbs = {"come": "comes" if one else "come", "be": "is" if one else "are"}
            texts.append(text.format(sites=_listed(sites), **verbs))
    joined = "; ".join(texts)
    if step.redraws:
        return (
            "If the model is right, this biases nothing. If it is not, rows that "
            f"surprise it count less than they would without clipping: {joined}."
        )
    if effect.is_corrected:
        return (
            "What rows of the model itself would lose by it has been added back, and "
            f"intervals are wider for it. If the rows lost more, {joined}."
        )
    return f"So {joined}. Intervals do not allow for it."


def _remedies(
    prepared: PreparedFit,
    options: ScheduleOptions,
    progress: Progress,
    step: Step,
    effect: ClippingEffect,
) -> str:
    """What helps, the best first."""
    texts = []
    if options.clipping_norm is not None:
        texts.append("leave clipping_norm= out, so that a private histogram finds it")
    else:
        texts.append(
            "more rows or a larger epsilon, at which the histogram takes a larger norm"
        )
    larger = _larger_norm(prepared, options, progress, step, effect)
    if larger is not None:
        texts.append(
            f"clipping_norm={larger}, which is twice as large, with twice the noise"
        )
    texts.append(
        f"if few rows are far larger than the others, the logarithm of "
        f"{_listed(_arguments(prepared), 'or')}, or a limit on it that you choose "
        "without looking"
    )
    texts.append(
        "a likelihood in which such rows are no surprise, such as StudentT for Normal "
        "or NegativeBinomial2 for Poisson"
    )
    return f"What helps, the best first: {'; '.join(texts)}."


def _larger_norm(
    prepared: PreparedFit,
    options: ScheduleOptions,
    progress: Progress,
    step: Step,
    effect: ClippingEffect,
) -> str | None:
    """Code for norms that are larger, where the caller can say them."""
    given = options.clipping_norm
    if isinstance(given, Mapping):
        return _code({name: _LARGER * norm for name, norm in given.items()})
    if given is not None:
        return _number(_LARGER * given)
    assert step.clipping_norm is not None
    if prepared.engine.is_one_vector:
        return _number(_LARGER * step.clipping_norm)
    open_parts = [part for part in prepared.parts if not part.is_fixed]
    if not effect.has_plain_norms or any(len(part.blocks) > 1 for part in open_parts):
        return None
    norms = {
        block: part.reference
        if part.is_fixed
        else _LARGER * progress.norms.get(part.name, part.reference)
        for part in prepared.parts
        for block in part.blocks
    }
    return _number(*norms.values()) if len(norms) == 1 else _code(norms)


def _code(norms: Mapping[str, float]) -> str:
    inside = ", ".join(f"{name!r}: {_number(norm)}" for name, norm in norms.items())
    return f"{{{inside}}}"


def _number(value: float) -> str:
    return f"{value:.3g}"


def _arguments(prepared: PreparedFit) -> list[str]:
    return [repr(name) for name in prepared.arguments.row_shapes()]


def _listed(names: Iterable[str], last: str = "and") -> str:
    """Names as a part of a sentence, not more of them than one can read."""
    shown = list(names)
    if len(shown) > _MOST_NAMES:
        shown = [*shown[:_MOST_NAMES], f"{len(shown) - _MOST_NAMES} more"]
    if len(shown) == 1:
        return shown[0]
    return f"{', '.join(shown[:-1])} {last} {shown[-1]}"

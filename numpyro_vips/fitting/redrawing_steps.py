"""Which steps redraw rows, by public facts.

A step that clips differences to rows which the model draws in the rows' places
(`dpvi.gradients.clipped_gradients`) is not biased by clipping, and has less signal for
the same noise, since differences are longer than gradients. It pays where clipping does
more harm than noise. Let d be the number of coordinates, n that of rows, C the clipping
norm, and s the noise multiplier of the steps that may redraw, taken together as if they
were one release of all rows. Noise is of length √d s C. What is clipped off is a part
of n C, and gradients add up to d^(-3/4) of it, see `found_norms`. The ratio of the two
is, but for a factor,

    s d^(5/4) / n.

Root mean squared errors of regressions with so many columns, without redrawn rows and
with them; noise that is not equal has a log scale in the place of the intercept:

================== ======= ====== ==== ===== ============= =============
likelihood         columns rows   ε    ratio coefficients  intercept
================== ======= ====== ==== ===== ============= =============
Bernoulli, logit   20      5,000  1    0.04  0.051, 0.046  0.087, 0.057
Poisson            20      5,000  1    0.04  0.051, 0.044  0.039, 0.031
Exponential        20      5,000  1    0.04  0.034, 0.026  0.046, 0.018
Normal, unequal    20      5,000  1    0.04  0.024, 0.024  0.054, 0.054
Bernoulli, probit  5       2,000  0.3  0.07  0.119, 0.110  0.140, 0.116
Bernoulli, probit  20      2,000  1    0.11  0.074, 0.082  0.098, 0.119
Normal, unequal    20      5,000  0.3  0.13  0.076, 0.046  0.312, 0.140
Poisson            50      10,000 0.3  0.20  0.084, 0.069  0.168, 0.065
Bernoulli, probit  50      10,000 0.3  0.20  0.171, 0.238  0.461, 1.116
================== ======= ====== ==== ===== ============= =============

That is what `python benchmarks/redrawn_rows.py --repetitions 5` printed, with 88 to 100
% of the truths in intervals of 90 % in both cases. Where the ratio is small errors are
the same or smaller; where it is large they may be larger, too.
"""

import dataclasses
import math
from collections.abc import Sequence

from numpyro_vips.fitting.engine import Engine
from numpyro_vips.fitting.step import Step
from numpyro_vips.privacy.releases import INFORMATION

# The ratio above which noise hides what clipping does; see the table above.
HIDDEN = 0.12


def with_redrawn_rows(
    steps: Sequence[Step],
    engine: Engine,
    *,
    num_rows: int,
    noise_multiplier: float | None,
) -> tuple[Step, ...]:
    """The steps, of which some redraw rows if that is predicted to pay.

    Args:
      steps: The schedule.
      engine: Says whether rows can be redrawn, and after how many steps.
      num_rows: Public number of rows.
      noise_multiplier: By what the steps' noise multipliers are to be multiplied; None
        where it is not known, and no row is redrawn.
    """
    places = [place for place, step in enumerate(steps) if not step.is_aside]
    after = engine.redrawn_after
    if after is None or noise_multiplier is None:
        return tuple(steps)
    chosen = [place for place in places[after:] if steps[place].noise_multiplier]
    if not chosen:
        return tuple(steps)
    share = sum(steps[place].share for place in chosen)
    directions = sum(block.num_directions for block in steps[chosen[0]].blocks)
    noise = noise_multiplier / math.sqrt(share)
    if noise * directions**1.25 > HIDDEN * num_rows:
        return tuple(steps)
    redrawn = list(steps)
    for place in [*chosen, *_counting(steps, chosen), *_for_intervals(steps)]:
        redrawn[place] = dataclasses.replace(steps[place], redraws=True)
    return tuple(redrawn)


def _for_intervals(steps: Sequence[Step]) -> list[int]:
    """Places of the steps that release the rows' information, or count its norms."""
    return [
        place
        for place, step in enumerate(steps)
        if {block.name for block in step.blocks} == {INFORMATION}
    ]


def _counting(steps: Sequence[Step], redrawing: Sequence[int]) -> list[int]:
    """Places of the histograms that find the norms of steps which redraw rows."""
    blocks = {block.name for block in steps[redrawing[0]].blocks}
    others = [place for place in range(redrawing[0]) if not steps[place].is_aside]
    first = max(others, default=-1) + 1
    return [
        place
        for place in range(first, redrawing[-1])
        if steps[place].counted
        and all(blocks.issuperset(part.blocks) for part in steps[place].counted)
    ]

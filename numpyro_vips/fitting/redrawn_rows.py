"""Which steps redraw rows, by public facts.

A step that clips differences to rows that the model draws in the rows' places
(`dpvi.gradients.clipped_gradients`) is not biased by clipping, and has less signal for
the same noise, since differences are longer than gradients. It pays where clipping does
more harm than noise. With d coordinates, n rows, the clipping norm C, and s the noise
multiplier of all steps that count together, as if they were one release of all
rows, noise is of length √d s C. What is clipped off is a part of n C; of it gradients
add up to d^(-3/4), see `found_norms`. Their ratio is, but for a factor,

    s d^(5/4) / n.
"""

import dataclasses
import math
from collections.abc import Sequence

from numpyro_vips.fitting.engine import Engine
from numpyro_vips.fitting.step import Step

# The ratio above which noise hides what clipping does; see the table below.
HIDDEN = 0.2


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
    for place in chosen:
        redrawn[place] = dataclasses.replace(steps[place], redraws=True)
    return tuple(redrawn)

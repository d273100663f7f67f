"""How many steps a fit by gradients takes, and how long each of them is."""

import numpy as np

DEFAULT_STEPS = 200
# Without noise a gradient step costs no budget, only time.
DEFAULT_STEPS_WITHOUT_NOISE = 500
# Fewer steps are longer ones, up to this factor, and more are shorter.
LONGEST_STEP = 2.0


def default_num_steps(*, is_private: bool) -> int:
    """The number of steps, if the caller leaves it open.

    Args:
      is_private: Whether there is noise.
    """
    return DEFAULT_STEPS if is_private else DEFAULT_STEPS_WITHOUT_NOISE


def step_sizes(num_steps: int, *, is_private: bool) -> tuple[float, ...]:
    """Factors on the learning rate of the default optimiser.

    Under noise all steps together should go a fixed distance: the noise of a step
    grows like the root of the number of steps, so that with more steps each is shorter.
    They become shorter from the first to the last, so that those that count stay where
    the density is a parabola: a scale that is too small by a third doubles all
    gradients. From half time on, when coordinates have been found, they are half as
    long: effects that sway make residuals, and so their scale, look larger.

    Args:
      num_steps: Number of steps.
      is_private: Whether there is noise.
    """
    if not is_private:
        return (1.0,) * num_steps
    longest = min(LONGEST_STEP, DEFAULT_STEPS / num_steps)
    left = 1.0 - np.arange(num_steps) / num_steps
    slowing = np.where(left > 0.5, left, 0.5 * left)
    return tuple((longest * slowing).tolist())

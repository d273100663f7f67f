"""How many steps a fit takes, and with which weight each counts in the average."""

from collections.abc import Callable

# Steps that release what depends on the globals: more rows per step beat more steps.
DEFAULT_STEPS = 10
# Where the first steps are forgotten; see `forgotten_steps`.
DEFAULT_STEPS_TO_FORGET = 20
# Of Newton's method for centred factors, whose matrix is noisy and so held away from
# zero: directions of which rows say little take many steps to their optimum.
DEFAULT_NEWTON_STEPS = 50
# Without noise there is no price on a step, and coordinate ascent needs some.
DEFAULT_STEPS_WITHOUT_NOISE = 100
# Those at most of a fit that ends when it has converged.
MOST_STEPS = 2000


def default_num_steps(
    *,
    is_private: bool,
    until_converged: bool,
    takes_newton_steps: bool,
    may_forget: bool,
) -> int:
    """How many steps release what depends on the globals, if the caller leaves it open.

    Args:
      is_private: Whether there is noise.
      until_converged: Whether the fit may end earlier.
      takes_newton_steps: Whether all that they release are residuals.
      may_forget: Whether the average may go without the first steps.
    """
    if until_converged:
        return MOST_STEPS
    if not is_private:
        return DEFAULT_STEPS_WITHOUT_NOISE
    if takes_newton_steps:
        return DEFAULT_NEWTON_STEPS
    return DEFAULT_STEPS_TO_FORGET if may_forget else DEFAULT_STEPS


def step_sizes(num_steps: int, forgotten: int, *, averages: bool) -> tuple[float, ...]:
    """The weight ρ of each step; the first one counts fully.

    Args:
      num_steps: Number of steps.
      forgotten: How many of these, the first ones, leave nothing in the average.
      averages: Whether steps are averaged at all. Full batches without noise need none.
    """
    if not averages:
        return (1.0,) * num_steps
    # Near 2/t, so that early statistics, which belong to poor globals, fade while
    # noise still averages out.
    averaged = tuple(2.0 / (t + 2.0) for t in range(num_steps - forgotten))
    return (1.0,) * forgotten + averaged


def given_step_sizes(
    step_size: Callable[[int], float], num_steps: int
) -> tuple[float, ...]:
    """The weights that a function of the caller's gives.

    Raises:
      ValueError: One of them is outside (0, 1].
    """
    return tuple(_given(step_size, number) for number in range(num_steps))


def _given(step_size: Callable[[int], float], number: int) -> float:
    value = float(step_size(number))
    if not 0 < value <= 1:
        raise ValueError(
            f"Expected step_size({number}) to be in (0, 1], got {value!r}."
        )
    return value

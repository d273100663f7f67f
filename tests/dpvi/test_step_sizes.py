"""Numbers of gradient steps, and their lengths."""

import numpy as np
import pytest

from numpyro_vips.dpvi.step_sizes import (
    DEFAULT_STEPS,
    LONGEST_STEP,
    default_num_steps,
    step_sizes,
)


def test_private_steps_become_shorter_from_the_first_to_the_last() -> None:
    sizes = step_sizes(100, is_private=True)
    left = 1.0 - np.arange(100) / 100
    np.testing.assert_allclose(sizes, 2.0 * left * np.repeat([1.0, 0.5], 50))


@pytest.mark.parametrize("num_steps", [150, 200, 1000])
def test_all_private_steps_together_go_a_fixed_distance(num_steps: int) -> None:
    sizes = step_sizes(num_steps, is_private=True)
    assert len(sizes) == num_steps
    assert sum(sizes) == pytest.approx(DEFAULT_STEPS * 7 / 16, rel=0.01)


def test_few_private_steps_are_no_longer_than_the_longest() -> None:
    assert step_sizes(3, is_private=True)[0] == LONGEST_STEP


def test_steps_without_noise_are_more_and_all_alike() -> None:
    assert step_sizes(7, is_private=False) == (1.0,) * 7
    assert default_num_steps(is_private=False) > default_num_steps(is_private=True)

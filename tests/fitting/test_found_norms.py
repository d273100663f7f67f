"""The norms that histograms find, and the steps that clip to them."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from _planned_steps import MATRIX, MEAN, NORMS, SETTINGS, planned

from numpyro_vips.fitting.found_norms import FoundNorms, clipped_to, found_norms
from numpyro_vips.fitting.progress import Progress


def norms_after(
    steps: Any,
    number: int,
    counts: Any,
    norms: Mapping[str, float],
    of_priors: float | None = None,
) -> FoundNorms:
    """The norms after a histogram of a thousand rows."""
    return found_norms(
        steps,
        number,
        counts,
        norms,
        parts=steps[0].counted,
        is_one_vector=False,
        num_rows=1000,
        expected_squares={},
        of_priors=lambda parts, counts: {
            part.name: of_priors for part in parts if of_priors is not None
        },
    )


def after_counts(
    steps: Any,
    number: int,
    counts: Any,
    norms: dict[str, float],
    of_priors: float | None = None,
) -> tuple[Any, dict[str, float], list[str]]:
    """The schedule after a histogram of a thousand rows, the norms, and the unseen."""
    found = norms_after(steps, number, counts, norms, of_priors)
    clipped = clipped_to(
        steps, number, found.norms, parts=steps[0].counted, is_one_vector=False
    )
    return clipped, found.norms, list(found.unseen)


def test_released_norms_scale_the_steps_that_follow_and_no_others():
    steps = planned((MEAN,), (MATRIX,), NORMS, SETTINGS, is_fixed=False)
    steps = tuple(step.scaled(1e-3) for step in steps)  # Hardly any noise.
    counts = {}
    for part in steps[0].counted:
        counts[part.name] = np.zeros(len(part.grid) + 1)
        counts[part.name][np.searchsorted(part.grid, 3.0)] = 1000.0
    found, norms, unseen = after_counts(steps, 0, counts, {})
    assert unseen == []
    for name, norm in norms.items():
        (part,) = (part for part in steps[0].counted if part.name == name)
        assert 3.0 < norm <= 3.0 * math.sqrt(2)
        assert norm in part.grid
    for before, after in zip(steps, found, strict=True):
        assert after.noise_multiplier == before.noise_multiplier
        assert after.event.noise_multiplier == pytest.approx(
            before.event.noise_multiplier, rel=1e-12
        )
        if before.counted:
            assert after == before
        else:
            (block,) = after.blocks
            assert after.clipping_norm == norms[block.name]
    # Where nothing stands out, norms stay what they were.
    empty = {name: np.zeros_like(count) for name, count in counts.items()}
    again, kept, unseen = after_counts(found, 4, empty, norms)
    assert (kept, unseen) == (norms, ["matrix"])
    assert again == found


@pytest.mark.parametrize("is_lasting", [False, True])
def test_a_lasting_norm_grows_and_never_falls(is_lasting: bool):
    steps = planned((), (MATRIX,), NORMS, SETTINGS, is_fixed=False)
    steps = tuple(step.scaled(1e-3) for step in steps)
    (part,) = steps[0].counted
    part = dataclasses.replace(part, is_lasting=is_lasting)
    steps = (dataclasses.replace(steps[0], counted=(part,)), *steps[1:])

    def norm_after(place: float, norms: dict[str, float]) -> dict[str, float]:
        counts = np.zeros(len(part.grid) + 1)
        counts[np.searchsorted(part.grid, place)] = 1000.0
        _, found, _ = after_counts(steps, 0, {part.name: counts}, norms)
        return found

    first = norm_after(3.0, {})
    assert norm_after(9.0, first)[part.name] > first[part.name]
    fallen = norm_after(0.1, first)[part.name]
    assert fallen == first[part.name] if is_lasting else fallen < 0.2


def test_only_norms_that_no_histogram_has_shown_are_unseen():
    """A later histogram that shows nothing leaves the norm that was found before."""
    steps = planned((), (MATRIX,), NORMS, SETTINGS, is_fixed=False)
    steps = tuple(step.scaled(1e-3) for step in steps)
    numbers = [number for number, step in enumerate(steps) if step.counted]
    (part,) = steps[0].counted
    empty = {part.name: np.zeros(len(part.grid) + 1)}
    shown = {part.name: np.where(np.arange(len(part.grid) + 1) == 60, 1000.0, 0.0)}

    def unseen_after(*counts: Any) -> tuple[str, ...]:
        progress = Progress(steps=steps)
        for number, counted in zip(numbers, counts, strict=False):
            found = norms_after(progress.steps, number, counted, progress.norms)
            progress = progress.after_histogram(
                number, found, parts=(part,), is_one_vector=False
            )
        return progress.unseen

    assert unseen_after(empty) == unseen_after(empty, empty) == (part.name,)
    assert unseen_after(shown, empty) == unseen_after(empty, shown) == ()


def test_a_norm_that_no_histogram_has_shown_is_as_large_as_priors_say():
    """And not smaller than that of rows of unit size, nor when it has been shown."""
    steps = planned((), (MATRIX,), NORMS, SETTINGS, is_fixed=False)
    steps = tuple(step.scaled(1e-3) for step in steps)
    (part,) = steps[0].counted
    empty = {part.name: np.zeros(len(part.grid) + 1)}
    for of_priors in (None, part.reference / 10, 10 * part.reference):
        expected = max(part.reference, of_priors or 0.0)
        later, norms, unseen = after_counts(steps, 0, empty, {}, of_priors)
        assert norms == {part.name: expected} and unseen == [part.name]
        bounds = {s.clipping_norm for s in later[1:] if s.blocks and not s.counted}
        assert expected in bounds
        _, norms, _ = after_counts(steps, 0, empty, {part.name: 0.5}, of_priors)
        assert norms == {part.name: 0.5}

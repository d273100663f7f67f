"""The norms that histograms find, and the steps that clip to them."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _fits import vi_of
from _planned_steps import MATRIX, MEAN, NORMS, SETTINGS, planned

import numpyro_vips as nv
from numpyro_vips.fitting.found_norms import (
    FoundNorms,
    NormHistogram,
    clipped_to,
    found_norms,
)
from numpyro_vips.fitting.progress import Progress
from numpyro_vips.fitting.redrawing_steps import with_redrawn_rows


def histogram_of(steps: Any, number: int) -> NormHistogram:
    return NormHistogram(
        steps=steps, number=number, parts=steps[0].counted, is_one_vector=False
    )


def norms_after(
    histogram: NormHistogram,
    counts: Any,
    norms: Mapping[str, float],
    of_priors: float | None = None,
) -> FoundNorms:
    """The norms after a histogram of a thousand rows."""
    return found_norms(
        histogram,
        counts,
        norms,
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
    histogram = histogram_of(steps, number)
    found = norms_after(histogram, counts, norms, of_priors)
    return clipped_to(histogram, found.norms), found.norms, list(found.unseen)


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
            histogram = histogram_of(progress.steps, number)
            found = norms_after(histogram, counted, progress.norms)
            progress = progress.after_histogram(histogram, found)
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


def redrawing_fit(num_rows: int) -> tuple[Any, Any, Any]:
    """The steps of a fit by DPVI that redraws rows, and two norms: of gradients, and of
    the information."""

    @nv.private(unit="rows")
    def durations(y: Any) -> None:
        scale: Any = numpyro.sample("scale", dist.LogNormal(0.0, 1.0))
        shape: Any = numpyro.sample("shape", dist.LogNormal(0.0, 1.0))
        with numpyro.plate("rows", y.shape[0]):
            numpyro.sample("y", dist.Weibull(scale, shape), obs=y)

    vi = vi_of(durations, engine="dpvi")
    prepared = vi._prepare_fit((np.ones(num_rows, np.float32),), {})[0]
    part, _, information = prepared.parts
    steps = tuple(step.scaled(4.0) for step in prepared.steps)
    steps = with_redrawn_rows(
        steps, prepared.engine, num_rows=num_rows, noise_multiplier=1.0
    )
    return steps, part, information


def test_norms_of_a_fit_that_redraws_rows() -> None:
    """On the way the middle, then the least variance, but not far above the middle."""
    steps, part, _ = redrawing_fit(10_000)
    first, _, last, _ = (i for i, step in enumerate(steps) if part in step.counted)
    assert [steps[first].redraws, steps[last].redraws] == [False, True]

    def found(number: int, counts: np.ndarray, known: Any) -> FoundNorms:
        return found_norms(
            NormHistogram(
                steps=steps, number=number, parts=(part,), is_one_vector=True
            ),
            {part.name: counts},
            known,
            num_rows=10_000,
            expected_squares={},
            of_priors=lambda parts, counts: {},
        )

    norms = np.random.default_rng(0).lognormal(0.0, 1.0, 10_000)
    edges = np.searchsorted(part.grid, norms)
    counts = np.bincount(edges, minlength=len(part.grid) + 1).astype(float)
    start = found(first, counts, {})
    assert start.norms[part.name] == pytest.approx(np.median(norms), rel=0.5)
    assert not start.kept
    end = found(last, counts, start.norms)
    norm = end.norms[part.name]
    assert norm < 4.0 * 1.5 * np.median(norms)
    factors = np.minimum(1.0, norm / norms)
    assert end.kept["loc"].slope == pytest.approx(factors.mean(), abs=0.05)
    assert end.kept["loc"].square == pytest.approx((factors**2).mean(), abs=0.05)
    variance_per_slope = np.sum((factors * norms) ** 2) / np.sum(factors * norms**2)
    assert end.kept["loc"].variance_per_slope == pytest.approx(
        variance_per_slope, abs=0.05
    )
    # Spread over all bins, of which none stands out: the middle again.
    norms = 10.0 ** np.random.default_rng(1).uniform(-6.0, 18.0, 10_000)
    edges = np.searchsorted(part.grid, norms)
    counts = np.bincount(edges, minlength=len(part.grid) + 1).astype(float)
    spread = found(last, counts, {part.name: 1e15})
    assert spread.norms[part.name] == pytest.approx(np.median(norms), rel=1.0)
    assert spread.unseen == () and not spread.kept
    # Where nothing is to be seen the norm stays.
    nothing = found(last, np.zeros_like(counts), {part.name: 3.0})
    assert nothing.norms[part.name] == 3.0 and nothing.unseen == (part.name,)


def test_few_rows_with_most_of_the_information_do_not_say_its_norm() -> None:
    steps, gradient, part = redrawing_fit(10_000)
    (number,) = (i for i, step in enumerate(steps) if part in step.counted)
    rng = np.random.default_rng(0)
    norms = np.where(rng.uniform(size=10_000) < 0.2, 100.0, rng.uniform(1.0, 2.0))
    edges = np.searchsorted(part.grid, norms)
    histogram = NormHistogram(
        steps=steps, number=number, parts=(gradient, part), is_one_vector=True
    )
    found = found_norms(
        histogram,
        {part.name: np.bincount(edges, minlength=len(part.grid) + 1).astype(float)},
        {gradient.name: 3.0},
        num_rows=10_000,
        expected_squares={},
        of_priors=lambda parts, counts: {},
    )
    # Noise at their norm would hide what the others say.
    assert np.median(norms) < found.norms[part.name] < 0.4 * np.max(norms)
    assert found.norms[gradient.name] == 3.0


def test_a_histogram_after_the_last_release_of_its_part_is_no_error() -> None:
    """With two steps the curvature is not released again after the norms are."""

    def heavy_tails(X: Any, y: Any) -> None:
        w: Any = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
        with numpyro.plate("rows", len(y)):
            numpyro.sample("y", dist.StudentT(3.0, X @ w, 1.0), obs=y)

    rng = np.random.default_rng(0)
    rows = rng.normal(size=(200, 3)), rng.normal(size=200)
    vi = vi_of(
        heavy_tails,
        budget=nv.PrivacyBudget(5.0, 1e-6),
        engine="vips",
        sampling=nv.FullBatch(relation="replace_one"),
        num_steps=2,
    )
    assert vi.run(jax.random.key(0), *rows).engine == "vips"


def heights(h: Any) -> None:
    mu: Any = numpyro.sample("mu", dist.Normal(170.0, 20.0))
    sigma: Any = numpyro.sample("sigma", dist.HalfNormal(20.0))
    with numpyro.plate("people", len(h)):
        numpyro.sample("h", dist.Normal(mu, sigma), obs=h)


def test_a_norm_follows_from_the_histogram_of_that_it_is_the_square_of() -> None:
    """One histogram, so that squares do not drown in the noise of two."""
    model = nv.private(heights, unit="people")
    prepared = vi_of(model)._prepare_fit((np.ones(400, np.float32),), {})[0]
    (square,) = (part for part in prepared.parts if part.square_of)
    (root,) = (part for part in prepared.parts if part is not square)
    assert square.square_of is not None
    assert (square.square_of.name, square.square_of.factor) == (
        root.name,
        pytest.approx(0.5),
    )
    counted = [step for step in prepared.steps if step.counted]
    assert len(counted) > 1
    assert all(step.counted == (root,) for step in counted)
    assert all(len(step.blocks) == 1 for step in counted)

    steps = tuple(step.scaled(1e-3) for step in prepared.steps)  # Hardly any noise.
    histogram = NormHistogram(
        steps=steps, number=0, parts=prepared.parts, is_one_vector=False
    )
    assert histogram.parts_shown == [root, square]
    norms = np.abs(np.random.default_rng(0).normal(0.0, 8.0, 1000))
    counts = np.bincount(
        np.searchsorted(root.grid, norms), minlength=len(root.grid) + 1
    )
    found = norms_after(histogram, {root.name: counts.astype(float)}, {})
    assert found.unseen == ()
    assert norms.max() <= found.norms[root.name] <= norms.max() * math.sqrt(2)
    largest = 0.5 * norms.max() ** 2
    assert largest <= found.norms[square.name] <= largest * 2.001
    (following,) = {
        block.scale
        for step in clipped_to(histogram, found.norms)[1:2]
        for block in step.blocks
        if block.name == square.name
    }
    (before,) = (b.scale for b in steps[1].blocks if b.name == square.name)
    assert following != before
    # Where nothing stands out, neither is seen, and the priors say both.
    empty = {root.name: np.zeros(len(root.grid) + 1)}
    hidden = norms_after(histogram, empty, {}, of_priors=7.0)
    assert hidden.unseen == (root.name, square.name)
    assert set(hidden.norms.values()) == {7.0}
    again = norms_after(histogram, empty, found.norms)
    assert again.norms == found.norms


@pytest.mark.thorough
def test_a_scale_is_found_that_is_far_below_the_mean() -> None:
    """The sum of squares was lost in noise in half of such fits."""
    model = nv.private(heights, unit="people")
    widths, deviations = [], []
    for seed in range(8):
        h = np.random.default_rng(seed).normal(154.6, 7.7, 300).astype(np.float32)
        with pytest.warns(UserWarning, match="insecure_seed"):
            vi = vi_of(model, budget=1.0, insecure_seed=seed)
            result = vi.run(jax.random.key(seed), h)
        draws = result.sample_posterior(jax.random.key(1), (500,))
        sigma = np.asarray(draws["sigma"], float)
        widths.append(sigma.std())
        deviations.append((sigma.mean() - h.std()) / sigma.std())
    assert np.median(widths) < 1.0
    assert np.sqrt(np.mean(np.square(deviations))) < 2.0

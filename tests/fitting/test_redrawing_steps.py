"""In which steps rows are redrawn: where noise does not hide what clipping does."""

import dataclasses
import math
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _fits import fit_to, vi_of

import numpyro_vips as nv
from numpyro_vips.fitting.bounds.norm_parts import NormPart
from numpyro_vips.fitting.redrawing_steps import HIDDEN, with_redrawn_rows
from numpyro_vips.fitting.step import Step
from numpyro_vips.privacy.gaussian_mechanism import Block
from numpyro_vips.privacy.releases import INFORMATION

STEPS = tuple(
    Step(
        blocks=(Block(name="loc", shape=(16,)),),
        clipping_norm=None,
        noise_multiplier=2.0,
        sampling=nv.Poisson(0.5),
        is_pilot=number == 1,
    )
    for number in range(9)
)
# Four steps at rate 1/2 and a multiplier of 2 are one release at a multiplier of 2.
RATIO = 2.0 * 16**1.25


def redrawn(num_rows: float, *, after: int | None = 4, **options: Any) -> list[bool]:
    engine: Any = SimpleNamespace(redrawn_after=after)
    settings = {"noise_multiplier": 1.0, "num_rows": math.ceil(num_rows), **options}
    return [step.redraws for step in with_redrawn_rows(STEPS, engine, **settings)]


def test_the_later_steps_do_and_what_stands_aside_does_not() -> None:
    """The second of nine is a pilot, so the first four steps end with the fifth."""
    assert redrawn(1.01 * RATIO / HIDDEN) == [False] * 5 + [True] * 4


def test_histograms_of_what_they_clip_do_too() -> None:
    """The one at the start is of gradients, and that of another block is none of it."""

    def histogram(part: str) -> Step:
        counted = NormPart(name=part, reference=1.0, blocks=(part,))
        return dataclasses.replace(STEPS[0], blocks=(), counted=(counted,))

    steps = [*STEPS]
    for place, part in ((9, "other"), (7, "loc"), (5, "loc"), (3, "loc"), (0, "loc")):
        steps.insert(place, histogram(part))
    engine: Any = SimpleNamespace(redrawn_after=4)
    found = with_redrawn_rows(steps, engine, num_rows=10**9, noise_multiplier=1.0)
    redraw = [step.redraws for step in found if step.counted]
    assert redraw == [False, False, True, True, False]


def test_the_release_for_intervals_does_too() -> None:
    information = dataclasses.replace(
        STEPS[0], blocks=(Block(name=INFORMATION, shape=(16, 16)),)
    )
    counted = NormPart(name=INFORMATION, reference=1.0, blocks=(INFORMATION,))
    histogram = dataclasses.replace(information, counted=(counted,))
    steps = (*STEPS[:8], histogram, information, *STEPS[8:])
    engine: Any = SimpleNamespace(redrawn_after=4)
    for num_rows, redraws in ((10**9, True), (10, False)):
        found = with_redrawn_rows(
            steps, engine, num_rows=num_rows, noise_multiplier=1.0
        )
        assert [step.redraws for step in found[8:10]] == [redraws] * 2


def test_none_does_where_noise_hides_it() -> None:
    assert not any(redrawn(0.99 * RATIO / HIDDEN))
    assert not any(redrawn(1.99 * RATIO / HIDDEN, noise_multiplier=2.0))
    assert any(redrawn(2.01 * RATIO / HIDDEN, noise_multiplier=2.0))


@pytest.mark.parametrize("options", [{"after": None}, {"noise_multiplier": None}])
def test_none_does_where_none_can_or_the_noise_is_not_known(options: Any) -> None:
    assert not any(redrawn(1e9, **options))


def test_none_does_without_noise() -> None:
    engine: Any = SimpleNamespace(redrawn_after=0)
    steps = [dataclasses.replace(step, noise_multiplier=0.0) for step in STEPS]
    found = with_redrawn_rows(steps, engine, num_rows=1000, noise_multiplier=1.0)
    assert found == tuple(steps)


def durations(y: Any) -> None:
    scale: Any = numpyro.sample("scale", dist.LogNormal(0.0, 1.0))
    shape: Any = numpyro.sample("shape", dist.LogNormal(0.0, 1.0))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.Weibull(scale, shape), obs=y)


def plan(epsilon: float, **options: Any) -> nv.Plan:
    model = nv.private(durations, unit="rows")
    return vi_of(model, budget=epsilon, **options).explain(jnp.ones(2000))


def test_explain_says_so_for_the_budget_that_is_asked_about() -> None:
    """Though all budgets share one prepared fit."""
    said = ["The last 160 steps clip the difference" in str(plan(e)) for e in (1, 0.01)]
    assert said == [True, False]
    assert "The last 16 steps" in str(plan(1.0, num_steps=20))


def test_a_fixed_noise_decides_as_the_budget_does() -> None:
    few, much = (plan(1e3, noise_multiplier=s, num_steps=20) for s in (1.0, 1e4))
    assert "The last 16 steps" in str(few) and "steps clip the" not in str(much)


@pytest.mark.thorough
def test_estimates_are_not_biased_where_most_rows_are_clipped() -> None:
    """At a norm of a tenth of the usual, where all rows are clipped."""
    rng = np.random.default_rng(0)
    y = (2.0 * rng.weibull(1.5, 20_000)).astype(np.float32)
    result = fit_to(durations, y, budget=1e3, clipping_norm=0.1, diagnostics=False)
    draws = result.sample_posterior(jax.random.key(1), sample_shape=(2000,))
    assert np.mean(draws["scale"]) == pytest.approx(2.0, abs=0.05)
    assert np.mean(draws["shape"]) == pytest.approx(1.5, abs=0.05)

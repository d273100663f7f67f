"""What is known of a running fit follows from what it has released."""

import dataclasses
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from _plain_engine import PlainEngine, step_of

import numpyro_vips as nv
from numpyro_vips.fitting.bounds.norm_parts import NormPart
from numpyro_vips.fitting.found_norms import FoundNorms, NormHistogram
from numpyro_vips.fitting.progress import Progress, advanced
from numpyro_vips.fitting.step import Step
from numpyro_vips.jax_tools.row_sums import CLIPPED_ROWS, DIAGNOSTICS
from numpyro_vips.privacy.batch_selection import select_rows
from numpyro_vips.privacy.gaussian_mechanism import Block
from numpyro_vips.privacy.secure_random import SecureRandom

NAMES = ("a", "b")
BLOCKS = tuple(Block(name=name, shape=(2,)) for name in NAMES)
PARTS = tuple(NormPart(name=name, blocks=(name,), reference=1.0) for name in NAMES)


def histogram(*names: str) -> Step:
    counted = tuple(part for part in PARTS if part.name in names)
    blocks = tuple(Block(name=name, shape=(3,)) for name in names)
    return step_of(nv.FullBatch(), 1.0, blocks=blocks, counted=counted)


def after_histogram(progress: Progress, number: int, found: FoundNorms) -> Progress:
    of = NormHistogram(
        steps=progress.steps, number=number, parts=PARTS, is_one_vector=False
    )
    return progress.after_histogram(of, found)


def main_step(**options: Any) -> Step:
    return step_of(
        nv.FullBatch(),
        1.0,
        blocks=BLOCKS,
        clipping_norm=options.pop("clipping_norm", None),
        parts=PARTS,
        **options,
    )


def test_later_steps_clip_to_the_norms_that_were_found() -> None:
    progress = Progress(steps=(histogram(*NAMES), main_step()))
    found = FoundNorms({"a": 4.0, "b": 0.5}, unseen=())
    after = after_histogram(progress, 0, found)
    assert after.norms == {"a": 4.0, "b": 0.5} and after.unseen == ()
    assert after.steps[0] == progress.steps[0]
    step = after.steps[1]
    # A row of these norms is in the same relation to its bound in every block.
    scales = {block.name: block.scale for block in step.blocks}
    assert scales["a"] * 4.0 == pytest.approx(scales["b"] * 0.5)
    assert step.clipping_norm is not None
    assert progress.steps[1].clipping_norm is None


def test_a_norm_that_was_seen_stays_seen() -> None:
    steps = (histogram("a"), main_step(), histogram(*NAMES), main_step())
    progress = Progress(steps=steps, norms={"a": 2.0})
    found = FoundNorms({"a": 2.0, "b": 1.0}, unseen=("a", "b"))
    after = after_histogram(progress, 2, found)
    assert after.unseen == ("b",)


def test_what_a_later_histogram_sees_is_no_longer_unseen() -> None:
    steps = (histogram("a"), histogram(*NAMES), main_step())
    progress = Progress(steps=steps, norms={"a": 1.0}, unseen=("a",))
    found = FoundNorms({"a": 3.0, "b": 1.0}, unseen=())
    after = after_histogram(progress, 1, found)
    assert after.unseen == ()
    # One that was not counted again is still unseen.
    progress = Progress(
        steps=(histogram("b"), main_step()), norms={"a": 1.0}, unseen=("a",)
    )
    after = after_histogram(progress, 0, found)
    assert after.unseen == ("a",)


def test_norms_are_in_the_units_of_what_comes_after() -> None:
    whole = NormPart(name="both", blocks=NAMES, reference=1.0)
    progress = Progress(steps=(), norms={"a": 2.0, "b": 3.0, "both": 4.0})
    after = progress.with_stretched({"a": 5.0}, (*PARTS, whole))
    assert after.norms == {"a": 10.0, "b": 3.0, "both": 20.0}


def reports(clipped: float, zero: float) -> dict[str, np.ndarray]:
    values = dict(zip(DIAGNOSTICS, (clipped, zero), strict=True))
    return {name: np.asarray(value) for name, value in values.items()}


def test_shares_are_means_over_the_steps_that_reported() -> None:
    step = main_step(clipping_norm=1.0, reports=True)
    progress = Progress(steps=(step, step))
    assert progress.shares == {}
    assert progress.after_statistics(main_step(), {}, 100) == progress
    progress = progress.after_statistics(step, reports(10.0, 0.0), 100)
    progress = progress.after_statistics(step, reports(30.0, 4.0), 100)
    clipped, zero = (progress.shares[name] for name in DIAGNOSTICS)
    assert clipped.share == pytest.approx(0.2) and zero.share == pytest.approx(0.02)
    # Independent noise of two steps: √2 as much, of twice the number.
    stddev = step.mechanism.block_noise_stddev(DIAGNOSTICS[0]) / 100
    assert clipped.stddev == pytest.approx(stddev / math.sqrt(2))


@pytest.mark.parametrize(
    "sampling", [nv.Poisson(0.05), nv.WithoutReplacement(0.05), nv.FullBatch()]
)
def test_shares_allow_for_how_rows_are_drawn(sampling: Any) -> None:
    """As many times as rows are drawn, by the fit's own sampler."""
    step = dataclasses.replace(
        main_step(clipping_norm=1.0, reports=True), sampling=sampling
    )
    step = dataclasses.replace(step, noise_multiplier=1e-6)
    num_rows, rng = 1000, SecureRandom(insecure_seed=0).sampling
    found = []
    for _ in range(2000):
        drawn = np.arange(num_rows)[select_rows(step.event, num_rows, rng)]
        number = np.sum(drawn % 10 < 3) / sampling.rate
        progress = Progress(steps=(step,))
        progress = progress.after_statistics(step, reports(number, 0.0), num_rows)
        found.append(progress.shares[CLIPPED_ROWS])
    shares = [each.share for each in found]
    assert np.mean(shares) == pytest.approx(0.3, abs=0.01)
    said = np.sqrt(np.mean([each.stddev**2 for each in found]))
    assert np.std(shares) == pytest.approx(said, rel=0.1, abs=1e-6)
    assert bool(said > 0.01) == (sampling.rate < 1)


@pytest.mark.parametrize("recentres", [False, True])
def test_globals_are_recentred_right_before_the_step_that_asks(
    recentres: bool,
) -> None:
    graph: Any = SimpleNamespace(arguments=SimpleNamespace(public_num_rows=100))
    engine: Any = PlainEngine()
    first = step_of(nv.FullBatch(), 1.0)
    second = step_of(nv.FullBatch(), 1.0, recentres=recentres)
    part = NormPart(name="sum", blocks=("sum",), reference=1.0)
    progress = Progress(steps=(first, second), norms={"sum": 2.0})
    state, after = advanced(
        engine, progress, 0, [], {"sum": np.ones(2)}, parts=(part,), graph=graph
    )
    assert isinstance(state, list)
    assert ("recentred" in state) is recentres
    assert after.norms == {"sum": 6.0 if recentres else 2.0}


@pytest.mark.parametrize(
    ("recentres", "weight", "follows"),
    [(True, 1.0, True), (True, 0.5, False), (False, 1.0, False)],
    ids=["nothing is left", "an average", "about zero"],
)
def test_points_follow_the_globals_where_nothing_is_left_in_the_average(
    recentres: bool, weight: float, follows: bool
) -> None:
    graph: Any = SimpleNamespace(arguments=SimpleNamespace(public_num_rows=100))
    engine: Any = PlainEngine()
    part = NormPart(name="sum", blocks=("sum",), reference=1.0)
    counts = step_of(nv.FullBatch(), 1.0, recentres=recentres, counted=(part,))
    step = step_of(nv.FullBatch(), 1.0)
    again = step_of(nv.FullBatch(), 1.0, counted=(part,))
    following = step_of(nv.FullBatch(), 1.0, step_size=weight)
    steps = (step, counts, step, again, following)
    state, _ = advanced(
        engine,
        Progress(steps=steps, norms={"sum": 2.0}),
        2,
        [],
        {"sum": np.ones(2)},
        parts=(part,),
        graph=graph,
    )
    assert isinstance(state, list)
    assert ("followed" in state) is follows

"""The rounding of sums is bounded, and a part of the sensitivity."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _fits import vi_of
from _models import means

import numpyro_vips as nv
from numpyro_vips.fitting.bounds.norm_parts import NormPart
from numpyro_vips.fitting.reducers.tree_sum import TreeSum
from numpyro_vips.fitting.step import Step
from numpyro_vips.fitting.sum_rounding import most_rows, with_rounding
from numpyro_vips.privacy.gaussian_mechanism import Block
from numpyro_vips.privacy.releases import VALID_ROWS

STEP = Step(
    blocks=(Block(name="x", shape=(3,)),),
    clipping_norm=2.0,
    noise_multiplier=1.5,
    sampling=nv.FullBatch(),
)
UNIT = 2.0**-53


def rounding(step: Step, num_rows: int, max_batch_size: int | None = None) -> float:
    (found,) = with_rounding([step], num_rows, max_batch_size)
    return found.rounding


# --- the bound ------------------------------------------------------------------------


def summed(rows: np.ndarray, length: int) -> float:
    """A chunk's rows one after the other, the worst of orders, and chunks in a tree."""
    total = TreeSum()
    for number, start in enumerate(range(0, len(rows), length)):
        total.add(number, {"x": np.cumsum(rows[start : start + length])[-1]})
    return float(total.value()["x"])


@pytest.mark.parametrize("count", [9000, 60_000])
@pytest.mark.parametrize("length", [64, 4096])
def test_no_row_moves_a_sum_by_more_than_is_allowed_for(count, length):
    """Rows of length at most one, made so that many are rounded one way."""
    allowed = rounding(STEP, count, length)
    worst = 0.0
    for exponent in range(38, 52):
        rows = np.full(count, 2.0**-exponent * (1 + 2.0**-6))
        rows[np.arange(count) % length < length // 2] = 1.0
        rows[0] = 0.0
        moved = summed(rows, length) - summed(rows[1:], length)
        exact = math.fsum(rows) - math.fsum(rows[1:])
        assert exact == 0.0
        worst = max(worst, abs(moved))
    assert 1e-13 < worst < allowed


def test_every_number_of_a_row_counts_as_an_addition():
    """Documents of equal words: a row that adds zero moves the sum of the others."""
    words, length, count = 128, 4096, 2**16
    block = dataclasses.replace(STEP.blocks[0], additions=words)
    rows = np.full(length, 2.0**-42 * (1 + 2.0**-6))
    rows[: length // 2] = 1.0 / words
    # Without the first row all others stand a place before.
    moved = summed(np.repeat(rows, words), length * words) - summed(
        np.repeat(np.roll(rows, -1), words), length * words
    )
    worst = count / length * abs(moved)
    assert rounding(STEP, count // 2) < worst
    assert worst < rounding(dataclasses.replace(STEP, blocks=(block,)), count // 2)


@pytest.mark.parametrize("num_rows", [1, 2**15, 10**6, 10**8])
@pytest.mark.parametrize("max_batch_size", [None, 64, 20_000])
@pytest.mark.parametrize("sampling", [nv.FullBatch(), nv.Poisson(0.01)])
def test_the_bound_is_the_textbooks(num_rows, max_batch_size, sampling):
    step = dataclasses.replace(STEP, sampling=sampling)
    found = rounding(step, num_rows, max_batch_size)
    rows = most_rows(num_rows)
    chunk = min(max_batch_size or 4096, num_rows * sampling.rate)
    # Number of additions that a row of the longest possible data set goes through.
    least = 2 * rows * (chunk / 2 + math.log2(rows / (chunk + 64))) * UNIT
    most = 2 * rows * (chunk + 256 + math.log2(rows)) * UNIT + 1e-6
    assert least < found < most or num_rows == 1


def test_it_is_less_than_a_millionth_for_half_a_million_rows():
    assert rounding(STEP, 250_000) < 1e-6
    assert rounding(STEP, 1) < 3.1e-7
    # And no trifle for very many.
    assert 1e-2 < rounding(STEP, 10**10) < 2e-2


def test_counts_are_exact():
    part = NormPart(name="x", blocks=("x",), reference=1.0)
    assert rounding(dataclasses.replace(STEP, counted=(part,)), 10**8) == 0.0


# --- its part in the sensitivity ------------------------------------------------------


@pytest.mark.parametrize("relation", ["add_or_remove", "replace_one"])
def test_noise_grows_with_it_and_the_price_does_not(relation):
    step = dataclasses.replace(STEP, sampling=nv.FullBatch(relation=relation))
    (wider,) = with_rounding([step], 10**11, None)
    factor = 1.0 + wider.rounding
    assert factor > 1.1
    for name in ("noise_stddev", "sensitivity"):
        ratio = getattr(wider.event, name) / getattr(step.event, name)
        assert ratio == pytest.approx(factor, rel=1e-14)
    stddev = step.mechanism.block_noise_stddev("x")
    assert wider.mechanism.block_noise_stddev("x") == pytest.approx(factor * stddev)


def vi(budget: nv.PrivacyBudget, **options: Any) -> nv.PrivateVI:
    settings: dict[str, Any] = {"num_steps": 1, "clipping_norm": 2.0, **options}
    model = nv.private(means, unit="rows")
    return vi_of(model, budget=budget, diagnostics=False, **settings)


@pytest.mark.quick_with("dpvi")
@pytest.mark.parametrize("engine", ["vips", "dpvi"])
def test_a_fit_states_it(engine):
    y = np.zeros(300, np.float32)
    for num_rows, max_batch_size in [(300, None), (200_000, None), (20_000, 64)]:
        fit = vi(
            nv.PrivacyBudget(1.0, 1e-6),
            engine=engine,
            num_rows=num_rows,
            max_batch_size=max_batch_size,
        )
        events = fit.run(jax.random.key(0), y).privacy.events
        expected = rounding(STEP, num_rows, max_batch_size)
        # What else DPVI releases has the square of the norm, and counts have none.
        sums = (event for event in events if event.label != VALID_ROWS)
        least = min(event.sensitivity for event in sums)
        assert least == pytest.approx(2.0 * (1 + expected), rel=1e-12)


def test_a_fit_to_documents_states_it_for_their_words(monkeypatch):
    words = 40
    # What clipping took off is estimated from two million simulated documents, in most
    # of a minute, and that is after the last release.
    reading = "numpyro_vips.vips.corrections.reading.Reading._without_clipping"
    monkeypatch.setattr(reading, lambda *_: None)

    def documents(word: Any) -> None:
        theta = numpyro.sample("theta", dist.Dirichlet(jnp.ones(64)))
        of_word = dist.Categorical(jnp.broadcast_to(theta, (words, 64))).to_event(1)
        with numpyro.plate("rows", word.shape[0]):
            numpyro.sample("word", of_word, obs=word)

    fit = vi_of(
        documents,
        budget=nv.PrivacyBudget(1.0, 1e-6),
        clipping_norm=2.0,
        num_rows=200_000,
        diagnostics=False,
    )
    events = fit.run(jax.random.key(0), np.zeros((300, words), int)).privacy.events
    block = dataclasses.replace(STEP.blocks[0], additions=words)
    expected = rounding(dataclasses.replace(STEP, blocks=(block,)), 200_000)
    (sensitivity,) = {event.sensitivity for event in events}
    assert sensitivity == pytest.approx(2.0 * (1 + expected), rel=1e-12)


def test_far_more_rows_than_declared_are_refused_unpaid():
    budget = nv.PrivacyBudget(1.0, 1e-6)
    y = np.zeros(2**16 + 1, np.float32)
    fit = vi(budget, num_rows=100)
    with pytest.raises(ValueError, match="at most 65536 rows"):
        fit.run(jax.random.key(0), y)
    assert budget.spent() == (0.0, 0.0)
    fit.explain(y[1:])
    # Without noise there is nothing to hide.
    vi(nv.PrivacyBudget(math.inf), num_rows=100, clipping_norm=None).explain(y)

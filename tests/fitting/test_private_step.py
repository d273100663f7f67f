"""A step releases the noisy sum of the rows that it draws, in whatever pieces."""

import contextlib
import dataclasses
import math
import threading
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _plain_engine import SUM, PlainEngine, arguments_of, clipped, step_of

import numpyro_vips as nv
from numpyro_vips.fitting import private_step
from numpyro_vips.fitting.private_step import (
    chunks_of,
    noise_of_sums,
    rehearse,
    release,
    update,
)
from numpyro_vips.privacy.secure_random import SecureRandom

pytestmark = pytest.mark.filterwarnings("ignore:insecure_seed")

X = np.random.default_rng(0).normal(size=(200, 2))


def released(
    step: Any, engine: Any = None, seed: int = 0, **options: Any
) -> np.ndarray:
    plain: Any = engine or PlainEngine()
    found = release(
        arguments_of(X),
        plain,
        step,
        [],
        SecureRandom(insecure_seed=seed),
        options.pop("max_batch_size", None),
        **options,
    )
    return found["sum"]


@pytest.mark.parametrize("max_batch_size", [None, 64, 65, 1])
def test_a_batch_of_all_rows_is_their_clipped_sum(max_batch_size: int | None) -> None:
    engine = PlainEngine()
    found = released(step_of(nv.FullBatch()), engine, max_batch_size=max_batch_size)
    np.testing.assert_allclose(found, clipped(X).sum(0), rtol=1e-5)
    lengths = {len(x) for x, _ in engine.chunks}
    number, size = chunks_of(step_of(nv.FullBatch()), 200, max_batch_size)
    assert lengths == {size} and len(engine.chunks) == number


def test_rows_that_are_redrawn_have_keys_of_their_place_in_the_batch(
    monkeypatch: Any,
) -> None:
    """However it is split; in another step, or from another generator, others."""
    step = dataclasses.replace(step_of(nv.Poisson(0.9), noise=1.0), redraws=True)

    def keys_of_rows(seed: int, size: int | None) -> dict[bytes, bytes]:
        found: dict[bytes, bytes] = {}
        engine = PlainEngine()
        monkeypatch.setattr(private_step, "MAX_WORKERS", 1)  # Chunks in order.
        released(step, engine, seed=seed, max_batch_size=size)
        for (x, mask), keys in zip(engine.chunks, engine.keys, strict=True):
            assert keys is not None
            found |= {x[i].tobytes(): keys[i].tobytes() for i in np.flatnonzero(mask)}
        return found

    first = keys_of_rows(3, None)
    assert len(set(first.values())) == len(first) > 150
    for size in (64, 65, 150):
        assert keys_of_rows(3, size) == first
    assert set(keys_of_rows(4, None).values()).isdisjoint(first.values())


def test_rows_have_no_keys_where_none_are_redrawn_or_clipped() -> None:
    plain = step_of(nv.FullBatch())
    unclipped = dataclasses.replace(plain, clipping_norm=math.inf, redraws=True)
    for step in (plain, unclipped):
        engine = PlainEngine()
        with contextlib.suppress(AssertionError):  # The engine knows one norm.
            released(step, engine)
        assert engine.keys == [None]


def test_a_part_of_the_rows_counts_for_all_of_them() -> None:
    engine = PlainEngine()
    found = released(step_of(nv.WithoutReplacement(0.1)), engine)
    drawn = np.concatenate([x[mask] for x, mask in engine.chunks])
    assert drawn.shape == (20, 2)
    np.testing.assert_allclose(found, 10.0 * clipped(drawn).sum(0), rtol=1e-6)
    # Other rows the next time.
    other = released(step_of(nv.WithoutReplacement(0.1)), seed=1)
    assert np.all(found != other)


@pytest.mark.parametrize("rate", [1.0, 0.25])
def test_noise_has_the_size_that_is_said(rate: float) -> None:
    sampling = nv.FullBatch() if rate == 1.0 else nv.WithoutReplacement(rate)
    step = step_of(sampling, noise=100.0)
    said = noise_of_sums(step)["sum"]
    # One row is added or removed, or takes another's place.
    sensitivity = 1.0 if rate == 1.0 else 2.0
    assert said == pytest.approx(100.0 * sensitivity / rate, rel=1e-3)
    draws = np.concatenate([released(step, seed=seed) for seed in range(200)])
    assert np.std(draws) == pytest.approx(said, rel=4 / math.sqrt(2 * len(draws)))


def test_who_watches_learns_the_expected_number_of_rows_alone() -> None:
    seen: list[list[tuple[int, int]]] = []
    for seed in range(3):
        each: list[tuple[int, int]] = []
        step = step_of(nv.Poisson(0.5), noise=1.0)
        released(
            step,
            seed=seed,
            max_batch_size=64,
            on_rows=lambda done, here, each=each: each.append((done, here)),
        )
        seen.append(each)
    assert seen[0] == [(48, 100), (96, 100), (100, 100), (100, 100)]
    assert seen[0] == seen[1] == seen[2]


def test_an_exception_cannot_tell_that_some_number_is_not_finite() -> None:
    def on_sum(x: Any, mask: Any) -> None:
        assert np.isnan(jax.jit(jnp.log)(-1.0))

    with jax.debug_nans(True):
        for size in (None, 64):  # In one thread, and in several.
            released(step_of(nv.FullBatch()), PlainEngine(on_sum), max_batch_size=size)
        with pytest.raises(FloatingPointError):
            jax.jit(jnp.log)(-1.0)


def test_sums_are_taken_with_the_usual_settings_in_every_thread() -> None:
    def on_sum(x: Any, mask: Any) -> None:
        assert (jnp.ones((2, 2)) + jnp.ones(2)).shape == (2, 2)

    with jax.numpy_rank_promotion("raise"):
        for size in (None, 64):  # In one thread, and in several.
            released(step_of(nv.FullBatch()), PlainEngine(on_sum), max_batch_size=size)
        with pytest.raises(ValueError, match="rank_promotion"):
            on_sum(None, None)


def test_an_exception_cannot_tell_that_some_number_is_too_small() -> None:
    def on_sum(x: Any, mask: Any) -> None:
        assert np.float64(1e-200) * np.float64(1e-200) == 0.0

    with np.errstate(all="raise"):
        for size in (None, 64):
            released(step_of(nv.FullBatch()), PlainEngine(on_sum), max_batch_size=size)
        with pytest.raises(FloatingPointError):
            on_sum(None, None)


def test_results_come_in_the_order_of_the_chunks_whichever_ends_first() -> None:
    ended = [threading.Event() for _ in range(4)]
    order: list[int] = []

    def function(number: int) -> int:
        if number < 3 and private_step.MAX_WORKERS > 1 and number % 2 == 0:
            ended[number + 1].wait(10.0)
        order.append(number)
        ended[number].set()
        return number

    found = list(private_step._map_in_threads(function, range(4), 4))
    assert found == [0, 1, 2, 3]
    if private_step.MAX_WORKERS > 1:
        assert order.index(1) < order.index(0)


def test_after_an_interrupt_no_further_rows_are_read() -> None:
    taken: list[int] = []

    def values() -> Any:
        for number in range(1000):
            taken.append(number)
            yield number

    results = private_step._map_in_threads(lambda number: number, values(), 1000)
    assert next(results) == 0
    results.close()
    assert len(taken) <= 2 + private_step._AHEAD * private_step.MAX_WORKERS


def test_an_update_knows_the_noise_and_the_bound() -> None:
    step = step_of(nv.WithoutReplacement(0.5), noise=3.0, step_size=0.25)
    engine: Any = PlainEngine()
    state = update(engine, step, [], {"sum": np.ones(2), "other": np.ones(1)})
    assert state == [
        ("bound", {"sum": 1.0}, 1.0, 0.5),
        ({"sum": [1.0, 1.0]}, noise_of_sums(step)),
    ]
    # What is not clipped has no bound.
    unclipped = dataclasses.replace(step, clipping_norm=None)
    with pytest.raises(ValueError, match="clipping norm"):
        update(engine, unclipped, [], {"sum": np.ones(2)})


def test_a_rehearsal_sees_zeros_and_runs_each_kind_of_step_once() -> None:
    engine: Any = PlainEngine()
    steps = [step_of(nv.FullBatch()), step_of(nv.FullBatch(), 2.0)]
    steps.append(step_of(nv.WithoutReplacement(0.1), 2.0))
    rehearse(arguments_of(X), engine, steps, [], None, set())
    # To compile them all at once, and then to run them.
    sizes = sorted(len(x) for x, _ in engine.chunks)
    assert sizes == [64, 64, 256, 256]
    for x, mask in engine.chunks:
        assert not x.any() and not mask.any()
    assert engine.asked == ["compile_update", "posterior"]


def test_what_was_rehearsed_once_is_not_rehearsed_again() -> None:
    rehearsed: set[Any] = set()
    steps = [step_of(nv.FullBatch())]
    first: Any = PlainEngine()
    rehearse(arguments_of(X), first, steps, [], None, rehearsed)
    assert first.chunks
    again: Any = PlainEngine()
    rehearse(arguments_of(X), again, steps, [], None, rehearsed)
    assert again.chunks == [] and again.asked == []


@pytest.mark.parametrize(
    ("sampling", "num_rows", "chunks"),
    [
        (nv.WithoutReplacement(400 / 60_000), 60_000, (1, 448)),
        (
            nv.WithoutReplacement(6_112 / 60_000),
            60_000,
            (2, 3_072),
        ),  # As many as can be.
        (nv.FullBatch(), 60_000, (15, 4_032)),
        (nv.FullBatch(), 3, (1, 64)),
        (nv.Poisson(0.01), 10_000, (1, 192)),  # Six standard deviations above 100: 161.
        (nv.Poisson(0.1), 60_000, (2, 3_264)),
        (nv.Poisson(0.5), 10, (1, 64)),
        (nv.Poisson(1e-9), 10, (1, 64)),
    ],
)
def test_a_batch_is_worked_on_in_few_equal_chunks(
    sampling: Any, num_rows: int, chunks: tuple[int, int]
) -> None:
    step = step_of(sampling, blocks=(SUM,))
    assert chunks_of(step, num_rows, None) == chunks
    number, size = chunks_of(step, num_rows, 65)
    assert size in (64, 128)  # The next multiple of 64, or less.
    assert abs(number * size - math.prod(chunks)) < 64 * max(number, chunks[0])

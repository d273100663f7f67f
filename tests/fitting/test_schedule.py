"""The schedule of steps, and that what runs is what was priced."""

import dataclasses
import math
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _fits import fit_to, vi_of
from _planned_steps import MATRIX, MEAN, NORMS, SETTINGS, Releases, planned

import numpyro_vips as nv
from numpyro_vips.accounting import GaussianEvent
from numpyro_vips.fitting import private_step, schedule
from numpyro_vips.fitting.bounds.norm_parts import NormPart
from numpyro_vips.fitting.reducers import reducer
from numpyro_vips.fitting.schedule import plan_steps
from numpyro_vips.fitting.schedule_options import ScheduleOptions
from numpyro_vips.privacy.gaussian_mechanism import Block, GaussianMechanism
from numpyro_vips.privacy.releases import WHOLE_VECTOR
from numpyro_vips.vips.steps.step_sizes import DEFAULT_STEPS_TO_FORGET


def test_once_statistics_are_released_a_single_time_from_all_rows():
    settings = ScheduleOptions(sampling=nv.Poisson(0.1), num_steps=7)
    first, *rest = planned((MEAN,), (MATRIX,), NORMS, settings)
    assert [block.name for block in first.blocks] == ["mean"]
    assert first.sampling == nv.FullBatch()
    assert len(rest) == 7
    for step in rest:
        assert [block.name for block in step.blocks] == ["matrix"]
        assert step.sampling == nv.Poisson(0.1)


def test_the_squared_budget_is_shared_as_stated():
    first, *rest = planned((MEAN,), (MATRIX,), NORMS, SETTINGS)
    # For full batches the squared privacy parameters 1/σ² add up.
    once = first.noise_multiplier**-2
    adaptive = sum(step.noise_multiplier**-2 for step in rest)
    assert once == pytest.approx(schedule.ONCE_SHARE)
    assert once + adaptive == pytest.approx(1.0)
    (alone,) = planned((MEAN,), (), NORMS, SETTINGS)
    assert alone.noise_multiplier == 1.0


def test_a_pilot_comes_before_what_is_recentred_and_shares_the_budget():
    settings = dataclasses.replace(SETTINGS, noise_multiplier=3.0)
    moved = frozenset({"mean"})
    for options in (SETTINGS, settings):
        steps = planned(
            (MEAN, MATRIX), (), NORMS, options, is_fixed=False, recentred=moved
        )
        first, pilot, again, main = steps
        assert [part.name for part in first.counted] == ["mean", "matrix"]
        assert [part.name for part in again.counted] == ["mean"]
        assert pilot.is_pilot and again.recentres
        assert pilot.label.startswith("pilot of ")
        assert pilot.blocks == main.blocks
        # Only the last one is a step of the fit, and it alone reports.
        assert [step.is_aside for step in steps] == [True, True, True, False]
        assert [step.reports for step in steps] == [False, False, False, True]
        shares = np.array([step.share for step in steps])
        assert shares[1] / shares.sum() == pytest.approx(schedule.PILOT_SHARE)
        # The average of both has the least noise.
        assert main.step_size == pytest.approx(shares[3] / (shares[1] + shares[3]))
    assert sum(step.share for step in steps[:3]) + 1 / 9 == pytest.approx(shares.sum())


def test_several_pilots_have_a_histogram_each_and_share_the_budget():
    steps = planned(
        (MEAN, MATRIX),
        (),
        NORMS,
        SETTINGS,
        is_fixed=False,
        recentred=frozenset({"mean"}),
        pilots=3,
    )
    first, *between, main = steps
    assert first.counted and not first.recentres
    assert [step.is_pilot for step in between] == 3 * [True, False]
    assert [step.recentres for step in between] == 3 * [False, True]
    shares = np.array([step.share for step in between]) / sum(s.share for s in steps)
    expected = schedule.SEVERAL_PILOTS_SHARE, schedule.BOUNDS_SHARE
    np.testing.assert_allclose(shares, 3 * expected)
    # The first one counts fully in the average of what they share, the second half.
    assert [step.step_size for step in between[::2]] == pytest.approx([1, 1 / 2, 1 / 3])
    whole = sum(step.share for step in between[::2]) + main.share
    assert main.step_size == pytest.approx(main.share / whole)


def test_several_pilots_of_more_sums_get_more_of_the_budget():
    def share(number: int) -> float:
        blocks = [Block(name=f"sum{k}", shape=(2,)) for k in range(number)]
        names = frozenset(block.name for block in blocks)
        steps = planned(
            tuple(blocks),
            (),
            dict.fromkeys(names, 1.0),
            SETTINGS,
            is_fixed=False,
            recentred=names,
            pilots=3,
        )
        pilot = next(step for step in steps if step.is_pilot)
        return pilot.share / sum(step.share for step in steps)

    # A regression has three: products of columns, with the response, and its square.
    assert share(3) == pytest.approx(0.08)
    # Means have two.
    assert share(2) == pytest.approx(0.04)
    # So much that the last release keeps half of the budget with many regressions, too.
    assert share(4) == share(12) == pytest.approx(0.12)


def test_what_is_adaptive_is_recentred_at_its_first_refresh():
    moved = frozenset({"mean"})
    steps = planned((), (MEAN,), NORMS, SETTINGS, is_fixed=False, recentred=moved)
    assert not any(step.is_pilot for step in steps)
    counted = [step for step in steps if step.counted]
    assert [step.recentres for step in counted] == [False, True, False]
    assert sum(step.share for step in steps) == pytest.approx(1.0)
    assert counted[1].share == pytest.approx(schedule.BOUNDS_SHARE)


def test_where_there_are_several_pilots_adaptive_steps_are_recentred_twice():
    moved = frozenset({"mean"})
    steps = planned(
        (), (MEAN,), NORMS, SETTINGS, is_fixed=False, recentred=moved, pilots=3
    )
    counted = [step for step in steps if step.counted]
    assert [step.recentres for step in counted] == [False, True, True, False]
    # Each of the first two steps is a pilot; see the weights of those that follow.
    places = [number for number, step in enumerate(steps) if step.counted]
    assert places == [0, 2, 4, 8]
    assert sum(step.share for step in steps) == pytest.approx(1.0)


def test_where_first_steps_are_forgotten_the_average_starts_about_points_of_its_own():
    moved = frozenset({"mean"})
    steps = planned(
        (), (MEAN,), NORMS, SETTINGS, is_fixed=False, recentred=moved, starts_far=True
    )
    counted = [step for step in steps if step.counted]
    assert [step.recentres for step in counted] == [False, True, True]
    # As much as the first histogram, as norms may be others by then.
    assert counted[2].share == pytest.approx(schedule.BOUNDS_SHARE)
    _, first, second = (n for n, step in enumerate(steps) if step.counted)
    adaptive = [step for step in steps[:second] if not step.counted]
    assert len(adaptive) == math.floor(0.6 * DEFAULT_STEPS_TO_FORGET)
    assert steps[second + 1].step_size == 1.0 and steps[second + 2].step_size < 1.0
    assert first == 5
    assert sum(step.share for step in steps) == pytest.approx(1.0)
    # Of what is about no points, norms are refreshed as they are elsewhere.
    plain = planned((), (MEAN,), NORMS, SETTINGS, is_fixed=False, starts_far=True)
    assert not any(step.recentres for step in plain)
    assert len([step for step in plain if step.counted]) == 3


def test_where_norms_are_known_nothing_is_recentred():
    moved = frozenset({"mean"})
    for options in (
        dataclasses.replace(SETTINGS, clipping_norm=1.0),
        dataclasses.replace(SETTINGS, private=False),
    ):
        (step,) = planned((MEAN,), (), {}, options, recentred=moved)
        assert not step.is_pilot and step.step_size == 1.0


def test_the_number_of_passes_does_not_tell_the_size_of_a_batch(watched, monkeypatch):
    passes, split = [], reducer.split_batch

    def watched_split(*args, **options):
        chunks = split(*args, **options)
        passes.append(len(chunks))
        return chunks

    monkeypatch.setattr(reducer, "split_batch", watched_split)
    vi = vi_of(
        logistic,
        insecure_seed=3,
        sampling=nv.Poisson(0.1),
        num_steps=8,
        max_batch_size=64,
    )
    X = np.eye(3, dtype=np.float32)[np.arange(1300) % 3]
    with pytest.warns(UserWarning):
        vi.run(jax.random.key(0), X, (X[:, 0] > 0).astype(np.float32))
    poisson = [
        (count, size)
        for count, (event, size) in zip(passes, watched.batches, strict=True)
        if event.sampling == "poisson"
    ]
    counts, sizes = zip(*poisson, strict=True)
    assert len({math.ceil(size / 64) for size in sizes}) > 1
    assert len(set(counts)) == 1


def test_weights_forget_the_start_and_average_the_rest():
    steps = planned((), (MATRIX,), NORMS, SETTINGS)
    weights = np.zeros(len(steps))
    for number, step in enumerate(steps):
        weights *= 1 - step.step_size
        weights[number] = step.step_size
    # Weight grows in proportion to the step's number.
    expected = np.arange(1, len(steps) + 1)
    np.testing.assert_allclose(weights, expected / expected.sum())


def test_clipping_norms_come_from_the_caller_or_from_the_structure():
    (once, *_) = planned((MEAN,), (MATRIX,), NORMS, SETTINGS)
    assert once.clipping_norm == pytest.approx(0.5)
    given = dataclasses.replace(SETTINGS, clipping_norm=2.0)
    assert {s.clipping_norm for s in planned((MEAN,), (MATRIX,), {}, given)} == {2.0}
    # Two blocks of one step share a bound, the joint norm of a row with both norms.
    (joint,) = planned((MEAN, MATRIX), (), NORMS, SETTINGS)
    scales = {block.name: block.scale for block in joint.blocks}
    norm = math.hypot(*(scales[name] * NORMS[name] for name in NORMS))
    assert joint.clipping_norm == pytest.approx(norm)


def test_norms_that_nobody_knows_are_counted_first_and_again_where_they_change():
    """The shares of all releases add up to one."""
    steps = planned((MEAN,), (MATRIX,), NORMS, SETTINGS, is_fixed=False)
    counted = [
        (number, [part.name for part in step.counted])
        for number, step in enumerate(steps)
        if step.counted
    ]
    # Before all; and after two and five of ten adaptive steps.
    assert counted == [(0, ["mean", "matrix"]), (4, ["matrix"]), (8, ["matrix"])]
    shares = {
        bool(counted): sum(
            step.noise_multiplier**-2
            for step in steps
            if bool(step.counted) == bool(counted)
        )
        for counted in (True, False)
    }
    bounds = schedule.BOUNDS_SHARE + 2 * schedule.REFRESH_SHARE
    assert shares[True] == pytest.approx(bounds)
    assert sum(shares.values()) == pytest.approx(1.0)
    for step in steps:
        assert (step.clipping_norm is None) == (not step.counted)
        # Before norms are known, what is priced is the multiplier alone.
        assert step.event.noise_multiplier == pytest.approx(step.noise_multiplier)


def test_noise_of_the_callers_is_that_of_all_statistics():
    settings = dataclasses.replace(SETTINGS, noise_multiplier=3.0)
    steps = planned((MEAN,), (MATRIX,), NORMS, settings, is_fixed=False)
    assert {s.noise_multiplier for s in steps if not s.counted} == {3.0}
    # Histograms take the share that they take of any budget, so far as steps have it.
    histograms = [step.share for step in steps if step.counted]
    adaptive = sum(step.share for step in steps[2:] if not step.counted)
    assert histograms[0] / adaptive == pytest.approx(
        schedule.BOUNDS_SHARE / ((1 - schedule.ONCE_SHARE) * (1 - 0.05)), rel=1e-6
    )


def test_without_privacy_there_is_no_noise_and_no_clipping():
    settings = dataclasses.replace(SETTINGS, private=False)
    for step in planned((MEAN,), (MATRIX,), {}, settings):
        assert step.noise_multiplier == 0
        assert step.clipping_norm == math.inf
        assert step.step_size == 1.0


def test_a_large_vector_has_no_blocks_of_different_scale():
    """Its parts are clipped as they are, by the norm of the whole."""
    engine = Releases((), (MEAN, MATRIX))
    engine.is_one_vector = True  # type: ignore[misc]
    part = NormPart(
        name=WHOLE_VECTOR, blocks=tuple(NORMS), reference=0.7, is_fixed=True
    )
    (step, *_) = plan_steps(engine, [part], SETTINGS)
    assert [block.scale for block in step.blocks] == [1.0, 1.0]
    assert step.clipping_norm == 0.7


# --- what runs is what was priced -----------------------------------------------------


def logistic(X, y=None):
    alpha = numpyro.sample("alpha", dist.Gamma(1.0, 1.0))
    with numpyro.plate("feature", X.shape[1]):
        w = numpyro.sample("w", dist.Normal(0.0, 1 / jnp.sqrt(alpha)))
    with numpyro.plate("rows", X.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=X @ w), obs=y)


RUNS: dict[str, dict[str, Any]] = {
    "full": {},
    "replace one": {"sampling": nv.FullBatch(relation="replace_one")},
    "poisson": {"sampling": nv.Poisson(0.1), "num_steps": 4},
    "without replacement": {"sampling": nv.WithoutReplacement(0.1), "num_steps": 4},
    "several passes per step": {"max_batch_size": 64, "num_steps": 2},
    "dpvi": {"engine": "dpvi", "sampling": nv.Poisson(0.2), "num_steps": 5},
}


@dataclasses.dataclass
class _Watched:
    """What a fit really did: one entry per call."""

    noise: list[tuple[float, float, str]] = dataclasses.field(default_factory=list)
    batches: list[tuple[GaussianEvent, int]] = dataclasses.field(default_factory=list)
    rows_read: int = 0


@pytest.fixture
def watched(monkeypatch) -> _Watched:
    seen = _Watched()
    add_noise, select = GaussianMechanism.add_noise, private_step.select_rows

    def watched_noise(self, sums, rng):
        noisy = add_noise(self, sums, rng)
        seen.noise.append((self.noise_stddev, self.sensitivity(), self.relation))
        for block in self.blocks:
            # Clipping as promised: a sum of n rows has at most n times the norm.
            norm = block.scale * np.linalg.norm(sums[block.name])
            assert norm <= seen.batches[-1][1] * self.clipping_norm * (1 + 1e-5)
            assert np.any(noisy[block.name] != sums[block.name])
        return noisy

    def watched_batch(event, num_rows, rng):
        indices = select(event, num_rows, rng)
        seen.batches.append((event, len(indices)))
        seen.rows_read += len(indices)
        return indices

    monkeypatch.setattr(GaussianMechanism, "add_noise", watched_noise)
    monkeypatch.setattr(private_step, "select_rows", watched_batch)
    return seen


@pytest.mark.quick_with("poisson")
@pytest.mark.parametrize("options", RUNS.values(), ids=RUNS)
def test_the_priced_events_are_those_that_run(options, watched):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 3)).astype(np.float32)
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    y = (X[:, 0] > 0).astype(np.float32)
    budget = nv.PrivacyBudget(1.0, 1e-5)
    with warnings.catch_warnings(action="ignore", category=UserWarning):
        result = fit_to(logistic, X, y, budget=budget, insecure_seed=3, **options)
    (charge,) = budget.charges
    priced = [
        dataclasses.replace(event, num_steps=1)
        for event in result.privacy.events
        for _ in range(event.num_steps)
    ]
    # What was charged are these events in units of their sensitivity, where norms were
    # not known yet.
    charged = [
        dataclasses.replace(event, num_steps=1)
        for event in charge.events
        for _ in range(event.num_steps)
    ]
    for event, paid in zip(priced, charged, strict=True):
        assert paid.noise_multiplier == pytest.approx(event.noise_multiplier, rel=1e-12)
        assert paid.sampling_rate == event.sampling_rate
        assert (paid.sampling, paid.relation) == (event.sampling, event.relation)
    assert watched.noise == [
        (event.noise_stddev, event.sensitivity, event.relation) for event in priced
    ]
    assert [event for event, _ in watched.batches] == priced
    for event, size in watched.batches:
        if event.sampling == "full":
            assert size == 200
        elif event.sampling == "without_replacement":
            assert size == 20
    poisson = [size for e, size in watched.batches if e.sampling == "poisson"]
    if poisson:
        mean = 200 * options["sampling"].rate
        assert len(set(poisson)) > 1
        assert abs(np.mean(poisson) - mean) < 5 * math.sqrt(mean / len(poisson))
    epsilon = nv.accounting.epsilon_of_events(charge.events, delta=1e-5)
    assert epsilon == pytest.approx(charge.epsilon)
    # Calibrated from below, and close: the budget is neither overrun nor wasted.
    assert 0.999 < epsilon <= 1.0


@pytest.mark.thorough
def test_calibrated_noise_is_the_least_that_the_share_affords():
    X = np.eye(4, dtype=np.float32)[np.arange(100) % 4]
    y = np.zeros(100, np.float32)
    budget = nv.PrivacyBudget(2.0, 1e-4)
    vi = vi_of(logistic, budget=budget, epsilon=0.5, delta=1e-5, num_steps=3)
    events = vi.run(jax.random.key(0), X, y).privacy.events
    less = [
        dataclasses.replace(event, noise_stddev=event.noise_stddev * 0.999)
        for event in events
    ]
    assert nv.accounting.epsilon_of_events(less, delta=1e-5) > 0.5


@pytest.mark.parametrize("composition", ["split", "rdp"])
def test_fixed_noise_stays_within_the_fits_share(composition):
    """Also where the ledger as a whole has room."""
    X, y = np.eye(4, dtype=np.float32), np.zeros(4, np.float32)
    budget = nv.PrivacyBudget(50.0, 1e-5, composition=composition)
    with pytest.raises(nv.BudgetExceededError, match=r"may spend 0\.1"):
        fit_to(logistic, X, y, budget=budget, epsilon=0.1, noise_multiplier=1.0)
    assert budget.charges == ()

"""What `PrivateVI` charges, when, and what stays charged."""

import inspect
import math
import warnings
from typing import Any

import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from _models import logistic_of_patients as logistic
from _models import probit_of_patients as probit
from _small_fits import X, Y, coin, fitted, rows

import numpyro_vips as nv
from numpyro_vips.dpvi.engine import DpviEngine
from numpyro_vips.model import arguments
from numpyro_vips.privacy.gaussian_mechanism import GaussianMechanism
from numpyro_vips.vips.engine import VipsEngine
from numpyro_vips.vips.m_step.global_programs import GlobalPrograms


@pytest.fixture
def budget() -> nv.PrivacyBudget:
    return nv.PrivacyBudget(1.0, 1e-5)


# --- the ledger -----------------------------------------------------------------------


def test_a_fit_is_charged_before_it_runs_and_what_it_costs(budget):
    result = fitted(coin, Y, budget=budget)
    (charge,) = budget.charges
    assert budget.spent() == pytest.approx((1.0, 1e-5), rel=1e-6)
    assert charge.epsilon == result.privacy.epsilon
    assert charge.events == result.privacy.events
    assert charge.label == "coin (vips)"


def test_a_second_fit_may_not_overrun(budget):
    fitted(coin, Y, budget=budget, epsilon=0.6, delta=5e-6)
    spent = budget.spent()
    assert spent == pytest.approx((0.6, 5e-6), rel=1e-6)
    with pytest.raises(nv.BudgetExceededError, match="earlier fit"):
        fitted(coin, Y, budget=budget, epsilon=0.6, delta=5e-6)
    assert budget.spent() == spent
    fitted(coin, Y, budget=budget)  # All that is left.
    spent = budget.spent()
    assert spent.epsilon == pytest.approx(1.0, rel=1e-6)
    for options in ({}, {"noise_multiplier": 100.0}, {"epsilon": 0.1}):
        with pytest.raises(nv.BudgetExceededError, match=r"left|may spend"):
            fitted(coin, Y, budget=budget, **options)
    assert budget.spent() == spent


def test_one_ledger_has_one_relation(budget):
    fitted(coin, Y, budget=budget, epsilon=0.5, delta=5e-6)
    spent = budget.spent()
    with pytest.raises(ValueError, match="relation='add_or_remove'"):
        fitted(coin, Y, budget=budget, sampling=nv.WithoutReplacement(1.0))
    assert budget.spent() == spent


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_an_interrupted_fit_stays_charged(error, tmp_path, monkeypatch):
    path = tmp_path / "ledger.json"
    budget = nv.PrivacyBudget(1.0, 1e-5, path=path)
    calls = []

    def add_noise(self, sums, rng):
        calls.append(self)
        if len(calls) == 2:
            raise error
        return sums

    monkeypatch.setattr(GaussianMechanism, "add_noise", add_noise)
    with pytest.raises(error):
        fitted(logistic, X, Y, budget=budget, epsilon=0.5, delta=5e-6)
    assert len(calls) == 2
    for ledger in (budget, nv.PrivacyBudget(1.0, 1e-5, path=path)):
        assert ledger.spent() == pytest.approx((0.5, 5e-6), rel=1e-6)


@pytest.mark.parametrize("broken", ["initial_state", "bounded_sum", "update"])
def test_an_engine_that_cannot_start_costs_nothing(broken, monkeypatch, budget):
    def fail(*args, **kwargs):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(VipsEngine, broken, fail)
    with pytest.raises(RuntimeError, match="out of memory"):
        fitted(coin, Y, budget=budget, clipping_norm=1.0)
    assert budget.spent() == (0.0, 0.0)


def test_data_are_read_after_the_charge(monkeypatch, budget):
    spent = []
    row_chunks = arguments.row_chunks

    def watched(*args):
        spent.append(budget.spent().epsilon)
        return row_chunks(*args)

    monkeypatch.setattr(arguments, "row_chunks", watched)
    fitted(coin, Y, budget=budget)
    assert spent and all(epsilon > 0.99 for epsilon in spent)


@pytest.mark.parametrize("fn, args", [(coin, (Y,)), (probit, rows())])
def test_warnings_of_an_engine_reach_the_caller(fn, args, monkeypatch):
    engine = DpviEngine if fn is probit else VipsEngine
    found = {"steps": 2, "warnings": ["The steps disagree."]}
    monkeypatch.setattr(engine, "diagnostics", lambda self, state: found)
    with pytest.warns(UserWarning, match="The steps disagree") as caught:
        result = fitted(fn, *args, num_steps=2)
    assert caught[0].filename == inspect.getfile(fitted)
    assert result.diagnostics.items() >= found.items()


@pytest.mark.quick_with("1.0-vips")
@pytest.mark.parametrize("engine", ["vips", "dpvi"])
@pytest.mark.parametrize("epsilon", [1.0, math.inf])
def test_what_is_no_posterior_is_an_error_that_hands_over_what_was_paid_for(
    engine, epsilon, monkeypatch, tmp_path
):
    options: dict[str, Any] = {"engine": nv.DPVI(optimizer=optax.sgd(1e38))}
    if engine == "vips":
        options = {"engine": "vips"}
        posterior_of = GlobalPrograms.posterior_of

        def overflown(self, natural):
            found = {
                name: {**arrays, "x": np.full(arrays["x"].shape, np.inf)}
                for name, arrays in natural.items()
            }
            return posterior_of(self, found)

        monkeypatch.setattr(GlobalPrograms, "posterior_of", overflown)
    budget = nv.PrivacyBudget(epsilon, 1e-5 if epsilon == 1.0 else 0.0)
    options |= {"budget": budget, "clipping_norm": 1.0, "num_steps": 3}
    seen = []
    with pytest.raises(
        nv.UnusablePosteriorError, match="usable posterior: 'w"
    ) as caught:
        fitted(logistic, *rows(), callback=lambda t, _: seen.append(t), **options)
    error = caught.value
    if epsilon == 1.0:
        assert budget.spent().epsilon == pytest.approx(1.0, rel=1e-3)
        assert "epsilon=1" in str(error) and "delta=1e-05" in str(error)
    else:
        assert "Nothing was charged" in str(error)
    assert error.result.engine == engine and len(seen) < 3
    assert error.released
    if engine == "vips":
        assert all(np.isfinite(value).all() for value in error.released.values())
    error.result.save(tmp_path / "fit.nc")
    assert nv.load(tmp_path / "fit.nc").privacy == error.result.privacy


def test_a_fit_that_is_paid_for_goes_on_where_numpy_is_asked_to_raise():
    seen = []
    with np.errstate(all="raise"):
        fitted(logistic, *rows(), callback=lambda t, _: seen.append(np.geterr()))
    assert seen
    assert not any("raise" in kinds.values() for kinds in seen)


def test_an_unwritable_ledger_stops_the_fit(tmp_path, monkeypatch):
    blocked = tmp_path / "a file"
    blocked.write_text("")
    for path in (blocked / "ledger.json", tmp_path / "no folder" / "ledger.json"):
        with pytest.raises(OSError, match=r"cannot be written.*nothing was spent"):
            nv.PrivacyBudget(1.0, 1e-5, path=path)
    budget = nv.PrivacyBudget(1.0, 1e-5, path=tmp_path / "ledger.json")
    reads = []
    monkeypatch.setattr(arguments.ModelArguments, "take", reads.append)

    def refuse(*args):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as disk, pytest.raises(OSError, match="No space"):
        disk.setattr("numpyro_vips.privacy.budget.os.replace", refuse)
        fitted(coin, Y, budget=budget)
    assert not reads
    assert budget.spent() == (0.0, 0.0)


def test_fixed_noise_is_charged_at_its_price():
    budget = nv.PrivacyBudget(math.inf)
    with pytest.raises(ValueError, match="Pass a delta"):
        fitted(coin, Y, budget=budget, noise_multiplier=3.0)
    assert not budget.charges
    result = fitted(coin, Y, budget=budget, noise_multiplier=3.0, delta=1e-5)
    expected = nv.accounting.epsilon(
        noise_multiplier=3.0,
        sampling_rate=1.0,
        num_steps=1,
        delta=1e-5,
        sampling="full",
    )
    assert result.privacy.epsilon == pytest.approx(expected, rel=1e-6)
    assert budget.spent().epsilon == result.privacy.epsilon


# --- randomness -----------------------------------------------------------------------


@pytest.mark.thorough
def test_only_a_seed_makes_noise_repeatable():
    def once(fn: Any, args: tuple, seed: int | None, **options: Any) -> np.ndarray:
        budget = nv.PrivacyBudget(1.0, 1e-5)
        with warnings.catch_warnings(action="ignore", category=UserWarning):
            result = fitted(fn, *args, budget=budget, insecure_seed=seed, **options)
        assert ("INSECURE" in str(result.privacy)) == (seed is not None)
        return np.concatenate([np.ravel(x) for x in result.params.values()])

    # Minibatches are drawn anew as well.
    options = {"sampling": nv.Poisson(0.5), "num_steps": 2}
    first, second = (once(logistic, (X, Y), 1, **options) for _ in range(2))
    np.testing.assert_array_equal(first, second)
    draws = [once(coin, (Y,), seed) for seed in (1, 2, None, None)]
    # The same rng_key: it has no say in the noise.
    for i, draw in enumerate(draws):
        for other in draws[:i]:
            assert np.abs(draw - other).max() > 1e-3
    with pytest.warns(UserWarning, match="not private"):
        fitted(coin, Y, budget=nv.PrivacyBudget(1.0, 1e-5), insecure_seed=1)


def test_a_ledger_is_about_one_unit() -> None:
    def visited(y):
        p = numpyro.sample("p", dist.Beta(1.0, 1.0))
        with numpyro.plate("visits", y.shape[0]):
            numpyro.sample("y", dist.Bernoulli(p), obs=y)

    y = rows()[1]
    shares = {"epsilon": 0.5, "delta": 1e-7, "num_steps": 1}
    budget = nv.PrivacyBudget(1.0, 1e-6)
    fitted(coin, y, budget=budget, **shares)
    assert budget.unit == "patients"
    with pytest.raises(ValueError, match="unit='patients'"):
        fitted(nv.private(visited, unit="visits"), y, budget=budget, **shares)
    assert len(budget.charges) == 1

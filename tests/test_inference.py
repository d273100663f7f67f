"""`PrivateVI`: what it refuses, what it charges, and what it returns.

Whether the posteriors are right is tested with the engines and the examples.
"""

import dataclasses
import functools
import inspect
import math
import re
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
import scipy.sparse
from _fits import vi_of
from _models import logistic_of_patients as logistic
from _models import probit_of_patients as probit
from numpyro.handlers import condition, do, mask, substitute

import numpyro_vips as nv
from numpyro_vips.dpvi.engine import DpviEngine
from numpyro_vips.model import arguments
from numpyro_vips.privacy.gaussian_mechanism import GaussianMechanism
from numpyro_vips.vips.engine import VipsEngine
from numpyro_vips.vips.m_step.global_programs import GlobalPrograms

KEY = jax.random.key(0)
NUM_ROWS = 60


def coin(y):
    p = numpyro.sample("p", dist.Beta(1.0, 1.0))
    with numpyro.plate("patients", y.shape[0]):
        numpyro.sample("y", dist.Bernoulli(p), obs=y)


def marked(fn: Any, **options: Any) -> nv.private:
    return nv.private(fn, unit="patients", **options)


def rows(count: int = NUM_ROWS) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(count, 3)).astype(np.float32)
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    y = (rng.random(count) < 1 / (1 + np.exp(-X @ [3.0, -2.0, 0.5]))).astype(np.float32)
    return X, y


def fitted(fn: Any, *args: Any, budget: Any = None, **options: Any) -> Any:
    if budget is None:
        budget = nv.PrivacyBudget(math.inf)
    model = fn if isinstance(fn, nv.private) else marked(fn)
    vi = nv.PrivateVI(model, budget=budget, progress_bar=False, **options)
    return vi.run(KEY, *args)


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


@pytest.fixture
def budget() -> nv.PrivacyBudget:
    return nv.PrivacyBudget(1.0, 1e-5)


X, Y = rows()


# --- bad input ------------------------------------------------------------------------


def fixed_size(X, y):
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    with numpyro.plate("patients", 17):
        numpyro.sample("y", dist.Bernoulli(logits=X @ w), obs=y)


def other_plate(X, y):
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    with numpyro.plate("patient", X.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=X @ w), obs=y)


def no_plate(X, y):
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    numpyro.sample("y", dist.Bernoulli(logits=X @ w), obs=y)


def subsampling_itself(X, y):
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    with numpyro.plate("patients", 1000, subsample_size=10):
        numpyro.sample("y", dist.Bernoulli(logits=X @ w), obs=y)


def holding_labels(X):
    logistic(X, Y)


LONGER = np.concatenate([Y, Y])


def indexing_captured(X):
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    with numpyro.plate("patients", X.shape[0]) as index:
        numpyro.sample(
            "y", dist.Bernoulli(logits=X @ w), obs=jnp.asarray(LONGER)[index]
        )


def using_index(X, y):
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    with numpyro.plate("patients", X.shape[0]) as index:
        numpyro.sample("y", dist.Normal(X @ w + 0.1 * index, 1.0), obs=y)


def missing_labels(X, y, seen):
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    with numpyro.plate("patients", X.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=X @ w), obs=y, obs_mask=seen)


def centring(X, y):
    logistic(X - X.mean(0), y)


def prior_from_data(X, y):
    w = numpyro.sample("w", dist.Normal(X.mean(0), 1.0).to_event(1))
    with numpyro.plate("patients", X.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=X @ w), obs=y)


def observed_outside(X, y):
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    numpyro.factor("penalty", -((y - X @ w) ** 2).sum())
    with numpyro.plate("patients", X.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=X @ w), obs=y)


def looking(X, y):
    if (X > 0).all():
        return
    logistic(X, y)


def in_numpy(X, y):
    logistic(np.log(np.asarray(X)), y)


class Table:
    """Looks like a pandas object."""

    __module__ = "pandas.core.frame"
    shape = (NUM_ROWS, 3)


@dataclasses.dataclass(frozen=True)
class Bad:
    fn: Callable[..., Any]
    args: tuple
    error: type[Exception]
    message: str


BAD_ARGUMENTS = {
    "rows that disagree in length": Bad(
        logistic, (X, Y[:-1]), ValueError, r"X has 60, y has 59.*public="
    ),
    "plate of another size": Bad(
        fixed_size, (X, Y), ValueError, r"'patients'.*size is 17.*X\.shape\[0\]"
    ),
    "misspelt plate": Bad(
        other_plate, (X, Y), ValueError, "no plate named 'patients'.*mean 'patient'"
    ),
    "no plate": Bad(no_plate, (X, Y), ValueError, "no plate at all.*numpyro.plate"),
    "a plate that draws its own rows": Bad(
        subsampling_itself, (X, Y), ValueError, "size is 1000.*X.shape"
    ),
    "nothing observed": Bad(
        logistic, (X,), ValueError, r"Nothing is observed.*run\(rng_key, X, y\)"
    ),
    "y=None": Bad(logistic, (X, None), ValueError, "Nothing is observed"),
    "no rows": Bad(logistic, (X[:0], Y[:0]), ValueError, "have no rows"),
    "no private argument": Bad(logistic, (3, 4), ValueError, "No argument holds"),
    "a list of numbers": Bad(logistic, (X, list(Y)), TypeError, "list.*np.asarray"),
    "a table": Bad(logistic, (Table(), Y), TypeError, r"to_numpy\(\)"),
    "strings": Bad(logistic, (X, Y.astype(str)), TypeError, "dtype str_.*categories"),
    "objects": Bad(logistic, (X.astype(object), Y), TypeError, "dtype object"),
    "dates": Bad(
        logistic, (X, np.zeros(NUM_ROWS, "M8[D]")), TypeError, "dates or durations"
    ),
    "a 0-d array": Bad(logistic, (X, np.float32(1)), TypeError, r"item\(\)"),
    "COO": Bad(logistic, (scipy.sparse.coo_array(X), Y), TypeError, r"tocsr\(\)"),
    "a key among the arguments": Bad(logistic, (KEY, X), TypeError, "random key"),
    "float ids": Bad(
        lambda group, y: indexing(group, y),
        (Y, Y),
        TypeError,
        "integer",
    ),
    "too many arguments": Bad(logistic, (X, Y, Y), TypeError, "do not fit the model"),
    "a closure over the labels": Bad(
        holding_labels, (X,), nv.UnsafeModelError, r"captures 'Y'.*\(60,\).*argument"
    ),
    "a partial with the labels": Bad(
        functools.partial(logistic, y=Y), (X,), nv.UnsafeModelError, "captures 'y'"
    ),
    "condition with the labels": Bad(
        condition(logistic, {"y": Y}), (X,), nv.UnsafeModelError, "condition.data.y"
    ),
    "a captured array behind the plate's index": Bad(
        indexing_captured, (X,), nv.UnsafeModelError, "index of the plate 'patients'"
    ),
    "the plate's index as a number": Bad(
        using_index, (X, Y), nv.UnsafeModelError, "index of the plate 'patients'"
    ),
    "obs_mask": Bad(
        missing_labels,
        (X, Y, Y > 0),
        nv.UnsafeModelError,
        r"obs_mask=.*numpyro.handlers.mask\(mask=observed\)",
    ),
    "substitute": Bad(
        substitute(logistic, {"w": jnp.ones(3)}),
        (X, Y),
        nv.UnsafeModelError,
        "'w'.*numpyro.handlers.do",
    ),
    "condition on a global": Bad(
        condition(logistic, {"w": np.ones(3)}),
        (X, Y),
        nv.UnsafeModelError,
        "'w' is observed outside.*numpyro.handlers.do",
    ),
    "centring by the rows": Bad(
        centring, (X, Y), nv.UnsafeModelError, "rows act on each other"
    ),
    "a prior made from rows": Bad(
        prior_from_data, (X, Y), nv.UnsafeModelError, "'w'.*private argument 'X'"
    ),
    "a factor outside the plate": Bad(
        observed_outside, (X, Y), nv.UnsafeModelError, "'penalty' stands outside.*'X'"
    ),
    "a branch on values": Bad(looking, (X, Y), nv.UnsafeModelError, "jnp.where"),
    "NumPy in the model": Bad(in_numpy, (X, Y), nv.UnsafeModelError, "NumPy function"),
}


def indexing(group, y):
    with numpyro.plate("group", 2):
        level = numpyro.sample("level", dist.Normal(0.0, 1.0))
    with numpyro.plate("patients", y.shape[0]):
        numpyro.sample("y", dist.Normal(jnp.asarray(level)[group], 1.0), obs=y)


@pytest.mark.parametrize("case", BAD_ARGUMENTS.values(), ids=BAD_ARGUMENTS)
def test_bad_arguments_are_refused_before_anything_is_spent(case, budget):
    vi = nv.PrivateVI(marked(case.fn), budget=budget, progress_bar=False)
    with pytest.raises(case.error, match=f"(?s){case.message}") as caught:
        vi.run(KEY, *case.args)
    assert budget.spent() == (0.0, 0.0)
    assert not budget.charges
    # Names, shapes and dtypes may be told; values may not.
    told = str(caught.value) + "".join(getattr(caught.value, "__notes__", ()))
    assert not any(repr(float(x))[:7] in told for x in X.ravel())


def test_wrong_order_of_arguments_is_explained(budget):
    vi = nv.PrivateVI(marked(logistic), budget=budget, progress_bar=False)
    with pytest.raises(IndexError) as caught:
        vi.run(KEY, Y, X)
    note = "".join(caught.value.__notes__)
    assert "X: private float32[60]" in note
    assert ", in line " in note and "X.shape[1]" in note
    assert "Nothing was charged" in note


BAD_KEYS = {
    "none": (lambda: (X, Y), "Expected the first argument of run to be a key"),
    "after the data": (lambda: (X, KEY, Y), r"run\(rng_key, X, y\)"),
    "a seed": (lambda: (0, X, Y), r"jax.random.key\(0\)"),
    "several": (lambda: (jax.random.split(KEY, 3), X, Y), r"keys\[0\]"),
    "floats": (lambda: (np.zeros(2), X, Y), "Expected the first argument"),
}


@pytest.mark.parametrize("case", BAD_KEYS.values(), ids=BAD_KEYS)
def test_mistaken_keys_are_refused(case, budget):
    args, message = case
    vi = nv.PrivateVI(marked(logistic), budget=budget, progress_bar=False)
    with pytest.raises(TypeError, match=message):
        vi.run(*args())
    assert budget.spent() == (0.0, 0.0)


BAD_SETTINGS: dict[str, tuple[dict, type[Exception], str]] = {
    "epsilon": ({"epsilon": 0.0}, ValueError, "epsilon=0.0 to be positive"),
    "negative epsilon": ({"epsilon": -1.0}, ValueError, "epsilon=-1.0"),
    "NaN": ({"epsilon": math.nan}, ValueError, "epsilon=nan"),
    "delta": ({"delta": 1.0}, ValueError, r"delta=1.0 in \(0, 1\)"),
    "delta zero": ({"delta": 0.0}, ValueError, "delta=0.0"),
    "sampling": ({"sampling": "shuffle"}, ValueError, r"nv\.WithoutReplacement\(rate"),
    "sampling without its rate": (
        {"sampling": "poisson"},
        ValueError,
        r"write sampling=nv\.Poisson\(rate\)",
    ),
    "a class for sampling": ({"sampling": nv.Poisson}, TypeError, "the class Poisson"),
    "a rate for sampling": ({"sampling": 0.1}, TypeError, r"nv\.Poisson.*got.*float"),
    "a class for an engine": ({"engine": nv.VIPS}, TypeError, "the class VIPS"),
    "a guide for an engine": ({"engine": logistic}, TypeError, r"nv\.DPVI\(\.\.\.\)"),
    "engine": ({"engine": "svi"}, ValueError, "engine='svi' to be one of 'auto'"),
    "steps": ({"num_steps": 0}, ValueError, "num_steps=0 to be a positive integer"),
    "steps by half": ({"num_steps": 2.5}, ValueError, "num_steps=2.5"),
    "norm": ({"clipping_norm": -1.0}, ValueError, "clipping_norm=-1.0"),
    "norm without an end": ({"clipping_norm": math.inf}, ValueError, "1e-30 and 1e30"),
    "tiny norms": ({"clipping_norm": {"⟨w⟩": 1e-31}}, ValueError, "1e-30 and 1e30"),
    "noise": ({"noise_multiplier": 0.0}, ValueError, "noise_multiplier=0.0"),
    "epsilon as text": ({"epsilon": "1"}, TypeError, "epsilon='1' to be a number"),
    "structure of no site": (
        {"engine": nv.VIPS(structure={"W": "diag"})},
        ValueError,
        r"structure= to name sites of the model, got \['W'\]; it has \['w', 'y'\]",
    ),
    "norm of no statistic": (
        {"clipping_norm": {"⟨w⟩": 1.0, "⟨w w⟩": 1.0, "w": 1.0}},
        ValueError,
        r"clipping_norm= to name statistics of the model, got \['w'\]; it has \['⟨w",
    ),
    "a callback": ({"callback": "x"}, TypeError, "callback to be a function.*got str"),
    "a label": ({"label": 5}, TypeError, "label=5 to be a text"),
    "seed": ({"insecure_seed": 1.5}, TypeError, "insecure_seed"),
    "share of the budget": (
        {"epsilon": 2.0},
        nv.BudgetExceededError,
        "asks for epsilon=2",
    ),
    "share of delta": ({"delta": 0.1}, nv.BudgetExceededError, "delta=0.1"),
    "steps that cost more than there is": (
        {"noise_multiplier": 1.0, "num_steps": 1000},
        nv.BudgetExceededError,
        "(?s)1005 steps at noise_multiplier=1 cost.*fewer steps.*Nothing was charged",
    ),
    "steps that cost more than the share": (
        {"noise_multiplier": 30.0, "num_steps": 10, "epsilon": 0.01},
        nv.BudgetExceededError,
        "may spend 0.01",
    ),
    "part of a row": (
        {"sampling": nv.WithoutReplacement(0.11)},
        ValueError,
        r"whole number of rows.*WithoutReplacement\(6 / 60\) or \(7 / 60\)",
    ),
}


@pytest.mark.parametrize("case", BAD_SETTINGS.values(), ids=BAD_SETTINGS)
def test_bad_settings_are_refused_before_anything_is_spent(case, budget):
    settings, error, message = case
    with pytest.raises(error, match=message):
        fitted(logistic, X, Y, budget=budget, **settings)
    assert budget.spent() == (0.0, 0.0)


MOVED = {
    "sampling_rate": "sampling=nv.Poisson(0.1)",
    "relation": "sampling=nv.FullBatch(relation=",
    "accountant": "budget=nv.PrivacyBudget(epsilon, delta, accountant=",
    **dict.fromkeys(("step_size", "release_once", "structure"), "engine=nv.VIPS("),
    **dict.fromkeys(("augmentation", "local_steps"), "engine=nv.VIPS("),
    **dict.fromkeys(("guide", "optimizer", "loss"), "engine=nv.DPVI("),
    **dict.fromkeys(("perturb", "averaging"), "engine=nv.DPVI("),
    **dict.fromkeys(("learning_rate", "optim"), "engine=nv.DPVI(optimizer="),
    **dict.fromkeys(("batch_size", "subsample_size"), "sampling=nv.Poisson(0.1)"),
    "rng_key": "run(rng_key, X, y)",
    **dict.fromkeys(("unit", "public"), "nv.private(model, unit="),
}


@pytest.mark.parametrize(("name", "place"), MOVED.items())
def test_a_setting_of_another_object_is_sent_there(name, place, budget):
    expected = re.escape(f"PrivateVI has no {name}=: write {place}")
    with pytest.raises(TypeError, match=expected):
        fitted(logistic, X, Y, budget=budget, **{name: None})
    assert name not in inspect.signature(nv.PrivateVI).parameters


def test_an_unknown_setting_is_told_the_nearest_one_or_all(budget):
    with pytest.raises(TypeError, match=r"no num_step=\. Did you mean 'num_steps'\?"):
        fitted(logistic, X, Y, budget=budget, num_step=3)
    with pytest.raises(TypeError, match=r"no zzz=\. It has across=, budget=, "):
        fitted(logistic, X, Y, budget=budget, zzz=3)


def test_a_missing_ledger_is_told_apart_from_a_share_of_it():
    expected = r"needs budget=nv\.PrivacyBudget\(epsilon, delta\).*one fit's share"
    with pytest.raises(TypeError, match=expected):
        nv.PrivateVI(marked(logistic), epsilon=1.0, delta=1e-6)  # pyright: ignore


def test_a_delta_above_one_over_the_rows_is_warned_of_before_it_is_charged():
    budget = nv.PrivacyBudget(1.0, 0.1)
    with (
        warnings.catch_warnings(action="error"),
        pytest.raises(UserWarning, match=r"delta=0\.1 is not below"),
    ):
        fitted(logistic, X, Y, budget=budget, num_steps=1)
    assert not budget.charges


def test_a_prior_under_the_plate_of_individuals_is_warned_of(budget):
    def model(X, y):
        with numpyro.plate("patients", X.shape[0]):
            w = numpyro.sample("w", dist.Normal(0.0, 1.0))
            numpyro.sample("y", dist.Normal(X[:, 0] * w, 1.0), obs=y)

    with pytest.warns(UserWarning, match=r"nothing is fitted.*\('w'\).*outside"):
        fitted(model, X, Y, budget=budget)
    assert budget.spent().epsilon == 0.0


def test_a_model_whose_draws_are_fixed_is_refused(budget):
    with pytest.raises(TypeError, match=r"handlers\.seed.*keys of its own"):
        fitted(marked(numpyro.handlers.seed(logistic, 0)), X, Y, budget=budget)


def test_fits_with_equal_settings_can_be_recognised(budget):
    """They are values: a fit that was prepared can be found again by them."""

    def vi(**changes: Any) -> tuple:
        settings = {
            "engine": nv.VIPS(structure={"w": "diag"}),
            "sampling": nv.Poisson(0.1),
            "clipping_norm": {"⟨w⟩": 1.0, "⟨w w⟩": 2.0},
            "max_nonzeros": {"X": 2},
        }
        found = nv.PrivateVI(marked(logistic), budget=budget, **settings | changes)
        return found.engine, found.schedule_options, found.share, found.max_nonzeros

    assert len({vi(), vi(), vi(engine=nv.VIPS()), vi(sampling="full")}) == 3
    assert len({vi(), vi(clipping_norm={"⟨w w⟩": 2.0, "⟨w⟩": 1.0})}) == 1
    assert len({vi(), vi(clipping_norm=1.0), vi(num_steps=1), vi(epsilon=0.5)}) == 4


def test_a_column_of_labels_is_named_as_the_cause(budget):
    with pytest.raises(nv.UnsafeModelError, match=r"Of a column.*pass y\.ravel\(\)"):
        fitted(logistic, X, Y[:, None], budget=budget)
    assert budget.spent() == (0.0, 0.0)


@pytest.mark.thorough
def test_noise_may_be_asked_for_without_a_budget():
    """A ledger without an end holds no delta: the fit brings its own."""
    budget = nv.PrivacyBudget(math.inf)
    with pytest.raises(ValueError, match="Pass a delta"):
        fitted(logistic, X, Y, budget=budget, epsilon=1.0)
    result = fitted(logistic, X, Y, budget=budget, epsilon=1.0, delta=1e-6)
    assert 0.99 < result.privacy.epsilon <= 1.0
    assert result.privacy.delta == 1e-6
    assert result.privacy.platform == "cpu"


def test_model_and_budget_are_checked():
    budget = nv.PrivacyBudget(1.0, 1e-5)
    with pytest.raises(TypeError, match=r"got function.*@private"):
        nv.PrivateVI(logistic, budget=budget)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"got condition\. Mark the model last"):
        nv.PrivateVI(
            condition(marked(logistic), {}),  # type: ignore[arg-type]
            budget=budget,
        )
    with pytest.raises(TypeError, match="holds no model"):
        nv.PrivateVI(nv.private(unit="patients"), budget=budget)
    with pytest.raises(TypeError, match=r"got float\. Use PrivacyBudget"):
        nv.PrivateVI(marked(logistic), budget=1.0)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="marked"):
        nv.PrivateVI(budget, budget=marked(logistic))  # type: ignore[arg-type]
    for epsilon, delta in ((0.0, 1e-5), (-1.0, 1e-5), (1.0, 1.0), (1.0, 0.0)):
        with pytest.raises(ValueError, match=r"epsilon=|delta="):
            nv.PrivacyBudget(epsilon, delta)


def test_vips_is_not_replaced_silently(budget):
    with pytest.raises(nv.NotConjugateError, match=r"y: .*'probs'.*engine='dpvi'"):
        fitted(probit, X, Y, budget=budget, engine="vips")
    assert budget.spent() == (0.0, 0.0)


def test_several_rows_per_person_are_explained(repository):
    documented = (repository / "docs" / "models.md").read_text()
    assert "(one-row-per-unit)=" in documented
    for remedy in ("**Summarise.**", "**Choose.**", "**Pad.**"):
        assert remedy in documented
    visits, patients = np.zeros((90, 3), np.float32), np.zeros(30, np.float32)
    with pytest.raises(ValueError, match=r"several rows.*one row per.*docs/models\.md"):
        nv.PrivateVI(marked(logistic), budget=nv.PrivacyBudget(1.0, 1e-5)).explain(
            visits, patients
        )


# --- rows that count as zero ----------------------------------------------------------

BAD_VALUES = {
    "NaN feature": (np.nan, 1.0),
    "infinite feature": (np.inf, 1.0),
    "NaN label": (0.5, np.nan),
    "label 2": (0.5, 2.0),
    "label -1": (0.5, -1.0),
    "label 0.5": (0.5, 0.5),
}


@pytest.mark.quick_with("dpvi")
@pytest.mark.parametrize(
    ("fn", "options"),
    [(logistic, {}), (probit, {"num_steps": 20})],
    ids=["vips", "dpvi"],
)
def test_unusable_rows_count_as_zero_and_change_nothing_else(fn, options):
    vi = vi_of(marked(fn), budget=math.inf, num_rows=NUM_ROWS, **options)
    bad_X, bad_y = np.copy(X), np.copy(Y)
    count = len(BAD_VALUES)
    for row, (feature, label) in enumerate(BAD_VALUES.values()):
        bad_X[row, 1], bad_y[row] = feature, label
    found = vi.run(KEY, bad_X, bad_y)
    without = vi.run(KEY, X[count:], Y[count:])
    for name, value in found.params.items():
        np.testing.assert_allclose(
            value, without.params[name], rtol=2e-5, atol=2e-6, err_msg=name
        )


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
    assert caught[0].filename == __file__
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


# --- the same model in other words ----------------------------------------------------


def from_dict(batch):
    logistic(batch["X"], batch["y"])


def from_tuple(data):
    logistic(*data)


def with_public_prior(X, y, loc):
    w = numpyro.sample("w", dist.Normal(loc, 1.0).to_event(1))
    with numpyro.plate("patients", X.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=X @ w), obs=y)


def with_subsampling(X, y):
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    with numpyro.plate("patients", X.shape[0], subsample_size=7) as index:
        numpyro.sample("y", dist.Bernoulli(logits=X[index] @ w), obs=y[index])


def with_numpyro_subsample(X, y):
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    with numpyro.plate("patients", X.shape[0], subsample_size=7):
        rows = jnp.asarray(numpyro.subsample(X, event_dim=1))
        labels = numpyro.subsample(y, event_dim=0)
        numpyro.sample("y", dist.Bernoulli(logits=rows @ w), obs=labels)


def with_total(X, y, total):
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    with numpyro.plate("patients", total, subsample_size=X.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=X @ w), obs=y)


def with_visits(X, seen, y):
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    with (
        numpyro.plate("patients", X.shape[0], dim=-2),
        numpyro.plate("visit", X.shape[1], dim=-1),
        mask(mask=seen),
    ):
        numpyro.sample("y", dist.Bernoulli(logits=X @ w), obs=y)


class Network:
    """A model that is an object, with a float64 array of its own."""

    def __init__(self):
        self.scale = np.ones(3)

    def __call__(self, X, y=None):
        w = numpyro.sample("w", dist.Normal(0.0, self.scale).to_event(1))
        with numpyro.plate("patients", X.shape[0]):
            numpyro.sample("y", dist.Bernoulli(logits=X @ w), obs=y)

    @nv.private(unit="patients")
    def model(self, X, y=None):
        self(X, y)


def with_scale(scale, X, y=None):
    w = numpyro.sample("w", dist.Normal(0.0, scale).expand([3]).to_event(1))
    with numpyro.plate("patients", X.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=X @ w), obs=y)


def with_intercept(X, y=None):
    offset = numpyro.sample("offset", dist.Normal(0.0, 1.0))
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    with numpyro.plate("patients", X.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=X @ w + offset), obs=y)


TWICE = np.stack([X, np.full_like(X, 9.0)], 1), np.stack([Y, 1 - Y], 1)
SEEN = np.stack([np.ones(NUM_ROWS, bool), np.zeros(NUM_ROWS, bool)], 1)
IDIOMS: dict[str, tuple[Any, tuple]] = {
    "dict": (from_dict, ({"X": X, "y": Y},)),
    "tuple": (from_tuple, ((X, Y),)),
    "public array, float64": (
        marked(with_public_prior, public=("loc",)),
        (X, Y, np.zeros(3)),
    ),
    "subsample_size": (with_subsampling, (X, Y)),
    "numpyro.subsample": (with_numpyro_subsample, (X, Y)),
    "public total": (with_total, (X, Y, 1000)),
    "padded visits, dim=-2": (with_visits, (TWICE[0], SEEN, TWICE[1])),
    "callable object": (Network(), (X, Y)),
    "decorated method": (Network().model, (X, Y)),
    "partial": (functools.partial(with_scale, 1.0), (X, Y)),
    "do": (do(with_intercept, {"offset": 0.0}), (X, Y)),
    "CSR": (logistic, (scipy.sparse.csr_array(X), Y)),
    "integer labels": (logistic, (X, Y.astype(int))),
    "boolean labels, float64": (logistic, (X.astype(np.float64), Y > 0.5)),
    "JAX arrays": (logistic, (jnp.asarray(X), jnp.asarray(Y))),
}


@pytest.fixture(scope="module")
def reference() -> np.ndarray:
    return np.asarray(fitted(logistic, X, Y, num_steps=30).params["w/loc"])


# Rows of these forms are in other tests, too.
USUAL = ("tuple", "callable object", "integer labels", "JAX arrays")


@pytest.mark.thorough
@pytest.mark.parametrize(
    "idiom",
    [
        pytest.param(idiom, id=name, marks=pytest.mark.slow if name in USUAL else ())
        for name, idiom in IDIOMS.items()
    ],
)
def test_idioms_mean_the_same(idiom, reference):
    fn, args = idiom
    result = fitted(fn, *args, num_steps=30)
    assert result.engine == "vips"
    np.testing.assert_allclose(result.params["w/loc"], reference, atol=2e-4)


@pytest.mark.thorough
def test_keyword_arguments_and_names_in_the_statement():
    vi = vi_of(marked(with_public_prior, public=("loc",)))
    result = vi.run(KEY, y=Y, loc=np.zeros(3), X=X)
    assert "the argument 'loc'" in result.privacy.public
    held = fitted(Network(), X, Y, budget=nv.PrivacyBudget(1.0, 1e-5))
    assert any("'scale'" in fact for fact in held.privacy.public)
    assert "'scale'" in held.plan


@pytest.mark.thorough
@pytest.mark.parametrize("count", [1, pytest.param(2, marks=pytest.mark.slow), 3])
def test_few_rows_and_as_many_constants(count, budget):
    # Three rows and a prior of three numbers: nothing of it is private.
    def model(X, y):
        w = numpyro.sample("w", dist.Normal(np.zeros(3), jnp.ones(3)).to_event(1))
        with numpyro.plate("patients", X.shape[0]):
            numpyro.sample("y", dist.Bernoulli(logits=X @ w), obs=y)

    result = fitted(model, X[:count], Y[:count], budget=budget)
    assert np.all(np.isfinite(result.params["w/loc"]))


# --- DPVI -----------------------------------------------------------------------------


def network(X, y=None):
    first = numpyro.sample("first", dist.Normal(0.0, 1.0).expand([3, 2]).to_event(2))
    last = numpyro.sample("last", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    with numpyro.plate("patients", X.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=jnp.tanh(X @ first) @ last), obs=y)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "fn",
    [
        pytest.param(probit, id="probit"),
        pytest.param(network, id="network", marks=pytest.mark.slow),
    ],
)
def test_other_models_run_by_dpvi(fn, budget, tmp_path):
    many_X, many_y = rows(2000)
    result = fitted(fn, many_X, many_y, budget=budget, num_steps=60)
    assert result.engine == "dpvi"
    assert "VIPS cannot run it" in result.plan
    assert budget.spent().epsilon == pytest.approx(1.0, rel=1e-6)
    result.save(tmp_path / "fit.nc")
    draws = nv.load(tmp_path / "fit.nc").sample_posterior(KEY, (200,))
    again = result.sample_posterior(KEY, (200,))
    for name, draw in draws.items():
        np.testing.assert_array_equal(draw, again[name])
    predictive = numpyro.infer.Predictive(marked(fn), draws)
    probability = predictive(KEY, many_X)["y"].mean(0)
    # Better than always guessing the more frequent label.
    guessed = max(many_y.mean(), 1 - many_y.mean())
    assert ((probability > 0.5) == (many_y > 0.5)).mean() > guessed + 0.1


# --- importing ------------------------------------------------------------------------


@pytest.mark.thorough
def test_importing_loads_no_heavy_library(repository: Path):
    heavy = (
        "arviz",
        "scipy.stats",
        "xarray",
        "autodp",
        "dp_accounting",
        "matplotlib",
        "pandas",
        "narwhals",
    )
    code = (
        "import sys, numpyro; before = set(sys.modules); import numpyro_vips; "
        f"print([m for m in {heavy!r} if m in set(sys.modules) - before])"
    )
    output = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=repository,
    )
    assert output.stdout.strip() == "[]"

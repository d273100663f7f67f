"""What `PrivateVI` refuses before anything is spent."""

import dataclasses
import functools
import inspect
import math
import re
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
import scipy.sparse
from _models import logistic_of_patients as logistic
from _models import probit_of_patients as probit
from _small_fits import KEY, NUM_ROWS, X, Y, fitted, marked
from numpyro.handlers import condition, substitute

import numpyro_vips as nv


@pytest.fixture
def budget() -> nv.PrivacyBudget:
    return nv.PrivacyBudget(1.0, 1e-5)


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
        "(?s)1006 steps at noise_multiplier=1 cost.*fewer steps.*Nothing was charged",
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


def test_a_model_under_jit_is_refused_with_the_remedy() -> None:
    """NumPyro does not see what it samples."""
    budget = nv.PrivacyBudget(1.0, 1e-6)
    with pytest.raises(TypeError, match=r"under jax\.jit.*Pass it without"):
        fitted(marked(jax.jit(logistic)), X, Y, budget=budget)
    assert not budget.charges


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


@pytest.mark.parametrize(
    "name", ["budget", "clipping_norm", "epsilon", "sampling", "insecure_seed"]
)
def test_a_setting_that_is_set_afterwards_is_refused(name, budget):
    """It would be left unseen, or would not have been checked with the others."""
    vi = nv.PrivateVI(marked(logistic), budget=budget, epsilon=0.5)
    before = dict(vars(vi))
    with pytest.raises(AttributeError, match=f"cannot be changed, and '{name}'"):
        setattr(vi, name, nv.PrivacyBudget(math.inf))
    assert vars(vi) == before


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
    assert "## One row per unit\n" in documented
    for remedy in ("**Summarise.**", "**Choose.**", "**Pad.**"):
        assert remedy in documented
    visits, patients = np.zeros((90, 3), np.float32), np.zeros(30, np.float32)
    with pytest.raises(ValueError, match=r"several rows.*one row per.*docs/models\.md"):
        nv.PrivateVI(marked(logistic), budget=nv.PrivacyBudget(1.0, 1e-5)).explain(
            visits, patients
        )

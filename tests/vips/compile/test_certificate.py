"""The certificate: a rule that lies, or rows that act on each other, are caught."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _fits import vi_of
from _models import MODELS, UNIT, Rows, compiled, graph_of

import numpyro_vips as nv
from numpyro_vips.conjugacy.algebra import elementwise, forms
from numpyro_vips.conjugacy.densities import log_densities
from numpyro_vips.conjugacy.interpreter.values import as_form
from numpyro_vips.errors import NotConjugateError
from numpyro_vips.vips.compile.certificate import check_rows_are_separate


@pytest.mark.quick_with(
    "mixture",
    "gaussian_mean_precision",
    "logistic_gamma",
    "gamma_poisson",
    "gaussian_mean",
    "logistic_fixed",
    "linear_regression",
)
@pytest.mark.parametrize("name", MODELS)
def test_the_compiled_models_are_certified(name: str) -> None:
    """`compiled` raises if its log joint density differs from NumPyro's."""
    program = compiled(MODELS[name].fn, MODELS[name].rows(5))
    assert program.structure.statistics
    check_rows_are_separate(program.graph)


def _wrong_half(x: Any, rate: Any, *, augment: Any) -> forms.Form:
    rate = as_form(rate)
    return elementwise.log(rate) - 0.5 * (rate * x)


def _wrong_constant(x: Any, rate: Any, *, augment: Any) -> forms.Form:
    return log_densities.exponential(x, rate, augment=augment) + 1e-4


def _without_the_row(x: Any, rate: Any, *, augment: Any) -> forms.Form:
    rate = as_form(rate)
    return elementwise.log(rate) - rate + 0.0 * x


@pytest.mark.parametrize("lie", [_wrong_half, _wrong_constant, _without_the_row])
def test_a_wrong_log_density_is_caught(
    lie: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = MODELS["gamma_exponential"]
    compiled(model.fn, model.rows())
    monkeypatch.setitem(log_densities.REGISTRY, dist.Exponential, lie)
    with pytest.raises(NotConjugateError, match="and NumPyro's is") as caught:
        compiled(model.fn, model.rows())
    assert "certificate" in caught.value.reasons


def test_a_wrong_prior_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def unnormalised(
        x: forms.Form, concentration: Any, rate: Any, *, augment: Any, **_: Any
    ) -> forms.Form:
        a, b = as_form(concentration), as_form(rate)
        return (a - 1.0) * elementwise.log(x) - b * x

    monkeypatch.setitem(log_densities.REGISTRY, dist.Gamma, unnormalised)
    model = MODELS["gamma_poisson"]
    with pytest.raises(NotConjugateError, match="of the globals"):
        compiled(model.fn, model.rows())


def test_a_wrong_augmentation_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_half(x: Any, logits: Any, *, augment: Any) -> forms.Form:
        one = forms.number(1.0)
        return x * as_form(logits) + augment.logistic(as_form(logits), one)

    monkeypatch.setitem(log_densities.REGISTRY, dist.BernoulliLogits, without_half)
    model = MODELS["logistic_fixed"]
    with pytest.raises(NotConjugateError, match="of the rows"):
        compiled(model.fn, model.rows())


# --- rows that act on each other --------------------------------------------------


def _regression(change: Callable[[Any], Any]) -> Callable[..., None]:
    def model(X: Any, y: Any) -> None:
        w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
        X = change(X)
        with numpyro.plate(UNIT, X.shape[0]):
            numpyro.sample("y", dist.Bernoulli(logits=X @ w), obs=y)

    return model


ACROSS: dict[str, Callable[[Any], Any]] = {
    "mean": lambda X: X - X.mean(0),
    "standardised": lambda X: (X - X.mean(0)) / (1e-3 + X.std(0)),
    "cumulative sum": lambda X: jnp.cumsum(X, 0),
    "rolled": lambda X: jnp.roll(X, 1, axis=0),
    "difference to the first": lambda X: X - X[0],
    "sorted": lambda X: jnp.sort(X, axis=0),
    "ranks": lambda X: X.argsort(0).argsort(0).astype(X.dtype),
    "largest": lambda X: X / X.max(),
    "Gram matrix": lambda X: (X @ X.T) @ X,
    "number of rows": lambda X: X / X.shape[0],
}


@pytest.mark.parametrize("engine", ["auto", "vips", "dpvi"])
@pytest.mark.parametrize("name", ["mean", "cumulative sum"])
def test_every_engine_refuses_rows_that_act_on_each_other(
    name: str, engine: str
) -> None:
    X, y = MODELS["logistic_fixed"].rows()
    budget = nv.PrivacyBudget(1.0, 1e-5)
    model = nv.private(_regression(ACROSS[name]), unit=UNIT)
    with pytest.raises(nv.UnsafeModelError, match=r"rows"):
        vi_of(model, budget=budget, engine=engine).explain(X, y)
    assert not budget.charges


@pytest.mark.parametrize("name", ACROSS)
def test_functions_across_rows_are_refused(name: str) -> None:
    rows: Rows = MODELS["logistic_fixed"].rows()
    with pytest.raises(nv.UnsafeModelError):
        _, graph = graph_of(_regression(ACROSS[name]), rows)
        check_rows_are_separate(graph)


def test_a_likelihood_across_rows_is_refused() -> None:
    def model(y: Any) -> None:
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
        with numpyro.plate(UNIT, y.shape[0]):
            numpyro.factor("f", -((y - y.mean() - mu) ** 2))
            numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)

    _, graph = graph_of(model, MODELS["gaussian_mean"].rows())
    with pytest.raises(nv.UnsafeModelError, match="act on each other"):
        check_rows_are_separate(graph)


WITHIN: dict[str, Callable[[Any], Any]] = {
    "unit norm": lambda X: X / jnp.linalg.norm(X, axis=-1, keepdims=True),
    "own mean": lambda X: X - X.mean(-1, keepdims=True),
    "cumulative sum of a row": lambda X: jnp.cumsum(X, -1),
    "sorted row": lambda X: jnp.sort(X, axis=-1),
    "nonlinear features": lambda X: jnp.tanh(X) + X**3,
    "public centre": lambda X: X - np.array([0.1, 0.2, 0.3], np.float32),
}


@pytest.mark.parametrize("name", WITHIN)
def test_functions_of_single_rows_pass(name: str) -> None:
    program = compiled(_regression(WITHIN[name]), MODELS["logistic_fixed"].rows())
    check_rows_are_separate(program.graph)


def test_rows_that_act_on_each_other_are_seen_where_few_rows_are_valid() -> None:
    """Log densities of minus infinity are equal whatever the rows do."""

    def model(x: Any, y: Any) -> None:
        w = numpyro.sample("w", dist.Normal(0.0, 1.0))
        with numpyro.plate(UNIT, y.shape[0]):
            rate = jnp.exp(w * (x - x.mean()))
            numpyro.sample("y", dist.Pareto(2.0, rate), obs=y)

    x = np.linspace(0.0, 1.0, 5).astype(np.float32)
    _, graph = graph_of(model, (x, 2 + x))
    with pytest.raises(nv.UnsafeModelError, match="act on each other"):
        check_rows_are_separate(graph)


def _guessed(share: float) -> Callable[..., None]:
    """Answers that are a hidden class, or a guess."""

    def model(y: Any) -> None:
        guess = numpyro.sample("guess", dist.Dirichlet(jnp.ones(3)))
        theta = numpyro.sample("theta", dist.Beta(1.0, 1.0))
        with numpyro.plate(UNIT, y.shape[0]):
            z = numpyro.sample("z", dist.Categorical(jnp.full(3, 1 / 3)))
            s = numpyro.sample("s", dist.Bernoulli(theta))
            known = (1.0 - share) * jax.nn.one_hot(z, 3) + share / 3
            probs = jnp.where(s[..., None] == 0, known, guess)
            numpyro.sample("y", dist.Categorical(probs), obs=y)

    return model


def test_a_probability_of_zero_is_named_with_a_remedy_that_works() -> None:
    rows = (np.array([0, 1, 2, 2], np.int32),)
    with pytest.raises(NotConjugateError, match="a probability of zero") as caught:
        compiled(_guessed(0.0), rows)
    assert set(caught.value.reasons) == {"y"}
    assert "0.01 / n" in caught.value.reasons["y"]
    compiled(_guessed(0.01), rows)

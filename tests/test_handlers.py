import functools
import inspect
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.handlers import condition
from numpyro.infer import MCMC, NUTS, SVI, Predictive, Trace_ELBO
from numpyro.infer.autoguide import AutoNormal
from numpyro.infer.inspect import get_model_relations
from numpyro.infer.util import log_density
from numpyro.primitives import _PYRO_STACK

from numpyro_vips.handlers import private


def plain_model(X, y=None, *, prior_scale=2.0):
    """Logistic regression."""
    w = numpyro.sample("w", dist.Normal(0.0, prior_scale).expand([2]).to_event(1))
    with numpyro.plate("N", X.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=X @ w), obs=y)


@private(unit="N")
def decorated(X, y=None, *, prior_scale=2.0):
    """Logistic regression."""
    plain_model(X, y, prior_scale=prior_scale)


class Owner:
    def __init__(self, prior_scale):
        self.prior_scale = prior_scale

    @private(unit="N")
    def model(self, X, y=None):
        plain_model(X, y, prior_scale=self.prior_scale)

    def __call__(self, X, y=None):
        self.model(X, y)


SPELLINGS = {
    "decorator": decorated,
    "wrapper": private(plain_model, unit="N"),
    "two steps": private(unit="N")(plain_model),
    "method": Owner(2.0).model,
    "callable object": private(Owner(2.0), unit="N"),
    "partial": private(functools.partial(plain_model, prior_scale=2.0), unit="N"),
    "around a handler": private(condition(plain_model, {}), unit="N"),
    "under a handler": condition(private(plain_model, unit="N"), {}),
}


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(30, 2)).astype(np.float32)
    return X, (X[:, 0] > 0).astype(np.float32)


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_log_density_is_that_of_the_plain_model(spelling, data):
    params = {"w": jnp.array([0.5, -1.0])}
    expected, _ = log_density(plain_model, data, {}, params)
    actual, _ = log_density(SPELLINGS[spelling], data, {}, params)
    assert actual == expected


def test_as_context_manager_it_leaves_the_model_as_it_is(data):
    def model(X, y):
        with private(unit="N"):
            plain_model(X, y)

    params = {"w": jnp.array([0.5, -1.0])}
    expected, expected_sites = log_density(plain_model, data, {}, params)
    actual, sites = log_density(model, data, {}, params)
    assert actual == expected
    assert list(sites) == list(expected_sites)
    assert not _PYRO_STACK


def test_the_stack_is_clean_after_an_error_in_the_model():
    @private(unit="N")
    def broken():
        raise RuntimeError("inside the model")

    with pytest.raises(RuntimeError, match="inside the model"):
        broken()
    assert not _PYRO_STACK


@pytest.mark.slow
def test_nuts_draws_what_it_draws_for_the_plain_model(data):
    def draws(model):
        mcmc = MCMC(NUTS(model), num_warmup=20, num_samples=10, progress_bar=False)
        mcmc.run(jax.random.key(0), *data)
        return mcmc.get_samples()["w"]

    np.testing.assert_array_equal(draws(decorated), draws(plain_model))


@pytest.mark.thorough
def test_svi_and_predictive_do_what_they_do_for_the_plain_model(data):
    def fitted(model):
        guide = AutoNormal(model)
        optimizer = numpyro.optim.Adam(0.1)
        svi = SVI(model, guide, optimizer, Trace_ELBO())
        result = svi.run(jax.random.key(0), 20, *data, progress_bar=False)
        predictive = Predictive(model, guide=guide, params=result.params, num_samples=5)
        return result.params, predictive(jax.random.key(1), data[0])["y"]

    params, y = fitted(decorated)
    expected_params, expected_y = fitted(plain_model)
    for name, expected in expected_params.items():
        np.testing.assert_array_equal(params[name], expected)
    np.testing.assert_array_equal(y, expected_y)
    assert y.shape == (5, 30)


def test_render_model_sees_the_plain_model(data):
    expected = get_model_relations(plain_model, data)
    assert get_model_relations(decorated, data) == expected


def test_keeps_the_name_the_documentation_and_the_signature():
    assert decorated.__name__ == "decorated"
    assert decorated.__doc__ == "Logistic regression."
    assert inspect.signature(decorated) == inspect.signature(plain_model)
    assert list(inspect.signature(Owner(1.0).model).parameters) == ["X", "y"]


def test_knows_its_unit_its_public_names_and_its_model():
    model = private(plain_model, unit="N", public=("vocab", "batch.time"))
    assert (model.unit, model.public) == ("N", ("vocab", "batch.time"))
    assert model.fn is plain_model
    assert repr(model) == (
        "private(plain_model, unit='N', public=('vocab', 'batch.time'))"
    )


def test_methods_of_different_objects_are_kept_apart(data):
    params = {"w": jnp.array([0.5, -1.0])}
    wide, narrow = Owner(5.0), Owner(0.1)
    assert isinstance(wide.model, private)
    assert wide.model.unit == "N"
    for owner in (wide, narrow):
        expected, _ = log_density(
            plain_model, data, {"prior_scale": owner.prior_scale}, params
        )
        actual, _ = log_density(owner.model, data, {}, params)
        assert actual == expected


def test_one_marker_may_decorate_two_models():
    mark = private(unit="N")
    first, second = mark(plain_model), mark(Owner(1.0))
    assert first.fn is plain_model
    assert first is not second


# What a type checker would find, too.
untyped: Any = private


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: untyped(plain_model), TypeError, r'unit="patients"'),
        (lambda: untyped("N"), TypeError, r"private\(unit='N'\)"),
        (lambda: untyped(plain_model, unit=3), TypeError, "type int"),
        (lambda: untyped(plain_model, unit=""), ValueError, "name of a plate"),
        (lambda: untyped(3, unit="N"), TypeError, "type int"),
        (
            lambda: untyped(plain_model, unit="N", public="vocab"),
            TypeError,
            r"public=\('vocab',\)",
        ),
        (lambda: untyped(plain_model, unit="N", public=3), TypeError, "type int"),
        (
            lambda: untyped(plain_model, unit="N", public=(np.ones(3),)),
            TypeError,
            "not its value",
        ),
        (lambda: untyped(plain_model, unit="N", public=("",)), ValueError, "found ''"),
        (lambda: untyped(unit="N")(np.ones(3)), TypeError, "holds no model"),
        (lambda: untyped(unit="N")(), TypeError, "holds no model"),
    ],
)
def test_mistakes_are_explained(make, error, message):
    with pytest.raises(error, match=message):
        make()

"""One model in other words: arguments, plates and callables that mean the same."""

import functools
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
import scipy.sparse
from _fits import vi_of
from _models import logistic_of_patients as logistic
from _small_fits import KEY, NUM_ROWS, X, Y, fitted, marked
from numpyro.handlers import do, mask

import numpyro_vips as nv


@pytest.fixture
def budget() -> nv.PrivacyBudget:
    return nv.PrivacyBudget(1.0, 1e-5)


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

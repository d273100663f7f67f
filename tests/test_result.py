"""Results: draws, parameters, and what they say of themselves."""

import copy
import math
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _results import SITES, make_result
from numpyro.infer import Predictive

KEY = jax.random.key(0)


@pytest.fixture
def result():
    return make_result()


@pytest.mark.thorough
@pytest.mark.parametrize("sample_shape", [(), (5,), (2, 3)])
def test_draws_have_the_sample_shape_and_follow_the_key(result, sample_shape):
    draws = result.sample_posterior(KEY, sample_shape=sample_shape)
    again = result.sample_posterior(KEY, sample_shape=sample_shape)
    other = result.sample_posterior(jax.random.key(1), sample_shape=sample_shape)
    for name, (mean, _) in SITES.items():
        assert draws[name].shape == (*sample_shape, *mean.shape)
        np.testing.assert_array_equal(draws[name], again[name])
        assert not np.array_equal(draws[name], other[name])


@pytest.mark.thorough
def test_a_number_of_draws_is_asked_for_as_a_tuple(result):
    with pytest.raises(TypeError, match=r"sample_shape=\(100,\)"):
        result.sample_posterior(jax.random.key(0), 100)


@pytest.mark.parametrize(
    ("method", "given", "expected"),
    [
        (
            *("sample_posterior", {"num_samples": 100}),
            "has no num_samples=: write sample_shape=(1000,) for a thousand draws.",
        ),
        (
            *("sample_posterior", {}),
            "needs a key of jax.random: "
            "sample_posterior(jax.random.key(1), sample_shape=(1000,)).",
        ),
        ("sample_posterior", {"key": KEY}, "no key=. Did you mean 'rng_key'?"),
        ("sample_posterior", {"rng_key": 1}, "first argument of sample_posterior"),
        (
            "to_arviz",
            {"num_samples": 7},
            "to_arviz needs a key of jax.random: to_arviz",
        ),
        (
            "to_arviz",
            {"sample_shape": (7,)},
            "write num_samples=1000 and num_chains=1.",
        ),
        ("to_arviz", {"rng_key": 1}, "first argument of to_arviz to be a key"),
    ],
)
def test_who_gives_no_key_or_another_methods_keyword_is_told_what_to_pass(
    result, method, given, expected
):
    with pytest.raises(TypeError, match=re.escape(expected)):
        getattr(result, method)(**given)


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("get_samples", "write sample_posterior(jax.random.key(1)"),
        ("summary", "write print(result.uncertainty())"),
        ("epsilon", "write privacy.epsilon"),
        ("predict", "write numpyro.infer.Predictive(model, draws)"),
        ("nothing_like_it", "no attribute 'nothing_like_it'."),
    ],
)
def test_who_expects_another_librarys_names_is_told_what_there_is(
    result, name, instead
):
    with pytest.raises(AttributeError, match=re.escape(instead)):
        getattr(result, name)
    assert not hasattr(result, name) and hasattr(copy.copy(result), "privacy")


@pytest.mark.parametrize("kind", ["threefry2x32", "rbg"])
def test_a_key_as_words_draws_what_the_typed_one_does(result, kind):
    with jax.default_prng_impl(kind):
        words = jax.random.PRNGKey(3)
        expected = result.sample_posterior(jax.random.key(3), (4,))
        for key in (words, np.asarray(words)):
            for name, draws in result.sample_posterior(key, (4,)).items():
                np.testing.assert_array_equal(draws, expected[name])


def test_draws_go_into_predictive(result):
    def model(X, y=None):
        w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
        with numpyro.plate("patients", X.shape[0]):
            numpyro.sample("y", dist.Normal(X @ w, 0.01), obs=y)

    samples = {"w": result.sample_posterior(KEY, (50,))["w"]}
    y = Predictive(model, samples)(jax.random.key(2), jnp.eye(3))["y"]
    # Standard error 0.1 / sqrt(50); four of them.
    np.testing.assert_allclose(y.mean(0), SITES["w"][0], atol=0.06)


def test_params_hold_arrays_only(result):
    assert set(result.params) == {f"{n}.{p}" for n in SITES for p in ("mean", "scale")}
    assert all(isinstance(param, jax.Array) for param in result.params.values())


def test_the_representation_is_short_and_honest(result):
    assert repr(result) == (
        "PrivateVIResult(vips, epsilon=1, delta=1e-05, unit='patients', "
        "sites: alpha, w, loadings, net/bias)\n"
        "  warning: w is loose."
    )
    assert "NOT PRIVATE" in repr(make_result(epsilon=math.inf))


@pytest.mark.thorough
def test_importing_loads_neither_arviz_nor_xarray():
    code = (
        "import sys, numpyro; before = set(sys.modules); import numpyro_vips.result; "
        "print(sorted({'arviz', 'xarray'} & (set(sys.modules) - before)))"
    )
    printed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert printed.stdout.strip() == "[]"

"""Encoded rows know their columns; results of fits to them are decoded by name."""

import math

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
import xarray
from _fits import fit_to, vi_of
from _people import COLUMNS, SCHEMA, people

import numpyro_vips as nv
from numpyro_vips.schema.encoded_rows import EncodedRows


@nv.private(unit="people")
def model(X, y=None):
    b = numpyro.sample("b", dist.Normal(0.0, 3.0))
    with numpyro.plate("feature", X.shape[1]):
        w = numpyro.sample("w", dist.Normal(0.0, 3.0))
    # As many as there are columns, by chance.
    with numpyro.plate("five", 5):
        numpyro.sample("other", dist.Normal(0.0, 1.0))
    with numpyro.plate("people", X.shape[0]):
        numpyro.sample("y", dist.Normal(b + X @ w, 1.0), obs=y)


@pytest.fixture(scope="module")
def result() -> nv.PrivateVIResult:
    X = SCHEMA.encode(people(200))
    return fit_to(model, X, X[:, 0] + 0.5 * X[:, 2], budget=math.inf, num_steps=1)


@pytest.mark.thorough
def test_axes_are_labelled_whose_length_follows_the_columns(result, tmp_path):
    assert result.axis_labels == {"w": [list(COLUMNS)]}
    result.save(tmp_path / "fit.nc")
    for found in (result, nv.load(tmp_path / "fit.nc")):
        posterior = found.to_arviz(jax.random.key(1), num_samples=3).posterior
        assert tuple(posterior["feature"].values) == COLUMNS
        assert tuple(posterior["five"].values) == (0, 1, 2, 3, 4)
        named = found.to_arviz(jax.random.key(1), dims={"w": ["column"]}).posterior
        assert tuple(named["column"].values) == COLUMNS
    given = result.to_arviz(jax.random.key(1), coords={"feature": [*"vwxyz"]})
    assert tuple(given.posterior["feature"].values) == (*"vwxyz",)


@pytest.mark.thorough
def test_the_table_of_uncertainty_names_columns(result, tmp_path):
    result.save(tmp_path / "fit.nc")
    for found in (result, nv.load(tmp_path / "fit.nc")):
        printed = str(found.uncertainty())
        assert all(f"w[{column}]" in printed for column in COLUMNS)
        assert "other[0]" in printed


def test_a_result_holds_names_and_no_encoded_row(result):
    texts = [type(value).__name__ for value in vars(result).values()]
    assert EncodedRows.__name__ not in texts
    (columns,) = result.axis_labels["w"]
    assert all(isinstance(name, str) for name in columns)


@pytest.mark.thorough
def test_plain_arrays_and_fixed_widths_have_no_labels():
    @nv.private(unit="people")
    def five(X, y=None):
        w = numpyro.sample("w", dist.Normal(0.0, 3.0).expand([5]).to_event(1))
        with numpyro.plate("people", X.shape[0]):
            numpyro.sample("y", dist.Normal(X @ w, 1.0), obs=y)

    X = SCHEMA.encode(people(50))
    for fn, rows in ((five, X), (model, np.array(X))):
        vi = vi_of(fn, budget=math.inf, num_steps=1)
        assert vi.run(jax.random.key(0), rows, np.zeros(50)).axis_labels == {}


@pytest.mark.thorough
def test_axes_of_one_name_with_different_labels_have_none():
    @nv.private(unit="people")
    def both(X, Z, y=None):
        u = numpyro.sample("u", dist.Normal(0, 1).expand([X.shape[1]]).to_event(1))
        v = numpyro.sample("v", dist.Normal(0, 1).expand([Z.shape[1]]).to_event(1))
        with numpyro.plate("people", X.shape[0]):
            numpyro.sample("y", dist.Normal(X @ u + Z @ v, 1.0), obs=y)

    table = people(50)
    X, Z = SCHEMA.drop("age", "job").encode(table), SCHEMA.drop("age", "sex")
    vi = vi_of(both, budget=math.inf, num_steps=1)
    result = vi.run(jax.random.key(0), X, Z.encode(table), np.zeros(50))
    assert result.axis_labels == {
        "u": [["log(income)", "sex=m"]],
        "v": [["log(income)", "job=cook"]],
    }
    dims = {"u": ["column"], "v": ["column"]}
    posterior = result.to_arviz(jax.random.key(1), dims=dims).posterior
    assert tuple(posterior["column"].values) == (0, 1)


@pytest.mark.thorough
def test_a_result_is_decoded_as_its_draws_are(result):
    key = jax.random.key(1)
    decoded = SCHEMA.decode(result, "b", rng_key=key, num_samples=7)
    assert isinstance(decoded, xarray.Dataset)
    assert [*decoded] == [*COLUMNS, "intercept"]
    draws = result.sample_posterior(key, (1, 7))
    for name, values in SCHEMA.decode(draws["w"], draws["b"]).items():
        assert decoded[name].dims == ("chain", "draw")
        np.testing.assert_array_equal(decoded[name], values)
    idata = result.to_arviz(key, num_samples=7)
    for given in (idata, idata.posterior):
        xarray.testing.assert_identical(SCHEMA.decode(given, "b"), decoded)
    assert decoded.attrs["private"] == "false"
    without = SCHEMA.decode(idata, site="w")
    np.testing.assert_allclose(
        decoded["intercept"] - without["intercept"], draws["b"], rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({}, TypeError, "rng_key="),
        ({"rng_key": jax.random.key(0), "site": "b"}, ValueError, "site='b'"),
        ({"rng_key": jax.random.key(0), "intercept": "other"}, ValueError, "no axis"),
        ({"rng_key": jax.random.key(0), "intercept": [1.0]}, TypeError, "name of a"),
    ],
)
def test_what_cannot_be_decoded_is_an_error(result, arguments, error, message):
    with pytest.raises(error, match=message):
        SCHEMA.decode(result, **arguments)


def test_another_schema_does_not_decode(result):
    idata = result.to_arviz(jax.random.key(0))
    with pytest.raises(ValueError, match="found none"):
        SCHEMA.drop("age").decode(idata)
    with pytest.raises(TypeError, match="name of a site"):
        SCHEMA.decode(np.ones(5), "b")

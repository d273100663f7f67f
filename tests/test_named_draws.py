"""Draws with named axes, as ArviZ reads, prints and plots them."""

import json
import math
from typing import Any

import arviz as az
import jax
import jax.numpy as jnp
import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest
import xarray as xr
from _results import make_result

mpl.use("Agg")

KEY = jax.random.key(0)


@pytest.fixture
def result():
    return make_result()


def posterior_of(data: Any) -> xr.Dataset:
    posterior = data["posterior"]
    return posterior if isinstance(posterior, xr.Dataset) else posterior.to_dataset()


def groups_of(data: Any) -> list[str]:
    return list(data.children) if isinstance(data, xr.DataTree) else data.groups()


@pytest.mark.thorough
def test_axes_are_named_by_plates_and_coords(result):
    data = result.to_arviz(
        KEY, num_samples=20, num_chains=2, coords={"feature": ["age", "sex", "bmi"]}
    )
    posterior = posterior_of(data)
    assert {name: variable.dims[2:] for name, variable in posterior.items()} == {
        "alpha": (),
        "w": ("feature",),
        "loadings": ("feature", "loadings_dim_1"),
        "net.bias": ("net.unit",),
    }
    assert all(v.shape[:2] == (2, 20) for v in posterior.values())
    assert posterior["w"].dims[:2] == ("chain", "draw")
    draws = result.sample_posterior(KEY, (2, 20))
    np.testing.assert_array_equal(posterior["w"].sel(feature="bmi"), draws["w"][..., 2])
    np.testing.assert_array_equal(posterior["net.unit"], [0, 1])


@pytest.mark.thorough
def test_dims_may_be_renamed(result):
    data = result.to_arviz(
        KEY,
        num_samples=5,
        dims={"loadings": ["feature", "factor"], "net/bias": ["node"]},
        coords={"factor": ["f0", "f1"]},
    )
    posterior = posterior_of(data)
    assert posterior["loadings"].dims[2:] == ("feature", "factor")
    assert posterior["net.bias"].dims[2:] == ("node",)
    assert list(posterior["factor"].values) == ["f0", "f1"]


def test_plates_whose_names_are_taken_get_numbered_axes():
    sites = {"w": (jnp.zeros(3), ("draw",)), "v": (jnp.zeros((3, 2)), ("w", "p"))}
    posterior = posterior_of(make_result(sites).to_arviz(KEY, num_samples=4))
    assert posterior["w"].dims[2:] == ("w_dim_0",)
    assert posterior["v"].dims[2:] == ("v_dim_0", "p")


def test_only_the_posterior_is_there(result):
    assert [group.strip("/") for group in groups_of(result.to_arviz(KEY))] == [
        "posterior"
    ]


@pytest.mark.parametrize("epsilon", [1.0, math.inf])
def test_attributes_state_the_privacy(epsilon):
    data = make_result(epsilon=epsilon).to_arviz(KEY, num_samples=4)
    for attrs in (data.attrs, posterior_of(data).attrs):
        assert attrs["epsilon"] == epsilon
        assert attrs["private"] == ("true" if epsilon == 1.0 else "false")
        assert attrs["unit"] == "patients"
        assert attrs["relation"] == "add_or_remove"
        assert attrs["sampling"] == "full"
        assert attrs["engine"] == "vips"
        assert attrs["inference_library"] == "numpyro_vips"
        assert attrs["inference_library_version"]
        assert json.loads(attrs["diagnostics"])["warnings"] == ["w is loose."]
    assert data.attrs["delta"] == (1e-5 if epsilon == 1.0 else 0.0)


@pytest.mark.parametrize("epsilon", [1.0, math.inf])
def test_netcdf_keeps_what_arviz_got(tmp_path, epsilon):
    data = make_result(epsilon=epsilon).to_arviz(
        KEY, num_samples=7, coords={"feature": ["a", "b", "c"]}
    )
    path = tmp_path / "draws.nc"
    data.to_netcdf(path, engine="h5netcdf")
    loaded = az.from_netcdf(path)
    xr.testing.assert_equal(posterior_of(loaded), posterior_of(data))
    assert posterior_of(loaded).attrs["epsilon"] == epsilon
    assert loaded.attrs["sampling"] == "full"


@pytest.mark.filterwarnings("ignore:.*r_?hat.*")
def test_the_summary_is_right(result):
    data = result.to_arviz(
        KEY, num_samples=2000, num_chains=2, coords={"feature": ["a", "b", "c"]}
    )
    means = az.summary(data, round_to="none")["mean"].astype(float)
    expected = {"alpha": 0.5, "w[a]": 1.0, "w[c]": 3.0, "loadings[b, 1]": 3.0}
    for name, value in expected.items():
        # Standard error 0.1 / sqrt(4000); five of them.
        np.testing.assert_allclose(means[name], value, rtol=0, atol=0.008)


@pytest.mark.parametrize("plot", ["plot_forest", "plot_trace"])
def test_plots_are_drawn(result, plot):
    data = result.to_arviz(KEY, num_samples=50, coords={"feature": ["a", "b", "c"]})
    getattr(az, plot)(data, var_names=["w"])
    figure = plt.gcf()
    assert figure.axes
    figure.canvas.draw()
    plt.close("all")


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"coords": {"feature": ["a", "b"]}}, "Expected 3 labels.*'feature'.*got 2"),
        ({"coords": {"features": ["a"]}}, "names 'features'.*Did you mean 'feature'"),
        ({"coords": {"patients": range(100)}}, "names 'patients'.*Its axes are"),
        ({"dims": {"ww": ["a"]}}, "dims names 'ww'.*Did you mean 'w'"),
        ({"dims": {"w": ["a", "b"]}}, r"dims\['w'\] to be a list of at most 1"),
        ({"dims": {"w": "a"}}, r"dims\['w'\] to be a list"),
        ({"dims": {"w": ["draw"]}}, "differ from each other"),
        ({"dims": {"w": ["alpha"]}}, "differ from each other"),
        ({"dims": {"loadings": ["a", "a"]}}, "differ from each other"),
        ({"dims": {"net/bias": ["feature"]}}, "'feature' has length 3 in 'w' and 2"),
        ({"num_samples": 0}, "num_samples=0"),
        ({"num_chains": 1.5}, "num_chains=1.5"),
    ],
)
def test_mistakes_are_explained(result, kwargs, message):
    with pytest.raises(ValueError, match=message):
        result.to_arviz(KEY, **kwargs)

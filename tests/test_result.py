import dataclasses
import json
import math
import pickle
import subprocess
import sys
from typing import Any

import arviz as az
import jax
import jax.numpy as jnp
import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
import xarray as xr
from numpyro.infer import Predictive

from numpyro_vips import result as result_module
from numpyro_vips.accounting import GaussianEvent
from numpyro_vips.privacy.statement import PrivacyStatement
from numpyro_vips.result import MeanAndStddev, PrivateVIResult, load, register_posterior

mpl.use("Agg")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gaussians:
    """Independent Gaussians: the smallest posterior that keeps to the protocol."""

    params: dict[str, jax.Array]
    site_dims: dict[str, tuple[str, ...]]

    @property
    def specification(self):
        dims = {name: list(names) for name, names in self.site_dims.items()}
        return {"kind": "test gaussians", "site_dims": dims}

    def sample(self, rng_key, sample_shape):
        draws = {}
        for name in self.site_dims:
            rng_key, key = jax.random.split(rng_key)
            mean, scale = self.params[f"{name}.mean"], self.params[f"{name}.scale"]
            noise = jax.random.normal(key, (*sample_shape, *mean.shape))
            draws[name] = mean + scale * noise
        return draws

    def moments(self):
        return {
            name: MeanAndStddev(
                np.asarray(self.params[f"{name}.mean"]),
                np.asarray(self.params[f"{name}.scale"]),
            )
            for name in self.site_dims
        }

    def problems(self):
        return {}

    def weighable(self, rng_key, count):
        return None

    def local_posterior(self, query):
        return {}

    def elbo(self, query):
        return np.zeros(0)

    @classmethod
    def from_specification(cls, specification, params):
        dims = specification["site_dims"]
        return cls(
            params=dict(params),
            site_dims={name: tuple(names) for name, names in dims.items()},
        )


register_posterior("test gaussians", Gaussians)

SITES = {
    # name: (mean, plates)
    "alpha": (jnp.array(0.5), ()),
    "w": (jnp.array([1.0, -2.0, 3.0]), ("feature",)),
    "loadings": (jnp.arange(6.0).reshape(3, 2), ("feature",)),
    "net/bias": (jnp.array([7.0, 8.0]), ("net/unit",)),
}


def statement(epsilon=1.0):
    private = math.isfinite(epsilon)
    return PrivacyStatement(
        unit="patients",
        relation="add_or_remove",
        sampling="full",
        epsilon=epsilon,
        delta=1e-5 if private else 0.0,
        accountant="pld",
        events=(
            GaussianEvent(
                noise_stddev=4.0 if private else 0.0,
                sensitivity=1.0,
                relation="add_or_remove",
                sampling="full",
                sampling_rate=1.0,
                label="all",
            ),
        ),
        noise_source="the operating system",
        public=("vocabulary",),
        clipping_norm=1.0 if private else math.inf,
        engine="vips",
        platform="cpu",
        num_rows=100,
        num_rows_declared=False,
    )


def make_result(sites=SITES, epsilon=1.0):
    params = {}
    for name, (mean, _) in sites.items():
        params[f"{name}.mean"] = mean
        params[f"{name}.scale"] = jnp.full(mean.shape, 0.1)
    return PrivateVIResult(
        posterior=Gaussians(
            params=params, site_dims={name: dims for name, (_, dims) in sites.items()}
        ),
        privacy=statement(epsilon),
        engine="vips",
        plan="site  role\nw     global",
        settings={"num_steps": 10, "clipping_norm": math.inf},
        diagnostics={"warnings": ["w is loose."], "steps": 10},
        seconds={"compile": 1.5, "run": 2.0},
        _for_row_queries={"local_steps": 7, "structure": {"w": "diag"}},
    )


@pytest.fixture
def result():
    return make_result()


KEY = jax.random.key(0)


# Draws --------------------------------------------------------------------------


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


# ArviZ --------------------------------------------------------------------------


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


# Files --------------------------------------------------------------------------


@pytest.mark.quick_with(
    "?1?-format_version",
    "None-privacy_statement",
    "{-posterior_specification",
    "damage_truncated",
    "damage_one_digit",
    "damage_nothing_readable",
    "damage_entry_removed",
    "damage_other_json",
)
@pytest.mark.parametrize(
    "missing", ["format_version", "posterior_specification", "privacy_statement"]
)
@pytest.mark.parametrize("content", [None, "{}", "[1]", "{"])
def test_a_damaged_file_is_refused_by_name(missing, content, result, tmp_path):
    path = tmp_path / "fit.nc"
    result.save(str(path))
    dataset = xr.load_dataset(path, engine="h5netcdf")
    if content is None:
        del dataset.attrs[missing]
    else:
        dataset.attrs[missing] = content
    dataset.to_netcdf(path, engine="h5netcdf")
    with pytest.raises(ValueError) as error:
        load(path)
    assert str(path) in str(error.value)


def test_a_saved_result_is_the_same_when_loaded(result, tmp_path):
    path = tmp_path / "fit.nc"
    result.save(path)
    loaded = load(str(path))
    assert loaded.privacy.to_dict() == result.privacy.to_dict()
    assert loaded.privacy == result.privacy
    fields = "engine plan settings diagnostics seconds _for_row_queries"
    for field in fields.split():
        assert getattr(loaded, field) == getattr(result, field)
    assert loaded.posterior.specification == result.posterior.specification
    assert list(loaded.params) == list(result.params)
    expected = result.sample_posterior(KEY, (3,))
    for name, draw in loaded.sample_posterior(KEY, (3,)).items():
        np.testing.assert_array_equal(draw, expected[name])
    assert [file.name for file in tmp_path.iterdir()] == ["fit.nc"]


def test_files_of_the_first_format_have_what_rows_are_asked_with(result, tmp_path):
    """They kept the engine's settings beside the others."""
    path = tmp_path / "fit.nc"
    result.save(path)
    dataset = xr.load_dataset(path, engine="h5netcdf")
    del dataset.attrs["for_row_queries"]
    dataset.attrs["format_version"] = 1
    old = {"num_steps": 10, "local_steps": 7, "structure": {"w": "diag"}}
    dataset.attrs["settings"] = json.dumps(old)
    dataset.to_netcdf(path, engine="h5netcdf")
    loaded = load(path)
    assert dict(loaded._for_row_queries).items() >= result._for_row_queries.items()


def test_parameters_of_every_kind_are_kept(tmp_path):
    params = {
        "a/b.c": jnp.ones((2, 0)),
        "scalar": jnp.array(2.5),
        "integers": jnp.arange(3),
        "flags": jnp.array([True, False]),
        "": jnp.ones(1),
    }
    result = dataclasses.replace(
        make_result(), posterior=Gaussians(params=params, site_dims={})
    )
    result.save(tmp_path / "fit")
    loaded = load(tmp_path / "fit").params
    assert list(loaded) == list(params)
    for name, param in params.items():
        np.testing.assert_array_equal(loaded[name], param)
        assert loaded[name].dtype == param.dtype


def test_double_precision_is_kept(x64, tmp_path):
    result = make_result({"w": (jnp.array([1 / 3, 1e-300]), ("feature",))})
    result.save(tmp_path / "fit.nc")
    loaded = load(tmp_path / "fit.nc").params["w.mean"]
    assert loaded.dtype == np.float64
    np.testing.assert_array_equal(loaded, result.params["w.mean"])


def test_long_statements_fit_in(result, tmp_path):
    events = result.privacy.events * 500
    longer = dataclasses.replace(result.privacy, events=events, engine="dpvi")
    # Pricing 500 events is not the point here, and `to_dict` would do it.
    fields = {**result.privacy.to_dict(), "events": [e.to_dict() for e in events]}
    assert len(json.dumps(fields)) > 2**16

    class Quick(PrivacyStatement):
        def to_dict(self):
            return fields

    values = {f.name: getattr(longer, f.name) for f in dataclasses.fields(longer)}
    dataclasses.replace(result, privacy=Quick(**values)).save(tmp_path / "fit.nc")
    assert load(tmp_path / "fit.nc").privacy.events == events


def test_the_file_holds_no_pickle(result, tmp_path, monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("pickled")

    for name in ("dump", "dumps", "load", "loads"):
        monkeypatch.setattr(pickle, name, refuse)
    result.save(tmp_path / "fit.nc")
    assert load(tmp_path / "fit.nc").engine == "vips"


def test_a_failed_save_leaves_the_old_file(result, tmp_path):
    path = tmp_path / "fit.nc"
    result.save(path)
    before = path.read_bytes()
    with pytest.raises(TypeError, match="not JSON serializable"):
        dataclasses.replace(result, settings={"data": np.ones(3)}).save(path)
    broken = Gaussians(params={"w": np.array([object()])}, site_dims={})  # type: ignore[dict-item]
    with pytest.raises(Exception, match=r"object|dtype"):
        dataclasses.replace(result, posterior=broken).save(path)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["fit.nc"]


def test_files_that_are_no_results_are_refused(result, tmp_path):
    with pytest.raises(FileNotFoundError, match="no file"):
        load(tmp_path / "missing.nc")
    (tmp_path / "text.nc").write_text("text")
    with pytest.raises(ValueError, match="not a result saved by numpyro_vips"):
        load(tmp_path / "text.nc")
    result.to_arviz(KEY, num_samples=3).to_netcdf(tmp_path / "draws.nc")
    with pytest.raises(ValueError, match=r"arviz\.from_netcdf"):
        load(tmp_path / "draws.nc")


def test_files_of_unknown_kind_or_format_are_refused(result, tmp_path, monkeypatch):
    path = tmp_path / "fit.nc"
    result.save(path)
    monkeypatch.setattr(result_module, "_posteriors", {"other": Gaussians})
    with pytest.raises(ValueError, match="kind 'test gaussians', expected one of 'oth"):
        load(path)
    monkeypatch.setattr(result_module, "_FORMAT_VERSION", 0)
    with pytest.raises(ValueError, match="Upgrade numpyro_vips"):
        load(path)


def test_a_kind_belongs_to_one_class():
    register_posterior("test gaussians", Gaussians)
    with pytest.raises(ValueError, match="already belong to Gaussians"):
        register_posterior("test gaussians", type("Other", (Gaussians,), {}))


# Words --------------------------------------------------------------------------


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

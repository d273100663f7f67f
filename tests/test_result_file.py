"""Results in files: what is kept, what is refused."""

import dataclasses
import json
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from _results import Gaussians, make_result

from numpyro_vips import posterior as posterior_module
from numpyro_vips import result_file
from numpyro_vips.posterior import register_posterior
from numpyro_vips.privacy.statement import PrivacyStatement
from numpyro_vips.result import load

register_posterior("test gaussians", Gaussians)
KEY = jax.random.key(0)


@pytest.fixture
def result():
    return make_result()


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


def test_a_folder_that_there_is_not_is_named(result, tmp_path):
    with pytest.raises(
        FileNotFoundError, match=r"no folder '.*fits' to write 'fit.nc'"
    ):
        result.save(tmp_path / "fits" / "fit.nc")


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
    monkeypatch.setattr(posterior_module, "_posteriors", {"other": Gaussians})
    with pytest.raises(ValueError, match="kind 'test gaussians', expected one of 'oth"):
        load(path)
    for expected in (1, 3):
        monkeypatch.setattr(result_file, "_FORMAT_VERSION", expected)
        refusal = f"in format {expected}, got format 2, which numpyro_vips .* wrote"
        with pytest.raises(ValueError, match=refusal):
            load(path)


def test_a_kind_belongs_to_one_class():
    register_posterior("test gaussians", Gaussians)
    with pytest.raises(ValueError, match="already belong to Gaussians"):
        register_posterior("test gaussians", type("Other", (Gaussians,), {}))

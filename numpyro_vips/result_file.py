"""Results in netCDF files: arrays and JSON, nothing pickled, nothing executed."""

import json
import os
import secrets
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from numpyro_vips.errors import quoted
from numpyro_vips.model.facts.axis_labels import AxisLabels
from numpyro_vips.posterior import Posterior, registered_posteriors
from numpyro_vips.privacy.statement import PrivacyStatement

if TYPE_CHECKING:
    import xarray

_FORMAT = "numpyro_vips result"
_FORMAT_VERSION = 2


class SavedResult(NamedTuple):
    """What a file keeps of a result; see `PrivateVIResult` for the fields.

    Attributes:
      seconds: Without those of the steps, which may depend on the rows.
      for_row_queries: The engine's settings for queries about rows after the fit.
    """

    posterior: Posterior
    privacy: PrivacyStatement
    engine: str
    plan: str
    settings: Mapping[str, Any]
    diagnostics: Mapping[str, Any]
    seconds: Mapping[str, float]
    axis_labels: AxisLabels
    for_row_queries: Mapping[str, Any]


def write(path: str | os.PathLike[str], saved: SavedResult) -> None:
    """Writes a file that `read` reads.

    A file that is already there is replaced when the new one is complete.

    Raises:
      FileNotFoundError: The folder does not exist.
      TypeError: What should be JSON-able is not; the old file is as it was.
    """
    import xarray

    path = Path(path)
    if not path.parent.is_dir():
        raise FileNotFoundError(
            f"There is no folder {str(path.parent)!r} to write {path.name!r} to. Make "
            "it first, or choose another."
        )

    texts = {
        "privacy_statement": saved.privacy.to_dict(),
        "posterior_specification": dict(saved.posterior.specification),
        "settings": dict(saved.settings),
        "for_row_queries": dict(saved.for_row_queries),
        "diagnostics": dict(saved.diagnostics),
        "axis_labels": dict(saved.axis_labels),
        "seconds": dict(saved.seconds),
    }
    variables = {}
    # Names are attributes, since netCDF does not take every name of a site.
    for index, (name, param) in enumerate(saved.posterior.params.items()):
        variable = f"param_{index}"
        array = np.asarray(param)
        axes = [f"{variable}_dim_{axis}" for axis in range(array.ndim)]
        variables[variable] = (axes, array, {"name": name})
    dataset = xarray.Dataset(
        variables,
        attrs={
            "format": _FORMAT,
            "format_version": _FORMAT_VERSION,
            "numpyro_vips_version": version(),
            "engine": saved.engine,
            "plan": saved.plan,
            **{name: json.dumps(value) for name, value in texts.items()},
        },
    )
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        dataset.to_netcdf(temporary, engine="h5netcdf")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def read(path: str | os.PathLike[str]) -> SavedResult:
    """Reads a file that `write` has written.

    Raises:
      FileNotFoundError: There is no such file.
      ValueError: The file is no such result, is damaged, or has another format.
    """
    path = Path(path)
    try:
        return _read(path)
    except (KeyError, TypeError, AttributeError, json.JSONDecodeError) as error:
        raise ValueError(
            f"{str(path)!r} is damaged: what it holds is not what result.save(...) "
            "writes. Restore it from a copy."
        ) from error


def _read(path: Path) -> SavedResult:
    """What `write` has written.

    Raises:
      ValueError: Its format is another one, or its posterior is of a kind that nothing
        here has registered.
      KeyError, TypeError: It is no such file.
    """
    dataset = _dataset(path)
    found = json.loads(str(dataset.attrs["format_version"]))
    if found != _FORMAT_VERSION:
        by = f"numpyro_vips {dataset.attrs['numpyro_vips_version']}"
        raise ValueError(
            f"Expected {str(path)!r} in format {_FORMAT_VERSION}, got format {found}, "
            f"which {by} wrote. Read it with that version."
        )
    specification = json.loads(dataset.attrs["posterior_specification"])
    kind = specification.get("kind")
    posteriors = registered_posteriors()
    if kind not in posteriors:
        raise ValueError(
            f"{str(path)!r} holds a posterior of kind {kind!r}, expected one of "
            f"{quoted(posteriors)}. If an extension wrote it, import the extension "
            "first."
        )
    params = {
        variable.attrs["name"]: jnp.asarray(variable.values)
        for variable in dataset.data_vars.values()
    }
    statement = json.loads(dataset.attrs["privacy_statement"])
    return SavedResult(
        posterior=posteriors[kind].from_specification(specification, params),
        privacy=PrivacyStatement.from_dict(statement),
        engine=str(dataset.attrs["engine"]),
        plan=str(dataset.attrs["plan"]),
        settings=json.loads(dataset.attrs["settings"]),
        diagnostics=json.loads(dataset.attrs["diagnostics"]),
        axis_labels=json.loads(dataset.attrs["axis_labels"]),
        seconds=json.loads(dataset.attrs["seconds"]),
        for_row_queries=json.loads(dataset.attrs["for_row_queries"]),
    )


def _dataset(path: Path) -> "xarray.Dataset":
    """The file as it is, if it is a result at all."""
    import xarray

    if not path.exists():
        raise FileNotFoundError(f"There is no file {str(path)!r}.")
    try:
        dataset = xarray.load_dataset(path, engine="h5netcdf")
    except (OSError, ValueError):
        dataset = None
    if dataset is None or dataset.attrs.get("format") != _FORMAT:
        raise ValueError(
            f"{str(path)!r} is not a result saved by numpyro_vips. Expected a file "
            "written by result.save(...); files written by ArviZ hold draws only and "
            "are read by arviz.from_netcdf."
        )
    return dataset


def version() -> str:
    """The version of this package; "unknown" in a checkout that was never installed."""
    try:
        return metadata.version("numpyro_vips")
    except metadata.PackageNotFoundError:
        return "unknown"

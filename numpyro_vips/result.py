"""What a private fit returns: a posterior, its privacy statement and its settings.

A result holds released quantities only. There is no way from it back to the data: no
observed or constant data, no log likelihoods, no latent variables of single rows.
"""

import dataclasses
import json
import os
import secrets
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self

import jax
import jax.numpy as jnp
import numpy as np

from numpyro_vips import _html, _validate
from numpyro_vips.errors import did_you_mean, quoted
from numpyro_vips.handlers import private
from numpyro_vips.jax_tools.blas_threads import one_blas_thread
from numpyro_vips.model.arguments import bind_arguments
from numpyro_vips.model.axis_labels import AxisLabels
from numpyro_vips.model.row_queries import RowQuery
from numpyro_vips.privacy.statement import PrivacyStatement
from numpyro_vips.uncertainty import KnowsItsParts, Uncertainty, VarianceParts

if TYPE_CHECKING:
    import xarray

_FORMAT = "numpyro_vips result"
_FORMAT_VERSION = 2
_SAMPLE_DIMS = ("chain", "draw")
# What `to_arviz` keeps of the privacy statement.
_PRIVACY_ATTRIBUTES = (
    *("unit", "relation", "sampling", "epsilon", "delta", "accountant"),
    "noise_source",
)


class MeanAndStddev(NamedTuple):
    """Mean and standard deviation of a site's entries, each in the site's shape."""

    mean: np.ndarray
    stddev: np.ndarray


class Posterior(Protocol):
    """The distribution of the global latents, described by parameters alone."""

    @property
    def params(self) -> Mapping[str, jax.Array]:
        """Everything that `sample` needs, arrays only."""
        ...

    @property
    def specification(self) -> Mapping[str, Any]:
        """What the parameters mean, JSON-able, with the key `"kind"`."""
        ...

    @property
    def site_dims(self) -> Mapping[str, tuple[str, ...]]:
        """For each site the names of its leading axes, those of its plates."""
        ...

    def sample(
        self, rng_key: jax.Array, sample_shape: tuple[int, ...]
    ) -> dict[str, jax.Array]:
        """Independent draws of every global latent."""
        ...

    def moments(self) -> Mapping[str, MeanAndStddev]:
        """Mean and standard deviation of every entry of every global latent."""
        ...

    def problems(self) -> Mapping[str, str]:
        """By site, why it has no posterior: not finite, degenerate, no density."""
        ...

    def weighable(
        self, rng_key: jax.Array, count: int
    ) -> tuple[Mapping[str, jax.Array], jax.Array] | None:
        """Draws of every latent, along a first axis, and their log densities.

        None where nothing is to be learnt from weighing draws by the model's density,
        as of a posterior that was fitted to it.
        """
        ...

    def local_posterior(self, query: RowQuery) -> Mapping[str, Any]:
        """The posterior of the latents of rows that the caller may see."""
        ...

    def elbo(self, query: RowQuery) -> np.ndarray:
        """The bound on the log density of each row that the caller may see."""
        ...

    @classmethod
    def from_specification(
        cls, specification: Mapping[str, Any], params: Mapping[str, jax.Array]
    ) -> Self:
        """The inverse of `specification` and `params`."""
        ...


_posteriors: dict[str, type[Posterior]] = {}


def register_posterior(kind: str, cls: type[Posterior]) -> None:
    """Lets `load` read posteriors whose specification has this `"kind"`.

    Raises:
      ValueError: Another class has been registered for `kind`.
    """
    if _posteriors.setdefault(kind, cls) is not cls:
        raise ValueError(
            f"Posteriors of kind {kind!r} already belong to "
            f"{_posteriors[kind].__name__}."
        )


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class PrivateVIResult:
    """A fitted posterior and the guarantee under which it was released.

        >>> import math, pathlib, tempfile
        >>> import numpyro, numpyro.distributions as dist
        >>> import numpyro_vips as nv
        >>> @nv.private(unit="people")
        ... def model(y):
        ...     p = numpyro.sample("p", dist.Beta(1.0, 1.0))
        ...     with numpyro.plate("people", len(y)):
        ...         numpyro.sample("y", dist.Bernoulli(p), obs=y)
        >>> budget = nv.PrivacyBudget(math.inf)  # Prints the same anywhere.
        >>> vi = nv.PrivateVI(model, budget=budget, progress_bar=False)
        >>> result = vi.run(jax.random.key(0), np.repeat([0, 1], [9, 29]))
        >>> result
        PrivateVIResult(vips, NOT PRIVATE, sites: p)
        >>> {name: float(value) for name, value in result.params.items()}
        {'p/concentration0': 10.0, 'p/concentration1': 30.0}
        >>> result.sample_posterior(jax.random.key(1), sample_shape=(100,))["p"].shape
        (100,)
        >>> print(result.uncertainty())
           mean      sd  sd of the data alone  width due to privacy
        p  0.75  0.0676                0.0676                    0%
        >>> result.to_arviz(jax.random.key(1), num_samples=7).posterior["p"].shape
        (1, 7)
        >>> print(result.elbo(np.array([1])).round(3))  # Of a row that may be seen.
        [-0.292]
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     result.save(pathlib.Path(folder, "fit.nc"))
        ...     again = nv.load(pathlib.Path(folder, "fit.nc"), model=model)
        >>> again.local_posterior(np.array([1]))  # No row has a latent of its own.
        {}

    Attributes:
      posterior: The posterior of the global latents.
      privacy: The privacy statement.
      engine: `"vips"` or `"dpvi"`.
      plan: The table that `explain` printed.
      settings: The settings that were used, each once and JSON-able, by the keywords
        of `PrivateVI`: objects as the code that makes them, `num_steps` as planned,
        `max_nonzeros` by argument, None for what was left open. Of a seed it says
        whether there was one.
      diagnostics: What is known of how good the posterior is, JSON-able: whether the
        iterations came to an end, which bounds are loose, how the noise was read.
        Under privacy it is made of released numbers only. `"warnings"` is a list of
        sentences, empty if there is nothing to worry about.
      seconds: How long the fit took, by stage: planning, compiling and running. The
        last may depend on the rows and is not saved.
      axis_labels: By site, for each axis the names of what its entries belong to, such
        as the columns of an encoded table; None where there are none.
      model: The model as it was given, for `local_posterior` and `elbo`; None after
        `load` without it.
    """

    posterior: Posterior
    privacy: PrivacyStatement
    engine: str
    plan: str = ""
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    diagnostics: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    seconds: Mapping[str, float] = dataclasses.field(default_factory=dict)
    axis_labels: AxisLabels = dataclasses.field(default_factory=dict)
    model: private | None = None
    # The engine's settings that `local_posterior` and `elbo` go by, in a form that is
    # read, where `settings` has the code that people read.
    _for_row_queries: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    _programs: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def params(self) -> dict[str, jax.Array]:
        """The released parameters that `sample_posterior` needs, arrays only.

        >>> import math
        >>> import numpyro, numpyro.distributions as dist
        >>> import numpyro_vips as nv
        >>> @nv.private(unit="people")
        ... def model(y):
        ...     p = numpyro.sample("p", dist.Beta(1.0, 1.0))
        ...     with numpyro.plate("people", len(y)):
        ...         numpyro.sample("y", dist.Bernoulli(p), obs=y)
        >>> budget = nv.PrivacyBudget(math.inf)  # Prints the same anywhere.
        >>> vi = nv.PrivateVI(model, budget=budget, progress_bar=False)
        >>> result = vi.run(jax.random.key(0), np.repeat([0, 1], [9, 29]))
        >>> {name: float(value) for name, value in result.params.items()}
        {'p/concentration0': 10.0, 'p/concentration1': 30.0}
        """
        return dict(self.posterior.params)

    @one_blas_thread
    def sample_posterior(
        self, rng_key: jax.Array, sample_shape: tuple[int, ...] = ()
    ) -> dict[str, jax.Array]:
        """Draws independent samples of the global latents.

            >>> import math
            >>> import numpyro, numpyro.distributions as dist
            >>> import numpyro_vips as nv
            >>> @nv.private(unit="people")
            ... def model(y):
            ...     p = numpyro.sample("p", dist.Beta(1.0, 1.0))
            ...     with numpyro.plate("people", len(y)):
            ...         numpyro.sample("y", dist.Bernoulli(p), obs=y)
            >>> budget = nv.PrivacyBudget(math.inf)  # Prints the same anywhere.
            >>> vi = nv.PrivateVI(model, budget=budget, progress_bar=False)
            >>> result = vi.run(jax.random.key(0), np.repeat([0, 1], [9, 29]))
            >>> draws = result.sample_posterior(jax.random.key(1), sample_shape=(1000,))
            >>> draws["p"].shape, abs(float(draws["p"].mean()) - 0.75) < 0.01
            ((1000,), True)

        Args:
          rng_key: A key of `jax.random`.
          sample_shape: Leading axes of every site's draws.

        Returns:
          Draws by site, ready for `numpyro.infer.Predictive(model, samples)`.
        """
        return self.posterior.sample(rng_key, tuple(sample_shape))

    @one_blas_thread
    def uncertainty(self) -> Uncertainty:
        """How much of the posterior's width is due to data, and how much to privacy.

        Without noise nothing of it is due to privacy.

            >>> import math
            >>> import numpyro, numpyro.distributions as dist
            >>> import numpyro_vips as nv
            >>> @nv.private(unit="people")
            ... def model(y):
            ...     p = numpyro.sample("p", dist.Beta(1.0, 1.0))
            ...     with numpyro.plate("people", len(y)):
            ...         numpyro.sample("y", dist.Bernoulli(p), obs=y)
            >>> budget = nv.PrivacyBudget(math.inf)  # Prints the same anywhere.
            >>> vi = nv.PrivateVI(model, budget=budget, progress_bar=False)
            >>> result = vi.run(jax.random.key(0), np.repeat([0, 1], [9, 29]))
            >>> print(result.uncertainty())
               mean      sd  sd of the data alone  width due to privacy
            p  0.75  0.0676                0.0676                    0%

        Returns:
          The two parts of each global's variance; they print as a table.

        Raises:
          ValueError: The posterior cannot tell them apart.
        """
        if self.privacy.is_private and not isinstance(self.posterior, KnowsItsParts):
            raise ValueError(
                f"A posterior of the engine {self.engine!r} cannot tell noise from "
                "what the rows leave open."
            )
        moments = self.posterior.moments()
        parts = (
            self.posterior.variance_parts()
            if isinstance(self.posterior, KnowsItsParts)
            else {name: _of_data_alone(found) for name, found in moments.items()}
        )
        return Uncertainty(
            parts=parts,
            means={name: np.asarray(found.mean) for name, found in moments.items()},
            axis_labels=self.axis_labels,
        )

    @one_blas_thread
    def local_posterior(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """The posterior of the latents of rows that the caller may see.

        Test rows, or the caller's own: the answer is computed from the released
        posterior and from these rows alone, and is as private as they are. Never
        publish it for the rows of the fit.

            >>> import math
            >>> import numpyro, numpyro.distributions as dist
            >>> import numpyro_vips as nv
            >>> @nv.private(unit="people")
            ... def model(y):
            ...     p = numpyro.sample("p", dist.Beta(1.0, 1.0))
            ...     with numpyro.plate("people", len(y)):
            ...         z = numpyro.sample("z", dist.Bernoulli(p))
            ...         numpyro.sample("y", dist.Normal(4.0 * z, 1.0), obs=y)
            >>> budget = nv.PrivacyBudget(math.inf)  # Prints the same anywhere.
            >>> vi = nv.PrivateVI(model, budget=budget, progress_bar=False)
            >>> result = vi.run(jax.random.key(0), np.repeat([0.0, 4.0], [9, 29]))
            >>> z = result.local_posterior(np.array([0.0, 2.0, 4.0]))["z"]
            >>> [round(float(prob), 3) for prob in z.probs]
            [0.001, 0.756, 1.0]

        Args:
          *args: The model's arguments, with these rows.
          **kwargs: Likewise, by name.

        Returns:
          A NumPyro distribution for each latent with one entry per row, in the shape
          that it has in the model, and for each auxiliary variable, such as
          `"y:polya_gamma"`. Latents that share a factor, as in a hidden chain, come as
          their marginals.

        Raises:
          ValueError: The result was loaded without its model, or DPVI made it.
        """
        return dict(self.posterior.local_posterior(self._query(args, kwargs)))

    @one_blas_thread
    def elbo(self, *args: Any, **kwargs: Any) -> np.ndarray:
        """The bound on the log density of each row that the caller may see.

        It is E_q[log p(row, its latents | globals)] plus the entropy of the posterior
        of its latents, with q(globals) as released; the globals' own divergence from
        their prior is not in it. Perplexity is exp(-sum of bounds / number of tokens).
        VIPS has it in closed form, a factorised bound; DPVI averages the log density,
        its discrete latents summed out, over 100 fixed draws of the globals. What is
        said of `local_posterior` holds here too.

            >>> import math
            >>> import numpyro, numpyro.distributions as dist
            >>> import numpyro_vips as nv
            >>> @nv.private(unit="people")
            ... def model(y):
            ...     p = numpyro.sample("p", dist.Beta(1.0, 1.0))
            ...     with numpyro.plate("people", len(y)):
            ...         numpyro.sample("y", dist.Bernoulli(p), obs=y)
            >>> budget = nv.PrivacyBudget(math.inf)  # Prints the same anywhere.
            >>> vi = nv.PrivateVI(model, budget=budget, progress_bar=False)
            >>> result = vi.run(jax.random.key(0), np.repeat([0, 1], [9, 29]))
            >>> print(result.elbo(np.array([0, 1])).round(3))
            [-1.425 -0.292]

        Args:
          *args: The model's arguments, with these rows.
          **kwargs: Likewise, by name.

        Returns:
          Array of shape (number of rows,); not a number for a row that is not finite or
          lies outside the support.

        Raises:
          ValueError: The result was loaded without its model, or latents of a row have
            a guide of the user's own.
        """
        return self.posterior.elbo(self._query(args, kwargs))

    def _query(self, args: tuple, kwargs: Mapping[str, Any]) -> RowQuery:
        if self.model is None:
            raise ValueError(
                "The latents of a row follow from the model, and this result was "
                "loaded without it. Use load(path, model=model)."
            )
        return RowQuery(
            model=self.model,
            arguments=bind_arguments(self.model, args, dict(kwargs), num_rows=None),
            settings={
                **self._for_row_queries,
                "max_nonzeros": self.settings.get("max_nonzeros", {}),
            },
            programs=self._programs,
        )

    def to_arviz(
        self,
        rng_key: jax.Array,
        *,
        num_samples: int = 1000,
        num_chains: int = 1,
        coords: Mapping[str, Sequence[Any]] | None = None,
        dims: Mapping[str, Sequence[str]] | None = None,
    ) -> Any:
        """Draws from the posterior, in ArviZ's format.

        Axes under a plate bear the plate's name; other axes are called
        `{site}_dim_{axis}`, as in ArviZ. Entries that belong to columns that
        `Schema.encode` made are labelled with their names. A `/` in a name, which
        netCDF does not allow, becomes a `.`. The privacy facts are attributes. The
        draws are independent, so chains are alike by construction and say nothing
        about convergence; the attribute `diagnostics`, JSON, does.

            >>> import math
            >>> import numpyro, numpyro.distributions as dist
            >>> import numpyro_vips as nv
            >>> @nv.private(unit="people")
            ... def model(y):
            ...     p = numpyro.sample("p", dist.Beta(1.0, 1.0))
            ...     with numpyro.plate("people", len(y)):
            ...         numpyro.sample("y", dist.Bernoulli(p), obs=y)
            >>> budget = nv.PrivacyBudget(math.inf)  # Prints the same anywhere.
            >>> vi = nv.PrivateVI(model, budget=budget, progress_bar=False)
            >>> result = vi.run(jax.random.key(0), np.repeat([0, 1], [9, 29]))
            >>> data = result.to_arviz(jax.random.key(1), num_samples=7, num_chains=2)
            >>> data.posterior["p"].shape, data.posterior.attrs["private"]
            ((2, 7), 'false')

        Args:
          rng_key: A key of `jax.random`.
          num_samples: Draws per chain.
          num_chains: Number of chains.
          coords: Labels of an axis, by the axis' name.
          dims: Names of a site's axes, from the left, in place of the default ones.

        Returns:
          `arviz.InferenceData` with arviz 0.x, `xarray.DataTree` with arviz 1.x.

        Raises:
          ValueError: `coords` or `dims` do not fit the posterior.
        """
        _validate.positive_integer(num_samples=num_samples, num_chains=num_chains)
        # Both take long to import, and fitting needs neither.
        import arviz
        import xarray

        draws = self.sample_posterior(rng_key, (num_chains, num_samples))
        posterior = _named_dataset(
            {name: np.asarray(draw) for name, draw in draws.items()},
            self.posterior.site_dims,
            coords or {},
            dims or {},
            self.axis_labels,
        )
        attributes = self._attributes()
        posterior.attrs.update(attributes)
        if int(arviz.__version__.split(".")[0]) >= 1:
            tree = xarray.DataTree.from_dict({"posterior": posterior})
            tree.attrs.update(attributes)
            return tree
        return arviz.InferenceData(posterior=posterior, attrs=attributes)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the result to a netCDF file, which `load` reads.

        The file holds arrays and JSON, nothing pickled. A file that is already there
        is replaced when the new one is complete.

            >>> import pathlib, tempfile
            >>> import math
            >>> import numpyro, numpyro.distributions as dist
            >>> import numpyro_vips as nv
            >>> @nv.private(unit="people")
            ... def model(y):
            ...     p = numpyro.sample("p", dist.Beta(1.0, 1.0))
            ...     with numpyro.plate("people", len(y)):
            ...         numpyro.sample("y", dist.Bernoulli(p), obs=y)
            >>> budget = nv.PrivacyBudget(math.inf)  # Prints the same anywhere.
            >>> vi = nv.PrivateVI(model, budget=budget, progress_bar=False)
            >>> result = vi.run(jax.random.key(0), np.repeat([0, 1], [9, 29]))
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     result.save(pathlib.Path(folder, "fit.nc"))
            ...     again = nv.load(pathlib.Path(folder, "fit.nc"))
            >>> again
            PrivateVIResult(vips, NOT PRIVATE, sites: p)
        """
        import xarray

        texts = {
            "privacy_statement": self.privacy.to_dict(),
            "posterior_specification": dict(self.posterior.specification),
            "settings": dict(self.settings),
            "for_row_queries": dict(self._for_row_queries),
            "diagnostics": dict(self.diagnostics),
            "axis_labels": dict(self.axis_labels),
            # How long rows took is theirs.
            "seconds": {k: v for k, v in self.seconds.items() if k != "running"},
        }
        variables = {}
        # Names are attributes, since netCDF does not take every name of a site.
        for index, (name, param) in enumerate(self.params.items()):
            variable = f"param_{index}"
            array = np.asarray(param)
            axes = [f"{variable}_dim_{axis}" for axis in range(array.ndim)]
            variables[variable] = (axes, array, {"name": name})
        dataset = xarray.Dataset(
            variables,
            attrs={
                "format": _FORMAT,
                "format_version": _FORMAT_VERSION,
                "numpyro_vips_version": _version(),
                "engine": self.engine,
                "plan": self.plan,
                **{name: json.dumps(value) for name, value in texts.items()},
            },
        )
        path = Path(path)
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
        try:
            dataset.to_netcdf(temporary, engine="h5netcdf")
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)

    def _attributes(self) -> dict[str, str | float]:
        """What attributes of draws say, as netCDF takes it: strings and numbers."""
        facts = {name: getattr(self.privacy, name) for name in _PRIVACY_ATTRIBUTES}
        return {
            "inference_library": "numpyro_vips",
            "inference_library_version": _version(),
            "engine": self.engine,
            "private": str(self.privacy.is_private).lower(),
            "diagnostics": json.dumps(dict(self.diagnostics)),
            **facts,
        }

    def __repr__(self) -> str:
        return "\n".join([self._headline(), *(f"  {w}" for w in self._warnings())])

    def _repr_html_(self) -> str:
        """The same for notebooks, with the statement and the plan to be opened."""
        return (
            _html.heading(self._headline())
            + _html.bullets(self._warnings())
            + _html.folded("Privacy statement", _html.preformatted(str(self.privacy)))
            + _html.folded("Plan", _html.preformatted(self.plan))
        )

    def _headline(self) -> str:
        if self.privacy.is_private:
            guarantee = f"epsilon={self.privacy.epsilon:.6g}, "
            guarantee += f"delta={self.privacy.delta:.3g}, unit={self.privacy.unit!r}"
        else:
            guarantee = "NOT PRIVATE"
        sites = ", ".join(self.posterior.site_dims)
        return f"PrivateVIResult({self.engine}, {guarantee}, sites: {sites})"

    def _warnings(self) -> list[str]:
        return [f"warning: {text}" for text in self.diagnostics.get("warnings", ())]


def load(
    path: str | os.PathLike[str], *, model: private | None = None
) -> PrivateVIResult:
    """Reads a result that `PrivateVIResult.save` has written.

    Nothing in the file is executed.

        >>> import pathlib, tempfile
        >>> import math
        >>> import numpyro, numpyro.distributions as dist
        >>> import numpyro_vips as nv
        >>> @nv.private(unit="people")
        ... def model(y):
        ...     p = numpyro.sample("p", dist.Beta(1.0, 1.0))
        ...     with numpyro.plate("people", len(y)):
        ...         numpyro.sample("y", dist.Bernoulli(p), obs=y)
        >>> budget = nv.PrivacyBudget(math.inf)  # Prints the same anywhere.
        >>> vi = nv.PrivateVI(model, budget=budget, progress_bar=False)
        >>> result = vi.run(jax.random.key(0), np.repeat([0, 1], [9, 29]))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     result.save(pathlib.Path(folder, "fit.nc"))
        ...     again = nv.load(pathlib.Path(folder, "fit.nc"), model=model)
        >>> again.settings["engine"], float(again.params["p/concentration1"])
        ('VIPS()', 30.0)
        >>> bool((again.elbo(np.array([1])) == result.elbo(np.array([1]))).all())
        True

    Args:
      path: The file.
      model: The model that was fitted, which no file holds. Only `local_posterior` and
        `elbo` need it.

    Raises:
      FileNotFoundError: There is no such file.
      ValueError: The file is no such result, is damaged, or comes from a newer
        version.
    """
    path = Path(path)
    try:
        return _load(path, model)
    except (KeyError, TypeError, AttributeError, json.JSONDecodeError) as error:
        raise ValueError(
            f"{str(path)!r} is damaged: what it holds is not what result.save(...) "
            "writes. Restore it from a copy."
        ) from error


def _load(path: Path, model: private | None) -> PrivateVIResult:
    """A result from a file that `save` has written.

    Raises:
      ValueError: Its format is newer than this version, or its posterior is of a kind
        that nothing here has registered.
      KeyError, TypeError: It is no such file.
    """
    dataset = _read(path)
    version = json.loads(str(dataset.attrs["format_version"]))
    if not isinstance(version, int):
        raise TypeError("The format's version is a whole number.")
    if version > _FORMAT_VERSION:
        raise ValueError(
            f"{str(path)!r} was written by numpyro_vips "
            f"{dataset.attrs['numpyro_vips_version']} in format {version}; this "
            f"version reads up to format {_FORMAT_VERSION}. Upgrade numpyro_vips."
        )
    specification = json.loads(dataset.attrs["posterior_specification"])
    kind = specification.get("kind")
    if kind not in _posteriors:
        raise ValueError(
            f"{str(path)!r} holds a posterior of kind {kind!r}, expected one of "
            f"{quoted(_posteriors)}. If an extension wrote it, import the extension "
            "first."
        )
    params = {
        variable.attrs["name"]: jnp.asarray(variable.values)
        for variable in dataset.data_vars.values()
    }
    statement = json.loads(dataset.attrs["privacy_statement"])
    return PrivateVIResult(
        posterior=_posteriors[kind].from_specification(specification, params),
        privacy=PrivacyStatement.from_dict(statement),
        engine=str(dataset.attrs["engine"]),
        plan=str(dataset.attrs["plan"]),
        settings=json.loads(dataset.attrs["settings"]),
        # Files from before there were any have none.
        diagnostics=json.loads(dataset.attrs.get("diagnostics", "{}")),
        axis_labels=json.loads(dataset.attrs.get("axis_labels", "{}")),
        seconds=json.loads(dataset.attrs["seconds"]),
        model=model,
        # The first format had these among the settings.
        _for_row_queries=json.loads(
            dataset.attrs["settings" if version == 1 else "for_row_queries"]
        ),
    )


def _read(path: Path) -> "xarray.Dataset":
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


def _of_data_alone(moments: MeanAndStddev) -> VarianceParts:
    variance = np.asarray(moments.stddev) ** 2
    return VarianceParts(data=variance, privacy=np.zeros_like(variance))


# Names of axes ------------------------------------------------------------------


def _named_dataset(
    draws: Mapping[str, np.ndarray],
    site_dims: Mapping[str, tuple[str, ...]],
    coords: Mapping[str, Sequence[Any]],
    dims: Mapping[str, Sequence[str]],
    axis_labels: AxisLabels,
) -> "xarray.Dataset":
    """Puts draws, with axes (chain, draw, ...), into a dataset with named axes."""
    import xarray

    draws = {_safe(name): draw for name, draw in draws.items()}
    site_dims = {_safe(name): names for name, names in site_dims.items()}
    dims = {_safe(name): names for name, names in dims.items()}
    _check_known("dims", dims, draws, "sites")
    axes = {
        name: _axes(name, draw.ndim - 2, site_dims.get(name, ()), dims.get(name), draws)
        for name, draw in draws.items()
    }
    lengths: dict[str, int] = {}
    first: dict[str, str] = {}
    for name, draw in draws.items():
        for axis, length in zip(axes[name], draw.shape[2:], strict=True):
            first.setdefault(axis, name)
            if lengths.setdefault(axis, length) != length:
                raise ValueError(
                    f"The axis {axis!r} has length {lengths[axis]} in {first[axis]!r} "
                    f"and {length} in {name!r}. Give one of them another name with "
                    f"dims={{{name!r}: [...]}}."
                )
    coords = {_safe(name): labels for name, labels in coords.items()}
    _check_known("coords", coords, lengths, "axes")
    for axis, labels in coords.items():
        if len(labels) != lengths[axis]:
            raise ValueError(
                f"Expected {lengths[axis]} labels in coords for the axis {axis!r} of "
                f"{first[axis]!r}, got {len(labels)}."
            )
    chains, samples = next(iter(draws.values())).shape[:2] if draws else (0, 0)
    labels = {axis: np.arange(length) for axis, length in lengths.items()}
    labels |= _known_labels(axes, axis_labels)
    labels |= {axis: np.asarray(given) for axis, given in coords.items()}
    labels |= {"chain": np.arange(chains), "draw": np.arange(samples)}
    variables = {
        name: ((*_SAMPLE_DIMS, *axes[name]), draw) for name, draw in draws.items()
    }
    return xarray.Dataset(variables, coords=labels)


def _known_labels(
    axes: Mapping[str, Sequence[str]], axis_labels: AxisLabels
) -> dict[str, np.ndarray]:
    """By the name of an axis what numbers its entries, where all sites agree."""
    found: dict[str, set[tuple[str, ...] | None]] = {}
    by_site = {_safe(site): labels for site, labels in axis_labels.items()}
    for site, names in axes.items():
        known = by_site.get(site) or [None] * len(names)
        for name, labels in zip(names, known, strict=True):
            mine = None if labels is None else tuple(labels)
            found.setdefault(name, set()).add(mine)
    return {
        name: np.asarray(labels)
        for name, (labels, *others) in found.items()
        if labels is not None and not others
    }


def _axes(
    site: str,
    count: int,
    plates: Sequence[str],
    given: Sequence[str] | None,
    sites: Iterable[str],
) -> list[str]:
    """Names for a site's axes: the caller's, else its plates', else numbered ones."""
    taken = {*_SAMPLE_DIMS, *sites}
    numbered = [f"{site}_dim_{axis}" for axis in range(count)]
    if given is None:
        names = [_safe(plate) for plate in plates[:count]]
        # A plate may bear a name that ArviZ needs for something else.
        names = [
            default if name in taken or name in names[:axis] else name
            for axis, (name, default) in enumerate(zip(names, numbered, strict=False))
        ]
        return names + numbered[len(names) :]
    if isinstance(given, str) or len(given) > count:
        raise ValueError(
            f"Expected dims[{site!r}] to be a list of at most {count} names, one for "
            f"each axis of {site!r}, got {given!r}."
        )
    names = [_safe(name) for name in given]
    if taken.intersection(names) or len(set(names)) < len(names):
        raise ValueError(
            f"Expected dims[{site!r}] to be names that differ from each other, from "
            f"'chain' and 'draw' and from the sites' names, got {given!r}."
        )
    return names + numbered[len(names) :]


def _check_known(
    argument: str, given: Iterable[str], known: Mapping[str, Any], what: str
) -> None:
    for name in given:
        if name not in known:
            hint = f"{did_you_mean(name, known)} Its {what} are {quoted(known)}."
            raise ValueError(
                f"{argument} names {name!r}, which the posterior does not have. "
                f"{hint.lstrip()}"
            )


def _safe(name: str) -> str:
    return name.replace("/", ".")


def _version() -> str:
    try:
        return metadata.version("numpyro_vips")
    except metadata.PackageNotFoundError:  # A checkout that was never installed.
        return "unknown"

"""What a private fit returns: a posterior, its privacy statement and its settings.

A result holds released quantities only. There is no way from it back to the data: no
observed or constant data, no log likelihoods, no latent variables of single rows.
"""

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from numpyro_vips import _html, _validate, result_file
from numpyro_vips._keywords import needing_key, no_attribute
from numpyro_vips.handlers import private
from numpyro_vips.jax_tools.entry_points import computing
from numpyro_vips.jax_tools.random_keys import single_key
from numpyro_vips.model.arguments import bind_arguments
from numpyro_vips.model.facts.axis_labels import AxisLabels
from numpyro_vips.model.row_queries import RowQuery
from numpyro_vips.named_draws import named_dataset
from numpyro_vips.posterior import MeanAndStddev, Posterior

# Extensions have registered their posteriors by this name, too.
from numpyro_vips.posterior import register_posterior as register_posterior
from numpyro_vips.privacy.statement import PrivacyStatement
from numpyro_vips.result_file import SavedResult
from numpyro_vips.uncertainty import KnowsItsParts, Uncertainty, VarianceParts

# What `to_arviz` keeps of the privacy statement.
_PRIVACY_ATTRIBUTES = (
    *("unit", "relation", "sampling", "epsilon", "delta", "accountant"),
    "noise_source",
)
_DRAWS = "sample_posterior(jax.random.key(1), sample_shape=(1000,))"
_SUMMARY = "print(result.uncertainty())"
# What there is for those who know the results of other libraries.
_OTHER_NAMES = {
    **dict.fromkeys(("get_samples", "samples", "sample"), _DRAWS),
    **dict.fromkeys(("summary", "print_summary", "mean", "std", "sd"), _SUMMARY),
    **{name: f"privacy.{name}" for name in ("epsilon", "delta")},
    "predict": "numpyro.infer.Predictive(model, draws), with draws by " + _DRAWS,
}


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

    @needing_key(
        "sample_posterior(jax.random.key(1), sample_shape=(1000,))",
        num_samples="sample_shape=(1000,) for a thousand draws",
        num_chains="sample_shape=(4, 1000) for four chains",
    )
    @computing
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

        Raises:
          TypeError: `sample_shape` is a number, or there is no key.
        """
        rng_key = single_key(rng_key, "sample_posterior(rng_key, sample_shape)")
        if np.ndim(sample_shape) == 0:
            raise TypeError(
                f"Expected sample_shape={sample_shape!r} to be a tuple, as in "
                f"sample_shape=({sample_shape!r},)."
            )
        return self.posterior.sample(rng_key, tuple(sample_shape))

    # A type checker would take whatever is misspelt for an attribute.
    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Tells those who expect other names what there is in their place."""
            raise no_attribute(self, name, _OTHER_NAMES)

    @computing
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
          ValueError: The posterior cannot tell them apart, as under DPVI where it does
            not allow for the noise, see docs/intervals.md.
        """
        if self.privacy.is_private and not isinstance(self.posterior, KnowsItsParts):
            raise ValueError(
                f"The posterior, of the engine {self.engine!r}, does not allow for the "
                "noise, so what noise adds to its widths is not known. print(result) "
                "has what the fit warned of, and docs/intervals.md which fits allow "
                "for it. Means and widths as they are: to_arviz(jax.random.key(1))."
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

    @computing
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
            [0.001, 0.758, 1.0]

        Args:
          *args: The model's arguments, with these rows.
          **kwargs: Likewise, by name.

        Returns:
          A NumPyro distribution for each latent with one entry per row, in the shape
          that it has in the model, and for each auxiliary variable, such as
          `"y:polya_gamma"`. Latents that share a factor, as in a hidden chain, come as
          their marginals.

        Raises:
          ValueError: The result was loaded without its model; or DPVI made it, and VIPS
            cannot run the model.
        """
        return dict(self.posterior.local_posterior(self._query(args, kwargs)))

    @computing
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

    @needing_key(
        "to_arviz(jax.random.key(1), num_samples=1000)",
        sample_shape="num_samples=1000 and num_chains=1",
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
          TypeError: There is no key.
          ValueError: `coords` or `dims` do not fit the posterior.
        """
        rng_key = single_key(rng_key, "to_arviz(rng_key)")
        _validate.positive_integer(num_samples=num_samples, num_chains=num_chains)
        # Both take long to import, and fitting needs neither.
        import arviz
        import xarray

        draws = self.sample_posterior(rng_key, (num_chains, num_samples))
        posterior = named_dataset(
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

        Args:
          path: The file. What is in it may be published, if the result may be.

        Raises:
          OSError: The file cannot be written.
        """
        result_file.write(
            path,
            SavedResult(
                posterior=self.posterior,
                privacy=self.privacy,
                engine=self.engine,
                plan=self.plan,
                settings=self.settings,
                diagnostics=self.diagnostics,
                # How long rows took is theirs.
                seconds={k: v for k, v in self.seconds.items() if k != "running"},
                axis_labels=self.axis_labels,
                for_row_queries=self._for_row_queries,
            ),
        )

    def _attributes(self) -> dict[str, str | float]:
        """What attributes of draws say, as netCDF takes it: strings and numbers."""
        facts = {name: getattr(self.privacy, name) for name in _PRIVACY_ATTRIBUTES}
        return {
            "inference_library": "numpyro_vips",
            "inference_library_version": result_file.version(),
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

    Returns:
      The result as it was saved, less how long its steps took.

    Raises:
      FileNotFoundError: There is no such file.
      ValueError: The file is no such result, is damaged, or has another format.
    """
    saved = result_file.read(path)._asdict()
    for_row_queries = saved.pop("for_row_queries")
    return PrivateVIResult(**saved, model=model, _for_row_queries=for_row_queries)


def _of_data_alone(moments: MeanAndStddev) -> VarianceParts:
    variance = np.asarray(moments.stddev) ** 2
    return VarianceParts(data=variance, privacy=np.zeros_like(variance))

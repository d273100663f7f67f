"""The posterior of the latents of rows that the caller may see, and their bound.

Everything comes from the released posterior of the globals and from these rows alone:
test rows, or the caller's own. No noise is added here, so nothing here is ever used
during a fit.
"""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jaxtyping import Array, Float, Shaped

from numpyro_vips.conjugacy.densities import logistic_bounds
from numpyro_vips.conjugacy.families.family import Moments, NewMoments
from numpyro_vips.conjugacy.structure.latents import Latent
from numpyro_vips.conjugacy.structure.posterior_factors import PosteriorFactor
from numpyro_vips.model.arguments import ModelArguments
from numpyro_vips.model.graph import build_graph
from numpyro_vips.model.row_queries import RowQuery, map_rows
from numpyro_vips.model.synthetic.synthetic_rows import with_synthetic_rows
from numpyro_vips.vips.compile.certificate import point_moments
from numpyro_vips.vips.compile.compiler import compile_model
from numpyro_vips.vips.e_step.coordinates import copies_array
from numpyro_vips.vips.e_step.e_step import DEFAULT_LOCAL_SWEEPS, local_factors
from numpyro_vips.vips.e_step.evidence_bound import row_bound
from numpyro_vips.vips.program.expectations import expected_natural_of
from numpyro_vips.vips.program.named_arrays import (
    ByStatistic,
    MomentsByFactor,
    NewMomentsByFactor,
    Row,
)
from numpyro_vips.vips.program.program import ConjugateProgram

# Moments and natural parameters of a row's factor, and how many copies of it there are.
_OfRow = tuple[NewMoments, NewMoments, Float[Array, "..."] | None]


class RowQueryProgram:
    """A model compiled for rows that the caller may see; it holds none of them.

    Args:
      query: Which model, how it was fitted, and what its rows look like.
    """

    def __init__(self, query: RowQuery):
        settings = query.settings
        local_steps = settings.get("local_steps") or DEFAULT_LOCAL_SWEEPS
        # The graph needs shapes only.
        arguments = with_synthetic_rows(query.arguments, 3, seed=0)
        graph = build_graph(query.model, arguments)
        self._program = program = compile_model(
            query.model,
            graph,
            structure=settings.get("structure", {}),
            augmentation=settings.get("augmentation", logistic_bounds.DEFAULT),
        )

        def bound(expected_natural: ByStatistic, row: Row) -> Float[Array, ""]:
            return row_bound(program, expected_natural, row, local_steps)

        def factors(expected_natural: ByStatistic, row: Row) -> dict[str, _OfRow]:
            solved = local_factors(program, expected_natural, row, local_steps)
            arrays, _ = program.row_constants(row)
            return {
                factor.name: (
                    *solved[factor.name],
                    copies_array(factor, program.structure.latents, arrays),
                )
                for factor in program.structure.posterior_factors_of("local")
            }

        self._bounds = jax.jit(jax.vmap(bound, in_axes=(None, 0)))
        self._factors = jax.jit(jax.vmap(factors, in_axes=(None, 0)))

    def elbo(
        self, arguments: ModelArguments, of_globals: MomentsByFactor
    ) -> Float[np.ndarray, " rows"]:
        """For each row, the bound on its log density; the globals' KL is not in it."""
        expected_natural = expected_natural_of(self._program.structure, of_globals)
        parts = map_rows(arguments, lambda rows: self._bounds(expected_natural, rows))
        return np.concatenate([np.asarray(part) for part in parts])

    def moments_of(
        self, draws: Mapping[str, Shaped[Array, "draws ..."]]
    ) -> NewMomentsByFactor:
        """The average statistics of some draws of the globals, by factor.

        Auxiliary variables of priors have none: rows do not depend on them.

        Args:
          draws: By latent of the model, along a first axis.
        """
        factors = [
            factor
            for factor in self._program.structure.posterior_factors_of("global")
            if draws.keys() >= set(factor.latents)
        ]

        def of_draw(values: Mapping[str, Shaped[Array, "..."]]) -> NewMomentsByFactor:
            return {factor.name: point_moments(factor, values) for factor in factors}

        return jax.tree.map(lambda each: each.mean(0), jax.vmap(of_draw)(dict(draws)))

    def local_posterior(
        self, arguments: ModelArguments, of_globals: MomentsByFactor
    ) -> dict[str, dist.Distribution]:
        """The posterior of each latent with one entry per row.

        An effect is its level less the mean of all rows, which are taken as independent
        like all factors.
        """
        expected_natural = expected_natural_of(self._program.structure, of_globals)
        parts = map_rows(arguments, lambda rows: self._factors(expected_natural, rows))
        factors = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *parts)
        found = {}
        for factor in self._program.structure.posterior_factors_of("local"):
            found |= _distributions(self._program, factor, *factors[factor.name])
        for effect, mean in self._program.level_means.items():
            found[effect] = _effect(self._program, found[effect], mean, of_globals)
        return found


def _distributions(
    program: ConjugateProgram,
    factor: PosteriorFactor,
    moments: Moments,
    natural: Moments,
    copies: Float[Array, "rows ..."] | None,
) -> dict[str, dist.Distribution]:
    """The distribution of every latent of a factor, from arrays with rows in front."""
    family, latents = factor.family, program.structure.latents
    parameters = family.parameters(natural)
    found = {}
    for name in factor.latents:
        if factor.layout is not None:
            found[name] = _gaussian(program, factor, name, parameters)
        elif latents[name].states is not None:
            _, probabilities = family.probabilities((name,), moments)
            found[name] = _discrete(program, latents[name], probabilities)
        else:
            axis = _row_axis(program, latents[name])
            whole = family.of_copies(parameters, copies)
            moved = {key: _rows_in_place(value, axis) for key, value in whole.items()}
            found[name] = family.distribution(moved)
    return found


def _effect(
    program: ConjugateProgram,
    level: dist.Distribution,
    mean: str,
    of_globals: MomentsByFactor,
) -> dist.Distribution:
    """A level less its mean."""
    structure = program.structure
    factor = structure.posterior_factors[structure.factor_of[mean]]
    layout, moments = factor.layout, of_globals[factor.name]
    assert layout is not None
    x, xx = (jnp.asarray(moments[name]) for name in ("x", "xx"))
    about = layout.site(mean, x)
    if xx.shape == x.shape:  # The factor has no covariances.
        xx = xx[..., None] * jnp.eye(layout.size)
        outer = jnp.square(x)[..., None] * jnp.eye(layout.size)
    else:
        outer = x[..., :, None] * x[..., None, :]
    covariance = xx - outer
    if isinstance(level, dist.MultivariateNormal):
        span = layout.span(mean)
        return dist.MultivariateNormal(
            level.loc - about,
            covariance_matrix=jnp.asarray(level.covariance_matrix)
            + covariance[..., span, span],
            validate_args=False,
        )
    variance = layout.site(mean, jnp.diagonal(covariance, axis1=-2, axis2=-1))
    return dist.Normal(
        jnp.asarray(level.mean) - about,
        jnp.sqrt(jnp.asarray(level.variance) + variance),
    )


def _row_axis(program: ConjugateProgram, latent: Latent) -> int:
    """Where the rows are among the axes of a latent, or of the site it belongs to."""
    site = program.graph.sites.get(latent.name)
    if site is None:
        # An auxiliary variable has the axes of its site: `{site}:{kind}`.
        site = program.graph.sites[latent.name.rsplit(":", 1)[0]]
    assert site.row_axis is not None
    return site.row_axis


def _rows_in_place(array: Float[Array, "rows ..."], axis: int) -> Float[Array, "..."]:
    """Moves the leading axis of rows to where one row has an axis of length 1."""
    return jnp.moveaxis(jnp.squeeze(array, axis + 1), 0, axis)


def _discrete(
    program: ConjugateProgram,
    latent: Latent,
    probabilities: Float[Array, "rows *batch states"],
) -> dist.Distribution:
    moved = _rows_in_place(probabilities, _row_axis(program, latent))
    site = program.graph.sites.get(latent.name)
    kinds = (dist.BernoulliProbs, dist.BernoulliLogits)
    if site is not None and issubclass(site.distributed.kind, kinds):
        return dist.BernoulliProbs(moved[..., 1])
    return dist.CategoricalProbs(moved)


def _gaussian(
    program: ConjugateProgram,
    factor: PosteriorFactor,
    name: str,
    parameters: Moments,
) -> dist.Distribution:
    """The marginal of one site of a Gaussian factor.

    It is joint over the site's last axis where that is all that the factor couples, and
    elementwise otherwise.
    """
    layout = factor.layout
    assert layout is not None
    shape, span = layout.shapes[name], layout.span(name)
    axis = _row_axis(program, program.structure.latents[name])

    def in_shape(array: Float[Array, "rows ..."]) -> Float[Array, "..."]:
        return _rows_in_place(layout.site(name, array, leading=1), axis)

    mean = in_shape(parameters["loc"])
    if "scale" in parameters:
        return dist.Normal(mean, in_shape(parameters["scale"]))
    long = [i for i in layout.block_axes(name) if shape[i] > 1]
    if long == [len(shape) - 1]:
        covariance = parameters["covariance_matrix"][..., span, span]
        num_rows, size = len(covariance), shape[-1]
        matrices = covariance.reshape((num_rows, *shape[:-1], size, size))
        return dist.MultivariateNormal(
            mean,
            covariance_matrix=_rows_in_place(matrices, axis),
            validate_args=False,
        )
    variance = jnp.diagonal(parameters["covariance_matrix"], axis1=-2, axis2=-1)
    return dist.Normal(mean, jnp.sqrt(in_shape(variance)))

"""The evidence lower bound that DPVI climbs: one row's part, and the public rest.

Without clipping, noise and subsampling the two add up to `numpyro.infer.Trace_ELBO` of
the same model and guide.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray, Shaped
from numpyro.distributions import biject_to, kl_divergence

from numpyro_vips.dpvi.guides.automatic_guides import Arrays, NormalGuide
from numpyro_vips.dpvi.guides.unconstrained import UnconstrainedSpace
from numpyro_vips.dpvi.guides.user_guides import UserGuide
from numpyro_vips.dpvi.row_latents.locals_of_rows import LocalsOfRows
from numpyro_vips.model.graph import ModelGraph
from numpyro_vips.model.log_density import row_log_density, site_log_density
from numpyro_vips.model.synthetic.synthetic_rows import synthetic_row


@dataclasses.dataclass(frozen=True, kw_only=True)
class RowElbo:
    """A row's part of the bound, at a draw of the globals.

    Attributes:
      graph: The model.
      user_guide: Draws the row's continuous latents, if there is one.
      locals_of_rows: Solves for them, where there is none.
      is_analytic: Whether divergences are taken in closed form where NumPyro has one.
    """

    graph: ModelGraph
    user_guide: UserGuide | None
    locals_of_rows: LocalsOfRows | None
    is_analytic: bool

    def __call__(
        self,
        values: Mapping[str, Float[Array, "..."]],
        params: Mapping[str, Any],
        row: Mapping[str, Any],
        key: PRNGKeyArray,
    ) -> tuple[Float[Array, ""], Bool[Array, ""]]:
        """The bound, and whether what the row observes lies in the support.

        Args:
          values: The globals.
          params: The parameters without a prior.
          row: One row of every private argument.
          key: Key for the draws of the row's own latents.
        """
        graph, guide = self.graph, self.user_guide
        if self.locals_of_rows is not None:
            return self.locals_of_rows(values, row, params)
        if guide is None or not guide.locals:
            return row_log_density(graph, values, row, params)
        local = guide.draw_locals(row, values, params, key)
        latents = {**values, **local.values}
        counted = set(graph.sites)
        total = jnp.zeros((), jnp.result_type(float))
        num_latents = sum(site.is_latent for site in graph.sites.values())
        priors: Mapping[str, Any] = {}
        if self.is_analytic:
            rows = {name: jnp.asarray(value)[None] for name, value in row.items()}
            priors = graph.run(rows, latents, params=params)
        for name, message in local.messages.items():
            divergence = None
            # Next to discrete latents the prior is a mixture, and has no closed form.
            if self.is_analytic and len(latents) == num_latents:
                divergence = _divergence(message, priors[name])
            if divergence is None:
                total -= local.log_density(name)
            else:
                total -= divergence
                counted.remove(name)
        density, in_support = row_log_density(graph, latents, row, params, counted)
        return total + density, in_support


class PublicElbo:
    """E_q[log p(z) − log q(z)] of the globals; no row is in it."""

    def __init__(
        self,
        graph: ModelGraph,
        space: UnconstrainedSpace,
        guide: NormalGuide | UserGuide,
        *,
        is_analytic: bool,
    ) -> None:
        """The prior's part of the bound, for the globals in `space` and their guide."""
        self._graph = graph
        self._space = space
        self._guide = guide
        self._is_analytic = is_analytic
        self._row = synthetic_row(graph)

    def __call__(
        self, arrays: Arrays, params: Any, draws: Shaped[Array, "particles ..."]
    ) -> Float[Array, ""]:
        """The average over draws.

        Args:
          arrays: Variational parameters of an automatic guide.
          params: The parameters without a prior, in their supports.
          draws: Numbers for an automatic guide, keys for a user's own.
        """

        def particle(draw: Shaped[Array, "..."]) -> Float[Array, ""]:
            if isinstance(self._guide, NormalGuide):
                return self._automatic_terms(self._guide, arrays, params, draw)
            return self._user_terms(self._guide, params, draw)

        return jnp.mean(jax.vmap(particle)(draws))

    def _automatic_terms(
        self,
        guide: NormalGuide,
        arrays: Arrays,
        params: Any,
        draw: Float[Array, " numbers"],
    ) -> Float[Array, ""]:
        z = guide.value(arrays, draw)
        if not (self._is_analytic and guide.family == "mean_field"):
            return self.log_prior(z, params) + guide.entropy(arrays)
        values, _ = self._space.constrain(z)
        messages = self._run_model(values, params)
        event_dims = {
            s.name: messages[s.name]["fn"].event_dim for s in self._space.sites
        }
        total = self._factors(messages)
        for name, fn in guide.marginals(arrays, event_dims).items():
            message = {"type": "sample", "fn": fn, "value": values[name], "scale": None}
            total += _prior_term(message, messages[name], is_analytic=True)
        return total

    def log_prior(self, z: Float[Array, " size"], params: Any) -> Float[Array, ""]:
        """Log density of the unconstrained globals under the prior."""
        values, log_determinant = self._space.constrain(z)
        messages = self._run_model(values, params)
        priors = [site_log_density(messages[s.name]) for s in self._space.sites]
        return sum(priors, self._factors(messages) + log_determinant)

    def _user_terms(
        self, guide: UserGuide, params: Any, draw: PRNGKeyArray
    ) -> Float[Array, ""]:
        drawn = guide.draw_globals(params, draw)
        messages = self._run_model(drawn.values, params)
        total = self._factors(messages)
        for name, message in drawn.messages.items():
            total += _prior_term(message, messages[name], self._is_analytic)
        return total

    def _factors(self, messages: Mapping[str, Any]) -> Float[Array, ""]:
        """What `numpyro.factor` says of the globals, outside the unit plate."""
        total = jnp.zeros((), jnp.result_type(float))
        for site in self._graph.sites.values():
            if site.row_axis is None and not site.is_latent:
                total += site_log_density(messages[site.name])
        return total

    def _run_model(self, values: Mapping[str, Any], params: Any) -> Mapping[str, Any]:
        """The model's messages for the globals; the synthetic row has no effect
        there."""
        rows = {name: value[None] for name, value in self._row.items()}
        return self._graph.run(rows, values, params=params)


def constrained(
    params: Mapping[str, Any], constraints: Mapping[str, Any]
) -> dict[str, Any]:
    """Parameters without a prior, from their unconstrained values."""
    return {
        name: jax.tree.map(biject_to(constraints[name]), tree)
        for name, tree in params.items()
    }


def _divergence(
    message: Mapping[str, Any], prior: Mapping[str, Any]
) -> Float[Array, ""] | None:
    """KL(q ‖ p) of a site where NumPyro knows it in closed form, else None."""
    if message["type"] != "sample":
        return None
    try:
        divergence = kl_divergence(message["fn"], prior["fn"])
    except NotImplementedError:
        return None
    scale = prior["scale"]
    return jnp.sum(divergence if scale is None else scale * divergence)


def _prior_term(
    message: Mapping[str, Any], prior: Mapping[str, Any], is_analytic: bool
) -> Float[Array, ""]:
    """A site's E_q[log p − log q], in closed form or at the draw."""
    divergence = _divergence(message, prior) if is_analytic else None
    if divergence is not None:
        return -divergence
    log_q = site_log_density(message) if message["type"] == "sample" else 0.0
    return site_log_density(prior) - log_q

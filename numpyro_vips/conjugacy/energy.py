"""The model's log joint density, site by site, as forms in the latents.

Two callers: `structure` runs it on abstract rows to see which statistics occur, and
`program` runs it on the traced rows of a minibatch to evaluate them. It makes the
same terms both times, because no rule looks at a private value.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from numpyro_vips.conjugacy import forms, log_densities
from numpyro_vips.conjugacy.forms import Form, NotInAlgebra
from numpyro_vips.conjugacy.interpreter import (
    Constant,
    Opaque,
    Transformed,
    Value,
    as_form,
    interpret,
)
from numpyro_vips.model_graph import Distributed, ModelGraph, Site


@dataclasses.dataclass(frozen=True, kw_only=True)
class Latent:
    """A latent variable of the model, or an auxiliary one of an augmentation.

    `states` are the values of a discrete latent. `weight`, of an auxiliary variable,
    is how many independent copies each element stands for (the trials of a binomial
    observation), as a form with the latent's axes.
    """

    name: str
    role: str
    shape: tuple[int, ...]
    support: Any
    states: np.ndarray | None = None
    family: str | None = None
    weight: Form | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Piece:
    """The expected log density of one site, summed over its elements."""

    site: str
    is_row: bool
    form: Form


@dataclasses.dataclass(frozen=True, kw_only=True)
class Energy:
    """All pieces; `valid` is whether the row may count; `failures` says what is not
    in the algebra, by site."""

    pieces: list[Piece]
    latents: dict[str, Latent]
    valid: Any
    failures: dict[str, str]


class _Augmentation:
    """Collects the auxiliary variables that a site's log density asks for."""

    def __init__(self, site: str, role: str):
        self.site = site
        self.role = role
        self.latents: list[Latent] = []

    def polya_gamma(self, logits: Form, trials: Form) -> Form:
        if not trials.is_constant:
            names = ", ".join(map(repr, sorted(trials.latents)))
            raise NotInAlgebra(f"a number of trials that depends on {names}")
        name = f"{self.site}:polya_gamma"
        self.latents.append(
            Latent(
                name=name,
                role=self.role,
                shape=logits.shape,
                support=None,
                family="PolyaGamma",
                weight=forms.broadcast(trials, logits.axes),
            )
        )
        xi = forms.place(
            forms.latent(name, logits.shape), logits.axes, range(len(logits.axes))
        )
        squared = forms.power(logits, 2)
        return -0.5 * (trials * (xi * squared)) - trials * float(np.log(2.0))


def model_latents(graph: ModelGraph) -> dict[str, Latent]:
    """The latent variables of the model itself."""
    latents = {}
    for site in graph.sites.values():
        if not site.is_latent:
            continue
        states = _states(graph, site) if site.is_discrete else None
        latents[site.name] = Latent(
            name=site.name,
            role=site.role,
            shape=site.shape,
            support=site.support,
            states=states,
        )
    return latents


def _states(graph: ModelGraph, site: Site) -> np.ndarray | None:
    """The values of a discrete latent with finitely many; None for the others."""
    kind = site.distributed.kind.__name__
    parameters = graph.program_outputs[site.name]["parameters"]
    if kind.startswith("Bernoulli"):
        return np.arange(2)
    if kind.startswith("Categorical"):
        name = next(n for n in ("probs", "logits") if n in parameters)
        return np.arange(parameters[name].shape[-1])
    return None


def energy(graph: ModelGraph, rows: Mapping[str, Any]) -> Energy:
    """Writes the log joint density of one row and of the globals.

    Args:
      graph: The model.
      rows: Its private arguments, with a leading axis of length 1; traced.
    """
    latents = model_latents(graph)
    inputs: list[Value] = []
    row_inputs, latent_inputs = graph.program_inputs
    failures: dict[str, str] = {}
    for name in sorted(row_inputs):
        inputs.append(Constant(rows[name], row=True))
    for name in sorted(latent_inputs):
        latent = latents[name]
        if graph.sites[name].is_discrete and latent.states is None:
            failures[name] = "a discrete latent without finitely many known states"
            inputs.append(Opaque(failures[name], {name}, latent.shape))
        else:
            inputs.append(forms.latent(name, latent.shape, latent.states))
    checks: list[Any] = []
    leaves = interpret(graph.program, inputs, checks)
    tree = jax.tree.structure(graph.program_outputs)
    outputs = jax.tree.unflatten(tree, leaves)
    latent_values = dict(zip(sorted(latent_inputs), inputs[len(row_inputs) :], strict=True))
    pieces = []
    for site in graph.sites.values():
        output = outputs[site.name]
        value = output.get("value", latent_values.get(site.name))
        augmentation = _Augmentation(site.name, "global" if site.row_axis is None else "local")
        try:
            form = _site_energy(site, value, output, augmentation)
        except NotInAlgebra as error:
            failures[site.name] = str(error)
            continue
        for latent in augmentation.latents:
            latents[latent.name] = latent
        pieces.append(
            Piece(site=site.name, is_row=site.row_axis is not None, form=form)
        )
        if "in_support" in output and isinstance(output["in_support"], Constant):
            checks.append(_observed_part(site, output))
    return Energy(
        pieces=pieces,
        latents=latents,
        valid=_all_valid(pieces, checks, latents),
        failures=failures,
    )


def _observed_part(site: Site, output: Mapping[str, Any]) -> Any:
    """Whether the observation lies in its support, where it is not masked out."""
    inside = output["in_support"].array
    mask = output["parameters"].get("mask")
    if isinstance(mask, Constant) and np.shape(mask.array) == np.shape(inside):
        inside = jnp.logical_or(inside, jnp.logical_not(mask.array))
    return inside


def _site_energy(
    site: Site, value: Value, output: Mapping[str, Any], augmentation: _Augmentation
) -> Form:
    function = log_densities.REGISTRY.get(site.distributed.kind)
    kind = site.distributed.kind.__name__
    if function is None:
        raise NotInAlgebra(f"no log density is registered for {kind}")
    x = as_form(value)
    parameters = {
        name: _aligned(output["parameters"][name], site, x)
        for name in site.distributed.parameters
    }
    for name, parameter in parameters.items():
        if type(parameter) is Opaque:
            raise NotInAlgebra(f"{parameter.reason} in {name!r} of {kind}")
    try:
        form = function(x, augment=augmentation, **parameters, **site.distributed.static)
    except NotInAlgebra as error:
        raise NotInAlgebra(f"{error} in {kind}") from None
    factors = []
    if site.distributed.masked:
        mask = as_form(output["parameters"]["mask"])
        if not mask.is_constant:
            raise NotInAlgebra("a mask that depends on a latent")
        factors.append(mask)
    if "scale" in output:
        scale = as_form(output["scale"])
        if not scale.is_constant:
            raise NotInAlgebra("a scale that depends on a latent")
        # A scale has the batch axes of the site, event axes excluded.
        axes = (*scale.axes, *(forms.Label(1) for _ in range(site.distributed.reinterpreted)))
        factors.append(forms.place(scale, axes, range(len(scale.axes))))
    rank = len(site.shape) - site.distributed.event_dim
    batch = tuple(forms.Label(size) for size in site.shape[:rank])
    form = forms.broadcast(form, batch)
    for factor in factors:
        form = form * forms.broadcast(factor, batch)
    augmentation.latents = [
        dataclasses.replace(latent, weight=_weighted(latent.weight, factors, batch))
        for latent in augmentation.latents
    ]
    return forms.sum_over(form, range(rank))


def _weighted(weight: Form | None, factors: list[Form], batch: forms.Labels) -> Form:
    assert weight is not None
    result = forms.broadcast(weight, batch)
    for factor in factors:
        result = result * forms.broadcast(factor, batch)
    return result


def _aligned(parameter: Any, site: Site, x: Form) -> Value:
    """Gives constants and forms at least the rank that broadcasting needs."""
    if isinstance(parameter, Constant | Form | Transformed | Opaque):
        return parameter
    raise NotInAlgebra(f"a nested distribution in {site.name!r}")


def _all_valid(
    pieces: list[Piece], checks: list[Any], latents: Mapping[str, Latent]
) -> Any:
    """Whether everything that the row brings is finite, in range and in support."""
    results = [jnp.all(check) for check in checks]
    seen: set[int] = set()
    all_forms = [piece.form for piece in pieces if piece.is_row]
    for form in all_forms:
        for term in form.terms:
            for factor in term.factors:
                if isinstance(factor, forms.Atom) or not factor.row:
                    continue
                array = (
                    factor.array if isinstance(factor, forms.Dense) else factor.indices
                )
                if id(array) in seen:
                    continue
                seen.add(id(array))
                if isinstance(factor, forms.OneHot):
                    inside = (array >= 0) & (array < factor.target.size)
                    results.append(jnp.all(inside))
                elif jnp.issubdtype(array.dtype, jnp.floating):
                    results.append(jnp.all(jnp.isfinite(array)))
    valid = jnp.ones((), bool)
    for result in results:
        valid = valid & result
    return valid



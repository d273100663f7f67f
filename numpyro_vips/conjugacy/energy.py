"""The model's log joint density, site by site, as forms in the latents.

Two callers: `structure` runs it on abstract rows to see which statistics occur, and
`program` runs it on the traced rows of a minibatch to evaluate them. It makes the
same terms both times, because no rule looks at a private value.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from numpyro_vips.conjugacy import (
    elementwise,
    forms,
    log_densities,
    logistic_bounds,
    supports,
)
from numpyro_vips.conjugacy.entries import constant_of
from numpyro_vips.conjugacy.forms import Form
from numpyro_vips.conjugacy.interpreter import interpret
from numpyro_vips.conjugacy.scatters import Scatter, as_scatter
from numpyro_vips.conjugacy.simplices import adds_up_to_one
from numpyro_vips.conjugacy.summands import alternatives
from numpyro_vips.conjugacy.terms import (
    Atom,
    Dense,
    Factor,
    Label,
    Labels,
    NotInAlgebra,
    OneHot,
    Origin,
    Term,
    is_known,
)
from numpyro_vips.conjugacy.values import Constant, Opaque, Value, as_form, latents_of
from numpyro_vips.model_graph import ModelGraph, Site
from numpyro_vips.model_trace import Distributed
from numpyro_vips.sparse_rows import SparseRows


@dataclasses.dataclass(frozen=True, kw_only=True)
class Latent:
    """A latent variable of the model, or an auxiliary one of an augmentation.

    `states` are the values of a discrete latent. `weight` is how many independent
    copies each element stands for, as a form with the latent's axes: of an auxiliary
    variable, the trials of a binomial observation; of a discrete latent of the model,
    the scale that it shares with all that depends on it, such as the count of a word.
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
    """The expected log density of one site, summed over its elements.

    `mask` and `scale` are what it has been multiplied by already.
    """

    site: str
    is_row: bool
    form: Form
    mask: Form | None = None
    scale: Form | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Energy:
    """All pieces, and what else was found.

    `valid` is whether the row may count; `failures` says what is not in the algebra, by
    site; `whole`, for each argument that rows tell by entries, for what it had to be
    written out.
    """

    pieces: list[Piece]
    latents: dict[str, Latent]
    valid: Any
    failures: dict[str, str]
    whole: dict[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)


class _Places(NamedTuple):
    """Where along one axis of a site's elements a row has entries.

    Attributes:
      leading: Number of the axis that each leading label of `one_hot` stands for.
      axis: The axis that the entries lie along.
      one_hot: Their places on it.
    """

    leading: tuple[int, ...]
    axis: int
    one_hot: OneHot


class _Augmentation:
    """Collects the auxiliary variables that a site's log density asks for."""

    def __init__(
        self,
        site: str,
        role: str,
        model_latents: Mapping[str, Latent],
        choice: logistic_bounds.Choice = logistic_bounds.DEFAULT,
    ) -> None:
        self.site = site
        self.choice = choice
        self.role = role
        self.model_latents = model_latents
        self.latents: list[Latent] = []
        # Of auxiliary variables that only the entries of a row have, where these are.
        self.places: dict[str, _Places] = {}

    def auxiliary(
        self,
        kind: str,
        axes: Labels,
        *,
        family: str,
        weight: Form | None = None,
        support: Any = None,
        num_states: int | None = None,
    ) -> Form:
        """A new variable per element of `axes`, as a form with these axes.

        A discrete one comes as its indicator, with the states as the last axis.
        """
        name = f"{self.site}:{kind}"
        taken = sum(latent.name.startswith(name) for latent in self.latents)
        name = f"{name}_{taken + 1}" if taken else name
        shape = tuple(axis.size for axis in axes)
        one = forms.as_form(1.0)
        states = None if num_states is None else np.arange(num_states)
        self.latents.append(
            Latent(
                name=name,
                role=self.role,
                shape=shape,
                support=support,
                states=states,
                family=family,
                weight=forms.broadcast(one if weight is None else weight, axes),
            )
        )
        if num_states is None:
            return Form(axes, (Term(1.0, (Atom(name, "x", axes),)),))
        all_axes = (*axes, Label(num_states))
        atom = Atom(name, "is", all_axes)
        return Form(all_axes, (Term(1.0, (atom,)),))

    def adds_up_to_one(self, form: Form, *, logarithms: bool = False) -> bool | None:
        """Whether the last axis of a form holds probabilities; None: rows decide."""
        return adds_up_to_one(form, self.model_latents, logarithms=logarithms)

    def logistic(self, logits: Form, trials: Form) -> Form:
        """-trials · log(2 cosh(logits / 2)), as a tight quadratic lower bound.

        Which one is the caller's choice for the site; see `logistic_bounds`.
        """
        if not trials.is_constant:
            names = ", ".join(map(repr, sorted(trials.latents)))
            raise NotInAlgebra(f"a number of trials that depends on {names}")
        return logistic_bounds.chosen(self.choice, self.site)(self, logits, trials)

    def log_sum(self, form: Form, weight: Form) -> Form:
        """weight · log(form) for a sum of positive terms, as its lower bound.

        log Σ_k a_k is at least Σ_k r_k log(a_k / r_k), with equality at the
        probabilities r that each term is where the mass comes from.
        """
        if form.exclusive and form.terms:
            return weight * elementwise.log(form)
        if not weight.is_constant:
            names = ", ".join(map(repr, sorted(weight.latents)))
            raise NotInAlgebra(f"the logarithm of a sum, times {names}")
        axes = forms.common_axes(form, weight)
        form, weight = forms.broadcast(form, axes), forms.broadcast(weight, axes)
        entries = as_scatter(axes, weight.terms)
        if entries is not None and entries.elsewhere == 0.0:
            return self._log_sum_at(form, entries)
        return self._log_sum(form, weight)

    def _log_sum(self, form: Form, weight: Form) -> Form:
        # A term whose coefficient is zero in a row has no share in it.
        each = elementwise.log(alternatives(form), finite=True)
        return self.allocate(each, weight)

    def _log_sum_at(self, form: Form, weight: Scatter) -> Form:
        """The same where only a row's entries have a weight: the others add nothing."""
        where = weight.one_hot
        axis = form.axes.index(where.target)
        entry = where.labels[-1]
        axes = (*form.axes[:axis], entry, *form.axes[axis + 1 :])
        picked = dataclasses.replace(where, target=Label(where.target.size))
        each = forms.select(form, axis, picked, axes)
        made = len(self.latents)
        found = self._log_sum(each, Form(axes, (Term(1.0, (weight.values,)),)))
        leading = tuple(form.axes.index(label) for label in where.labels[:-1])
        for latent in self.latents[made:]:
            self.places[latent.name] = _Places(leading, axis, where)
        back = Form((*axes, where.target), (Term(1.0, (where,)),))
        return forms.product(found, back, form.axes, (entry,))

    def allocate(self, log_terms: Form, weight: Form | None = None) -> Form:
        """weight · logsumexp of a form over its last axis, as the same bound."""
        axes, states = log_terms.axes[:-1], log_terms.axes[-1]
        weight = forms.broadcast(forms.as_form(1.0) if weight is None else weight, axes)
        chosen = self.auxiliary(
            "allocation",
            axes,
            family="Categorical",
            weight=weight,
            num_states=states.size,
        )
        chosen = forms.place(chosen, log_terms.axes, range(len(log_terms.axes)))
        expected = forms.sum_over(chosen * log_terms, [len(axes)])
        return weight * expected


def model_latents(graph: ModelGraph) -> dict[str, Latent]:
    """The latent variables of the model itself."""
    latents = {}
    for site in graph.sites.values():
        if not site.is_latent:
            continue
        states = None if site.num_states is None else np.arange(site.num_states)
        latents[site.name] = Latent(
            name=site.name,
            role=site.role,
            shape=site.shape,
            support=site.support,
            states=states,
        )
    return latents


def energy(
    graph: ModelGraph,
    rows: Mapping[str, Any],
    *,
    weighted: bool = True,
    augmentation: logistic_bounds.Choice = logistic_bounds.DEFAULT,
    check_parameters: bool = True,
) -> Energy:
    """Writes the log joint density of one row and of the globals.

    Args:
      graph: The model.
      rows: Its private arguments, with a leading axis of length 1; traced. What is told
        by entries (`SparseRows`) is worked on by entries where that is possible.
      weighted: Whether masks and scales are applied.
      augmentation: The bound for logistic likelihoods, by site or for all.
      check_parameters: Whether a row is valid only if the parameters that it brings lie
        where NumPyro wants them.
    """
    latents = model_latents(graph)
    inputs: list[Value] = []
    row_inputs, latent_inputs = graph.program_inputs
    failures: dict[str, str] = {}
    origins: list[Origin] = []
    for name in sorted(row_inputs):
        value = rows[name]
        if isinstance(value, SparseRows):
            origins.append(Origin(name))
            inputs.append(constant_of(value, origins[-1]))
        else:
            inputs.append(Constant(value, row=True))
    for name in sorted(latent_inputs):
        latent = latents[name]
        if graph.sites[name].is_discrete and latent.states is None:
            failures[name] = "a discrete latent without finitely many known states"
            inputs.append(Opaque(failures[name], {name}, latent.shape))
        else:
            signed = not supports.is_positive(latent.support)
            inputs.append(
                forms.latent(name, latent.shape, latent.states, signed=signed)
            )
    checks: list[Any] = []
    leaves = interpret(graph.program, inputs, checks)
    tree = jax.tree.structure(graph.program_outputs)
    outputs = jax.tree.unflatten(tree, leaves)
    latent_values = dict(
        zip(sorted(latent_inputs), inputs[len(row_inputs) :], strict=True)
    )
    pieces = []
    for site in graph.sites.values():
        output = outputs[site.name]
        value = output.get("value", latent_values.get(site.name))
        role = "global" if site.row_axis is None else "local"
        augment = _Augmentation(site.name, role, latents, augmentation)
        try:
            if check_parameters:
                checks += _legal_parameters(site.distributed, output["parameters"])
            piece = _site_energy(
                site, value, output, augment, weighted=weighted, checks=checks
            )
        except NotInAlgebra as error:
            failures[site.name] = str(error)
            continue
        pieces.append(piece)
        for latent in augment.latents:
            latents[latent.name] = latent
        if _checked(output):
            checks.append(_observed_part(site, output))
    for name, latent in latents.items():
        if latent.states is None or latent.role != "local" or latent.family is not None:
            continue
        try:
            weight = _copies(graph.sites[name], pieces)
        except NotInAlgebra as error:
            failures[name] = str(error)
            continue
        latents[name] = dataclasses.replace(latent, weight=weight)
    return Energy(
        pieces=pieces,
        latents=latents,
        valid=_all_valid(pieces, checks),
        failures=failures,
        whole={origin.name: tuple(origin.whole) for origin in origins},
    )


def _checked(output: Mapping[str, Any]) -> bool:
    """Whether it is checked that what a site observes lies in its support."""
    return isinstance(output.get("in_support"), Constant)


def _observed_part(site: Site, output: Mapping[str, Any]) -> Any:
    """Whether the observation lies in its support, where it is not masked out."""
    in_support = output["in_support"]
    mask = output["parameters"].get("mask")
    if not isinstance(mask, Constant):
        entries = in_support.entries
        if entries is not None:
            return jnp.all(entries.values) & bool(entries.elsewhere)
        return in_support.array
    inside, seen = in_support.whole("a mask"), mask.whole("a mask")
    rank, shape = np.ndim(inside), np.shape(seen)
    if shape[:rank] == np.shape(inside) and set(shape[rank:]) <= {1}:
        seen = jnp.reshape(seen, np.shape(inside))
        inside = jnp.logical_or(inside, jnp.logical_not(seen))
    return inside


def _unmasked(output: Mapping[str, Any], legal: Any) -> Any:
    """What has to hold of a site's parameters, where they are not masked out."""
    mask = output.get("mask")
    if not isinstance(mask, Constant):
        return legal
    try:
        return jnp.logical_or(legal, jnp.logical_not(mask.whole("a mask")))
    except TypeError:  # Shapes that do not match; then every entry has to be legal.
        return legal


def _legal_parameters(
    distributed: Distributed, parameters: Mapping[str, Any]
) -> list[Any]:
    """Whether the parameters that rows bring lie where NumPyro wants them."""
    checks = []
    for name in distributed.parameters:
        value = parameters[name]
        constraint = distributed.kind.arg_constraints.get(name)
        if not isinstance(value, Constant) or not value.row or constraint is None:
            continue
        try:
            legal = constraint(value.whole("a check of parameters"))
        except NotImplementedError:  # It depends on the other parameters.
            continue
        checks.append(_unmasked(parameters, legal))
    for name, component in distributed.components.items():
        checks += _legal_parameters(component, parameters[name])
    return checks


def _site_energy(
    site: Site,
    value: Value,
    output: Mapping[str, Any],
    augmentation: _Augmentation,
    *,
    weighted: bool,
    checks: list[Any],
) -> Piece:
    """The log density of one site, masked and scaled, summed over its elements.

    `checks` gets what must hold of the row's numbers.
    """
    x = as_form(value)
    if _checked(output) and supports.is_nonnegative(site.support):
        x = forms.within(x, 0.0, supports.upper_bound(site.support))
    form = _density(site.distributed, output["parameters"], x, augmentation)
    mask = scale = None
    if site.distributed.masked:
        mask = as_form(output["parameters"]["mask"])
        if not mask.is_constant:
            raise NotInAlgebra("a mask that depends on a latent")
        mask = forms.within(mask, 0.0, math.inf)
    if "scale" in output:
        scale = as_form(output["scale"])
        if not scale.is_constant:
            raise NotInAlgebra("a scale that depends on a latent")
        array = forms.constant_array(scale)
        if not is_known(array):
            checks.append(jnp.asarray(array) >= 0)
        elif np.any(np.asarray(array) < 0):
            raise NotInAlgebra("a negative scale")
        # A scale has the batch axes of the site, event axes excluded.
        ones = (Label(1) for _ in range(site.distributed.reinterpreted))
        axes = (*scale.axes, *ones)
        scale = forms.place(scale, axes, range(len(scale.axes)))
        scale = forms.within(scale, 0.0, math.inf)
    factors = [factor for factor in (mask, scale) if factor is not None]
    form = elementwise.expanded(form)
    rank = len(site.shape) - site.distributed.event_dim
    batch = tuple(Label(size) for size in site.shape[:rank])
    form = forms.broadcast(form, batch)
    for factor in factors if weighted else ():
        form = form * forms.broadcast(factor, batch)
    augmentation.latents = [
        dataclasses.replace(
            latent,
            weight=_weighted(
                latent, factors, rank, augmentation.places.get(latent.name)
            ),
        )
        for latent in augmentation.latents
    ]
    return Piece(
        site=site.name,
        is_row=site.row_axis is not None,
        form=forms.sum_over(form, range(rank)),
        mask=mask,
        scale=scale,
    )


def _copies(site: Site, pieces: list[Piece]) -> Form | None:
    """How many copies a discrete latent of a row stands for, if masks or scales say.

    NumPyro sums a discrete latent out before it scales, and asks that all it has to do
    with share the scale: c · log Σ_z p(z, x). So a scaled latent is c copies, each with
    an observation of its own, and not one with a sharper posterior.

    Raises:
      NotInAlgebra: The latent and what depends on it are scaled differently.
    """
    mine = [piece for piece in pieces if site.name in piece.form.latents]
    own = [piece for piece in mine if piece.site == site.name]
    if not own or all(p.mask is None and p.scale is None for p in mine):
        return None
    if len({(_identity(p.mask), _identity(p.scale)) for p in mine}) > 1:
        # One copy whose observation is weighted is what the log joint says it is.
        if own[0].scale is not None:
            others = ", ".join(sorted({repr(p.site) for p in mine} - {repr(site.name)}))
            raise NotInAlgebra(
                f"a scale that {site.name!r} and {others} do not share; put them under "
                "the same scale and mask"
            )
        return None
    rank = len(site.shape)
    axes = tuple(map(Label, site.shape))
    one = Latent(
        name=site.name,
        role="local",
        shape=site.shape,
        support=site.support,
        weight=forms.broadcast(forms.as_form(1.0), axes),
    )
    factors = [f for f in (own[0].mask, own[0].scale) if f is not None]
    return _weighted(one, factors, rank)


def _identity(form: Form | None) -> Any:
    """Equal for masks or scales that are the same array in the traced program."""
    if form is None:
        return None

    def of(factor: Factor) -> Any:
        assert not isinstance(factor, Atom)
        array = factor.array if isinstance(factor, Dense) else factor.indices
        return array.tobytes() if is_known(array) else id(array)

    return tuple((term.scale, *map(of, term.factors)) for term in form.terms)


def _density(
    distributed: Distributed,
    parameters: Mapping[str, Any],
    x: Form,
    augmentation: "_Augmentation",
) -> Form:
    """The registered log density of a distribution, per element."""
    kind = distributed.kind.__name__
    function = log_densities.REGISTRY.get(distributed.kind)
    latents = _latents_in(distributed, parameters) | x.latents
    about = f" ({', '.join(map(repr, sorted(latents)))})" if latents else ""
    if distributed.kind in log_densities.WITHOUT_UPDATE:
        raise NotInAlgebra(f"{log_densities.WITHOUT_UPDATE[distributed.kind]}{about}")
    if function is None:
        raise NotInAlgebra(f"no log density is registered for {kind}{about}")
    values: dict[str, Any] = {}
    for name in distributed.parameters:
        value = parameters[name]
        if type(value) is Opaque:
            where = f"{value.reason} in {name!r}"
            value = dataclasses.replace(value, reason=where)
        values[name] = value
    for name, component in distributed.components.items():
        values[name] = _Component(
            component, parameters[name], augmentation.model_latents
        )
    try:
        return function(x, augment=augmentation, **values)
    except NotInAlgebra as error:
        named = "'" in str(error)
        raise NotInAlgebra(f"{error} of {kind}{'' if named else about}") from None


def _latents_in(distributed: Distributed, parameters: Mapping[str, Any]) -> set[str]:
    """The latents in a distribution's parameters and in those of its parts."""
    found = set().union(*(latents_of(parameters[n]) for n in distributed.parameters))
    for name, part in distributed.components.items():
        found |= _latents_in(part, parameters[name])
    return found


class _Component:
    """A distribution inside another one."""

    def __init__(
        self,
        distributed: Distributed,
        parameters: Mapping[str, Any],
        latents: Mapping[str, Latent],
    ) -> None:
        self._latents = latents
        self._distributed = distributed
        self.parameters = parameters
        self.event_dim = distributed.event_dim + distributed.reinterpreted

    def log_density(self, x: Form) -> Form:
        inner = _Augmentation("", "", self._latents)
        form = _density(self._distributed, self.parameters, x, inner)
        if inner.latents:
            raise NotInAlgebra(
                "an augmented density inside another (sample which component it is, "
                "as in z ~ Categorical, and index the parameters with z)"
            )
        if self._distributed.masked:
            raise NotInAlgebra("a mask inside a mixture")
        rank = len(form.axes)
        return forms.sum_over(form, range(rank - self._distributed.reinterpreted, rank))


def _weighted(
    latent: Latent,
    factors: list[Form],
    batch_rank: int,
    places: _Places | None = None,
) -> Form:
    """The weight of an auxiliary variable once its site is masked and scaled.

    With `places`, it has elements only there.
    """
    assert latent.weight is not None
    result = latent.weight
    # Auxiliary axes are those of the site's elements, then any event axes.
    event_rank = max(0, len(latent.shape) - batch_rank)
    for factor in factors:
        if len(factor.axes) < len(result.axes):
            axes = (*factor.axes, *(Label(1) for _ in range(event_rank)))
            factor = forms.place(factor, axes, range(len(factor.axes)))
        if places is not None:
            factor = _at_places(factor, result.shape, places)
        result = result * forms.broadcast(factor, result.axes)
    return result


def _at_places(factor: Form, shape: tuple[int, ...], places: _Places) -> Form:
    """A mask or scale of all elements, at the entries that a row has.

    Args:
      factor: The mask or scale.
      shape: Of the elements that remain.
      places: Where they are.
    """
    leading, axis, one_hot = places
    sizes = [*shape[:axis], one_hot.target.size, *shape[axis + 1 :]]
    factor = forms.broadcast(factor, tuple(map(Label, sizes)))
    entry = Label(shape[axis])
    labels = (*(factor.axes[i] for i in leading), entry)
    target = Label(one_hot.target.size)
    picked = dataclasses.replace(one_hot, labels=labels, target=target)
    axes = (*factor.axes[:axis], entry, *factor.axes[axis + 1 :])
    return forms.select(factor, axis, picked, axes)


def _all_valid(pieces: list[Piece], checks: list[Any]) -> Any:
    """Whether everything that the row brings is finite, in range and in support."""
    results = [jnp.all(check) for check in checks]
    seen: set[int] = set()
    all_forms = [piece.form for piece in pieces if piece.is_row]
    for form in all_forms:
        for term in form.terms:
            for factor in term.factors:
                if isinstance(factor, Atom) or not factor.row:
                    continue
                array = factor.array if isinstance(factor, Dense) else factor.indices
                if id(array) in seen:
                    continue
                seen.add(id(array))
                if isinstance(factor, OneHot):
                    inside = (array >= 0) & (array < factor.target.size)
                    results.append(jnp.all(inside))
                elif jnp.issubdtype(array.dtype, jnp.floating):
                    results.append(jnp.all(jnp.isfinite(array)))
    valid = jnp.ones((), bool)
    for result in results:
        valid = valid & result
    return valid

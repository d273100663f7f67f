"""Writes the tables of docs/conjugacy.md: what is recognised, read off the registries.

    python docs/generate_conjugacy.py

Every registered log density is called with a latent variable in one place at a time and
constants in all others. The statistics that occur in the result, and the auxiliary
variables that it asks for, are what the table shows.
"""

import functools
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from numpyro.distributions import constraints
from numpyro.distributions.discrete import ZeroInflatedProbs

from numpyro_vips.conjugacy import families
from numpyro_vips.conjugacy.algebra import elementwise, forms
from numpyro_vips.conjugacy.algebra.forms import Form
from numpyro_vips.conjugacy.algebra.terms import Dense, NotInAlgebra, OneHot, Slot
from numpyro_vips.conjugacy.densities import log_densities, logistic_bounds
from numpyro_vips.conjugacy.families import supports
from numpyro_vips.conjugacy.interpreter.values import (
    Constant,
    Transformed,
    Value,
    as_form,
)
from numpyro_vips.conjugacy.structure.augmentation import augmented
from numpyro_vips.conjugacy.structure.latents import Latent
from numpyro_vips.conjugacy.structure.structure import (
    _by_latent,
    _statistic_name,
    normal_terms,
)

PAGE = Path(__file__).parent / "conjugacy.md"
_SIZE = 3
# Constants that fit the supports of parameters and values, tried in this order.
_EXAMPLES: tuple[tuple[Any, np.ndarray], ...] = (
    (constraints.boolean, np.array(1)),
    (constraints.simplex, np.array([0.2, 0.3, 0.5])),
    (constraints.real_vector, np.array([0.1, -0.2, 0.3])),
    (constraints.positive_definite, np.eye(_SIZE) * 5.0),
    (constraints.lower_cholesky, np.eye(_SIZE)),
    (constraints.nonnegative_integer, np.array(2)),
    (constraints.unit_interval, np.array(0.4)),
    (constraints.positive, np.array(4.0)),
    (constraints.real, np.array(0.3)),
)
# Supports of latents, how many axes they have at least, and their names.
_SUPPORTS: tuple[tuple[Any, int, str], ...] = (
    (constraints.real, 0, "real"),
    (constraints.positive, 0, "positive"),
    (constraints.unit_interval, 0, "in [0, 1]"),
    (constraints.simplex, 1, "simplex"),
    (constraints.positive_definite, 2, "positive definite"),
)
_OWN_VALUES: Mapping[type, Mapping[str, Any]] = {
    dist.Uniform: {"low": np.array(0.0), "high": np.array(1.0)},
    dist.MultinomialProbs: {"value": np.array([1, 0, 1])},
    dist.MultinomialLogits: {"value": np.array([1, 0, 1])},
    dist.CategoricalProbs: {"value": np.array(1)},
    dist.CategoricalLogits: {"value": np.array(1)},
    dist.DiscreteUniform: {
        "low": np.array(0),
        "high": np.array(_SIZE - 1),
        "value": np.array(1),
    },
}
# Parameters whose shapes follow from no constraint.
_OWN_VALUES_OF_VECTORS = {
    "loc": np.array([0.1, -0.2, 0.3]),
    "adj_matrix": 1.0 - np.eye(_SIZE),
    "cov_factor": np.ones((_SIZE, 1)),
    "cov_diag": np.ones(_SIZE),
    "correlation": np.array(0.5),
    "scale_matrix": np.eye(_SIZE),
}
_NUM_STATES: Mapping[type, int] = {
    dist.BernoulliProbs: 2,
    dist.BernoulliLogits: 2,
    dist.CategoricalProbs: _SIZE,
    dist.CategoricalLogits: _SIZE,
    dist.DiscreteUniform: _SIZE,
}
_VECTORS = {dist.MultivariateNormal: "loc", dist.Dirichlet: "concentration"}


def _example(kind: type, name: str) -> np.ndarray:
    own = _OWN_VALUES.get(kind, {})
    if name in own:
        return own[name]
    is_vector = getattr(kind, "support", None) is constraints.real_vector
    if is_vector and name in _OWN_VALUES_OF_VECTORS:
        return _OWN_VALUES_OF_VECTORS[name]
    if kind in (dist.Wishart, dist.InverseWishart) and name == "concentration":
        return np.array(5.0)
    support = (
        kind.support if name == "value" else kind.arg_constraints[name]  # type: ignore[attr-defined]
    )
    if name in ("logits",) and kind.__name__.startswith(("Categorical", "Multinomial")):
        return np.log([0.2, 0.3, 0.5])
    if not isinstance(support, constraints.Constraint):
        return np.array(0.3)
    if kind in _VECTORS and name == _VECTORS[kind]:
        return np.array([0.5, 1.0, 1.5])
    for known, value in _EXAMPLES:
        if support is known or type(support) is type(known):
            return value
    return np.array(0.4)


def _places(kind: type) -> list[str]:
    """Where in a distribution a latent may stand: its parameters and its value."""
    return [*kind.arg_constraints, "value"]  # type: ignore[attr-defined]


# Parameters of which only one is given.
_ALTERNATIVES = (
    ("covariance_matrix", "precision_matrix", "scale_tril"),
    ("scale_matrix", "rate_matrix", "scale_tril"),
)
# NumPyro keeps the mean of a NegativeBinomial2 as concentration / rate.
_SAME_AS: Mapping[type, type] = {
    dist.NegativeBinomial2: dist.GammaPoisson,
    dist.ZeroInflatedPoisson: ZeroInflatedProbs,
}


def _constants(kind: type, place: str) -> dict[str, Value]:
    """Values for all places but one; of alternative spellings only one."""
    chosen: dict[str, Value] = {}
    for name in _places(kind):
        rivals = {n for group in _ALTERNATIVES if name in group for n in group}
        if name != place and rivals & {place, *chosen}:
            continue
        example: Any = _example(kind, name)
        # What is observed is not public, so that no term can cancel.
        is_row = name == "value"
        chosen[name] = Constant(jnp.asarray(example) if is_row else example, is_row)
    return chosen


def _latents(shape: tuple[int, ...]) -> Iterator[tuple[str, Value, Any]]:
    """Latents of every support, and links in which a likelihood may want one."""
    for support, rank, _ in _SUPPORTS:
        if len(shape) != rank and (rank or support is not constraints.real):
            continue
        form = forms.latent("latent", shape, signed=support is constraints.real)
        yield "itself", form, support
        if support is constraints.real:
            yield "exp", Transformed("exp", form), support
            yield "sigmoid", Transformed("sigmoid", form), support
        if support is constraints.positive:
            yield "1/√", elementwise.power(form, -0.5), support
            yield "√", elementwise.power(form, 0.5), support
        if support is constraints.simplex:
            yield "log", elementwise.log(form), support


def _candidates(kind: type, place: str) -> Iterator[tuple[str, Value, Any]]:
    shape = _example(kind, place).shape
    if place != "value":
        yield from _latents(shape)
        return
    own: Any = kind.support  # type: ignore[attr-defined]
    if kind in _NUM_STATES:
        yield "itself", forms.latent("latent", shape, _states(kind)), own
    for link, value, support in _latents(shape):
        is_own = supports.same_support(supports.base_support(own), support)
        is_interval = kind is dist.Uniform and support is constraints.unit_interval
        is_vector = own is constraints.real_vector and support is constraints.real
        if link == "itself" and (is_own or is_interval or is_vector):
            yield link, value, support


def _states(kind: type) -> np.ndarray | None:
    return np.arange(_NUM_STATES[kind]) if kind in _NUM_STATES else None


class _Slots:
    """Stands for what is observed by slots, as where a model is compiled."""

    def __init__(self) -> None:
        self._arrays: list[Any] = []

    def __call__(self, factor: Dense | OneHot) -> Slot:
        array: Any = factor.array
        same = (i for i, other in enumerate(self._arrays) if other is array)
        token = next(same, len(self._arrays))
        self._arrays.append(array)
        return Slot(token, tuple(array.shape), array.dtype)


def _probe(
    kind: type, place: str, value: Value, support: Any
) -> tuple[str, set[str]] | None:
    """The family of a latent at one place, and those of what is introduced."""
    values = _constants(kind, place)
    values[place] = value
    x = values.pop("value")
    x_form = as_form(x)
    shape = (value.form if isinstance(value, Transformed) else as_form(value)).shape
    latent = Latent(
        name="latent",
        role="global",
        shape=shape,
        support=support,
        states=None if place != "value" else _states(kind),
    )
    density = functools.partial(log_densities.REGISTRY[kind], x_form, **values)
    try:
        form, auxiliaries = augmented(
            lambda augment: density(augment=augment),
            "site",
            "local",
            {"latent": latent},
        )
    except NotInAlgebra:
        return None
    added = [auxiliary.latent for auxiliary in auxiliaries]
    latents = {one.name: one for one in (latent, *added)}
    used: set[str] = set()
    slots = _Slots()
    terms = [term.with_arrays(slots) for term in form.terms]
    for term in normal_terms(terms, latents):
        for name, atoms in _by_latent(term).items():
            if name == "latent":
                used.add(_statistic_name(atoms, latents[name]))
    if place == "value" and kind in _NUM_STATES:
        family = families.Categorical(2) if used <= {"is"} else None
    else:
        of_rows = () if place == "value" else used
        family = families.find_family(support, used, of_rows)
    if family is None or not (used or place == "value"):
        return None
    introduced = {one.family or "" for one in added}
    return family.name, introduced


def likelihoods() -> str:
    """The table of distributions."""
    lines = [
        "| distribution | a latent may stand | through | its family | auxiliary |",
        "|---|---|---|---|---|",
    ]
    for kind in sorted(log_densities.REGISTRY, key=lambda kind: kind.__name__):
        if kind in _SAME_AS:
            lines.append(
                f"| `{kind.__name__}` | as `{_SAME_AS[kind].__name__}` | | | |"
            )
        if kind in (*_WRAPPERS, *_SAME_AS):
            continue
        found: dict[tuple[str, str, str], list[str]] = defaultdict(list)
        for place in _places(kind):
            for link, value, support in _candidates(kind, place):
                result = _probe(kind, place, value, support)
                if result is not None:
                    family, introduced = result
                    key = (place, family, ", ".join(sorted(introduced)))
                    found[key].append(link)
        name = f"`{kind.__name__}`"
        for (place, family, auxiliary), links in found.items():
            where = "as the value" if place == "value" else f"in `{place}`"
            through = ", ".join(dict.fromkeys(links))
            lines.append(
                f"| {name} | {where} | {through} | {family} | {auxiliary or '–'} |"
            )
            name = ""
    return "\n".join(lines)


# Distributions around other ones, and those that say nothing of their own.
_WRAPPERS: Mapping[type, str] = {
    dist.MixtureSameFamily: "components and weights as above; a Categorical variable "
    "says which component a value is from",
    dist.MixtureGeneral: "the same with components of different kinds",
    ZeroInflatedProbs: "a Beta or constant gate; a Categorical variable says "
    "which zeros are from it",
    dist.FoldedDistribution: "the positive half of a Normal, StudentT, Cauchy or "
    "Laplace about zero",
    dist.LeftTruncatedDistribution: "the same, as `TruncatedNormal(0, s, low=0)` "
    "writes it",
    dist.Unit: "`numpyro.factor` with any form, or with a logsumexp over one axis; "
    "then a Categorical variable says which term counts",
    dist.ImproperUniform: "a flat prior of a global; the rest of the model names its "
    "family",
}


def wrappers() -> str:
    lines = ["| distribution | |", "|---|---|"]
    for kind in log_densities.REGISTRY:
        if kind in _WRAPPERS:
            lines.append(f"| `{kind.__name__}` | {_WRAPPERS[kind]} |")
    return "\n".join(lines)


def _bounded(
    bound: logistic_bounds.LogisticBound, logits: Form, trials: Form, augment: Any
) -> Form:
    return bound(augment, logits, trials)


def bounds() -> str:
    """The table of bounds for logistic likelihoods."""
    lines = ["| `augmentation=` | auxiliary | source |", "|---|---|---|"]
    logits, one = forms.latent("latent", (), signed=True), forms.number(1.0)
    for name, bound in logistic_bounds.REGISTRY.items():
        _, auxiliaries = augmented(
            functools.partial(_bounded, bound, logits, one), "site", "local", {}
        )
        families_used = ", ".join(str(x.latent.family) for x in auxiliaries)
        source = (bound.__doc__ or "").splitlines()[0]
        default = " (default)" if name == logistic_bounds.DEFAULT else ""
        lines.append(f"| `{name}`{default} | {families_used} | {source} |")
    return "\n".join(lines)


def posterior_families() -> str:
    """The table of exponential families."""
    lines = ["| support | statistics | family |", "|---|---|---|"]
    for match in families.FAMILIES:
        readable = " or ".join(
            name for support, _, name in _SUPPORTS if support in match.supports
        )
        statistics = ", ".join(match.family.statistics)
        lines.append(f"| {readable} | {statistics} | {match.family.name} |")
    lines.append(f"| finitely many states | is | {families.Categorical.name} |")
    for family in families.OTHERS:
        if family.augmentation is not None:
            statistics = ", ".join(family.statistics)
            lines.append(f"| auxiliary variable | {statistics} | {family.name} |")
    return "\n".join(lines)


TABLES = {
    "likelihoods": likelihoods,
    "wrappers": wrappers,
    "bounds": bounds,
    "families": posterior_families,
}


def with_tables(page: str) -> str:
    """The page with every generated table made anew."""
    for name, make in TABLES.items():
        pattern = re.compile(
            rf"(<!-- generated: {name} -->\n).*?(<!-- end of {name} -->)", re.DOTALL
        )
        if not pattern.search(page):
            raise ValueError(f"{PAGE.name} has no place for the table {name!r}.")
        table = make()
        page = pattern.sub(lambda m, t=table: f"{m[1]}\n{t}\n\n{m[2]}", page)
    return page


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")

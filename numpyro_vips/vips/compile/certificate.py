"""Checks a compiled model against NumPyro's own log density, on synthetic values.

The bounds of all augmentations are tight where the posterior is a point, so at fixed
values of the latents the compiled density must equal the log joint density exactly. A
rule of the algebra that lies is caught here, in double precision, before any budget
is spent. The check that rows do not act on each other serves both engines.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.extend.core as jex_core
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jaxtyping import Array, Bool, Float

from numpyro_vips.conjugacy.algebra.terms import OneHot, Term
from numpyro_vips.conjugacy.families.family import NewMoments
from numpyro_vips.conjugacy.structure.posterior_factors import PosteriorFactor
from numpyro_vips.conjugacy.structure.structure import Structure
from numpyro_vips.errors import UnsafeModelError
from numpyro_vips.jax_tools.double_precision import evaluate_in_double, trace_in_double
from numpyro_vips.jax_tools.jaxprs import aval_of, equations_of
from numpyro_vips.jax_tools.precision import double_precision
from numpyro_vips.jax_tools.separate_rows import check_row_program
from numpyro_vips.model.distributions import unwrapped
from numpyro_vips.model.graph import ModelGraph
from numpyro_vips.model.handler_stack import unvalidated
from numpyro_vips.model.refused_rows import why_rows_meet
from numpyro_vips.model.sparse_rows import dense_rows
from numpyro_vips.model.synthetic.prior_centre import at_initial_params
from numpyro_vips.model.synthetic.prior_predictive import NoValidRows, rows_from_model
from numpyro_vips.model.synthetic.synthetic_rows import (
    synthetic_latents,
    with_synthetic_rows,
)
from numpyro_vips.vips.e_step.coordinates import copies_array, divided_by_weight
from numpyro_vips.vips.e_step.evidence_bound import entropy
from numpyro_vips.vips.program.expectations import expected, natural_parameters
from numpyro_vips.vips.program.named_arrays import (
    NewMomentsByFactor,
    NewValues,
    Numbers,
    Row,
    Rows,
    Values,
)
from numpyro_vips.vips.program.program import ConjugateProgram

NUM_ROWS = 3
NUM_UNUSUAL_ROWS = 24
_UNUSUAL_NUMBERS: list[Callable[[np.random.Generator, tuple[int, ...]], Any]] = [
    lambda rng, shape: rng.normal(0.0, 2.0, shape),
    lambda rng, shape: np.abs(rng.normal(0.0, 2.0, shape)),
    lambda rng, shape: rng.uniform(size=shape),
    lambda rng, shape: rng.integers(0, 2, shape),
    lambda rng, shape: rng.integers(0, 5, shape),
]
_MOST_INDICES = 2**15
TOLERANCE = 1e-7
# How many values of the latents are looked through for a probability of zero.
_TRIED_VALUES = 10
_WITH_PROBABILITIES = (
    dist.CategoricalProbs,
    dist.MultinomialProbs,
    dist.BernoulliProbs,
    dist.BinomialProbs,
)


class CertificateError(Exception):
    """The compiled log joint density differs from the model's.

    Attributes:
      reasons: Why, by site, or by "certificate" where no site stands out.
    """

    def __init__(self, reason: str, sites: Sequence[str] = ()) -> None:
        super().__init__(reason)
        self.reasons = dict.fromkeys(sites or ("certificate",), reason)


def numpyro_log_joint(
    graph: ModelGraph, rows: Rows, latents: Values
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """NumPyro's log density of the sites under the unit plate, and of the others."""
    totals = [jnp.zeros(()), jnp.zeros(())]
    for name, msg in graph.run(rows, latents).items():
        if msg["type"] != "sample":
            continue
        with unvalidated():
            log_prob = msg["fn"].log_prob(msg["value"])
        if msg["scale"] is not None:
            log_prob = msg["scale"] * log_prob
        totals[graph.sites[name].row_axis is None] += jnp.sum(log_prob)
    return totals[0], totals[1]


def rows_apart(graph: ModelGraph, latents: Values, count: int) -> list[NewValues]:
    """The latents of several rows, as that many models of one row each have them.

    Args:
      graph: The model of all rows.
      latents: Values by site.
      count: How many rows there are.

    Returns:
      For each row, the globals and its own entries of the locals.
    """
    found = []
    for row in range(count):
        mine = {}
        for name, value in latents.items():
            axis = graph.sites[name].row_axis
            mine[name] = value if axis is None else np.take(value, [row], axis)
        found.append(mine)
    return found


def check_rows_are_separate(graph: ModelGraph) -> None:
    """Checks that the log joint of several rows is the sum of the single ones.

    Raises:
      UnsafeModelError: It is not, as with `X - X.mean(0)`; one person's record would
        then act on the contributions of others. Or the model uses an operation by which
        rows could meet or leave; see `separate_rows`.
    """
    unchanged, graph = graph, at_initial_params(graph)
    with double_precision():
        rows: dict[str, Any] = dict(
            with_synthetic_rows(graph.arguments, NUM_ROWS, 0).private
        )
        latents = synthetic_latents(graph, NUM_ROWS, 0)

    def of_rows(rows: Rows, latents: Values) -> Float[Array, ""]:
        return numpyro_log_joint(graph, rows, latents)[0]

    single = {k: v[:1] for k, v in rows.items()}, rows_apart(graph, latents, 1)[0]
    # What the evaluation below could not run, or would hand to Python.
    check_row_program(jax.make_jaxpr(of_rows)(*single))
    of_three, of_one = (
        trace_in_double(of_rows, *args) for args in ((rows, latents), single)
    )
    together = of_three(rows, latents)
    if not np.isfinite(together):
        # Infinite sums are equal whatever the rows do to each other.
        with contextlib.suppress(NoValidRows):
            rows, latents = rows_from_model(graph, NUM_ROWS, 0)
            together = of_three(rows, latents)
    apart = sum(
        of_one({k: v[number : number + 1] for k, v in rows.items()}, mine)
        for number, mine in enumerate(rows_apart(graph, latents, NUM_ROWS))
    )
    if not _close(together, apart):
        raise UnsafeModelError(
            "The rows act on each other: the log density of several rows is not the "
            "sum of their own, and no bound on one row's influence holds then. "
            f"{why_rows_meet(unchanged)}"
        )


def _close(a: Any, b: Any) -> bool:
    both_finite = np.isfinite(a) and np.isfinite(b)
    return bool(
        (both_finite and abs(a - b) <= TOLERANCE * (1.0 + abs(a)))
        or (not both_finite and np.array_equal(a, b, equal_nan=True))
    )


def certify(program: ConjugateProgram, seed: int = 0) -> None:
    """Compares a compiled model with NumPyro's log density at random points.

    The program must have been compiled in double precision, from synthetic rows.

    Raises:
      CertificateError: They differ.
    """
    graph = program.graph
    count = graph.arguments.num_rows
    rows = graph.arguments.as_taken(dict(graph.arguments.private))
    latents = synthetic_latents(graph, count, seed)

    def numpyros(
        rows: Rows, latents: Values
    ) -> tuple[Float[Array, ""], Float[Array, ""]]:
        return numpyro_log_joint(graph, dense_rows(rows), latents)

    def of_row(row: Row, latents: Values) -> tuple[Float[Array, ""], Bool[Array, ""]]:
        return row_and_validity(program, row, latents)

    def of_prior(latents: Values) -> Float[Array, ""]:
        return _prior_at_point(program, latents)

    of_numpyro = trace_in_double(numpyros, rows, latents)
    of_rows, of_globals = of_numpyro(rows, latents)
    if not np.isfinite(of_rows):
        try:
            rows, latents = rows_from_model(graph, count, seed)
        except NoValidRows as error:
            raise CertificateError(str(error)) from None
        rows = graph.arguments.as_taken(rows)
        of_rows, of_globals = of_numpyro(rows, latents)
    singles = [
        (jax.tree.map(lambda leaf, number=number: leaf[number], rows), mine)
        for number, mine in enumerate(rows_apart(graph, latents, count))
    ]
    of_one = trace_in_double(of_row, *singles[0])
    compiled = sum(of_one(*single)[0] for single in singles)
    prior = evaluate_in_double(of_prior, latents)
    for what, of_model, found in (
        ("rows", of_rows, compiled),
        ("globals", of_globals, prior),
    ):
        if not (np.isfinite(of_model) and _close(of_model, found)):
            if np.isfinite(of_model) and not np.isfinite(found):
                impossible = _with_zero_probabilities(graph, rows, count)
                if impossible:
                    raise CertificateError(_ZERO_PROBABILITY, impossible)
            raise CertificateError(
                f"the compiled log density of the {what} is {found:.6g} at synthetic "
                f"values, and NumPyro's is {of_model:.6g}"
            )
    _certify_unusual_rows(program, of_one, singles[0][1], seed)


_ZERO_PROBABILITY = (
    "a probability of zero, as of jax.nn.one_hot(z, n), whose logarithm is not finite. "
    "VIPS takes the mean of logarithms over discrete latents. Give every outcome a "
    "small probability, such as 0.01 / n, or use engine='dpvi', which sums discrete "
    "latents out"
)


def _with_zero_probabilities(graph: ModelGraph, rows: Rows, count: int) -> list[str]:
    """The sites at which some outcome is impossible, at some values of the latents."""

    def probabilities(rows: Rows, latents: Values) -> dict[str, Float[Array, "..."]]:
        found = {}
        for name, message in graph.run(dense_rows(rows), latents).items():
            if message["type"] == "sample":
                fn, _ = unwrapped(message["fn"])
                has_any = isinstance(fn, _WITH_PROBABILITIES)
                probs: Any = getattr(fn, "probs", None) if has_any else None
                if probs is not None:
                    found[name] = jnp.asarray(probs)
        return found

    tries = [synthetic_latents(graph, count, seed) for seed in range(_TRIED_VALUES)]
    of_model = trace_in_double(probabilities, rows, tries[0])
    results = [of_model(rows, latents) for latents in tries]
    return [
        name
        for name in results[0]
        if any(np.any(found[name] == 0) for found in results)
    ]


def _certify_unusual_rows(
    program: ConjugateProgram,
    of_one: Callable[..., Any],
    latents: Values,
    seed: int,
) -> None:
    """Compares on rows with negative numbers and with every index.

    What a row may choose by its numbers, as `jnp.where(x < 0, ...)` and `a[group]` do,
    is thereby tried out. Rows that NumPyro or the program counts as invalid are left
    out, such as those with a count below zero; so each array gets real numbers,
    positive ones, fractions or counts, whichever its observation may take.
    """
    graph = program.graph

    def numpyros(row: Row, latents: Values) -> Float[Array, ""]:
        rows = {name: value[None] for name, value in dense_rows(row).items()}
        return numpyro_log_joint(graph, rows, latents)[0]

    rng = np.random.default_rng(seed)
    most = _most_alternatives(program)
    of_numpyro = None
    # Other latents too, as a function may differ on negative ones only.
    others = synthetic_latents(graph, 1, seed + 1)
    for number in range(NUM_UNUSUAL_ROWS):
        if number == NUM_UNUSUAL_ROWS // 2:
            latents = others
        row = {}
        for name, like in graph.arguments.row_shapes().items():
            if np.issubdtype(like.dtype, np.floating):
                drawn = _UNUSUAL_NUMBERS[rng.integers(len(_UNUSUAL_NUMBERS))](
                    rng, like.shape
                )
            else:
                drawn = rng.integers(0, most, like.shape)
            row[name] = np.asarray(drawn).astype(like.dtype)
        row = graph.arguments.as_taken(row)
        found, valid = of_one(row, latents)
        if not valid:
            continue
        if of_numpyro is None:
            of_numpyro = trace_in_double(numpyros, row, latents)
        expected = of_numpyro(row, latents)
        if np.isfinite(expected) and not _close(expected, found):
            raise CertificateError(
                f"the compiled log density of a synthetic row is {found:.6g}, and "
                f"NumPyro's is {expected:.6g}"
            )


def _most_alternatives(program: ConjugateProgram) -> int:
    """The length of the longest axis that something is picked from."""
    picked = [
        factor.target.size
        for term in program.row_terms
        for factor in term.constants
        if isinstance(factor, OneHot) and factor.is_private
    ]
    sizes = [2, *picked, *_gathered_sizes(program.graph.program)]
    return min(max(sizes), _MOST_INDICES)


def point_moments(factor: PosteriorFactor, values: Values) -> NewMoments:
    """The moments of a factor whose posterior is a point."""
    arrays = {name: jnp.asarray(values[name]) for name in factor.latents}
    if factor.layout is not None:
        return factor.family.at(factor.layout.coordinates(arrays))
    if len(arrays) == 1:
        return factor.family.at(*arrays.values())
    return factor.family.at(jnp.stack(list(arrays.values()), -1))


def _gathered_sizes(program: jex_core.ClosedJaxpr) -> Iterator[int]:
    """Lengths of the axes that a program gathers from."""
    for equation in equations_of(program):
        if equation.primitive.name == "gather":
            numbers = equation.params["dimension_numbers"]
            shape = aval_of(equation.invars[0]).shape
            yield from (shape[axis] for axis in numbers.start_index_map)


def row_and_validity(
    program: ConjugateProgram, row: Row, latents: Values
) -> tuple[Float[Array, ""], Bool[Array, ""]]:
    """The compiled log density of a row, and whether it may count.

    Args:
      program: The program.
      row: One entry of each private argument.
      latents: Values of all model latents, at which the density is taken.
    """
    # Synthetic observations need not lie in the support; the densities agree anyway.
    arrays, valid = program.row_constants(row)
    structure, latents = program.structure, program.with_levels(latents)
    moments = {
        factor.name: point_moments(factor, latents)
        for factor in structure.posterior_factors.values()
        if not structure.latents[factor.latents[0]].family
    }
    return _with_auxiliaries(structure, program.row_terms, arrays, moments), valid


def _prior_at_point(program: ConjugateProgram, latents: Values) -> Float[Array, ""]:
    structure = program.structure
    moments = {
        factor.name: point_moments(factor, latents)
        for factor in structure.posterior_factors_of("global")
        if not structure.latents[factor.latents[0]].family
    }
    return _with_auxiliaries(structure, program.prior_terms, {}, moments)


def _with_auxiliaries(
    structure: Structure,
    terms: Sequence[Term],
    arrays: Numbers,
    moments: NewMomentsByFactor,
) -> Float[Array, ""]:
    """The terms with auxiliary variables at their optimum, where the bound is tight.

    Args:
      structure: What was found in the model.
      terms: Terms of the model.
      arrays: What their slots stand for.
      moments: Those of the model's own latents; the others are added to them.
    """
    total = jnp.zeros(())
    terms = [term.filled(arrays) for term in terms]
    for factor in structure.posterior_factors.values():
        latent = structure.latents[factor.latents[0]]
        mine = [t for t in terms if any(a.latent == factor.name for a in t.atoms)]
        if latent.family is None or not mine:
            continue
        weight = copies_array(factor, structure.latents, arrays)
        assert weight is not None
        natural = natural_parameters(structure, factor, mine, moments)
        natural = divided_by_weight(natural, weight, factor.family)
        moments[factor.name] = factor.family.moments(natural)
        total += entropy(factor, natural, moments[factor.name], weight)
    return total + expected(structure, terms, None, moments)

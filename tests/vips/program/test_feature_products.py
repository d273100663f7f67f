"""Terms in which each coefficient has a number of its own, against SciPy's density.

Which of those numbers are features is tested in `test_feature_detection.py`.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _evaluate import evaluate
from _models import graph_of, uncertified
from scipy import stats

from numpyro_vips.conjugacy.structure.log_joint import LogJoint, symbolic_log_joint
from numpyro_vips.conjugacy.structure.row_constants import RowConstants
from numpyro_vips.conjugacy.structure.structure import Structure, find_structure
from numpyro_vips.model.trace import abstract_taken_row
from numpyro_vips.vips.program.feature_products import with_own_products

AGE, DOSE, GROUP = np.float32(1.75), np.float32(-0.5), np.int32(2)
Y = np.float32(0.25)


def normal(name: str, *shape: int) -> Any:
    return numpyro.sample(name, dist.Normal(jnp.zeros(shape), 2.0))


def interaction(age: Any, dose: Any, group: Any, y: Any) -> None:
    w = normal("w", 3)
    with numpyro.plate("rows", len(y)):
        mean = w[0] + w[1] * age + w[2] * age * dose
        numpyro.sample("y", dist.Normal(mean, 0.5), obs=y)


def slopes(age: Any, dose: Any, group: Any, y: Any) -> None:
    a = normal("a")
    with numpyro.plate("groups", 3):
        b = numpyro.sample("b", dist.Normal(0.0, 2.0))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(a + b[group] * age, 0.5), obs=y)


def two_sites(age: Any, dose: Any, group: Any, y: Any) -> None:
    """One coefficient of one number, at two sites of different precision."""
    a, b = normal("a"), normal("b")
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(a + b * age * dose, 0.5), obs=y)
        numpyro.sample("z", dist.Normal(b * age * dose, 2.0), obs=2.0 * y)


def own_scales(age: Any, dose: Any, group: Any, y: Any) -> None:
    """A row's own precision is a number of every coefficient, the intercept's too."""
    a, b = normal("a"), normal("b")
    with numpyro.plate("rows", len(y)):
        mean = a + b * age
        numpyro.sample("y", dist.Normal(mean, jnp.exp(dose)), obs=y)


def two_numbers(age: Any, dose: Any, group: Any, y: Any) -> None:
    """One coefficient of two numbers: none of them is its own."""
    a, b = normal("a"), normal("b")
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(a + b * age, 0.5), obs=y)
        numpyro.sample("z", dist.Normal(a + b * dose, 2.0), obs=2.0 * y)


def row_density(fn: Callable[..., None], at: Mapping[str, Any]) -> float:
    def normal(x: Any, mean: Any, stddev: Any) -> float:
        return float(stats.norm.logpdf(x, mean, stddev))

    if fn is interaction:
        w = at["w"]
        return normal(Y, w[0] + w[1] * AGE + w[2] * AGE * DOSE, 0.5)
    if fn is slopes:
        return normal(Y, at["a"] + at["b"][GROUP] * AGE, 0.5)
    if fn is own_scales:
        return normal(Y, at["a"] + at["b"] * AGE, np.exp(DOSE))
    product = at["b"] * AGE * DOSE
    return normal(Y, at["a"] + product, 0.5) + normal(2.0 * Y, product, 2.0)


class Written:
    """A model's log joint density, and the same with own products."""

    def __init__(self, fn: Callable[..., None]):
        rows = tuple(np.asarray(x)[None] for x in (AGE, DOSE, GROUP, Y))
        _, graph = graph_of(fn, rows)
        self.log_joint: LogJoint
        self.constants: RowConstants
        self.log_joint, self.constants = symbolic_log_joint(
            graph, abstract_taken_row(graph.arguments)
        )
        self.structure: Structure = find_structure(self.log_joint, {})
        (self.factor,) = self.structure.recentred

    def with_own_products(self, more_than: int) -> tuple[LogJoint, RowConstants] | None:
        return with_own_products(
            self.structure,
            self.factor,
            self.log_joint,
            self.constants,
            more_than=more_than,
        )


def numbers_of(constants: RowConstants) -> dict[int, Any]:
    row = {"age": AGE, "dose": DOSE, "group": GROUP, "y": Y}
    arrays, valid = constants({k: jnp.asarray(v) for k, v in row.items()})
    assert valid
    return {token: np.asarray(array) for token, array in arrays.items()}


def value_of(log_joint: LogJoint, numbers: Any, at: Mapping[str, Any]) -> float:
    """A row's part of the density that the forms say."""
    return sum(
        float(
            evaluate(
                dataclasses.replace(
                    density.form,
                    terms=tuple(term.filled(numbers) for term in density.form.terms),
                ),
                at,
            ).sum()
        )
        for density in log_joint.densities
        if density.is_row
    )


# With what the coefficients are multiplied by.
PRODUCTS = {
    interaction: [[AGE], [AGE * DOSE]],
    slopes: [[0.0, 0.0, AGE]],
    two_sites: [[AGE * DOSE]],
    own_scales: [[AGE]],
}


@pytest.mark.parametrize("fn", list(PRODUCTS), ids=lambda fn: fn.__name__)
def test_each_coefficient_has_a_number_and_the_density_is_the_same(fn: Any) -> None:
    written = Written(fn)
    found = written.with_own_products(0)
    assert found is not None
    log_joint, constants = found
    numbers = numbers_of(constants)
    products = [np.ravel(numbers[p.token]).tolist() for p in constants.products]
    expected = [np.asarray(x, float).tolist() for x in PRODUCTS[fn]]
    np.testing.assert_allclose(sorted(products), sorted(expected), rtol=1e-6)

    shapes = {s.name: s.shape for s in log_joint.latents.values()}
    rng = np.random.default_rng(0)
    for _ in range(3):
        at = {name: rng.normal(size=shape) for name, shape in shapes.items()}
        zero = {name: np.zeros(shape) for name, shape in shapes.items()}
        difference = row_density(fn, at) - row_density(fn, zero)
        for joint, of_row in (
            (written.log_joint, numbers_of(written.constants)),
            (log_joint, numbers),
        ):
            change = value_of(joint, of_row, at) - value_of(joint, of_row, zero)
            assert change == pytest.approx(difference, rel=1e-5)


@pytest.mark.parametrize(
    ("fn", "more_than"),
    [(interaction, 3), (slopes, 3), (two_sites, 1), (two_numbers, 0)],
    ids=lambda x: getattr(x, "__name__", str(x)),
)
def test_density_stays_as_it_is(fn: Any, more_than: int) -> None:
    """Where no coefficient gains a number, or it is not clear which."""
    assert Written(fn).with_own_products(more_than) is None


def three_regressions(age: Any, dose: Any, group: Any, y: Any) -> None:
    """What one regression predicts is a covariate of the next."""
    with numpyro.handlers.scope(prefix="first"):
        first = normal("a") + normal("b") * age * y
    with numpyro.handlers.scope(prefix="second"):
        second = normal("a") + normal("b") * age + normal("c") * dose
    with numpyro.handlers.scope(prefix="third"):
        third = normal("a") + normal("b") * y + normal("c") * age
    with numpyro.plate("rows", len(y)):
        numpyro.sample("dose", dist.Normal(first, 0.5), obs=dose)
        numpyro.sample("y", dist.Normal(second, 0.5), obs=y)
        numpyro.sample("z", dist.Normal(third, 0.5), obs=group.astype(float))


def test_regressions_share_covariates() -> None:
    """Each has features of its own, made of the same numbers of a row."""
    rows = tuple(np.repeat(x, 3) for x in (AGE, DOSE, GROUP, Y))
    program = uncertified(three_regressions, rows)
    assert sorted(len(f.places) for f in program.features.values()) == [1, 2, 2]
    numbers = numbers_of(program.row_constants)
    found = {
        frozenset(float(numbers[token]) for token in features.tokens)
        for features in program.features.values()
    }
    age, dose, y = float(AGE), float(DOSE), float(Y)
    assert found == {frozenset({age * y}), frozenset({age, dose}), frozenset({y, age})}

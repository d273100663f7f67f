"""Rows that are made up: they depend on shapes alone, and are what they say."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.distributions import constraints

import numpyro_vips as nv
from numpyro_vips.model.arguments import ModelArguments, bind_arguments
from numpyro_vips.model.graph import ModelGraph, build_graph
from numpyro_vips.model.synthetic.synthetic_rows import (
    directions,
    rows_of_other_sizes,
    rows_of_unit_size,
    synthetic_latents,
    synthetic_rows,
    with_synthetic_rows,
)

COUNT = 7


@nv.private(unit="rows")
def model(X: Any, n: Any, is_ill: Any, y: Any) -> None:
    share = numpyro.sample("share", dist.Beta(1.0, 1.0).expand([2]).to_event(1))
    shares = numpyro.sample("shares", dist.Dirichlet(jnp.ones(3)))
    root = numpyro.sample("root", dist.LKJCholesky(2, 1.0))
    with numpyro.plate("rows", len(y)):
        z = numpyro.sample("z", dist.Categorical(shares))
        spread = numpyro.sample("spread", dist.Gamma(2.0, 1.0))
        mean = X[:, 0] + share[0] * z + root[1, 0] + is_ill
        numpyro.sample("y", dist.Normal(mean, spread + n), obs=y)


def arguments_of(seed: int) -> ModelArguments:
    rng = np.random.default_rng(seed)
    rows = (
        rng.normal(50.0, 9.0, (20, 4)).astype(np.float32),
        rng.integers(0, 90, 20),
        rng.uniform(size=20) < 0.5,
        rng.normal(size=20),
    )
    return bind_arguments(model, rows, {})


ARGUMENTS = arguments_of(0)


def assert_equal(first: Any, second: Any) -> None:
    assert first.keys() == second.keys()
    for name, array in first.items():
        np.testing.assert_array_equal(array, second[name])
        assert array.dtype == second[name].dtype


def made_up(arguments: ModelArguments) -> list[dict[str, np.ndarray]]:
    rows = synthetic_rows(arguments, COUNT, 3)
    replaced = with_synthetic_rows(arguments, COUNT, 3).private
    return [
        rows,
        {name: np.asarray(array) for name, array in replaced.items()},
        *rows_of_unit_size(arguments, COUNT),
        *rows_of_other_sizes(rows),
    ]


def test_private_rows_of_one_shape_give_the_same_rows() -> None:
    first, second = made_up(ARGUMENTS), made_up(arguments_of(1))
    assert len(first) == len(second)
    for one, other in zip(first, second, strict=True):
        assert_equal(one, other)


def test_rows_have_the_shapes_and_types_of_private_ones() -> None:
    rows = synthetic_rows(ARGUMENTS, COUNT, 0)
    private = ARGUMENTS.row_shapes()
    assert {n: (r.shape, r.dtype) for n, r in rows.items()} == {
        name: ((COUNT, *row.shape), row.dtype) for name, row in private.items()
    }
    for name in ("X", "y"):
        assert 0.1 <= rows[name].min() < rows[name].max() <= 0.9
    assert set(np.unique(rows["n"])) == {0, 1}
    assert set(np.unique(rows["is_ill"])) == {False, True}
    other = synthetic_rows(ARGUMENTS, COUNT, 1)
    assert (other["X"] != rows["X"]).all()


def test_a_call_with_synthetic_rows_has_as_many() -> None:
    found = with_synthetic_rows(ARGUMENTS, COUNT, 0)
    assert found.num_rows == COUNT
    # Certificates are in double precision where JAX is.
    assert {r.dtype for n, r in found.row_shapes().items() if n in "Xy"} == {
        np.dtype(jnp.result_type(float))
    }
    assert found.public_num_rows == ARGUMENTS.public_num_rows
    assert found.private.keys() == ARGUMENTS.private.keys()


def test_features_are_of_unit_size_and_each_float_is_tried_as_a_label() -> None:
    guesses = list(rows_of_unit_size(ARGUMENTS, COUNT))

    def are_labels(rows: Any) -> tuple[bool, bool]:
        X, y = (bool(np.isin(rows[name], (0.0, 1.0)).all()) for name in "Xy")
        return X, y

    # What is observed comes last among the arguments, and is likelier a label.
    tried = [(False, False), (False, True), (True, False), (True, True)]
    assert sorted(map(are_labels, guesses)) == tried
    assert are_labels(guesses[0]) == (False, False)
    for rows in guesses:
        assert {n: r.dtype for n, r in rows.items()} == {
            n: r.dtype for n, r in ARGUMENTS.row_shapes().items()
        }
        if not are_labels(rows)[0]:
            norms = np.linalg.norm(rows["X"], axis=1)
            np.testing.assert_allclose(norms, 1.0, rtol=1e-6)


def test_directions_point_nowhere_in_particular() -> None:
    found = directions(np.random.default_rng(0), (4000, 2, 3))
    np.testing.assert_allclose((found**2).sum((1, 2)), 1.0)
    # Entries of a direction have mean 0 and variance 1/6; within four standard errors.
    error = 4.0 / np.sqrt(6.0 * len(found))
    assert np.abs(found.mean(0)).max() < error
    np.testing.assert_allclose((found**2).mean(0), 1.0 / 6.0, atol=error)


def test_other_sizes_are_of_one_argument_or_of_all_counts() -> None:
    rows = synthetic_rows(ARGUMENTS, COUNT, 0)
    changed = []
    for other in rows_of_other_sizes(rows):
        assert {n: (r.shape, r.dtype) for n, r in other.items()} == {
            n: (r.shape, r.dtype) for n, r in rows.items()
        }
        names = {n for n, row in rows.items() if not np.array_equal(other[n], row)}
        changed.append((names, max(float(np.abs(other[n]).max()) for n in names)))
    for name in ("X", "y"):
        sizes = [size for names, size in changed if names == {name}]
        assert max(sizes) > 500.0 and min(sizes) < 1e-3
    assert max(size for names, size in changed if names == {"n"}) > 50
    assert {"X", "n", "y"} in [names for names, _ in changed]
    assert not any("is_ill" in names for names, _ in changed)


def test_encoded_arguments_are_such_as_a_schema_returns() -> None:
    rows = synthetic_rows(ARGUMENTS, COUNT, 0)
    encoded = {"X": np.full_like(rows["X"], 0.25)}
    found = list(rows_of_other_sizes(rows, encoded))
    assert len(found) > 5
    for other in found:
        np.testing.assert_array_equal(other["X"], encoded["X"])
    assert_equal(found[0], {**rows, **encoded})


@pytest.fixture(scope="module")
def graph() -> ModelGraph:
    return build_graph(model, ARGUMENTS)


def test_latents_lie_in_their_supports(graph: ModelGraph) -> None:
    found = synthetic_latents(graph, COUNT, 0)
    shapes = {name: np.shape(value) for name, value in found.items()}
    assert shapes == {
        "share": (2,),
        "shares": (3,),
        "root": (2, 2),
        "z": (COUNT,),
        "spread": (COUNT,),
    }
    supports = {
        "share": constraints.independent(constraints.unit_interval, 1),
        "shares": constraints.simplex,
        "root": constraints.corr_cholesky,
        "z": constraints.integer_interval(0, 2),
        "spread": constraints.positive,
    }
    for name, support in supports.items():
        assert np.all(support(found[name])), name
    # Rows differ from one another, and draws from others.
    assert len(np.unique(found["spread"])) == COUNT
    other = synthetic_latents(graph, COUNT, 1)
    assert not np.array_equal(other["share"], found["share"])


def test_latents_are_in_supports_that_a_run_alone_knows():
    """Bounds that JAX computes, and bounds that are other latents."""

    @nv.private(unit="rows")
    def bounded(y: Any) -> None:
        lower = jnp.array([0.0, 10.0])
        top = numpyro.sample("top", dist.Uniform(lower, jnp.sqrt(900.0)).to_event(1))
        with numpyro.plate("rows", len(y)):
            place = numpyro.sample("place", dist.Uniform(top[0], top[1] + 30.0))
            numpyro.sample("kind", dist.Categorical(jnp.ones(3) / 3))
            numpyro.sample("y", dist.Normal(place, 1.0), obs=y)

    arguments = bind_arguments(bounded, (np.zeros(20, np.float32),), {})
    graph = build_graph(bounded, arguments)
    found = [synthetic_latents(graph, COUNT, seed=seed) for seed in (0, 0, 1)]
    assert_equal(found[0], found[1])
    top, place, kind = (found[0][name] for name in ("top", "place", "kind"))
    assert np.all((top > [0.0, 10.0]) & (top < 30.0))
    assert place.shape == (COUNT,)
    assert np.all((place > top[0]) & (place < top[1] + 30.0))
    assert set(kind) <= {0, 1, 2}
    assert np.any(found[2]["top"] != top)

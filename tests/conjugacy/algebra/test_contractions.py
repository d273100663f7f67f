"""Contractions against einsum on the whole arrays, public and traced."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest

from numpyro_vips.conjugacy.algebra.contractions import (
    constant_product,
    contract,
    expand_to,
    gather,
    one_hot_array,
    padded,
)
from numpyro_vips.conjugacy.algebra.terms import (
    Atom,
    Dense,
    Label,
    NotInAlgebra,
    OneHot,
    Origin,
)

RNG = np.random.default_rng(1)
A, B, C, V = (Label(n) for n in (2, 3, 4, 5))
X = RNG.normal(size=(2, 3))
Y = RNG.normal(size=(3, 4))
TABLE = RNG.normal(size=(5, 3))
INDEX = np.array([4, 0])

KINDS = {"public": np.asarray, "traced": jnp.asarray}


def dense_one_hot(indices: np.ndarray) -> np.ndarray:
    return (indices[..., None] == np.arange(5)) * 1.0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "output", [(), (A,), (C, A), (A, B, C), (B,), (C, B, A), (A, C)]
)
def test_products_are_einsums(kind: str, output) -> None:
    make = KINDS[kind]
    letters = {A: "a", B: "b", C: "c"}
    subscripts = "".join(letters[x] for x in output)
    expected = -1.5 * np.einsum(f"ab,bc->{subscripts}", X, Y)
    found = contract(-1.5, [(make(X), (A, B)), (make(Y), (B, C))], output)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert isinstance(found, np.ndarray) == (kind == "public")


def test_an_axis_that_nothing_has_broadcasts() -> None:
    found = contract(2.0, [(X, (A, B))], (A, C, B))
    np.testing.assert_allclose(found, 2.0 * np.repeat(X[:, None], 4, 1))
    np.testing.assert_array_equal(contract(3.0, [], (A,)), [3.0, 3.0])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("output", [(A, B), (B,), (A,), (), (A, V), (V, A, B)])
def test_selections_are_one_hots(kind: str, output) -> None:
    """Whether something is gathered, or the one-hot array itself is asked for."""
    make = KINDS[kind]
    letters = {A: "a", B: "b", V: "v"}
    subscripts = "".join(letters[x] for x in output)
    expected = np.einsum(f"av,vb->{subscripts}", dense_one_hot(INDEX), TABLE)
    operands = [OneHot(make(INDEX), (A,), V), (make(TABLE), (V, B))]
    np.testing.assert_allclose(contract(1.0, operands, output), expected, rtol=1e-5)


def test_a_selection_of_nothing_is_zero() -> None:
    operands = [OneHot(np.array([4, -1]), (A,), V), (TABLE, (V, B))]
    found = contract(1.0, operands, (A, B))
    np.testing.assert_allclose(found, [TABLE[4], np.zeros(3)])


@pytest.mark.parametrize("kinds", list(itertools.product(KINDS, KINDS)))
def test_two_selections_of_one_axis_have_to_agree(kinds) -> None:
    first, second = np.array([4, 0]), np.array([0, 1, 4])
    operands = [
        OneHot(KINDS[kinds[0]](first), (A,), V),
        OneHot(KINDS[kinds[1]](second), (B,), V),
    ]
    expected = np.equal.outer(first, second) * 1.0
    np.testing.assert_allclose(contract(1.0, operands, (A, B)), expected)
    with_table = [*operands, (TABLE, (V, C := Label(3)))]
    expected = np.einsum(
        "av,bv,vc->abc", dense_one_hot(first), dense_one_hot(second), TABLE
    )
    np.testing.assert_allclose(
        contract(1.0, with_table, (A, B, C)), expected, rtol=1e-5
    )


def test_entries_of_an_argument_are_put_at_their_places() -> None:
    origin = Origin("x")
    entries = np.array([2.0, 0.5, 7.0])
    indices = np.array([1, 4, 0])
    operands = [
        OneHot(jnp.asarray(indices), (B,), V, origin=origin),
        (jnp.asarray(entries), (B,)),
    ]
    found = contract(2.0, operands, (V,))
    expected = np.zeros(5)
    expected[indices] = 2.0 * entries
    np.testing.assert_allclose(found, expected)
    assert origin.densified  # It is said that the sparse argument was of no use.


@pytest.mark.parametrize("kind", KINDS)
def test_a_diagonal_is_an_axis_that_occurs_twice(kind: str) -> None:
    square = RNG.normal(size=(2, 2))
    found = contract(1.0, [(KINDS[kind](square), (A, A))], (A,))
    np.testing.assert_allclose(found, np.diagonal(square), rtol=1e-6)


def test_what_is_padded_is_cut_again() -> None:
    long = padded(jnp.asarray(RNG.normal(size=(3, 50))))
    assert long.shape == (3, 56) and not np.any(long[:, 50:])
    assert padded(jnp.ones(9)).shape == (9,)  # More than half would be added.
    axis = Label(50)
    weights = RNG.normal(size=50)
    found = contract(1.0, [(long, (B, axis)), (weights, (axis,))], (B,))
    np.testing.assert_allclose(found, np.asarray(long)[:, :50] @ weights, rtol=1e-4)
    assert contract(1.0, [(long, (B, axis))], (B, axis)).shape == (3, 50)
    assert contract(1.0, [(long, (B, axis))], (B, axis), cut=False).shape == (3, 56)


def test_gathering_replaces_an_axis() -> None:
    found, labels = gather(TABLE, (V, B), INDEX, (A,), V)
    assert labels == (A, B)
    np.testing.assert_array_equal(found, TABLE[INDEX])
    # With an axis in common, row by row.
    rows = RNG.normal(size=(2, 5))
    found, labels = gather(rows, (A, V), INDEX, (A,), V)
    assert labels == (A,)
    np.testing.assert_array_equal(found, rows[np.arange(2), INDEX])


def test_constants_multiply_and_selections_of_latents_do_not() -> None:
    found = constant_product(2.0, [Dense(X, (A, B)), Dense(Y, (B, C), is_private=True)])
    assert found.is_private and found.labels == (A, B, C)
    np.testing.assert_allclose(found.array, 2.0 * X[:, :, None] * Y[None])
    with pytest.raises(NotInAlgebra):
        constant_product(1.0, [Atom("w", "x", (A,)), Dense(X, (A, B))])


@pytest.mark.thorough
def test_axes_are_inserted_where_they_are_missing() -> None:
    assert expand_to(X, (A, B), (B, C, A)).shape == (3, 1, 2)
    array, labels = one_hot_array(OneHot(np.array([1, -1]), (A,), B))
    assert labels == (A, B)
    np.testing.assert_array_equal(array, [[0, 1, 0], [0, 0, 0]])

"""Constants that a row's entries put at their places, against dense arrays."""

import jax.numpy as jnp
import numpy as np
import pytest
from _evaluate import evaluate

from numpyro_vips.conjugacy.algebra.forms import Form
from numpyro_vips.conjugacy.algebra.scatters import (
    Scatter,
    as_scatter,
    is_public_number,
    map_scatters,
)
from numpyro_vips.conjugacy.algebra.terms import (
    Atom,
    Dense,
    Label,
    OneHot,
    Origin,
    Term,
)

ENTRY, PLACE = Label(3), Label(5)
INDICES = np.array([4, 0, 2])
VALUES = np.array([2.0, 0.5, 3.0])


def scatter(values=VALUES, indices=INDICES, elsewhere=0.0, *, origin=True) -> Scatter:
    one_hot = OneHot(indices, (ENTRY,), PLACE, origin=Origin("x") if origin else None)
    return Scatter(Dense(np.asarray(values), (ENTRY,)), one_hot, elsewhere)


def dense(elsewhere=0.0) -> np.ndarray:
    array = np.full(5, elsewhere)
    array[INDICES] += VALUES
    return array


def value_of(terms) -> np.ndarray:
    return evaluate(Form((PLACE,), tuple(terms)), {"w": np.ones(5)})


@pytest.mark.parametrize("elsewhere", [0.0, 1.5])
def test_terms_and_scatters_are_the_same(elsewhere: float) -> None:
    one = scatter(elsewhere=elsewhere)
    np.testing.assert_allclose(value_of(one.terms), dense(elsewhere))
    found = as_scatter((PLACE,), one.terms)
    assert found is not None and found.elsewhere == elsewhere
    np.testing.assert_allclose(value_of(found.terms), dense(elsewhere))


def test_a_product_with_constants_is_a_scatter_of_their_entries() -> None:
    one = scatter()
    weights = np.arange(1.0, 6.0)
    term = Term(
        -2.0, (Dense(weights, (PLACE,)), one.values, one.one_hot), frozenset([ENTRY])
    )
    found = as_scatter((PLACE,), [term])
    assert found is not None
    np.testing.assert_allclose(value_of(found.terms), -2.0 * weights * dense())
    np.testing.assert_allclose(found.values.array, -2.0 * weights[INDICES] * VALUES)


@pytest.mark.parametrize(
    "terms",
    [
        (*scatter().terms, *scatter().terms),  # Two of them, at places of their own.
        scatter(origin=False).terms,  # Places that may be the same.
        (Term(1.0, (Atom("w", "x", (PLACE,)),)),),
        (Term(1.0, (scatter().values, scatter().one_hot)),),  # An axis that stays.
    ],
)
def test_other_terms_are_no_scatter(terms) -> None:
    assert as_scatter((PLACE,), terms) is None


def test_a_function_of_scatters_at_the_same_places_is_one() -> None:
    first, second = scatter(elsewhere=1.0), scatter(VALUES**2, elsewhere=4.0)
    found = map_scatters(np.divide, jnp.divide, (PLACE,), [first.terms, second.terms])
    assert found is not None
    whole = np.full(5, 4.0)
    whole[INDICES] += VALUES**2
    np.testing.assert_allclose(value_of(found), dense(1.0) / whole, rtol=1e-6)
    with_number = map_scatters(np.add, jnp.add, (PLACE,), [first.terms, (Term(2.5),)])
    assert with_number is not None
    np.testing.assert_allclose(value_of(with_number), dense(1.0) + 2.5)


def test_a_function_that_is_infinite_elsewhere_is_none() -> None:
    """log 0 where a row has no entries."""
    assert map_scatters(np.log, jnp.log, (PLACE,), [scatter().terms]) is None
    other = scatter(indices=np.array([4, 0, 1]))
    terms = [scatter().terms, other.terms]
    assert map_scatters(np.add, jnp.add, (PLACE,), terms) is None
    assert map_scatters(np.add, jnp.add, (PLACE,), [(Term(1.0),)]) is None


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (np.full((2, 2), 3.0), True),
        (np.array([3.0, 3.0, 3.1]), False),
        (np.zeros(0), False),
        (jnp.full(2, 3.0), False),  # As if a row had brought it.
    ],
)
def test_numbers_that_are_known(array, expected: bool) -> None:
    assert is_public_number(array) is expected

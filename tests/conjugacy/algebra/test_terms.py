"""Terms are the same whatever their labels are called, and only then."""

import dataclasses

import numpy as np
import pytest
from _evaluate import evaluate

from numpyro_vips.conjugacy.algebra.forms import Form
from numpyro_vips.conjugacy.algebra.terms import (
    Atom,
    Dense,
    Label,
    OneHot,
    Origin,
    Slot,
    Term,
    constant_key,
    is_selector,
    picked_labels,
    product_key,
    range_of,
    same_constant,
    same_labels,
    split_selectors,
)

N, J, K = Label(2), Label(3), Label(3)
ARRAY = np.arange(6.0).reshape(2, 3)
W = np.array([0.5, -1.0, 2.0])


def matrix_vector() -> Term:
    """Σ_j A[i, j] w[j]."""
    return Term(2.0, (Dense(ARRAY, (N, J)), Atom("w", "x", (J,))), frozenset([J]))


def value(term: Term) -> np.ndarray:
    return evaluate(Form((N,), (term,)), {"w": W})


def test_a_term_with_labels_of_its_own_is_equal_and_shares_none() -> None:
    term = matrix_vector()
    again = term.with_own_labels()
    np.testing.assert_allclose(value(again), 2.0 * ARRAY @ W)
    assert not again.bound & term.bound and len(again.bound) == 1
    # Free labels stay.
    assert again.factors[0].labels[0] is N


def test_a_bound_label_that_is_replaced_is_free() -> None:
    renamed = matrix_vector().renamed({J: K})
    assert renamed.bound == frozenset()
    found = evaluate(Form((N, K), (renamed,)), {"w": W})
    np.testing.assert_allclose(found, 2.0 * ARRAY * W)


def test_a_factor_that_occurs_twice_is_taken_out_once() -> None:
    atom = Atom("w", "x", (J,))
    term = Term(3.0, (atom, atom))
    assert term.without(atom).factors == (atom,)
    assert term.without(atom, atom).factors == ()
    with pytest.raises(ValueError):
        term.without(Atom("w", "x", (J,)))


def test_products_are_known_whatever_their_labels_are_called() -> None:
    def key(i: Label, j: Label, free: tuple[Label, ...]) -> tuple:
        return product_key([Dense(ARRAY, (i, j)), Atom("w", "x", (j,))], free)

    a, b = Label(2), Label(3)
    assert key(N, J, (N,)) == key(a, b, (a,))
    # Another function of its labels, other labels in the end, other factors.
    assert key(N, J, (N,)) != key(N, J, (J,))
    assert key(N, J, (N,)) != product_key(
        [Dense(ARRAY, (N, J)), Atom("w", "x", (K,))], (N,)
    )
    assert product_key([Atom("w", "x", (J,))]) != product_key([Atom("w", "log", (J,))])
    assert product_key([Atom("w", "x", (J,))]) != product_key(
        [Atom("w", "x", (J,), power=2.0)]
    )


def test_public_constants_are_the_same_if_their_numbers_are() -> None:
    whole = np.array([1, 2, 3])
    assert same_constant(whole, whole.astype(np.float32))
    assert constant_key(whole) == constant_key(whole.astype(np.float32))
    assert constant_key(whole) != constant_key(whole[:, None])
    # Integers that no float can tell apart.
    large = np.array([2**53, 2**53 + 1])
    assert constant_key(large) != constant_key(np.array([2**53, 2**53]))
    assert not same_constant(whole, np.array([1, 2, 4]))


def test_slots_are_the_same_if_their_tokens_are() -> None:
    slot = Slot(3, (2,), np.float32)
    assert same_constant(slot, Slot(3, (2,), np.float32))
    assert not same_constant(slot, Slot(4, (2,), np.float32))
    assert constant_key(slot) == constant_key(Slot(3, (2,), np.float32))
    # Nothing is known of a slot and an array.
    assert not same_constant(slot, np.zeros(2))


def test_slots_are_filled_by_their_tokens_and_public_arrays_stay() -> None:
    slot = Slot("A", (2, 3), np.float64)
    public = Dense(np.array([1.0, 10.0]), (N,))
    indices = OneHot(Slot(1, (2,), np.int32), (N,), J)
    term = Term(1.0, (Dense(slot, (N, J)), indices, public), frozenset([J]))
    assert term.slots == [slot, Slot(1, (2,), np.int32)]
    filled = term.filled({"A": ARRAY, 1: np.array([2, 0])})
    assert filled.slots == [] and filled.factors[2] is public
    found = evaluate(Form((N,), (filled,)), {})
    np.testing.assert_array_equal(found, [ARRAY[0, 2], 10 * ARRAY[1, 0]])


@pytest.mark.parametrize(
    ("factor", "ends"),
    [
        (Dense(ARRAY, (N, J), lower=-9.0, upper=9.0), (0.0, 5.0)),
        (Dense(Slot(0, (2,), np.float32), (N,), lower=-1.0, upper=2.0), (-1.0, 2.0)),
        (Dense(np.zeros((0,)), (Label(0),), lower=0.0), (0.0, np.inf)),
        (OneHot(np.array([0, 1]), (N,), J), (0.0, 1.0)),
    ],
    ids=["public", "a slot", "empty", "one-hot"],
)
def test_the_range_is_that_of_the_numbers_or_what_is_checked(
    factor: Dense | OneHot, ends: tuple[float, float]
) -> None:
    assert range_of(factor) == ends


def test_selectors_are_what_is_zero_or_one() -> None:
    one_hot = OneHot(np.array([0, -1]), (N,), J)
    indicator = Atom("z", "is", (N, K))
    branch = Dense(np.array([1.0, 0.0]), (N,), branch=(object(), 0))
    others = [Dense(np.array([1.0, 0.0]), (N,)), Atom("w", "x", (J,))]
    term = Term(1.0, (one_hot, others[0], indicator, branch, others[1]))
    assert split_selectors(term) == ([one_hot, indicator, branch], others)
    assert picked_labels(term) == [J, K]
    assert not is_selector(others[0])
    assert one_hot.may_pick_none
    assert not dataclasses.replace(one_hot, indices=np.array([0, 1])).may_pick_none


def test_axes_of_length_one_are_the_same() -> None:
    assert same_labels((N, Label(1)), (N, Label(1)))
    assert not same_labels((J,), (K,)) and not same_labels((N,), (N, Label(1)))


def test_an_argument_remembers_what_made_it_dense_once() -> None:
    origin = Origin("X")
    for reason in ("a sum", "a square", "a sum"):
        origin.densify(reason)
    assert origin.densified == ["a sum", "a square"]

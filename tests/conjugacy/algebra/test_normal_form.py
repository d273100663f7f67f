"""The rules that rewrite a term: its value stays, and what is equal is merged."""

import numpy as np
import pytest
from _evaluate import evaluate

from numpyro_vips.conjugacy.algebra.forms import Form
from numpyro_vips.conjugacy.algebra.normal_form import simplify, without_lost_labels
from numpyro_vips.conjugacy.algebra.terms import (
    Atom,
    Dense,
    Factor,
    Label,
    Labels,
    OneHot,
    Origin,
    Slot,
    Term,
)

STATES = np.arange(3)
N, J, K, S, T = (Label(n) for n in (2, 3, 3, 3, 3))


def w(*labels: Label, power: float = 1.0) -> Atom:
    return Atom("w", "x", labels, power)


def z(*labels: Label) -> Atom:
    return Atom("z", "is", labels)


def value_of(term: Term | None, axes: Labels, seed: int = 0) -> np.ndarray:
    """A term at random values of w and z, laid out along `axes`."""
    if term is None:
        return np.zeros([axis.size for axis in axes])
    rng = np.random.default_rng(seed)
    values = {"w": rng.normal(size=3), "z": rng.integers(0, 3, 2)}
    return evaluate(Form(axes, (term,)), values, {"z": STATES})


def simplified(
    *factors: Factor, bound: Labels = (), axes: Labels = (), scale: float = 2.0
) -> Term | None:
    """The normal form, after a check that the value is the same."""
    term = Term(scale, factors, frozenset(bound))
    found = simplify(term)
    for seed in range(4):
        np.testing.assert_allclose(
            value_of(found, axes, seed), value_of(term, axes, seed), rtol=1e-6
        )
    return found


def test_equal_functions_become_a_power() -> None:
    found = simplified(w(J), w(J), w(J, power=-2.0), w(J), bound=(J,))
    assert found is not None
    assert [(f.latent, f.power) for f in found.atoms] == [("w", 1.0)]
    # Nothing is left of x · 1/x but how often it is summed.
    found = simplified(w(J), w(J, power=-1.0), bound=(J,))
    assert found is not None
    assert (found.scale, found.factors, found.bound) == (6.0, (), frozenset())
    # Two entries of one latent are no square.
    found = simplified(w(J), w(K), bound=(J, K))
    assert found is not None and len(found.factors) == 2


def test_a_discrete_latent_is_in_one_state() -> None:
    found = simplified(z(N, S), z(N, T), w(S), w(T), bound=(S, T), axes=(N,))
    assert found is not None
    assert len(found.bound) == 1
    assert sorted((f.function, f.power) for f in found.atoms) == [("is", 1), ("x", 2)]
    # Of two elements nothing is known.
    other = Label(2)
    found = simplified(z(N, S), z(other, T), bound=(S, T, N, other))
    assert found is not None and len(found.factors) == 2


def test_selections_by_the_same_index_pick_the_same_entry() -> None:
    indices = np.array([2, 0])
    other = np.array([1, 0])
    same = [OneHot(indices, (N,), S), OneHot(indices.copy(), (N,), T)]
    found = simplified(*same, w(S), w(T), bound=(S, T), axes=(N,))
    assert found is not None
    assert [f.power for f in found.atoms] == [2.0] and len(found.bound) == 1
    different = [OneHot(indices, (N,), S), OneHot(other, (N,), T)]
    found = simplified(*different, w(S), w(T), bound=(S, T), axes=(N,))
    assert found is not None and len(found.atoms) == 2


def test_entries_of_one_row_differ() -> None:
    """Only where it is said that they do: of places that may repeat, no square is."""
    entry, again = Label(2), Label(2)
    indices = np.array([2, 0])
    for origin, number in ((Origin("x"), 1), (None, 2)):
        found = simplified(
            OneHot(indices, (entry,), J, origin=origin),
            OneHot(indices, (again,), J, origin=origin),
            w(J),
            bound=(J, entry, again),
        )
        assert found is not None
        assert len([f for f in found.factors if isinstance(f, OneHot)]) == number


def test_branches_of_one_choice_exclude_each_other() -> None:
    choice, mask = object(), np.array([1.0, 0.0])
    yes = Dense(mask, (N,), branch=(choice, 0))
    no = Dense(1.0 - mask, (N,), branch=(choice, 1))
    assert simplified(yes, no, bound=(N,)) is None
    found = simplified(yes, yes, bound=(N,))
    assert found is not None and len(found.factors) == 1
    elsewhere = Dense(1.0 - mask, (N,), branch=(object(), 1))
    found = simplify(Term(1.0, (yes, elsewhere), frozenset([N])))
    assert found is not None and len(found.factors) == 2


def test_a_selection_of_all_entries_in_order_is_a_name() -> None:
    found = simplified(OneHot(np.arange(3), (J,), K), w(K), bound=(K,), axes=(J,))
    assert found is not None
    (atom,) = found.factors
    assert atom.labels == (J,)
    reversed_ = OneHot(np.arange(3)[::-1], (J,), K)
    found = simplified(reversed_, w(K), bound=(K,), axes=(J,))
    assert found is not None and len(found.factors) == 2


def test_a_selection_of_nothing_is_zero() -> None:
    nothing = OneHot(np.array([-1, -1]), (N,), J)
    assert simplified(nothing, w(J), bound=(J,), axes=(N,)) is None


def test_selections_are_followed_into_constants() -> None:
    table = np.array([[1.0, 2.0, 4.0], [8.0, 16.0, 32.0], [64.0, 128.0, 256.0]])
    index = OneHot(np.array([2, -1]), (N,), J)
    found = simplified(index, Dense(table, (J, K)), w(K), bound=(J, K), axes=(N,))
    assert found is not None
    assert not any(isinstance(f, OneHot) for f in found.factors)
    # A selection that a latent needs, too, stays.
    found = simplified(index, Dense(table, (J, K)), w(J), bound=(J, K), axes=(N,))
    assert found is not None
    assert any(isinstance(f, OneHot) for f in found.factors)


def test_what_a_row_brings_is_not_looked_at() -> None:
    """No array is there yet; a rule that looked would decide by what stands for it."""
    brought = Slot(1, (2,), np.dtype(np.int32))
    index, latent = OneHot(brought, (N,), J, is_private=True), w(J)
    found = simplify(Term(1.0, (index, latent), frozenset([J])))
    assert found is not None and found.factors == (index, latent)
    numbers = Dense(Slot(2, (2,), np.dtype(np.float32)), (N,), is_private=True)
    found = simplify(Term(1.0, (numbers, numbers), frozenset([N])))
    assert found is not None and found.factors == (numbers, numbers)


@pytest.mark.parametrize(("entry", "expected"), [(3.0, 6.0), (0.0, None)])
def test_a_constant_that_is_everywhere_the_same_is_a_number(entry, expected) -> None:
    latent = w(J)
    found = simplified(Dense(np.full((2, 3), entry), (N, J)), latent, bound=(N, J))
    if expected is None:
        assert found is None
    else:
        assert found is not None
        assert (found.scale, found.factors) == (2.0 * expected, (latent,))


def test_a_known_matrix_of_one_one_in_each_row_is_a_selection() -> None:
    matrix = np.array([[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]])
    found = simplified(Dense(matrix, (N, J)), w(J), bound=(J,), axes=(N,))
    assert found is not None
    (one_hot,) = [f for f in found.factors if isinstance(f, OneHot)]
    np.testing.assert_array_equal(one_hot.indices, [2, 0])
    found = simplified(
        Dense(matrix + matrix[::-1], (N, J)), w(J), bound=(J,), axes=(N,)
    )
    assert found is not None
    assert not any(isinstance(f, OneHot) for f in found.factors)


def test_labels_that_nothing_has_are_summed_over() -> None:
    found = without_lost_labels(Term(0.5, (w(J),), frozenset([J, N, K])))
    assert (found.scale, found.bound) == (0.5 * 2 * 3, {J})


@pytest.mark.parametrize("seed", range(60))
def test_random_terms_keep_their_value(seed: int) -> None:
    rng = np.random.default_rng(seed)
    labels = [N, J, K, S]
    factors: list[Factor] = []
    for _ in range(rng.integers(1, 6)):
        kind = rng.integers(5)
        three = labels[rng.integers(1, 4)]
        if kind == 0:
            array = rng.integers(0, 3, (3, 2)).astype(float)
            factors.append(Dense(array, (three, N)))
        elif kind == 1:
            array = np.eye(3)[rng.integers(0, 3, 3)]
            factors.append(Dense(array, (J, three)))
        elif kind == 2:
            indices = rng.integers(-1, 3, 2)
            factors.append(OneHot(indices, (N,), three))
        elif kind == 3:
            factors.append(w(three, power=float(rng.choice([-1.0, 1.0, 2.0]))))
        else:
            factors.append(z(N, three))
    used = {x for f in factors for x in f.labels}
    used |= {f.target for f in factors if isinstance(f, OneHot)}
    axes = (N,) if rng.random() < 0.5 else ()
    simplified(*factors, bound=tuple(used - set(axes)), axes=axes)

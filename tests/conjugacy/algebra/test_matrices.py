"""Functions of matrices that are latents, against NumPy's."""

from collections.abc import Callable

import numpy as np
import pytest
from _evaluate import evaluate

from numpyro_vips.conjugacy.algebra import forms, matrices
from numpyro_vips.conjugacy.algebra.forms import Form
from numpyro_vips.conjugacy.algebra.terms import Label, NotInAlgebra, OneHot

RNG = np.random.default_rng(0)
ROOTS = RNG.normal(size=(2, 3, 5))
VALUES = {
    "S": ROOTS @ ROOTS.swapaxes(-1, -2),
    "tau": RNG.uniform(0.5, 2.0, 3),
    "m": RNG.normal(size=(3, 3)),
}


def stack() -> Form:
    """Two matrices."""
    return forms.latent("S", (2, 3, 3))


def picked(places: list[int]) -> Form:
    """Which of the two each of several elements has."""
    axes = (Label(len(places)), Label(3), Label(3))
    index = OneHot(np.array(places), axes[:1], Label(2))
    form = stack()
    return forms.place(forms.select(form, 0, index, (axes[0], *form.axes[1:])), axes)


def on_the_diagonal(form: Form, entries: np.ndarray) -> Form:
    """A vector beside a public matrix."""
    return forms.place(form, (Label(3), Label(3))) * forms.constant(entries)


@pytest.mark.parametrize(
    ("form", "array"),
    [
        (stack(), VALUES["S"]),
        (stack() * 2.5, 2.5 * VALUES["S"]),
        (picked([1, 0, 1, 1]) * 0.5, 0.5 * VALUES["S"][[1, 0, 1, 1]]),
    ],
    ids=["two", "a multiple", "picked ones"],
)
def test_determinants_and_inverses_are_numpys(form: Form, array: np.ndarray) -> None:
    found = evaluate(matrices.log_det(form), VALUES)
    np.testing.assert_allclose(found, np.linalg.slogdet(array)[1], rtol=1e-12)
    inverse = matrices.inverse(form)
    np.testing.assert_allclose(evaluate(inverse, VALUES), np.linalg.inv(array))
    # And back; each is one choice still, so that more can be done to it.
    np.testing.assert_allclose(evaluate(matrices.inverse(inverse), VALUES), array)
    assert inverse.exclusive


@pytest.mark.parametrize(
    ("function", "form", "reason"),
    [
        (matrices.log_det, stack() + stack(), "the determinant of a sum"),
        (matrices.inverse, stack() + stack(), "the inverse of a sum"),
        (matrices.log_det, stack() * 0.0, "the determinant of a sum"),
        (matrices.inverse, stack() * stack(), "the inverse of a p"),
        (matrices.log_det, stack() * forms.latent("a", ()), "a product"),
        (matrices.log_det, stack() * -1.0, "a negative multiple"),
        (matrices.log_det, matrices.inverse(stack()), "the determinant of a power"),
    ],
)
def test_what_has_no_form_says_why(
    function: Callable[[Form], Form], form: Form, reason: str
) -> None:
    with pytest.raises(NotInAlgebra, match=reason):
        function(form)


def test_a_transposed_matrix_is_not_taken_for_the_matrix() -> None:
    """Its determinant would be the same, and the inverse another one."""
    form = forms.latent("m", (3, 3))
    turned = Form(form.axes[::-1], form.terms)
    with pytest.raises(NotInAlgebra):
        matrices.inverse(turned)


@pytest.mark.parametrize("entries", [np.ones(3), np.array([2.0, 0.0, -1.0])])
def test_a_diagonal_matrix_is_known_by_a_public_factor(entries: np.ndarray) -> None:
    form = on_the_diagonal(forms.latent("tau", (3,)), np.diag(entries))
    found = matrices.diagonal(form)
    assert found is not None
    expected = np.diagonal(evaluate(form, VALUES))
    np.testing.assert_allclose(evaluate(found, VALUES), expected)
    np.testing.assert_allclose(expected, VALUES["tau"] * entries)


def test_the_diagonal_of_a_sum_of_diagonal_matrices_is_their_sum() -> None:
    form = on_the_diagonal(forms.latent("tau", (3,)), np.eye(3)) + forms.constant(
        np.diag([1.0, 2.0, 3.0])
    )
    found = matrices.diagonal(form)
    assert found is not None
    np.testing.assert_allclose(evaluate(found, VALUES), VALUES["tau"] + [1, 2, 3])


@pytest.mark.parametrize("place", [(0, 1), (2, 0)])
def test_one_entry_off_the_diagonal_is_enough(place: tuple[int, int]) -> None:
    entries = np.eye(3)
    entries[place] = 1e-3
    assert (
        matrices.diagonal(on_the_diagonal(forms.latent("tau", (3,)), entries)) is None
    )
    assert matrices.diagonal(forms.latent("m", (3, 3))) is None

"""Powers, logarithms and exponentials of forms, against NumPy's at random numbers."""

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from _evaluate import evaluate

from numpyro_vips.conjugacy.algebra import elementwise, forms
from numpyro_vips.conjugacy.algebra.forms import Form
from numpyro_vips.conjugacy.algebra.terms import Dense, Label, NotInAlgebra

RNG = np.random.default_rng(0)
VALUES: dict[str, np.ndarray] = {
    "w": RNG.normal(size=3),
    "tau": RNG.uniform(0.5, 2.0, 3),
    "p": RNG.uniform(0.1, 0.9, 3),
    "z": np.array([2, 0, 1]),
    "b": np.array([1, 0, 1]),
}
STATES = {"z": np.arange(3), "b": np.arange(2)}
X = np.array([0.5, 2.0, 1.5])
W, TAU, P = VALUES["w"], VALUES["tau"], VALUES["p"]


def latent(name: str) -> Form:
    return forms.latent(name, (3,), STATES.get(name), signed=name == "w")


def value(form: Form | None) -> np.ndarray:
    assert form is not None
    return evaluate(form, VALUES, STATES)


@pytest.mark.parametrize("exponent", [-2.0, -0.5, 0.5, 1.0, 3.0])
def test_a_product_has_powers(exponent: float) -> None:
    form = 2.0 * latent("tau") * forms.constant(X)
    found = value(elementwise.power(form, exponent))
    np.testing.assert_allclose(found, (2.0 * TAU * X) ** exponent)


def test_a_power_of_a_power_is_one_power() -> None:
    third = elementwise.power(latent("tau"), -1 / 3)
    (term,) = elementwise.power(third, -3.0).terms
    (atom,) = term.atoms
    assert atom.power == 1.0


def test_a_root_of_what_may_be_negative_is_refused() -> None:
    square = elementwise.power(latent("w"), 2.0)
    for form in (latent("w"), square, -1.0 * latent("tau")):
        with pytest.raises(NotInAlgebra, match="negative"):
            elementwise.power(form, 0.5)
    fourth = elementwise.power(square, 2.0)
    np.testing.assert_allclose(value(elementwise.power(fourth, 0.5)), W**2)


def test_a_sum_has_a_square_and_nothing_else() -> None:
    form = latent("w") + 2.0 * latent("tau")
    np.testing.assert_allclose(value(elementwise.power(form, 2.0)), (W + 2 * TAU) ** 2)
    for exponent in (-1.0, 0.5, 3.0):
        with pytest.raises(NotInAlgebra, match="of a sum"):
            elementwise.power(form, exponent)
    with pytest.raises(NotInAlgebra, match="of a sum"):
        elementwise.log(form)


def test_a_logarithm_of_a_product_is_a_sum() -> None:
    form = 3.0 * elementwise.power(latent("tau"), -2.0) * forms.constant(X)
    np.testing.assert_allclose(value(elementwise.log(form)), np.log(3.0 * TAU**-2 * X))
    with pytest.raises(NotInAlgebra, match="not positive"):
        elementwise.log(-1.0 * latent("tau"))


def test_the_logarithm_of_zero_may_be_a_number() -> None:
    form = latent("tau") * forms.constant(np.array([0.0, 1.0, 2.0]))
    found = value(elementwise.log(form, finite=True))
    np.testing.assert_allclose(found[1:], np.log([TAU[1], 2 * TAU[2]]))
    assert found[0] == pytest.approx(elementwise.LOG_OF_ZERO)
    # Or that of a least number, whatever else is in the product.
    found = value(elementwise.log(form, least=1e-9))
    np.testing.assert_allclose(found[1:], np.log([TAU[1], 2 * TAU[2]]))
    assert found[0] == pytest.approx(math.log(1e-9))


def test_one_minus_a_latent_is_a_product_until_it_is_written_out() -> None:
    other = elementwise.complement(latent("p"))
    assert other is not None and len(other.terms) == 1
    product = other * latent("p")
    np.testing.assert_allclose(value(elementwise.log(product)), np.log(P * (1 - P)))
    written = elementwise.expanded(product)
    atoms = [a for term in written.terms for a in term.atoms]
    assert {atom.function for atom in atoms} == {"x"}
    np.testing.assert_allclose(value(written), P * (1 - P))
    squared = elementwise.expanded(elementwise.power(other, 2.0))
    np.testing.assert_allclose(value(squared), (1 - P) ** 2)
    # One minus that is the latent again.
    back = elementwise.complement(other)
    np.testing.assert_allclose(value(back), P)
    assert elementwise.complement(latent("w")) is None
    assert elementwise.complement(2.0 * latent("p")) is None


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        (latent("p"), np.log1p(-P)),
        (forms.constant(P), np.log1p(-P)),
        (1.0 - latent("p"), np.log(P)),
        (latent("p") * forms.constant(np.array([1.0, 0, 1])), np.log1p(-P) * [1, 0, 1]),
    ],
    ids=["a latent", "a constant", "one minus", "a switch"],
)
def test_logarithms_of_one_minus(form: Form, expected: np.ndarray) -> None:
    np.testing.assert_allclose(value(elementwise.log1m(form)), expected)


def test_logarithms_of_one_minus_a_multiple_are_refused() -> None:
    for form in (0.5 * latent("p"), latent("p") * latent("tau")):
        with pytest.raises(NotInAlgebra, match="of a product"):
            elementwise.log1m(form)


def test_an_exponential_of_logarithms_is_a_product() -> None:
    log = elementwise.log
    form = 0.5 * log(latent("tau")) - log(latent("p")) + forms.constant(X)
    found = value(elementwise.exponential(form))
    np.testing.assert_allclose(found, TAU**0.5 / P * np.exp(X))
    found = value(elementwise.exponential(elementwise.log1m(latent("p"))))
    np.testing.assert_allclose(found, 1 - P)
    assert elementwise.exponential(latent("w")) is None
    assert elementwise.exponential(log(latent("tau")) * forms.constant(X)) is None


def test_functions_of_discrete_latents_are_taken_state_by_state() -> None:
    form = elementwise.map_discrete(
        lambda z, b: np.sin(z) * (b + 2.0) ** 2, latent("z"), latent("b")
    )
    z, b = VALUES["z"], VALUES["b"]
    np.testing.assert_allclose(value(form), np.sin(z) * (b + 2.0) ** 2)
    assert form.is_discrete
    # Of one latent with itself the states agree.
    form = elementwise.map_discrete(lambda x, y: x**y, latent("z"), latent("z"))
    np.testing.assert_allclose(value(form), z.astype(float) ** z)


@pytest.mark.parametrize("is_private", [False, True])
def test_constants_are_mapped_as_arrays(is_private: bool) -> None:
    array: Any = jnp.asarray(X) if is_private else X
    form = forms.constant(array, is_private=is_private)
    found = elementwise.map_constant(
        lambda a, b: np.tanh(a) * b,
        lambda a, b: jnp.tanh(a) * b,
        form,
        forms.number(2),
    )
    assert found.is_private is is_private
    np.testing.assert_allclose(value(found), 2 * np.tanh(X), rtol=1e-6)


def test_what_is_switched_off_may_be_anything() -> None:
    """A root of a negative number that no row has is no NaN."""
    axes = (Label(3),)
    mask = Dense(np.array([1.0, 0.0, 1.0]), axes, branch=(object(), 0))
    dense = Dense(np.array([4.0, -1.0, 9.0]), axes)
    found = elementwise.map_dense(np.sqrt, dense, [mask])
    np.testing.assert_array_equal(np.asarray(found.array), [2.0, 1.0, 3.0])

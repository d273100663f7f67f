"""A sum's summands, laid out along an axis of their own."""

import numpy as np
import pytest
from _evaluate import evaluate

from numpyro_vips.conjugacy.algebra import elementwise, forms
from numpyro_vips.conjugacy.algebra.forms import Form
from numpyro_vips.conjugacy.algebra.summands import alternatives

A = np.array([[1.0, 2.0, 4.0], [0.5, 8.0, 3.0]])
STATES = np.arange(3)
VALUES = {
    "w": np.array([0.7, 1.3, 2.1]),
    "v": np.array([0.4, 0.9]),
    "z": np.array([2, 0]),
}


def latent(name: str) -> Form:
    return forms.latent(name, VALUES[name].shape, STATES if name == "z" else None)


def switched() -> Form:
    """v where z is 2, and nothing elsewhere."""
    return elementwise.map_discrete(lambda z: (z == 2) * 1.0, latent("z")) * latent("v")


SUMS = {
    "two terms": (lambda: latent("v") + 2.0, 2),
    "a matrix times a vector": (
        lambda: forms.sum_over(forms.constant(A) * latent("w"), [1]),
        3,
    ),
    "both": (
        lambda: forms.sum_over(forms.constant(A) * latent("w"), [1]) + latent("v"),
        4,
    ),
    "a term that a state switches off": (lambda: switched() + latent("v"), 2),
    "one term": (lambda: latent("v") * 3.0, 1),
}


@pytest.mark.parametrize("name", SUMS)
def test_the_alternatives_add_up_to_the_sum(name: str) -> None:
    make, count = SUMS[name]
    form = make()
    found = alternatives(form)
    assert found.shape == (*form.shape, count)
    each = evaluate(found, VALUES, {"z": STATES})
    np.testing.assert_allclose(
        each.sum(-1), evaluate(form, VALUES, {"z": STATES}), rtol=1e-6
    )


@pytest.mark.parametrize("name", SUMS)
def test_each_has_a_logarithm(name: str) -> None:
    """That is what they are for: the sum has none."""
    found = alternatives(SUMS[name][0]())
    assert found.exclusive
    each = evaluate(found, VALUES, {"z": STATES})
    logarithms = elementwise.log(found, finite=True)
    written = evaluate(logarithms, VALUES, {"z": STATES})
    np.testing.assert_allclose(written[each > 0], np.log(each[each > 0]), rtol=1e-6)
    # What is switched off is so improbable that it has no share.
    assert np.all(written[each == 0] < -80.0)


def test_the_summands_are_those_of_the_product() -> None:
    found = alternatives(SUMS["a matrix times a vector"][0]())
    each = evaluate(found, VALUES)
    np.testing.assert_allclose(np.sort(each, -1), np.sort(A * VALUES["w"], -1))

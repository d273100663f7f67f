"""The algebra of forms, against brute-force evaluation at values of the latents."""

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
import pytest
from _evaluate import evaluate

from numpyro_vips.conjugacy.algebra import elementwise, forms
from numpyro_vips.conjugacy.algebra.contractions import contract, gather, padded
from numpyro_vips.conjugacy.algebra.forms import Form
from numpyro_vips.conjugacy.algebra.terms import Label, NotInAlgebra, OneHot

RNG = np.random.default_rng(0)
STATES = np.array([0, 1, 2])
VALUES = {
    "w": np.array([0.7, -1.3, 2.1]),
    "v": np.array([-0.4, 0.9, 1.7]),
    "tau": np.array([0.5, 2.0, 3.5]),
    "p": np.array([0.2, 0.5, 0.9]),
    "z": np.array([2, 0, 1, 2]),
}
A = RNG.normal(size=(4, 3))
B = RNG.uniform(0.5, 2.0, size=(4, 3))


def latent(name: str) -> Form:
    states = STATES if name == "z" else None
    return forms.latent(name, VALUES[name].shape, states)


def check(form: Form, expected: np.ndarray) -> None:
    assert form.shape == np.shape(expected)
    found = evaluate(form, VALUES, {"z": STATES})
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


def _switched(name: str, on: Callable[[np.ndarray], np.ndarray]) -> Form:
    """on(z) · latent, with an axis for each."""
    switch = elementwise.map_discrete(lambda z: 1.0 * on(z), latent("z"))
    return forms.place(switch, (*switch.axes, Label(1)), [0]) * latent(name)


def _switched_twice(name: str) -> Form:
    first = elementwise.map_discrete(lambda z: (z == 1) * 1.0, latent("z"))
    first = forms.place(first, (*first.axes, Label(1), Label(1)), [0])
    return first * _switched(name, lambda z: z)


W, V, TAU, P, Z = (VALUES[name] for name in ("w", "v", "tau", "p", "z"))

SAME: dict[str, tuple[Callable[[], Form], np.ndarray]] = {
    "latent": (lambda: latent("w"), W),
    "discrete latent": (lambda: latent("z"), Z),
    "constant": (lambda: forms.constant(A), A),
    "constant along an axis": (
        lambda: forms.constant(np.full((3, 2), 4.0)),
        np.full((3, 2), 4.0),
    ),
    "zero": (lambda: forms.constant(np.zeros(3)), np.zeros(3)),
    "sum": (lambda: latent("w") + latent("v"), W + V),
    "sum with a number": (lambda: latent("w") + 2.0, W + 2),
    "difference from a number": (lambda: 2.0 - latent("w"), 2 - W),
    "negative": (lambda: -latent("w"), -W),
    "times zero": (lambda: latent("w") * 0.0, 0 * W),
    "product": (lambda: latent("w") * latent("v"), W * V),
    "product with itself": (lambda: latent("w") * latent("w"), W**2),
    "product of sums": (
        lambda: (latent("w") + 1.0) * (latent("v") - latent("w")),
        (W + 1) * (V - W),
    ),
    "broadcast product": (lambda: forms.constant(A) * latent("w"), A * W),
    "matrix times vector": (
        lambda: forms.sum_over(forms.constant(A) * latent("w"), [1]),
        A @ W,
    ),
    "square of a sum": (
        lambda: elementwise.power(
            forms.sum_over(forms.constant(A) * latent("w"), [1]), 2
        ),
        (A @ W) ** 2,
    ),
    "square of a difference": (
        lambda: elementwise.power(latent("w") - latent("v") * 3.0, 2),
        (W - 3 * V) ** 2,
    ),
    "inverse": (lambda: elementwise.power(latent("tau"), -1.0), 1 / TAU),
    "inverse root of a scaled latent": (
        lambda: elementwise.power(forms.constant(B) * latent("tau"), -0.5),
        (B * TAU) ** -0.5,
    ),
    "power of a power": (
        lambda: elementwise.power(elementwise.power(latent("tau"), -0.5), -2.0),
        TAU,
    ),
    "cancelling powers": (
        lambda: latent("tau") * elementwise.power(latent("tau"), -1.0),
        np.ones(3),
    ),
    "log": (lambda: elementwise.log(latent("tau")), np.log(TAU)),
    "log of a scaled power": (
        lambda: elementwise.log(
            3.0 * (forms.constant(B) * elementwise.power(latent("tau"), -0.5))
        ),
        np.log(3 * B * TAU**-0.5),
    ),
    "log of one minus a latent": (
        lambda: elementwise.log(1.0 - latent("p")),
        np.log1p(-P),
    ),
    "log1m": (lambda: elementwise.log1m(latent("p")), np.log1p(-P)),
    "log1m of one minus a latent": (
        lambda: elementwise.log1m(1.0 - latent("p")),
        np.log(P),
    ),
    "log1m of a constant": (
        lambda: elementwise.log1m(forms.constant(np.array([0.1, 0.6]))),
        np.log1p([-0.1, -0.6]),
    ),
    "log1m of a latent that a binary one switches off": (
        lambda: elementwise.log1m(_switched("p", lambda z: z == 1)),
        np.log1p(-P * (Z == 1)[:, None]),
    ),
    "log of a latent that a binary one switches off": (
        lambda: elementwise.log(_switched("p", lambda z: z == 1), least=1e-9),
        np.log(np.maximum(P * (Z == 1)[:, None], 1e-9)),
    ),
    "log of a latent that a count scales or switches off": (
        lambda: elementwise.log(0.5 * _switched("tau", lambda z: z), least=1e-9),
        np.log(np.maximum(0.5 * TAU * Z[:, None], 1e-9)),
    ),
    "log of a latent that two discrete ones switch off": (
        lambda: elementwise.log(_switched_twice("p"), least=1e-9),
        np.log(np.maximum(P * (Z == 1)[:, None, None] * Z[:, None], 1e-9)),
    ),
    "function of a discrete latent": (
        lambda: elementwise.map_discrete(lambda z: (z - 1) ** 2 + 0.5, latent("z")),
        (Z - 1) ** 2 + 0.5,
    ),
    "sum over all axes": (
        lambda: forms.sum_over(forms.constant(A) * latent("w"), [0, 1]),
        (A * W).sum(),
    ),
    "sum over an axis that does not vary": (
        lambda: forms.sum_over(
            forms.broadcast(latent("w"), (Label(4), *latent("w").axes)), [0]
        ),
        4 * W,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SAME)
def test_operations_keep_the_value(name: str) -> None:
    make, expected = SAME[name]
    check(make(), np.asarray(expected))


def _picked(indices: list[int], name: str = "w") -> Form:
    form = latent(name)
    new = Label(len(indices))
    index = OneHot(np.array(indices), (new,), Label(form.axes[0].size))
    return forms.select(form, 0, index, (new,))


@pytest.mark.parametrize("indices", [[0, 1, 2], [2, 0], [1, 1, 0, 2], [-1, 1], [-1]])
def test_select_picks_and_minus_one_gives_zero(indices: list[int]) -> None:
    expected = np.where(np.array(indices) < 0, 0.0, W[indices])
    check(_picked(indices), expected)
    check(_picked(indices) * _picked(indices), expected**2)


@pytest.mark.parametrize("exponent", [-1.0, 0.5, 2.0, -2.0])
def test_powers_and_logs_pass_through_selections(exponent: float) -> None:
    form = _picked([2, 0, 0], "tau")
    chosen = TAU[[2, 0, 0]]
    check(elementwise.power(form, exponent), chosen**exponent)
    check(elementwise.log(form), np.log(chosen))


def test_two_selections_by_one_index_are_merged() -> None:
    """x[i]·x[i] is x² at i: one atom, not two that must be told apart."""
    form = _picked([2, 0], "tau") * _picked([2, 0], "tau")
    (term,) = form.terms
    assert [(atom.function, atom.power) for atom in term.atoms] == [("x", 2.0)]


def test_a_discrete_latent_is_in_one_state() -> None:
    """1[z=j]·1[z=k] vanishes unless j=k, so a square needs a single indicator."""
    form = latent("z") * latent("z")
    check(form, Z.astype(float) ** 2)
    (term,) = form.terms
    assert len(term.atoms) == 1


OUTSIDE: dict[str, Callable[[], Form]] = {
    "inverse of a sum": lambda: elementwise.power(latent("w") + latent("v"), -1.0),
    "cube of a sum": lambda: elementwise.power(latent("w") + 1.0, 3.0),
    "log of a sum": lambda: elementwise.log(latent("tau") + latent("p")),
    "log of a contraction": lambda: elementwise.log(
        forms.sum_over(forms.constant(B) * latent("tau"), [1])
    ),
    "root of a negative": lambda: elementwise.power(-latent("tau"), 0.5),
    "log of a negative": lambda: elementwise.log(-latent("tau")),
    "log of a log": lambda: elementwise.log(elementwise.log(latent("tau"))),
    "log1m of a product": lambda: elementwise.log1m(latent("p") * latent("tau")),
    "log1m of a scaled latent": lambda: elementwise.log1m(2.0 * latent("p")),
}


@pytest.mark.parametrize("name", OUTSIDE)
def test_what_has_no_form_is_refused(name: str) -> None:
    with pytest.raises(NotInAlgebra):
        OUTSIDE[name]()


def test_contract_applies_selections() -> None:
    i, j, k = Label(4), Label(3), Label(3)
    one_hot = OneHot(np.array([2, -1, 0, 1]), (i,), k)
    matrix = RNG.normal(size=(3, 3))
    found = contract(2.0, [(matrix, (j, k)), (A, (i, j)), one_hot], (i,))
    chosen = np.array([matrix[:, 2], np.zeros(3), matrix[:, 0], matrix[:, 1]])
    np.testing.assert_allclose(found, 2 * (chosen * A).sum(1))


def test_contract_of_a_selection_alone_is_its_one_hot() -> None:
    i, k = Label(3), Label(4)
    found = contract(1.0, [OneHot(np.array([3, -1, 0]), (i,), k)], (k, i))
    np.testing.assert_array_equal(found, np.eye(5)[[3, 4, 0]][:, :4].T)


def test_contract_broadcasts_what_no_operand_has() -> None:
    i, j = Label(3), Label(2)
    found = contract(2.0, [(W, (i,))], (j, i))
    np.testing.assert_array_equal(found, np.stack([2 * W, 2 * W]))


@pytest.mark.parametrize(("size", "expected"), [(50, 56), (6, 8), (5, 5), (64, 64)])
def test_rows_are_padded_to_whole_vectors(size: int, expected: int) -> None:
    rows = RNG.normal(size=(3, size))
    found = np.asarray(padded(jnp.asarray(rows)))
    assert found.shape == (3, expected)
    np.testing.assert_array_equal(found[:, :size], rows.astype(found.dtype))
    assert not found[:, size:].any()


def test_contract_of_operands_longer_than_their_labels() -> None:
    """Whether others are as long, public, or summed out at once, changes nothing."""
    i, k = Label(4), Label(6)
    base, message, values = (RNG.normal(size=s) for s in ((4, 6), (6,), (6,)))
    longer = padded(jnp.asarray(base))
    assert longer.shape == (4, 8)
    product = (base * message).astype(np.float32)
    for other in (message, padded(jnp.asarray(message))):
        operands = [(longer, (i, k)), (other, (k,))]
        found = contract(1.0, operands, (k, i))
        np.testing.assert_allclose(found, product.T, rtol=1e-6)
        found = np.asarray(contract(1.0, operands, (i, k), cut=False))
        np.testing.assert_allclose(found[:, :6], product, rtol=1e-6)
        assert found.shape == (4, 8)
        assert not found[:, 6:].any()
        found = contract(2.0, [*operands, (values, (k,))], (i,))
        np.testing.assert_allclose(found, 2 * (product @ values), rtol=1e-4)


def test_gather_is_take_along_an_axis() -> None:
    i, j, k, n = Label(4), Label(3), Label(5), Label(6)
    array = RNG.normal(size=(4, 5, 3))
    indices = RNG.integers(0, 5, size=6)
    found, labels = gather(array, (i, k, j), indices, (n,), k)
    expected = array[:, indices].transpose(1, 0, 2)
    order = [labels.index(label) for label in (n, i, j)]
    np.testing.assert_array_equal(found.transpose(order), expected)

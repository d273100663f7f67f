"""Whether probabilities add up to one, for forms written by hand."""

import jax.numpy as jnp
import numpy as np
import pytest
from numpyro.distributions import constraints

from numpyro_vips.conjugacy.algebra import elementwise, forms
from numpyro_vips.conjugacy.algebra.forms import Form
from numpyro_vips.conjugacy.algebra.terms import Atom, Dense, Label, OneHot, Term
from numpyro_vips.conjugacy.structure.latents import Latent
from numpyro_vips.conjugacy.structure.simplices import adds_up_to_one, is_simplex


def latent(name: str, support, *shape: int, states: int = 0) -> Latent:
    return Latent(
        name=name,
        role="global",
        shape=shape,
        support=support,
        states=np.arange(states) if states else None,
    )


LATENTS = {
    one.name: one
    for one in (
        latent("p", constraints.simplex, 4),
        latent("q", constraints.simplex, 5, 4),
        latent("g", constraints.positive, 4),
        latent("v", constraints.unit_interval, 3),
        latent("w", constraints.real, 4),
        latent("z", constraints.integer_interval(0, 4), 3, states=5),
        latent("odd", constraints.circular, 4),
    )
}


def form(name: str) -> Form:
    one = LATENTS[name]
    return forms.latent(name, one.shape, one.states)


def sticks() -> Form:
    """v₁, (1 - v₁)v₂, ..., and what is left: broken off one after the other."""
    v = form("v")
    parts = []
    rest = forms.number(1.0)
    for k in range(3):
        target = Label(3)
        pick = OneHot(np.asarray(k), (), target)
        one = forms.select(v, 0, pick, ())
        parts.append(rest * one)
        rest = rest * (1.0 - one)
    total = None
    for k, part in enumerate([*parts, rest]):
        placed = part * forms.constant(np.eye(4)[k])
        total = placed if total is None else total + placed
    assert total is not None
    return total


def of_group(indices, *, is_private: bool) -> Form:
    """q[group], for as many elements as there are indices."""
    element, target = Label(np.shape(indices)[0]), Label(5)
    index = OneHot(indices, (element,), target, is_private=is_private)
    q = form("q")
    return forms.select(q, 0, index, (element, q.axes[1]))


def mixed(weight: float) -> Form:
    """w·p + (1 - w)·(1/4)."""
    return weight * form("p") + forms.constant(np.array([0.1, 0.2, 0.3, 0.4])) * (
        1.0 - weight
    )


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: form("p"), True),
        (lambda: form("q"), True),
        (lambda: 2.0 * form("p"), False),
        (lambda: form("p") * form("p"), False),
        (lambda: form("g"), False),
        (lambda: form("w"), False),
        (lambda: forms.constant(np.array([0.5, 0.25, 0.25])), True),
        (lambda: forms.constant(np.array([0.5, 0.25, 0.26])), False),
        (lambda: of_group(np.array([0, 3, 3]), is_private=False), True),
        (sticks, True),
        (lambda: sticks() * 0.999, False),
        (lambda: mixed(0.3), True),
        (lambda: form("p") + 0.01, False),
        # Latents that nobody knows how to draw: rows may decide, nothing is known.
        (lambda: form("odd"), None),
    ],
)
def test_what_adds_up_to_one(make, expected) -> None:
    assert adds_up_to_one(make(), LATENTS) is expected


def test_logarithms() -> None:
    assert adds_up_to_one(elementwise.log(form("p")), LATENTS, logarithms=True)
    assert adds_up_to_one(form("p"), LATENTS, logarithms=True) is False
    twice = 2.0 * elementwise.log(form("p"))
    assert adds_up_to_one(twice, LATENTS, logarithms=True) is False


def test_a_simplex_that_a_state_chooses_is_one() -> None:
    element, state, k = Label(3), Label(5), Label(4)
    choice = Atom("z", "is", (element, state))
    whole = Term(1.0, (choice, Atom("q", "x", (state, k))), frozenset([state]))
    assert adds_up_to_one(Form((element, k), (whole,)), LATENTS)
    # Of another state for each entry, the entries are those of several simplices.
    entry = Label(4)
    by_entry = Atom("z4", "is", (entry, state))
    several = Term(1.0, (by_entry, Atom("q", "x", (state, entry))), frozenset([state]))
    latents = LATENTS | {"z4": latent("z4", constraints.boolean, 4, states=5)}
    assert adds_up_to_one(Form((entry,), (several,)), latents) is False


def test_a_simplex_that_a_row_chooses_is_one() -> None:
    """Its index is no public array: nothing but random ones may be tried."""
    assert adds_up_to_one(of_group(jnp.array([0, 3]), is_private=True), LATENTS)
    index = OneHot(jnp.array([0, 3, 1, 2]), (Label(4),), Label(5), is_private=True)
    (entry,), q = index.labels, Atom("q", "x", (index.target, index.labels[0]))
    mixed_up = Term(1.0, (index, q), frozenset([index.target]))
    assert not adds_up_to_one(Form((entry,), (mixed_up,)), LATENTS)


def test_numbers_of_rows_decide_by_themselves() -> None:
    weights = forms.constant(jnp.array([0.2, 0.3, 0.4, 0.1]), is_private=True)
    assert adds_up_to_one(weights, LATENTS) is None
    scalar = forms.constant(jnp.array(0.4), is_private=True)
    assert adds_up_to_one(scalar * form("p"), LATENTS) is None


def test_what_a_row_switches_adds_up_whichever_way_it_is_switched() -> None:
    choice, mask = object(), jnp.array(1.0)
    yes = Dense(mask, (), is_private=True, branch=(choice, 0))
    no = Dense(1.0 - mask, (), is_private=True, branch=(choice, 1))
    p = form("p")
    (k,) = p.axes
    (atom,) = p.terms[0].atoms
    even = Dense(np.array([0.1, 0.2, 0.3, 0.4]), (k,))
    uneven = Dense(np.array([0.1, 0.2, 0.3, 0.5]), (k,))
    for other, expected in ((even, True), (uneven, False)):
        terms = (Term(1.0, (yes, atom)), Term(1.0, (no, other)))
        assert adds_up_to_one(Form((k,), terms, False), LATENTS) is expected


def test_only_simplices_are_simplices() -> None:
    assert is_simplex(constraints.simplex)
    assert is_simplex(constraints.independent(constraints.simplex, 1))
    assert not is_simplex(constraints.positive)
